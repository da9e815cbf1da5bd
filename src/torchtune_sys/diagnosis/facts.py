"""Build partial snapshots from a text, one for each host that it shows, and run the rules on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from torchtune_sys import consequences, engine
from torchtune_sys.diagnosis.parts import parts_of
from torchtune_sys.diagnosis.text.lines import JOINED, LogLine, glued
from torchtune_sys.diagnosis.text.unwrapping import goes_on, width
from torchtune_sys.model import codec
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import CATALOGUE


class ReportedHost(msgspec.Struct, frozen=True, kw_only=True):
    """What one host's part of a text tells."""

    source: str
    host: str
    snapshot: Snapshot
    results: tuple[Result, ...]
    """Those that failed."""
    passed: frozenset[str]
    """Causes of which every rule that could judge passed."""
    is_node: bool = False
    look: str = ""
    """What sets it apart from another look at the same host."""
    is_past: bool = False
    """It was so before, and is no more."""

    @property
    def name(self) -> str:
        return f"{self.source} {self.host} {self.look}".strip().replace("  ", " ")


def reported_hosts(source: str, lines: Sequence[LogLine], raw: str) -> list[ReportedHost]:
    """Return what the text reports, by host and moment; nothing where it reports no fact."""
    parts = parts_of(lines)
    found = []
    for part in parts:
        texts = dict.fromkeys([*_texts(part.lines), *([raw] if len(parts) == 1 else [])])
        best = _best(source, part.host, list(texts))
        if best is not None:
            found.append(replace(best, look=part.look, is_past=part.is_past, is_node=part.is_node))
    return found


def _texts(lines: Sequence[LogLine]) -> Iterator[str]:
    """As the programs printed it: the lines as they are, and, where somebody broke them at a width, whole again in both ways."""
    shown = [replace(line, text=line.printed) if "kernel:" in line.printed else line for line in lines]
    yield "\n".join(line.text for line in shown)
    column = width([line.printed for line in lines])
    groups = _groups(shown, column) if column else []
    if len(groups) != len(lines):
        for blank in ("", " "):
            yield "\n".join(glued(group, column, blank) for group in groups)


def _groups(lines: Sequence[LogLine], column: int) -> list[list[LogLine]]:
    """Lines that were one."""
    groups: list[list[LogLine]] = []
    for line in lines:
        if groups and goes_on(groups[-1][-1].printed, line.printed, column):
            groups[-1].append(line)
        else:
            groups.append([line])
    return [part for group in groups for part in ([group] if len(group) <= JOINED else [[line] for line in group])]


def _best(source: str, host: str, texts: Sequence[str]) -> ReportedHost | None:
    """Return what fails in any of the ways to read the same text; what a second way only lacks does not count against the first."""
    results: dict[str, Result] = {}
    passed: set[str] = set()
    snapshot: Snapshot | None = None
    for text in texts:
        seen = engine.report(text, source)
        if seen is None:
            continue
        snapshot = snapshot or seen
        judged = consequences.with_consequences(seen, engine.judge(seen, CATALOGUE), CATALOGUE)
        for result in judged:
            if result.verdict is Verdict.FAIL:
                results.setdefault(result.rule.id, result)
        passed |= _passed(judged)
    if snapshot is None:
        return None
    failed = {result.rule.cause for result in results.values()}
    return ReportedHost(
        source=source, host=host, snapshot=snapshot, results=tuple(results.values()), passed=frozenset(passed - failed)
    )


def reported_host(source: str, host: str, results: Sequence[Result], snapshot: Snapshot) -> ReportedHost:
    """Return what results that are there already tell."""
    failed = tuple(result for result in results if result.verdict is Verdict.FAIL)
    return ReportedHost(source=source, host=host, snapshot=snapshot, results=failed, passed=frozenset(_passed(results)))


def _passed(results: Sequence[Result]) -> set[str]:
    good = {result.rule.cause for result in results if result.verdict is Verdict.PASS and result.rule.cause}
    return good - {result.rule.cause for result in results if result.verdict in (Verdict.FAIL, Verdict.UNKNOWN)}


def shown(snapshot: Snapshot) -> dict[str, Any]:
    """Return the facts that the text told, by family."""
    families = {}
    for family in FAMILIES:
        value = getattr(snapshot, family)
        if isinstance(value, Missing):
            continue
        recorded = {name: codec.to_builtins(fact) for name, fact in _recorded_facts(value)}
        if recorded:
            families[family] = recorded
    return families


def _recorded_facts(facts: Any) -> Iterator[tuple[str, Any]]:
    for field in facts.__struct_fields__:
        value = getattr(facts, field)
        empty = value in ("", (), None) or value == {} or value == []
        if not empty and not (isinstance(value, Missing) and value.why is Why.NOT_RECORDED):
            yield field, value
