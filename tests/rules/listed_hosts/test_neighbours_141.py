"""Healthy neighbours of the fourth list's faults: one thing differs, and the rule that names the fault finds nothing."""

from __future__ import annotations

import pytest
from hosts_082 import wsl2
from hosts_141 import _data_on_nfs, _partitioned, _step_of_a_task, slurm
from hosts_306 import _instead
from hosts_336 import _bridged, _quantised
from hosts_table import HOSTS, Build, desktop, dgx, mi300x
from test_listed_hosts import _seen

from conftest import judge_one
from machines import Recording, cut, environment, function, over, text, torch, without_gpus
from platforms import intel_xpu
from platforms_arm import dgx_spark, gb200_tray
from platforms_owners import regions
from platforms_troubled import logged, of_gpu
from torchtune_sys.model.rule import Verdict

_RANK = {"LOCAL_RANK": "3", "RANK": "3", "WORLD_SIZE": "8"}


def _graphics(device: str, address: str, driver: str) -> Recording:
    host = torch(without_gpus(desktop()), "2.9.1+cpu", cuda=None)
    return function(host, f"pci0000:00/0000:00:01.0/{address}", f"8086:{device}", "30000", driver, -1)


def _fabric(told: bool) -> Recording:
    host = environment(gb200_tray(), NCCL_MNNVL_ENABLE="0")
    nvml = host["answers"]["nvml"]
    devices = [device | {"fabric_of_hosts": told} for device in nvml["devices"]]
    return over(host, answers={"nvml": nvml | {"devices": devices}}, intent={"nodes": 2})


def _data_on_nfs_read_only(options: str) -> Recording:
    host = _data_on_nfs(options)()
    lines = text(host, "/proc/self/mountinfo")
    return over(host, files={"/proc/self/mountinfo": [line.replace("/nfs/data rw,", "/nfs/data ro,") for line in lines]})


def _beside_arc(second: int) -> Recording:
    place = "pci0000:00/0000:00:01.0/0000:0b:00.0"
    host = function(dgx(), place, "8086:56a5", "30000", "i915", -1)
    host = regions(host, place, 16 << 20, 0, 256 << 20)
    for gpu in ("pci0000:1b/0000:1b:00.0", "pci0000:43/0000:43:00.0"):
        host = regions(host, gpu, 16 << 20, second)
    return host


def _windows(display: str, *files: str) -> Recording:
    """NVIDIA's packages of a Windows: two that each has, one of sound, and one with these files."""
    store = "/usr/lib/wsl/drivers"
    package = f"{display}.inf_amd64_7e5fd280efaa5445"
    names = ["nvraid.inf_amd64_1a2b", "nvdimm.inf_amd64_3c4d", "nvhda.inf_amd64_5e6f", package]
    host = cut(wsl2(), "/usr/lib/wsl")
    absent = {"$missing": "absent", "source": "libnvidia-ml.so.1", "detail": "not found"}
    nothing = {"error": "LIBRARY_NOT_FOUND", **dict.fromkeys(("driver_version", "library_version", "devices"), absent)}
    held = {f"{store}/{package}/{name}": "" for name in files}
    host = over(host, dirs={store: names, "/usr/lib/wsl/lib": []}, files=held)
    return over(host, answers={"nvml": nothing, "loader-cache:libcuda.so.1": []})


def _beside_wireless(address: str, flags: int) -> Recording:
    host = over(desktop(), intent={"nodes": 2})
    family = "inet6" if ":" in address else "inet"
    told = {"addresses": [{"family": family, "address": address, "prefix_length": 16}], "flags": flags}
    told["operstate"] = "up" if flags & 0x10000 else "down"
    listed = [{**one, **told} if one["name"] == "enp6s0" else one for one in host["answers"]["interfaces"]]
    links = {"/sys/class/net/enp6s0/device/subsystem": "../../../bus/pci"}
    return over(host, answers={"interfaces": listed}, links=links)


def _triton(release: str) -> Recording:
    return _instead(torch(dgx_spark(), "2.9.1", cuda="13.0", arch="aarch64"), "triton", release)


def _composed(master: str, own: str) -> Recording:
    host = environment(_bridged(own, 16), MASTER_ADDR=master, MASTER_PORT="29500", RANK="1", LOCAL_RANK="0", WORLD_SIZE="2")
    return over(host, answers={f"way-to:{master}": {"addresses": [master], "refused": [""], "own": [own]}})


_TO_ANOTHER = {"addresses": ["10.10.0.6"], "refused": [""], "own": ["10.10.0.7"]}


def _one_in_pieces(ranks: int) -> Recording:
    return over(of_gpu(dgx(), 7, mig=True, mig_instances=7), intent={"ranks": ranks})


_LOST = (
    "Lustre: scratch-OST0003-osc-ffff8881: Connection to scratch-OST0003 (at 10.20.0.3@o2ib) was lost; in progress operations using this service will "
    "wait for recovery to complete"
)


