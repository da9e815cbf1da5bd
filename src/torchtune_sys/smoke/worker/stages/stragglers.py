"""Ranks that are slower than the others: the job goes at the pace of the slowest."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import tempfile
import time
import warnings
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

import torch
from torch.utils.data import DataLoader

from torchtune_sys.smoke.worker.agreement import Fault, judge, tell_all
from torchtune_sys.smoke.worker.context import DEFAULT, QUICK, THOROUGH, RankContext, with_threads
from torchtune_sys.smoke.worker.cpu_turns import CpuTurns, told_of_slow_cpus
from torchtune_sys.smoke.worker.measures import CROWD, MOMENT_S, floats_on_small_pages, processes_a_cpu, run_delay, stolen_s
from torchtune_sys.smoke.worker.product_times import (
    SLOW_LOOKS,
    SLOW_ROUNDS,
    SPELLS_SEEN,
    SPELLS_SLOW,
    SPELLS_SUSPECT,
    Spells,
    cpu_time_of_product,
    is_slow_at_times,
    lower_median,
    slow_looks,
)
from torchtune_sys.smoke.worker.stages.equal_ranks import clock_swings, differences, hardware
from torchtune_sys.smoke.worker.stages.process_state import clock_has_jumped
from torchtune_sys.smoke.worker.stages.stress import RepeatedWork, ranks_that_are_off
from torchtune_sys.smoke.worker.starting import loopback_echo

_LEAST_ROUNDS, _MOST_ROUNDS = {QUICK: 3, DEFAULT: 5, THOROUGH: 5}, 12
"""Whoever looks slow is measured again, all ranks at once: what others on the host take from a rank passes, what is wrong with it stays."""
_FIRST_SHARE = 3
"""With ``--quick`` the first rounds take this part of the samples: whoever looks slow in these is measured by all of them in the next ones."""
_PATIENCE_WITH_ONE_S, _PATIENCE_WITH_ALL_S = 0.5, 20.0
"""After so long a gauge takes no more samples, and there are no more rounds: what is ten or a hundred times slower is told, not waited for."""
_FEWEST_SAMPLES = 3
_EFFECT, _EFFECT_SHARED = 1.2, 1.3
"""Times as long as the others: less is nobody's loss. The second for what all processes of a host share (memory, caches, the
interpreter's allocator): two equal ranks were seen to differ by 1.15 there beside ten busy processes, and by 1.02 in products."""
_EFFECT_PAGES = 2.0
"""Between the host's memory and a GPU: boards in slots of unlike width, pages at the other socket and switches that ranks share are no fault of a rank.
And within it, where pages of one size cannot be asked for."""
_EFFECT_PROCESS = 4.0
"""One start a round, and a new process waits for a CPU: at a load of 20 on two cores 21 to 115 ms were seen."""
_EFFECT_DISK = 4.0
"""The quickest of a few writes that the disk has confirmed: other processes' writes stand in the same queue."""
_DISK, _BYTES_WRITTEN = "writing to disk", 1 << 18
_DISK_SLOW_S = 0.25
"""A disk confirms within 30 ms, a network file system within some 100, also beside others' writes: the quickest of ten took at most 8 ms at a load of 25 on two cores.
By this one a megabyte takes a second, and a checkpoint of 10 GB three hours."""
_ONE_STEP, _STEP_SAMPLES = "a training step", 40
_WAITS_IN_STEPS = 0.5
_HELD_BACK = 0.15
"""Of the time in which a rank neither runs nor waits for a CPU while it has work: a quota, a debugger, a stop and go."""
_PAUSES = 3
"""Of the moments of a quarter of a second in which a rank computes: so many with a pause in them, and none of the others', are no accident."""
_REPEATED_A_ROUND = 2
_LOADER_IDLE_S = 0.01
_LARGE, _EFFECT_LARGE = 1 << 22, 1.6
"""Numbers of a large copy, 16 MiB, on one thread: 2 ms, of which some are not interrupted. Of two healthy ranks beside ten processes one took up to 1.2 times as long, and at a load of 13 on two
cores 1.74 times: the few rounds that there is time for then may all fall beside a neighbour that fills the memory's bandwidth."""
_EFFECT_KIND = 2.0
"""Of one kind of work on the CPU, which allocates its results: two healthy ranks of a quiet host differ by what their allocators did in the stages before, by 1.31 in a
pass back and 1.47 in products of bfloat16, and one rank from run to run by up to 1.67 (steps of an optimizer)."""
_LOW_SIDE = 96
_LOOKS_IN_A_CROWD = 3
"""Times as many slow looks are asked for: at a load of 22 on two cores a healthy rank had 4 of 70, which took 2.3 times as long as its quickest."""
_CLOCK_SWINGS = 2
"""A host that was just started sets its clock once."""


