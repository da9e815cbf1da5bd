"""Rules on whether a path can be used at all: its file system responds, and this user may read or write there."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.storage import MOUNTED, StoragePath
from torchtune_sys.model.rule import Evidence, Params, Severity, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why, known
from torchtune_sys.rules.storage.common import passed, places, read_only, subject

_ALL = ("data", "checkpoints", "working directory", "home", "cache", "temporary files")
_DEAD = ("Transport endpoint is not connected", "Socket not connected", "Stale file handle", "Host is down")
"""What the kernel says of a FUSE mount without its server (ENOTCONN; musl words it the other way), and of NFS and SMB ones whose server
no longer knows them (ESTALE, EHOSTDOWN)."""


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


_NOBODY_LOOKED = (Why.ABSENT, Why.NOT_RECORDED)


def _unseen(fact: object) -> bool:
    return isinstance(fact, Missing) and fact.why not in _NOBODY_LOOKED


_CIRCLE = "its symbolic links lead in a circle"


@rule(
    id="data-path-unreadable",
    title="The path given for the training data cannot be read",
    severity=Severity.ERROR,
    fix=(Advice(text="correct the path, mount the missing file system, or give this user read permission"),),
)
def data_path_unreadable(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The path does not exist, or this user may not read it, or none of the first files in it; or they are pointers of Git LFS without their content.

    Why it matters
        Training fails when it first opens the data; in a job of many nodes that is after waiting for all of them.

    When to leave it
        Something creates or mounts it before training starts.

    References
        access(2); https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
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
        elif unseen := [fact for fact in (place.closed_files, place.pointer_files) if _unseen(fact)]:
            yield from (unsure(subject(place), fact) for fact in unseen[:1] if isinstance(fact, Missing))
        elif (files := known(place.closed_files, (0, 0)))[0] and files[0] == files[1]:
            yield Evidence(
                subject=subject(place),
                seen=f"this user may read none of the first {files[1]} files in it",
                wanted="readable",
                source="access(2)",
            )
        elif (pointers := known(place.pointer_files, 0)) and 2 * pointers >= files[1]:
            yield Evidence(
                subject=subject(place),
                seen=f"{pointers} of the first {files[1]} files in it are pointers of Git LFS, and none is large",
                wanted="files with their content",
                source=place.path,
                fix=(Advice(text="git lfs install; git lfs pull, in the clone that the files are of"),),
            )
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
            where = f"{place.filesystem} on {place.mount_point}"
            seen = f"{where} is mounted read-only" if read_only(place) else f"this user may not write to {place.real_path}"
            yield Evidence(subject=subject(place), seen=seen, wanted="writable", source="access(2)")
