"""The machine itself: memory modules and channels, sensors, clock synchronisation."""

from __future__ import annotations

import re

import msgspec

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model import codec
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.hardware import HardwareFacts, MemoryController, MemoryDevice, ServiceLoad, Zone
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why, fact, need

_EDAC = "/sys/devices/system/edac/mc"
_THERMAL = "/sys/class/thermal"
_HWMON = "/sys/class/hwmon"
_CHIPS = ("nvme", "mlx5")
_SUPPLIES = "/sys/class/power_supply"
_CPUS = "/sys/devices/system/cpu"
_UNITS = "/sys/fs/cgroup/system.slice"
_DAEMONS = (
    ("timesyncd", ("systemd-timesyncd",)),
    ("chronyd", ("chrony", "chronyd", "chronyd-restricted")),
    ("ntpd", ("ntp", "ntpd", "ntpsec", "openntpd", "ntpd-rs", "xntpd")),
    ("ptp4l", ("ptp4l", "phc2sys", "timemaster", "sfptpd")),
)
_CPUINFO = "/proc/cpuinfo"
_REVISION = re.compile(r"^microcode\t: (\w{1,32})$", re.MULTILINE)
_THROTTLE = "thermal_throttle/package_throttle_count"
_MOST = 64
_PORTABLE = (8, 9, 10, 14, 30, 31, 32)
"""SMBIOS 7.4.1: portable, laptop, notebook, sub notebook, tablet, convertible, detachable."""


