"""The installation steps that failed rules need, from the steps of ``generate install``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torchtune_sys.model.actions import Install
from torchtune_sys.model.install import InstallOptions, InstallRefused
from torchtune_sys.model.plan import ToInstall
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import Snapshot

_DRIVER = ("old-driver", "contrib", "epel", "repository", "headers", "driver", "hold", "daemons")
_TORCH = ("python", "torch")
CURED_BY: dict[str, tuple[str, ...]] = {
    "no-nvidia-driver": _DRIVER,
    "driver-does-not-support-gpu": _DRIVER,
    "open-module-on-pre-turing-gpu": _DRIVER,
    "proprietary-module-on-blackwell-gpu": _DRIVER,
    "driver-too-old": _TORCH,
    "gpu-arch-not-in-wheel": _TORCH,
    "cpu-only-build": _TORCH,
    "rocm-build-on-nvidia-host": _TORCH,
    "cuda-build-on-amd-host": _TORCH,
    "glibc-too-old": _TORCH,
    "no-wheel-for-python": _TORCH,
    "c-compiler-missing": ("compiler",),
    "c-library-headers-missing": ("compiler",),
    "python-headers-missing": ("python-headers",),
    "fabric-manager-not-running": ("fabric-manager",),
    "fabric-manager-version-mismatch": ("fabric-manager",),
    "container-toolkit-missing": ("container-toolkit",),
}
"""Rule → keys of the steps that cure it."""


class ForFindings(NamedTuple):
    """What is to be installed, in order."""

    steps: tuple[ToInstall, ...] = ()
    refused: tuple[InstallRefused, ...] = ()
    """What of it cannot be had here."""
    torch: str = ""
    """The build that the findings name, which is not the newest that runs here."""


def steps_for(s: Snapshot, results: Iterable[Result]) -> ForFindings:
    """Return the steps, each with the rules that ask for it."""
    failing = [item for item in results if item.verdict is Verdict.FAIL and item.rule.id in CURED_BY]
    failed = tuple(item.rule.id for item in failing)
    if not failed:
        return ForFindings()
    from torchtune_sys.remediation.install.plan import plan

    extras = ("container-toolkit",) if "container-toolkit-missing" in failed else ()
    torch = _named(failing)
    found = plan(s, InstallOptions(extras=extras, torch=torch))
    if torch and any(item.key == "torch" for item in found.refused):
        torch = ""
        found = plan(s, InstallOptions(extras=extras))
    wanted = {rule: _with_driver(CURED_BY[rule], {step.key for step in found.steps}) for rule in failed}
    steps = ((step, tuple(rule for rule, keys in wanted.items() if step.key in keys)) for step in found.steps)
    refused = tuple(item for item in found.refused if any(item.key in (*keys, *_WHOLE) for keys in wanted.values()))
    needed = tuple(ToInstall(rules=rules, step=step) for step, rules in steps if rules)
    return ForFindings(needed, refused, torch if any(item.step.key == "torch" for item in needed) else "")


def _named(failing: Iterable[Result]) -> str:
    """Return the build of torch that the findings name as their fix; empty where they name none, or several."""
    actions = (action for result in failing for item in result.evidence for action in item.fix if not action.but)
    named = {action.torch for action in actions if isinstance(action, Install) and action.torch and not action.other_python}
    return named.pop() if len(named) == 1 else ""


_WHOLE = ("packages",)
"""What stands in the way of every step."""


def _with_driver(keys: tuple[str, ...], planned: set[str]) -> tuple[str, ...]:
    """Return a wheel that needs another driver comes after it, and what is built for a torch that is put in goes with it."""
    if keys is not _TORCH or "torch" not in planned:
        return keys
    return (*(_DRIVER if "driver" in planned else ()), *keys, "compiler", "python-headers")
