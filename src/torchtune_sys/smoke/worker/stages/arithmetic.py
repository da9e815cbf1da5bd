"""The device by itself: there, right, and as fast as its kind."""

from __future__ import annotations

import contextlib
import functools
import glob
from typing import Iterator, List

import torch
import torch.nn.functional as functional

from torchtune_sys.smoke.worker.cgroups import told_of_quota
from torchtune_sys.smoke.worker.context import (
    QUICK,
    THOROUGH,
    RankContext,
    Skipped,
    StageFailed,
    differing_elements,
    same_bits,
    small_integers,
)
from torchtune_sys.smoke.worker.functions.convolutions import (
    convolution_is_right,
    convolution_of_parts_is_right,
    transposed_convolution_is_right,
)
from torchtune_sys.smoke.worker.functions.wide_ranges import pieces_arrive
from torchtune_sys.smoke.worker.measures import CROWD, processes_a_cpu
from torchtune_sys.smoke.worker.stages.process_settings import nothing_was_set_before
from torchtune_sys.smoke.worker.stages.process_state import process_is_as_started

_NVIDIA, _AMD = "0x10de", "0x1002"


def device_works(here: RankContext) -> None:
    """Check that the training device can allocate memory and run a kernel."""
    if here.kind == "cpu" and here.device_wish != "cpu":
        _no_gpu_was_overlooked(here)
    _all_gpus_are_seen(here)
    process_is_as_started(here)
    nothing_was_set_before(here)
    mebibytes = 64 if here.kind == "cpu" else 256
    held = torch.zeros(mebibytes << 18, dtype=torch.float32, device=here.device)
    held += 1.0
    total = held.sum(dtype=torch.float64).item()
    if total != float(mebibytes << 18):
        raise StageFailed("device-computes-wrong", "the sum of %d ones is %r" % (mebibytes << 18, total))
    here.measure("allocated", mebibytes, "MiB")
    crowd = processes_a_cpu()
    if crowd > CROWD:
        here.measure("processes for each CPU before the test", crowd, "")
    here.remark = told_of_quota(here.local_world)


def _no_gpu_was_overlooked(here: RankContext) -> None:
    """torch falls back to the CPU without a word where CUDA cannot start."""
    vendor = "NVIDIA" if torch.version.hip is None else "AMD"
    present = _gpus_on_the_bus(_NVIDIA if vendor == "NVIDIA" else _AMD)
    if not present and here.device_wish != "cuda":
        return
    if torch.version.cuda is None and torch.version.hip is None:
        here_are = "%d NVIDIA GPU(s) are here, but " % present if present else ""
        raise StageFailed("cpu-only-build", "%storch %s is built without CUDA" % (here_are, torch.__version__))
    try:
        torch.cuda.init()
        seen = "torch sees %d of %d %s GPU(s)" % (torch.cuda.device_count(), present, vendor)
    except Exception as error:
        seen = str(error).strip().splitlines()[0]
    raise StageFailed("", "CUDA cannot be used: %s" % seen)


def _all_gpus_are_seen(here: RankContext) -> None:
    """With one GPU less than ranks two of them would share one without a word. Not yet verified on a GPU."""
    if 0 < here.gpus < here.gpus_wish:
        seen = "torch sees %d of the %d GPUs that this host shows it" % (here.gpus, here.gpus_wish)
        raise StageFailed("gpu-overlooked", seen, "nvidia-smi, and dmesg (NVRM: Xid); the rights on /dev/nvidia*")


def _gpus_on_the_bus(maker: str) -> int:
    """Functions of class display (VGA or 3D) or processing accelerator (AMD Instinct) by this vendor."""
    count = 0
    for path in glob.glob("/sys/bus/pci/devices/*/vendor"):
        try:
            with open(path) as vendor, open(path[: -len("vendor")] + "class") as kind:
                count += vendor.read().strip() == maker and kind.read().startswith(("0x03", "0x12"))
        except OSError:
            continue
    return count


