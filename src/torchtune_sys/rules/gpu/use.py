"""Rules on who uses the GPUs already, on hosts of several models, and on what virtual and confidential GPUs wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.session import SessionFacts
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot, container_told, variables_told
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent, absent_or_unsupported, known, need
from torchtune_sys.model.visible_gpus import AMD_LISTS
from torchtune_sys.rules import gates
from torchtune_sys.rules.gpu.common import subject


@rule(
    id="gpu-memory-in-use",
    title="GPU memory is already used by another process",
    severity=Severity.WARNING,
    params=(Param("threshold_mib", 2048, "memory used by others from which on it is reported, MiB"),),
    fix=(
        Advice(
            text="find out whose it is: nvidia-smi, or sudo fuser -v /dev/nvidia*; kill leftover ranks before a new job starts"
        ),
    ),
)
def gpu_memory_in_use(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A process of another user, or one that cannot be seen, uses a lot of a GPU's memory.

    Why it matters
        A batch size that fits an empty GPU then runs out of memory, and the other process takes compute time. Ranks left over
        from a crashed job are a common reason.

    When to leave it
        The GPU is shared on purpose. Memory of the session's own user is not counted. Where the kernel manages the GPU's memory as a NUMA node
        (GH200, GB200 without CDMM), its page cache is counted as used, so only the processes that are listed are judged.

    References
        nvml.h, nvmlDeviceGetMemoryInfo (GPUs that are NUMA nodes: pages stay allocated after a process has ended)
        https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html (nvmlDeviceGetComputeRunningProcesses)
    """
    gpus = gates.nvidia_gpus(s)
    if need(s.gpu).source == "report":
        raise NotApplicable("a report does not show whose processes they are")
    user = _me(need(s.session))
    threshold = int(p["threshold_mib"]) << 20
    for gpu in gpus:
        if gpu.lost:
            continue
        if isinstance(gpu.memory_used_bytes, Missing):
            if gpu.memory_used_bytes.why.value != "not-supported":
                yield unsure(subject(gpu), gpu.memory_used_bytes)
            continue
        others = gpu.memory_used_bytes - _own(gpu, user)
        nobody = isinstance(gpu.processes, Missing) or not gpu.processes
        if others >= threshold and _of_kernel(s):
            listed = _listed(gpu, user)
            if nobody or listed is None:
                yield unsure(subject(gpu), _PAGE_CACHE, f"less than {threshold >> 20} MiB")
                continue
            others = listed
        if others >= threshold and nobody and _in_container(s):
            yield unsure(subject(gpu), _HIDDEN, f"less than {threshold >> 20} MiB")
            continue
        yield Evidence(
            subject=subject(gpu),
            seen=f"{others >> 20} MiB used by others{_owners(gpu, user)}",
            wanted=f"less than {threshold >> 20} MiB",
            verdict=Verdict.FAIL if others >= threshold else Verdict.PASS,
            source="nvmlDeviceGetMemoryInfo, nvmlDeviceGetComputeRunningProcesses",
        )


def _me(session: SessionFacts) -> str:
    """Return the user as a process list names them: by number where the user database has no name."""
    return str(need(session.uid)) if absent(session.user) else need(session.user)


_HIDDEN = Missing(
    Why.NOT_SUPPORTED,
    "nvmlDeviceGetComputeRunningProcesses",
    "a container does not show whose processes use the GPU",
    "run on the host",
)


_PAGE_CACHE = Missing(
    Why.NOT_SUPPORTED,
    "nvmlDeviceGetMemoryInfo",
    "the kernel manages this GPU's memory as a NUMA node, and its page cache counts as used",
    "sync; echo 3 | sudo tee /proc/sys/vm/drop_caches, then look again",
)


def _of_kernel(s: Snapshot) -> bool:
    """Whether the memory of the GPUs is that of NUMA nodes, from which the kernel takes pages for itself."""
    nodes = () if isinstance(s.numa, Missing) else known(s.numa.nodes, ())
    return any(node.gpu_memory for node in nodes)


def _listed(gpu: Gpu, user: str) -> int | None:
    """Bytes of the processes of others that NVML lists; None where it does not tell one's share."""
    processes = known(gpu.processes, ())
    shares = [process.used_bytes for process in processes if process.user != user]
    return None if any(isinstance(share, Missing) for share in shares) else sum(known(share, 0) for share in shares)


def _in_container(s: Snapshot) -> bool:
    return isinstance(s.system, Missing) or s.system.container != ""


def _own(gpu: Gpu, user: str) -> int:
    """Bytes held by the session's own user. Where NVML does not tell a process's share, all of the GPU's counts as its own."""
    if isinstance(gpu.processes, Missing):
        return 0
    total = 0
    for process in gpu.processes:
        if process.user == user:
            if isinstance(process.used_bytes, Missing):
                return need(gpu.memory_used_bytes)
            total += process.used_bytes
    return min(total, need(gpu.memory_used_bytes))


def _owners(gpu: Gpu, user: str) -> str:
    if isinstance(gpu.processes, Missing):
        return ""
    names = sorted({process.user for process in gpu.processes if isinstance(process.user, str) and process.user != user})
    return f" ({', '.join(names[:4])})" if names else ""


_PARTITION_ALIKE = Advice(
    text="stop what uses the GPUs, then sudo amd-smi set --compute-partition SPX -g all (each part of a GPU in CPX mode is a device with a part of its memory)"
)


