"""Which addresses the ranks talk over, as the kernel tells it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import sys
import time
from typing import Dict, Iterable, List, NamedTuple, Sequence, Set, Tuple

STRANGER = "stranger-among-ranks"
"""The cause where another user is connected with ranks: any user reaches a host's loopback."""
_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915
_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8
_AGAIN_OUT_AND_TWICE, _TCP_INFO_BYTES = (100, 136, 216), 232
"""Where tcpi_total_retrans, tcpi_segs_out and tcpi_dsack_dups lie."""
_TOLD = 4
"""Connections that are named."""
_ESTABLISHED, _LEFT_BY_OTHER, _LISTENING = "01", "08", "0A"
"""As the kernel numbers TCP's states (include/net/tcp_states.h); 08 is CLOSE_WAIT."""


def host_identity() -> str:
    """Return what is the same for processes between which the loopback works: one kernel, one network namespace."""
    try:
        return boot_identity() + os.readlink("/proc/self/ns/net")
    except OSError:
        return socket.gethostname()


def boot_identity() -> str:
    """Return what is the same for processes of one kernel, also in several containers."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as boot:
            return boot.read().strip()
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


def open_sockets(process: str = "self") -> Set[str]:
    """Inodes of the sockets of this process, or of another by its id. Raises OSError where it is gone, or another user's."""
    found, place = set(), "/proc/%s/fd/" % process
    for descriptor in os.listdir(place):
        with contextlib.suppress(OSError):
            target = os.readlink(place + descriptor)
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


class _Connection(NamedTuple):
    """A row of proc_net_tcp(5). Ends are an address and a port."""

    state: str
    unsent: int
    """Bytes that nobody has acknowledged."""
    again: int
    """How often they were sent anew in vain."""
    own: Tuple[str, int]
    other: Tuple[str, int]
    uid: int
    inode: str


def _connections() -> List[_Connection]:
    """TCP's, of all processes of this network. Those that no process has open (yet, or any more: inode 0) are passed over: the user is then said to be 0,
    whoever it is, and a busy host has 40,000 of them, which took seconds."""
    found: List[_Connection] = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with contextlib.suppress(FileNotFoundError), open("/proc/self/net/" + table) as lines:
            for words in map(str.split, lines):
                if len(words) > 9 and words[9] != "0" and words[7].isdigit():
                    found.append(
                        _Connection(
                            words[3],
                            int(words[4].partition(":")[0], 16),
                            int(words[6], 16),
                            _address_and_port(family, words[1]),
                            _address_and_port(family, words[2]),
                            int(words[7]),
                            words[9],
                        )
                    )
    return found


def _address_and_port(family: int, text: str) -> Tuple[str, int]:
    address, port = text.split(":")
    return _address(family, address), int(port, 16)


def connected_over(inodes: Set[str]) -> List[str]:
    """Own addresses of the established TCP connections among these sockets, each with its interface: "127.0.0.1 (lo)"."""
    addresses: Set[str] = set()
    with contextlib.suppress(OSError):
        addresses = {row.own[0] for row in _connections() if row.state == _ESTABLISHED and row.inode in inodes}
    names = _interfaces_by_address()
    return ["%s (%s)" % (address, names[address]) if address in names else address for address in sorted(addresses)]


def unanswered() -> List[str]:
    """Return connections of this process whose bytes were sent anew, and not acknowledged."""
    with contextlib.suppress(OSError):
        own = open_sockets()
        return [
            "%d bytes to %s port %d were sent %d times" % (row.unsent, *row.other, row.again + 1)
            for row in _connections()
            if row.state == _ESTABLISHED and row.inode in own and row.unsent and row.again > 1
        ]
    return []


