"""What processes listen on: as ss(8) shows it from time to time, and as strace(1) saw each call."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

_CALL = re.compile(r"listen\(\d+<(?P<socket>[^>]*)>, -?\d+\)\s+= 0$")
_LOOPBACK = re.compile(r"(127\.[\d.]+|\[::1\]|\[::ffff:127\.[\d.]+\]):\d+$")


def traced(log: Path) -> list[str]:
    """A command line in front of another, after which ``log`` has every call of listen(2) in it and its descendants."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("needs strace")
    if subprocess.run([strace, "-o", "/dev/null", "true"], check=False, capture_output=True).returncode:
        pytest.skip("nothing may be traced here")
    return [strace, "-f", "-qq", "--seccomp-bpf", "-yy", "-e", "trace=listen", "-e", "signal=none", "-o", str(log)]


def listened(log: Path) -> list[str]:
    """The TCP addresses of a trace, in the order of the calls; unix sockets are left out."""
    lines = log.read_text().splitlines()
    calls = [found["socket"] for found in map(_CALL.search, lines) if found]
    assert len(calls) == sum("listen(" in line and line.endswith("= 0") for line in lines), lines
    return [call.partition(":[")[2].removesuffix("]") for call in calls if call.startswith("TCP")]


def outside_loopback(addresses: list[str]) -> list[str]:
    """
    >>> outside_loopback(["127.0.0.1:40", "[::1]:40", "0.0.0.0:40", "*:40", "[::]:40", "10.77.31.1:40"])
    ['0.0.0.0:40', '*:40', '[::]:40', '10.77.31.1:40']
    """
    return [address for address in addresses if not _LOOPBACK.match(address)]


class Watch:
    """Looks with ss all the time, in a network where nobody else listens."""

    def __init__(self, *inside: str) -> None:
        self.seen: set[str] = set()
        self._words = [*inside, "ss", "-H", "-l", "-t", "-n"]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._stop.wait(0.02):
            done = subprocess.run(self._words, capture_output=True, text=True, check=True, timeout=20)
            self.seen |= {line.split()[3] for line in done.stdout.splitlines()}

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._stop.set()
        self._thread.join()
