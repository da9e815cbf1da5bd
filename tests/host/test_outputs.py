"""Outputs of commands beside a recorded /proc and /sys, as in a sosreport, and folders that hold nothing else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from torchtune_sys import engine
from torchtune_sys.cli.take_snapshot import begin
from torchtune_sys.errors import UnreadableInput
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot, gpus_told, pci_devices_by_address, pci_devices_told
from torchtune_sys.model.values import Missing, known
from torchtune_sys.rules import CATALOGUE

SMI = """
==============NVSMI LOG==============

Timestamp                                 : Mon Nov  9 10:11:12 2026
Driver Version                            : {driver}
CUDA Version                              : 12.4

Attached GPUs                             : 1
GPU 00000000:1A:00.0
    Product Name                          : NVIDIA H100 PCIe
    GPU UUID                              : GPU-{uuid}
    Compute Mode                          : {mode}
    GPU Power Readings
        Power Draw                        : 190.00 W
        Current Power Limit               : {watts}.00 W
        Default Power Limit               : 350.00 W
        Min Power Limit                   : 200.00 W
        Max Power Limit                   : 350.00 W
"""
UUID = "11111111-2222-3333-4444-555555555555"


def smi(driver: str = "550.90.07", uuid: str = UUID, mode: str = "Default", watts: int = 350) -> str:
    return SMI.format(driver=driver, uuid=uuid, mode=mode, watts=watts)


DMESG = "[    0.000000] Linux version 5.15.0-124-generic\n[   99.000000] NVRM: Xid (PCI:0000:1a:00): 79, pid=1, GPU has fallen off the bus.\n"
TREE = {"proc/meminfo": "MemTotal:       263841234 kB\nMemAvailable:   203841234 kB\n", "sys/kernel/mm/x": "1\n"}


def grow(top: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    return top


OPTIONS = dict.fromkeys(("root", "timeout", "python", "output", "facts", "live"))


def look(folder: Path) -> Snapshot:
    from torchtune_sys.cli.options import INTENT

    return begin({**OPTIONS, **dict.fromkeys(INTENT), "from_": str(folder)})()


def failing(folder: Path) -> set[str]:
    return {result.rule.id for result in engine.judge(look(folder), CATALOGUE) if result.verdict is Verdict.FAIL}


def test_a_sosreport_s_outputs_are_judged_with_its_files_whatever_they_are_called(tmp_path: Path) -> None:
    files = {
        **TREE,
        "sos_commands/nvidia/nvidia-smi_-q": smi(mode="Prohibited"),
        "notes/anything": "torch                    2.9.1+cu130\n",
        "sos_commands/kernel/dmesg": DMESG,
    }
    seen = look(grow(tmp_path, files))
    assert not isinstance(seen.memory, Missing) and seen.memory.total_bytes == 263841234 << 10
    assert [gpu.name for gpu in gpus_told(seen)] == ["NVIDIA H100 PCIe"]
    assert {"compute-mode-prohibited", "xid-gpu-lost"} <= failing(tmp_path)


def test_what_is_not_read_is_told(tmp_path: Path) -> None:
    files = {**TREE, "sos_commands/a/nvidia-smi_-q": smi(), "sos_commands/b/lvs": "LV VG Attr\n", "sos_commands/b/raw": "\0\1\2"}
    origin = look(grow(tmp_path, files)).origin
    assert origin.endswith("outputs of commands in 1 file (2 files were not read: sos_commands/b/lvs, sos_commands/b/raw)")
    assert "not read" not in look(grow(tmp_path / "bare", TREE)).origin


def test_a_folder_of_outputs_is_a_report_and_one_without_is_refused(tmp_path: Path) -> None:
    seen = look(grow(tmp_path / "x", {"q.txt": smi(watts=200), "deep/er/dmesg.log": DMESG}))
    assert seen.origin.startswith("report (") and "2 files" in seen.origin
    assert {"gpu-power-limit-lowered", "xid-gpu-lost"} <= failing(tmp_path / "x")
    with pytest.raises(UnreadableInput, match="holds no recorded /proc or /sys"):
        look(grow(tmp_path / "y", {"readme.txt": "nothing of a host\n"}))
    packed = tmp_path / "x.tar"
    subprocess.run(["tar", "-C", str(tmp_path), "-cf", str(packed), "x"], check=True)
    assert failing(packed) == failing(tmp_path / "x")


def test_files_of_another_host_or_day_are_not_mixed_in(tmp_path: Path) -> None:
    one, other = smi(), smi(uuid="99999999" + UUID[8:], mode="Prohibited")
    assert "compute-mode-prohibited" not in failing(grow(tmp_path / "hosts", {"n1/smi": one, "n2/q": other}))
    assert "1 file was not read: n2/q" in look(tmp_path / "hosts").origin.replace("\n", " ")
    later = smi(driver="580.1.2", mode="Prohibited")
    assert "compute-mode-prohibited" not in failing(grow(tmp_path / "days", {"a": one, "b": later}))


def test_the_same_outputs_of_several_hosts_are_refused_with_what_to_type(tmp_path: Path) -> None:
    clock = "System clock synchronized: {}\n              NTP service: active\n"
    hosts = {
        "n1/timedatectl": clock.format("yes"),
        "n2/timedatectl": clock.format("no"),
        "n2/more/free": "",
        "how.txt": "from pdsh",
    }
    top = grow(tmp_path / "hosts", hosts)
    with pytest.raises(UnreadableInput) as refused:
        look(top)
    assert refused.value.seen == "hosts: holds the same outputs of 2 hosts or looks (n1, n2)"
    assert refused.value.todo == f"give one of them: torchtune-sys check --from {top}/n1"
    assert "clock-not-synchronised" in failing(top / "n2")


FULL = "Filesystem Inodes IUsed IFree IUse% Mounted on\n/dev/sda1 65470464 16220 65454244 1% /\n{} {} {} 0 100% {}\n"


@pytest.mark.parametrize("beside", [{}, {"proc/version": "Linux version 6.8.0-87-generic (x) (gcc) #1 SMP\n"}])
@pytest.mark.parametrize(
    ("source", "point", "room", "wrong"),
    [
        ("/dev/sdb1", "/corpus", "", True),
        ("/dev/sdb1", "/corpus", "Filesystem Size Used Avail Use% Mounted on\n/dev/sdb1 11T 3.9T 6.4T 38% /corpus\n", True),
        ("/dev/loop3", "/snap/core20/2318", "", False),
        ("/dev/sr0", "/media/cdrom", "", False),
        ("/dev/sdc1", "/opt/image", "Filesystem Size Used Avail Use% Mounted on\n/dev/sdc1 4G 4G 0 100% /opt/image\n", False),
    ],
)
def test_a_listed_file_system_without_inodes_is_told(
    tmp_path: Path, beside: dict[str, str], source: str, point: str, room: str, wrong: bool
) -> None:
    top = grow(tmp_path / "x", {**beside, "df-i": FULL.format(source, 1000, 1000, point), "df-h": room or "\n"})
    assert ("inodes-exhausted" in failing(top)) is wrong


SWITCH = """15:0{n}.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0)
\tBus: primary=15, secondary=1{b}, subordinate=1{b}, sec-latency=0
\tCapabilities: [68] Express (v2) {port} (Slot+), MSI 00
\tCapabilities: [f24 v1] Access Control Services
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir{on} CmpltRedir{on} UpstreamFwd+ EgressCtrl- DirectTrans-

