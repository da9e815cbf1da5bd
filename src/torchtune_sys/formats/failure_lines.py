"""The lines in which any program says that it failed."""

from __future__ import annotations

import re

_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\):[^\n]*\n(?:[^\n]*\n){1,400}?(?:\[?rank ?\d+\]?:? ?)?"
    r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Warning)\b[^\n]*)"
)
_DYING = (
    *("terminate called after throwing", "Fatal Python error:", "Segmentation fault", "Aborted (core dumped)", "CUDA error: "),
    *("torch.AcceleratorError: ", "NCCL error ", "Bus error (core dumped)", "Illegal instruction (core dumped)"),
)
_DEATHS = re.compile(rf"(?m)^[^\n]{{0,120}}?((?:{'|'.join(map(re.escape, _DYING))})[^\n]*)")
_FABRIC = re.compile(r"(?m)\[(?:ERROR|FATAL|CRITICAL)\] \[tid \d{1,10}\] ([^\n]{1,300})")
"""The fabric manager's log."""
_MOST, _WIDTH = 3, 300


def failures(text: str) -> tuple[str, ...]:
    """Return the lines in which a program says that it failed, whatever of.

    >>> failures("Traceback (most recent call last):\\n  File \\"a.py\\", line 1\\nfoo.BarError: no way\\n")
    ('foo.BarError: no way',)
    >>> failures("0 errors, RuntimeError is a class, no Traceback")
    ()
    """
    dying = any(words in text for words in _DYING)
    found = [
        match[1]
        for pattern in (_TRACEBACK, *([_DEATHS] if dying else []), *([_FABRIC] if "] [tid " in text else []))
        for match in pattern.finditer(text)
    ]
    lines = dict.fromkeys(" ".join(line.split()).strip("`> ")[:_WIDTH] for line in found)
    return tuple(lines)[:_MOST]
