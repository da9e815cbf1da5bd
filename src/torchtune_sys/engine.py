"""Read a host once, judge it once."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torchtune_sys.host.base import Host
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.session import Intent
from torchtune_sys.model.rule import Evidence, Params, Result, Rule, Severity, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Unknown, Why

Overrides = Mapping[str, Mapping[str, Any]]
"""Rule id → parameter name → value."""


Progress = Callable[[set[str]], None]
_LEFT_OUT = Missing(Why.NOT_RECORDED, "the whole look", "not asked for")


class Look:
    """The probes of one host under way, each family in its own thread from the moment of construction.

    A family whose probe did not end in time is Missing(TIMEOUT), one whose probe raised Missing(CRASHED). A thread that
    hangs in the kernel is left behind as a daemon; the process can still exit.
    """

    def __init__(
        self, host: Host, intent: Intent, timings: dict[str, float] | None = None, only: Iterable[str] | None = None
    ) -> None:
        """``only``: the families to look at; the others are Missing(NOT_RECORDED)."""
        from torchtune_sys.probes import PROBES

        self._host, self._intent, self._timings = host, intent, timings
        self._started = time.monotonic()
        self._found: dict[str, Any] = {}
        self._threads = {
            family: threading.Thread(target=self._work, args=(family, probe), daemon=True)
            for family, probe in PROBES.items()
            if only is None or family in only
        }
        self._left_out = () if only is None else tuple(family for family in PROBES if family not in self._threads)
        for family, thread in self._threads.items():
            try:
                thread.start()
            except RuntimeError:  # no room for a thread (ulimit -v, -u, pids.max): then one after the other
                self._work(family, PROBES[family])

    def _work(self, family: str, probe: Callable[[Host, Intent], Any]) -> None:
        begin = time.perf_counter()
        try:
            facts = probe(self._host, self._intent)
        except MemoryError:  # ulimit -v, of which each thread's heap takes 64 MiB (glibc): no room to tell where either
            facts = Missing(Why.FAILED, f"probe {family}", "no memory may be had", "a higher limit on address space (ulimit -v)")
        except Exception:
            facts = Missing(Why.CRASHED, f"probe {family}", _where())
        if self._timings is not None:
            self._timings[family] = time.perf_counter() - begin
        self._found[family] = facts

    def end(self, timeout_s: float, progress: Progress | None = None) -> Snapshot:
        """Wait until every probe ended, at most until ``timeout_s`` after the start. ``progress`` is called about ten times
        a second with the families still under way."""
        deadline = self._started + timeout_s
        for thread in self._threads.values():
            while thread.is_alive() and (left := deadline - time.monotonic()) > 0:
                thread.join(min(left, 0.1) if progress else left)
                if progress and thread.is_alive():
                    progress({name for name, other in self._threads.items() if other.is_alive()})
        late = Missing(Why.TIMEOUT, "the whole look", f"not read within {timeout_s:g} s", "a longer --timeout")
        facts: dict[str, Any] = {family: self._found.get(family, late) for family in self._threads}
        facts |= dict.fromkeys(self._left_out, _LEFT_OUT)
        return Snapshot(**facts, intent=self._intent, origin=self._host.origin)


def snapshot(host: Host, intent: Intent, *, timeout_s: float, progress: Progress | None = None) -> Snapshot:
    """Look at ``host`` and wait for the end of it."""
    return Look(host, intent).end(timeout_s, progress)


def judge(seen: Snapshot, rules: Iterable[Rule], overrides: Overrides | None = None) -> tuple[Result, ...]:
    """The verdict of each rule, in the order given. Never raises for what a rule does."""
    return tuple(_told(_judge_one(rule, seen, (overrides or {}).get(rule.id, {})), seen) for rule in rules)


def _told(result: Result, seen: Snapshot) -> Result:
    """Where the facts of a report do not decide, a program's own words do; it failed then, however light the defect is elsewhere."""
    saying = seen.said.get(result.rule.id)
    if saying is None or result.verdict not in (Verdict.UNKNOWN, Verdict.NA):
        return result
    rule = result.rule
    if rule.severity is Severity.ADVICE:
        from msgspec.structs import replace

        rule = replace(rule, severity=Severity.WARNING)
    fix = (Advice(text=saying.remedy),) if saying.remedy else ()
    told = Evidence(subject="a program says", seen=saying.line, source="report", fix=fix)
    return Result(rule=rule, verdict=Verdict.FAIL, evidence=(told, *result.evidence), why_unknown=result.why_unknown)


def _judge_one(rule: Rule, seen: Snapshot, override: Mapping[str, Any]) -> Result:
    params: Params = {param.name: override.get(param.name, param.default) for param in rule.params}
    evidence: list[Evidence] = []
    try:
        if rule.applies is not None:
            rule.applies(seen)
        for item in rule.judge(seen, params):
            evidence.append(item)  # kept when the rule stops later: what was found stays found
    except NotApplicable as reason:
        return Result(rule=rule, verdict=Verdict.NA, evidence=tuple(evidence), note=str(reason))
    except Unknown as unknown:
        return _with_unknown(rule, evidence, unknown.missing)
    except Exception:
        error = sys.exc_info()[1]
        return Result(
            rule=rule,
            verdict=Verdict.CRASHED,
            evidence=tuple(evidence),
            note=f"{type(error).__name__}: {error}",
            why_unknown=Missing(Why.CRASHED, f"rule {rule.id}", _where()),
        )
    verdict = _overall(evidence)
    why = next((item.why for item in evidence if item.why is not None), None) if verdict is Verdict.UNKNOWN else None
    return Result(rule=rule, verdict=verdict, evidence=tuple(evidence), why_unknown=why)


def _with_unknown(rule: Rule, evidence: list[Evidence], missing: Missing) -> Result:
    failed = any(item.verdict is Verdict.FAIL for item in evidence)
    verdict = Verdict.FAIL if failed else (Verdict.CRASHED if missing.why is Why.CRASHED else Verdict.UNKNOWN)
    return Result(rule=rule, verdict=verdict, evidence=tuple(evidence), why_unknown=missing, note=missing.detail)


_WORST_FIRST = (Verdict.CRASHED, Verdict.FAIL, Verdict.UNKNOWN, Verdict.PASS, Verdict.NA)


def _overall(evidence: list[Evidence]) -> Verdict:
    found = {item.verdict for item in evidence}
    return next((verdict for verdict in _WORST_FIRST if verdict in found), Verdict.PASS)


def _where() -> str:
    """The last frames of the exception being handled."""
    import traceback  # 2 ms that only a crash pays

    return traceback.format_exc(limit=-3).strip()
