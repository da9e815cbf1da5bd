"""Find listening sockets. The socket tables, which say who talks to whom, do not leave this module."""

from __future__ import annotations

import errno

from torchtune_sys.host.live import read_text
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTEN = "0A"
"""TCP_LISTEN (include/net/tcp_states.h)."""


def port_listeners(port: str, _timeout_s: float) -> Fact[list[int]]:
    """Return the UIDs of who listens on a TCP port in this network namespace, each once."""
    if not 0 < (natural(port, 5) or 0) < 65536:
        return Missing(Why.UNPARSED, "port", f"not a port: {port[:40]!r}")
    found: dict[int, None] = {}
    for path in _TABLES:
        text = read_text(path, path)
        if isinstance(text, Missing):
            if path == "/proc/net/tcp6" and text.why is Why.ABSENT:  # ipv6.disable=1
                continue
            return text
        found.update(dict.fromkeys(parse_listeners(text, int(port))))
    return list(found)


def parse_listeners(text: str, port: int) -> tuple[int, ...]:
    r"""Return the UIDs of the sockets that listen on ``port``, from /proc/net/tcp (Documentation/networking/proc_net_tcp.rst).

    >>> parse_listeners("  sl  local_address rem_address   st\n"
    ... "   0: 00000000:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 31337 1 0\n", 29500)
    (1000,)
    """
    end = f":{port:04X}"
    found: list[int] = []
    for line in text.splitlines():
        if end not in line:
            continue
        words = line.split()
        if len(words) > 7 and words[1].endswith(end) and words[3] == _LISTEN and words[7].isascii() and words[7].isdigit():
            found.append(int(words[7][:10]))
    return tuple(found)


def bound_socket(path: str, _timeout_s: float) -> Fact[bool]:
    """Return whether a living process holds the Unix socket of this path.

    The kernel is asked by the file itself: connecting with another kind of socket is refused as of the wrong type where one is held, and
    no connection comes about (unix(7)). In /proc/net/unix any user can have a line of their own making: names of abstract sockets hold newlines.
    """
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(path)
        except OSError as error:
            if error.errno in (errno.EPROTOTYPE, errno.ECONNREFUSED, errno.ENOENT):
                return error.errno == errno.EPROTOTYPE
        else:
            return True
    text = read_text("/proc/net/unix", "/proc/net/unix")
    return text if isinstance(text, Missing) else parse_bound(text, path)


def parse_bound(text: str, path: str) -> bool:
    r"""Return whether /proc/net/unix lists a socket with this path; a socket's line goes with its process, the file stays.

    >>> parse_bound("Num RefCount Protocol Flags Type St Inode Path\n0: 00000002 00000000 00010000 0005 01 77 /tmp/nvidia-mps/control\n",
    ... "/tmp/nvidia-mps/control")
    True
    """
    return bool(path) and any(line.endswith(path) and line[: -len(path)].endswith(" ") for line in text.split("\n"))
