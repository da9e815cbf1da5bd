"""A text of any length in bounded memory: whole where it is short; else its head, its tail and the lines in which a program complains."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from torchtune_sys.formats.kernel_log import pieces
from torchtune_sys.host.input.limits import (
    BUDGET_LIMIT,
    EXCERPT_LINES,
    EXCERPT_WHOLE,
    LEAST_BUDGET,
    LINE_COST,
    LINE_LENGTH,
    MEMBER_LIMIT,
    TEXT_BUDGET,
)
from torchtune_sys.host.input.reading import PIECE
from torchtune_sys.host.input.text_bytes import is_binary

_END = 512 << 10
"""Bytes of the head and of the tail of a long text."""
_ALIKE = 40
"""Lines of one shape (digits aside) that are kept of a long text."""
_SHAPES = 20_000
_COMPLAINTS = (
    b"error", b"fail", b"warn", b"fatal", b"abort", b"exception", b"traceback", b"denied", b"refused", b"unable", b"cannot", b"not found",
    b"no such", b"killed", b"timed out", b"mismatch", b"unsupported", b"insufficient", b"invalid", b"xid", b"oom-", b"oomk", b"signal",
    b"segfault", b"too old", b"no space", b"not permitted", b"exceed", b"missing", b"not supported", b"can't",
)  # fmt: skip
"""Words of lines in which a program complains; searched for one after the other, which is ten times as fast as an alternation."""


class Reader(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Excerpt(msgspec.Struct, frozen=True, kw_only=True):
    lines: tuple[tuple[int, str], ...]
    """Number and text, in order; line ends, and what is too long of a line, are taken off."""
    total: int
    whole: bool
    binary: bool = False
    """Whether it is not text; there are no lines then."""
    document: str = ""
    """All of a text that is kept whole and may be a JSON object: its lines may be longer than those that are kept."""
    cut: bool = False
    """Whether the room was too small for what is kept of a text of its length."""

    def cost(self) -> int:
        """Return what it takes of the room."""
        return len(self.document) + sum(LINE_COST + len(line) for _, line in self.lines)


class MemoryBudget:
    """What is left of the memory that the texts of one diagnosis may take together. A text gets a third of it: a few are kept whole, and of
    many each is kept in part, instead of the first ones alone."""

    def __init__(self, size: int = BUDGET_LIMIT) -> None:
        self.left = size
        self._entries = MEMBER_LIMIT

    def may_open(self) -> bool:
        """Count an entry of an archive. Return whether it is looked at: empty ones are no text, and archives of them lie in archives."""
        self._entries -= 1
        return self._entries >= 0

    def share(self) -> int:
        return max(min(self.left // 3, TEXT_BUDGET), LEAST_BUDGET)

    def take(self, cost: int) -> None:
        self.left = max(self.left - cost, 0)


def excerpt(source: Reader, budget: int = TEXT_BUDGET) -> Excerpt:
    """Return what is kept of the text, at the cost of ``budget`` at most. Raises UnreadableInput, as its source does."""
    pieces = _pieces(source)
    held = bytearray()
    for piece in pieces:
        held += piece if held else piece.lstrip(b"\0")
        if len(held) > EXCERPT_WHOLE:
            break
    else:
        if _cost(held) <= budget:
            return _whole(bytes(held))
        if _is_document(bytes(held)):  # half of it says something else
            return Excerpt(lines=(), total=0, whole=False, cut=True)
    if is_binary(bytes(held)):
        return Excerpt(lines=(), total=0, whole=False, binary=True)
    keeper = _Keeper(budget, cut=len(held) <= EXCERPT_WHOLE)
    keeper.take(bytes(held))
    held.clear()
    for piece in pieces:
        keeper.take(piece)
    return keeper.excerpt()


def _cost(data: bytearray) -> int:
    return len(data) + LINE_COST * (data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n") + 1)


def _is_document(data: bytes) -> bool:
    """Whether it is one JSON object, and not one a line.

    >>> _is_document(b'{"a":\\n1}'), _is_document(b'{"a": 1}'), _is_document(b'{"a": 1}\\n{"a": 2}\\n'), _is_document(b"x")
    (True, True, False, False)
    """
    first, _, rest = data.strip().partition(b"\n")
    return first[:1] == b"{" and (not rest or not first.rstrip().endswith(b"}"))


def _pieces(source: Reader) -> Iterator[bytes]:
    """UTF-8, whatever it was: PowerShell's ``>`` writes UTF-16, with or without a mark."""
    piece = source.read(PIECE)
    encoding = _utf16(piece[:4096])
    if not encoding:
        while piece:
            yield piece
            piece = source.read(PIECE)
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    while piece:
        yield decoder.decode(piece).lstrip("\ufeff").encode("utf-8", "replace")
        piece = source.read(PIECE)


def _utf16(head: bytes) -> str:
    """
    >>> _utf16("a\\nb".encode("utf-16")), _utf16("abcd".encode("utf-16-be")), _utf16(b"plain")
    ('utf-16', 'utf-16-be', '')
    """
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    if len(head) < 4 or b"\0" not in head:
        return ""
    even, odd = head[::2].count(0), head[1::2].count(0)
    half = len(head) // 2
    if odd > 0.8 * half and even == 0:
        return "utf-16-le"
    return "utf-16-be" if even > 0.8 * half and odd == 0 else ""


