"""What a rank's worker does with a task, in the interpreter that has torch."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from smoke.attacks import intruder
from smoke.faults.bench import torch_python
from torchtune_sys.host import scratch
from torchtune_sys.host.peers.rank_worker import RankWorker
from torchtune_sys.preflight.joint.rank import PARTS, SCRIPT
from torchtune_sys.smoke.script import joined


def test_a_store_outlives_its_rank_and_ends_with_the_process_that_asked_for_it(tmp_path: Path) -> None:
    """Where another rank of the node speaks for it, too: that rank's process was not known to this one, and the store stayed for a minute."""
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as speaker,
        scratch.nameless(SCRIPT, joined(PARTS)) as script,
    ):
        env = {"PATH": os.environ["PATH"], "MARK": str(tmp_path)}
        worker = RankWorker((torch_python(), f"/proc/self/fd/{script}"), env, script, None)
        told = worker.ask("1", {"do": "store", "seconds": 50, "speaker": speaker.pid}, 40)
        assert isinstance(told.get("port"), int), told
        worker.end()
        assert _marked(tmp_path), "the store ended with its rank"
        speaker.communicate(b"\n")
        until_s = time.monotonic() + 20
        while _marked(tmp_path):
            assert time.monotonic() < until_s, "the store is still there"
            time.sleep(0.05)


