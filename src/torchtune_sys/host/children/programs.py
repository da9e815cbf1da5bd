"""Find programs that root may run: those of a site-checks directory, and those on PATH."""

from __future__ import annotations

import os
import stat

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host.regular import open_regular
from torchtune_sys.host.trust import Decision, distrust, steps

_LINE = 256
"""Bytes of a script's first line that the kernel reads (execve(2), BINPRM_BUF_SIZE)."""
_DEPTH = 5
"""How often an interpreter may be a script itself (execve(2))."""


def programs(folder: str) -> tuple[list[str], dict[str, str]]:
    """Return the names of the executables in ``folder``, and why others are not run, by name.

    Hidden files, copies of an editor and what is no executable file are passed over. Root runs nothing that others could have written.
    Raises UnreadableInput.
    """
    place = os.path.abspath(folder)
    try:
        steps(place)
        names = sorted(name for name in os.listdir(place) if not name.startswith(".") and not name.endswith("~"))
    except OSError as error:
        raise UnreadableInput(f"{folder}: {error.strerror}", "name a directory of programs") from None
    found, refused = [], {}
    for name in names:
        try:
            info = os.stat(os.path.join(place, name))
        except OSError as error:
            refused[name] = str(error.strerror)
            continue
        if not stat.S_ISREG(info.st_mode) or not info.st_mode & 0o111:
            continue
        reason = why_not(os.path.join(place, name)) if os.geteuid() == 0 else ""
        if reason:
            refused[name] = f"not run as root: {reason}"
        else:
            found.append(name)
    return found, refused


def why_not(path: str) -> str:
    """Return why root does not run a program: others decide what it is, or what its first line names; "" where they do not."""
    seen = Decision()
    return next(filter(None, (distrust(place, seen=seen) for place in (path, *interpreters(path)))), "")


def found_on(path: str, name: str) -> tuple[str, str]:
    """Return the first program of that name on a PATH that root may run, and why not the one before it. A directory of root's may hold a file of another user's: tar(1) as root
    unpacks for whom it was packed. Without any, and of a path, it is the name itself."""
    why = ""
    for folder in path.split(":") if "/" not in name else ():
        place = f"{folder}/{name}"
        if os.access(place, os.X_OK) and not os.path.isdir(place):
            reason = why_not(place)
            if not reason:
                return place, ""
            why = why or reason
    return name, why


def interpreters(path: str) -> tuple[str, ...]:
    """Return what the first line of a script (``#!``) names by its path, and that of what it names."""
    found: list[str] = []
    todo, seen = [path], Decision()
    for _ in range(_DEPTH):
        words = [word for place in todo for word in _first_line(place, seen)]
        todo = [word for word in words if word.startswith("/") and word not in found]
        found += todo
    return tuple(found)


def _first_line(path: str, seen: Decision) -> list[str]:
    try:
        steps(path, seen)  # root opens nothing for which a user's program would answer
        handle = open_regular(path)
        try:
            start = os.read(handle, _LINE)
        finally:
            os.close(handle)
    except OSError:
        return []
    return os.fsdecode(start[2:].partition(b"\n")[0]).split() if start.startswith(b"#!") else []
