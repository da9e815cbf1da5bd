"""What is concluded from a kernel log: causes and consequences, the window, what is over, thresholds, words."""

from __future__ import annotations

import msgspec
import pytest
from kernel_hosts import failing, live, pasted

from conftest import HOSTS, judge, load
from torchtune_sys import evidence
from torchtune_sys.host.recorded import load_recording
from torchtune_sys.model.rule import Severity, Verdict
from torchtune_sys.model.values import Missing
from torchtune_sys.rules import by_id

GPU = "0000:61:00"
OTHER = "0000:9d:00"


def xid(time: float, number: int, rest: str = "pid=7, name=python3, x", gpu: str = GPU) -> str:
    return f"[{time:12.6f}] NVRM: Xid (PCI:{gpu}): {number}, {rest}\n"


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ((79,), {"xid-gpu-lost"}),
        ((48,), {"xid-memory-error"}),
        ((95,), {"xid-memory-error"}),
        ((64,), {"xid-memory-error"}),
        ((119,), {"xid-gsp-error"}),
        ((74,), {"xid-nvlink-error"}),
        ((62,), {"xid-gpu-fault"}),
        ((122,), {"xid-for-support"}),
        ((31,), {"xid-of-program"}),
        ((4711,), {"xid-for-support"}),
        ((63,), set()),  # a row was recorded for remapping: NVIDIA asks for nothing
        ((45,), set()),  # the cleanup after a process that was killed
        ((92,), set()),
        ((79, 45, 119, 154), {"xid-gpu-lost"}),
        ((48, 63, 94, 45), {"xid-memory-error"}),
        ((119, 45, 154), {"xid-gsp-error"}),
        ((31, 43, 45), {"xid-of-program"}),
        ((31, 62), {"xid-gpu-fault"}),  # the program failed because the GPU did
    ],
)
def test_the_cause_is_reported_and_its_consequences_are_not(numbers: tuple[int, ...], found: set[str]) -> None:
    assert failing(pasted("".join(xid(100.0 + index, number) for index, number in enumerate(numbers)))) == found


def test_consequences_are_named_with_the_cause() -> None:
    (item,) = pasted(xid(1, 79) + xid(2, 45) + xid(3, 119))["xid-gpu-lost"].evidence
    assert "followed by Xid 45, Xid 119" in item.seen


def test_an_hour_later_it_is_another_failure() -> None:
    assert failing(pasted(xid(1, 48) + xid(4000, 119))) == {"xid-memory-error", "xid-gsp-error"}


def test_links_to_a_lost_gpu_fail_with_it() -> None:
    assert failing(pasted(xid(1, 79) + xid(2, 74, gpu=OTHER) + xid(2, 45, gpu=OTHER))) == {"xid-gpu-lost"}
    assert failing(pasted(xid(1, 79) + xid(9000, 74, gpu=OTHER))) == {"xid-gpu-lost", "xid-nvlink-error"}


