"""Boundaries of the rules on processors and on DataLoader workers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from conftest import judge, load
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.knowledge.dataloader import MOST_WORKERS, batch_room_bytes, starting_values
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.probes.cpu import probe as cpu_probe

QUOTA = "/sys/fs/cgroup/user.slice/cpu.max"
POLICY = "/sys/devices/system/cpu/cpufreq/policy"


def verdict(rule_id: str, **overlay: Any) -> str:
    return result(rule_id, **overlay).verdict.value


def result(rule_id: str, **overlay: Any) -> Result:
    return judge(load("healthy", **overlay))[rule_id]


def job(ranks: int | None = 8, workers: int | None = 4, **more: Any) -> dict[str, Any]:
    return {"ranks": ranks, "nodes": 1, "workers": workers, **more}


@pytest.mark.parametrize(
    ("threads", "expected"), [("8", "pass"), ("9", "fail"), ("8,4", "pass"), ("nonsense", "fail"), ("0", "fail"), ("4,", "fail")]
)
def test_ranks_times_threads_may_fill_the_cpus(threads: str, expected: str) -> None:
    assert verdict("cpu-oversubscribed", env={"OMP_NUM_THREADS": threads}) == expected


def test_a_number_that_openmp_refuses_keeps_torchrun_from_setting_one() -> None:
    (told,) = result("cpu-oversubscribed", env={"OMP_NUM_THREADS": "auto"}).evidence
    assert told.seen.startswith("8 x 32 threads (torch's default, as OpenMP refuses OMP_NUM_THREADS=auto)")
    assert verdict("cpu-oversubscribed", env={"OMP_NUM_THREADS": "auto"}, intent=job(ranks=1)) == "pass"


def test_what_the_user_says_goes_before_the_environment() -> None:
    assert verdict("cpu-oversubscribed", env={"OMP_NUM_THREADS": "64"}, intent=job(threads=8)) == "pass"
    assert verdict("cpu-oversubscribed", env={"OMP_NUM_THREADS": "1"}, intent=job(threads=9)) == "fail"


def test_torchrun_starts_one_thread_per_rank_and_nobody_asked_is_not_judged() -> None:
    assert "8 x 1 thread (" in result("cpu-oversubscribed").evidence[0].seen
    assert verdict("cpu-oversubscribed", intent=job(ranks=None)) == "na"


@pytest.mark.parametrize(("quota", "expected"), [("800000 100000", "pass"), ("799999 100000", "fail"), ("max 100000", "pass")])
def test_the_quota_counts_as_cpus(quota: str, expected: str) -> None:
    assert verdict("cpu-oversubscribed", files={QUOTA: quota}) == expected


def test_the_upper_bound_decides_where_the_quota_cannot_be_read() -> None:
    denied = {QUOTA: {"error": "denied"}}
    assert verdict("dataloader-workers-exceed-cpus", files=denied, intent=job(workers=9)) == "fail"
    assert verdict("dataloader-workers-exceed-cpus", files=denied, intent=job(workers=8)) == "unknown"


@pytest.mark.parametrize(("workers", "expected"), [(8, "pass"), (9, "fail"), (None, "na"), (0, "pass")])
def test_workers_may_be_as_many_as_the_cpus(workers: int | None, expected: str) -> None:
    assert verdict("dataloader-workers-exceed-cpus", intent=job(workers=workers)) == expected


@pytest.mark.parametrize(
    ("quota", "intent", "env", "expected"),
    [
        ("3200000 100000", job(ranks=1), {}, "pass"),  # torch takes the 32 physical cores
        ("3100000 100000", job(ranks=1), {}, "fail"),
        ("400000 100000", job(ranks=1), {"OMP_NUM_THREADS": "4"}, "pass"),
        ("400000 100000", job(ranks=2, workers=1), {}, "pass"),  # torchrun sets 1
        ("400000 100000", job(ranks=None, workers=1), {}, "fail"),
        ("max 100000", job(ranks=1), {}, "na"),
    ],
)
def test_quota_that_torch_does_not_see(quota: str, intent: dict[str, Any], env: dict[str, str], expected: str) -> None:
    assert verdict("cpu-quota-ignored-by-torch", files={QUOTA: quota}, intent=intent, env=env) == expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (
            {"KMP_AFFINITY": "verbose,granularity=core,scatter"},
            "pass",
        ),  # torch's wheel brings GNU's OpenMP, which does not read it
        ({"KMP_AFFINITY": "verbose,granularity=core,scatter", "LD_PRELOAD": "/usr/lib/libiomp5.so"}, "fail"),
        ({"KMP_AFFINITY": "proclist=[0,1],explicit", "LD_PRELOAD": "/usr/lib/libomp.so.5"}, "fail"),
        ({"KMP_AFFINITY": "none"}, "pass"),
        ({"KMP_AFFINITY": "verbose"}, "pass"),
        ({"GOMP_CPU_AFFINITY": "0-3"}, "fail"),
        ({"GOMP_CPU_AFFINITY": "0-3", "OMP_PROC_BIND": "FALSE"}, "pass"),
        ({"GOMP_CPU_AFFINITY": ""}, "pass"),
        ({"OMP_PROC_BIND": "spread,close"}, "fail"),
        ({"OMP_PROC_BIND": "false"}, "pass"),
        ({"OMP_PLACES": "cores"}, "fail"),
        ({"OMP_PLACES": "cores", "OMP_PROC_BIND": "false"}, "pass"),
    ],
)
def test_settings_that_bind_threads(variables: dict[str, str], expected: str) -> None:
    assert verdict("openmp-affinity-pins-process", env=variables) == expected


def test_binding_one_process_without_workers_harms_nobody() -> None:
    assert verdict("openmp-affinity-pins-process", env={"OMP_PROC_BIND": "true"}, intent=job(ranks=1, workers=0)) == "na"


@pytest.mark.parametrize(("affinity", "expected"), [("0-3", "fail"), ("0-4", "pass"), ("0-63", "pass")])
def test_few_cpus_are_four_and_a_quarter(affinity: str, expected: str) -> None:
    assert verdict("session-pinned-to-few-cpus", answers={"affinity": affinity}) == expected


def test_a_small_cpuset_is_not_pinning() -> None:
    files = {"/sys/fs/cgroup/cpuset.cpus.effective": "0-3\n"}
    assert verdict("session-pinned-to-few-cpus", answers={"affinity": "0-3"}, files=files) == "pass"


@pytest.mark.parametrize(
    ("driver", "governor", "preference", "slow", "saving"),
    [
        ("intel_pstate", "powersave", "performance", "pass", "pass"),
        ("intel_pstate", "powersave", "balance_performance", "pass", "pass"),
        ("intel_pstate", "powersave", "balance_power", "pass", "fail"),
        ("intel_pstate", "powersave", "power", "pass", "fail"),
        ("intel_pstate", "performance", "power", "pass", "pass"),
        ("amd-pstate-epp", "powersave", "balance_power", "pass", "fail"),
        ("amd-pstate", "powersave", None, "fail", "pass"),
        ("acpi-cpufreq", "schedutil", None, "pass", "fail"),
        ("intel_cpufreq", "performance", None, "pass", "pass"),
        ("cppc_cpufreq", "ondemand", None, "pass", "fail"),
    ],
)
def test_a_governor_is_not_judged_by_its_name_alone(
    driver: str, governor: str, preference: str | None, slow: str, saving: str
) -> None:
    files: dict[str, str | None] = {f"{POLICY}0/scaling_driver": driver}
    for number in range(64):
        files[f"{POLICY}{number}/scaling_governor"] = governor
        files[f"{POLICY}{number}/energy_performance_preference"] = preference
    results = judge(load("healthy", files=files))
    assert results["cpu-governor-powersave"].verdict.value == slow
    assert results["cpu-governor-not-performance"].verdict.value == saving
    assert len(results["cpu-governor-powersave"].evidence) == 1


def test_a_virtual_machine_without_frequency_scaling_is_not_judged() -> None:
    files = {f"{POLICY}{number}/{name}": None for number in range(64) for name in (
        "scaling_driver", "scaling_governor", "energy_performance_preference", "scaling_max_freq", "cpuinfo_max_freq")}  # fmt: skip
    results = judge(load("healthy", files=files))
    for rule_id in ("cpu-governor-powersave", "cpu-governor-not-performance", "cpu-frequency-capped"):
        assert results[rule_id].verdict is Verdict.NA


@pytest.mark.parametrize(("cap", "expected"), [("3977000", "pass"), ("3976000", "fail"), ("4200000", "pass"), ("0", "pass")])
def test_a_cap_is_three_percent(cap: str, expected: str) -> None:
    assert verdict("cpu-frequency-capped", files={f"{POLICY}5/scaling_max_freq": cap}) == expected


def test_cpus_of_another_architecture_need_no_avx() -> None:
    answers = {"uname": {"release": "6.8.0-45-generic-64k", "machine": "aarch64", "nodename": "g"}}
    assert verdict("cpu-lacks-avx", answers=answers) == "na"


@pytest.mark.parametrize(
    ("control", "online", "expected"), [("off", "0-31", "pass"), ("on", "0-31", "fail"), ("off", "0-30", "fail")]
)
def test_hyper_threading_that_is_switched_off_is_no_loss(control: str, online: str, expected: str) -> None:
    files = {"/sys/devices/system/cpu/online": online, "/sys/devices/system/cpu/smt/control": control}
    assert verdict("cpus-offline", files=files) == expected


@pytest.mark.parametrize(("quota", "expected"), [("1600000 100000", "pass"), ("1500000 100000", "fail")])
def test_one_cpu_beside_each_rank(quota: str, expected: str) -> None:
    assert verdict("no-cpu-for-dataloader-workers", files={QUOTA: quota}) == expected


def test_gpus_that_are_not_used_need_no_cpus() -> None:
    files = {QUOTA: "800000 100000"}
    assert verdict("cpus-too-few-for-gpus", files=files) == "fail"
    assert verdict("cpus-too-few-for-gpus", files=files, intent=job(ranks=2)) == "pass"


@pytest.mark.parametrize("cpus", [0.1, 1, 2, 2.5, 64, 1e6])
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_starting_values_fit_the_cpus(cpus: float, ranks: int) -> None:
    values = starting_values(cpus, ranks, gpu=True)
    assert 0 <= values.num_workers <= MOST_WORKERS
    assert values.num_workers == 0 or ranks * (values.num_workers + 1) <= cpus
    assert (values.prefetch_factor is None) == (values.num_workers == 0)
    assert values.num_workers == MOST_WORKERS or ranks * (values.num_workers + 2) > cpus
    assert not math.isnan(cpus)


def test_batches_under_way_fill_dev_shm_exactly() -> None:
    room = batch_room_bytes(1 << 30, 8, 4)
    assert room * 8 * (4 * 2 + 1) <= 1 << 30 < (room + 1) * 8 * 9


@pytest.mark.parametrize(
    ("weight", "expected"), [("1", "fail"), ("4", "fail"), ("5", "pass"), ("100", "pass"), ("10000", "pass")]
)
def test_a_control_group_with_hardly_a_share(weight: str, expected: str) -> None:
    """A container in Kubernetes that requests no CPU has cpu.weight 1."""
    found = result("session-scheduled-last", files={"/sys/fs/cgroup/user.slice/cpu.weight": f"{weight}\n"})
    assert found.verdict.value == expected
    if expected == "fail":
        assert found.evidence[-1].source == "/sys/fs/cgroup/user.slice/cpu.weight"
        (fix,) = found.evidence[-1].fix  # renice raises no share of a group
        assert isinstance(fix, Advice)
        assert "--cpu-shares" in fix.text


def test_shares_of_the_first_version_of_cgroups() -> None:
    files = {
        "/proc/self/cgroup": "4:cpu,cpuacct:/job\n",
        "/proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
    }
    low = RecordedHost(
        {"files": {**files, "/sys/fs/cgroup/cpu/job/cpu.shares": "2\n", "/sys/fs/cgroup/cpu/cpu.shares": "1024\n"}}, ""
    )
    assert cpu_probe._weight(low) == (2 / 1024, "/sys/fs/cgroup/cpu/job/cpu.shares")
    usual = RecordedHost({"files": {**files, "/sys/fs/cgroup/cpu/job/cpu.shares": "2048\n"}}, "")
    assert cpu_probe._weight(usual) == (1.0, "")
