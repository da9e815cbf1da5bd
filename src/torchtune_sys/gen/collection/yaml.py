"""The little YAML that the collection's files need: mappings, lists and scalars, in block style, as yamllint likes it."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

Node: TypeAlias = "str | int | float | bool | Mapping[str, Node] | Sequence[Node] | None"
_PLAIN = re.compile(r"[A-Za-z_/(][A-Za-z0-9_/().,' +=<>%!;?-]*")
_TAKEN = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n", "~"))
_WIDTH = 120


def dump(node: Mapping[str, Node], indent: int = 0) -> str:
    """Block style with two blanks a level, lists indented, texts longer than a line folded.

    >>> print(dump({"a": {"b": [1, "two: 2"]}, "c": True, "d": {}, "e": None}), end="")
    a:
      b:
        - 1
        - "two: 2"
    c: true
    d: {}
    e:
    """
    return "".join(f"{' ' * indent}{line}\n" if line else "\n" for line in _mapping(node, _WIDTH - indent))


def _mapping(node: Mapping[str, Node], width: int) -> Iterator[str]:
    for key, value in node.items():
        yield from _entry(f"{scalar(key)}:", value, width)


def _entry(head: str, value: Node, width: int) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        yield head
        yield from (f"  {line}" for line in _mapping(value, width - 2))
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        yield head
        for item in value:
            yield from (f"  {line}" for line in _item(item, width - 2))
    elif isinstance(value, str) and len(head) + len(value) + 3 > width and " " in value:
        yield f"{head} >-"
        yield from (f"  {line}" for line in wrapped(value, width - 2))
    else:
        yield f"{head} {scalar(value)}".rstrip()


def wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _item(item: Node, width: int) -> Iterator[str]:
    if isinstance(item, Mapping) and item:
        lines = list(_mapping(item, width - 2))
        yield f"- {lines[0]}"
        yield from (f"  {line}" for line in lines[1:])
    else:
        yield from _entry("-", item, width)


def scalar(value: Node) -> str:
    """Return one value on one line; a text is quoted where YAML would read something else.

    >>> scalar("plain words"), scalar("5.5"), scalar("no"), scalar("a: b"), scalar(()), scalar(None)
    ('plain words', '"5.5"', '"no"', '"a: b"', '[]', '')
    """
    if value is None:
        return ""
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _TAKEN and value == value.strip()
        return value if plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{}"
    return json.dumps(value) if isinstance(value, bool | int | float) else "[]"
