"""What a stage gets to work with, and how it says what it found."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import statistics
import time
import warnings
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Tuple

import torch

from torchtune_sys.smoke.worker.channel import channel, environment_number
from torchtune_sys.smoke.worker.measures import has_bfloat16

QUICK, DEFAULT, THOROUGH = "quick", "default", "thorough"


class StageFailed(Exception):
    """A property that training needs does not hold. ``cause`` is a slug of docs/smoke.md's table."""

    def __init__(self, cause: str, seen: str, remedy: str = "") -> None:
        super().__init__(seen)
        self.cause = cause
        self.seen = seen
        self.remedy = remedy


class Skipped(Exception):
    """There is nothing here to prove: no GPU, one rank, a torch that lacks the feature."""


class Inconclusive(Exception):
    """It could not be tried here; that is neither good nor bad. ``cause`` is as with ``StageFailed``, "" where there is none."""

    def __init__(self, seen: str, cause: str = "", remedy: str = "") -> None:
        super().__init__(seen)
        self.cause = cause
        self.remedy = remedy


class RankContext:
    """One rank: its device, its place among the others, how thorough it is to be."""

    def __init__(self, *, level: str, scratch: str, device: str, backend: str, expected: Dict[str, Any]) -> None:
        self.level = level
        self.scratch = scratch
        """A directory that all ranks of this host see; the driver removes it."""
        self.rank, self.world = environment_number("RANK", 0), environment_number("WORLD_SIZE", 1)
        self.local_rank = environment_number("LOCAL_RANK", 0)
        self.local_world = environment_number("LOCAL_WORLD_SIZE", 1)
        self.world_wish = 0
        """How many ranks the job is to have; 0 if nobody said."""
        self.gpus_wish = 0
        """How many GPUs torch must see here; 0 if nobody said."""
        self.cpus_wish = 0
        """How many CPUs the ranks of this host may use between them; 0 if nobody said."""
        self.device_wish = device
        self.kind = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
        self.gpus = countable_gpus() if self.kind == "cuda" else 0
        self.shared = 0 < self.gpus < self.local_world
        """Several ranks on one GPU: NCCL refuses that (before 2.30.3, and later unless it is told to), so they talk over gloo."""
        self.device = torch.device("cuda", self.local_rank % self.gpus) if self.gpus else torch.device("cpu")
        if self.gpus:
            repeatable_cublas()
            torch.cuda.set_device(self.device)
        self.backend_wish = backend
        self.backend = backend or ("nccl" if self.gpus and not self.shared else "gloo")
        own = torch.cuda.get_device_name(self.device) if self.gpus else ""
        self.expected_figures: Dict[str, Dict[str, float]] = expected.get(own, {})
        self.stage = ""
        self.loader_idle_s = 0.0
        """What workers of a loader slept before each batch though work was waiting, at the least."""
        self.plain_losses: List[float] = []
        """Of a training in float32, which what trains in low precision follows."""
        self.remark = ""
        """What a stage that passes has to say beside its figures."""
        self.doubt: Optional[Inconclusive] = None
        """The first of what a stage that finds no fault cannot judge here."""
        self.verdicts: Dict[str, str] = {}
        self.store: Any = None
        """Where the ranks met; None before."""
        self.began_s = 0.0
        """By this host's clock since it started, when this rank began to look for the others."""
        self.not_met: Optional[Exception] = None
        """Why the ranks did not find each other."""
        self.on_one_host = False
        """Whether all ranks share this host's loopback, once they have met."""
        self.processes: Tuple[str, ...] = ("self",)
        """The ids of all ranks' processes, if they are on this host."""
        self.pairs_are_ranks = False
        """Whether at the other end of each connection of the default group there is a rank, and nobody else."""
        self.exchanges = 0
        self.patience_s = 20.0
        """How long to wait for another rank's word: less than the stage's deadline, so that somebody names who did not speak."""
        self.broken = False
        """The ranks lost each other: an exchange between them failed."""
        self.lost_device = False
        """Nothing works on the device any more in this process."""

    def expected(self, figure: str) -> float:
        """Return the least that is plausible here for a figure of the running stage; 0 where nobody knows, as for a GPU that ranks share:
        each gets a part of it, at the same time."""
        return 0.0 if self.shared else self.expected_figures.get(self.stage, {}).get(figure, 0.0)

    def has_bfloat16(self) -> bool:
        """Whether the device multiplies in bfloat16 by itself."""
        return has_bfloat16(torch, self.device)

    def lacks(self, name: str) -> bool:
        """Whether a stage that others build on did not pass."""
        return self.verdicts.get(name) not in ("pass", "na")

    def measure(self, name: str, value: float, unit: str) -> None:
        """Tell a figure of the running stage. Wrong if it is a rate far below what is plausible here."""
        expected = self.expected(name)
        channel.tell("measure", stage=self.stage, name=name, value=float(value), unit=unit, expected=expected)
        if value < expected:
            raise StageFailed(
                "slow-%s" % self.stage, "%s: %.4g %s, where at least %.4g is plausible" % (name, value, unit, expected)
            )

    def place(self) -> str:
        """Where this rank runs, for people."""
        if not self.gpus:
            return "the CPU of %s" % socket.gethostname()
        # CUDA counts those that CUDA_VISIBLE_DEVICES names, by its own order: the place on the bus is what nvidia-smi shows, too.
        address = bus_address(self.device)
        return "GPU %d%s on %s" % (self.device.index, address and " (%s)" % address, socket.gethostname())

    def device_works(self) -> bool:
        """Whether anything can still be computed: an ECC error, a wrong address or a failed assertion on a GPU ends the process's context there, and
        whatever it asks for afterwards fails in the same words (CUDA Runtime API, cudaErrorIllegalAddress)."""
        try:
            return float(torch.ones(1, device=self.device).item()) == 1.0
        except RuntimeError as error:
            return "out of memory" in str(error)  # another process's, which may give it back

    def synchronize(self) -> None:
        if self.kind == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], Any], at_least_s: float = 0.1, rounds: int = 5) -> float:
        """Median seconds of one call, each round long enough for the clock; the first call is not counted."""
        work()
        self.synchronize()
        started = time.perf_counter()
        work()
        self.synchronize()
        calls = max(1, int(at_least_s / rounds / max(time.perf_counter() - started, 1e-7)))
        times: List[float] = []
        for _ in range(rounds):
            started = time.perf_counter()
            for _ in range(calls):
                work()
            self.synchronize()
            times.append((time.perf_counter() - started) / calls)
        return statistics.median(times)


