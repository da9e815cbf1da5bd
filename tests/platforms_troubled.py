"""Platforms with something wrong, and what is to be said of that beside what their healthy kin is told."""

from __future__ import annotations

from collections.abc import Callable

from machines import Recording, cut, environment, function, ordinary, over, rdma, text, torch
from platforms import fedora_two_4090, intel_snc4, mi300x_container, old_lab_box
from platforms_arm import dgx_spark, gb200_tray, jetson_orin
from platforms_contained import colab
from platforms_more import aws_p5_efa, oci_h100, vast_pod
from platforms_owners import rail_pod


def mixed_generations() -> Recording:
    """A 4090 and an old 1080 Ti in one desktop, driver 580."""
    host = fedora_two_4090()
    nvml = host["answers"]["nvml"]
    first, second = nvml["devices"]
    old = {
        **second,
        "name": "NVIDIA GeForce GTX 1080 Ti",
        "architecture": "Pascal",
        "compute_capability": [6, 1],
        "memory_total_bytes": 11_811_160_064,
        "pcie_gen": 3,
        "pcie_gen_max": 3,
    }
    return over(host, answers={"nvml": {**nvml, "devices": [first, old]}})


def vast_few_tasks() -> Recording:
    """1024 tasks for 46 CPUs: pools of threads sized for 384 CPUs do not start."""
    return over(vast_pod(), files={"/sys/fs/cgroup/pids/pids.max": "1024\n", "/sys/fs/cgroup/pids/pids.current": "980\n"})


def gb200_without_fabric() -> Recording:
    host = gb200_tray()
    nvml = host["answers"]["nvml"]
    waiting = [
        {**one, "fabric_state": "in-progress", "fabric_status": {"$missing": "absent", "source": "NVML"}}
        for one in nvml["devices"]
    ]
    return over(host, answers={"nvml": {**nvml, "devices": waiting}})


def spark_old_wheel() -> Recording:
    """Wheels for CUDA 12.6 know no compute capability 12.x."""
    return torch(dgx_spark(), "2.7.1+cu126", cuda="12.6")


def jetson_pypi_wheel() -> Recording:
    """The index's aarch64 wheel of that time has no CUDA."""
    return torch(jetson_orin(), "2.8.0+cpu")


def colab_upgraded() -> Recording:
    """pip install -U torch on driver 550."""
    return torch(colab(), "2.11.0+cu130", cuda="13.0")


def lab_upgraded() -> Recording:
    """pip install -U torch beside a GTX 1080 Ti."""
    return torch(old_lab_box(), "2.11.0+cu130", cuda="13.0")


def snc4_without_nodes() -> Recording:
    """Firmware that tells no nearness of the GPUs."""
    host = intel_snc4()
    paths = [
        path
        for path in host["files"]
        if path.endswith("/numa_node") and host["files"][path.replace("numa_node", "vendor")] == "0x10de"
    ]
    return over(host, files=dict.fromkeys(paths, "-1"))


def oci_port_down() -> Recording:
    """One of sixteen cables is out."""
    port = "/sys/class/infiniband/mlx5_5/ports/1"
    host = over(
        oci_h100(),
        files={f"{port}/state": "1: DOWN", f"{port}/phys_state": "3: Disabled", "/sys/class/net/rdma5/operstate": "down"},
    )
    listed = [
        {**one, "operstate": "down", "flags": 4099} if one["name"] == "rdma5" else one for one in host["answers"]["interfaces"]
    ]
    return over(host, answers={"interfaces": listed})


def p5_without_plugin() -> Recording:
    """EFA without the plug-in that lets NCCL use it: the job runs over sockets."""
    return over(aws_p5_efa(), env={"LD_LIBRARY_PATH": None}, dirs={"/opt/amazon/ofi-nccl/lib": None})


