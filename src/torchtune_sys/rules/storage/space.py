"""Rules on free space, write permission, and file systems that do not respond."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.storage import MOUNTED, StoragePath
from torchtune_sys.model.rule import Evidence, Param, Params, Rule, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules.storage.common import GIB, SAVES, not_applicable, passed, places, subject

_ALL = ("data", "checkpoints", "working directory", "home", "cache", "temporary files")
_DEAD = ("Transport endpoint is not connected", "Socket not connected", "Stale file handle", "Host is down")
"""What the kernel says of a FUSE mount without its server (ENOTCONN; musl words it the other way), and of NFS and SMB ones whose server
no longer knows them (ESTALE, EHOSTDOWN)."""
_MAKE_ROOM = Advice(text="delete or move old checkpoints and caches (du -xh --max-depth=2), or save to a larger file system")
_INODES = Advice(text="delete or pack small files (find -xdev lists them), or save to a file system with more inodes")


@rule(
    id="filesystem-not-answering",
    title="A file system that the job uses does not respond, or returns I/O errors",
    severity=Severity.ERROR,
    cause="hung-mount",
    fix=(
        Advice(text="check that the file server is up and reachable; umount -l the dead mount and mount it again"),
        Advice(
            text="I/O errors of a local disk: find it in the kernel log, unmount, check (xfs_repair, e2fsck -f), mount again, "
            "or replace it"
        ),
    ),
)
def filesystem_not_answering(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Each access blocks and the process cannot be killed; or the kernel has shut the file system down, and each access fails.

    Why it matters
        A hard NFS mount waits for its server indefinitely. Ranks hang in state D without any message, and the others run into the
        collective's timeout.

    When to leave it
        Never: the job cannot run like this.

    References
        nfs(5), "hard/soft"
        Linux fs/xfs/xfs_fsops.c (xfs_do_force_shutdown), fs/ext4/super.c (ext4_handle_error)
    """
    for place in places(s, (*_ALL, MOUNTED)):
        if (failed := _failed(place)) is not None:
            where = f"{place.filesystem} {place.mount_source} on {place.mount_point}"
            yield Evidence(subject=subject(place), seen=f"{where}: {failed.detail}", wanted="an answer", source=failed.source)
        elif isinstance(place.size_bytes, Missing):
            if place.size_bytes.why is Why.TIMEOUT or place.size_bytes.detail in _DEAD:
                yield Evidence(
                    subject=subject(place),
                    seen=_silent(place, place.size_bytes),
                    wanted="an answer",
                    source=place.size_bytes.source,
                )
            elif place.role != MOUNTED:
                yield unsure(subject(place), place.size_bytes)


_GIVEN_UP = ("Input/output error", "Structure needs cleaning")
"""EIO and EUCLEAN."""


def _failed(place: StoragePath) -> Missing | None:
    """Return what was answered with an I/O error."""
    looks = (place.size_bytes, place.exists, place.readable, place.writable)
    return next((fact for fact in looks if isinstance(fact, Missing) and fact.detail in _GIVEN_UP), None)


def _silent(place: StoragePath, why: Missing) -> str:
    """``nfs4 server:/export does not answer``, or what the kernel said, with the mount point where it is not the path itself."""
    where = f"{place.filesystem} {place.mount_source}"
    if place.mount_point != place.path:
        where += f" on {place.mount_point}"
    return f"{where} does not answer" if why.detail.endswith("does not answer") else f"{where}: {why.detail or 'no answer'}"


_CIRCLE = "its symbolic links lead in a circle"


