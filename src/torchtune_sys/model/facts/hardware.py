"""The machine itself: memory modules and channels, sensors, clock synchronisation."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

_NOT_READ = Missing(Why.NOT_RECORDED, "hardware", "not read")


class MemoryDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One slot for a memory module (SMBIOS type 17)."""

    locator: str
    """The board's name of the slot, e.g. ``P1-DIMMA1``."""
    bank: str
    size_mib: int
    """0: empty."""
    rated_mts: int | None = None
    """Megatransfers per second that the module is made for."""
    configured_mts: int | None = None
    form: str = ""
    """``DIMM``, ``SODIMM``, ``CAMM`` …, ``soldered`` for chips on the board; ``""`` where the firmware does not tell."""


class MemoryController(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one controller since boot (EDAC)."""

    name: str
    corrected: Fact[int]
    uncorrected: Fact[int]
    places: Fact[tuple[str, ...]] = _NOT_READ
    """Where it found memory, as its driver counts: ``channel 0 slot 1`` for a module, ``csrow 2 channel 5`` for one rank of a module
    (AMD), ``memory 3`` where the firmware alone knows (ghes_edac)."""


class ServiceLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What the processes of one systemd unit (or control group) took over a short window."""

    name: str
    cores: float
    """Processor time by the window's length: 0.5 is half a core."""
    wakeups_per_s: float
    rss_bytes: int
    processes: int


class Zone(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    celsius: float
    limit_celsius: float
    """The zone's hot or critical trip point, whichever is lower; a chip's own critical limit."""


class HardwareFacts(msgspec.Struct, frozen=True, kw_only=True):
    clock_synchronised: Fact[bool] = _NOT_READ
    """By what the time daemons leave in /run; Missing where none of them tells."""
    clock_daemon: Fact[str] = _NOT_READ
    """``timesyncd``, ``chronyd``, ``ntpd`` or ``ptp4l``; ``""`` where none runs under systemd."""
    portable: Fact[bool] = _NOT_READ
    """Whether the firmware calls the machine a laptop, notebook, convertible or tablet; ABSENT where it has no such table."""
    on_battery: Fact[bool] = _NOT_READ
    """Whether a battery of the system is discharging, and no adapter gives power; ABSENT where the system has none."""
    clocksource: Fact[str] = _NOT_READ
    """What the kernel reads time from: ``tsc``, ``kvm-clock``, ``hpet`` …"""
    memory_devices: Fact[tuple[MemoryDevice, ...]] = _NOT_READ
    memory_controllers: Fact[tuple[MemoryController, ...]] = _NOT_READ
    zones: Fact[tuple[Zone, ...]] = _NOT_READ
    """Thermal zones that have a hot or critical trip point, and sensors of NVMe drives and network cards with a critical limit."""
    throttled: Fact[int] = _NOT_READ
    """Times that a processor package slowed down for heat since boot (x86), the highest of the packages looked at."""
    bios: Fact[str] = _NOT_READ
    """The version of the machine's firmware (DMI)."""
    microcode: Fact[str] = _NOT_READ
    """That of the processors; several where they differ. ABSENT where the kernel does not tell (Arm)."""
    services: Fact[tuple[ServiceLoad, ...]] = _NOT_READ
    """Measured over a second, only with ``--live``; this session and jobs left out. ABSENT without ``--live``."""
