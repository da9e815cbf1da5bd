"""What stands in the way of starting ranks: torch's launcher, by which training is started, finds it out after a minute, in words of its
own. Nothing here listens outside the loopback."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import socket
import struct
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple

from torchtune_sys.smoke.worker.cgroups import limits_of, number_in

_LOOPBACK_S = 5.0
_LOOPBACK_TRIES = 3
_LAUNCHER_FILES = 23
"""torch 2.13's launcher was seen to have 27 open at once, for 2, 4 and 8 ranks, of which 5 are open before it begins."""


class Obstacle(NamedTuple):
    """``stage``: the one that it belongs to; ``cause`` may be left to the driver."""

    stage: str
    cause: str
    seen: str
    remedy: str = ""


def obstacle(port: int) -> Optional[Obstacle]:
    """``port``: where ranks are to meet, 0 for any."""
    return _few_files() or _no_thread() or _no_loopback() or _no_localhost() or (_port_taken(port) if port else _no_own_name())


def _few_files() -> Optional[Obstacle]:
    """With a few less the launcher's store accepts nobody, and all wait."""
    held: List[int] = []
    try:
        while len(held) < _LAUNCHER_FILES:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            seen = "/dev/null cannot be opened: %s; multiprocessing, compilers and torch's launcher need it" % error.strerror
            return Obstacle("import", "dev-null-unusable", seen)
        most = limits_of("NOFILE")[0]
        seen = "torch's launcher needs %d more open files: %s after %d (ulimit -n: %d)"
        return Obstacle("import", "", seen % (_LAUNCHER_FILES, error.strerror, len(held), most))
    finally:
        for handle in held:
            os.close(handle)
    return None


def _no_thread() -> Optional[Obstacle]:
    """Python says only "can't start new thread"; the number that pthread_create(3) answers tells a limit from a refusal."""
    try:
        library = ctypes.CDLL(None)
        work = ctypes.cast(library.getpid, ctypes.c_void_p)  # ends at once, whatever it is given
        thread = ctypes.c_ulong()
        number = library.pthread_create(ctypes.byref(thread), None, work, None)
        if number == 0:
            library.pthread_join(thread, None)
    except (OSError, AttributeError):
        return None
    if number == 0:
        return None
    return Obstacle("import", "", "no thread can be started: pthread_create: %s" % os.strerror(number))


def loopback_address() -> Tuple[int, str]:
    """Return the family and the address at which processes of this host reach each other and nobody else does: IPv4's where it is there."""
    with contextlib.suppress(OSError), socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return socket.AF_INET, "127.0.0.1"
    return (socket.AF_INET6, "::1") if socket.has_ipv6 else (socket.AF_INET, "127.0.0.1")


def _no_loopback() -> Optional[Obstacle]:
    """Return what keeps the loopback from working. A refusal counts at once. Silence does where it lasts for another port, too: a busy kernel loses a packet, a firewall all of them.
    There is room for strangers in the queue, too: in one of 1 two who knock at all ports leave no room, and the kernel drops our own call
    without a word (listen(2))."""
    family, address = loopback_address()
    failure: Optional[OSError] = None
    for _try in range(_LOOPBACK_TRIES):
        try:
            with socket.socket(family) as listener:
                listener.bind((address, 0))
                listener.listen(socket.SOMAXCONN)
                with socket.create_connection(listener.getsockname()[:2], _LOOPBACK_S):
                    return None
        except OSError as error:
            failure = error
            if not isinstance(error, socket.timeout):
                break
    seen = "no connection to %s: %s" % (address, getattr(failure, "strerror", None) or failure)
    if isinstance(failure, socket.timeout) and _is_up("lo"):
        seen += ", though the loopback is up and the port is open"
        return Obstacle(
            "rendezvous", "firewall-blocks-nccl", seen, "allow what goes over lo: nft list ruleset; iptables -nvL INPUT"
        )
    return Obstacle("rendezvous", "loopback-down", seen, "ip link set lo up; look at the firewall")


def _is_up(interface: str) -> bool:
    """Tell by this process's own network, which /sys may not show (netdevice(7), SIOCGIFFLAGS and IFF_UP)."""
    with contextlib.suppress(OSError), socket.socket() as asked:
        told = fcntl.ioctl(asked, 0x8913, struct.pack("16s16x", interface.encode()))
        return bool(struct.unpack_from("H", told, 16)[0] & 1)
    return False


