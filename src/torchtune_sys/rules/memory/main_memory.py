"""Main memory, swap, huge pages."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, Safety, Sysctl, SysfsWrite
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.memory import MemoryFacts
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.target import Exactly, OneOf
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent, absent_or_unrecorded, known, need
from torchtune_sys.model.visible_gpus import left_out
from torchtune_sys.rules.amounts import size
from torchtune_sys.rules.gates import gpu_host, no_gpu, ranks_here

_GIB = 1 << 30


@rule(
    id="swap-in-use",
    title="Much of the swap space is in use",
    severity=Severity.ADVICE,
    fix=(Advice(text="find what is swapped out (grep VmSwap /proc/*/status), free memory for it, then swapoff -a && swapon -a"),),
    params=(Param("min_gib", 2, "swapped-out memory from which on it is reported, GiB"),),
)
def swap_in_use(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Gigabytes of process memory are swapped out to disk. (Having swap, or a few idle pages in it, is fine.)

    Why it matters
    A DataLoader worker or rank that touches swapped-out pages waits for the disk, and in a collective all other ranks wait with
    it.

    When to leave it
    Only idle daemons are swapped out; zram (compressed RAM) is not counted.

    References
    Linux Documentation/admin-guide/sysctl/vm.rst, swappiness. imbue-ai/cluster-health and mej/nhc check that swap is off.
    """
    memory = need(s.memory)
    areas = need(memory.swaps)
    on_disk = [area for area in areas if area.kind != "zram"]
    if not on_disk:
        raise NotApplicable("no swap" if not areas else "swap is in compressed RAM only")
    used = sum(area.used_bytes for area in on_disk)
    limit = int(p["min_gib"]) * _GIB
    yield Evidence(
        subject="swap",
        seen=f"{size(used)} used of {size(sum(area.size_bytes for area in on_disk))} ({', '.join(area.path for area in on_disk)})",
        wanted=f"less than {size(limit)}",
        verdict=Verdict.FAIL if used >= limit else Verdict.PASS,
        source="/proc/swaps",
    )


