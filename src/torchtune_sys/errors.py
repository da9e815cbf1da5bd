"""What can go wrong for a user, one class each: what was seen, and what to do next."""

from __future__ import annotations

import errno
from collections.abc import Iterable

AGAIN_AS_ROOT = "run it again with sudo"
"""How the advice begins where only root may; the command line completes it."""


class UserError(Exception):
    """A mistake that the user can fix. ``exit_code`` is the process's status."""

    exit_code = 2

    def __init__(self, seen: str, todo: str = "") -> None:
        super().__init__(f"{seen}\n{todo}" if todo else seen)
        self.seen = seen
        self.todo = todo


class UnreadableInput(UserError):
    """A file given by the user cannot be read or is not what it should be."""


class UnknownName(UserError):
    """A rule, family, profile, parameter or format that does not exist."""


def nearest(name: str, known: Iterable[str], otherwise: str, most: int = 1) -> str:
    """Return what to do about a name that there is not: ask for the nearest that there are, or ``otherwise`` where none is near.

    >>> nearest("alreduce", ["allreduce", "ddp"], "there are: allreduce, ddp"), nearest("x", ["ddp"], "there is: ddp")
    ('did you mean allreduce?', 'there is: ddp')
    >>> nearest("oom", ["oom-kill-logged", "swappiness-high"], "")
    'did you mean oom-kill-logged?'
    >>> nearest("dev-shm", ["dev-shm-full", "dev-shm-full", "dev-shm-not-writable"], "", 3)
    'did you mean dev-shm-full or dev-shm-not-writable?'
    >>> nearest("NCCL_SHM_DISABLE", ["nccl-shm-disabled"], "")
    'did you mean nccl-shm-disabled?'
    """
    from difflib import get_close_matches

    names = list(dict.fromkeys(known))
    if not any(other != other.lower() for other in names):  # a variable's name, or capitals, for a rule's
        name = name.lower().replace("_", "-")
    close = get_close_matches(name, names, n=most)
    if len(name) > 2:
        close = list(dict.fromkeys([*close, *(other for other in names if name in other)]))[:most]
    return f"did you mean {' or '.join(filter(None, (', '.join(close[:-1]), close[-1])))}?" if close else otherwise


class BadConfig(UserError):
    """The configuration file does not say what it must."""


class CannotWrite(UserError):
    """The output cannot be written (full disk, no permission)."""

    exit_code = 4

    @classmethod
    def because(cls, error: OSError, name: str, todo: str) -> CannotWrite:
        """Return the error for an OSError; ``todo`` is what helps where the disk is full or the place the wrong one."""
        if error.errno == errno.EFBIG:  # setrlimit(2), RLIMIT_FSIZE; Python ignores the signal that comes with it
            return FileTooLarge(
                f"{name}: {error.strerror}", "raise the limit on the size of files (file-size-limit): ulimit -f unlimited"
            )
        return cls(f"{name}: {error.strerror or error}", todo)


class FileTooLarge(CannotWrite):
    """A file reached the limit on the size of files (RLIMIT_FSIZE)."""


class Terminated(BaseException):
    """A signal came that asks us to end: children first, since they have sessions of their own and do not hear it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
