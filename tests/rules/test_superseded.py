"""A rule leaves a finding to another one only where that one shows it: what is not asked, passes or could not look hides nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from logged_hosts import ECC, seen_with_log

from conftest import HOSTS, load
from rules.hardware.test_boundaries_hardware_memory import DESKTOP, changed, slots
from rules.test_told_once import LINK
from torchtune_sys import engine, evidence
from torchtune_sys.host.recorded import load_recording
from torchtune_sys.model.rule import Evidence, Result, Rule, Severity, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import CATALOGUE, by_id
from torchtune_sys.rules.profiles import Config, choose

MC = "/sys/devices/system/edac/mc"
FALLEN = "[1200000.100000] NVRM: Xid (PCI:0000:61:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
CORRECTED = "[1200000.000000] EDAC MC0: 60 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x0)"
LOST_DATA = "[1200000.000000] EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x0)"
KILLED = "[1200000.000000] Out of memory: Killed process 4711 (python3) total-vm:9000kB, anon-rss:8000kB, file-rss:0kB"
OOPS = "[1200000.000000] Oops: 0002 [#1] PREEMPT SMP NOPTI"
AMD_RESET = [f"[1200000.000000] amdgpu 0000:83:00.0: amdgpu: GPU reset {end}" for end in ("begin!", "end with ret = -110")]
HOT = [
    f"[{1200000 + 300 * n}.000000] CPU0: Package temperature above threshold, cpu clock throttled (total events = {n * 100})"
    for n in range(10)
]
THROTTLED = {"/sys/devices/system/cpu/cpu63/thermal_throttle/package_throttle_count": "5120"}
FULL = {"size": 500 << 30, "free": 1 << 29, "inodes": 0, "inodes_free": 0}


def with_the_log_of(host: str, other: str, gpu: str = "83:00", **overlay: Any) -> Snapshot:
    """A recorded host with the kernel's log of another one, which speaks of its GPU at ``gpu``."""
    log = load_recording(str(HOSTS / f"{other}.json"))["answers"]["kernel-log"]
    log = {**log, "lines": [line.replace("83:00", gpu) for line in log["lines"]]}
    return load(host, answers={"kernel-log": log}, **overlay)


def warned(words: str) -> Snapshot:
    """A report with torch's warning that CUDA did not start, and why."""
    text = f"/x/torch/cuda/__init__.py:52: UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). {words} (Triggered internally at x.cpp:109.)"
    seen = evidence.read(text + "\n", "x")
    assert seen is not None
    return seen


def half_filled() -> Snapshot:
    modules = slots(("A1", "A2", "B1", "B2", "C1", "C2", "D1", "D2"), 0, 1, 2)
    seen = changed(load("healthy"), "hardware", memory_devices=modules, memory_controllers=())
    return changed(seen, "cpu", sockets=2, model=DESKTOP)


