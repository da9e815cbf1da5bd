"""Choose causes from symptoms and findings, with confidence, and order first failures before their consequences."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

import msgspec

from torchtune_sys.diagnosis.facts import ReportedHost
from torchtune_sys.diagnosis.symptoms import CERTAIN, FOLLOWS, LIKELY, POSSIBLE, Symptom
from torchtune_sys.diagnosis.text.lines import LogLine
from torchtune_sys.host.secrets.filter import scrubbed
from torchtune_sys.knowledge.causes import cause_rows
from torchtune_sys.model import actions
from torchtune_sys.model.diagnosis import Confidence, NamedCause, Quote
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.rule import Evidence, Result, Rule, Severity, Verdict
from torchtune_sys.rules.kernel.common import without_when

_CONFIDENCE = {CERTAIN: Confidence.CERTAIN, LIKELY: Confidence.LIKELY, POSSIBLE: Confidence.POSSIBLE}
_QUOTES, _TEXT = 6, 400
_OF_OTHERS = frozenset(("ranks-missing", "node-never-came"))
"""What the ranks that are there say of those that are not."""
_GENERAL = frozenset(
    [
        "nvidia-driver-not-loaded",
        "driver-tools-fail",
        "cuda-not-available-to-torch",
        "torch-import-fails",
        "gpu-initialisation-failed",
        "gpu-missing-from-driver",
        "interpreter-does-not-start",
        "native-crash-logged",
    ]
)
"""Rules that say that something does not work, not why."""
_WORTH_ALONE = frozenset(
    (
        "ib-port-down",
        "ib-subnet-manager-missing",
        "gpu-thermal-throttle",
        "gpu-above-operating-temperature",
        "nvlink-inactive",
        "imex-not-ready",
        "gpu-sram-threshold-exceeded",
        "gpu-pages-retired",
        "nvme-errors-logged",
        "file-server-not-responding",
        "pcie-corrected-errors",
        "gpu-pcie-link-degraded",
        "memory-corrected-errors",
        "network-link-flapping",
        "cpu-lockup-logged",
        "cpu-thermal-throttle-logged",
        "xid-for-support",
        "firewall-drops-connections-logged",
        "wsl-gpu-memory-refused-logged",
        "shared-memory-refused-logged",
    )
)
"""Rules whose warning is of something that does not work, not of how it is set up: it stands for itself where nothing else is told."""
_DECIDED = frozenset(("ib-subnet-manager-missing",))
"""Those that leave no other reason open."""
_GONE = frozenset(("hung-mount", "storage-io-error"))
_EXPLAINED_BY = {
    "gpu-memory-too-small": frozenset(("hardware-differs-between-nodes",)),
    "dev-shm-too-small": frozenset(("memory-uncorrected-errors",)),
    "hung-mount": frozenset(("link-down",)),
    **dict.fromkeys(("checkpoints-not-writable", "compile-cache-not-writable", "download-cache-not-writable"), _GONE),
}
"""What another cause explains: the hardware of one node where the nodes' differs, a directory that is not there where its file system is gone, a page
(SIGBUS) that the kernel took away, a file server that a broken link does not reach."""

_Placed = tuple[Evidence, LogLine | None]
"""What a rule found, and the line of the text that it quotes."""


class GatheredCause(msgspec.Struct, kw_only=True):
    """A cause while evidence is gathered for it."""

    cause: str
    weight: int = 0
    first: int = 1 << 60
    by_text: bool = False
    order: int = 0
    """Place among the candidates of its symptom."""
    is_blamed: bool = False
    """Whether somebody says that it was this."""
    quotes: list[Quote] = []
    hosts: list[str] = []
    ranks: list[int] = []
    """Of the lines that speak of it."""
    absent: list[int] = []
    """Those that it is said to be of, by others."""
    fix: list[str] = []
    confirm: str = ""
    rules: list[str] = []
    titles: list[str] = []
    """Of the rules that found it in facts, not in a program's words."""
    sources: list[str] = []


