"""The device by itself: there, right, and as fast as its kind."""

from __future__ import annotations

import glob

import torch

from torchtune_sys.smoke.worker.here import THOROUGH, Here, Wrong, same_bits, small_integers

_NVIDIA = "0x10de"


def device_works(here: Here) -> None:
    """The device that torch will train on takes memory and runs a kernel."""
    if here.kind == "cpu" and here.device_wish != "cpu":
        _no_gpu_was_overlooked()
    mebibytes = 64 if here.kind == "cpu" else 256
    held = torch.zeros(mebibytes << 18, dtype=torch.float32, device=here.device)
    held += 1.0
    total = held.sum(dtype=torch.float64).item()
    if total != float(mebibytes << 18):
        raise Wrong("device-computes-wrong", "the sum of %d ones is %r" % (mebibytes << 18, total))
    here.measure("allocated", mebibytes, "MiB")


def _no_gpu_was_overlooked() -> None:
    """torch falls back to the CPU without a word where CUDA cannot start."""
    present = _nvidia_gpus()
    if not present:
        return
    if torch.version.cuda is None:
        raise Wrong(
            "cpu-only-build", "%d NVIDIA GPU(s) are here, but torch %s is built without CUDA" % (present, torch.__version__)
        )
    try:
        torch.cuda.init()
        seen = "torch sees %d of %d NVIDIA GPU(s)" % (torch.cuda.device_count(), present)
    except Exception as error:
        seen = str(error).strip().splitlines()[0]
    raise Wrong("", "CUDA cannot be used: %s" % seen)


def _nvidia_gpus() -> int:
    """Functions of class display (VGA or 3D) by NVIDIA."""
    count = 0
    for path in glob.glob("/sys/bus/pci/devices/*/vendor"):
        try:
            with open(path) as vendor, open(path[: -len("vendor")] + "class") as kind:
                count += vendor.read().strip() == _NVIDIA and kind.read().startswith("0x03")
        except OSError:
            continue
    return count


def gemm_is_right(here: Here) -> None:
    """Matrix products have the right answer, to the last bit, in every precision that training uses."""
    size = 512 if here.kind == "cpu" else 2048
    left, right = small_integers((size, size), 1), small_integers((size, size), 2)
    wanted = (left.to(torch.float64) @ right.to(torch.float64)).to(torch.float32)
    for dtype in (torch.float32, torch.bfloat16) + ((torch.float16,) if here.kind == "cuda" else ()):
        product = left.to(here.device, dtype) @ right.to(here.device, dtype)
        differing = same_bits(product, wanted.to(dtype))
        if differing:
            raise Wrong("gemm-wrong", "%d of %d elements of a %s product are wrong" % (differing, size * size, _short(dtype)))
    _rates(here)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def _rates(here: Here) -> None:
    sizes = {"cpu": 512, "cuda": 8192 if here.level == THOROUGH else 4096}
    size = sizes[here.kind]
    for dtype in (torch.float32, torch.bfloat16) + ((torch.float16,) if here.kind == "cuda" else ()):
        left = torch.ones((size, size), device=here.device, dtype=dtype)
        seconds = here.seconds(lambda held=left: held @ held)  # type: ignore[misc]
        here.measure("%s GEMM" % _short(dtype), 2 * size**3 / seconds / 1e12, "TFLOP/s")
