"""Recordings that are laid over another one: what asked for nothing that was changed is not probed and not judged again.

What a probe returns is made of what it asked its host and of what the person said about the job, of nothing else; what a rule says, of the
families of facts that it read. So where none of it was changed, facts and results are those of the host below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from posixpath import dirname
from typing import Any

from msgspec.structs import replace

from torchtune_sys import engine
from torchtune_sys.host.recorded import SECTIONS, RecordedHost
from torchtune_sys.host.witnesses import Witnessed
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Result, Rule, Verdict
from torchtune_sys.model.snapshot import FAMILIES, Snapshot, is_pasted
from torchtune_sys.model.values import Missing
from torchtune_sys.probes import PROBES
from torchtune_sys.rules import CATALOGUE

_LISTED = "names in directories"
_PATHS = ("files", "links", "dirs", "stats")
"""Sections whose keys are listed by the directories above them."""


class _Asked(dict[str, Any]):
    """A section, or the environment, that keeps which names it was asked for."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        super().__init__(entries)
        self.names: set[str] = set()
        self.is_read_whole = False

    def meets(self, changed: set[str]) -> bool:
        """Return whether what was changed had been asked for."""
        return bool(changed) and (self.is_read_whole or not self.names.isdisjoint(changed))


def _of_one(name: str) -> Callable[..., Any]:
    def method(self: _Asked, key: str, *rest: Any) -> Any:
        self.names.add(key)
        return getattr(dict, name)(self, key, *rest)

    return method


def _of_all(name: str) -> Callable[..., Any]:
    def method(self: _Asked, *rest: Any) -> Any:
        self.is_read_whole = True
        return getattr(dict, name)(self, *rest)

    return method


for _name in ("__contains__", "__getitem__", "get"):
    setattr(_Asked, _name, _of_one(_name))
for _name in ("__iter__", "__reversed__", "__len__", "__eq__", "__ne__", "__or__", "__ror__", "keys", "values", "items", "copy"):
    setattr(_Asked, _name, _of_all(_name))


class _Host(RecordedHost):
    """A recorded host that shows its sections, and keeps what of them it was asked for if it ``is_watched``."""

    def __init__(self, recording: Mapping[str, Any], origin: str, *, is_watched: bool = False) -> None:
        super().__init__(recording, origin)
        self._environment: _Asked | None = None
        if is_watched:
            self._sections = {name: _Asked(entries) for name, entries in self._sections.items()}
            self._children = _Asked(self._children)
            self._environment = _Asked({name: str(value) for name, value in (recording.get("env") or {}).items()})

    def env(self) -> Fact[dict[str, str]]:
        found = super().env()
        return found if isinstance(found, Missing) or self._environment is None else self._environment

    def sections(self) -> dict[str, dict[str, Any]]:
        """Return them by name, with what directories hold; of a watched host the environment that it gave."""
        environment = self._sections["env"] if self._environment is None else self._environment
        return {**self._sections, "env": environment, _LISTED: self._children}


class Remembered:
    """A recorded host, with what each probe asked it and found."""

    def __init__(self, recording: Mapping[str, Any], intent: Workload) -> None:
        self._recording, self._intent = recording, intent
        self._sections = _Host(recording, "").sections()
        self._facts: dict[str, Any] = {}
        self._asked: dict[str, dict[str, Any]] = {}
        for family, probe in PROBES.items():
            host = _Host(recording, "", is_watched=True)  # one for each, for a host keeps where directories lead
            self._facts[family] = probe(Witnessed(host), intent)
            self._asked[family] = host.sections()
        self.seen = Snapshot(**self._facts, intent=intent)

    def snapshot(self, recording: Mapping[str, Any], origin: str, intent: Workload, *, timeout_s: float) -> Snapshot:
        """Return the facts of ``recording``, those taken over whose probe would ask for nothing that is another one there."""
        host = _Host(recording, origin)
        again = [*FAMILIES]
        if intent == self._intent and self._is_read_alike(recording):
            changed = self._changed(host.sections())
            again = [
                family
                for family in FAMILIES
                if any(self._asked[family][section].meets(names) for section, names in changed.items())
            ]
        seen = engine.ProbeRun(host, intent, only=again).end(timeout_s)
        return replace(seen, **{family: facts for family, facts in self._facts.items() if family not in again})

    def _is_read_alike(self, recording: Mapping[str, Any]) -> bool:
        """Return whether what is not in either recording means the same."""
        mine = self._recording
        return ("env" in recording, recording.get("complete", True)) == ("env" in mine, mine.get("complete", True))

    def _changed(self, sections: Mapping[str, Mapping[str, Any]]) -> dict[str, set[str]]:
        """Return the keys, by section, whose values are others."""
        found = {section: _differing(self._sections[section], sections[section]) for section in SECTIONS}
        above = {folder for section in _PATHS for path in found[section] for folder in _above(path)}
        before, now = self._sections[_LISTED], sections[_LISTED]
        return {**found, _LISTED: {folder for folder in above if before.get(folder) != now.get(folder)}}


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> set[str]:
    there = {name for name, value in now.items() if (old := before.get(name)) is not value and old != value}
    return there | (before.keys() ^ now.keys())


def _above(path: str) -> Iterator[str]:
    while path not in ("", "/"):
        path = dirname(path)
        yield path


class _Watched(Snapshot, frozen=True, kw_only=True):
    """Keeps which fields were read."""

    def __getattribute__(self, name: str) -> object:
        _READ.add(name)
        return super().__getattribute__(name)


_READ: set[str] = set()


def read_by(seen: Snapshot, rule: Rule) -> frozenset[str]:
    """Return the fields of the snapshot that a rule reads (by a snapshot of its own: what is kept for the last one would read nothing)."""
    watched = _Watched(**{name: getattr(seen, name) for name in Snapshot.__struct_fields__})

    def applies(_: Snapshot) -> None:
        if rule.applies is not None:
            rule.applies(watched)

    _READ.clear()
    engine.judge(seen, [replace(rule, applies=applies, judge=lambda _, params: rule.judge(watched, params))])
    return frozenset(_READ.intersection(Snapshot.__struct_fields__))


class RememberedResults:
    """What all rules say of a host, and what each of them read."""

    def __init__(self, seen: Snapshot) -> None:
        self._seen = seen
        self.results = engine.judge(seen, CATALOGUE)
        self._read = [read_by(seen, rule) for rule in CATALOGUE]

    def touched(self, seen: Snapshot) -> list[Rule]:
        """Return the rules that read anything which is another one in ``seen``."""
        pairs = (
            (name, getattr(seen, name), getattr(self._seen, name)) for name in Snapshot.__struct_fields__ if name != "origin"
        )
        changed = {name for name, now, before in pairs if now is not before and now != before}
        return [rule for rule, read in zip(CATALOGUE, self._read, strict=True) if not read.isdisjoint(changed)]

    def judge(self, seen: Snapshot) -> tuple[Result, ...]:
        """Return the results of the whole catalogue; those that fail are judged with the others, whose findings they may show. Of a report all are:
        what a program said in it changes the result of a rule that read nothing else."""
        if seen.said or is_pasted(seen):
            return engine.judge(seen, CATALOGUE)
        failing = [result.rule for result in self.results if result.verdict is Verdict.FAIL]
        again = {rule.id: rule for rule in (*failing, *self.touched(seen))}
        judged = {result.rule.id: result for result in engine.judge(seen, again.values())}
        return tuple(judged.get(result.rule.id, result) for result in self.results)