_PRODUCTS = """
import sys, torch
from types import SimpleNamespace
sys.path.insert(0, {source!r})
from torchtune_sys.smoke.worker.measures import exact_products, has_bfloat16
right = torch.mm
def said(wrong):
    def product(one, other):
        found = right(one, other)
        if found.dtype == wrong:
            found.view(-1)[1000] += 2
        return found
    torch.mm = product
    return exact_products(torch, torch.device("cpu"))
from torchtune_sys.preflight.joint.worker.patterns import pattern, sum_of_patterns
sums = [(size, world) for size in (1, 257) for world in (1, 70, 300)]
wrong = [each for each in sums if not torch.equal(sum(pattern(torch, each[0], rank, 2) for rank in range(each[1])), sum_of_patterns(torch, *each, 2))]
def has(major):
    told = SimpleNamespace(version=SimpleNamespace(cuda="12.6"), cuda=SimpleNamespace(get_device_capability=lambda device: (major, 0)))
    return has_bfloat16(told, SimpleNamespace(type="cuda"))
print([said(None), said(torch.float32), said(torch.bfloat16), wrong, has(6), has(9)])
torch.mm = right
import os
import torch.distributed as dist
from torchtune_sys.preflight.joint.worker.exchanges import each_exchanged
from torchtune_sys.smoke.worker.measures import float_step, known_functions
kept = dist.HashStore()
dist.init_process_group("gloo", store=kept, rank=0, world_size=1)
cpu = torch.device("cpu")
def planted(where, name, change, look, at=0):
    called = getattr(where, name)
    def changed(*words, **named):
        found = called(*words, **named)
        change(found if isinstance(found, torch.Tensor) else words[at], named)
        return found
    changed.__name__ = name
    setattr(where, name, changed)
    try:
        return look()
    finally:
        setattr(where, name, called)
def other(kind=None, op=None, least=0):
    def change(value, named):
        value = value[-1] if isinstance(value, list) else value
        if value.numel() > least and kind in (None, value.dtype) and named.get("op") == op:
            value.data.view(-1)[-1:].add_(2)
    return change
def last_bit(at):
    def change(value, named):
        value.data.view(torch.int32).view(-1)[at] ^= 1
    return change
def exchanged():
    kept.delete_key(": all are at the barrier")
    return each_exchanged({{"rank": 0, "world": 1, "prefix": ""}}, lambda told: None, "gloo", cpu, kept).get("wrong", "")
def functions():
    return known_functions(torch, cpu)
nn = torch.nn.functional
gather = next(name for name in ("all_gather_single", "all_gather_into_tensor") if hasattr(dist, name))
scatter = next(name for name in ("reduce_scatter_single", "reduce_scatter_tensor") if hasattr(dist, name))
for row in (
    exchanged(), planted(dist, "all_reduce", other(least=1 << 20), exchanged), planted(dist, "all_reduce", other(torch.int64), exchanged),
    planted(dist, "all_reduce", other(torch.bfloat16), exchanged), planted(dist, "all_reduce", other(op=dist.ReduceOp.MAX), exchanged),
    planted(dist, scatter, other(), exchanged).replace(scatter, "scatter"), planted(dist, "all_to_all_single", other(), exchanged),
    planted(dist, "all_reduce", other(torch.float16), exchanged), planted(dist, "reduce", other(), exchanged),
    planted(dist, "gather", other(), exchanged, at=1), planted(dist, "scatter", other(), exchanged),
    planted(dist, "all_reduce", other(op=dist.ReduceOp.MIN), exchanged), planted(dist, "all_reduce", other(op=dist.ReduceOp.PRODUCT), exchanged),
    planted(dist, "all_reduce", other(torch.float64), exchanged), planted(dist, "broadcast", other(torch.uint8), exchanged),
    planted(dist, gather, other(), exchanged).replace(gather, "gather"),
    planted(dist, "barrier", lambda value, named: kept.add(": all are at the barrier", 1), exchanged, at=slice(0)),
    functions(), planted(torch.Tensor, "index_add", other(), functions), planted(torch.Tensor, "scatter_add", other(), functions),
    planted(torch, "clone", other(least=1 << 20), functions), planted(torch.Tensor, "copy_", other(least=1 << 20), functions), planted(nn, "embedding", other(), functions),
    planted(torch, "index_select", other(), functions), planted(torch, "cumsum", other(), functions), planted(nn, "softmax", other(), functions),
    planted(torch, "exp", other(), functions), planted(torch, "tanh", other(), functions), planted(torch, "sqrt", other(), functions),
    planted(torch.Tensor, "argmax", other(), functions),
    planted(nn, "max_pool2d", other(), functions), planted(nn, "scaled_dot_product_attention", other(), functions), planted(nn, "cross_entropy", other(), functions),
    planted(nn, "layer_norm", other(), functions), planted(torch, "bmm", other(), functions), planted(nn, "conv2d", other(), functions),
    planted(nn, "conv2d", lambda value, named: value.add_(1e-4), functions), planted(nn, "softmax", other(), lambda: float_step(torch, cpu)) == float_step(torch, cpu),
    float_step(torch, cpu) == float_step(torch, cpu),
    [at for at in range(0, 8192, 819) if planted(torch.nn.GELU, "forward", last_bit(at), lambda: float_step(torch, cpu)) == float_step(torch, cpu)],
):
    print(row)
"""
_TOLD = """
all_reduce of 2097157 elements: 1 of 2097157 elements are wrong
all_reduce of int64: 1 of 257 elements are wrong
all_reduce of bfloat16: 1 of 257 elements are wrong
all_reduce (MAX): 1 of 257 elements are wrong
scatter: 1 of 257 elements are wrong
all_to_all_single: 1 of 31 elements are wrong
all_reduce of float16: 1 of 257 elements are wrong
reduce to rank 0 of the group: 1 of 257 elements are wrong
gather to rank 0 of the group: 1 of 64 elements are wrong
scatter by rank 0 of the group: 1 of 257 elements are wrong
all_reduce (MIN): 1 of 257 elements are wrong
all_reduce (PRODUCT): 1 of 257 elements are wrong
all_reduce of float64: 1 of 257 elements are wrong
broadcast of uint8 by rank 0 of the group: 1 of 257 elements are wrong
gather: 1 of 257 elements are wrong
barrier: it let this rank go on before rank 0 of the group had come

1 of 2008 elements of index_add are wrong
1 of 2008 elements of scatter_add are wrong
1 of 1048579 elements of a copy are wrong
1 of 1048579 elements of a copy are wrong
1 of 8168 elements of an embedding are wrong
1 of 8168 elements of index_select are wrong
1 of 4099 elements of a running sum are wrong
1 of 4096 elements of softmax are wrong
1 of 129 elements of exp are wrong
1 of 129 elements of tanh are wrong
1 of 129 elements of a root are wrong
1 of 1 elements of the place of the largest are wrong
1 of 1020 elements of the largest of windows are wrong
1 of 264 elements of attention are wrong
1 of 1 elements of cross_entropy are wrong
1 of 4096 elements of layer_norm are wrong
1 of 3069 elements of a batch of products are wrong
1 of 1530 elements of a convolution are wrong

False
True
[]
"""


