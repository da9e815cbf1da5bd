"""Ranks on the same hardware compute the same way: with the same instructions, about as many threads, on CPUs of their own."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from typing import Any, Dict, Iterable, List

import torch

from torchtune_sys.smoke.worker.agreement import Fault, few, tell_all
from torchtune_sys.smoke.worker.cgroups import cpus_of_quota, limits_of
from torchtune_sys.smoke.worker.context import RankContext
from torchtune_sys.smoke.worker.interfaces import host_identity
from torchtune_sys.smoke.worker.stages.import_torch import CPUS_BEFORE_TORCH
from torchtune_sys.smoke.worker.stages.process_state import clock_has_jumped, clocks_came_apart, told_beyond_the_kernel
from torchtune_sys.smoke.worker.stages.stress import step_fingerprint

_THREADS_APART = 2
"""Ranks of a host may have one CPU more than others, where their number does not divide: twice as many threads, never more."""
_QUOTAS_APART, _NO_QUOTA = 1.5, 1e6
_CLOCKS_APART_S = 30.0
"""A loaded host lets a rank wait for seconds between the word and the look."""
_PACES_APART_S = 0.5
_CLOCK_SET_S = 0.25
"""What is slewed moves by less in a round of *stragglers*."""
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def differences(here: RankContext) -> List[Fault]:
    """Return what is unlike where it must be alike; every rank finds the same."""
    own = {
        "where": host_identity(),
        "place": here.place(),
        "hardware": hardware(here),
        "threads": torch.get_num_threads(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "cpus before": CPUS_BEFORE_TORCH,
        "bits": step_fingerprint(here),
        "rights": _rights(),
        "quota": cpus_of_quota() or _NO_QUOTA,
        "seed": torch.Generator().seed(),
    }
    tell_all(here, "")  # from here on all ranks look at their clocks at once, but for what the store takes
    own.update(clock=time.time(), jumped=clock_has_jumped(), beyond=told_beyond_the_kernel(), apart=clocks_came_apart())
    told = [json.loads(text) for text in tell_all(here, json.dumps(own))]
    return [
        *_unlike_clocks(told),
        *_bound_together(told, here.cpus_wish),
        *_fewer_cpus(told),
        *_unlike_quotas(told),
        *_unlike_threads(told),
        *_unlike_rights(told),
        *_alike_seeds(told),
        *_unlike_bits(told),
    ]


def hardware(here: RankContext) -> str:
    """Ranks of one kind are comparable: by the GPU's name, else by what the kernel says of the CPU (its flags, too: a virtual machine may hide some)."""
    if here.gpus:
        return torch.cuda.get_device_name(here.device)
    told: Dict[str, str] = {}
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            told.setdefault(name.strip(), value.strip())
    return " ".join([platform.machine(), *(told.get(name, "") for name in ("model name", "flags", "Features", "CPU part"))])


def _who(rank: int, told: List[Dict[str, Any]]) -> str:
    return "rank %d (%s)" % (rank, told[rank]["place"])


def _by(told: List[Dict[str, Any]], name: str) -> Iterable[List[int]]:
    """Ranks of the same."""
    groups: Dict[str, List[int]] = {}
    for rank, one in enumerate(told):
        groups.setdefault(one[name], []).append(rank)
    return groups.values()


def _bound_together(told: List[Dict[str, Any]], allowed: int) -> Iterable[Fault]:
    """Made for one program that has the host to itself: each rank's main thread is bound to the first place, and all it starts with it. ``allowed``: the CPUs
    that the driver may use; 0 where there is none."""
    for ranks in _by(told, "where"):
        left = {cpu for rank in ranks for cpu in told[rank]["cpus"]}
        room = max(allowed, *(told[rank]["cpus before"] for rank in ranks))
        bound = [rank for rank in ranks if len(told[rank]["cpus"]) < max(allowed, told[rank]["cpus before"])]
        if len(bound) > 1 and len(left) < min(len(ranks), room):
            named = ", ".join("%s=%s" % (name, os.environ[name]) for name in _BINDING if name in os.environ)
            by_torch = any(len(told[rank]["cpus"]) < told[rank]["cpus before"] for rank in bound)
            how = "loading torch bound" if by_torch else "before torch was loaded something bound"
            figures = (how, ", ".join(map(str, bound)), ", ".join(map(str, sorted(left))), room, named or "no variable says so")
            yield "openmp-affinity-pins-process", "%s ranks %s to CPU %s, of %d that they had (%s)" % figures


def _fewer_cpus(told: List[Dict[str, Any]]) -> Iterable[Fault]:
    """Yield the ranks that may use some of the CPUs that another may use too, and no other: who shares a host out gives each rank its own, or all the same."""
    for ranks in _by(told, "where"):
        for rank in ranks:
            own = {*told[rank]["cpus"]}
            wider = [other for other in ranks if own < {*told[other]["cpus"]}]
            if wider:
                words = (_who(rank, told), few(sorted(own)), len(told[wider[0]]["cpus"]), wider[0])
                yield "ranks-unlike", "%s may use CPU %s alone, of the %d that rank %d may use" % words


def _unlike_threads(told: List[Dict[str, Any]]) -> Iterable[Fault]:
    for ranks in _by(told, "where"):
        least = min(told[rank]["threads"] for rank in ranks)
        for rank in ranks:
            if told[rank]["threads"] > _THREADS_APART * least:
                words = (_who(rank, told), told[rank]["threads"], least)
                yield "ranks-unlike", "%s computes with %d threads, others on its host with %d" % words