@rule(
    id="memory-available-low",
    title="Little memory is available",
    severity=Severity.WARNING,
    cause="host-memory-oom",
    fix=(Advice(text="find out what uses the memory (ps aux --sort=-rss | head) before the job starts"),),
    params=(
        Param("min_share", 0.1, "share of memory that should be available"),
        Param("enough_gib", 16, "available memory that is enough regardless of the share, GiB"),
    ),
)
def memory_available_low(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """MemAvailable, which includes reclaimable page cache, with what ZFS would give back of its own, is below a tenth of the memory and 16 GiB; or so little is left of the cgroup's limit.

    Why it matters
    Ranks and workers are processes that grow; when memory runs out, the kernel kills the largest, usually a rank.

    When to leave it
    The job is already running, and this is the memory it uses.

    References
    Linux Documentation/filesystems/proc.rst, MemAvailable; OpenZFS module/zfs/arc.c (arcstats: size, c_min). AMD's Primus node check warns under 10 %.
    Linux Documentation/admin-guide/cgroup-v2.rst, memory.current and memory.stat; of a cgroup, inactive page cache counts as available
    """
    memory = need(s.memory)
    total, available = need(memory.total_bytes), need(memory.available_bytes)
    cache = memory.zfs_cache_bytes
    found = _room("memory", total, min(available + known(cache, 0), total), p, "/proc/meminfo")
    if found.verdict is Verdict.FAIL and isinstance(cache, Missing) and not absent_or_unrecorded(cache):
        found = unsure("memory", cache)
    yield found
    limit = memory.cgroup_limit_bytes
    if isinstance(limit, Missing):
        if not absent_or_unrecorded(limit):
            yield unsure("memory of the cgroup", limit)
        return
    if math.isinf(limit) or limit >= need(memory.total_bytes) or absent(memory.cgroup_used_bytes):
        return
    if isinstance(memory.cgroup_used_bytes, Missing):
        yield unsure("memory of the cgroup", memory.cgroup_used_bytes)
        return
    left = max(int(limit) - memory.cgroup_used_bytes, 0)
    yield _room("memory of the cgroup", int(limit), left, p, memory.cgroup_limit_source)


def _room(subject: str, total: int, available: int, p: Params, source: str) -> Evidence:
    low = available < total * float(p["min_share"]) and available < int(p["enough_gib"]) * _GIB
    return Evidence(
        subject=subject,
        seen=f"{size(available)} available of {size(total)}",
        wanted=f"{float(p['min_share']):.0%} available, or {p['enough_gib']} GiB",
        verdict=Verdict.FAIL if low else Verdict.PASS,
        source=source,
    )


def _gpus(s: Snapshot) -> tuple[Gpu, ...]:
    devices = need(s.gpu).devices
    on_bus = need(s.driver).nvidia_devices
    if isinstance(devices, Missing) and (absent(on_bus) or not need(on_bus)):
        raise NotApplicable("the memory of other GPUs than NVIDIA's is not read")
    others = left_out(s)
    used = tuple(gpu for gpu in need(devices) if gpu.index not in others and gpu.mig is not True)
    if not used:
        raise NotApplicable("the session uses no GPU as a whole: CUDA_VISIBLE_DEVICES leaves it out, or MIG divides it")
    return used


@rule(
    id="host-memory-below-gpu-memory",
    title="The host has less memory than its GPUs",
    severity=Severity.ADVICE,
    cause="host-memory-oom",
    fix=(
        Advice(
            text="load checkpoints with mmap=True or rank by rank, and use few workers; or add memory (raise the container's "
            "limit)"
        ),
    ),
    applies=gpu_host,
)
def host_memory_below_gpu_memory(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Main memory, or the cgroup's share of it, is smaller than the memory of all GPUs together. A GPU that CUDA_VISIBLE_DEVICES leaves out is not counted, nor one
    that is divided by MIG, of whose memory a process gets a part.

    Why it matters
    A checkpoint passes through host memory on its way to and from the GPUs, once per rank unless it is memory-mapped; optimizer
    offload and pinned buffers come on top. If it does not fit, the kernel kills the job.

    When to leave it
    The models are small for these GPUs, and the data set does not need to be cached.

    References
    torch.load documentation, mmap; DeepSpeed ZeRO-Offload documentation on host memory.
    """
    memory = need(s.memory)
    devices = _gpus(s)
    # GB10 and Jetson share the host's memory: there NVML offers no such reading.
    on_gpus = sum(need(amount) for gpu in devices if not _shared(amount := gpu.memory_total_bytes))
    if not on_gpus:
        raise NotApplicable("the GPUs have no memory of their own")
    total = min(float(need(memory.total_bytes)), need(memory.cgroup_limit_bytes))
    # The kernel and the firmware keep a few per cent of the modules' size, which MemTotal lacks.
    yield Evidence(
        subject="memory",
        seen=f"{size(total)} of main memory, {size(on_gpus)} on {len(devices)} GPU{'s' * (len(devices) > 1)}",
        wanted=f"{size(on_gpus)} or more",
        verdict=Verdict.FAIL if total < 0.9 * on_gpus else Verdict.PASS,
        source=memory.cgroup_limit_source or "/proc/meminfo",
    )


def _shared(amount: Fact[int]) -> bool:
    return isinstance(amount, Missing) and amount.why is Why.NOT_SUPPORTED


def _limited(s: Snapshot) -> tuple[MemoryFacts, float]:
    """Return the facts with the limit in bytes; NotApplicable where there is none."""
    memory = need(s.memory)
    limit = need(memory.cgroup_limit_bytes)
    if limit == float("inf"):
        raise NotApplicable("no cgroup limits the memory")
    return memory, limit


@rule(
    id="cgroup-memory-tight",
    title="The cgroup's memory limit leaves too little per rank",
    severity=Severity.WARNING,
    cause="host-memory-oom",
    fix=(
        Advice(
            text="raise the limit: docker run --memory, resources.limits.memory (Kubernetes), --mem (Slurm), MemoryMax= and MemoryHigh= (systemd)"
        ),
    ),
    params=(Param("min_gib_per_rank", 4, "memory per training process, GiB"),),
)
def cgroup_memory_tight(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The session's cgroup, or one above it, allows less memory than the ranks of this host will take.

    Why it matters
    A Python process with a CUDA build of torch takes 2 to 4 GiB before the first batch, and each worker adds to that. At the
    limit the kernel kills a process of the cgroup ("oom-kill:constraint=CONSTRAINT_MEMCG") while free(1) still shows plenty.

    When to leave it
    Fewer ranks will run than assumed (specify the number with --nproc-per-node).

    References
    Linux Documentation/admin-guide/cgroup-v2.rst, memory.max: the limits of all ancestors hold; memory.high: processes above it are throttled and
        their memory is taken back, none is killed.
    """
    memory, limit = _limited(s)
    if s.intent.ranks is None and no_gpu(s):
        raise NotApplicable("no GPU, and the number of ranks is not known (--nproc-per-node)")
    ranks = ranks_here(s)
    wanted = ranks * int(p["min_gib_per_rank"]) * _GIB
    yield Evidence(
        subject="memory limit",
        seen=f"{size(limit)} for {ranks} rank{'s' * (ranks > 1)}",
        wanted=f"{size(wanted)} or more",
        verdict=Verdict.FAIL if limit < wanted else Verdict.PASS,
        source=memory.cgroup_limit_source,
    )


@rule(
    id="cgroup-memory-far-below-host",
    title="The cgroup allows only a small part of the host's memory",
    severity=Severity.ADVICE,
    fix=(Advice(text="size caches and workers by the limit, not by what free(1) shows; raise the limit if the node is yours"),),
    params=(Param("min_share", 0.25, "share of the host's memory above which the limit is not reported"),),
)
def cgroup_memory_far_below_host(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A cgroup limits this session to less than a quarter of the memory that /proc/meminfo shows.

    Why it matters
    free(1), psutil and many libraries go by the host's memory and exceed the limit. The data set's page cache and the files in
    /dev/shm count towards the limit too, so an epoch may not stay cached.

    When to leave it
    The share is what this job was given on a shared node, and it is enough.

    References
    Linux Documentation/admin-guide/cgroup-v2.rst, memory.max and memory.stat (file, shmem).
    """
    memory, limit = _limited(s)
    total = need(memory.total_bytes)
    yield Evidence(
        subject="memory limit",
        seen=f"{size(limit)} of the host's {size(total)}",
        wanted=f"{float(p['min_share']):.0%} or more",
        verdict=Verdict.FAIL if limit < total * float(p["min_share"]) else Verdict.PASS,
        source=memory.cgroup_limit_source,
    )


@rule(
    id="thp-never",
    title="Transparent huge pages are switched off",
    severity=Severity.ADVICE,
    fix=(SysfsWrite(path="/sys/kernel/mm/transparent_hugepage/enabled", target=OneOf(("madvise", "always"))),),
)
def thp_never(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """With "never", even programs that request huge pages do not get them; nor do they below a program that has switched them off.

    Why it matters
    Large host buffers (data sets in memory, optimizer offload, CPU tensors) cause more TLB misses. PyTorch's CPU allocator can
    request huge pages (THP_MEM_ALLOC_ENABLE=1), which needs "madvise" or "always". No source quantifies the effect on GPU
    training.

    When to leave it
    Another service on this host needs it off (databases such as Redis and MongoDB recommend that), or measurements favour it.

    References
    Linux Documentation/admin-guide/mm/transhuge.rst; PyTorch, c10/core/impl/alloc_cpu.cpp; tuned 2.28, profiles hpc-compute (always) and
    network-latency (never).
    """
    memory = need(s.memory)
    if absent(memory.thp):
        raise NotApplicable("this kernel has no transparent huge pages")
    chosen = need(memory.thp)
    yield Evidence(
        subject="transparent_hugepage/enabled",
        seen=chosen,
        wanted="madvise or always",
        verdict=Verdict.FAIL if chosen == "never" else Verdict.PASS,
        source="/sys/kernel/mm/transparent_hugepage/enabled",
    )
    if chosen != "never":
        yield from _off_for_session(s)


def _off_for_session(s: Snapshot) -> Iterator[Evidence]:
    handed_down = s.session if isinstance(s.session, Missing) else s.session.handed_down
    pages = handed_down if isinstance(handed_down, Missing) else handed_down.huge_pages
    if isinstance(pages, Missing):
        if pages.why not in (Why.ABSENT, Why.NOT_SUPPORTED, Why.NOT_RECORDED):
            yield unsure("this session", pages, "1")
    elif not pages:
        yield Evidence(
            subject="this session",
            seen="THP_enabled 0: a program above it has switched them off for all that it starts (prctl PR_SET_THP_DISABLE)",
            wanted="1",
            source="/proc/self/status",
            fix=(Advice(text="start the job from another session, not below that program"),),
        )


@rule(
    id="hugepages-hoard-memory",
    title="Reserved huge pages hold memory that is not used",
    severity=Severity.WARNING,
    fix=(
        Sysctl(key="vm.nr_hugepages", target=Exactly("0"), safety=Safety.DISPLAY_ONLY),
        Advice(text="remove vm.nr_hugepages from sysctl.d and hugepages= from the kernel command line"),
    ),
    params=(Param("max_share", 0.25, "share of memory that idle reserved pages may take"),),
)
def hugepages_hoard_memory(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """More than a quarter of the memory is reserved for hugetlbfs but not in use there.

    Why it matters
    Reserved pages are available only to programs that request them from hugetlbfs; torch, NCCL and the page cache do not.

    When to leave it
    A virtual machine, DPDK or a database that is about to start needs them.

    References
    Linux Documentation/admin-guide/mm/hugetlbpage.rst: reserved pages cannot be used for other purposes.
    """
    memory = need(s.memory)
    if absent(memory.hugepages_reserved_bytes):
        raise NotApplicable("this kernel has no huge pages to reserve")
    reserved, total = need(memory.hugepages_reserved_bytes), need(memory.total_bytes)
    many = reserved > total * float(p["max_share"])
    idle = min(need(memory.hugepages_free_bytes), reserved) if many else 0
    yield Evidence(
        subject="huge pages",
        seen=f"{size(reserved)} of {size(total)} reserved" + (f", {size(idle)} of it idle" if many else ""),
        wanted=f"at most {float(p['max_share']):.0%} idle",
        verdict=Verdict.FAIL if idle > total * float(p["max_share"]) else Verdict.PASS,
        source="/proc/meminfo",
    )


@rule(
    id="oom-kills-since-boot",
    title="The kernel has killed processes since boot because memory ran out",
    severity=Severity.ADVICE,
    cause="host-memory-oom",
    superseded_by=("oom-kill-logged",),
    fix=(Advice(text="find out what was killed: journalctl -k -g 'Out of memory|oom-kill' (dmesg -T | grep -i oom)"),),
)
def oom_kills_since_boot(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The counter of OOM kills is not zero; it counts kills at cgroup limits too. In a container that of its own cgroup is judged.

    Why it matters
    A job that "just stopped", a worker "killed by signal: Killed", or a rank that disappeared may have been one of them.

    When to leave it
    You know about the kills, and they have nothing to do with training.

    References
    Linux Documentation/admin-guide/cgroup-v2.rst, oom_kill; the counter is in /proc/vmstat since 4.13.
    """
    memory = need(s.memory)
    container = need(need(s.system).container)
    if container and absent(memory.cgroup_oom_kills):
        raise NotApplicable(f"inside a container ({container}) whose own kills no cgroup counts")
    kills = need(memory.cgroup_oom_kills if container else memory.oom_kills)
    logged = _kills_logged(s)
    yield Evidence(
        subject="oom_kill",
        seen=f"{kills}, of which the log shows {logged}" if 0 < logged < kills else str(kills),
        wanted="0",
        verdict=Verdict.FAIL if kills else Verdict.PASS,
        source=memory.cgroup_oom_kills_source if container else "/proc/vmstat",
        about=("kills in the log",) if logged >= kills else (),
    )


def _kills_logged(s: Snapshot) -> int:
    if isinstance(s.kernel, Missing) or isinstance(s.kernel.events, Missing):
        return 0
    return sum(event.count for event in s.kernel.events if event.kind == "oom-kill")
