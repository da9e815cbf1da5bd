"""Failures that the kernel's log tells and that passed unseen: crashes, limits, heat, file servers, AMD's GPUs, tasks of Python that hang."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from kernel_hosts import FAIL, NA, PASS, UNKNOWN, failing, live, pasted

from conftest import judge, load
from torchtune_sys import evidence
from torchtune_sys.model.preflight import Blame, Go
from torchtune_sys.model.rule import Result
from torchtune_sys.preflight import verdict
from torchtune_sys.preflight.policy import Policy

AT = 1_209_000.0
"""Ten minutes before the look at the healthy host."""
AMD = "amdgpu 0000:83:00.0: amdgpu: "

SEEN = (
    ("panic", "kernel-crash-logged", "Kernel panic - not syncing: Fatal exception in interrupt"),
    ("panic-hung", "kernel-crash-logged", "Kernel panic - not syncing: hung_task: blocked tasks"),
    ("panic-nmi", "kernel-crash-logged", "Kernel panic - not syncing: NMI: Not continuing"),
    ("oops", "kernel-crash-logged", "Oops: 0002 [#1] PREEMPT SMP NOPTI"),
    ("oops-6.10", "kernel-crash-logged", "Oops: general protection fault, probably for non-canonical address 0xdead000000000100: 0000 [#1] PREEMPT SMP NOPTI"),
    ("null", "kernel-crash-logged", "BUG: kernel NULL pointer dereference, address: 0000000000000008"),
    ("page-fault", "kernel-crash-logged", "BUG: unable to handle page fault for address: ffffffffc0a1b000"),
    ("bug", "kernel-crash-logged", "kernel BUG at mm/slub.c:4372!"),
    ("arm", "kernel-crash-logged", "Internal error: Oops: 0000000096000004 [#1] SMP"),
    ("arm-null", "kernel-crash-logged", "Unable to handle kernel NULL pointer dereference at virtual address 0000000000000018"),
    ("bad-page", "kernel-crash-logged", "BUG: Bad page state in process python3  pfn:1f2a00"),
    ("file-max", "open-files-limit-reached-logged", "VFS: file-max limit 65536 reached"),
    ("pids", "pids-limit-reached-logged", "cgroup: fork rejected by pids controller in /kubepods/burstable/pod1a2b/0c1d"),
    ("conntrack", "conntrack-table-full-logged", "nf_conntrack: nf_conntrack: table full, dropping packet"),
    ("conntrack-4", "conntrack-table-full-logged", "nf_conntrack: table full, dropping packet"),
    ("neighbours", "neighbour-table-full-logged", "neighbour: arp_cache: neighbor table overflow!"),
    ("neighbours-3", "neighbour-table-full-logged", "Neighbour table overflow."),
    ("heat", "critical-temperature-logged", "thermal thermal_zone0: critical temperature reached (105 C), shutting down"),
    ("heat-6", "critical-temperature-logged", "thermal thermal_zone0: acpitz: critical temperature reached, shutting down"),
    ("heat-last", "critical-temperature-logged", "reboot: HARDWARE PROTECTION shutdown (Temperature too high)"),
    ("heat-gpu", "critical-temperature-logged", AMD + "ERROR: GPU over temperature range(SW CTF) detected!"),
    ("lustre-evicted", "file-system-client-evicted", "LustreError: 167-0: scratch-OST0004-osc-ffff9d3c5a3f8000: This client was evicted by scratch-OST0004; in progress operations using this service will fail."),
    ("lustre-mgs", "file-server-not-responding", "LustreError: 166-1: MGC10.0.0.2@o2ib: Connection to MGS (at 10.0.0.2@o2ib) was lost; in progress operations using this service will fail"),
    ("lustre-sent", "disk-errors-logged", "LustreError: 132-0: srv1-OST0004-osc-ffff9d3c5a3f8000: BAD WRITE CHECKSUM: changed in transit before arrival at OST: from 10.0.0.5@o2ib"),
    ("lustre-sum", "disk-errors-logged", "LustreError: 133-1: scratch-OST0004-osc-ffff9d3c5a3f8000: BAD READ CHECKSUM: from 10.0.0.5@o2ib inode [0x200000401:0x1:0x0] object 0x0:123 extent [0-1048575]"),
    ("lustre-bug", "disk-errors-logged", "LustreError: 2931:0:(osc_cache.c:978:osc_extent_wait()) LBUG"),
    ("ceph-mon", "file-server-not-responding", "libceph: mon0 (1)10.0.0.3:6789 session lost, hunting for new mon"),
    ("ceph-osd", "file-server-not-responding", "libceph: osd11 down"),
    ("ceph-mds", "file-server-not-responding", "ceph: mds0 hung"),
    ("ceph-mds-6.9", "file-server-not-responding", "ceph: [28f7427e-5558-4ffd-ae1a-51ec3042759a 25386880]: mds0 hung"),
    ("ceph-denied", "file-system-client-evicted", "ceph: mds0 reconnect denied"),
    ("amd-ring", "amdgpu-reset-logged", "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=2481, emitted seq=2483"),
    ("amd-ring-6", "amdgpu-reset-logged", AMD + "ring gfx_0.0.0 timeout, signaled seq=7073226, emitted seq=7073228"),
    ("amd-ring-6.12", "amdgpu-reset-logged", "amdgpu 0000:83:00.0: ring comp_1.1.0 timeout, signaled seq=9, emitted seq=10"),
    ("amd-reset", "amdgpu-reset-logged", AMD + "GPU reset begin!"),
    ("amd-source", "amdgpu-reset-logged", AMD + "GPU reset begin!. Source:  4"),
    ("amd-queue", "amdgpu-reset-logged", "amdgpu: qcm fence wait loop timeout expired"),
    ("amd-mes", "amdgpu-reset-logged", AMD + "MES(1) failed to respond to msg=REMOVE_QUEUE"),
    ("amd-failed", "amdgpu-reset-failed-logged", AMD + "GPU reset(1) failed"),
    ("amd-recovery", "amdgpu-reset-failed-logged", AMD + "GPU Recovery Failed: -110"),
    ("amd-ue", "amdgpu-uncorrectable-errors-logged", AMD + "2 uncorrectable hardware errors detected in umc block"),
    ("amd-ue-6", "amdgpu-uncorrectable-errors-logged", AMD + "socket: 0, die: 0, 1 new uncorrectable hardware errors detected in gfx block"),
    ("amd-athub", "amdgpu-uncorrectable-errors-logged", AMD + "uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!"),
    ("amd-init", "amdgpu-initialisation-failed", AMD + "Fatal error during GPU init"),
    ("python", "cpu-lockup-logged", "INFO: task python3:4711 blocked for more than 120 seconds."),
    ("worker", "cpu-lockup-logged", "INFO: task pt_data_worker:4711 blocked for more than 122 seconds."),
)  # fmt: skip


@pytest.mark.parametrize(("rule_id", "line"), [row[1:] for row in SEEN], ids=[row[0] for row in SEEN])
def test_the_log_tells_of_it(rule_id: str, line: str) -> None:
    """On a live host, in a paste with times, and in one without."""
    assert failing(live(f"[{AT:.6f}] {line}")) == {rule_id}
    assert rule_id in failing(pasted(f"[12.500000] {line}\n"))
    assert rule_id in failing(pasted(f"{line}\n"))


HARMLESS = (
    "cgroup: cgroup: disabling cgroup2 socket matching due to net_prio activation",
    "nf_conntrack: default automatic helper assignment has been turned off for security reasons",
    "thermal thermal_zone0: failed to read out thermal zone (-61)",
    "amdgpu 0000:83:00.0: amdgpu: ring gfx_0.0.0 timeout, but soft recovered",
    "amdgpu 0000:83:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block",
    "amdgpu 0000:83:00.0: 1048560 uncorrectable hardware errors detected in umc block",
    "amdgpu 0000:83:00.0: amdgpu: 3 correctable hardware errors detected in umc block, no user action is needed.",
    "amdgpu 0000:83:00.0: amdgpu: amdgpu: finishing device.",
    "WARNING: CPU: 3 PID: 4711 at drivers/gpu/drm/amd/amdgpu/../display/dc/dc.c:1077 dc_commit+0x1/0x2 [amdgpu]",
    "Lustre: 2931:0:(client.c:2289:ptlrpc_expire_one_request()) @@@ Request sent has timed out for slow reply: [sent 1/real 1]",
    "libceph: mon0 (1)10.0.0.3:6789 session established",
    "ceph: mds0 came back",
    "Freeing unused kernel image (initmem) memory: 2700K",
    "BUG: Bad rss-counter state mm:00000000d5ba0bfa type:MM_ANONPAGES val:1",
    "INFO: task kworker/u8:1:31 blocked for more than 120 seconds.",
    "Kernel command line: panic=10 oops=panic",
    "EXT4-fs error (device loop3): ext4_lookup:1855: inode #12: comm python: iget: checksum invalid",
    "EXT4-fs (loop3): Remounting filesystem read-only",
    "XFS (loop0): Metadata corruption detected at xfs_agi_verify+0x1/0x2 [xfs], xfs_agi block 0x2",
    "critical medium error, dev sr0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
    "LustreError: 132-0: scratch-OST0004-osc-ffff9d3c5a3f8000: BAD WRITE CHECKSUM: changed on the client after we checksummed it - likely false positive due to mmap IO (bug 11742): from 10.0.0.5@o2ib inode [0x200000401:0x1:0x0]",
)


_AVC = 'audit: type=1400 audit(1760000000.123:91): avc:  denied  {{ {} }} for  pid=4711 comm="{}" {} dev="devtmpfs" ino=3 scontext=system_u:system_r:{}:s0 tcontext=system_u:object_r:x_t:s0 tclass={} permissive={}'
_ARMOR = 'audit: type=1400 audit(1760000000.123:91): apparmor="DENIED" operation="{}" class="file" profile="{}" name="{}" pid=4711 comm="{}" requested_mask="wr" denied_mask="wr" fsuid=1000 ouid=0'
REFUSED = (
    _AVC.format("open", "python3", 'path="/dev/nvidia0"', "container_t", "chr_file", 0),
    _AVC.format("read write", "ray::train", 'name="uverbs0"', "container_t", "chr_file", 0),
    _ARMOR.format("open", "snap.code.code", "/dev/nvidia-caps/nvidia-cap1", "python3"),
    _ARMOR.format("open", "docker-default", "/dev/kfd", "torchrun"),
)
HARMLESS += (
    _AVC.format("open", "python3", 'path="/dev/nvidia0"', "container_t", "chr_file", 1),
    _AVC.format("getattr", "python3", 'path="/dev/nvidia0"', "insights_client_t", "chr_file", 0),
    _AVC.format("search", "python3", 'name="nvidia"', "httpd_t", "dir", 0),
    _AVC.format("open", "python3", 'name="nvidia-smi"', "httpd_t", "file", 0),
    _ARMOR.format("open", "snap.firmware-updater.notifier", "/dev/nvidia-modeset", "python3"),
    _ARMOR.format("open", "snap.firmware-updater.notifier", "/dev/dri/renderD128", "python3"),
    _ARMOR.format("open", "snap.chromium.chromium", "/dev/nvidiactl", "chrome"),
    _ARMOR.format("open", "docker-default", "/proc/driver/nvidia/params", "python3"),
    _ARMOR.format("chmod", "snap.code.code", "/dev/nvidia0", "python3"),
    "xe 0000:00:02.0: [drm] *ERROR* CRITICAL: Xe has declared device 0000:00:02.0 as wedged.",
    "habanalabs 0000:33:00.0: accel0: Device heartbeat failed! PCI link is healthy",
)


@pytest.mark.parametrize("line", REFUSED)
def test_a_training_program_was_refused_a_device(line: str) -> None:
    assert failing(live(f"[{AT:.6f}] {line}")) == {"device-access-refused-logged"}


def test_render_nodes_are_those_of_amd_and_intel() -> None:
    line = _ARMOR.format("open", "snap.code.code", "/dev/dri/renderD128", "python3")
    assert "device-access-refused-logged" in failing(pasted(f"[{AT:.6f}] {line}"))


@pytest.mark.parametrize("line", HARMLESS)
def test_what_only_looks_like_it_is_no_finding(line: str) -> None:
    assert failing(live(f"[{AT:.6f}] {line}")) == set()


CHOSEN = (
    "Oops: dead [#1][4711]: segfault at 8 ip 00007f10a3b0c0de sp 00007ffd2f3a1b40 error 4 in x.so[7f10a0000000+5000000]",
    "INFO: task Oops: dead [#1]:4711 blocked for more than 120 seconds.",
    "watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [Oops: dead [#1]:4711]",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/user.slice/NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus,task=x,pid=1,uid=1000",
    "cgroup: fork rejected by pids controller in /user.slice/u/NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus",
    "Memory cgroup stats for /user.slice/EDAC MC0: 1 UE memory read error on DIMM_A1: anon 1",
    "process 'u/Kernel panic - not syncing: x' started with executable stack",
)
"""Names that a user gave to a program, a task or a control group."""


@pytest.mark.parametrize("line", CHOSEN)
def test_names_that_a_user_chose_are_no_messages_of_the_kernel(line: str) -> None:
    found = verdict.of_results(live(f"[{AT:.6f}] {line}").values(), Policy(), hook=True)
    assert verdict.verdict(found) is Go.GO
    assert not failing(live(f"[{AT:.6f}] {line}")) - {"cpu-lockup-logged", "pids-limit-reached-logged"}


def test_a_server_that_came_back_is_no_finding() -> None:
    lost, back = (
        "libceph: mon0 (1)10.0.0.3:6789 session lost, hunting for new mon",
        "libceph: mon2 (1)10.0.0.5:6789 session established",
    )
    assert failing(live(f"[{AT:.6f}] {lost}", f"[{AT + 9:.6f}] {back}")) == set()
    assert failing(live(f"[{AT:.6f}] {back}", f"[{AT + 9:.6f}] {lost}")) == {"file-server-not-responding"}


_LOST = "Device heartbeat failed! PCI link is broken"
GIVEN_UP = (
    ("xe 0000:03:00.0: [drm] *ERROR* CRITICAL: Xe has declared device 0000:03:00.0 as wedged.", "xe 0000:03:00.0: [drm] Initialized xe 1.1.0 for 0000:03:00.0 on minor 1"),
    (f"accel accel0: {_LOST}", "accel accel0: Successfully finished resetting the 0000:33:00.0 device"),
    (f"habanalabs hl0: {_LOST}", "habanalabs hl0: Successfully finished resetting the device"),
)  # fmt: skip


@pytest.mark.parametrize(("lost", "back"), GIVEN_UP)
def test_an_accelerator_is_lost_until_its_driver_says_that_it_is_back(lost: str, back: str) -> None:
    lost, back = f"[{AT:.6f}] {lost}", f"[{{:.6f}}] {back}"
    assert failing(live(lost)) == failing(live(back.format(AT - 1), lost)) == {"accelerator-given-up-logged"}
    assert not failing(live(lost, back.format(AT + 1)))


def test_each_accelerator_is_named() -> None:
    found = pasted(f"[{AT:.6f}] habanalabs hl0: {_LOST}\n[{AT:.6f}] habanalabs hl1: {_LOST}")["accelerator-given-up-logged"]
    assert [each.subject for each in found.evidence] == ["hl0", "hl1"]


def test_a_reset_that_worked_in_the_end() -> None:
    failed, done = AMD + "GPU reset(1) failed", AMD + "GPU reset(2) succeeded!"
    assert failing(live(f"[{AT:.6f}] {failed}", f"[{AT + 9:.6f}] {done}")) == set()
    assert failing(live(f"[{AT:.6f}] {done}", f"[{AT + 9:.6f}] {failed}")) == {"amdgpu-reset-failed-logged"}


def test_the_module_that_crashed_is_named() -> None:
    lines = (
        "BUG: kernel NULL pointer dereference, address: 0000000000000008",
        "Oops: 0002 [#1] PREEMPT SMP NOPTI",
        "RIP: 0010:uvm_va_block_cpu_fault+0x12/0x40 [nvidia_uvm]",
    )
    (item,) = live(*(f"[{AT:.6f}] {line}" for line in lines))["kernel-crash-logged"].evidence
    assert "in the module nvidia_uvm" in item.seen


def _virtual(*lines: str) -> Mapping[str, Result]:
    return live(
        *lines, files={"/sys/class/dmi/id/sys_vendor": "QEMU\n", "/sys/hypervisor/type": "xen\n", "/proc/cpuinfo": _cpuinfo()}
    )


def _cpuinfo() -> str:
    from conftest import HOSTS
    from torchtune_sys.host.recorded import load_recording

    text = load_recording(str(HOSTS / "healthy.json"))["files"]["/proc/cpuinfo"]
    text = "\n".join(text) + "\n" if isinstance(text, list) else text
    return text.replace("flags\t\t: ", "flags\t\t: hypervisor ")


BLOCKED = "INFO: task python3:4711 blocked for more than {} seconds."


def test_a_paused_machine_raises_no_alarm() -> None:
    once = f"[{AT:.6f}] {BLOCKED.format(122)}"
    assert "cpu-lockup-logged" not in failing(_virtual(once))
    assert "cpu-lockup-logged" in failing(_virtual(once, f"[{AT + 121:.6f}] {BLOCKED.format(243)}"))
    for sign in (
        "clocksource: Long readout interval, skipping watchdog check: cs_nsec: 2600312 wd_nsec: 26003",
        "watchdog: BUG: soft lockup - CPU#3 stuck for 131s! [swapper/3:0]",
        "PM: suspend exit",
    ):
        found = live(once, f"[{AT - 3:.6f}] {sign}")["cpu-lockup-logged"]
        assert "tasks" not in {item.subject for item in found.evidence if item.verdict is FAIL}, sign


def test_a_pasted_log_says_itself_that_the_machine_is_virtual() -> None:
    once = f"[ 9000.000000] {BLOCKED.format(122)}\n"
    assert failing(pasted(once)) == {"cpu-lockup-logged"}
    assert failing(pasted("[    0.000000] Hypervisor detected: KVM\n" + once)) == set()


def test_lines_of_amdgpu_without_times_are_a_kernel_log() -> None:
    text = "amdgpu 0000:83:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:3 pasid:32773)\namdgpu 0000:83:00.0: amdgpu:   in page starting at address 0x00007fc991c04000 from IH client 0x1b (UTCL2)\n"
    seen = evidence.read(text, "log.txt")
    assert seen is not None and "kernel log" in seen.origin


DUMPS = (
    ("/sys/fs/pstore/dmesg-efi-179525520001001", FAIL),  # 2026-11-21, by EFI's number
    ("/sys/fs/pstore/dmesg-efi_pstore-179525520001001", FAIL),
    ("/sys/fs/pstore/dmesg-ramoops-0", FAIL),
    ("/var/lib/systemd/pstore/1795255200", FAIL),
    ("/var/crash/202611201230", FAIL),
    ("/var/crash/127.0.0.1-2026-11-20-12:30:05", FAIL),
    ("/var/crash/127.0.0.1-2025-11-20-12:30:05", PASS),
    ("/var/lib/systemd/pstore/1595255200", PASS),
    ("/var/crash/_usr_bin_python3.0.crash", PASS),
    ("/sys/fs/pstore/console-ramoops-0", PASS),
)


@pytest.mark.parametrize(("path", "verdict"), DUMPS)
def test_what_a_crash_left_is_found(path: str, verdict: object) -> None:
    found = judge(load("healthy", files={path: "x\n"}))["kernel-crash-dump-found"]
    assert found.verdict is verdict, found


def test_a_place_that_may_not_be_read_is_no_place_without_dumps() -> None:
    denied = {"/sys/fs/pstore": {"error": "denied"}}
    assert judge(load("healthy", dirs=denied))["kernel-crash-dump-found"].verdict is UNKNOWN
    dump = {"/var/crash/202611201230/dmesg.202611201230": "x\n"}
    assert judge(load("healthy", dirs=denied, files=dump))["kernel-crash-dump-found"].verdict is FAIL


@pytest.mark.parametrize(("bits", "verdict"), [(128, FAIL), (16, FAIL), (32, FAIL), (4097 + 8192 + 512, PASS), (0, PASS)])
def test_the_taint_of_a_fault_is_none_of_a_module(bits: int, verdict: object) -> None:
    assert judge(load("healthy", files={"/proc/sys/kernel/tainted": f"{bits}\n"}))["kernel-tainted-by-fault"].verdict is verdict


def test_without_amd_there_is_nothing_to_say_of_it() -> None:
    assert judge(load("healthy"))["amdgpu-reset-logged"].verdict is NA


OF_A_JOB = (
    ("pids", Blame.USER, "cgroup: fork rejected by pids controller in /slurm/uid_1000/job_17"),
    ("memory", Blame.USER, "Memory cgroup out of memory: Killed process 4711 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:1kB oom_score_adj:0"),
    ("open-files", Blame.NODE, "VFS: file-max limit 65536 reached"),
    ("segfault", Blame.USER, "python[4711]: segfault at 8 ip 00007f10a3b0c0de sp 00007ffd2f3a1b40 error 4 in libtorch_cuda.so[7f10a0000000+5000000]"),
    ("adapter", Blame.HARDWARE, "mlx5_core 0000:18:00.0: Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)"),
    ("hot", Blame.HARDWARE, "thermal thermal_zone0: acpitz: critical temperature reached, shutting down"),
    ("disk", Blame.HARDWARE, "I/O error, dev nvme1n1, sector 4096 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0"),
    ("evicted", Blame.NETWORK, "LustreError: 167-0: scratch-OST0004-osc-ffff9d3c5a3f8000: This client was evicted by scratch-OST0004; in progress operations using this service will fail."),
)  # fmt: skip
"""What one job does to itself, or had to bear, and what is over when the next one starts."""


@pytest.mark.parametrize(("blame", "line"), [row[1:] for row in OF_A_JOB], ids=[row[0] for row in OF_A_JOB])
def test_what_a_job_left_in_the_log_drains_no_node(blame: Blame, line: str) -> None:
    before = verdict.of_results(live().values(), Policy())
    causes = [cause for cause in verdict.of_results(live(f"[{AT:.6f}] {line}").values(), Policy()) if cause not in before]
    assert [cause.blame for cause in causes] == [blame]
    assert verdict.verdict(causes) is Go.GO


MENDED = (
    ("sxid", "nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 24007, Fatal, Link 30 sourcetrack timeout error", "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05"),
    ("xid", "NVRM: Xid (PCI:0000:18:00): 119, pid=1, name=python, Timeout after 6s of waiting for RPC response from GPU0 GSP!", "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05"),
    ("amd", AMD + "2 uncorrectable hardware errors detected in umc block", AMD + "GPU reset(3) succeeded!"),
)  # fmt: skip
"""What was, and the message of what mended it."""


@pytest.mark.parametrize(("fault", "mend"), [row[1:] for row in MENDED], ids=[row[0] for row in MENDED])
def test_what_was_mended_since_drains_no_node(fault: str, mend: str) -> None:
    def verdict_of(*lines: str) -> Go:
        before = verdict.of_results(live().values(), Policy(), hook=True)
        found = verdict.of_results(live(*lines).values(), Policy(), hook=True)
        return verdict.verdict(cause for cause in found if cause not in before)

    assert verdict_of(f"[{AT:.6f}] {fault}") is Go.NO_GO
    assert verdict_of(f"[{AT:.6f}] {fault}", f"[{AT + 300:.6f}] {mend}") is Go.GO
    assert verdict_of(f"[{AT - 300:.6f}] {mend}", f"[{AT:.6f}] {fault}") is Go.NO_GO
