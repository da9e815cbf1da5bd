"""A directory for temporary files that cannot be written, and what Python takes in its place."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import judge, load

OPEN, CLOSED = {"read": True, "write": True}, {"read": True, "write": False}
ALONE, PASSED_OVER = "temporary-directory-not-writable", "temporary-directory-passed-over"


@pytest.mark.parametrize(
    ("env", "access", "there", "verdicts"),
    [
        ({}, {"/tmp": OPEN}, ["/var/tmp"], ("pass", "pass")),
        ({}, {"/tmp": CLOSED, "/var/tmp": OPEN}, ["/var/tmp"], ("pass", "fail")),
        ({}, {"/tmp": CLOSED, "/var/tmp": OPEN}, [], ("fail", "pass")),  # there is no such directory
        ({}, {"/tmp": CLOSED, "/var/tmp": CLOSED}, ["/var/tmp"], ("fail", "pass")),
        ({}, {"/tmp": CLOSED}, ["/var/tmp"], ("unknown", "unknown")),  # nobody knows whether that can be written
        ({"TMPDIR": "/scratch"}, {"/scratch": CLOSED, "/tmp": OPEN}, ["/scratch"], ("pass", "fail")),
        ({"TMPDIR": "/scratch"}, {"/scratch": CLOSED, "/tmp": CLOSED}, ["/scratch"], ("fail", "pass")),
    ],
)
def test_an_error_only_where_python_finds_no_other(
    env: dict[str, str], access: dict[str, Any], there: list[str], verdicts: tuple[str, str]
) -> None:
    answers = {f"access:{path}": answer for path, answer in access.items()}
    results = judge(load("healthy", env=env, answers=answers, dirs={path: [] for path in there}))
    assert tuple(results[rule].verdict.value for rule in (ALONE, PASSED_OVER)) == verdicts


@pytest.mark.parametrize(
    ("free", "fallback", "verdicts"),
    [
        (0, OPEN, ("pass", "pass", "fail")),
        (50, OPEN, ("fail", "pass", "pass")),  # Python makes its file there, and training uses the rest up
        (0, CLOSED, ("fail", "pass", "pass")),
    ],
)
def test_without_inodes_python_takes_the_next(free: int, fallback: dict[str, Any], verdicts: tuple[str, str, str]) -> None:
    space = {"size": 1 << 30, "free": 1 << 29, "inodes": 65536, "inodes_free": free, "read_only": False}
    host = load("healthy", answers={"access:/var/tmp": fallback}, dirs={"/var/tmp": []}, spaces={"/tmp": space, "/var/tmp": None})
    results = judge(host)
    assert tuple(results[rule].verdict.value for rule in ("inodes-exhausted", ALONE, PASSED_OVER)) == verdicts
