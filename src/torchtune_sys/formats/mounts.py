"""The mount table: which mount carries a path, and what kind of file system that is."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """One line of /proc/self/mountinfo (Documentation/filesystems/proc.rst, section 3.5)."""

    id: int
    parent: int
    device: str
    """``major:minor``; ``""`` where only /proc/mounts was there."""
    root: str
    point: str
    filesystem: str
    source: str
    options: tuple[str, ...]

    def option(self, name: str) -> str | None:
        """Return the value of ``name=value``; ``""`` for a bare ``name``; None if it is not set."""
        for option in self.options:
            key, _, value = option.partition("=")
            if key == name:
                return value
        return None


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    r"""Read /proc/self/mountinfo; lines that are none are passed over.

    >>> line = "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue"
    >>> mount = parse_mountinfo(line)[0]
    >>> mount.point, mount.device, mount.options
    ('/mnt 2', '98:0', ('rw', 'noatime', 'errors=continue'))
    """
    found = []
    for line in text.split("\n"):
        before, dash, after = line.partition(" - ")
        if not dash:
            continue
        left, right = before.split(" "), after.split(" ")
        if len(left) < 6 or len(right) < 2 or not (_is_number(left[0]) and _is_number(left[1])):
            continue
        found.append(
            Mount(
                id=int(left[0]),
                parent=int(left[1]),
                device=left[2],
                root=unescape(left[3]),
                point=unescape(left[4]),
                filesystem=unescape(right[0]),
                source=unescape(right[1]),
                options=_distinct(left[5], right[2] if len(right) > 2 else ""),
            )
        )
    return tuple(found)


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """Read /proc/mounts, which tells neither device numbers nor parents.

    >>> parse_mounts("/dev/sda3 /tacc ext3 rw,relatime,barrier=1 0 0")[0].source
    '/dev/sda3'
    """
    found = []
    for number, line in enumerate(text.split("\n")):
        words = line.split(" ")
        if len(words) < 4 or not words[1].startswith("/"):
            continue
        found.append(
            Mount(
                id=number,
                parent=-1,
                device="",
                root="",
                point=unescape(words[1]),
                filesystem=unescape(words[2]),
                source=unescape(words[0]),
                options=_distinct(words[3], ""),
            )
        )
    return tuple(found)


def unescape(word: str) -> str:
    r"""Undo the kernel's octal escapes of blank, tab, newline, backslash and hash (mangle() in fs/namespace.c).

    >>> unescape(r"/mnt/my\040disk\134x")
    '/mnt/my disk\\x'
    """
    if "\\" not in word:
        return word
    first, *rest = word.split("\\")
    parts = [first]
    for part in rest:
        digits = part[:3]
        octal = len(digits) == 3 and all(digit in "01234567" for digit in digits) and int(digits, 8) < 128
        parts.append(chr(int(digits, 8)) + part[3:] if octal else "\\" + part)
    return "".join(parts)


def carrying(mounts: Sequence[Mount], path: str) -> Mount | None:
    """Return the mount that a look-up of ``path`` (absolute, without symbolic links) ends in.

    As the kernel walks: from the root, crossing into what is mounted on each component. So a later mount hides
    an earlier one on the same point and those below it.
    """
    on_the_way = [mount for mount in mounts if is_below(path, mount.point)]
    ids = {mount.id for mount in on_the_way}
    current: Mount | None = None
    for mount in on_the_way:
        if mount.parent not in ids or mount.parent == mount.id:  # a root, or (of /proc/mounts) any mount
            current = mount if current is None or len(mount.point) >= len(current.point) else current
    seen: set[int] = set()
    while current is not None and current.id not in seen:
        seen.add(current.id)
        above: Mount | None = None
        for mount in on_the_way:
            if mount.parent == current.id and mount.id not in seen:
                above = mount if above is None or len(mount.point) <= len(above.point) else above
        current = above or current
    return current


def is_below(path: str, point: str) -> bool:
    """Return whether ``path`` is ``point`` or below it.

    >>> is_below("/data2/x", "/data"), is_below("/data/x", "/data"), is_below("/x", "/")
    (False, True, True)
    """
    return point == "/" or path == point or path.startswith(point + "/")


def _distinct(*groups: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(option for group in groups for option in group.split(",") if option))


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 19


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DISK = _words(
    "ext2 ext3 ext4 xfs btrfs zfs f2fs jfs reiserfs bcachefs nilfs2 ntfs ntfs3 vfat msdos exfat hfs hfsplus udf iso9660 squashfs "
    "erofs cramfs romfs ufs ubifs jffs2 gfs2 ocfs2 fuseblk ecryptfs minix apfs"
)
_MEMORY = _words("tmpfs ramfs devtmpfs rootfs hugetlbfs")
_LAYERS = _words("overlay overlayfs aufs unionfs")
_PARALLEL = _words("lustre gpfs beegfs ceph wekafs orangefs pvfs2 pvfs panfs quobyte")
_REMOTE = _words("afs coda ncpfs nfsd davfs")
_HYPERVISOR = _words("9p virtiofs vboxsf vmhgfs prl_fs drvfs")

# FUSE names itself "fuse.<subtype>", or "fuse" with the program as the source (mountpoint-s3, blobfuse2).
_FUSE = {
    "object-store": _words(
        "s3fs gcsfuse mountpoint-s3 mount-s3 goofys juicefs rclone blobfuse blobfuse2 s3ql geesefs ossfs obsfs cosfs tigrisfs "
        "hf-mount alluxio-fuse alluxio hadoop-fuse-dfs fuse_dfs objectivefs riofs yas3fs s3backer s3"
    ),
    "parallel": _words(
        "ceph ceph-fuse glusterfs mfs moosefs mfsmount lizardfs seaweedfs weed beegfs 3fs hf3fs fuse.3fs orangefs"
    ),
    "remote": _words("sshfs curlftpfs davfs davfs2 afsd cvmfs cvmfs2 google-drive-ocamlfuse drive onedriver smbnetfs"),
    "disk": _words(
        "ntfs ntfs-3g exfat ext2 fuse-ext2 fuseext2 zfs zfs-fuse mergerfs bindfs encfs gocryptfs cryfs securefs squashfuse "
        "squashfuse_ll snapfuse dwarfs erofsfuse archivemount apfs-fuse unionfs unionfs-fuse ltfs"
    ),
    "layers": _words("fuse-overlayfs"),
    "memory": _words("lxcfs portal gvfsd-fuse xdg-document-portal"),
    "hypervisor": _words("vmhgfs-fuse grpcfuse osxfs"),
}


def carrier(filesystem: str, source: str) -> Fact[str]:
    """Return what a file system lives on, as told by its type and source (see ``Place.carrier``).

    >>> carrier("nfs4", "10.0.0.5:/export"), carrier("fuse.s3fs", "s3fs"), carrier("fuse", "mountpoint-s3")
    ('nfs', 'object-store', 'object-store')
    >>> carrier("fuse", "mfs#eu-se-1.runpod.net:9421"), carrier("fuse.drive", "drive")
    ('parallel', 'remote')
    >>> carrier("fuse.newfs", "x").why.value
    'not-supported'
    """
    for name, types in (
        ("disk", _DISK),
        ("memory", _MEMORY),
        ("layers", _LAYERS),
        ("parallel", _PARALLEL),
        ("remote", _REMOTE),
        ("hypervisor", _HYPERVISOR),
    ):
        if filesystem in types:
            return name
    if filesystem in ("nfs", "nfs4"):
        return "nfs"
    if filesystem in ("cifs", "smb3", "smbfs", "smb2"):
        return "smb"
    if filesystem == "fuse" or filesystem.startswith("fuse."):
        return _fuse(filesystem.partition(".")[2], source)
    if filesystem == "autofs":
        return Missing(Why.NOT_SUPPORTED, f"{source} (autofs)", "not mounted yet", "look into the directory once, then repeat")
    return Missing(Why.NOT_SUPPORTED, f"file system type {filesystem}", "a file system unknown to this version")


def _fuse(subtype: str, source: str) -> Fact[str]:
    program = (subtype or source.partition("#")[0].partition(":")[0].rpartition("/")[2]).lower()
    for name, programs in _FUSE.items():
        if program in programs:
            return name
    return Missing(Why.NOT_SUPPORTED, f"FUSE file system {subtype or source}", "a FUSE file system unknown to this version")


LOCAL = frozenset(("disk", "memory", "layers"))
