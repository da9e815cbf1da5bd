"""Recognise documents: a README, a manual's page, a table of known errors. The errors that they quote are examples, and happened on no host of the reader.

What links to files beside it, or is written in the roles and directives of reStructuredText, was written to be rendered in its repository. A report, which a tracker renders, has no files beside it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchtune_sys.diagnosis.text.failures import TRACEBACK, begins_with_failure
from torchtune_sys.diagnosis.text.lines import LogLine

_LONGEST, _ENOUGH, _OF_A_REPORT = 2000, 2, 3
_LINK = re.compile(
    r"\]\(((?!\w{1,12}:|//|/uploads/|mailto|#issuecomment)[\w./-]{0,160}[\w-]{2,80}(?:\.(?:md|rst|html?|txt|py|csv|svg|png|ya?ml|toml|ipynb)|/)(?:#[\w.-]{1,120})?|#[a-z][\w-]{3,120})\)"
)
"""To a file or folder beside this one, or to a heading of this one."""
_RST = re.compile(
    r":(?:ref|doc|term|option|envvar|py:\w{3,10}):`[^`\n]{2,120}`|^\.\. (?:code-block|note|warning|toctree|image|list-table|option|contents|highlight|literalinclude)::"
)
_GENERATED = re.compile(
    r"^(?:<!-- |\.\. |# )(?:(?:this (?:file|page) (?:is|was) )?(?:auto-?|automatically )?generated|do not edit)\b", re.IGNORECASE
)
_TITLE = re.compile(
    r"(?i)^(?:#{1,3} )?\W{0,4}(?:FAQs?\b|frequently asked questions\b|常见问题|(?:(?:the|our|an?|on-?call|ops|admin\w*|gpu|cluster|slurm) ){0,3}(?:runbook|playbook|cheat ?sheet)\b(?!s? (?:fail|is|does|did|says))|(?:\d{1,2}(?:\.\d{1,2})? ?[-.:)] )?(?:troubleshooting|debugging|diagnosing) (?:(?!my\b|our\b)\w+ ){0,3}(?:guide|tips|failures|errors|hangs|problems)(?: in \w+)?\W*$|(?:known|common) (?:issues|errors|problems|pitfalls|failures)\W*$|(?:\w+ ){0,2}(?:status|state|error|exit[- ]code|message)s? reference\W*$"
    r"|(?:this|the following) (?:page|document|guide|chapter|section|table|list) (?:lists?|describes?|explains?|shows?|covers?|records?)\b"
    r"|(?:translate|classify|match|sort) the following\b|chapter \d{1,2}\b|(?:course|exercises?|abstract|minutes|agenda|tutorial|(?:short |quick )?guide|how-?to|lesson(?: \d{1,2})?|lab(?: \d{1,2})?|workshop|quiz|homework)[:,] |our paper\b|.{0,40}のお知らせ|.{0,20}维护(?:公告|通知))"
)
"""The first line of what was written for readers."""
_TELLS = re.compile(
    r"(?i)\b(?:fail(?:s|ed|ing)|die[sd]|crash(?:es|ed|ing)?|hangs?|hung|gone|stuck|broke|still|did(?:n't| not)|does(?:n't| not)|welcome|my|we|the (?:failures?|logs?|output|trace\w*|crash) of|minutes: ?\d|playbook: \S+ \*)"
)
"""In such a line: somebody tells what happened, or a program prints."""
_QUOTATION = re.compile(r"\"[^\"\n]{1,300}\"|“[^”\n]{1,300}”|`[^`\n]{1,300}`")
_OF_A_PROGRAM = re.compile(
    r"\s*(?:\[?rank ?\d|\[ *\d+\.\d+\] |\[?[EWIF]\d{4} \d\d:|\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\S{1,120}\.(?:py|cc|cpp):\d+[:)]|[\w.]{2,80}Warning: |(?:kernel|slurmstepd|srun): |(?:WARNING|ERROR|INFO|DEBUG|FATAL|CRITICAL)\b[: ])"
)
_READERS = re.compile(r"(?i)(?<![\w/.])(?:you|your|you'll|you're)(?![\w/.])")
_SENTENCE = re.compile(r"[.!?]\W{0,3} [A-Z\"]")
_PARAGRAPH, _PARAGRAPHS = 160, 2
"""An article's paragraph is longer than what programs say to those who use them, and has several sentences."""
_COMMON, _FIRST = (
    re.compile(
        r"(?:A|One) (?:very )?(?:common|frequent|typical) (?:problem|issue|error|mistake|failure)\b(?! (?:I|we)\b).{0,60}\b(?:is|are|occurs?|happens?)\b"
    ),
    5,
)
"""The first lines of a help page."""
_EXPLAINS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"^(?:#{1,6} |\d\. )?(?:overview|what (?:it|this) is|what (?:is|are|does|do) (?!my\b|wrong\b|going\b|the (?:problem|issue|cause)\b).{2,60}\??|how to (?:monitor|detect|diagnose|prevent|check|interpret|read|recogni[sz]e) .{0,60}|how to monitor|symptoms|common causes|root causes)\s*$",
        r"\b(?:root |common |typical |possible |usual )?causes? (?:include|cluster|range|fall|vary)\b|\b(?:usually|typically|commonly|often|most frequently) (?:caused|triggered|seen)\b|\bcaused by (?:one of|any of|several)\b",
        r"\b(?:is|are) (?:the|an?) (?:\w+ ){0,2}(?:condition|event|state|error|message|mechanism|code) (?:reported|raised|printed|that|which|where|in which|when)\b|\bstands for\b|\brefers to\b|\b(?:indicates|means|signals) that (?:your|the|an?|one|some)\b",
        r"\byou (?:have|can choose (?:between|from)) (?:two|three|several|a few|some) (?:options|ways|choices)\b|\bif (?:you see|you get|you encounter|this happens|that happens|that fails)\b|\beach has (?:an? )?.{0,30}\bfix\b|\ban error such as this\b|\b(?:watch|monitor|check) \S+ for\b",
    )
)
_KINDS = 2
"""Of sentences that explain an error, which a page has where nobody tells what happened to him."""
_ADVICE = re.compile(
    r"(?i)^\W{0,4}(?:\d{1,2}[.)] |[-*] )\W{0,3}(?:if (?:you|it|there|the|that|this|any|no|all|one)\b|look (?:for|at|in)\b|check\b|verify\b|make sure\b|ensure\b|inspect\b|grep\b|`[^`]{3,120}` (?:alone )?(?:means?|says?|tells?|indicates?)\b)"
)
_ADVISES = 2
"""Of a list's points that say what to look for: a runbook."""
_OVER = re.compile(
    r"(?i)\[resolved\]|^\W{0,4}(?:resolved ?[-–:]|incident (?:closed|over|resolved)\b)(?! by\b)|\bno (?:further )?action (?:is |was )?(?:required|needed|necessary)\b|\bfiled for the record\b|^\W{0,4}(?:status|state) ?: ?(?:resolved|closed)\b"
    r"|(?:^|\s{2})\W{0,4}(?:status|state|resolution|estado|état|stato|статус|状态|ステータス) ?[:：] {0,8}(?:resolved|closed|done|fixed|geschlossen|erledigt|behoben|gelöst|fermé|résolu|cerrado|resuelto|chiuso|risolto|закрыт|решен|已关闭|已解决|解決済)"
    r"|^\W{0,4}(?:(?:INC|CASE|TICKET|PM|[A-Z]{2,8})-?\d{2,8}|(?:incident|ticket|case) [#\w-]{2,20})\W{1,3}(?:closed|resolved|done|fixed|solved)\b(?! by\b)"
    r"|\b(?:returned to|back in|back into|put back in|put back into) (?:the )?(?:service|production|partition|rotation|pool)\b|\b(?:healthy|clean|stable|quiet|fine) (?:ever )?since\b|\bno recurrences?\b|\bpass(?:es|ed) (?:the )?burn-?in since\b|\bno (?:\w+ )?(?:errors?|xids?|findings?|events?) since\b"
    r"|\ball (?:\w+ ){0,3}(?:items?|incidents?|tickets?)? ?(?:\w+ )?(?:are|were) (?:now )?(?:closed|resolved)\b|\bnothing needs your attention\b|\bkeine (?:\w+ )?(?:Fehler|Ausfälle|Vorkommnisse) (?:mehr )?seit\b|\baucune (?:\w+ )?erreur depuis\b|\bsin errores desde\b"
    r"|^\W{0,4}(?:it |all |everything |now )?(?:works|working|is up|is back|running) again\b(?![^.\n]{0,40}(?:\?|\b(?:until|for|but|after)\b))|^\W{0,4}closing (?:this|the)?\b.{0,30}$|\. closing\.?$"
)
"""Of a page of a service, and of a note on an incident: what failed is mended, and nothing is asked."""
_TITLED = re.compile(r"(?i)^\W{0,4}(?:\[?resolved\b|incident (?:closed|over|resolved)\b)")
"""What stands before the name of what failed."""
_STANDS = re.compile(
    r"(?i)\b(?:still(?! (?:at \d|fine|ok\b|healthy|good|green|clean|up\b))|persist\w*|(?:is|are|comes?|came) back(?! (?:in|to|up|online)\b)|(?:happen|occur|fail|crash|hang|br[eo]k|died?)\w* again|again (?:today|now|since)|not (?:solved|fixed|resolved|working)|re-?open(?:ed)?|unresolved|wieder(?:holt|gekommen)?(?! (?:ACTIVE|aktiv|in|ok|verf))|erneut|de nouveau|otra vez)\b|\?\s*$"
)
_ASKS = re.compile(r"^\W{0,4}(?:Q(?:uestion)?\d{0,2}|问)\W{0,3}[:.：]\W{0,3}\S.{2,200}")
_QUESTIONS = 2
"""Of a list of questions with their answers."""
_ALERT = re.compile(r"\s{0,40}(?:- )?(?:alert|expr): ?\S")
"""Of rules by which a monitor raises alarms (Prometheus)."""
_BORDER = re.compile(r"^---$")
_FRONT = re.compile(r"^(?:title|layout|permalink|sidebar_\w{2,20}|description): ?\S")
_OWN = re.compile(
    r"(?i)(?<![\w/.])(?:(?:I|I'm|I've|we|we've) (?:\w+ ){0,2}?(?:get|got|have|had|see|saw|tried|try|ran|run|am|was|were|are|follow(?:ed)?|installed?|used|cannot|can't|could(?:n't| not)|face[ds]?|meet|met|encounter(?:ed)?)|my|hi|hello|thanks)(?![\w/.])"
)
"""What somebody says of what happened to him; a manual speaks to its readers."""
_FAILS = re.compile(
    r"(?i)\b(?:fail\w*|errors?|crash\w*|hangs?|hung|stuck|kill(?:s|ed)|problems?|issues?|cannot|can't|(?:do|does|did)(?:n't| not) work)\b"
)
_REPORTS = re.compile(
    r"(?i)^(?:#{1,6} |\*\*)\W{0,6}(?:describe the (?:bug|issue|problem)|(?:to |steps (?:to|for) )?reproduc\w+|expected behaviou?r|actual behaviou?r|bug description|problem description|system info\w*|your environment|environment info\w*|(?:error |relevant )?log(?:s| output)|error messages?|traceback|what happened\b.{0,60}|reminder|current behaviou?r)\W{0,6}$"
)
"""The headings of a tracker's forms: who fills one in reports something, whatever it links to."""


