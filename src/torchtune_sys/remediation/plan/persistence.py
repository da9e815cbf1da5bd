"""Choose what keeps a value below /sys over a reboot: a udev rule if it belongs to a device, else a tmpfiles.d line."""

from __future__ import annotations

from torchtune_sys.model.plan import FileLine
from torchtune_sys.model.plan_context import TMPFILES_FILE, UDEV_FILE, PlanContext
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, known

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
"""What udev takes in a match or a value as it stands: no glob, no substitution, no quote."""


def is_of_disk(path: str) -> bool:
    """Return whether a value below /sys belongs to a disk or a mount: then a udev rule keeps it."""
    return path.startswith(("/sys/block/", "/sys/class/bdi/"))


def lines(s: Snapshot, context: PlanContext, path: str, value: str) -> tuple[FileLine, ...]:
    """Return the lines of our files that keep a change; empty where nothing keeps it: an NFS mount's read-ahead lives as long as the mount."""
    parts = path.split("/")
    if path.startswith("/sys/block/") and parts[4:5] == ["queue"]:
        return _block_rule(s, parts[3], parts[-1], value)
    if path.startswith("/sys/class/bdi/"):
        return _block_rule(s, context.device_names.get(parts[4], ""), "read_ahead_kb", value)
    if "\n" in path or "\n" in value:
        return ()  # no line can hold it
    # "w" follows globs, and says nothing where the file is absent (tmpfiles.d(5))
    return (FileLine(path=TMPFILES_FILE, key=path, text=f"w {_word(path)} - - - - {_argument(value)}"),)


def _block_rule(s: Snapshot, name: str, attribute: str, value: str) -> tuple[FileLine, ...]:
    """Kernel names of disks change from boot to boot, so a rule speaks of the kind of disk, a device mapper's or an array's of its name.

    The paths of an NVMe drive that has several (nvme0c1n1) are left alone: what they carry is for the drive above them to say.
    """
    if not name or not _PLAIN.issuperset(name) or not _PLAIN.issuperset(value):
        return ()
    spins = _spins(s, name)
    kind = next((kind for kind in _KINDS if name.startswith(kind) and name.isalpha()), "")
    if name.startswith("nvme"):
        match = 'KERNEL=="nvme*", KERNEL!="nvme*c*", ENV{DEVTYPE}=="disk"'
    elif kind:
        match = f'KERNEL=="{kind}*", ENV{{DEVTYPE}}=="disk", ATTR{{queue/rotational}}=="{spins:d}"'
    else:
        match = f'KERNEL=="{name}", ENV{{DEVTYPE}}=="disk"'
    text = f'ACTION=="add|change", SUBSYSTEM=="block", {match}, ATTR{{queue/{attribute}}}="{value}"'
    key = f"{match.partition(',')[0]} {'' if spins or not kind else 'not rotational '}{attribute}"
    return (FileLine(path=UDEV_FILE, key=key, text=text),)


def _spins(s: Snapshot, name: str) -> bool:
    """Return what the kernel says of the disk; that it spins where that was not seen."""
    disks = () if isinstance(s.storage, Missing) else known(s.storage.disks, ())
    return next((known(disk.rotational, True) for disk in disks if disk.name == name), True)


_KINDS = ("sd", "vd", "xvd", "hd")
"""Disks that may be spinning ones, numbered by letters."""


def _word(path: str) -> str:
    r"""Return a path as tmpfiles.d takes it: of a glob only ``*`` is meant as one; specifiers are doubled.

    Quotes, since C escapes in a path are read by newer releases only (252 makes ``ax20b`` of ``a\x20b``).

    >>> print(_word("/sys/a*/b%c"), _word('/sys/"[x] y'))
    /sys/a*/b%%c "/sys/\"[[]x] y"
    """
    glob = "".join({"%": "%%", "[": "[[]", "?": "[?]", "\\": "\\\\"}.get(sign, sign) for sign in path)
    if _PLAIN.union("/.:*%").issuperset(glob):
        return glob
    return '"' + glob.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _argument(value: str) -> str:
    """Return the rest of the line: C escapes are read, specifiers expanded."""
    return value.replace("\\", "\\\\").replace("%", "%%").replace("\t", "\\t")
