"""Open a path for writing safely: follow symbolic links only of root and the own user, and resolve no component twice.

Stricter than the kernel's own protection (fs.protected_symlinks, fs.protected_fifos), and it holds where that is off.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from torchtune_sys.errors import CannotWrite
from torchtune_sys.host.trust import owner, system_users, user_name

_PATH_ONLY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40


@contextlib.contextmanager
def place(path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """Yield a handle of the directory that a path leads to, and the last name in it, which is not a symbolic link then.

    ``make``: directories that are not there are made. Raises OSError, and CannotWrite for a link that is not followed.
    """
    walk = _Walk("/" if path.startswith("/") else ".")
    try:
        name = walk.go(path, make)
        yield walk.handle, name
    finally:
        os.close(walk.handle)


class _Walk:
    """A directory that is held open, and goes on from there name by name."""

    def __init__(self, start: str) -> None:
        self.handle = os.open(start, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.at = "" if start == "." else "/"
        self.links = 0

    def go(self, path: str, make: bool) -> str:
        todo = _parts(path)
        while todo:
            part = todo.pop()
            here = os.path.join(self.at, part)
            target = self._link(part, here)
            if target is not None:
                todo += _parts(target)
                if target.startswith("/"):
                    self._enter("/", "/")
            elif not todo and part != "..":
                return part
            else:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=self.handle)
                self._enter(part, here)
        raise CannotWrite(f"{path}: is a directory", "name a file in it")

    def _link(self, part: str, here: str) -> str | None:
        """Where a symbolic link points to; None for anything else, and for nothing."""
        try:
            found = os.open(part, _PATH_ONLY, dir_fd=self.handle)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OSError(error.errno, error.strerror, here) from None
        try:
            info = os.fstat(found)
            if not stat.S_ISLNK(info.st_mode):
                return None
            owned_by = owner(found, here)
            if owned_by not in system_users() | {os.geteuid()}:
                raise CannotWrite(
                    f"{here} is a symbolic link of user {user_name(owned_by)}, and not followed",
                    "name the place that is meant",
                )
            self.links += 1
            if self.links > _MOST_LINKS:
                raise OSError(40, os.strerror(40), here)
            return os.readlink("", dir_fd=found)
        finally:
            os.close(found)

    def _enter(self, part: str, here: str) -> None:
        try:
            inside = os.open(part, _PATH_ONLY | os.O_DIRECTORY, dir_fd=self.handle)
        except OSError as error:
            raise OSError(error.errno, error.strerror, here) from None
        os.close(self.handle)
        self.handle, self.at = inside, here


def _parts(path: str) -> list[str]:
    """Return the names in a path, the last one first."""
    return [part for part in path.split("/") if part not in ("", ".")][::-1]
