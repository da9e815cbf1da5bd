"""Find the lines that a passing test run wanted, and those that only list what codes and commits mean. Nothing of it happened to the reader's host.

A run in which one test failed is kept whole: which of its lines belong to that test is not known of every runner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchtune_sys.diagnosis.text.lines import LogLine
from torchtune_sys.model.patterns import pattern

_LONGEST = 300
_PROMPT = pattern(r"^(?:\([\w.-]{1,40}\) )?(?:\$|\[[^\]\n]{1,80}\][$#]|[\w.@:~/-]{1,80}[$#>]) ?(?P<command>\S.*)")
_TESTS = pattern(
    r"\b(?:pytest|unittest|nosetests|ctest|cargo(?: nextest)?(?: \S+)? test|go test|bats|prove|tox|nox|jest|npm (?:run )?test|make (?:check|test)|\S*_test)\b"
)
_BEGINS = pattern(
    r"=+ test session starts =+|\[=+\] Running \d+ tests?\b|running \d+ tests?$|TAP version \d|Test project \S|=== RUN |\s*Start +\d+: |test_\w{1,120} \(\S|=+ warnings summary =+|\S{1,200}\.py::\S{1,200}$|\S{1,200}\.py(?:::\S{1,200})?(?: PASSED| [.sxX]{1,200} {2,}\[)|(?:PASS|FAIL) \S+\.[jt]s"
)
"""pytest, GoogleTest, Rust's and TAP's runners, CTest, Go, unittest, Jest: before the output of the first test."""
_PASSES = pattern(
    r"=*\s?(?:\d{1,6} (?:skipped|deselected|xfailed|warnings?), )*\d{1,6} (?:passed|xfailed)(?:, \d{1,6} (?:passed|skipped|deselected|xfailed|xpassed|warnings?|rerun))* in [\d.:hms ()]+=*$"
    r"|OK(?: \((?:(?:expected failures|skipped|unexpected successes)=\d+(?:, )?)+\))?$|100% tests passed, 0 tests failed out of \d|\[  PASSED  \] \d+ tests?\.$|test result: ok\. \d+ passed; 0 failed"
    r"|# fail(?:ed|ures)?:? +0$|All tests successful\.|(?:ok  \t?|ok {2,})\S+\s+[\d.]+s$|PASS$|Tests run: [1-9]\d*, Failures: 0, Errors: 0\b|Tests: +\d+ passed, \d+ total"
)
"""The summary of a run in which nothing failed that should not."""
_FAILS = pattern(
    r"=*\s?(?:\d{1,6} \w+, )*\d{1,6} (?:failed|errors?)\b.{0,200} in [\d.]+ ?s|FAILED(?: \(| \S+::|$)|\[  FAILED  \]|\d+% tests passed, [1-9]|test result: FAILED|not ok \d(?!.*# (?:TODO|SKIP))|# fail(?:ed|ures)?:? +[1-9]|--- FAIL: |FAIL\b|ERROR: test|Tests run: .*(?:Failures|Errors): [1-9]|Tests: +\d+ failed"
)
_HEADING = pattern(
    r"(?i)^\W{0,8}(?:[\w-]+ ){0,3}(?:(?:exit|return|status|error|reason|state|signal|job state|job reason|xid)[ -](?:codes?|status|values?|reasons?)|errors|codes)\W{0,4}$"
)
_ROW = pattern(r"^\s{1,24}(?P<code>-?\d{1,4}|[A-Z][A-Za-z_]{1,40}|E[A-Z0-9]{2,14})(?: {2,}[A-Z][A-Z_]{3,40})? {1,40}\S")
_CODE = pattern(r"^\s{0,24}(?P<code>(?P<kind>[A-Z]{3,16})_[A-Z0-9_]{2,40})(?: {2,40}|\t{1,4})[A-Za-z]\w{1,20} ")
_ROWS = 3
"""Meanings, each of another code, below a heading that names codes."""
_HISTORY = pattern(
    r"\bgit (?:-\S+ )?(?:log|shortlog|blame|show|diff|grep)\b|\berrno (?:-\w|--\w+|[A-Z]{4,9}|\d{1,3})\b|\bman (?:-\w )?\w|\bapropos \w"
)


def lines_of(lines: Sequence[LogLine]) -> frozenset[LogLine]:
    """Return the lines of test runs that passed, of lists of codes, and of what git's history, errno and man print.

    >>> text = ["$ pytest -q", "OSError: [Errno 28] No space left on device", "1 passed in 0.10s", "step 3"]
    >>> logged = [LogLine(number=at, text=each, printed=each) for at, each in enumerate(text, 1)]
    >>> sorted(line.number for line in lines_of(logged))
    [1, 2, 3]
    """
    spans = (*_passed(lines), *_meanings(lines), *_reasons(lines), *_history(lines))
    return frozenset(
        line for start, end in spans for line in lines[start:end] if _writer(lines[start]) in (_NOBODY, _writer(line))
    )


_TAG = pattern(r"(?:^|\s)[A-Za-z][\w.-]{0,40}\[\d{1,9}\]:? ?$")
_NOBODY = ("", None, None, "")


def _writer(line: LogLine) -> tuple[str, int | None, int | None, str]:
    """Return who wrote a line: what one rank, or a program in the system's log, prints as if it were a test run's or a prompt's hides nothing that another says."""
    tag = _TAG.search(line.printed[: -len(line.text)][-_TAG_LONGEST:]) if line.text else None
    return line.host, line.rank, line.pid, tag[0] if tag is not None else ""


