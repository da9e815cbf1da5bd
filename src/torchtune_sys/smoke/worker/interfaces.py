"""Which addresses the ranks talk over, as the kernel tells it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import sys
from typing import Dict, Iterable, List, Set

_SIOCGIFADDR = 0x8915
_ESTABLISHED = "01"


def host_identity() -> str:
    """The same for processes between which the loopback works: one kernel, one network namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as boot:
            return boot.read().strip() + os.readlink("/proc/self/ns/net")
    except OSError:
        return socket.gethostname()


def gloo_address(interface: str) -> str:
    """Where gloo will listen: at the named interface's address, else at the first of the host's own name that can be bound; "" where
    there is none (gloo then takes the loopback)."""
    if interface:
        first = interface.split(",")[0]
        return next((address for address, name in _interfaces_by_address().items() if name == first), "")
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_UNSPEC, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ""
    for family, kind, _, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind) as trial:
            trial.bind((address[0], 0))
            return str(address[0])
    return ""


def interface_names() -> List[str]:
    return [name for _, name in socket.if_nameindex()]


def open_sockets() -> Set[str]:
    """Inodes of this process's sockets."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink("/proc/self/fd/" + descriptor)
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def connected_over(inodes: Set[str]) -> List[str]:
    """Own addresses of the established TCP connections among these sockets, each with its interface: "127.0.0.1 (lo)"."""
    addresses: Set[str] = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with contextlib.suppress(OSError), open("/proc/self/net/" + table) as lines:
            for words in map(str.split, lines):
                if len(words) > 9 and words[3] == _ESTABLISHED and words[9] in inodes:
                    addresses.add(_address(family, words[1].split(":")[0]))
    names = _interfaces_by_address()
    return ["%s (%s)" % (address, names[address]) if address in names else address for address in sorted(addresses)]


def _address(family: int, text: str) -> str:
    """The kernel writes 32-bit words in the byte order of the processor."""
    words = [int(text[place : place + 8], 16) for place in range(0, len(text), 8)]
    packed = struct.pack(("<" if sys.byteorder == "little" else ">") + "%dI" % len(words), *words)
    return socket.inet_ntop(family, packed).replace("::ffff:", "")


def _interfaces_by_address() -> Dict[str, str]:
    """First IPv4 address of each interface, and all IPv6 ones."""
    found: Dict[str, str] = {}
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for name in interface_names():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found[socket.inet_ntoa(answer[20:24])] = name
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as lines:
        for words in map(str.split, lines):
            found[socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0]))] = words[5]
    return found


def named_but_absent(wish: str) -> List[str]:
    """Of the interfaces that a list names, those that this host lacks."""
    present: Iterable[str] = interface_names()
    return [name for name in wish.split(",") if name and name not in present]
