"""Rules on reduced GPU clocks: heat, power, settings."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.actions import Advice, NvmlSetting
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.rule import Evidence, Param, Params, Rule, Severity, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why, need
from torchtune_sys.rules import gates
from torchtune_sys.rules.gpu.common import each

_SLOWDOWN = 0x8 | 0x20 | 0x40 | 0x80


@rule(
    id="gpu-thermal-throttle",
    title="A GPU is throttled by heat or a power brake",
    severity=Severity.WARNING,
    cause="gpu-thermal-throttle",
    fix=(
        Advice(
            text="check fans, filters, air flow and inlet temperature; for a power brake, check the power supplies and their cables"
        ),
        NvmlSetting(setting="power limit (nvidia-smi -pl)", value="lower, until the cooling is repaired"),
    ),
)
def gpu_thermal_throttle(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The driver reports thermal or hardware slowdown as the reason for the current clocks.

    Why it matters
        A hardware slowdown at least halves the clocks, and in synchronous training all GPUs wait for the slowest.

    When to leave it
        Only for a short time. A software power cap is normal at full load and is not reported here.

    References
        nvml.h: NVML_CLOCKS_EVENT_REASONS
        https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
    """
    yield from each(
        s,
        lambda gpu: gpu.clock_event_reasons,
        lambda _, mask: bool(mask & _SLOWDOWN),
        lambda mask: ", ".join(reasons(mask)) or "no reason to slow down",
        "no thermal or hardware slowdown",
        "nvmlDeviceGetCurrentClocksEventReasons",
    )


def reasons(mask: int) -> list[str]:
    """Return the names of the bits.

    >>> reasons(0x60)
    ['SwThermalSlowdown', 'HwThermalSlowdown']
    """
    return [row["name"].split(" ")[0] for row in rows("nvml_clock_event_bits") if mask & int(row["bit"], 16)]


