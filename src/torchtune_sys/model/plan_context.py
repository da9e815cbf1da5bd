"""Facts that only planning needs: our own files on the host, installed tools, and other owners of settings."""

from __future__ import annotations

from typing import Literal

import msgspec

from torchtune_sys.model.facts import Fact

SYSCTL_FILE = "/etc/sysctl.d/99-torchtune-sys.conf"
LIMITS_FILE = "/etc/security/limits.d/99-torchtune-sys.conf"
MODPROBE_FILE = "/etc/modprobe.d/99-torchtune-sys.conf"
TMPFILES_FILE = "/etc/tmpfiles.d/99-torchtune-sys.conf"
UDEV_FILE = "/etc/udev/rules.d/99-torchtune-sys.rules"
GRUB_FILE = "/etc/default/grub.d/99-torchtune-sys.cfg"
OWNED = (SYSCTL_FILE, LIMITS_FILE, MODPROBE_FILE, TMPFILES_FILE, UDEV_FILE, GRUB_FILE)
"""Files of ours that hold lines of several changes. (A drop-in of systemd is a file of one change alone.)"""

TOOLS = (
    *("systemctl", "udevadm", "systemd-tmpfiles"),
    *("update-grub", "grub-mkconfig", "grub2-mkconfig", "grubby", "rpm-ostree", "bootc"),
    *("transactional-update", "sdbootutil", "kernelstub", "bootctl"),
    *("update-initramfs", "mkinitcpio", "dracut"),
)


class TunedOption(msgspec.Struct, frozen=True, kw_only=True):
    """One option of the active tuned profile that is not a sysctl: ``vm.transparent_hugepages``, ``cpu.governor``, ``disk.readahead`` …"""

    option: str
    value: str
    source: str
    section: str = ""
    """The profile's section, whose name may differ from the plug-in's: ``sysctl.thunderx``."""


class TunedProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What a tuned profile of ours is built on."""

    path: str
    """Where it belongs: tuned looks below ``profiles`` since 2.23."""
    include: tuple[str, ...]
    """The profiles that it includes: the active ones, else one of the distribution's."""
    is_active: bool = False
    """Whether those are active now (through ours, or by themselves)."""
    options: tuple[TunedOption, ...] = ()
    """What they set, kernel settings too (``sysctl.vm.swappiness``)."""
    own: tuple[TunedOption, ...] = ()
    """What our own profile sets already, where it is the active one."""
    unread: Fact[None] = None
    """Why one of them could not be read."""


class UnitFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What systemd says of a unit."""

    enabled: bool
    """Or of a kind that needs no enabling (``static``, ``generated``)."""
    active: bool


class BootSetting(msgspec.Struct, frozen=True, kw_only=True):
    """A value that something else sets at boot after our files' lines, or in their place."""

    path: str
    """Below /proc/sys or /sys."""
    value: str
    source: str
    """Who runs the command: ``late.service (loads /etc/sysctl.conf, line 3)``, ``/etc/rc.local``."""
    unit: str = ""
    """The systemd unit, if it is one."""
    beats: Literal["all", "same", "matching"] = "all"
    """Which of our lines it wins over: in tmpfiles.d an earlier file's line over one for the very same path, a later file's over those
    that name the path by another pattern."""


class LimitLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of limits.conf(5) that is not ours."""

    source: str
    """``/etc/security/limits.d/50-site.conf:3``."""
    who: str
    """A user, ``@group``, a range of numbers, or ``*`` (all but root)."""
    kind: str
    """``soft``, ``hard`` or ``-`` (both)."""
    item: str
    value: str
    is_after: bool
    """Whether it is read after our file."""
    members: tuple[str, ...] = ()
    """Of a group: its members in the host's files."""


class PlanContext(msgspec.Struct, frozen=True, kw_only=True):
    files: dict[str, Fact[str]] = {}
    """Content of the files that torchtune-sys would write, and of units; ABSENT where there is none."""
    values: dict[str, Fact[dict[str, Fact[str]]]] = {}
    """By path asked about (patterns included): each concrete path with what it holds; ABSENT where nothing matches."""
    units: dict[str, UnitFacts] = {}
    """The units that a change would set, as far as systemd could be asked."""
    tools: tuple[str, ...] = ()
    """Which of ``TOOLS`` are installed."""
    owner: str = ""
    """Who owns this system's configuration where that is not /etc: ``NixOS``, ``Talos``, ``an image (/etc is read-only)`` …"""
    way: str = ""
    """Where a change belongs then."""
    image: str = ""
    """``rpm-ostree`` where /etc may be written but the kernel's arguments belong to a tool."""
    boot_entries: tuple[tuple[str, ...], ...] = ()
    """By entry of the boot loader, the kernel arguments of the next boot; empty where that could not be seen."""
    boot_way: str = ""
    """What a person does for a kernel argument, where a file tells of a boot loader that no tool of ours speaks to."""
    boot_way_first: bool = False
    """Whether a tool that is there as well (update-grub) would be the wrong one."""
    grub_resets: tuple[str, ...] = ()
    """Lines behind our file of /etc/default/grub.d that set the arguments anew."""
    tuned: tuple[TunedOption, ...] = ()
    boot_settings: tuple[BootSetting, ...] = ()
    limit_lines: tuple[LimitLine, ...] = ()
    limits_unread: str = ""
    """Why logins by ssh do not read the files of limits."""
    unwritable: dict[str, str] = {}
    """Places that would be written, with what keeps that from being done."""
    device_names: dict[str, str] = {}
    """``major:minor`` → kernel name of the block device (``sda``, ``dm-0``)."""