def lost_on_the_way() -> Tuple[int, int]:
    """Return how many segments this process's TCP connections had to send again because they were lost, and how many they sent in all (linux/tcp.h, struct
    tcp_info). What was sent again for nothing, as on a loaded host whose answers come late, the other end says (RFC 2883); 0 where it is not to say so, or
    the kernel does not tell (Linux before 4.20)."""
    lost = sent = 0
    with contextlib.suppress(OSError), open("/proc/sys/net/ipv4/tcp_dsack") as file:
        if file.read().strip() == "0":
            return 0, 0
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError, struct.error):
            if os.readlink("/proc/self/fd/" + descriptor).startswith("socket:["):
                with socket.socket(fileno=os.dup(int(descriptor))) as one:
                    told = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                again, out, twice = (struct.unpack_from("=I", told, place)[0] for place in _AGAIN_OUT_AND_TWICE)
                lost, sent = lost + max(0, again - twice), sent + out
    return lost, sent


def strangers(patience_s: float = 2.0, processes: Iterable[str] = ("self",), uid: int = -1) -> List[str]:
    """Return who else than this user has connected to where these processes listen; a peer that cannot be seen counts, too.

    Every user of a host reaches its loopback, and gloo takes whoever names the number that comes next. ``uid``: whose the processes are, -1 for
    who asks. Raises OSError where the kernel's table cannot be read.
    """
    until = time.monotonic() + patience_s
    while True:
        found = _strangers([*processes], os.getuid() if uid < 0 else uid)
        if not found or time.monotonic() > until:  # one that was not accepted yet has no owner
            return found
        time.sleep(0.05)


def strangers_told(found: Sequence[str]) -> str:
    """Return with whom ranks are connected, for people: the first few."""
    more = "; and %d more" % (len(found) - _TOLD) if len(found) > _TOLD else ""
    return "connected with a process that is none of this user's: %s%s" % ("; ".join(found[:_TOLD]), more)


def _strangers(processes: List[str], uid: int) -> List[str]:
    own: Set[str] = set()
    for process in processes:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            own |= open_sockets(process)
    rows = _connections()
    ports = {row.own[1] for row in rows if row.state == _LISTENING and row.inode in own}
    ours = {(row.own, row.other) for row in rows if row.uid == uid}
    accepted = [row for row in rows if row.state in (_ESTABLISHED, _LEFT_BY_OTHER) and row.inode in own and row.own[1] in ports]
    owners = {(row.own, row.other): row.uid for row in rows}
    return [_described(row, owners) for row in accepted if (row.other, row.own) not in ours]


def other_users() -> List[str]:
    """Return who of this host, and of another user, is connected to where this process listens; peers on other hosts are nobody's here. Raises OSError."""
    own, rows = open_sockets(), _connections()
    ports = {row.own[1] for row in rows if row.state == _LISTENING and row.inode in own}
    owners = {(row.own, row.other): row.uid for row in rows}
    accepted = [row for row in rows if row.state == _ESTABLISHED and row.inode in own and row.own[1] in ports]
    return [_described(row, owners) for row in accepted if owners.get((row.other, row.own), os.getuid()) != os.getuid()]


def _described(row: _Connection, owners: Dict[Tuple[Tuple[str, int], Tuple[str, int]], int]) -> str:
    uid = owners.get((row.other, row.own))
    return "%s port %d, %s" % (*row.other, "nobody's any more" if uid is None else "of user %d" % uid)


def loopback_interface() -> str:
    """Return the name of the interface that leads to this host alone ("lo" where the kernel does not tell)."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for name in interface_names():
            answer = fcntl.ioctl(asking, _SIOCGIFFLAGS, struct.pack("256s", name.encode()[:15]))
            flags = struct.unpack_from("H", answer, 16)[0]
            if flags & _IFF_UP and flags & _IFF_LOOPBACK:
                return name
    return "lo"


def has_ipv4(interface: str) -> bool:
    return any(name == interface and "." in address for address, name in _interfaces_by_address().items())


def _address(family: int, text: str) -> str:
    """Return an address as people write it: the kernel writes 32-bit words in the byte order of the processor."""
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
