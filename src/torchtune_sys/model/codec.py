"""Facts and results as JSON. The only place that handles untyped data."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from torchtune_sys.model.cpuset import CpuSet

_EXACT = 1 << 53
"""Integers from here on lose digits in JSON readers that use doubles (RFC 8259, section 6)."""


def to_builtins(value: object) -> Any:
    """Facts as dicts, lists and scalars.

    Missing facts become ``{"$missing": why, "source": …}``, CPU sets the kernel's list format, infinity ``null``,
    integers above 2**53 strings, bytes that are no UTF-8 their escapes.
    """
    return _plain(msgspec.to_builtins(value, enc_hook=_encode, order="deterministic"))


def dumps(value: object, *, indent: int = 2) -> str:
    """JSON text of ``value``, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(to_builtins(value)), indent=indent).decode() + "\n"


def loads(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError with the place of the fault."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def _encode(value: object) -> Any:
    if isinstance(value, CpuSet):
        return str(value)
    raise TypeError(f"cannot encode {type(value).__name__}")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        # File names and variables may hold bytes that are no UTF-8 (surrogates, PEP 383), which JSON cannot.
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) > _EXACT:
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
