"""Decide why pip finds no wheel of torch, by the versions that it lists and the Python of the report: an index without this build, or one that has it for other Pythons only."""

from __future__ import annotations

import re

from torchtune_sys.knowledge.torch import pythons_of
from torchtune_sys.model.patterns import pattern

DECIDED = "wrong-wheel-index"
"""A cause that the words have, where the list decides."""
_ASKED = pattern(
    r"requirement torch(?:vision|audio)?={2,3}(?P<version>\d[\d.]{0,16})(?:\+(?P<build>cu\d{2,3}|rocm[\d.]{1,8}|cpu))?(?=[ ,;(]).{0,40}?\(from versions:? (?P<listed>[^)\n]{1,8000})"
)
_NAMED = pattern(r"(?:requirement|distribution found for) torch={2,3}(\d\.\d{1,2}(?:\.\d)?)(?=[\s,;(+]|$)")
_PYTHON = pattern(
    r"(?i)(?<![\w-])(?:c?python|py)(?:[ \t:=`'\"*(]|version|is){0,6}(3\.\d{1,2})(?![\d])(?!\+| or (?:newer|later|above|higher))|\bcp3(\d{1,2})\b|\bpython3\.(\d{1,2})/(?:site|dist)-packages"
)
_OF_AN_INDEX = pattern(r"requirement\s+torch(?:vision|audio)?(?![\w=<>~!-])[^)]{0,40}?\(from\s+versions:?\s+none")
_NONE_OF_IT = pattern(r"No matching distribution found for torch(?:vision|audio)?\s*$")
_INDEX = pattern(r"/whl/(?:nightly/|test/)?(?:cu\d{2,3}|rocm[\d.]{1,8}|xpu|cpu)\b")
_PLACEHOLDER = "0.1.2"
"""Releases of torch on PyPI that are sources without content: pip lists them for any Python."""
_LIKELY, _POSSIBLE, _LONGEST, _OLDEST = 2, 1, 200_000, 3


def reasons_of(words: str, text: str = "") -> tuple[tuple[str, int], ...]:
    """Return the causes, the likeliest first; empty where neither the words list versions nor the text names a Python for which the release has no wheel.

    >>> reasons_of("requirement torch==2.1.0+cu121 (from versions: 2.2.0, 2.2.0+cu121, 2.2.1+cu121)")
    (('no-wheel-for-python', 2), ('wrong-wheel-index', 1))
    >>> reasons_of("requirement torch==2.1.0+cu118 (from versions: 2.1.0, 2.2.0)")
    (('wrong-wheel-index', 2), ('no-wheel-for-python', 1))
    >>> reasons_of("requirement torch==1.8.2 (from versions: 1.8.0, 1.8.1, 1.9.0, 2.0.1)")
    (('wrong-wheel-index', 2), ('no-wheel-for-python', 1))
    >>> reasons_of("No matching distribution found for torch==1.10.0+cu113", "I use python 3.10")
    (('no-wheel-for-python', 2), ('wrong-wheel-index', 1))
    >>> reasons_of("No matching distribution found for torch==1.10.0+cu113", "It fails with python 3.1 (python 3.10)")[0]
    ('no-wheel-for-python', 2)
    >>> reasons_of("requirement torch (from versions: none)", "Looking in indexes: https://download.pytorch.org/whl/cu132")[0]
    ('wrong-wheel-index', 1)
    >>> reasons_of("No matching distribution found for torch==1.10.0+cu113", "I use Python 3.9 now, with 3.10 it is the same")
    ()
    """
    if _lacks_wheels(words, text):
        return (("no-wheel-for-python", _LIKELY), (DECIDED, _POSSIBLE))
    whole = text[:_LONGEST]
    if _INDEX.search(whole) and (_OF_AN_INDEX.search(words) or (_NONE_OF_IT.search(words) and _OF_AN_INDEX.search(whole))):
        return ((DECIDED, _POSSIBLE), ("no-wheel-for-python", _POSSIBLE))
    asked = _ASKED.search(words)
    if asked is None:
        return ()
    if asked["listed"].strip() == "none" or all(each.strip().startswith(_PLACEHOLDER) for each in asked["listed"].split(",")):
        return (("no-wheel-for-python", _POSSIBLE), (DECIDED, _POSSIBLE))
    if not asked["build"]:
        return _between(_number(asked["version"]), [_number(each.partition("+")[0]) for each in asked["listed"].split(",")])
    same = [each.strip() for each in asked["listed"].split(",") if each.strip().endswith(f"+{asked['build']}")]
    if same and all(_number(asked["version"]) < _number(each.partition("+")[0]) for each in same):
        return (("no-wheel-for-python", _LIKELY), (DECIDED, _POSSIBLE))
    return ((DECIDED, _LIKELY), ("no-wheel-for-python", _POSSIBLE))


def _lacks_wheels(words: str, text: str) -> bool:
    """Whether the release has no wheel for any Python that the text names: all are newer, or all are older."""
    named = _NAMED.search(words)
    known = pythons_of(named[1]) if named is not None else None
    if known is None:
        return False
    minors = (int((each[1] or "").partition(".")[2] or each[2] or each[3]) for each in _PYTHON.finditer(text[:_LONGEST]))
    told = [minor for minor in minors if minor >= _OLDEST]  # 3.1 is what is left of 3.10 where a line was cut
    return bool(told) and (min(told) > known[1] or max(told) < known[0])


def _between(version: tuple[int, ...], listed: list[tuple[int, ...]]) -> tuple[tuple[str, int], ...]:
    """Where the list has releases before and after the one that is asked for, this Python has wheels of both: the release itself is not there."""
    if min(listed) < version < max(listed):
        return ((DECIDED, _LIKELY), ("no-wheel-for-python", _POSSIBLE))
    return ()


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,6}", version)[:4])
