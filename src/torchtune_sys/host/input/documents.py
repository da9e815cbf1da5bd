"""Read files that hold one JSON document or one on each line, of any length; and list the files of a directory."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host.input.limits import FILE_LIMIT
from torchtune_sys.host.input.reading import PIECE, Source, opened_input
from torchtune_sys.host.input.text_bytes import as_utf8, is_utf16


def read_documents(path: str) -> Iterator[bytes]:
    """Yield the lines of a file (``-``: standard input) of which the first one or the second is a JSON document; else the whole of it.

    Lines are read one after the other, however many there are. Raises UnreadableInput, also after the first ones.
    """
    with opened_input(path) as source:
        held = source.read(PIECE).removeprefix(b"\xef\xbb\xbf")
        if is_utf16(held):
            held = as_utf8(held + source.rest(FILE_LIMIT))
        starts = [line for line in held.split(b"\n", 3)[:3] if line.strip()]
        if len(starts) > 1 and any(map(_is_document, starts[:2])):
            yield from _lines(held, source)
            return
        data = held + source.rest(FILE_LIMIT)
        if len(data) == len(held) and data.strip():
            yield data
        elif _is_document(data.partition(b"\n")[0]):  # the first line is longer than a piece
            yield from _lines(data, source)
        elif not data.strip():
            raise UnreadableInput(f"{source.name}: is empty", "check how it was made")
        else:
            yield data


def _lines(held: bytes, source: Source) -> Iterator[bytes]:
    while True:
        *lines, held = held.split(b"\n")
        yield from filter(None, (line.strip() for line in lines))
        more = source.read(PIECE)
        if not more:
            break
        held += more
        if len(held) > FILE_LIMIT:
            raise source.too_much(FILE_LIMIT)
    if held.strip():
        yield held.strip()


def _is_document(line: bytes) -> bool:
    if line.lstrip()[:1] != b"{":
        return False
    try:
        msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True


class Entries(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a directory: full paths, sorted."""

    files: tuple[str, ...]
    """Everything that is not a directory."""
    folders: tuple[str, ...]


def entries_in(path: str) -> Entries:
    """Return the content of a directory, without dot files and without links to other directories. Raises UnreadableInput."""
    files, folders = [], []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not os.path.isdir(entry.path):  # also where a link leads nowhere, or to itself
                    files.append(entry.path)
    except OSError as error:
        raise UnreadableInput(f"{path}: {error.strerror}", "give a directory that can be read") from None
    return Entries(files=tuple(sorted(files)), folders=tuple(sorted(folders)))
