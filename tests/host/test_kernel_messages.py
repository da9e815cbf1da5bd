"""Messages of the kernel and its drivers, in the words of their sources."""

from __future__ import annotations

import pytest

from torchtune_sys.formats.kernel_messages import read_log
from torchtune_sys.model.facts.kernel import KernelEvent


def read(text: str) -> tuple[KernelEvent, ...]:
    facts = read_log(text, "report")
    return () if facts is None else facts.events  # type: ignore[return-value]


XIDS = [
    ("NVRM: Xid (PCI:0000:18:00): 79, pid=1234, name=python3, GPU has fallen off the bus.", "0000:18:00.0", 79, "python3"),
    (
        "NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "0000:18:00.0",
        79,
        "",
    ),
    ("NVRM: Xid (0000:03:00): 79, GPU has fallen off the bus.", "0000:03:00.0", 79, ""),
    (
        "NVRM: Xid (PCI:0000:af:00): 13, Graphics SM Warp Exception on (GPC 0, TPC 1): Out Of Range Address",
        "0000:af:00.0",
        13,
        "",
    ),
    ("NVRM: Xid (PCI:0000:18:00 GPU-I:05): 31, pid=77, name=train.py, Ch 00000008", "0000:18:00.0", 31, "train.py"),
    ("NVRM: Xid (PCI:00000009:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x1 0x2)", "0009:01:00.0", 149, ""),
    ("nvidia 0000:18:00.0: NVRM: Xid (PCI:0000:18:00): 45, pid=1, name=a b, Ch 0", "0000:18:00.0", 45, "a b"),
]


@pytest.mark.parametrize(("line", "gpu", "number", "program"), XIDS)
def test_xid_in_every_shape(line: str, gpu: str, number: int, program: str) -> None:
    (event,) = read(f"[ 5.100000] {line}")
    assert (event.kind, event.subject, event.code, event.who) == ("xid", gpu, number, program)


