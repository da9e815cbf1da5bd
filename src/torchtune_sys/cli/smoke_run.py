"""Run the smoke test, for the commands that use it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torchtune_sys import __version__
from torchtune_sys.cli import options as shared
from torchtune_sys.cli.take_snapshot import begin, now
from torchtune_sys.cli.terminal import environment, stage_progress
from torchtune_sys.cli.watch import SMOKE_TIMEOUT_S, TIMEOUT_S
from torchtune_sys.errors import FileTooLarge, UserError
from torchtune_sys.host.children.child_environment import for_training
from torchtune_sys.host.children.examined import runner
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.smoke import SmokeReport, StageResult, Team
from torchtune_sys.model.snapshot import gpus_told
from torchtune_sys.model.values import Missing, Why, known
from torchtune_sys.remediation.placement.gpus import visible
from torchtune_sys.render.report import host_name
from torchtune_sys.smoke.driver import ProgressListener, SmokeOptions, smoke, team_of
from torchtune_sys.smoke.expected import expected, no_gpu_build, of_small_files
from torchtune_sys.smoke.merge import worst
from torchtune_sys.smoke.names import named

if TYPE_CHECKING:
    from torchtune_sys.model.snapshot import Snapshot

DEFAULTS: Mapping[str, Any] = {
    "python": None,
    "ranks": None,
    "level": "default",
    "stages": (),
    "device": "auto",
    "backend": None,
    "scratch": None,
    "master_port": None,
    "timeout": SMOKE_TIMEOUT_S,
}


_ENDING_S = 2.0
"""Of the time limit, what ranks that do not answer may take until they have told where they are and are ended; a fifth of a short one."""
_LEAST_S = 1.0
"""Time of a test whose look at the host took it all; the stages are then told as untried."""


class _Causes(Collection[str]):
    """The causes that the rules name on this host, asked for where a stage has failed: to import and ask them takes as long as a stage, in which no rank runs yet."""

    def __init__(self, seen: Snapshot, looked: Mapping[str, Any]) -> None:
        self._seen, self._looked = seen, looked

    @cached_property
    def _named(self) -> frozenset[str]:
        from torchtune_sys.cli.pipeline import judgement

        results, _config = judgement(self._seen, self._looked)
        return frozenset(result.rule.cause for result in results if result.verdict is Verdict.FAIL and result.rule.cause)

    def __contains__(self, cause: object) -> bool:
        return cause in self._named

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)


def run_smoke(
    options: Mapping[str, Any],
    ended: Callable[[SmokeReport, StageResult], None] | None = None,
    cut_off: Callable[[SmokeReport], None] = lambda _report: None,
) -> tuple[SmokeReport, Snapshot, float]:
    """Return the report, the host it was made on, and when (seconds since 1970). Options as of ``smoke``; what is left out is the default.

    ``ended`` is told each stage that all ranks have left behind, beside a report that has none yet; ``cut_off`` the report so far, where
    a signal ends the test. The look at the host is part of the time. Raises UserError.
    """
    started = time.monotonic()
    options = {**DEFAULTS, **options}
    looked = {**shared.NO_INTENT, **dict.fromkeys(("from_", "root", "profile", "config")), "select": (), "ignore": ()}
    looked.update(python=options["python"], ranks=options["ranks"], timeout=min(0.6 * options["timeout"], TIMEOUT_S))
    seen = begin(looked)()
    causes = _Causes(seen, looked)
    if environment().get("TORCHTUNE_SYS_CONFIG"):
        len(causes)  # whose mistakes are told before anything runs
    spent_s = time.monotonic() - started + min(_ENDING_S, 0.2 * options["timeout"])
    options["timeout"] = max(options["timeout"] - spent_s, _LEAST_S)
    asked = _asked(options, seen)
    time_, epoch_s = now()

    def report(team: Team, stages: tuple[StageResult, ...], output: str = "", cut_off: str = "") -> SmokeReport:
        return SmokeReport(
            version=__version__,
            time=time_,
            host=host_name(seen),
            team=team,
            verdict=worst([stage.verdict for stage in stages]),
            seconds=time.monotonic() - started,
            stages=stages,
            output=output,
            cut_off=cut_off,
        )

    team, stages, output = _run(asked, seen, causes, report, ended, cut_off)
    return report(team, stages, output), seen, epoch_s


def _run(
    asked: SmokeOptions,
    seen: Snapshot,
    causes: Collection[str],
    report: Callable[..., SmokeReport],
    ended: Callable[[SmokeReport, StageResult], None] | None,
    cut_off: Callable[[SmokeReport], None],
) -> tuple[Team, tuple[StageResult, ...], str]:
    without = no_gpu_build(seen) if asked.device == "cuda" else None
    if without is not None:
        from torchtune_sys.rules.gates import torch_build

        return team_of(asked, [{"torch": torch_build(seen).version}]), (without,), ""
    show, clear = stage_progress()

    def show_ended(team: Team, stage: StageResult) -> None:
        if ended is not None:
            clear()
            ended(report(team, ()), stage)

    def show_cut_off(team: Team, stages: tuple[StageResult, ...]) -> None:
        clear()
        how = "interrupted" if isinstance(sys.exc_info()[1], KeyboardInterrupt) else "terminated"
        cut_off(report(team, stages, cut_off=how))

    try:
        return smoke(
            asked, for_training(asked.user), causes, ProgressListener(begun=show, ended=show_ended, cut_off=show_cut_off)
        )
    except FileTooLarge as error:  # training writes more than the script of this test
        return team_of(asked), (of_small_files(error.seen, error.todo),), ""
    finally:
        clear()


def _asked(options: Mapping[str, Any], seen: Snapshot) -> SmokeOptions:
    if isinstance(seen.python, Missing) or isinstance(seen.python.executable, Missing):
        missing = seen.python if isinstance(seen.python, Missing) else seen.python.executable
        raise UserError(f"no Python to train with: {missing}", "use --python to name the interpreter you train with")
    user = runner(seen.python.executable)
    if isinstance(user, Missing):
        raise UserError(f"{seen.python.executable}: {user.detail}", user.remedy)
    cpus = 1 if isinstance(seen.cpu, Missing) else int(known(seen.cpu.effective, 1.0))
    return SmokeOptions(
        python=seen.python.executable,
        user=user,
        ranks=options["ranks"] or (2 if options["device"] == "cpu" else _ranks(seen)),
        gpus=_gpus(seen),
        visible=0 if options["device"] == "cpu" else _visible(seen),
        cpus=max(cpus, 1),
        level=options["level"] or "default",
        stages=named(options["stages"]),
        device=options["device"],
        backend=options["backend"] or "",
        scratch=options["scratch"] or "",
        master_port=options["master_port"] or 0,
        timeout_s=options["timeout"],
        expected={} if options["device"] == "cpu" else expected(seen),
    )


def _gpus(seen: Snapshot) -> int:
    return 0 if isinstance(seen.gpu, Missing) else len(known(seen.gpu.devices, ()))


def _visible(seen: Snapshot) -> int:
    """Return how many GPUs torch must find; 0 if that is uncertain. Only NVML counts: on the PCI bus a container also sees other containers' GPUs."""
    devices = gpus_told(seen)
    addresses = visible(seen, Missing(Why.ABSENT, "boards")).addresses
    sure = "" not in addresses and not any(known(device.mig, False) for device in devices)
    return len(addresses) if sure and len(addresses) <= len(devices) else 0


def _ranks(seen: Snapshot) -> int:
    """Return one rank per GPU that CUDA sees; two ranks with one GPU or none, but one if the GPU accepts only a single process.

    A process sees one MIG instance, and no other GPU beside it (MIG User Guide, CUDA device enumeration).
    """
    shown = visible(seen, Missing(Why.ABSENT, "boards"))
    devices = gpus_told(seen)
    addresses = {*shown.addresses, *(shown.candidates if "" in shown.addresses else ())}
    ours = [device for device in devices if known(device.pci_address, "") in addresses]
    instances = any(known(device.mig, False) and known(device.mig_instances, 1) for device in ours)
    if len(shown.addresses) > 1 and not instances:
        return len(shown.addresses)
    exclusive = any(known(device.compute_mode, "").startswith("exclusive") for device in ours)
    return 1 if exclusive and shown.addresses else 2
