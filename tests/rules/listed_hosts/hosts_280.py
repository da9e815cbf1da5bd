"""Builders of the hosts 280 to 305 of hosts.csv, from public threads."""

from __future__ import annotations

from hosts_082 import _site, wsl2
from hosts_141 import _REFUSED, pod, slurm
from hosts_206 import _FILE, _OPEN, _library_first, conda
from hosts_pasted import _REPORT
from hosts_table import HOSTS, desktop, dgx, made, mi300x, two_dgx, with_log, with_variables

from machines import Recording, cut, environment, over, system, text
from platforms_arm import jetson_orin
from platforms_more import ryzen_laptop
from platforms_owners import without_modules
from platforms_troubled import logged

with_variables(280, wsl2, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
with_variables(300, wsl2, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:False,max_split_size_mb:512")
with_variables(281, mi300x, HSA_OVERRIDE_GFX_VERSION="")
with_variables(301, ryzen_laptop, HSA_OVERRIDE_GFX_VERSION="11.0.0")
_ROCM_6_0 = {"libamdhip64.so.6": "6.0.60000", "libhsa-runtime64.so.1": "1.12.60000", "librocblas.so.4": "4.0.60000"}
HOSTS[282] = (lambda: _library_first(mi300x(), "/opt/rocm/lib", _ROCM_6_0), mi300x)


def _verbs(closed: int | None) -> Recording:
    nodes = [f"uverbs{number}" for number in range(8)]
    answers = {f"access:/dev/infiniband/{name}": _REFUSED if name == f"uverbs{closed}" else _OPEN for name in nodes}
    return over(pod(), dirs={"/dev/infiniband": nodes}, answers=answers, intent={"nodes": 2})


HOSTS[283] = (lambda: _verbs(1), lambda: _verbs(None))


def _builds(home: str) -> Recording:
    files = {f"{_site(dgx())}/deepspeed-0.18.2.dist-info/INSTALLER": "pip\n", "/usr/local/cuda/bin/nvcc": ""}
    files["/usr/local/cuda/version.json"] = '{"cuda": {"version": "13.0.1"}, "cuda_nvcc": {"version": "13.0.88"}}'
    stats = {"/usr/local/cuda/bin/nvcc": {**_FILE, "mode": 33261}}
    return environment(over(dgx(), files=files, stats=stats), CUDA_HOME=home)


HOSTS[284] = (lambda: _builds(":/usr/local/cuda"), lambda: _builds("/usr/local/cuda"))
_GONE = {"$missing": "absent", "source": "nvmlInit", "detail": "the NVIDIA kernel module is not loaded"}


@made(285, desktop)
def no_module_for_this_kernel() -> Recording:
    host = without_modules(cut(desktop(), "/dev/nvidia", "/proc/driver/nvidia", "/sys/module/nvidia"), "nvidia")
    host = system(host, kernel="6.1.0-42-cloud-amd64", os_={"PRETTY_NAME": "Debian GNU/Linux 12 (bookworm)", "ID": "debian"})
    gpu = next(path for path in host["files"] if path.endswith("/uevent") and "DRIVER=nvidia" in str(host["files"][path]))
    unbound = [line for line in text(host, gpu) if not line.startswith("DRIVER=")]
    links = {path: target for path, target in host["links"].items() if not target.endswith("/drivers/nvidia")}
    nvml = {"error": "DRIVER_NOT_LOADED", **dict.fromkeys(("driver_version", "library_version", "devices"), _GONE)}
    built = "kernel/drivers/nvme/host/nvme.ko:\n"
    files = {gpu: unbound, "/lib/modules/6.1.0-42-cloud-amd64/modules.dep": built}
    return over({**host, "links": links, "answers": {**host["answers"], "nvml": {}}}, files=files, answers={"nvml": nvml})


_RESETTING = (
    "NVRM: nvAssertOkFailedNoLog: Assertion failed: GPU currently going through fullchip reset "
    "[NV_ERR_GPU_IN_FULLCHIP_RESET] (0x00000017) returned from rpcSendMessage(pGpu, pRpc) @ rpc.c:11023"
)
with_log(286, dgx, *(_RESETTING,) * 6)
_NVMAP = """NvMapMemAllocInternalTagged: 1075072515 error 12
NvMapMemHandleAlloc: error 0
Traceback (most recent call last):
  File "/home/ubuntu/train/train.py", line 41, in <module>
    model = model.to("cuda")
RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/opt/pytorch/c10/cuda/CUDACachingAllocator.cpp":995
"""
HOSTS[287] = (lambda: {"paste": _NVMAP}, lambda: {"paste": _REPORT})
with_log(288, wsl2, *("misc dxg: dxgk: dxgkio_make_resident: Ioctl failed: -12",) * 8)
with_variables(289, two_dgx, VLLM_HOST_IP="10.33.0.99")


@made(290, conda)
def kernels_to_be_compiled() -> Recording:
    packages = ("sglang-0.5.5", "flashinfer_python-0.5.2", "sgl_kernel-0.3.16")
    return over(conda(), files={f"{_site(conda())}/{name}.dist-info/INSTALLER": "pip\n" for name in packages})


@made(291, conda)
def empty_libraries_of_an_image() -> Recording:
    place = "/usr/lib/x86_64-linux-gnu"
    names = [f"{place}/lib{name}.so.418.56" for name in ("cuda", "nvidia-ml", "nvidia-ptxjitcompiler")]
    return over(conda(), files=dict.fromkeys(names, ""), stats={name: {**_FILE, "size": 0} for name in names})


@made(292, dgx)
def firmware_refuses_to_start() -> Recording:
    nvml = dgx()["answers"]["nvml"]
    left = [{**one, "index": number} for number, one in enumerate(one for one in nvml["devices"] if one["index"] != 5)]
    return logged(
        over(dgx(), answers={"nvml": {**nvml, "devices": left}}),
        "NVRM: kfspProcessCommandResponse_GH100: FSP response reported error. Task ID: 0x2 Command type: 0x14 Error code: 0x6",
        "NVRM: kfspSendBootCommands_GH100: FSP boot cmds failed. RM cannot boot.",
        "NVRM: kfspDumpDebugState_GH100: FSP microcode v4.76",
    )


_ONE = {"SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "gpu07", "SLURM_STEP_NUM_TASKS": "1"}


def _step(per_node: str, **more: str) -> Recording:
    return environment(slurm(), **_ONE, SLURM_NTASKS="1", SLURM_NTASKS_PER_NODE=per_node, **more)


HOSTS[293] = (lambda: _step("4"), lambda: _step("1"))
HOSTS[304] = (lambda: _step("1", SLURM_JOB_NAME="bash"), slurm)


def _master(written: str) -> Recording:
    ways = {
        "way-to: 10.33.0.12": {"error": "absent", "source": "getaddrinfo( 10.33.0.12)", "detail": "Name or service not known"},
        "way-to:10.33.0.12": {"addresses": ["10.33.0.12"], "refused": [""], "own": ["10.33.0.13"]},
    }
    return over(environment(two_dgx(), MASTER_ADDR=written, MASTER_PORT="29500"), answers=ways)


HOSTS[294] = (lambda: _master(" 10.33.0.12"), lambda: _master("10.33.0.12"))


@made(295, jetson_orin)
def no_room_for_thread_local_storage() -> Recording:
    host, site = jetson_orin(), _site(jetson_orin())
    python = next(name for name in host["answers"] if name.startswith("interpreter:")).partition(":")[2]
    error = f"OSError: {site}/torch/lib/libgomp-d22c30c5.so.1.0.0: cannot allocate memory in static TLS block"
    return over(host, answers={f"live-torch:{python}": {"import_error": error}}, intent={"live": True})


@made(296, mi300x)
def two_copies_of_a_library() -> Recording:
    site = _site(mi300x())
    libraries = [f"{site}/_rocm_sdk_core/lib/libamd_smi.so.26", f"{site}/amdsmi/libamd_smi.so"]
    packages = {f"{site}/{name}.dist-info/INSTALLER": "pip\n" for name in ("rocm_sdk_core-7.13.0", "amdsmi-7.0.2")}
    return over(mi300x(), files={**packages, **dict.fromkeys(libraries, "")}, stats=dict.fromkeys(libraries, _FILE))


@made(297, pod)
def shared_memory_of_dead_ranks() -> Recording:
    names = [f"nccl-{number:06x}" for number in range(1900)]
    space = {**pod()["spaces"]["/dev/shm"], "free": 12_582_912}
    return over(pod(), spaces={"/dev/shm": space}, dirs={"/dev/shm": names})


def _eight() -> Recording:
    """With conda's NumPy, thus Intel's OpenMP, beside torch's wheel."""
    packages = {f"{_site(dgx())}/{name}.dist-info/INSTALLER": "conda\n" for name in ("mkl-2025.2.0", "intel_openmp-2025.2.0")}
    return over(dgx(), files=packages, intent={"ranks": 8})


with_variables(298, _eight, KMP_AFFINITY="granularity=fine,compact,1,0")
_NEWER = {
    **dict.fromkeys((f"/boot/vmlinuz-6.14.0-{number}-generic" for number in (33, 37)), ""),
    "/lib/modules/6.14.0-37-generic/modules.dep": "kernel/fs/xfs/xfs.ko.zst:\n",
}
_NOW = {"/lib/modules/6.14.0-33-generic/modules.dep": "updates/dkms/nvidia.ko.zst:\n"}
HOSTS[299] = (lambda: over(desktop(), files={**_NEWER, **_NOW}), desktop)
_GOMP = "/usr/lib/aarch64-linux-gnu/libgomp.so.1"
HOSTS[302] = (
    lambda: environment(over(jetson_orin(), files={_GOMP: ""}, stats={_GOMP: _FILE}), LD_PRELOAD=_GOMP),
    jetson_orin,
)


@made(303, two_dgx)
def without_ipv6() -> Recording:
    line = text(two_dgx(), "/proc/cmdline")[0]
    return over(two_dgx(), files={"/proc/cmdline": f"{line} ipv6.disable=1\n"})


with_variables(
    305, two_dgx, VLLM_HOST_IP="10.33.0.13", TORCHINDUCTOR_COMPILE_THREADS="1", TORCHINDUCTOR_CACHE_DIR="/tmp/torchinductor_ops"
)
