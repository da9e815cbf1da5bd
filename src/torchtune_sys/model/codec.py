"""Facts and results as JSON. The only place that handles untyped data."""

from __future__ import annotations

import math
import os
import threading
from itertools import chain
from typing import Any, TypeVar

import msgspec

from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.values import Missing, Why

_T = TypeVar("_T")
_EXACT = 1 << 53
"""Integers from here on lose digits in JSON readers that use doubles (RFC 8259, section 6)."""
_ESCAPES = {
    number: f"\\u{number:04x}"
    for first, last in ((0x7F, 0x9F), (0x61C, 0x61C), (0x200E, 0x200F), (0x2028, 0x202E), (0x2066, 0x2069))
    for number in range(first, last + 1)
}
"""What JSON leaves as it is and a terminal does not. Outside of strings JSON has only ASCII."""


def to_builtins(value: object) -> Any:
    """Return facts as dicts, lists and scalars.

    Missing facts become ``{"$missing": why, "source": …}``, CPU sets the kernel's list format, infinity ``null``,
    integers above 2**53 strings, bytes that are not UTF-8 their escapes.
    """
    return _plain(msgspec.to_builtins(value, enc_hook=_encode, order="deterministic"))


def dumps(value: object, *, indent: int = 2) -> str:
    r"""Return the JSON text of ``value``, ending in a newline, in which neither a terminal nor a CI service finds anything to act upon.

    >>> print(dumps("csi \x9b2J, override \u202e, é, ##[group]"), end="")
    "csi \u009b2J, override \u202e, é, #\u0023[group]"
    """
    return _disarmed(msgspec.json.format(msgspec.json.encode(to_builtins(value)), indent=indent).decode() + "\n")


def line(value: object) -> str:
    """Return the same as :func:`dumps`, on one line, the keys of all objects in their order: equal values have equal texts."""
    return _disarmed(msgspec.json.encode(to_builtins(value), order="deterministic").decode() + "\n")


def _disarmed(text: str) -> str:
    text = text.replace("##", "#\\u0023") if "##" in text else text  # outside of strings JSON has no such sign
    return text if text.isascii() and "\x7f" not in text else text.translate(_ESCAPES)


DEEPEST = 100
"""Levels of lists and objects. Ours have a dozen; what walks through a value may need several frames for each, of Python's thousand."""


_DESCRIBING = threading.Lock()
"""msgspec describes a form at its first use, and other threads see that description half done: they read nothing in the place of a field, and the
process ends by SIGSEGV (0.22; once in about a thousand commands, where probes that share a form began at once)."""


def _describe_anew() -> None:
    """In a forked child nobody else gives the lock back that another thread held."""
    global _DESCRIBING
    _DESCRIBING = threading.Lock()


os.register_at_fork(after_in_child=_describe_anew)


def convert(value: object, form: type[_T], *, str_keys: bool = False) -> _T:
    """Return plain data as a value of ``form``, from any thread. Raises msgspec.ValidationError, and RecursionError for what is nested too deeply."""
    with _DESCRIBING:
        return msgspec.convert(value, form, str_keys=str_keys)  # noqa: TID251


def as_fact(answer: object, form: type[_T], source: str, complaint: str = "") -> _T | Missing:
    """Return a host's answer as a fact: why there is none, the value, or *unparsed* with ``complaint`` and the reason if it does not have this form.

    >>> as_fact(["0", "1"], list[int], "cpus").detail
    'Expected `int`, got `str` - at `$[0]`'
    """
    if isinstance(answer, Missing):
        return answer
    try:
        return convert(answer, form)
    except (msgspec.ValidationError, RecursionError) as error:
        return Missing(Why.UNPARSED, source, f"{complaint}{error}")


def loads(text: str | bytes, form: Any = Any) -> Any:
    """Parse JSON, as a value of ``form``. Raises ValueError with the place of the fault, also for what is nested too deeply.

    >>> loads("[" * 101 + "7" + "]" * 101)
    Traceback (most recent call last):
    ValueError: nested more than 100 levels deep
    """
    try:
        with _DESCRIBING:
            found = msgspec.json.decode(text, type=form)
        return not_too_deep(found)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def loads_of_python(text: bytes) -> Any:
    """Parse JSON as Python's own writer makes it: with NaN, and with halves of surrogates for bytes that are not UTF-8. These become escapes, since nobody else could
    write them. Raises ValueError, also for what is nested too deeply.

    >>> loads_of_python(b'{"a": [NaN, "\\\\udcff"]}')
    {'a': [nan, '\\\\udcff']}
    """
    import json  # most commands read none

    try:
        found = not_too_deep(json.loads(text))
    except RecursionError as error:
        raise ValueError(str(error)) from None
    return _written(found) if b"\\u" in text or not text.isascii() else found


def _written(value: Any) -> Any:
    if isinstance(value, dict):
        return {_written(key): _written(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_written(item) for item in value]
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) and not value.isascii() else value


def not_too_deep(value: _T) -> _T:
    """Return a parsed value. Raises ValueError where it is nested so deeply that a walk through it, or its encoding, might end in a RecursionError."""
    level: list[Any] = [value] if isinstance(value, (dict, list)) else []
    for _ in range(DEEPEST):
        held = chain.from_iterable(outer.values() if isinstance(outer, dict) else outer for outer in level)
        level = [inner for inner in held if isinstance(inner, (dict, list)) and inner]
        if not level:
            return value
    raise ValueError(f"nested more than {DEEPEST} levels deep")


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
