"""Limits of a session in a report: what ``ulimit`` prints, a process' table, and what stands beside the verbs call that failed for locked memory."""

from __future__ import annotations

import re

from torchtune_sys.evidence.partial import missing, partly
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.limits import LimitsFacts, SessionLimit

NAMES = ("memlock", "nofile", "nproc", "stack", "core", "as", "data", "rss", "fsize")
_OPTIONS = {
    "l": "memlock",
    "n": "nofile",
    "u": "nproc",
    "s": "stack",
    "c": "core",
    "v": "as",
    "d": "data",
    "m": "rss",
    "f": "fsize",
}
"""By the option of ``ulimit``: bash, zsh and ksh name them alike."""
_UNITS = {"kbytes": 1024, "blocks": 1024, "bytes": 1, "": 1}
"""bash counts files in blocks of 1024 bytes (builtins/ulimit.def); its POSIX mode and dash in 512."""
_FAILED = re.compile(
    r"\b(ibv_(?:exp_)?(?:reg_mr|reg_mr_iova2?|create_\w{2,6}|reg_dmabuf_mr)|mlx5dv_\w{3,40})\b[^\n]{0,120}?\sfailed\b[^\n]{0,40}?Cannot\s+allocate\s+memory"
)
_CURRENT = re.compile(r"Please set max locked memory \(ulimit -l\) to 'unlimited'\s+\(current: (\d{1,20}) kbytes\)")
_BASH = re.compile(r"(?<=[a-z ])\((?:(kbytes|blocks|bytes), )?-([lnuscvdmf])\)\s{1,4}(\d{1,20}|unlimited)[ \t]*$", re.MULTILINE)
_ZSH = re.compile(
    r"^-([lnuscvdmf]): [a-z][a-z ()-]{3,40}?(?:\((kbytes|blocks)\))?\s{1,30}(\d{1,20}|unlimited)[ \t]*$", re.MULTILINE
)
_ONE = re.compile(r"(?:^|[$#%>] ?)ulimit -(?:S)?([lnu])[ \t]*\n(\d{1,20}|unlimited)[ \t]*$", re.MULTILINE)
_RAISED = 1 << 16
"""Open files from which a soft limit tells of the hard one, which is no lower; below, it may be 1024 of 524288."""
_OF_PROCESS = re.compile(r"^Max locked memory {1,20}(\d{1,20}|unlimited) {1,20}(\d{1,20}|unlimited) {1,20}bytes", re.MULTILINE)


def limits_facts(text: str) -> LimitsFacts | None:
    """None where the text says nothing of a limit.

    >>> facts = limits_facts("UCX  ERROR ibv_create_cq(cqe=4096) failed: Cannot allocate memory : "
    ...                      "Please set max locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)")
    >>> facts.limits["memlock"], facts.pinning_failed
    (SessionLimit(soft=65536, hard=65536), 'ibv_create_cq')
    >>> facts = limits_facts("file size               (blocks, -f) 2048\\nopen files                      (-n) 1024\\n")
    >>> facts.limits["fsize"].soft, isinstance(facts.limits["nofile"], SessionLimit)
    (2097152, False)
    """
    told = _limits(text)
    if not told:
        return None
    failed = _FAILED.search(text)
    limits: dict[str, Fact[SessionLimit]] = {name: told.get(name, missing()) for name in NAMES}
    return partly(
        LimitsFacts,
        limits=limits,
        pids_source="",
        remove_ipc_source="",
        pinning_failed=failed[1] if failed else "registering memory" if _CURRENT.search(text) else missing(),
    )


def _limits(text: str) -> dict[str, SessionLimit]:
    """``ulimit`` and UCX tell the soft limit; the hard one is taken to be the same where nothing tells it, but for open files, which each distribution
    limits softly alone."""
    found: dict[str, SessionLimit] = {}
    rows = [(row[2], _UNITS[row[1] or ""], row[3]) for row in _BASH.finditer(text)]
    rows += [(row[1], _UNITS[row[2] or ""], row[3]) for row in _ZSH.finditer(text)] if "\n-" in text else []
    rows += [(row[1], 1024 if row[1] == "l" else 1, row[2]) for row in _ONE.finditer(text)] if "ulimit -" in text else []
    for option, unit, words in rows:
        value = _bytes(words, unit)
        if option != "n" or value is None or value >= _RAISED:
            found.setdefault(_OPTIONS[option], SessionLimit(soft=value, hard=value))
    if process := _OF_PROCESS.search(text):
        found["memlock"] = SessionLimit(soft=_bytes(process[1], 1), hard=_bytes(process[2], 1))
    elif current := _CURRENT.search(text):
        found["memlock"] = SessionLimit(soft=_bytes(current[1], 1024), hard=_bytes(current[1], 1024))
    return found


_UNLIMITED = (1 << 63) - (1 << 20)
"""The kernel's RLIM_INFINITY is 2^64 - 1; some shells print it, or its half, as a number of bytes or KiB."""


def _bytes(words: str, unit: int) -> int | None:
    """
    >>> _bytes("18014398509481984", 1024), _bytes("18446744073709551615", 1), _bytes("64", 1024)
    (None, None, 65536)
    """
    return None if words == "unlimited" or int(words) * unit >= _UNLIMITED else int(words) * unit
