"""Count a limited number of holders in a directory that several hosts share. Taking a slot is atomic, also over NFS (link(2))."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import time

from torchtune_sys.host.places import place
from torchtune_sys.host.trust import others_may_write
from torchtune_sys.model.numbers import natural

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,253}")
"""A host's name. What else stands in a slot was laid there by somebody else, and is not repeated."""
_UNKNOWN = "somebody else"


def take(folder: str, name: str, slots: int, window_s: float) -> tuple[bool, tuple[str, ...]]:
    """Take one of ``slots`` for ``name``, for ``window_s`` seconds: whether there is one, and who holds the others.

    Who holds one already keeps it. A slot whose time is over is free. The clock is that of the file system, so hosts need not agree
    on theirs. To root a slot of another user's is nobody's: who may write to the folder could take them all; what is another user's in the folder's own
    place is set aside. Raises OSError where the directory cannot be used, CannotWrite where another user's link would lead there.
    """
    if os.geteuid() == 0:
        _set_aside(folder)
    with place(f"{folder}/slot", make=True) as (handle, _):
        mine = f".{secrets.token_hex(8)}"
        try:
            with open(mine, "x", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o644, dir_fd=handle)) as file:
                file.write(name)
                file.flush()
                os.fsync(file.fileno())
            info = os.stat(mine, dir_fd=handle, follow_symlinks=False)
            # A file server that maps root to nobody does so for all hosts.
            owners = frozenset((0, info.st_uid)) if os.geteuid() == 0 else None
            holders: list[str] = []
            for number in range(slots):
                valid = (info.st_mtime - window_s, info.st_mtime + window_s)
                holder = _take(handle, f"slot-{number}", mine, name, valid, owners)
                if holder == name:
                    return True, tuple(holders)
                holders.append(holder)
            return False, tuple(holders)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(mine, dir_fd=handle)


def _set_aside(folder: str) -> None:
    """Give another name to what is another user's at this path, in a directory of root's: a link of theirs leads elsewhere, and in a directory of theirs they take away what
    root holds. A directory for another user, where root alone could make one, as for the scheduler's own, was meant so."""
    with place(f"{os.path.dirname(folder)}/slot", make=True) as (above, _):
        name, about = os.path.basename(folder), os.fstat(above)
        if about.st_uid != 0:
            return
        root_alone = not others_may_write(f"/proc/self/fd/{above}/.", about)
        for _turn in range(_TURNS):
            try:
                info = os.stat(name, dir_fd=above, follow_symlinks=False)
            except FileNotFoundError:
                return
            if info.st_uid == 0 or (root_alone and stat.S_ISDIR(info.st_mode)):
                return
            made = f".{secrets.token_hex(8)}"
            try:
                os.mkdir(made, 0o755, dir_fd=above)
            except PermissionError:  # a file server that maps root to nobody
                return
            try:
                own = os.stat(made, dir_fd=above, follow_symlinks=False).st_uid
                if os.stat(name, dir_fd=above, follow_symlinks=False).st_uid == own:
                    return
                os.rename(name, f".of-others-{made[1:]}", src_dir_fd=above, dst_dir_fd=above)
                os.rename(made, name, src_dir_fd=above, dst_dir_fd=above)
            except OSError:  # another host was first, or they laid something there again
                continue
            finally:
                with contextlib.suppress(OSError):
                    os.rmdir(made, dir_fd=above)


_TURNS = 3


def _take(folder: int, slot: str, mine: str, name: str, valid: tuple[float, float], owners: frozenset[int] | None) -> str:
    """Who holds the slot after we tried. One that was taken before or after the ``valid`` times is over: that far in the future only a clock
    that was wrong then can say.

    Who takes it over writes a file of the next number beside the old one, and the highest number of ``owners`` (None: of anybody) holds: each is made
    once, so of those that find it over one gets it, however many there are. The old file goes last, and only the highest is never taken away.
    """
    newest, following = _newest(folder, slot, owners)
    for _ in range(5):
        with contextlib.suppress(FileNotFoundError):  # gone since then: a higher one is there, or somebody removed it by hand
            held = None
            if newest >= 0 and _is_of(folder, _numbered(slot, newest), owners):
                held = _holder(folder, _numbered(slot, newest), name, valid)
            if held is not None:
                return held
            try:
                os.link(mine, _numbered(slot, following), src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                newest, following = following, following + 1
                continue  # which the directory, read over NFS, may not show yet
            taken = following
            newest = max(taken, _newest(folder, slot, owners)[0])
            following = newest + 1
            for number in range(max(newest - _LEFT, 0), newest):
                with contextlib.suppress(OSError):
                    os.unlink(_numbered(slot, number), dir_fd=folder)
            if taken == newest:
                return name
            continue
        time.sleep(0.01)
        newest, following = _newest(folder, slot, owners)
    return _UNKNOWN


_LEFT = 16
"""Numbers below the newest one that are looked for: as many as processes that were killed before they removed what they took over may have left."""


def _numbered(slot: str, number: int) -> str:
    return f"{slot}.{number}" if number else slot


def _newest(folder: int, slot: str, owners: frozenset[int] | None) -> tuple[int, int]:
    """Return the highest number of a slot that ``owners`` took, -1 where none ever did, and the lowest above it that nobody has."""
    handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        names = [found for found in os.listdir(handle) if found.startswith(slot)]
    finally:
        os.close(handle)
    numbers = {name: 0 if name == slot else natural(name.removeprefix(f"{slot}.")) for name in names}
    there = {number for name, number in numbers.items() if number is not None and name == _numbered(slot, number)}
    newest = next((number for number in sorted(there, reverse=True) if _is_of(folder, _numbered(slot, number), owners)), -1)
    following = newest + 1
    while following in there:
        following += 1
    return newest, following


def _is_of(folder: int, slot: str, owners: frozenset[int] | None) -> bool:
    """Whether one of ``owners`` took it; one that is gone is looked for by who asks."""
    if owners is None:
        return True
    try:
        return os.stat(slot, dir_fd=folder, follow_symlinks=False).st_uid in owners
    except OSError:
        return True


def _holder(folder: int, slot: str, name: str, valid: tuple[float, float]) -> str | None:
    """Return the name in a slot whose time is not over; None for one that is. Where others write, too, they may have laid a link or a FIFO there."""
    try:
        handle = os.open(slot, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError:
        return _UNKNOWN
    try:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            return _UNKNOWN
        if not valid[0] <= info.st_mtime <= valid[1]:
            return None
        found = os.read(handle, 256).decode("utf-8", "replace")
        return found if found == name or _NAME.fullmatch(found) else _UNKNOWN
    finally:
        os.close(handle)
