"""What a process begins with: a sitecustomize, a plug-in or a library may have changed it before training does anything."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import re
import sys
import threading
import time
from typing import Any, List, Tuple

import torch

from torchtune_sys.smoke.worker.context import RankContext, StageFailed, torch_has_reached, with_threads
from torchtune_sys.smoke.worker.functions.randomness import draws_are_random
from torchtune_sys.smoke.worker.stages.import_torch import CPUS_BEFORE_TORCH, FRAMES_FOLLOWED

_DRAWS = 1 << 14
_SHARED_OUT = 1 << 18
"""More than torch leaves to one thread (at::internal::GRAIN_SIZE, 32768)."""
_SPREAD_OFF, _MEAN_OFF = 0.08, 0.06
"""Standard errors of 2**14 normal draws are 0.011 (of the variance) and 0.008 (of the mean): seven of them. Twice the spread is a
variance of 4."""
_SHARE_OFF = 0.03
_FARTHER = ((2.0, 0.0455, 0.011), (2.5, 0.0124, 0.006), (3.0, 0.0027, 0.0024))
"""Spreads of a normal distribution, the share of draws beyond them, and six standard errors of that share."""
_SELDOM_ENOUGH = 100
"""Python's own choice is 700 new objects, and 2,000 since 3.12."""
_SLOW_CALLBACK_S = 0.005
_THREADS_A_CPU = 4
_WITHOUT_AVX2 = {
    "ATEN_CPU_CAPABILITY": ("default",),
    "ONEDNN_MAX_CPU_ISA": ("sse41", "avx"),
    "DNNL_MAX_CPU_ISA": ("sse41", "avx"),
    "MKL_CBWR": ("compatible", "sse2", "sse3", "ssse3", "sse4_1", "sse4_2", "avx"),
    "MKL_ENABLE_INSTRUCTIONS": ("sse4_2", "avx"),
}
"""Values of variables of torch, oneDNN and MKL (oneMKL Developer Guide, Conditional Numerical Reproducibility; Instruction Set Specific Dispatching)."""
_USUAL_SEEDS = (*range(11), 42, 100, 123, 1234, 12345, 1337, 2021, 2022, 2023, 2024, 2025, 2026, 3407, 0xDEADBEEF)
_WHO = "look for it in sitecustomize, .pth files and plug-ins"


def nothing_was_set_before(here: RankContext) -> None:
    """torch's settings, its random numbers and the processor's floating point are as torch documents them."""
    for check in (
        _settings_are_defaults,
        _floating_point_is_ieee,
        _seeds_are_kept,
        _numbers_are_random,
        _choices_are_random,
        draws_are_random,
        _nobody_changes_results,
    ):
        check(here)


def _settings_are_defaults(here: RankContext) -> None:
    """Every model of this process would be trained with what somebody else chose."""
    if torch.get_default_dtype() != torch.float32:
        seen = "the default dtype is %s before anybody set it, not float32" % str(torch.get_default_dtype())[6:]
        raise StageFailed("default-dtype-changed", seen, "look for torch.set_default_dtype in sitecustomize and .pth files")
    found = []
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        found.append("autograd records nothing (set_grad_enabled, inference_mode)")
    if torch.empty(0).device.type != "cpu":
        found.append("the default device is %s" % torch.empty(0).device)
    if torch.is_anomaly_enabled():
        found.append("the detection of anomalies is on, which makes each step several times slower")
    if getattr(torch.autograd, "_profiler_enabled", bool)():
        found.append("torch's profiler runs, which keeps a record of each operation")
    if sys.gettrace() is not None or sys.getprofile() is not None:
        found.append("a tracer follows each line of Python (coverage, a debugger, a profiler: sys.settrace, sys.setprofile)")
    found += [*_what_follows_python(), *_what_keeps_instructions_back(here), *_what_autocast_takes(), *_who_seeded_python()]
    threads = torch.get_num_threads()
    if threads > _THREADS_A_CPU * CPUS_BEFORE_TORCH and str(threads) != os.environ.get("OMP_NUM_THREADS"):
        found.append(
            "torch computes with %d threads, of which %d can run at once (set_num_threads)" % (threads, CPUS_BEFORE_TORCH)
        )
    lowered = what_lowers_products(here)
    if lowered:
        found.append("products of float32 may be computed with fewer bits (%s)" % lowered)
    if found:
        raise StageFailed("torch-setting-changed", "before anybody set it: %s" % "; ".join(found), _WHO)