class Gauge(NamedTuple):
    """One thing that a rank does. ``least_s``: a difference below it is the clock's."""

    name: str
    cause: str
    work: Callable[[], Any]
    samples: int
    least_s: float
    effect: float = _EFFECT_SHARED
    in_a_crowd: bool = True
    """Judged also on a crowded host (CROWD)."""


def ranks_keep_pace(here: RankContext) -> None:
    """Check that each rank computes, copies, loads and responds as fast as others on the same hardware, with the same results."""
    unlike_others = differences(here)
    if unlike_others:
        judge(here, (), unlike_others)
    with _gauges(here) as gauges:
        best = {gauge.name: float("inf") for gauge in gauges}
        held_back: List[float] = []
        pauses = 0
        waited: List[float] = []
        jumped: List[float] = []
        looks: List[List[float]] = []
        spells = Spells()
        repeated, off = RepeatedWork(here), ""
        step, turns = _small_step(here), CpuTurns(here)
        faults: List[Fault] = []
        told: List[Dict[str, Any]] = []
        began = time.monotonic()
        for turn in range(_MOST_ROUNDS):
            looks.append([])
            part = _FIRST_SHARE if here.level == QUICK and turn < _LEAST_ROUNDS[QUICK] else 1
            with turns.of_round(turn) as cpu:
                took = {gauge: _quickest(here, gauge, looks[-1], part) for gauge in gauges}
                off = repeated.again(_REPEATED_A_ROUND) or off
                stolen = stolen_s()
                held_back.append(spells.held_back())
                looks[-1].append(cpu_time_of_product())
                pauses += held_back[-1] - (stolen_s() - stolen) / MOMENT_S > _HELD_BACK
                share, quickest = (0.0, float("inf")) if here.gpus else _share_waited(step)  # a step on a GPU may wait for that
            best = {gauge.name: min(best[gauge.name], seconds) for gauge, seconds in took.items()}
            turns.took(cpu, _computing_s(took))
            best[_ONE_STEP] = min(best[_ONE_STEP], quickest)
            waited.append(share)
            jumped.append(clock_has_jumped())
            idle = lower_median(held_back), lower_median(waited)
            own = {
                "class": _class_of(here),
                "place": here.place(),
                "best": best,
                "cpus": turns.times,
                "held back": max(idle),
                "pauses": pauses,
                "swings": clock_swings(jumped),
                "slow looks": slow_looks(looks),
                "looks": sum(map(len, looks)),
                "spells": spells.told(),
                "off": off,
                "loader": here.loader_idle_s,
                "crowd": processes_a_cpu(),
                "in steps": idle[1] - idle[0],
                "spent": time.monotonic() - began,
            }
            told = [json.loads(text) for text in tell_all(here, json.dumps(own))]
            faults = (
                ranks_that_are_off(told)
                or _slow_ones(told, {gauge.name: gauge for gauge in gauges})
                or _all_wait(told)
                or _slow_disk(told)
            )
            spent = max(each["spent"] for each in told)  # the same for all, as is what follows from it
            suspected = faults or any(each["pauses"] or each["swings"] or each["slow looks"][0] for each in told)
            suspected = suspected or any(is_slow_at_times(own, told, SPELLS_SUSPECT, 0) for own in told)
            if (turn + 1 >= _LEAST_ROUNDS[here.level] and not suspected) or (faults and turn and spent > _PATIENCE_WITH_ALL_S):
                break
    for name, seconds in best.items():
        here.measure(name, seconds * 1e3, "ms")
    here.remark = told_of_slow_cpus(told)
    judge(here, (), [(faults[0][0], "; ".join(seen for _, seen in faults))] if faults else [])


def _computing_s(took: Dict[Gauge, float]) -> float:
    """Return the seconds that a round's work took of the processor, without what is timed otherwise (a step on a CPU)."""
    return sum(seconds for gauge, seconds in took.items() if gauge.cause == "straggler-compute" and gauge.samples)


