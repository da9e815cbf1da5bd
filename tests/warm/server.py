"""``server.py DESCRIPTOR SPENT``: forks a run of the command for each client of the socket, until standard input ends."""

from __future__ import annotations

import ctypes
import gc
import importlib
import io
import marshal
import os
import pkgutil
import select
import shutil
import signal
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torchtune_sys

AT_THE_START = (b"PYTHON", b"LD_", b"LC_", b"LANG", b"MALLOC_", b"GLIBC_", b"TZ")
"""Begins of the names of variables that Python and the C library read when they start; PYTHON is the stage's own."""
SCRIPTS = (".worker", ".__main__", ".gen", ".torchrun.handler")
"""What is no part of the command's own process."""
ALIKE = (
    "Uid",
    "Gid",
    "Groups",
    "NoNewPrivs",
    "Seccomp",
    "SigBlk",
    "SigIgn",
    "Cpus_allowed_list",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
)
"""Lines of /proc/PID/status in which who asks must equal the server, whose children have the server's."""
SHARED = ("pid", "user", "cgroup", "time")
"""Namespaces that a process cannot enter, or enters for its children only."""
TEXTS = (
    b"""step 10
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/me/train.py", line 15, in step
[rank1]:     loss = net(batch)
[rank1]: RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:2395, remote process exited or there was a network error
""",
    b"[   12.000000] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\nIt was fixed by a restart of the host\n",
    b"Collecting environment information...\nPyTorch version: 2.9.0+cu128\nIs CUDA available: False\nOS: Ubuntu 22.04.1 LTS\n",
)
"""A training's error, a kernel's message that somebody explains, and a report."""
MAIN = str(Path(torchtune_sys.__file__).with_name("__main__.py"))


class Asked(NamedTuple):
    arguments: list[str]
    environment: dict[bytes, bytes]
    mask: int
    descriptors: list[int]


def standing(process: int | str) -> tuple[object, ...]:
    """What a child would inherit from a process and this server does not pass on."""
    place = Path(f"/proc/{process}")
    status = dict(row.split(":", 1) for row in (place / "status").read_text().splitlines())
    spaces = [os.stat(place / "ns" / name).st_ino for name in SHARED if (place / "ns" / name).exists()]
    kept = (place / "limits").read_text(), (place / "cgroup").read_text(), (place / "oom_score_adj").read_text()
    return tuple(status.get(name) for name in ALIKE), spaces, kept


def at_the_start(environment: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {name: value for name, value in environment.items() if name.startswith(AT_THE_START) and name != b"PYTHON"}


def read(connection: socket.socket) -> Asked:
    """Read what ``client.py`` asks for."""
    head, descriptors, _, _ = socket.recv_fds(connection, 8, 16)
    left, parts = int.from_bytes(head, "little"), []
    while left:
        parts.append(connection.recv(left))
        left -= len(parts[-1])
        if not parts[-1]:
            raise EOFError
    arguments, environment, mask = marshal.loads(b"".join(parts))
    return Asked(arguments, environment, mask, descriptors)


def supervise(connection: socket.socket, spent: str) -> Asked:
    """Answer one client; returns in the process that is to run the command."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    (peer,) = struct.unpack("i8x", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        asked = read(connection)
        alike = standing(peer) == standing("self") and at_the_start(asked.environment) == at_the_start(dict(os.environb))
    except (OSError, EOFError):  # who asked is gone
        os._exit(0)
    if not alike:
        os._exit(0)  # it starts the program itself
    child = os.fork()
    if not child:
        connection.close()
        return asked
    handle = os.pidfd_open(child)
    for descriptor in asked.descriptors:
        os.close(descriptor)
    with suppress(BrokenPipeError):
        connection.send(child.to_bytes(8, "little"))
    while handle not in select.select([connection.fileno(), handle], [], [])[0]:
        for number in connection.recv(64) or (signal.SIGKILL,):  # at its end the client was killed
            os.kill(child, number)
    _, status, used = os.wait4(child, 0)
    with open(spent, "a") as stream:
        stream.write(f"{used.ru_utime + used.ru_stime:.3f}\n")
    with suppress(BrokenPipeError):
        connection.send(b"%d" % status)
    os._exit(0)


def become(asked: Asked) -> None:
    """Take over what the client would have had."""
    library = ctypes.CDLL(None, use_errno=True)
    *streams, place = asked.descriptors[:4]
    own = {os.stat(path).st_ino for path in Path("/proc/self/ns").iterdir()}
    for space in [each for each in asked.descriptors[4:8] if os.fstat(each).st_ino not in own]:
        if library.setns(space, 0):
            raise OSError(ctypes.get_errno(), "cannot enter the namespace of who asks")
    os.fchdir(place)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 256)
    os.umask(asked.mask)
    os.environb.clear()
    os.environb.update(asked.environment)
    sys.argv = [MAIN, *asked.arguments]
    sys.path[0] = os.getcwd()  # as after -m


def serve() -> Asked:
    listening, spent = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([listening.fileno(), 0], [], [])
        if 0 in ready:
            shutil.rmtree(Path(spent).parent, ignore_errors=True)
            os._exit(0)
        connection, _ = listening.accept()
        if not os.fork():
            listening.close()
            return supervise(connection, spent)
        connection.close()


def read_tables() -> None:
    """Read and compile what each diagnosis asks of its tables: most of what it takes for a short text."""
    from torchtune_sys.diagnosis.diagnose import diagnose
    from torchtune_sys.host.input.collection import InputText
    from torchtune_sys.host.input.excerpts import excerpt

    for text in TEXTS:
        diagnose([InputText(name="-", excerpt=excerpt(io.BytesIO(text)))])


def main() -> None:
    for module in pkgutil.walk_packages(torchtune_sys.__path__, "torchtune_sys."):
        if not any(word in module.name for word in SCRIPTS):
            with suppress(ModuleNotFoundError):  # what torch's own processes load asks for torch
                importlib.import_module(module.name)
    read_tables()
    gc.collect()
    gc.freeze()
    become(serve())
    from torchtune_sys.__main__ import main as run

    run()


if __name__ == "__main__":
    main()
