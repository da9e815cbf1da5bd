"""What a rank computes and measures the same way for the smoke test and for the joint pre-flight: steps whose bits hosts can compare, and
its share of a CPU. ``torch`` is passed: the pre-flight imports it later than this text."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import hashlib
import math
import mmap
import os
import time
from typing import Any, Callable, Optional, Tuple

_STEP_WIDTH, _TOKENS, _HEAD = 256, 32, 64
_COPIED = (1 << 20) + 3
_LAST_BITS = 2.0**-20
"""Of a result, where float32 has 24 bits."""
_DAWDLING_S = 0.05
MOMENT_S = 0.25
"""So long a process computes to see its share of a CPU."""
_PIECE, _PIECES = 1 << 21, 4
"""Elements of a piece that is copied (8 MiB, so that the copy ends within a time slice), and how many there are: together more than most caches
hold, else a neighbour that fills the cache of one host would make its memory look slow."""
_OF_ONE_KIND = 1.1
"""Cores of one kind that may run faster than their neighbours (Turbo Boost Max) are a few per cent quicker; a compact or an efficient one is slower by a third."""
CROWD = 2.0
"""Processes that want each CPU, from which on each takes a part of its time from the others: a host is crowded."""
_OVERLOADED, _MOST_PATIENCE = 4.0, 4.0
"""Processes that want to run, for each CPU, from which on a deadline grows with them, and how far: on two CPUs at a load of 33 a cold
compilation, which takes 16 s alone, was seen to take more than its 300 s."""


def processes_a_cpu() -> float:
    """Return how many processes wanted each CPU of this host in the last minute (getloadavg(3))."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def patience() -> float:
    """How many times its deadline a stage may take, as busy as this host is: a rank that gets no CPU does not hang."""
    load = max(os.getloadavg()[:2])
    return min(max(load / (os.cpu_count() or 1) / _OVERLOADED, 1.0), _MOST_PATIENCE)


def whole_numbers(torch: Any, rows: int, columns: int, seed: int) -> Any:
    """-1, 0 and 1, the same on every machine: no generator of torch's is asked."""
    numbers = torch.arange(rows * columns, dtype=torch.int64)
    mixed = (numbers * 2654435761 + seed * 40503) % 4294967296
    return (((mixed >> 13) % 3) - 1).to(torch.float32).reshape(rows, columns)


def exact_step(torch: Any, device: Any) -> str:
    """One training step in whole numbers: float32 holds each of them, so there is one right answer on all hardware. Says what is wrong."""
    inputs, targets = whole_numbers(torch, 8, _STEP_WIDTH, 1), whole_numbers(torch, 8, 16, 2)
    first, last = whole_numbers(torch, _STEP_WIDTH, _STEP_WIDTH, 3), whole_numbers(torch, 16, _STEP_WIDTH, 4)
    values = []
    for place, kind in ((device, torch.float32), (torch.device("cpu"), torch.int64)):
        x, y, a, b = (value.to(place).to(kind) for value in (inputs, targets, first, last))
        hidden = x @ a.t()
        active = (hidden > 0).to(kind)
        shown = hidden * active
        grad_b = y.t() @ shown
        grad_a = ((y @ b) * active).t() @ x
        values.append([value.cpu().to(torch.int64) for value in (a - grad_a, b - grad_b)])
    names = ("first", "last")
    for name, ours, right in zip(names, *values):
        off = int((ours != right).sum())
        if off:
            place = int((ours != right).flatten().nonzero()[0])
            words = (off, ours.numel(), name, int(ours.flatten()[place]), int(right.flatten()[place]))
            return "%d of %d weights of layer %s are wrong after an exact training step: one is %d, not %d" % words
    return ""


def has_bfloat16(torch: Any, device: Any) -> bool:
    """NVIDIA's GPUs have it since compute capability 8.0; before, cuBLAS emulates it (7.x) or refuses it (6.x and older,
    https://github.com/pytorch/pytorch/issues/57773)."""
    return bool(device.type == "cpu" or torch.version.cuda is None or torch.cuda.get_device_capability(device)[0] >= 8)