ONE_LINE = [
    ("traps: python3[4711] trap invalid opcode ip:7f3b2c1d4e10 sp:7ffd3a2b1c00 error:0 in libtorch_cpu.so[7f3b2a000000+10c00000]", "crash", "python3"),
    ("traps: pt_main_thread[99] trap divide error ip:7f00 sp:7ffd error:0 in _C.cpython-312-x86_64-linux-gnu.so[7f00+1000]", "crash", "pt_main_thread"),
    ("python[88]: segfault at 0 ip 00007f1 sp 00007f2 error 4 in librccl.so.1.0[7f0+100]", "crash", "python"),
    ("BTRFS warning (device nvme0n1p3): csum failed root 5 ino 257 off 0 csum 0x8941f998 expected csum 0xb3a0c9d1 mirror 1", "fs-error", "nvme0n1p3"),
    ("BUG: workqueue lockup - pool cpus=3 node=0 flags=0x0 nice=0 stuck for 38s!", "lockup", ""),
    ("{1}[Hardware Error]:   error_type: 3, multi-bit ECC", "memory-uncorrected", ""),
    ("bnxt_en 0000:21:00.0 ens1f0np0: TX timeout detected, starting reset task!", "tx-timeout", "ens1f0np0"),
    ("nvidia 0000:01:00.0: Unable to change power state from D3cold to D0, device inaccessible", "gpu-lost", "0000:01:00.0"),
    ("NVRM: RmFetchGspRmImages: No firmware image found", "gsp-firmware", ""),
    ("NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.", "gpu-lost", "0000:18:00.0"),
    ("NVRM: The NVIDIA GPU 0000:05:00.0 installed in this system has fallen off the bus and is not responding to commands.", "gpu-lost", "0000:05:00.0"),
    ("NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x62:0xffff:2477)", "gpu-init", "0000:18:00.0"),
    ("NVRM: GPU 0000:01:00.0 is already bound to nouveau.", "gpu-bound", "0000:01:00.0"),
    ("nvidia 0000:18:00.0: Direct firmware load for nvidia/580.95.05/gsp_ga10x.bin failed with error -2", "gsp-firmware", "0000:18:00.0"),
    ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 30 sourcetrack timeout error", "sxid", "0000:c1:00.0"),
    ("nvidia 0000:41:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0042 address=0xc20 flags=0x0020]", "iommu-fault", "0000:41:00.0"),
    ("AMD-Vi: Event logged [IO_PAGE_FAULT device=41:00.0 domain=0x0042 address=0xc20 flags=0x0020]", "iommu-fault", "0000:41:00.0"),
    ("DMAR: [DMA Write NO_PASID] Request device [3b:00.0] fault addr 0x38200 [fault reason 0x05] PTE Write access is not set", "iommu-fault", "0000:3b:00.0"),
    ("pcieport 0000:00:01.1: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)", "aer-uncorrected", "0000:00:01.1"),
    ("pcieport 0000:00:01.1: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible, (Unregistered Agent ID)", "aer-uncorrected", "0000:00:01.1"),
    ("pcieport 0000:00:03.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)", "aer-corrected", "0000:00:03.0"),
    ("pcieport 0000:5d:00.0: DPC: containment event, status:0x1f01 source:0x0000", "pcie-contained", "0000:5d:00.0"),
    ("pcieport 0000:5d:00.0: pciehp: Slot(12): Link Down", "slot-down", "0000:5d:00.0"),
    ("mlx5_core 0000:18:00.0: poll_health:976:(pid 0): device's health compromised - reached miss count", "mlx5-fault", "0000:18:00.0"),
    ("mlx5_core 0000:18:00.0: poll_health:961:(pid 0): Fatal error 3 detected", "mlx5-fault", "0000:18:00.0"),
    ("mlx5_core 0000:18:00.0: Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)", "module-fault", "0000:18:00.0"),
    ("mlx5_core 0000:18:00.0: temp_warn:204:(pid 0): High temperature on sensors with bit set 0 1", "nic-hot", "0000:18:00.0"),
    ("mlx5_core 0000:18:00.0 ens1f0np0: Link down", "link-down", "ens1f0np0"),
    ("bnxt_en 0000:17:00.0 eno1: NIC Link is Down", "link-down", "eno1"),
    ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10", "nvme-reset", "nvme0"),
    ("nvme nvme0: I/O tag 512 (1200) opcode 0x2 (I/O Cmd) QID 12 timeout, reset controller", "nvme-reset", "nvme0"),
    ("nvme nvme0: Disabling device after reset failure: -19", "nvme-dead", "nvme0"),
    ("nvme0n1: I/O Cmd(0x2) @ LBA 4096, 8 blocks, I/O Error (sct 0x2 / sc 0x81) MORE DNR", "disk-medium", "nvme0n1"),
    ("blk_update_request: I/O error, dev sda, sector 2048 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0", "disk-io", "sda"),
    ("Buffer I/O error on dev dm-0, logical block 0, async page read", "disk-io", "dm-0"),
    ("EXT4-fs (nvme0n1p2): Remounting filesystem read-only", "fs-read-only", "nvme0n1p2"),
    ("XFS (nvme1n1): Metadata corruption detected at xfs_inode_buf_verify+0x1/0x2 [xfs], xfs_inode block 0x0", "fs-error", "nvme1n1"),
    ("BTRFS error (device sdb1): parent transid verify failed on 1 wanted 2 found 3", "fs-error", "sdb1"),
    ("BTRFS: error (device sda1 state EA) in btrfs_commit_transaction:2494: errno=-5 IO failure (Error while writing out transaction)", "fs-error", "sda1"),
    ("JBD2: Error -5 detected when updating journal superblock for dm-0-8.", "fs-error", "dm-0"),
    ("Aborting journal on device vda1-8.", "fs-error", "vda1"),
    ("EXT4-fs (vda1): Delayed block allocation failed for inode 131 at logical offset 0 with max blocks 4 with error 5", "fs-error", "vda1"),
    ("XFS (nvme1n1): Metadata CRC error detected at xfs_agf_read_verify+0x98/0xf0 [xfs], xfs_agf block 0x1", "fs-error", "nvme1n1"),
    ('XFS (dm-3): metadata I/O error in "xfs_imap_to_bp+0x5c/0xa0 [xfs]" at daddr 0x80 len 32 error 5', "fs-error", "dm-3"),
    ("WARNING: Pool 'tank' has encountered an uncorrectable I/O failure and has been suspended.", "fs-error", "tank"),
    ("device-mapper: thin: 253:4: switching pool to out-of-data-space (error IO) mode", "disk-io", "253:4"),
    ("bcachefs (nvme0n1): emergency read only at seq 10", "fs-read-only", "nvme0n1"),
    ("nfs: server nas not responding, still trying", "server-lost", "nas"),
    ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: be00000000010090", "machine-check", "3"),
    ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0)", "memory-uncorrected", "MC0"),
    ("INFO: task python3:4711 blocked for more than 120 seconds.", "hung-task", ""),
    ("NMI watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]", "lockup", ""),
    ("CPU3: Package temperature above threshold, cpu clock throttled (total events = 1)", "cpu-hot", "Package"),
    ("pt_main_thread[2536443]: segfault at 7f79 ip 00007f7c sp 00007f7c error 4 in libnccl.so.2[7f7c+d3d3000]", "crash", "pt_main_thread"),
    ("traps: python3[4711] general protection fault ip:7f01 sp:7ffc error:0 in libtorch_cpu.so[7f00+1000]", "crash", "python3"),
    ("Out of memory: Kill process 4711 (python) score 900 or sacrifice child", "oom-kill", "Out of memory"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "kind", "subject"), ONE_LINE, ids=[f"{kind}-{number}" for number, (_, kind, _) in enumerate(ONE_LINE)]
)
def test_one_line(line: str, kind: str, subject: str) -> None:
    assert [(event.kind, event.subject) for event in read(f"[ 5.100000] {line}")] == [(kind, subject)]


