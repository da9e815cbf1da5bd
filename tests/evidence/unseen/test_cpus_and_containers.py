"""What 36 public texts of a further hunt had wrong: CPUs that are offline, engines of containers, virtual GPUs, names that a text cuts off."""

from __future__ import annotations

from pathlib import Path

import pytest

from evidence.unseen.judging import judged, seen
from torchtune_sys import engine
from torchtune_sys.cli.options import NO_INTENT
from torchtune_sys.cli.take_snapshot import look
from torchtune_sys.errors import UnreadableInput
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Missing


def lscpu(count: int, online: str, threads: int | str, cores: int, sockets: int, offline: str = "", more: str = "") -> str:
    lost = f"Off-line CPU(s) list:  {offline}\n" if offline else ""
    return (
        f"Architecture:          x86_64\nCPU(s):                {count}\nOn-line CPU(s) list:   {online}\n{lost}Thread(s) per core:    {threads}\n"
        f"Core(s) per socket:    {cores}\nSocket(s):             {sockets}\nVendor ID:             AuthenticAMD\n{more}"
    )


@pytest.mark.parametrize(
    ("text", "cores", "smt"),
    [
        (lscpu(256, "0-255", 2, 64, 2), 128, True),
        (lscpu(64, "0-63", 1, 32, 2), 64, False),
        (lscpu(256, "0-254", 1, 64, 2, "255"), None, None),  # counted at the core whose sibling is offline
        (lscpu(40, "0-3", 0, 10, 2, "4-39"), None, None),
        (lscpu(20, "0-19", 1, 10, 1, more="  Model name:          Cortex-A725\n"), None, None),  # of two kinds of cores the first
        (lscpu(96, "0-47", 2, 24, 1, "48-95"), None, True),
    ],
)
def test_cores_are_counted_where_the_list_of_cpus_agrees(text: str, cores: int | None, smt: bool | None) -> None:
    cpu = seen(text).cpu
    assert not isinstance(cpu, Missing)
    assert (None if isinstance(cpu.cores, Missing) else cpu.cores, None if isinstance(cpu.smt, Missing) else cpu.smt) == (
        cores,
        smt,
    )


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (lscpu(256, "0-254", 1, 64, 2, "255"), Verdict.FAIL),
        (lscpu(8, "0,2,4,6", 1, 4, 1, "1,3,5,7"), Verdict.UNKNOWN),  # hyper-threading that is switched off looks like this
        (lscpu(256, "0-127", 1, 64, 2, "128-255"), Verdict.UNKNOWN),
        (lscpu(256, "0-127", 2, 32, 2, "128-255"), Verdict.FAIL),
        (lscpu(256, "0-95", 1, 48, 2, "96-255"), Verdict.FAIL),
        (lscpu(256, "0-255", 2, 64, 2), Verdict.PASS),
        (lscpu(8, "0-3", 1, 4, 1), Verdict.UNKNOWN),  # the line is lost
    ],
)
def test_cpus_that_lscpu_lists_as_offline(text: str, verdict: Verdict) -> None:
    assert judged(text)["cpus-offline"].verdict is verdict


INFO = """Server:
 Containers: 4
 Server Version: 27.5.1
 Cgroup Driver: systemd
 Runtimes: io.containerd.runc.v2 nvidia runc
 Default Runtime: runc
 Kernel Version: {kernel}
 Operating System: {os}
 OSType: linux
 Architecture: aarch64
 CPUs: 72
 Total Memory: 479.6GiB
 Name: gh01
"""


@pytest.mark.parametrize(
    ("kernel", "system", "told"),
    [
        ("6.8.0-1043-nvidia-64k", "Ubuntu 24.04.3 LTS", ("6.8.0-1043-nvidia-64k", "ubuntu", "24.04")),
        ("5.14.0-570.el9.aarch64", "Rocky Linux 9.6 (Blue Onyx)", ("5.14.0-570.el9.aarch64", "rocky", "9.6")),
        ("6.1.0-44-arm64", "Debian GNU/Linux 12 (bookworm)", ("6.1.0-44-arm64", "debian", "12")),
    ],
)
def test_docker_info_tells_of_the_host(kernel: str, system: str, told: tuple[str, str, str]) -> None:
    found = seen(INFO.format(kernel=kernel, os=system))
    assert (
        not isinstance(found.system, Missing)
        and not isinstance(found.system.os, Missing)
        and not isinstance(found.memory, Missing)
    )
    assert (found.system.kernel, found.system.os.id, found.system.os.version) == told
    assert found.system.machine == "aarch64" and isinstance(found.system.container, Missing)
    assert found.memory.total_bytes == int(479.6 * 2**30)


@pytest.mark.parametrize("text", [INFO.format(kernel="6.10.14-linuxkit", os="Docker Desktop"), "Kernel Version: 6.8\n"])
def test_docker_in_a_machine_of_its_own_tells_nothing(text: str) -> None:
    assert engine.report(text, "report") is None


INSPECTED = '[{"Id": "3f2", "HostConfig": {"ShmSize": 67108864, "IpcMode": "private", "Memory": 0}}]\n'


def test_docker_inspect_alone_is_of_a_container() -> None:
    system = seen(INSPECTED).system
    assert not isinstance(system, Missing) and system.container == "docker"


