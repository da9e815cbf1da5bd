"""The plain data in a pickle, read opcode by opcode: nothing in it is imported, called or built.

Opcodes: CPython's Lib/pickle.py and PEP 3154. torch's flight recorder writes them (torch/csrc/distributed/c10d/FlightRecorder.hpp), with the
marker functions of torch/csrc/jit/serialization/pickler.cpp around lists of one type; these are passed over, every other name is refused.
"""

from __future__ import annotations

import sys
from typing import Any

OPS_LIMIT = 3_000_000
"""Each may make an empty dict, or an entry of the memo: below 512 MiB in all (docs/input-limits.md)."""
_LISTS = frozenset(f"torch.jit._pickle build_{kind}list" for kind in ("int", "double", "bool", "tensor"))
_EMPTY: dict[str, Any] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_FIXED = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = frozenset(
    [
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "FLOAT",
        "BINFLOAT",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "UNICODE",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
    ]
)
_NOTHING = frozenset(("PROTO", "FRAME"))


class _Mark:
    pass


_MARK = _Mark()


class _Name(str):
    """A function that the pickle wants called."""


def plain_data(data: bytes) -> Any:
    """Return the plain data of a pickle. Raises ValueError where it holds anything but plain data, or is damaged.

    >>> import pickle
    >>> plain_data(pickle.dumps({"version": "2.9", "entries": [{"seq": 1, "times": (1.5, None)}]}, protocol=2))
    {'version': '2.9', 'entries': [{'seq': 1, 'times': (1.5, None)}]}
    >>> plain_data(b"cos\\nsystem\\n(S'true'\\ntR.")
    Traceback (most recent call last):
    ValueError: it wants os system called
    """
    import pickletools

    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count > OPS_LIMIT:
                raise ValueError("it has too many values")
            if opcode.name == "STOP":
                return _checked(stack.pop())
            _step(opcode.name, argument, stack, memo)
    except (IndexError, KeyError, TypeError, AttributeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"it is damaged: {error}") from None
    raise ValueError("it ends too early")


def _step(name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    if name in _VALUES:
        stack.append(argument)
    elif name in _EMPTY:
        stack.append(_EMPTY[name]())
    elif name in _FIXED:
        stack.append(_FIXED[name])
    elif name == "MARK":
        stack.append(_MARK)
    elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
        memo[len(memo) if name == "MEMOIZE" else int(argument)] = stack[-1]
    elif name in ("GET", "BINGET", "LONG_BINGET"):
        stack.append(memo[int(argument)])
    elif name in ("GLOBAL", "STACK_GLOBAL", "REDUCE"):
        _named(name, argument, stack)
    elif name not in _NOTHING:
        _collect(name, stack)


def _named(name: str, argument: Any, stack: list[Any]) -> None:
    if name == "REDUCE":
        arguments, function = stack.pop(), stack.pop()
        if not isinstance(function, _Name):
            raise ValueError("it wants something called")
        stack.append(arguments[0])
        return
    if name == "STACK_GLOBAL":
        attribute, module = stack.pop(), stack.pop()
        argument = f"{module} {attribute}"
    if argument not in _LISTS:
        raise ValueError(f"it wants {argument[:80]} called")
    stack.append(_Name(argument))


def _collect(name: str, stack: list[Any]) -> None:
    """Carry out what takes values off the stack."""
    if name in ("TUPLE1", "TUPLE2", "TUPLE3"):
        size = int(name[-1])
        stack[-size:] = [tuple(stack[-size:])]
    elif name == "APPEND":
        value = stack.pop()
        stack[-1].append(value)
    elif name == "SETITEM":
        value, key = stack.pop(), stack.pop()
        stack[-1][_key(key)] = value
    elif name in ("TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS"):
        _since_mark(name, stack)
    elif name == "POP":
        stack.pop()
    else:
        raise ValueError(f"it is no plain data ({name})")


def _since_mark(name: str, stack: list[Any]) -> None:
    at = len(stack) - 1
    while stack[at] is not _MARK:
        at -= 1
    values = stack[at + 1 :]
    del stack[at:]
    if name == "TUPLE":
        stack.append(tuple(values))
    elif name == "LIST":
        stack.append(values)
    elif name == "APPENDS":
        stack[-1].extend(values)
    else:
        pairs = dict(zip(map(_key, values[::2]), values[1::2], strict=True))
        if name == "DICT":
            stack.append(pairs)
        else:
            stack[-1].update(pairs)


def _key(value: Any) -> Any:
    """Hashing a tuple walks through all that it holds: where a pickle names one value in many places, that may take for ever. Of whole numbers beyond the
    modulus as many as one likes have one hash, and each is compared with all before it."""
    if not isinstance(value, (str, bytes, int, float, type(None))):
        raise ValueError("it has a key that is no plain word")
    if isinstance(value, int) and abs(value) >= sys.hash_info.modulus:
        raise ValueError("it has a number as a key that is larger than any of a dump")
    return value


def _checked(value: Any) -> Any:
    if isinstance(value, (_Mark, _Name)):
        raise ValueError("it is no plain data")
    return value