def _all_wait(told: List[Dict[str, Any]]) -> List[Fault]:
    """Return what all ranks wait for: what sleeps in each rank's steps makes no rank slower than others. A quota would hold back what only counts as much."""
    least = min(own["in steps"] for own in told)
    if least <= _WAITS_IN_STEPS:
        return []
    seen = (
        "a training step of each rank spends %.0f %% of its time neither computing nor waiting for a CPU: something in it sleeps"
    )
    return [("steps-held-up", seen % (100 * least))]


def _slow_disk(told: List[Dict[str, Any]]) -> List[Fault]:
    """Return what all ranks wait for alike when they save: then none is slower than the others."""
    least = min(own["best"][_DISK] for own in told)
    if least <= _DISK_SLOW_S:
        return []
    seen = "the quickest of some writes of %d kB that the disk confirms takes %.2g s on all ranks (%.2g MB/s): each checkpoint waits for it"
    return [("slow-data-storage", seen % (_BYTES_WRITTEN >> 10, least, _BYTES_WRITTEN / least / 1e6))]


def _class_of(here: RankContext) -> str:
    """Ranks of one kind of hardware are comparable."""
    shared = ", shared" if here.shared else ""
    return "%s%s, %d threads" % (hardware(here), shared, 0 if here.gpus else torch.get_num_threads())


@contextlib.contextmanager
def _gauges(here: RankContext) -> Iterator[List[Gauge]]:
    cuda = here.kind == "cuda"
    side, count = (4096, 1 << 26) if cuda else (160, 1 << 20)
    left = torch.full(
        (side, side), 0.5, device=here.device, dtype=torch.bfloat16 if cuda and here.has_bfloat16() else torch.float32
    )
    paged = None if cuda else floats_on_small_pages(torch, count)
    given = torch.ones(count, device=here.device)
    taken = torch.empty_like(given)
    if paged is not None:
        given, taken = paged
    found = [
        Gauge("compute", "straggler-compute", functools.partial(torch.mm, left, left), 20 if cuda else 300, 5e-6, _EFFECT),
        Gauge("reading memory", "straggler-memory", functools.partial(torch.sum, given), 20 if cuda else 50, 5e-5, _EFFECT_PAGES),
        Gauge(
            "memory",
            "straggler-memory",
            functools.partial(taken.copy_, given),
            20 if cuda else 100,
            5e-5,
            _EFFECT_SHARED if cuda or paged is not None else _EFFECT_PAGES,
        ),
    ]
    new = functools.partial(torch.empty, count, device=here.device)
    found.append(Gauge("allocating memory", "straggler-memory", new, 12, 5e-4, _EFFECT_PAGES))
    for name, work in _kinds_of_work(here, 64 if cuda else 2):
        effect = _EFFECT_SHARED if cuda else _EFFECT_KIND
        found.append(Gauge(name, "straggler-compute", work, 20, 2e-5, effect, in_a_crowd=False))
    large = None if cuda else floats_on_small_pages(torch, _LARGE)
    if large is not None:
        copies = functools.partial(_on_one_thread, functools.partial(large[1].copy_, large[0]))
        found.append(Gauge("copies of 16 MB", "straggler-memory", copies, 12, 5e-4, _EFFECT_LARGE, in_a_crowd=False))
    if cuda:
        near = torch.ones(1 << 24).pin_memory()
        there = torch.empty(1 << 24, device=here.device)
        for name, work in (
            ("copies to the device", functools.partial(there.copy_, near, non_blocking=True)),
            ("copies to the host", functools.partial(near.copy_, there, non_blocking=True)),
        ):
            found.append(Gauge(name, "straggler-copies", work, 10, 2e-4, _EFFECT_PAGES))
    samples = [torch.full((64,), float(number)) for number in range(16)]
    found.append(Gauge("loading", "straggler-loading", lambda: next(iter(DataLoader(samples, batch_size=16))), 40, 2e-4))
    found.append(Gauge("starting a process", "straggler-loading", _start_and_end, 1, 0.25, _EFFECT_PROCESS))
    # On the CPU those steps count by which it is seen how long they wait.
    found.append(Gauge(_ONE_STEP, "straggler-compute", _small_step(here), _STEP_SAMPLES * cuda, 1e-3, _EFFECT_SHARED))
    found.append(Gauge(_DISK, "straggler-storage", functools.partial(_written, here.scratch), 2, 0.03, _EFFECT_DISK))
    saved = os.path.join(here.scratch, "read-by-%d-%d.pt" % (here.rank, os.getpid()))  # other jobs may keep theirs there, too
    with contextlib.suppress(OSError, RuntimeError):  # another stage's matter. At a load of 30 a healthy rank reads in 35 ms
        torch.save({"weights": samples}, saved)
    found.append(
        Gauge("reading a checkpoint", "straggler-storage", functools.partial(_read_checkpoint, saved), 2, 0.1, _EFFECT_DISK)
    )
    try:
        with loopback_echo() as answered:
            if answered is not None:
                found.append(Gauge("network (this host's loopback)", "straggler-network", answered, 100, 5e-4))
            yield found
    finally:
        with contextlib.suppress(OSError):
            os.remove(saved)


