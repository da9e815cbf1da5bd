"""Running values: files below /proc and /sys that are written in place."""

from __future__ import annotations

import glob
import os

from torchtune_sys.model.target import AtLeast, AtMost, OneOf, Target, choice


def read(path: str) -> str:
    """Return what is set now, blanks normalised; of a file that offers a choice, what is chosen. Raises OSError."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return " ".join(choice(file.read())[0].split())


def write(path: str, value: str) -> None:
    """Write with one write(2), as these files want it. Raises OSError: EINVAL where the kernel refuses the value."""
    handle = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(handle, value.encode() + b"\n")
    except OSError as error:
        raise OSError(error.errno, f"does not take {value}: {error.strerror}", path) from None
    finally:
        os.close(handle)


def may_write(path: str) -> None:
    """Raise OSError where writing would."""
    os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))


def matching(path: str, is_pattern: bool) -> list[str]:
    """Return the files that are meant; of a pattern, those that there are now."""
    return sorted(glob.glob(path)) if is_pattern else [path]


def as_good(target: Target | None, present: str, value: str) -> bool:
    """Return whether what is set is what would be written, or lies beyond it the way the target points: several numbers are judged by the last.

    >>> as_good(AtLeast(65530), "262144", "65530"), as_good(AtMost(10), "60", "10"), as_good(None, "4096  8192", "4096 8192")
    (True, False, True)
    >>> as_good(AtLeast(400), "1024", "4096"), as_good(OneOf(("madvise", "always")), "always", "madvise")
    (False, True)
    """
    words, wanted = present.split(), value.split()
    if words == wanted:
        return True
    try:
        match target:
            case AtLeast():
                return bool(words) and int(words[-1]) >= int(wanted[-1])
            case AtMost():
                return bool(words) and int(words[-1]) <= int(wanted[-1])
            case OneOf(values=values):
                return present in values
            case _:
                return False
    except ValueError:  # a word is not beyond a number
        return False


def other_numbers(target: Target | None, present: str, value: str) -> bool:
    """Return whether the numbers before the last are not those that the value was made from: writing it would change them, too."""
    return isinstance(target, AtLeast | AtMost) and present.split()[:-1] != value.split()[:-1]
