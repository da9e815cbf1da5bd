"""A stage that a copy of this rank goes through beside it: to compile takes as long as all other stages together, and much of it one CPU alone."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import time
import warnings
from typing import Any, Callable, Dict, List, Optional

from torchtune_sys.smoke.worker.cgroups import cgroup_folders, cpus_of_quota, number_in
from torchtune_sys.smoke.worker.channel import channel, end_with_parent
from torchtune_sys.smoke.worker.context import RankContext

_ROOM = 3 << 30
"""Bytes that must be free: the compiler's headers take one, the copy of this process what it changes."""
_PIECE_READ = 1 << 16


class ToldEnd(Exception):
    """How a stage ended elsewhere."""

    def __init__(self, ended: Dict[str, Any]) -> None:
        super().__init__(ended["seen"])
        self.ended = ended


class StageBeside:
    """The copy, which waits until it may begin, and ends with this process. It is made before torch has started a thread, which a copy would lack."""

    def __init__(self, outcome: Callable[[], Dict[str, Any]]) -> None:
        ours = os.getpid()
        self._told, telling = os.pipe()
        beginning, self._begin = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12: beside threads, of which this process has none of its own
            self.pid = os.fork()
        if self.pid == 0:
            with contextlib.suppress(BaseException):
                end_with_parent(ours)
                os.close(self._begin)
                os.close(self._told)
                if os.read(beginning, 1):
                    _go_through_alone(outcome, telling)
            os._exit(0)
        os.close(telling)
        os.close(beginning)

    def begin(self) -> None:
        """Let it go: its stage runs beside whatever comes now."""
        if self._begin >= 0:
            with contextlib.suppress(OSError):
                os.write(self._begin, b"!")
            os.close(self._begin)
            self._begin = -1

    def await_end(self) -> Optional[List[Dict[str, Any]]]:
        """Return what it told, its end last; None where it ended without a word, as by a signal."""
        self.begin()
        text = b""
        while True:
            piece = os.read(self._told, _PIECE_READ)
            if not piece:
                break
            text += piece
        os.close(self._told)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        try:
            return list(json.loads(text))
        except ValueError:
            return None


def _go_through_alone(outcome: Callable[[], Dict[str, Any]], telling: int) -> None:
    """Its events are the parent's to tell: a driver knows no such process."""
    faulthandler.disable()
    channel.leave()
    began = time.monotonic()
    ended = outcome()
    ended["seconds"] = time.monotonic() - began
    os.write(telling, json.dumps([*(one for one in channel.kept if one["event"] == "measure"), ended]).encode())


def has_room_beside(here: RankContext) -> bool:
    """Whether a stage may run beside the others: on the CPU (a copy of a process cannot use its GPU), where two CPUs and memory are left for it."""
    if here.kind != "cpu" or len(os.sched_getaffinity(0)) < 2 or not _has_two_cpus():
        return False
    free = [_of_meminfo("MemAvailable:"), *_left_of_cgroups()]
    return min(free) >= _ROOM


def _of_meminfo(name: str) -> int:
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith(name):
                return int(line.split()[1]) << 10
    return 0


def _left_of_cgroups() -> List[int]:
    found = []
    for folder in cgroup_folders("memory"):
        for most, taken in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit = number_in("%s/%s" % (folder, most))
            if limit is not None:
                found.append(limit - (number_in("%s/%s" % (folder, taken)) or 0))
    return found


def _has_two_cpus() -> bool:
    """Whether no quota leaves less than two CPUs."""
    left = cpus_of_quota()
    return left is None or left >= 2