def test_products_exchanges_and_functions_are_looked_at_and_sums_of_many_ranks_known() -> None:
    script = _PRODUCTS.format(source=str(Path(__file__).parents[2] / "src"))
    done = subprocess.run([torch_python(), "-c", script], capture_output=True, text=True, check=True)
    words = "1 of 511 rows of a product of whole numbers in {} are wrong"
    products, told = done.stdout.split("\n", 1)
    assert products == str(["", words.format("float32"), words.format("bfloat16"), [], False, True]), done.stderr
    assert told == _TOLD, done.stderr


_OF_MANY_RANKS = """
import datetime, sys, torch
import torch.distributed as dist
sys.path.insert(0, {source!r})
from torchtune_sys.preflight.joint.worker import exchanges
exchanges._FEW, rank = 100, int(sys.argv[1])  # two ranks gather 128 numbers
exchanges._latest = lambda peers, done, limit_s: [(each.what, each.waited_s >= 0) for each in done[:-1]] + [len(done)]
waited = iter(range(1000, 0, -1))  # of threads that end
exchanges.run_delay_of_all = lambda: float(next(waited))
store = dist.FileStore(sys.argv[2], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60))
print(exchanges.each_exchanged({{"rank": rank, "world": 2, "prefix": ""}}, lambda told: None, "gloo", torch.device("cpu"), store)["latest"])
"""


def test_all_ranks_have_as_many_exchanges_to_compare(tmp_path: Path) -> None:
    """The one that gathers holds what came of all, of 1,025 ranks more numbers than are few: it compared one exchange less than the others, which never ended."""
    script = _OF_MANY_RANKS.format(source=str(Path(__file__).parents[2] / "src"))
    words = [torch_python(), "-c", script]
    ranks = [
        subprocess.Popen([*words, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True) for rank in range(2)
    ]
    first, second = (rank.communicate(timeout=100)[0] for rank in ranks)
    assert first == second and "gather to rank 1" in first and "False" not in first, first


@pytest.mark.parametrize("is_attacked", [False, True])
def test_what_a_stranger_writes_to_the_store_of_a_collective_is_told(tmp_path: Path, is_attacked: bool) -> None:
    """torch's store asks nobody who they are: somebody without the job's secret writes over all that it holds."""
    with scratch.nameless(SCRIPT, joined(PARTS)) as script, ThreadPoolExecutor(3) as pool:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        workers = [RankWorker((torch_python(), f"/proc/self/fd/{script}"), env, script, None) for _ in range(2)]
        port = workers[0].ask("1", {"do": "store", "seconds": 50, "speaker": os.getpid()}, 60)["port"]
        workers[1].ask("1", {"do": "compute"}, 60)
        ended = threading.Event()
        intruder.stolen.clear()
        attacks = pool.submit(_attack, port, ended) if is_attacked else None
        task = {"do": "collective", "world": 2, "store": ["127.0.0.1", port], "prefix": "x", "short": True, "key": "00ff" * 8}
        asked = []
        for rank, worker in enumerate(workers):
            until_s = time.monotonic() + 15
            while rank and attacks and not any(map(_HIDDEN.search, [*intruder.stolen])):  # else both may have met before
                assert time.monotonic() < until_s, intruder.stolen
                time.sleep(0.02)
            asked.append(pool.submit(worker.ask, "2", {**task, "rank": rank}, 20))
        told = [each.result() for each in asked]
        ended.set()
        for worker in workers:
            worker.end()
    if attacks is None:
        assert [each.get("ok") for each in told] == [True, True], told
    else:
        assert attacks.result() > 0, (attacks.result(), told, intruder.stolen)
        assert any(each.get("stranger") for each in told), told


_HIDDEN = re.compile("[0-9a-f]{32}")
"""A name of the ranks'."""


def _attack(port: int, ended: threading.Event) -> int:
    """Return how often something was written over."""
    count = 0
    while not ended.is_set():
        with contextlib.suppress(OSError):
            intruder.store("127.0.0.1", port)
            count += 1
    return count


def _marked(folder: Path) -> list[str]:
    """Processes that were started with this mark in their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if f"MARK={folder}\0".encode() in (place / "environ").read_bytes():
                found.append(place.name)
        except OSError:
            continue
    return found
