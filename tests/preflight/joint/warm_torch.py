"""Workers of ranks without the start of an interpreter and the import of torch (1.6 CPU seconds each): a server that has imported torch forks them.

``python(folder)`` stands in place of the Python that one trains with. What is asked of it but a worker (facts, versions), and a worker with a fault
that is planted at its import of torch (PYTHONPATH), it starts for real. A worker that was forked runs the product's own script, with the
arguments, streams, environment and namespaces that it would have had (``tests/warm``).
"""

from __future__ import annotations

import atexit
import functools
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

CLIENT = """#!{own} -IS
import os, sys
REAL, SOCKET = {real!r}, {socket!r}
def real():
    os.execv(REAL, [REAL, *sys.argv[1:]])
if len(sys.argv) != 2 or not sys.argv[1].startswith("/proc/self/fd/") or "PYTHONPATH" in os.environ:
    real()
import _signal as signal, _socket, marshal
mask = os.umask(0)
os.umask(mask)
request = marshal.dumps((sys.argv[1:], {{bytes(key): bytes(value) for key, value in os.environb.items()}}, mask))
connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
try:
    connection.connect(SOCKET)
    places = [os.open(".", os.O_PATH), *(os.open("/proc/self/ns/" + name, os.O_RDONLY) for name in ("mnt", "net", "uts", "ipc"))]
    places.append(os.open(sys.argv[1], os.O_RDONLY))
    rights = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2, *places))
    connection.sendmsg([len(request).to_bytes(8, "little")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    connection.sendall(request)
    started = bool(connection.recv(8))
except OSError:
    started = False
if not started:
    real()
for number in (0, 1, 2, *places):
    os.close(number)
said = connection.recv(64)
os._exit(os.WEXITSTATUS(int(said)) if said and os.WIFEXITED(int(said)) else 1)
"""


@contextmanager
def python(folder: Path, real: str) -> Iterator[str]:
    """The program that workers are forked by, as long as the server lives."""
    place, spent = folder / "warm" / "socket", folder / "warm" / "spent"
    program = folder / "warm" / "bin" / "python3"  # nobody else may write beside it
    program.parent.mkdir(parents=True)
    spent.touch()
    program.write_text(CLIENT.format(own=sys.executable, real=real, socket=str(place)))
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place))
        listening.listen(64)
        words = [real, __file__, str(listening.fileno()), str(spent)]
        child = subprocess.Popen(
            words, env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"}, pass_fds=[listening.fileno()], stdin=subprocess.PIPE
        )
    try:
        yield str(program)
    finally:
        child.communicate()


_SPENT: list[Path] = []


@functools.lru_cache
def shared(real: str) -> str:
    """The program of a server that serves as long as this process lives; with ``./run test --all`` ``real`` itself."""
    from conftest import TIER  # which the Python that has torch has not

    if TIER == "all":
        return real
    held = ExitStack()
    atexit.register(held.close)
    folder = Path(held.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
    _SPENT.append(folder / "warm" / "spent")
    return held.enter_context(python(folder, real))


def spent_s() -> float:
    """Return the CPU seconds of all workers of ``shared`` so far; they are no children of this process."""
    return sum(float(word) for place in _SPENT if place.exists() for word in place.read_text().split())


def serve() -> None:
    """Under the Python that has torch."""
    import torch
    import torch.distributed

    assert torch.distributed.is_available()
    here = Path(__file__).parents[2]
    sys.path[:0] = [str(here / "warm"), str(here.parent / "src")]
    import server  # type: ignore[import-not-found]

    server.AT_THE_START = (b"PYTHONPATH", b"PYTHONHOME", b"LD_")
    asked = server.serve()
    script = Path(f"/proc/self/fd/{asked.descriptors[8]}").read_text()
    server.become(asked)
    sys.path[:2] = []
    exec(compile(script, "joint.py", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    serve()