def _kinds_of_work(here: RankContext, samples: int) -> Iterator[Tuple[str, Callable[[], object]]]:
    """Yield what models consist of beside products, each a tenth of a millisecond or a few: a library's code path, a driver or a plug-in may slow one kind alone.
    Two healthy ranks were seen to differ by 1.08 at loads of 9 to 25 on two cores, but once by more (_EFFECT_KIND)."""
    torch.manual_seed(29)
    pictures, words = torch.rand(samples, 16, 24, 24, device=here.device), torch.rand(samples, 4, 64, 32, device=here.device)
    convolution = torch.nn.Conv2d(16, 16, 3, device=here.device).requires_grad_(False)
    functions = torch.nn.Sequential(torch.nn.GELU(), torch.nn.LayerNorm(24, elementwise_affine=False), torch.nn.Softmax(-1))
    yield "a convolution", functools.partial(convolution, pictures)
    if here.has_bfloat16():
        low = torch.ones(_LOW_SIDE, _LOW_SIDE, device=here.device, dtype=torch.bfloat16)
        yield "products of bfloat16", functools.partial(torch.nn.functional.linear, low, low)
    yield "attention", functools.partial(torch.nn.functional.scaled_dot_product_attention, words, words, words)
    yield "functions of each element", functools.partial(functions, pictures)
    yield "sorting", functools.partial(torch.sort, pictures)
    loss = functions(torch.nn.Conv2d(16, 16, 3, padding=1, device=here.device)(pictures)).square().mean()
    yield "a pass back", functools.partial(torch.autograd.backward, loss, retain_graph=True)
    weights = [torch.nn.Parameter(torch.ones(32, device=here.device)) for _ in range(8)]
    torch.stack(weights).sum().backward()
    yield "a step of an optimizer", torch.optim.AdamW(weights).step


def _on_one_thread(work: Callable[[], object]) -> None:
    with with_threads(1):
        work()


def _small_step(here: RankContext) -> Callable[[], None]:
    """So small that it ends within a time slice: what is asked of each step beside its products counts."""
    torch.manual_seed(23)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.Linear(32, 4)).to(here.device)
    optimizers = [getattr(torch.optim, name)(model.parameters(), lr=1e-4) for name in ("SGD", "AdamW")]
    inputs = torch.ones(8, 32, device=here.device)

    def step() -> None:
        model.zero_grad()
        model(inputs).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()

    return step


def _share_waited(step: Callable[[], None]) -> Tuple[float, float]:
    """Return the part of the time of some steps on the CPU in which this thread neither ran nor waited for a CPU, and the seconds of the quickest."""
    with with_threads(1):  # else it would wait for its own
        step()
        best, waited, ran, began = float("inf"), run_delay(), time.thread_time(), time.monotonic()
        for number in range(_STEP_SAMPLES):
            if number >= _FEWEST_SAMPLES and time.monotonic() - began > _PATIENCE_WITH_ONE_S:
                break
            started = time.perf_counter()
            step()
            best = min(best, time.perf_counter() - started)
        wall, ran, now = time.monotonic() - began, time.thread_time() - ran, run_delay()
    return 0.0 if waited is None or now is None else max(0.0, 1 - (ran + now - waited) / wall), best