_INVENTED = re.compile(
    r"(?i)\b(?:excerpts?|outputs?|messages?|logs?|examples?|listings?|errors?|faults?)\b(?: \w+){0,5} (?:are|were|is|was) (?:all )?(?:examples?(?! (?:of|from|where|when)\b)|made[- ]up(?! of)|invented|fictional|fictitious|fabricated|artificial|injected|synthetic)\b"
    r"|\b(?:Ausgaben|Meldungen|Beispiele|Auszüge)\b(?: \w+){0,5} (?:sind|wurden) (?:alle )?(?:erfunden|Beispiele|ausgedacht|konstruiert)\b|\b(?:messages|exemples|extraits|sorties)\b(?: [\w-]+){0,5} (?:sont|ont été) (?:des exemples|inventés|fabriqués|fictifs|invent\w+|fabriqu\w+)"
    r"|\b(?:mensajes|ejemplos|salidas|mensagens|exemplos|saídas|messaggi|esempi)\b(?: [\w-]+){0,5} (?:son|são|sono) (?:ejemplos|inventad[oa]s|ficticios|exemplos|esempi|inventati)\b|以下(?:内容|日志|输出|报错)?(?:均|都)?(?:为|是)(?:示例|虚构|例子)|(?:架空|例示|作例)(?:のもの)?(?:です|である)"
)
"""Who wrote the text says that what it quotes happened nowhere."""
_TASKS = tuple(
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        r"^(?:\W|\d[.)]? ){0,6}(?:exercises?|(?:question|problem|task)(?= ?\d)|aufgaben?|exercices?|ejercicios?|esercizi[oe]?|übung(?:sblatt)?|задани[ея]|課題|演習|練習(?:問題)?|练习|课后作业|习题)\W{0,3}(?:\d{1,2}\b|$|[:：])",
        r"\b(?:hand(?:ed)? (?:\w+ )?in (?:by|until|as|before)|submit (?:\w+ ){1,4}(?:by|before|until)|abgabe\b|à rendre\b|entrega(?:r|:)|consegna\w*|сдать до)|提出してください|提出期限|提交截止|截止(?:时间|日期)",
        r"^(?:\W|\d[.)]? ){0,6}(?:(?:lab |summer )?course\b|quiz\b|hand-?out\b|home ?work\b|lecture\b|worksheet\b|(?:mid-?term |final )?exam\b|workshop\b|lesson \d|week \d|tp \d|travaux pratiques|vorlesung\b|praktikum\b|práctica \d)|^.{0,20}(?:入門|入门|講義|讲义).{0,30}$",
        r"^(?:\W|\d[.)]? ){0,4}(?:slide|folie|diapositiv[ea]|スライド|幻灯片) ?\d",
        r"\bpoints\b ?[:/] ?[_\d]|[_\d] ?/ ?\d{1,3} (?:points|punkte|pts)\b|\bclosed book\b|^\s*a\) .{1,80}\bb\) ",
    )
)
"""Of what is set to pupils: numbered tasks, a date to hand them in, a course, slides, points."""
_SHOWS = re.compile(
    r"(?i)\bin (?:this|the next) (?:post|article|tutorial|chapter|video|lecture|lesson|guide|series|talk|hand-?out),? (?:we|you|I)(?:'ll| will| are going to| want to)? (?:\w+ )?(?:walk|look at|learn|explain|cover|explore|discuss|go (?:over|through))\b|\bin part (?:two|three|\d) (?:of this series )?(?:we|I)\b"
)
_MANUAL = re.compile(
    r"^(?P<page>[A-Z][\w.:+-]{1,40}\(\d\w{0,3}\))\s{2,}\S.{0,100}\s{2,}(?P=page)$|^[A-Z][A-Z0-9_.-]{1,30}\(\d\w{0,3}\)$"
)
"""The head of a manual's page (man-pages(7))."""
_ALSO = 2


