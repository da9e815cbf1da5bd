"""Parts of the smoke test's script, tried in a process that has torch: it is imported once, and each trial is a fork."""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import textwrap
from pathlib import Path
from typing import NamedTuple

from smoke.faults.bench import torch_python
from torchtune_sys.smoke.script import source

_SERVER = """
import os, sys
import torch
names = {"__name__": "examined", "__file__": "<stdin>"}
def taken():
    return sys.stdin.buffer.read(int(sys.stdin.buffer.readline() or 0))
exec(compile(taken(), "smoke.py", "exec"), names)
while text := taken():
    if not os.fork():
        exec(compile(text, "trial", "exec"), names)
        sys.stdout.flush()
        os._exit(0)
    print("\\nended", os.wait()[1], flush=True)
"""


class Ended(NamedTuple):
    status: int
    """As waitpid(2) gives it."""
    said: str
    """What the trial printed."""

    @property
    def signal(self) -> int:
        """The signal that ended it, 0 for none."""
        return os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else 0


def said(trial: str) -> str:
    """Return what a trial prints, which must end well; the script's names are its own."""
    ended = forked(trial)
    assert ended.status == 0, ended
    return ended.said


def forked(trial: str) -> Ended:
    """Run a trial in the caller's directory."""
    server = _loaded()
    assert server.stdout is not None
    _give(server, f"import os\nos.chdir({os.getcwd()!r})\n{textwrap.dedent(trial)}")
    told: list[str] = []
    while not told or not told[-1].startswith("ended "):
        told.append(server.stdout.readline().decode())
        assert told[-1], "the process that has torch has ended"
    return Ended(int(told.pop().split()[1]), "".join(told)[:-1])


def spent_s() -> float:
    """Return the CPU seconds of the process that has torch and of the trials that it waited for."""
    if not _loaded.cache_info().currsize:
        return 0.0
    spent = Path(f"/proc/{_loaded().pid}/stat").read_text().rpartition(")")[2].split()[11:15]  # proc_pid_stat(5), fields 14 to 17
    return sum(map(int, spent)) / os.sysconf("SC_CLK_TCK")


@functools.lru_cache
def _loaded() -> subprocess.Popen[bytes]:
    words = [torch_python(), "-W", "ignore", "-c", _SERVER]
    server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(server.communicate)
    _give(server, source())
    return server


def _give(server: subprocess.Popen[bytes], text: str) -> None:
    assert server.stdin is not None
    server.stdin.write(b"%d\n%b" % (len(text.encode()), text.encode()))
    server.stdin.flush()