HARMLESS = [
    "mlx5_core 0000:18:00.0: Port module event: module 0, Cable unplugged",
    "mlx5_core 0000:18:00.0: print_health_info:507:(pid 0): synd 0x0: unrecognized error",
    "mlx5_core 0000:18:00.0 ens1f0np0: Link up",
    "pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0",
    "nvme nvme0: 64/0/0 default/read/poll queues",
    "nvme nvme0: I/O 5 QID 3 timeout, aborting",
    "XFS (nvme1n1): Ending clean mount",
    "EXT4-fs (sda1): re-mounted 1f0b r/w. Quota mode: none.",
    "I/O error, dev sr0, sector 0 op 0x0:(READ)",
    "Buffer I/O error on dev fd0, logical block 0",
    "EDAC MC0: Giving out device to module skx_edac",
    "mce: CPU0: Thermal monitoring enabled (TM1)",
    "python3[4711]: segfault at 0 ip 0 sp 0 error 4 in libc.so.6[7f+1]",
    "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
    "NVRM: GPU at PCI:0000:9b:00: GPU-509665ad-b600-ac93-3616-d754b23d636d",
    "nouveau 0000:01:00.0: vgaarb: deactivate vga console",
    "DMAR: [Firmware Bug]: RMRR entry for device",
]


@pytest.mark.parametrize("line", HARMLESS)
def test_harmless_lines_say_nothing(line: str) -> None:
    assert read(f"[ 5.100000] {line}") == ()


def test_the_lines_of_one_message_belong_together() -> None:
    (event,) = read(
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.\n"
    )
    assert (event.kind, event.subject, event.first_s) == ("gpu-lost", "0000:b3:00.0", 1843.308145)


