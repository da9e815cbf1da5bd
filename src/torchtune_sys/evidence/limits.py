"""The limit on locked memory in a report: in ``ulimit -a``, and beside the verbs call that failed for it."""

from __future__ import annotations

import re

from torchtune_sys.evidence.partial import missing, partly
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.limits import LimitsFacts, SessionLimit

_NAMES = ("memlock", "nofile", "nproc", "stack", "core", "as", "data", "rss", "fsize")
_FAILED = re.compile(
    r"\b(ibv_(?:exp_)?(?:reg_mr|create_\w{2,6}|reg_dmabuf_mr))\b[^\n]{0,120}?\sfailed\b[^\n]{0,40}?Cannot\s+allocate\s+memory"
)
_CURRENT = re.compile(r"Please set max locked memory \(ulimit -l\) to 'unlimited'\s+\(current: (\d{1,20}) kbytes\)")
_LISTED = re.compile(r"^.{0,20}max locked memory\s{1,20}\(kbytes, -l\) (\d{1,20}|unlimited)", re.MULTILINE)
_OF_PROCESS = re.compile(r"^Max locked memory {1,20}(\d{1,20}|unlimited) {1,20}(\d{1,20}|unlimited) {1,20}bytes", re.MULTILINE)


def limits_facts(text: str) -> LimitsFacts | None:
    """None where the text says nothing of the limit.

    >>> facts = limits_facts("UCX  ERROR ibv_create_cq(cqe=4096) failed: Cannot allocate memory : "
    ...                      "Please set max locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)")
    >>> facts.limits["memlock"], facts.pinning_failed
    (SessionLimit(soft=65536, hard=65536), 'ibv_create_cq')
    """
    limit = _limit(text)
    if limit is None:
        return None
    failed = _FAILED.search(text)
    limits: dict[str, Fact[SessionLimit]] = {name: missing() for name in _NAMES}
    limits["memlock"] = limit
    return partly(
        LimitsFacts,
        limits=limits,
        pids_source="",
        remove_ipc_source="",
        pinning_failed=failed[1] if failed else missing(),
    )


def _limit(text: str) -> SessionLimit | None:
    """``ulimit`` and UCX tell the soft limit; the hard one is taken to be the same where nothing tells it."""
    process = _OF_PROCESS.search(text)
    if process:
        return SessionLimit(soft=_bytes(process[1], 1), hard=_bytes(process[2], 1))
    found = _CURRENT.search(text) or _LISTED.search(text)
    return SessionLimit(soft=_bytes(found[1], 1024), hard=_bytes(found[1], 1024)) if found else None


_UNLIMITED = (1 << 63) - (1 << 20)
"""The kernel's RLIM_INFINITY is 2^64 - 1; some shells print it, or its half, as a number of bytes or KiB."""


def _bytes(words: str, unit: int) -> int | None:
    """
    >>> _bytes("18014398509481984", 1024), _bytes("18446744073709551615", 1), _bytes("64", 1024)
    (None, None, 65536)
    """
    return None if words == "unlimited" or int(words) * unit >= _UNLIMITED else int(words) * unit
