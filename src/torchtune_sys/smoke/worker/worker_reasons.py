"""Why a worker of a DataLoader ended: torch tells the rank only that it did."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.queues
import os
import signal
import sys
import threading
import traceback
from typing import Any, Dict, Iterator, Optional

_reasons: Dict[str, int] = {}
"""The descriptor of a file in memory, which workers that are forked share with their rank."""


_handlers: Dict[str, Any] = {}
"""The handler of SIGCHLD that was there before a loader failed."""


def tells_its_end() -> None:
    """Let this worker keep the reason of its end, where it is an error of Python's."""
    queues: Any = multiprocessing.queues.Queue
    queues._on_queue_feeder_error = staticmethod(_samples_stay)
    printed: Any = traceback.print_exc

    def kept(*given: Any, **more: Any) -> None:
        if sys._getframe(1).f_code.co_name == "_bootstrap":  # multiprocessing/process.py: it prints, and the process ends
            _keep(sys.exc_info()[1])
        printed(*given, **more)

    traceback.print_exc = kept


def _samples_stay(error: BaseException, sample: object) -> None:
    """End a worker whose samples cannot leave it: multiprocessing prints why, drops them and goes on, and the rank waits until its time is up."""
    traceback.print_exception(type(error), error, error.__traceback__)
    _keep(error)
    os._exit(1)


def _keep(error: Optional[BaseException]) -> None:
    if "file" in _reasons:
        with contextlib.suppress(OSError):
            os.write(_reasons["file"], ("%s: %s\n" % (type(error).__name__, error)).encode())


@contextlib.contextmanager
def reasons_are_kept() -> Iterator[None]:
    """Raise in place of a loader's word for a worker that ended (or said nothing) what the worker itself said."""
    if multiprocessing.get_start_method() != "fork" or not hasattr(os, "memfd_create"):
        yield
        return
    with contextlib.suppress(OSError):  # a sandbox without
        _reasons["file"] = os.memfd_create("reasons")
    try:
        yield
    except BaseException as error:
        # Where a worker ends, torch's handler raises what it has to say of it wherever this process is by then: in what tells of the first one, too.
        _no_word_of_children()
        said = _first_reason()
        if not said or not isinstance(error, (RuntimeError, EOFError, OSError)):
            raise
        raise RuntimeError("a worker could not hand over its samples: %s" % said) from error
    finally:
        if "file" in _reasons:
            os.close(_reasons.pop("file"))


def _no_word_of_children() -> None:
    """Have no handler of SIGCHLD until ``children_tell_again``. Only the main thread may set one, and one that C set (None) could not be put back."""
    handler = signal.getsignal(signal.SIGCHLD)
    if handler is not None and threading.current_thread() is threading.main_thread():
        _handlers.setdefault("before", handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def children_tell_again() -> None:
    """Put back the handler that was there, once the loader that failed is gone."""
    if "before" in _handlers:
        signal.signal(signal.SIGCHLD, _handlers.pop("before"))


def _first_reason() -> str:
    with contextlib.suppress(OSError, KeyError):
        return os.pread(_reasons["file"], 1000, 0).decode(errors="replace").partition("\n")[0]
    return ""