PAIRS: tuple[tuple[str, str, Callable[[], Snapshot]], ...] = (
    ("xid-memory-error", "gpu-ecc-uncorrectable", lambda: seen_with_log(ECC, gpus={3: {"ecc_uncorrected_volatile": 2}})),
    ("xid-nvlink-error", "nvlink-inactive", lambda: seen_with_log(LINK, gpus={3: {"nvlinks_down": [6]}})),
    *(
        (
            "gpu-thermal-throttle",
            other,
            lambda fact=fact, value=value: seen_with_log(gpus={3: {"clock_event_reasons": 0x40, fact: value}}),
        )
        for other, fact, value in (
            ("gpu-above-operating-temperature", "temperature_margin_c", -1),
            ("gpu-slowed-by-hardware-before", "slowed_by_hardware_s", 90.0),
        )
    ),
    (
        "amdgpu-uncorrectable-errors-logged",
        "amdgpu-uncorrectable-errors-counted",
        lambda: with_the_log_of("amdgpu-uncorrectable-errors-counted.fail", "amdgpu-uncorrectable-errors-logged.fail", "1b:00"),
    ),
    ("world-larger-than-started", "rank-variables-left", lambda: load("world-larger-than-started.fail")),
    ("nccl-wrong-interface", "rank-variables-left", lambda: load("nccl-wrong-interface.fail.comm-id")),
    ("gpudirect-rdma-disabled", "peermem-refused-logged", lambda: load("gpudirect-rdma-disabled.fail.refused")),
    ("gpu-fallen-off-bus", "xid-gpu-lost", lambda: seen_with_log(FALLEN, gpus={3: {"lost": True}})),
    ("cpu-thermal-throttle-logged", "cpu-throttled-for-heat", lambda: seen_with_log(*HOT, files=THROTTLED)),
    ("memory-corrected-errors", "memory-errors-counted", lambda: seen_with_log(CORRECTED, files={f"{MC}/mc0/ce_count": "40210"})),
    ("memory-uncorrected-errors", "memory-uncorrected-counted", lambda: seen_with_log(LOST_DATA, files={f"{MC}/mc0/ue_count": "1"})),
    ("oom-kill-logged", "oom-kills-since-boot", lambda: seen_with_log(KILLED, files={"/proc/vmstat": "oom_kill 1\n"})),
    ("memory-channels-empty", "memory-modules-uneven", half_filled),
    ("dev-shm-too-small", "dev-shm-small", lambda: load("dev-shm-too-small.fail")),
    ("memlock-limit-too-low", "memlock-limit-finite", lambda: load("memlock-limit-too-low.fail")),
    ("rank-seeks-master-on-own-host", "master-address-loopback", lambda: load("rank-seeks-master-on-own-host.fail")),
    ("disk-full", "disk-space-low", lambda: load("disk-full.fail")),
    ("disk-full", "home-full", lambda: load("healthy", spaces={"/home/ubuntu": {**FULL, "free": 1 << 20}}, answers={"cwd": "/home/ubuntu"})),
    ("disk-full", "temporary-space-low", lambda: load("healthy", spaces={"/tmp": FULL}, answers={"cwd": "/tmp"})),
    ("inodes-exhausted", "inodes-low", lambda: load("inodes-exhausted.fail")),
    ("mig-mode-limits", "several-ranks-on-one-gpu", lambda: load("mig-mode-limits.fail")),
    ("cuda-visible-devices-wrong", "several-ranks-on-one-gpu", lambda: load("cuda-visible-devices-wrong.fail", intent={"ranks": 8})),
    ("nouveau-loaded", "other-driver-holds-gpu", lambda: with_the_log_of("nouveau-loaded.fail", "other-driver-holds-gpu.fail")),
    ("nouveau-loaded", "gpu-held-by-other-driver", lambda: with_the_log_of("nouveau-loaded.fail", "gpu-held-by-other-driver.fail")),
    (
        "nvml-driver-library-mismatch",
        "driver-mismatch-logged",
        lambda: with_the_log_of("nvml-driver-library-mismatch.fail", "driver-mismatch-logged.fail"),
    ),
    (
        "secure-boot-blocks-module",
        "module-signature-refused",
        lambda: with_the_log_of("secure-boot-blocks-module.fail", "module-signature-refused.fail"),
    ),
    (
        "nvidia-module-not-built-for-kernel",
        "module-of-another-kernel-refused",
        lambda: with_the_log_of("nvidia-module-not-built-for-kernel.fail", "module-of-another-kernel-refused.fail"),
    ),
    ("module-signature-refused", "nvidia-driver-not-loaded", lambda: load("module-signature-refused.fail")),
    ("nvidia-uvm-barred", "nvidia-uvm-not-loaded", lambda: load("nvidia-uvm-barred.fail")),
    (
        "amdgpu-initialisation-failed",
        "amdgpu-not-loaded",
        lambda: with_the_log_of("amdgpu-not-loaded.fail", "amdgpu-initialisation-failed.fail"),
    ),
    (
        "gpu-bar-not-assigned",
        "gpu-initialisation-failed",
        lambda: with_the_log_of("gpu-bar-not-assigned.fail", "gpu-bar-not-assigned.fail"),
    ),
    ("kernel-crash-logged", "kernel-tainted-by-fault", lambda: seen_with_log(OOPS, files={"/proc/sys/kernel/tainted": "128"})),
    ("amdgpu-reset-failed-logged", "amdgpu-reset-logged", lambda: load("base-amd-gpu", answers={"kernel-log": {"lines": AMD_RESET}})),
    ("forward-compat-unsupported-gpu", "cuda-not-available-to-torch", lambda: warned("Error 804: forward compatibility was attempted on non supported HW")),
    *(
        (better, other, lambda better=better: load(f"{better}.fail"))
        for better, other in (
            ("cgroup-pids-exhausted", "cgroup-pids-limit"),
            ("gpu-power-limit-half", "gpu-power-limit-lowered"),
            ("cpu-lacks-avx", "cpu-lacks-avx2"),
        )
    ),
    ("xid-gsp-error", "driver-tools-fail", lambda: with_the_log_of("driver-tools-fail.fail", "xid-gsp-error.fail")),
)  # fmt: skip


