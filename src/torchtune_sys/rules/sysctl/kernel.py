"""Kernel settings: the running value, and which file set it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from torchtune_sys.model.actions import Advice, Safety, Sysctl
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.memory import MemoryFacts
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.target import AtLeast, AtMost, Exactly, OneOf
from torchtune_sys.model.values import Missing, NotApplicable, Unknown, Why, known, need
from torchtune_sys.rules.amounts import size
from torchtune_sys.rules.gates import not_in_container
from torchtune_sys.rules.limits.tasks import tasks_needed
from torchtune_sys.rules.sysctl.policy import (
    MAP_COUNT,
    TASKS,
    judged,
    map_count_target,
    numa_balancing_target,
    origin,
    overcommit_target,
    setting,
    shmmax_target,
    shown,
    swap_on_disk,
    wanted,
    zone_reclaim_target,
)

_GIB = 1 << 30
_MAX_SWAPPINESS = Param("max", 10, "highest vm.swappiness")


@rule(
    id="swappiness-high",
    title="The kernel tends to swap processes out rather than drop page cache",
    severity=Severity.ADVICE,
    fix=(Sysctl(key="vm.swappiness", target=AtMost(int(_MAX_SWAPPINESS.default))),),
    params=(_MAX_SWAPPINESS,),
    applies=swap_on_disk,
)
def swappiness_high(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """With swap on disk and a high vm.swappiness, streaming a data set through the page cache pushes process memory out.

    Why it matters
    Reading a data set fills the page cache, and the kernel may then swap out memory of a DataLoader worker or rank. No published
    measurement of GPU training shows the effect, so this is only advice.

    When to leave it
    The host is used interactively, or swap is fast and unused. (0 does not mean "never swap", and 1 is a recommendation for
    databases.)

    References
    Linux Documentation/admin-guide/sysctl/vm.rst, swappiness (60 by default, 0 to 200 since 5.8).
    tuned 2.28, profiles throughput-performance, latency-performance and accelerator-performance: 10.
    """
    yield judged(s, "vm.swappiness", AtMost(int(p["max"])))


@rule(
    id="zone-reclaim-enabled",
    title="zone_reclaim_mode drops page cache to keep allocations on their NUMA node",
    severity=Severity.ADVICE,
    fix=(Sysctl(key="vm.zone_reclaim_mode", target=Exactly("0")),),
)
def zone_reclaim_enabled(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """vm.zone_reclaim_mode is on: a full node drops cached files instead of using another node's memory.

    Why it matters
    The data set is not cached although other nodes have memory to spare, and allocations stall during reclaim.

    When to leave it
    Each rank is bound to a node, fits in its memory, and reads no data through the page cache: tuned's hpc-compute and Azure's
    HPC images assume that and set 1. Where such a profile is active, and on Azure, apply makes the change only with --unsafe.

    References
    Linux Documentation/admin-guide/sysctl/vm.rst, zone_reclaim_mode: to be left off for workloads that profit from cached files.
    Azure/azhpc-images, hpc-tuning.sh (1); tuned, profiles/hpc-compute/tuned.conf (1).
    """
    target = zone_reclaim_target(s, p)
    chosen = _zone_reclaim_chosen(s)
    yield judged(s, "vm.zone_reclaim_mode", target, Safety.UNSAFE if chosen else Safety.SAFE)


def _zone_reclaim_chosen(s: Snapshot) -> bool:
    """Whether a tuned profile or Azure's image turned it on for ranks that are bound to nodes: undoing that is a decision."""
    found = setting(s, "vm.zone_reclaim_mode")
    if not isinstance(found.tuned, Missing) and found.tuned.value.strip() not in ("", "0"):
        return True
    return not isinstance(s.system, Missing) and known(s.system.hypervisor, "") == "microsoft"


