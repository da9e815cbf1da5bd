"""Read a host once, judge it once."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torchtune_sys.host.base import Host
from torchtune_sys.model.facts.session import Intent
from torchtune_sys.model.rule import Evidence, Params, Result, Rule, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Unknown, Why

Overrides = Mapping[str, Mapping[str, Any]]
"""Rule id → parameter name → value."""


def snapshot(
    host: Host,
    intent: Intent,
    *,
    timeout_s: float,
    timings: dict[str, float] | None = None,
    progress: Callable[[set[str]], None] | None = None,
) -> Snapshot:
    """Probe every family, each in its own thread, and stop waiting at the deadline.

    A family whose probe did not end is Missing(TIMEOUT), one whose probe raised Missing(CRASHED). A thread that
    hangs in the kernel is left behind as a daemon; the process can still exit. ``progress`` is called about ten
    times a second with the families still under way.
    """
    from torchtune_sys.probes import PROBES

    found: dict[str, Any] = {}
    started = time.monotonic()

    def work(family: str) -> None:
        begin = time.perf_counter()
        try:
            facts = PROBES[family](host, intent)
        except Exception:
            facts = Missing(Why.CRASHED, f"probe {family}", _where())
        if timings is not None:
            timings[family] = time.perf_counter() - begin
        found[family] = facts

    threads = {family: threading.Thread(target=work, args=(family,), daemon=True) for family in PROBES}
    for thread in threads.values():
        thread.start()
    deadline = started + timeout_s
    for thread in threads.values():
        while thread.is_alive() and (left := deadline - time.monotonic()) > 0:
            thread.join(min(left, 0.1) if progress else left)
            if progress and thread.is_alive():
                progress({name for name, other in threads.items() if other.is_alive()})
    late = Missing(Why.TIMEOUT, "the whole look", f"not read within {timeout_s:g} s", "a longer --timeout")
    facts = {family: found.get(family, late) for family in PROBES}
    return Snapshot(**facts, intent=intent, origin=host.origin)


def judge(seen: Snapshot, rules: Iterable[Rule], overrides: Overrides | None = None) -> tuple[Result, ...]:
    """The verdict of each rule, in the order given. Never raises for what a rule does."""
    return tuple(_judge_one(rule, seen, (overrides or {}).get(rule.id, {})) for rule in rules)


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
