"""Find what somebody says was the cause, or what helped, in the words of people around a log.

Three forms count. A *remedy* against one cause, in a clause that says that it worked; a *state* of the host that is a fault, in a clause that puts the blame on it; a
*claim*, words that by themselves say that something is broken. What is asked, denied, guessed, advised or told of a change of a program is not taken.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from torchtune_sys.diagnosis.lines import LogLine
from torchtune_sys.diagnosis.symptoms import LIKELY, POSSIBLE, Candidate, Symptom
from torchtune_sys.knowledge import tables
from torchtune_sys.model.patterns import pattern

_SOLVED = re.compile(
    r"(?i)\b(?:solve[sd]|fixe[sd]|helps|helped|resolve[sd]|cured|(?:did|does) the trick|made? (?:it|everything|all|training) (?:work|run|go)\w*|got (?:it|everything) (?:working|to work|running)"
    r"|(?:now|again) (?:it |everything |training |all |that |this )?(?:works?|runs?|passes|starts)|(?:it|that|this|everything|training|all|both|they|jobs?|scripts?|code|tests?|model) (?:all )?(?:now works?|now runs?|now passes|worked|finally \w+)"
    r"|works? (?:now|again)|worked(?: for me| fine| well)?|runs? (?:now|again)"
    r"|(?:problem|issue|error|hang|freeze|crash|timeout)s? (?:disappear\w*|(?:is|was|were|are) gone|goes away|went away|vanishe[sd]|stopped|no longer)|no longer (?:hangs?|fails?|crash\w*|occurs?|happens?|freezes?)"
    r"|back to normal|(?:get|got|gives?|see) the expected (?:results?|output|behaviou?r|bandwidth|speed))\b"
)
_ANSWER = re.compile(
    r"(?i)\b(?:solution|fix|remedy|answer|workaround) (?:for (?:me|us|this) |in my case |here )?was(?:(?: to)? (?:\w+ ){0,2})?\W{0,4}$"
)
"""What follows is what helped, where it is told of the past."""
_WORKS = re.compile(
    r"(?i)\b(?:(?:it|everything|training|all|both|jobs?|scripts?|code|tests?|model) (?:all |seems to )?(?:works?|runs?|ran|passe[sd]|starts?|started)|works? (?:fine|well|as expected|correctly|properly|perfectly|normally|after|once|when|with)|runs? (?:fine|well|normally))\b"
)
_BY = re.compile(r"(?i)\b(?:with|after|when|once|by|using|setting|via|as soon as|if i|if we|i ran|export)\b.{0,30}$")
_FAILING = re.compile(
    r"(?i)hang|hung|stuck|fre+z|frozen|fail|error|time[ds]?[ -]?out|crash|\bslow|killed|refused|problem|\bissue|broken?\b|\blost\b|missing|(?:not|n't) (?:work|start|come up|run\b|usable|respond|connect|see\b|find|detect|boot)|unusable|unable to|corrupt|unreachable|\bdied\b|abort|deadlock|drain|dropp(?:ed|ing)|wrong|confus"
)
"""A remedy with which something works says little where nothing failed."""
_BLAMED = re.compile(
    r"(?i)\b(?:root cause(?:d|s)?\b|turn(?:s|ed) out\b|(?:the |my |our |actual |real |main |underlying |^)(?:problem|issue|cause|culprit|reason|error|failure|bug)s? (?:here |for me |in my case |for us )?(?:was|were|is|are)\b"
    r"|caused by\b|because(?: of)?\b|due to\b|(?:traced|tracked|narrowed|comes?|came|boil(?:s|ed)) (?:it |this |back |down )*(?:to|from)\b|result of\b|stem(?:s|med) from\b|(?:found|figured|discovered)(?: out)? (?:that |out )?(?:the|a|one|it|some|two|our|my)\b"
    r"|reason\W{1,3}(?=\w)|cause\W{1,3}(?=\w))"
)
_IS_THE_CAUSE = re.compile(
    r"(?i)\b(?:(?:was|were|is|are|being) the (?:\w+ )?(?:problem|cause|culprit|issue|reason)|caus(?:ed|es|ing) (?:this|it|the|all|my|our|these)|led to (?:this|it|the))\b"
)
_NOT_TAKEN = re.compile(
    r"(?i)n't\b|\b(?:not|never|neither|nor|cannot|without|already|if|whether|should|would|may|might|could|can|does|unless|unfortunately|only hides|usually|typically|often|sometimes|probably|perhaps|maybe"
    r"|possibly|suspect\w*|thought|assumed|believed|guess\w*|in (?:many|most|some) cases|e\.g|PR|pull request|patch|commit|merge|supports?|users?|previously|nothing|(?:the|this|user|our) manual|mock\w*|we show|guides?|docs?|documentation|tutorial|read ?me|simulat\w*|on purpose|by design|as (?:designed|expected|intended)|for example|we support|exporter|dashboard|how do i|needed)\b|\bno (?!longer|more\b|further|problem|issue|error)|\bto (?:fix|solve|resolve|avoid|prevent)\b|\?\s*$"
)
_OWN_TRIAL = re.compile(r"(?i)\b(?:if|when|once) (?:i|we)\b(?! (?:am|are|want|need|should|could|would|can|may|might))")
"""Somebody tells what happens where he does it."""
_BLAME = re.compile(r"(?i)\b(?:because(?: of)?|due to|caused by|as a result of)\b")
_OPEN = re.compile(
    r"(?i)^\W*(?:if|when|whenever|in case|should|how|why|what)\b"
    r"|(?:\bnot|n't|\bnever|\bmay|\bmight|\bcould|\bcan|\bprobably|\bmaybe|\bperhaps|\bpossibly|\blikely|\busually|\boften|\bsometimes|\bwhether|\bsuspect|\bthought|\bthink)"
    r"(?: (?:be|been|is|it|it's|was|that|simply|just|only|necessarily|also|have))*\s*$"
    r"|\b(?:PR|pull request|patch|commit|merge|supports?|manual|guides?|docs?|documentation|tutorial|read ?me|tests?|simulat\w*|on purpose|for example|exporter|dashboard|handl\w+|errors? (?:out|like)|messages?|show\w*|report\w*)\b"
)
"""Before the word of blame: it is asked, denied, guessed, or a program's. (What fails may well be told with a "not": it does not start because …)"""
_ONCE_MORE = re.compile(
    r"(?i)^(?:(?:and |then |after that,? )?(?:now|that|this|it|everything|all|problem|issue|works?|worked|fixed|solved|resolved)\b|(?:the |my )?(?:solution|fix|remedy|answer) (?:is|was)\b)"
)
_ANNOUNCES = re.compile(r"(?i)(?:\w ?:|\b(?:add|added|adding|set|setting|run|running|with|using|use|by|was|is))\s*$")
"""What is told stands in the line below, as often before a block of code."""
_CLAUSES = re.compile(r"(?<=[.!?;。])\s+|(?<=\))\s{2,}|,? \b(?:but|however|although|though|except|whereas|while)\b ")
_GATE = re.compile(
    r"(?i)solve|solution|fixe[ds]|(?:fix|remedy|answer|workaround) (?:[a-z]+ ){0,3}was|help|work|trick|cure|gone|disappear|went away|vanish|no longer|back to normal|the expected |passe[sd]|runs? |ran |caus|turn(?:s|ed) out|because|due to|culprit|rocm|amd-smi|died|dead|(?:problem|issue|reason|bug|it|this|that|which) (?:was|is|were|turned|ended)|hostname|\blost |(?:lost|loss|missing|gone) (?:after|on|upon|following)|result of|stem|traced|(?:found|figured|discovered) "
    r"|\b(?:locked memory|memlock|drift|skew|docker\d|virbr\d|veth|gid|dns|packet loss|resolve|mig|cables?|cabling|wires?|transceivers?|hcas?|nics?|ports?|nodes?|hosts?|interface state|fans?|thermal|temps?|temperatures?|junction|capped|power cap|clocks?|nvlinks?|mtus?|fabric ?manager|firewall|psu|risers?)\b|drop\w* packets|infiniband|\brdma\b|\bone gpu|only (?:one|1|a single)|(?:network|ib) card"
)
"""Cheap to look for: a clause that counts has one of these words."""
_LONGEST, _GAP, _WORDS = 1500, 90, 2


