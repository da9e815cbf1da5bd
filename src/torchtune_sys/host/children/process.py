"""Child processes under a deadline: the one place that starts any.

A child gets its own session and process group. When its time is up the group is asked to end (SIGTERM: a killed monitor has
been seen to freeze a GPU, NVIDIA/dcgm-exporter#84), then killed; a child that cannot be reaped within a second after that
(state D) is abandoned, because waiting for it would hang us too. Output goes through pipes that are read as it comes: nothing
is written to a disk that may be full, a child that prints without end is stopped, and a grandchild that keeps the pipe open
does not hold us, since it is the child's end that counts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

from torchtune_sys.host import trust
from torchtune_sys.host.account import Account, without_our_keys
from torchtune_sys.host.base import Output
from torchtune_sys.host.children import orphans
from torchtune_sys.host.children.child_environment import for_tools
from torchtune_sys.host.children.endings import all_ended, status_of
from torchtune_sys.host.children.programs import found_on
from torchtune_sys.host.isolation import leave_children_unheard, session_status
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

OUTPUT_LIMIT = 32 << 20
"""Bytes; ``nvidia-smi -q -x`` of 16 GPUs prints about 1 MiB."""
_GRACE_S = 0.5
_ABANDON_S = 1.0
_ASLEEP_S = 3.0
"""How long a child may sleep in execve; meanwhile nothing else is started."""
_POLL_S = 0.05
"""How long a child's end may go unnoticed on a kernel without pidfd_open (before 5.3)."""

_ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
"""The last is the tool's own, for what must not wait longer."""

_running: set[subprocess.Popen[bytes]] = set()
"""Children that a thread waits for; a set, since its add and discard are atomic."""
_of_others: dict[subprocess.Popen[bytes], int] = {}
"""Those that run as another user, and as whom."""
_as_whom: set[int] = set()
"""As which other users any was started, also one that is not executed yet."""
_held: set[str] = set()
"""Programs that were not executed in time."""
_starting = threading.Lock()
"""Held from before a child is started until it is in the set: else one that starts just as we end would be forgotten."""


def run(
    argv: tuple[str, ...],
    *,
    timeout_s: float,
    env: dict[str, str] | None = None,
    cwd: str = "/",
    data: str | None = None,
    unfinished: list[str] | None = None,
    user: Account | None = None,
    at_most: int | None = None,
) -> Fact[Output]:
    """Run ``argv`` and wait for it, at most ``timeout_s`` seconds (plus 1.5 s to end it). ``env``, ``data`` and ``user`` are as of
    :func:`start`; ``unfinished`` is given what one that did not end in time had printed, and ``at_most`` is how many bytes it may print (OUTPUT_LIMIT)."""
    name, at_most = " ".join(argv[:3]), OUTPUT_LIMIT if at_most is None else at_most
    child = start(argv, env=env, cwd=cwd, data=data, user=user)
    if isinstance(child, Missing):
        return child
    try:
        output = _collect(child, time.monotonic() + max(timeout_s, 0.0), unfinished, at_most)
        if output is None:
            return Missing(Why.TIMEOUT, name, f"no answer within {timeout_s:.3g} s{end(child)}")
        if len(output[0]) + len(output[1]) > at_most:
            return Missing(Why.FAILED, name, f"printed more than {at_most >> 20} MiB{end(child)}")
        _kill_group(child)  # what it left behind must not outlive the look
        return Output(rc=child.wait(), stdout=output[0].decode("utf-8", "replace"), stderr=output[1].decode("utf-8", "replace"))
    except BaseException:
        end(child)
        raise
    finally:
        forget(child)


def start(
    argv: tuple[str, ...],
    *,
    env: dict[str, str] | None = None,
    cwd: str = "/",
    data: str | int | None = None,
    user: Account | None = None,
    keep: tuple[int, ...] = (),
    is_training: bool = False,
) -> subprocess.Popen[bytes] | Missing:
    """Start a child that :func:`end_all` ends with us; its caller reads its pipes, ends it and forgets it.

    ``env`` is the one for programs of the system where it is not given, ``data`` the child's standard input, or a descriptor of it. ``user`` is who it is
    started as, with that user's groups and none of ours; what it executes, its directory and its environment are for the caller to choose.
    It inherits the descriptors ``keep``. ``is_training``: it is to have what a session's own training would have of signals.
    """
    env = for_tools() if env is None else env
    child: subprocess.Popen[bytes] | Missing | None = None
    try:
        with _input(data) as into, _starting, _until_known():
            if user is not None and not _of_others:
                orphans.adopt(True)
            if user is not None:
                _as_whom.add(user.uid)
            child = _start(argv, " ".join(argv[:3]), into, env, cwd, user, keep, is_training=is_training)
            if not isinstance(child, Missing):
                _running.add(child)
                if user is not None:
                    _of_others[child] = user.uid
    except BaseException:
        if isinstance(child, subprocess.Popen):
            end(child)
            forget(child)
        raise
    return child


