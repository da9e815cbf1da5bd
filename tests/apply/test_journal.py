"""A journal that was cut or damaged: said so, or everything is put back, or what was not is told; never a lie."""

from __future__ import annotations

import json
import random
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import small

from torchtune_sys.remediation.apply import journal
from torchtune_sys.remediation.apply.entries import CommandEntry, Entry, FileEntry, ValueEntry

FIRST = "0001.journal"


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("journal") / "host"
    small.set_up(folder)
    assert not small.apply(folder).failed
    return folder


def damaged(applied: Path, content: bytes) -> tuple[str, dict[str, str]]:
    """What undoing with this journal says, and what there is then. The paths in it are those of ``applied``."""
    keep = applied.with_name("keep")
    shutil.rmtree(keep, ignore_errors=True)
    shutil.copytree(applied, keep)
    try:
        (applied / "state" / FIRST).write_bytes(content)
        try:
            result = small.take_back(applied)
        except journal.DamagedJournal as error:
            assert error.exit_code == 3 and "nothing was changed" in error.todo
            assert small.seen(applied) == small.seen(keep)
            return "damaged", {}
        return "in part" if result.kept or result.failed else "whole", small.seen(applied)
    finally:
        shutil.rmtree(applied)
        keep.rename(applied)


def judge(applied: Path, content: bytes) -> str:
    said, now = damaged(applied, content)
    if said == "whole":
        assert now == small.OLD
    return said


def test_undamaged(applied: Path) -> None:
    assert judge(applied, (applied / "state" / FIRST).read_bytes()) == "whole"


def cuts(content: bytes) -> Iterator[int]:
    """Every length around the ends of lines, and every 13th."""
    ends = {place for place, sign in enumerate(content) if sign == ord("\n")}
    near = {end + step for end in ends for step in range(-3, 4)}
    yield from sorted(cut for cut in {*near, *range(0, len(content), 13)} if 0 <= cut < len(content))


def test_cut_at_any_length(applied: Path) -> None:
    content = (applied / "state" / FIRST).read_bytes()
    header = content.index(b"\n")
    said = {cut: judge(applied, content[:cut]) for cut in cuts(content)}
    print({word: sum(found == word for found in said.values()) for word in ("damaged", "in part", "whole")})
    assert all(word == "damaged" for cut, word in said.items() if cut <= header)
    assert "in part" in said.values() and "whole" in said.values()


def test_a_byte_changed_anywhere(applied: Path) -> None:
    content = (applied / "state" / FIRST).read_bytes()
    chance = random.Random(4)
    said = []
    for _ in range(150):
        place, bit = chance.randrange(len(content)), 1 << chance.randrange(8)
        said.append(judge(applied, content[:place] + bytes((content[place] ^ bit,)) + content[place + 1 :]))
    assert said.count("damaged") > 130


@pytest.mark.parametrize("content", [b"", b"\n", b"\n\n", b"\0" * 4096, b"not a journal\n", b"00000000 {}\n"])
def test_no_journal_at_all(applied: Path, content: bytes) -> None:
    assert judge(applied, content) == "damaged"


def test_of_another_version(applied: Path, tmp_path: Path) -> None:
    """Whatever else it holds, it is not damaged: which version undoes it is said."""
    header = msgspec.json.decode((applied / "state" / FIRST).read_bytes().partition(b"\n")[0][9:])
    body = msgspec.json.encode(header | {"schema": "torchtune-sys/journal/2", "entries": [{"type": "of-later"}]})
    content = b"%08x %s\n" % (zlib.crc32(body), body) + b'00000000 {"what": 1}\n'
    assert judge(applied, content) == "damaged"
    (tmp_path / FIRST).write_bytes(content)
    with pytest.raises(journal.OtherVersion, match="torchtune-sys/journal/2"):
        journal.load(str(tmp_path), 1)


def test_lines_in_another_order(applied: Path) -> None:
    """Lines are whole, but what they tell was never so: undoing must not call it everything."""
    rows = (applied / "state" / FIRST).read_bytes().splitlines(keepends=True)
    for place in range(1, len(rows)):
        judge(applied, b"".join(rows[:place] + rows[place + 1 :]))


def test_other_names_are_no_journals(tmp_path: Path) -> None:
    for name in ("1.journal", "٠٠٠١.journal", "0001.journal.bak", ".0001.journal.torchtune-sys", "lock", "00001.journal"):
        (tmp_path / name).write_bytes(b"")
    assert journal.numbers(str(tmp_path)) == []
    (tmp_path / "12345.journal").write_bytes(b"00000000 {}\n")
    assert journal.numbers(str(tmp_path)) == [12345]


@pytest.mark.parametrize("stray", ["999999999.journal", "0999.journal", "0002.journal.d", "0003.journal"])
def test_the_run_after_a_stray_file_is_found_again(tmp_path: Path, stray: str) -> None:
    folder = tmp_path / "host"
    small.set_up(folder)
    assert not small.apply(folder).failed
    (folder / "state" / stray).write_text("not a journal")
    header = journal.load(str(folder / "state"), 1).header
    made = [journal.begin(str(folder / "state"), header).number for _ in range(3)]
    assert journal.numbers(str(folder / "state")) == [1, *made]
    assert (folder / "state" / stray).read_text() == "not a journal"


@pytest.mark.parametrize(
    "note",
    [
        {"what": "frobbed"},
        {"what": "frobbed", "entry": 0},
        {"what": "undone-all", "entry": 0},
        {"what": "done"},
        {"what": "done", "entry": 99},
        {"what": "applied", "entry": -5},
        {"what": "done", "entry": 10**400},
    ],
)
def test_a_note_that_no_run_makes(applied: Path, note: dict[str, object]) -> None:
    body = json.dumps(note).encode()
    assert judge(applied, (applied / "state" / FIRST).read_bytes() + b"%08x %s\n" % (zlib.crc32(body), body)) == "damaged"


@pytest.mark.parametrize(
    "entry",
    [
        ValueEntry(change="c", path="x", value="1", before="2"),
        ValueEntry(change="c", path="/proc/sys/../sysrq-trigger", value="1", before="2"),
        ValueEntry(change="c", path="/proc/sys/a\0b", value="1", before="2"),
        FileEntry(changes=("c",), path="etc/x", before=None),
        FileEntry(changes=("c",), path="/etc/a\0b", before=None),
        CommandEntry(change="c", argv=(), undo=("true",)),
        CommandEntry(change="c", argv=("true",), undo=()),
    ],
)
def test_a_step_that_no_run_makes(applied: Path, entry: Entry) -> None:
    header = journal.load(str(applied / "state"), 1).header
    assert judge(applied, journal.line(msgspec.structs.replace(header, entries=(*header.entries, entry)))) == "damaged"


def test_behind_the_greatest_number_nothing_is_begun(tmp_path: Path) -> None:
    folder = tmp_path / "host"
    small.set_up(folder)
    assert not small.apply(folder).failed
    (folder / "state" / FIRST).rename(folder / "state" / "999999999.journal")
    with pytest.raises(OSError, match="no number is left"):
        journal.begin(str(folder / "state"), journal.load(str(folder / "state"), 999999999).header)
    assert journal.numbers(str(folder / "state")) == [999999999]
