"""Frequency scaling: governor, energy preference, caps and boost.

Source: Documentation/admin-guide/pm/cpufreq.rst, intel_pstate.rst, amd-pstate.rst.
"""

from __future__ import annotations

from torchtune_sys.host.base import Host
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.cpu import CpuCap, CpuPolicy
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why, fact, known, known_or_unknown, need
from torchtune_sys.probes.topology import CPUS

FREQ = f"{CPUS}/cpufreq"


def policies(host: Host, online: Fact[CpuSet]) -> Fact[tuple[CpuPolicy, ...]]:
    """Return every policy; Missing(ABSENT) where the kernel scales no frequency, as in most virtual machines."""
    names = host.names(FREQ)
    numbers = () if isinstance(names, Missing) else tuple(sorted(int(n[6:]) for n in names if _is_policy(n)))
    if not numbers:
        return _per_cpu(host, online, names)
    # With one policy per CPU (intel_pstate, CPPC) a policy has the number of its CPU: no need to read 256 affected_cpus.
    alone = not isinstance(online, Missing) and set(numbers) == set(online)
    driver = host.word(f"{FREQ}/policy{numbers[0]}/scaling_driver")  # a kernel has one cpufreq driver at a time
    return tuple(_policy(host, f"{FREQ}/policy{number}", driver, number, alone=alone) for number in numbers)


_LOOKED_AT = 4
"""CPUs whose clock is read: reading it interrupts each of them, and what holds the processor down holds all."""


def clock(host: Host) -> tuple[Fact[int], Fact[int]]:
    """Return the clock of the fastest of the first CPUs now, and the lowest that software may choose, in kHz.

    Only of Intel's drivers, which measure it while a CPU works; what other drivers show of an idle CPU is no clock at which it works.
    """
    driver = host.word(f"{FREQ}/policy0/scaling_driver")
    if driver not in ("intel_pstate", "intel_cpufreq"):
        nothing = driver if isinstance(driver, Missing) else Missing(Why.NOT_SUPPORTED, f"{FREQ}/policy0/scaling_driver", driver)
        return nothing, nothing
    now = [host.number(f"{FREQ}/policy{number}/scaling_cur_freq") for number in range(_LOOKED_AT)]
    told = [khz for khz in now if not isinstance(khz, Missing)]
    return max(told) if told else now[0], host.number(f"{FREQ}/policy0/cpuinfo_min_freq")


@fact
def boost(host: Host) -> Fact[bool]:
    """Return whether turbo is allowed; ABSENT where the driver has no switch for it."""
    off = host.word(f"{CPUS}/intel_pstate/no_turbo")
    if not isinstance(off, Missing):
        return {"0": True, "1": False}.get(off, Missing(Why.UNPARSED, f"{CPUS}/intel_pstate/no_turbo", off[:40]))
    on = need(host.word(f"{FREQ}/boost"))
    if on == "0" and host.word(f"{FREQ}/policy0/scaling_driver") == "cppc_cpufreq" and not _more_than_nominal(host):
        return Missing(Why.ABSENT, f"{FREQ}/boost", "the processors have hardly any frequency above their nominal one")
    return {"0": False, "1": True}.get(on, Missing(Why.UNPARSED, f"{FREQ}/boost", on[:40]))


_RAPL, _UNCORE = "/sys/class/powercap", f"{CPUS}/intel_uncore_frequency"


@fact
def caps(host: Host) -> Fact[tuple[CpuCap, ...]]:
    """Return the power limits of packages, not of what is in them (intel-rapl:0:0), and the highest frequencies of their uncores."""
    zones, uncores = host.names(_RAPL), host.names(_UNCORE)
    if isinstance(zones, Missing) and isinstance(uncores, Missing):
        return zones
    found: list[CpuCap] = []
    for zone in known_or_unknown(zones, ()):
        name = host.word(f"{_RAPL}/{zone}/name") if zone.startswith("intel-rapl:") and zone.count(":") == 1 else ""
        if isinstance(name, str) and name.startswith("package"):
            found += _cap(host, f"power of {name}", f"{_RAPL}/{zone}", "constraint_0_power_limit_uw", "constraint_0_max_power_uw")
    for name in known_or_unknown(uncores, ()):
        found += _cap(host, f"uncore of {name}", f"{_UNCORE}/{name}", "max_freq_khz", "initial_max_freq_khz")
    return tuple(found)


