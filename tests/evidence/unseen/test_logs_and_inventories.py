"""Other texts of each class that a fifth set of unseen hosts showed: what a kernel's log, /proc/cpuinfo, rocminfo and dmidecode tell, and reports of the
killer without the line of the kill."""

from __future__ import annotations

import pytest

from evidence.unseen.judging import judged, seen
from torchtune_sys import evidence
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Missing, known

STAMPS = ("[    0.000000] ", "[    0.000000][    T0] ", "Nov 20 10:11:12 gpu7 kernel: ", "[Thu Nov 20 10:11:12 2026] ")
VERSION = "Linux version 5.14.0-503.el9.x86_64 (mockbuild@x) (gcc (GCC) 11.5.0) #1 SMP PREEMPT_DYNAMIC Tue\n"
COMMAND = "Command line: BOOT_IMAGE=(hd0,gpt2)/vmlinuz root=/dev/sda2 ro iommu=pt numa=off\n"


@pytest.mark.parametrize("stamp", STAMPS)
def test_a_log_tells_the_kernel_and_its_arguments(stamp: str) -> None:
    found = seen(
        stamp + VERSION + stamp + COMMAND + stamp + "Kernel " + COMMAND[0].lower() + COMMAND[1:] + f"{stamp}NET: Registered\n" * 9
    )
    assert (found.system.kernel, found.system.machine) == ("5.14.0-503.el9.x86_64", "x86_64")  # type: ignore[union-attr]
    assert "numa=off" in known(found.system.cmdline, ())  # type: ignore[union-attr]
    assert found.origin == "report (kernel log)"


def test_two_boots_that_differ_tell_no_kernel_and_what_uname_says_counts() -> None:
    later = VERSION.replace("503", "570")
    lines = "".join(f"{STAMPS[0]}NET: Registered\n" * 10)
    assert isinstance(seen(STAMPS[0] + VERSION + lines + STAMPS[0] + later).system.kernel, Missing)  # type: ignore[union-attr]
    uname = "Linux n1 6.8.0-45-generic #45-Ubuntu SMP Fri Aug 30 12:02:04 UTC 2024 x86_64 x86_64 x86_64 GNU/Linux\n"
    assert seen(uname + STAMPS[0] + VERSION + lines).system.kernel == "6.8.0-45-generic"  # type: ignore[union-attr]


def test_a_user_s_words_in_the_log_are_no_arguments() -> None:
    found = seen(STAMPS[0] + "usb 1-1: Product: Command line: BOOT_IMAGE=/evil numa=off\n" + f"{STAMPS[0]}NET: Registered\n" * 10)
    assert found.system is None or isinstance(known(found.system, None) and found.system.cmdline, Missing)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("words", "wanted"), [("KVM", "kvm"), ("Microsoft Hyper-V", "microsoft"), ("Xen HVM", "xen"), ("ACRN", "other")]
)
def test_a_log_tells_the_hypervisor(words: str, wanted: str) -> None:
    text = STAMPS[0] + VERSION + f"{STAMPS[0]}Hypervisor detected: {words}\n" + f"{STAMPS[0]}NET: Registered\n" * 9
    assert seen(text).system.hypervisor == wanted  # type: ignore[union-attr]


def processor(number: int, package: int, siblings: int, core: int, cores: int) -> str:
    return (
        f"processor\t: {number}\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 7742\nphysical id\t: {package}\nsiblings\t: {siblings}\n"
        f"core id\t\t: {core}\ncpu cores\t: {cores}\nflags\t\t: fpu lm avx avx2\npower management:\n\n"
    )


def test_cpuinfo_tells_sockets_cores_and_threads_where_it_is_whole() -> None:
    whole = "".join(
        processor(4 * thread + 2 * package + core, package, 4, core, 2)
        for thread in (0, 1)
        for package in (0, 1)
        for core in (0, 1)
    )
    cpu = seen(whole).cpu
    assert (cpu.sockets, cpu.cores, cpu.smt, str(cpu.online)) == (2, 4, True, "0-7")  # type: ignore[union-attr]
    assert seen(whole).system.machine == "x86_64"  # type: ignore[union-attr]
    cut = seen("".join(processor(number, 0, 128, number, 64) for number in range(3))).cpu
    assert all(isinstance(fact, Missing) for fact in (cut.sockets, cut.cores, cut.online))  # type: ignore[union-attr]
    assert cut.model == "AMD EPYC 7742"  # type: ignore[union-attr]


HEAD = "Nov 20 10:11:12 n1 kernel: pt_data_worker invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n"
FULL = "Nov 20 10:11:13 n1 kernel: memory: usage 67108864kB, limit 67108864kB, failcnt 8121\n"
KILL = "Nov 20 10:11:14 n1 kernel: Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD, ("pt_data_worker", "memory ran out")),
        (FULL, ("memory", "a cgroup's limit was reached")),
        (HEAD + FULL, ("pt_data_worker", "a cgroup's limit was reached")),
    ],
)
def test_the_killer_s_report_without_the_line_of_the_kill(text: str, words: tuple[str, str]) -> None:
    found = judged(text)["oom-kill-logged"]
    assert found.verdict is Verdict.FAIL
    assert (found.evidence[0].subject, words[1] in found.evidence[0].seen) == (words[0], True)