@contextlib.contextmanager
def _until_known() -> Iterator[None]:
    """Let what asks this process to end wait for a moment: an exception between a child's fork and the note of it would leave it running, known to nobody."""
    asked: list[int] = []
    usual: dict[int, Callable[..., object]] = {}
    if threading.get_ident() == threading.main_thread().ident:  # in others no handler runs
        usual = {number: handler for number in _ASKING if callable(handler := signal.getsignal(number))}
    try:
        for number in usual:
            signal.signal(number, lambda number, _frame: asked.append(number))
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
        for number in asked:
            signal.raise_signal(number)


def forget(child: subprocess.Popen[bytes]) -> None:
    """Forget a child that has ended, or was abandoned, and end what one of another user's left behind."""
    _running.discard(child)
    uid = _of_others.pop(child, None)
    if uid is not None and _starting.acquire(timeout=_ABANDON_S):
        try:
            orphans.end(uid, _pids())
            if not _of_others:
                orphans.adopt(False)
        finally:
            _starting.release()
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()


def _nameless() -> int:
    try:
        return os.memfd_create("input")
    except (AttributeError, OSError):  # Python was built for glibc before 2.27; a filter refuses it
        import tempfile  # slow to import

        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())


def _opens(path: str) -> bool:
    """Tell by trying: a device on a file system that is mounted nodev is there, and may be read and written, and cannot be opened."""
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _input(data: str | int | None) -> Iterator[int]:
    """Provide a file with the data that needs no room on a disk: the child reads it at its own pace."""
    if isinstance(data, int) or (data is None and _opens(os.devnull)):
        yield subprocess.DEVNULL if data is None else data
        return
    handle = _nameless()  # without data: for a container that has no /dev
    try:
        left = memoryview((data or "").encode("utf-8", "surrogateescape"))
        while left:
            left = left[os.write(handle, left) :]
        os.lseek(handle, 0, os.SEEK_SET)
        yield handle
    finally:
        os.close(handle)