def countable_gpus() -> int:
    """Count the GPUs by CUDA's own count: before it starts, torch asks NVML, which counts each GPU in MIG mode though CUDA shows one instance in all."""
    told = torch.cuda.device_count()
    return min(told, getattr(torch._C, "_cuda_getDeviceCount", torch.cuda.device_count)() or told)


def bus_address(device: torch.device) -> str:
    """Return a GPU's place on the bus, as nvidia-smi and lspci write it; "" before torch 2.8, which does not tell."""
    found = torch.cuda.get_device_properties(device)
    parts: List[Any] = [getattr(found, "pci_%s_id" % part, None) for part in ("domain", "bus", "device")]
    return "" if None in parts else "%04x:%02x:%02x.0" % tuple(parts)


def repeatable_cublas() -> None:
    """Before the first product: torch looks once in a process's life (aten/src/ATen/Context.cpp, alertCuBLASConfigNotDeterministic)
    and then refuses every product under deterministic algorithms, which the checkpoint needs. 32 MiB, as on Hopper without it."""
    name = "CUBLAS_WORKSPACE_CONFIG"
    if os.environ.get(name) not in (":4096:8", ":16:8"):
        os.environ[name] = ":4096:8"


@contextlib.contextmanager
def deterministic(here: RankContext) -> Iterator[None]:
    """On a GPU some operations add in whatever order threads come; torch can be told not to. cuBLAS needs ``repeatable_cublas`` first."""
    before = torch.are_deterministic_algorithms_enabled()
    asks = here.kind == "cuda"  # to ask imports torch's compiler, for seconds
    if asks:
        torch.use_deterministic_algorithms(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if asks:
            torch.use_deterministic_algorithms(before)


@contextlib.contextmanager
def with_threads(count: int) -> Iterator[None]:
    """Let torch compute with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def repeatable(here: RankContext) -> ContextManager[None]:
    """Let equal products have equal bits: torch lets rocBLAS add with atomics, in whatever order, unless all is to be deterministic
    (aten/src/ATen/cuda/CublasHandlePool.cpp). cuBLAS repeats itself on one stream without that."""
    return deterministic(here) if torch.version.hip is not None else contextlib.nullcontext()


def small_integers(shape: Tuple[int, ...], seed: int, low: int = -4, high: int = 4) -> torch.Tensor:
    """Integers in [low, high) as float32, made on the CPU: the same on every rank, host and device.

    Products of two and sums of up to 2**18 of them are exact in float32 (24 bits) in whatever order they are added, and each
    is exact in bfloat16 and TF32 inputs: what is computed from them has one right answer, to the last bit.
    """
    return _integers_drawn(shape, seed, low, high).clone()  # one that is changed spoils no other


@functools.lru_cache(maxsize=1024)
def _integers_drawn(shape: Tuple[int, ...], seed: int, low: int, high: int) -> torch.Tensor:
    """Return them drawn once: stages ask for the same ones again and again."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator).to(torch.float32)


def release_of_torch() -> Tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def torch_has_reached(major: int, minor: int) -> bool:
    """Tell whether this torch is of a release or a later one."""
    return release_of_torch() >= (major, minor)


def seldom_used_is_right() -> bool:
    """Tell whether this torch does what few trainings use as later ones do. Before 2.6 it does not: 2.0 has NaN in GroupNorm of bfloat16 with its channels last and steps
    otherwise by NAdam where that is differentiable, 2.4 multiplies int8 wrongly in _int_mm, and what exchanges and checkpoints cut otherwise was never seen (2.0.1, 2.4.1 tried)."""
    return torch_has_reached(2, 6)


def gloo_scatters_by_operation() -> bool:
    """Tell whether reduce_scatter of gloo heeds the operation. Before torch 2.13 it gave the sum, whatever was asked for (pytorch/pytorch#162338)."""
    return torch_has_reached(2, 13)


def differing_elements(found: torch.Tensor, wanted: Any) -> int:
    """Count them where they lie. What is alike, as nearly always, is not counted: to add truth values torch makes a copy of 8 bytes for each of
    them (aten/src/ATen/native/ReduceOpsUtils.h, make_reduction), for which a small GPU has no room beside what is compared."""
    off = found != wanted
    return int(off.sum().item()) if bool(off.any().item()) else 0


def same_bits(found: torch.Tensor, wanted: torch.Tensor) -> int:
    """How many elements differ in any bit (a NaN differs from all)."""
    found = found.detach().to("cpu", torch.float64)
    return int((found != wanted.detach().to("cpu", torch.float64)).sum().item())