1{b}:00.0 3D controller: NVIDIA Corporation AD102GL [L40S] (rev a1)
\tNUMA node: 0
\tKernel driver in use: nvidia

"""


@pytest.mark.parametrize(
    ("port", "on", "virtual", "wrong"),
    [
        ("Downstream Port", "+", "none", True),
        ("Downstream Port", "-", "none", False),
        ("Downstream Port", "+", "kvm", False),
        ("Root Port", "+", "none", False),
    ],
)
def test_ports_of_one_bus_are_those_of_one_switch_though_lspci_was_cut(
    tmp_path: Path, port: str, on: str, virtual: str, wrong: bool
) -> None:
    text = "".join(SWITCH.format(n=n, b=6 + n, port=port, on=on) for n in (0, 1))
    top = grow(
        tmp_path / "x", {"lspci": text, "virt": f"$ systemd-detect-virt\n{virtual}\n$ nvidia-smi -L\nGPU 0: NVIDIA L40S\n"}
    )
    assert ("acs-redirects-peer-traffic" in failing(top)) is wrong


def test_the_kernel_s_default_domain_stands_for_devices_whose_files_are_not_there(tmp_path: Path) -> None:
    log = "[    0.000000] Command line: BOOT_IMAGE=/vmlinuz root=/dev/sda1{}\n[    1.204881] iommu: Default domain type: {}\n[    9.1] x: y\n"
    gpus = {f"sys/bus/pci/devices/0000:{bus}:00.0/{name}": value for bus in ("03", "43") for name, value in MI210.items()}
    proc = {
        "proc/version": "Linux version 6.8.0-87-generic (x) (gcc) #1 SMP\n",
        "proc/cpuinfo": "processor : 0\nflags : fpu lm avx2\n",
    }
    for argument, default, wrong in (("", "Translated", True), (" iommu=pt", "Passthrough", False)):
        files = {**proc, **gpus, "proc/cmdline": f"root=/dev/sda1{argument}\n", "dmesg": log.format(argument, default)}
        found = failing(grow(tmp_path / default, files))
        assert ("iommu-translates-gpu-traffic" in found) is wrong


MI210 = {"class": "0x120000\n", "vendor": "0x1002\n", "device": "0x740f\n", "uevent": "DRIVER=amdgpu\n", "numa_node": "0\n"}


def test_the_kernel_s_log_counts_once_and_links_and_sos_s_own_logs_do_not(tmp_path: Path) -> None:
    again = DMESG.replace("[   99.000000]", "[Mon Nov  9 10:11:12 2026]").replace("[    0.000000]", "[Mon Nov  9 10:09:33 2026]")
    top = grow(tmp_path, {**TREE, "sos_commands/kernel/dmesg": DMESG, "sos_commands/kernel/dmesg_-T": again, "sos_logs/x": DMESG})
    (top / "dmesg").symlink_to("sos_commands/kernel/dmesg")
    assert "1 file (1 file was not read: sos_commands/kernel/dmesg_-T)" in look(top).origin


def test_what_documents_and_logs_quote_is_no_finding_of_the_host(tmp_path: Path) -> None:
    quoted = "# What to do\n\nIf you see `RuntimeError: CUDA error: no kernel image is available for execution on the device`, reinstall.\n"
    assert failing(grow(tmp_path, {**TREE, "doc.md": quoted, "sos_commands/n": smi()})) == failing(
        grow(tmp_path / "b", {**TREE, "n": smi()})
    )


def test_a_container_s_limits_are_none_of_the_host_s(tmp_path: Path) -> None:
    inspected = '[{"Id": "a", "HostConfig": {"ShmSize": 67108864, "Ulimits": []}, "Config": {"Env": []}}]'
    top = grow(tmp_path, {**TREE, "sos_commands/docker/containers/docker_inspect_a": inspected, "sos_commands/n": smi()})
    assert "1 file was not read: sos_commands/docker/containers/docker_inspect_a" in look(top).origin


def test_no_secret_of_an_output_is_kept(tmp_path: Path) -> None:
    token = "hf_" + "aB3" * 12
    seen = look(
        grow(
            tmp_path, {**TREE, "sos_commands/process/env": f"HOME=/root\nPATH=/bin\nHF_TOKEN={token}\nNCCL_DEBUG=INFO\nLANG=C\n"}
        )
    )
    assert token not in repr(seen)


SYSFS = {
    "sys/devices/pci0000:{0}/0000:{0}:00.0/0000:{1}:00.0/class": "0x030200",
    "sys/devices/pci0000:{0}/0000:{0}:00.0/0000:{1}:00.0/vendor": "0x10de",
    "sys/devices/pci0000:{0}/0000:{0}:00.0/0000:{1}:00.0/device": "0x2330",
    "sys/kernel/iommu_groups/4{0}/type": "DMA",
    "sys/kernel/iommu_groups/4{0}/devices/0000:{1}:00.0/x": "",
}
LSPCI = """{0}:00.0 PCI bridge [0604]: Intel Corporation Device [8086:347a] (rev 04)
	Capabilities: [40] Express (v2) Root Port (Slot+), MSI 00
		DevCtl:	CorrErr- NonFatalErr- FatalErr- UnsupReq-
			RlxdOrd+ ExtTag+ PhantFunc- AuxPwr- NoSnoop+
			MaxPayload 256 bytes, MaxReadReq 512 bytes
	Capabilities: [148 v1] Access Control Services
		ACSCap:	SrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
		ACSCtl:	SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-

