"""Hold ``--timeout`` also where Python cannot: a file that keeps a parser busy in one call is judged in a child that is ended.

A regular expression, a decompressor and a JSON parser let no other thread and no signal handler run until they are done.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

SIGNALLED = 128
"""What an exit status of a shell's is above where a signal ended the program."""
TIMEOUT_S, LIVE_TIMEOUT_S, LOGS_TIMEOUT_S = 30.0, 90.0, 600.0
"""Default of --timeout in seconds: for reading a host, with --live, and for logs or the facts of many hosts."""
SMOKE_TIMEOUT_S = 600.0
PREFLIGHT_BUDGETS_S = {"fast": 15.0, "standard": 60.0}
ISOLATE_BUDGET_S = 360.0
"""For ``preflight --isolate``: a group that hangs takes 10 s, and of up to 16 nodes a bad one hangs in every round."""
GRACE_S = 0.8
"""Extra time after the timeout, in which what was read so far is judged and printed."""
MOST_DATA = 1 << 30
"""RLIMIT_DATA in bytes for the process that reads a foreign file; twice what the readers' own limits allow."""
_SPARE_CPU_S = 30
"""Several threads use more than one second of CPU time per second."""
_REAPING_S = 1.0
LEAST_S = 3.0
"""Minimum time limit: what starting, judging and printing may take on a slow machine."""


def run_within_timeout(args: Sequence[str], run: Callable[[Sequence[str]], int], late: Callable[[float], int]) -> int:
    """Return the exit status of ``run``, in a child that is ended when the time of the options is up; then that of ``late``."""
    if not _reads_a_file(args):
        return run(args)
    limit_s = _timeout(args)
    return run_limited(lambda: run(args), limit_s, lambda: late(limit_s))


def run_limited(work: Callable[[], int], limit_s: float, late: Callable[[], int]) -> int:
    """Return the exit status of ``work``, run in a child with limits. Like fork, this returns in the child as well."""
    child = os.fork()
    if child == 0:
        _limit(limit_s)
        return work()
    return _wait(child, limit_s, late)


def _limit(limit_s: float) -> None:
    """Set limits as a safety net behind the readers' own, stricter ones (docs/input-limits.md). CPU time is limited in case we are killed and the
    child is not. RLIMIT_DATA rather than RLIMIT_AS, because threads reserve address space that they never use (getrlimit(2), since Linux 4.7)."""
    import resource

    seconds = int(max(limit_s + GRACE_S, LEAST_S)) + _SPARE_CPU_S
    for which, wanted in ((resource.RLIMIT_DATA, MOST_DATA), (resource.RLIMIT_CPU, seconds)):
        soft, hard = resource.getrlimit(which)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(which, (wanted if soft == resource.RLIM_INFINITY else min(soft, wanted), hard))


def _wait(child: int, limit_s: float, late: Callable[[], int]) -> int:
    deadline = time.monotonic() + max(limit_s + GRACE_S, LEAST_S)

    def pass_on(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has been waited for
            os.kill(child, number)

    handlers = {number: signal.signal(number, pass_on) for number in heeded_signals()}
    handle = _handle_of(child)
    try:
        while time.monotonic() < deadline or _pasted_by_a_person():
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else SIGNALLED + os.WTERMSIG(status)
            _await_end(handle, min(deadline - time.monotonic(), _GLANCE_S))
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        until = time.monotonic() + _REAPING_S  # one that waits for a server in the kernel may stay for ever
        while not os.waitpid(child, os.WNOHANG)[0] and time.monotonic() < until:
            time.sleep(0.005)
        return late()
    finally:
        if handle >= 0:
            os.close(handle)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _handle_of(child: int) -> int:
    """Return a descriptor that becomes readable when the child ends; -1 before Linux 5.3 and in sandboxes that lack the call."""
    try:
        return os.pidfd_open(child)
    except (AttributeError, OSError):
        return -1


def _await_end(handle: int, seconds: float) -> None:
    """Wait for the child to end, at most so many seconds; polling every few milliseconds would cost CPU time all along."""
    if handle < 0:
        time.sleep(0.005)
        return
    import select

    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.poll(max(seconds, 0.005) * 1000)


_GLANCE_S = 0.2
"""How often to check whether a person at a terminal started or finished pasting."""


def heeded_signals() -> list[int]:
    """Return the signals that ask this process to end, but those that its caller has ignored: nohup, and a shell for its background jobs."""
    asking = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in asking if signal.getsignal(number) is not signal.SIG_IGN]


def _pasted_by_a_person() -> bool:
    return "-" in sys.argv and os.isatty(0)


def _reads_a_file(args: Sequence[str]) -> bool:
    """Return whether our own options name a file. Options of a program that we exec (launch) or run elsewhere (fleet) are not ours.

    >>> _reads_a_file(["check", "--from", "x"]), _reads_a_file(["fleet", "--", "cmd", "--from=x"]), _reads_a_file(["launch", "cmd", "--from", "x"])
    (True, False, False)
    >>> _reads_a_file(["compare", "x"]), _reads_a_file(["fleet", "--dir=x"]), _reads_a_file(["fleet", "--nodes", "x", "--", "y", "--dir"])
    (True, True, False)
    """
    command = _command(args)
    if command in _NAMES_FILES or command == "launch":
        return command != "launch"
    own = args[: args.index("--")] if "--" in args else args
    return any(word.partition("=")[0] in ("--from", "--root", *(["--dir"] if command == "fleet" else [])) for word in own)


_NAMES_FILES = ("diagnose", "compare")
"""Commands whose arguments are files. fleet limits itself only after all hosts answered, because srun would pass its limits on to them."""


def _command(args: Sequence[str]) -> str:
    return next(iter(args[_first_word(args) :]), "")


def _first_word(args: Sequence[str]) -> int:
    """Return the index of the command, after any options that precede it."""
    return next((number for number, word in enumerate(args) if not word.startswith("-")), 0)


def _timeout(args: Sequence[str]) -> float:
    command = _command(args)
    if command == "fleet":  # there it is for each host
        return LOGS_TIMEOUT_S
    pairs = zip(args, [*args[1:], ""], strict=True)
    given = [after if word == "--timeout" else word.partition("=")[2] for word, after in pairs if word.startswith("--timeout")]
    try:
        return min(max(float(given[-1]), 0.0), 86400.0)
    except (IndexError, ValueError):
        if command in _NAMES_FILES:
            return LOGS_TIMEOUT_S
        return LIVE_TIMEOUT_S if "--live" in args else TIMEOUT_S
