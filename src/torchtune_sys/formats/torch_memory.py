"""Parse the out-of-memory errors of torch's allocator, in the wording of its releases."""

from __future__ import annotations

import re

import msgspec

_UNITS = {"bytes": 1, "KiB": 2**10, "KB": 2**10, "MiB": 2**20, "MB": 2**20, "GiB": 2**30, "GB": 2**30}
_SIZE = r"(?P<{}>\d{{1,9}}(?:\.\d{{1,3}})?) ?(?P<{}_unit>bytes|[KMG]i?B)"


def _size(name: str) -> str:
    return _SIZE.format(name, name)


def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile; any blank may be lost where the line was broken."""
    return re.compile(re.sub(r" (?!\?)", " ?", pattern))


_ASKED = _compiled(r"\b(?:out of memory\.? )?Tried to allocate " + _size("size"))
_TOTAL = _compiled(rf"\btotal capaci?ty of {_size('a')}|GPU \d{{1,3}}; {_size('b')} total capacity")
_FREE = _compiled(rf"of which {_size('a')} is free|already allocated; {_size('b')} free")
_ALLOCATED = _compiled(rf"Of the allocated memory {_size('a')} is allocated by PyTorch|; {_size('b')} already allocated")
_UNUSED = _compiled(rf"\band {_size('size')} is reserved by PyTorch but unallocated")
_RESERVED = _compiled(rf"{_size('a')} reserved in total by PyTorch|{_size('b')} cached\b")
_ALLOWED = _compiled(rf"\b{_size('size')} allowed;")
_PROCESS = _compiled(rf"\bProcess \d{{1,9}} has {_size('size')} memory in use")
_OWN = _compiled(rf"this process has {_size('size')} memory in use")


class TorchMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes; None where this release does not tell."""

    asked: float
    total: float | None = None
    free: float | None = None
    allocated: float | None = None
    unused: float | None = None
    """Reserved by this process' allocator, and allocated to nobody."""
    others: float | None = None
    """Held by other processes, or by this one outside of torch's allocator where nothing lists the processes."""
    is_listed: bool = False
    """The driver listed the processes, so that ``others`` are other processes."""
    is_limited: bool = False
    """The program gave itself a share of the GPU."""


def read(words: str) -> TorchMemory | None:
    """Return what the message tells; None where it is not such a message, or tells no size.

    >>> read("CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity; 1.00 GiB already allocated; "
    ...      "1.00 GiB free; 1.50 GiB reserved in total by PyTorch)").others / 2**30
    5.5
    """
    asked = _bytes(_ASKED.search(words), "size")
    if asked is None:
        return None
    total, free, allocated = (_either(pattern.search(words)) for pattern in (_TOTAL, _FREE, _ALLOCATED))
    unused, reserved = _bytes(_UNUSED.search(words), "size"), _either(_RESERVED.search(words))
    if unused is None and reserved is not None and allocated is not None:
        unused = max(reserved - allocated, 0.0)
    own = None if allocated is None or unused is None else allocated + unused
    listed = [size for found in _PROCESS.finditer(words) if (size := _bytes(found, "size")) is not None]
    is_listed = bool(listed) or _OWN.search(words) is not None
    others = _others(listed, words, own) if is_listed else None
    if others is None and None not in (total, free, own):
        others = max((total or 0.0) - (free or 0.0) - (own or 0.0), 0.0)
    return TorchMemory(
        asked=asked, total=total, free=free, allocated=allocated, unused=unused,
        others=others, is_listed=is_listed, is_limited=_ALLOWED.search(words) is not None,
    )  # fmt: skip


def _others(listed: list[float], words: str, own: float | None) -> float | None:
    """Of the processes that are listed, those that are not this one: in a container it is listed by its number on the host."""
    if _OWN.search(words) is not None:
        return sum(listed)
    large_enough = [size for size in listed if own is not None and size >= own]
    if large_enough:
        return sum(listed) - min(large_enough)
    if own is not None:
        return sum(listed)
    return sum(listed) - max(listed) if len(listed) > 1 else None


def _either(found: re.Match[str] | None) -> float | None:
    if found is None:
        return None
    return _bytes(found, "a" if found["a"] else "b")


def _bytes(found: re.Match[str] | None, name: str) -> float | None:
    return None if found is None else float(found[name]) * _UNITS[found[f"{name}_unit"]]
