"""Run a site's own checks: programs in a directory, which follow the monitoring plug-in convention or print JSON.

Exit status 0 is well, 1 a warning, 2 critical, 3 unknown; the first line says why (Monitoring Plugins Development Guidelines). A program may print one
JSON object instead: ``{"verdict": "pass|warning|fail|unknown", "cause": "...", "blame": "node|hardware|network|user", "seen": "..."}``.
Whatever else a program does (a signal, another status, no answer in time, no JSON where it began one) is *unknown*: its fault, not the node's.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

from torchtune_sys.host.base import Output
from torchtune_sys.host.children import process
from torchtune_sys.host.children.endings import ended_by
from torchtune_sys.host.children.programs import programs
from torchtune_sys.host.secrets.filter import scrubbed
from torchtune_sys.model import codec
from torchtune_sys.model.preflight import Blame, Cause, Weight
from torchtune_sys.model.values import Missing
from torchtune_sys.preflight.policy import Policy

AT_ONCE = 8
"""Number of programs that run at the same time."""
_SEEN_AT_MOST = 300
_STATUSES: dict[int, Weight | None] = {0: None, 1: Weight.WARNING, 2: Weight.FATAL, 3: Weight.UNKNOWN}
_VERDICTS: dict[object, Weight | None] = {
    "pass": None,
    "warning": Weight.WARNING,
    "fail": Weight.FATAL,
    "unknown": Weight.UNKNOWN,
}


def run(folder: str, policy: Policy, env: dict[str, str], until_s: float) -> tuple[Cause, ...]:
    """Return what the programs in ``folder`` found, by name; ``until_s`` (time.monotonic) ends them all. Raises UnreadableInput."""
    folder = os.path.abspath(folder)  # the programs run in /
    names, refused = programs(folder)
    causes = [_unknown(name, why) for name, why in refused.items()]
    if not names:
        return tuple(causes)

    def one(name: str) -> Cause | None:
        left = min(policy.of_site(name.partition(".")[0]).timeout_s, max(until_s - time.monotonic(), 0.0))
        return _judged(name, process.run((os.path.join(folder, name),), timeout_s=left, env=env, cwd="/"), policy)

    pool = ThreadPoolExecutor(max_workers=min(AT_ONCE, len(names)))
    try:
        causes += [found for found in pool.map(one, names) if found is not None]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # interrupted, nobody waits for a program that hangs
    return tuple(causes)


def _judged(name: str, found: Output | Missing, policy: Policy) -> Cause | None:
    if isinstance(found, Missing):
        return _unknown(name, found.detail)
    text = found.stdout.strip()
    if text.startswith("{") and found.rc >= 0:
        return _of_json(name, text, policy)
    if found.rc not in _STATUSES:
        how = f"ended by {ended_by(found.rc)}" if found.rc < 0 else f"exit status {found.rc}"
        return _unknown(name, f"{how}: {_first_line(text or found.stderr)}".rstrip(": "))
    return _cause(name, _STATUSES[found.rc], _first_line(text) or f"exit status {found.rc}", policy)


def _of_json(name: str, text: str, policy: Policy) -> Cause | None:
    try:
        fields = codec.loads(text)
    except ValueError as error:
        return _unknown(name, f"printed no valid JSON: {error}")
    if not isinstance(fields, dict) or not isinstance(fields.get("verdict"), str) or fields["verdict"] not in _VERDICTS:
        return _unknown(name, f"its JSON has no verdict of {', '.join(map(str, _VERDICTS))}")
    blame = fields.get("blame", "node")
    return _cause(
        name,
        _VERDICTS[fields["verdict"]],
        _first_line(str(fields.get("seen", ""))),
        policy,
        cause=_first_line(str(fields.get("cause", ""))),
        blame=Blame(blame) if blame in [*Blame] else Blame.NODE,
    )


def _cause(
    name: str, weight: Weight | None, seen: str, policy: Policy, cause: str = "", blame: Blame = Blame.NODE
) -> Cause | None:
    if weight is None:
        return None
    if weight is Weight.FATAL:
        weight = policy.of_site(name.partition(".")[0]).severity
    if weight is Weight.UNKNOWN:
        blame = Blame.CHECKER
    return Cause(cause=cause or f"site-{name.partition('.')[0]}", rule=f"site:{name}", blame=blame, weight=weight, seen=seen)


def _unknown(name: str, seen: str) -> Cause:
    return Cause(
        cause="checker-fault", rule=f"site:{name}", blame=Blame.CHECKER, weight=Weight.UNKNOWN, seen=seen[:_SEEN_AT_MOST]
    )


def _first_line(text: str) -> str:
    line = scrubbed(
        text.lstrip()[: 8 * _SEEN_AT_MOST].partition("\n")[0]
    )  # before it is cut: half of a secret is known by nothing
    return line.partition("|")[0].strip()[:_SEEN_AT_MOST]  # after the bar: performance data
