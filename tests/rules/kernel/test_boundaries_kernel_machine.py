"""What counts in the kernel's log: kinds of messages, the window, how many are too many, and what other facts overrule (kernel_machine)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from kernel_hosts import DAY, DENIED, FAIL, NOW, PASS, changed, event, judged, subjects, with_log

from torchtune_sys.model.facts.kernel import KernelEvent
from torchtune_sys.model.snapshot import Snapshot

# --- memory, processors and programs


_NODES = "the end of the memory nodes that it was bound to"


@pytest.mark.parametrize(
    ("subject", "text", "limit"),
    [
        ("Memory cgroup out of memory", "", "a cgroup's limit"),
        ("Detected", "", "a cgroup's limit"),  # slurmstepd's word
        ("Out of memory", "oom-kill:constraint=CONSTRAINT_NONE", "the end of the machine's memory"),
        ("Out of memory", "oom-kill:constraint=CONSTRAINT_CPUSET", _NODES),
        ("Out of memory", "oom-kill:constraint=CONSTRAINT_MEMORY_POLICY", _NODES),
        ("Memory cgroup out of memory", "x CONSTRAINT_MEMCG /slurm/job_7", "a cgroup's limit was reached (/slurm/job_7)"),
    ],
)
def test_what_ran_out_of_memory(healthy: Snapshot, subject: str, text: str, limit: str) -> None:
    (finding,) = judged(with_log(healthy, event("oom-kill", subject, text=text, who="python3")), "oom-kill-logged").evidence
    assert finding.subject == "python3" and finding.seen.endswith(
        f": {limit}" if "reached" in limit else f": {limit} was reached"
    )


def test_each_process_that_was_killed_is_named_once_for_each_limit(healthy: Snapshot) -> None:
    machine, group = "Out of memory", "Memory cgroup out of memory"
    killed = [("python3", machine), ("ray", machine), ("python3", machine), ("python3", group)]
    events = [event("oom-kill", subject, who=who) for who, subject in killed]
    found = judged(with_log(healthy, *events), "oom-kill-logged").evidence
    assert [item.subject for item in found] == ["python3", "ray", "python3"]
    assert "killed, 2 times" in found[0].seen and "times" not in found[1].seen + found[2].seen


UC, CE = "ba00000000000135", "8c00004000010090"  # bit 61 of IA32_MCi_STATUS is set in the first


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (event("machine-check", "3", text=f"Machine Check: 0 Bank 5: {UC}"), ["CPU 3"]),
        (event("machine-check", "3", text=f"Machine Check: 0 Bank 17: {CE}"), []),
        (event("machine-check", "3", text="Machine Check: 0 Bank 5: 2000000000000000"), ["CPU 3"]),
        (event("machine-check", "3", text="Machine Check: 0 Bank 5: dfffffffffffffff"), []),
        (event("machine-check", "3", text="Machine Check Exception"), ["CPU 3"]),
        (event("machine-check", "", text="Machine Check Exception"), ["memory"]),
        (
            event("memory-uncorrected", "MC0", text=f"Bank 5: {CE}", who="CPU_SrcID#0_MC#0_Chan#0_DIMM#0"),
            ["CPU_SrcID#0_MC#0_Chan#0_DIMM#0"],
        ),
        (event("memory-uncorrected", "MC0"), ["MC0"]),
    ],
)
def test_uncorrected_errors(healthy: Snapshot, told: KernelEvent, expected: list[str]) -> None:
    assert subjects(healthy, "memory-uncorrected-errors", told) == expected
    (finding,) = judged(with_log(healthy, told), "memory-uncorrected-errors").evidence
    assert finding.verdict is (FAIL if expected else PASS)


def corrected(module: str, code: int, count: int, subject: str = "MC0", at: float = NOW - 60) -> KernelEvent:
    return event("memory-corrected", subject, at=at, code=code, who=module, count=count)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([corrected("A", 1, 50)], ["A"]),
        ([corrected("A", 1, 49)], []),
        ([corrected("A", 0, 50)], ["A"]),  # a message that gives no number tells one error
        ([corrected("A", 0, 49)], []),
        ([corrected("A", 10, 5)], ["A"]),
        ([corrected("A", 25, 1), corrected("A", 25, 1)], ["A"]),
        ([corrected("A", 49, 1), corrected("B", 49, 1)], []),
        ([corrected("A", 2, 1), corrected("B", 50, 1)], ["B"]),
        ([corrected("B", 50, 1), corrected("A", 2, 1)], ["B"]),
        ([corrected("", 50, 1, "MC1")], ["MC1"]),
        ([corrected("A", 50, 1, at=NOW - DAY)], ["A"]),
        ([corrected("A", 50, 1, at=NOW - DAY - 1)], []),
        ([], []),
    ],
)
def test_many_corrected_errors_on_one_module(healthy: Snapshot, events: list[KernelEvent], expected: list[str]) -> None:
    assert subjects(healthy, "memory-corrected-errors", *events) == expected
    (finding,) = judged(with_log(healthy, *events), "memory-corrected-errors").evidence
    assert finding.verdict is (FAIL if expected else PASS)


def stall(count: int = 1, module: str = "", kind: str = "lockup") -> KernelEvent:
    return event(kind, "", count=count, text=f"CPU stuck{' in the module ' + module if module else ''}")


@pytest.mark.parametrize("hypervisor", ["kvm", "", DENIED, None])
@pytest.mark.parametrize(
    ("events", "metal", "virtual"),
    [
        ([stall(1)], ["CPU"], []),  # a hypervisor that paused the machine looks the same
        ([stall(2)], ["CPU"], []),
        ([stall(3)], ["CPU"], ["CPU"]),
        ([stall(1), stall(1), stall(1)], ["CPU"], ["CPU"]),
        ([stall(1), stall(1, "nvidia")], ["CPU"], ["CPU"]),
        ([stall(2, kind="hung-task")], [], []),
        ([stall(3, kind="hung-task")], ["tasks"], ["tasks"]),
        ([stall(1, "nfs", "hung-task")], ["tasks"], ["tasks"]),
        ([stall(3), stall(3, kind="hung-task")], ["CPU", "tasks"], ["CPU", "tasks"]),
        ([stall(1), stall(1, kind="hung-task")], ["CPU"], []),
        ([], [], []),
    ],
)
def test_cpus_and_tasks_that_hung(
    healthy: Snapshot, hypervisor: Any, events: list[KernelEvent], metal: list[str], virtual: list[str]
) -> None:
    seen = (
        msgspec.structs.replace(healthy, system=DENIED)
        if hypervisor is None
        else changed(healthy, "system", hypervisor=hypervisor)
    )
    expected = virtual if hypervisor == "kvm" else metal
    assert subjects(seen, "cpu-lockup-logged", *events) == expected
    found = judged(with_log(seen, *events), "cpu-lockup-logged").evidence
    assert [item.verdict for item in found] == ([FAIL] * len(expected) or [PASS])


def test_the_lockup_that_names_a_module_is_shown(healthy: Snapshot) -> None:
    for kind in ("lockup", "hung-task"):
        events = [stall(5, kind=kind), stall(1, "nvidia", kind), stall(1, "mlx5_core", kind)]
        (finding,) = judged(with_log(healthy, *events), "cpu-lockup-logged").evidence
        assert "in the module nvidia" in finding.seen
        (finding,) = judged(with_log(healthy, stall(5, kind=kind)), "cpu-lockup-logged").evidence
        assert finding.seen.startswith("CPU stuck")


def hot(subject: str, count: int, at: float = NOW - 60) -> KernelEvent:
    return event("cpu-hot", subject, count=count, at=at)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([hot("Core", 100)], ["CPU (core)"]),
        ([hot("Core", 99)], []),
        ([hot("Core", 50), hot("Package", 50)], []),
        ([hot("Core", 100), hot("Package", 100)], ["CPU (core)", "CPU (package)"]),
        ([hot("Core", 100, NOW - DAY)], ["CPU (core)"]),
        ([hot("Core", 100, NOW - DAY - 1)], []),
        ([], []),
    ],
)
def test_processors_that_are_too_hot_again_and_again(healthy: Snapshot, events: list[KernelEvent], expected: list[str]) -> None:
    assert subjects(healthy, "cpu-thermal-throttle-logged", *events) == expected
    found = judged(with_log(healthy, *events), "cpu-thermal-throttle-logged").evidence
    assert [item.verdict for item in found] == ([FAIL] * len(expected) or [PASS])


def test_programs_that_crashed_are_named_once_for_each_library(healthy: Snapshot) -> None:
    crashes = [("python3", "libnccl.so.2"), ("python3", "libcuda.so.1"), ("python3", "libnccl.so.2"), ("ray", "libnccl.so.2")]
    events = [event("crash", process, who=library) for process, library in crashes]
    found = judged(with_log(healthy, *events), "native-crash-logged").evidence
    assert [(item.subject, item.seen.partition(",")[0]) for item in found] == [
        ("python3", "crashed in libnccl.so.2"),
        ("python3", "crashed in libcuda.so.1"),
        ("ray", "crashed in libnccl.so.2"),
    ]
