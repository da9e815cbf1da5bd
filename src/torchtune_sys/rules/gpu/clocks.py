"""Rules on reduced GPU clocks: heat, power, settings."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.actions import Advice, NvmlSetting
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.driver import AmdClock
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why, known, need
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
    """The application clock (nvidia-smi -ac) is below the card's default; what locked clocks (nvidia-smi -lgc) do shows under load only.

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
    id="gpu-clock-held-down",
    title="A GPU is held far below its highest clock, and the driver names neither heat nor power as the reason",
    severity=Severity.WARNING,
    params=(
        Param("busy_pct", 90, "utilization from which on a GPU counts as busy, percent"),
        Param("share", 0.7, "share of the highest clock below which it is reported"),
        Param("amd_share", 0.25, "the same of AMD's, whose driver does not say what a power limit takes"),
    ),
    fix=(
        NvmlSetting(setting="locked clocks (nvidia-smi -rgc)", value="reset"),
        Advice(
            text="find what locks them (grep -r -e -lgc -e lock-gpu-clocks /etc/systemd /etc/cron* /etc/rc.local); else power-cycle the host"
        ),
    ),
)
def gpu_clock_held_down(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Clocks that somebody locked (nvidia-smi -lgc) cannot be read; what they do to a GPU that works can. AMD's driver tells its performance level, too: low,
    or a profile of the lowest clocks, that somebody has set (rocm-smi --setperflevel low, a desktop's power saver).

    Why it matters
        Training on this GPU is slower by as much, and in synchronous training all GPUs wait for the slowest.

    When to leave it
        The clocks are locked on purpose: for cooling, to save energy, or to have equal GPUs for a measurement. An idle GPU is not judged, nor is
        one that the driver slows down for power or heat.

    References
        nvml.h: nvmlDeviceGetClockInfo, nvmlDeviceGetMaxClockInfo (NVML_CLOCK_SM), NVML_CLOCKS_EVENT_REASONS; nvidia-smi(1): --lock-gpu-clocks
        Linux Documentation/gpu/amdgpu/thermal.rst (power_dpm_force_performance_level, pp_dpm_sclk, gpu_busy_percent)
        https://github.com/ROCm/legacy-rocm-build/issues/4414 (61 MHz under load)
    """
    of_amd = () if isinstance(s.driver, Missing) else known(s.driver.amd_clocks, ())
    if of_amd:
        yield from (_of_amd(clock, float(p["busy_pct"]), float(p["amd_share"])) for clock in of_amd)
        return
    gpus = gates.nvidia_gpus(s)
    if all(not isinstance(gpu.utilization_pct, Missing) and gpu.utilization_pct < float(p["busy_pct"]) for gpu in gpus):
        raise NotApplicable("no GPU is busy at the moment of the look, and an idle one lowers its clock")
    yield from each(
        s,
        lambda gpu: _busy_clock(gpu, float(p["busy_pct"])),
        lambda gpu, clock: clock < float(p["share"]) * _expected(gpu),
        lambda clock: f"{clock} MHz under load",
        lambda gpu: f"about {_expected(gpu)} MHz",
        "nvmlDeviceGetClockInfo",
    )


_LOWEST = ("low", "profile_min_sclk", "profile_min_mclk")


def _of_amd(clock: AmdClock, busy_pct: float, share: float) -> Evidence:
    level, mhz, highest = known(clock.level, ""), known(clock.mhz, 0), known(clock.highest_mhz, 0)
    set_low = level in _LOWEST
    slow = known(clock.busy_pct, 0) >= busy_pct and not isinstance(clock.mhz, Missing) and mhz < share * highest
    return Evidence(
        subject=f"AMD GPU at {clock.address}",
        seen=f"performance level {level}" if set_low or not slow else f"{mhz} MHz under load",
        wanted="auto" if set_low else f"about {highest} MHz" if slow else "",
        verdict=Verdict.FAIL if set_low or slow else Verdict.PASS if level else Verdict.UNKNOWN,
        source=f"/sys/bus/pci/devices/{clock.address}/{'power_dpm_force_performance_level' if set_low or not slow else 'pp_dpm_sclk'}",
        fix=(_AUTOMATIC,) if set_low else (_ANEW,) if slow else (),
    )


_AUTOMATIC = Advice(text="sudo rocm-smi --setperflevel auto (on a desktop or laptop: powerprofilesctl set performance)")
_ANEW = Advice(
    text="sudo rocm-smi --resetclocks; if it stays so, sudo rocm-smi --gpureset -d NUMBER with no program on it, or power-cycle the host"
)


def _expected(gpu: Gpu) -> int:
    """Clock under load, MHz: the GPU's highest, or the application clock, which has a rule of its own; 0 where it is not known."""
    highest = known(gpu.clock_sm_max_mhz, 0)
    return min(highest, known(gpu.clock_application_mhz, highest))


_BY_SETTING = 0x2
"""Applications clocks."""


def _busy_clock(gpu: Gpu, busy_pct: float) -> Fact[int]:
    """Clock of a GPU that works and that nothing but a setting holds back; ABSENT for another."""
    for fact in (gpu.utilization_pct, gpu.clock_event_reasons, gpu.clock_sm_max_mhz):
        if isinstance(fact, Missing):
            return fact
    if need(gpu.utilization_pct) < busy_pct or need(gpu.clock_event_reasons) & ~_BY_SETTING:
        return Missing(Why.ABSENT, "NVML", "idle, or slowed down for another reason")
    return gpu.clock_sm_mhz


@rule(
    id="laptop-power-daemon-off",
    title="A laptop's GPU is at its power limit, and the service that would raise it does not run",
    severity=Severity.ADVICE,
    params=(Param("share", 0.9, "share of the highest limit from which on nothing is to be gained"),),
    fix=(
        Advice(
            text="sudo systemctl enable --now nvidia-powerd (it comes with the driver, in a package of its own on some distributions)"
        ),
    ),
)
def laptop_power_daemon_off(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """nvidia-powerd shifts power from the processor to the GPU (Dynamic Boost); without it the GPU stays at its base power.

    Why it matters
        A GPU at its power limit lowers its clocks: with 80 W in place of 100 W training is slower by about a tenth.

    When to leave it
        The laptop runs on its battery, where Dynamic Boost is off; its firmware does not support it (nvidia-settings -q DynamicBoostSupport).

    References
        NVIDIA driver README, "Dynamic Boost on Linux": Ampere or newer, systemd, on mains power, under load
    """
    laptops = {gpu.index for gpu in gates.nvidia_gpus(s) if gates.of_laptop(s, gpu)}
    if not laptops:
        raise NotApplicable("no GPU of a laptop")
    runs = need(s.driver).power_daemon
    yield from each(
        s,
        lambda gpu: _capped(gpu, gpu.index in laptops),
        lambda gpu, limit: limit < float(p["share"]) * need(gpu.power_max_mw) and not need(runs),
        lambda limit: f"{limit / 1000:g} W{'' if runs is True else ', nvidia-powerd does not run'}",
        lambda gpu: f"up to {known(gpu.power_max_mw, 0) / 1000:g} W",
        "nvmlDeviceGetPowerManagementLimitConstraints",
    )


_POWER_CAP, _AMPERE = 0x4, (8, 0)


def _capped(gpu: Gpu, judged: bool) -> Fact[int]:
    """Power limit of a laptop's GPU that is held back by it; ABSENT for another."""
    if not judged or known(gpu.compute_capability, _AMPERE) < _AMPERE:
        return Missing(Why.ABSENT, "NVML", "not a laptop's, or older than Dynamic Boost")
    if isinstance(gpu.clock_event_reasons, Missing):
        return gpu.clock_event_reasons
    if not gpu.clock_event_reasons & _POWER_CAP:
        return Missing(Why.ABSENT, "NVML", "not at its power limit at the moment of the look")
    return gpu.power_max_mw if isinstance(gpu.power_max_mw, Missing) else gpu.power_limit_mw


_POWER_LIMIT = NvmlSetting(setting="power limit (nvidia-smi -pl)", value="default")


@rule(
    id="gpu-power-limit-half",
    title="A GPU's power limit is about half of its default, or less",
    severity=Severity.WARNING,
    params=(Param("percent", 55, "share of the default at or below which the limit counts as far too low"),),
    fix=(_POWER_LIMIT,),
)
def gpu_power_limit_half(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The limit was set near the lowest that the card takes, by hand, or by the chassis out of band (a power supply failed, or its budget is too small).

    Why it matters
        Clocks fall far below their default under load, and one such GPU slows all ranks of a job down. A limit at the card's minimum is
        more often left over from a test or an outage than meant.

    When to leave it
        The limit is intentional, and the same on all hosts of a job. A laptop's is not judged.

    References
        https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html (EnforcedPowerLimit, PowerManagementLimitConstraints)
    """
    yield from _limits(s, float(p["percent"]) / 100 + 1e-9)


@rule(
    id="gpu-power-limit-lowered",
    title="A GPU's power limit is below its default",
    severity=Severity.ADVICE,
    superseded_by=("gpu-power-limit-half",),
    params=(Param("tolerance_pct", 1, "percentage below the default that still counts as equal"),),
    fix=(_POWER_LIMIT,),
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
    yield from _limits(s, 1 - float(p["tolerance_pct"]) / 100)


def _limits(s: Snapshot, share: float) -> Iterator[Evidence]:
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
