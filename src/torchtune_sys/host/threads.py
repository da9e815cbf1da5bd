"""Threads that nobody waits for without end."""

from __future__ import annotations

import _thread
import contextlib
from collections.abc import Callable


def start(work: Callable[[], object]) -> Callable[[float], bool]:
    """Run ``work`` in a thread that does not keep the process; return what waits so many seconds for its end, and says whether it came.

    ``threading.Thread.start`` waits until the new thread says that it runs: for ever, where that finds no memory to begin with (ulimit -v).
    Raises RuntimeError where no thread can be had.

    >>> start(lambda: None)(60)
    True
    """
    over = _thread.allocate_lock()
    over.acquire()

    def run() -> None:
        try:
            with contextlib.suppress(SystemExit):
                work()
        finally:
            over.release()

    try:
        _thread.start_new_thread(run, ())
    except MemoryError as error:
        raise RuntimeError("no memory for a thread") from error
    return lambda timeout_s: over.acquire(timeout=timeout_s)