def test_with_the_line_of_the_kill_the_report_adds_nothing() -> None:
    alone, whole = (judged(text)["oom-kill-logged"].evidence for text in (KILL, HEAD + FULL + KILL))
    assert [(one.subject, one.seen) for one in alone] == [(one.subject, one.seen) for one in whole]


@pytest.mark.parametrize("device", ["mtdblock5", "mtdblock0", "mmcblk0boot1", "mmcblk2rpmb", "sr0"])
def test_firmware_s_flash_is_no_disk(device: str) -> None:
    line = f"[    6.753709] I/O error, dev {device}, sector 31360 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2\n"
    assert judged(line * 6)["disk-errors-logged"].verdict is not Verdict.FAIL
    assert judged(line.replace(device, "mmcblk0") * 6)["disk-errors-logged"].verdict is Verdict.FAIL


AGENT = "*******\nAgent {n}\n*******\n  Name:                    {name}\n  Uuid:                    GPU-XX\n  Marketing Name:          {words}\n  Vendor Name:             AMD\n  Device Type:             {kind}\n  Pool Info:\n    Pool 1\n      Segment:                 GLOBAL; FLAGS: COARSE GRAINED\n      Size:                    {kib}(0xbfc000) KB\n  ISA Info:\n    ISA 1\n      Name:                    amdgcn-amd-amdhsa--{name}\n"  # fmt: skip


def test_rocminfo_lists_gpus_among_its_agents() -> None:
    text = "ROCk module is loaded\nHSA System Attributes\n==========\nHSA Agents\n==========\n" + "".join(
        AGENT.format(n=n, name=name, words=words, kind=kind, kib=kib)
        for n, name, words, kind, kib in (
            (1, "AMD EPYC 9654 96-Core Processor", "AMD EPYC 9654 96-Core Processor", "CPU", 1),
            (2, "gfx942", "AMD Instinct MI300X", "GPU", 201310208),
            (3, "gfx942", "AMD Instinct MI300X", "GPU", 201310208),
        )
    )
    gpu = seen(text).gpu
    assert gpu.vendor == "amd"  # type: ignore[union-attr]
    assert [one.name for one in gpu.devices] == ["AMD Instinct MI300X (gfx942)"] * 2  # type: ignore[union-attr]
    assert known(gpu.devices[0].memory_total_bytes, 0) >> 30 == 191  # type: ignore[union-attr]


def test_rocm_smi_s_table_of_hardware() -> None:
    text = (
        "GPU  NODE  DID     GUID   GFX VER  GFX RAS   SDMA RAS  UMC RAS   VBIOS           BUS           PARTITION ID\n"
        "0    2     0x74a1  28851  gfx942   ENABLED   ENABLED   ENABLED   113-M3000100-103  0000:1B:00.0  0\n"
        "1    3     0x74a1  51499  gfx942   ENABLED   ENABLED   ENABLED   113-M3000100-103  0000:3D:00.0  0\n"
    )
    gpu = seen(text).gpu
    assert [(one.name, one.pci_address) for one in gpu.devices] == [  # type: ignore[union-attr]
        ("AMD Instinct MI300X", "0000:1b:00.0"),
        ("AMD Instinct MI300X", "0000:3d:00.0"),
    ]


ARRAY = "Handle 0x0028, DMI type 16, 23 bytes\nPhysical Memory Array\n\tLocation: System Board\n\tUse: System Memory\n\tNumber Of Devices: {n}\n\n"
MODULE = "Handle 0x002D, DMI type 17, 92 bytes\nMemory Device\n\tSize: {size}\n\tForm Factor: DIMM\n\tLocator: {name}\n\tBank Locator: P0\n\tType: {kind}\n\tSpeed: 6400 MT/s\n\tConfigured Memory Speed: 4800 MT/s\n\n"


def test_dmidecode_lists_the_modules_where_all_slots_are_shown() -> None:
    modules = "".join(
        MODULE.format(size=size, name=name, kind="DDR5")
        for size, name in (("64 GB", "A1"), ("No Module Installed", "A2"), ("32768 MB", "B1"))
    )
    flash = MODULE.format(size="16 MB", name="BIOS", kind="Flash")
    found = seen("# dmidecode 3.5\n" + ARRAY.format(n=3) + modules + flash).hardware
    assert [(one.locator, one.size_mib) for one in found.memory_devices] == [("A1", 65536), ("A2", 0), ("B1", 32768)]  # type: ignore[union-attr]
    assert found.memory_devices[0].configured_mts == 4800  # type: ignore[union-attr]
    assert evidence.read("# dmidecode 3.5\n" + ARRAY.format(n=4) + modules, "part") is None


def test_labels_that_dmidecode_has_too_make_no_lscpu() -> None:
    assert evidence.read("TPM Device\n\tVendor ID: AMD\nProcessor Information\n\tFlags: fpu\n", "part") is None