def _start(
    argv: tuple[str, ...],
    name: str,
    into: int,
    env: dict[str, str],
    cwd: str,
    user: Account | None,
    keep: tuple[int, ...],
    *,
    is_training: bool,
) -> subprocess.Popen[bytes] | Missing:
    if argv[0] in _held:
        return _is_held(name)
    uid, gid, groups = (None, None, None) if user is None else (user.uid, user.gid, user.groups)
    program, why = found_on(env.get("PATH", os.defpath), argv[0]) if os.geteuid() == 0 else (argv[0], "")
    if why:
        return Missing(Why.DENIED, name, f"not run as root: {why}")

    def child() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv,
            executable=program,
            stdin=into,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=env,
            pass_fds=keep,
            start_new_session=True,
            bufsize=0,
            user=uid,
            group=gid,
            extra_groups=groups,
            preexec_fn=leave_children_unheard if is_training and session_status else None,
        )

    try:
        return child() if user is None else without_our_keys(child, _held_up(user.uid))
    except TimeoutError:
        _held.add(argv[0])
        orphans.end(uid or 0, _pids())
        return _is_held(name)
    except FileNotFoundError as error:
        if error.filename == cwd:
            return Missing(Why.FAILED, name, f"the directory {cwd} is gone")
        if os.path.isabs(argv[0]) and os.path.exists(argv[0]):  # execve(2): ENOENT is also what starts the file
            return Missing(Why.FAILED, name, f"{argv[0]} cannot be started: the interpreter or loader that it names is not there")
        return Missing(Why.NO_TOOL, name, f"{argv[0]} is not installed", f"install {os.path.basename(argv[0])}")
    except PermissionError as error:
        if user is not None and error.errno == errno.EPERM:
            return Missing(Why.DENIED, name, f"this process may not become user {user.name}", f"run torchtune-sys as {user.name}")
        unreached = "" if user else trust.out_of_reach(argv[0])
        said = f"{argv[0]} is out of reach: {unreached}" if unreached else f"{argv[0]} is not executable"
        return Missing(Why.DENIED, name, said + (f" by user {user.name}" if user else ""))
    except BlockingIOError:
        return Missing(
            Why.FAILED, name, "no process could be started: the limit on processes is reached (nproc, or the cgroup's pids.max)"
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return Missing(Why.FAILED, name, str(error))


def _held_up(uid: int) -> Callable[[], bool]:
    """Return what says whether this user's child that is being started was asleep each time that it was asked in the last seconds, as one is that somebody holds up: on a busy
    host, or from a distant file system, a start may take longer."""
    awake_s = time.monotonic()

    def is_held() -> bool:
        nonlocal awake_s
        if not orphans.is_asleep(uid, _pids()):
            awake_s = time.monotonic()
        return time.monotonic() - awake_s > _ASLEEP_S

    return is_held


def _pids() -> set[int]:
    return {child.pid for child in tuple(_running)}  # another thread may forget one meanwhile


def _is_held(name: str) -> Missing:
    """Whoever holds a lease on a file of theirs keeps execve(2) waiting for 45 s, each time anew (fcntl(2), F_SETLEASE)."""
    return Missing(Why.TIMEOUT, name, "not executed in time: its owner may hold a lease on the file")


def _collect(
    child: subprocess.Popen[bytes], deadline: float, unfinished: list[str] | None, at_most: int
) -> tuple[bytes, bytes] | None:
    """Return what the child prints until it ends; None if it has not ended by the deadline. More than ``at_most`` is cut off."""
    assert child.stdout is not None and child.stderr is not None
    parts: dict[int, list[bytes]] = {}
    poll = select.poll()
    for stream in (child.stdout, child.stderr):
        os.set_blocking(stream.fileno(), False)
        parts[stream.fileno()] = []
        poll.register(stream.fileno(), select.POLLIN)
    with _death_notice(child, poll):
        size = 0
        while size <= at_most:
            ended = status_of(child) is not None  # asked before the last reading, so that nothing is lost
            read = _drain(poll, parts)
            size += read
            if ended and not read:
                break
            left = deadline - time.monotonic()
            if not ended and left <= 0:
                if unfinished is not None:
                    unfinished.append(b"".join(parts[child.stdout.fileno()]).decode("utf-8", "replace"))
                return None
            if not read:
                poll.poll(min(left, _POLL_S) * 1000)
    return b"".join(parts[child.stdout.fileno()]), b"".join(parts[child.stderr.fileno()])


@contextlib.contextmanager
def _death_notice(child: subprocess.Popen[bytes], poll: select.poll) -> Iterator[None]:
    """Wake the poll when the child ends."""
    handle = -1
    with contextlib.suppress(OSError, AttributeError):
        handle = os.pidfd_open(child.pid)
        poll.register(handle, select.POLLIN)
    try:
        yield
    finally:
        if handle >= 0:
            os.close(handle)


def _drain(poll: select.poll, parts: dict[int, list[bytes]]) -> int:
    """Read what is there, at most 1 MiB of each stream; the number of bytes."""
    size = 0
    for handle, found in parts.items():
        with contextlib.suppress(BlockingIOError):
            part = os.read(handle, 1 << 20)
            if part:
                found.append(part)
                size += len(part)
            else:
                with contextlib.suppress(KeyError):  # at its end it would wake the poll for ever
                    poll.unregister(handle)
    return size


def end(child: subprocess.Popen[bytes]) -> str:
    """End a child's whole group; return a remark if it could not be reaped."""
    _signal(child, signal.SIGTERM)
    _signal(child, signal.SIGCONT)  # a stopped process sees SIGTERM only once it continues
    if not all_ended([child], _GRACE_S):
        _kill_group(child)
        if not all_ended([child], _ABANDON_S):
            pid, child.returncode = child.pid, -signal.SIGKILL  # nobody is to wait for it at exit
            return f"; process {pid} could not be killed and was abandoned (uninterruptible sleep)"
    _kill_group(child)
    if child.poll() is None:
        child.returncode = -signal.SIGKILL
    return ""


def end_all(*, for_good: bool = False) -> None:
    """End every child that is still waited for, when the process itself is to end (interrupted, or past its deadline).
    ``for_good``: and start none from now on."""
    held = _starting.acquire(timeout=_ABANDON_S)
    children = list(_running)
    if held and not for_good:
        _starting.release()
    for sig in (signal.SIGTERM, signal.SIGCONT):
        for child in children:
            _signal(child, sig)
    if not all_ended(children, _GRACE_S):
        for child in children:
            _kill_group(child)
        all_ended(children, _ABANDON_S)
    for uid in tuple(_as_whom):
        orphans.end(uid, ())


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kill the group, which outlives its leader as long as it has a member, and its number is not given to others before."""
    _signal(child, signal.SIGKILL)


def _signal(child: subprocess.Popen[bytes], sig: signal.Signals) -> None:
    if child.returncode is not None:  # reaped: its number may be another's
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, sig)