def _in_lxc(host: Recording) -> Recording:
    return over(cut(host, "/.dockerenv"), files={"/proc/self/cgroup": "0::/lxc.payload.train/.lxc\n"})


_ONE_ANOTHER = ("SPX", "SPX", "SPX", "CPX", *("SPX",) * 4)

VARIANTS: dict[str, tuple[str, Build, Verdict]] = {
    "copy engines that AMD's scripts leave off": (
        "fast-path-switched-off",
        lambda: environment(mi300x(), HSA_ENABLE_SDMA="0"),
        Verdict.PASS,
    ),
    "a list of protocols": ("fast-path-switched-off", lambda: environment(dgx(), NCCL_PROTO="LL,Simple"), Verdict.PASS),
    "no NVLink between hosts": ("fast-path-switched-off", lambda: _fabric(False), Verdict.PASS),
    "NVLink between hosts": ("fast-path-switched-off", lambda: _fabric(True), Verdict.FAIL),
    "a rank without its GPU": ("several-ranks-on-one-gpu", lambda: environment(_step_of_a_task(), **_RANK), Verdict.FAIL),
    "a rank that shares": (
        "several-ranks-on-one-gpu",
        lambda: environment(_step_of_a_task(), NCCL_MULTI_RANK_GPU_ENABLE="1", **_RANK),
        Verdict.NA,
    ),
    "LOCAL_RANK of no job": ("several-ranks-on-one-gpu", lambda: environment(desktop(), LOCAL_RANK="3"), Verdict.NA),
    "partitions of which the job chooses": (
        "gpu-models-mixed",
        lambda: environment(_partitioned(*_ONE_ANOTHER), HIP_VISIBLE_DEVICES="0,1,2"),
        Verdict.NA,
    ),
    "partitions in a container": (
        "gpu-models-mixed",
        lambda: over(
            _partitioned(*_ONE_ANOTHER),
            files={"/.dockerenv": "", "/proc/1/comm": "bash\n"},
            links={"/proc/self/ns/pid": "pid:[4026532841]"},
        ),
        Verdict.NA,
    ),
    "partitions that the driver does not tell": (
        "gpu-models-mixed",
        lambda: _partitioned("SPX", "UNKNOWN", *("SPX",) * 6),
        Verdict.PASS,
    ),
    "a card of Intel's": ("cpu-only-build", lambda: _graphics("e20b", "0000:03:00.0", "xe"), Verdict.FAIL),
    "a part of a processor's graphics in a guest": (
        "cpu-only-build",
        lambda: _graphics("a7a0", "0000:06:10.0", "i915"),
        Verdict.NA,
    ),
    "a second function of a chipset's graphics": (
        "intel-gpu-not-served",
        lambda: function(intel_xpu(), "pci0000:00/0000:00:02.1", "8086:2a43", "38000", "", -1),
        Verdict.PASS,
    ),
    "a card of Intel's beside AMD's GPUs": (
        "cpu-only-build",
        lambda: function(
            torch(mi300x(), "2.9.1+cpu", cuda=None, hip=None),
            "pci0000:00/0000:00:01.0/0000:04:00.0",
            "8086:56a5",
            "30000",
            "i915",
            -1,
        ),
        Verdict.NA,
    ),
    "several plug-ins of NCCL": (
        "variable-names-missing-file",
        lambda: environment(dgx(), NCCL_NET_PLUGIN="/opt/a/libnccl-net.so,/opt/b/libnccl-net.so"),
        Verdict.NA,
    ),
    "a card of Intel's for the display beside two of NVIDIA's": ("gpu-bar-small", lambda: _beside_arc(16 << 30), Verdict.PASS),
    "two of NVIDIA's with small regions beside a card of Intel's": (
        "gpu-bar-small",
        lambda: _beside_arc(256 << 20),
        Verdict.FAIL,
    ),
    "WSL on a host without a display driver of NVIDIA's": ("no-nvidia-driver", lambda: _windows("nv_dispi"), Verdict.NA),
    "WSL on a host with one that brings no CUDA": (
        "no-nvidia-driver",
        lambda: _windows("nv_dispi", "nvlddmkm.sys"),
        Verdict.FAIL,
    ),
    "Wi-Fi for the internet beside a cable between the hosts": (
        "ethernet-link-slow",
        lambda: _beside_wireless("169.254.12.7", 69699),
        Verdict.NA,
    ),
    "Wi-Fi beside a cable that is not plugged in": (
        "ethernet-link-slow",
        lambda: _beside_wireless("10.0.0.12", 4099),
        Verdict.FAIL,
    ),
    "Wi-Fi beside a cable to no network": ("ethernet-link-slow", lambda: _beside_wireless("fe80::12", 69699), Verdict.FAIL),
    "a container of Docker on its host's own bridge": ("nccl-wrong-interface", lambda: _bridged("172.20.0.2", 16), Verdict.FAIL),
    "two containers of one host, on the network that compose made for them": (
        "nccl-wrong-interface",
        lambda: _composed("172.18.0.2", "172.18.0.3"),
        Verdict.PASS,
    ),
    "the first of them": ("nccl-wrong-interface", lambda: _composed("172.18.0.2", "172.18.0.2"), Verdict.PASS),
    "the first of several hosts, in a container on the default bridge": (
        "nccl-wrong-interface",
        lambda: _composed("172.17.0.2", "172.17.0.2"),
        Verdict.FAIL,
    ),
    "ranks on the GPUs beside one that is cut into instances": (
        "several-ranks-on-one-gpu",
        lambda: environment(_one_in_pieces(7), CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6"),
        Verdict.PASS,
    ),
    "ranks on a GPU that is cut into instances": (
        "mig-mode-limits",
        lambda: environment(_one_in_pieces(2), CUDA_VISIBLE_DEVICES="6,7"),
        Verdict.FAIL,
    ),
    "a newer NCCL": ("nccl-wheel-version-overridden", lambda: _instead(desktop(), "nvidia_nccl_cu13", "2.29.2"), Verdict.PASS),
    "an older NCCL": ("nccl-wheel-version-overridden", lambda: _instead(desktop(), "nvidia_nccl_cu13", "2.27.3"), Verdict.FAIL),
    "a newer cuDNN": (
        "nvidia-wheel-version-differs",
        lambda: _instead(desktop(), "nvidia_cudnn_cu13", "9.20.0.48"),
        Verdict.PASS,
    ),
    "Lustre that came back, by the address of its server": (
        "file-server-not-responding",
        lambda: logged(
            slurm(), _LOST, "Lustre: scratch-OST0003-osc-ffff8881: Connection restored to 10.20.0.3@o2ib (at 10.20.0.3@o2ib)"
        ),
        Verdict.PASS,
    ),
    "Lustre of which another server came back": (
        "file-server-not-responding",
        lambda: logged(
            slurm(), _LOST, "Lustre: scratch-OST0004-osc-ffff8881: Connection restored to 10.20.0.4@o2ib (at 10.20.0.4@o2ib)"
        ),
        Verdict.FAIL,
    ),
    "bitsandbytes that is told of a library that it has": (
        "extension-cuda-mismatch",
        lambda: environment(_quantised("126", "130"), BNB_CUDA_VERSION="126"),
        Verdict.PASS,
    ),
    "bitsandbytes that is told of one that it has not": (
        "extension-cuda-mismatch",
        lambda: environment(_quantised("126", "130"), BNB_CUDA_VERSION="121"),
        Verdict.FAIL,
    ),
    "a container that a device plug-in granted no GPU": (
        "container-without-gpu-devices",
        lambda: environment(HOSTS[433][0](), NVIDIA_VISIBLE_DEVICES="all"),
        Verdict.NA,
    ),
    "a node of Slurm's that takes itself for the first": ("rank-seeks-master-on-own-host", HOSTS[443][0], Verdict.FAIL),
    "the first node of Slurm's": ("rank-seeks-master-on-own-host", HOSTS[477][0], Verdict.NA),
    "a node of Slurm's that knows the first": (
        "rank-seeks-master-on-own-host",
        lambda: over(environment(HOSTS[443][0](), MASTER_ADDR="gpu06"), answers={"way-to:gpu06": _TO_ANOTHER}),
        Verdict.PASS,
    ),
    "a container of LXC on the site's network": (
        "nccl-wrong-interface",
        lambda: _in_lxc(_bridged("172.20.0.2", 16)),
        Verdict.PASS,
    ),
    "a container of Docker with an address of Podman's": (
        "nccl-wrong-interface",
        lambda: _bridged("10.88.0.2", 16),
        Verdict.PASS,
    ),
    "a Triton of the package index before the GPU": ("triton-ptxas-older-than-gpu", lambda: _triton("3.5.1"), Verdict.FAIL),
    "a Triton that NVIDIA built with another ptxas": (
        "triton-ptxas-older-than-gpu",
        lambda: _triton("3.5.1+git5a1b"),
        Verdict.NA,
    ),
    "data that is only read": ("nfs-mount-untuned", lambda: _data_on_nfs_read_only("soft,timeo=600,retrans=2"), Verdict.PASS),
    "data that is written": ("nfs-mount-untuned", _data_on_nfs("soft,timeo=600,retrans=2"), Verdict.FAIL),
    "data with soft revalidation": ("nfs-mount-untuned", _data_on_nfs("hard,softreval,timeo=600,retrans=2"), Verdict.PASS),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_healthy_neighbour_of_a_fault_is_not_accused(name: str) -> None:
    rule_id, build, verdict = VARIANTS[name]
    found = judge_one(_seen(build), rule_id)
    assert found.verdict is verdict, found
