"""What stands around a loader: how data are split, drawn and put together, how workers fail and start, and what each loader leaves behind."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import multiprocessing.spawn
import os
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch
from torch.utils import data
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from torchtune_sys.smoke.worker.context import QUICK, RankContext, StageFailed
from torchtune_sys.smoke.worker.growth import keeps_nothing_of
from torchtune_sys.smoke.worker.measures import CROWD, processes_a_cpu

_DRAWN = 1 << 12
_SPAWNED_S = 30.0
_ROUNDS_OF_LOADERS = 2
_SLOW_SAMPLE_S = 0.4
_AWAITS_WORKER_S, _LOADERS_ENDED = 4.9, 3
"""For so long a loader waits for a worker that it told to end (torch/utils/data/_utils, MP_STATUS_CHECK_INTERVAL), before SIGTERM."""


class SharedStream(IterableDataset):
    """A data set without indices, of which each worker gives what no other does, as torch's documentation has it."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(info.id, self.count, info.num_workers) if info else range(self.count))


def data_are_split_and_drawn(here: RankContext) -> None:
    """Check splits, samplers and batches, all without a worker."""
    for cause, rows in (
        ("dataloader-loses-samples", _put_together()),
        ("dataloader-loses-samples", _as_asked()),
        ("dataloader-corrupts", _batches()),
    ):
        for name, found, wanted in rows:
            if found != wanted:
                raise StageFailed(cause, "%s: %s, where %s is right" % (name, _start_of(found), _start_of(wanted)))
    if _drawn_of_a_part() == [*range(30, 50)]:
        raise StageFailed("dataloader-not-shuffled", "SubsetRandomSampler gives its part in order")
    drawn = list(data.WeightedRandomSampler([1.0, 5.0, 2.0, 0.0], _DRAWN, generator=torch.Generator().manual_seed(15)))
    shares = [drawn.count(value) / _DRAWN for value in range(4)]
    if any(abs(one - other) > 0.05 * (other > 0) for one, other in zip(shares, (0.125, 0.625, 0.25, 0.0))):
        words = " ".join("%.3f" % one for one in shares)
        raise StageFailed(
            "random-numbers-wrong", "WeightedRandomSampler draws with shares of %s, not 0.125 0.625 0.250 0.000" % words
        )


def _start_of(found: Any) -> str:
    text = str(found)
    return text if len(text) < 80 else text[:77] + "…"


def _put_together() -> Iterator[Tuple[str, Any, Any]]:
    """Yield names, what is found and what is right."""
    parts = data.random_split(range(100), [50, 30, 20], generator=torch.Generator().manual_seed(16))
    yield "random_split of 100 in three parts", [len(part) for part in parts], [50, 30, 20]
    shares = data.random_split(range(101), [0.5, 0.3, 0.2], generator=torch.Generator().manual_seed(16))
    yield "random_split of 101 by shares", [len(part) for part in shares], [51, 30, 20]
    split = [int(one) for part in parts for one in part]
    yield "the samples of random_split", sorted(split), [*range(100)]
    yield "random_split keeps the order of the data", split == [*range(100)], False
    joined = data.ConcatDataset([range(3), range(10, 14), range(20, 22)])
    yield "ConcatDataset", [int(joined[place]) for place in range(len(joined))], [0, 1, 2, 10, 11, 12, 13, 20, 21]
    yield "Subset", [int(one) for one in data.Subset(range(50, 60), [9, 0, 4])], [59, 50, 54]
    pairs = data.TensorDataset(torch.arange(6), torch.arange(6) * 10)
    yield (
        "TensorDataset",
        [[int(one), int(other)] for one, other in (pairs[place] for place in range(6))],
        [[n, 10 * n] for n in range(6)],
    )
    yield "BatchSampler", [*map(list, data.BatchSampler(range(7), 3, False))], [[0, 1, 2], [3, 4, 5], [6]]
    drawn = [*data.RandomSampler(range(20), generator=torch.Generator().manual_seed(17))]
    yield "RandomSampler gives each once", sorted(drawn), [*range(20)]
    yield "SubsetRandomSampler gives each of its part once", sorted(_drawn_of_a_part()), [*range(30, 50)]


def _drawn_of_a_part() -> List[int]:
    return [*data.SubsetRandomSampler(range(30, 50), generator=torch.Generator().manual_seed(17))]


