"""``/proc/<pid>/limits``: both limits of a process."""

from __future__ import annotations

from torchtune_sys.model.facts.limits import SessionLimit

_ROWS = {
    "Max address space": "as",
    "Max core file size": "core",
    "Max cpu time": "cpu",
    "Max data size": "data",
    "Max file size": "fsize",
    "Max locked memory": "memlock",
    "Max open files": "nofile",
    "Max processes": "nproc",
    "Max resident set": "rss",
    "Max stack size": "stack",
}
"""fs/proc/base.c, lnames."""


def of_kernel(text: str) -> dict[str, SessionLimit]:
    r"""Return the limits by the names of limits.conf (bytes, seconds and counts as in getrlimit(2)); of several tables what they have in common.

    >>> of_kernel("Limit   Soft Limit   Hard Limit   Units\nMax open files            1024                 524288               files\n")
    {'nofile': SessionLimit(soft=1024, hard=524288)}
    >>> of_kernel("Max open files  1024 4096 files\nMax cpu time  unlimited unlimited seconds\nMax open files  512 4096 files\n")
    {'cpu': SessionLimit(soft=None, hard=None)}
    """
    found: dict[str, set[tuple[int | None, int | None]]] = {}
    for line in text.split("\n") if "Max " in text else ():
        line = line.lstrip(" \t>")
        title = next((title for title in _ROWS if line.startswith(title)), "")
        values = line[len(title) :].split()[:2] if title else []
        if len(values) == 2 and all(map(_is_limit, values)):
            soft, hard = (amount(value) for value in values)
            found.setdefault(_ROWS[title], set()).add((soft, hard))
    return {name: SessionLimit(soft=soft, hard=hard) for name, pairs in found.items() if len(pairs) == 1 for soft, hard in pairs}


UNLIMITED = (1 << 63) - (1 << 20)
"""The kernel's RLIM_INFINITY is 2^64 - 1; some programs print it, or its half, as a number of bytes or KiB."""


def amount(words: str, unit: int = 1) -> int | None:
    """Return a limit as a number; None where there is none.

    >>> amount("18014398509481984", 1024), amount("18446744073709551615"), amount("64", 1024)
    (None, None, 65536)
    """
    return None if words == "unlimited" or int(words) * unit >= UNLIMITED else int(words) * unit


def _is_limit(word: str) -> bool:
    return word == "unlimited" or (word.isascii() and word.isdigit() and len(word) < 21)
