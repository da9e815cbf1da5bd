"""NVLinks, the fabric of NVSwitches, and what they are for: GPUs that reach each other's memory."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge.gpus import by_name
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.gpu import Gpu, LinkErrors, Peers
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why, known, known_or_unknown, need
from torchtune_sys.rules import gates
from torchtune_sys.rules.gpu.common import each, subject


@rule(
    id="nvlink-inactive",
    title="NVLinks of a GPU on an NVSwitch board are down",
    severity=Severity.WARNING,
    cause="nvlink-inactive",
    superseded_by=("xid-nvlink-error",),
    fix=(
        Advice(
            text="read dmesg for Xid 74 or 144 to 150 and the fabric manager's log; reset all GPUs, then have the board checked"
        ),
    ),
)
def nvlink_inactive(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """On a board with NVSwitches every link of every GPU should be up, but some are not.

    Why it matters
        All-reduce runs at the speed of the GPU with the fewest links, or falls back to PCIe altogether.

    When to leave it
        MIG is on (links are then off, and such GPUs are not judged). GPUs bridged in pairs always have some links down, so only
        NVSwitch boards are judged.

    References
        https://docs.nvidia.com/deploy/nvml-api/group__NvLink.html
        https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/
    """
    gpus = gates.nvidia_gpus(s)
    counts = _counts(s)
    if counts and all(isinstance(gpu.nvlinks_down, Missing) for gpu in gpus):
        yield from _by_matrix(gpus, counts)
        return
    _switched(s, gpus)
    if len(gpus) == 1 and _part_of_a_board(s, gpus[0]):
        raise NotApplicable("one GPU of a board, passed to a virtual machine: its NVLinks are off")
    for gpu in gpus:
        if gpu.mig is True or gpu.lost:
            continue
        if isinstance(gpu.nvlinks_down, Missing):
            if gpu.nvlinks_down.why is not Why.NOT_SUPPORTED:
                yield unsure(subject(gpu), gpu.nvlinks_down, "every link up")
            continue
        if isinstance(gpu.mig, Missing) and gpu.mig.why is Why.NOT_RECORDED and len(gpu.nvlinks_down) == gpu.nvlinks:
            yield unsure(subject(gpu), gpu.mig, "every link up, unless MIG is on")
            continue
        down = ", ".join(map(str, gpu.nvlinks_down))
        links = "links" if len(gpu.nvlinks_down) > 1 else "link"
        yield Evidence(
            subject=subject(gpu),
            seen=f"{links} {down} down, of {need(gpu.nvlinks)}" if down else f"{need(gpu.nvlinks)} links up",
            wanted="every link up",
            verdict=Verdict.FAIL if down else Verdict.PASS,
            source="nvmlDeviceGetNvLinkState",
        )


_MOST_LINKS = 18
"""NVLinks of a GPU, up to Blackwell."""


def _counts(s: Snapshot) -> dict[int, list[int]]:
    """GPU → NVLinks to each other GPU, where a matrix shows that they lead over switches: one GPU with more links than it has, in sum."""
    found: dict[int, list[int]] = {}
    pairs = () if isinstance(s.gpu, Missing) or isinstance(s.gpu.p2p, Missing) else s.gpu.p2p
    for pair in pairs:
        for gpu in (pair.first, pair.second):
            found.setdefault(gpu, []).append(known(pair.nvlinks, 0))
    return found if any(sum(links) > _MOST_LINKS for links in found.values()) else {}


def _by_matrix(gpus: tuple[Gpu, ...], counts: dict[int, list[int]]) -> Iterator[Evidence]:
    best = max(max(links) for links in counts.values())
    bare = sum(not any(links) for links in counts.values())
    for gpu in gpus:
        links = max(counts.get(gpu.index, [0]))
        if gpu.mig is True or gpu.lost or gpu.index not in counts:
            continue
        if not links and isinstance(gpu.mig, Missing) and 4 * bare > len(counts):
            yield unsure(subject(gpu), gpu.mig, "every link up, unless MIG is on")
            continue
        yield Evidence(
            subject=subject(gpu),
            seen=(f"{links} of {best} links" if links < best else f"{links} links")
            + (" (or it alone has MIG on)" if not links and isinstance(gpu.mig, Missing) else ""),
            wanted="every link up",
            verdict=Verdict.FAIL if links < best else Verdict.PASS,
            source="nvidia-smi topo -m",
        )


def _part_of_a_board(s: Snapshot, gpu: Gpu) -> bool:
    """Partitions of a single GPU have no NVLink (Fabric Manager User Guide, shared NVSwitch virtualization)."""
    virtual = not isinstance(s.system, Missing) and bool(known(s.system.hypervisor, ""))
    return virtual and not isinstance(gpu.nvlinks_down, Missing) and len(gpu.nvlinks_down) == known(gpu.nvlinks, 0) > 0


def _switched(s: Snapshot, gpus: tuple[Gpu, ...]) -> None:
    if any(gpu.fabric_state == "completed" for gpu in gpus):
        return
    if _not_recorded(s) and all(map(_of_a_switched_board, gpus)) and (len(gpus) >= 8 or any(map(_partly_down, gpus))):
        return
    if not known_or_unknown(need(s.driver).nvswitches, 0):
        raise NotApplicable("no NVSwitch board")


def _not_recorded(s: Snapshot) -> bool:
    """Whether this is a report or a recording that says nothing of NVSwitches."""
    switches = s.driver if isinstance(s.driver, Missing) else s.driver.nvswitches
    return isinstance(switches, Missing) and switches.why is Why.NOT_RECORDED


def _partly_down(gpu: Gpu) -> bool:
    """Tell whether some links are up and some down: on a module all are used, whatever the board, and a virtual machine gets all or none."""
    return not isinstance(gpu.nvlinks_down, Missing) and 0 < len(gpu.nvlinks_down) < known(gpu.nvlinks, 0)


def _of_a_switched_board(gpu: Gpu) -> bool:
    model = None if isinstance(gpu.name, Missing) else by_name(gpu.name)
    return model is not None and model.nvswitch


@rule(
    id="gpu-fabric-registration-failed",
    title="A GPU could not join the NVLink fabric",
    severity=Severity.ERROR,
    fix=(
        Advice(text="read the fabric manager's log (journalctl -u nvidia-fabricmanager); reset all GPUs together, or reboot"),
        Advice(text="if it recurs: have the GPU, its NVLinks and the NVSwitches checked"),
    ),
    cause="fabric-manager-not-running",
)
def fabric_registration_failed(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Registration with the fabric ended in an error (the state alone still reads "completed").

    Why it matters
        The GPU cannot reach the others over NVSwitch; CUDA refuses to use it, or NCCL falls back to PCIe.

    When to leave it
        Never on a host that trains on several GPUs.

    References
        nvml.h: nvmlGpuFabricInfoV_t (the status is valid once the state is completed)
        https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/
    """
    yield from each(
        s,
        lambda gpu: gpu.fabric_status,
        lambda _, status: status != "success",
        lambda status: f"registration ended: {status}",
        "success",
        "nvmlDeviceGetGpuFabricInfoV",
    )