def _what_autocast_takes() -> List[str]:
    """Return the types that autocast takes where none is named, as far as somebody chose them."""
    if not torch_has_reached(2, 4):  # since then it is asked by device
        return []
    usual = {"cpu": torch.bfloat16, "cuda": torch.float16}
    return [
        "autocast takes %s on %s where no type is named (set_autocast_dtype)" % (str(torch.get_autocast_dtype(kind))[6:], kind)
        for kind, one in usual.items()
        if torch.get_autocast_dtype(kind) != one
    ]


def _who_seeded_python() -> List[str]:
    """Return whose draws are those of a seed that people choose: each rank and each run then draws, and names its files, alike."""
    state = random.getstate()
    return [
        "Python's random was seeded with %d: each rank and each run draws alike" % seed
        for seed in _USUAL_SEEDS
        if random.Random(seed).getstate() == state
    ]


_WRITES_OVER = re.compile(r"(MALLOC_PERTURB_|glibc\.malloc\.perturb)=0*[1-9]\d*")
"""mallopt(3), M_PERTURB: for finding what is read before it was written."""


def _what_follows_python() -> List[str]:
    """Return what looks at each allocation or call of Python beside a tracer, and was left on."""
    found = []
    if FRAMES_FOLLOWED:
        found.append("tracemalloc follows each allocation of Python, %d frames deep (PYTHONTRACEMALLOC)" % FRAMES_FOLLOWED)
    if sys.flags.dev_mode or "debug" in os.environ.get("PYTHONMALLOC", ""):
        found.append("Python checks each allocation (PYTHONDEVMODE, PYTHONMALLOC=debug), which makes it slower")
    perturbed = _WRITES_OVER.search(
        "MALLOC_PERTURB_=%s:%s" % (os.environ.get("MALLOC_PERTURB_", ""), os.environ.get("GLIBC_TUNABLES", ""))
    )
    if perturbed:
        found.append("the C library writes over each piece of memory that it gives and takes back (%s)" % perturbed.group())
    if 0 < gc.get_threshold()[0] < _SELDOM_ENOUGH:
        found.append(
            "Python collects cycles at each %d new objects (gc.set_threshold), which makes it slow" % gc.get_threshold()[0]
        )
    found += _slow_callbacks()
    if gc.get_debug():
        found.append(
            "Python's collector of cycles is being debugged (gc.set_debug: %d): it prints, or keeps what it finds"
            % gc.get_debug()
        )
    watched: Any = getattr(sys, "monitoring", None)  # Python 3.12
    tools = [watched.get_tool(number) for number in range(6)] if watched is not None else []
    found += [
        "%s watches Python (sys.monitoring)" % tool for number, tool in enumerate(tools) if tool and watched.get_events(number)
    ]
    return found


