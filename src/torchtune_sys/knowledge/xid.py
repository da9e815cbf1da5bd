"""The meaning of each Xid and the recommended action, from NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors)."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from torchtune_sys.knowledge import tables


class Xid(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    name: str
    meaning: str
    judged: str
    """``lost``, ``memory``, ``gsp``, ``nvlink``, ``gpu``, ``support``, ``program``, ``consequence``, ``action``; ``""``: not judged."""
    immediate: str
    """The bucket of NVIDIA's immediate action; ``""`` where the catalogue has none yet."""
    todo: str


@lru_cache(512)
def xid(number: int) -> Xid:
    """Return the row of a number; one that is not in the table is for support.

    >>> xid(79).judged, xid(79).immediate, xid(13).judged, xid(63).immediate, xid(4711).judged
    ('lost', 'RESTART_BM', 'program', 'IGNORE', 'support')
    """
    for row in tables.rows("xid"):
        if row["xid"] == str(number):
            return Xid(
                number=number,
                name=row["name"],
                meaning=row["meaning"],
                judged=row["judged"],
                immediate=row["immediate"],
                todo=row["todo"],
            )
    return Xid(number=number, name="", meaning="", judged="support", immediate="", todo="look the number up, or call support")


_RANK = ("", "action", "consequence", "init", "program", "support", "gpu", "gsp", "nvlink", "memory", "lost")


def rank(judged: str) -> int:
    """Return how deep a kind of Xid lies: after one, those of the same or a lower rank on that GPU are taken for its consequences."""
    return _RANK.index(judged)
