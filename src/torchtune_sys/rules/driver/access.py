"""Whether this session reaches the GPU: device nodes, containers, and the libraries that the loader takes."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, EnvironmentVariable, Install, Needs, Safety
from torchtune_sys.model.rule import Evidence, Params, Rule, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, absent, known, need, shown
from torchtune_sys.rules import gates
from torchtune_sys.rules.driver.common import container, gpu_addresses, nvml_error


@rule(
    id="gpu-device-permission",
    title="This user may not open the GPU's device nodes",
    severity=Severity.ERROR,
    cause="gpu-device-permission",
    fix=(
        Advice(
            text="add the user to the group that owns /dev/nvidia* (often video): sudo usermod -aG video USER", needs=Needs.LOGIN
        ),
        Advice(text="in a rootless container keep the supplementary groups (podman run --group-add keep-groups)"),
    ),
)
def gpu_device_permission(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """/dev/nvidia* exist, but not readable and writable for this user, or nvidiactl (in a container also nvidia-uvm) is missing.

    Why it matters
        CUDA needs to open nvidiactl, nvidia-uvm and the GPU's own node; otherwise it finds no device ("CUDA unknown error"), and NVML says
        "Insufficient Permissions", or that the driver is not loaded.

    When to leave it
        This user deliberately has no access to the GPUs; a job scheduler grants it.

    References
        README of the driver: NVreg_DeviceFileMode, NVreg_DeviceFileGID
        https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html (NVML_ERROR_NO_PERMISSION)
    """
    if nvml_error(s) == "NO_PERMISSION":
        yield Evidence(subject="NVML", seen="Insufficient Permissions", wanted="readable and writable", source=need(s.gpu).source)
        return
    gates.nvidia_hardware(s)
    listed = need(s.driver).device_nodes
    if absent(listed) or not (nodes := need(listed)):
        raise NotApplicable("no device nodes of the NVIDIA driver here")
    for node in nodes:
        accessible = need(node.accessible)
        yield Evidence(
            subject=node.path,
            seen=f"mode {node.mode:04o}, uid {node.uid}, gid {node.gid}",
            wanted="readable and writable for this user",
            verdict=Verdict.PASS if accessible else Verdict.FAIL,
            source=node.path,
        )
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
    id="rocm-device-permission",
    title="This user may not open AMD's compute device",
    severity=Severity.ERROR,
    cause="rocm-device-permission",
    fix=(
        Advice(
            text="add the user to the group that owns /dev/kfd (often render): sudo usermod -aG render USER", needs=Needs.LOGIN
        ),
        Advice(text="in a container: --device /dev/kfd --device /dev/dri --group-add render"),
    ),
)
def rocm_device_permission(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """/dev/kfd exists, but its permissions do not let this user read and write it.

    Why it matters
        ROCm opens it first; without it, torch.cuda.is_available() is False and rocminfo says "Unable to open /dev/kfd
        read-write".

    When to leave it
        This user deliberately has no access to the GPUs; a job scheduler grants it.

    References
        https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html, "Configuring permissions for
        GPU access"
    """
    devices = need(s.driver).amd_devices
    if absent(devices) or not need(devices):
        raise NotApplicable("no AMD GPU on this host")
    found = need(s.driver).compute_node
    if absent(found):
        raise NotApplicable("no /dev/kfd here: amdgpu is not loaded, or the container was given none")
    node = need(found)
    yield Evidence(
        subject=node.path,
        seen=f"mode {node.mode:04o}, uid {node.uid}, gid {node.gid}",
        wanted="readable and writable for this user",
        verdict=Verdict.PASS if need(node.accessible) else Verdict.FAIL,
        source=node.path,
    )


@rule(
    id="container-without-gpu-devices",
    title="The host has NVIDIA GPUs, but this container was given none",
    severity=Severity.ERROR,
    cause="container-toolkit-missing",
    fix=(
        Install(
            text="install nvidia-container-toolkit on the host: nvidia-ctk runtime configure, then restart the container runtime"
        ),
        Advice(
            text="start the container with GPUs: docker run --gpus all, podman run --device nvidia.com/gpu=all, apptainer --nv"
        ),
    ),
)
def container_without_gpu_devices(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The host's kernel runs the NVIDIA module, torch is a CUDA build, and the container has no /dev/nvidia*.

    Why it matters
        Training silently runs on the CPU, or fails with "Found no NVIDIA driver on your system".

    When to leave it
        The container is meant to run on the CPU.

    References
        https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html
    """
    gpu_addresses(s)
    kind = container(s)
    if not kind:
        raise NotApplicable("not in a container")
    if not need(need(s.driver).module_loaded):
        raise NotApplicable("the kernel module is not loaded")
    nodes = need(need(s.driver).device_nodes)
    if not nodes:
        gates.cuda_torch(s)
    yield Evidence(
        subject=f"container ({kind})",
        seen=f"{len(nodes)} nodes /dev/nvidia*",
        wanted="the nodes of the GPUs to train on",
        verdict=Verdict.PASS if nodes else Verdict.FAIL,
        source="/dev",
    )


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
    title="nvidia-smi or NVML cannot reach the GPUs",
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
    """nvidia-smi or NVML fails with an error that no other rule explains.

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
        yield Evidence(subject="NVML", seen="works", verdict=Verdict.PASS, source="NVML")
        return
    gpu = need(s.gpu)
    pasted = gpu.source == "report"
    if error in _EXPLAINED or (error in _SEEN_ON_THE_HOST and not pasted) or gpu.worked_before:
        raise NotApplicable("another rule tells why")
    if not pasted and known(need(s.system).container, ""):
        raise NotApplicable("in a container: see container-lost-gpu-cgroup and gpu-device-permission")
    seen = gpu.devices.detail if isinstance(gpu.devices, Missing) and gpu.devices.detail else error
    fix = (_OF_WINDOWS,) if pasted and error == "OPERATING_SYSTEM" else ()
    yield Evidence(subject="NVML", seen=seen, wanted="the GPUs of this host", source=gpu.source, fix=fix)


_EXPLAINED = frozenset(
    ("LIB_RM_VERSION_MISMATCH", "DRIVER_NOT_LOADED", "NO_PERMISSION", "GPU_IS_LOST", "RESET_REQUIRED", "NO_BINDING")
)
_SEEN_ON_THE_HOST = frozenset(("LIBRARY_NOT_FOUND", "NO_DEVICES"))
"""The host's files and its PCI bus tell what is behind these; a pasted line is all that a report has."""


