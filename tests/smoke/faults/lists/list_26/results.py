"""How each fault of the list was graded at first and last: smoke.faults.lists, docs/smoke-faults.md."""

from __future__ import annotations

RESULTS: dict[str, tuple[str, str]] = {
    "halves-truncated": ("right", "–"),
    "scale-grows-each-step": ("right", "–"),
    "synchronised-ten-times": ("not noticed", "right"),
    "sums-are-kept": ("not noticed", "right"),
    "locks-refused": ("not noticed", "right"),
    "hooks-fire-once": ("not noticed", "right"),
    "second-pass-replaces": ("not noticed", "right, in *layers* (the row named *accumulate*)"),
    "python-random-not-restored": ("not noticed", "right"),
    "equal-shapes-swapped": ("right", "–"),
    "worker-late-now-and-then": ("not noticed", "not noticed"),
    "usr2-blocked": ("right", "–"),
    "large-sums-late": ("not noticed", "right"),
    "overlap-from-the-fourth-epoch": ("not noticed", "named as `sampler-misses-samples` since"),
    "last-bits-of-sums-differ": ("right", "–"),
    "eval-stops-at-children": ("not noticed", "right since"),
    "bmm-now-and-then": ("not noticed", "right since"),
    "large-objects-cut": ("not noticed", "right since"),
    "saves-late": ("vague", "right since"),
}
