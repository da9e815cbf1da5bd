"""Variables that switch off one of NCCL's ways, or make it talk."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge.nccl import is_made_for_training
from torchtune_sys.model.actions import Advice, EnvironmentVariable
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.rule import Evidence, Params, Severity, rule
from torchtune_sys.model.snapshot import Snapshot, gpus_told, pci_devices_told
from torchtune_sys.model.values import Missing, NotApplicable, absent, known, need
from torchtune_sys.rules.environment.common import environment, number, seen
from torchtune_sys.rules.gates import gpu_count, may_span_hosts, nccl_hardware, nvidia_gpus, nvidia_hardware, rocm_torch
from torchtune_sys.rules.torch.common import capability

_ASYNC = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING")
_BLOCKING = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
_PER_CALL = ("ALL", "COLL", "P2P", "CALL", "PROXY", "TUNING", "ALLOC", "PROFILE")
"""Subsystems of NCCL that print at each operation rather than at the start."""


@rule(
    id="nccl-errors-not-handled",
    title="PyTorch is configured not to end a rank whose collective fails or hangs",
    severity=Severity.ADVICE,
    applies=nccl_hardware,
    fix=tuple(EnvironmentVariable(name=name, value=None) for name in _ASYNC),
)
def nccl_errors_not_handled(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """TORCH_NCCL_ASYNC_ERROR_HANDLING (before 2.2 NCCL_ASYNC_ERROR_HANDLING) is 0.

    Why it matters
    Where a rank dies, or a link fails, the other ranks wait in their collective for ever: the watchdog sees the time-out, and ends nothing. The job
    holds its GPUs until somebody looks, and an elastic launcher never starts it again.

    When to leave it
    Collectives are captured in CUDA graphs with an NCCL before 2.9.6; or the program waits with a time-out of its own.

    References
    https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
    https://docs.pytorch.org/docs/stable/notes/cuda.html (graphs: usage with DistributedDataParallel)
    pytorch torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp (NoHandling)
    """
    env = environment(s)
    name = next((each for each in _ASYNC if env.get(each)), "")
    if not name:
        raise NotApplicable("the variable is not set")
    if any(number(env.get(each, "")) == 1 for each in _BLOCKING):
        raise NotApplicable("each wait for a collective has a time-out (blocking wait)")
    if env[name].strip() == "0":
        yield seen(name, env[name])


@rule(
    id="nccl-debug-verbose",
    title="NCCL_DEBUG makes NCCL print at every operation",
    severity=Severity.ADVICE,
    applies=nccl_hardware,
    fix=(
        EnvironmentVariable(name="NCCL_DEBUG", value="WARN"),
        Advice(text="or send the lines to a file: export NCCL_DEBUG_FILE=/tmp/nccl.%h.%p.log"),
    ),
)
def nccl_debug_verbose(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """NCCL_DEBUG is TRACE, or INFO for subsystems that print at each collective, and the lines go to the job's output.

    Why it matters
    Every rank prints at each step: the log grows by gigabytes, and writing it takes time from the thread that launches kernels.

    When to leave it
    You are tracing a communication problem. INFO with its default subsystems prints only at startup and is not reported.

    References
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug, #nccl-debug-subsys (^ leaves out what is named)
    """
    env = environment(s)
    level = env.get("NCCL_DEBUG", "").upper()
    systems = [word.strip().upper() for word in env.get("NCCL_DEBUG_SUBSYS", "").split(",")]
    but = systems[0].startswith("^")  # all except those that are named
    loud = [word for word in _PER_CALL[1:] if word not in (systems[0][1:], *systems[1:])] if but else set(systems) & {*_PER_CALL}
    elsewhere = env.get("NCCL_DEBUG_FILE", "/dev/stdout") not in ("/dev/stdout", "/dev/stderr")
    if elsewhere or not (level == "TRACE" or (level == "INFO" and loud)):
        return
    yield seen("NCCL_DEBUG", env["NCCL_DEBUG"], "WARN", f"with NCCL_DEBUG_SUBSYS={env['NCCL_DEBUG_SUBSYS']}" if loud else "")


@rule(
    id="nccl-p2p-disabled",
    title="NCCL_P2P_DISABLE or NCCL_P2P_LEVEL prevents direct transfers between the GPUs of this host",
    severity=Severity.WARNING,
    applies=nccl_hardware,
    fix=(EnvironmentVariable(name="NCCL_P2P_DISABLE", value=None), EnvironmentVariable(name="NCCL_P2P_LEVEL", value=None)),
)
def nccl_p2p_disabled(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Data between GPUs goes through host memory instead of NVLink, XGMI or PCIe.

    Why it matters
    On GPUs with NVLink, collectives within the host lose most of their bandwidth. The variable is often set as a workaround for a
    hang (IOMMU or ACS settings, a driver bug), and stays set long after the problem is fixed.

    When to leave it
    GeForce cards have no working P2P since the RTX 40 series; hosts with two or more such cards are not reported, nor are Radeons, which no
    XGMI joins. Virtual machines whose PCIe settings cannot be changed may need the variable.

    References
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-p2p-disable
    NVIDIA/nccl src/graph/paths.cc (ncclGetUserP2pLevel: only the value 1 of NCCL_P2P_DISABLE counts, and means level LOC; level 0 is LOC too)
    """
    env = environment(s)
    disabled, level = number(env.get("NCCL_P2P_DISABLE", "")) == 1, env.get("NCCL_P2P_LEVEL", "")
    if not disabled and level not in ("LOC", "0"):
        return
    if rocm_torch(s):
        if gpu_count(s) < 2 or not _instinct(s):
            raise NotApplicable("fewer than two GPUs, or none of AMD's that XGMI joins")
    elif len(gpus := nvidia_gpus(s)) < 2:
        raise NotApplicable("fewer than two GPUs")
    elif all(_without_p2p(gpu) for gpu in gpus):
        raise NotApplicable("GeForce cards without NVLink, whose P2P over PCIe does not work")
    yield seen("NCCL_P2P_DISABLE", "1") if disabled else seen("NCCL_P2P_LEVEL", level)