def test_a_region_without_address_is_that_of_the_next_line() -> None:
    (event,) = read(
        "[1.000000] NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\n[1.000000] NVRM: BAR1 is 0M @ 0x0 (PCI:0000:02:00.0)\n"
    )
    assert (event.kind, event.subject) == ("gpu-bar", "0000:02:00.0")


def test_an_open_module_names_the_gpu_that_it_cannot_serve() -> None:
    (event,) = read(
        "[1.000000] NVRM: The NVIDIA GPU 0000:62:00.0 (PCI ID: 10de:1db6)\n[1.000000] NVRM: installed in this system is not supported by open\n"
    )
    assert (event.kind, event.subject) == ("gpu-needs-proprietary", "0000:62:00.0")


def test_an_oom_kill_says_whose_limit_it_was() -> None:
    (event,) = read(
        "[1.000000] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c,mems_allowed=0,oom_memcg=/docker/c0ffee,task_memcg=/docker/c0ffee,task=python3,pid=9,uid=0\n"
        "[1.000000] Memory cgroup out of memory: Killed process 9 (python3) total-vm:1kB, anon-rss:1kB\n"
    )
    assert (event.kind, event.who) == ("oom-kill", "python3")
    assert "CONSTRAINT_MEMCG /docker/c0ffee" in event.text


def test_both_versions_of_a_mismatch_are_kept() -> None:
    (event,) = read(
        "Aug 26 14:08:07 host kernel: NVRM: API mismatch: the client has the version 367.44, but\n"
        "                             NVRM: this kernel module has the version 367.35.  Please\n"
    )
    assert "367.44" in event.text and event.who == "367.35"


def test_a_lockup_names_the_module_in_its_stack() -> None:
    (event,) = read(
        "[1.000000] watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [python3:9]\n[1.000000] RIP: 0010:_nv012454rm+0x437/0x4b0 [nvidia]\n"
    )
    assert event.text.endswith("in the module nvidia")


def test_messages_a_minute_apart_are_two_events() -> None:
    line = "NVRM: Xid (PCI:0000:18:00): 31, pid=1, name={}, x\n"
    found = read("".join(f"[{time}.000000] {line.format(name)}" for time, name in ((10, "a"), (12, "b"), (100, "c"))))
    assert [(event.count, event.who, event.first_s, event.last_s) for event in found] == [(2, "a, b", 10, 12), (1, "c", 100, 100)]


def kinds(*lines: str) -> list[tuple[str, str, str]]:
    return [(event.kind, event.subject, event.who) for event in read("\n".join(lines) + "\n")]


FIRMWARE = (
    "[11219.196524] {1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 1",
    "[11219.196558] {1}[Hardware Error]: event severity: SEVERITY",
    "[11219.196576] {1}[Hardware Error]:  Error 0, type: SEVERITY",
    "[11219.196591] {1}[Hardware Error]:   section_type: PCIe error",
    "[11219.196606] {1}[Hardware Error]:   port_type: 4, root port",
    "[11219.196653] {1}[Hardware Error]:   device_id: 0000:5d:02.0",
    "[11219.196684] {1}[Hardware Error]:   vendor_id: 0x8086, device_id: 0x347a",
    "[11219.196690] {1}[Hardware Error]:   aer_uncor_status: 0x00004020, aer_uncor_mask: 0x00000000",
)


@pytest.mark.parametrize(
    ("severity", "event"),
    [
        ("fatal", ("aer-uncorrected", "0000:5d:02.0", "Fatal")),
        ("recoverable", ("aer-uncorrected", "0000:5d:02.0", "Non-Fatal")),
        ("corrected", ("aer-corrected", "0000:5d:02.0", "reported by the firmware")),
    ],
)
def test_an_error_record_of_the_firmware_is_one_event(severity: str, event: tuple[str, str, str]) -> None:
    assert kinds(*(line.replace("SEVERITY", severity) for line in FIRMWARE)) == [event]


