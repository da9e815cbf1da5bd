"""Main memory, swap, huge pages, /dev/shm, and the cgroup's limit."""

from __future__ import annotations

import math
import re

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host, Space, interpreted
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.memory import MemoryFacts, SwapDevice
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why, absent_or_unrecorded, fact, need
from torchtune_sys.probes import cgroup

_MEMINFO = "/proc/meminfo"
_MOUNTINFO = "/proc/self/mountinfo"
_SHM = "/dev/shm"
_HUGEPAGES = "/sys/kernel/mm/hugepages"
_THP = "/sys/kernel/mm/transparent_hugepage"


def probe(host: Host, intent: Workload) -> MemoryFacts:
    meminfo = _meminfo(host)
    limit, limit_source = _cgroup_limit(host)
    kills, kills_source = _cgroup_oom_kills(host)
    filesystem, mounted_size, read_only = _shm_mount(host)
    space = host.space(_SHM) if not isinstance(filesystem, Missing) or filesystem.why is Why.NOT_RECORDED else filesystem
    return MemoryFacts(
        total_bytes=_field(meminfo, "MemTotal"),
        available_bytes=_available(meminfo),
        swap_total_bytes=_field(meminfo, "SwapTotal"),
        swap_free_bytes=_field(meminfo, "SwapFree"),
        swaps=_swaps(host),
        cgroup_limit_bytes=limit,
        cgroup_limit_source=limit_source,
        thp=choice(host, f"{_THP}/enabled"),
        thp_defrag=choice(host, f"{_THP}/defrag"),
        thp_shmem=choice(host, f"{_THP}/shmem_enabled"),
        hugepages_reserved_bytes=_hugepages(meminfo, "Hugetlb", "HugePages_Total"),
        hugepages_free_bytes=_hugepages_free(host, meminfo),
        commit_limit_bytes=_field(meminfo, "CommitLimit"),
        committed_bytes=_field(meminfo, "Committed_AS"),
        shm_size_bytes=_shm_size(space.size if not isinstance(space, Missing) else space, mounted_size),
        shm_free_bytes=space.free if not isinstance(space, Missing) else space,
        shm_filesystem=filesystem,
        shm_inodes_free=_inodes_free(space),
        shm_writable=_shm_writable(host, filesystem, read_only),
        oom_kills=_oom_kills(host),
        zfs_cache_bytes=_zfs_cache(host),
        cgroup_used_bytes=_cgroup_used(host, limit_source),
        cgroup_oom_kills=kills,
        cgroup_oom_kills_source=kills_source,
        poisoned_bytes=_poisoned(meminfo),
        stalled={what: _stalled(host, what) for what in ("memory", "io")},
    )


def parse_meminfo(text: str) -> dict[str, int]:
    r"""Return the fields of /proc/meminfo; what is given in kB becomes bytes, counts stay counts.

    >>> parse_meminfo("MemTotal:       24684092 kB\nHugePages_Total:       3\n")
    {'MemTotal': 25276510208, 'HugePages_Total': 3}
    """
    found = {}
    for line in text.split("\n"):
        name, colon, rest = line.partition(":")
        words = rest.split()
        if colon and words and (number := natural(words[0])) is not None:
            found[name] = number * (1024 if words[1:] == ["kB"] else 1)
    return found


def parse_swaps(text: str) -> tuple[SwapDevice, ...]:
    r"""Return the areas of /proc/swaps. Raises ValueError on a line that is none.

    >>> parse_swaps("Filename\tType\tSize\tUsed\tPriority\n/dev/zram0   partition\t8388604\t\t256\t\t100\n")
    (SwapDevice(path='/dev/zram0', kind='zram', size_bytes=8589930496, used_bytes=262144),)
    """
    found = []
    for line in text.split("\n")[1:]:
        words = line.split()
        if not words:
            continue
        if len(words) < 4:
            raise ValueError(f"not a swap area: {line[:80]!r}")
        path = re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape[1], 8) & 0xFF), words[0])
        kind = "zram" if path.startswith("/dev/zram") else words[1]
        found.append(SwapDevice(path=path, kind=kind, size_bytes=int(words[2]) * 1024, used_bytes=int(words[3]) * 1024))
    return tuple(found)


def parse_choice(text: str) -> str:
    """Return the bracketed word of a sysfs choice file; a file with a single word is that word. Raises ValueError otherwise.

    >>> parse_choice("always [madvise] never")
    'madvise'
    """
    chosen = [word[1:-1] for word in text.split() if word.startswith("[") and word.endswith("]")]
    words = chosen or text.split()
    if len(words) != 1 or not words[0]:
        raise ValueError(f"no choice is marked: {text[:60]!r}")
    return words[0]


