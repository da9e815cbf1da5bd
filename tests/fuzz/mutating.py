"""Documents of JSON, changed so that they stay JSON: what an engine that changes bytes seldom makes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple


class Raw(str):
    """JSON text, as it stands in the document."""


class Fields(list[Any]):
    """An object: its pairs, lists of a key and a value, in their order, so that a key may stand in it twice."""


class _Document(NamedTuple):
    """Where in some bytes a document stands: a journal has a checksum before it, a peer a signature, and logs have one in a line."""

    begin: int
    end: int
    value: Any


_DEEP = 400
"""Levels; msgspec and the standard library end near 1,000."""
_MANY = 100_000
"""Elements of a list; few, since they take long to write."""
_PLAIN = "null true false 0 -1 -0 1.5 1e308 -1e308 1e999 5e-324 NaN Infinity -Infinity [] {} [[]] [null] [[1,2]] [0,0]"
_TEXTS = '"" "0" "-1" "nan" "inf" "1e400" "\\u0000" "\\ud800" "\\udfff\\ud800" "\\u2028" "\\u001b[31m" "\\n::error::x" "../../etc/passwd" "%s{0}"'
_LARGE = (1 << 53, 1 << 63, (1 << 63) - 1, -(1 << 63), 1 << 64)
SCALARS = tuple(
    map(
        Raw,
        (
            *_PLAIN.split(),
            *_TEXTS.split(),
            *map(str, _LARGE),
            "9" * 400,
            "9" * 5000,
            *map(json.dumps, ("9" * 5000, "x" * 5000, "\u00b2\u0663", "\n##[group]x")),
            json.dumps("e\u0301" * 30, ensure_ascii=False),
        ),
    )
)
"""What stands where something else is expected. The longest ints are what int() refuses, and what a double cannot hold."""
_KEYS = tuple(
    map(Raw, ('""', '"\\u0000"', '"\\ud800"', '"\\u0061"', '"a.b"', '"a/b"', '"0"', '"$missing"', '"error"', '"__class__"'))
)


def changed_document(data: bytes, chance: random.Random, others: tuple[Raw, ...] = ()) -> bytes | None:
    """Return ``data`` with a document in it changed in one to four places; None where none is in it. ``others``: values of other documents."""
    found = _documents(data)
    if not found:
        return None
    one = chance.choice(found)
    holder = [one.value]
    try:
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            places = _places(holder)
            _change(*chance.choice(places), chance, places, others)
        return data[: one.begin] + encoded(holder[0]).encode("utf-8", "replace") + data[one.end :]
    except RecursionError:
        return None


def values_of(seeds: list[bytes]) -> tuple[Raw, ...]:
    """Return objects and lists of documents, of which a part may take the place of another."""
    found = []
    for data in seeds:
        for one in _documents(data):
            inner = [container[key] for container, key in _places([one.value])[:2000]]
            found += [Raw(encoded(value)) for value in inner if isinstance(value, list)][:200]
    return tuple(found[:2000])


def _documents(data: bytes) -> list[_Document]:
    whole = _parsed(data)
    if whole is not None:
        return [_Document(0, len(data), whole)]
    found, begin = [], 0
    for line in data.split(b"\n")[:200]:
        start = min((at for at in (line.find(b"{"), line.find(b"[")) if at >= 0), default=-1)
        if start >= 0 and (value := _parsed(line[start:])) is not None:
            found.append(_Document(begin + start, begin + len(line), value))
        begin += len(line) + 1
    return found


def _parsed(text: bytes) -> Any:
    """Return objects as ``Fields``, lists as they are and all else as it is written; None where this is no object and no list."""
    if text.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return json.loads(text, object_pairs_hook=_fields, parse_int=Raw, parse_float=Raw, parse_constant=Raw)
    except (ValueError, RecursionError):
        return None


def _fields(pairs: list[tuple[str, Any]]) -> Fields:
    return Fields([Raw(json.dumps(key)), value] for key, value in pairs)


def encoded(value: Any) -> str:
    """Return the text of what ``_parsed`` made, and of what was put there since."""
    if isinstance(value, Raw):
        return value
    if isinstance(value, Fields):
        return "{" + ", ".join(f"{key}: {encoded(inner)}" for key, inner in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(encoded, value)) + "]"
    return json.dumps(value)


def _places(value: Any) -> list[tuple[Any, int]]:
    """Every place that holds something, however deep, as its container and its index."""
    found: list[tuple[Any, int]] = []
    left = [value]
    while left and len(found) < 50_000:
        one = left.pop()
        if isinstance(one, Fields):
            found += [(pair, 1) for pair in one]
            left += [pair[1] for pair in one]
        elif isinstance(one, list):
            found += [(one, at) for at in range(len(one))]
            left += one
    return found


def _change(container: Any, at: int, chance: random.Random, places: list[tuple[Any, int]], others: tuple[Raw, ...]) -> None:
    value = container[at]
    kind = chance.randrange(14)
    if kind < 6:
        container[at] = chance.choice(SCALARS)
    elif kind == 6:  # of another type, with the same words in it
        swaps: tuple[Callable[[], Any], ...] = (
            lambda: [value],
            lambda: Fields([[Raw('"a"'), value]]),
            lambda: Raw(json.dumps(encoded(value)[:5000])),
        )
        container[at] = chance.choice(swaps)()
    elif kind == 7:
        place, index = chance.choice(places)
        container[at] = Raw(encoded(place[index]))
    elif kind == 8 and others:
        container[at] = chance.choice(others)
    elif kind == 9:
        depth = chance.choice((2, 30, 200, _DEEP, 2 * _DEEP))
        opened, closed = chance.choice((("[", "]"), ('{"a":', "}")))
        container[at] = Raw(opened * depth + encoded(value) + closed * depth)
    elif isinstance(value, list) and value:
        _change_inside(value, chance)
    else:
        container[at] = Raw(
            json.dumps(chance.choice((str(chance.getrandbits(70)), chance.getrandbits(chance.choice((4, 16, 64))))))
        )


def _change_inside(value: Any, chance: random.Random) -> None:
    """Of an object or a list: a part is gone, stands there twice or in another place, or has another name."""
    at = chance.randrange(len(value))
    kind = chance.randrange(5)
    if kind == 0:
        del value[at]
    elif kind == 1:
        value.insert(chance.randrange(len(value) + 1), value[at])
    elif kind == 2:
        value.append(value.pop(at))
    elif kind == 3 and isinstance(value, Fields):
        value[at] = [chance.choice(_KEYS), value[at][1]]
    else:
        copies = _MANY if chance.randrange(50) == 0 else chance.choice((3, 50, 2000))
        text = encoded(value[at][1] if isinstance(value, Fields) else value[at])
        copies = min(copies, (1 << 18) // (len(text) + 2) + 1)
        if isinstance(value, Fields):
            more = ", ".join(f'"k{number}": {text}' for number in range(copies))
            value[at] = [Raw(f'"k": null, {more}, "l"'), Raw("0")]
        else:
            value[at] = Raw(", ".join([text] * copies))