def gemm_is_right(here: RankContext) -> None:
    """Check that matrix products are bit-exact in every precision that training uses."""
    _float64_is_right(here)
    for dtype in _precisions(here):
        size = 1024 if here.level == QUICK else 2048
        if here.kind == "cpu":  # often one core of it; bfloat16 without instructions for it takes 0.25 s for 512
            size = 256 if here.level == QUICK and dtype != torch.float32 else 512
        # cuBLAS may add partial sums in the output's own precision (torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        # on unless told otherwise). Integers to 256 are exact in bfloat16: sums of 2048 products of -1, 0 and 1 stay below by 8 sigma.
        low, high = (-4, 4) if dtype == torch.float32 else (-1, 2)
        left, right = small_integers((size, size), 1, low, high), small_integers((size, size), 2, low, high)
        wanted = (left.to(torch.float64) @ right.to(torch.float64)).to(torch.float32)
        product = left.to(here.device, dtype) @ right.to(here.device, dtype)
        differing = same_bits(product, wanted.to(dtype))
        if differing:
            raise StageFailed(
                "gemm-wrong", "%d of %d elements of a %s product are wrong" % (differing, size * size, _short(dtype))
            )
        _adds_up(here, dtype)
    _rates(here)


def _float64_is_right(here: RankContext) -> None:
    """Products of float64, by which all others are judged, of integers that need 40 bits: beside those of int64, which no BLAS computes."""
    left, right = small_integers((129, 65), 3, 0, 1 << 17), small_integers((65, 34), 4, 0, 1 << 17)
    wanted = (left.to(torch.int64) @ right.to(torch.int64)).double()
    for device in {torch.device("cpu"), here.device}:
        found = (left.to(device, torch.float64) @ right.to(device, torch.float64)).cpu()
        differing = int((found != wanted).sum())  # by itself: what compares takes float64
        if differing:
            words = (differing, wanted.numel(), device)
            raise StageFailed("gemm-wrong", "%d of %d elements of a float64 product on %s are wrong" % words)


def _adds_up(here: RankContext, dtype: torch.dtype) -> None:
    """Check that a long sum is kept in more bits than its terms: one of ones would stay at 256 in bfloat16's eight, at 16 times as much where
    16 are added at once. Partial sums of thousands may be rounded (see above), by less than a sixteenth."""
    terms = 1 << 15
    ones = torch.ones((16, terms), device=here.device, dtype=dtype)
    found = float((ones @ ones.t()).min().item())
    if not abs(found - terms) <= terms / 16:
        raise StageFailed(
            "gemm-wrong", "a %s product adds %d ones to %g: its sums have too few bits" % (_short(dtype), terms, found)
        )


def _precisions(here: RankContext) -> List[torch.dtype]:
    low = [torch.bfloat16] * here.has_bfloat16() + [torch.float16] * (here.kind == "cuda")
    return [torch.float32, *low]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def _rates(here: RankContext) -> None:
    """Of random data: ones and zeros let fewer transistors switch, and flatter a GPU that its power cap holds back. Long enough on a GPU
    for the cap to act: clocks follow within some hundred milliseconds."""
    sizes = {
        "cpu": 256,
        "cuda": 8192 if here.level == THOROUGH else 4096,
    }  # a CPU without instructions for bfloat16: 0.25 s for 512
    size, long_s = sizes[here.kind], 0.1 if here.kind == "cpu" else {QUICK: 0.3, THOROUGH: 3.0}.get(here.level, 1.0)
    noise = torch.randn((size, size), generator=torch.Generator().manual_seed(9))
    for dtype in _precisions(here):
        _rate(here, _short(dtype), noise.to(here.device, dtype), size, long_s)
    if here.kind == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(here.device)[0] >= 8:
        with _tf32_is_allowed():
            _rate(here, "tf32", noise.to(here.device), size, long_s)
        _fp8_rate(here, noise, size, long_s)


@contextlib.contextmanager
def _tf32_is_allowed() -> Iterator[None]:
    """By the newer of its two names where torch has that (2.9): the older one raises where somebody has set the newer."""
    place = torch.backends.cuda.matmul
    newer = hasattr(place, "fp32_precision")
    name, wanted = ("fp32_precision" if newer else "allow_tf32"), ("tf32" if newer else True)
    before = getattr(place, name)
    setattr(place, name, wanted)
    try:
        yield
    finally:
        setattr(place, name, before)


def _rate(here: RankContext, name: str, left: torch.Tensor, size: int, long_s: float) -> None:
    seconds = here.seconds(functools.partial(torch.matmul, left, left), long_s)
    here.measure("%s GEMM" % name, 2 * size**3 / seconds / 1e12, "TFLOP/s")


