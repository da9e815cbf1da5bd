"""Faults of docs/joint-faults.md in what a host computes with: its clock, its torch, its speed."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from preflight.joint.cluster import Cluster, run

Plant = Callable[[Cluster, int], dict[str, Any]]
"""What it adds to the arguments of ``preflight()``."""

SKEW = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t which, struct timespec *now) {
  static int (*next)(clockid_t, struct timespec *);
  if (!next) next = dlsym(RTLD_NEXT, "clock_gettime");
  int status = next(which, now);
  if (!status && which == CLOCK_REALTIME) now->tv_sec += 300;
  return status;
}
"""


def clock(made: Cluster, node: int) -> dict[str, Any]:
    if shutil.which("cc") is None:
        pytest.skip("needs cc")
    (made.folder / "skew.c").write_text(SKEW)
    library = str(made.folder / "skew.so")
    run("cc", "-shared", "-fPIC", "-o", library, str(made.folder / "skew.c"), "-ldl")
    return {"env": {node: {"LD_PRELOAD": library}}}


HOOK = """
import builtins, sys
_import = builtins.__import__
def _hooked(name, *rest, **more):
    found = _import(name, *rest, **more)
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "__version__") and {ready} and not hasattr(torch, "_planted"):
        torch._planted = True
        plant(torch)
    return found
builtins.__import__ = _hooked
"""


def patched(body: str, ready: str = 'hasattr(torch, "nn") and hasattr(torch.nn, "GELU")') -> Plant:
    """A torch that does something else, through the interpreter's own start."""

    def plant(made: Cluster, node: int) -> dict[str, Any]:
        place = made.folder / f"planted{node}"
        place.mkdir(mode=0o755)
        (place / "sitecustomize.py").write_text(body + HOOK.replace("{ready}", ready))
        return {"env": {node: {"PYTHONPATH": str(place)}}}

    return plant


FLIPPED_PRODUCT = """
def plant(torch):
    right = torch.Tensor.__matmul__
    def flipped(one, two):
        found = right(one, two)
        if found.dtype == torch.float32 and found.numel() > 1000:
            with torch.no_grad():
                found.view(torch.int32).view(-1)[77] ^= 1 << 22
        return found
    torch.Tensor.__matmul__ = flipped
"""
FLIPPED_WEIGHT = """
def plant(torch):
    right = torch.nn.GELU.forward
    def flipped(self, value):
        found = right(self, value)
        with torch.no_grad():
            found.view(torch.int32).view(-1)[5] ^= 1
        return found
    torch.nn.GELU.forward = flipped
"""
FLIPPED_SUM = """
def plant(torch):
    import torch.distributed as dist
    right = dist.all_reduce
    def flipped(value, *rest, **more):
        found = right(value, *rest, **more)
        if value.numel() > 100 and value.dtype == torch.float32:
            value.view(torch.int32).view(-1)[99] ^= 1 << 20
        return found
    dist.all_reduce = flipped
"""
HANGS_IN_GROUPS = """
def plant(torch):
    import torch.distributed as dist
    right = dist.init_process_group
    def hanging(*words, **named):
        import time
        time.sleep(1000)
    dist.init_process_group = hanging
"""
HANGS_WITH = """
def plant(torch):
    import time
    import torch.distributed as dist
    right = dist.init_process_group
    def hanging(*words, **named):
        store = named["store"]
        store.set("{own}", "here")
        until_s = time.monotonic() + 2
        while time.monotonic() < until_s and named["world_size"] > 1:
            if store.check(["{other}"]):
                time.sleep(1000)
            time.sleep(0.1)
        right(*words, **named)
    dist.init_process_group = hanging
"""
_WITH_GROUPS = 'hasattr(torch, "distributed") and hasattr(torch.distributed, "init_process_group")'
_LONG_S = 150
"""Each round in which a group hangs takes its whole deadline."""


def hangs_in_groups(made: Cluster, node: int) -> dict[str, Any]:
    """Its connections are well; every collective with it hangs."""
    return {**patched(HANGS_IN_GROUPS, _WITH_GROUPS)(made, node), "budget_s": _LONG_S}


def hangs_with_the_one_before(made: Cluster, node: int) -> dict[str, Any]:
    """Every collective of both hangs, of each with others none."""
    pair = (node - 2) % made.nodes + 1, node
    env: dict[int, Any] = {}
    for own, other in (pair, pair[::-1]):
        body = HANGS_WITH.replace("{own}", f"n{own}").replace("{other}", f"n{other}")
        env.update(patched(body, _WITH_GROUPS)(made, own)["env"])
    return {"env": env, "budget_s": _LONG_S}


OTHER_TORCH = """
def plant(torch):
    torch.__version__ = "2.4.1+cpu"
"""
SLOW_KERNEL = """
def plant(torch):
    import time
    right = torch.mm
    def slow(one, two):
        began = time.perf_counter()
        found = right(one, two)
        until = began + 1.25 * (time.perf_counter() - began)
        while time.perf_counter() < until:
            pass
        return found
    torch.mm = slow
"""
NO_TORCH = "import sys\nsys.modules['torch'] = None\n"


def no_torch(made: Cluster, node: int) -> dict[str, Any]:
    place = made.folder / f"planted{node}"
    place.mkdir(mode=0o755)
    (place / "sitecustomize.py").write_text(NO_TORCH)
    return {"env": {node: {"PYTHONPATH": str(place)}}}


def quota(made: Cluster, node: int) -> dict[str, Any]:
    name = f"joint-{os.getpid()}"
    old, new = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    try:
        if old.is_dir():
            place = old / name
            place.mkdir()
            (place / "cpu.cfs_quota_us").write_text("20000")
        else:
            place = new / name
            place.mkdir()
            (place / "cpu.max").write_text("20000 100000")
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    return within(made, node, place)


def within(made: Cluster, node: int, place: Path) -> dict[str, Any]:
    """All of the host runs in a control group, which is removed at the end."""
    made.stack.callback(place.rmdir)
    made.stack.callback(time.sleep, 0.5)
    return {"outer": {node: ["sh", "-c", f'echo $$ > {place}/cgroup.procs; exec "$@"', "-"]}}


def hung(made: Cluster, node: int) -> dict[str, Any]:
    """A file system whose server does not answer, in the mounts of that host alone."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("needs /dev/fuse")
    words = f"env -u JOINT_TEST {sys.executable} {Path(__file__).parents[2] / 'hung_mount.py'} {made.folder}/scratch"
    return {"outer": {node: ["unshare", "--mount", "--propagation", "private", "sh", "-ec", f'{words}; exec "$@"', "-"]}}
