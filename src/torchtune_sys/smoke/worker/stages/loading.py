"""Data by worker processes, through shared memory."""

from __future__ import annotations

import contextlib
import errno
import functools
import multiprocessing
import os
import random
import re
import socket
import sys
import tempfile
import time
from typing import Any, Dict, Iterable, List, Optional, Tuple

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from torchtune_sys.smoke.worker.cgroups import NO_LIMIT, limits_of
from torchtune_sys.smoke.worker.channel import end_with_parent
from torchtune_sys.smoke.worker.context import QUICK, RankContext, StageFailed
from torchtune_sys.smoke.worker.measures import run_delay
from torchtune_sys.smoke.worker.stages.datasets import (
    SharedStream,
    data_are_split_and_drawn,
    seconds_to_end,
    workers_can_be_spawned,
    workers_have_ended,
    workers_heed_their_end,
    workers_tell_and_end,
)
from torchtune_sys.smoke.worker.worker_reasons import reasons_are_kept, tells_its_end

_WORKERS = 2
_WORDS = 1 << 16
_SAMPLES_A_BATCH = 16
"""Sixteen samples of 256 KiB: a batch of 4 MiB, and each worker has two on the way. 1 MB of /dev/shm does not hold one."""
_SAMPLES = 96
_FILES = 64
"""Files for what is on the way: four batches of seven tensors, each open here and at the worker."""
_SHARED = "/dev/shm"
_SOCKET, _LONGEST_SOCKET = "/pymp-12345678/listener-12345678", 107
"""Where multiprocessing has its sockets below TMPDIR (until Python 3.14, which takes /tmp then), and what unix(7) has room for."""
_PATIENCE_S = 40.0
"""A worker that says nothing for so long hangs: the loader tells, before this stage's deadline. Workers that do not fork (Python
3.14) import torch first, which takes seconds."""


_initialised: Dict[str, int] = {}
"""In a worker: its number, once it has run what it was given to begin with."""
_last_sample: Dict[str, Tuple[float, float]] = {}
_awaited: Dict[str, int] = {}
"""The number of the batch that an epoch waits for."""


_TOLD_BY_SAMPLES = ("index", "worker", "process", "initialised", "idle", "seed", "drawn", "python drawn", "numpy drawn")
_SIDE = 64
_THREADS_OF_WORKERS = "threads with which a worker computes:"


class NumberedSamples(Dataset):
    """Samples that say which they are, and who made them with which seed."""

    def __init__(self, count: int, words: int) -> None:
        self.count = count
        self.words = words
        _drawn_by_numpy()  # it seeds itself at the first draw; workers that nobody seeds all go on from there

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Dict[str, Any]:
        info = get_worker_info()
        return {
            "index": index,
            "content": torch.arange(self.words, dtype=torch.int32) + index * self.words,
            "worker": info.id if info else -1,
            "process": os.getpid(),
            "initialised": _initialised.get("as", -1),
            "idle": _idle_since_the_last(),
            "seed": torch.initial_seed(),
            "drawn": torch.randint(0, 1 << 62, (1,)),
            "python drawn": random.getrandbits(62),
            "numpy drawn": _drawn_by_numpy(),
        }


def _idle_since_the_last() -> float:
    """Return the seconds since the last sample in which this worker neither ran nor waited for a CPU."""
    waited = run_delay()
    if waited is None:
        return 0.0  # nobody tells sleep from a wait for a CPU
    now = (time.monotonic(), time.thread_time() + waited)
    before = _last_sample.get("at", now)
    _last_sample["at"] = now
    return now[0] - before[0] - (now[1] - before[1])


def _drawn_by_numpy() -> int:
    """0 where there is no NumPy: it is not needed, but who augments with it wants its workers seeded, too."""
    numpy: Any = sys.modules.get("numpy")  # torch imports it where it is
    return int(numpy.random.randint(1, 1 << 31)) if hasattr(numpy, "random") else 0


def worker_starts(rank_process: int, worker: int) -> None:
    """Tie a worker to its rank: one that outlives a killed rank would hold its memory, and its connection to the driver; one that then ends waits for
    ever to hand over its samples."""
    end_with_parent(rank_process if multiprocessing.get_start_method() == "fork" else 0)
    if torch.get_num_threads() > 1:
        raise RuntimeError("%s %d" % (_THREADS_OF_WORKERS, torch.get_num_threads()))
    # What was forked beside a library's threads may hang at its first product, or compute with their remains.
    ones = torch.ones(_SIDE, _SIDE)
    if not bool((torch.mm(ones, ones) == _SIDE).all()):
        raise RuntimeError("a product is wrong in worker process %d" % worker)
    _initialised["as"] = worker
    tells_its_end()