def parse_size_option(options: str) -> int | None:
    """Return ``size=`` of a tmpfs mount in bytes, as the kernel prints it; None if it is not printed (half of the RAM).

    >>> parse_size_option("rw,size=65536k,inode64"), parse_size_option("rw")
    (67108864, None)
    """
    found = re.search(r"(?:^|,)size=(\d{1,18})([kmg]?)(?:,|$)", options)
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]] if found else None


def choice(host: Host, path: str) -> Fact[str]:
    return interpreted(host.word(path), parse_choice, path)


@fact
def _meminfo(host: Host) -> Fact[dict[str, int]]:
    return parse_meminfo(need(host.text(_MEMINFO)))


def _field(meminfo: Fact[dict[str, int]], name: str) -> Fact[int]:
    if isinstance(meminfo, Missing):
        return meminfo
    return meminfo[name] if name in meminfo else Missing(Why.UNPARSED, _MEMINFO, f"no line {name}")


def _poisoned(meminfo: Fact[dict[str, int]]) -> Fact[int]:
    if not isinstance(meminfo, Missing) and "HardwareCorrupted" not in meminfo:
        return Missing(Why.ABSENT, _MEMINFO, "a kernel without CONFIG_MEMORY_FAILURE, or a container's own table")
    return _field(meminfo, "HardwareCorrupted")


def _stalled(host: Host, what: str) -> Fact[float]:
    path = f"/proc/pressure/{what}"
    return interpreted(host.text(path), parse_pressure, path)


def parse_pressure(text: str) -> float:
    r"""Return avg300 of the line ``full`` (Documentation/accounting/psi.rst). Raises ValueError without it.

    >>> parse_pressure("some avg10=0.00 avg60=0.00 avg300=1.20 total=9\nfull avg10=0.00 avg60=0.00 avg300=0.40 total=3\n")
    0.4
    """
    full = next((line for line in text.splitlines() if line.startswith("full ")), "")
    return float(dict(word.partition("=")[::2] for word in full.split()).get("avg300", "no line full"))


def _available(meminfo: Fact[dict[str, int]]) -> Fact[int]:
    if not isinstance(meminfo, Missing) and "MemTotal" in meminfo and "MemAvailable" not in meminfo:
        return Missing(Why.NOT_SUPPORTED, _MEMINFO, "Linux tells MemAvailable since 3.14")
    return _field(meminfo, "MemAvailable")


_ARC = "/proc/spl/kstat/zfs/arcstats"


@fact
def _zfs_cache(host: Host) -> Fact[int]:
    text = need(host.text(_ARC))
    found = parse_arcstats(text)
    return Missing(Why.UNPARSED, _ARC, "no lines size and c_min") if found is None else found


def parse_arcstats(text: str) -> int | None:
    r"""Return the bytes of ZFS's cache above the least that it keeps.

    >>> parse_arcstats("13 1 0x01 147 39984 9 9\nname type data\nc_min 4 1000\nc_max 4 9000\nsize 4 5000\n")
    4000
    """
    rows = (line.split() for line in text.splitlines()[:1000])
    values = {row[0]: number for row in rows if len(row) == 3 and (number := natural(row[2])) is not None}
    return max(values["size"] - values["c_min"], 0) if {"size", "c_min"} <= values.keys() else None


def _hugepages(meminfo: Fact[dict[str, int]], total: str, count: str) -> Fact[int]:
    if isinstance(meminfo, Missing):
        return meminfo
    if total in meminfo:
        return meminfo[total]
    if count not in meminfo:
        why = Why.ABSENT if "MemTotal" in meminfo else Why.UNPARSED
        return Missing(why, _MEMINFO, "this kernel has no hugetlbfs" if why is Why.ABSENT else f"no line {count}")
    return meminfo[count] * meminfo.get("Hugepagesize", 2 << 20)


@fact
def _hugepages_free(host: Host, meminfo: Fact[dict[str, int]]) -> Fact[int]:
    """/proc/meminfo tells it for the default size only; other sizes are looked up where there are any."""
    if isinstance(meminfo, Missing) or meminfo.get("Hugetlb", 0) <= _default_pool(meminfo):
        return _hugepages(meminfo, "", "HugePages_Free")
    names = need(host.names(_HUGEPAGES))
    free = 0
    for name in names:
        size = re.fullmatch(r"hugepages-(\d{1,9})kB", name)
        count = host.number(f"{_HUGEPAGES}/{name}/free_hugepages")
        if size and isinstance(count, Missing):
            return count
        free += int(size[1]) * 1024 * count if size and not isinstance(count, Missing) else 0
    return free


def _default_pool(meminfo: dict[str, int]) -> int:
    return meminfo.get("HugePages_Total", 0) * meminfo.get("Hugepagesize", 2 << 20)


def _swaps(host: Host) -> Fact[tuple[SwapDevice, ...]]:
    return interpreted(host.text("/proc/swaps"), parse_swaps, "/proc/swaps")


