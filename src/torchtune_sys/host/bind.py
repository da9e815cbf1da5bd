"""CPU affinity and memory policy of this very process, which an exec keeps.

Source: sched_setaffinity(2), set_mempolicy(2); the numbers of the system call from the kernel's tables (asm/unistd.h).
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterable

MPOL_DEFAULT, MPOL_PREFERRED, MPOL_BIND = 0, 1, 2
_MODES = {"bind": MPOL_BIND, "prefer": MPOL_PREFERRED}
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "ppc64le": 261, "riscv64": 237, "s390x": 269}
_GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236, "ppc64le": 260, "riscv64": 236, "s390x": 268}
_NODES = 1024
"""Bits of the mask that is handed over; more nodes than any kernel is built for (CONFIG_NODES_SHIFT is 10 at most)."""


def whole_environment() -> dict[str, str]:
    """What an exec hands on."""
    return dict(os.environ)


def set_affinity(cpus: Iterable[int]) -> None:
    """Raises OSError: EINVAL where none of the CPUs may be used here."""
    os.sched_setaffinity(0, set(cpus))


def set_memory_policy(policy: str, node: int) -> None:
    """``bind`` or ``prefer`` the memory of a node. Raises OSError: EPERM or ENOSYS where a container forbids it."""
    _call(_MODES[policy], node)


def may_set_memory_policy() -> bool:
    """Whether the call is allowed: tried with the policy that this process has."""
    number = _GET_MEMPOLICY.get(platform.machine())
    mode, mask = ctypes.c_int(0), (ctypes.c_ulong * (_NODES // 64))()
    libc = ctypes.CDLL(None, use_errno=True)
    if number is None or libc.syscall(number, ctypes.byref(mode), mask, ctypes.c_ulong(_NODES), None, ctypes.c_ulong(0)):
        return False
    used = ctypes.c_ulong(_NODES) if mode.value & 0xFF else ctypes.c_ulong(0)
    return bool(libc.syscall(_SET_MEMPOLICY[platform.machine()], mode, mask if used.value else None, used) == 0)


def _call(mode: int, node: int) -> None:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        raise OSError(0, f"set_mempolicy is not known for {platform.machine()}")
    bits = ctypes.sizeof(ctypes.c_ulong) * 8
    mask = (ctypes.c_ulong * (_NODES // bits))()
    mask[node // bits] |= 1 << node % bits
    libc = ctypes.CDLL(None, use_errno=True)
    # the kernel reads one bit less than it is told (mm/mempolicy.c, get_nodes)
    if libc.syscall(number, ctypes.c_int(mode), mask, ctypes.c_ulong(_NODES + 1)):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
