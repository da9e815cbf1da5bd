"""Read what this tool prints for people, where somebody pasted that: findings of check, causes of a smoke test and of a pre-flight."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from torchtune_sys.diagnosis.symptoms import CERTAIN, LIKELY, POSSIBLE, Candidate, Symptom, candidate_of
from torchtune_sys.diagnosis.text.lines import LogLine
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.rule import Severity
from torchtune_sys.rules import by_id

_SLUG = r"[a-z0-9]+(?:-[a-z0-9]+)+"
_FINDING = pattern(r"^(?:error|warning|advice) {1,3}(?P<title>\S.{0,200})$")
_RULE = pattern(rf"^\s*(?:\S.{{0,200}} )?\[(?P<rule>{_SLUG})\]$")
_STAGE = pattern(r"^(?P<verdict>fail|pass|unknown|na|crashed|slower) {2,7}(?P<stage>[a-z0-9-]+) +[\d.]+ s +(?P<seen>\S.*)$")
_CAUSE = pattern(rf"^\s+cause: (?P<cause>{_SLUG})(?: \((?P<sure>certain|likely|possible)\))?$")
_AGAINST = pattern(
    rf"(?:^\s+fatal +|\btorchtune-sys: )(?:(?P<node>[\w.-]{{1,255}}):? +)?\[[a-z]{{4,10}}\] (?P<cause>{_SLUG}): \S"
)
"""Of a pre-flight, and of the reason that it gives Slurm."""
_LINK = pattern(rf"^\s+link +(?P<node>[\w.-]{{1,255}}) -> [\w.-]{{1,255}} +(?P<cause>{_SLUG}): \S")
_RANKS = pattern(r"^ranks? (?P<rank>\d{1,7})\b")
_WORTH = {Severity.ERROR: CERTAIN, Severity.WARNING: POSSIBLE}
_WEIGHTS = {None: CERTAIN, "certain": CERTAIN, "likely": LIKELY, "possible": POSSIBLE}


def symptoms_of(source: str, lines: Sequence[LogLine]) -> Iterator[Symptom]:
    """Yield the causes of the texts that check, smoke and preflight print; the rest of such a text tells what is well, or is quoted."""
    yield from _of_check(source, lines)
    failed: re.Match[str] | None = None
    for line in lines:
        stage = _STAGE.match(line.printed)
        if stage is not None:
            failed = stage if stage["verdict"] == "fail" else None
        cause = _CAUSE.match(line.printed) if failed else None
        if failed is not None and cause is not None:
            ranks = _RANKS.match(failed["seen"])
            words = f"{failed['stage']}: {failed['seen']}"
            named = Candidate(cause=cause["cause"], weight=_WEIGHTS[cause["sure"]])
            yield _symptom(source, line, words, named, rank=int(ranks["rank"]) if ranks else None)
            failed = None
        against = _AGAINST.search(line.printed) or _LINK.match(line.printed)
        if against is not None:
            yield _symptom(
                source, line, line.printed.strip(), Candidate(cause=against["cause"], weight=CERTAIN), host=against["node"] or ""
            )


def _of_check(source: str, lines: Sequence[LogLine]) -> Iterator[Symptom]:
    """Yield the errors and the warnings: a title, and then, on the same line or one of the next, the rule."""
    title: LogLine | None = None
    for line in lines:
        title = line if _FINDING.match(line.printed) else title
        named = _RULE.match(line.printed) if title is not None else None
        if title is None or named is None:
            continue
        rule = by_id().get(named["rule"])
        if rule is not None and rule.severity in _WORTH and rule.title[:20] in title.printed:
            yield _symptom(source, title, title.printed.strip(), candidate_of(rule, _WORTH[rule.severity]))
        title = None


def _symptom(source: str, line: LogLine, words: str, cause: Candidate, host: str = "", rank: int | None = None) -> Symptom:
    told = msgspec.structs.replace(line, text=words, host=host or line.host, rank=line.rank if rank is None else rank)
    return Symptom(source=source, line=told, candidates=(cause,), program="torchtune-sys")