@rule(
    id="gpu-above-operating-temperature",
    title="A GPU is hotter than its maximum operating temperature",
    severity=Severity.WARNING,
    cause="gpu-thermal-throttle",
    superseded_by=("gpu-thermal-throttle",),
    fix=(Advice(text="check fans, filters, air flow and inlet temperature"),),
)
def gpu_above_operating_temperature(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The GPU's temperature is above the maximum operating temperature that the card itself reports.

    Why it matters
        There the driver lowers the clocks, and a few degrees higher the hardware halves them: in synchronous training all GPUs
        wait.

    When to leave it
        The clocks under load are those of the other GPUs: a sensor may be off by a degree or two.

    References
        nvml.h: NVML_TEMPERATURE_THRESHOLD_GPU_MAX, nvmlDeviceGetMarginTemperature; nvidia-smi(1): GPU Max Operating Temp, GPU T.Limit Temp
    """
    current = {gpu.index: gpu.temperature_c for gpu in gates.nvidia_gpus(s)}

    def left(gpu: Gpu) -> Fact[int]:
        if not isinstance(gpu.temperature_margin_c, Missing) or isinstance(gpu.temperature_operating_c, Missing):
            return gpu.temperature_margin_c
        now = current[gpu.index]
        return now if isinstance(now, Missing) else gpu.temperature_operating_c - now

    yield from each(
        s,
        left,
        lambda _, degrees: degrees < 0,  # GeForce cards are kept at it, by design
        lambda degrees: f"{-degrees} °C above it" if degrees < 0 else f"{degrees} °C left",
        "at most the maximum operating temperature",
        "nvmlDeviceGetMarginTemperature, nvmlDeviceGetTemperatureThreshold",
    )


@rule(
    id="gpu-slowed-by-hardware-before",
    title="A GPU was slowed down by heat or a power brake since the driver was loaded",
    severity=Severity.ADVICE,
    superseded_by=("gpu-thermal-throttle",),
    params=(Param("seconds", 60, "total slowdown since the driver was loaded from which on it is reported, seconds"),),
    fix=(Advice(text="watch it under load (nvidia-smi -q -d PERFORMANCE); check the air flow and the power supply cables"),),
)
def gpu_slowed_by_hardware_before(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The counters of hardware thermal slowdown and power brake show a minute or more; software slowdowns are not counted.

    Why it matters
        An idle GPU shows no slowdown even if it was slowed down under load. These slowdowns at least halve the clocks, and the
        other GPUs wait.

    When to leave it
        The cooling or power supply has been fixed since; the counters are reset when the driver is reloaded.

    References
        nvml.h: NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, _HW_POWER_BRAKE_SLOWDOWN; nvidia-smi(1): Clocks Event Reasons Counters
    """
    yield from each(
        s,
        lambda gpu: gpu.slowed_by_hardware_s,
        lambda _, seconds: seconds >= float(p["seconds"]),
        lambda seconds: f"{seconds:,.0f} s",
        f"less than {p['seconds']} s",
        "NVML fields 270, 271",
    )


@rule(
    id="gpu-application-clock-lowered",
    title="A GPU's application clock is below its default",
    severity=Severity.ADVICE,
    fix=(NvmlSetting(setting="application clocks (nvidia-smi -rac)", value="default"),),
)
def gpu_application_clock_lowered(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The application clock (nvidia-smi -ac) is below the card's default; clocks locked with nvidia-smi -lgc cannot be read.

    Why it matters
        No program on this GPU runs faster than that clock; in synchronous training all GPUs run at the pace of the slowest.

    When to leave it
        The clock is intentional: for cooling, to save energy, or to have equal GPUs for a measurement.

    References
        https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html (nvmlDeviceGetApplicationsClock, …DefaultApplicationsClock)
    """
    defaults = {gpu.index: gpu.clock_application_default_mhz for gpu in gates.nvidia_gpus(s)}
    yield from each(
        s,
        lambda gpu: (
            gpu.clock_application_default_mhz
            if isinstance(gpu.clock_application_default_mhz, Missing)
            else gpu.clock_application_mhz
        ),
        lambda gpu, clock: clock < need(defaults[gpu.index]),
        lambda clock: f"{clock} MHz",
        "the card's default",
        "nvmlDeviceGetApplicationsClock",
    )


@rule(
    id="gpu-power-limit-lowered",
    title="A GPU's power limit is below its default",
    severity=Severity.ADVICE,
    params=(Param("tolerance_pct", 1, "percentage below the default that still counts as equal"),),
    fix=(NvmlSetting(setting="power limit (nvidia-smi -pl)", value="default"),),
)
def gpu_power_limit_lowered(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The limit was lowered by hand, or by the chassis out of band.

    Why it matters
        A GPU at its power limit lowers its clocks; with a tenth less power, training loses a few percent.

    When to leave it
        The limit is intentional: for cooling, a shared circuit, or energy per step. A laptop changes its GPU's limit by itself
        (battery, Dynamic Boost), and is not judged.

    References
        https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html (EnforcedPowerLimit, PowerManagementDefaultLimit)
    """
    share = 1 - float(p["tolerance_pct"]) / 100
    defaults = {gpu.index: gpu.power_default_mw for gpu in gates.nvidia_gpus(s)}
    yield from each(
        s,
        lambda gpu: _limit(s, gpu),
        lambda gpu, limit: limit < share * need(defaults[gpu.index]),
        lambda limit: f"{limit / 1000:g} W",
        _default,
        "nvmlDeviceGetEnforcedPowerLimit",
    )


def _default(gpu: Gpu) -> str:
    return ("" if isinstance(gpu.power_default_mw, Missing) else f"{gpu.power_default_mw / 1000:g} W, ") + "the card's default"


def _limit(s: Snapshot, gpu: Gpu) -> Fact[int]:
    if gates.of_laptop(s, gpu):
        return Missing(Why.NOT_SUPPORTED, "NVML", "a laptop sets the limit of its GPU itself")
    return gpu.power_default_mw if isinstance(gpu.power_default_mw, Missing) else gpu.power_limit_mw


RULES: tuple[Rule, ...] = (
    gpu_thermal_throttle,
    gpu_above_operating_temperature,
    gpu_slowed_by_hardware_before,
    gpu_application_clock_lowered,
    gpu_power_limit_lowered,
)
