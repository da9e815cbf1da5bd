"""Target values with a direction, so that no change lowers a better value."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.patterns import pattern


class Exactly(msgspec.Struct, frozen=True, tag=True):
    value: str

    def __str__(self) -> str:
        return self.value


class AtLeast(msgspec.Struct, frozen=True, tag=True):
    value: int

    def __str__(self) -> str:
        return f">= {self.value}"


class AtMost(msgspec.Struct, frozen=True, tag=True):
    value: int

    def __str__(self) -> str:
        return f"<= {self.value}"


class OneOf(msgspec.Struct, frozen=True, tag=True):
    values: tuple[str, ...]
    """Accepted values, the preferred one first."""

    def __str__(self) -> str:
        return " or ".join(self.values)


Target = Exactly | AtLeast | AtMost | OneOf


def met(target: Target, value: str) -> bool:
    """Return whether ``value`` (as the kernel prints it) satisfies the target.

    Raises ValueError where a directed target meets a value that is not a whole number.

    >>> met(AtMost(10), "60"), met(AtLeast(2048), "4096"), met(OneOf(("0", "1")), "1")
    (False, True, True)
    """
    match target:
        case Exactly(value=wanted):
            return value.split() == wanted.split()
        case AtLeast(value=floor):
            return whole(value) >= floor
        case AtMost(value=ceiling):
            return whole(value) <= ceiling
        case OneOf(values=accepted):
            return value in accepted


def fits(target: Target, value: str) -> bool:
    """Return the same as :func:`met`; False where a word, or nothing, meets a bound.

    >>> fits(AtLeast(2048), "max"), fits(OneOf(("max", "1")), "max")
    (False, True)
    """
    try:
        return met(target, value)
    except ValueError:
        return False


_NUMBER = pattern(r"[ \t]*([+-]?[0-9]{1,20})[ \t\n]*")
"""As the kernel prints one, of 64 bits; Python's int() also takes underscores and the digits of other scripts."""


def whole(text: str) -> int:
    """Return the whole number that ``text`` is. Raises ValueError.

    >>> whole("-1"), whole("16777216\\n")
    (-1, 16777216)
    """
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise ValueError(f"not a whole number: {text[:60]!r}")
    return int(found[1])


def choice(text: str) -> tuple[str, tuple[str, ...]]:
    """Return what is chosen in a file that offers a choice, and what it offers (empty for a plain value).

    >>> choice("always [madvise] never"), choice("128"), choice("none")
    (('madvise', ('always', 'madvise', 'never')), ('128', ()), ('none', ()))
    """
    words = text.split()
    marked = next((word[1:-1] for word in words if word.startswith("[") and word.endswith("]")), None)
    return (marked, tuple(word.strip("[]") for word in words)) if marked is not None else (text.strip(), ())
