"""A message with holes, and whether a line says it. Pure, linear in the line, without regular expressions."""

from __future__ import annotations

import re
from typing import NamedTuple

_HOLE = re.compile(r"\{(\w*)\}")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{2,}")


class Template(NamedTuple):
    """Literal pieces in order; between two of them, before the first and after the last, anything may stand."""

    pieces: tuple[str, ...]
    names: tuple[str, ...]
    """Of the hole after each piece but the last; empty where it has no name."""

    @property
    def weight(self) -> int:
        """Return how much text must be there: of two that fit, the heavier one says more."""
        return sum(map(len, self.pieces))


def parsed(text: str) -> Template:
    """Read a template; ``{}`` and ``{name}`` are holes. A hole at an end says nothing, but one with a name at the end holds the rest.

    >>> parsed("{} Xid ({pci}): {xid}, pid {}")
    Template(pieces=(' Xid (', '): ', ', pid '), names=('pci', 'xid'))
    """
    parts = _HOLE.split(text)
    pieces, names = parts[::2], parts[1::2]
    first, last = 0, len(pieces)
    while first < last and not pieces[first].strip():
        first += 1
    while last > first + 1 and not pieces[last - 1].strip() and not names[last - 2]:
        last -= 1
    return Template(tuple(pieces[first:last]), tuple(names[first : last - 1]))


def words(text: str) -> list[str]:
    """Return the words by which a line finds its templates.

    >>> words("Call to ibv_reg_mr failed: 12")
    ['Call', 'ibv_reg_mr', 'failed']
    """
    return _WORD.findall(text)


def whole_words(template: Template) -> list[str]:
    """Return the words that stand whole in any line that says it: none that a hole may continue.

    >>> whole_words(parsed("sub{}tion: NCCL WARN of{}"))
    ['NCCL', 'WARN']
    """
    found: list[str] = []
    for number, piece in enumerate(template.pieces):
        for word in _WORD.finditer(piece):
            begun_by_hole = number > 0 and word.start() == 0
            continued_by_hole = number < len(template.pieces) - 1 and word.end() == len(piece)
            if not (begun_by_hole or continued_by_hole):
                found.append(word[0])
    return found


def fitted(template: Template, line: str) -> tuple[str, ...] | None:
    """Return what stands in the holes, or None where ``line`` does not say it. The shortest reading from the first place where it begins.

    >>> fitted(parsed("Call to {} failed"), "NCCL WARN Call to bind failed : Address in use")
    ('bind',)
    >>> fitted(parsed("Call to {} failed"), "Call to bind succeeded") is None
    True
    """
    if not template.pieces:
        return None
    held: list[str] = []
    start = line.find(template.pieces[0])
    if start < 0:
        return None
    at = start + len(template.pieces[0])
    for piece in template.pieces[1:]:
        found = line.find(piece, at)
        if found < 0:
            return None
        held.append((line[at:found] if piece else line[at:]).strip())
        at = found + len(piece)
    return tuple(held)
