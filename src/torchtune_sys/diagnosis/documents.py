"""Recognise documents: a README, a manual's page, a table of known errors. The errors that they quote are examples, and happened on no host of the reader.

What links to files beside it, or is written in the roles and directives of reStructuredText, was written to be rendered in its repository. A report, which a tracker renders, has no files beside it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchtune_sys.diagnosis.text.failures import begins_with_failure
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
    r"(?i)^(?:#{1,3} )?\W{0,4}(?:FAQs?\b|frequently asked questions\b|常见问题|(?:the |our |an? )?(?:runbook|playbook|cheat ?sheet)\b(?!s? (?:fail|is|does|did|says))|(?:\d{1,2}(?:\.\d{1,2})? ?[-.:)] )?(?:troubleshooting|debugging|diagnosing) (?:(?!my\b|our\b)\w+ ){0,3}(?:guide|tips|failures|errors|hangs|problems)(?: in \w+)?\W*$|(?:known|common) (?:issues|errors|problems|pitfalls|failures)\W*$|(?:\w+ ){0,2}(?:status|state|error|exit[- ]code|message)s? reference\W*$"
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
)
"""Of a page of a service, and of a note on an incident: what failed is mended, and nothing is asked."""
_STANDS = re.compile(
    r"(?i)\b(?:still|persist\w*|(?:is|are|comes?|came) back(?! (?:in|to|up|online)\b)|(?:happen|occur|fail|crash|hang|br[eo]k|died?)\w* again|again (?:today|now|since)|not (?:solved|fixed|resolved|working))\b"
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
    return _is_written_as_one(texts) and not any(map(_REPORTS.match, texts))


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
    return len(lines) <= _OF_NOTES and any(map(_OVER.search, texts)) and not any(map(_STANDS.search, texts))


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
