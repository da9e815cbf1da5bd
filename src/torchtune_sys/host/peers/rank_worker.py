"""The process that has torch, on a rank: it is given tasks, one a line, and answers each under a deadline. What it says of torch goes to all nodes and
into the verdict, so it passes the filter of secrets here."""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from typing import Any

from torchtune_sys.host.account import Account
from torchtune_sys.host.children import process
from torchtune_sys.host.children.endings import is_ready, signal_of
from torchtune_sys.host.secrets.filter import scrubbed, scrubbed_answer
from torchtune_sys.model.codec import loads_of_python
from torchtune_sys.model.values import Missing, known

_GRACE_S = 3.0
"""Beyond a task's own deadline, which the worker keeps itself."""
_LINE_AT_MOST = 4 << 20
"""Bytes of an answer; as root the worker is the examined user's, and may say anything."""
_PART = 1 << 16
_PARTS_OF_ERRORS = 32
"""Two pipes of the largest size that a user may ask for (/proc/sys/fs/pipe-max-size)."""


class RankWorker:
    """A child under the interpreter that is examined. Tasks go to it over a pipe that it inherits as standard input."""

    def __init__(self, argv: tuple[str, ...], env: dict[str, str], script: int, user: Account | None) -> None:
        into, self._tasks = os.pipe()
        os.set_blocking(self._tasks, False)
        found = process.start(argv, env=env, data=into, keep=(script,), user=user)
        os.close(into)
        self._unread = bytearray()
        self.failure = ""
        self._child = known(found, None)
        if isinstance(found, Missing):
            self.failure = found.detail

    def ask(self, name: str, task: Any, deadline_s: float) -> Any:
        """Return the answer to one task; what went wrong where there is none."""
        line = json.dumps({"id": name, "task": task, "deadline_s": deadline_s}).encode() + b"\n"
        until_s = time.monotonic() + deadline_s + _GRACE_S
        try:
            self._is_deaf = self._is_deaf or not self._was_told(line, until_s)  # behind half a line no other is understood
            if self._is_deaf:
                return {"error": "the worker does not read its tasks"}
        except OSError:
            return self._ended()
        while (left := until_s - time.monotonic()) > 0:
            answer = self.answer(left)
            if answer is None:
                break
            if answer.get("id") == name:
                return answer.get("value")
        return self._ended() if self._told_end else {"error": "the worker does not answer"}

    def _was_told(self, line: bytes, until_s: float) -> bool:
        """Return whether the pipe took it in time: who reads there may make it as small as a page (fcntl(2), F_SETPIPE_SZ), and read nothing. Raises OSError."""
        while line and (left_s := until_s - time.monotonic()) > 0:
            if is_ready(self._tasks, left_s, select.POLLOUT):
                with contextlib.suppress(BlockingIOError):
                    line = line[os.write(self._tasks, line) :]
        return not line

    def answer(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next line that it says; None where none comes, also where it ended."""
        if self._child is None or self._child.stdout is None:
            return None
        until_s = time.monotonic() + timeout_s
        end = self._unread.find(b"\n")
        while end < 0:
            self._drain_errors()
            left_s = until_s - time.monotonic()
            if not is_ready(self._child.stdout.fileno(), max(left_s, 0.0)):
                return None
            part = os.read(self._child.stdout.fileno(), _PART)
            if not part:
                return {"id": "", "value": self._ended()} if self._fell_silent() else None
            end = part.find(b"\n")
            end += len(self._unread) if end >= 0 else 0
            self._unread += part
            if len(self._unread) > _LINE_AT_MOST:
                self._unread.clear()
                return None
            if end < 0 and left_s < 0:  # it goes on saying parts of a line
                return None
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        with contextlib.suppress(ValueError):
            found = loads_of_python(line)
            if isinstance(found, dict):
                answer: dict[str, Any] = scrubbed_answer(found)
                return answer
        return None

    _errors = b""
    _told_end = False
    _is_deaf = False

    def _drain_errors(self) -> None:
        """Keep the end of what it prints on standard error: a full pipe would stop it. One that prints without end is not read without end."""
        assert self._child is not None
        stream = self._child.stderr
        for _ in range(_PARTS_OF_ERRORS):
            if stream is None or not is_ready(stream.fileno()):
                return
            part = os.read(stream.fileno(), _PART)
            if not part:
                return
            self._errors = (self._errors + part)[-4096:]

    def _fell_silent(self) -> bool:
        told, self._told_end = self._told_end, True
        return not told

    def _ended(self) -> dict[str, str]:
        """Return how the interpreter ended: by which signal, and its last words; or why it did not start."""
        if self._child is None:
            return {"error": self.failure, "signal": ""}
        self._drain_errors()
        lines = self._errors.decode("utf-8", "replace").strip().splitlines()
        words = scrubbed(lines[-1])[:300] if lines else "without a word"
        by = signal_of(self._child)
        return {"error": f"the interpreter was ended by {by}: {words}" if by else f"the interpreter ended: {words}", "signal": by}

    def end(self) -> None:
        """End it, and what it started."""
        os.close(self._tasks)
        if self._child is not None:
            process.end(self._child)
            process.forget(self._child)