@rule(
    id="numa-balancing-enabled",
    title="Automatic NUMA balancing is on",
    severity=Severity.ADVICE,
    fix=(
        Advice(text="bind ranks first: torchrun --numa-binding=node (torch 2.9 and later), or numactl"),
        Sysctl(key="kernel.numa_balancing", target=Exactly("0"), safety=Safety.UNSAFE),
    ),
)
def numa_balancing_enabled(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The kernel periodically unmaps pages of the ranks to see which CPUs access them, and migrates them between nodes.

    Why it matters
    The page faults and migrations cost time, at different moments on each rank. If ranks are bound to nodes, there is nothing to
    gain. Where the GPU's memory is a node (Grace Hopper), unmapping takes the GPU's own translations with it.

    When to leave it
    Ranks are not bound: then balancing may help more than it costs. Measure with and without it.

    References
    Linux Documentation/admin-guide/sysctl/kernel.rst, numa_balancing; tuned 2.28, hpc-compute and network-latency; RCCL and AMD's tuning
        guides ask for 0; NVIDIA Grace performance tuning guide: boot arguments with numa_balancing=disable.
    """
    target = numa_balancing_target(s, p)
    found = setting(s, "kernel.numa_balancing")
    running = need(found.running)
    number = natural(running)
    on = number is None or bool(number & 1)  # 2 alone is memory tiering, which moves cold pages only
    verdict = Verdict.FAIL if on else Verdict.PASS
    yield Evidence(
        subject=found.key,
        seen=shown(s, found, running),
        wanted=wanted(s, found.key, target),
        verdict=verdict,
        source=origin(s, found),
        fix=(Sysctl(key=found.key, target=Exactly("0")),) if on and _bound(s) else (),
    )


def _bound(s: Snapshot) -> bool:
    """Whether this session, and so what it starts, is kept to the CPUs of one node: then nothing is moved to where it runs."""
    affinity = None if isinstance(s.cpu, Missing) else known(s.cpu.affinity, None)
    nodes = () if isinstance(s.numa, Missing) else known(s.numa.nodes, ())
    return affinity is not None and len(affinity) > 0 and any(affinity <= known(node.cpus, affinity - affinity) for node in nodes)


@rule(
    id="overcommit-strict",
    title="Memory overcommit is forbidden",
    severity=Severity.WARNING,
    cause="host-memory-oom",
    fix=(
        Sysctl(key="vm.overcommit_memory", target=OneOf(("0", "1")), safety=Safety.UNSAFE),
        Advice(
            text="set 1 on a Kubernetes node: kubelet sets it, and ends under protectKernelDefaults where it finds anything else"
        ),
    ),
)
def overcommit_strict(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """vm.overcommit_memory=2: the kernel commits at most swap plus a share of RAM, and each fork counts in full.

    Why it matters
    Each DataLoader worker is a fork of a rank, whose private memory is counted again although it stays shared. fork fails with
    ENOMEM ("Cannot allocate memory") while most of the memory is free. Large mappings of CUDA libraries count as well.

    When to leave it
    The site forbids overcommit and vm.overcommit_ratio leaves enough for all forks (see CommitLimit in /proc/meminfo).

    References
    Linux Documentation/mm/overcommit-accounting.rst; proc_sys_vm(5).
    kubernetes pkg/kubelet/cm/container_manager_linux.go (setupKernelTunables)
    """
    found = judged(s, "vm.overcommit_memory", overcommit_target(s, p), Safety.UNSAFE)
    memory = s.memory
    if found.verdict is Verdict.FAIL and not isinstance(memory, Missing) and not isinstance(memory.commit_limit_bytes, Missing):
        taken = "" if isinstance(memory.committed_bytes, Missing) else f", {memory.committed_bytes / _GIB:.0f} of them taken"
        limit = f"{found.seen} (CommitLimit {memory.commit_limit_bytes / _GIB:.0f} GiB{taken})"
        found = msgspec.structs.replace(found, seen=limit)
    yield found


@rule(
    id="max-map-count-low",
    title="The limit on memory mappings per process is low",
    severity=Severity.WARNING,
    fix=(Sysctl(key="vm.max_map_count", target=AtLeast(MAP_COUNT)),),
)
def max_map_count_low(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """vm.max_map_count is below the kernel's default of 65530.

    Why it matters
    Memory-mapped data set shards, shared tensors and CUDA's mappings all count; beyond the limit, mmap and malloc fail with
    ENOMEM.

    When to leave it
    No useful case is known. (No source about training recommends more than the default either.)

    References
    Linux Documentation/admin-guide/sysctl/vm.rst, max_map_count.
    """
    yield judged(s, "vm.max_map_count", map_count_target(s, p))


@rule(
    id="dirty-limit-huge",
    title="Hundreds of gigabytes of dirty pages may wait to be written",
    severity=Severity.ADVICE,
    fix=(
        Sysctl(key="vm.dirty_bytes", target=Exactly(str(32 * _GIB))),
        Sysctl(key="vm.dirty_background_bytes", target=Exactly(str(4 * _GIB))),
        Advice(text="set both *_bytes values (the matching *_ratio then reads 0)"),
    ),
    applies=not_in_container,  # its own memory limit bounds what it may leave unwritten
    params=(Param("max_gib", 128, "dirty data that may accumulate before writers are blocked, GiB"),),
)
def dirty_limit_huge(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """On a host with a lot of memory, a percentage limit lets more unwritten data accumulate than its disks can write in minutes.

    Why it matters
    A checkpoint appears to be saved at once; then fsync, sync or the next checkpoint waits until everything is on disk, and a
    crash in between loses it.

    When to leave it
    The storage writes tens of GB/s, or the memory is meant to absorb bursts (tuned's throughput profiles raise the limit for
    that).

    References
    Linux Documentation/admin-guide/sysctl/vm.rst, dirty_ratio and dirty_bytes: only one of the two may be set, the other reads 0.
    """
    ratio, count = setting(s, "vm.dirty_ratio"), setting(s, "vm.dirty_bytes")
    total = need(need(s.memory).total_bytes)
    as_bytes, as_ratio = _number(need(count.running), count.key), _number(need(ratio.running), ratio.key)
    allowed = as_bytes or total * as_ratio // 100
    deciding = count if as_bytes else ratio
    yield Evidence(
        subject=deciding.key,
        seen=f"{shown(s, deciding, need(deciding.running))}: up to {allowed / _GIB:.0f} GiB of {total / _GIB:.0f} GiB",
        wanted=f"{p['max_gib']} GiB or less",
        verdict=Verdict.FAIL if allowed > int(p["max_gib"]) * _GIB else Verdict.PASS,
        source=origin(s, deciding),
    )


def _number(value: str, key: str) -> int:
    number = natural(value, 24)
    if number is None:
        raise Unknown(Missing(Why.UNPARSED, key, f"not a whole number: {value[:40]!r}"))
    return number


_THREAD_SIZE_BYTES = 16 << 10
"""Kernel stack of a thread on x86-64 and aarch64."""


_FILES = 65536
"""As many as a rank with workers may open by the limits that this tool asks for."""
_FILE_BYTES = 10 << 10
"""Memory for which the kernel grants one open file by its own default."""


@rule(
    id="file-table-small",
    title="The system-wide limit on open files is low",
    severity=Severity.WARNING,
    fix=(Sysctl(key="fs.file-max", target=AtLeast(1 << 20)),),
)
def file_table_small(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """fs.file-max, the number of files, sockets, pipes and devices that all processes may have open together, is below 65536.

    Why it matters
    When it is reached open, socket and accept fail with ENFILE ("Too many open files in system") for everybody but root: DataLoader workers, NCCL and the rendezvous end at random.

    When to leave it
    With less than 640 MiB of memory, where the kernel's own default is lower, and is what is asked for.

    References
    Linux fs/file_table.c, files_maxfiles_init; Documentation/admin-guide/sysctl/fs.rst, file-max; systemd sets it to the greatest number.
    """
    memory = None if isinstance(s.memory, Missing) else s.memory.total_bytes
    floor = min(_FILES, memory // _FILE_BYTES * 9 // 10) if isinstance(memory, int) else _FILES
    yield judged(s, "fs.file-max", AtLeast(floor))


@rule(
    id="task-table-small",
    title="The kernel's limit on tasks is low",
    severity=Severity.WARNING,
    fix=(Sysctl(key="kernel.pid_max", target=AtLeast(4194304)), Sysctl(key="kernel.threads-max", target=AtLeast(131072))),
)
def task_table_small(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """kernel.pid_max or kernel.threads-max is below 32768, or below twice what this host's ranks, threads and workers need.

    Why it matters
    Every thread of every process needs an ID. When none are left, fork and pthread_create fail with EAGAIN for all users.

    When to leave it
    It is a 32-bit system. (With less than 4 GiB of memory the kernel's default threads-max is lower, and that default is
    accepted.)

    References
    Linux kernel/fork.c, set_max_threads; Documentation/admin-guide/sysctl/kernel.rst, pid_max and threads-max; systemd sets pid_max to 4194304 on 64-bit hosts.
    """
    wanted = 2 * tasks_needed(s)
    memory = None if isinstance(s.memory, Missing) else s.memory.total_bytes
    floors = {"kernel.pid_max": TASKS, "kernel.threads-max": TASKS}
    if isinstance(memory, int):
        # The kernel's default lets the stacks of all threads take an eighth of memory; a tenth below it is somebody's doing.
        floors["kernel.threads-max"] = min(TASKS, memory // (8 * _THREAD_SIZE_BYTES) * 9 // 10)
    for key, floor in floors.items():
        try:
            found = judged(s, key, AtLeast(max(floor, wanted)))
            if found.verdict is Verdict.FAIL and key == "kernel.threads-max" and wanted <= floor and _not_told(s.memory):
                found = unsure(
                    key, Missing(Why.NOT_RECORDED, "report", "how much memory there is, which decides the kernel's own number")
                )
            yield found
        except NotApplicable:
            continue


def _not_told(memory: Fact[MemoryFacts]) -> bool:
    """Whether a report tells a setting and not the memory."""
    return isinstance(memory, Missing) and memory.why is Why.NOT_RECORDED


@rule(
    id="shmmax-lowered",
    title="System V shared memory segments are limited to a small size",
    severity=Severity.ADVICE,
    fix=(Advice(text="remove the kernel.shmmax and kernel.shmall lines: the defaults have been unlimited since Linux 3.16"),),
)
def shmmax_lowered(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """kernel.shmmax, unlimited by default, is set to a small value, usually by an old tuning file.

    Why it matters
    PyTorch and NCCL use POSIX shared memory in /dev/shm and are not affected, but MPI libraries and databases on the host may
    fail.

    When to leave it
    Nothing here uses System V shared memory.

    References
    Linux Documentation/admin-guide/sysctl/kernel.rst, shmmax; ipc/shm.c since 3.16.
    """
    yield judged(s, "kernel.shmmax", shmmax_target(s, p))


@rule(
    id="free-memory-reserve-huge",
    title="The kernel keeps a large share of memory free",
    severity=Severity.WARNING,
    params=(Param("share", 0.1, "largest part of memory that vm.min_free_kbytes may keep free"),),
    fix=(
        Advice(
            text="remove the vm.min_free_kbytes line from sysctl.d and restart: the kernel then chooses by itself (up to 256 MiB, more with THP)"
        ),
    ),
)
def free_memory_reserve_huge(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """vm.min_free_kbytes reserves a large share of the machine's memory.

    Why it matters
    Programs cannot use that memory: allocations stall and processes are OOM-killed although much memory is shown as free.

    When to leave it
    The vendor of a network or storage driver recommends it, for atomic allocations.

    References
    Linux Documentation/admin-guide/sysctl/vm.rst, min_free_kbytes ("setting this too high will OOM your machine instantly"); mm/page_alloc.c (init_per_zone_wmark_min: at most 262144 KiB, before 5.8 65536)
    """
    found = setting(s, "vm.min_free_kbytes")
    kept = _number(need(found.running), found.key) * 1024
    total = need(need(s.memory).total_bytes)
    share = float(p["share"])
    yield Evidence(
        subject=found.key,
        seen=f"{size(kept)} of {size(total)}",
        wanted=f"<= {share:.0%} of memory",
        verdict=Verdict.FAIL if kept > share * total else Verdict.PASS,
        source=origin(s, found),
    )
