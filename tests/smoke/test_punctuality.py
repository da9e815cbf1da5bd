"""What is late between ranks is told of a rank only where the same one is late again and again: a crowded host holds up now this one, now that."""

from __future__ import annotations

import os

import pytest

from smoke.faults.forked import forked, said

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
with _gauges(RankContext(level="quick", scratch=".", device="cpu", backend="gloo", expected={})) as found:
    print([gauge.name for gauge in found if not gauge.in_a_crowd])
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


def test_large_copies_and_single_kinds_of_work_are_not_judged_beside_others() -> None:
    """On a host with seven processes for each CPU the copies of a healthy rank took 1.74 times as long as the other's."""
    names = ["a convolution", "attention", "functions of each element", "sorting", "a pass back", "copies of 16 MB"]
    assert said(SLOWER) == f"1\n1\n1\n0\n{names}\n"
