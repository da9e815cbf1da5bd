"""How large /dev/shm is, where df, findmnt, the mount table or ds_report were pasted, or the one line that grep left of them."""

from __future__ import annotations

import re

from torchtune_sys.evidence.block_devices import PastedMount, read_paste, size_of
from torchtune_sys.evidence.partial import missing, partly
from torchtune_sys.model.facts.memory import MemoryFacts
from torchtune_sys.model.patterns import pattern

_POINT = "/dev/shm"
_ALONE = pattern(
    r"^[ \t>]{0,8}(?P<source>tmpfs|shm|none)\s+(?:(?P<kind>tmpfs)\s+)?(?P<size>[\d.,]{1,15}[KMGT]?)i?\s+[\d.,]{1,15}[KMGT]?i?\s+"
    r"(?P<free>[\d.,]{1,15}[KMGT]?)i?\s+(?:\d{1,3}%|-)\s+/dev/shm[ \t]*$",
    re.MULTILINE,
)
_OPTIONS = pattern(
    r"^[ \t>]{0,8}\S{1,40} (?:on )?/dev/shm (?:type )?tmpfs \(?[\w,=.:-]{0,300}?\bsize=(\d{1,12})([kmg]?)\b", re.MULTILINE
)

_DEEPSPEED = pattern(r"^[ \t>]{0,8}shared memory \(/dev/shm\) size \.{2,40} (\d{1,9}(?:\.\d{1,2})?) ?([KMGT])i?B\b", re.MULTILINE)
"""ds_report, which divides by 1024 (deepspeed/env_report.py)."""


def memory_facts(text: str) -> MemoryFacts | None:
    """Return the facts on /dev/shm; None where the text does not tell the size.

    >>> memory_facts("$ df -h | grep shm\\nshm              64M     0   64M   0% /dev/shm\\n").shm_size_bytes >> 20
    64
    """
    if _POINT not in text:
        return None
    mounts = _listed(text)
    counted = next((mount.inodes_free for mount in mounts if mount.inodes_free is not None), None)
    found = next((mount for mount in mounts if mount.size is not None), None)
    if found is None and not _OF_INODES.search(text):
        found = _alone(text)
    found = found or _mounted(text) or _reported(text)
    size = None if found is None else found.size
    if not size and counted is None:
        return None
    free = None if found is None else found.free
    kind = "" if found is None else found.filesystem or ("tmpfs" if found.source in ("tmpfs", "shm") else "")
    return partly(
        MemoryFacts,
        shm_size_bytes=size or missing(),
        shm_free_bytes=missing() if free is None else free,
        shm_filesystem=kind or missing(),
        shm_inodes_free=missing() if counted is None else counted,
    )


_OF_INODES = pattern(r"\bdf\b[^\n|]{0,40} -\w{0,4}i|\bIUse%")


def _listed(text: str) -> list[PastedMount]:
    """Return the mounts, that which is listed last first: it was mounted over the others, or looked at later."""
    paste = read_paste(text)
    return [mount for mount in reversed(() if paste is None else paste.mounts) if mount.point == _POINT]


def _alone(text: str) -> PastedMount | None:
    """df counts in KiB where it prints no unit."""
    found = _ALONE.search(text)
    if found is None:
        return None
    size, free = (size_of(found[name], 1 if found[name][-1] in "KMGT" else 1024) for name in ("size", "free"))
    return PastedMount(point=_POINT, source=found["source"], filesystem=found["kind"] or "", size=size, free=free)


def _mounted(text: str) -> PastedMount | None:
    found = _OPTIONS.search(text)
    if found is None:
        return None
    return PastedMount(point=_POINT, filesystem="tmpfs", size=int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]])


def _reported(text: str) -> PastedMount | None:
    found = _DEEPSPEED.search(text)
    return None if found is None else PastedMount(point=_POINT, size=size_of(f"{found[1]}{found[2]}"))