@rule(
    id="gpu-fabric-unhealthy",
    title="The NVLink fabric of a GPU is not healthy",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="read the fabric manager's log and dmesg (Xid 74, SXid); drain the host and reset all GPUs, then have it checked"
        ),
    ),
)
def fabric_unhealthy(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The fabric health mask reports degraded bandwidth, routes that are unhealthy or being recovered, or a wrong configuration.

    Why it matters
        All-reduce over NVLink is slower than it should be, or is interrupted while routes are repaired.

    When to leave it
        A route is being recovered right now: check again in a minute.

    References
        nvml.h: NVML_GPU_FABRIC_HEALTH_MASK
    """
    yield from each(
        s,
        lambda gpu: gpu.fabric_health,
        lambda _, words: bool(words),
        lambda words: ", ".join(words) or "healthy",
        "healthy",
        "nvmlDeviceGetGpuFabricInfoV",
    )


@rule(
    id="nvlink-errors",
    title="NVLinks have counted replays or recoveries",
    severity=Severity.ADVICE,
    fix=(Advice(text="check whether the numbers grow (nvidia-smi nvlink -e); if so, drain the host and have the board checked"),),
)
def nvlink_errors(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A link has counted replays or recoveries since the driver was loaded. CRC errors alone are not judged: only their rate matters.

    Why it matters
        A recovering link stops all traffic for a while; a link that keeps recovering is about to fail.

    When to leave it
        The counts are old and do not grow: links may recover once during link training.

    References
        https://github.com/NVIDIA/DCGM (health watch: one replay or recovery within the watched time fails; CRC errors from 100 a second)
        https://docs.nvidia.com/deploy/nvml-api/group__NvLink.html
    """
    yield from each(
        s,
        lambda gpu: gpu.nvlink_errors,
        lambda _, links: any(map(_counted, links)),
        lambda links: "; ".join(filter(None, map(_counted, links))) or "none",
        "no replay and no recovery",
        "nvmlDeviceGetNvLinkErrorCounter",
    )


def _counted(errors: LinkErrors) -> str:
    counts = ((errors.replay, "replays"), (errors.recovery, "recoveries"), (errors.recovery_failed, "failed recoveries"))
    words = [f"{count} {name}" for count, name in counts if count]
    return f"link {errors.link}: {', '.join(words)}" if words else ""


@rule(
    id="gpu-peer-access-broken",
    title="Two GPUs of one NVSwitch board cannot reach each other's memory",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="nvidia-smi topo -p2p n shows the pairs; reset all GPUs together or reboot; if that does not help, have the board checked"
        ),
    ),
)
def peer_access_broken(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """NVML reports no peer access over NVLink for a pair of GPUs whose links and fabric are healthy.

    Why it matters
        NCCL uses PCIe or host memory between the two, and every collective is as slow as that path.

    When to leave it
        The GPUs are given to different tenants on purpose.

    References
        https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html (nvmlDeviceGetP2PStatus)
    """
    gpus = gates.nvidia_gpus(s)
    if len(gpus) < 2:
        raise NotApplicable("one GPU only")
    _switched(s, gpus)
    sound = {gpu.index: gpu for gpu in gpus if _sound(gpu)}
    for pair in need(need(s.gpu).p2p):
        if pair.first not in sound or pair.second not in sound:
            continue
        if all(isinstance(way, Missing) for way in (pair.read, pair.write, pair.nvlink)):
            need(pair.nvlink)
        both = (sound[pair.first], sound[pair.second])
        unread = [gpu.nvlinks_down for gpu in both if isinstance(gpu.nvlinks_down, Missing)]
        wrong = _refused(pair)
        if wrong and unread:
            yield unsure(" and ".join(map(subject, both)), unread[0], "peer access")
            continue
        yield Evidence(
            subject=" and ".join(map(subject, both)),
            seen=wrong or "peer access works",
            wanted="peer access",
            verdict=Verdict.FAIL if wrong else Verdict.PASS,
            source="nvmlDeviceGetP2PStatus",
        )


def _sound(gpu: Gpu) -> bool:
    """Nothing is known of it that would explain why it is not reached, and has a rule of its own."""
    registered = gpu.fabric_state == "completed" or isinstance(gpu.fabric_state, Missing)
    joined = gpu.fabric_status == "success" or isinstance(gpu.fabric_status, Missing)
    down = gpu.nvlinks_down
    linked = down.why is not Why.NOT_SUPPORTED if isinstance(down, Missing) else not down
    return registered and joined and not gpu.lost and gpu.mig is not True and linked


def _refused(pair: Peers) -> str:
    ways = (("read", pair.read), ("write", pair.write), ("nvlink", pair.nvlink))
    return ", ".join(f"{name}: {found}" for name, found in ways if not isinstance(found, Missing) and found != "ok")


_WITHOUT_PEERS = pattern(r"GeForce RTX [45]0[0-9][0-9]")


@rule(
    id="geforce-peer-access-patched",
    title="GeForce boards report peer access, which NVIDIA's driver does not support on them",
    severity=Severity.ADVICE,
    cause="geforce-p2p-broken",
    fix=(
        Advice(text="verify it before training: torchtune-sys smoke trains on all GPUs and compares the results"),
        Advice(text="keep the IOMMU off or in pass-through, and no display on these boards"),
        Advice(text="or go back to NVIDIA's own kernel module, with which copies go through host memory"),
    ),
)
def geforce_peer_access_patched(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Two RTX 40 or 50 boards report peer access: the kernel module was patched, or it is a release of early 2023 that misreports it.

    Why it matters
        NVIDIA disables peer access on these boards. With patched modules copies work, but on some RTX 50 hosts a kernel's writes
        to the other board's memory are lost without an error, and all-reduce kernels wait forever. With a translating IOMMU,
        copied tensors contained zeros; with a display on one board, results were wrong.

    When to leave it
        The smoke test passes, and is repeated after each driver change.

    References
        https://github.com/tinygrad/open-gpu-kernel-modules/issues/44 (RTX 5090: stores of kernels are lost, vLLM waits for ever)
        https://github.com/NVIDIA/nccl-tests/issues/117 (RTX 4090 with a driver of January 2023: the first all-reduce never ended)
        https://github.com/tinygrad/open-gpu-kernel-modules/issues/18 (IOMMU on: copied tensors are zero)
        https://github.com/aikitoria/open-gpu-kernel-modules/issues/11 (wrong with a monitor on one RTX 5090)
    """
    boards = {gpu.index: gpu for gpu in gates.nvidia_gpus(s) if _WITHOUT_PEERS.search(need(gpu.name))}
    if len(boards) < 2:
        raise NotApplicable("no two GeForce boards of the RTX 40 or 50 series")
    for pair in need(need(s.gpu).p2p):
        if pair.first not in boards or pair.second not in boards:
            continue
        refused = _refused(pair)
        open_ways = [name for name, way in (("read", pair.read), ("write", pair.write)) if way == "ok"]
        if not refused and not open_ways:
            need(pair.read)
        yield Evidence(
            subject=f"{subject(boards[pair.first])} and {subject(boards[pair.second])}",
            seen=f"peer access: {', '.join(open_ways)} ok" if open_ways else refused,
            wanted="no peer access, as NVIDIA's driver has it",
            verdict=Verdict.FAIL if open_ways else Verdict.PASS,
            source="nvmlDeviceGetP2PStatus",
        )
