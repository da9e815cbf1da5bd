"""Memory: parsers on real files, and on anything."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import HOSTS, load
from torchtune_sys.host.recorded import RecordedHost, load_recording, merged
from torchtune_sys.model.facts.memory import MemoryFacts
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.memory import probe as memory

HOSTILE = (
    "",
    "\0\0\0",
    "-1",
    "9" * 5000,
    "max",
    "[",
    "[]",
    "a: b: c\n" * 3,
    "MemTotal: -5 kB\n",
    "\ufffd\u2028",
    "1 2 3",
    "x\n" * 10000,
)
PATHS = (
    "/proc/meminfo",
    "/proc/swaps",
    "/proc/vmstat",
    "/proc/self/mountinfo",
    "/proc/self/cgroup",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/kernel/mm/transparent_hugepage/defrag",
)
CGROUP1 = {
    "/proc/self/cgroup": "4:memory:/job/step\n0::/\n",
    "/proc/self/mountinfo": "36 31 0:33 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": "8589934592\n",
    "/sys/fs/cgroup/memory/job/step/memory.limit_in_bytes": "9223372036854771712\n",
}


def seen(**sections: object) -> MemoryFacts:
    recording = merged(load_recording(str(HOSTS / "base-memory.json")), sections)
    return memory.probe(RecordedHost(recording, "test"), Workload())


@pytest.mark.parametrize("content", HOSTILE, ids=repr)
@pytest.mark.parametrize("path", PATHS)
def test_hostile_content_raises_nothing(path: str, content: str) -> None:
    assert isinstance(seen(files={path: content}), MemoryFacts)


@pytest.mark.parametrize("why", ["absent", "denied", "failed", "timeout"])
def test_what_cannot_be_read_is_missing_for_that_reason(why: str) -> None:
    facts = seen(files={path: {"error": why} for path in PATHS}, spaces={"/dev/shm": {"error": why}})
    for fact in (facts.total_bytes, facts.swaps, facts.oom_kills, facts.thp, facts.commit_limit_bytes):
        assert isinstance(fact, Missing)
        assert fact.why is Why(why)


@given(st.text())
def test_parsers_survive_any_text(text: str) -> None:
    memory.parse_meminfo(text)
    memory.parse_size_option(text)
    for parse in (memory.parse_swaps, memory.parse_choice):
        with contextlib.suppress(ValueError):
            parse(text)


def test_the_tightest_ancestor_limits_memory_in_version_1() -> None:
    facts = seen(files=CGROUP1)
    assert facts.cgroup_limit_bytes == 8 << 30
    assert facts.cgroup_limit_source == "/sys/fs/cgroup/memory/job/memory.limit_in_bytes"


def test_the_number_that_means_no_limit_in_version_1_is_no_limit() -> None:
    facts = seen(files={**CGROUP1, "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n"})
    assert (facts.cgroup_limit_bytes, facts.cgroup_limit_source) == (math.inf, "")


def test_the_last_mount_on_dev_shm_counts() -> None:
    mounts = [
        "33 26 0:29 / /dev/shm rw - tmpfs tmpfs rw",
        "34 33 0:30 / /dev/shm rw - tmpfs shm rw,size=65536k",
        "35 26 0:31 / /dev/shmem rw - ext4 /dev/sda rw",
    ]
    facts = seen(files={"/proc/self/mountinfo": mounts}, spaces={"/dev/shm": {"error": "timeout"}})
    assert (facts.shm_filesystem, facts.shm_size_bytes) == ("tmpfs", 64 << 20)


def test_without_a_mount_there_is_no_size_of_dev_shm() -> None:
    facts = seen(files={"/proc/self/mountinfo": "30 1 259:2 / / rw - ext4 /dev/sda rw\n"})
    assert isinstance(facts.shm_size_bytes, Missing)
    assert facts.shm_size_bytes.why is Why.ABSENT


def test_reserved_pages_of_all_sizes_are_counted_where_the_kernel_sums_them() -> None:
    text = "HugePages_Total: 1\nHugePages_Free: 1\nHugepagesize: 2048 kB\n"
    assert seen(files={"/proc/meminfo": text}).hugepages_reserved_bytes == 2 << 20
    assert seen(files={"/proc/meminfo": text + "Hugetlb: 4196352 kB\n"}).hugepages_reserved_bytes == (4 << 30) + (2 << 20)


def test_swap_areas_with_blanks_in_their_names() -> None:
    text = "Filename Type Size Used Priority\n/my\\040swap file 1024 512 -2\n/dev/sda2 partition 2048 0 -3\n"
    assert [(area.path, area.kind, area.used_bytes) for area in memory.parse_swaps(text)] == [
        ("/my swap", "file", 512 << 10),
        ("/dev/sda2", "partition", 0),
    ]


def test_idle_pages_of_other_sizes_are_looked_up() -> None:
    files = {
        "/proc/meminfo": "HugePages_Total: 0\nHugePages_Free: 0\nHugepagesize: 2048 kB\nHugetlb: 4194304 kB\n",
        "/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages": "3\n",
        "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "0\n",
    }
    facts = seen(files=files)
    assert (facts.hugepages_reserved_bytes, facts.hugepages_free_bytes) == (4 << 30, 3 << 30)


def test_a_kernel_without_hugetlbfs_or_memavailable_says_so() -> None:
    old = load("healthy", files={"/proc/meminfo": "MemTotal: 1048576 kB\nMemFree: 4096 kB\n"}).memory
    assert not isinstance(old, Missing)
    assert isinstance(old.hugepages_reserved_bytes, Missing) and old.hugepages_reserved_bytes.why is Why.ABSENT
    assert isinstance(old.available_bytes, Missing) and old.available_bytes.why is Why.NOT_SUPPORTED


def _under(**limits: str) -> MemoryFacts:
    """A session in /job of cgroup version 2."""
    files = {
        "/proc/self/cgroup": "0::/job\n",
        "/proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "/sys/fs/cgroup/job/memory.current": "1000\n",
        "/sys/fs/cgroup/job/memory.stat": "inactive_file 100\n",
        **{f"/sys/fs/cgroup/job/memory.{name}": text for name, text in limits.items()},
    }
    return memory.probe(RecordedHost({"files": files}, "test"), Workload())


@pytest.mark.parametrize(
    ("most", "high", "limit", "file"),
    [
        ("max", "5000", 5000.0, "memory.high"),  # whoever is above it is throttled
        ("4000", "5000", 4000.0, "memory.max"),
        ("4000", "4000", 4000.0, "memory.max"),
        ("max", "max", math.inf, ""),
    ],
)
def test_the_limit_above_which_memory_is_taken_back(most: str, high: str, limit: float, file: str) -> None:
    found = _under(max=most, high=high)
    assert found.cgroup_limit_bytes == limit and found.cgroup_limit_source.endswith(file)
    assert not file or found.cgroup_used_bytes == 900


def test_a_recording_that_lacks_memory_high_tells_the_limit() -> None:
    assert _under(max="4000").cgroup_limit_bytes == 4000.0
