"""NVLink."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.rule import Evidence, Params, Rule, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why, need
from torchtune_sys.rules import gates
from torchtune_sys.rules.gpu_facts import subject


@rule(
    id="nvlink-inactive",
    title="NVLinks of a GPU on an NVSwitch board are down",
    severity=Severity.WARNING,
    cause="nvlink-inactive",
    fix=(
        Advice(
            text="read dmesg for Xid 74 or 144 to 150 and the fabric manager's log; reset all GPUs, then have the board checked"
        ),
    ),
)
def nvlink_inactive(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """On a board with NVSwitches every link of every GPU should be up; some are not.

    Why it matters
        All-reduce runs at the speed of the narrowest GPU, or falls back to PCIe altogether.

    When to leave it
        MIG is on (links are off then, and such GPUs are not judged), or GPUs are bridged in pairs, where some links are always down:
        only NVSwitch boards are judged.

    References
        https://docs.nvidia.com/deploy/nvml-api/group__NvLink.html
        https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/
    """
    gpus = gates.nvidia_gpus(s)
    switches = need(s.driver).nvswitches
    if not any(gpu.fabric_state == "completed" for gpu in gpus) and (isinstance(switches, Missing) or not switches):
        raise NotApplicable("no NVSwitch board")
    for gpu in gpus:
        if gpu.mig is True or gpu.lost:
            continue
        if isinstance(gpu.nvlinks_down, Missing):
            if gpu.nvlinks_down.why is not Why.NOT_SUPPORTED:
                yield unsure(subject(gpu), gpu.nvlinks_down, "every link up")
            continue
        down = ", ".join(map(str, gpu.nvlinks_down))
        yield Evidence(
            subject=subject(gpu),
            seen=f"links {down} of {need(gpu.nvlinks)} down" if down else f"{need(gpu.nvlinks)} links up",
            wanted="every link up",
            verdict=Verdict.FAIL if down else Verdict.PASS,
            source="nvmlDeviceGetNvLinkState",
        )


RULES: tuple[Rule, ...] = (nvlink_inactive,)
