"""Code shared by the rules on the kernel's log: time window, wording of times and counts, names of GPUs and PCI devices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from torchtune_sys.model.actions import Action
from torchtune_sys.model.facts.kernel import KernelEvent, KernelFacts
from torchtune_sys.model.rule import Evidence, Param, Params, Verdict
from torchtune_sys.model.snapshot import Snapshot, container_told, gpus_by_address, kept, pci_devices_by_address, pci_devices_told
from torchtune_sys.model.values import Missing, NotApplicable, Unknown, Why, absent, known, need
from torchtune_sys.rules.gates import nvidia_hardware

DAYS = Param("days", 7, "older messages in the log are ignored, days")
_DAY_S = 86_400.0
_START_S = 60.0
_CALENDAR_S = 60_000_000.0
"""Larger times are of a calendar, smaller ones since boot."""


def events(s: Snapshot) -> tuple[KernelEvent, ...]:
    """Return what the log holds; unknown where it could not be read, na in a container, which has none."""
    found = need(s.kernel).events
    if not isinstance(found, Missing):
        return found
    inside = container_told(s)
    if inside and found.why in (Why.ABSENT, Why.NOT_SUPPORTED, Why.HIDDEN):
        raise NotApplicable(f"inside a container ({inside}) without the kernel's log: run on the host")
    raise Unknown(found)


def recent(s: Snapshot, p: Params, *kinds: str) -> tuple[KernelEvent, ...]:
    """Return the events of these kinds in the window."""
    log = need(s.kernel)
    return tuple(event for event in events(s) if event.kind in kinds and in_window(log, event, p))


def in_window(log: KernelFacts, event: KernelEvent, p: Params) -> bool:
    """Return whether an event is recent enough. A pasted log is an extract that somebody chose for what is in it: all of it is, unless
    messages are counted by the day."""
    days = float(p["days"])
    if event.last_s is None or isinstance(log.now_s, Missing) or not same_clock(event.last_s, log.now_s):
        return True
    return event.last_s >= log.now_s - days * _DAY_S or (log.source == "report" and days >= float(DAYS.default))


def same_clock(one: float, other: float) -> bool:
    """Return whether two times are both of a calendar or both since boot: a report may hold parts of logs with either."""
    return (one > _CALENDAR_S) == (other > _CALENDAR_S)


def of_boot(log: KernelFacts, event: KernelEvent) -> bool:
    """Return whether the machine was starting: links go up and down until bonds and addresses are made, the audit daemon does not read yet."""
    since_boot = not isinstance(log.booted, Missing) and log.booted > 0
    return since_boot and event.last_s is not None and event.last_s < _BOOT_S


_BOOT_S = 180.0


def since_last_start(s: Snapshot, p: Params, *kinds: str) -> tuple[KernelEvent, ...]:
    """Return the events of the driver's latest start: what an earlier one met may be mended."""
    latest = dict.fromkeys((False, True), float("-inf"))  # by the clock, of a calendar or since boot
    for event in events(s):
        if event.kind in ("boot", "driver-load") and event.first_s is not None:
            clock = event.first_s > _CALENDAR_S
            latest[clock] = max(latest[clock], event.first_s)

    def ended(event: KernelEvent) -> bool:
        return event.last_s is not None and latest[event.last_s > _CALENDAR_S] > event.last_s + _START_S

    return tuple(event for event in recent(s, p, *kinds) if not ended(event))


def is_working(s: Snapshot, address: str) -> bool:
    """Return whether the driver serves the GPU by now."""
    gpu = gpus_by_address(s).get(address)
    return gpu is not None and not gpu.lost


def nvidia_log(s: Snapshot) -> None:
    """Require a machine with an NVIDIA GPU, or a log that speaks of one, and is of this machine: where neither a GPU nor the driver is, it is not."""
    if isinstance(s.kernel, Missing) or isinstance(s.kernel.events, Missing) or not any(map(_of_nvidia, s.kernel.events)):
        nvidia_hardware(s)
    elif not isinstance(s.driver, Missing) and s.driver.module_loaded is False:
        devices = s.driver.nvidia_devices
        if absent(devices) or devices == ():
            raise NotApplicable("neither an NVIDIA GPU nor its driver is here: the log speaks of another machine's")


