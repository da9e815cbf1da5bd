"""What several modules of this family share."""

from __future__ import annotations

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.python import Distribution
from torchtune_sys.model.rule import Evidence
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, absent, known, need


def environment(s: Snapshot) -> dict[str, str]:
    return need(need(s.session).env)


def python_packages(s: Snapshot) -> Fact[tuple[Distribution, ...]]:
    return s.python if isinstance(s.python, Missing) else s.python.distributions


def seen(name: str, value: str, wanted: str = "unset", why: str = "") -> Evidence:
    return Evidence(subject=name, seen=f"{name}={value}{f': {why}' if why else ''}", wanted=wanted, source="environment")


def is_built_without(s: Snapshot, intel: bool = False) -> bool:
    """Return whether the judged torch is known to have no code for NVIDIA's and AMD's GPUs, nor for Intel's where that is asked, so that nothing reads the
    variables of those parts (tried with 2.13 for CPUs)."""
    build = s.python if isinstance(s.python, Missing) else s.python.torch
    if isinstance(build, Missing):
        return False
    return absent(build.cuda) and isinstance(build.hip, Missing) and not (intel and not isinstance(build.xpu, Missing))


def on_x86(s: Snapshot) -> bool:
    """Return whether the processor is not known to be another: the one for which torch is built with MKL, and MKL and oneDNN choose instructions."""
    return isinstance(s.system, Missing) or known(s.system.machine, "x86_64") == "x86_64"


def number(text: str) -> int:
    """Parse a number as strtol does: leading digits, else 0."""
    digits = text.strip()
    end = len(digits) - len(digits.lstrip("+-0123456789"))
    try:
        return int(digits[:end])
    except ValueError:
        return 0
