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
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

SOCKET_VARIABLE = "TORCHTUNE_SYS_SMOKE_SOCKET"
"""Name of the driver's abstract unix socket; a full disk does not stop it."""
LAUNCHER_VARIABLE = "TORCHTUNE_SYS_SMOKE_LAUNCHER"
"""What a rank inherited from the process that started it: the fields of ``Launcher``."""
_PR_SET_PDEATHSIG = 1


class RankLauncher(NamedTuple):
    """The process of this script that started a rank, and the descriptors that the rank has from it."""

    pid: int
    store: int
    """A file without a name, over which the ranks find each other: nobody else can open it."""
    listener: int
    """A socket that listens at --master-port on the loopback, for the first rank; -1 where there is none."""

    def as_text(self) -> str:
        return " ".join(map(str, self))


def launcher() -> Optional[RankLauncher]:
    """Return who started this rank; None where torchrun, srun or mpirun did."""
    words = os.environ.get(LAUNCHER_VARIABLE, "").split()
    return RankLauncher(*map(int, words)) if words else None


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
            "hello",
            role=role,
            pid=os.getpid(),
            host=socket.gethostname(),
            rank=environment_number("RANK"),
            local_rank=environment_number("LOCAL_RANK"),
        )
        self._stacks = _connect()
        self._stacks.sendall(json.dumps({"event": "stacks", "pid": os.getpid()}).encode() + b"\n")
        faulthandler.enable(self._stacks.fileno())
        faulthandler.register(signal.SIGUSR1, self._stacks.fileno(), all_threads=True)

    def leave(self) -> None:
        """Keep what is told from now on, in a copy of the process that opened it."""
        self.kept = []
        for stream in filter(None, (self._stream, self._stacks)):
            stream.close()
        self._stream = self._stacks = None

    def tell(self, event: str, **fields: Any) -> None:
        """Tell the driver an event. Raises nothing: a driver that went away ends this process."""
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


def whole_number(text: str, otherwise: int = -1) -> int:
    """Return the number that a text is in ASCII digits, at most 19."""
    return int(text) if 0 < len(text) < 20 and text.isascii() and text.isdigit() else otherwise


def environment_number(name: str, otherwise: int = -1) -> int:
    """Return what a variable says, if it is a number."""
    return whole_number(os.environ.get(name, ""), otherwise)


def end_with_parent(parent: int = 0) -> None:
    """Each rank has a session of its own; a launcher that is killed must not leave them behind.

    ``parent``: who it is, so that one that was gone before the kernel was asked is noticed too.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if parent and os.getppid() != parent:
        os._exit(1)


def last_lines(error: BaseException) -> str:
    """Where an exception came from: the innermost frames, one a line."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return "\n".join("%s:%s in %s: %s" % (frame.filename, frame.lineno, frame.name, frame.line) for frame in frames)


class Starter(NamedTuple):
    """The variables by which a launcher tells a process which rank it is; several names for one thing, the first that is set counts."""

    rank: str
    world: Tuple[str, ...]
    local: Tuple[str, ...]
    local_world: Tuple[str, ...]


STARTERS = (
    Starter("RANK", ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",)),
    Starter("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_LOCAL_SIZE",)),
    Starter("MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",), ("MV2_COMM_WORLD_LOCAL_RANK",), ("MV2_COMM_WORLD_LOCAL_SIZE",)),
    Starter("JSM_NAMESPACE_RANK", ("JSM_NAMESPACE_SIZE",), ("JSM_NAMESPACE_LOCAL_RANK",), ("JSM_NAMESPACE_LOCAL_SIZE",)),
    Starter("PALS_RANKID", ("PMI_SIZE", "PALS_SIZE"), ("PALS_LOCAL_RANKID",), ("PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE")),
    Starter(
        "PMI_RANK",
        ("PMI_SIZE",),
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "MPI_LOCALRANK"),
        ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
    ),
    Starter("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",), ("SLURM_STEP_TASKS_PER_NODE",)),
)
"""torchrun; mpirun of Open MPI; MVAPICH2; jsrun (IBM's JSM); PALS of HPE Cray; MPICH's and Intel's hydra (PMI); srun. torchrun's come
first: it may be started by one of the others, and what it starts inherits their variables. Slurm's come last, for the same reason."""
_LAST_STEP = 0xFFFF0000
"""Slurm's own steps (the batch script, an interactive one) have the numbers above (slurm/slurm.h, SLURM_BATCH_SCRIPT)."""


def starter() -> Optional[Starter]:
    """Who made this process a rank; None where nobody did: also in the body of a batch script and in a shell that srun --pty opened, where
    Slurm says that this is task 0, though the tasks are yet to be started."""
    for one in STARTERS:
        if environment_number(one.rank) < 0:
            continue
        if one.rank == "SLURM_PROCID" and not _is_srun_task():
            continue
        return one
    return None


def _is_srun_task() -> bool:
    step = os.environ.get("SLURM_STEP_ID", os.environ.get("SLURM_STEPID", ""))
    return 0 <= whole_number(step) < _LAST_STEP and "SLURM_PTY_PORT" not in os.environ


def launching(argv: List[str]) -> bool:
    """Whether this process is to start ranks: no launcher gave it a rank, or it was told to."""
    return "--launch" in argv or starter() is None


def lasting_path(path: str) -> str:
    """Return a path of this script that other processes of ours can open, too: the driver hands the script over as a descriptor, and
    workers that are not forked (multiprocessing's spawn and forkserver) read it once more.

    >>> lasting_path("/x/smoke.py")
    '/x/smoke.py'
    """
    return path.replace("/self/", "/%d/" % os.getpid(), 1) if path.startswith("/proc/self/fd/") else path


def text_of_script(path: str) -> str:
    """Return the path of this script's text. Where a rank runs what its launcher compiled, that names the text, which is inherited, too."""
    compiled_from = sys._getframe().f_code.co_filename
    return compiled_from if compiled_from.startswith("/proc/self/fd/") else path


channel = Channel()
if __name__ == "__main__":
    __file__ = lasting_path(text_of_script(__file__))
    channel.open("agent" if launching(sys.argv) else "rank")
