"""Rules on access to the GPU: device nodes, containers, and NVML's errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from torchtune_sys.model.actions import Advice, Install, Needs, Safety
from torchtune_sys.model.facts.driver import DeviceNode, DriverFacts
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot, variables_told
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent, absent_or_unrecorded, known, need, need_any
from torchtune_sys.rules import gates
from torchtune_sys.rules.driver.common import container, nvml_error
from torchtune_sys.rules.torch.common import cuda_works

_T = TypeVar("_T")


@rule(
    id="gpu-device-permission",
    title="This user may not open the GPU's device nodes",
    severity=Severity.ERROR,
    cause="gpu-device-permission",
    fix=(
        Advice(
            text="add the user to the group that owns the nodes (often video): sudo usermod -aG video USER", needs=Needs.LOGIN
        ),
        Advice(text="in a rootless container keep the supplementary groups (podman run --group-add keep-groups)"),
    ),
)
def gpu_device_permission(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """/dev/nvidia* exist, but not readable and writable for this user, or nvidiactl (in a container also nvidia-uvm) is missing. The same of a Jetson's
    nodes (/dev/nvmap, nvhost-gpu), and of Intel's (/dev/dri/renderD128), for a torch that is built for them.

    Why it matters
        CUDA needs to open nvidiactl, nvidia-uvm and the GPU's own node; otherwise it finds no device ("CUDA unknown error"), and NVML says
        "Insufficient Permissions", or that the driver is not loaded.

    When to leave it
        This user deliberately has no access to the GPUs; a job scheduler grants it.

    References
        README of the driver: NVreg_DeviceFileMode, NVreg_DeviceFileGID
        https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html, "Insufficient Permissions" and SELinux
        https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html (NVML_ERROR_NO_PERMISSION)
    """
    others = _others(s)
    yield from map(_of_node, others)
    if others and not known(need(s.driver).nvidia_devices, ()):
        return
    if nvml_error(s) == "NO_PERMISSION" and (isinstance(s.driver, Missing) or not _refused(s.driver)):
        open_ = not isinstance(s.driver, Missing) and known(s.driver.device_nodes, ())
        fix = (_BY_LABEL,) if open_ else ()
        yield Evidence(
            subject="NVML", seen="Insufficient Permissions", wanted="readable and writable", source=need(s.gpu).source, fix=fix
        )
        return
    gates.nvidia_hardware(s)
    nodes = need_any(need(s.driver).device_nodes, "no device nodes of the NVIDIA driver here")
    yield from map(_of_node, nodes)
    paths = {node.path for node in nodes}
    container_here = need(s.system).container
    inside = bool(_OF_EACH - paths) and not absent(container_here) and bool(need(container_here))
    for path in _not_there(s, paths, inside=inside):
        yield Evidence(
            subject=path,
            seen=f"is missing, beside {', '.join(node.path for node in nodes[:3])}",
            wanted="there",
            source="/dev",
            fix=(_HANDED_OVER if inside else _MAKE_NODE,),
        )


def _others(s: Snapshot) -> tuple[DeviceNode, ...]:
    """Return the nodes of a Jetson's GPU; those of Intel's GPUs where torch is built for these, and may not be a display's alone."""
    nodes = () if isinstance(s.driver, Missing) else known(s.driver.other_nodes, ())
    torch = Missing(Why.NOT_RECORDED, "torch") if isinstance(s.python, Missing) else s.python.torch
    of_xpu = not isinstance(torch, Missing) and not isinstance(torch.xpu, Missing)
    return tuple(node for node in nodes if of_xpu or not node.path.startswith("/dev/dri/"))


def _of_node(node: DeviceNode) -> Evidence:
    accessible = need(node.accessible)
    return Evidence(
        subject=node.path,
        seen=f"mode {node.mode:04o}, uid {node.uid}, gid {node.gid}",
        wanted="readable and writable for this user",
        verdict=Verdict.PASS if accessible else Verdict.FAIL,
        source=node.path,
        fix=() if accessible else _way_in(node),
    )


def _refused(driver: DriverFacts) -> bool:
    """Return whether a node of the driver is known to be closed to this user."""
    return any(node.accessible is False for node in known(driver.device_nodes, ()))


def _way_in(node: DeviceNode) -> tuple[Advice, ...]:
    """Return what opens a closed node, where membership in its group does not."""
    if node.mode & 0o6 == 0o6:  # open to all by its bits
        return (_BY_LABEL,)
    if node.path.startswith("/dev/dri/"):
        return (_OF_RENDER,)
    return (_OF_ROOT,) if node.gid == 0 and node.path.startswith("/dev/nvidia") else ()


_OF_RENDER = Advice(
    text="add the user to the group that owns the node: sudo usermod -aG render USER (stat -c %G NODE names it); in a container: --device /dev/dri "
    "--group-add with that group's number",
    needs=Needs.LOGIN,
)


