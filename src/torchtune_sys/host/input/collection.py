"""Whatever a person has of a failure: files, directories, archives and standard input, each text in bounded memory, nothing unpacked to disk."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator

import msgspec

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host.input.excerpts import Excerpt, MemoryBudget, excerpt
from torchtune_sys.host.input.limits import BUDGET_LIMIT, FILE_LIMIT, MEMBER_LIMIT, SOURCES_LIMIT, STREAM_LIMIT, TIMEOUT_S
from torchtune_sys.host.input.reading import (
    ZIP,
    Source,
    damaged,
    decompressed,
    display_name,
    opened_input,
    refuse_strangers,
)
from torchtune_sys.host.input.tarball import is_tar, members
from torchtune_sys.model.diagnosis import UnreadSource


class InputText(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    excerpt: Excerpt


class InputDump(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that are not text: what reads them never runs them."""

    name: str
    data: bytes


Found = InputText | InputDump | UnreadSource
_DUMP_LIMIT = 64 << 20
_PICKLE = b"\x80"
"""How protocols 2 and above begin (PEP 307); torch's flight recorder writes them (torch/csrc/distributed/c10d/FlightRecorder.hpp)."""
_ZIP_ENTRY, _ZIP_ENTRIES = b"PK\x01\x02", 100_000
_TOO_MANY = f"more than {MEMBER_LIMIT:,} entries of archives: the rest is left out"
_DEPTH = 3
"""Archives in archives."""
_KERNEL_S = {"proc", "sys"}


def collected(paths: Iterable[str], timeout_s: float = TIMEOUT_S, budget: MemoryBudget | None = None) -> Iterator[Found]:
    """Yield all texts that ``paths`` (``-``: standard input) name, in order; what cannot be read is told and stops nothing. ``room``: what they and
    what is made of them may take together."""
    budget = budget or MemoryBudget()
    cut: list[str] = []
    for count, found in enumerate(_of_paths(paths, timeout_s, budget), 1):
        if count > SOURCES_LIMIT:
            yield UnreadSource(source=_name_of(found), why=f"more than {SOURCES_LIMIT:,} files: the rest is left out")
            break
        if isinstance(found, InputText) and found.excerpt.cut:
            cut.append(found.name)
        yield found
    if cut:
        others = f", and those of {len(cut) - 1:,} files after it," if cut[1:] else ""
        why = f"more text than {BUDGET_LIMIT >> 20} MiB of memory hold: only its first and last lines and its error lines{others} were read"
        yield UnreadSource(source=cut[0], why=why)


def _name_of(found: Found) -> str:
    return found.source if isinstance(found, UnreadSource) else found.name


def _of_paths(paths: Iterable[str], timeout_s: float, budget: MemoryBudget) -> Iterator[Found]:
    for path in paths:
        file = None
        systems: list[str] = []
        for file, quiet in _files_of(path, systems):
            yield from _of_file(file, timeout_s, budget, quiet=quiet)
        for folder in systems:
            why = f"its /proc and /sys tell how the host is: torchtune-sys check --from {shlex.quote(folder)}"
            yield UnreadSource(source=display_name(folder), why=why)
        if file is None and not systems:
            yield UnreadSource(source=display_name(path), why=_without_files(path))


def _without_files(folder: str) -> str:
    try:
        return "holds no file (hidden ones and links are passed over)" if os.listdir(folder) else "is an empty directory"
    except OSError as error:
        return error.strerror or str(error)


def _files_of(path: str, systems: list[str]) -> Iterator[tuple[str, bool]]:
    """Yield the files that are to be read; ``True``: of a directory, where an empty file is that of a rank that says nothing."""
    if path != "-" and os.path.isdir(path):
        yield from ((file, True) for file in _files(path, systems))
    else:
        yield path, False


def _files(top: str, systems: list[str]) -> Iterator[str]:
    """Yield regular files, hidden ones and links aside, and add to ``systems`` the folders that hold a whole system, as a sosreport does: no program wrote its
    /proc and /sys, of which there are more files than are read."""
    todo = [top]
    while todo:  # os.walk() calls itself for each directory in a directory (before Python 3.12)
        try:
            folder = todo.pop()
            with os.scandir(folder) as entries:
                found = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
        except OSError:
            continue
        if {entry.name for entry in found if entry.is_dir(follow_symlinks=False)} >= _KERNEL_S:
            systems.append(folder)
            found = [entry for entry in found if entry.name not in _KERNEL_S]
        yield from (entry.path for entry in found if entry.is_file(follow_symlinks=False))
        todo += [entry.path for entry in reversed(found) if entry.is_dir(follow_symlinks=False)]