def _teaches(texts: Sequence[str]) -> bool:
    """Return whether a text shows errors to those who learn to read them, and no program tells at its margin of one, with the place where it was raised."""
    first = texts[:_OF_LESSONS]
    is_manual = bool(first) and _MANUAL.match(first[0]) is not None and not any(map(begins_with_failure, texts))
    says_so = any(map(_INVENTED.search, first)) or any(map(_SHOWS.search, first))
    if not (is_manual or says_so):
        whole = "\n".join(first)
        if sum(kind.search(whole) is not None for kind in _TASKS) < _ALSO:
            return False
    return not any(text.startswith(TRACEBACK) for text in texts) and not _is_report(texts)


_OF_LESSONS = 200


def is_one(lines: Sequence[LogLine]) -> bool:
    """Return whether the text is a document.

    >>> page = ("# Known errors", "See [the driver](driver.md) and [shared memory](shm.md#size).", "- RuntimeError: CUDA error: out of memory")
    >>> is_one([LogLine(number=number, text=text, printed=text) for number, text in enumerate(page)])
    True
    >>> is_one([LogLine(number=1, text=page[2], printed=page[2])])
    False

    Somebody who reports an error may point to a page or two of a project:

    >>> report = ("I followed [the guide](docs/install.md) and my run fails:", "RuntimeError: CUDA error: out of memory")
    >>> is_one([LogLine(number=number, text=text, printed=text) for number, text in enumerate(report)])
    False
    """
    texts = [line.text[:_LONGEST] for line in lines]
    return (_is_written_as_one(texts) or _teaches(texts)) and not any(map(_REPORTS.match, texts))


