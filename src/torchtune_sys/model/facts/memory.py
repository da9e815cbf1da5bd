"""Main memory, swap, huge pages and shared memory."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

_NOT_READ = Missing(Why.NOT_RECORDED, "cgroup", "not read")


class SwapDevice(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    kind: str
    """``partition``, ``file`` or ``zram``."""
    size_bytes: int
    used_bytes: int


class MemoryFacts(msgspec.Struct, frozen=True, kw_only=True):
    total_bytes: Fact[int]
    available_bytes: Fact[int]
    swap_total_bytes: Fact[int]
    swap_free_bytes: Fact[int]
    swaps: Fact[tuple[SwapDevice, ...]]
    cgroup_limit_bytes: Fact[float]
    """memory.max (v2) or memory.limit_in_bytes (v1), the minimum over all ancestors; ``inf`` if unlimited."""
    cgroup_limit_source: str
    thp: Fact[str]
    """The bracketed choice of transparent_hugepage/enabled: always, madvise or never."""
    thp_defrag: Fact[str]
    thp_shmem: Fact[str]
    hugepages_reserved_bytes: Fact[int]
    """Memory set aside for hugetlbfs, all page sizes where the kernel sums them up (``Hugetlb:``, since 4.16)."""
    hugepages_free_bytes: Fact[int]
    """The part of the reserved pages that nobody uses."""
    commit_limit_bytes: Fact[int]
    """CommitLimit: what may be promised at most under vm.overcommit_memory=2."""
    committed_bytes: Fact[int]
    shm_size_bytes: Fact[int]
    """Size of the file system on /dev/shm."""
    shm_free_bytes: Fact[int]
    shm_filesystem: Fact[str]
    """Type of the file system on /dev/shm (tmpfs); ABSENT if nothing is mounted there."""
    shm_inodes_free: Fact[int]
    """Files that may still be made there; NOT_SUPPORTED where the file system has no limit on them."""
    shm_writable: Fact[bool]
    """Whether this session may make files there."""
    oom_kills: Fact[int]
    """oom_kill of /proc/vmstat since boot."""
    zfs_cache_bytes: Fact[int] = Missing(Why.NOT_RECORDED, "arcstats", "not read")
    """What ZFS would give back of its cache (ARC), which MemAvailable does not count; ABSENT without ZFS."""
    cgroup_used_bytes: Fact[int] = _NOT_READ
    """What the cgroup with the tightest limit holds and cannot drop at once (its usage without inactive_file); ABSENT without a limit."""
    cgroup_oom_kills: Fact[int] = _NOT_READ
    """Processes of this session's cgroup, and of those below it, that the kernel killed for memory; ABSENT where no cgroup counts them."""
    cgroup_oom_kills_source: str = ""
    poisoned_bytes: Fact[int] = _NOT_READ
    """Memory that the kernel took out of use because it had errors (HardwareCorrupted); ABSENT where the kernel does not count it."""
    stalled: Fact[dict[str, Fact[float]]] = _NOT_READ
    """``memory`` and ``io`` → percent of the last five minutes in which all programs waited for it (/proc/pressure); ABSENT where the kernel does not tell."""