@pytest.mark.parametrize(
    "beside",
    [
        "$ sysctl -a\nkernel.ostype = Linux\nkernel.numa_balancing = 1\n",
        "available: 1 nodes (0)\nnode 0 cpus: 0 1\nnode 0 size: 32142 MB\nnode 0 free: 29784 MB\n",
        "PyTorch version: 2.9.0+cu128\nIs debug build: False\n[pip3] torch==2.9.0\n",
        INFO.format(kernel="6.8.0-85-generic", os="Ubuntu 24.04.3 LTS"),
    ],
)
def test_docker_inspect_beside_other_output_does_not_make_the_host_a_container(beside: str) -> None:
    found = seen(f"{beside}\n$ docker inspect trainer\n{INSPECTED}")
    assert isinstance(found.system, Missing) or isinstance(found.system.container, Missing)
    assert not isinstance(found.memory, Missing) and found.memory.shm_size_bytes == 64 << 20


HEAD = """+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 545.46                 Driver Version: 546.80       CUDA Version: {cuda:<8} |
|-----------------------------------------+----------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |
|=========================================+======================+======================|
|   0  NVIDIA GeForce RTX 3060 ...    On  | 00000000:01:00.0  On |                  N/A |
| N/A   54C    P8              16W /  80W |    816MiB /  6144MiB |      3%      Default |
+-----------------------------------------+----------------------+----------------------+
| Processes:                                                                            |
|  No running processes found                                                           |
"""


@pytest.mark.parametrize(("cuda", "verdict"), [("ERR!", Verdict.FAIL), ("12.3", Verdict.PASS), ("N/A", Verdict.PASS)])
def test_a_cuda_version_that_could_not_be_asked_for(cuda: str, verdict: Verdict) -> None:
    assert judged(HEAD.format(cuda=cuda))["driver-tools-fail"].verdict is verdict


QUERY = """==============NVSMI LOG==============
Driver Version                            : 550.127.05
CUDA Version                              : 12.4
Attached GPUs                             : 1
GPU 00000000:02:02.0
    Product Name                          : {name}
    GPU Virtualization Mode
        Virtualization Mode               : {mode}
{licence}"""
LICENCE = "    {product} Licensed Product\n        Product Name                      : NVIDIA Virtual Compute Server\n        License Status                    : {status}\n"


@pytest.mark.parametrize(
    ("mode", "licence", "verdict"),
    [
        ("VGPU", LICENCE.format(product="vGPU Software", status="Unlicensed (Unrestricted)"), Verdict.FAIL),
        ("VGPU", LICENCE.format(product="GRID", status="Unlicensed"), Verdict.FAIL),
        ("VGPU", LICENCE.format(product="vGPU Software", status="Licensed (Expiry: 2026-12-1 8:0:0 GMT)"), Verdict.PASS),
        ("VGPU", "", Verdict.UNKNOWN),
        ("Pass-Through", "", Verdict.NA),
    ],
)
def test_the_licence_of_a_virtual_gpu(mode: str, licence: str, verdict: Verdict) -> None:
    assert judged(QUERY.format(name="GRID T4-16C", mode=mode, licence=licence))["vgpu-unlicensed"].verdict is verdict


@pytest.mark.parametrize(
    ("last", "count"),
    [
        ("GPU 2: NVIDIA B3", 2),
        ("GPU 2: NVIDIA B300 SXM6", 2),
        ("GPU 2: NVIDIA B3...", 2),
        ("GPU 2: NVIDIA B300 SXM6 AC", 3),
        ("GPU 2: NVIDIA L4", 3),
    ],
)
def test_a_name_that_the_end_of_the_text_cuts_off_is_no_other_gpu(last: str, count: int) -> None:
    text = f"PyTorch version: 2.9.0+cu130\nIs debug build: False\nGPU models and configuration: \nGPU 0: NVIDIA B300 SXM6 AC\nGPU 1: NVIDIA B300 SXM6 AC\n{last}\n"
    gpu = seen(text).gpu
    assert not isinstance(gpu, Missing) and not isinstance(gpu.devices, Missing) and len(gpu.devices) == count


@pytest.mark.parametrize(
    ("platform", "kernel", "machine"),
    [
        ("Linux-6.7.7-gentoo-dist-x86_64-AMD_Ryzen_9_5950X_16-Core_Processor-with-glibc2.40", "6.7.7-gentoo-dist", "x86_64"),
        ("Linux-6.8.0-1027-nvidia-64k-aarch64-with-glibc2.35", "6.8.0-1027-nvidia-64k", "aarch64"),
        ("Linux-5.10.0-182.r1941_123.hce2.aarch64-aarch64-with-glibc2.35", "5.10.0-182.r1941_123.hce2.aarch64", "aarch64"),
        ("Linux-3.10.0-957.el7.x86_64-x86_64-with-centos-7.6.1810-Core", "3.10.0-957.el7.x86_64", "x86_64"),
    ],
)
def test_the_kernel_where_the_platform_names_the_processor(platform: str, kernel: str, machine: str) -> None:
    system = seen(f"PyTorch version: 2.9.0\nIs debug build: False\nPython platform: {platform}\n[pip3] torch==2.9.0\n").system
    assert not isinstance(system, Missing) and (system.kernel, system.machine) == (kernel, machine)


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: pyxis:     [ERROR] Command not found: nvidia-container-cli, see https://github.com/NVIDIA/libnvidia-container",
        'Error: OCI runtime "nvidia" not found: invalid argument',
        "cannot access '/dev/nvidia0': No such file or directory (in the container)",
    ],
)
def test_a_log_that_diagnose_knows_is_sent_there(line: str, tmp_path: Path) -> None:
    report = tmp_path / "job.log"
    report.write_text(f"importing docker image ...\n{line}\n")
    with pytest.raises(UnreadableInput, match="a known error") as refused:
        look({**NO_INTENT, "from_": str(report), "root": None, "timeout": None})
    assert "torchtune-sys diagnose" in refused.value.todo and line[-30:] in refused.value.seen