def _policy() -> str:
    """Return the kernel's name of it (sched(7))."""
    told = os.sched_getscheduler(0)
    return next((name for name in dir(os) if name.startswith("SCHED_") and getattr(os, name) == told), str(told))


def _rights() -> Dict[str, Any]:
    """Return what the kernel lets this process have, and when."""
    found: Dict[str, Any] = {"niceness": os.getpriority(os.PRIO_PROCESS, 0), "scheduling policy": _policy()}
    for name in ("NOFILE", "STACK", "AS", "FSIZE", "NPROC", "MEMLOCK", "CPU"):
        found["ulimit of %s" % name] = list(limits_of(name))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj") as file:
        found["oom_score_adj"] = int(file.read())
    return found


def _unlike_rights(told: List[Dict[str, Any]]) -> Iterable[Fault]:
    """Of a host's ranks those that may have less, or run later, hold up the others, or are the first to end."""
    for ranks in _by(told, "where"):
        for name in told[ranks[0]]["rights"]:
            values = [told[rank]["rights"].get(name) for rank in ranks]
            usual = max(values, key=lambda one: (values.count(one), -values.index(one)))
            for rank, value in zip(ranks, values):
                if value != usual:
                    yield "ranks-unlike", "%s has %s %s, others on its host have %s" % (_who(rank, told), name, value, usual)


def _alike_seeds(told: List[Dict[str, Any]]) -> Iterable[Fault]:
    """Yield the ranks to which the system gave a seed that another has: what each is to draw for itself (augmentations, dropout) all draw alike."""
    for ranks in _by(told, "seed"):
        if len(ranks) > 1:
            words = (_who(ranks[1], told), told[ranks[1]]["seed"], ranks[0])
            yield "random-numbers-wrong", "%s gets the seed %d from the system (torch.Generator.seed()), as rank %d does" % words


def _unlike_quotas(told: List[Dict[str, Any]]) -> Iterable[Fault]:
    """Yield the ranks that their cgroup lets have less of the host's CPUs than another's. What is only short runs as fast as elsewhere, between two pauses."""
    for ranks in _by(told, "where"):
        most = max(told[rank]["quota"] for rank in ranks)
        for rank in ranks:
            if told[rank]["quota"] * _QUOTAS_APART < most:
                words = (_who(rank, told), told[rank]["quota"], "any number" if most == _NO_QUOTA else "%g" % most)
                yield "straggler-held-back", "%s may have %g CPUs by the quota of its cgroup, another rank on its host %s" % words


def _unlike_clocks(told: List[Dict[str, Any]]) -> Iterable[Fault]:
    """Certificates and tickets end by the clock, and logs of several hosts are ordered by it. Whose clock was moved knows it by its own others."""
    for rank, one in enumerate(told):
        if abs(one["apart"]) > _PACES_APART_S:  # whatever is timed by it is wrong
            seen = "%s: two clocks that go on alike (CLOCK_MONOTONIC, CLOCK_BOOTTIME) came apart by %.1f s while it ran"
            yield "clock-jumps", seen % (_who(rank, told), abs(one["apart"]))
        elif abs(one["jumped"]) > _CLOCKS_APART_S:
            yield "clock-jumps", "%s: its clock was set by %+.0f s while it ran" % (_who(rank, told), one["jumped"])
        elif abs(one["beyond"]) > _CLOCKS_APART_S:
            yield "clock-skew", "%s: the time that it is told is %+.0f s from its kernel's" % (_who(rank, told), one["beyond"])
    middle = sorted(one["clock"] for one in told)[(len(told) - 1) // 2]
    for rank, one in enumerate(told):
        if abs(one["clock"] - middle) > _CLOCKS_APART_S:
            off = one["clock"] - middle
            if len(told) == 2:
                words = (_who(0, told), _who(1, told), abs(off))
                yield "clock-skew", "the clocks of %s and %s are %.0f s apart: one of them is wrong" % words
            else:
                yield "clock-skew", "%s: its clock is %+.0f s off the others'" % (_who(rank, told), off)


def _unlike_bits(told: List[Dict[str, Any]]) -> Iterable[Fault]:
    """Yield the ranks with other bits: the same step on one thread: of ranks on equal hardware those that differ from most (of two, the later one) are named."""
    for ranks in _by(told, "hardware"):
        bits = [told[rank]["bits"] for rank in ranks]
        usual = max(bits, key=lambda one: (bits.count(one), -bits.index(one)))
        for rank in ranks:
            if told[rank]["bits"] != usual:
                words = (_who(rank, told), told[rank]["bits"], usual)
                yield (
                    "ranks-compute-differently",
                    "%s has other weights after the same step: fingerprint %s, the others' %s" % words,
                )


def clock_swings(offsets: List[float]) -> int:
    """Count how often a clock was set from one of two sides to the other.

    >>> clock_swings([0.0, 0.0, 1.5, 1.5, 0.0, 1.5]), clock_swings([0.0, 0.001, 0.0]), clock_swings([0.0, 2.0, 2.0])
    (3, 0, 1)
    """
    return sum(abs(offsets[turn] - offsets[turn - 1]) > _CLOCK_SET_S for turn in range(1, len(offsets)))
