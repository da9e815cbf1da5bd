"""How a rank tells what it does: one JSON object a line, to the driver's socket, or kept until the end where there is none."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import signal
import socket
import sys
from typing import Any, Dict, List, NamedTuple, Optional

SOCKET_VARIABLE = "TORCHTUNE_SYS_SMOKE_SOCKET"
"""Name of the driver's abstract unix socket; a full disk does not stop it."""
LAUNCHER_VARIABLE = "TORCHTUNE_SYS_SMOKE_LAUNCHER"
"""What a rank inherited from the process that started it: the fields of ``Launcher``."""
_PR_SET_PDEATHSIG = 1


class Launcher(NamedTuple):
    """The process of this script that started a rank, and the descriptors that the rank has from it."""

    pid: int
    store: int
    """A file without a name, over which the ranks find each other: nobody else can open it."""
    listener: int
    """A socket that listens at --master-port on the loopback, for the first rank; -1 where there is none."""

    def as_text(self) -> str:
        return " ".join(map(str, self))


def launcher() -> Optional[Launcher]:
    """Return who started this rank; None where torchrun, srun or mpirun did."""
    words = os.environ.get(LAUNCHER_VARIABLE, "").split()
    return Launcher(*map(int, words)) if words else None


class Channel:
    """Events of this process. Without a driver they are kept, for the summary that rank 0 prints."""

    def __init__(self) -> None:
        self.kept: List[Dict[str, Any]] = []
        self.driven = bool(os.environ.get(SOCKET_VARIABLE))
        self._stream: Optional[socket.socket] = None
        self._stacks: Optional[socket.socket] = None

    def open(self, role: str) -> None:
        """``role``: "agent" (starts the ranks) or "rank"."""
        parent = launcher() if role == "rank" else None
        if self.driven or parent is not None:
            end_with_parent(parent.pid if parent is not None else 0)
        if not self.driven:
            faulthandler.enable()
            return
        self._stream = _connect()
        self.tell(
            "hello", role=role, pid=os.getpid(), host=socket.gethostname(), rank=_number("RANK"), local_rank=_number("LOCAL_RANK")
        )
        self._stacks = _connect()
        self._stacks.sendall(json.dumps({"event": "stacks", "pid": os.getpid()}).encode() + b"\n")
        faulthandler.enable(self._stacks.fileno())
        faulthandler.register(signal.SIGUSR1, self._stacks.fileno(), all_threads=True)

    def tell(self, event: str, **fields: Any) -> None:
        """Raises nothing: a driver that went away ends this process."""
        told = {"event": event, **fields}
        self.kept.append(told)
        if self._stream is not None:
            try:
                self._stream.sendall(json.dumps(told).encode() + b"\n")
            except OSError:
                os._exit(1)


def _connect() -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    found.connect("\0" + os.environ[SOCKET_VARIABLE])
    return found


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else -1


def end_with_parent(parent: int = 0) -> None:
    """Each rank has a session of its own; a launcher that is killed must not leave them behind.

    ``parent``: who it is, so that one that was gone before the kernel was asked is noticed too.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if parent and os.getppid() != parent:
        os._exit(1)


def last_lines(error: BaseException, count: int = 3) -> str:
    """Where an exception came from: the innermost frames, one a line."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)[-count:]
    return "\n".join("%s:%s in %s: %s" % (frame.filename, frame.lineno, frame.name, frame.line) for frame in frames)


def launching(argv: List[str]) -> bool:
    """Whether this process is to start ranks: no launcher gave it a rank, or it was told to."""
    return "--launch" in argv or not any(name in os.environ for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"))


def lasting_path(path: str) -> str:
    """Return a path of this script that other processes of ours can open, too: the driver hands the script over as a descriptor, and
    workers that are not forked (multiprocessing's spawn and forkserver) read it once more.

    >>> lasting_path("/x/smoke.py")
    '/x/smoke.py'
    """
    return path.replace("/self/", "/%d/" % os.getpid(), 1) if path.startswith("/proc/self/fd/") else path


channel = Channel()
if __name__ == "__main__":
    __file__ = lasting_path(__file__)
    channel.open("agent" if launching(sys.argv) else "rank")