_TAG_LONGEST = 80


def _passed(lines: Sequence[LogLine]) -> Iterator[tuple[int, int]]:
    start, end, failed = -1, -1, False
    for at, line in enumerate(lines):
        text = line.text[:_LONGEST].strip()
        command = _PROMPT.match(text)
        begins = _TESTS.search(command["command"]) is not None if command is not None else _BEGINS.match(text) is not None
        if command is not None or (begins and start < 0):
            if end > start >= 0 and not failed:
                yield start, end
            start, end, failed = (at, -1, False) if begins else (-1, -1, False)
        elif start >= 0:
            failed |= _FAILS.match(text) is not None
            end = at + 1 if _PASSES.match(text) else end
    if end > start >= 0 and not failed:
        yield start, end


def _meanings(lines: Sequence[LogLine]) -> Iterator[tuple[int, int]]:
    for at, line in enumerate(lines):
        if _HEADING.match(line.printed[:_LONGEST]) is None:
            continue
        margin = _indent(line)
        end = next((later for later in range(at + 1, len(lines)) if _indent(lines[later]) <= margin), len(lines))
        rows = [found["code"] for each in lines[at + 1 : end] if (found := _ROW.match(each.printed[:_LONGEST])) is not None]
        if len(rows) >= _ROWS and len(set(rows)) == len(rows):
            yield at, end


def _reasons(lines: Sequence[LogLine]) -> Iterator[tuple[int, int]]:
    """Yield neighbouring lines that each say what another code means, all codes with the same beginning (``TERM_MEMLIMIT``)."""
    start, codes = 0, list[str]()
    for at, line in enumerate((*lines, None)):
        found = _CODE.match(line.printed[:_LONGEST]) if line is not None else None
        if found is not None and (not codes or (found["kind"] == codes[0].partition("_")[0] and found["code"] not in codes)):
            codes.append(found["code"])
            continue
        if len(codes) >= _ROWS:
            yield start, at
        start, codes = (at, [found["code"]]) if found is not None else (at + 1, [])


def _indent(line: LogLine) -> int:
    return len(line.printed) - len(line.printed.lstrip())


def _history(lines: Sequence[LogLine]) -> Iterator[tuple[int, int]]:
    for at, line in enumerate(lines):
        command = _PROMPT.match(line.text[:_LONGEST])
        if command is not None and _HISTORY.search(command["command"]):
            yield (
                at,
                next((later for later in range(at + 1, len(lines)) if _PROMPT.match(lines[later].text[:_LONGEST])), len(lines)),
            )
