"""What keeps a value below /sys over a reboot: a udev rule for what belongs to a device, a tmpfiles.d line for the rest."""

from __future__ import annotations

from torchtune_sys.model.ground import TMPFILES_FILE, UDEV_FILE, Ground
from torchtune_sys.model.plan import Line


def lines(ground: Ground, path: str, value: str) -> tuple[Line, ...]:
    """Empty where nothing keeps it: an NFS mount's read-ahead lives as long as the mount."""
    parts = path.split("/")
    if path.startswith("/sys/block/") and parts[4:5] == ["queue"]:
        return (_block_rule(parts[3], parts[-1], value),)
    if path.startswith("/sys/class/bdi/"):
        name = ground.device_names.get(parts[4], "")
        return (_block_rule(name, "read_ahead_kb", value),) if name else ()
    # "w" follows globs, and says nothing where the file is absent (tmpfiles.d(5))
    return (Line(path=TMPFILES_FILE, key=path, text=f"w {_escaped(path)} - - - - {value}"),)


def _block_rule(name: str, attribute: str, value: str) -> Line:
    """Kernel names of disks change from boot to boot, so a rule speaks of the kind of disk, a device mapper's or an array's of its name."""
    if name.startswith("nvme"):
        match = 'KERNEL=="nvme*", ENV{DEVTYPE}=="disk"'
    elif name.startswith(("dm-", "md")):
        match = f'KERNEL=="{name}"'
    else:
        match = 'KERNEL=="sd*", ENV{DEVTYPE}=="disk", ATTR{queue/rotational}=="1"'
    text = f'ACTION=="add|change", SUBSYSTEM=="block", {match}, ATTR{{queue/{attribute}}}="{value}"'
    return Line(path=UDEV_FILE, key=f"{match.partition(',')[0]} {attribute}", text=text)


def _escaped(path: str) -> str:
    r"""tmpfiles.d splits at blanks, reads C escapes and expands %-specifiers.

    >>> _escaped("/sys/a b%c")
    '/sys/a\\x20b%%c'
    """
    return path.replace("\\", "\\\\").replace(" ", "\\x20").replace("\t", "\\x09").replace("%", "%%")
