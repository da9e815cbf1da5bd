"""No pattern by which strangers' texts are read divides a run of one sign in every way: (?:\\S+\\W){0,6}, (?:<a+)+ take time without end on a line of 40 signs. None takes four
times the time for twice the text, but those of which it is said here who bounds the text."""

from __future__ import annotations

import ast
import contextlib
import importlib
import pkgutil
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest

import torchtune_sys
from torchtune_sys.diagnosis import told_states
from torchtune_sys.diagnosis.ranks.collectives import of_stacks
from torchtune_sys.diagnosis.text.lines import LogLine
from torchtune_sys.evidence import rocm_smi
from torchtune_sys.knowledge import tables
from torchtune_sys.knowledge.sentences import NEAR
from torchtune_sys.knowledge.stated_words import filled

IN_RE = sys.version_info >= (3, 11)
PARSER: Any = importlib.import_module("re._parser" if IN_RE else "sre_parse")
KINDS: Any = importlib.import_module("re._constants" if IN_RE else "sre_constants")
REPEATS = (KINDS.MAX_REPEAT, KINDS.MIN_REPEAT)
NOTHING = (KINDS.ASSERT, KINDS.ASSERT_NOT, KINDS.AT)
SIGNS = [chr(number) for number in range(32, 127)]
PACKAGES = ("diagnosis", "evidence", "formats", "host", "knowledge", "fleet", "preflight", "probes")


def fits(item: tuple[Any, Any], sign: str) -> bool:
    """Return whether an item of a pattern can be this one sign."""
    kind, value = item
    if kind is KINDS.IN:
        return any(fits(part, sign) for part in value) != (value[0][0] is KINDS.NEGATE)
    if kind is KINDS.CATEGORY:
        *_, negated, name = f"_{value}".split("_")
        known = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}[name]
        return bool(re.match(known, sign)) != (negated == "NOT")
    if kind is KINDS.RANGE:
        return bool(value[0] <= ord(sign) <= value[1])
    return (
        kind is KINDS.ANY or (kind is KINDS.LITERAL and value == ord(sign)) or (kind is KINDS.NOT_LITERAL and value != ord(sign))
    )


def items(pattern: Any) -> Iterator[tuple[Any, Any]]:
    for kind, value in pattern:
        if kind is KINDS.SUBPATTERN:
            yield from items(value[3])
        elif kind not in NOTHING:
            yield kind, value


def divided(pattern: Any) -> Iterator[Any]:
    """Yield the repeats whose body is of any length, and of one sign, if that is repeated."""
    for kind, value in pattern:
        if kind in REPEATS:
            body = [*items(value[2])]
            grows = [part[2][0] for what, part in body if what in REPEATS and part[1] > part[0] + 3 and len(part[2]) == 1]
            must = [part if part[0] not in REPEATS else part[1][2][0] for part in body if part[0] not in REPEATS or part[1][0]]
            if value[1] > 2 and any(all(fits(part, sign) for part in (each, *must)) for each in grows for sign in SIGNS):
                yield value
            yield from divided(value[2])
        elif kind is KINDS.SUBPATTERN:
            yield from divided(value[3])
        elif kind is KINDS.BRANCH:
            yield from (found for branch in value[1] for found in divided(branch))
        elif kind in NOTHING[:2]:
            yield from divided(value[1])


def is_divided(pattern: str) -> bool:
    return any(divided(PARSER.parse(pattern)))


@pytest.mark.parametrize(
    "pattern", [r"(?:\S+\W){0,6}x", r"(?:[<>]=?\S{1,60})+x", "(?:a+)+x", r"(?:[^\w.]{1,3}[\w/%.'+-]+){0,8}?x", "(?:(a*)b?)*c"]
)
def test_such_patterns_are_known(pattern: str) -> None:
    assert is_divided(pattern)


@pytest.mark.parametrize("pattern", [r"(?:\S+ ){0,6}x", "(?:the |my )*x", r"(?:\d{1,3}\.){3}x", r"(?:a b+ )*"])
def test_others_are_not(pattern: str) -> None:
    assert not is_divided(pattern)