def loader_delivers(here: RankContext) -> None:
    """Check that workers deliver every sample once, in order and intact, with the documented seeds, and then exit."""
    try:
        with reasons_are_kept():
            _deliver(here)
    except EOFError as error:
        _too_few_files("a worker could not hand over its samples", error)
        raise
    except (OSError, RuntimeError) as error:
        if isinstance(error, ConnectionError):
            _too_few_files("a worker could not hand over its samples", error)
        if not os.access(_SHARED, os.W_OK | os.X_OK):
            seen = "%s, where workers hand over their samples, is missing or cannot be written (%s)" % (_SHARED, error)
            raise StageFailed("dev-shm-too-small", seen, "mount a tmpfs there, open to all (mode 1777)") from error
        if len(os.fsencode(tempfile.gettempdir())) + len(_SOCKET) > _LONGEST_SOCKET:
            seen = "the name of the directory for temporary files is too long for the workers' sockets in it: %s"
            raise StageFailed("tmpdir-too-long", seen % tempfile.gettempdir(), "TMPDIR=/tmp") from error
        stopped = _stopped_children() if "DataLoader timed out" in str(error) else []
        if stopped:
            seen = "worker process %s of rank %d is stopped (SIGSTOP or a debugger)"
            words = seen % (", ".join(map(str, stopped)), here.rank)
            raise StageFailed("dataloader-worker-stopped", words, "find out who stopped it; kill -CONT resumes it") from error
        told = re.search(_THREADS_OF_WORKERS + r" (\d+)", str(error))
        if told:
            seen = "workers of a DataLoader begin with %s threads each, where torch gives them one: they crowd the CPUs, and OpenMP's may hang after a fork"
            raise StageFailed(
                "dataloader-worker-threads", seen % told.group(1), "look for torch.set_num_threads in plug-ins"
            ) from error
        if "DataLoader timed out" in str(error):
            which = "worker %d of rank %d" % (_awaited["batch"] % _WORKERS, here.rank) if _awaited else "a worker"
            seen = "%s has not delivered its batch in %g s: it timed out" % (which, _PATIENCE_S)
            raise StageFailed("dataloader-worker-hung", seen) from error
        if any(os.strerror(number) in str(error) for number in (errno.EPERM, errno.ENOSYS)):
            seen = "what workers hand over samples by is refused: %s" % str(error).strip().splitlines()[-1]
            raise StageFailed("system-calls-refused", seen) from error
        raise


def _stopped_children() -> List[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError, ValueError), open("/proc/%s/stat" % name) as file:
            state, parent = file.read().rpartition(")")[2].split()[:2]  # proc_pid_stat(5)
            if int(parent) == os.getpid() and state in "Tt":
                found.append(int(name))
    return found


def _too_few_files(what: str, error: Optional[Exception] = None) -> None:
    """Name too few files as the reason: a worker that may not open another file goes without a reason that reaches the rank."""
    limit, held = limits_of("NOFILE")[0], len(os.listdir("/proc/self/fd"))
    if limit != NO_LIMIT and limit - held < _FILES:
        seen = "%s: this process has %d of %d files open"
        raise StageFailed("nofile-limit-too-low", seen % (what, held, limit), "ulimit -n 65536") from error


def _sockets_have_a_place() -> None:
    """Workers hand their samples over by descriptors, through sockets below TMPDIR: without them a batch never comes, and nobody says why."""
    if torch.multiprocessing.get_sharing_strategy() != "file_descriptor":
        return
    with tempfile.TemporaryDirectory(prefix="pymp-") as folder, socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.bind(os.path.join(folder, "listener"))
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                seen = "no socket can be made below %s, where workers hand over their samples: %s"
                words = seen % (tempfile.gettempdir(), error.strerror)
                raise StageFailed("tmpdir-without-sockets", words, "set TMPDIR to a file system that supports sockets") from error


def _shared_memory_has_its_helper() -> None:
    """Look whether it can be run: the sharing strategy file_system, which many choose where descriptors are few, starts a program of torch's."""
    helper = os.path.join(os.path.dirname(torch.__file__), "bin", "torch_shm_manager")
    if os.path.exists(helper) and not os.access(helper, os.X_OK):
        seen = "%s cannot be run: the sharing strategy file_system of workers needs it" % helper
        raise StageFailed("torch-install-damaged", seen, "chmod +x, a disk without noexec, or reinstall torch")


