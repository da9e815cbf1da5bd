"""What is late between ranks is told of a rank only where the same one is late again and again: a crowded host holds up now this one, now that."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from smoke.faults.bench import torch_python
from smoke.faults.forked import forked, said
from smoke.faults.short import row
from smoke.faults.trial import expected, tried

TRIAL = """
import types
here = types.SimpleNamespace(on_one_host=True, gpus=0, world=2)
first, second = "rank 0 is late also with itself alone", "rank 1 is late also with itself alone"
_can_be_timed = lambda here: True
_all_together = lambda here, exchange: []
tell_all = lambda here, text: [text]
time.sleep = lambda seconds: None
for crowd, counts, whos in (
    (4.0, [16, 16, 16], [second, "", ""]),
    (4.0, [16, 16, 16], [second, first, second]),
    (4.0, [16, 16, 2], [second, second, second]),
    (4.0, [16, 16, 16], [second, second, "what rank 1 sends comes late"]),
    (0.5, [16, 16, 16], [second, first, second]),
    (0.5, [2], []),
):
    counts, whos = iter(counts), iter(whos)
    processes_a_cpu = lambda: crowd
    _count_late = lambda here, told: next(counts)
    _who_is_late = lambda here, times: next(whos)
    print([seen.partition("; ")[2] for _, seen in late_now_and_then(here)])
"""
ASKED = """
import ctypes, os, types
if %s and ctypes.CDLL(None).ptrace(0, 0, 0, 0):  # PTRACE_TRACEME
    os._exit(77)
tell_all = lambda here, text: [text]
print(_can_be_timed(types.SimpleNamespace(gpus=0, world=2)))
"""
SLOWER = """
gauges = {name: Gauge(name, "straggler-memory", None, 1, 5e-4, 1.6, name == "memory") for name in ("memory", "copies of 16 MB")}
for crowd, name in ((1.0, "memory"), (7.0, "memory"), (1.0, "copies of 16 MB"), (7.0, "copies of 16 MB")):
    told = [
        {"class": "", "place": "", "held back": 0.0, "pauses": 0, "slow looks": (0, 0, 1.0), "spells": (0, 0, 0.0), "swings": 0,
         "best": {name: seconds}, "crowd": crowd, "loader": 0.0}
        for seconds in (2.08e-3, 1.19e-3)
    ]
    print(len(_slow_ones(told, gauges)))
for crowd, looks in ((1.0, 4), (11.0, 4), (11.0, 14)):
    told = [{**each, "best": {}, "crowd": crowd, "slow looks": slow, "looks": 70} for each, slow in zip(told, ((0, 0, 1.0), (looks, 2, 2.3)))]
    print(len(_slow_ones(told, gauges)))
here = RankContext(level="quick", scratch=".", device="cpu", backend="gloo", expected={})
with _gauges(here) as found:
    print([gauge.name for gauge in found if not gauge.in_a_crowd])
    took = {gauge: _quickest(here, gauge, []) for gauge in found if gauge.cause == "straggler-compute"}
    print(_computing_s(took) < 60)  # else no CPU is ever said to be slow
"""
SLOW_CPU = """
import os, time
import torch
cpus = sorted(os.sched_getaffinity(0))
number = int(os.environ["RANK"])
if {bound}:
    os.sched_setaffinity(0, {{cpus[number]}})
def slowed(real):
    def slow(*args, **more):
        began, now = time.perf_counter(), sorted(os.sched_getaffinity(0))
        found = real(*args, **more)
        until = began + 1.6 * (time.perf_counter() - began)
        while (now[0] if len(now) == 1 else cpus[number]) != cpus[0] and time.perf_counter() < until:
            pass
        return found
    return slow
torch.mm = slowed(torch.mm)
"""
"""All CPUs but the first are slow, and the kernel leaves each rank on the one of its number unless it is told otherwise."""
TURNS = """
import os, types
def told_by(*all_cpus, threads=1, own=0):
    global tell_all, boot_identity
    boot_identity = lambda: "this"
    torch.set_num_threads(threads)
    asked = os.sched_getaffinity
    os.sched_getaffinity = lambda process: {*all_cpus[own]}
    tell_all = lambda here, text: [json.dumps(["this", [*cpus], threads]) for cpus in all_cpus]
    turns = CpuTurns(types.SimpleNamespace(gpus=0, rank=own))
    os.sched_getaffinity = asked
    return turns