def test_information_from_the_firmware_is_no_error() -> None:
    assert kinds(*(line.replace("SEVERITY", "info") for line in FIRMWARE)) == []


def test_a_record_of_the_boot_before_has_no_number() -> None:
    lines = (line.replace("SEVERITY", "fatal").replace("{1}", "") for line in FIRMWARE[1:])
    assert kinds("[    1.2] BERT: Error records from previous boot:", *lines) == [("aer-uncorrected", "0000:5d:02.0", "Fatal")]


def test_an_unsupported_request_told_by_the_firmware_is_marked_as_one() -> None:
    lines = [line.replace("SEVERITY", "recoverable").replace("0x00004020", "0x00100000") for line in FIRMWARE]
    assert "UnsupReq" in read("\n".join(lines))[0].text


def test_memory_that_the_firmware_calls_broken_is_an_uncorrected_error_and_corrected_memory_none() -> None:
    record = [line.replace("PCIe error", "memory error") for line in FIRMWARE[:4]]
    assert kinds(*(line.replace("SEVERITY", "recoverable") for line in record)) == [("memory-uncorrected", "", "")]
    assert kinds(*(line.replace("SEVERITY", "corrected") for line in record)) == []


LIMITED = "[    3.1] {0}: {1} Gb/s available PCIe bandwidth, limited by {2} link at 0000:00:01.0 (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)"


@pytest.mark.parametrize(
    ("device", "limit", "found"),
    [
        ("mlx5_core 0000:63:00.0", "16.0 GT/s PCIe x8", ["0000:63:00.0"]),
        ("pci 0000:01:00.0", "2.5 GT/s x1", ["0000:01:00.0"]),  # older kernels leave "PCIe" out
        ("mlx5_core 0000:63:00.0", "8.0 GT/s PCIe x16", []),  # slower, not narrower
        ("pci 0103:00:00.0", "Unknown speed x0", []),  # a virtual machine's
    ],
)
def test_only_a_link_with_fewer_lanes_than_the_card_is_narrow(device: str, limit: str, found: list[str]) -> None:
    assert [subject for _, subject, _ in kinds(LIMITED.format(device, "31.5", limit))] == found


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("NVRM: The NVIDIA probe routine failed for 2 device(s).", "gpu-probe-failed"),
        ("NVRM: The NVIDIA probe routine was not called for 1 device(s).", "gpu-not-probed"),
        ("infiniband efa_0: Wait for completion (polling) timeout", "efa-fault"),
        (
            "infiniband rdmap16s27: The device didn't send any completion for admin cmd CREATE_AH(5) status 0 (ctx 0x0)",
            "efa-fault",
        ),
        ("infiniband rdmap16s27: Admin queue is closed", "efa-fault"),
    ],
)
def test_lines_of_drivers_that_do_not_get_their_device(line: str, kind: str) -> None:
    assert [found for found, _, _ in kinds(f"[   12.500000] {line}")] == [kind]


@pytest.mark.parametrize(
    "line",
    [
        "efa 0000:00:07.0: Setup irq:1861 name:efa-mgmnt@pci:0000:00:07.0",
        "infiniband efa_0: IB device registered",
        "infiniband efa_0: Failed to process command ALLOC_PD (opcode 14) comp_status 1 err -12",  # a program asked for too much
        "mlx5_core 0000:63:00.0: 504.112 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 link)",
    ],
)
def test_lines_that_every_healthy_host_has_say_nothing(line: str) -> None:
    assert kinds(f"[   12.500000] {line}") == []


def test_a_channel_taken_down_names_the_error_that_did_it() -> None:
    (event,) = read("[ 7.100000] NVRM: Xid (PCI:0000:dc:00): 45, pid=18, name=python3, Ch 00000001 caused by previous Xid 149\n")
    assert (event.kind, event.code, event.subject) == ("xid", 149, "0000:dc:00.0")
