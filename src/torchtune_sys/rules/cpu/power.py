"""A rule on limits below which the processor's power and its uncore are held."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import NotApplicable, known_or_unknown, need, need_any


@rule(
    id="cpu-power-capped",
    title="The processor's power, or the clock of its memory and caches, is capped far below what it is made for",
    severity=Severity.WARNING,
    params=(Param("percent", 75, "share of what the processor is made for below which a limit is reported (a convention)"),),
    fix=(
        Advice(
            text="look for a power cap in the BMC or the rack manager (ipmitool dcmi power get_limit), and in the firmware's setup"
        ),
        Advice(
            text="write constraint_0_max_power_uw into constraint_0_power_limit_uw (/sys/class/powercap/intel-rapl:N), or initial_max_freq_khz into max_freq_khz "
            "(/sys/devices/system/cpu/intel_uncore_frequency); find out what lowers it (tuned, a power daemon)"
        ),
    ),
)
def cpu_power_capped(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The long-term power limit of an Intel package (RAPL) is far below its thermal design power, or the highest frequency of its uncore (mesh, caches,
    memory controllers, PCIe) below the one it had at boot.

    Why it matters
    All cores slow down together under load, and copies between memory and GPUs with the uncore. Clocks of an idle host look normal.

    When to leave it
    The cap keeps the machine within a power budget. A laptop is not judged.

    References
    Linux Documentation/power/powercap/powercap.rst; drivers/powercap/intel_rapl_common.c (max_power of constraint 0 is the thermal specification power)
    Linux Documentation/admin-guide/pm/intel_uncore_frequency_scaling.rst (initial_max_freq_khz)
    """
    if known_or_unknown(need(s.hardware).portable, False):
        raise NotApplicable("a laptop: its power limits follow battery and heat")
    for cap in need_any(need(s.cpu).caps, "this processor tells no limits of its power and uncore"):
        yield Evidence(
            subject=cap.name,
            seen=f"{cap.now:g} of {cap.most:g} {cap.unit}",
            wanted=f"{cap.most:g} {cap.unit}",
            verdict=Verdict.FAIL if cap.now * 100 < cap.most * float(p["percent"]) else Verdict.PASS,
            source=cap.source,
        )