@rule(
    id="data-path-unreadable",
    title="The path given for the training data cannot be read",
    severity=Severity.ERROR,
    fix=(Advice(text="correct the path, mount the missing file system, or give this user read permission"),),
)
def data_path_unreadable(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The path does not exist, or this user may not read it.

    Why it matters
        Training fails when it first opens the data; in a job of many nodes that is after waiting for all of them.

    When to leave it
        Something creates or mounts it before training starts.

    References
        access(2)
    """
    for place in places(s, ("data",)):
        if isinstance(place.exists, Missing) and place.exists.why is Why.DENIED and place.exists.source == place.real_path:
            yield Evidence(
                subject=subject(place),
                seen="a directory above it is closed to this user",
                wanted="readable",
                source=place.exists.source,
            )
        elif _in_a_circle(place):
            yield Evidence(subject=subject(place), seen=_CIRCLE, wanted="a path that is there", source=place.path)
        elif isinstance(place.exists, Missing):
            yield unsure(subject(place), place.exists)
        elif not place.exists:
            yield Evidence(subject=subject(place), seen=f"no such path below {place.real_path}", wanted="a path that is there")
        elif isinstance(place.readable, Missing):
            yield unsure(subject(place), place.readable)
        elif not place.readable:
            yield Evidence(subject=subject(place), seen="this user may not read it", wanted="readable", source="access(2)")
        else:
            yield passed(place, "readable", "access(2)")


@rule(
    id="checkpoints-not-writable",
    title="Checkpoints cannot be written where they should go",
    severity=Severity.ERROR,
    fix=(Advice(text="mount it read-write, give this user write permission, or save somewhere else"),),
)
def checkpoints_not_writable(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The file system is read-only, or this user may not write there.

    Why it matters
        Training runs until its first checkpoint, possibly hours later, then fails with nothing saved.

    When to leave it
        Never, if checkpoints are to be written there.

    References
        access(2)
        mount(8), "ro" (ext4 also turns read-only by itself after an I/O error: errors=remount-ro)
    """
    yield from writable(s, "checkpoints")


def _in_a_circle(place: StoragePath) -> bool:
    """Return whether no path leads there, since symbolic links lead to each other."""
    return isinstance(place.exists, Missing) and place.exists.detail == os.strerror(errno.ELOOP)


def writable(s: Snapshot, role: str) -> Iterator[Evidence]:
    """Yield whether this user may write to the places of a role."""
    for place in places(s, (role,)):
        if _in_a_circle(place):
            yield Evidence(subject=subject(place), seen=_CIRCLE, wanted="writable", source=place.path)
        elif isinstance(place.writable, Missing):
            yield unsure(subject(place), place.writable)
        elif place.writable:
            yield passed(place, "writable", "access(2)")
        else:
            read_only = not isinstance(place.options, Missing) and "ro" in place.options
            where = f"{place.filesystem} on {place.mount_point}"
            seen = f"{where} is mounted read-only" if read_only else f"this user may not write to {place.real_path}"
            yield Evidence(subject=subject(place), seen=seen, wanted="writable", source="access(2)")


@rule(
    id="disk-full",
    title="There is no space left to save checkpoints",
    severity=Severity.ERROR,
    cause="disk-full-or-quota",
    fix=(_MAKE_ROOM,),
    params=(
        Param("minimum_gib", 1, "free GiB below which the file system counts as full"),
        Param("percent", 1, "share free below which it counts as full, if percent_applies_below_gib also holds"),
        Param("percent_applies_below_gib", 20, "free GiB above which the share does not matter"),
    ),
)
def disk_full(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The file system has almost no free space.

    Why it matters
        torch.save fails in the middle and leaves a broken file ("No space left on device", or a zip writer's error
        about an unexpected position), and logs and caches fail with it.

    When to leave it
        Nothing is saved there. A user's quota may be lower than what this rule sees: check quota -s.

    References
        statvfs(3), f_bavail (what an ordinary user may still take)
        https://github.com/pytorch/pytorch/issues/10577 (what torch.save says on a full disk)
    """
    yield from _room(s, p)


@rule(
    id="disk-space-low",
    title="There is little space left to save checkpoints",
    severity=Severity.WARNING,
    cause="disk-full-or-quota",
    superseded_by=("disk-full",),
    fix=(_MAKE_ROOM,),
    params=(
        Param("minimum_gib", 10, "free GiB below which room counts as little"),
        Param("percent", 5, "share free below which room counts as little, if percent_applies_below_gib also holds"),
        Param("percent_applies_below_gib", 100, "free GiB above which the share does not matter"),
    ),
)
def disk_space_low(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The file system still has space, but a few checkpoints may fill it.

    Why it matters
        A checkpoint with Adam's state takes about 14 bytes for each parameter: 100 GB for a model of 7 billion.

    When to leave it
        The model is small, or old checkpoints are deleted as new ones are written.

    References
        statvfs(3), f_bavail
    """
    yield from _room(s, p)


def _room(s: Snapshot, p: Params) -> Iterator[Evidence]:
    for place in places(s, SAVES):
        if isinstance(place.free_bytes, Missing):
            yield unsure(subject(place), place.free_bytes)
        elif isinstance(place.size_bytes, Missing):
            yield unsure(subject(place), place.size_bytes)
        elif place.size_bytes <= 0:
            nothing = Missing(Why.NOT_SUPPORTED, f"statvfs {place.real_path}", "the file system does not report its size")
            yield unsure(subject(place), nothing)
        elif not isinstance(place.options, Missing) and "ro" in place.options:
            yield not_applicable(place, "mounted read-only")
        else:
            yield _room_at(place, place.free_bytes, place.size_bytes, p)


def _tight(place: StoragePath, free: int, size: int, p: Params) -> bool:
    share = 100 * free / size
    # A small file system that is mostly empty is no sign of anything, unless checkpoints are to go there.
    emptied = share < 50 or place.role == "checkpoints"
    return emptied and free < _least(size, p)


def _least(size: int, p: Params) -> float:
    """Bytes that should be free. The share counts up to a number of GiB only: a hundredth of a petabyte is much room."""
    share = min(size * float(p["percent"]) / 100, float(p["percent_applies_below_gib"]) * GIB)
    return max(share, float(p["minimum_gib"]) * GIB)


def _room_at(place: StoragePath, free: int, size: int, p: Params) -> Evidence:
    return Evidence(
        subject=subject(place),
        seen=f"{free / GIB:.1f} of {size / GIB:.1f} GiB free ({100 * free / size:.1f} %) on {place.mount_point}",
        wanted=f">= {_least(size, p) / GIB:.3g} GiB",
        verdict=Verdict.FAIL if _tight(place, free, size, p) else Verdict.PASS,
        source=f"statvfs {place.real_path}",
        about=(f"file system {place.mount_point}",),
    )


@rule(
    id="inodes-exhausted",
    title="No inodes are left where checkpoints or temporary files go",
    severity=Severity.ERROR,
    cause="disk-full-or-quota",
    fix=(_INODES,),
    params=(Param("minimum", 100, "number of free inodes below which they count as used up"),),
)
def inodes_exhausted(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """ext4, tmpfs and some network file systems can hold only a fixed number of files, and the limit is reached.

    Why it matters
        Making a file fails with "No space left on device" although df shows plenty of space.

    When to leave it
        Nothing is saved there.

    References
        statvfs(3), f_favail
        mke2fs(8), -N and -i
    """
    yield from _inodes(s, (*SAVES, "temporary files"), int(p["minimum"]), 0.0)


@rule(
    id="inodes-low",
    title="Few inodes are left where checkpoints go",
    severity=Severity.WARNING,
    cause="disk-full-or-quota",
    superseded_by=("inodes-exhausted",),
    fix=(_INODES,),
    params=(
        Param("minimum", 10_000, "number of free inodes below which they count as few"),
        Param("percent", 1, "free share below which they count as few, up to a million inodes"),
    ),
)
def inodes_low(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The file system can hold only a few more files.

    Why it matters
        Unpacking a data set of small files, or a compiler cache, takes hundreds of thousands of inodes.

    When to leave it
        Only checkpoints of a few files each are written there.

    References
        statvfs(3), f_favail
    """
    yield from _inodes(s, SAVES, int(p["minimum"]), float(p["percent"]))


def _inodes(s: Snapshot, roles: tuple[str, ...], minimum: int, percent: float) -> Iterator[Evidence]:
    for place in places(s, roles):
        if isinstance(place.inodes, Missing):
            yield unsure(subject(place), place.inodes)
        elif isinstance(place.inodes_free, Missing):
            yield unsure(subject(place), place.inodes_free)
        elif place.inodes <= 0:
            yield passed(place, "no fixed number of inodes", f"statvfs {place.real_path}")
        elif not isinstance(place.options, Missing) and "ro" in place.options:
            yield not_applicable(place, "mounted read-only")
        else:
            scarce = 100 * place.inodes_free < percent * place.inodes and place.inodes_free < 1_000_000
            # A small file system (tmpfs in a container) may have fewer than the minimum from the start.
            bad = scarce or (place.inodes_free < minimum and 2 * place.inodes_free < place.inodes)
            yield Evidence(
                subject=subject(place),
                seen=f"{place.inodes_free} of {place.inodes} inodes free on {place.mount_point}",
                wanted=f">= {minimum}",
                verdict=Verdict.FAIL if bad else Verdict.PASS,
                source=f"statvfs {place.real_path}",
            )


RULES: tuple[Rule, ...] = (
    filesystem_not_answering,
    data_path_unreadable,
    checkpoints_not_writable,
    disk_full,
    disk_space_low,
    inodes_exhausted,
    inodes_low,
)