def exact_products(torch: Any, device: Any) -> str:
    """Products of whole numbers that each type holds (up to 256, as bfloat16 does), of sizes that are no multiple of a tile. Says what is wrong, as a product with a vector shows,
    in whole numbers on the CPU, by no product of matrices (Freivalds 1977)."""
    one, other = whole_numbers(torch, 511, 256, 5), whole_numbers(torch, 256, 513, 6)
    vector = torch.arange(513) % 7 + 1
    right = (one.long() * (other.long() * vector).sum(1)).sum(1)
    kinds = (
        [torch.float32, torch.float64] + [torch.bfloat16] * has_bfloat16(torch, device) + [torch.float16] * (device.type != "cpu")
    )
    for kind in kinds:
        found = torch.mm(one.to(device).to(kind), other.to(device).to(kind)).cpu().double()
        off = int(((found * vector).sum(1) != right).sum())
        if off:
            return "%d of 511 rows of a product of whole numbers in %s are wrong" % (off, str(kind).partition(".")[2])
    return ""


def known_functions(torch: Any, device: Any) -> str:
    """Call what a model calls besides products, with numbers for which the right answer is known: exact, or within a few last bits of float32. Says what is wrong."""
    functions = torch.nn.functional
    numbers = torch.arange(_COPIED, dtype=torch.float32, device=device)
    copied = torch.zeros_like(numbers)
    for copy in [copied.copy_] + [torch.clone] * 4:  # a fault may come now and then
        copied = copy(numbers)
        if not torch.equal(copied, numbers):
            return "%d of %d elements of a copy are wrong" % (int((copied != numbers).sum()), _COPIED)
    numbers = torch.arange(4099.0) % 127
    rows = torch.arange(1021) * 389 % 997
    table = torch.arange(997.0 * 8).reshape(997, 8)
    of_each, places = torch.arange(1, 65), torch.arange(64)
    logits = torch.where(places < of_each[:, None], 0.0, -200.0)  # exp of -200 is less than float32 holds
    signs = whole_numbers(torch, 16, 256, 7) * 2 - 1
    rows_of_signs = torch.where(torch.arange(256) % 2 == 0, signs[:, :1], -signs[:, :1])
    counts, under = torch.arange(1021.0 * 8).reshape(1021, 8), (rows % 251)[:, None]
    batch, other = whole_numbers(torch, 3 * 33, 65, 8).view(3, 33, 65), whole_numbers(torch, 3 * 65, 31, 9).view(3, 65, 31)
    image, filters = whole_numbers(torch, 4 * 17, 19, 10).view(1, 4, 17, 19), whole_numbers(torch, 6 * 4, 9, 11).view(6, 4, 3, 3)
    windows = image.unfold(2, 3, 1).unfold(3, 3, 1).double()  # by what is no convolution
    right = (windows[:, None] * filters[None, :, :, None, None]).sum((2, 5, 6))
    # MIOpen compiles each kind of convolution when it is first asked for; Winograd's way is not exact, but nearer to a whole number than to the next
    convolved = right if torch.version.hip else functions.conv2d(image.to(device), filters.to(device)).round()
    steps = [step / 8 for step in range(-64, 65)]
    at = torch.tensor(steps, device=device)
    # Its product with itself, by the root of 64, is 200: softmax takes one row of all.
    chosen = 40 * torch.eye(33, 64)[None, None]
    content, classes = counts[None, None, 100:133].expand(1, 1, 33, 8), torch.arange(64) * 7 % 128
    into, added = torch.zeros(251, 8, device=device), (under.t() == torch.arange(251)[:, None]).double() @ counts.double()
    found = (
        (
            "a batch of products",
            torch.bmm(batch.to(device), other.to(device)),
            (batch[..., None].double() * other[:, None]).sum(2),
        ),
        ("a convolution", convolved, right),
        ("a sum of ones", copied.new_ones(_COPIED).sum(), torch.tensor(_COPIED)),
        ("a mean", (copied % 2).mean(), torch.tensor((_COPIED // 2) / _COPIED, dtype=torch.float64)),
        ("index_add", into.index_add(0, under[:, 0].to(device), counts.to(device)), added),
        ("scatter_add", into.scatter_add(0, under.expand(1021, 8).to(device), counts.to(device)), added),
        ("an embedding", functions.embedding(rows.to(device), table.to(device)), table[rows]),
        ("index_select", torch.index_select(table.to(device), 0, rows.to(device)), table[rows]),
        ("a running sum", torch.cumsum(numbers.to(device), 0), numbers.double().cumsum(0)),
        ("a sort", torch.sort(rows.to(device)).values, rows.sort().values),
        ("softmax", functions.softmax(logits.to(device), -1), (places < of_each[:, None]) / of_each[:, None].double()),
        ("exp", torch.exp(at), torch.tensor([math.exp(step) for step in steps], dtype=torch.float64)),
        ("tanh", torch.tanh(at), torch.tensor([math.tanh(step) for step in steps], dtype=torch.float64)),
        ("a root", torch.sqrt(at * at), at.cpu().abs()),
        ("the largest", torch.topk(rows.to(device), 5).values, rows.sort(descending=True).values[:5]),
        ("the place of the largest", rows.to(device).argmax(), torch.tensor(rows.tolist().index(max(rows.tolist())))),
        ("the largest of windows", functions.max_pool2d(image.to(device), 3, 1), windows.amax((4, 5))),
        ("attention", functions.scaled_dot_product_attention(*(each.to(device) for each in (chosen, chosen, content))), content),
        (
            "cross_entropy",
            functions.cross_entropy(torch.zeros(64, 128, device=device), classes.to(device)),
            torch.tensor(math.log(128), dtype=torch.float64),
        ),
        ("layer_norm", functions.layer_norm(rows_of_signs.to(device), (256,), eps=0.0), rows_of_signs / rows_of_signs.abs()),
    )
    for what, ours, right in found:
        off = int((~((ours.cpu().double() - right.double()).abs() <= _LAST_BITS * right.double().abs())).sum())
        if off:
            return "%d of %d elements of %s are wrong" % (off, ours.numel(), what)
    return ""


def float_step(torch: Any, device: Any) -> str:
    """Return a hash of random numbers of one seed and of three steps of a small transformer in float32, by autograd and momentum (written out: torch.optim
    imports seconds of compiler): of the weights and momenta after them, and of what came of each layer, whose last bits may be lost in weights. Equal hardware
    and libraries give equal bits: no sum is in an order that depends on time."""
    functions = torch.nn.functional
    shapes = (
        (_TOKENS, _STEP_WIDTH),
        (3 * _HEAD, _STEP_WIDTH),
        (_STEP_WIDTH, _HEAD),
        (_STEP_WIDTH, _STEP_WIDTH),
        (16, _STEP_WIDTH),
    )
    weights = [(whole_numbers(torch, *shape, seed) / 17).to(device).requires_grad_() for seed, shape in enumerate(shapes, 10)]
    table, to_heads, from_heads, inner, last = weights
    activation = torch.nn.GELU()
    speeds = [torch.zeros_like(value) for value in weights]
    tokens = (torch.arange(_TOKENS) * 5 % _TOKENS).to(device)  # each once: gradients of rows are not added up
    targets = (whole_numbers(torch, _TOKENS, 16, 21) / 7).to(device)
    layers = []
    for _ in range(3):
        for value in weights:
            value.grad = None
        told = functions.embedding(tokens, table)
        query, key, content = (functions.layer_norm(told, (_STEP_WIDTH,)) @ to_heads.t()).chunk(3, -1)
        told = told + functions.softmax(query @ key.t() / _HEAD**0.5, -1) @ content @ from_heads.t()
        active = activation(functions.layer_norm(told, (_STEP_WIDTH,)) @ inner.t())
        layers += [told, active]
        told = active @ last.t()
        (functions.log_softmax(told, -1) * targets).mean().backward()
        with torch.no_grad():
            for value, speed in zip(weights, speeds):
                speed.mul_(0.9).add_(value.grad)
                value.sub_(speed, alpha=0.01)
    drawn = torch.rand(_TOKENS, generator=torch.Generator(device).manual_seed(1), device=device)
    mark = hashlib.sha256()
    for value in [*weights, *speeds, *layers, drawn]:
        held = value.detach().cpu().contiguous()
        mark.update(ctypes.string_at(held.data_ptr(), held.numel() * held.element_size()))
    return mark.hexdigest()[:32]


def waits_for_all(store: Any, key: str, is_last: bool, wait: Callable[[], object]) -> bool:
    """Return whether nobody goes on from a barrier, ``wait``, before the last rank has come, which dawdles. ``key`` is this barrier's alone."""
    if is_last:
        time.sleep(_DAWDLING_S)
        store.add(key, 1)
    wait()
    return bool(store.add(key, 0) == 1)


def copy_s(torch: Any, device: Any) -> float:
    """Return the seconds of the fastest of four copies in memory, each of another piece of 8 MiB (32 MiB on a GPU)."""
    size = _PIECE if device.type == "cpu" else 4 * _PIECE
    source = torch.ones(_PIECES * size, device=device)
    target, best = torch.ones_like(source), 1e9
    for start in range(0, _PIECES * size, size):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        target[start : start + size].copy_(source[start : start + size])
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return best


def floats_on_small_pages(torch: Any, count: int) -> Any:
    """Return two tensors of ones in the host's memory, neither on huge pages: a rank whose buffers the kernel gave some was seen to copy 1.43 times as fast as
    one without. None where nobody can ask for that (madvise(2), MADV_NOHUGEPAGE)."""
    try:
        pieces = [mmap.mmap(-1, 4 * count) for _ in range(2)]
        for piece in pieces:
            piece.madvise(mmap.MADV_NOHUGEPAGE)
        first, second = (torch.frombuffer(piece, dtype=torch.float32).fill_(1.0) for piece in pieces)
    except (AttributeError, OSError, ValueError):
        return None
    return first, second


def cpu_share(work: Callable[[], object] = int) -> Tuple[float, float, Optional[float]]:
    """Compute (``work``, on one thread, again and again) for a moment. Return the part of that time in which this process ran, the part in which it neither ran nor waited in a run queue
    (0 where nobody can tell), and how many of its CPUs stood idle meanwhile (None where nobody can tell)."""
    began, ran, waited, idle = time.monotonic(), time.process_time(), run_delay(), _idle_s()
    while time.monotonic() - began < MOMENT_S:
        work()
    wall = time.monotonic() - began
    ran = time.process_time() - ran
    now, idle_now = run_delay(), _idle_s()
    gap = 0.0 if waited is None or now is None else max(0.0, 1 - (ran + now - waited) / wall)
    spare = None if idle is None or idle_now is None else round(max(0.0, idle_now - idle) / wall, 2)
    return round(ran / wall, 3), round(gap, 3), spare


def cpus_are_even(root: str = "/") -> bool:
    """Return whether this host's CPUs are all of one pace, and nobody else's: False on a virtual machine (its neighbours compute on the other threads of its cores), where cores are
    of several kinds (Intel's hybrid processors, AMD's compact cores), and where the kernel does not show it (Arm).

    Sources: the flag ``hypervisor`` of /proc/cpuinfo (CPUID 1, ECX bit 31), the ``cpu_core`` and ``cpu_atom`` of perf events, ``cpuinfo_max_freq`` of cpufreq in kHz.
    """
    try:
        with open(os.path.join(root, "proc/cpuinfo")) as file:
            flags = next((line.split() for line in file if line.startswith("flags")), [])
    except OSError:
        return False
    if not flags or "hypervisor" in flags or os.path.isdir(os.path.join(root, "sys/devices/cpu_atom")):
        return False
    quickest = []
    for place in glob.glob(os.path.join(root, "sys/devices/system/cpu/cpu[0-9]*/cpufreq/cpuinfo_max_freq")):
        with contextlib.suppress(OSError, ValueError), open(place) as file:
            quickest.append(int(file.read()))
    return not quickest or max(quickest) <= _OF_ONE_KIND * min(quickest)


def times_of_thread(thread: str = "thread-self") -> Optional[Tuple[float, float]]:
    """Return the seconds that a thread (a folder below /proc) has run, and in which it could have and another did
    (Documentation/scheduler/sched-stats.rst)."""
    try:
        with open("/proc/%s/schedstat" % thread) as file:
            ran, waited = file.read().split()[:2]
            return int(ran) / 1e9, int(waited) / 1e9
    except (OSError, ValueError):
        return None


def run_delay(thread: str = "thread-self") -> Optional[float]:
    """Return the seconds in which a thread could have run, and another did."""
    times = times_of_thread(thread)
    return None if times is None else times[1]


def run_delay_of_all() -> float:
    """Return the same of all threads of this process, together; 0 where nobody tells."""
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:  # a sandbox without /proc
        return 0.0
    return sum(run_delay("self/task/%s" % thread) or 0.0 for thread in threads)


def is_traced() -> bool:
    """Return whether another process follows this one by ptrace(2) (proc(5), TracerPid): a debugger, strace."""
    try:
        with open("/proc/self/status") as file:
            return any(line.startswith("TracerPid:") and int(line.split()[1]) for line in file)
    except (OSError, ValueError, IndexError):
        return False


def stolen_s() -> float:
    """Return the seconds that this machine's host gave other guests since the start (proc(5), /proc/stat: steal); 0 where nobody tells."""
    try:
        with open("/proc/stat") as file:
            return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def _idle_s() -> Optional[float]:
    """Return the seconds that the CPUs of this process stood idle, together, in ticks of some 10 ms (proc(5), /proc/stat: idle and iowait)."""
    try:
        mine = {"cpu%d" % cpu for cpu in os.sched_getaffinity(0)}
        with open("/proc/stat") as file:
            rows = [row.split() for row in file]
        ticks = [int(row[4]) + int(row[5]) for row in rows if row and row[0] in mine]
        return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else None
    except (OSError, ValueError, IndexError):
        return None
