"""What this GPU does: products by precision, size and kind of data, a steady load with clocks and watts, copies. Prints JSON.

Run by scripts/gpu_run.py.
"""

from __future__ import annotations

import functools
import json
import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch

READINGS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "ecc.errors.uncorrected.volatile.total")
SHORT_S, STEADY_S, READING_S = 0.5, 20.0, 1.5


HAS_BFLOAT16 = torch.cuda.is_available() and torch.cuda.get_device_capability(0)[0] >= 8
LOW = (torch.bfloat16, torch.float16) if HAS_BFLOAT16 else (torch.float16,)


def readings() -> dict[str, str]:
    # torch's first GPU, which need not be nvidia-smi's: that one knows no CUDA_VISIBLE_DEVICES, and counts by the bus.
    own = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    words = ["nvidia-smi", f"--query-gpu={','.join(READINGS)}", "--format=csv,noheader,nounits", f"--id={own}"]
    try:
        told = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError, AttributeError):  # torch before 2.5 knows no UUIDs
        return {}
    return dict(zip(READINGS, told.strip().split(", "), strict=False))


def seconds_of(work: Callable[[], Any], at_least_s: float) -> float:
    work()
    torch.cuda.synchronize()
    began, calls = time.perf_counter(), 0
    while time.perf_counter() - began < at_least_s:
        for _ in range(10):
            work()
        torch.cuda.synchronize()
        calls += 10
    return (time.perf_counter() - began) / calls


def data(fill: str, size: int, dtype: torch.dtype) -> torch.Tensor:
    made = torch.ones(size, size, device="cuda") if fill == "ones" else torch.randn(size, size, device="cuda")
    return made.to(dtype)


def products() -> dict[str, float]:
    found = {}
    for dtype in (torch.float32, *LOW):
        for size in (2048, 4096, 8192):
            for fill in ("ones", "random"):
                left = data(fill, size, dtype)
                seconds = seconds_of(functools.partial(torch.matmul, left, left), SHORT_S)
                found[f"{str(dtype)[6:]} {size} {fill} (TFLOP/s)"] = round(2 * size**3 / seconds / 1e12, 2)
    if not HAS_BFLOAT16:  # nor TF32
        return found
    torch.backends.cuda.matmul.allow_tf32 = True
    left = data("random", 8192, torch.float32)
    found["tf32 8192 random (TFLOP/s)"] = round(
        2 * 8192**3 / seconds_of(functools.partial(torch.matmul, left, left), SHORT_S) / 1e12, 2
    )
    torch.backends.cuda.matmul.allow_tf32 = False
    return found


def steady() -> dict[str, Any]:
    """The same product for twenty seconds: does the rate sink, does a bit change?"""
    size, laps, changed, states = 8192, [], 0, []
    left = data("random", size, LOW[0])
    first = left @ left
    until, shown = time.monotonic() + STEADY_S, 0.0
    while time.monotonic() < until:
        began = time.perf_counter()
        for _ in range(20):
            last = left @ left
        torch.cuda.synchronize()
        took = time.perf_counter() - began
        laps.append(2 * size**3 * 20 / took / 1e12)
        changed += int((last != first).sum()) if bool((last != first).any()) else 0
        if time.monotonic() - shown > 4:
            for _ in range(min(900, int(READING_S / took * 20))):
                last = left @ left  # so much work that the GPU is not idle while it is asked
            shown = time.monotonic()
            states.append(readings())
            torch.cuda.synchronize()
    rates = {"first": laps[0], "least": min(laps), "last": laps[-1]}
    return {
        "TFLOP/s": {name: round(value, 1) for name, value in rates.items()},
        "elements that changed": changed,
        "under load": states,
    }


def copies() -> dict[str, float]:
    found = {}
    for mebibytes in (256, 1024, 4096):
        torch.cuda.empty_cache()
        if torch.cuda.mem_get_info(0)[0] < 3 * (mebibytes << 20):
            continue
        given = torch.ones(mebibytes << 18, device="cuda")
        taken = torch.empty_like(given)
        found[f"within the GPU, {mebibytes} MiB, read and written (GB/s)"] = round(
            2 * (mebibytes << 20) / seconds_of(functools.partial(taken.copy_, given), SHORT_S) / 1e9, 1
        )
    there = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    for name, host in (
        ("pageable", torch.empty(1 << 28, dtype=torch.uint8)),
        ("pinned", torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)),
    ):
        for way, work in (("to device", functools.partial(there.copy_, host)), ("to host", functools.partial(host.copy_, there))):
            found[f"{name} {way} (GB/s)"] = round((1 << 28) / seconds_of(work, SHORT_S) / 1e9, 1)
    return found


def main() -> None:
    print(json.dumps({"before": readings(), "products": products(), "steady": steady(), "copies": copies(), "after": readings()}))


if __name__ == "__main__":
    main()