def causes_of(
    symptoms: Sequence[Symptom], reported: Sequence[ReportedHost], lines: dict[str, Sequence[LogLine]]
) -> tuple[NamedCause, ...]:
    """Return the causes, the likeliest first."""
    reported = [each for each in reported if not each.is_past]
    book: dict[str, GatheredCause] = {}
    starts = {source: at * (1 << 32) for at, source in enumerate(lines)}
    named = {(symptom.source, symptom.line.number) for symptom in symptoms if symptom.candidates}
    places = {source: Places(lines.get(source, ())) for source in dict.fromkeys(each.source for each in reported)}
    for each in reported:
        _of_facts(each, book, places[each.source], starts.get(each.source, 0), named)
    supported = {name for name, finding in book.items() if finding.weight} | _supporting(reported)
    refuted = frozenset().union(*(each.passed for each in reported)) if reported else frozenset()
    for symptom in symptoms:
        _of_symptom(symptom, book, supported, refuted, starts.get(symptom.source, 0))
    return tuple(_cause(finding) for finding in _ranked(book.values()))


def _supporting(reported: Sequence[ReportedHost]) -> set[str]:
    return {
        result.rule.cause
        for each in reported
        for result in each.results
        if result.rule.cause and (result.rule.id not in each.snapshot.said or _own_evidence(each, result))
    }


def _own_evidence(reported: ReportedHost, result: Result) -> list[Evidence]:
    """Return what failed; words that have other causes too are weighed where they stand, and are no proof of one."""
    said = reported.snapshot.said.get(result.rule.id)
    words = said.line if said is not None and said.is_open else None
    return [item for item in result.evidence if item.verdict is Verdict.FAIL and (words is None or item.seen != words)]


def _of_facts(
    reported: ReportedHost, causes: dict[str, GatheredCause], places: Places, start: int, named: set[tuple[str, int]]
) -> None:
    """``named``: lines of which it is known what they stand for; a rule that has no cause says nothing more of them."""
    for result in reported.results:
        failed = [(item, places.line(item)) for item in _own_evidence(reported, result)]
        line = next((line for _, line in failed if line is not None), None)
        if line is not None and not result.rule.cause and (reported.source, line.number) in named:
            continue
        said = reported.snapshot.said.get(result.rule.id)
        weight = _weight(result, line is not None, said is None or said.is_failure)
        if not weight or result.rule.id in _GENERAL:
            continue
        if said is not None and said.is_open and not failed:
            continue
        by_cause: dict[str, list[_Placed]] = {}
        for item, place in failed:
            by_cause.setdefault(item.cause, []).append((item, place))
        for own, items in (by_cause or {"": []}).items():  # a brief report quotes no evidence
            name = own or result.rule.cause or result.rule.id
            finding = causes.setdefault(name, GatheredCause(cause=name))
            finding.weight = max(finding.weight, min(weight, LIKELY) if own else weight)
            _take(finding, reported, result.rule, items, start)


def _take(finding: GatheredCause, reported: ReportedHost, rule: Rule, items: Sequence[_Placed], start: int) -> None:
    """Write down what a rule found, of those subjects that have one cause."""
    line = next((line for _, line in items if line is not None), None)
    finding.first = min(finding.first, start + line.number if line is not None else 1 << 60)
    finding.by_text |= line is not None
    finding.rules.append(rule.id)
    finding.titles += [rule.title] if rule.id not in reported.snapshot.said else []
    finding.hosts += [reported.host or (line.host if line is not None else "")]
    for item, place in items:
        text = place.printed if place is not None else f"{item.subject}: {item.seen}"
        finding.quotes.append(
            Quote(source=reported.source, line=place.number if place else 0, text=scrubbed(text)[:_TEXT].strip())
        )
        finding.fix += [actions.text(action) for action in item.fix or rule.fix]


def _weight(result: Result, by_text: bool, failure: bool) -> int:
    """Return what the rule's finding is worth; 0 where it only speaks for a cause that a program names."""
    if by_text and failure:
        if not result.rule.cause:
            return LIKELY if result.rule.severity is not Severity.ADVICE else 0
        return CERTAIN
    if result.rule.severity is Severity.ERROR:
        return CERTAIN if result.rule.cause else LIKELY
    if result.rule.id in _WORTH_ALONE:
        return LIKELY if result.rule.id in _DECIDED else POSSIBLE
    return LIKELY if by_text and result.rule.severity is Severity.WARNING and result.rule.cause else 0