def _deliver(here: RankContext) -> None:
    _sockets_have_a_place()
    _shared_memory_has_its_helper()
    pinned = here.kind == "cuda"
    loader = _loader(NumberedSamples(_SAMPLES, _WORDS), _SAMPLES_A_BATCH, 11, pin_memory=pinned, persistent_workers=True)
    started = time.perf_counter()
    first = _epoch(here, loader, pinned)
    began_again = time.perf_counter()
    here.measure("first epoch", began_again - started, "s")
    second = _epoch(here, loader, pinned)
    here.measure("loaded", _SAMPLES * _WORDS * 4 / (time.perf_counter() - began_again) / 1e9, "GB/s")
    seconds = slice(_WORKERS * _SAMPLES_A_BATCH, 2 * _WORKERS * _SAMPLES_A_BATCH, _SAMPLES_A_BATCH)
    # Each worker has been given two batches to begin with.
    here.loader_idle_s = max(0.0, min(first["idle"][seconds] + second["idle"][seconds]))
    _too_few_files("a loader of two workers worked, but one with a few more would not")
    last_s = seconds_to_end(loader)
    workers_heed_their_end(last_s, lambda: _loader(NumberedSamples(_WORKERS, 1), 1, 11, persistent_workers=True))
    processes = {*first["process"], *second["process"]}
    if os.getpid() in processes or {*first["worker"]} != {*range(_WORKERS)}:
        raise StageFailed("dataloader-without-workers", "samples come from workers %s" % sorted({*first["worker"]}))
    if len(processes) != _WORKERS:
        raise StageFailed(
            "dataloader-workers-not-persistent", "%d processes served two epochs of %d workers" % (len(processes), _WORKERS)
        )
    workers_have_ended(sorted(processes))
    if first["initialised"] != first["worker"]:
        seen = "workers deliver samples without having run their worker_init_fn, which shares out data and seeds libraries"
        raise StageFailed("dataloader-init-left-out", seen)
    _seeds_as_documented(here, first)
    _shuffles()
    _streams_are_shared_out()
    data_are_split_and_drawn(here)
    workers_tell_and_end(here, _loader)
    workers_can_be_spawned(here)


def _streams_are_shared_out() -> None:
    if multiprocessing.get_start_method() != "fork":  # two more imports of torch
        return
    # the last batch of each worker is short, and each has more batches on the way than by default
    loader = _loader(SharedStream(_SAMPLES), 9, 14, persistent_workers=True, prefetch_factor=3)
    for epoch in (1, 2, 4):
        if epoch == 4:
            next(iter(loader))  # the third is left early: the next one begins anew, whatever was loaded ahead
        found = [int(sample) for batch in loader for sample in batch]
        if sorted(found) != [*range(_SAMPLES)]:
            words = (_SAMPLES, _WORKERS, len(found), epoch, len(found) - len({*found}))
            seen = "an iterable data set of %d samples, shared out among %d workers by get_worker_info, gives %d in epoch %d, %d of them again"
            raise StageFailed("dataloader-loses-samples", seen % words)


def _loader(
    samples: Dataset, batch: int, seed: int, *, workers: int = _WORKERS, timeout: float = _PATIENCE_S, **more: Any
) -> DataLoader:
    return DataLoader(
        samples,
        batch_size=batch,
        num_workers=workers,
        worker_init_fn=functools.partial(worker_starts, os.getpid()),
        generator=torch.Generator().manual_seed(seed),
        timeout=timeout,
        **more,
    )


def _epoch(here: RankContext, loader: DataLoader, pinned: bool) -> Dict[str, List[Any]]:
    """Return what the samples of one epoch say, in their order. Their content is compared where the model would get it."""
    told: Dict[str, List[Any]] = {name: [] for name in _TOLD_BY_SAMPLES}
    offsets = torch.arange(_WORDS, dtype=torch.int32, device=here.device)
    _awaited["batch"] = 0  # workers take them in turns
    kept: List[torch.Tensor] = []
    for batch in loader:
        _awaited["batch"] += 1
        kept.append(batch["index"])
        if pinned and not batch["content"].is_pinned():
            raise StageFailed("memory-not-pinned", "a loader with pin_memory=True delivers memory that is not pinned")
        content = batch["content"].to(here.device, non_blocking=pinned)
        numbers = batch["index"].to(here.device, torch.int32)
        differing = (content != numbers[:, None] * _WORDS + offsets).sum(1)
        if bool(differing.any()):
            raise StageFailed("dataloader-corrupts", _spoiled(here, batch, differing.tolist()))
        for name, values in told.items():
            values.extend(batch[name].flatten().tolist())
    _awaited.clear()
    if told["index"] != [*range(_SAMPLES)]:
        missing = len({*range(_SAMPLES)} - {*told["index"]})
        again = len(told["index"]) - len({*told["index"]})
        how = "%d missing, %d twice" % (missing, again) if missing or again else "in another order"
        places = [place for place in range(min(_SAMPLES, len(told["index"]))) if told["index"][place] != place]
        workers = _workers_named(told["worker"][place] for place in places)
        if workers:
            how += "; what is out of place came from %s of rank %d, first sample %d for %d" % (
                workers,
                here.rank,
                told["index"][places[0]],
                places[0],
            )
        cause = "dataloader-loses-samples" if missing or again else "dataloader-out-of-order"
        raise StageFailed(cause, "%d samples were to come in order: %s" % (_SAMPLES, how))
    if torch.cat(kept).flatten().tolist() != told["index"]:
        seen = "a batch that is kept changes as later ones come: they are put into its memory"
        raise StageFailed("dataloader-corrupts", seen)
    return told