def _written(folder: str) -> None:
    """As a checkpoint is: in blocks, and confirmed. A disk that takes nothing is another stage's matter."""
    with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(16):
            file.write(bytes(_BYTES_WRITTEN // 16))
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        file.read()


def _read_checkpoint(path: str) -> None:
    with contextlib.suppress(OSError, RuntimeError, EOFError):  # a full disk takes a file's name, and nothing into it
        torch.load(path, map_location="cpu", weights_only=True)


def _start_and_end() -> None:
    """As a DataLoader starts its workers: how long the kernel copies this process's tables, and whatever is asked of a child first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12: forking beside threads; nothing but the end is done there
        child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _quickest(here: RankContext, gauge: Gauge, looks: List[float], part: int = 1) -> float:
    """Seconds of the quickest of many, of which one in ``part`` is taken: short enough that some are not interrupted, also where several processes share a core. A look at products follows what
    computes."""
    gauge.work()
    here.synchronize()
    best, began = float("inf"), time.perf_counter()
    for number in range(-(-gauge.samples // part)):
        if number >= _FEWEST_SAMPLES and time.perf_counter() - began > _PATIENCE_WITH_ONE_S:
            break
        started = time.perf_counter()
        gauge.work()
        here.synchronize()
        best = min(best, time.perf_counter() - started)
    if gauge.cause == "straggler-compute":
        looks.append(cpu_time_of_product())
    return best


def _slow_ones(told: List[Dict[str, Any]], gauges: Dict[str, Gauge]) -> List[Fault]:
    """Each rank that is slow, and at what. Compared with the median of its kind, of two with the quicker one."""
    found: List[Fault] = []
    crowded = any(own["crowd"] > CROWD for own in told)
    for rank, own in enumerate(told):
        who = "rank %d (%s)" % (rank, own["place"])
        peers = [other for other in told if other["class"] == own["class"]]
        if own["held back"] > _HELD_BACK + lower_median([peer["held back"] for peer in told]):
            words = "%s is kept from running for %.0f %% of the time, though no CPU is missing (a quota, a debugger, something that sleeps)"
            found.append(("straggler-held-back", words % (who, 100 * own["held back"])))
        elif own["pauses"] >= _PAUSES and not lower_median([peer["pauses"] for peer in told]):
            words = "%s pauses: it was kept from running in %d moments, the others in none, though no CPU is missing (a debugger, a profiler, a thread that holds the interpreter)"
            found.append(("straggler-held-back", words % (who, own["pauses"])))
        if own["loader"] > _LOADER_IDLE_S + lower_median([peer["loader"] for peer in told]):
            words = (
                "%s: workers of its DataLoader sleep for %.0f ms before each batch, with work that waits and a CPU that is free"
            )
            found.append(("straggler-loading", words % (who, 1e3 * own["loader"])))
        slow_looks, slow_rounds, times = own["slow looks"]
        if (
            slow_looks >= SLOW_LOOKS * (_LOOKS_IN_A_CROWD if crowded else 1)
            and slow_rounds >= SLOW_ROUNDS
            and not lower_median([peer["slow looks"][0] for peer in peers])
        ):
            words = "%s: products take now and then (%d looks of %d) %.1f times as long as else, on the others never: a CPU that is throttled or shared"
            found.append(("straggler-compute", words % (who, slow_looks, own["looks"], times)))
        elif is_slow_at_times(own, told, SPELLS_SLOW, SPELLS_SEEN):
            words = "%s: products take %.2f times as long as else for a part of the time (in %d of %d moments of an eighth of a second, on the others in up to %d): a CPU that is throttled or shared"
            others = max(peer["spells"][0] for peer in peers if peer is not own)
            found.append(("straggler-compute", words % (who, own["spells"][2], *own["spells"][:2], others)))
        if own["swings"] >= _CLOCK_SWINGS:
            words = "%s: its clock was set ahead and back again %d times while it was looked at: several programs set it"
            found.append(("clock-jumps", words % (who, own["swings"])))
        for name, seconds in own["best"].items():
            if crowded and not gauges[name].in_a_crowd:
                continue
            middle = lower_median([peer["best"][name] for peer in peers if name in peer["best"]])
            if seconds > gauges[name].effect * middle and seconds - middle > gauges[name].least_s:
                figures = (who, name, seconds / middle, seconds * 1e3, middle * 1e3)
                seen = "%s: %s takes %.2f times as long as on the others (%.3g ms, %.3g ms)" % figures
                found.append((gauges[name].cause, seen))
    return found
