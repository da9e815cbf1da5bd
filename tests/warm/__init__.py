"""The command as a process of its own, without what the start of an interpreter and the reading of its modules costs (0.1 to 0.3 s).

``PROGRAM`` stands in place of ``[sys.executable, "-m", "torchtune_sys"]``, in an argument list as in a shell script (``WORDS``). It starts
``client.py``, which takes hundredths of a second. A server, one for each of pytest's workers, has read all modules of the tool and has done nothing
else; for each client it forks a process with the client's arguments, environment, working directory, streams and namespaces, which
begins where ``python -m torchtune_sys`` does. Its status is the client's, and signals that the client gets are passed on.

A client that is something else than the server (another user, another limit, a variable that Python itself obeys …) starts the program for
real. So do the tests of what only a start shows: the streams and the sys.path that Python makes, what is imported, how long it takes.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(tempfile.mkdtemp(prefix="torchtune-sys-warm-"))
"""Of this process: the server's socket, and what its runs took."""
SOCKET, SPENT = FOLDER / "socket", FOLDER / "spent"
PROGRAM = [sys.executable, "-I", "-S", str(Path(__file__).with_name("client.py")), str(SOCKET)]
WORDS = shlex.join(PROGRAM)
_OWNER = os.getpid()


def _begin() -> subprocess.Popen[bytes]:
    """Start the server; it ends with its standard input, however this process does."""
    SPENT.touch()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(SOCKET))
        listening.listen(64)
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("server.py")), str(listening.fileno()), str(SPENT)],
            pass_fds=[listening.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )


_SERVER = _begin()


@atexit.register
def _end() -> None:
    if os.getpid() == _OWNER:  # not in what a test forked
        _SERVER.communicate()
        shutil.rmtree(FOLDER, ignore_errors=True)


def spent_s() -> float:
    """Return the CPU seconds of all runs so far; they are no children of this process."""
    return sum(map(float, SPENT.read_text().split())) if SPENT.exists() else 0.0
