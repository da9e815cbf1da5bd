"""Amounts as people read them, in evidence."""

from __future__ import annotations

_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def size(count: float | None) -> str:
    """Return an amount of bytes as people write it; None is unlimited.

    >>> size(67108864), size(1288490188), size(12), size(None)
    ('64 MiB', '1.2 GiB', '12 bytes', 'unlimited')
    """
    if count is None:
        return "unlimited"
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}".replace(".0 ", " ")
    return f"{count:.0f} bytes"