@rule(
    id="cuda-stub-library-loaded",
    title="The loader finds CUDA's stub library instead of the driver's",
    severity=Severity.ERROR,
    cause="cuda-stub-library-loaded",
    fix=(
        Advice(text="remove the .../stubs directory from LD_LIBRARY_PATH and /etc/ld.so.conf.d; it is for linking only"),
        EnvironmentVariable(name="LD_LIBRARY_PATH", value=None),
    ),
)
def cuda_stub_library_loaded(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A directory named stubs that contains a libcuda.so.1 comes before the driver's on the loader's path.

    Why it matters
        The stub has every function and does nothing: cuInit returns error 34 (CUDA_ERROR_STUB_LIBRARY), and torch finds no GPU.

    When to leave it
        Only while building programs on a machine without a GPU.

    References
        https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html (CUDA_ERROR_STUB_LIBRARY)
    """
    gates.nvidia_hardware(s)
    listed = need(s.driver).libcuda
    shown(need(s.driver).wsl, False)  # where it is looked for depends on that
    if absent(listed) or not (found := need(listed)):
        raise NotApplicable("no libcuda.so.1 where the loader looks")
    stub = "/stubs/" in found[0]
    yield Evidence(
        subject="libcuda.so.1",
        seen=found[0],
        wanted="the driver's own library first",
        verdict=Verdict.FAIL if stub else Verdict.PASS,
        source="LD_LIBRARY_PATH, /etc/ld.so.conf.d",
    )


@rule(
    id="image-contains-driver-libraries",
    title="The image contains driver libraries of its own",
    severity=Severity.WARNING,
    cause="image-contains-driver-libraries",
    fix=(
        Advice(
            text="remove libcuda.so.*, libnvidia-*.so.* from the image (never install a driver in it, never commit a running container)"
        ),
    ),
)
def image_contains_driver_libraries(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """In the container, driver libraries of another version or of size 0 lie next to those that the toolkit mounts from the host.

    Why it matters
        The image's libraries collide with the mounted ones ("file exists", "Driver/library version mismatch") or are found first.

    When to leave it
        cuda-compat in its own directory is supposed to be there and is not counted.

    References
        https://github.com/NVIDIA/nvidia-container-toolkit/issues
    """
    gates.nvidia_hardware(s)
    if not container(s):
        raise NotApplicable("not in a container")
    if shown(need(s.driver).wsl, False):
        raise NotApplicable("under WSL2 the driver is Windows'")
    module = need(need(s.driver).module_version)
    foreign = [number for number in need(need(s.driver).library_versions) if number != module]
    empty = need(need(s.driver).empty_libraries)
    words = [f"libraries of driver {number}" for number in foreign] + [f"{path} is empty" for path in empty[:4]]
    yield Evidence(
        subject="container image",
        seen=", ".join(words) or f"only libraries of driver {module}",
        wanted=f"only libraries of driver {module}",
        verdict=Verdict.FAIL if words else Verdict.PASS,
        source="the loader's directories",
    )


@rule(
    id="wsl-libcuda-link-missing",
    title="WSL's CUDA library is not on the loader's path",
    severity=Severity.WARNING,
    cause="wsl-libcuda-link-missing",
    fix=(
        Advice(text="echo /usr/lib/wsl/lib | sudo tee /etc/ld.so.conf.d/ld.wsl.conf; sudo ldconfig"),
        EnvironmentVariable(name="LD_LIBRARY_PATH", value="/usr/lib/wsl/lib"),
    ),
)
def wsl_libcuda_link_missing(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Windows provides libcuda.so in /usr/lib/wsl/lib, but neither ld.so.conf.d nor LD_LIBRARY_PATH lists that directory.

    Why it matters
        Programs that open libcuda.so by name (cuDNN, Triton, Numba) do not find it, although the GPU is available.

    When to leave it
        Nothing on this host uses CUDA. (Do not install a full NVIDIA driver inside WSL to work around this.)

    References
        https://docs.nvidia.com/cuda/wsl-user-guide/
    """
    driver = need(s.driver)
    if not need(driver.wsl):
        raise NotApplicable("not WSL with a GPU")
    if absent(driver.wsl_libraries_on_path):
        raise NotApplicable("Windows provides no CUDA library")
    named = need(driver.wsl_libraries_on_path)
    yield Evidence(
        subject="/usr/lib/wsl/lib",
        seen="on the loader's path" if named else "not on the loader's path",
        wanted="on the loader's path",
        verdict=Verdict.PASS if named else Verdict.FAIL,
        source="/etc/ld.so.conf.d, LD_LIBRARY_PATH",
    )


RULES: tuple[Rule, ...] = (
    gpu_device_permission,
    rocm_device_permission,
    container_without_gpu_devices,
    container_lost_gpu_cgroup,
    driver_tools_fail,
    cuda_stub_library_loaded,
    image_contains_driver_libraries,
    wsl_libcuda_link_missing,
)
