"""A few slots in a directory that several hosts share: who holds one, and since when. Taking one is atomic, also over NFS (link(2))."""

from __future__ import annotations

import contextlib
import os
import secrets
import time


def take(folder: str, name: str, slots: int, window_s: float) -> tuple[bool, tuple[str, ...]]:
    """Take one of ``slots`` for ``name``, for ``window_s`` seconds: whether there is one, and who holds the others.

    Who holds one already keeps it. A slot whose time is over is free. The clock is that of the file system, so hosts need not agree
    on theirs. Raises OSError where the directory cannot be used.
    """
    os.makedirs(folder, mode=0o755, exist_ok=True)
    mine = os.path.join(folder, f".{secrets.token_hex(8)}")
    try:
        with open(mine, "x", encoding="utf-8") as file:
            file.write(name)
            file.flush()
            os.fsync(file.fileno())
        now = os.stat(mine).st_mtime
        holders: list[str] = []
        for number in range(slots):
            slot = os.path.join(folder, f"slot-{number}")
            holder = _take(slot, mine, name, (now - window_s, now + window_s))
            if holder == name:
                return True, tuple(holders)
            holders.append(holder)
        return False, tuple(holders)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(mine)


def _take(slot: str, mine: str, name: str, valid: tuple[float, float]) -> str:
    """Who holds the slot after we tried. One that was taken before or after the ``valid`` times is over: that far in the future only a clock
    that was wrong then can say."""
    for _ in range(5):
        with contextlib.suppress(FileExistsError):
            os.link(mine, slot)
            return name
        try:
            if valid[0] <= os.stat(slot).st_mtime <= valid[1]:
                with open(slot, encoding="utf-8", errors="replace") as file:
                    return file.read(256)
            os.rename(slot, f"{mine}.over")  # only one of those who find it over gets it away
            os.unlink(f"{mine}.over")
        except FileNotFoundError:
            time.sleep(0.01)
    return "somebody else"
