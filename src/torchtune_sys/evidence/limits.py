"""Limits of a session in a report: what its shell prints, a process' table, and what stands beside the verbs call that failed for locked memory."""

from __future__ import annotations

from torchtune_sys.evidence.partial import missing, partly
from torchtune_sys.formats.shell_limits import reported_limits
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.limits import NAMES, LimitsFacts, SessionLimit
from torchtune_sys.model.patterns import pattern

_FAILED = pattern(
    r"\b(ibv_(?:exp_)?(?:reg_mr|reg_mr_iova2?|create_\w{2,6}|reg_dmabuf_mr)|mlx5dv_\w{3,40})\b[^\n]{0,120}?\sfailed\b[^\n]{0,40}?Cannot\s+allocate\s+memory"
)
_CURRENT = pattern(r"Please set max locked memory \(ulimit -l\) to 'unlimited'\s+\(current: (\d{1,20}) kbytes\)")
_RAISED = 1 << 16
"""Open files from which a soft limit tells of the hard one, which is no lower; below, it may be 1024 of 524288."""


def limits_facts(text: str) -> LimitsFacts | None:
    """Return the facts on limits; None where the text says nothing of a limit.

    >>> facts = limits_facts("UCX  ERROR ibv_create_cq(cqe=4096) failed: Cannot allocate memory : "
    ...                      "Please set max locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)")
    >>> facts.limits["memlock"], facts.pinning_failed
    (SessionLimit(soft=65536, hard=65536), 'ibv_create_cq')
    >>> facts = limits_facts("file size               (blocks, -f) 2048\\nopen files                      (-n) 1024\\n")
    >>> facts.limits["fsize"].soft, isinstance(facts.limits["nofile"], SessionLimit)
    (2097152, False)
    """
    known = _limits(text)
    if not known:
        return None
    failed = _FAILED.search(text)
    limits: dict[str, Fact[SessionLimit]] = {name: known.get(name, missing()) for name in NAMES}
    return partly(
        LimitsFacts,
        limits=limits,
        pids_source="",
        remove_ipc_source="",
        pinning_failed=failed[1] if failed else "registering memory" if _CURRENT.search(text) else missing(),
    )


def _limits(text: str) -> dict[str, SessionLimit]:
    """Return both limits. A shell and UCX tell the soft one; the hard one is taken to be the same where nothing tells it, but for open files, which each distribution
    limits softly alone."""
    found = reported_limits(text)
    limits = {
        name: SessionLimit(soft=soft, hard=found.hard.get(name, soft))
        for name, soft in found.soft.items()
        if _whole(name, soft, found.hard)
    }
    if current := _CURRENT.search(text):
        limits.setdefault("memlock", SessionLimit(soft=int(current[1]) << 10, hard=int(current[1]) << 10))
    return limits


def _whole(name: str, soft: int | None, hard: dict[str, int | None]) -> bool:
    return name != "nofile" or name in hard or soft is None or soft >= _RAISED