def _fp8_rate(here: RankContext, noise: torch.Tensor, size: int, long_s: float) -> None:
    """Where GPU and torch have it (compute capability 8.9, torch 2.5): torch's function is not a public one, and may go. Sums as the data sheet's figure
    has them and training's forward pass takes them: kept more exactly (torch's default) they are a good deal slower on Hopper (cuBLAS,
    CUBLASLT_MATMUL_DESC_FAST_ACCUM)."""
    product = getattr(torch, "_scaled_mm", None)
    narrow = getattr(torch, "float8_e4m3fn", None)
    if product is None or narrow is None or torch.cuda.get_device_capability(here.device) < (8, 9):
        return
    left, one = noise.to(here.device).to(narrow), torch.ones((), device=here.device)
    work = functools.partial(product, left, left.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)
    try:
        work()
    except (RuntimeError, TypeError):
        return
    here.measure("fp8 GEMM", 2 * size**3 / here.seconds(work, long_s) / 1e12, "TFLOP/s")


_TELLING_MIB = 256
"""Less is over before a GPU has come up to its rate: 698 GB/s were measured where other processes left room for 20 MiB on an H100 that copies at 3,000."""


def memory_keeps(here: RankContext) -> None:
    """Check that the device's memory returns what was written to it, at a plausible rate."""
    mebibytes = 64 if here.kind == "cpu" else min(1024, torch.cuda.mem_get_info(here.device)[0] >> 23)
    # Every 8-byte word has its own value, so that a word at another's address, or one never written, is seen too.
    written = torch.arange(mebibytes << 17, dtype=torch.int64, device=here.device)
    held = torch.empty_like(written)
    seconds = here.seconds(functools.partial(held.copy_, written))
    # Sums of 64-bit integers have no rounding; the comparison reads every word of both.
    differing = differing_elements(held, written)
    words = mebibytes << 17
    if differing or int(written.sum().item()) != words * (words - 1) // 2:
        raise StageFailed("memory-corrupts", "%d of %d words came back with other content" % (differing, words))
    pieces_arrive(here)
    if here.kind == "cpu" or mebibytes >= _TELLING_MIB:
        here.measure("memory copy", 2 * mebibytes * 2**20 / seconds / 1e9, "GB/s")
    if here.level == THOROUGH and here.kind == "cuda" and not here.shared:
        _most_memory_keeps(here)
        torch.cuda.empty_cache()  # NCCL and cuDNN take theirs beside torch's allocator


def _most_memory_keeps(here: RankContext) -> None:
    """Nine tenths of what is free, in pieces of a GiB, with patterns that set each bit and clear it; half where that is the host's own
    memory (GB10, Jetson)."""
    integrated = bool(getattr(torch.cuda.get_device_properties(here.device), "is_integrated", 0))
    free = torch.cuda.mem_get_info(here.device)[0] * (0.5 if integrated else 0.9)
    words = 1 << 27
    pieces = [torch.empty(words, dtype=torch.int64, device=here.device) for _ in range(int(free) >> 30)]
    for pattern in (0x5555555555555555, -0x5555555555555556, 0, -1):
        for number, piece in enumerate(pieces):
            piece.fill_(pattern ^ number)
        for number, piece in enumerate(pieces):
            differing = differing_elements(piece, pattern ^ number)
            if differing:
                figures = (differing, words, number, len(pieces), pattern & 0xFFFFFFFFFFFFFFFF)
                seen = "%d of %d words of piece %d of %d do not keep %#x"
                raise StageFailed("memory-corrupts", seen % figures)
    here.measure("memory tried", len(pieces), "GiB")


