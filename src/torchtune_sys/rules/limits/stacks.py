"""The rule on the stacks of threads."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.rule import Evidence, Params, Severity, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import NotApplicable, need, need_if_there
from torchtune_sys.rules.amounts import size
from torchtune_sys.rules.limits.common import SOURCE, limit_of, verdict_on
from torchtune_sys.rules.openmp import STACKS, stack_bytes

_UNLIMITED, _STRICT = "1", "2"
"""vm.overcommit_memory."""


@rule(
    id="thread-stack-larger-than-memory",
    title="The stack of each thread is larger than the memory",
    severity=Severity.ERROR,
    measures_by=("memory", "sysctl"),
    fix=(Advice(text="unset the variable; or ulimit -s 8192 before the job, which is what most systems give"),),
)
def thread_stack_larger_than_memory(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The soft limit on the stack, or OMP_STACKSIZE, is larger than what the kernel lets one process map.

    Why it matters
    Each new thread gets a stack of the soft limit's size (2 MiB where it is unlimited), each thread of OpenMP one of OMP_STACKSIZE. The kernel
    refuses a mapping that is larger than memory and swap together, so no thread starts: "can't start new thread", "libgomp: Thread creation
    failed: Resource temporarily unavailable", and the process ends at its first computation.

    When to leave it
    One thread computes (OMP_NUM_THREADS=1), and the limit is that of OpenMP alone.

    References
    pthread_create(3), "default stack size"; libgomp manual, OMP_STACKSIZE (both tried with torch 2.13: 16 GiB start on a host of 23 GiB, 24 do not)
    Linux Documentation/mm/overcommit-accounting.rst; mm/util.c, __vm_enough_memory
    """
    limit = limit_of(s, "stack").soft
    if limit is not None:
        yield _judged(s, "stack", f"soft {size(limit)}", limit, SOURCE)
    env = need(need(s.session).env)
    asked = {name: found for name in STACKS if (found := stack_bytes(env.get(name, "")))}
    if limit is None and not asked:
        raise NotApplicable("the stack is not limited, so each thread gets 2 MiB")
    for name, found in asked.items():
        yield _judged(s, name, f"{name}={env[name]}", found, "environment")


def _judged(s: Snapshot, subject: str, seen: str, stack: int, source: str) -> Evidence:
    most = _most(s)
    wanted = f"less than {size(most)}, what may be mapped here"
    return Evidence(subject=subject, seen=seen, wanted=wanted, verdict=verdict_on(stack > most), source=source)


def _most(s: Snapshot) -> int:
    """Return the bytes that one mapping may have."""
    memory = need(s.memory)
    choice = need(s.sysctl).settings.get("vm.overcommit_memory")
    mode = "0" if choice is None else need_if_there(choice.running, "this kernel shows no vm.overcommit_memory")
    if mode == _UNLIMITED:
        raise NotApplicable("vm.overcommit_memory=1: the kernel promises any amount")
    if mode == _STRICT:
        return need(memory.commit_limit_bytes)
    return need(memory.total_bytes) + need(memory.swap_total_bytes)
