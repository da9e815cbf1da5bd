"""What reaches a terminal: wrapped, and nothing in it that the terminal would act upon."""

from __future__ import annotations

import re
import shlex

from hypothesis import given
from hypothesis import strategies as st

from torchtune_sys.render.layout import Style, clean, cut, line, render

ANY = st.text(st.characters(codec=None), max_size=60)


@given(ANY)
def test_cleaned_text_holds_nothing_that_a_terminal_acts_upon(text: str) -> None:
    found = clean(text)
    assert found.isprintable()
    found.encode()  # no lone surrogate either


def test_escape_sequences_and_overrides_are_shown_not_sent() -> None:
    shown = render([line("a\x1b]0;title\x07b\u202ec\x9bd\ud800")], Style())
    assert shown == "a\\x1b]0;title\\x07b\\u202ec\\x9bd\\ud800\n"


def test_line_breaks_in_a_value_do_not_make_lines() -> None:
    assert render([line("one\ntwo\r\nthree\u2028four")], Style()) == "one two three\\u2028four\n"


@given(st.lists(st.text("abc/-", min_size=1, max_size=12), max_size=30), st.integers(40, 100))
def test_lines_are_no_wider_than_asked_and_lose_no_word(words: list[str], width: int) -> None:
    shown = render([line(" ".join(words), label="label", hang=8)], Style(width=width))
    assert all(len(row) <= width for row in shown.splitlines())
    assert shown.split() == ["label", *words]


@given(
    st.lists(st.text("abc/-", min_size=1, max_size=40), min_size=1, max_size=9),
    st.text("ab", max_size=36),
    st.integers(0, 4),
    st.integers(0, 60),
    st.integers(40, 100),
    st.booleans(),
)
def test_only_a_word_that_is_wider_than_the_terminal_leaves_it(
    words: list[str], label: str, indent: int, hang: int, width: int, is_command: bool
) -> None:
    given = line(" ".join(words), label=label, indent=indent, hang=hang, is_command=is_command)
    rows = [row.removesuffix(" \\") for row in render([given], Style(width=width)).splitlines()]
    assert all(len(row) <= width for row in rows)
    shown = " ".join(rows).split()
    assert shown == [*([label] if label else []), *words] or hang <= indent + len(label)


def test_a_word_longer_than_the_line_stays_whole_so_that_it_can_be_copied() -> None:
    path = "/" + "x" * 90
    assert path in render([line(f"see {path}")], Style(width=40)).splitlines()


def test_following_rows_hang_below_the_words() -> None:
    rows = render([line("aaaa " * 20, label="GPU", hang=8)], Style(width=40)).splitlines()
    assert rows[0].startswith("GPU     aaaa")
    assert all(row.startswith("        aaaa") for row in rows[1:])


def test_colour_changes_nothing_but_codes() -> None:
    lines = [line(("The driver is too old", "bold"), " for ", ("this torch", "error"), label=("error", "error"), hang=8)]
    plain = render(lines, Style(width=30))
    colored = render(lines, Style(width=30, color=True))
    assert "\x1b[" in colored and "\x1b[" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain


@given(ANY, st.integers(2, 40))
def test_cut_keeps_to_its_limit(text: str, limit: int) -> None:
    assert len(cut(text, limit)) <= limit


def test_a_command_that_is_too_long_for_a_row_goes_on_as_a_shell_takes_it() -> None:
    words = "sudo apt-get install --yes nvidia-fabricmanager=580.95.05"
    shown = render([line(words, indent=4, is_command=True)], Style(width=40))
    assert max(map(len, shown.splitlines())) <= 40
    assert shown.splitlines()[0].endswith(" \\") and not shown.rstrip().endswith("\\")
    assert shlex.split(shown.replace("\\\n", "")) == words.split()


def test_the_tool_is_named_as_it_was_called_where_a_command_begins_and_nowhere_else() -> None:
    text = "sudo torchtune-sys apply, or 99-torchtune-sys.conf of torchtune-sys 0.1.0; torchtune-sys: no"
    shown = render([line(text)], Style(width=200, program="./run"))
    assert shown == "sudo ./run apply, or 99-torchtune-sys.conf of torchtune-sys 0.1.0; torchtune-sys: no\n"
    assert render([line(text, is_elsewhere=True)], Style(width=200, program="./run")) == f"{text}\n", (
        "another host has no clone here"
    )
