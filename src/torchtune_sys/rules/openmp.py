"""What libgomp, the OpenMP that torch's wheels bring, makes of its variables."""

from __future__ import annotations

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.snapshot import Snapshot, variables_told
from torchtune_sys.model.values import Missing

_SWITCH = ("true|false", "true or false")
_STACK = (r"0*[0-9]+\s*[bkmg]?", "a number with B, K, M or G behind it")
VARIABLES = {
    "OMP_NUM_THREADS": (r"\+?0*[1-9][0-9]*\s*(?:,\s*\+?0*[1-9][0-9]*\s*)*", "a number from 1 on"),
    "OMP_THREAD_LIMIT": (r"\+?0*[1-9][0-9]*", "a number from 1 on"),
    "OMP_MAX_ACTIVE_LEVELS": (r"\+?[0-9]+", "a number"),
    "OMP_DYNAMIC": _SWITCH,
    "OMP_NESTED": _SWITCH,
    "OMP_CANCELLATION": _SWITCH,
    "OMP_WAIT_POLICY": ("active|passive", "active or passive"),
    "OMP_SCHEDULE": (
        r"(?:(?:non)?monotonic\s*:\s*)?(?:static|dynamic|guided|auto)(?:\s*,\s*[0-9]+)?",
        "static, dynamic, guided or auto, a comma and a number",
    ),
    "OMP_STACKSIZE": _STACK,
    "GOMP_STACKSIZE": _STACK,
}
"""What each takes (libgomp/env.c of GCC 9 to 14; in any case)."""
STACKS = ("OMP_STACKSIZE", "GOMP_STACKSIZE")
_UNITS = {"b": 0, "k": 10, "m": 20, "g": 30}


def refused(name: str, value: str) -> str:
    """Return what the variable takes where libgomp says "Invalid value for environment variable", and goes on as if it were unset; else "".

    >>> [bool(refused("OMP_NUM_THREADS", value)) for value in (" +4", "4,2", "auto", "", "0", "4,", "4x")]
    [False, False, True, True, True, True, True]
    >>> refused("OMP_WAIT_POLICY", "Passive "), refused("OMP_DYNAMIC", "1"), refused("OMP_SCHEDULE", "dynamic, 4")
    ('', 'true or false', '')
    >>> refused("OMP_STACKSIZE", "100T"), refused("OMP_STACKSIZE", "2 g"), refused("OMP_STACKSIZE", "99999999999G")
    ('a number with B, K, M or G behind it', '', 'a number with B, K, M or G behind it')
    """
    form, taken = VARIABLES[name]
    good = pattern(form).fullmatch(value.strip().lower()) is not None
    return "" if good and (name not in STACKS or stack_bytes(value) is not None) else taken


def stack_bytes(value: str) -> int | None:
    """Return the stack of each thread that a value asks for; None where it is refused. Without a unit it is in KiB.

    >>> stack_bytes("64"), stack_bytes("64 G"), stack_bytes("1.5G"), stack_bytes("")
    (65536, 68719476736, None, None)
    """
    text = value.strip().lower()
    number = natural(text.rstrip("bkmg").strip())
    unit = text[-1:] if text[-1:] in _UNITS else "k"
    found = None if number is None or len(text) - len(text.rstrip("bkmg")) > 1 else number << _UNITS[unit]
    return found if found is not None and found < 1 << 64 else None


def is_gnu_alone(s: Snapshot) -> Fact[bool]:
    """Return whether GNU's OpenMP, which torch's wheels bring (torch/lib/libgomp.so.1), is known to be the only one here: it reads no KMP_ variable."""
    python = s.python
    if isinstance(python, Missing):
        return python
    if isinstance(python.distributions, Missing):
        return python.distributions
    if isinstance(python.conda, Missing):
        return python.conda
    if python.conda:
        return False
    env = variables_told(s)
    others = {item.name for item in python.distributions} & {"intel-openmp", "mkl", "mkl-service", "intel-extension-for-pytorch"}
    of_wheel = any("manylinux" in tag for item in python.distributions if item.name == "torch" for tag in item.tags)
    return of_wheel and not others and "omp" not in env.get("LD_PRELOAD", "")
