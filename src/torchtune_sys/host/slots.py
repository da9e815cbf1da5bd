"""Count a limited number of holders in a directory that several hosts share. Taking a slot is atomic, also over NFS (link(2))."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import time

from torchtune_sys.host.places import place

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,253}")
"""A host's name. What else stands in a slot was laid there by somebody else, and is not repeated."""
_UNKNOWN = "somebody else"


def take(folder: str, name: str, slots: int, window_s: float) -> tuple[bool, tuple[str, ...]]:
    """Take one of ``slots`` for ``name``, for ``window_s`` seconds: whether there is one, and who holds the others.

    Who holds one already keeps it. A slot whose time is over is free. The clock is that of the file system, so hosts need not agree
    on theirs. Raises OSError where the directory cannot be used, CannotWrite where another user's link would lead there.
    """
    with place(f"{folder}/slot", make=True) as (handle, _):
        mine = f".{secrets.token_hex(8)}"
        try:
            with open(mine, "x", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o644, dir_fd=handle)) as file:
                file.write(name)
                file.flush()
                os.fsync(file.fileno())
            now = os.stat(mine, dir_fd=handle, follow_symlinks=False).st_mtime
            holders: list[str] = []
            for number in range(slots):
                holder = _take(handle, f"slot-{number}", mine, name, (now - window_s, now + window_s))
                if holder == name:
                    return True, tuple(holders)
                holders.append(holder)
            return False, tuple(holders)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(mine, dir_fd=handle)


def _take(folder: int, slot: str, mine: str, name: str, valid: tuple[float, float]) -> str:
    """Who holds the slot after we tried. One that was taken before or after the ``valid`` times is over: that far in the future only a clock
    that was wrong then can say."""
    for _ in range(5):
        with contextlib.suppress(FileExistsError):
            os.link(mine, slot, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            return name
        try:
            held = _holder(folder, slot, name, valid)
            if held is not None:
                return held
            over = f"{mine}.over"  # only one of those who find it over gets it away
            os.rename(slot, over, src_dir_fd=folder, dst_dir_fd=folder)
            try:
                if _holder(folder, over, name, valid) is not None:  # another found the same, and has taken it meanwhile
                    os.link(over, slot, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                pass
            finally:
                os.unlink(over, dir_fd=folder)
        except FileNotFoundError:
            time.sleep(0.01)
    return _UNKNOWN


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