def _no_localhost() -> Optional[Obstacle]:
    """torchrun --standalone meets at that name, and asks for it again and again for minutes (torch/distributed/run.py)."""
    remedy = "a line for it in /etc/hosts: 127.0.0.1 localhost"
    try:
        found = socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)
    except OSError as error:
        seen = "the name localhost resolves to nothing: %s" % (error.strerror or error)
        return Obstacle("rendezvous", "localhost-unresolvable", seen, remedy)
    for family, kind, _protocol, _name, address in found:
        try:
            with socket.socket(family, kind) as listener:
                listener.bind(address)
                return None
        except OSError:
            continue
    addresses = ", ".join(sorted({str(row[4][0]) for row in found}))
    if "127.0.0.1" in addresses:  # the name is right: its address was taken away
        seen = "the loopback has no IPv4 address: localhost is %s, which this host does not have" % addresses
        return Obstacle("rendezvous", "loopback-down", seen, "ip addr add 127.0.0.1/8 dev lo")
    return Obstacle(
        "rendezvous", "localhost-unresolvable", "the name localhost resolves to %s, not to this host" % addresses, remedy
    )


def _no_own_name() -> Optional[Obstacle]:
    """At that name the ranks of torchrun meet, whatever --standalone was told; it tries for minutes, too."""
    name = socket.getfqdn()
    failure: Exception = OSError("no address")
    blocked = ""
    try:
        for family, kind, _protocol, _name, address in socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM):
            try:
                refused = _refused_here(family, kind, address)
                if refused is None:
                    return None
                failure, blocked = refused, blocked or str(address[0])
            except OSError as error:
                failure = error
    except (OSError, UnicodeError) as error:
        failure = error
    why = getattr(failure, "strerror", "") or failure
    if blocked and not number_in("/proc/sys/net/ipv4/ip_nonlocal_bind"):
        seen = "no connection to %s, this host's own address, to which its name %s leads: %s" % (blocked, name, why)
        remedy = "allow what this host sends to its own addresses: nft list ruleset; iptables -nvL INPUT"
        return Obstacle("rendezvous", "firewall-blocks-nccl", seen, remedy)
    seen = "this host's own name, %s, does not lead here: %s" % (name, why)
    return Obstacle("rendezvous", "hostname-unresolvable", seen, "a line for it in /etc/hosts: 127.0.0.1 %s" % name)


def _refused_here(family: int, kind: int, address: Tuple[Any, ...]) -> Optional[OSError]:
    """Return what keeps a call to this host's own address from it, None where nothing does; raise OSError where the address is another's. The port is taken, but
    nothing listens there: a host that is reached refuses at once. Silence counts where it lasts, as for the loopback."""
    failure: Optional[OSError] = None
    for _try in range(_LOOPBACK_TRIES):
        with socket.socket(family, kind) as bound, socket.socket(family, kind) as caller:
            bound.bind(address)
            caller.settimeout(_LOOPBACK_S)
            try:
                caller.connect(bound.getsockname())
            except ConnectionRefusedError:
                return None
            except OSError as error:
                failure = error
                if not isinstance(error, socket.timeout):
                    break
            else:
                return None
    return failure


def _port_taken(port: int) -> Optional[Obstacle]:
    """By anybody, at any address: torchrun listens at all of them. Who binds does not listen yet."""
    try:
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch does: what is closing does not count
            trial.bind(("", port))
    except OSError as error:
        return Obstacle("rendezvous", "", "port %d: %s" % (port, error.strerror or error))
    return None


@contextlib.contextmanager
def loopback_echo() -> Iterator[Any]:
    """Provide a word to oneself through the kernel's TCP, there and back; None where there is no loopback."""
    family, address = loopback_address()
    with contextlib.ExitStack() as held:
        near = far = socket.socket(family)
        try:
            listener = held.enter_context(socket.socket(family))
            listener.bind((address, 0))
            listener.listen(socket.SOMAXCONN)
            near = held.enter_context(socket.create_connection(listener.getsockname()[:2], 5.0))
            far = held.enter_context(listener.accept()[0])
            own = far.getpeername()[1] == near.getsockname()[1]  # and nobody who was quicker
        except OSError:
            own = False
        yield functools.partial(_there_and_back_again, near, far) if own else None


def _there_and_back_again(near: socket.socket, far: socket.socket) -> None:
    near.sendall(b"?")
    far.recv(1)
    far.sendall(b"!")
    near.recv(1)
