"""Rules on CPU frequency: governor, energy preference, caps, boost."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, SysfsWrite
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts.cpu import CpuPolicy
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.target import Exactly, OneOf
from torchtune_sys.model.values import Missing, NotApplicable, Why, known, need, need_if_there

_GOVERNOR = "/sys/devices/system/cpu/cpufreq/policy*/scaling_governor"
_EPP = "/sys/devices/system/cpu/cpufreq/policy*/energy_performance_preference"
_FASTEST = SysfsWrite(path=_GOVERNOR, target=Exactly("performance"))
_FAVOUR_SPEED = SysfsWrite(path=_EPP, target=OneOf(("performance", "balance_performance")))
_EPP_DRIVERS = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
"""In their active mode the hardware chooses the frequency, by the energy preference; "powersave" is then the ordinary governor."""


def _policies(s: Snapshot) -> tuple[CpuPolicy, ...]:
    found = need_if_there(
        need(s.cpu).policies, "the kernel does not control CPU frequencies here (virtual machine, or left to the firmware)"
    )
    return tuple(policy for policy in found if len(policy.cpus))


def _by_setting(policies: tuple[CpuPolicy, ...]) -> dict[tuple[str, str, str], list[int]]:
    """CPUs by driver, governor and preference: one line of evidence rather than 256."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for policy in policies:
        key = (need(policy.driver), need(policy.governor), known(policy.epp, ""))
        groups.setdefault(key, []).extend(policy.cpus)
    return groups


def _cpus(numbers: list[int]) -> str:
    return f"CPU {CpuSet(numbers)}"