_BY_LABEL = Advice(
    text="the nodes' permission bits let this user in, so SELinux, AppArmor or the container's device cgroup refuses: podman run --security-opt label=disable (or on "
    "the host: sudo setsebool -P container_use_devices true); sudo ausearch -m avc -ts recent shows what SELinux refused"
)
_OF_ROOT = Advice(
    text="give the nodes a group of its own, since nobody should be added to root's: options nvidia NVreg_DeviceFileGID=GID NVreg_DeviceFileMode=0660 in "
    "/etc/modprobe.d/ (or mode 0666, the driver's default), then reload the driver"
)
_HANDED_OVER = Advice(
    text="hand it over, too: docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility, or --device for each node",
    needs=Needs.NEW_PROCESS,
)
_MAKE_NODE = Advice(text="sudo nvidia-modprobe -c0 -u (or nvidia-smi as root) makes the nodes")


_UVM = "/dev/nvidia-uvm"
_OF_EACH = frozenset(("/dev/nvidiactl", _UVM))


def _not_there(s: Snapshot, paths: set[str], *, inside: bool) -> list[str]:
    """Return the nodes that lack, beside some that are there; ``inside`` a container."""
    lost = ["/dev/nvidiactl"] if inside or nvml_error(s) == "DRIVER_NOT_LOADED" else []
    if inside and _UVM not in paths and _has_cuda_torch(s):
        lost.append(_UVM)
    return [path for path in lost if path not in paths]


def _has_cuda_torch(s: Snapshot) -> bool:
    torch = need(s.python).torch
    return not absent(torch) and not absent(need(torch).cuda) and bool(need(need(torch).cuda))


