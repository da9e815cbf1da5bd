"""Lines of a kernel log: which say something, and when they were written."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtune_sys.formats import kernel_log
from torchtune_sys.formats.kernel_log import LINES, WIDTH, WORDS, is_crash, message_start, stamps, telling
from torchtune_sys.formats.kernel_messages import EVENTS, address, events, read_log

XID = "NVRM: Xid (PCI:0000:18:00): 79, pid=7, name=python3, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        (f"[   12.345678] {XID}", 12.345678),
        (f"<3>[   12.345678] {XID}", 12.345678),
        (f"[   12.345678][ T1234] {XID}", 12.345678),
        (f"[Sun Feb 23 16:24:18 2025] {XID}", 1740327858.0),
        (f"2025-02-23T16:24:18,500000+00:00 {XID}", 1740327858.5),
        (f"kern  :err   : 2025-02-23T17:24:18,500000+01:00 {XID}", 1740327858.5),
        (f"2025-02-23T16:24:18.5+0000 trainer-01 kernel: {XID}", 1740327858.5),
        (f"2025-02-23 16:24:18 trainer-01 kernel: {XID}", 1740327858.0),
        (f"2025-02-23T11:24:18-0500 trainer-01 kernel: [  999.000000] {XID}", 1740327858.0),
        (f"Feb 23 16:24:18 trainer-01 kernel: [  999.123456] {XID}", 67710258.0),
        (f"1740327858.500000 trainer-01 kernel: {XID}", 1740327858.5),
        (XID, None),
    ],
)
def test_time_stamps_of_all_tools(line: str, seconds: float | None) -> None:
    found = next(stamps([line]))[0]
    assert found == seconds
    facts = read_log(line, "report")
    assert facts is not None and not isinstance(facts.events, type(None))
    assert [(event.kind, event.code) for event in facts.events] == [("xid", 79)]  # type: ignore[union-attr]


def test_a_year_that_syslog_does_not_show_turns() -> None:
    (december, _), (january, _) = stamps([f"Dec 31 23:59:00 h kernel: {XID}", f"Jan  1 00:01:00 h kernel: {XID}"])
    assert january is not None and december is not None
    assert 0 < january - december < 2 * 86_400


def test_relative_times_add_up() -> None:
    assert [time for time, _ in stamps([f"[   3.000000] {XID}", f"[  +0.500000] {XID}", f"[  +1.000000] {XID}"])] == [
        3.0,
        3.5,
        4.5,
    ]


def test_the_distance_to_a_line_that_was_cut_off_is_no_time_since_boot() -> None:
    assert [time for time, _ in stamps([f"[  +6.010643] {XID}", f"[  +1.000000] {XID}"])] == [None, None]


@pytest.mark.parametrize(
    "head", ["[Sun Foo 99 99:99:99 2025]", "2025-13-45T99:00:00", "[99999999999999999.000000]", "Xyz 40 25:61:61"]
)
def test_a_time_of_no_calendar_is_none(head: str) -> None:
    assert next(stamps([f"{head} {XID}"]))[0] is None


def test_quiet_lines_are_left_out_and_colours_taken_off() -> None:
    assert telling(f"usb 1-1: new device\n\x1b[32m[    1.000000] \x1b[0m\x1b[31m{XID}\x1b[0m\r\nok") == [f"[    1.000000] {XID}"]


def test_each_word_is_found_where_it_stands_alone() -> None:
    lines = {word: f"[1.000000] x+0x1a/0x90 {word}y" if word[0] == "[" else f"[1.000000] x{word}y" for word in WORDS}
    assert [word for word, line in lines.items() if telling(f"first line\n{line}\nlast line\n") != [line]] == []


def test_the_words_are_sought_in_what_all_lines_say_and_lines_told_as_they_stand() -> None:
    log = "6,1,5,-;NVRM: loaded\n6,2,9,-;usb 1-1: new device\n6,3,12,-;NVRM: loaded\n"
    assert telling(log, "usb 1-1: new device\nNVRM: loaded") == ["6,1,5,-;NVRM: loaded", "6,3,12,-;NVRM: loaded"]


def test_the_serial_number_of_a_board_is_never_kept() -> None:
    assert telling("[1.000000] NVRM: GPU Board Serial Number: 1650124014249\n") == []


def test_a_flood_leaves_room_for_what_is_rare() -> None:
    flood = "pcieport 0000:00:03.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)\n"
    facts = read_log(f"{XID}\n{flood * (LINES + 500)}", "report")
    assert facts is not None
    assert [event.kind for event in facts.events] == ["xid", "aer-corrected"]  # type: ignore[union-attr]


def test_lines_are_cut() -> None:
    assert all(len(line) <= WIDTH for line in telling(XID + "x" * 100_000))


@pytest.mark.parametrize("text", ["0000:18:00", "0000:18:00.0", "00000000:18:00.0", "18:00.0", "0000:18:00.0".upper()])
def test_addresses_of_all_writers_are_one(text: str) -> None:
    assert address(text) == "0000:18:00.0"


_PIECES = st.lists(
    st.one_of(
        st.sampled_from(WORDS), st.text(max_size=30), st.sampled_from((XID, "[ 1.000000] ", "\n", "0000:18:00.0", "(", ")", ": "))
    ),
    max_size=40,
).map("".join)


@settings(max_examples=150, deadline=None)
@given(_PIECES)
def test_any_text_can_be_read(text: str) -> None:
    facts = read_log(text, "report")
    assert facts is None or facts.events
    for line in telling(text):
        assert line in text or "\x1b" in text or "\r" in text or len(line) == WIDTH


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.one_of(st.none(), st.floats(0, 2e9)), _PIECES), max_size=20))
def test_events_are_in_order_and_counted(lines: list[tuple[float | None, str]]) -> None:
    found = tuple(events(lines))
    assert len(found) <= EVENTS
    assert all(event.count > 0 for event in found)
    assert sum(event.count for event in found) <= len(lines)


def test_crashes_of_other_programs_are_not_kept() -> None:
    """A recording shows them to strangers."""
    assert telling("[1.000000] secret-tool[4711]: segfault at 0 ip 0 sp 0 error 4 in libc.so.6[167ad8,7ff8]\n") == []


_BEGINNINGS = (
    "[",
    " ",
    "   ",
    "5",
    "1234567",
    "1234567890123",
    ".",
    "000001",
    "00000",
    "]",
    "] ",
    "[ T12]",
    "[    T1] ",
    "+",
    "\u0663",
    "<6>",
    "x",
    ", ",
)


@settings(max_examples=500, deadline=None, database=None)
@given(st.lists(st.sampled_from(_BEGINNINGS), max_size=8).map("".join))
def test_a_message_begins_where_the_pattern_says(line: str) -> None:
    """Of most lines the beginning is found without it."""
    for each in (line, f"[{line}", f"[    5.100000{line}", f"[    5.100000] {line}"):
        found = kernel_log._OF_A_DAEMON.match(each) or kernel_log._STAMP.match(each)
        assert message_start(each) == (found.end() if found else None)


@pytest.mark.parametrize(
    "words",
    [
        "segfault at 0",
        "general protection fault",
        "trap invalid opcode",
        "bad frame in x",
        "unhandled signal 11",
        "vsyscall read",
    ],
)
def test_a_crash_is_known_by_its_words(words: str) -> None:
    assert is_crash(f"python[77]: {words}", 0)
    assert not is_crash(f"python[77] {words[1:]}", 0)
