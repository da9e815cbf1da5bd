"""Child processes under a deadline: the one place that starts any.

A child gets its own process group. When its time is up the group is asked to end (SIGTERM: a killed monitor has
been seen to freeze a GPU, NVIDIA/dcgm-exporter#84), then killed; a child that cannot be reaped within a second
after that (state D) is abandoned, because waiting for it would hang us too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time

from torchtune_sys.host.base import Output
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

OUTPUT_LIMIT = 32 << 20
_GRACE_S = 0.5
_ABANDON_S = 1.0
_running: set[subprocess.Popen[bytes]] = set()
"""Children that a thread waits for; a set, since its add and discard are atomic."""


def run(
    argv: tuple[str, ...], *, timeout_s: float, env: dict[str, str] | None = None, cwd: str = "/", data: str | None = None
) -> Fact[Output]:
    """Run ``argv`` and wait for it, at most ``timeout_s`` seconds (plus 1.5 s to end it).

    Output goes through files, so a child that leaves a grandchild behind with the pipe open cannot hold us.
    """
    name = " ".join(argv[:3])
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as into:
        if data is not None:
            into.write(data.encode())
            into.seek(0)
        try:
            child = subprocess.Popen(
                argv, stdin=into, stdout=out, stderr=err, cwd=cwd, env=env, start_new_session=True, close_fds=True
            )
        except FileNotFoundError:
            return Missing(Why.NO_TOOL, name, f"{argv[0]} is not installed", f"install {os.path.basename(argv[0])}")
        except PermissionError:
            return Missing(Why.DENIED, name, f"{argv[0]} may not be executed")
        except (OSError, ValueError) as error:
            return Missing(Why.FAILED, name, str(error))
        _running.add(child)
        try:
            rc = child.wait(timeout=max(timeout_s, 0.0))
        except subprocess.TimeoutExpired:
            return Missing(Why.TIMEOUT, name, f"no answer within {timeout_s:g} s{end(child)}")
        except BaseException:
            end(child)
            raise
        finally:
            _running.discard(child)
        return Output(rc=rc, stdout=_read(out), stderr=_read(err))


def end(child: subprocess.Popen[bytes]) -> str:
    """End a child's whole group; return a remark if it could not be reaped."""
    for sig, patience in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _ABANDON_S)):
        try:
            os.killpg(child.pid, sig)
            if sig is signal.SIGTERM:
                os.killpg(child.pid, signal.SIGCONT)  # a stopped process sees SIGTERM only once it continues
        except (ProcessLookupError, PermissionError):
            pass
        limit = time.monotonic() + patience
        while time.monotonic() < limit:
            if child.poll() is not None:
                return ""
            time.sleep(0.01)
    return f"; process {child.pid} could not be killed and was abandoned (uninterruptible sleep)"


def end_all() -> None:
    """End every child that is still waited for, when the process itself is to end (interrupted, or past its deadline)."""
    for child in tuple(_running):
        end(child)


def _read(file: object) -> str:
    handle = file.fileno()  # type: ignore[attr-defined]
    return os.pread(handle, OUTPUT_LIMIT, 0).decode("utf-8", "replace")