def copies_arrive(here: RankContext) -> None:
    """Check that data survives the copy to the GPU and back, from pageable and pinned memory."""
    if here.kind == "cpu":
        raise Skipped("the device is the CPU: nothing is copied to it")
    mebibytes = 64 if here.level == QUICK else 256
    words = mebibytes << 17
    plain = torch.arange(words, dtype=torch.int64)
    for name, source in (("pageable", plain), ("pinned", plain.pin_memory())):
        if name == "pinned" and not source.is_pinned():
            raise StageFailed("memory-not-pinned", "pin_memory() returned memory that is not pinned")
        there = torch.zeros(words, dtype=torch.int64, device=here.device)
        back = torch.zeros(words, dtype=torch.int64, pin_memory=name == "pinned")
        to_device = here.seconds(functools.partial(there.copy_, source, non_blocking=True))
        to_host = here.seconds(functools.partial(back.copy_, there, non_blocking=True))
        differing = differing_elements(back, plain)
        if differing:
            raise StageFailed(
                "copy-corrupts", "%d of %d words of %s memory came back from the GPU changed" % (differing, words, name)
            )
        here.measure("%s to device" % name, mebibytes * 2**20 / to_device / 1e9, "GB/s")
        here.measure("%s to host" % name, mebibytes * 2**20 / to_host / 1e9, "GB/s")
    _neighbours_take_it(here, plain)


def _neighbours_take_it(here: RankContext, plain: torch.Tensor) -> None:
    """From this rank's GPU to those of the other ranks (``--quick``: to the next one): peer to peer where the driver says that they can, else
    through the host."""
    own = plain.to(here.device)
    for number in neighbours(here.device.index, min(here.gpus, here.local_world), here.level == QUICK):
        try:
            there = own.to(torch.device("cuda", number))
            torch.cuda.synchronize(number)
        except RuntimeError as error:
            if "busy or unavailable" in str(error):  # exclusive mode: each rank may have its GPU, and no other
                return
            raise
        differing = differing_elements(there.to("cpu"), plain)
        if differing:
            direct = torch.cuda.can_device_access_peer(here.device.index, number)
            words = (differing, plain.numel(), here.device.index, number, "peer to peer" if direct else "through the host")
            seen = "%d of %d words arrive changed from GPU %d at GPU %d (%s)" % words
            if not direct:
                raise StageFailed("copy-corrupts", seen)
            if "GeForce" in torch.cuda.get_device_name(here.device):  # some drivers offer there what the boards do not carry
                raise StageFailed("geforce-p2p-broken", seen, "NCCL_P2P_DISABLE=1, or another driver")
            remedy = "the IOMMU off or in pass-through, ACS off on the bridges between them"
            raise StageFailed("p2p-blocked-by-iommu-acs", seen, remedy)


def neighbours(own: int, used: int, next_only: bool) -> List[int]:
    """Return the GPUs beside one's own among those that ranks use. Other GPUs may be another job's; each takes a context of some hundred MiB.

    >>> neighbours(2, 3, False), neighbours(2, 3, True), neighbours(0, 1, False), neighbours(0, 2, True)
    ([0, 1], [0], [], [1])
    """
    others = [(own + step) % used for step in range(1, used)]
    return others[:1] if next_only else others


def conv_is_right(here: RankContext) -> None:
    """Check that convolutions and their gradients (cuDNN, oneDNN) are right."""
    # All factors are -1, 0 or 1 and no sum has more than 144 terms, so every sum on the way is an integer of at most 8 bits:
    # exact even in bfloat16. Algorithms that transform first (Winograd, FFT: in cuDNN and oneDNN only for a stride of 1, in MIOpen
    # also for 2) round; Winograd for tiles of 4 x 4 in float16 by some hundredths. The smallest fault, one factor wrong by one,
    # changes a result by 1. So 1/2 divides.
    for dtype in _precisions(here):
        for stride in (2, 1):
            tolerance = 0.0 if stride == 2 and torch.version.hip is None else 2.0**-1
            convolution_is_right(here, dtype, stride, tolerance)
        transposed_convolution_is_right(here, dtype, 0.0 if torch.version.hip is None else 2.0**-1)
        for groups, dilation in ((4, 1), (8, 1), (1, 2)):
            convolution_of_parts_is_right(here, dtype, groups, dilation)
    pictures = torch.ones((2, 64, 32, 32) if here.kind == "cpu" else (64, 256, 56, 56), device=here.device)
    channels = pictures.shape[1]
    weight = torch.ones((channels, channels, 3, 3), device=here.device)
    seconds = here.seconds(lambda: functional.conv2d(pictures, weight, padding=1))
    here.measure("float32 convolution", 2 * pictures.numel() * channels * 9 / seconds / 1e12, "TFLOP/s")