def _shm_mount(host: Host) -> tuple[Fact[str], int | None, bool]:
    """Type, given size and whether read-only, of what is mounted on /dev/shm; the last mount covers the ones before it."""
    text = host.text(_MOUNTINFO)
    if isinstance(text, Missing):
        return text, None, False
    found: tuple[Fact[str], int | None, bool] = (Missing(Why.ABSENT, _MOUNTINFO, "nothing is mounted on /dev/shm"), None, False)
    for line in text.split("\n"):
        before, dash, after = line.partition(" - ")
        place, kind = before.split(" "), after.split(" ")
        if dash and len(place) > 4 and place[4] == _SHM and kind[0]:
            options = kind[2] if len(kind) > 2 else ""
            read_only = "ro" in (*",".join(place[5:6]).split(","), *options.split(","))
            found = kind[0], parse_size_option(options) if options else None, read_only
    return found


def _shm_size(size: Fact[int], mounted: int | None) -> Fact[int]:
    """statvfs, or the mount option where the recording has no statvfs."""
    return mounted if isinstance(size, Missing) and mounted is not None else size


def _inodes_free(space: Fact[Space]) -> Fact[int]:
    """tmpfs with nr_inodes=0 has no limit, and says 0 of 0 (Documentation/filesystems/tmpfs.rst)."""
    if isinstance(space, Missing):
        return space
    return space.inodes_free if space.inodes else Missing(Why.NOT_SUPPORTED, _SHM, "no limit on inodes")


def _shm_writable(host: Host, filesystem: Fact[str], read_only: bool) -> Fact[bool]:
    if isinstance(filesystem, Missing) or read_only:
        return filesystem if isinstance(filesystem, Missing) else False
    answer = host.ask(f"{queries.ACCESS}:{_SHM}")
    return answer if isinstance(answer, Missing) else bool(isinstance(answer, dict) and answer.get("write"))


@fact
def _oom_kills(host: Host) -> Fact[int]:
    text = need(host.text("/proc/vmstat"))
    found = cgroup.counter(text, "oom_kill")
    return Missing(Why.NOT_SUPPORTED, "/proc/vmstat", "this kernel counts no OOM kills (before 4.13)") if found is None else found


def parse_limit(texts: tuple[str, ...]) -> float:
    """Parse memory.max, or memory.limit_in_bytes, whose "no limit" is the largest multiple of a page below 2**63.

    >>> parse_limit(("9223372036854771712\\n",)), parse_limit(("max\\n",)), parse_limit(("68719476736\\n",))
    (inf, inf, 68719476736.0)
    """
    value = cgroup.parse_max(texts[0])
    return math.inf if value >= 1 << 62 else value


def _cgroup_limit(host: Host) -> tuple[Fact[float], str]:
    most, source = cgroup.tightest(host, "memory", {2: ("memory.max",), 1: ("memory.limit_in_bytes",)}, parse_limit)
    high, of_high = cgroup.tightest(
        host, "memory", {2: ("memory.high",)}, parse_limit
    )  # whoever is above it is throttled, not killed
    if isinstance(most, Missing) or absent_or_unrecorded(high):
        return most, source
    return (high, of_high) if isinstance(high, Missing) or high < most else (most, source)


_USAGE = {
    "memory.max": ("memory.current", "inactive_file"),
    "memory.high": ("memory.current", "inactive_file"),
    "memory.limit_in_bytes": ("memory.usage_in_bytes", "total_inactive_file"),
}
"""By the file of the limit: that of the usage, and the field of memory.stat with the page cache that is dropped first (all of the branch)."""


def _cgroup_used(host: Host, limit_source: str) -> Fact[int]:
    """Return the usage without inactive page cache, as the kubelet and ``kubectl top`` count it (the working set)."""
    if not limit_source:
        return Missing(Why.ABSENT, "memory.max", "no cgroup limits the memory")
    place, _, name = limit_source.rpartition("/")
    usage, field = _USAGE[name]
    used, text = host.number(f"{place}/{usage}"), host.text(f"{place}/memory.stat")
    if isinstance(used, Missing):
        return used
    if isinstance(text, Missing):
        return text
    cached = cgroup.counter(text, field)
    return Missing(Why.UNPARSED, f"{place}/memory.stat", f"no line {field}") if cached is None else max(used - cached, 0)


def _cgroup_oom_kills(host: Host) -> tuple[Fact[int], str]:
    text, path = cgroup.nearest(host, "memory", {2: ("memory.events",), 1: ("memory.oom_control",)})
    if isinstance(text, Missing):
        return text, ""
    kills = cgroup.counter(text, "oom_kill")
    return (Missing(Why.NOT_SUPPORTED, path, "this kernel does not count them (before 4.13)") if kills is None else kills), path
