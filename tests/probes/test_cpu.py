"""Processors read from files of many shapes, hostile ones included."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts.cpu import CpuFacts
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes import cpumask, topology
from torchtune_sys.probes.cpu import cpuinfo, frequency
from torchtune_sys.probes.cpu import probe as cpu

CPUS = "/sys/devices/system/cpu"
CGROUP = "/sys/fs/cgroup"
V2 = {"/proc/self/cgroup": "0::/a/b\n", "/proc/self/mountinfo": f"30 23 0:26 / {CGROUP} rw - cgroup2 cgroup2 rw\n"}


def host(files: dict[str, Any], **answers: Any) -> RecordedHost:
    return RecordedHost({"files": files, "answers": answers}, "test")


def probe(files: dict[str, Any], **answers: Any) -> CpuFacts:
    return cpu.probe(host(files, **answers), Workload())


def cores(name: str, *lists: str) -> dict[str, str]:
    """Files of siblings, for CPU 0, 1 …"""
    return {f"{CPUS}/cpu{number}/topology/{name}": text for number, text in enumerate(lists)}


def test_ids_that_repeat_per_socket_do_not_merge_cores() -> None:
    files = {f"{CPUS}/online": "0-7\n", **cores("core_cpus_list", "0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7")}
    files |= cores("package_cpus_list", "0-1,4-5", "0-1,4-5", "2-3,6-7", "2-3,6-7")
    files |= {f"{CPUS}/cpu{n}/topology/core_id": f"{n % 2}\n" for n in range(8)}
    facts = probe(files)
    assert (facts.sockets, facts.cores, facts.smt) == (2, 4, True)


def test_offline_siblings_do_not_make_smt() -> None:
    files = {
        f"{CPUS}/online": "0-1\n",
        **cores("thread_siblings_list", "0,2", "1,3"),
        **cores("core_siblings_list", "0-3", "0-3"),
    }
    facts = probe(files)
    assert (facts.sockets, facts.cores, facts.smt) == (1, 2, False)


def test_hybrid_processors_have_cores_of_both_kinds() -> None:
    files = {f"{CPUS}/online": "0-3\n", **cores("core_cpus_list", "0-1", "0-1", "2", "3"), f"{CPUS}/smt/active": "1\n"}
    facts = probe(files)
    assert (facts.cores, facts.smt) == (3, True)


def test_masks_of_old_kernels() -> None:
    files = {f"{CPUS}/online": "0-1\n", **cores("thread_siblings", "00000001", "00000002"), **cores("core_siblings", "3", "3")}
    facts = probe(files)
    assert (facts.sockets, facts.cores) == (1, 2)


def test_kernels_without_a_list_of_online_cpus() -> None:
    files = {f"{CPUS}/cpu0/topology/x": "", f"{CPUS}/cpu1/online": "0\n", f"{CPUS}/cpu7/online": "1\n", f"{CPUS}/cpufreq/x": ""}
    assert topology.online_cpus(host(files)) == CpuSet([0, 7])


def test_a_host_without_sys_counts_processors_of_cpuinfo() -> None:
    facts = probe({"/proc/cpuinfo": "processor\t: 0\nmodel name\t: X\n\nprocessor\t: 3\n"})
    assert facts.online == CpuSet([0, 3])
    assert isinstance(facts.cores, Missing) and isinstance(facts.policies, Missing)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"present": "0-3\n"}, None),  # these two files came together (Linux 2.6.26)
        ({"present": "0-1\n"}, "0-1"),
        ({"cpu1/online": "0\n"}, "0"),
        ({"/proc/cpuinfo": "processor\t: 0\n\nprocessor\t: 1\n\nprocessor\t: 2\n"}, "0-2"),
        ({"/proc/cpuinfo": "processor\t: 0\n\nprocessor\t: 1\n", "cpu1/online": "0\n"}, "0"),
        ({"cpu2/cpufreq/scaling_governor": "x\n"}, "0-1"),  # neither its own state nor its place in the machine: a part
    ],
)
def test_the_directories_of_some_cpus_are_not_all(files: dict[str, str], expected: str | None) -> None:
    seen = {path if path[0] == "/" else f"{CPUS}/{path}": text for path, text in files.items()}
    found = topology.online_cpus(host({**cores("thread_siblings", "1", "2"), **seen}))
    assert str(found) == expected if not isinstance(found, Missing) else expected is None


def test_s390_numbers_its_processors_in_its_own_way() -> None:
    text = (
        "vendor_id       : IBM/S390\n# processors    : 2\nprocessor 1: version = 00,  machine = 2817\nprocessor 8: version = 00\n"
    )
    assert probe({"/proc/cpuinfo": text}).online == CpuSet([1, 8])


@pytest.mark.parametrize(("last", "sockets"), [("0xd4e", 1), ("0xd46", 3)])
def test_clusters_of_different_cores_are_no_sockets(last: str, sockets: int) -> None:
    """Before Linux 6.0 a phone's chip with three clusters, or a Jetson's, says three packages; so does a server of three sockets."""
    cpus = [f"processor\t: {n}\nCPU implementer\t: 0x41\nCPU part\t: {part}\n" for n, part in enumerate(("0xd46", "0xd46", last))]
    files = {f"{CPUS}/online": "0-2\n", **cores("package_cpus_list", "0", "1", "2"), "/proc/cpuinfo": "\n".join(cpus)}
    assert probe(files).sockets == sockets


@pytest.mark.parametrize("text", ["0-6:2\n", "0-6:1/2\n", "0,2,4,6"])
def test_lists_with_a_stride(text: str) -> None:
    assert CpuSet.parse(text) == CpuSet((0, 2, 4, 6))


@pytest.mark.parametrize("text", ["0-6:0", "0-6:1/0", "0-6:/2", "0-6:x"])
def test_strides_that_are_none(text: str) -> None:
    with pytest.raises(ValueError):
        CpuSet.parse(text)


def test_a_cpu_that_is_not_its_own_sibling_is_not_counted() -> None:
    files = {f"{CPUS}/online": "0-1\n", **cores("core_cpus_list", "1", "0")}
    found = probe(files).cores
    assert isinstance(found, Missing) and found.why is Why.UNPARSED


@pytest.mark.parametrize(
    ("files", "quota", "source"),
    [
        ({f"{CGROUP}/a/cpu.max": "200000 100000", f"{CGROUP}/a/b/cpu.max": "max 100000"}, 2.0, f"{CGROUP}/a/cpu.max"),
        ({f"{CGROUP}/a/cpu.max": "max 100000", f"{CGROUP}/a/b/cpu.max": "50000 100000"}, 0.5, f"{CGROUP}/a/b/cpu.max"),
        ({f"{CGROUP}/cpu.max": "150000 100000", f"{CGROUP}/a/b/cpu.max": "max"}, 1.5, f"{CGROUP}/cpu.max"),
        ({f"{CGROUP}/a/b/cpu.max": "max 100000"}, math.inf, ""),
    ],
)
def test_the_tightest_quota_of_all_ancestors(files: dict[str, str], quota: float, source: str) -> None:
    facts = probe({**V2, **files}, affinity="0-7")
    assert (facts.quota, facts.quota_source) == (quota, source)
    assert facts.effective == min(8.0, quota)


def test_version_1_quota_in_a_hybrid_host() -> None:
    files = {
        "/proc/self/cgroup": "5:cpu,cpuacct:/job\n0::/job\n",
        "/proc/self/mountinfo": f"33 31 0:30 / {CGROUP}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n",
        f"{CGROUP}/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        f"{CGROUP}/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        f"{CGROUP}/cpu,cpuacct/job/cpu.cfs_quota_us": "250000\n",
        f"{CGROUP}/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
    }
    assert probe(files).quota == 2.5


@pytest.mark.parametrize("text", ["", "0 100000", "-5 100000", "100000 0", "100000 -1", "a b", "1 2 3", "9" * 400 + " 100000"])
def test_a_quota_that_makes_no_sense_is_unknown(text: str) -> None:
    found = probe({**V2, f"{CGROUP}/a/b/cpu.max": text}, affinity="0").quota
    assert isinstance(found, Missing) and found.why is Why.UNPARSED


def test_affinity_falls_back_to_the_status_file() -> None:
    assert probe({"/proc/self/status": "Cpus_allowed_list:\t2-3\n"}).affinity == CpuSet([2, 3])


def test_affinity_is_cut_by_cpuset_and_online() -> None:
    files = {
        **V2,
        f"{CGROUP}/a/b/cgroup.procs": "7\n",
        f"{CGROUP}/a/cpuset.cpus.effective": "0-5\n",
        f"{CGROUP}/cpuset.cpus.effective": "0-63\n",
        f"{CPUS}/online": "0-3,8\n",
    }
    facts = probe(files, affinity="1-63")
    assert facts.cpuset == CpuSet(range(6))
    assert facts.effective == 3.0


def test_policies_of_many_cpus_and_of_old_kernels() -> None:
    shared = {
        f"{CPUS}/online": "0-3\n",
        f"{CPUS}/cpufreq/policy0/affected_cpus": "0 1\n",
        f"{CPUS}/cpufreq/policy2/affected_cpus": "2 3\n",
    }
    found = frequency.policies(host(shared), CpuSet(range(4)))
    assert not isinstance(found, Missing) and [str(policy.cpus) for policy in found] == ["0-1", "2-3"]
    old = {
        f"{CPUS}/cpu{n}/cpufreq/{name}": text
        for n in (0, 1)
        for name, text in (("scaling_driver", "x"), ("affected_cpus", "0 1"))
    }
    found = frequency.policies(host(old), CpuSet((0, 1)))
    assert not isinstance(found, Missing) and len(found) == 1


@pytest.mark.parametrize(("path", "text", "expected"), [
    ("intel_pstate/no_turbo", "0", True), ("intel_pstate/no_turbo", "1", False), ("cpufreq/boost", "1", True), ("cpufreq/boost", "0", False),
])  # fmt: skip
def test_boost(path: str, text: str, expected: bool) -> None:
    assert frequency.boost(host({f"{CPUS}/{path}": text})) is expected


@pytest.mark.parametrize(
    ("driver", "highest", "boost"),
    [
        ("cppc_cpufreq", "153\n", None),  # GB10: 3978 MHz instead of 3900 on half of the large cores
        ("cppc_cpufreq", "150\n", None),
        ("cppc_cpufreq", "200\n", False),
        ("cppc_cpufreq", {"error": "not-recorded"}, False),
        ("amd-pstate", "150\n", False),
    ],
)
def test_a_boost_switch_of_processors_without_boost(driver: str, highest: Any, boost: bool | None) -> None:
    files: dict[str, Any] = {f"{CPUS}/cpufreq/boost": "0\n"}
    for cpu_, most in ((0, "108\n"), (15, highest)):
        files[f"{CPUS}/cpufreq/policy{cpu_}/scaling_driver"] = f"{driver}\n"
        files |= {f"{CPUS}/cpu{cpu_}/acpi_cppc/highest_perf": most, f"{CPUS}/cpu{cpu_}/acpi_cppc/nominal_perf": most}
    files[f"{CPUS}/cpu15/acpi_cppc/nominal_perf"] = "150\n"
    found = frequency.boost(host(files))
    assert found.why is Why.ABSENT if isinstance(found, Missing) else found is boost


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", "POWER9"),
        ("vendor_id       : IBM/S390\n# processors    : 20\n", "IBM/S390"),
        ("processor\t: 0\nCPU implementer\t: 0x99\nCPU part\t: 0x001\n", "Arm implementer 0x99 part 0x001"),
        ("model name\t: AMD  EPYC   9654\n", "AMD EPYC 9654"),
        ("system type\t: generic\n\nprocessor\t: 0\nModel Name\t: Loongson-3C6000\nFeatures\t: lsx\n", "Loongson-3C6000"),
        ("processor\t: 0\nvendor\t: GenuineIntel\narch\t: IA-64\nfamily\t: Itanium 2\nmodel\t: 1\n", "Itanium 2"),
        (  # a kernel that runs 32-bit programs, too
            "processor\t: 0\nmodel name\t: ARMv8 Processor rev 1 (v8l)\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n",
            "Arm Neoverse-N1",
        ),
        (
            "processor\t: 0\nmodel name\t: Phytium,S2500/64\nCPU implementer\t: 0x70\nCPU part\t: 0x663\n",
            "Phytium,S2500/64",
        ),
    ],
)
def test_models_of_other_architectures(text: str, model: str) -> None:
    assert cpuinfo.parse_model(text) == model


TEXTS = st.one_of(
    st.text(), st.text(alphabet="0123456789-,:/ \n\tflagsmode", max_size=60), st.just("\0" * 4096), st.just("9" * 5000)
)


@given(TEXTS)
def test_parsers_survive_any_text(text: str) -> None:
    assert isinstance(cpuinfo.parse_model(text), (str, Missing))
    assert isinstance(cpuinfo.parse_flags(text), (frozenset, Missing))
    cpu.status_field(text, "Cpus_allowed_list")
    for parse in (cpumask.parse_mask, lambda words: cpu.parse_quota((words,))):
        with contextlib.suppress(ValueError):
            parse(text)


FILES = [
    *(f"{CPUS}/{name}" for name in ("online", "present", "smt/active", "smt/control", "cpufreq/boost", "intel_pstate/no_turbo")),
    *(f"{CPUS}/cpu0/topology/{name}" for name in ("core_cpus_list", "package_cpus_list")),
    *(f"{CPUS}/cpufreq/policy0/{name}" for name in ("affected_cpus", "scaling_driver", "scaling_governor", "scaling_max_freq")),
    "/proc/cpuinfo",
    "/proc/self/status",
    "/proc/self/cgroup",
    "/proc/self/mountinfo",
    f"{CGROUP}/a/b/cpu.max",
]


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(FILES), TEXTS), TEXTS)
def test_any_contents_give_facts(files: dict[str, str], affinity: str) -> None:
    assert isinstance(probe({**V2, **files}, affinity=affinity), CpuFacts)


@pytest.mark.parametrize("path", FILES)
@pytest.mark.parametrize(
    "content", [{"error": "denied"}, {"error": "failed"}, {"error": "timeout"}, "", "\ufffd\0", "-1", "1" * 3000]
)
def test_each_file_may_refuse_or_lie(path: str, content: Any) -> None:
    good = {f"{CPUS}/online": "0\n", **V2, f"{CGROUP}/a/b/cpu.max": "max 100000", **cores("core_cpus_list", "0")}
    assert isinstance(probe({**good, path: content}, affinity="0"), CpuFacts)


@pytest.mark.parametrize("path", FILES)
def test_a_directory_in_place_of_a_file(path: str) -> None:
    assert isinstance(probe({**V2, f"{path}/inner": "0"}, affinity="0"), CpuFacts)
