"""Read a file that may hang in the kernel (NFS, FUSE) in a child process that can be abandoned.

A thread would not do: a process whose thread waits for such an answer cannot end, whatever signal it gets (fuse/dev.c,
request_wait_answer: a request that the daemon has read is waited out). Nor may the child hold our standard streams: who reads our output would
wait for it, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable

from torchtune_sys import errors
from torchtune_sys.errors import UnreadableInput, UserError
from torchtune_sys.host.children.endings import is_ready
from torchtune_sys.host.live import read_text
from torchtune_sys.model.values import Missing

TIMEOUT_S = 30.0
_REAPING_S = 1.0
_PIECE = 1 << 16
_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DONE, _RAISED = "=!"
"""What the child tells first."""


def run_in_child(work: Callable[[], str], late: UserError, timeout_s: float) -> str:
    """Return what ``work`` returns, in a child of this process. Raises the UserError that it raises, and ``late`` when the time is up.

    Who waits may be interrupted: the child is asked to end first, so that work that heeds SIGTERM (:func:`end_by_exception`) leaves nothing behind.
    """
    theirs, ours = os.pipe()
    child = os.fork()
    if child == 0:
        _work(work, ours)
    os.close(ours)
    answer, ending = None, signal.SIGTERM
    try:
        answer, ending = _all_of(theirs, time.monotonic() + timeout_s), signal.SIGKILL
    finally:
        os.close(theirs)
        _end(child, ending)
    if answer is None:
        raise late
    if not answer:  # not even the sign
        raise UserError("a child process of ours ended before it was through", "look whether memory ran out: dmesg")
    sign, rest = answer[0], answer[1:]
    if sign == _DONE:
        return rest
    kind, seen, todo = rest.split("\0")
    raise getattr(errors, kind, UserError)(seen, todo)


def require_answer(path: str, timeout_s: float | None = None) -> None:
    """Raise UnreadableInput where ``path`` is not opened, or gives no first byte or name, in time. That it is not there is for its reader to say."""

    def first() -> str:
        with contextlib.suppress(OSError, ValueError):
            if os.path.isdir(path):
                with os.scandir(path) as entries:
                    next(entries, None)
            elif os.path.isfile(path):  # a FIFO, or a terminal, may wait for a person
                with open(path, "rb", buffering=0) as file:
                    file.read(1)
        return ""

    timeout_s = timeout_s or TIMEOUT_S
    run_in_child(first, _not_in_time(path, timeout_s), timeout_s)


def text_of(path: str, todo: str, named: str = "") -> str:
    """Return the text of a file that an option names, or what ``named`` says. Raises UnreadableInput."""

    def read() -> str:
        found = read_text(path, path)
        if isinstance(found, Missing):
            raise UnreadableInput(f"{path}{named}: {found.detail}", todo)
        return found

    return run_in_child(read, _not_in_time(path, TIMEOUT_S), TIMEOUT_S)


def _not_in_time(path: str, timeout_s: float) -> UnreadableInput:
    return UnreadableInput(
        f"{path}: no answer within {timeout_s:g} s", "look whether its file system, or the server behind it, still answers"
    )


def _work(work: Callable[[], str], ours: int) -> None:
    """Work in the child: it has no streams of ours, tells its result, and ends without cleaning up after its parent."""
    try:
        for number in _ASKING:
            signal.signal(number, signal.SIG_DFL)
        try:
            nowhere = os.open(os.devnull, os.O_RDWR)
        except OSError:  # who reads there meets the end, who writes there is refused
            nowhere, writing = os.pipe()
            os.close(writing)
        for stream in (0, 1, 2):
            if stream != ours:
                os.dup2(nowhere, stream)
        try:
            answer = _DONE + work()
        except UserError as error:
            answer = _RAISED + "\0".join(part.replace("\0", " ") for part in (type(error).__name__, error.seen, error.todo))
        left = answer.encode("utf-8", "surrogatepass")
        while left:
            left = left[os.write(ours, left) :]
    finally:
        os._exit(0)


def _all_of(source: int, until_s: float) -> str | None:
    """Return what the child tells until it ends; None when the time is up."""
    parts: list[bytes] = []
    while (left_s := until_s - time.monotonic()) > 0:
        if is_ready(source, left_s):
            part = os.read(source, _PIECE)
            if not part:
                return b"".join(parts).decode("utf-8", "surrogatepass")
            parts.append(part)
    return None


def _end(child: int, ending: int) -> None:
    """End the child if it is still there; one that the kernel keeps is left to process 1."""
    for number in dict.fromkeys((ending, signal.SIGKILL)):
        until_s = time.monotonic() + _REAPING_S
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            if os.waitpid(child, os.WNOHANG)[0]:
                return
            os.kill(child, number)
            while not (ended := os.waitpid(child, os.WNOHANG)[0]) and time.monotonic() < until_s:
                time.sleep(0.002)
            if ended:
                return


def end_by_exception() -> None:
    """Let the first signal that asks a child of :func:`run_in_child` to end raise SystemExit in it: for work that cleans up after itself."""

    def end(_number: int, _frame: object) -> None:
        for other in _ASKING:
            signal.signal(other, signal.SIG_IGN)
        sys.exit()

    for number in _ASKING:
        signal.signal(number, end)
