"""What is fuzzed: a reader, and true files to start from; and what several of the tables ask."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from torchtune_sys import engine
from torchtune_sys.host.recorded import load_recording
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import CATALOGUE

TESTS = Path(__file__).parent.parent


class Target(NamedTuple):
    seeds: Callable[[], list[bytes]]
    read: Callable[[bytes], object]


def object_of(data: bytes) -> dict[str, Any] | None:
    """Return the JSON object that the bytes are; None where they are none."""
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) else None


class Crash(AssertionError):
    """A probe or a rule raised what it must not."""


_JUDGED: dict[bytes, tuple[Result, ...]] = {}
_JUDGED_AT_MOST = 2_000


def judged(seen: Snapshot) -> tuple[Result, ...]:
    """Return what the rules say. Raises Crash where a probe or a rule crashed; the same facts, which most changes of a file come to, are judged once: rules are pure."""
    for family in FAMILIES:
        facts = getattr(seen, family)
        if isinstance(facts, Missing) and facts.why is Why.CRASHED:
            raise Crash(str(facts))
    facts = hashlib.blake2b(pickle.dumps(seen), digest_size=16).digest()
    if facts in _JUDGED:
        return _JUDGED[facts]
    results = tuple(engine.judge(seen, CATALOGUE))
    for result in results:
        if result.verdict is Verdict.CRASHED:
            raise Crash(f"{result.rule.id}: {result.note}: {result.why_unknown}")
    if len(_JUDGED) >= _JUDGED_AT_MOST:
        _JUDGED.clear()
    _JUDGED[facts] = results
    return results


@contextlib.contextmanager
def in_a_file(data: bytes, ending: str = "") -> Iterator[str]:
    with tempfile.NamedTemporaryFile(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None, suffix=ending) as file:
        file.write(data)
        file.flush()
        yield file.name


@lru_cache(None)
def recording(name: str) -> dict[str, Any]:
    return load_recording(str(TESTS / "hosts" / f"{name}.json"))


def leaves(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON value that holds something, as its container and its key or index."""
    found = []
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found.append((value, key))
        found += leaves(inner)
    return found


def of_text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode("utf-8", "replace"))


def refusing(parse: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """``parse`` is documented to raise ValueError for what it cannot read."""

    def read(data: bytes) -> object:
        try:
            return parse(data)
        except ValueError:
            return None

    return read


def odd_forms(data: bytes) -> Iterator[bytes]:
    """Yield ``data`` with each number, each end of a line and each blank another way, and behind it what is nested deeply: what chance seldom makes."""
    for number in ODD_NUMBERS:
        yield number.join(re.split(rb"[0-9]+", data))
    for sign in ODD_SIGNS:
        yield sign + data.replace(b"\n", sign + b"\n")
    yield data.replace(b"\n", b" ")
    yield data.replace(b" ", b"\n")
    if data.rstrip().endswith(b"}"):
        for deep in (b"[" * 700 + b"]" * 700, b"[" * 100_000, b'"\\ud800"', b"1e999"):
            yield data.rstrip()[:-1] + b', "zz": ' + deep + b"}"
            yield (b": " + deep).join(re.split(rb": *[0-9]+", data, maxsplit=3))


ODD_NUMBERS = (b"9" * 5000, b"9" * 400, "\u00b2".encode(), b"-1", b"0", b"1e999", b"9" * 20)
"""In the place of a number. int() refuses more than 4,300 digits, no float holds 400, and what isdigit() takes for one."""
ODD_SIGNS = (b"\0", b"\xef\xbb\xbf", b"\xed\xa0\x80", "\u2028".encode(), "e\u0301".encode() * 30, b"\x1c", b"\x1b[31m")
"""NUL, byte order mark, a surrogate, other ends of lines, combining characters, escapes."""


def reports(below: str = "evidence", kind: str = "") -> list[bytes]:
    """Pasted texts: those in the tests' own files, long strings in them, of which each names what it is."""
    import ast

    found = []
    for path in sorted((TESTS / below).glob(f"test_{kind}*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count("\n") > 3:
                found.append(node.value.encode("utf-8", "replace"))
    return found
