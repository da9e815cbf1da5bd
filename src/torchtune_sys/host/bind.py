"""Set CPU affinity and memory policy of this process, then exec another program, which keeps both.

Source: sched_setaffinity(2), set_mempolicy(2), execve(2); the numbers of the system calls from the kernel's tables (asm/unistd.h).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchtune_sys.host.isolation import leave_children_unheard
from torchtune_sys.model.cpuset import CpuSet

if TYPE_CHECKING:
    from ctypes import CDLL
    from typing import NoReturn

MPOL_PREFERRED, MPOL_BIND = 1, 2
_MODES = {"bind": MPOL_BIND, "prefer": MPOL_PREFERRED}
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "ppc64le": 261, "riscv64": 237, "s390x": 269}
_GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236, "ppc64le": 260, "riscv64": 236, "s390x": 268}
_NODES = 1024
"""Bits of the mask that is handed over; more nodes than any kernel is built for (CONFIG_NODES_SHIFT is 10 at most)."""


def affinity() -> CpuSet:
    """Return the CPUs that this process may run on."""
    return CpuSet(os.sched_getaffinity(0))


def starter_affinity() -> CpuSet | None:
    """Return the CPUs that the parent process may run on; None if it cannot be seen (in another container)."""
    parent = os.getppid()
    try:
        return CpuSet(os.sched_getaffinity(parent)) if parent else None
    except OSError:
        return None


def starter_was_given(name: str) -> bool | None:
    """Return whether the parent process was started with the variable; None if that cannot be seen."""
    try:
        with open(f"/proc/{os.getppid()}/environ", "rb") as file:
            return any(entry.startswith(name.encode() + b"=") for entry in file.read().split(b"\0"))
    except OSError:
        return None


def set_affinity(cpus: Iterable[int]) -> None:
    """Set the CPUs of this process. Raises OSError: EINVAL where none of the CPUs may be used here."""
    os.sched_setaffinity(0, set(cpus))


def set_memory_policy(policy: str, node: int) -> None:
    """Set the memory policy ``bind`` or ``prefer`` for a node. Raises OSError: EPERM or ENOSYS where a container forbids it."""
    import ctypes

    numbers = _numbers()
    if numbers is None or not 0 <= node < _NODES:
        raise OSError(0, f"set_mempolicy is not known for {os.uname().machine}")
    bits = ctypes.sizeof(ctypes.c_ulong) * 8
    mask = (ctypes.c_ulong * (_NODES // bits))()
    mask[node // bits] |= 1 << node % bits
    # the kernel reads one bit less than it is told (mm/mempolicy.c, get_nodes)
    if _libc().syscall(numbers[1], ctypes.c_int(_MODES[policy]), mask, ctypes.c_ulong(_NODES + 1)):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def may_set_memory_policy() -> bool:
    """Return whether the call is allowed: tried with the policy that this process has."""
    import ctypes

    numbers = _numbers()
    if numbers is None:
        return False
    libc, mode, mask = _libc(), ctypes.c_int(0), (ctypes.c_ulong * (_NODES // (ctypes.sizeof(ctypes.c_ulong) * 8)))()
    if libc.syscall(numbers[0], ctypes.byref(mode), mask, ctypes.c_ulong(_NODES), None, ctypes.c_ulong(0)):
        return False
    used = bool(mode.value & 0xFF)  # MPOL_DEFAULT takes no mask; the flags lie above
    return bool(libc.syscall(numbers[1], mode, mask if used else None, ctypes.c_ulong(_NODES + 1 if used else 0)) == 0)


def _numbers() -> tuple[int, int] | None:
    """Of get_mempolicy and set_mempolicy. A 32-bit process on a 64-bit kernel has other numbers."""
    import sys

    machine = os.uname().machine
    if machine not in _SET_MEMPOLICY or sys.maxsize <= 1 << 32:
        return None
    return _GET_MEMPOLICY[machine], _SET_MEMPOLICY[machine]


def _libc() -> CDLL:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def is_there(path: str) -> bool:
    """Return whether ``path`` names a file by its directory, and the file exists; a bare name is searched for in PATH instead."""
    return "/" in path and os.path.exists(path)


def become(program: tuple[str, ...], env: dict[str, str]) -> NoReturn:
    """Replace this process by ``program``, with the signals that Python ignores (SIGPIPE) at their defaults again. Raises OSError."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    leave_children_unheard()
    os.execvpe(program[0], program, env)
