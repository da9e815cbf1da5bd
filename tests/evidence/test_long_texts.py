"""Long pastes are read whole, or refused with the true reason; the log of nvidia-bug-report.sh of any size is read."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from evidence.layouts import LSCPU, TORCH_2
from evidence.layouts_nvidia_smi import SMI_535
from torchtune_sys import evidence
from torchtune_sys.errors import UnreadableInput
from torchtune_sys.evidence import pasted
from torchtune_sys.formats import nvidia_bug_report
from torchtune_sys.host.input import limits
from torchtune_sys.host.input.opening import PastedText, open_input
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing

LINE = "_" * 44 + "\n\n"
QUERY = """\
==============NVSMI LOG==============

Timestamp                                 : Thu Nov  6 10:00:00 2025
Driver Version                            : 535.129.03
CUDA Version                              : 12.2

Attached GPUs                             : 1
GPU 00000000:19:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    FB Memory Usage
        Total                             : 81559 MiB
        Used                              : 4 MiB
"""
LSPCI = """\
0000:00:00.0 Host bridge [0600]: Intel Corporation Device [8086:09a2] (rev 04)
0000:19:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)
"""
VERBOSE = f"""\
{LSPCI.split(chr(10))[0]}
\tSubsystem: Intel Corporation Device [8086:0000]
00: 86 80 a2 09 46 05 10 00 04 00 00 06 00 00 00 00

