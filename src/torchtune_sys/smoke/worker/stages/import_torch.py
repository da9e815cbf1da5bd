"""The first stage: importing torch, told like any other."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import time
import tracemalloc
from typing import Iterator

from torchtune_sys.smoke.worker.cgroups import NO_LIMIT, limits_of
from torchtune_sys.smoke.worker.channel import channel, last_lines

IMPORT_DEADLINE_S = 180.0
"""Cold imports from a network file system have been seen to take more than a minute (dstack, NFS home directories), and there are two."""
_NEVER_COLLECT = (1 << 31) - 1
_IMPORTED_BY_TRAINING = ("torch._dynamo", "torch.fx.experimental.symbolic_shapes")
"""By the first optimizer, and by the first backward() that is given a gradient (torch/_compile.py, torch/autograd/__init__.py of torch 2.13): with SymPy 1,400 modules."""


def _hiding() -> str:
    """Return what hides a module: a file of one's own (random.py, types.py) that lies in front of the standard library's breaks what imports it."""
    names, home = getattr(sys, "stdlib_module_names", ()), os.path.dirname(os.__file__)  # Python 3.10
    places = [getattr(module, "__file__", None) for name, module in [*sys.modules.items()] if name in names]
    strange = [place for place in places if place and not place.startswith(home)]
    return "; %s hides a module of the standard library" % strange[0] if strange else ""


def _why(error: BaseException) -> str:
    """Where the address space is used up, whatever breaks next says something else than that."""
    try:
        return "%s: %s%s%s%s" % (type(error).__name__, error, _first_of(error), _hiding(), no_address_space())
    except MemoryError:
        return "MemoryError"


def _first_of(error: BaseException) -> str:
    """Return the error from which this one was raised: torch says which package it could not load, and not why."""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    return " (%s: %s)" % (type(first).__name__, first) if first is not error else ""


def no_address_space(share: float = 0.9) -> str:
    """Return that so much of what a limit allows is used, "" else. Each is of what the kernel counts for it (getrlimit(2); since Linux 4.7 all private memory that may be written is data)."""
    for name, counted, flag, what in (("AS", 0, "v", "address space"), ("DATA", 5, "d", "data")):
        limit = limits_of(name)[0]
        with open("/proc/self/statm") as pages:
            used = int(pages.read().split()[counted]) * os.sysconf("SC_PAGE_SIZE")
        if limit != NO_LIMIT and used > share * limit:
            return "; MemoryError: %d of %d MiB of %s are used (ulimit -%s)" % (used >> 20, limit >> 20, what, flag)
    return ""


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Import without Python's collector of cycles, which would look through all that is imported again and again: of 4.5 CPU seconds that torch and its compiler take, one.
    Nor does it later on: nothing of that goes (gc.freeze). It is kept away by its threshold, as what torch loads by itself may switch it off (gc.disable), which is
    the user's training's, too: the stage "device" tells that."""
    before = gc.get_threshold()[0]
    gc.set_threshold(_NEVER_COLLECT)
    try:
        yield
    finally:
        gc.freeze()
        if gc.get_threshold()[0] == _NEVER_COLLECT:  # nobody has set another meanwhile
            gc.set_threshold(before)


def import_what_training_imports() -> float:
    """Import it now, and not in the middle of a stage; return the seconds. What fails is told by the stage that needs it."""
    began = time.monotonic()
    with without_collections():
        for name in _IMPORTED_BY_TRAINING:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    return time.monotonic() - began


CPUS_BEFORE_TORCH = len(os.sched_getaffinity(0))
"""An OpenMP runtime binds the main thread as it is loaded."""
FRAMES_FOLLOWED = tracemalloc.get_traceback_limit() if tracemalloc.is_tracing() else 0
"""Of each allocation: left on, it makes an import of torch take minutes. Here it is stopped, and told (the stage "device")."""
tracemalloc.stop()
_import_started = time.monotonic()
channel.tell("begin", stage="import", deadline_s=IMPORT_DEADLINE_S)
try:
    with without_collections():
        import torch

    if not hasattr(torch, "Tensor"):
        raise ImportError(
            "no PyTorch, but another module named torch: %s" % (getattr(torch, "__file__", "") or [*torch.__path__])
        )
except BaseException as error:
    _import_error, _no_torch = _why(error), isinstance(error, ModuleNotFoundError) and error.name == "torch"
    channel.tell(
        "end",
        stage="import",
        verdict="fail",
        cause="torch-not-installed" if _no_torch else "",
        seen="torch is not installed in %s (%s)" % (sys.executable, error) if _no_torch else _import_error,
        remedy="",
        trace=last_lines(error),
        seconds=time.monotonic() - _import_started,
    )
    if channel.driven:
        channel.tell("bye")
        os._exit(1)
    sys.exit("the smoke test cannot import torch in %s: %s" % (sys.executable, _import_error))
IMPORT_S = time.monotonic() - _import_started
assert torch is not None