@rule(
    id="cpu-governor-powersave",
    title="The CPU frequency governor holds the CPUs at their lowest frequency",
    severity=Severity.WARNING,
    fix=(_FASTEST, Advice(text="tuned-adm profile throughput-performance")),
)
def governor_powersave(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The governor is powersave under a driver where that means a fixed low frequency.

    Why it matters
    Under acpi-cpufreq, cppc_cpufreq, amd-pstate and intel_cpufreq, powersave asks for the lowest frequency at all times: kernel launches,
    data loading and communication run at a half or a third of the speed. Under intel_pstate and amd-pstate-epp it does not mean that.

    When to leave it
    Never on a machine that trains.

    References
    Linux Documentation/admin-guide/pm/cpufreq.rst, generic scaling governors; intel_pstate.rst, active mode
    """
    for (driver, governor, _), numbers in _by_setting(_policies(s)).items():
        slow = governor == "powersave" and driver not in _EPP_DRIVERS
        yield Evidence(
            subject=_cpus(numbers),
            seen=f"{governor} ({driver})",
            wanted="performance",
            verdict=Verdict.FAIL if slow else Verdict.PASS,
            source=_GOVERNOR,
        )


@rule(
    id="cpu-governor-not-performance",
    title="The CPU frequency governor or energy preference favours saving power",
    severity=Severity.ADVICE,
    fix=(
        _FASTEST,
        _FAVOUR_SPEED,
        Advice(text="tuned-adm profile throughput-performance sets both and persists across reboots"),
    ),
)
def governor_not_performance(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The governor is not performance and, where the hardware decides, the energy preference favours saving power.

    Why it matters
    The thread that launches kernels sleeps and wakes thousands of times per second, and a governor that waits for load reacts too
    late. No published measurement shows the cost for GPU training, so this is only advice. What is judged is the governor
    together with the preference: powersave under intel_pstate with the preference performance or balance_performance is fine.

    When to leave it
    On laptops, on hosts with a power budget, and where the GPUs do all the work.

    References
    tuned 2.28, profiles throughput-performance and accelerator-performance
    Linux Documentation/admin-guide/pm/intel_pstate.rst and amd-pstate.rst, energy_performance_preference
    """
    for (driver, governor, preference), numbers in _by_setting(_policies(s)).items():
        if driver in _EPP_DRIVERS:
            good = governor == "performance" or preference in ("performance", "balance_performance", "default", "")
        else:
            good = governor in ("performance", "powersave")  # the latter is cpu-governor-powersave's finding
        # A driver that decides by preference refuses another one while its governor is "performance".
        fix = _FAVOUR_SPEED if driver in _EPP_DRIVERS else _FASTEST
        yield Evidence(
            subject=_cpus(numbers),
            seen=f"{governor} ({driver}{', preference ' + preference if preference else ''})",
            wanted="performance",
            verdict=Verdict.PASS if good else Verdict.FAIL,
            source=_GOVERNOR,
            fix=() if good else (fix,),
        )


_FAR_BELOW = 0.7
_FORCED = (
    Advice(
        text="heat: does /sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count grow? Clean the filters, look for failed fans (ipmitool sdr type fan)"
    ),
    Advice(
        text="a power limit: compare constraint_0_power_limit_uw with constraint_0_max_power_uw in /sys/class/powercap/intel-rapl:0, and look for a power cap in "
        "the BMC (ipmitool dcmi power get_limit); write the highest back, or lift the cap"
    ),
    Advice(
        text="neither: something outside of the processor slows it (PROCHOT): look in the BMC's event log (ipmitool sel list) for a failed power supply or an "
        "overheated voltage regulator; on a laptop try another power adapter; then switch the machine off and unplug it for a minute"
    ),
)
"""In the order in which they can be told apart: the first two count or state what they do, the third says nothing."""


@rule(
    id="cpu-frequency-capped",
    title="The CPUs' frequency is capped below what the hardware allows",
    severity=Severity.WARNING,
    params=(Param("share", 0.97, "share of the hardware's maximum from which a limit is not called a cap"),),
    fix=(
        Advice(
            text="write cpuinfo_max_freq into scaling_max_freq (100 into intel_pstate/max_perf_pct), and find out what lowers it "
            "(tuned, TLP, cpupower, a power daemon)"
        ),
    ),
)
def frequency_capped(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """scaling_max_freq is lower than cpuinfo_max_freq, or intel_pstate's max_perf_pct below 100. Or Intel CPUs run far below the lowest clock that
    software may choose, to which heat, a power limit (RAPL) or the machine's own hardware (PROCHOT) force them.

    Why it matters
    All CPU-side work (data loading, kernel launches, communication over sockets) slows down with the clock.

    When to leave it
    The cap keeps the machine within a power or thermal budget. A laptop whose nvidia-powerd runs is not judged: it moves power
    between processor and GPU by this limit.

    References
    Linux Documentation/admin-guide/pm/cpufreq.rst, scaling_max_freq and scaling_cur_freq; intel_pstate.rst, max_perf_pct
    Linux drivers/cpufreq/acpi-cpufreq.c (its steps end below cpuinfo_max_freq, which has the boost frequency since 5.12: the highest step counts)
    Intel SDM volume 3, "Processor Hot" (PROCHOT#, which other parts of the machine may assert: bidirectional PROCHOT)
    NVIDIA driver README, "Dynamic Boost on Linux"
    """
    cpu = need(s.cpu)
    now, lowest = known(cpu.clock_khz, 0), known(cpu.lowest_clock_khz, 0)
    if 0 < now < lowest * _FAR_BELOW:
        yield Evidence(
            subject="the CPUs' clock",
            seen=f"{now / 1000:.0f} MHz, below the lowest of {lowest / 1000:.0f} MHz that software chooses",
            wanted=f">= {lowest / 1000:.0f} MHz",
            source="/sys/devices/system/cpu/cpufreq/policy*/scaling_cur_freq",
            fix=_FORCED,
        )
        return
    if not isinstance(s.driver, Missing) and known(s.driver.power_daemon, False):
        raise NotApplicable("nvidia-powerd runs, and sets this limit by the load")
    allowed = cpu.pstate_max_pct
    if isinstance(allowed, Missing):
        if allowed.why not in (Why.ABSENT, Why.NOT_RECORDED):
            yield unsure("intel_pstate", allowed)
    elif 0 < allowed < 100 * float(p["share"]):
        place = "/sys/devices/system/cpu/intel_pstate/max_perf_pct"
        yield Evidence(subject="intel_pstate", seen=f"{allowed} %", wanted="100 %", verdict=Verdict.FAIL, source=place)
    groups: dict[tuple[int, int], list[int]] = {}
    for policy in _policies(s):
        if isinstance(policy.max_khz, Missing) or isinstance(policy.hardware_max_khz, Missing):
            missing = policy.max_khz if isinstance(policy.max_khz, Missing) else policy.hardware_max_khz
            if isinstance(missing, Missing):
                yield unsure(f"CPU {policy.cpus}", missing)
            continue
        groups.setdefault((policy.max_khz, policy.hardware_max_khz), []).extend(policy.cpus)
    for (cap, hardware), numbers in groups.items():
        if hardware <= 0 or cap <= 0:
            continue
        yield Evidence(
            subject=_cpus(numbers),
            seen=f"{cap / 1000:.0f} MHz of {hardware / 1000:.0f} MHz",
            wanted=f"{hardware / 1000:.0f} MHz",
            verdict=Verdict.FAIL if cap < hardware * float(p["share"]) else Verdict.PASS,
            source="/sys/devices/system/cpu/cpufreq/policy*/scaling_max_freq",
        )


@rule(
    id="cpu-boost-disabled",
    title="The CPUs' boost frequencies (turbo) are switched off",
    severity=Severity.ADVICE,
    fix=(
        SysfsWrite(path="/sys/devices/system/cpu/intel_pstate/no_turbo", target=Exactly("0")),
        SysfsWrite(path="/sys/devices/system/cpu/cpufreq/boost", target=Exactly("1")),
        Advice(text="or enable it in the firmware setup, if it is disabled there"),
    ),
)
def boost_disabled(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The kernel is configured not to exceed the base clock.

    Why it matters
    Kernel launches run on one thread per rank, which benefits most from boost.

    When to leave it
    Equal clocks matter more than speed (benchmarks), or power is limited.

    References
    Linux Documentation/admin-guide/pm/cpufreq.rst, frequency boost support; intel_pstate.rst, no_turbo
    """
    on = need_if_there(need(s.cpu).boost, "the frequency driver has no boost switch")
    yield Evidence(
        subject="boost", seen="on" if on else "off", wanted="on", verdict=Verdict.PASS if on else Verdict.FAIL, source="cpufreq"
    )