def _as_asked() -> Iterator[Tuple[str, Any, Any]]:
    """Yield which samples come together, of a data set with indices and of one without: the last batch is short where the batch's size does not divide, and comes unless it is to
    be dropped."""
    whole, fours = [*range(10)], [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    rows: Tuple[Tuple[Dict[str, Any], List[Any], bool], ...] = (
        ({"batch_size": 4}, fours, True),
        ({"batch_size": 4, "drop_last": True}, fours[:2], True),
        ({"batch_size": 12}, [whole], True),
        ({"batch_size": None}, whole, True),
        ({"batch_size": 2, "sampler": [7, 0, 3]}, [[7, 0], [3]], False),
        ({"batch_sampler": [[9], [1, 1, 4]]}, [[9], [1, 1, 4]], False),
        ({"batch_size": None, "sampler": [7, 0, 3]}, [7, 0, 3], False),
    )
    for options, wanted, also_without in rows:
        for name, samples in (("a data set", range(10)), ("an iterable data set", SharedStream(10)))[: 1 + also_without]:
            found = [one.tolist() if isinstance(one, torch.Tensor) else one for one in DataLoader(samples, **options)]
            told = ", ".join("%s=%s" % pair for pair in options.items())
            yield "ten samples of %s (%s)" % (name, told), found, wanted


def _batches() -> Iterator[Tuple[str, Any, Any]]:
    """Yield the same of what is put together to batches."""
    (batch,) = DataLoader(data.TensorDataset(torch.arange(6), torch.arange(6) * 10), batch_size=6)
    yield (
        "a batch of pairs that are alike in shape and type (a picture and its mask)",
        [one.tolist() for one in batch],
        [[0, 1, 2, 3, 4, 5], [0, 10, 20, 30, 40, 50]],
    )
    (batch,) = DataLoader([{"picture": torch.tensor([number]), "mask": torch.tensor([10 * number])} for number in range(3)], 3)
    named = {name: batch[name].tolist() for name in batch}
    yield "a batch of named pairs that are alike", named, {"picture": [[0], [1], [2]], "mask": [[0], [10], [20]]}
    nested = [{"a": (number, [float(number), torch.tensor([number, -number])]), "b": "word%d" % number} for number in range(3)]
    (batch,) = DataLoader(nested, batch_size=3)
    first, second = batch["a"][1]
    found = [batch["a"][0].tolist(), first.tolist(), str(first.dtype), second.tolist(), list(batch["b"])]
    right = [[0, 1, 2], [0.0, 1.0, 2.0], "torch.float64", [[0, 0], [1, -1], [2, -2]], ["word0", "word1", "word2"]]
    yield "a batch of nested samples (default_collate)", found, right
    yield "a batch put together by collate_fn", list(DataLoader(range(4), batch_size=2, collate_fn=sum)), [1, 5]


class _OneIsBroken(Dataset):
    """Its fourth sample cannot be read; which ones were, it tells in shared memory."""

    def __init__(self) -> None:
        self.were_read = torch.zeros(6).share_memory_()

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == 3:
            raise ValueError("sample 3 is broken")
        self.were_read[index] = 1
        return index


class _EachIsSlow(Dataset):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        time.sleep(_SLOW_SAMPLE_S)
        return index


def workers_tell_and_end(here: RankContext, loader: Callable[..., DataLoader]) -> None:
    """Check that an error in a worker reaches the training, and that loaders that have ended leave nothing. ``loader``: makes one whose workers end with us."""
    if multiprocessing.get_start_method() != "fork":  # each of these workers would import torch
        return
    said = ""
    read: List[int] = []
    samples = _OneIsBroken()
    batches = iter(loader(samples, 1, 18, workers=1))
    while True:  # to its end: a loader that is left in the middle waits five seconds for its workers
        try:
            read.append(int(next(batches)))
        except StopIteration:
            break
        except ValueError as error:
            said = str(error)
    if "sample 3 is broken" not in said:
        seen = "a sample whose reading raised in a worker did not raise in the training, which got %s"
        raise StageFailed("dataloader-hides-errors", seen % read)
    if samples.were_read.tolist() != [float(number in read) for number in range(6)]:
        seen = "what a worker writes into a tensor in shared memory (share_memory_) the training does not see: %s, after it read the samples %s"
        raise StageFailed("dataloader-corrupts", seen % (samples.were_read.tolist(), read))
    if here.level != QUICK:
        with contextlib.suppress(RuntimeError):
            next(iter(loader(_EachIsSlow(), 1, 20, workers=1, timeout=_SLOW_SAMPLE_S / 8)))
            seen = "a loader whose time limit (timeout=) is %.2g s waited for a sample that took %.2g s: a worker that hangs would be waited for without end"
            raise StageFailed("dataloader-hides-errors", seen % (_SLOW_SAMPLE_S / 8, _SLOW_SAMPLE_S))
        pairs = data.TensorDataset(torch.arange(16), torch.arange(16) * 10)
        keeps_nothing_of(here, "loaders with workers", lambda: _pairs_stay(loader(pairs, 8, 19, workers=1)), _ROUNDS_OF_LOADERS)


def _pairs_stay(batches: DataLoader) -> None:
    for samples, answers in batches:
        if not torch.equal(answers, samples * 10):
            seen = "a batch of eight pairs from a worker has the samples %s with the answers %s, which are ten times as much each"
            raise StageFailed("dataloader-corrupts", seen % (samples.tolist(), answers.tolist()))


def workers_heed_their_end(last_s: float, another: Callable[[], DataLoader]) -> None:
    """Check that workers end when their loader says so: else it waits for each, and ends it by SIGTERM, in each epoch. ``last_s``: what it took to end a loader's
    workers. Who waits long for a CPU may be late, so that ``another`` loader is tried, too, and one more."""
    for _ in range(_LOADERS_ENDED):
        if last_s < _AWAITS_WORKER_S or processes_a_cpu() > CROWD:  # three times of three were seen at a load of 20 on two cores
            return
        loader = another()
        list(loader)
        last_s = seconds_to_end(loader)
    seen = "workers of a DataLoader do not end when it tells them to: it waits for five seconds and ends them by SIGTERM, %d times of %d"
    raise StageFailed("dataloader-workers-stay", seen % (_LOADERS_ENDED, _LOADERS_ENDED))


def seconds_to_end(loader: DataLoader) -> float:
    """End the workers of a loader that keeps them (persistent_workers), as it does when it is deleted: who calls still has it."""
    began = time.monotonic()
    held: Any = loader
    held._iterator = None
    gc.collect()
    return time.monotonic() - began


def workers_have_ended(processes: List[int]) -> None:
    """Check that the workers have ended: the loader waits for its workers when it is deleted, so they are gone, or go now."""
    until = time.monotonic() + 5.0
    left = processes
    while left and time.monotonic() < until:
        left = [number for number in left if os.path.exists("/proc/%d" % number)]
        time.sleep(0.01 if left else 0.0)
    if left:
        raise StageFailed("dataloader-workers-stay", "worker processes %s outlive their loader" % left)


def workers_can_be_spawned(here: RankContext) -> None:
    """Start one as who uses CUDA in workers must: not a copy of this process, but Python anew. Once on a host; without torch, whose import takes seconds."""
    if here.local_rank != 0 or here.level == QUICK:
        return
    program = os.fsdecode(multiprocessing.spawn.get_executable() or "")
    child = multiprocessing.get_context("spawn").Process(target=os.getcwd)
    try:
        with _without_this_script(), _without_a_tracker():
            child.start()
            child.join(_SPAWNED_S)
            status = child.exitcode
            child.kill()
            child.join()
    except OSError as error:
        seen = "multiprocessing cannot spawn a worker with %s: %s"
        raise StageFailed("spawn-broken", seen % (program, error.strerror or error), "look who moved the environment") from error
    if status != 0:
        how = "does not end" if status is None else "ends with status %s" % status
        raise StageFailed("spawn-broken", "a worker that multiprocessing spawned with %s %s" % (program, how))


@contextlib.contextmanager
def _without_this_script() -> Iterator[None]:
    """Hide this script from a worker, which would run it to find there what it is given."""
    own = vars(sys.modules["__main__"])
    kept = own.pop("__file__", None)
    try:
        yield
    finally:
        if kept is not None:
            own["__file__"] = kept


@contextlib.contextmanager
def _without_a_tracker() -> Iterator[None]:
    """Spawning starts a process that awaits the end of this one, too. It is ended unless it was there before."""
    from multiprocessing import resource_tracker

    tracker: Any = resource_tracker._resource_tracker
    was_there = getattr(tracker, "_fd", 0) is not None
    try:
        yield
    finally:
        if not was_there and hasattr(tracker, "_stop"):
            tracker._stop()