class _Stated(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``data/stated_causes.csv``."""

    form: str
    """``remedy``, ``state`` or ``claim``."""
    words: re.Pattern[str]
    causes: tuple[str, ...]
    also: re.Pattern[str] | None
    unless: re.Pattern[str] | None
    fix: str
    source: str


@functools.cache
def _rows() -> tuple[_Stated, ...]:
    return tuple(
        _Stated(
            form=row["form"],
            words=pattern(row["pattern"]),
            causes=tuple(row["cause"].split("|")),
            also=pattern(row["also"]) if row["also"] else None,
            unless=pattern(row["unless"]) if row["unless"] else None,
            fix=row["fix"],
            source=row["source"],
        )
        for row in tables.rows("stated_causes")
    )


def symptoms_of(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    """Yield what people say was the cause, or helped.

    >>> found = symptoms_of({"x": [LogLine(number=1, text=text, printed=text) for text in ("It hung. Setting NCCL_SOCKET_IFNAME=eth1 solved it.",)]})
    >>> [each.cause for symptom in found for each in symptom.candidates]
    ['nccl-wrong-interface']
    """
    for source, part in lines.items():
        spoken = [
            (line, _words(part, at))
            for at, line in enumerate(part)
            if line.text.count(" ") >= _WORDS and _GATE.search(line.text[:_LONGEST])
        ]
        text = "\n".join(line.text[:_LONGEST] for line in part) if spoken else ""
        failing = _FAILING.search(text) is not None
        for line, words in spoken:
            row = _stated(words, text, failing)
            if row is not None:
                weight = LIKELY if len(row.causes) == 1 else POSSIBLE
                yield Symptom(
                    source=source,
                    line=line,
                    candidates=tuple(
                        Candidate(cause=cause, weight=weight, fix="" if at else row.fix) for at, cause in enumerate(row.causes)
                    ),
                    program="reporter",
                    words=row.source,
                )


def _words(part: Sequence[LogLine], at: int) -> str:
    """Return the line, with the one below it where it announces that."""
    words = part[at].text[:_LONGEST]
    if _ANNOUNCES.search(words[-_GAP:]):
        below = next((line.text for line in part[at + 1 : at + 4] if re.search(r"\w{3}", line.text)), "")
        return f"{words} {below[:_LONGEST]}"
    return words


def _stated(words: str, text: str, failing: bool) -> _Stated | None:
    """Return the first row that a clause of the line fits."""
    clauses = [clause for clause in _CLAUSES.split(words) if clause]
    for at, clause in enumerate(clauses):
        following = clauses[at + 1] if at + 1 < len(clauses) and _ONCE_MORE.match(clauses[at + 1]) else ""
        taken = [
            each
            for each in (clause, f"{clause} {following}" if following else "")
            if each and not _NOT_TAKEN.search(_OWN_TRIAL.sub("", each))
        ]
        taken.extend(_blamed(clause))
        for each in taken:
            for row in _rows():
                if _fits(row, each, failing) and _holds(row, text):
                    return row
    return None


def _blamed(clause: str) -> Iterator[str]:
    """Yield what the clause puts the blame on."""
    blame = _BLAME.search(clause)
    if blame is not None and not _OPEN.search(clause[: blame.start()]):
        reason = clause[blame.start() :]
        if not _NOT_TAKEN.search(reason):
            yield reason


def _holds(row: _Stated, text: str) -> bool:
    return (row.also is None or row.also.search(text) is not None) and (row.unless is None or not row.unless.search(text))


def _fits(row: _Stated, clause: str, failing: bool) -> bool:
    return any(_counts(row.form, clause, place, failing) for place in row.words.finditer(clause))


def _counts(form: str, clause: str, place: re.Match[str], failing: bool) -> bool:
    """Return whether what stands around the words makes them a finding."""
    before, after = clause[max(place.start() - _GAP, 0) : place.start()], clause[place.end() : place.end() + _GAP]
    if form == "remedy":
        if _SOLVED.search(before) or _SOLVED.search(after) or _ANSWER.search(before):
            return True
        return failing and _BY.search(before) is not None and bool(_WORKS.search(before) or _WORKS.search(after))
    return failing and (form == "claim" or bool(_BLAMED.search(before) or _IS_THE_CAUSE.search(after)))