def logged(host: Recording, *lines: str) -> Recording:
    """Lines at the end of the kernel's log."""
    log = host["answers"]["kernel-log"]
    now = log["now_s"]
    stamped = [f"[{now - 3600 + number:.6f}] {line}" for number, line in enumerate(lines)]
    return over(host, answers={"kernel-log": {**log, "lines": [*log["lines"], *stamped]}})


def of_gpu(host: Recording, index: int, **facts: object) -> Recording:
    """What NVML says of one GPU."""
    nvml = host["answers"]["nvml"]
    devices = [{**one, **facts} if one["index"] == index else one for one in nvml["devices"]]
    return over(host, answers={"nvml": {**nvml, "devices": devices}})


def _bus(host: Recording, index: int) -> str:
    address: str = host["answers"]["nvml"]["devices"][index]["pci_address"]
    return address.rpartition(".")[0]


def oci_link_failed() -> Recording:
    """A link of GPU 3 failed: the driver logged it, and NVML sees it down."""
    host = of_gpu(oci_h100(), 3, nvlinks=18, nvlinks_down=[6])
    return logged(
        host,
        f"NVRM: Xid (PCI:{_bus(host, 3)}): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 6(0x10000)",
    )


def oci_link_failed_unlogged() -> Recording:
    """The same, after the log has lost it."""
    return of_gpu(oci_h100(), 3, nvlinks=18, nvlinks_down=[6])


def oci_memory_failed() -> Recording:
    """A bad row in GPU 5: the driver logged the error, and NVML counts it."""
    host = of_gpu(oci_h100(), 5, ecc_uncorrected_volatile=1)
    return logged(
        host, f"NVRM: Xid (PCI:{_bus(host, 5)}): 95, pid=4711, name=python3, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No"
    )


def oci_module_corrects() -> Recording:
    """A module corrects by the hundred: the memory controller counts it, and its driver logs it."""
    mc = "/sys/devices/system/edac/mc/mc0"
    line = "EDAC MC0: 60 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x0 offset:0x0 grain:32 syndrome:0x0)"
    return logged(over(oci_h100(), files={f"{mc}/ce_count": "90000\n", f"{mc}/ue_count": "0\n"}), line)


def gb200_without_imex() -> Recording:
    """Two trays of a rack, and nobody started the service that shares memory between them."""
    host = gb200_tray()
    nvml = host["answers"]["nvml"]
    devices = [{**one, "fabric_of_hosts": True} for one in nvml["devices"]]
    return over(host, answers={"nvml": {**nvml, "devices": devices}}, intent={**host.get("intent", {}), "nodes": 2})


def pod_without_rails() -> Recording:
    """A pod of a job over two hosts that forgot to ask for the adapters."""
    return over(rail_pod(), intent={"nodes": 2})


def pod_without_verbs() -> Recording:
    """The same where /sys shows the node's adapters: there is no device node to open them by."""
    host = rail_pod()
    for number in range(8):
        place = f"pci0000:a{number}/0000:a{number}:00.0"
        host = rdma(host, f"mlx5_{number}", place, layer="InfiniBand", rate="400 Gb/sec (4X NDR)", kind="MT4129")
    dirs = {path: names for path, names in host["dirs"].items() if "infiniband" not in path}
    return over({**host, "dirs": dirs}, intent={"nodes": 2})


def mi300x_without_driver() -> Recording:
    """A kernel update left no amdgpu for it: eight accelerators that nobody drives."""
    host = ordinary("mi300x")
    files = {
        path: [line for line in text(host, path) if not line.startswith("DRIVER=amdgpu")]
        for path in host["files"]
        if path.endswith("/uevent")
    }
    links = {path: target for path, target in host["links"].items() if not target.endswith("/amdgpu")}
    modules = [line for line in text(host, "/proc/modules") if not line.startswith("amdgpu")]
    host = cut({**host, "links": links}, "/dev/kfd", "/sys/module/amdgpu")
    return over(host, files={**files, "/proc/modules": modules})


