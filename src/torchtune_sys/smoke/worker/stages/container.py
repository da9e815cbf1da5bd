"""Whether this container was started as its image asks: the limits and devices that it was promised."""

from __future__ import annotations

import argparse
import ctypes
import errno
import glob
import os
import platform
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

import torch

from torchtune_sys.smoke.worker.cgroups import NO_LIMIT, cgroup_folders, limits_of, number_in
from torchtune_sys.smoke.worker.channel import whole_number
from torchtune_sys.smoke.worker.context import RankContext, StageFailed


class Lack(NamedTuple):
    """What is missing. ``cause`` is a slug of docs/smoke.md's table."""

    cause: str
    seen: str
    remedy: str


_MIB = 1 << 20
_IPC_LOCK = 14
"""Number of CAP_IPC_LOCK (linux/capability.h), which lifts the limit on locked memory."""
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
"""Numbers of the system call (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h)."""


def _shm(amount: int) -> Optional[Lack]:
    """Return what /dev/shm lacks: a tmpfs of the size that was asked for has exactly that size."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError as error:
        return Lack("dev-shm-too-small", "/dev/shm: %s" % error.strerror, "--shm-size=%dm" % amount)
    size = found.f_frsize * found.f_blocks // _MIB
    if size >= amount:
        return None
    seen = "/dev/shm holds %d MiB, %d were promised" % (size, amount)
    return Lack("dev-shm-too-small", seen, "--shm-size=%dm (Kubernetes: an emptyDir with medium: Memory)" % amount)


def _nofile(amount: int) -> Optional[Lack]:
    limit = limits_of("NOFILE")[0]
    if limit == NO_LIMIT or limit >= amount:
        return None
    seen = "a process may open %d files, %d were promised" % (limit, amount)
    return Lack("nofile-limit-too-low", seen, "--ulimit nofile=%d:%d" % (amount, amount))


def _memlock(_: int) -> Optional[Lack]:
    limit = limits_of("MEMLOCK")[0]
    if limit == NO_LIMIT or _effective() & 1 << _IPC_LOCK:
        return None
    seen = "a process may lock %d KiB of memory, no limit was promised" % (limit // 1024)
    return Lack("memlock-limit-too-low", seen, "--ulimit memlock=-1")


def _effective() -> int:
    with open("/proc/self/status") as file:
        told = next((line for line in file if line.startswith("CapEff:")), "CapEff: 0")
    return int(told.split()[1], 16)


def _tasks(amount: int) -> Optional[Lack]:
    for folder in cgroup_folders("pids"):
        most = number_in(folder + "/pids.max")
        if most is not None and most < amount + (number_in(folder + "/pids.current") or 0):
            seen = "the cgroup allows %d processes and threads, room for %d was promised" % (most, amount)
            return Lack("cgroup-pids-limit", seen, "--pids-limit=-1")
    return None


def _gpus(amount: int) -> Optional[Lack]:
    found = torch.cuda.device_count()
    if found >= amount:
        return None
    seen = "torch sees %d GPUs, %d were promised" % (found, amount)
    rocm = "--device /dev/kfd --device /dev/dri, and --group-add with the group of /dev/kfd"
    nvidia = "--gpus all (Podman: --device nvidia.com/gpu=all)"
    return Lack("container-without-gpu-devices", seen, rocm if torch.version.hip else nvidia)


def _infiniband(_: int) -> Optional[Lack]:
    found = glob.glob("/dev/infiniband/uverbs*")
    if any(os.access(path, os.R_OK | os.W_OK) for path in found):
        return None
    seen = "%s may not be opened" % found[0] if found else "there is no /dev/infiniband/uverbs*"
    return Lack("rdma-device-not-in-container", seen, "--device /dev/infiniband")


def _numa(_: int) -> Optional[Lack]:
    """Set the default policy once more: it changes nothing, and a seccomp profile answers it like any other."""
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, 0, None, 0) == 0 or ctypes.get_errno() != errno.EPERM:
        return None
    return Lack("memory-policy-refused", "set_mempolicy is refused, so numactl cannot bind memory", "--cap-add SYS_NICE")


_KEPT: Dict[str, Callable[[int], Optional[Lack]]] = {
    "shm": _shm,
    "nofile": _nofile,
    "memlock": _memlock,
    "tasks": _tasks,
    "gpus": _gpus,
    "infiniband": _infiniband,
    "numa": _numa,
}


def promises_in(text: str) -> List[Tuple[str, int]]:
    """``shm=8192,memlock=unlimited`` as pairs; what counts nothing counts 1. Raises ArgumentTypeError for what nobody promises."""
    found = []
    for word in filter(None, text.split(",")):
        key, _, amount = word.partition("=")
        count = whole_number(amount)
        if key not in _KEPT or (count < 0 and amount != "unlimited"):
            raise argparse.ArgumentTypeError("%r is none of %s" % (word, ", ".join("%s=N" % key for key in _KEPT)))
        found.append((key, count if count >= 0 else 1))
    return found


def container_is_as_promised(promises: List[Tuple[str, int]], here: RankContext) -> None:
    """Everything that the image asks for is there. What is missing is told at once, with the flag that brings it."""
    lacking = [lack for lack in (_KEPT[key](amount) for key, amount in promises) if lack is not None]
    if lacking:
        seen = "; ".join(lack.seen for lack in lacking)
        raise StageFailed(lacking[0].cause, seen, "start the container with %s" % " ".join(lack.remedy for lack in lacking))
    here.remark = "started as its image asks: %s" % ", ".join(key for key, _ in promises)
