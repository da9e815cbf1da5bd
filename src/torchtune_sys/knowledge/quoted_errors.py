"""Sentences that quote an error to speak of the tests, the documents or the code that know it. None happened there."""

from __future__ import annotations

import re

from torchtune_sys.model.patterns import pattern

_LONGEST = 1500
_QUOTED = pattern(
    r"(?s)(?P<marks>`{1,3})(?=\S).{12,900}?(?P=marks)(?!\w)|“[^“”]{12,900}”|«[^«»]{12,900}»|(?<![\w\"])\"(?=[^\s\"])[^\"]{12,900}\"(?!\w)|(?<![\w'])'(?=[^\s'])[^']{12,900}'(?!\w)"
)
_ERROR = pattern(
    r"(?i)error\b|exception\b|\bfail|\b(?:can|could|does|did|is|was) ?not\b|\bcan't\b|\bunable\b|\bdenied\b|\bmismatch|\bkilled\b|\bXid\b|\btoo (?:old|many|small|large)\b|\bno (?:space|such)\b|\bnot found\b|\bnot compiled\b|\brefused\b|\btimed? ?out\b|\binvalid\b|\bout of memory\b|\bWARN"
)
_PRINTS = re.compile(
    r"\s*(?:E {2,}|\[|[\w.]{2,80}(?:Error|Exception|Warning)\b|[A-Z]{4,8}\b[:\s]|\d{4}-\d\d|\w{3} +\d{1,2} \d\d:|Traceback|\S{1,60}:\d+)"
)
"""How a line begins that a program prints: its words are no sentence about it."""
_HAPPENED = pattern(
    r"(?i)\b(?:I|we|you|they)(?:'ve|'m|'re)?(?: (?:have|has|am|are|do|can|will|still|always|sometimes|often|just|then|now|only|also|keep|kept|suddenly|randomly|constantly))* (?:get|got|gets|getting|see|saw|seen|seeing|hit|hitting|face[ds]?|encounter\w*|receive[ds]?|receiving|r[au]n into|meet|met|experienc\w+|end(?:ed)? up)\b"
    r"|\b(?:it|they|this|that|which|everything|my|our|the|all|every|each|any)(?: [\w./-]+){0,5}? (?:fail(?:s|ed)?|crash(?:e[sd])?|die[sd]|dying|stop(?:s|ped)|hang(?:s)?|hung|br[eo]ak?s?|broke|abort(?:s|ed)?|exit(?:s|ed)|stuck|is killed|was killed)\b"
    r"|\b(?:my|our)(?: [\w./-]+){1,5}? (?:prints?|raises?|throws?|gives?|outputs?|g[oe]ts?) |\b(?:died|errors? out|errored|failing|crashing)\b|\bnow (?:raises|throws|fails|shows|prints|gives|says|reports|returns)\b"
    r"|\b(?:since|after) (?:today|yesterday|this morning|last|mon|tues|wednes|thurs|fri|satur|sun|the (?:\w+ )?(?:update|upgrade|reboot|move|maintenance)|(?:an?|the|my|our) )|\b(?:today|yesterday|last night|this morning|every (?:time|day|night|run|hour|few)|each time|again and again|once a day)\b"
    r"|\bon (?:my|our|one of|all|this|these|both|some) |\b(?:any (?:help|ideas?|hints?)|help me|please help|how (?:do|can|to|could|should) (?:I )?(?:fix|solve|resolve|get rid)|what (?:should|can|shall) (?:I|we) do)\b"
)
"""Somebody tells beside the quoted words that it happened to him."""
_CLAUSES = pattern(r"[.;:!?](?=\s)|, (?=(?:but|yet|then|so|however|although|though|and)\b)")
_WORDS = r"(?:(?!(?:and|but|then|not|no|never|without|which|because|with)\b|\w+n't\b)[\w()./'-]+ ){0,%d}"
_DOCUMENT = r"(?:docs?|documentation|read-?me|FAQ|tutorial|change ?log|release notes?|slides?|hand-?book|manual|wiki|docstring|spec(?:ification)?|lecture|book|article|blog(?: post)?|guide|page|chapter|glossary|help desk|cheat ?sheet|runbook|comment|announcement|translations?)"
_READER = r"(?:parser|reg(?:ular )?ex(?:p|pression)?s?|pattern|matcher|classifier|handlers?|decorator|linter|filter|detector|dictionary|mapping|table|rules?|heuristic|health check(?:er)?|monitor\w*|alert\w*|middleware|dashboard|grammar|log scraper|wrapper)"
_ABOUT = tuple(
    pattern(rf"(?i){each}")
    for each in (
        rf"\b(?:checks?|expects?|asserts?|verif(?:y|ies)|ensures?|requires?|confirms?) {_WORDS % 8}…",
        rf"(?<!\bI )(?<!\bwe )(?<!\byou )\b(?:must|should|shall|is (?:expected|supposed|meant) to) (?:also |only |still )?(?:raise|print|match|recogni[sz]e|return|report|throw|contain|say|detect|catch|ignore|name|find|translate|handle|emit) {_WORDS % 4}…",
        rf"\b{_DOCUMENT} (?:now |also |already |only |still )?(?:lists?|says?|mentions?|describes?|explains?|shows?|quotes?|documents?|names?|contains?|covers?|defines?|cites?|has|have|starts? with|begins? with) {_WORDS % 6}…",
        rf"\bin (?:the|our|my|a|this|its) (?:\w+ )?{_DOCUMENT},? (?:(?:I|we|they|it|you) )?(?:\w+ )?(?:show|explain|describe|quote|mention|list|document|say)s? {_WORDS % 5}…",
        rf"…,? {_WORDS % 6}(?:in|on|into|to|from|for) (?:the|our|my|a|an|this|its) (?:[\w-]+ ){{0,2}}{_DOCUMENT}\b",
        rf"\b{_READER}s? (?:\w+ )?(?:should |must |can |does |will )?(?:match|recogni[sz]e|map|ignore|translate|catch|turn|convert|swallow|suppress|detect|handle|filter|classif|label|complain|look|search|grep|find|know)\w* {_WORDS % 6}…",
        r"\b(?:recogni[sz]es?|maps?|translates?|classif(?:y|ies)|swallow(?:s|ed)?|suppress(?:es)?|turns?|converts?|mock(?:s|ed)?|simulates?|injects?|parses?|words?|rewords?|rephrases?|patch(?:es)?|stubs?) (?:(?:the|an?|any|this|our|error|message|line|text|exception|string) )*…",
        rf"\b(?:mock|stub|fake|dummy|simulator|(?:fault )?injector|fixture)\b(?: {_WORDS % 5}| )…",
        r"\b(?:wording|text|message|translation|detection|handling|spelling|meaning|tests?|regex|parser|pattern|support|fixture) (?:of|for) (?:the )?(?:(?:message|error|text|string|exception|line) )?…(?! (?:in|on) my)",
        r"\bdefines? (?:the |this )?(?:message|error|text|string|constant|exception) …",
        r"\b(?:replac|chang|renam|improv|reword|correct|shorten|translat|edit)(?:es?|ing) (?:the )?(?:text|message|wording|error message|string|words) (?:\w+ ){0,2}…",
        r"… (?:is|was|are) (?:no longer|never|not) (?:raised|thrown|printed|shown|logged) (?:any ?more|again|by|in|since)?|… is (?:a|an|the|our|just a|only a) (?:\w+ ){0,2}(?:test|test vector|example|placeholder|sample|constant|fixture|string)\b",
        r"\b(?:wrote|write|writes|put|puts|insert(?:s|ed)?|paste[sd]?) … (?:into|in|to) .{0,40}\b(?:by hand|to (?:test|see whether|check))\b",
        r"^\W*if (?:someone|somebody|users?|people|anyone|anybody|a (?:user|customer|colleague|student)|they) (?:sees?|gets?|hits?|runs? into|reports?|encounters?|asks? about) …",
    )
)
"""What is said around the quoted words, which "…" stands for."""
_ANYWHERE = pattern(
    rf"(?i)\b(?:on purpose|by design|deliberately raise[sd]?|as (?:it should|designed|intended))\b|\bwhere (?:in .{{1,40}} )?(?:is|are) (?:this|the|that) (?:message|text|string|wording) (?:defined|written|kept)\b|\b(?:write|put|add|mention|document|describe) (?:it|this|that|them) (?:in|into|to) (?:the|our|my|a) (?:\w+ )?{_DOCUMENT}\b"
)


def is_example(line: str) -> bool:
    """Return whether the line quotes an error as an example, and nobody says that it happened to him.

    >>> is_example("Our CI checks that `RuntimeError: CUDA error: no kernel image is available` is raised.")
    True
    >>> is_example("Our CI fails since Monday: `RuntimeError: CUDA error: no kernel image is available` is raised.")
    False
    """
    line = line[:_LONGEST]
    if not any(mark in line for mark in "`\"'“«") or _PRINTS.match(line):
        return False
    spoken = _QUOTED.sub(lambda quoted: "…" if _ERROR.search(quoted[0]) else "it", line.replace("…", "..."))
    if "…" not in spoken or _HAPPENED.search(spoken):
        return False
    clauses = [clause for clause in _CLAUSES.split(spoken) if "…" in clause]
    return _ANYWHERE.search(spoken) is not None or any(about.search(clause) for clause in clauses for about in _ABOUT)