def failing(results: tuple[Result, ...]) -> set[str]:
    return {result.rule.id for result in results if result.verdict is Verdict.FAIL}


@pytest.mark.parametrize(("better", "other", "host"), PAIRS, ids=[f"{better}-{other}" for better, other, _ in PAIRS])
def test_one_fault_is_one_finding_and_never_none(better: str, other: str, host: Callable[[], Snapshot]) -> None:
    seen = host()
    both = engine.judge(seen, CATALOGUE)
    assert better in failing(both) and other not in failing(both)
    folded = next(result for result in both if result.rule.id == other)
    assert f"see {better}" in {item.wanted for item in folded.evidence}
    assert other in failing(engine.judge(seen, choose(CATALOGUE, Config(), ignore=(better,)).rules))
    assert other in failing(engine.judge(seen, (by_id()[other],)))


def test_every_rule_that_leaves_findings_to_another_is_shown_here() -> None:
    assert {other for _, other, _ in PAIRS} == {rule.id for rule in CATALOGUE if rule.superseded_by or rule.explained_by}


@pytest.mark.parametrize(
    "rule", [rule for rule in CATALOGUE if rule.superseded_by or rule.explained_by], ids=lambda rule: rule.id
)
def test_what_may_take_over_exists_is_as_grave_and_leads_in_no_circle(rule: Rule) -> None:
    known = by_id()
    todo, above = [*rule.superseded_by, *rule.explained_by], set[str]()
    while todo:
        name = todo.pop()
        assert name != rule.id and known[name].severity.rank <= rule.severity.rank
        if name not in above:
            above.add(name)
            todo += (*known[name].superseded_by, *known[name].explained_by)


def made(name: str, *evidence: Evidence, unseen: bool = False, **more: Any) -> Result:
    """A result that fails on this evidence; ``unseen``: and could not see all."""
    rule = Rule(id=name, title=name, severity=Severity.ERROR, judge=lambda s, p: (), family="x", doc="", **more)
    missing = Missing(Why.DENIED, "test") if unseen else None
    return Result(rule=rule, verdict=Verdict.FAIL, evidence=evidence, why_unknown=missing)


def bad(subject: str, *about: str) -> Evidence:
    return Evidence(subject=subject, seen="bad", about=about)


def verdicts(*results: Result) -> list[str]:
    return [result.verdict.value for result in engine.fold(results)]


def test_folding_is_by_subject() -> None:
    better = made("better", bad("GPU 1"), bad("x", "mc0"))
    for own, verdict in (("GPU 1", "na"), ("GPU 2", "fail"), ("mc0", "na")):
        assert verdicts(made("other", bad(own), superseded_by=("better",)), better) == [verdict, "fail"]
    both = made("other", bad("GPU 1"), bad("GPU 2"), superseded_by=("better",))
    kept = engine.fold((both, better))[0]
    assert [(item.subject, item.verdict.value, item.wanted) for item in kept.evidence] == [
        ("GPU 1", "na", "see better"),
        ("GPU 2", "fail", ""),
    ]
    assert verdicts(made("other", bad("GPU 7"), explained_by=("better",)), better) == ["na", "fail"]


def test_what_remains_decides() -> None:
    better = made("better", bad("GPU 1"))
    passed = Evidence(subject="GPU 2", seen="good", verdict=Verdict.PASS)
    assert verdicts(made("other", bad("GPU 1"), passed, superseded_by=("better",)), better)[0] == "pass"
    assert verdicts(made("other", bad("GPU 1"), passed, unseen=True, superseded_by=("better",)), better)[0] == "unknown"


def test_a_finding_that_is_folded_itself_takes_over_none() -> None:
    """What is left in the end is shown, and named."""
    first = made("first", bad("GPU 1"), superseded_by=("second",))
    second = made("second", bad("GPU 1", "board"), superseded_by=("third",))
    results = engine.fold((first, second, made("third", bad("board"))))
    assert [result.verdict.value for result in results] == ["na", "na", "fail"]
    assert results[0].note == "third tells of it"
    assert verdicts(first, second) == ["na", "fail"]
