"""Rules on free space and free inodes."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.storage import LISTED, StoragePath, without_inodes
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules.storage.common import GIB, SAVES, not_applicable, passed, places, read_only, subject
from torchtune_sys.rules.storage.temporary import taken_instead

_MAKE_ROOM = Advice(text="delete or move old checkpoints and caches (du -xh --max-depth=2), or save to a larger file system")
_INODES = Advice(text="delete or pack small files (find -xdev lists them), or save to a file system with more inodes")


@rule(
    id="disk-full",
    title="There is no space left to save checkpoints",
    severity=Severity.ERROR,
    cause="disk-full-or-quota",
    fix=(_MAKE_ROOM,),
    params=(
        Param("minimum_gib", 1, "free GiB below which the file system counts as full"),
        Param("percent", 1, "share free below which it counts as full, if percent_applies_below_gib also holds"),
        Param("percent_applies_below_gib", 5, "free GiB above which the share does not matter: most checkpoints still fit"),
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
    yield from _room(s, p, SAVES)


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
    yield from _room(s, p, SAVES)


@rule(
    id="home-full",
    title="There is no space left in the home directory or in a cache",
    severity=Severity.WARNING,
    cause="disk-full-or-quota",
    superseded_by=("disk-full",),
    fix=(
        Advice(
            text="make room (du -xh --max-depth=2 ~), or name another place for caches: XDG_CACHE_HOME, HF_HOME, TRITON_CACHE_DIR"
        ),
    ),
    params=(
        Param("minimum_gib", 0.1, "free GiB below which the file system counts as full"),
        Param("percent", 0, "share free below which it counts as full, if percent_applies_below_gib also holds"),
        Param("percent_applies_below_gib", 0, "free GiB above which the share does not matter"),
    ),
)
def home_full(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The file system of $HOME, or of a cache that a variable names, has almost no free space.

    Why it matters
        Models and data sets that are downloaded (~/.cache/huggingface, ~/.cache/torch), kernels that Triton compiles (~/.triton) and the driver's
        own cache (~/.nv) go there: they end with "No space left on device", or everything is compiled again at each start.

    When to leave it
        Caches are elsewhere, and nothing is downloaded. A user's quota may be lower than what this rule sees: check quota -s.

    References
        statvfs(3), f_bavail; https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables (HF_HOME)
        Triton python/triton/knobs.py (TRITON_CACHE_DIR)
    """
    yield from _room(s, p, ("home", "cache"))


def _room(s: Snapshot, p: Params, roles: tuple[str, ...]) -> Iterator[Evidence]:
    for place in places(s, roles):
        if place.exists is False and place.role not in SAVES:
            yield not_applicable(place, "is not there")
        elif isinstance(place.free_bytes, Missing):
            yield unsure(subject(place), place.free_bytes)
        elif isinstance(place.size_bytes, Missing):
            yield unsure(subject(place), place.size_bytes)
        elif place.size_bytes <= 0:
            nothing = Missing(Why.NOT_SUPPORTED, f"statvfs {place.real_path}", "the file system does not report its size")
            yield unsure(subject(place), nothing)
        elif read_only(place):
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
    title="A file system has no inodes left",
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
        Nothing is saved there. (A temporary directory without inodes is no error where Python takes another: temporary-directory-passed-over.)

    References
        statvfs(3), f_favail
        mke2fs(8), -N and -i
    """
    for place, item in _inodes(s, (*SAVES, "temporary files", LISTED), int(p["minimum"]), 0.0):
        passed_over = item.verdict is Verdict.FAIL and place.role == "temporary files" and without_inodes(place)
        if passed_over and (other := taken_instead(s)):
            item = msgspec.structs.replace(item, seen=f"{item.seen}; Python takes {other}", verdict=Verdict.PASS)
        yield item


@rule(
    id="inodes-low",
    title="Few inodes are left where checkpoints are written",
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
    yield from (item for _, item in _inodes(s, SAVES, int(p["minimum"]), float(p["percent"])))


def _inodes(s: Snapshot, roles: tuple[str, ...], minimum: int, percent: float) -> Iterator[tuple[StoragePath, Evidence]]:
    for place in places(s, roles):
        yield place, _inodes_at(place, minimum, percent)


def _inodes_at(place: StoragePath, minimum: int, percent: float) -> Evidence:
    if isinstance(place.inodes, Missing):
        return unsure(subject(place), place.inodes)
    if isinstance(place.inodes_free, Missing):
        return unsure(subject(place), place.inodes_free)
    if place.inodes <= 0:
        return passed(place, "no fixed number of inodes", f"statvfs {place.real_path}")
    if read_only(place):
        return not_applicable(place, "mounted read-only")
    scarce = 100 * place.inodes_free < percent * place.inodes and place.inodes_free < 1_000_000
    # A small file system (tmpfs in a container) may have fewer than the minimum from the start.
    bad = scarce or (place.inodes_free < minimum and 2 * place.inodes_free < place.inodes)
    return Evidence(
        subject=subject(place),
        seen=f"{place.inodes_free} of {place.inodes} inodes free on {place.mount_point}",
        wanted=f">= {minimum}",
        verdict=Verdict.FAIL if bad else Verdict.PASS,
        source=f"statvfs {place.real_path}",
    )