@pytest.mark.parametrize("table", ["sentences", "operations", "stated_causes", "told_states", "told_symptoms"])
def test_no_row_of_a_table_is_such_a_pattern(table: str) -> None:
    words = {"pattern", "also", "unless", "subject", "fault", "help", "setting", "claim", "state", "complaint"}
    rows = [row[column] for row in tables.rows(table) for column in words & set(row)]
    rows = [row if table == "sentences" else filled(row) for row in rows]
    assert [part for row in rows for part in row.split(" && ") if is_divided(part.removeprefix(NEAR))] == []
    assert not [row.causes for row in told_states._rows() if is_divided(row.words.pattern)]


def test_no_pattern_of_a_module_is() -> None:
    found = {}
    for module in pkgutil.walk_packages(torchtune_sys.__path__, "torchtune_sys."):
        if module.name.split(".")[1] in PACKAGES and not module.name.endswith("child"):
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(text := getattr(value, "pattern", None), str):
                    found[f"{module.name}.{name}"] = text
    assert len(found) > 300
    slow = [name for name, text in found.items() if is_divided(text)]
    assert not slow, (
        f"{', '.join(slow)}: a repeat within a repeat, which may share the same text out in many ways; match one line, then loop"
    )


# -- growth: a text that is made from a pattern's own parse, and four times as long --------------------------------------------------------

_ATOMIC, _POSSESSIVE = (getattr(KINDS, name, None) for name in ("ATOMIC_GROUP", "POSSESSIVE_REPEAT"))
_LONG = 1000
"""A repeat of fewer is no run without end."""
_PROBED = [
    chr(number) for number in (*range(97, 123), *range(48, 58), *range(32, 48), *range(58, 65), *range(65, 97), 123, 124, 125, 9)
]
_SHORT, _GROWN = 2048, 8192
_QUICK_S, _LINEAR, _LONGEST_S = 0.002, 8.0, 1.0
"""CPU seconds for 4 kB within which nothing is looked at again; times the time for four times the length: 4 in proportion, 16 quadratic."""


def _sample(pattern: Any, wished: str = "") -> str:
    """Return a short text that the pattern takes, of the sign that is wished where it may stand."""
    text = ""
    for kind, value in pattern:
        if kind is KINDS.SUBPATTERN:
            text += _sample(value[3], wished)
        elif kind is KINDS.BRANCH:
            text += _sample(value[1][0], wished)
        elif kind in (*REPEATS, _POSSESSIVE):
            text += _sample(value[2], wished) * value[0]
        elif kind is _ATOMIC:
            text += _sample(value, wished)
        elif kind not in (*NOTHING, KINDS.GROUPREF, KINDS.GROUPREF_EXISTS):
            text += next(
                (sign for sign in (*wished, *_PROBED) if fits((kind, value), sign)), chr(value) if kind is KINDS.LITERAL else ""
            )
    return text


