"""Resource limits of this session."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """Soft and hard limit; None is unlimited. Bytes for memory sizes, counts for the rest."""

    soft: int | None
    hard: int | None


class LimitsFacts(msgspec.Struct, frozen=True, kw_only=True):
    limits: dict[str, Fact[Limit]]
    """``memlock``, ``nofile``, ``nproc``, ``stack``, ``core``, ``as``, ``data``, ``rss``, ``fsize`` (the names of limits.conf)."""
    pids_max: Fact[float]
    """The cgroup's pids.max, the minimum over all ancestors; ``inf`` if unlimited."""
    pids_current: Fact[int]
    pids_source: str
    remove_ipc: Fact[bool]
    """logind's RemoveIPC in effect."""
