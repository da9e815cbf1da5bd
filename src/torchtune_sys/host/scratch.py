"""A directory for a run's own files, removed at its end."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator

from torchtune_sys.errors import CannotWrite, UserError


@contextlib.contextmanager
def directory(parent: str, otherwise: str) -> Iterator[str]:
    """A new directory in ``parent`` ("": where temporary files go, and if that cannot be, in ``otherwise``), for this user only.

    Raises CannotWrite; UserError where ``parent`` was named and cannot be written.
    """
    made, failure = "", CannotWrite("no directory for temporary files", "name one with --scratch")
    for place in (parent,) if parent else (_temporary(), otherwise):
        try:
            made = tempfile.mkdtemp(prefix="torchtune-sys-", dir=place)
            break
        except OSError as error:
            failure = CannotWrite(f"{place}: {error.strerror}", "name a directory that can be written with --scratch")
    if not made:
        raise UserError(failure.seen, "--scratch must name a directory that this user may write in") if parent else failure
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _temporary() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:  # it tried to write in each of its places
        return "/tmp"


def write(path: str, text: str) -> None:
    """A small file of the run. Raises CannotWrite."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CannotWrite.because(error, path, "make room, or name another directory with --scratch") from None
