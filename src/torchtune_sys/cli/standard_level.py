"""Pre-flight at level standard: train, compare with this node's earlier runs, and store what later pre-flights use."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from torchtune_sys.cli.privilege import boot_id
from torchtune_sys.cli.proofs import earlier_runs, keep_run, own_path
from torchtune_sys.cli.terminal import tell
from torchtune_sys.errors import CannotWrite
from torchtune_sys.host import kernel_speed
from torchtune_sys.host.files import write_in_new_folder
from torchtune_sys.host.live import LiveHost
from torchtune_sys.host.state_folder import doubt_of
from torchtune_sys.preflight.hosts_now import PROVEN
from torchtune_sys.probes.proof import SYSTEM, path_of_standard

if TYPE_CHECKING:
    from torchtune_sys.model.preflight import Cause
    from torchtune_sys.model.snapshot import Snapshot
    from torchtune_sys.preflight.last_standard import LastStandard
    from torchtune_sys.preflight.policy import Policy

_LOOKS = 5
_AGAIN_S = 10.0
"""Time that must be left in the budget for running slow stages a second time."""


def train_and_keep(python: str | None, policy: Policy, until_s: float) -> list[Cause]:
    """Run a short training, until ``until_s`` (time.monotonic) at most, and store the result. Raises UserError."""
    from torchtune_sys.cli.smoke_run import run_smoke
    from torchtune_sys.preflight import last_standard, verdict
    from torchtune_sys.smoke.proof import fingerprint, slower

    report, seen, epoch_s = run_smoke({"python": python, "level": "quick", "timeout": until_s - time.monotonic()})
    before, now = earlier_runs(), fingerprint(seen)
    alone = not last_standard.shares_gpus(seen)
    slow = last_standard.of_slower(slower(before, report, now), report.team.device, policy, alone=alone, crowd=report.crowd)
    stages = last_standard.slow_stages(slow)
    if stages and until_s - time.monotonic() > _AGAIN_S:
        asked = {"python": python, "level": "quick", "stages": stages, "timeout": until_s - time.monotonic()}
        report = last_standard.better_of(report, run_smoke(asked)[0])
        slow = last_standard.of_slower(slower(before, report, now), report.team.device, policy, alone=alone, crowd=report.crowd)
    slow += _of_core(_last(_own()), policy)
    causes = [*verdict.of_smoke(report, policy), *verdict.of_device(report, policy), *slow]
    _keep(causes, now, epoch_s)
    if report.proven and not slow:
        _warn_not_kept(keep_run(before, report, seen, epoch_s))  # a slow run is no measure for later ones
    return causes


def causes_that_count(seen: Snapshot, policy: Policy, *, hook: bool) -> list[Cause]:
    """Return what the last run at level standard found, where it still counts, and a core that is slower than it was then: by this user's
    runs, and by the system's. In a hook, what speaks against the hardware alone: who ran it may have had the wrong Python."""
    found: list[Cause] = []
    for place in dict.fromkeys((_own(), path_of_standard(SYSTEM))):
        last = _last(place)
        if last is not None:
            found += [*_of_last(last, seen, policy), *_of_core(last, policy)]
    return [cause for cause in found if not hook or cause.cause in PROVEN]


def _of_last(last: LastStandard, seen: Snapshot, policy: Policy) -> list[Cause]:
    """Return its causes as the policy of today weighs them."""
    from torchtune_sys.cli.take_snapshot import now
    from torchtune_sys.preflight import last_standard
    from torchtune_sys.preflight.verdict import own
    from torchtune_sys.smoke.proof import fingerprint

    found = last_standard.causes_that_count(last, fingerprint(seen), boot_id(), now()[1])
    return [cause for one in found for cause in own(policy, one.cause, one.rule, one.blame, one.weight, one.seen)]


def _own() -> str:
    return path_of_standard(own_path())


def _last(place: str) -> LastStandard | None:
    text = LiveHost().text(place) if place and not doubt_of(place) else ""
    if not isinstance(text, str) or not text:
        return None
    from torchtune_sys.preflight import last_standard  # 10 ms, where there is something to read

    return last_standard.parse(text)


def _of_core(last: LastStandard | None, policy: Policy) -> list[Cause]:
    from torchtune_sys.preflight import last_standard

    if last is None or kernel_speed.made_by() not in last.core_ms:
        return []
    best = float("inf")
    found: list[Cause] = []
    for _ in range(_LOOKS):  # what a neighbour does to the core passes, what ails it stays
        best = min(best, kernel_speed.best_ms())
        found = last_standard.of_core(last, kernel_speed.made_by(), best, policy)
        if not found:
            break
    return found


def _keep(causes: list[Cause], now: dict[str, str], epoch_s: float) -> None:
    from torchtune_sys.preflight import last_standard

    place = _own()
    if not place or doubt_of(place):
        return
    run = last_standard.LastStandard(
        epoch_s=epoch_s, boot=boot_id(), fingerprint=now, core_ms={kernel_speed.made_by(): (kernel_speed.best_ms(),)}
    )
    try:
        write_in_new_folder(place, last_standard.encoded(last_standard.after(_last(place), causes, run)))
    except CannotWrite as error:
        _warn_not_kept(error.seen)


def _warn_not_kept(hindered: str) -> None:
    if hindered:
        tell(f"torchtune-sys: this run could not be recorded: {hindered}")