def test_recovered_errors_of_nvlink_5_and_of_switches_are_no_finding() -> None:
    assert failing(pasted(xid(1, 149, "NETIR_LINK_EVT Nonfatal XC0 i0 Link 08 (0x1 0x2)"))) == set()
    assert failing(pasted(xid(1, 149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x1 0x2)"))) == {"xid-nvlink-error"}
    line = "[1.000000] nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20009, {}, Link 28 RX Short Error Rate\n"
    assert failing(pasted(line.format("Non-fatal"))) == set()
    assert failing(pasted(line.format("Fatal"))) == {"xid-nvlink-error"}


def test_a_gpu_is_named_by_its_index_where_the_driver_shows_it() -> None:
    (item,) = live(xid(1209000, 62).strip())["xid-gpu-fault"].evidence
    assert item.subject == "GPU 3 (0000:61:00.0)"
    assert "2026-11-2" in item.seen and "UTC" in item.seen


def test_what_the_driver_asks_for_is_said() -> None:
    text = xid(1, 62) + xid(2, 154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    (item,) = pasted(text)["xid-gpu-fault"].evidence
    assert "GPU Reset Required" in item.wanted


@pytest.mark.parametrize(
    "after",
    [
        xid(9000, 154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"),
        "[ 9000.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024\n",
    ],
)
def test_what_a_reset_mended_is_over(after: str) -> None:
    results = pasted(xid(1, 95) + after)
    assert failing(results) == set()
    assert any("action any more" in item.seen or "loaded again" in item.seen for item in results["xid-memory-error"].evidence)


def test_a_gpu_that_is_lost_while_the_driver_starts_is_not_mended_by_that_start() -> None:
    text = (
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0\n               NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.\n"
        "[ 1843.439669] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build\n"
    )
    assert failing(pasted(text)) == {"xid-gpu-lost"}


def test_a_boot_in_a_file_of_several_boots_ends_what_was_before() -> None:
    text = f"Nov 20 10:00:00 h kernel: [  999.000000] NVRM: Xid (PCI:{GPU}): 79, x\nNov 20 12:00:00 h kernel: [    0.000000] Linux version 6.8.0\n"
    assert failing(pasted(text)) == set()


def test_the_window_ends_at_the_time_of_the_look() -> None:
    now = 30 * 86_400.0
    assert failing(live(xid(now - 6 * 86_400, 79).strip(), now_s=now)) == {"xid-gpu-lost"}
    assert failing(live(xid(now - 8 * 86_400, 79).strip(), now_s=now)) == set()


def test_several_programs_on_one_gpu_make_it_a_suspect() -> None:
    one = "".join(xid(1 + 100 * number, 31, f"pid={number}, name={name}, x") for number, name in enumerate(("a", "b", "c")))
    (item,) = pasted(one)["xid-of-program"].evidence
    assert "dcgmi diag" in item.wanted
    (first, second) = pasted(one + xid(500, 31, gpu=OTHER))["xid-of-program"].evidence
    assert "dcgmi" not in first.wanted + second.wanted


@pytest.mark.parametrize(("count", "found"), [(9, set()), (10, {"pcie-corrected-errors"})])
def test_few_corrected_errors_are_normal(count: int, found: set[str]) -> None:
    line = "[ {}0.000000] pcieport 0000:00:03.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)\n"
    assert failing(pasted("".join(line.format(number) for number in range(count)))) == found


@pytest.mark.parametrize(("count", "found"), [(2, set()), (3, {"network-link-flapping"})])
def test_a_link_may_go_down_twice(count: int, found: set[str]) -> None:
    assert (
        failing(pasted("".join(f"[ {number * 500}.000000] mlx5_core 0000:18:00.0 ib0: Link down\n" for number in range(count))))
        == found
    )


@pytest.mark.parametrize(("status", "found"), [("8c00004000010090", set()), ("bd80000000100134", {"memory-uncorrected-errors"})])
def test_corrected_machine_checks_are_no_uncorrected_errors(status: str, found: set[str]) -> None:
    assert failing(pasted(f"[1.000000] mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: {status}\n")) == found


def test_one_hung_task_is_reported_only_with_a_module() -> None:
    hung = "[1.000000] INFO: task jbd2/sda1-8:311 blocked for more than 120 seconds.\n"
    assert failing(pasted(hung)) == set()
    assert failing(pasted(f"{hung}[1.000000]  nfs_wait_bit_killable+0x1e/0x90 [nfs]\n")) == {"cpu-lockup-logged"}
    assert failing(pasted(hung * 3)) == {"cpu-lockup-logged"}


def test_a_server_that_came_back_is_no_finding() -> None:
    lost, back = "[{}.000000] nfs: server nas not responding, still trying\n", "[{}.000000] nfs: server nas OK\n"
    assert failing(pasted(lost.format(10) + back.format(40))) == set()
    assert failing(pasted(lost.format(10) + back.format(40) + lost.format(50))) == {"file-server-not-responding"}


def test_whose_memory_ran_out_is_said() -> None:
    constraint = "[1.000000] oom-kill:constraint={},nodemask=0,cpuset=c,mems_allowed=0,{}task_memcg=/a,task=python3,pid=9,uid=0\n"
    kill = "[1.000000] {}: Killed process 9 (python3) total-vm:1kB, anon-rss:1kB\n"
    for words, cgroup, message, said in (
        (
            "CONSTRAINT_MEMCG",
            "oom_memcg=/docker/c0ffee,",
            "Memory cgroup out of memory",
            "a cgroup's limit was reached (/docker/c0ffee)",
        ),
        ("CONSTRAINT_MEMORY_POLICY", "", "Out of memory", "memory nodes"),
        ("CONSTRAINT_NONE", "global_oom,", "Out of memory", "the end of the machine's memory"),
    ):
        (item,) = pasted(constraint.format(words, cgroup) + kill.format(message))["oom-kill-logged"].evidence
        assert item.subject == "python3" and said in item.seen


def test_one_kill_is_one_finding() -> None:
    answer = load_recording(str(HOSTS / "oom-kill-logged.fail.json"))["answers"]
    named = judge(load("healthy", answers=answer))
    both = judge(load("healthy", answers=answer, files={"/proc/vmstat": "oom_kill 1\n"}))
    assert failing(named) == {"oom-kill-logged"}
    assert failing(both) == {"oom-kill-logged"}
    assert "oom-kills-since-boot" in failing(judge(load("healthy", answers=answer, files={"/proc/vmstat": "oom_kill 2\n"})))


def test_a_driver_that_serves_the_gpu_by_now_is_believed() -> None:
    line = "[1209000.000000] NVRM: GPU 0000:{}:00.0: RmInitAdapter failed! (0x62:0xffff:2477)"
    assert failing(live(line.format("61"))) == set()
    assert failing(live(line.format("62"))) == {"gpu-initialisation-failed"}


def test_a_log_that_does_not_reach_back_to_the_boot_says_so() -> None:
    results = live(from_s=1_000_000.0, whole=False)
    (item,) = results["xid-gpu-lost"].evidence
    assert item.verdict is Verdict.PASS and "since 2026-11-" in item.seen
    (item,) = live()["xid-gpu-lost"].evidence
    assert item.seen == "no such Xid since boot"


def test_no_gpu_no_gpu_findings() -> None:
    results = pasted("[1.000000] EXT4-fs error (device sda1): ext4_lookup:1: inode #2: comm ls: deleted inode\n")
    assert failing(results) == {"disk-errors-logged"}
    assert results["xid-gpu-lost"].verdict in (Verdict.UNKNOWN, Verdict.NA)


def test_a_part_of_a_longer_report_is_judged() -> None:
    report = "PyTorch version: 2.5.1+cu124\nIs CUDA available: True\nGPU 0: NVIDIA H100 80GB HBM3\n\n$ dmesg | tail\n" + xid(
        5, 79
    )
    seen = evidence.read(report, "issue.txt")
    assert seen is not None and seen.origin == "report (collect_env, kernel log)"
    assert "xid-gpu-lost" in failing(judge(seen))


def test_a_report_without_a_log_is_not_judged_by_one() -> None:
    seen = evidence.read("PyTorch version: 2.5.1+cu124\nIs CUDA available: True\n", "issue.txt")
    assert seen is not None and "kernel log" not in seen.origin
    assert judge(seen)["oom-kill-logged"].verdict is Verdict.UNKNOWN


def test_only_advice_for_what_a_program_did() -> None:
    assert by_id()["xid-of-program"].severity is Severity.ADVICE


def test_requests_that_a_device_does_not_support_are_no_lost_data() -> None:
    text = "[1.000000] pcieport 0000:00:01.1: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)\n"
    assert failing(pasted(text)) == {"pcie-uncorrected-errors"}
    assert failing(pasted(f"{text}[1.000000] pcieport 0000:00:01.1:    [20] UnsupReq               (First)\n")) == set()


def test_a_disk_that_was_pulled_out_is_no_finding() -> None:
    line = "[1209000.000000] Buffer I/O error on dev {}, logical block 0, async page read"
    assert failing(live(line.format("sdz1"))) == set()
    assert failing(live(line.format("nvme1n1"))) == {"disk-errors-logged"}
    assert failing(pasted(line.format("sdz1"))) == {"disk-errors-logged"}
    failed = "[1209000.000000] md/raid1:md0: Disk failure on sdz1, disabling device."
    assert failing(live(failed)) == {"disk-errors-logged"}  # nobody pulled out a member of an array


def test_links_that_settle_while_the_machine_starts_do_not_flap() -> None:
    def flaps(start: float) -> list[str]:
        return [f"[{start + time:12.6f}] mlx5_core 0000:18:00.0 ib0: Link down" for time in (20, 90, 170)]

    assert failing(live(*flaps(0), now_s=3600.0)) == set()
    assert failing(live(*flaps(3000), now_s=3600.0)) == {"network-link-flapping"}


@pytest.mark.parametrize(("count", "found"), [(99, set()), (100, {"cpu-thermal-throttle-logged"})])
def test_a_hot_moment_is_no_finding(count: int, found: set[str]) -> None:
    line = "[{}.000000] CPU3: Core temperature above threshold, cpu clock throttled (total events = {})\n"
    assert failing(pasted(line.format(400, 1) + line.format(700, count))) == found


def test_a_refused_module_of_a_host_without_gpu_is_no_finding() -> None:
    found = judge(
        load(
            "typical/login-node",
            answers={
                "kernel-log": {"source": "/dev/kmsg", "lines": ["[9.000000] Loading of module with unavailable key is rejected"]}
            },
        )
    )
    assert found["module-signature-refused"].verdict is Verdict.NA


def test_a_report_may_hold_logs_with_different_clocks() -> None:
    wall = "2026-08-12T03:14:40+0000 host kernel: NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05\n"
    assert failing(pasted(xid(5, 79) + wall)) == {"xid-gpu-lost"}


def test_all_of_a_pasted_log_counts() -> None:
    late = "[9000000.000000] EXT4-fs error (device sda1): ext4_lookup:1: inode #2: comm ls: deleted inode\n"
    assert failing(pasted(xid(5, 79) + late)) == {"xid-gpu-lost", "disk-errors-logged"}


def test_one_missing_firmware_is_one_finding() -> None:
    text = (
        "nvidia 0000:01:00.0: Direct firmware load for nvidia/595.71.05/gsp_ga10x.bin failed with error -2\n"
        "NVRM: RmFetchGspRmImages: No firmware image found\nNVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x61:0x56:1927)\n"
    )
    results = pasted(text)
    assert failing(results) == {"gsp-firmware-missing"}
    assert [item.subject for item in results["gsp-firmware-missing"].evidence] == ["GPU at 0000:01:00.0"]


def test_advisory_errors_are_no_repeated_packets() -> None:
    line = "pcieport 0000:5f:01.0: PCIe Bus Error: severity=Corrected, type=Transaction Layer, (Receiver ID)"
    assert "pcie-corrected-errors" not in failing(live(*(f"[{1_200_000 + n}.000000] {line}" for n in range(500))))


def test_a_virtual_machine_that_was_paused_once_is_not_locked_up() -> None:
    line = "[1200000.000000] watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4242]"
    virtual = {"/sys/class/dmi/id/sys_vendor": "QEMU", "/sys/hypervisor/type": "xen"}
    assert "cpu-lockup-logged" in failing(live(line))
    assert "cpu-lockup-logged" not in failing(live(line, files=virtual))


@pytest.mark.parametrize(("lost", "found"), [("0000:61:00.0", "gpu-fallen-off-bus"), ("", "xid-gpu-lost")])
def test_a_gpu_that_is_lost_is_told_of_once(lost: str, found: str) -> None:
    answer = load_recording(str(HOSTS / "base-kernel.json"))["answers"]["kernel-log"]
    seen = load("healthy", answers={"kernel-log": {**answer, "lines": [*answer["lines"], xid(1_200_000.0, 79)]}})
    assert not isinstance(seen.gpu, Missing) and not isinstance(seen.gpu.devices, Missing)
    devices = tuple(msgspec.structs.replace(gpu, lost=gpu.pci_address == lost) for gpu in seen.gpu.devices)
    results = judge(msgspec.structs.replace(seen, gpu=msgspec.structs.replace(seen.gpu, devices=devices)))
    assert failing(results) & {"gpu-fallen-off-bus", "xid-gpu-lost"} == {found}