def _repeated(pattern: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """Yield what stands before each long repeat, and what it may repeat."""
    for item in pattern:
        kind, value = item
        if kind in (*REPEATS, _POSSESSIVE):
            if value[1] >= _LONG:
                parts = [branch for what, inner in items(value[2]) if what is KINDS.BRANCH for branch in inner[1]]
                yield from (
                    (before, text)
                    for text in {_sample(part, sign) for part in (value[2], *parts) for sign in ("", *" a0:.x")} - {""}
                )
            yield from _repeated(value[2], before)
        elif kind is KINDS.BRANCH:
            for branch in value[1]:
                yield from _repeated(branch, before)
        elif kind is KINDS.SUBPATTERN or kind is _ATOMIC or kind in NOTHING[:2]:
            yield from _repeated(value[3] if kind is KINDS.SUBPATTERN else value if kind is _ATOMIC else value[1], before)
        before += _sample([item])


def _costly_texts(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield beginnings and what goes on behind them: the repeat alone, what leads to it again and again, and all of it."""
    parsed = PARSER.parse(pattern.pattern, pattern.flags & ~re.UNICODE)
    found = {"": None, ("", _sample(parsed)): None}
    for before, body in _repeated(parsed):
        found |= dict.fromkeys([(before, body), ("", before + body), ("", before)])
    yield from (each for each in found if each and each[1])


def _late(_number: int, _frame: object) -> NoReturn:
    raise TimeoutError


def _seconds(use: Callable[[str], object], text: str, limit: float, times: int = 1) -> float:
    """CPU seconds of the quickest time, at most ``limit``: then a match is broken off (re asks for signals as it goes)."""
    least = limit
    usual = signal.signal(signal.SIGPROF, _late)
    try:
        for _ in range(times):
            began = time.thread_time()
            signal.setitimer(signal.ITIMER_PROF, limit)
            with contextlib.suppress(TimeoutError):
                use(text)
            signal.setitimer(signal.ITIMER_PROF, 0)
            least = min(least, time.thread_time() - began)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, usual)
    return least


def growing(pattern: re.Pattern[str], methods: frozenset[str]) -> str:
    """Return the beginning of a text whose time grows faster than it, or an empty one."""
    anchored = methods and methods <= {"match", "fullmatch"}

    def use(text: str) -> object:
        return pattern.match(text) if anchored else deque(pattern.finditer(text), maxlen=0)

    for before, body in _costly_texts(pattern):
        short, grown = (before + body * (size // len(body)) + "\0" for size in (_SHORT, _GROWN))
        if (
            _seconds(use, short, _LONGEST_S) > _QUICK_S
            and (least := _seconds(use, short, _LONGEST_S, 3)) > _QUICK_S
            and (least >= _LONGEST_S or _seconds(use, grown, (most := _LINEAR * least) + 0.01) > most)
        ):
            return f"{before[:40]!r} {body[:40]!r}"
    return ""


_METHODS = frozenset(("search", "match", "fullmatch", "finditer", "findall", "sub", "subn", "split"))
_ROOT = Path(torchtune_sys.__file__).parent
_SKIPPED = (".__main__", "child", ".torchrun.handler", ".smoke.worker.")
"""Modules that need torch, or run when they are imported."""


@cache
def _trees() -> dict[str, ast.Module]:
    return {str(path.relative_to(_ROOT)): ast.parse(path.read_text()) for path in sorted(_ROOT.rglob("*.py"))}


@cache
def _uses() -> dict[str, frozenset[str]]:
    """Return by which methods the patterns of a name are used: in a module (``path name``), and wherever."""
    found: dict[str, set[str]] = {}
    for path, tree in _trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in _METHODS and isinstance(node.value, (ast.Name, ast.Attribute)):
                name = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
                found.setdefault(name, set()).add(node.attr)
                found.setdefault(f"{path} {name}", set()).add(node.attr)
    return {name: frozenset(methods) for name, methods in found.items()}


def _inside(value: Any) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for each in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from _inside(each)


def _of_modules() -> Iterator[tuple[str, re.Pattern[str], frozenset[str]]]:
    """Yield each pattern that a module keeps, by its module and name, with the methods that are called on such a name."""
    for module in pkgutil.walk_packages(torchtune_sys.__path__, "torchtune_sys."):
        if not any(part in f"{module.name}." if part.endswith(".") else module.name.endswith(part) for part in _SKIPPED):
            own = module.name.removeprefix("torchtune_sys.")
            path = f"{own.replace('.', '/')}{'/__init__' if module.ispkg else ''}.py"
            for name, value in vars(importlib.import_module(module.name)).items():
                methods = _uses().get(f"{path} {name}") or _uses().get(name, frozenset())
                yield from ((f"{own}.{name}", pattern, methods) for pattern in _inside(value))


def _written_where_used() -> Iterator[tuple[str, re.Pattern[str], frozenset[str]]]:
    """Yield each ``re.search("…", …)``, by its module and beginning."""
    for path, tree in _trees().items():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=method), args=[ast.Constant(value=str(text)), *_]):
                    if method in _METHODS:
                        flags = [
                            getattr(re, word.attr)
                            for word in ast.walk(node)
                            if isinstance(word, ast.Attribute) and word.attr.isupper()
                        ]
                        yield f"{path} {text[:40]}", re.compile(text, sum(flags)), frozenset((method,))


BOUNDED = {
    "diagnosis.ranks.file_names._SUFFIX": "a file's name: PATH_MAX",
    "diagnosis.shadowing._STEM": "diagnose took time in proportion for paths of 15 to 60 kB",
    "diagnosis.symptoms._PASSED": "match() by a tuple of them",
    "diagnosis.symptoms._LOOKS_FOR": "match() by a tuple of them",
    "diagnosis.symptoms._COMMENT": "match() by a tuple of them",
    "diagnosis.text.cut_columns._VARIABLE": "rows of our tables",
    "diagnosis.text.failures.DEATHS": "the first 400 signs of a line",
    "diagnosis.text.lines._WORDS": "the first 160 signs of a line",
    "evidence.lspci._GPU_NAME": "a row of lspci -t with 60 kB of such words took 0.02 s",
    "evidence.nvidia.smi._FIRST": "lines below 1,000 signs",
    "evidence.nvidia.smi._SECOND": "1,000 signs of a line",
    "evidence.nvidia.smi._THIRD": "1,000 signs of a line",
    r"gen/collection/role.py \b[VOC]\(([^)]*)\)": "our own documents",
    r"smoke/worker/identity.py \[(\w+)[^\]]*\]": "torch's own words, in the process of who owns it",
    "evidence.nvidia.smi._PROCESS": "1,000 signs of a line",
    "formats.line_prefixes._WORD": "the first 200 signs of a line",
    "knowledge.stated_words._NAME": "rows of our tables",
    "evidence.rocm_smi._FIRST": "lines below 300 signs",
    "evidence.rocm_smi._SECOND": "lines below 300 signs: test_a_row_of_amd_smi_of_any_length",
}
"""Patterns that grow by themselves, and who bounds what they are given, as it was read there."""


@pytest.mark.parametrize("pattern", [r"(\w+)\.py$", r"a.*b", r"\s*x", r"x\d+.*y", r"\[[^\]]*z"])
def test_growth_is_known(pattern: str) -> None:
    tries = (
        growing(re.compile(pattern), frozenset(("search",))) for _ in range(5)
    )  # a processor that others use goes on at half its pace now and then
    assert any(tries)


@pytest.mark.parametrize(
    ("pattern", "method"), [(r"(\w+)\.py$", "match"), (r"\w{1,80}\.py", "search"), (r"ab*c", "search"), (r"\s*x", "match")]
)
def test_what_takes_time_in_proportion_is_not_taken_for_growth(pattern: str, method: str) -> None:
    assert not growing(re.compile(pattern), frozenset((method,)))


@pytest.mark.slow
@pytest.mark.parametrize("patterns", [_of_modules, _written_where_used])
def test_each_pattern_takes_time_in_proportion_or_its_text_is_bounded(patterns: Callable[[], Iterator[Any]]) -> None:
    seen: set[tuple[Any, ...]] = set()
    found = {}
    for name, pattern, methods in patterns():
        if (pattern, methods) not in seen and name not in BOUNDED and (text := growing(pattern, methods)):
            found[name] = text
        seen.add((pattern, methods))
    assert len(seen) > 150
    assert found == {}


def test_a_row_of_amd_smi_of_any_length() -> None:
    """The second line of a row was of any length: 60 kB of blanks took minutes."""
    above = "| 0000:01:00.0 AMD Instinct MI300X | 0 % 45 C 0 100/750 W |\n"
    assert rocm_smi.gpu_facts(above + "|  0 1 2 N/A |  10 %  x 1/2 MB |") is not None
    began = time.thread_time()
    rocm_smi.gpu_facts(above + "| 0 a a a | N/A " + " " * 8192 + "x")
    assert time.thread_time() - began < 0.5


def test_a_head_of_a_thread_of_any_length() -> None:
    """Four lines of 60 kB took 14 s."""
    lines = [LogLine(number=1, text=(text := "Thread 0x" + "0" * 32768 + "\x01"), printed=text)]
    began = time.thread_time()
    assert not list(of_stacks({"a": lines, "b": lines}))
    assert time.thread_time() - began < 0.5