def _spoiled(here: RankContext, batch: Dict[str, torch.Tensor], differing: List[int]) -> str:
    wrong = [place for place, words in enumerate(differing) if words]
    numbers, workers = batch["index"].flatten().tolist(), batch["worker"].flatten().tolist()
    figures = (
        sum(differing),
        len(wrong),
        len(differing),
        numbers[wrong[0]],
        _workers_named(workers[one] for one in wrong),
        here.rank,
    )
    return (
        "%d words in %d of the %d samples of a batch (first: sample %d) are not what was written into them: they come from %s of rank %d"
        % figures
    )


def _workers_named(numbers: Iterable[int]) -> str:
    found = sorted({*numbers})
    return "worker%s %s" % ("s"[: len(found) > 1], ", ".join(map(str, found))) if found else ""


def _seeds_as_documented(here: RankContext, first: Dict[str, List[int]]) -> None:
    """https://docs.pytorch.org/docs/stable/data.html: worker w has the seed base + w, for torch and for random; the base is drawn
    from the loader's generator, so that the same generator gives the same again."""
    seeds = dict(zip(first["worker"], first["seed"]))
    cheap = multiprocessing.get_start_method() == "fork"  # else each worker imports torch
    again = _seeds_of(11, 1 + cheap)
    (other,) = _seeds_of(12, 1) if cheap and here.level != QUICK else ({},)
    if len({*seeds.values()}) != _WORKERS:
        raise StageFailed(
            "dataloader-seeds-equal", "all %d workers have the seed %d: each augments like the other" % (_WORKERS, seeds[0])
        )
    if any(seed - worker != seeds[0] for worker, seed in seeds.items()):
        raise StageFailed("dataloader-seeds-wrong", "the workers' seeds are %s, not a base and the worker's number" % seeds)
    if again[0] != seeds or seeds == other:
        raise StageFailed(
            "dataloader-seeds-not-reproducible", "seeds %s; generator seeded alike: %s, otherwise: %s" % (seeds, again[0], other)
        )
    if again[1:] == again[:1]:
        seen = "in the next epoch the workers have the same seeds, %s: augmentation repeats itself in each epoch"
        raise StageFailed("dataloader-seeds-repeat", seen % sorted(seeds.values()))
    by_numpy = [first["numpy drawn"][first["worker"].index(worker)] for worker in seeds]
    if any(by_numpy) and len({*by_numpy}) != _WORKERS:
        raise StageFailed("dataloader-seeds-equal", "all %d workers draw the same from NumPy" % _WORKERS)
    for worker, seed in seeds.items():
        at = first["worker"].index(worker)
        drawn = torch.randint(0, 1 << 62, (1,), generator=torch.Generator().manual_seed(seed)).item()
        python_drawn = random.Random(seed).getrandbits(62)
        if (first["drawn"][at], first["python drawn"][at]) != (drawn, python_drawn):
            raise StageFailed("dataloader-seeds-wrong", "worker %d does not draw what its seed %d gives" % (worker, seed))


def _shuffles() -> None:
    loader = DataLoader(range(_SAMPLES), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(13))
    first, second = ([int(sample) for batch in loader for sample in batch] for _ in range(2))
    if not sorted(first) == sorted(second) == [*range(_SAMPLES)]:
        raise StageFailed("dataloader-loses-samples", "with shuffle=True %d samples are not once each in an epoch" % _SAMPLES)
    if first == second or first == sorted(first):
        raise StageFailed(
            "dataloader-not-shuffled",
            "shuffle=True gives an epoch the order of %s" % ("the data" if first != second else "the last"),
        )


def _seeds_of(seed: int, epochs: int) -> List[Dict[int, int]]:
    loader = _loader(NumberedSamples(_WORKERS, 1), 1, seed)
    return [{int(batch["worker"]): int(batch["seed"]) for batch in loader} for _ in range(epochs)]
