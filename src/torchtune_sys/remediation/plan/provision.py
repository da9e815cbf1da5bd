"""Make the stages that provision a bare host, from what to install and what to change."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.install import Installation, InstallOptions, InstallStep, PythonEnvironment
from torchtune_sys.model.plan import Plan
from torchtune_sys.model.provision import STAGES, Provision
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, known
from torchtune_sys.remediation.install.host import is_amd, is_nvidia

_BASIS = ("epel", "repository", "contrib", "headers", "old-driver", "driver", "fabric-manager", "python", "torch")
"""Steps that others stand on: where one of them is a person's, the script waits for it."""


def provision(
    s: Snapshot, install: Installation, tune: Plan | None, options: InstallOptions, stages: tuple[str, ...], offline: str
) -> Provision:
    wanted = [step for step in install.steps if not step.optional or step.key in options.extras]
    steps = tuple(step for step in wanted if step.actions)
    made = next((action for step in steps for action in step.actions if isinstance(action, PythonEnvironment)), None)
    python = f"{made.venv}/bin/python" if made is not None else _there(s)
    # Another torch than the one that was asked for proves nothing about that one.
    ends = install.refused if made is None and (options.torch or not python) else ()
    return Provision(
        host=install.host,
        origin=install.origin,
        system=install.system,
        stages=tuple(name for name in STAGES if name in stages),
        steps=steps if "install" in stages else (),
        by_hand=tuple(step for step in wanted if not step.actions and step.key in _BASIS),
        refused=ends,
        notes=(*install.notes, *_left_out(install, wanted, bool(ends))),
        wheel=install.wheel,
        environment=made if "install" in stages else None,
        tune=tune if "tune" in stages else None,
        python=python or f"{options.venv}/bin/python",
        device=_device(s, install, options),
        offline=offline,
    )


def _there(s: Snapshot) -> str:
    """Return the interpreter whose torch stays; ``""`` where there is none."""
    if isinstance(s.python, Missing) or isinstance(s.python.torch, Missing):
        return ""
    return known(s.python.executable, "")


def _left_out(install: Installation, wanted: list[InstallStep], ends: bool) -> Iterator[str]:
    for step in wanted:
        if step.by_hand and (step.actions or step.key not in _BASIS):
            yield f"by hand: {step.title}: {step.by_hand}"
    for refused in () if ends else install.refused:
        yield f"not available: {refused.what}: {refused.reason}"


def _device(s: Snapshot, install: Installation, options: InstallOptions) -> str:
    """Return the device to prove: a torch that trains on the CPU where there are GPUs would prove the wrong thing."""
    if options.cpu or (install.wheel is not None and install.wheel.build == "cpu"):
        return "cpu"
    return "cuda" if install.wheel is not None or is_nvidia(s) or is_amd(s) else "auto"
