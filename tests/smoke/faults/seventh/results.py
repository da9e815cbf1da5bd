"""How each fault of the list was graded at first (before anything was built for it) and last: smoke.faults.second, docs/smoke-faults.md."""

from __future__ import annotations

RESULTS: dict[str, tuple[str, str]] = {}
