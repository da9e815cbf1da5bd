"""The CPUs that a session has, and the threads and ranks that are counted against them: every way to come by each number."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from altered import FAIL, NA, PASS, UNKNOWN, altered, asked, lines, result, verdict, with_env

from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts.cpu import CpuFacts, CpuPolicy
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Unknown, Why
from torchtune_sys.rules import gates
from torchtune_sys.rules.cpu.available import binds
from torchtune_sys.rules.cpu.common import asked_threads, budget, default_threads, show, some
from torchtune_sys.rules.gates import ranks_here

DENIED = Missing(Why.DENIED, "test")
NOTHING = Missing(Why.ABSENT, "test")


def cpu(seen: Snapshot) -> CpuFacts:
    assert not isinstance(seen.cpu, Missing)
    return seen.cpu


def with_cpu(seen: Snapshot, **facts: Any) -> Snapshot:
    return msgspec.structs.replace(seen, cpu=msgspec.structs.replace(cpu(seen), **facts))


def with_intent(seen: Snapshot, **intent: Any) -> Snapshot:
    return msgspec.structs.replace(seen, intent=Workload(**intent))


@pytest.mark.parametrize(
    ("facts", "cpus"),
    [
        ({}, 8.0),
        ({"quota": DENIED}, 16.0),  # the cpuset is the smallest of what is left
        ({"quota": DENIED, "cpuset": DENIED}, 32.0),
        ({"quota": DENIED, "cpuset": DENIED, "affinity": DENIED}, 64.0),
        ({"quota": math.inf}, 16.0),
        ({"quota": 0.5}, 0.5),
        ({"quota": 0.0}, 16.0),  # no CPU at all is no bound that anything can run under
    ],
)
def test_an_unknown_number_of_cpus_has_the_smallest_bound_that_is_known(
    healthy: Snapshot, facts: dict[str, Any], cpus: float
) -> None:
    narrow = {"affinity": CpuSet.parse("0-31"), "cpuset": CpuSet.parse("0-15"), "quota": 8.0, **facts}
    found = budget(with_cpu(healthy, effective=DENIED, **narrow))
    assert (found.cpus, found.exact) == (cpus, DENIED)
    with pytest.raises(Unknown):
        found.settle()


def test_without_any_bound_the_budget_is_unknown(healthy: Snapshot) -> None:
    with pytest.raises(Unknown):
        budget(with_cpu(healthy, effective=DENIED, affinity=DENIED, cpuset=DENIED, online=DENIED, quota=math.inf))


def test_a_known_number_of_cpus_is_final(healthy: Snapshot) -> None:
    found = budget(with_cpu(healthy, effective=4.0, quota=4.0, quota_source="cpu.max"))
    assert (found.cpus, found.exact, found.source) == (4.0, None, "cpu.max")
    found.settle()
    assert budget(with_cpu(healthy, effective=4.0, quota=5.0, quota_source="cpu.max")).source == "sched_getaffinity"


@pytest.mark.parametrize(("cpus", "text"), [(2.5, "2.5"), (4.0, "4"), (10.0, "10"), (0.125, "0.12"), (1.0, "1")])
def test_numbers_of_cpus_as_people_write_them(cpus: float, text: str) -> None:
    assert show(cpus) == text
    assert some(cpus, "CPU") == (f"{text} CPU" if cpus == 1 else f"{text} CPUs")


@pytest.mark.parametrize(("asked", "ranks"), [(None, 8), (0, 1), (1, 1), (3, 3), (16, 16)])
def test_ranks_are_what_was_asked_for_else_one_per_gpu(healthy: Snapshot, asked: int | None, ranks: int) -> None:
    assert ranks_here(with_intent(healthy, ranks=asked)) == ranks


@pytest.mark.parametrize(
    ("facts", "ranks"),
    [
        ({"gpu": NOTHING}, 8),  # the bus shows eight
        ({"gpu": NOTHING, "driver": NOTHING}, 1),
        ({"driver": NOTHING}, 8),  # NVML shows eight
    ],
)
def test_ranks_where_gpus_are_seen_from_one_side(healthy: Snapshot, facts: dict[str, Any], ranks: int) -> None:
    assert ranks_here(with_intent(msgspec.structs.replace(healthy, **facts))) == ranks


def test_without_gpus_there_is_one_rank(healthy: Snapshot) -> None:
    assert not isinstance(healthy.driver, Missing)
    bare = msgspec.structs.replace(
        healthy, gpu=NOTHING, driver=msgspec.structs.replace(healthy.driver, nvidia_devices=(), amd_devices=())
    )
    assert ranks_here(with_intent(bare)) == 1
    assert gates.ranks_here(with_intent(bare)) == 1
    amd = msgspec.structs.replace(bare, driver=msgspec.structs.replace(bare.driver, amd_devices=("0000:03:00.0", "0000:04:00.0")))
    assert ranks_here(with_intent(amd)) == 2
    unread = msgspec.structs.replace(bare, driver=msgspec.structs.replace(bare.driver, nvidia_devices=DENIED))
    assert ranks_here(with_intent(unread)) == 1
    assert gates.ranks_here(with_intent(unread)) == 1


@pytest.mark.parametrize(
    ("value", "threads"),
    [
        ("8", 8),
        ("1", 1),
        (" 4 , 2", 4),
        ("4,2", 4),
        ("0", None),
        ("", None),
        ("-3", None),
        ("99999", 99999),
        ("100000", None),  # no machine has as many; a slip of the keyboard
        ("all", None),
    ],
)
def test_threads_that_the_environment_asks_for(healthy: Snapshot, value: str, threads: int | None) -> None:
    assert not isinstance(healthy.session, Missing)
    seen = msgspec.structs.replace(
        with_intent(healthy), session=msgspec.structs.replace(healthy.session, env={"OMP_NUM_THREADS": value})
    )
    assert asked_threads(seen) == (None if threads is None else (threads, "OMP_NUM_THREADS"))
    if threads is not None:  # as the command line takes it over
        taken = msgspec.structs.replace(seen, intent=msgspec.structs.replace(seen.intent, threads=threads))
        assert asked_threads(taken) == (threads, "OMP_NUM_THREADS")


@pytest.mark.parametrize(("asked", "threads"), [(0, 1), (1, 1), (6, 6)])
def test_threads_that_the_command_line_asks_for(healthy: Snapshot, asked: int, threads: int) -> None:
    assert asked_threads(with_intent(healthy, threads=asked)) == (threads, "--threads")


@pytest.mark.parametrize(
    ("facts", "threads"),
    [
        ({}, 32),  # 64 CPUs of 32 cores
        ({"affinity": CpuSet.parse("0-15")}, 8),
        ({"affinity": CpuSet.parse("0")}, 1),  # half a core is one thread
        ({"cores": NOTHING}, 64),
        ({"online": NOTHING}, 64),
        ({"online": CpuSet.parse("")}, 64),
        ({"cores": 64}, 64),
    ],
)
def test_torch_starts_a_thread_per_visible_core(healthy: Snapshot, facts: dict[str, Any], threads: int) -> None:
    assert default_threads(cpu(with_cpu(healthy, **facts))) == threads


@pytest.mark.parametrize(
    ("name", "value", "proc_bind", "expected"),
    [
        *(("OMP_PROC_BIND", word, "", True) for word in ("true", "TRUE", "close", "spread", "master", "primary", "spread,close")),
        *(("OMP_PROC_BIND", word, "", False) for word in ("false", "", " ", "nonsense")),
        ("OMP_PLACES", "cores", "", True),  # tried with libgomp: each process is kept to the first core
        ("OMP_PLACES", "cores", "close", True),
        ("OMP_PLACES", "cores", " FALSE ", False),
        ("OMP_PLACES", "", "close", False),
        *(("KMP_AFFINITY", word, "", True) for word in ("compact", "scatter", "balanced", "logical", "physical", "Compact")),
        ("KMP_AFFINITY", "verbose, compact", "", True),
        ("KMP_AFFINITY", "explicit=x", "", True),
        ("KMP_AFFINITY", "disabled", "", False),
        ("GOMP_CPU_AFFINITY", "0 3 1-2", "", True),
        ("GOMP_CPU_AFFINITY", "0-3", " False ", False),
    ],
)
def test_what_binds_threads(name: str, value: str, proc_bind: str, expected: bool) -> None:
    assert binds(name, value, proc_bind) is expected


@pytest.mark.parametrize(("ranks", "expected"), [(1, PASS), (2, FAIL)])
def test_a_rank_has_one_thread_unless_told_otherwise(healthy: Snapshot, ranks: int, expected: Verdict) -> None:
    seen = altered(asked(with_env(healthy, {}), ranks=ranks), cpu__effective=1.0, cpu__quota=1.0)
    assert verdict(seen, "cpu-oversubscribed") is expected


@pytest.mark.parametrize("rule_id", ["cpu-oversubscribed", "cpus-too-few-for-gpus"])
@pytest.mark.parametrize(("quota", "expected"), [(33.0, UNKNOWN), (32.0, UNKNOWN), (31.0, FAIL)])
def test_a_bound_that_is_met_exactly_may_still_be_lower(healthy: Snapshot, rule_id: str, quota: float, expected: Verdict) -> None:
    seen = altered(
        asked(healthy, ranks=8, threads=4), cpu__effective=DENIED, cpu__quota=quota
    )  # 32 threads, 4 for each of 8 GPUs
    assert verdict(seen, rule_id) is expected


def test_a_quota_is_heeded_where_threads_are_set(healthy: Snapshot) -> None:
    seen = altered(asked(healthy, ranks=2), cpu__quota=1.0, cpu__effective=1.0)
    assert lines(seen, "cpu-quota-ignored-by-torch") == [("CPU quota", PASS)]


BINDING = {"GOMP_CPU_AFFINITY": "0-3", "KMP_AFFINITY": "compact", "OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}


@pytest.mark.parametrize(
    ("ranks", "workers", "expected"),
    [(None, 0, NA), (1, 0, NA), (2, 0, FAIL), (None, 4, FAIL), (1, 4, FAIL), (1, None, FAIL)],
)
def test_binding_harms_where_several_processes_share_the_mask(
    healthy: Snapshot, ranks: int | None, workers: int | None, expected: Verdict
) -> None:
    seen = asked(with_env(healthy, {**BINDING, "LD_PRELOAD": "/opt/intel/lib/libiomp5.so"}), ranks=ranks, workers=workers)
    assert verdict(seen, "openmp-affinity-pins-process") is expected
    if expected is FAIL:
        assert lines(seen, "openmp-affinity-pins-process") == [(name, FAIL) for name in BINDING]


@pytest.mark.parametrize(
    ("affinity", "cpuset", "expected"),
    [("0-3", "0-15", FAIL), ("0-3", "0-14", PASS), ("0-4", "0-63", PASS), ("0", "0-3", FAIL), ("0", "0-2", PASS)],
)
def test_a_quarter_of_the_cpus_and_no_more_than_four_are_few(
    healthy: Snapshot, affinity: str, cpuset: str, expected: Verdict
) -> None:
    seen = with_env(with_cpu(healthy, affinity=CpuSet.parse(affinity), cpuset=CpuSet.parse(cpuset)), {})
    assert verdict(seen, "session-pinned-to-few-cpus") is expected


LAUNCHERS = {
    "Slurm": "SLURM_JOB_ID",
    "Open MPI": "OMPI_COMM_WORLD_RANK",
    "MPICH": "PMI_RANK",
    "PMIx": "PMIX_RANK",
    "torchrun": "LOCAL_RANK",
    "PBS": "PBS_JOBID",
    "LSF": "LSB_JOBID",
    "Flux": "FLUX_JOB_ID",
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_a_launcher_binds_is_bound_on_purpose(healthy: Snapshot, launcher: str) -> None:
    few = with_cpu(healthy, affinity=CpuSet.parse("0-1"), cpuset=CpuSet.parse("0-63"))
    assert verdict(with_env(few, {}), "session-pinned-to-few-cpus") is FAIL
    assert verdict(with_env(few, {LAUNCHERS[launcher]: "0"}), "session-pinned-to-few-cpus") is NA


@pytest.mark.parametrize(("ranks", "cpus", "expected"), [(None, 31.0, FAIL), (None, 32.0, PASS), (2, 8.0, PASS), (2, 7.0, FAIL)])
def test_gpus_in_use_need_four_cpus_each(healthy: Snapshot, ranks: int | None, cpus: float, expected: Verdict) -> None:
    assert verdict(altered(asked(healthy, ranks=ranks), cpu__effective=cpus), "cpus-too-few-for-gpus") is expected


@pytest.mark.parametrize(
    ("machine", "flags", "avx", "avx2"),
    [
        ("x86_64", {"sse4_2"}, FAIL, NA),
        ("x86_64", {"sse4_2", "avx"}, PASS, FAIL),
        ("i686", {"sse4_2", "avx"}, PASS, FAIL),
        ("x86_64", {"avx", "avx2"}, PASS, PASS),
        ("i686", {"avx2"}, PASS, PASS),
        ("aarch64", {"asimd"}, NA, NA),
        ("ppc64le", set(), NA, NA),
    ],
)
def test_avx_and_avx2_are_asked_of_x86(healthy: Snapshot, machine: str, flags: set[str], avx: Verdict, avx2: Verdict) -> None:
    seen = altered(healthy, system__machine=machine, cpu__flags=frozenset(flags))
    assert (verdict(seen, "cpu-lacks-avx"), verdict(seen, "cpu-lacks-avx2")) == (avx, avx2)


@pytest.mark.parametrize(
    ("online", "smt_control", "expected"),
    [
        ("0-63", "on", PASS),
        ("0-31", "off", PASS),
        ("0-31", "forceoff", PASS),
        ("0-30", "off", FAIL),  # more are off than have a sibling that is on
        ("0-31", "on", FAIL),
        ("0-31", "notsupported", FAIL),
        ("0-31", NOTHING, FAIL),
        ("0-31", DENIED, FAIL),
    ],
)
def test_cpus_that_are_off_for_hyper_threading_are_not_missed(
    healthy: Snapshot, online: str, smt_control: Any, expected: Verdict
) -> None:
    seen = with_cpu(altered(healthy, numa__nodes=()), online=CpuSet.parse(online), smt_control=smt_control)
    assert verdict(seen, "cpus-offline") is expected


def test_cpus_that_lxcfs_hides_from_a_container_are_not_offline(healthy: Snapshot) -> None:
    seen = with_cpu(healthy, online=CpuSet.parse("0-22"))
    assert verdict(seen, "cpus-offline") is PASS
    assert "23 CPUs of them shown to this container" in result(seen, "cpus-offline").evidence[0].seen


def policies(*policies: dict[str, Any]) -> tuple[CpuPolicy, ...]:
    ordinary = {"driver": "acpi-cpufreq", "governor": "performance", "epp": NOTHING, "max_khz": 3_800_000}
    return tuple(
        CpuPolicy(**{"cpus": CpuSet([number]), "hardware_max_khz": 3_800_000, **ordinary, **policy})
        for number, policy in enumerate(policies)
    )


@pytest.mark.parametrize(
    ("driver", "governor", "epp", "follows"),
    [
        *(("intel_pstate", "powersave", epp, PASS) for epp in ("performance", "balance_performance", "default")),
        *(("intel_pstate", "powersave", epp, FAIL) for epp in ("balance_power", "power")),
        ("intel_pstate", "powersave", NOTHING, PASS),
        ("intel_pstate", "powersave", DENIED, PASS),  # not known to save
        ("intel_pstate", "performance", "power", PASS),
        ("amd-pstate-epp", "powersave", "power", FAIL),
        ("amd_pstate_epp", "powersave", "power", FAIL),
        ("acpi-cpufreq", "schedutil", NOTHING, FAIL),
        ("acpi-cpufreq", "performance", NOTHING, PASS),
    ],
)
def test_what_prefers_saving_energy(healthy: Snapshot, driver: str, governor: str, epp: Any, follows: Verdict) -> None:
    seen = with_cpu(healthy, policies=policies({"driver": driver, "governor": governor, "epp": epp}))
    assert verdict(seen, "cpu-governor-not-performance") is follows
    assert verdict(seen, "cpu-governor-powersave") is PASS


@pytest.mark.parametrize("field", ["max_khz", "hardware_max_khz"])
def test_a_cpu_of_unknown_clock_hides_no_other(healthy: Snapshot, field: str) -> None:
    unread: dict[str, Any] = {field: DENIED}
    seen = with_cpu(healthy, policies=policies(unread, {"max_khz": 2_000_000}))
    assert lines(seen, "cpu-frequency-capped") == [("CPU 0", UNKNOWN), ("CPU 1", FAIL)]
    assert verdict(with_cpu(healthy, policies=policies(unread)), "cpu-frequency-capped") is UNKNOWN


@pytest.mark.parametrize("nonsense", [{"max_khz": 0}, {"hardware_max_khz": 0}, {"max_khz": -1}])
def test_a_clock_of_nothing_is_no_reading(healthy: Snapshot, nonsense: dict[str, Any]) -> None:
    seen = with_cpu(healthy, policies=policies(nonsense, {"max_khz": 2_000_000}, {}))
    assert lines(seen, "cpu-frequency-capped") == [("CPU 1", FAIL), ("CPU 2", PASS)]


@pytest.mark.parametrize(("cap", "expected"), [(3_686_000, PASS), (3_685_999, FAIL), (1, FAIL), (3_800_000, PASS)])
def test_a_clock_three_percent_lower_is_a_cap(healthy: Snapshot, cap: int, expected: Verdict) -> None:
    assert verdict(with_cpu(healthy, policies=policies({"max_khz": cap})), "cpu-frequency-capped") is expected