def _is_written_as_one(texts: Sequence[str]) -> bool:
    if texts and (_GENERATED.match(texts[0]) or (_is_title(texts[0]) and not _is_report(texts))):
        return True
    if sum(_ASKS.match(text) is not None for text in texts) >= _QUESTIONS:
        return True
    if len({found[0].strip(" -")[:5] for found in map(_ALERT.match, texts) if found}) > 1:
        return True
    if sum(_ADVICE.match(text) is not None for text in texts) >= _ADVISES and not any(map(_OWN.search, texts)):
        return not any(map(begins_with_failure, texts))
    if _is_article(texts) or _explains(texts) or (any(map(_COMMON.match, texts[:_FIRST])) and not _is_report(texts)):
        return True
    if (
        len(texts) > 3
        and _BORDER.match(texts[0])
        and any(map(_FRONT.match, texts[1:12]))
        and any(map(_BORDER.match, texts[2:30]))
    ):
        return True
    links = {link for text in texts if "](" in text for link in _LINK.findall(text)}
    pages = sum(link.partition("#")[0].endswith((".md", ".rst")) for link in links)
    marks = sum(_RST.search(text) is not None for text in texts if ":`" in text or text.startswith(".. "))
    if marks >= _ENOUGH:
        return True
    return len(links) + pages >= _ENOUGH and (len(links) > _OF_A_REPORT or not _is_report(texts))


