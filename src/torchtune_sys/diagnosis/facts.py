"""What a text tells of hosts: partial snapshots, one for each host that it shows, and the rules' findings on them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from torchtune_sys import engine, evidence
from torchtune_sys.diagnosis.lines import LogLine, joined
from torchtune_sys.diagnosis.unwrapping import goes_on, width
from torchtune_sys.model import codec
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import CATALOGUE


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What one host's part of a text tells."""

    source: str
    host: str
    snapshot: Snapshot
    results: tuple[Result, ...]
    """Those that failed."""
    passed: frozenset[str]
    """Causes of which every rule that could judge passed."""


_PROMPT = re.compile(r"^(?:\([\w.-]{1,40}\) ?)?\[?(?P<user>[\w.-]{1,32})@(?P<host>[\w.-]{1,64})[: ][^\n]{0,200}?[$#](?: |$)")
_FEW = 3


def told_of(source: str, lines: Sequence[LogLine], raw: str) -> list[Told]:
    """One for each host of the text; none where it tells no fact."""
    parts = _by_host(lines)
    found = []
    for host, part in parts:
        texts = [_text(part), raw] if len(parts) == 1 else [_text(part)]
        told = _best(source, host, list(dict.fromkeys(texts)))
        if told is not None:
            found.append(told)
    return found


def _by_host(lines: Sequence[LogLine]) -> list[tuple[str, list[LogLine]]]:
    """Lines of hosts that prefixes or prompts name; one part without a name where they name fewer than two."""
    parts: dict[str, list[LogLine]] = {}
    host = ""
    for line in lines:
        prompt = _PROMPT.match(line.text)
        host = prompt["host"] if prompt is not None else host
        parts.setdefault(line.host or host, []).append(line)
    several = [name for name, part in parts.items() if name and len(part) >= _FEW]
    if len(several) < 2:
        return [(several[0] if several and len(parts[several[0]]) == len(lines) else "", list(lines))]
    return list(parts.items())


def _text(lines: Sequence[LogLine]) -> str:
    """As the programs printed it: lines that were broken at a width are whole again."""
    shown = [line.printed if "kernel:" in line.printed else line.text for line in lines]
    column = width([line.printed for line in lines])
    if not column or not any(True for _ in joined(lines)):
        return "\n".join(shown)
    whole: list[str] = []
    for at, text in enumerate(shown):
        before = lines[at - 1].printed if at else ""
        if at and goes_on(before, lines[at].printed, column):
            whole[-1] += ("" if len(before) >= column else " ") + text.lstrip()
        else:
            whole.append(text)
    return "\n".join(whole)


def _best(source: str, host: str, texts: Sequence[str]) -> Told | None:
    """What fails in any of the ways to read the same text; what a second way only lacks does not count against the first."""
    results: dict[str, Result] = {}
    passed: set[str] = set()
    snapshot: Snapshot | None = None
    for text in texts:
        seen = evidence.read(text, source)
        if seen is None:
            continue
        snapshot = snapshot or seen
        judged = engine.judge(seen, CATALOGUE)
        for result in judged:
            if result.verdict is Verdict.FAIL:
                results.setdefault(result.rule.id, result)
        passed |= _passed(judged)
    if snapshot is None:
        return None
    failed = {result.rule.cause for result in results.values()}
    return Told(source=source, host=host, snapshot=snapshot, results=tuple(results.values()), passed=frozenset(passed - failed))


def _passed(results: Sequence[Result]) -> set[str]:
    good = {result.rule.cause for result in results if result.verdict is Verdict.PASS and result.rule.cause}
    return good - {result.rule.cause for result in results if result.verdict in (Verdict.FAIL, Verdict.UNKNOWN)}


def shown(snapshot: Snapshot) -> dict[str, Any]:
    """The facts that the text told, by family."""
    families = {}
    for family in FAMILIES:
        value = getattr(snapshot, family)
        if isinstance(value, Missing):
            continue
        told = {name: codec.to_builtins(fact) for name, fact in _told(value)}
        if told:
            families[family] = told
    return families


def _told(facts: Any) -> Iterator[tuple[str, Any]]:
    for field in facts.__struct_fields__:
        value = getattr(facts, field)
        empty = value in ("", (), None) or value == {} or value == []
        if not empty and not (isinstance(value, Missing) and value.why is Why.NOT_RECORDED):
            yield field, value