@rule(
    id="gpu-models-mixed",
    title="The host has GPUs of different models, or partitioned in different ways",
    severity=Severity.ADVICE,
    fix=(Advice(text="choose identical GPUs for each job with CUDA_VISIBLE_DEVICES (and CUDA_DEVICE_ORDER=PCI_BUS_ID)"),),
)
def gpu_models_mixed(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The GPUs of this host are not all the same model, or AMD's are not divided into partitions alike (SPX, CPX).

    Why it matters
        In synchronous data-parallel training every step takes as long as on the slowest GPU, and the batch has to fit the
        smallest memory. CUDA orders devices by speed unless told otherwise, so device numbers differ from those in nvidia-smi.

    When to leave it
        The smaller GPU drives the display, or each job runs on one GPU.

    References
        https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables (CUDA_DEVICE_ORDER)
        https://instinct.docs.amd.com/projects/amdgpu-docs/en/latest/gpu-partitioning/index.html
    """
    modes = Counter(() if isinstance(s.driver, Missing) else known(s.driver.amd_partitions, ()))
    if modes.total() > 1:
        if len(modes) > 1:
            _all_are_used(s)
        yield Evidence(
            subject="compute partitions",
            seen=", ".join(f"{count} x {mode}" for mode, count in modes.most_common()),
            wanted="the same for all GPUs",
            verdict=Verdict.FAIL if len(modes) > 1 else Verdict.PASS,
            source="/sys/bus/pci/devices/*/current_compute_partition",
            fix=(_PARTITION_ALIKE,) if len(modes) > 1 else (),
        )
        return
    gpus = gates.nvidia_gpus(s)
    if len(gpus) < 2:
        raise NotApplicable("one GPU only")
    names = sorted({need(gpu.name) for gpu in gpus if not gpu.lost})
    yield Evidence(
        subject="GPUs",
        seen=", ".join(names),
        wanted="one model",
        verdict=Verdict.FAIL if len(names) > 1 else Verdict.PASS,
        source="nvmlDeviceGetName",
    )


@rule(
    id="gpu-confidential-not-ready",
    title="GPUs in confidential-computing mode do not accept work yet",
    severity=Severity.ERROR,
    fix=(
        Advice(
            text="attest the GPUs (nvtrust's verifier sets them ready), or sudo nvidia-smi conf-compute -srs 1 once they are trusted"
        ),
    ),
)
def gpu_confidential_not_ready(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Confidential computing is on, and the GPUs' ready state says that they do not accept client requests.

    Why it matters
        nvidia-smi shows the GPUs as usual, but every CUDA program fails until the state is set to ready, which is needed after
        each boot.

    When to leave it
        The attestation is about to run.

    References
        nvml.h: nvmlSystemGetConfComputeGpusReadyState; https://github.com/NVIDIA/nvtrust/issues/37, 39
    """
    gates.nvidia_gpus(s)
    state = need(s.gpu).confidential
    if absent_or_unsupported(state):
        raise NotApplicable("no confidential computing here")
    yield Evidence(
        subject="all GPUs",
        seen=need(state).replace("-", " "),
        wanted="ready" if state == "not-ready" else "",
        verdict=Verdict.FAIL if state == "not-ready" else Verdict.PASS,
        source="nvmlSystemGetConfComputeGpusReadyState",
    )


def _all_are_used(s: Snapshot) -> None:
    """Raise NotApplicable where the session has some of AMD's GPUs only; in a container the kernel shows those of the host."""
    env = variables_told(s)
    if chosen := [name for name in AMD_LISTS if env.get(name)]:
        raise NotApplicable(f"{chosen[0]} chooses among GPUs that are partitioned in different ways")
    if container_told(s):
        raise NotApplicable("which of the host's GPUs this container has is not known")


@rule(
    id="vgpu-unlicensed",
    title="A virtual GPU (vGPU) is unlicensed",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="put the licence server's client token into /etc/nvidia/ClientConfigToken, sudo systemctl restart nvidia-gridd, and see its log (journalctl -u nvidia-gridd)"
        ),
        Advice(
            text="in Kubernetes: the token and gridd.conf as the GPU operator's licensing configuration (driver.licensingConfig)"
        ),
    ),
    nothing="no virtual GPU",
)
def vgpu_unlicensed(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """nvidia-smi -q reports an unlicensed vGPU in this virtual machine.

    Why it matters
        For the first 20 minutes it works as if licensed. Then the driver limits what is allocated, CUDA calls become slow, and on most releases CUDA is disabled: "all
        CUDA-capable devices are busy or unavailable", while nvidia-smi shows an idle GPU.

    When to leave it
        The machine has just booted and the licence is on its way.

    References
        NVIDIA Virtual GPU Client Licensing User Guide (performance of an unlicensed vGPU)
        https://github.com/NVIDIA/gpu-operator/issues/220 (allocations of a few MB a second after some minutes)
        https://github.com/DDMAL/Rodan/issues/1332
    """
    for gpu in gates.nvidia_gpus(s):
        if isinstance(gpu.licensed, Missing):
            if known(gpu.virtualization, "") != "vgpu":
                continue
            yield unsure(
                subject(gpu),
                Missing(Why.NOT_SUPPORTED, "NVML", "not asked of NVML", "nvidia-smi -q | grep 'License Status'"),
                "licensed",
            )
            continue
        yield Evidence(
            subject=subject(gpu),
            seen="licensed" if gpu.licensed else "unlicensed",
            wanted="licensed",
            verdict=Verdict.PASS if gpu.licensed else Verdict.FAIL,
            source="nvidia-smi -q (License Status)",
        )