def is_over(lines: Sequence[LogLine]) -> bool:
    """Return whether the text tells of an incident that has ended.

    >>> is_over([LogLine(number=1, text=text, printed=text) for text in ("[Resolved] errors of the hub", "No space left on device")])
    True
    """
    texts = [line.text[:_LONGEST] for line in lines[:_OF_NOTES]]
    if len(lines) > _OF_NOTES or any(map(_STANDS.search, texts)):
        return False
    told = [(at, found) for at, text in enumerate(texts) if (found := _OVER.search(text)) is not None]
    return (
        bool(told)
        and not any(_FAILS.search(texts[at][found.end() :]) for at, found in told if _TITLED.match(texts[at]) is None)
        and not _fails_later(texts, told[-1][0])
    )


def _fails_later(texts: Sequence[str], last: int) -> bool:
    """Return whether a program fails behind the last words that call it over, if these are no heading."""
    return last >= _OF_A_REPORT and any(map(begins_with_failure, texts[last + 1 :]))


_OF_NOTES = 40
"""Lines: what is longer holds a log."""


def _is_title(text: str) -> bool:
    return _TITLE.match(text) is not None and _TELLS.search(_QUOTATION.sub("", text)) is None


def _is_article(texts: Sequence[str]) -> bool:
    """Return whether paragraphs speak to readers, and nobody tells of himself; what programs print speaks to who uses them."""
    spoken = {text for text in texts if len(text) >= _PARAGRAPH and _READERS.search(text) and _SENTENCE.search(text)}
    spoken = {text for text in spoken if not _OF_A_PROGRAM.match(text)}
    return len(spoken) >= _PARAGRAPHS and not any(map(_OWN.search, texts)) and not any(map(begins_with_failure, texts))


def _explains(texts: Sequence[str]) -> bool:
    """Return whether a page explains an error in several ways, and nobody tells of himself; a line that a program printed stands in it as an example."""
    kinds = sum(any(map(kind.search, texts)) for kind in _EXPLAINS)
    printed = sum(map(begins_with_failure, texts))
    return kinds >= _KINDS + (printed > 0) and printed <= 1 and not any(map(_OWN.search, texts))


def _is_report(texts: Sequence[str]) -> bool:
    """Return whether somebody tells in the first person that something failed."""
    return any(_OWN.search(text) and _FAILS.search(text) for text in texts)
