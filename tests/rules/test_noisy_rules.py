"""Rules that raised alarms where nothing was wrong, or whose words were wrong: each once on what it must not report, once on what it must."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from kernel_hosts import live, pasted
from rdma_hosts import card, port
from torch_hosts import FAIL, NA, PASS, build, changed, with_gpus, without_gpu

from conftest import HOSTS, judge, judge_one, load
from torchtune_sys import engine, evidence
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.knowledge import torch as known
from torchtune_sys.model.actions import Safety, Sysctl
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.facts.sysctl import Assignment
from torchtune_sys.model.rule import Result, Severity, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.storage.probe import probe as storage
from torchtune_sys.rules.torch.driver_and_gpu import driver_too_old, gpu_arch_not_in_wheel

NOT_TOLD = Missing(Why.NOT_RECORDED, "test")


def verdict(seen: Snapshot, rule_id: str) -> Verdict:
    return judge_one(seen, rule_id).verdict


def read(text: str) -> Snapshot:
    seen = evidence.read(text, "x.txt")
    assert seen is not None
    return seen


HEADER = "|                               |                      |               MIG M. |\n"


def test_the_header_of_every_table_is_no_mig() -> None:
    error = "RuntimeError: CUDA error: invalid device ordinal\n"
    assert verdict(read(error + HEADER), "mig-mode-limits") is not FAIL
    query = "    MIG Mode\n        Current                           : Disabled\n"
    assert verdict(read(error + HEADER + query + "MIG mode is disabled\n"), "mig-mode-limits") is not FAIL
    for sign in (
        "NVIDIA A100 MIG",
        "GPU 0: A100 (UUID: GPU-1)\n  MIG 1g.5gb Device 0:",
        "CUDA_VISIBLE_DEVICES=MIG-41b3f2f0-5c3c-5b5e",
        "the A100 is in MIG mode",
    ):
        assert verdict(read(error + sign), "mig-mode-limits") is FAIL, sign


@pytest.mark.parametrize(
    "line", ["Error no kernel image is available for execution on the device at line 167 in file /src/csrc/ops.cu"]
)
def test_an_extension_without_code_is_not_torch(line: str) -> None:
    assert verdict(read(f"Traceback (most recent call last):\n  x\nRuntimeError: {line}\n"), "gpu-arch-not-in-wheel") is not FAIL
    assert (
        verdict(
            read("RuntimeError: CUDA error: no kernel image is available for execution on the device\n"), "gpu-arch-not-in-wheel"
        )
        is FAIL
    )


def _with(release: str, driver: str, cc: tuple[int, int]) -> Snapshot:
    seen = with_gpus(load("healthy"), cc)
    cuda = known.local_cuda(release)
    torch = build(seen, version=release, cuda=cuda, arch_list=NOT_TOLD)
    seen = changed(changed(seen, "python", torch=torch, live=Missing(Why.ABSENT, "test")), "driver", module_version=driver)
    return changed(seen, "gpu", driver_version=driver, cuda_driver_version=NOT_TOLD)


RELEASES = ("1.13.1+cu117", "2.0.1+cu118", "2.4.1+cu121", "2.6.0+cu124", "2.7.1+cu118", "2.9.1+cu128", "2.11.0+cu130")
DRIVERS = ("450.80.02", "470.256.02", "515.65.01", "525.60.13", "535.183.01", "550.54.15", "570.86.10", "580.95.05")
CAPABILITIES = ((3, 7), (5, 2), (6, 1), (7, 0), (7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0))


def test_each_build_that_is_named_passes_the_rules_that_named_it() -> None:
    """A fix must not be the next finding: the build named to one rule runs under this driver and on this GPU, or the driver is named too."""
    named = 0
    for release in RELEASES:
        for driver in DRIVERS:
            for cc in CAPABILITIES:
                for rule in (driver_too_old, gpu_arch_not_in_wheel):
                    (result,) = engine.judge(_with(release, driver, cc), (rule,))
                    for item in result.evidence:
                        if result.verdict is FAIL and (cure := _cure(item.wanted)):
                            named += 1
                            again = _with(cure[0], cure[1] or driver, cc)
                            wrong = [
                                other.rule.id
                                for other in engine.judge(again, (driver_too_old, gpu_arch_not_in_wheel))
                                if other.verdict is FAIL
                            ]
                            assert not wrong, (release, driver, cc, item.wanted, wrong)
    assert named > 100


def _cure(text: str) -> tuple[str, str] | None:
    """The build that a sentence names, and the driver if it names one for it."""
    if found := re.search(r"torch (\d[\w.]*\+cu\d+) has it(?:, with a driver of ([\d.]+))?", text):
        return found[1], found[2] or ""
    found = re.search(r"torch (\d[\w.]*)(?: \([^)]*\))? from the (cu\d+) index", text)
    return (f"{found[1]}+{found[2]}", "") if found else None


def test_triton_is_of_no_use_without_a_gpu() -> None:
    seen = load("triton-version-differs.fail")
    assert verdict(seen, "triton-version-differs") is FAIL
    assert verdict(without_gpu(seen), "triton-version-differs") is NA


@pytest.mark.parametrize(
    ("release", "found"),
    [
        ("4.4.0", NA),  # gVisor
        ("4.19.0-27-amd64", NA),
        ("4.19.0-0.deb10.27-cloud-amd64", NA),
        ("5.4.0-190-generic", NA),
        ("5.4.0-1103-aws", NA),
        ("4.14.336-253.554.amzn2.x86_64", FAIL),
        ("4.4.0-lab", FAIL),
        ("4.15.18", FAIL),
        ("6.8.0-45-generic", PASS),
        ("6.12.1", PASS),
    ],
)
def test_a_number_says_little_of_a_vendors_kernel(release: str, found: Verdict) -> None:
    assert verdict(changed(load("healthy"), "system", kernel=release), "kernel-old") is found


def test_an_old_glibc_matters_before_torch_is_installed() -> None:
    seen = changed(load("healthy"), "system", glibc="2.17")
    assert verdict(seen, "glibc-below-current-wheels") is NA
    assert verdict(changed(seen, "python", torch=Missing(Why.ABSENT, "test")), "glibc-below-current-wheels") is FAIL


def test_slow_start_says_after_which_pause() -> None:
    rule = judge_one(load("tcp-slow-start-after-idle.fail"), "tcp-slow-start-after-idle").rule
    assert "0.2 seconds" in rule.title and "retransmission timeout" in rule.doc


def test_a_small_container_without_a_gpu_is_not_tight() -> None:
    seen = msgspec.structs.replace(load("cgroup-memory-tight.fail"), intent=Workload())
    assert verdict(seen, "cgroup-memory-tight") is FAIL
    assert verdict(without_gpu(seen), "cgroup-memory-tight") is NA
    asked = msgspec.structs.replace(without_gpu(seen), intent=Workload(ranks=8))
    assert verdict(asked, "cgroup-memory-tight") is FAIL


def test_where_zone_reclaim_was_chosen_undoing_it_is_a_decision() -> None:
    seen = load("zone-reclaim-enabled.fail")
    assert _safety(seen) is Safety.SAFE
    assert _safety(changed(seen, "system", hypervisor="microsoft")) is Safety.UNSAFE
    assert not isinstance(seen.sysctl, Missing)
    key = "vm.zone_reclaim_mode"
    profile = Assignment(value="1", source="tuned profile hpc-compute")
    settings = {**seen.sysctl.settings, key: msgspec.structs.replace(seen.sysctl.settings[key], tuned=profile)}
    assert _safety(changed(seen, "sysctl", settings=settings)) is Safety.UNSAFE


def _safety(seen: Snapshot) -> Safety:
    result = judge_one(seen, "zone-reclaim-enabled")
    assert result.verdict is FAIL
    (action,) = result.evidence[0].fix
    assert isinstance(action, Sysctl)
    return action.safety


def test_nobody_asked_for_a_rank_a_gpu() -> None:
    seen = load("cpu-oversubscribed.fail", intent={})
    alone = msgspec.structs.replace(seen, intent=Workload())
    assert verdict(alone, "cpu-oversubscribed") is PASS  # 16 threads on 64 CPUs
    assert verdict(msgspec.structs.replace(seen, intent=Workload(ranks=8)), "cpu-oversubscribed") is FAIL


def test_ranks_with_one_thread_each_are_not_told_to_start_one_thread_each() -> None:
    seen = msgspec.structs.replace(load("healthy"), intent=Workload(ranks=128))  # 64 CPUs; torchrun's default is one thread
    (item,) = judge_one(seen, "cpu-oversubscribed").evidence
    assert item.verdict is FAIL
    assert item.wanted == "at most 64 ranks"
    assert "fewer ranks" in item.fix[0].text
    (item,) = judge_one(load("cpu-oversubscribed.fail"), "cpu-oversubscribed").evidence
    assert not item.fix  # there the rule's own: fewer threads


@pytest.mark.parametrize(("audio", "found"), [("2.4.0", PASS), ("2.4.1", PASS), ("2.3.1", FAIL), ("2.5.0", FAIL)])
def test_torchaudio_goes_with_a_release_whatever_its_patch(audio: str, found: Verdict) -> None:
    seen = load("torch-torchaudio-mismatch.pass")
    python = seen.python
    assert not isinstance(python, Missing) and not isinstance(python.distributions, Missing)
    others = tuple(
        msgspec.structs.replace(item, version=audio) if item.name == "torchaudio" else item for item in python.distributions
    )
    told = changed(seen, "python", torch=build(seen, version="2.4.1+cu121", cuda="12.1"), distributions=others)
    assert verdict(told, "torch-torchaudio-mismatch") is found


def test_a_single_lane_of_25_gigabit_ethernet_is_whole() -> None:
    one = port(link_layer="Ethernet", rate_gbps=25.0, lanes=1, signalling="EDR")
    seen = changed(load("healthy"), "network", rdma=tuple(card(number, one, board="MT_2420110034") for number in range(4)))
    assert verdict(seen, "rdma-rate-degraded") is not FAIL


def test_a_limited_address_space_is_no_concern_without_a_gpu() -> None:
    seen = load("address-space-limit.fail")
    assert verdict(seen, "address-space-limit") is FAIL
    assert verdict(without_gpu(seen), "address-space-limit") is NA


HOT = "[{}.000000] CPU{}: Package temperature above threshold, cpu clock throttled (total events = {})"


def test_heat_is_counted_by_the_kernels_own_total() -> None:
    many_lines = [HOT.format(1_209_000 + cpu, cpu, 1) for cpu in range(64)]  # one event of a package is told by each of its CPUs
    assert live(*many_lines)["cpu-thermal-throttle-logged"].verdict is PASS
    two_lines = [HOT.format(1_208_700, 0, 100), HOT.format(1_209_000, 0, 5_220)]
    found = live(*two_lines)["cpu-thermal-throttle-logged"]
    assert found.verdict is FAIL and "5,121 times" in found.evidence[0].seen
    assert live(HOT.format(1_209_000, 0, 900))["cpu-thermal-throttle-logged"].verdict is PASS  # in fourteen days
    assert pasted(HOT.format(3_600, 0, 900) + "\n")["cpu-thermal-throttle-logged"].verdict is FAIL  # in an hour


@pytest.mark.parametrize(
    ("hypervisor", "found"), [("microsoft", NA), ("kvm", NA), ("amazon", FAIL), ("google", FAIL), ("", FAIL)]
)
def test_packets_of_a_cloud_are_as_large_as_the_cloud_says(hypervisor: str, found: Verdict) -> None:
    seen = changed(load("ethernet-mtu-small.fail"), "system", hypervisor=hypervisor)
    result = judge_one(seen, "ethernet-mtu-small")
    assert result.verdict is found
    if hypervisor == "google":
        assert result.evidence[0].wanted.startswith("8896")


def _places(cwd: str, **intent: Any) -> set[str]:
    recording = {"answers": {"cwd": cwd}, "files": {"/proc/self/mounts": "/dev/sda1 / ext4 rw 0 0\n"}, "env": {}}
    return {place.role for place in storage(RecordedHost(recording, "test"), Workload(**intent)).places} - {"temporary files"}


@pytest.mark.parametrize("cwd", ["/", "/var/spool/slurmd", "/run/user/0", "/etc/nagios"])
def test_where_a_monitor_runs_nobody_trains(cwd: str) -> None:
    assert _places(cwd) == set()
    assert _places(cwd, checkpoints=("x",)) == {"checkpoints"}


@pytest.mark.parametrize("cwd", ["/root", "/home/ada/run7", "/workspace", "/usr/src/app", "/scratch/job"])
def test_where_a_person_stands_one_trains(cwd: str) -> None:
    assert _places(cwd) == {"working directory"}


def test_a_program_that_died_is_an_error() -> None:
    killed = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.\n"
    assert _severity(read(killed), "oom-kill-logged") is Severity.ERROR
    log = "[12.500000] Out of memory: Killed process 4711 (python3) total-vm:9000kB, anon-rss:8000kB\n"
    assert _severity(read(log), "oom-kill-logged") is Severity.WARNING
    assert _severity(read(log + killed), "oom-kill-logged") is Severity.ERROR


def _severity(seen: Snapshot, rule_id: str) -> Severity:
    result: Result = judge(seen)[rule_id]
    assert result.verdict is FAIL
    return result.rule.severity


def test_the_cause_is_told_and_its_consequence_is_not() -> None:
    """nouveau holds the GPU: that the driver's module is not loaded is no second finding."""
    seen = load("nouveau-loaded.fail")
    failing = [result.rule.id for result in judge(seen).values() if result.verdict is FAIL]
    assert "nouveau-loaded" in failing and "nvidia-driver-not-loaded" not in failing
    assert (HOSTS / "nouveau-loaded.fail.json").exists()