def mi300x_without_node() -> Recording:
    """docker run without --device /dev/kfd."""
    return cut(mi300x_container(), "/dev/kfd")


def mi300x_hidden() -> Recording:
    """A variable of a script for the CPU is left: HIP sees no GPU."""
    return environment(mi300x_container(), HIP_VISIBLE_DEVICES="-1")


def narrow_max_q() -> Recording:
    """A workstation's card with Max-Q in its name holds 8 of its 16 lanes: it has a slot, and a bad contact."""
    host = fedora_two_4090()
    name = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
    host = of_gpu(of_gpu(host, 0, name=name, display=False), 1, name=name, display=False)
    port, place = "pci0000:00/0000:00:01.1", "pci0000:00/0000:00:01.1/0000:02:00.0"
    host = function(host, port, "8086:a70d", "60400", "pcieport", -1)
    return over(host, files={f"/sys/devices/{place}/current_link_width": "8"})


TROUBLED: dict[str, Callable[[], Recording]] = {
    made.__name__.replace("_", "-"): made
    for made in (
        mixed_generations,
        vast_few_tasks,
        gb200_without_fabric,
        spark_old_wheel,
        jetson_pypi_wheel,
        colab_upgraded,
        lab_upgraded,
        snc4_without_nodes,
        oci_port_down,
        p5_without_plugin,
        gb200_without_imex,
        oci_link_failed,
        oci_link_failed_unlogged,
        oci_memory_failed,
        oci_module_corrects,
        pod_without_rails,
        pod_without_verbs,
        mi300x_without_driver,
        mi300x_without_node,
        mi300x_hidden,
        narrow_max_q,
    )
}

FAULTS: dict[str, tuple[str, set[str]]] = {
    "mixed-generations": ("fedora-two-4090", {"gpu-arch-not-in-wheel"}),
    "vast-few-tasks": ("vast-pod", {"cgroup-pids-limit"}),
    "gb200-without-fabric": ("gb200-tray", {"fabric-manager-not-running"}),
    "spark-old-wheel": ("dgx-spark", {"gpu-arch-not-in-wheel", "triton-version-differs"}),
    "jetson-pypi-wheel": ("jetson-orin", {"cpu-only-build"}),
    "colab-upgraded": ("colab", {"driver-too-old", "triton-version-differs"}),
    "lab-upgraded": (
        "old-lab-box",
        {"driver-too-old", "gpu-arch-not-in-wheel", "triton-version-differs", "torch-torchvision-mismatch"},
    ),
    "snc4-without-nodes": ("intel-snc4", {"gpu-numa-unknown"}),
    "oci-port-down": ("oci-h100", {"ib-port-down"}),
    "p5-without-plugin": ("aws-p5-efa", {"efa-plugin-missing"}),
    "gb200-without-imex": ("gb200-tray", {"imex-not-ready"}),
    "oci-link-failed": ("oci-h100", {"xid-nvlink-error"}),
    "oci-link-failed-unlogged": ("oci-h100", {"nvlink-inactive"}),
    "oci-memory-failed": ("oci-h100", {"xid-memory-error"}),
    "oci-module-corrects": ("oci-h100", {"memory-corrected-errors"}),
    "pod-without-rails": ("rail-pod", {"rdma-driver-not-loaded"}),
    "pod-without-verbs": ("rail-pod", {"rdma-driver-not-loaded"}),
    "mi300x-without-driver": ("mi300x-container", {"amdgpu-not-loaded"}),
    "mi300x-without-node": ("mi300x-container", {"rocm-device-permission"}),
    "mi300x-hidden": ("mi300x-container", {"cuda-visible-devices-wrong"}),
    "narrow-max-q": ("fedora-two-4090", {"gpu-pcie-link-degraded"}),
}
"""Troubled host → the same in health, and the errors and warnings that come with the trouble."""