def _cap(host: Host, name: str, folder: str, now: str, most: str) -> list[CpuCap]:
    """Return one where both numbers are told; a package that does not tell its design power says 0."""
    limit, made_for = (host.number(f"{folder}/{leaf}") for leaf in (now, most))
    if isinstance(limit, Missing) or isinstance(made_for, Missing) or limit <= 0 or made_for <= 0:
        return []
    scale, unit = (1e6, "W") if now.endswith("_uw") else (1e3, "MHz")
    return [CpuCap(name=name, now=limit / scale, most=made_for / scale, unit=unit, source=f"{folder}/{now}")]


def _more_than_nominal(host: Host) -> bool:
    """Whether boost would give some CPU 5 % or more. cppc_cpufreq shows the switch, off, on processors without boost, too; half of
    GB10's large cores would gain 2 %. Source: drivers/cpufreq/cppc_cpufreq.c (boost_supported), Documentation/admin-guide/acpi/cppc_sysfs.rst."""
    for name in known(host.names(FREQ), ()):
        if _is_policy(name):
            place = f"{CPUS}/cpu{name[6:]}/acpi_cppc"
            highest, nominal = host.number(f"{place}/highest_perf"), host.number(f"{place}/nominal_perf")
            if isinstance(highest, Missing) or isinstance(nominal, Missing) or highest * 100 >= nominal * 105:
                return True  # not told: then the switch says what it says
    return False


def _policy(host: Host, folder: str, driver: Fact[str], cpu: int, *, alone: bool = False) -> CpuPolicy:
    """Return the policy of a CPU; its own ``alone``, or where nothing tells of which others it is."""
    own = CpuSet((cpu,))
    return CpuPolicy(
        cpus=own if alone else known(_affected(host, folder), own),
        driver=driver,
        governor=host.word(f"{folder}/scaling_governor"),
        epp=host.word(f"{folder}/energy_performance_preference"),
        max_khz=(allowed := host.number(f"{folder}/scaling_max_freq")),
        hardware_max_khz=_highest(host, folder, driver, allowed),
    )


def _highest(host: Host, folder: str, driver: Fact[str], allowed: Fact[int]) -> Fact[int]:
    """Return cpuinfo_max_freq; under acpi-cpufreq no more than the highest of its steps, which is all that software may choose there. Since Linux 5.12
    cpuinfo_max_freq has the boost frequency of CPPC, by which the processor goes beyond the highest step by itself, and scaling_max_freq begins at that
    step. Source: drivers/cpufreq/acpi-cpufreq.c (acpi_cpufreq_cpu_init)."""
    found = host.number(f"{folder}/cpuinfo_max_freq")
    if driver != "acpi-cpufreq" or isinstance(found, Missing) or isinstance(allowed, Missing) or allowed >= found:
        return found
    steps = host.text(f"{folder}/scaling_available_frequencies")
    if isinstance(steps, Missing):
        return found if steps.why is Why.ABSENT else steps
    return min(found, max((natural(word) or 0 for word in steps.split()), default=0) or found)


@fact
def _affected(host: Host, folder: str) -> Fact[CpuSet]:
    text = need(host.text(f"{folder}/affected_cpus"))
    if not text.strip():
        return CpuSet()  # all CPUs of the policy are offline
    found = text.split()
    if all(word.isdecimal() and len(word) < 8 for word in found):
        return CpuSet(int(word) for word in found)
    return Missing(Why.UNPARSED, f"{folder}/affected_cpus", text[:60])


def _per_cpu(host: Host, online: Fact[CpuSet], nothing: Fact[tuple[str, ...]]) -> Fact[tuple[CpuPolicy, ...]]:
    """Kernels before 4.3 keep the policies in the directories of the CPUs."""
    if isinstance(online, Missing):
        return online
    found: list[CpuPolicy] = []
    seen: set[int] = set()
    for cpu in online:
        folder = f"{CPUS}/cpu{cpu}/cpufreq"
        if cpu in seen:
            continue
        driver = host.word(f"{folder}/scaling_driver")
        if isinstance(driver, Missing):
            if found:
                continue
            return nothing if isinstance(nothing, Missing) else driver
        policy = _policy(host, folder, driver, cpu)
        seen.update(policy.cpus)
        found.append(policy)
    return tuple(found)


def _is_policy(name: str) -> bool:
    return name.startswith("policy") and name[6:].isdecimal() and len(name) < 14