free = sorted(os.sched_getaffinity(0))
print(told_by([0, 1], [0, 1])._ring, told_by([0], [1])._ring, told_by([0, 1, 2, 3], [0, 1])._ring)
print(told_by([0, 1], [0, 1], [0, 1])._ring, told_by(range(4), range(4), threads=2)._ring)
turns = told_by(free, free, own=1)
for turn in range(3):
    with turns.of_round(turn) as cpu:
        print(free.index(cpu), [free.index(one) for one in os.sched_getaffinity(0)])
        turns.took(cpu, 3.0 - turn)
print([free.index(int(cpu)) for cpu in turns.times], [*turns.times.values()], sorted(os.sched_getaffinity(0)) == free)
gone = told_by(free, free)
gone._ring = [4095, 4095]
with gone.of_round(0) as cpu:
    print(cpu, sorted(os.sched_getaffinity(0)) == free)
cpus_are_even = lambda: even
for even in (False, True):
    print(told_of_slow_cpus([{"cpus": {"0": 1.0, "1": 1.9}, "place": "the CPU of a"}, {"cpus": {"0": 1.1, "1": 1.8, "2": 1.2}, "place": "the CPU of a"}]))
"""
TURNS_TOLD = """\
[0, 1] [] []
[] []
1 [1]
0 [0]
1 [1]
[1, 0] [1.0, 2.0] True
None True

CPU 1 of a takes 1.50 times as long for the same work as the others, whichever rank computes there
"""
TOLD = """\
[]
[]
[]
['rank 1 is late also with itself alone']
['no single rank is seen to be late']
[]
"""


def test_a_rank_is_named_that_is_late_each_time() -> None:
    assert said(TRIAL) == TOLD


@pytest.mark.parametrize("followed", [False, True])
def test_who_is_late_is_not_asked_where_a_tracer_follows(followed: bool) -> None:
    """Below strace healthy ranks were told to be late with themselves alone."""
    ended = forked(ASKED % followed)
    if os.waitstatus_to_exitcode(ended.status) == 77:
        pytest.skip("nothing may be traced here")
    assert ended == (0, f"{not followed}\n")


def test_large_copies_and_single_kinds_of_work_are_not_judged_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host with seven processes for each CPU the copies of a healthy rank took 1.74 times as long as the other's."""
    names = [
        "a convolution",
        "products of bfloat16",
        "attention",
        "functions of each element",
        "sorting",
        "a pass back",
        "a step of an optimizer",
        "copies of 16 MB",
    ]
    monkeypatch.chdir(tmp_path)
    assert said(SLOWER) == f"1\n1\n1\n0\n1\n0\n1\n{names}\nTrue\n"
    assert not os.listdir(tmp_path), "a rank that srun starts keeps its files in $TMPDIR, where nobody removes what it leaves"


@pytest.mark.parametrize("bound", [False, True])
def test_a_slow_cpu_is_a_slow_rank_only_where_that_rank_is_bound_to_it(bound: bool, tmp_path: Path) -> None:
    """On a virtual machine one CPU was for seconds a third slower than the other, by what a neighbour did on its core, and the rank there was told to be broken."""
    cause = "straggler-compute" if bound else ""
    slow = row("slow-cpu", "One CPU is slow", "stragglers", cause, SLOW_CPU.format(bound=bound), seen="rank 1")
    outcome = tried([slow], tmp_path, torch_python())
    if bound:
        assert not expected(slow, outcome), outcome.told
    else:
        assert outcome.rc == 0, outcome.told


def test_ranks_take_turns_on_the_cpus_that_all_of_them_may_use() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one CPU")
    assert said(TURNS) == TURNS_TOLD


def test_places_are_cores_of_their_own_where_there_are_enough(tmp_path: Path) -> None:
    for cpu in range(8):
        place = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    told = said(f"print([places([*range(8)], ranks, {str(tmp_path)!r}) for ranks in (2, 4, 6)], places([3, 5, 9], 2, '/none'))")
    assert told == "[[0, 2], [0, 1, 2, 3], [0, 1, 2, 4, 5, 6]] [3, 5]\n"