{LSPCI.split(chr(10))[1]}
\tLnkSta:\tSpeed 32GT/s, Width x8 (downgraded)
\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\tKernel driver in use: nvidia
00: de 10 30 23 46 05 10 00 a1 00 02 03 00 00 00 00
"""


def log(dump_mib: int) -> Iterator[str]:
    """As the script writes it, with so much of a dump."""
    yield LINE + "Start of NVIDIA bug report log file.  Please include this file, along\nwith a description.\n\n"
    yield "nvidia-bug-report.sh Version: 33773497\n\nuname: Linux node7 5.15.0-91-generic #101-Ubuntu SMP Tue Nov 14 13:30:08 UTC 2023 x86_64 GNU/Linux\n\n"
    yield LINE + "*** /etc/os-release\n*** ls: -rw-r--r-- 1 root root 386 /etc/os-release\n"
    yield 'PRETTY_NAME="Ubuntu 22.04.3 LTS"\nVERSION_ID="22.04"\nID=ubuntu\nID_LIKE=debian\n\n'
    yield LINE + "*** /var/log/nvidia-installer.log does not exist\n\n"
    yield LINE + f"/usr/bin/lspci -nn\n\n{LSPCI}\n" + LINE + f"/usr/bin/lspci -nnDvvvxxxx\n\n{VERBOSE}\n"
    yield LINE + "Scanning kernel log files for NVIDIA kernel messages:\n\n  journalctl -b -1:\n"
    yield "Nov 05 09:00:00 node7 kernel: NVRM: Xid (PCI:0000:19:00): 48, pid=1, name=x, a fault of the boot before\n\n"
    yield LINE + "dmesg:\n\n" + "".join(f"[{at:5}.000000] usb 1-1: new device {at}\n" for at in range(40))
    yield "[   99.000000] NVRM: Xid (PCI:0000:19:00): 79, pid=7, name=python3, GPU has fallen off the bus.\n"
    yield LINE + "*** /proc/cmdline\n*** ls: -r--r--r-- 1 root root 0 /proc/cmdline\nBOOT_IMAGE=/vmlinuz ro iommu=pt\n\n"
    processors = "".join(
        f"processor\t: {at}\nmodel name\t: Intel(R) Xeon(R) Platinum 8480C\nflags\t\t: fpu sse4_2 avx2\n\n" for at in range(8)
    )
    yield LINE + f"*** /proc/cpuinfo\n*** ls: -r--r--r-- 1 root root 0 /proc/cpuinfo\n{processors}"
    yield (
        LINE
        + "*** /proc/meminfo\n*** ls: -r--r--r-- 1 root root 0 /proc/meminfo\nMemTotal:       2113559228 kB\nSwapTotal: 0 kB\n\n"
    )
    yield LINE + "*** /proc/modules\n*** ls: -r--r--r-- 1 root root 0 /proc/modules\nnvidia_uvm 1 2 - Live\nnvidia 1 2 - Live\n\n"
    yield LINE + "*** /proc/driver/nvidia/./version\n*** ls: -r--r--r-- 1 root root 0 /proc/driver/nvidia/./version\n"
    yield "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n\n"
    yield LINE + "/usr/bin/nvidia-debugdump -D\n\n"
    source = random.Random(7)
    for _ in range(dump_mib):
        yield "".join(f"{source.getrandbits(448):076x}\n" for _ in range((1 << 20) // 77))
    yield LINE + f"/usr/bin/nvidia-smi --query\n\n{QUERY}\n"
    yield LINE + "/usr/bin/nvidia-smi --query --unit\n\n==============NVSMI LOG==============\n\nAttached Units : 0\n\n"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bug") / "nvidia-bug-report.log.gz"
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.writelines(log(18))
    return path


def read(path: Path) -> Snapshot:
    found = open_input(str(path))
    assert isinstance(found, PastedText)
    seen = evidence.read(found.text, found.name)
    assert seen is not None
    return seen


def test_the_log_of_a_bug_report_is_read_with_all_its_sections(report: Path) -> None:
    seen = read(report)
    system, gpu, driver = seen.system, seen.gpu, seen.driver
    assert (system.kernel, system.machine, system.os.version) == ("5.15.0-91-generic", "x86_64", "22.04")  # type: ignore[union-attr]
    assert "iommu=pt" in system.cmdline  # type: ignore[union-attr, operator]
    assert gpu.driver_version == "535.129.03" and [each.name for each in gpu.devices] == ["NVIDIA H100 80GB HBM3"]  # type: ignore[union-attr]
    assert (driver.module_version, driver.module_loaded, driver.uvm_loaded, driver.nouveau_loaded) == (
        "535.129.03",
        True,
        True,
        False,
    )  # type: ignore[union-attr]
    assert (str(seen.cpu.online), seen.cpu.model) == ("0-7", "Intel(R) Xeon(R) Platinum 8480C")  # type: ignore[union-attr]
    assert seen.memory.total_bytes == 2113559228 * 1024  # type: ignore[union-attr]
    card = next(each for each in seen.pci.devices if each.address == "0000:19:00.0")  # type: ignore[union-attr]
    assert (card.driver, card.link.current_width, card.link.max_width) == ("nvidia", 8, 16)


def test_of_its_kernel_log_this_boot_counts(report: Path) -> None:
    events = read(report).kernel.events  # type: ignore[union-attr]
    assert [event.code for event in events if event.kind == "xid"] == [79]


def test_what_an_earlier_boot_logged_of_a_gpu_is_said(report: Path) -> None:
    """Who sends the log of a GPU that fell off the bus has restarted the machine before (five of 19 public logs)."""
    seen = read(report)
    assert [line for line in seen.failures if "Xid (PCI:0000:19:00): 48" in line and line.startswith(nvidia_bug_report.EARLIER)]
    assert not any(event.code == 48 for event in seen.kernel.events)  # type: ignore[union-attr]


def test_what_nobody_but_nvidia_can_read_is_left_out(report: Path) -> None:
    found = open_input(str(report))
    assert isinstance(found, PastedText) and len(found.text) < 100_000 < report.stat().st_size


def test_a_bug_report_that_somebody_pasted_with_words_before_it() -> None:
    data = ("Here is mine:\n\n```\n" + "".join(log(0))).encode()
    assert nvidia_bug_report.is_one(data) and b"535.129.03" in nvidia_bug_report.reduced(data)
    assert not nvidia_bug_report.is_one(b"run nvidia-bug-report.sh and attach the file\n")


LOG = "2026-03-02 11:00:{:02} step {} loss {:.3f} lr 1e-4 tokens/s {}\n"


def steps(size: int) -> str:
    text = "".join(LOG.format(at % 60, at, at * 0.37 % 9, at % 7777) for at in range(20_000))
    return text * (size // len(text) + 1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("place", ["start", "middle", "end"])
def test_a_report_anywhere_in_a_log_of_fifteen_mebibytes(place: str) -> None:
    half = steps((7 if place == "middle" else 3) << 20)
    text = {"start": f"{TORCH_2}\n{half}{half}", "middle": f"{half}\n{TORCH_2}\n{half}", "end": f"{half}{half}\n{TORCH_2}"}[place]
    assert len(text) < limits.TEXT_LIMIT
    seen = evidence.read(text, "x")
    assert seen is not None and seen.python.torch.version == "2.5.1+cu124"  # type: ignore[union-attr]
    assert len(seen.gpu.devices) == 2 and len(seen.numa.nodes) == 2  # type: ignore[union-attr, arg-type]


def test_beyond_fifty_thousand_lines() -> None:
    text = "".join(f"{number:x} {hash(str(number)):x}\n" for number in range(60_000)) + LSCPU + SMI_535
    seen = evidence.read(text, "x")
    assert seen is not None and not isinstance(seen.cpu, Missing) and not isinstance(seen.gpu, Missing)


def test_the_last_lines_of_many_that_are_alike_are_kept() -> None:
    lines = [f"GPU 0 has {number} of 16376 MiB in use\n" for number in range(80_000)]
    kept = pasted.thinned("".join(lines)).splitlines(keepends=True)
    assert kept[:1000] == lines[:1000] and kept[-1000:] == lines[-1000:] and len(kept) <= 2001
    assert pasted.thinned("".join(lines[:100])) == "".join(lines[:100])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "# dmidecode 3.3\nGetting SMBIOS data from sysfs.\n\nHandle 0x0000, DMI type 0, 26 bytes\nBIOS Information\n",
            "dmidecode",
        ),
        ("crw-rw-rw- 1 root root 195,   0 Mar  2 11:00 /dev/nvidia0\n", "ls -l /dev/nvidia"),
        ("Package    Version\n---------- -------\nidna       3.7\n", "pip list"),
        ("# gpu   pwr  temp    sm   mem\n# Idx     W     C     %     %\n    0    15    59     3     4\n", "nvidia-smi dmon"),
        (
            "              total        used        free      shared  buff/cache   available\nMem:        3861288      222820\n",
            "free",
        ),
        ("            CPU0       CPU1       \n   0:         18          0   IO-APIC    2-edge      timer\n", "/proc/interrupts"),
        ("kern.ostype: FreeBSD\nkern.osrelease: 12.1-RELEASE\n", "sysctl of another system"),
        ("Slot:\t00:00.0\nClass:\tHost bridge [0600]\n", "lspci -mm"),
        ("binfmt_misc 24576 1 - Live 0xffffffffc0ab4000\n", "/proc/modules"),
        (
            "deviceQuery Starting...\n\n CUDA Device Query (Runtime API) version (CUDART static linking)\n\nDetected 1 CUDA Capable device(s)\n",
            "deviceQuery",
        ),
        ("nvbandwidth Version: v0.5\nBuilt from Git version: v0.5\n", "nvbandwidth"),
        ("# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20\n", "nccl-tests"),
        ("AMDSMI Tool: 26.2.2+e1a6bc5663 | AMDSMI Library version: 26.2.2 | ROCm version: 7.2.1\n", "amd-smi version"),
    ],
)
def test_what_is_known_and_not_read_is_named(text: str, name: str) -> None:
    assert evidence.read(text, "x") is None and name in pasted.not_read(text)
    assert pasted.not_read("Hello, my training is slow\n") == ""


def test_records_of_the_kernels_own_device() -> None:
    text = "6,1234,5678901,-;usb 1-1: new device\n4,1235,95678999,-;NVRM: Xid (PCI:0000:19:00): 79, pid=7, GPU has fallen off the bus.\n"
    seen = evidence.read(text, "x")
    assert seen is not None
    (event,) = seen.kernel.events  # type: ignore[union-attr, misc]
    assert (event.kind, event.code, event.first_s) == ("xid", 79, 95.678999)


def test_another_text_of_that_size_is_refused_with_its_size(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text(steps(17 << 20))
    with pytest.raises(UnreadableInput, match="text of more than 16 MiB"):
        open_input(str(tmp_path / "x.log"))