def _of_nvidia(event: KernelEvent) -> bool:
    return event.kind in (
        "xid",
        "sxid",
        "api-mismatch",
        "iommu-fault",
        "module-refused",
        "module-of-other-kernel",
    ) or event.kind.startswith(("gpu-", "gsp-", "uvm-", "peermem-"))


def total(events: tuple[KernelEvent, ...] | list[KernelEvent]) -> int:
    return sum(event.count for event in events)


def times_of(events: Iterable[KernelEvent]) -> list[float]:
    """Return when the events were first and last seen, in seconds, as far as the log tells."""
    return [time for event in events for time in (event.first_s, event.last_s) if time is not None]


def when(log: KernelFacts, events: tuple[KernelEvent, ...] | list[KernelEvent]) -> str:
    """Return how often and when, for the end of a sentence: ``, 3 times from 2026-11-20 10:02 to 11:40 UTC``."""
    count = total(events)
    times = times_of(events)
    often = f", {count:,} times" if count > 1 else ""
    if not times:
        return often
    first, last = _time(log, min(times)), _time(log, max(times))
    return f"{often}, {first}" if first == last else f"{often} from {first} to {last}"


def seen_in_log(
    s: Snapshot,
    subject: str,
    words: str,
    events: tuple[KernelEvent, ...] | list[KernelEvent],
    wanted: str,
    about: tuple[str, ...] = (),
    fix: tuple[Action, ...] = (),
) -> Evidence:
    """Return evidence that fails: what the log says of a subject, how often and when."""
    log = need(s.kernel)
    return Evidence(subject=subject, seen=f"{words}{when(log, events)}", wanted=wanted, source=log.source, about=about, fix=fix)


def without_when(seen: str) -> str:
    """Return the words of evidence without what ``when`` added.

    >>> without_when("nf_conntrack: table full, dropping packet, 3 times from 99 s after boot to 4 min after boot")
    'nf_conntrack: table full, dropping packet'
    >>> without_when("Cable unplugged, 2026-11-20 10:02 UTC"), without_when("Cable unplugged, Nov 20 10:02"), without_when("a, b")
    ('Cable unplugged', 'Cable unplugged', 'a, b')
    """
    return re.sub(_WHEN, "", seen)


def _time(log: KernelFacts, time: float) -> str:
    """In UTC where the boot time is known; else by the log's own clock, whose zone and (in syslog's stamps) year it does not tell."""
    base = known(log.booted, 0.0)
    if base == 0.0 and time < _CALENDAR_S:
        return f"{_span(time)} after boot"
    day, rest = divmod(int(min(base + time, 1e11)), 86_400)
    year, month, date = _civil(day)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}"
    if base:
        return f"{year}-{month:02d}-{date:02d} {clock} UTC"
    return f"{year}-{month:02d}-{date:02d} {clock}" if time > 1e9 else f"{_MONTHS[month - 1]} {date} {clock}"


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WHEN = rf"(?:, [0-9,]{{1,12}} times)?(?:(?:,| from) (?:[0-9]{{1,9}} (?:s|min|h) after boot|[0-9]{{4}}-[0-9][0-9]-[0-9][0-9] |(?:{'|'.join(_MONTHS)}) [0-9][0-9] ).{{0,60}}|(?<= times))$"


def _civil(day: int) -> tuple[int, int, int]:
    """Year, month and day of the Gregorian calendar, ``day`` counted from 1970-01-01. (Rules import no clock, hence no datetime.)

    >>> _civil(0), _civil(11_016), _civil(20_142)
    ((1970, 1, 1), (2000, 2, 29), (2025, 2, 23))
    """
    era, of_era = divmod(day + 719_468, 146_097)  # eras of 400 years that begin on 1 March
    year_of_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year_of_era + era * 400 + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1