@rule(
    id="container-lost-gpu-cgroup",
    title="The container lost access to its GPUs (device cgroup)",
    severity=Severity.ERROR,
    cause="container-lost-gpu-cgroup",
    fix=(
        Advice(text="restart the container (nothing inside it can bring the devices back)", needs=Needs.NEW_PROCESS),
        Advice(text="to prevent it: pass the devices with CDI, or set Docker's native.cgroupdriver=cgroupfs"),
    ),
)
def container_lost_gpu_cgroup(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """NVML returns "Unknown Error" in a container whose device nodes have the right permissions.

    Why it matters
        When systemd on the host reloads, it rewrites the device rules of the cgroups it manages and drops devices that the
        container runtime added without its knowledge. Running containers lose their GPUs.

    When to leave it
        Never; running CUDA programs continue only until they open a device again.

    References
        https://github.com/NVIDIA/nvidia-container-toolkit/issues/251
        https://github.com/NVIDIA/nvidia-docker/issues/1730
    """
    if nvml_error(s) not in ("UNKNOWN", "OPERATING_SYSTEM"):
        if not isinstance(s.gpu, Missing) and not isinstance(s.gpu.devices, Missing) and s.gpu.devices:
            yield Evidence(subject="NVML", seen="works", verdict=Verdict.PASS, source="NVML")
            return
        gates.nvidia_gpus(s)
    before = need(s.gpu).worked_before
    kind = known(need(s.system).container, "") if before else container(s)
    if not kind and not before:
        raise NotApplicable("not in a container")
    nodes = () if before else need(need(s.driver).device_nodes)
    if not before and (not nodes or not all(need(node.accessible) for node in nodes)):
        raise NotApplicable("the device nodes themselves are not accessible")
    yield Evidence(
        subject=f"container ({kind})" if kind else "container",
        seen="NVML: Unknown Error, though "
        + ("it worked in this container before" if before else "the device nodes are accessible by their permission bits"),
        wanted="devices allowed by the container's cgroup",
        source=need(s.gpu).source,
    )


_OF_WINDOWS = Advice(
    text="under WSL2: update the NVIDIA driver in Windows and WSL (wsl --update), and remove NVIDIA driver packages from the "
    "distribution"
)


@rule(
    id="driver-tools-fail",
    title="The driver's libraries cannot reach the GPUs (nvidia-smi, NVML, libcuda)",
    severity=Severity.ERROR,
    explained_by=(
        *("xid-gpu-lost", "xid-memory-error", "xid-gsp-error", "xid-nvlink-error", "xid-gpu-fault"),
        *("gpu-initialisation-failed", "driver-ignores-gpu", "gpu-needs-proprietary-module"),
        *("gpu-bar-not-assigned", "gsp-firmware-missing"),
    ),
    fix=(
        Advice(
            text="sudo dmesg | grep -i -e nvrm -e nvidia shows why; for a container, first check that nvidia-smi works on its "
            "host",
            safety=Safety.DISPLAY_ONLY,
        ),
        _OF_WINDOWS,
    ),
)
def driver_tools_fail(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """nvidia-smi or NVML fails with an error that no other rule explains, or the driver's libraries are missing although its module is loaded.

    Why it matters
        If NVIDIA's own library cannot reach the GPUs, neither can CUDA: torch.cuda.is_available() is False, or programs fail at
        startup.

    When to leave it
        Never on a host that is meant for training.

    References
        https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html (nvmlReturn_t)
        https://docs.nvidia.com/cuda/wsl-user-guide/
    """
    error = nvml_error(s)
    if not error:
        gates.nvidia_gpus(s)
        yield (
            _of_cuda(_without_cuda(s))
            if _without_cuda(s) or _libcuda_alone_missing(s)
            else Evidence(subject="NVML", seen="works", verdict=Verdict.PASS, source="NVML")
        )
        return
    gpu = need(s.gpu)
    pasted = gpu.source == "report"
    if error == "LIBRARY_NOT_FOUND" and not pasted and _libraries_alone_missing(s):
        yield Evidence(
            subject="the driver's libraries",
            seen=f"the kernel module is loaded; the loader finds neither libcuda.so.1 nor libnvidia-ml.so.1{asked_for_none(s)}",
            wanted="libraries of the module's version",
            source="loader",
            fix=(_INTO_CONTAINER,) if known(need(s.system).container, "") else (_LIBRARIES, _INTO_CONTAINER),
        )
        return
    if error in _EXPLAINED or (error in _SEEN_ON_THE_HOST and not pasted) or gpu.worked_before:
        raise NotApplicable("another rule says why")
    if not pasted and known(need(s.system).container, ""):
        raise NotApplicable("in a container: see container-lost-gpu-cgroup and gpu-device-permission")
    seen = gpu.devices.detail if isinstance(gpu.devices, Missing) and gpu.devices.detail else error
    fix = (_OF_WINDOWS,) if pasted and error == "OPERATING_SYSTEM" else ()
    yield Evidence(subject="NVML", seen=seen, wanted="the GPUs of this host", source=gpu.source, fix=fix)


_LIBRARIES = Install(
    text="install the driver's libraries of the module's version (Ubuntu: libnvidia-compute-BRANCH; Debian: libcuda1 and libnvidia-ml1; RHEL with NVIDIA's repository: "
    "nvidia-driver-cuda; SLES: nvidia-compute-G06; Arch: nvidia-utils)"
)
_INTO_CONTAINER = Advice(
    text="in a container: start it so that the runtime mounts the driver's libraries: docker run --gpus all, podman run --device nvidia.com/gpu=all, apptainer exec --nv, "
    "enroot and pyxis with NVIDIA_VISIBLE_DEVICES=all"
)


_CAPABILITIES = Advice(
    text="in a container: start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility (or all): with utility alone the runtime mounts NVML and no CUDA"
)


def _of_cuda(told: str) -> Evidence:
    return Evidence(
        subject="libcuda.so.1",
        seen=f"nvidia-smi shows the GPUs, and of libcuda: {told}" if told else "NVML works; the loader finds no libcuda.so.1",
        wanted="CUDA's library of the driver's version",
        source="report" if told else "loader",
        fix=(_CAPABILITIES, _LIBRARIES),
    )


def _without_cuda(s: Snapshot) -> str:
    """Return what a pasted table of nvidia-smi says where libcuda did not load for it (``CUDA Version: ERR!``), unless torch used the GPUs."""
    gpu = need(s.gpu)
    cuda = gpu.cuda_driver_version
    is_told = gpu.source == "report" and isinstance(cuda, Missing) and cuda.why is Why.FAILED
    return cuda.detail if is_told and isinstance(cuda, Missing) and not cuda_works(s) else ""


def _libcuda_alone_missing(s: Snapshot) -> bool:
    """Whether the loader's directories hold the driver's library for nvidia-smi and not the one for CUDA. Where they hold neither, both are somewhere else (WSL, Nix)."""
    driver = _unless_untold(s.driver)
    return driver is not None and bool(_unless_untold(driver.library_versions)) and _unless_untold(driver.libcuda) == ()


def _unless_untold(fact: _T | Missing) -> _T | None:
    """Return the value of a fact; None where a report does not tell it, or it is absent. What could not be looked at is unknown."""
    if absent_or_unrecorded(fact):
        return None
    return need(fact)


def _libraries_alone_missing(s: Snapshot) -> bool:
    """Whether the kernel's side of the driver runs without its libraries; a container without device nodes was given no GPU at all, which is a finding of its own."""
    driver = need(s.driver)
    if not need(driver.module_loaded) or (container(s) and not need(driver.device_nodes)):
        return False
    return absent(driver.library_version) or not need(driver.library_version)


def asked_for_none(s: Snapshot) -> str:
    """Return what tells enroot and NVIDIA's container runtime to bring none."""
    env = variables_told(s)
    asked = env.get("NVIDIA_VISIBLE_DEVICES", "all")
    return f" (NVIDIA_VISIBLE_DEVICES={asked})" if asked in ("", "void", "none") else ""


_EXPLAINED = frozenset(
    ("LIB_RM_VERSION_MISMATCH", "DRIVER_NOT_LOADED", "NO_PERMISSION", "GPU_IS_LOST", "RESET_REQUIRED", "NO_BINDING")
)
_SEEN_ON_THE_HOST = frozenset(("LIBRARY_NOT_FOUND", "NO_DEVICES"))
"""The host's files and its PCI bus tell what is behind these; a pasted line is all that a report has."""
