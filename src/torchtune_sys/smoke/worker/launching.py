"""Starts the ranks of one host and waits for them. Nothing listens for them: they find each other over a file that only they can open."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib.util
import marshal
import os
import re
import signal
import socket
import subprocess
import sys
import time
from typing import Dict, Iterator, List, Sequence, Tuple

from torchtune_sys.smoke.worker.channel import LAUNCHER_VARIABLE, RankLauncher, channel
from torchtune_sys.smoke.worker.measures import CROWD, processes_a_cpu
from torchtune_sys.smoke.worker.oom_kills import memory_kills, say_if_memory_ran_out
from torchtune_sys.smoke.worker.starting import Obstacle, loopback_address, obstacle

_OTHERS_FINISH_S = 20.0
"""For the others to tell what they saw when a rank has told of a failure and left."""
_OTHERS_NOTICE_S = 3.0
"""The same when a rank was lost without a word."""
_ENDING_S = 10.0
"""Between SIGTERM and SIGKILL."""
_LOOK_S = 1.0
"""A signal that comes while nobody awaits it goes to a thread that does not block it (of torch, by hand), and is lost there: signal(7)."""
_ASKED_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def launch(ranks: int, port: int, words: Sequence[str]) -> int:
    """Run this script with ``words`` as ranks 0 to ``ranks`` - 1; return the exit status. ``port``: where they are to meet, 0 for none."""
    found = obstacle(port)
    if found:
        _give_up(found)
    kills = memory_kills()
    with contextlib.ExitStack() as held:
        store = held.enter_context(_nameless_file())
        script = held.enter_context(_own_script())
        children: Dict[int, subprocess.Popen[bytes]] = {}
        listener = _listening(port) if port else None
        try:
            for rank in range(ranks):
                inherited = RankLauncher(os.getpid(), store, listener.fileno() if listener and rank == 0 else -1)
                children[rank] = _started(rank, ranks, inherited, port, [script, *words])
        except OSError as error:
            _end_all(list(children.values()))
            _give_up(Obstacle("import", "", "rank %d cannot be started: %s" % (len(children), error)))
        finally:
            if listener:
                listener.close()
        status = _outlived(children)
    say_if_memory_ran_out(kills)
    return status


def _give_up(found: Obstacle) -> None:
    channel.tell("end", verdict="fail", seconds=0.0, trace="", **found._asdict())
    sys.exit("the smoke test cannot start its ranks: %s: %s" % (found.stage, found.seen))


@contextlib.contextmanager
def _nameless_file() -> Iterator[int]:
    """Provide a file that takes no room on a disk where Python can make one (not where it was built for glibc before 2.27, or a filter refuses it)."""
    try:
        handle = os.memfd_create("store")
    except (AttributeError, OSError):
        import tempfile  # not above: it needs random, which a file of the user's may hide; the first stage tells of that

        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    try:
        yield handle
    finally:
        os.close(handle)


def _listening(port: int) -> socket.socket:
    """On the loopback alone. torch's own store would listen on every address."""
    family, address = loopback_address()
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        _give_up(Obstacle("rendezvous", "", "port %d: %s" % (port, error.strerror or error)))
    return listener