def _of_file(path: str, timeout_s: float, budget: MemoryBudget, *, quiet: bool) -> Iterator[Found]:
    try:
        with opened_input(path, timeout_s, strangers=False) as source:
            yield from _of_source(source, source.name, budget, _DEPTH)
    except UnreadableInput as error:
        if quiet and error.seen.endswith("is empty"):
            yield InputText(name=display_name(path), excerpt=Excerpt(lines=(), total=0, whole=True))
        else:
            yield UnreadSource(source=display_name(path), why=_why(error, display_name(path)))


def _why(error: UnreadableInput, name: str) -> str:
    seen = error.seen.removeprefix(f"{name}: ")
    return f"{seen}: {error.todo}" if error.todo and not seen.endswith("is empty") else seen


def _of_source(source: Source, name: str, budget: MemoryBudget, depth: int) -> Iterator[Found]:
    head = source.look(512)
    if is_tar(head):
        yield from _of_tar(source, name, budget, depth)
    elif head.startswith(ZIP):
        yield from _of_zip(source, name, budget, depth)
    elif head.startswith(_PICKLE):
        yield InputDump(name=name, data=source.rest(_DUMP_LIMIT))
    else:
        refuse_strangers(source)
        if source.size > STREAM_LIMIT:  # no need to read 4 GiB for that, which a hole on a disk may be
            raise source.too_much(STREAM_LIMIT)
        found = excerpt(_Written(source), budget.share())
        budget.take(found.cost())
        if found.binary or (found.cut and not found.lines):
            yield UnreadSource(
                source=name, why="is not text" if found.binary else "not enough memory for this document: give it on its own"
            )
        else:
            yield InputText(name=name, excerpt=found)


class _Written:
    """A text's bytes but for the holes in its file, which say nothing."""

    def __init__(self, source: Source) -> None:
        self.read = source.written


def _of_tar(source: Source, name: str, budget: MemoryBudget, depth: int) -> Iterator[Found]:
    try:
        for member in members(source):
            if not budget.may_open():
                yield UnreadSource(source=name, why=_TOO_MANY)
                return
            if member.kind == "file" and member.content:
                yield from _of_member(member.content, f"{name}:{_named(member.name)}", budget, depth)
            elif member.kind == "file" and member.content is None:
                yield UnreadSource(
                    source=f"{name}:{_named(member.name)}", why="is too long for a member of an archive: give the file itself"
                )
    except ValueError as error:
        yield UnreadSource(source=name, why=f"a damaged or cut archive: {error}")


def _of_zip(source: Source, name: str, budget: MemoryBudget, depth: int) -> Iterator[Found]:
    import io
    import struct
    import zipfile

    damages: tuple[type[Exception], ...] = (zipfile.BadZipFile, struct.error, RuntimeError, ValueError, *damaged())
    passed = 0
    data = source.rest(FILE_LIMIT)
    if data.count(_ZIP_ENTRY) > _ZIP_ENTRIES:  # the list of them is made whole
        yield UnreadSource(source=name, why=f"has more than {_ZIP_ENTRIES:,} entries")
        return
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.infolist():
                if not budget.may_open():
                    yield UnreadSource(source=name, why=_TOO_MANY)
                    return
                if entry.filename.endswith("/") or not entry.file_size:  # is_dir() of older Pythons takes no empty name
                    continue
                with archive.open(entry) as member:
                    inner = Source(member.read, f"{name}:{_named(entry.filename)}", "unpacks to more than")
                    yield from _inside(inner, budget, depth)
                    passed += member.tell()
                if passed > STREAM_LIMIT:
                    yield UnreadSource(source=name, why=f"unpacks to more than {STREAM_LIMIT >> 20} MiB: the rest is left out")
                    return
    except damages as error:
        yield UnreadSource(source=name, why=f"a damaged, encrypted or cut archive: {error}")


def _of_member(content: bytes, name: str, budget: MemoryBudget, depth: int) -> Iterator[Found]:
    import io

    yield from _inside(Source(io.BytesIO(content).read, name, "unpacks to more than"), budget, depth)


def _inside(source: Source, budget: MemoryBudget, depth: int) -> Iterator[Found]:
    name = source.name
    try:
        if depth <= 0:
            yield UnreadSource(source=name, why=f"is more than {_DEPTH} archives deep")
        elif source.look(1):
            yield from _of_source(decompressed(source), name, budget, depth - 1)
    except UnreadableInput as error:
        yield UnreadSource(source=name, why=_why(error, name))


def _named(member: str) -> str:
    """Return the name as it is told: it opens nothing."""
    return member[:300]
