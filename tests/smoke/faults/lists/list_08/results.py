"""How each fault of the list was graded at first and last: docs/smoke-faults.md."""

from __future__ import annotations

RESULTS: dict[str, tuple[str, str]] = {
    "variables-differ": ("vague (`rank-hung`, 239 s)", "right"),
    "clock-off": ("not noticed", "right"),
    "handler-at-end-hangs": ("not noticed", "right"),
    "crashes-at-end": ("not noticed", "right"),
    "integer-buffers-stay": ("not noticed", "right"),
    "schedule-restarts": ("right, but named weights alone", "right"),
    "steps-restart": ("right, but named weights alone", "right"),
}