class Places:
    """Where in a text words stand, whatever blanks and breaks are in them."""

    def __init__(self, lines: Sequence[LogLine]) -> None:
        self._lines = lines
        self._starts: list[int] = []
        parts = []
        size = 0
        for line in lines:
            part = "".join(line.text.split())
            self._starts.append(size)
            parts.append(part)
            size += len(part)
        self._whole = "".join(parts)

    def line(self, item: Evidence) -> LogLine | None:
        """Return the line that the evidence quotes."""
        words = without_when(item.seen)[:_QUOTED].rstrip("…")
        if len(words) < _SHORTEST or " " not in words:
            return None
        at = self._whole.find("".join(words.split()))
        return self._lines[bisect.bisect_right(self._starts, at) - 1] if at >= 0 else None


_QUOTED, _SHORTEST = 100, 12


def _of_symptom(
    symptom: Symptom, book: dict[str, GatheredCause], supported: set[str], refuted: frozenset[str], start: int
) -> None:
    """Name the first candidate for which something speaks, else the likeliest; the others are possible."""
    if not symptom.candidates:
        return
    names = [each.cause for each in symptom.candidates]
    backed = [each for each in symptom.candidates if each.cause in supported]
    open_ = [each for each in symptom.candidates if each.cause not in refuted or each.weight == CERTAIN]
    chosen = (backed or open_ or list(symptom.candidates))[0]
    weight = chosen.weight
    if backed or (len(names) > 1 and len(open_) == 1):
        weight = max(weight, LIKELY if len(backed) > 1 else CERTAIN if backed else LIKELY)
    for each in symptom.candidates:
        if each is not chosen and (backed or weight == CERTAIN or each not in open_):
            continue
        last = _LAST if symptom.merely_told and each.cause not in book else 0
        finding = book.setdefault(each.cause, GatheredCause(cause=each.cause))
        finding.weight = max(finding.weight, weight if each is chosen else POSSIBLE)
        finding.order = max(finding.order, last + (names.index(each.cause) if each is not chosen else 0))
        finding.first = min(finding.first, start + symptom.line.number)
        finding.by_text = True
        finding.is_blamed |= symptom.is_blamed and each is chosen
        _add(finding, symptom, each.fix, each.confirm)


def _add(finding: GatheredCause, symptom: Symptom, fix: str, confirm: str) -> None:
    line = symptom.line
    quote = Quote(source=symptom.source, line=line.number, text=scrubbed(line.text)[:_TEXT].strip())
    if not any(_alike(quote, other) for other in finding.quotes):
        finding.quotes.append(quote)
    finding.hosts += (
        [line.host] if line.host and (finding.cause not in _OF_OTHERS or symptom.ranks or line.host in line.text) else []
    )
    finding.absent += symptom.ranks
    finding.ranks += [line.rank] if line.rank is not None and finding.cause not in _OF_OTHERS else []
    finding.fix += [fix] if fix else []
    finding.confirm = finding.confirm or confirm
    finding.sources += [symptom.words] if symptom.words else []


def _alike(quote: Quote, other: Quote) -> bool:
    """Whether they are one line, or say the same at another time."""
    same_place = quote.line == other.line and quote.line > 0
    return quote.source == other.source and (same_place or _NUMBERS.sub("0", quote.text) == _NUMBERS.sub("0", other.text))


_NUMBERS = pattern(r"\d+")
_LAST = 100
"""The place of a cause that is merely told, among equally likely ones."""


