"""What the faults of the tenth list are made of: kernels of torch's that are replaced, C in front of the C library, a quota, a busy neighbour."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

from smoke.faults.bench import Bench
from smoke.faults.means import grouped, patched
from smoke.faults.row import Inject


class Planted(NamedTuple):
    name: str
    what: str
    ranks: str
    """Whom it is planted in: "0", "1", or "all" where no single rank is to be blamed."""
    causes: str
    """A pattern: causes, or words beside them, that a reader would call right."""
    inject: Inject
    proof: str
    """Python that ends with status 0 if the fault is in place, in a process that has the variables of the rank."""


_KERNELS = """
    import warnings
    warnings.filterwarnings("ignore", message="(?s).*previously registered.*")
    import torch
    held = torch.library.Library("aten", "IMPL")
    torch._planted = held
    def replace(name, make):
        kernel = torch.library.get_kernel("aten::" + name, "CPU")
        def new(keys, *args, **more):
            return make(lambda *x, **y: kernel.call_boxed(keys, *x, **y), *args, **more)
        held.impl(name, new, "CPU", with_keyset=True)
"""


def kernels(text: str, rank: int | None = None) -> Inject:
    return patched(textwrap.dedent(_KERNELS) + textwrap.dedent(text), rank=rank)


PRELUDE_C = """
    #include <dlfcn.h>
    #include <errno.h>
    #include <stdlib.h>
    #include <string.h>
    #include <stdio.h>
    #include <time.h>
    #include <unistd.h>
    #include <fcntl.h>
    static int is_rank(char which) { char *rank = getenv("RANK"); return rank && rank[0] == which && !rank[1]; }
"""


def quota_of_one(bench: Bench) -> None:
    """A cgroup with 35 % of a CPU that only rank 1 enters."""
    grouped("cpu", cpu_cfs_quota_us="35000")(bench)
    *before, _, _, script, _ = bench.before
    bench.before = before
    place = script.split()[3]
    patched(f"open({place!r}, 'w').write('0')", rank=1)(bench)


def idle_beside_a_neighbour(bench: Bench) -> None:
    """Rank 1 runs in the class SCHED_IDLE, and a program of somebody else keeps each CPU busy."""
    patched("import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))", rank=1)(bench)
    spin = "import os, sys, time\\nuntil = time.monotonic() + 200\\nwhile time.monotonic() < until and os.getppid() > 1: pass"
    bench.before += [
        "sh",
        "-c",
        f'for n in 1 2; do python3 -c "exec(\\"{spin}\\")" & done\n"$@"\nstatus=$?\nkill $(jobs -p)\nexit $status',
        "sh",
    ]
