"""What processes listen on: as the kernel shows it from time to time, and as strace(1) saw each call."""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest

_CALL = re.compile(r"listen\(\d+<(?P<socket>[^>]*)>, -?\d+\)\s+= 0$")
_LISTEN = "0A"
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


def listeners(table: str) -> set[str]:
    """The addresses that are listened on, in a table of /proc/net/tcp or tcp6 (Documentation/networking/proc_net_tcp.rst).

    >>> row = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20123"
    >>> listeners("  sl  local_address rem_address   st ...\\n" + row)
    {'127.0.0.1:8080'}
    """
    found = set()
    for words in map(str.split, table.splitlines()[1:]):
        if words[3] == _LISTEN:
            address, _, port = words[1].partition(":")
            parts = (struct.pack("=I", int(address[at : at + 8], 16)) for at in range(0, len(address), 8))
            own = ipaddress.ip_address(b"".join(parts))
            found.add(f"[{own}]:{int(port, 16)}" if own.version == 6 else f"{own}:{int(port, 16)}")
    return found


class Watch:
    """Looks all the time at who listens in a network namespace where nobody else does."""

    def __init__(self, namespace: str) -> None:
        self.seen: set[str] = set()
        self._namespace = namespace
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._stop.wait(0.02):
            for name in ("tcp", "tcp6"):
                self.seen |= listeners(Path(f"/proc/{self._inside.pid}/net/{name}").read_text())

    def __enter__(self) -> Watch:
        self._inside = subprocess.Popen(["ip", "netns", "exec", self._namespace, "sleep", "infinity"])
        while os.readlink(f"/proc/{self._inside.pid}/ns/net") == os.readlink("/proc/self/ns/net"):  # not there yet
            time.sleep(0.01)
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._stop.set()
        self._thread.join()
        self._inside.kill()
        self._inside.wait()
