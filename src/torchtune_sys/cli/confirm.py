"""Shared by the commands that change a host: ask for confirmation, and show progress."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

import click

from torchtune_sys.cli.terminal import can_ask, is_terminal, status
from torchtune_sys.errors import UserError
from torchtune_sys.render.layout import clean

TIMEOUT_S = 2.0


class NotAsked(UserError):
    """Nobody is there to say yes."""


class Declined(UserError):
    """A person said no."""

    exit_code = 1


class NotMade(UserError):
    """The host, not the command line, keeps the changes from being made; nothing was changed."""

    exit_code = 1


def ask(question: str, *, yes: bool) -> None:
    """Ask for a yes. Raises NotAsked where nobody is at a terminal, Declined for anything but yes."""
    if yes:
        return
    if not can_ask():
        raise NotAsked("there is no terminal to confirm at, so nothing was changed", "give --yes, or look with --dry-run")
    if not click.confirm(question, err=True):
        raise Declined("nothing was changed, as you answered")


@contextlib.contextmanager
def progress_lines() -> Iterator[Callable[[str], None]]:
    """Provide a callback for the current step; a step that takes more than two seconds is shown on the terminal with its time."""
    if not is_terminal(sys.stderr):
        yield lambda _what: None
        return
    shown = _Shown()
    try:
        yield shown.begin
    finally:
        shown.end()


@contextlib.contextmanager
def alone(wait_s: float, tell: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of runs that change this host. Raises Busy, OSError."""
    from torchtune_sys.remediation.apply import journal, lock

    tell("waiting for another run to end")
    with lock.held(journal.STATE, wait_s):
        tell("")
        yield


class _Shown:
    """A status line with its own thread, because a step that waits for a child cannot update it."""

    def __init__(self) -> None:
        self._now = ("", time.monotonic())
        self._is_there = False
        self._writing = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._thread.start()

    def begin(self, what: str) -> None:
        """Set the current step. The old status line is cleared before this returns, since others write to the same line."""
        with self._writing:
            self._now = (what, time.monotonic())
            if self._is_there:
                _status("")
                self._is_there = False

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        self.begin("")

    def _show(self) -> None:
        while not self._over.wait(0.25):
            with self._writing:
                what, since = self._now
                took_s = time.monotonic() - since
                if what and took_s > TIMEOUT_S:
                    _status(f"{what} ({took_s:.0f} s)")
                    self._is_there = True


def _status(text: str) -> None:
    status(clean(text)[:100])
