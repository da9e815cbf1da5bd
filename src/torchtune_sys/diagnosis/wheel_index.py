"""Decide why pip finds no wheel of torch, by the versions that it lists: an index without this build, or one that has it for other Pythons only."""

from __future__ import annotations

import re

DECIDED = "wrong-wheel-index"
"""A cause that the words have, where the list decides."""
_ASKED = re.compile(
    r"requirement torch(?:vision|audio)?={2,3}(?P<version>\d[\d.]{0,16})(?:\+(?P<build>cu\d{2,3}|rocm[\d.]{1,8}|cpu))?(?=[ ,;(]).{0,40}?\(from versions: (?P<listed>[^)]{1,8000})\)"
)
_LIKELY, _POSSIBLE = 2, 1


def reasons_of(words: str) -> tuple[tuple[str, int], ...]:
    """Return the causes, the likeliest first; empty where the words list no versions.

    >>> reasons_of("requirement torch==2.1.0+cu121 (from versions: 2.2.0, 2.2.0+cu121, 2.2.1+cu121)")
    (('no-wheel-for-python', 2), ('wrong-wheel-index', 1))
    >>> reasons_of("requirement torch==2.1.0+cu118 (from versions: 2.1.0, 2.2.0)")
    (('wrong-wheel-index', 2), ('no-wheel-for-python', 1))
    >>> reasons_of("requirement torch==1.8.2 (from versions: 1.8.0, 1.8.1, 1.9.0, 2.0.1)")
    (('wrong-wheel-index', 2), ('no-wheel-for-python', 1))
    """
    asked = _ASKED.search(words)
    if asked is None:
        return ()
    if asked["listed"].strip() == "none":
        return (("no-wheel-for-python", _POSSIBLE), (DECIDED, _POSSIBLE))
    if not asked["build"]:
        return _between(_number(asked["version"]), [_number(each.partition("+")[0]) for each in asked["listed"].split(",")])
    same = [each.strip() for each in asked["listed"].split(",") if each.strip().endswith(f"+{asked['build']}")]
    if same and all(_number(asked["version"]) < _number(each.partition("+")[0]) for each in same):
        return (("no-wheel-for-python", _LIKELY), (DECIDED, _POSSIBLE))
    return ((DECIDED, _LIKELY), ("no-wheel-for-python", _POSSIBLE))


def _between(version: tuple[int, ...], listed: list[tuple[int, ...]]) -> tuple[tuple[str, int], ...]:
    """Where the list has releases before and after the one that is asked for, this Python has wheels of both: the release itself is not there."""
    if min(listed) < version < max(listed):
        return ((DECIDED, _LIKELY), ("no-wheel-for-python", _POSSIBLE))
    return ()


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,6}", version)[:4])