def _span(seconds: float) -> str:
    if seconds < 300:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def period(log: KernelFacts) -> str:
    """Return how far back the log goes, for what was not found in it."""
    if log.whole is True:
        return "since boot"
    return (
        "in the report"
        if log.source == "report" or isinstance(log.from_s, Missing)
        else f"since {_time(log, log.from_s)}".rstrip()
    )


def none_logged(s: Snapshot, subject: str, what: str) -> Iterator[Evidence]:
    """Yield evidence that the log was read and holds nothing of the kind."""
    log = need(s.kernel)
    yield Evidence(subject=subject, seen=f"no {what} {period(log)}", verdict=Verdict.PASS, source=log.source)


def logged(
    s: Snapshot, p: Params, kinds: tuple[str, ...], name: str, what: str, wanted: str, named: Callable[[str], str] = str
) -> Iterator[Evidence]:
    """Yield evidence by subject of the events of these kinds, the worst kind last, each told by the latest of its worst; else that there is none.

    ``name`` is who is meant where an event or the whole log names nobody, ``named`` makes a person's name of a subject.
    """
    found = grouped(recent(s, p, *kinds))
    for subject, of_it in found.items():
        worst = max(reversed(of_it), key=lambda event: kinds.index(event.kind))
        words = shorter(worst.text).removesuffix(f" in {subject}")
        yield seen_in_log(s, named(subject) or name, words, of_it, wanted)
    if not found:
        yield from none_logged(s, name, what)


def logged_of_devices(s: Snapshot, p: Params, kinds: tuple[str, ...], name: str, what: str, wanted: str) -> Iterator[Evidence]:
    """Yield what ``logged`` does, each PCI device with its driver."""

    def named(subject: str) -> str:
        return device_name(s, subject) if ":" in subject else subject

    yield from logged(s, p, kinds, name, what, wanted, named)


def gpu_name(s: Snapshot, address: str) -> str:
    """Return ``GPU 3 (0000:9b:00.0)`` where the driver shows the GPU, else by its address alone."""
    gpu = gpus_by_address(s).get(address)
    if gpu is not None:
        return f"GPU {gpu.index} ({address})"
    return f"GPU at {address}" if address else "a GPU"


def device_name(s: Snapshot, address: str) -> str:
    """Return the PCI device at an address with its driver, and with what lies below it where it is a bridge."""
    device = pci_devices_by_address(s).get(address)
    own = "" if device is None else device.driver
    name = f"{own} {address}" if isinstance(own, str) and own else address
    below = _below_bridges(s).get(address)
    return f"{name} (above {', '.join(below)})" if below else name


_LEVELS, _FIRST = 16, 4
"""Bridges above a device that are followed, and devices that are named."""


@kept
def _below_bridges(s: Snapshot) -> dict[str, list[str]]:
    """Return the first devices below each bridge, with their drivers."""
    devices = pci_devices_by_address(s)
    found: dict[str, list[str]] = {}
    for device in pci_devices_told(s):
        if not isinstance(device.driver, str) or device.driver in ("pcieport", "i801_smbus"):
            continue
        bridges: dict[str, None] = {}
        bridge = device.parent
        while bridge and bridge not in bridges and len(bridges) <= _LEVELS:
            bridges[bridge] = None
            bridge = devices[bridge].parent if bridge in devices else ""
        for bridge in bridges:
            below = found.setdefault(bridge, [])
            if len(below) < _FIRST:
                below.append(f"{device.driver} {device.address}")
    return found


def grouped(events: tuple[KernelEvent, ...]) -> dict[str, list[KernelEvent]]:
    """Return the events by subject, in the order of the log."""
    found: dict[str, list[KernelEvent]] = {}
    for event in events:
        found.setdefault(event.subject, []).append(event)
    return found


def shorter(words: str, width: int = 120) -> str:
    return words if len(words) <= width else f"{words[: width - 1].rstrip()}…"