def _ranked(found: Iterable[GatheredCause]) -> list[GatheredCause]:
    """Surer ones first; of equal ones what failed first; what may follow from a surer one after it."""
    named = list(found)
    sure = any(each.weight >= LIKELY and each.cause not in FOLLOWS for each in named)
    for each in named:
        if sure and each.cause in FOLLOWS:
            each.weight = POSSIBLE
    for each in named:
        if each.cause == "rank-killed" and _aborted_after(each, named):
            each.weight, each.order = min(each.weight, POSSIBLE), _LAST
    there = {each.cause for each in named if each.weight >= LIKELY}
    for each in named:
        if there & _EXPLAINED_BY.get(each.cause, frozenset()):
            each.weight = POSSIBLE
    most = max((each.weight for each in named), default=0)
    kept = [each for each in named if each.weight > POSSIBLE or most < CERTAIN]
    kept = [each for each in kept if not _is_said_better(each, kept)]
    causes = cause_rows()
    return sorted(
        kept,
        key=lambda each: (
            -each.weight,
            _is_warned(each),
            each.cause not in causes,
            not each.is_blamed,
            each.order,
            _is_in_title(each),
            not each.by_text,
            each.first,
            each.cause,
        ),
    )


def _aborted_after(found: GatheredCause, named: Sequence[GatheredCause]) -> bool:
    """Whether all that it has is a process that ended itself (SIGABRT), behind something that may be why."""
    return bool(found.quotes) and (
        all(_ABORTED.search(quote.text) for quote in found.quotes)
        and any(each.by_text and each.cause not in FOLLOWS and each.first < found.first for each in named)
    )


_ABORTED = pattern(r"\bAborted\b|\bSIGABRT\b|exitcode: -6\b")


def _is_said_better(found: GatheredCause, named: Sequence[GatheredCause]) -> bool:
    """Whether all lines that it has tell another cause for certain."""
    lines = {(quote.source, quote.line) for quote in found.quotes if quote.line}
    return (
        found.weight < CERTAIN
        and not found.rules
        and bool(lines)
        and any(each.weight == CERTAIN and lines <= {(quote.source, quote.line) for quote in each.quotes} for each in named)
    )


_WARNING = pattern(r"\b[A-Z]\w{1,40}Warning: |^\[W.{4,80}\] Warning: ")


def _is_warned(found: GatheredCause) -> bool:
    """Whether Python or torch only warned of it: what ended the program comes first."""
    return bool(found.quotes) and all(_WARNING.search(quote.text) for quote in found.quotes)


def _is_in_title(found: GatheredCause) -> bool:
    """Whether only a heading says it: it may quote another run than the one below."""
    return bool(found.quotes) and all(quote.text.startswith("# ") for quote in found.quotes)


_SLOW = frozenset(
    ("dataloader-workers-exceed-cpus", "slow-data-storage", "straggler-compute", "straggler-network", "narrow-link")
)


def that_end_jobs(named: Sequence[NamedCause]) -> tuple[NamedCause, ...]:
    """Return the causes but those that only make a job slow: they explain no error that ended it."""
    return tuple(each for each in named if each.cause not in _SLOW)


def _cause(finding: GatheredCause) -> NamedCause:
    row = cause_rows().get(finding.cause)
    fix = finding.fix or ([row.fix] if row is not None else [])
    return NamedCause(
        cause=finding.cause,
        confidence=_CONFIDENCE[finding.weight],
        title=finding.titles[0] if _is_told_closer(finding) else row.title if row is not None else _title(finding),
        hosts=tuple(dict.fromkeys(filter(None, finding.hosts))),
        ranks=tuple(sorted(set(finding.absent or finding.ranks))),
        evidence=tuple(dict.fromkeys(finding.quotes))[:_QUOTES],
        fix=tuple(dict.fromkeys(fix))[:4],
        confirm=finding.confirm or (row.confirm if row is not None else ""),
        rules=tuple(dict.fromkeys(finding.rules)),
        sources=tuple(dict.fromkeys(finding.sources)),
    )


def _is_told_closer(finding: GatheredCause) -> bool:
    """Whether one rule found it in facts: that rule's title says which of the cause's forms it is."""
    return len(set(finding.rules)) == 1 == len(set(finding.titles)) and finding.cause not in finding.rules


def _title(finding: GatheredCause) -> str:
    from torchtune_sys.rules import CATALOGUE

    named = {*finding.rules, finding.cause}
    return next((rule.title for rule in CATALOGUE if rule.id in named), finding.cause.replace("-", " ").capitalize())