def _whole(data: bytes) -> Excerpt:
    if is_binary(data):
        return Excerpt(lines=(), total=0, whole=True, binary=True)
    text = _decoded(data.replace(b"\0", b""))
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return Excerpt(
        lines=tuple((number, line[:LINE_LENGTH]) for number, line in enumerate(lines, 1)),
        total=len(lines),
        whole=True,
        document=text if text.lstrip()[:1] == "{" else "",
    )


def _decoded(data: bytes) -> str:
    return "\n".join(pieces(data.decode("utf-8-sig", "replace")))


def _complaining(data: bytes, is_known: Callable[[bytes], bool]) -> set[tuple[int, int]]:
    """Where the lines with a complaint begin and end; of words that nearly every line has, the first lines. ``is_known``: of a shape, whether
    enough lines of it are kept."""
    lower = data.lower()
    # A long log says the same again and again: what its lines say without numbers is looked at once.
    alike = b"\n".join(set(lower.translate(None, _NUMBERS).split(b"\n")))
    found: set[tuple[int, int]] = set()
    for word in _COMPLAINTS:
        if all(is_known(_shape(alike[start:end])) for start, end in _lines_with(word, alike)):
            continue
        for count, (start, end) in enumerate(_lines_with(word, lower)):
            if count >= _PIECE_LINES:
                break
            found.add((start, end))
    return found


def _lines_with(word: bytes, lower: bytes) -> Iterator[tuple[int, int]]:
    at = lower.find(word)
    while at >= 0:
        end = lower.find(b"\n", at)
        end = len(lower) if end < 0 else end
        yield lower.rfind(b"\n", 0, at) + 1, end
        at = lower.find(word, end)


def _shape(lower: bytes) -> bytes:
    """Return what a line says, its numbers aside."""
    return lower.translate(None, _NUMBERS + b"abcdef")[:200]


_NUMBERS = b"0123456789."
_PIECE_LINES = 2000


class _Keeper:
    """Takes pieces of a long text one after the other. A quarter of the room is for its head, one for its tail, half for complaints."""

    def __init__(self, budget: int, *, cut: bool) -> None:
        self._head_room = self._tail_room = budget // 4
        self._room = budget // 2
        self._cut = cut
        self._open = b""
        self._number = 0
        self._kept: list[tuple[int, str]] = []
        self._head = 0
        self._tail: deque[tuple[int, bytes]] = deque()
        self._tail_size = 0
        self._shapes: dict[bytes, int] = {}

    def take(self, piece: bytes) -> None:
        data = self._open + piece.replace(b"\0", b"")
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) > LINE_LENGTH:
            # One endless line: its start is kept, the rest passed over until it ends.
            self._open = data[:LINE_LENGTH]
            return
        self._open = data[cut:][:LINE_LENGTH]
        data = data[:cut]
        data = self._first(data)
        self._complaints(data)
        self._last(data)
        self._number += data.count(b"\n")

    def _first(self, data: bytes) -> bytes:
        """Keep the lines of the head; what follows them."""
        at = 0
        while at < len(data) and self._head < _END and self._head_room > 0:
            end = data.find(b"\n", at) + 1
            for line in _decoded(data[at:end]).split("\n")[:-1]:
                self._number += 1
                self._kept.append((self._number, line[: min(LINE_LENGTH, self._head_room)]))
                self._head_room -= LINE_COST + len(self._kept[-1][1])
            self._head += end - at
            at = end
        self._cut = self._cut or (self._head < _END and self._head_room <= 0)
        return data[at:]

    def _complaints(self, data: bytes) -> None:
        at, number = 0, self._number
        for start, end in sorted(_complaining(data, self._is_known)):
            number += data.count(b"\n", at, start)
            self._keep(number + 1, data[start : min(end, start + LINE_LENGTH)])
            at = start

    def _is_known(self, shape: bytes) -> bool:
        count = self._shapes.get(shape, 0)
        return count >= _ALIKE or (not count and len(self._shapes) >= _SHAPES)

    def _keep(self, number: int, line: bytes) -> None:
        shape = _shape(line.lower())
        if len(self._kept) >= EXCERPT_LINES or self._is_known(shape):
            return
        if self._room <= 0:
            self._cut = True
            return
        self._shapes[shape] = self._shapes.get(shape, 0) + 1
        self._kept.append((number, _decoded(line[: self._room])))
        self._room -= LINE_COST + len(line)

    def _last(self, data: bytes) -> None:
        start = data.find(b"\n", max(len(data) - _END, 0)) + 1 if len(data) > _END else 0
        number = self._number + data.count(b"\n", 0, start)
        part = data[start:]
        if start:
            self._tail.clear()
            self._tail_size = 0
        if part:
            self._tail.append((number, part))
            self._tail_size += len(part)
        while self._tail and self._tail_size - len(self._tail[0][1]) > _END:
            self._tail_size -= len(self._tail.popleft()[1])

    def excerpt(self) -> Excerpt:
        if self._open:
            self.take(b"\n")
        found = dict(self._kept)
        for number, part in reversed(self._tail):
            lines = _decoded(part).split("\n")[:-1]
            for offset in range(len(lines), 0, -1):
                if self._tail_room <= 0:
                    self._cut = True
                    break
                line = lines[offset - 1][: min(LINE_LENGTH, self._tail_room)]
                found[number + offset] = line
                self._tail_room -= LINE_COST + len(line)
        return Excerpt(lines=tuple(sorted(found.items())), total=self._number, whole=False, cut=self._cut)