def _what_keeps_instructions_back(here: RankContext) -> List[str]:
    """Return the variables by which torch (aten/src/ATen/native/DispatchStub.cpp), oneDNN (its CPU dispatcher control) and MKL compute without the vector instructions that the CPU has."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        if here.kind == "cpu" and re.search(r"\bavx2\b", file.read(1 << 16)):
            return [
                "%s=%s keeps this CPU from its vector instructions" % (name, os.environ[name])
                for name, without in _WITHOUT_AVX2.items()
                if os.environ.get(name, "").lower().partition(",")[0] in without
                and (torch.backends.mkl.is_available() or not name.startswith("MKL_"))
            ]
    return []


def _slow_callbacks() -> List[str]:
    """Return what is called at each collection of cycles and takes its time: training collects now and then, and loaders more often. The quickest of some counts."""
    took = []
    for _ in range(3 if gc.callbacks else 0):
        began = time.monotonic()
        gc.collect(0)
        took.append(time.monotonic() - began)
    if min(took, default=0.0) <= _SLOW_CALLBACK_S:
        return []
    names = ["%s.%s" % (getattr(one, "__module__", ""), getattr(one, "__name__", "")) for one in gc.callbacks]
    return [
        "a collection of the youngest cycles takes %.0f ms with what is called by each (gc.callbacks: %s)"
        % (1e3 * min(took), ", ".join(names))
    ]


def what_lowers_products(here: RankContext) -> str:
    """Return what lets products of float32 be computed with fewer bits, "" where nothing does."""
    return _what_lowers_torchs() or (_what_lowers_onednn() if here.kind == "cpu" else "")


def _what_lowers_torchs() -> str:
    """NVIDIA's images allow TF32 by a variable, which torch reads as "high" (aten/src/ATen/Context.cpp): a choice that is seen. "" where nothing does."""
    try:
        told = str(torch.get_float32_matmul_precision())
    except RuntimeError:  # torch 2.9's newer names were used, with which the old function does not mix
        return _newer_name_that_lowers()
    allowed = told == "high" and os.environ.get("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "") not in ("", "0")
    return "" if allowed or told == "highest" else "set_float32_matmul_precision: %s" % told


def _what_lowers_onednn() -> str:
    """Return the variable by which oneDNN rounds float32 before it multiplies, where the processor has products of that kind (oneDNN, "Primitive Attributes: floating-point math mode")."""
    for name in ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"):
        told = os.environ.get(name, "")
        if told.lower() in ("bf16", "f16", "tf32", "any"):
            return "oneDNN's, by %s=%s" % (name, told)
    return ""


def _newer_name_that_lowers() -> str:
    for backend in ("cuda", "mkldnn"):
        told = getattr(getattr(torch.backends, backend).matmul, "fp32_precision", "")
        if told in ("tf32", "bf16"):
            return "torch.backends.%s.matmul.fp32_precision: %s" % (backend, told)
    return ""


def _floating_point_is_ieee(here: RankContext) -> None:
    """Check that floating point is as in IEEE 754: a library built with -ffast-math sets the processor's registers for the whole process as it is loaded (GCC's crtfastmath.o).
    A thread has registers of its own: those that Python starts, and those among which torch shares out what is large, are asked too."""
    found = _what_is_not_ieee()
    where = "before torch does anything"
    if not found:
        told: List[List[str]] = []
        thread = threading.Thread(target=lambda: told.append(_what_is_not_ieee()))
        thread.start()
        thread.join()
        found, where = told[0] if told else [], "in threads that Python starts"
    if not found:
        found, where = _what_is_not_ieee_shared_out(), "in the threads among which torch shares out its work"
    if found:
        remedy = "look for a library built with -ffast-math that each Python loads (LD_PRELOAD, sitecustomize, .pth files)"
        raise StageFailed("float-environment-changed", "%s, %s" % ("; ".join(found), where), remedy)


_FLUSHED, _NOT_NEAREST = "denormal numbers are taken for zero", "results are not rounded to the nearest number"


def _what_is_not_ieee() -> List[str]:
    found = []
    tiny, one = float("1e-310"), float("1")
    if tiny * one == 0.0 or float(torch.full((8,), 1e-40).mul(1.0).sum()) == 0.0:
        found.append(_FLUSHED)
    half, more = float(2.0**-53), float(3 * 2.0**-54)  # of the last place of 1: a half goes to even, three quarters up
    if one + half != one or -one - half != -one or one + more == one:
        found.append(_NOT_NEAREST)
    return found


def _what_is_not_ieee_shared_out() -> List[str]:
    """Return it of what several threads compute, each a part; of one that has always been there it is known."""
    with with_threads(max(2, torch.get_num_threads())):
        tiny = torch.full((_SHARED_OUT,), 1e-40).mul(1.0)
        ones, half = torch.ones(_SHARED_OUT, dtype=torch.float64), 2.0**-53
        off = (
            [_FLUSHED] * bool((tiny == 0).any()),
            [_NOT_NEAREST] * bool((ones.add(half) != 1).any() or (ones.neg().sub(half) != -1).any()),
        )
    return [*off[0], *off[1]]


def _seeds_are_kept(here: RankContext) -> None:
    for name, seed in (("torch.seed()", torch.seed), ("torch.Generator.seed()", torch.Generator(here.device).seed)):
        first, second = seed(), seed()
        if first == second:
            seen = "%s, which is to take a seed from the system, takes %d twice: all ranks and runs draw alike"
            raise StageFailed("random-numbers-wrong", seen % (name, first), _WHO)
    drawn: List[Tuple[List[float], List[float]]] = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        drawn.append((torch.rand(8).tolist(), torch.rand(8, device=here.device).tolist()))
    if drawn[0] != drawn[1] or any(one == other for one, other in zip(drawn[1], drawn[2])):
        how = "the same seed gives other numbers" if drawn[0] != drawn[1] else "another seed gives the same numbers"
        raise StageFailed("seed-ignored", "torch.manual_seed: %s" % how)


def _numbers_are_random(here: RankContext) -> None:
    """Weights, dropout and the order of samples are drawn: by the same seed each time, so that chance has no part in the verdict."""
    torch.manual_seed(9)
    for name, values, mean, variance in (
        ("randn", torch.randn(_DRAWS, device=here.device), 0.0, 1.0),
        ("rand", torch.rand(_DRAWS, device=here.device), 0.5, 1 / 12),
    ):
        drawn = values.cpu().double()
        off = abs(float(drawn.mean()) - mean), abs(float(drawn.var()) - variance)
        if not (off[0] <= _MEAN_OFF and off[1] <= _SPREAD_OFF * variance):
            figures = (name, _DRAWS, float(drawn.mean()), float(drawn.var()), mean, variance)
            seen = "torch.%s: %d draws have mean %.3g and variance %.3g, where %.3g and %.3g are right"
            raise StageFailed("random-numbers-wrong", seen % figures)
    drawn = torch.randn(_DRAWS, device=here.device).abs().cpu()
    for spreads, share, most in _FARTHER:
        far = float((drawn > spreads).double().mean())
        if not abs(far - share) <= most:
            seen = "torch.randn: %.2f %% of %d draws are farther than %g spreads from the mean, where %.2f %% are right"
            raise StageFailed("random-numbers-wrong", seen % (100 * far, _DRAWS, spreads, 100 * share))
    order = torch.randperm(_DRAWS, device=here.device).cpu()
    if sorted(order.tolist()) != [*range(_DRAWS)] or torch.equal(order, torch.arange(_DRAWS)):
        raise StageFailed("random-numbers-wrong", "torch.randperm gives no order of all numbers, or theirs")


def _choices_are_random(here: RankContext) -> None:
    """Check what data are shuffled, dropped and sampled by: each choice comes as often as it is due, by the same seed each time. A share of 2**14 draws has a standard
    deviation of at most 0.004."""
    torch.manual_seed(10)
    weights = torch.tensor([1.0, 5.0, 2.0, 0.0], device=here.device)
    eighths = torch.full((_DRAWS,), 0.125, device=here.device)
    for name, drawn, shares in (
        ("randint", torch.randint(0, 4, (_DRAWS,), device=here.device), (0.25, 0.25, 0.25, 0.25)),
        ("multinomial", torch.multinomial(weights, _DRAWS, replacement=True), (0.125, 0.625, 0.25, 0.0)),
        ("bernoulli", torch.bernoulli(eighths).long(), (0.875, 0.125, 0.0, 0.0)),
    ):
        found = [int((drawn == value).sum()) / _DRAWS for value in range(4)]
        if any(abs(one - other) > _SHARE_OFF * (other > 0) for one, other in zip(found, shares)):
            words = (name, " ".join("%.3f" % one for one in found), " ".join("%.3f" % one for one in shares))
            raise StageFailed(
                "random-numbers-wrong", "torch.%s draws the values from 0 on with shares of %s, not %s" % words, _WHO
            )
    order = torch.randperm(1000, device=here.device).tolist()
    if sorted(order) != [*range(1000)] or order == sorted(order):
        how = "leaves the order as it was" if order == sorted(order) else "loses or doubles numbers"
        raise StageFailed("random-numbers-wrong", "torch.randperm %s" % how, _WHO)


def _nobody_changes_results(here: RankContext) -> None:
    """Hooks on all modules, and on what autograd keeps, are how monitors, profilers and those who save memory come in between. One that only looks is
    none of our business; one that rounds changes each training."""
    values = (torch.arange(1, 257, device=here.device) / 3).requires_grad_()
    between = values * 1.0  # what is kept of a result may be treated otherwise than what is kept of a weight
    found = torch.nn.Identity()(between * between)
    found.sum().backward()  # of a given gradient torch imports sympy, a second of each rank (2.13, torch/autograd/__init__.py)
    changed = []
    if not torch.equal(found.detach(), between.detach() * between.detach()):
        changed.append("what a module returns")
    if not torch.equal(values.grad, 2 * between.detach()):
        changed.append("what goes back through it")
    if not changed:
        return
    kept = vars(torch.nn.modules.module)
    hooks = [
        hook for name, each in kept.items() if name.startswith("_global_") and isinstance(each, dict) for hook in each.values()
    ]
    who = [
        "%s of %s" % (getattr(hook, "__qualname__", "a hook"), getattr(hook, "__module__", ""))
        for hook in hooks
        if callable(hook)
    ]
    seen = "a module that does nothing changes %s" % " and ".join(changed)
    words = (
        "%s: a hook on all modules does (%s)" % (seen, ", ".join(who[:3]))
        if who
        else "%s: hooks of autograd or the module's do" % seen
    )
    raise StageFailed("torch-setting-changed", words, _WHO)