def _instinct(s: Snapshot) -> bool:
    """Return whether AMD's GPUs here are accelerators, by what the driver or the bus calls them."""
    from torchtune_sys.knowledge import install_rocm  # on hosts with AMD's GPUs alone

    devices = (known(device.device, "") for device in pci_devices_told(s) if device.vendor == "0x1002")
    names = [known(gpu.name, "") for gpu in gpus_told(s)] + [install_rocm.gpu(device)[0] for device in devices]
    return any("Instinct" in name for name in names)


def _without_p2p(gpu: Gpu) -> bool:
    linked = not isinstance(gpu.nvlinks, Missing) and gpu.nvlinks > 0
    return not isinstance(gpu.name, Missing) and "GeForce" in gpu.name and not linked


@rule(
    id="nccl-shm-disabled",
    title="NCCL_SHM_DISABLE sends traffic within the host through the network stack",
    severity=Severity.WARNING,
    applies=nccl_hardware,
    fix=(
        EnvironmentVariable(name="NCCL_SHM_DISABLE", value=None),
        Advice(text="and give the container a larger /dev/shm (docker run --shm-size)"),
    ),
)
def nccl_shm_disabled(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Where P2P is not possible, NCCL passes data between processes through shared memory; this variable forbids that.

    Why it matters
    The network is then used instead, even between two GPUs of one host. The variable is usually set because a container's
    /dev/shm was too small.

    When to leave it
    The containers on one host cannot share memory. Where NVSwitches or XGMI join all GPUs, and P2P is not switched off, NCCL uses no shared memory, and nothing
    is reported.

    References
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-shm-disable
    """
    env = environment(s)
    value = env.get("NCCL_SHM_DISABLE", "")
    if number(value) != 1:
        return
    if (gpu_count(s) if rocm_torch(s) else len(nvidia_gpus(s))) < 2:
        raise NotApplicable("fewer than two GPUs")
    direct = number(env.get("NCCL_P2P_DISABLE", "")) != 1 and env.get("NCCL_P2P_LEVEL", "") not in ("LOC", "0")
    if direct and (known(need(s.driver).nvswitches, 0) or (rocm_torch(s) and _instinct(s))):
        raise NotApplicable("NVSwitches or XGMI join all GPUs, and NCCL copies between them directly")
    yield seen("NCCL_SHM_DISABLE", value)


@rule(
    id="nccl-ib-disabled",
    title="NCCL_IB_DISABLE leaves an active RDMA network unused",
    severity=Severity.WARNING,
    applies=nccl_hardware,
    fix=(EnvironmentVariable(name="NCCL_IB_DISABLE", value=None),),
)
def nccl_ib_disabled(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """There are active InfiniBand (or fast RoCE) ports, but NCCL is set to use TCP.

    Why it matters
    TCP delivers a fraction of the bandwidth, loads the CPU, and has no GPUDirect: multi-host jobs scale badly.

    When to leave it
    It does not matter for jobs on one host, and is not reported with --nnodes 1. Some cloud networks (EFA, TCPX) come with a
    plugin that needs the variable.

    References
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-disable
    """
    value = environment(s).get("NCCL_IB_DISABLE", "")
    if not number(value):
        return
    may_span_hosts(s)
    devices = need(s.network).rdma
    if absent(devices):
        raise NotApplicable("no RDMA device on this host")
    active = [
        f"{device.name}/{port.port}"
        for device in need(devices)
        for port in device.ports
        if port.state == "ACTIVE" and port.link_layer in ("InfiniBand", "Ethernet") and is_made_for_training(port)
    ]
    if active:
        yield seen(
            "NCCL_IB_DISABLE",
            value,
            "unset or 0",
            f"{len(active)} active ports ({', '.join(active[:3])}{' …' * (len(active) > 3)})",
        )


@rule(
    id="nccl-cumem-disabled",
    title="NCCL_CUMEM_ENABLE=0 disables NVLink SHARP",
    severity=Severity.ADVICE,
    applies=nvidia_hardware,
    fix=(EnvironmentVariable(name="NCCL_CUMEM_ENABLE", value=None),),
)
def nccl_cumem_disabled(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The NVSwitches of this host can perform reductions themselves (NVLS), but that needs cuMem allocations.

    Why it matters
    Large all-reduces within the host use the ring instead, with less bandwidth.

    When to leave it
    Some versions of vLLM and NCCL required it because of bugs with CUDA graphs or duplicated memory.

    References
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-cumem-enable
    NVIDIA/nccl src/transport/nvls.cc
    """
    value = environment(s).get("NCCL_CUMEM_ENABLE", "")
    if value.strip() != "0":
        return
    capabilities = [cc for gpu in nvidia_gpus(s) if not isinstance(cc := capability(gpu), Missing)]
    if not need(need(s.driver).nvswitches) or not capabilities or max(capabilities) < (9, 0):
        raise NotApplicable("no NVSwitch with NVLink SHARP (Hopper and later) on this host")
    yield seen("NCCL_CUMEM_ENABLE", value)
