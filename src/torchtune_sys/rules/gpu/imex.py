"""Memory of GPUs that NVLink shares between hosts."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, Needs, Service
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot, container_told
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent_or_unsupported, known, need
from torchtune_sys.rules import gates
from torchtune_sys.rules.nccl.common import several_hosts, values


@rule(
    id="imex-not-ready",
    title="IMEX is not ready, so memory cannot be shared over NVLink between hosts",
    cause="imex-not-running",
    severity=Severity.WARNING,
    applies=several_hosts,
    fix=(
        Service(unit="nvidia-imex", state="enabled", needs=Needs.NOTHING),
        Advice(
            text="list all hosts of the NVLink domain in /etc/nvidia-imex/nodes_config.cfg, identically on each host; check "
            "with nvidia-imex-ctl -N"
        ),
        Advice(
            text="no channel: load the driver with NVreg_CreateImexChannel0=1, or create /dev/nvidia-caps-imex-channels/channel0; a "
            "container needs it passed (--device, or a ComputeDomain in Kubernetes)"
        ),
    ),
)
def imex_not_ready(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The job spans hosts of one NVLink fabric (GH200 NVL32, GB200 or GB300 NVL72), but nvidia-imex is not running or has no channel.

    Why it matters
        CUDA then refuses to export and import memory between the hosts: NCCL uses the network instead of NVLink, at a fraction of
        the bandwidth, or fails at startup.

    When to leave it
        A scheduler prolog or a Kubernetes ComputeDomain starts the service with the job, or the job's hosts are in different
        racks.

    References
        https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/deployment.html
        https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/imexchannels.html
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html (NCCL_MNNVL_ENABLE)
    """
    _spans_hosts(s)
    if values(s).get("NCCL_MNNVL_ENABLE") == "0":
        raise NotApplicable("NCCL_MNNVL_ENABLE=0 keeps NCCL off it")
    driver = need(s.driver)
    channels = need(driver.imex_channels)
    inside = container_told(s)
    faults = [] if channels else ["no /dev/nvidia-caps-imex-channels/channelN"]
    if not (inside and isinstance(driver.imex, Missing)) and not need(driver.imex):
        faults.append("nvidia-imex does not run")
    yield Evidence(
        subject="IMEX",
        seen="; ".join(faults) or f"{len(channels)} channels" + " and the service runs" * (not inside),
        wanted="nvidia-imex runs, and a channel",
        verdict=Verdict.FAIL if faults else Verdict.PASS,
        source="/dev/nvidia-caps-imex-channels, /sys/fs/cgroup/system.slice",
    )


def _silent(gpu: Gpu) -> bool:
    """Tell whether it says nothing; a recording that is older than the fact does not either, which matters for parts of a rack alone."""
    fact = gpu.fabric_of_hosts
    if not isinstance(fact, Missing):
        return False
    in_rack = known(gpu.name, "").startswith(("NVIDIA GB200", "NVIDIA GB300"))
    return absent_or_unsupported(fact) or (fact.why is Why.NOT_RECORDED and not in_rack)


def _spans_hosts(s: Snapshot) -> None:
    joined = [gpu for gpu in gates.nvidia_gpus(s) if gpu.fabric_state == "completed" and gpu.mig is not True]
    spans = [gpu.fabric_of_hosts for gpu in joined if not _silent(gpu)]
    if not spans:
        raise NotApplicable("no GPU here belongs to an NVLink fabric")
    if True not in spans and not any(need(fact) for fact in spans):
        raise NotApplicable("NVLink ends at this host")