def _started(rank: int, ranks: int, inherited: RankLauncher, port: int, argv: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a rank by the script and its arguments, which gets the variables that torchrun sets and training reads; with several, one thread unless somebody chose, as there."""
    env = {name: value for name, value in os.environ.items() if name not in ("MASTER_ADDR", "MASTER_PORT")}
    env.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
    env[LAUNCHER_VARIABLE] = inherited.as_text()
    if port:
        env.update(MASTER_ADDR=loopback_address()[1], MASTER_PORT=str(port))
    if ranks > 1:
        env.setdefault("OMP_NUM_THREADS", "1")
    # OpenMP's threads that spin take the CPU from those that they await: 458 s at a load of 22 on two CPUs, 62 s so
    if processes_a_cpu() > CROWD:
        env.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    scripts = [_descriptor(path) for path in (sys.argv[0], argv[0])]
    keep = {handle for handle in (inherited.store, inherited.listener, *scripts) if handle >= 0}
    return subprocess.Popen([sys.executable, "-u", *argv], env=env, pass_fds=keep, start_new_session=True)


def _descriptor(path: str) -> int:
    found = re.match(r"/proc/self/fd/(\d+)$", path)
    return int(found.group(1)) if found else -1


@contextlib.contextmanager
def _own_script() -> Iterator[str]:
    """Provide the path by which ranks run this script: what was compiled for this process, if the driver passed the script (compiling takes a rank a third of a second
    of a processor on a slow one). Python tells it from a script's text by its first bytes, the magic number of this interpreter, which is the ranks' too."""
    path, handle = os.path.abspath(sys.argv[0]), -1
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    try:
        if _descriptor(path) >= 0 and frame.f_code.co_filename == path:
            handle = os.memfd_create("torchtune-sys/smoke.pyc", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            with open(handle, "wb", closefd=False) as file:
                file.write(importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(frame.f_code))
            fcntl.fcntl(
                handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
            )
            path = "/proc/self/fd/%d" % handle
    except (AttributeError, OSError):  # no memfd_create, or a filter refuses it
        pass
    try:
        yield path
    finally:
        if handle >= 0:
            os.close(handle)


def _outlived(children: Dict[int, subprocess.Popen[bytes]]) -> int:
    """Wait for all ranks. Without a driver, which judges by itself, the others are ended soon after one has failed."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who ignores it never learns how a child ended
    ending = {number for number in _ASKED_TO_END if signal.getsignal(number) != signal.SIG_IGN}
    awaited = {*ending, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    statuses: Dict[int, int] = {}
    until = float("inf")
    while True:
        for rank, status in _just_ended(children, statuses):
            until = min(until, time.monotonic() + _patience_s(rank, children[rank].pid, status))
        if len(statuses) == len(children):
            return 1 if {*statuses.values()} - {0, 3} else max(statuses.values())
        heard = signal.sigtimedwait(awaited, max(0.0, min(until - time.monotonic(), _LOOK_S)))
        # Stopped (SIGSTOP) beyond this look's time, Python gives a siginfo that nobody filled in (Modules/signalmodule.c, signal.sigtimedwait: EINTR after the deadline).
        if heard is not None and heard.si_signo in ending:
            _end_all(list(children.values()))
            signal.signal(heard.si_signo, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, awaited)
            os.kill(os.getpid(), heard.si_signo)
        if time.monotonic() >= until:
            _end_all(list(children.values()))
            return 1


def _just_ended(children: Dict[int, subprocess.Popen[bytes]], statuses: Dict[int, int]) -> List[Tuple[int, int]]:
    found: List[Tuple[int, int]] = []
    for rank, child in children.items():
        status = child.poll()
        if rank not in statuses and status is not None:
            statuses[rank] = status
            found.append((rank, status))
            channel.tell("exited", pid=child.pid, status=status)
    return found


def _patience_s(rank: int, pid: int, status: int) -> float:
    """How long the others may go on after a rank ended so."""
    if status == 0 or channel.driven:
        return float("inf")
    if status in (1, 3):
        return _OTHERS_FINISH_S
    how = "was ended by %s" % signal.Signals(-status).name if status < 0 else "ended with status %d" % status
    sys.stderr.write("the smoke test: rank %d (pid %d) %s\n" % (rank, pid, how))
    sys.stderr.flush()
    return _OTHERS_NOTICE_S


def _end_all(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Each with its session: SIGTERM, and SIGKILL for those that are left then."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for child in children:
            if child.poll() is None:
                os.killpg(child.pid, number)
        until = time.monotonic() + _ENDING_S
        while any(child.poll() is None for child in children) and time.monotonic() < until:
            time.sleep(0.02)


def _launch_for_driver() -> int:
    """Launch the ranks for the driver, which has counted the GPUs: this process needs no torch, and the ranks import theirs at once."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--nproc-per-node", type=int, default=2)
    parser.add_argument("--master-port", type=int, default=0)
    asked, _ = parser.parse_known_args()
    return launch(asked.nproc_per_node, asked.master_port, [word for word in sys.argv[1:] if word != "--launch"])


if __name__ == "__main__" and channel.driven and "--launch" in sys.argv:
    sys.exit(_launch_for_driver())
