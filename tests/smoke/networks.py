"""Two hosts, as network namespaces that a cable joins."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

ADDRESSES = ("10.77.31.1", "10.77.31.2")
PROPER = "127.0.0.1 localhost\n10.77.31.1 node0\n10.77.31.2 node1\n"
"""Of both hosts, for /etc/hosts."""


class Host(NamedTuple):
    namespace: str
    interface: str
    number: int

    def argv(self, hosts: Path, *command: str) -> list[str]:
        """A command in this network, under this name, with that /etc/hosts."""
        inside = f'hostname node{self.number}; mount --bind {hosts} /etc/hosts; exec "$@"'
        return ["ip", "netns", "exec", self.namespace, "unshare", "--mount", "--uts", "sh", "-c", inside, "-", *command]


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Each with a loopback and an end of the cable. Skips the test where that cannot be made."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "mount"))):
        pytest.skip("needs root, ip and unshare")
    pair = tuple(Host(f"smoke{os.getpid()}-{number}", f"cable{number}", number) for number in range(2))
    with ExitStack() as stack:
        for host in pair:
            if subprocess.run(["ip", "netns", "add", host.namespace], check=False, capture_output=True).returncode:
                pytest.skip("network namespaces are not allowed here")
            stack.callback(subprocess.run, ["ip", "netns", "del", host.namespace], check=False)
        first, second = pair
        ends = [
            first.interface,
            "netns",
            first.namespace,
            "type",
            "veth",
            "peer",
            "name",
            second.interface,
            "netns",
            second.namespace,
        ]
        ip("link", "add", *ends)
        for host, address in zip(pair, ADDRESSES, strict=True):
            ip("-n", host.namespace, "addr", "add", f"{address}/24", "dev", host.interface)
            for interface in (host.interface, "lo"):
                ip("-n", host.namespace, "link", "set", interface, "up")
        yield first, second


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=20)