{1}:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)
	Kernel driver in use: nvidia

"""


def test_lspci_tells_of_each_device_what_the_bus_s_files_lack(tmp_path: Path) -> None:
    """Neither the link to the IOMMU group nor the bridges' registers are in this /sys; the groups' own lists and lspci are."""
    places = [("19", "1a"), ("3f", "40")]
    files = {name.format(*place): text for place in places for name, text in SYSFS.items()}
    top = grow(tmp_path, {**TREE, **files})
    (top / "sys/bus/pci/devices").mkdir(parents=True)
    for root, gpu in places:
        name = f"0000:{gpu}:00.0"
        (top / f"sys/bus/pci/devices/{name}").symlink_to(f"../../../devices/pci0000:{root}/0000:{root}:00.0/{name}")
    assert {device.iommu_type for device in pci_devices_told(look(top))} == {"DMA"}
    grow(top, {"sos_commands/pci/lspci_-nnvv": "".join(LSPCI.format(*place) for place in places)})
    seen = pci_devices_by_address(look(top))
    assert seen["0000:1a:00.0"].iommu_type == "DMA" and seen["0000:1a:00.0"].parent == "0000:19:00.0"
    bridge = seen["0000:19:00.0"].config
    assert not isinstance(bridge, Missing) and "ReqRedir" in known(bridge.acs, ())


def test_a_copied_sys_without_links_and_flags_tells_of_policies_and_rails(tmp_path: Path) -> None:
    """A tree that somebody copied has some files of a directory: cpufreq without affected_cpus, an interface without its flags."""
    files = {**TREE, "sys/devices/system/cpu/online": "0-1\n"}
    for cpu in "01":
        place = f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        files |= {f"{place}/scaling_driver": "cppc_cpufreq\n", f"{place}/scaling_governor": "powersave\n"}
    for number in "012":
        place = f"sys/class/infiniband/mlx5_{number}"
        files |= {
            f"{place}/board_id": "MT_0000000838\n",
            f"{place}/ports/1/state": "4: ACTIVE\n",
            f"{place}/ports/1/phys_state": "5: LinkUp\n",
            f"{place}/ports/1/link_layer": "Ethernet\n",
            f"{place}/ports/1/rate": "400 Gb/sec (4X NDR)\n",
            f"{place}/device/net/ens1{number}/mtu": "",
            f"sys/class/net/ens1{number}/mtu": "1500\n" if number == "1" else "9000\n",
            f"sys/class/net/ens1{number}/operstate": "up\n",
        }
    top = grow(tmp_path, files)
    assert {"cpu-governor-powersave", "rail-mtu-mismatch"} <= failing(top)
    grow(top, {"sys/class/net/ens11/operstate": "down\n"})
    assert "rail-mtu-mismatch" not in failing(top)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give files to others")
@pytest.mark.parametrize("owner", [0, 1000])
def test_of_a_whole_system_s_tree_other_users_files_tell_nothing_of_the_host(tmp_path: Path, owner: int) -> None:
    """/scratch/alice lies in it, too, and whoever writes there what dmesg might have printed would have the host called broken."""
    top = grow(tmp_path / "host", {**TREE, "scratch/alice/dmesg": DMESG, "outputs/nvidia-smi": smi()})
    for place in (top, *top.rglob("*")):
        os.chown(place, owner, owner)
    assert known(look(top).gpu.driver_version, "") and "2 files" in look(top).origin  # type: ignore[union-attr]
    os.chown(top / "scratch/alice/dmesg", 1001, 1001)
    seen = look(top)
    assert "in 1 file (1 file was not read: scratch/alice/dmesg)" in seen.origin
    assert isinstance(seen.kernel, Missing) or not known(seen.kernel.events, ())
