"""Values of variables that would break out of a form which quotes badly."""

from __future__ import annotations

from torchtune_sys.model.job import JobVariable

HOSTILE = (
    "$(id)",
    "`id`",
    "a'b\"c",
    "back\\slash\\",
    "50% $HOME ${X} %h",
    " two  blanks ",
    "# no comment",
    "",
    "é→",
    "a;b&c|d>e",
    "*?[",
    "!x",
    "-n",
    "~",
)


def variable(value: str | None, name: str = "A_NAME", *, reason: str = "why", sure: bool = True) -> JobVariable:
    return JobVariable(name=name, value=value, reason=reason, source="rule", sure=sure)