def probe(host: Host, intent: Workload) -> HardwareFacts:
    daemon = _daemon(host)
    return HardwareFacts(
        clock_synchronised=_synchronised(host, daemon, intent.live),
        clock_daemon=daemon,
        portable=_portable(host),
        on_battery=_on_battery(host),
        clocksource=host.word("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        memory_devices=_memory(host),
        memory_controllers=_controllers(host),
        zones=_zones(host),
        throttled=_throttled(host),
        bios=host.word("/sys/class/dmi/id/bios_version"),
        microcode=_microcode(host),
        services=_services(host) if intent.live else Missing(Why.ABSENT, "--live", "not measured"),
    )


@fact
def _microcode(host: Host) -> Fact[str]:
    found = set(_REVISION.findall(need(host.text(_CPUINFO))))
    return ", ".join(sorted(found)) if found else Missing(Why.ABSENT, _CPUINFO, "names no microcode")


@fact
def _portable(host: Host) -> Fact[bool]:
    return need(host.number("/sys/class/dmi/id/chassis_type")) in _PORTABLE


@fact
def _on_battery(host: Host) -> Fact[bool]:
    """By type, scope, status and online of Documentation/ABI/testing/sysfs-class-power; a mouse's battery has the scope Device, a UPS a type of its own."""
    names = need(host.names(_SUPPLIES))
    states: list[str] = []
    unseen: Missing | None = None
    for name in names[:_MOST]:
        kind = need(host.word(f"{_SUPPLIES}/{name}/type"))
        if kind in ("Mains", "USB", "Wireless"):
            online = host.word(f"{_SUPPLIES}/{name}/online")
            unseen = online if isinstance(online, Missing) else unseen
            if not isinstance(online, Missing) and online not in ("0", ""):
                return False
        if kind == "Battery" and host.word(f"{_SUPPLIES}/{name}/scope") != "Device":
            state = need(host.word(f"{_SUPPLIES}/{name}/status"))
            states.append(state)
    if not states:
        return Missing(Why.ABSENT, _SUPPLIES, "the system has no battery")
    if {*states} == {"Unknown"}:
        return Missing(Why.UNPARSED, _SUPPLIES, "the battery does not tell its state")
    return unseen if unseen is not None and "Discharging" in states else "Discharging" in states


def _daemon(host: Host) -> Fact[str]:
    units = host.names(_UNITS)
    if isinstance(units, Missing):
        units = host.names("/sys/fs/cgroup/systemd/system.slice")
    if isinstance(units, Missing):
        return units
    there = {name.removesuffix(".service").partition("@")[0] for name in units if name.endswith(".service")}
    found = next((daemon for daemon, names in _DAEMONS if there.intersection(names)), "")
    if found or "systemd-journald" in there:
        return found
    return Missing(Why.ABSENT, _UNITS, "not the host's own units: even the journal is not among them")


def _synchronised(host: Host, daemon: Fact[str], live: bool) -> Fact[bool]:
    """timesyncd touches a file when it has set the clock (systemd-timesyncd.service(8)); the others keep theirs to themselves."""
    path = "/run/systemd/timesync/synchronized"
    if daemon == "timesyncd":
        return host.exists(path)
    if daemon == "":
        return False
    if daemon == "chronyd" and live:
        tracking = host.run(("chronyc", "-c", "tracking"), timeout_s=3.0)
        if not isinstance(tracking, Missing) and (reached := parse_tracking(tracking.stdout)) is not None:
            return reached
    return daemon if isinstance(daemon, Missing) else Missing(Why.NOT_SUPPORTED, path, f"{daemon} runs, and writes no such file")


def parse_tracking(text: str) -> bool | None:
    """Return whether chrony follows a server, by ``chronyc -c tracking``: its leap status is the last field. None where it does not answer.

    >>> parse_tracking("A9FEA97B,169.254.169.123,4,1732182000.1,0.0,0.0,0.0,-7.7,0.0,0.0,0.0,0.0,16.1,Normal")
    True
    >>> parse_tracking("00000000,,0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,1.0,1.0,0.0,Not synchronised")
    False
    """
    fields = text.strip().split(",")
    if len(fields) != 14:
        return None
    return fields[13] in ("Normal", "Insert second", "Delete second")


class _Smbios(msgspec.Struct, frozen=True):
    memory_devices: tuple[MemoryDevice, ...]


class _Services(msgspec.Struct, frozen=True):
    units: tuple[ServiceLoad, ...]


@fact
def _memory(host: Host) -> Fact[tuple[MemoryDevice, ...]]:
    return need(codec.as_fact(host.ask(queries.SMBIOS), _Smbios, queries.SMBIOS)).memory_devices


@fact
def _services(host: Host) -> Fact[tuple[ServiceLoad, ...]]:
    return need(codec.as_fact(host.ask(queries.SERVICES), _Services, queries.SERVICES)).units


@fact
def _controllers(host: Host) -> Fact[tuple[MemoryController, ...]]:
    names = need(host.names(_EDAC))
    return tuple(
        MemoryController(
            name=name,
            corrected=host.number(f"{_EDAC}/{name}/ce_count"),
            uncorrected=host.number(f"{_EDAC}/{name}/ue_count"),
            places=_places(host, f"{_EDAC}/{name}"),
        )
        for name in names[:_MOST]
        if name.startswith("mc") and natural(name[2:]) is not None
    )


@fact
def _places(host: Host, controller: str) -> Fact[tuple[str, ...]]:
    """Return the places of memory modules: the kernel makes a directory for each module (``dimm3``) or rank (``rank3``) that is there, none for empty slots
    (drivers/edac/edac_mc_sysfs.c)."""
    names = need(host.names(controller))
    found: list[str] = []
    for name in names:
        if name.startswith(("dimm", "rank")) and natural(name[4:]) is not None and len(found) < _MOST:
            place = need(host.word(f"{controller}/{name}/dimm_location"))
            found.append(place[:60])
    return tuple(found)


def _zones(host: Host) -> Fact[tuple[Zone, ...]]:
    names = host.names(_THERMAL)
    if isinstance(names, Missing) and names.why is not Why.ABSENT:
        return names
    found: list[Zone | None] = _sensors(host)
    if isinstance(names, Missing):
        return tuple(sensor for sensor in found if sensor is not None) or names
    found += [_zone(host, f"{_THERMAL}/{name}") for name in names[: _MOST * 4] if name.startswith("thermal_zone")]
    return tuple(zone for zone in found if zone is not None)


def _sensors(host: Host) -> list[Zone | None]:
    """Of drives and network cards. A CPU's critical limit is where it throttles as a matter of course, a disk behind SATA may be woken by
    the question (Documentation/hwmon/drivetemp.rst), a GPU has NVML."""
    chips = host.names(_HWMON)
    found: list[Zone | None] = []
    for chip in () if isinstance(chips, Missing) else chips[:_MOST]:
        if host.word(f"{_HWMON}/{chip}/name") in _CHIPS:
            found.append(_sensor(host, f"{_HWMON}/{chip}"))
    return found


def _sensor(host: Host, place: str) -> Zone | None:
    """Return the first sensor, which stands for the drive as a whole, or for the card's own chip (its transceivers come after it). None where it
    has no believable critical limit: drives that name none show absolute zero, or 65,535 kelvins."""
    limit = host.number(f"{place}/temp1_crit")
    if isinstance(limit, Missing) or not 40_000 <= limit < 200_000:
        return None
    now = host.number(f"{place}/temp1_input")
    if isinstance(now, Missing) or not -60_000 < now < 250_000:
        return None
    owner = host.link(f"{place}/device")
    title = (place if isinstance(owner, Missing) else owner).rstrip("/").rpartition("/")[2]
    return Zone(name=title[:60], celsius=now / 1000, limit_celsius=limit / 1000)


def _zone(host: Host, place: str) -> Zone | None:
    """None where the zone has no such limit, or does not answer (an ACPI zone of a device that is off)."""
    limits = []
    for number in range(12):
        kind = host.word(f"{place}/trip_point_{number}_type")
        if isinstance(kind, Missing):
            break
        limit = host.number(f"{place}/trip_point_{number}_temp") if kind in ("hot", "critical") else 0
        if not isinstance(limit, Missing) and 40_000 <= limit < 200_000:
            limits.append(limit)
    if not limits:
        return None
    now, name = host.number(f"{place}/temp"), host.word(f"{place}/type")
    if isinstance(now, Missing) or not -60_000 < now < 250_000:
        return None
    title = place.rpartition("/")[2] if isinstance(name, Missing) else name[:60]
    return Zone(name=title, celsius=now / 1000, limit_celsius=min(limits) / 1000)


@fact
def _throttled(host: Host) -> Fact[int]:
    """Of one CPU of each package: the counter is the package's (drivers/thermal/intel/therm_throt.c)."""
    present = need(host.word(f"{_CPUS}/present"))
    last = present.rpartition(",")[2].rpartition("-")[2][:6]
    counts = [host.number(f"{_CPUS}/cpu{cpu}/{_THROTTLE}") for cpu in dict.fromkeys(("0", last))]
    if isinstance(counts[0], Missing) and isinstance(counts[-1], Missing):
        return counts[0]
    counts += [host.number(f"{_CPUS}/cpu{cpu}/{_THROTTLE}") for cpu in _firsts(host, last)]
    return max(count for count in counts if not isinstance(count, Missing))


def _firsts(host: Host, last: str) -> list[str]:
    """Return the first CPU of each further package; none where both ends lie in the only two."""
    first, other = (host.number(f"{_CPUS}/cpu{cpu}/topology/physical_package_id") for cpu in ("0", last))
    if isinstance(first, Missing) or isinstance(other, Missing) or natural(last) is None or max(first, other) < 2:
        return []
    found = dict.fromkeys((first, other), "")
    for cpu in range(min(int(last), 4096)):
        package = host.number(f"{_CPUS}/cpu{cpu}/topology/physical_package_id")
        if not isinstance(package, Missing):
            found.setdefault(package, str(cpu))
    return [cpu for cpu in found.values() if cpu]
