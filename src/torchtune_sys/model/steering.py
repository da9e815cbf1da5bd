r"""Neutralise characters and words that act where text is shown: in a terminal, on a page, in the log of a CI service.

>>> steers("net.core.somaxconn = 4096\n"), steers("\x1b[2J"), steers("a\rb")
(False, True, True)
>>> print(escaped("\x1b"), escaped("\u202e"))
\x1b \u202e
>>> disarmed("##[group]x"), disarmed("##vso[task.setvariable]"), disarmed("# a ## b")
('# #[group]x', '# #vso[task.setvariable]', '# a ## b')
>>> print(no_command("::error::x"), no_command("a ::error::x"), no_command("::1"))
\::error::x a ::error::x ::1
"""

from __future__ import annotations

from torchtune_sys.model.patterns import pattern

CONTROL = pattern("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and line feed, what turns the direction of writing, line separators, halves of a surrogate pair."""
_ANYWHERE = pattern(r"##(?=(?:vso|teamcity)?\[)")
"""What begins a command of GitHub's runner (ActionCommand.cs), Azure Pipelines or TeamCity wherever it stands in a line."""
_LEADING = pattern(r"(?m)^([ \t]*)(?=::[A-Za-z][\w-]*(?: [^\n]*)?::)")
"""GitHub's ``::command::``, which may be indented (ActionCommand.cs trims the line)."""


def steers(text: str) -> bool:
    """Return whether ``text`` holds what a terminal would act upon."""
    return not text.isprintable() and CONTROL.search(text) is not None


def escaped(sign: str) -> str:
    """Return how a character is shown that must not be sent."""
    number = ord(sign)
    return f"\\x{number:02x}" if number < 256 else (f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}")


def disarmed(text: str) -> str:
    """Return the text without the words that a CI service takes for a command wherever they stand."""
    return _ANYWHERE.sub("# #", text) if "##" in text else text


def no_command(rows: str) -> str:
    """Return rows of which none begins as GitHub's runner would take a command."""
    return _LEADING.sub(r"\1\\", rows) if "::" in rows else rows
