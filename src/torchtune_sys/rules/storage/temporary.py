"""The directory for temporary files: whether it may be used, its room, and the length of its name."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from torchtune_sys.model.actions import Advice, EnvironmentVariable
from torchtune_sys.model.facts.storage import INSTEAD, without_inodes
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot, kept
from torchtune_sys.model.values import Missing, NotApplicable, known, need
from torchtune_sys.model.version import version
from torchtune_sys.rules.storage.access import writable
from torchtune_sys.rules.storage.common import GIB, places, subject


@rule(
    id="temporary-directory-not-writable",
    title="No temporary files can be written",
    severity=Severity.ERROR,
    cause="no-temporary-directory",
    fix=(
        EnvironmentVariable(name="TMPDIR", value="/path/that/is/writable"),
        Advice(text="mount it read-write, or give this user write permission (chmod 1777 /tmp)"),
    ),
)
def temporary_directory_not_writable(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """$TMPDIR (or /tmp if it is not set) is read-only, or this user may not write there, nor to what Python takes instead (/tmp, /var/tmp).

    Why it matters
        DataLoader workers, torch.compile, Triton and torchrun's logs need temporary files or sockets and fail with "No usable
        temporary directory found".

    When to leave it
        Never: at best, programs fall back to the working directory.

    References
        https://docs.python.org/3/library/tempfile.html#tempfile.gettempdir
    """
    for item in writable(s, "temporary files"):
        if item.verdict is Verdict.FAIL and (other := taken_instead(s)):
            item = msgspec.structs.replace(item, seen=f"{item.seen}; Python takes {other}", verdict=Verdict.PASS)
        yield item


@kept
def taken_instead(s: Snapshot) -> str:
    """Return the first directory that tempfile takes in place of one that cannot be written; ``""`` where none is writable. Raises Unknown: one may be."""
    others = [place for place in need(s.storage).places if place.role == INSTEAD]
    others = [place for place in others if not without_inodes(place)]
    usable = (place.path for place in others if known(place.exists, False) and known(place.writable, False))
    if found := next(usable, ""):
        return found
    for place in others:
        if need(place.exists):
            need(place.writable)
    return ""


@rule(
    id="temporary-directory-passed-over",
    title="The temporary directory cannot be written, so Python uses another",
    severity=Severity.WARNING,
    fix=(
        EnvironmentVariable(name="TMPDIR", value="/path/that/is/writable"),
        Advice(text="mount it read-write, or give this user write permission (chmod 1777 /tmp)"),
    ),
)
def temporary_directory_passed_over(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """$TMPDIR (or /tmp if it is not set) is read-only, closed to this user or without inodes, and $TEMP, $TMP, /tmp or /var/tmp is not.

    Why it matters
        Python's temporary files, the caches of torch.compile and the sockets of DataLoader workers go to another file system than was meant,
        with other room and other mount options. mktemp, shell scripts and compilers that use $TMPDIR alone fail.

    When to leave it
        The other directory has room, and nothing but Python runs in the job.

    References
        https://docs.python.org/3/library/tempfile.html#tempfile.gettempdir
    """
    for place, item in zip(places(s, ("temporary files",)), writable(s, "temporary files"), strict=True):
        if item.verdict is Verdict.PASS and without_inodes(place):
            item = msgspec.structs.replace(
                item, seen=f"no inode is free on {place.mount_point}", wanted="writable", verdict=Verdict.FAIL
            )
        if item.verdict is not Verdict.FAIL:
            yield item
        elif other := taken_instead(s):  # else temporary-directory-not-writable says it
            yield msgspec.structs.replace(item, seen=f"{item.seen}; Python takes {other}")


@rule(
    id="temporary-space-low",
    title="The temporary directory has too little space for installing torch",
    severity=Severity.ADVICE,
    cause="disk-full-or-quota",
    superseded_by=("disk-full",),
    fix=(EnvironmentVariable(name="TMPDIR", value="/path/with/room"),),
    params=(Param("minimum_gib", 4, "free GiB: a CUDA torch with its libraries unpacks to about this much"),),
)
def temporary_space_low(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """pip unpacks and builds in $TMPDIR; compilers and torch.compile also write there.

    Why it matters
        The installation fails with "No space left on device" although the environment's own disk has space. If /tmp is a tmpfs,
        its contents also take main memory.

    When to leave it
        Everything is already installed, and caches are elsewhere.

    References
        https://pip.pypa.io/en/stable/cli/pip/ (TMPDIR)
        https://github.com/pypa/pip/issues/7745 (torch does not fit into a small /tmp)
    """
    for place in places(s, ("temporary files",)):
        if isinstance(place.free_bytes, Missing):
            yield unsure(subject(place), place.free_bytes)
            continue
        yield Evidence(
            subject=subject(place),
            seen=f"{place.free_bytes / GIB:.1f} GiB free ({place.filesystem} on {place.mount_point})",
            wanted=f">= {p['minimum_gib']} GiB",
            verdict=Verdict.FAIL if place.free_bytes < float(p["minimum_gib"]) * GIB else Verdict.PASS,
            source=f"statvfs {place.real_path}",
            about=(f"file system {place.mount_point}",),
        )


_ON_A_DISK = (
    EnvironmentVariable(name="TMPDIR", value="/path/on/a/disk"),
    Advice(text="or mount a tmpfs on /tmp (systemd's tmp.mount)"),
)


@rule(
    id="temporary-directory-on-nfs",
    title="The temporary directory lies on NFS",
    severity=Severity.ADVICE,
    fix=(
        EnvironmentVariable(name="TMPDIR", value="/tmp"),
        Advice(text="or any directory of a disk of this host, or of its memory"),
    ),
)
def temporary_directory_on_nfs(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """$TMPDIR (or /tmp if it is not set) is on a file server by NFS.

    Why it matters
        A file that is deleted while a process holds it stays there as .nfs…, so DataLoader workers and multiprocessing end with "OSError: [Errno 16] Device
        or resource busy" when they remove their directories; and each small file of compilers and of torch.compile is a journey to the server.

    When to leave it
        The host has no disk and too little memory for these files.

    References
        https://github.com/pytorch/pytorch/issues/143471; Linux fs/nfs/unlink.c (nfs_sillyrename)
    """
    for place in places(s, ("temporary files",)):
        if isinstance(place.carrier, Missing):
            yield unsure(subject(place), place.carrier)
            continue
        remote = place.carrier == "nfs"
        yield Evidence(
            subject=subject(place),
            seen=f"{place.filesystem} {place.mount_source} on {place.mount_point}" if remote else str(place.filesystem),
            wanted="a disk of this host" if remote else "",
            verdict=Verdict.FAIL if remote else Verdict.PASS,
            source="/proc/self/mountinfo",
            fix=_ON_A_DISK if remote and f"{place.path}/".startswith("/tmp/") else (),
        )


_ROOM = 107 - len("/pymp-xxxxxxxx/listener-xxxxxxxx")
"""Bytes that sun_path leaves to the directory (unix(7): 108 with the final NUL), below which multiprocessing makes its sockets."""


@rule(
    id="temporary-path-too-long",
    cause="temporary-path-too-long",
    title="The path of the temporary directory is too long for DataLoader workers",
    severity=Severity.ERROR,
    fix=(
        EnvironmentVariable(name="TMPDIR", value="/tmp"),
        Advice(text="or a short symbolic link to the directory: ln -s LONG /tmp/t-$USER, TMPDIR=/tmp/t-$USER"),
    ),
)
def temporary_path_too_long(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Python's multiprocessing makes Unix sockets below $TMPDIR, and the name of a Unix socket has 107 bytes at most.

    Why it matters
        The first tensor that a DataLoader worker passes on fails with "OSError: AF_UNIX path too long", and the training process waits
        for it. Schedulers and workflow systems often set long directories for each job.

    When to leave it
        Nothing uses workers or multiprocessing. Python 3.13.4 and 3.14 take /tmp in that case, and are not reported.

    References
        unix(7), sun_path; https://github.com/python/cpython/issues/132124
        https://github.com/riga/law/issues/184 (torch.multiprocessing in a Slurm job)
    """
    if s.intent.workers == 0:
        raise NotApplicable("no DataLoader workers (--workers 0)")
    for place in places(s, ("temporary files",)):
        length = len(os.fsencode(place.path))
        if length > _ROOM and not known(place.exists, True):
            continue  # tempfile takes another one
        falls_back = length > _ROOM and _falls_back(version(need(need(s.python).version)))
        yield Evidence(
            subject=subject(place),
            seen=f"{length} bytes" + (", for which this Python takes /tmp" if falls_back else ""),
            wanted=f"at most {_ROOM} bytes",
            verdict=Verdict.FAIL if length > _ROOM and not falls_back else Verdict.PASS,
            source="TMPDIR",
        )


def _falls_back(python: tuple[int, ...]) -> bool:
    return python >= (3, 14) or (python[:2] == (3, 13) and python >= (3, 13, 4))
