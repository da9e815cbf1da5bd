"""What 84 public texts of a further hunt had wrong: GPUs counted as one, cores in clusters, sections and logs in other forms, killers in user space."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from evidence.unseen.judging import judged, seen
from torchtune_sys import engine
from torchtune_sys.cli.commands.check import command
from torchtune_sys.cli.options import NO_INTENT
from torchtune_sys.cli.take_snapshot import look
from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host.input.collection import InputText
from torchtune_sys.host.input.excerpts import excerpt
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Missing
from torchtune_sys.rules import CATALOGUE
from torchtune_sys.rules.can_train import ability


def causes(text: str) -> list[tuple[str, str]]:
    found = diagnose([InputText(name="log", excerpt=excerpt(io.BytesIO(text.encode())))])
    return [(cause.cause, cause.confidence.value) for cause in found.causes]


def collect_env(
    gpus: str, build: str = "CUDA used to build PyTorch: 12.4", system: str = "Ubuntu 22.04.4 LTS (x86_64)", env: str = ""
) -> str:
    return (
        f"PyTorch version: 2.5.1\nIs debug build: False\n{build}\n\nOS: {system}\nIs CUDA available: True\nGPU models and configuration: {gpus}\n"
        f"Nvidia driver version: 550.54.15\n\nVersions of relevant libraries:\n[pip3] torch==2.5.1\n{env}"
    )


HIP = "CUDA used to build PyTorch: N/A\nROCM used to build PyTorch: 6.1.40091"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (collect_env("GPU 0: NVIDIA H100 80GB HBM3\nGPU 1: NVIDIA H100 80GB HBM3\nGPU 2: NVIDIA H100 80GB HBM3"), 3),
        (collect_env("GPU 0: NVIDIA L4"), 1),
        (collect_env("GPU 0: NVIDIA L4\nGPU 1: NVIDIA L4", env="CUDA_VISIBLE_DEVICES=1\nCUDA_MODULE_LOADING=LAZY\n"), 1),
        (collect_env("Could not collect"), 0),
        (collect_env("AMD Instinct MI300X (gfx942:sramecc+:xnack-)", HIP), 0),  # torch names the first one
        (collect_env("Device 66a1", HIP), 0),
    ],
)
def test_a_report_of_several_gpus_is_not_told_as_one(text: str, count: int) -> None:
    assert ability(seen(text)).gpus == count


def test_a_rule_on_the_number_of_gpus_waits_for_it() -> None:
    assert (
        judged(collect_env("AMD Instinct MI300X (gfx942:sramecc+:xnack-)", HIP))["cpus-too-few-for-gpus"].verdict
        is Verdict.UNKNOWN
    )


@pytest.mark.parametrize(
    ("cpus", "threads", "cores", "clusters", "expected"),
    [(192, 1, 48, 4, 192), (12, 1, 4, 3, 12), (64, 1, 64, 1, 64), (6, 1, 4, 2, None), (8, 2, 2, 2, 4)],
)
def test_cores_that_are_counted_by_clusters(cpus: int, threads: int, cores: int, clusters: int, expected: int | None) -> None:
    text = (
        f"Architecture: aarch64\nCPU(s): {cpus}\nOn-line CPU(s) list: 0-{cpus - 1}\nVendor ID: ARM\nThread(s) per core: {threads}\n"
        f"Core(s) per cluster: {cores}\nSocket(s): -\nCluster(s): {clusters}\n"
    )
    cpu = seen(text).cpu
    assert not isinstance(cpu, Missing)
    assert isinstance(cpu.cores, Missing) if expected is None else cpu.cores == expected


@pytest.mark.parametrize(
    ("words", "system", "version"),
    [
        ("openEuler 24.03 (LTS-SP2) (aarch64)", "openeuler", "24.03"),
        ("Kylin Linux Advanced Server V10 (Lance) (x86_64)", "kylin", "10"),
        ("NixOS 24.11 (Vicuna) (x86_64)", "nixos", "24.11"),
        ("Microsoft Azure Linux 3.0 (x86_64)", "azurelinux", "3.0"),
        ("openSUSE Tumbleweed (x86_64)", "opensuse-tumbleweed", ""),
        ("Rocky Linux 9.4 (Blue Onyx) (x86_64)", "rocky", "9.4"),
    ],
)
def test_other_distributions(words: str, system: str, version: str) -> None:
    found = seen(collect_env("GPU 0: NVIDIA L4", system=words)).system
    assert not isinstance(found, Missing) and not isinstance(found.os, Missing)
    assert (found.os.id, found.os.version) == (system, version)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("    vGPU Software Licensed Product\n        Product Name      : NVIDIA Virtual Compute Server\n        License Status    : Unlicensed (Restricted)\n", "vgpu-unlicensed"),
        ("$ nvidia-smi -q | grep -A2 GRID\n    GRID Licensed Product\n        Product Name      : GRID\n        License Status    : Unlicensed\n", "vgpu-unlicensed"),
        ("[ 9.1] nouveau 0000:01:00.0: fifo: fault 01 [WRITE] at 00000000069f000 engine 15 [CE0] client 01 [HUB/CE0]\n", "other-driver-holds-gpu"),
        ("Jan 6 14:37:38 d kernel: nouveau 0000:3b:00.0: gr: TRAP ch 5 [00ff2f1000 python[812]]\n", "other-driver-holds-gpu"),
        ("00:08.0 3D controller [0302]: NVIDIA Corporation GP104GL [Tesla P4] [10de:1bb3] (rev a1)\n\tKernel driver in use: nouveau\n", "nouveau-loaded"),
        ("[ +0.000844] nvidia 0000:03:00.0: AER: can't recover (no error_detected callback)\n[ +0.000008] pcieport 0000:00:03.0: AER: device recovery failed\n", "pcie-uncorrected-errors"),
        ("Nov 26 10:00:01 n1 systemd-oomd[812]: Killed /user.slice/a.scope due to memory pressure for /user.slice being 62.30% > 50.00% for > 20s\n", "oom-kill-logged"),
        ('Nov 26 10:00:01 n1 earlyoom[9]: sending SIGTERM to process 4242 uid 1000 "python": oom_score 812, VmRSS 30210 MiB\n', "oom-kill-logged"),
        ('user: warning: [2026-01-12T20:27:31.9Z]: [talos] Sending SIGKILL to cgroup {"component": "c", "cgroup": "/sys/fs/cgroup/kubepods/burstable/pod7"}\n', "oom-kill-logged"),
    ],
)  # fmt: skip
def test_forms_that_were_passed_over(text: str, rule: str) -> None:
    assert judged(text)[rule].verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        # software that probes a device's features: no error (UnsupReq), though the kernel's recovery says that the driver cannot take part
        (
            "[ 5.1] pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)\n"
            "[ 5.1] pcieport 0000:00:03.0:    [20] UnsupReq               (First)\n"
            "[ 5.1] nvidia 0000:03:00.0: AER: can't recover (no error_detected callback)\n",
            "pcie-uncorrected-errors",
        ),
        ("[ 9.1] nouveau 0000:01:00.0: unknown chipset (b72000a1)\n[ 9.2] nouveau 0000:01:00.0: probe with driver nouveau failed with error -12\n", "other-driver-holds-gpu"),
        ("00:08.0 3D controller [0302]: NVIDIA Corporation GP104GL [Tesla P4] [10de:1bb3] (rev a1)\n\tKernel driver in use: nvidia\n\tKernel modules: nouveau, nvidia\n", "nouveau-loaded"),
        ("    vGPU Software Licensed Product\n        Product Name      : NVIDIA RTX Virtual Workstation\n        License Status    : Licensed (Expiry: 2026-12-1 8:0:0 GMT)\n", "vgpu-unlicensed"),
    ],
)  # fmt: skip
def test_near_them_nothing_is_wrong(text: str, rule: str) -> None:
    found = engine.report(text, "report")
    assert found is None or not any(r.rule.id == rule and r.verdict is Verdict.FAIL for r in engine.judge(found, CATALOGUE))


@pytest.mark.parametrize(
    ("error", "named"),
    [
        ("Permission denied", True),
        ("Operation not permitted", True),
        ("Cannot allocate memory", False),
        ("Invalid argument", False),
    ],
)
def test_only_a_refusal_is_one_of_rights(error: str, named: bool) -> None:
    text = f"ROCk module is loaded\nUnable to open /dev/kfd read-write: {error}\nroot is member of render group\n"
    assert (("rocm-device-permission", "certain") in causes(text)) is named
    assert ("rocm-device-permission" in {cause for cause, _ in causes(text)}) is named


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('<?xml version="1.0"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n<topology version="2.0">\n', "lstopo"),
        ("NodeName=n1 Arch=x86_64 CoresPerSocket=1 \n   CPUAlloc=0 State=IDLE\n", "scontrol show node"),
        ("hca_id:\tmlx5_0\n\ttransport:\t\tInfiniBand (0)\n\tfw_ver:\t\t20.37.1700\n", "ibv_devinfo without its ports"),
        ("crw-------   1 root    root    234,   0 Mai 21 05:13 kfd\n", "ls -l /dev/nvidia"),
        ("crw-rw-rw- 1 root root 195, 0 Nov 12 10:00 /dev/nvidia0\n", "ls -l /dev/nvidia"),
        ("crw-rw-r--+ 1 root render 226, 128 Jun 11 09:00 /dev/dri/renderD128\n", "ls -l /dev/nvidia"),
        ('{"level":"warn","msg":"fabric state is not healthy"}\n{"level":"info","msg":"ok"}\n', "neither a recording nor a report"),
        ("crw-rw-rw- 1 root render 235, 0 Apr  8 16:46 /dev/kfd\nUnable to open /dev/kfd read-write: No such file or directory\n", "contains a known error"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_named_as_what_it_is(text: str, words: str, tmp_path: Path) -> None:
    given = tmp_path / "report.txt"
    given.write_text(text)
    with pytest.raises(UnreadableInput, match=words):
        look({**NO_INTENT, "from_": str(given), "root": None, "timeout": None})


@pytest.mark.parametrize("has_finding", [True, False])
def test_an_error_that_no_check_judges_is_told(has_finding: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    given = tmp_path / "report.txt"
    error = "ls: cannot access '/dev/nvidia*': No such file or directory"
    full = "Filesystem  Size  Used Avail Use% Mounted on\n/dev/nvme0n1p2  439G  417G  0 100% /\n"
    given.write_text(f"{error}\n{full if has_finding else full.replace('0 100%', '390G 11%').replace('417G', '49G')}")
    command.main(["--from", str(given)], standalone_mode=False)
    assert (f"contains a known error that no check judges: {error}" in capfd.readouterr().err) is not has_finding


def test_a_module_is_not_told_to_be_another_machine() -> None:
    table = "|   0  Orin (nvgpu)                  N/A  | N/A              N/A |                  N/A |\n"
    text = f"Linux n 5.15.148-tegra #1 SMP PREEMPT aarch64 GNU/Linux\nMemTotal: 30408704 kB\n{table}"
    assert judged(text)["host-small-for-gpu-training"].verdict is not Verdict.FAIL
