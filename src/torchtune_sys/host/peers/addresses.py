"""Resolve a host name, and tell whether the interface of an address has a carrier, and how often it lost it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from typing import Any

from torchtune_sys.host import threads
from torchtune_sys.host.live_queries.network import interfaces
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing

_PATIENCE_S = 2.0
_NO_HARDWARE_ADDRESS, _NO_ANSWER = "00:00:00:00:00:00", "0x0"
WATCHED = 64
"""Interfaces that are looked at, the oldest first: hosts of containers have thousands, made later than their network card's."""
TRIED = 64
"""Addresses of a name that are told, and tried: an answer of a name service has 4,000 at most, a file of hosts any number."""
OF_ONE_LINK = "fe80:"
"""How IPv6 addresses begin that name no host without an interface beside them (RFC 4291, 2.5.6): every interface has one."""
_NO_CARRIER = ("down", "lowerlayerdown", "notpresent")


async def resolved(name: str, patience_s: float | None = None) -> list[tuple[int, str]]:
    """Return the addresses of a name in the order in which programs try them, each with its family. Raises OSError, also where they are not given in time.

    A thread that is left behind asks: asyncio waits at the end for those that it starts, and a file of hosts may give a name ten thousand addresses, each of which
    costs the C library time.
    """
    loop = asyncio.get_running_loop()
    told: asyncio.Future[list[Any] | Exception] = loop.create_future()

    def tell(found: list[Any] | Exception) -> None:
        if not told.done():
            told.set_result(found)

    def ask() -> None:
        found: list[Any] | Exception
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            found = error
        with contextlib.suppress(RuntimeError):  # nobody waits any more
            loop.call_soon_threadsafe(tell, found)

    try:
        threads.start(ask)
        found = await asyncio.wait_for(told, patience_s)
    except asyncio.TimeoutError:
        raise OSError(errno.ETIMEDOUT, f"no address of {name[:100]!r} in time") from None
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"no thread could be started to ask for {name[:100]!r}") from error
    if isinstance(found, Exception):
        raise found
    return [(family, address) for family, *_rest, place in found if not (address := str(place[0])).startswith(OF_ONE_LINK)]


async def _found(name: str) -> list[tuple[int, str]]:
    """Return the same; none where they cannot be had."""
    try:
        return await resolved(name, _PATIENCE_S)
    except (OSError, UnicodeError):
        return []


def family_of(address: str) -> int:
    """Return the address family of an address in its written form.

    >>> family_of("10.0.0.1") == socket.AF_INET, family_of("fd00::1") == socket.AF_INET6
    (True, True)
    """
    return socket.AF_INET6 if ":" in address else socket.AF_INET


async def addresses_of(name: str) -> tuple[str, ...]:
    """Return the IPv4 addresses of a name, which NCCL prefers; those of IPv6 where it has no others; none if that is not given in time. Of very many the first."""
    found = await _found(name)
    four = [address for family, address in found if family == socket.AF_INET]
    return tuple(dict.fromkeys(four or [address for _family, address in found]))[:TRIED]


async def unanswered_first(name: str, port: int) -> str:
    """Return the IPv6 address that a name stands for before one of IPv4 and that does not answer at all, which those wait for who try a name's addresses in turn, as torch's store does;
    "" where there is none."""
    found = await _found(name)
    if not any(family == socket.AF_INET for family, _address in found) or found[0][0] != socket.AF_INET6:
        return ""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as tried:
        tried.setblocking(False)
        try:
            await asyncio.wait_for(asyncio.get_running_loop().sock_connect(tried, (found[0][1], port)), _PATIENCE_S)
        except asyncio.TimeoutError:
            return found[0][1]
    return ""


def towards(name: str) -> str:
    """Return this host's address on the way to another: the kernel chooses it, and nothing is sent. "" where there is no way."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, UnicodeError), socket.socket(family, socket.SOCK_DGRAM) as tried:
            tried.connect((name, 9))
            return str(tried.getsockname()[0])
    return ""


def is_own(name: str) -> bool:
    """Return whether a name stands for an address of this host."""
    return bool(asyncio.run(is_here(name)))


async def is_here(name: str) -> bool | None:
    """Return the same where this loop runs; None where the name stands for nothing, or this host does not tell its addresses."""
    found = {address for _family, address in await _found(name)}
    told = interfaces("", _PATIENCE_S)
    if not found or isinstance(told, Missing):
        return None
    own = {entry.get("address") for each in told for entry in each["addresses"]}
    return not found.isdisjoint(own) or any(address.startswith("127.") for address in found)


def has_carrier(address: str) -> bool | None:
    """Return whether the interface that holds the address has a carrier; None where that is not known."""
    found = interfaces("", _PATIENCE_S)
    if isinstance(found, Missing):
        return None
    for each in found:
        if any(entry.get("address") == address for entry in each["addresses"]):
            return each.get("operstate") not in _NO_CARRIER
    return None


def neighbours() -> dict[str, str]:
    """Return by IPv4 address the hardware address that answers for it, of this host's neighbours (/proc/net/arp, proc(5)). What is behind a router is not among them."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError, UnicodeError), open("/proc/net/arp", encoding="ascii") as file:
        for line in file.readlines()[1:]:
            words = line.split()
            if len(words) > 3 and words[2] != _NO_ANSWER and words[3] != _NO_HARDWARE_ADDRESS:
                found[words[0]] = words[3]
    return found


def _of_interfaces(attribute: str) -> dict[str, str]:
    """Return what the kernel has of each of this host's interfaces below /sys/class/net, the oldest first; none where it does not tell (a filter on netlink, no more descriptors)."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for _index, name in sorted(socket.if_nameindex())[:WATCHED]:
            with contextlib.suppress(OSError, UnicodeError), open(f"/sys/class/net/{name}/{attribute}", encoding="ascii") as file:
                found[name] = file.read().strip()
    return found


def hardware_addresses() -> list[str]:
    """Return the hardware addresses of this host's own interfaces, without repetition, the oldest first."""
    return [each for each in dict.fromkeys(_of_interfaces("address").values()) if each != _NO_HARDWARE_ADDRESS]


def carrier_losses() -> dict[str, int]:
    """Return by interface how often it lost its carrier since it was made (Documentation/ABI/testing/sysfs-class-net, carrier_down_count, since Linux 4.16)."""
    return {name: int(text) for name, text in _of_interfaces("carrier_down_count").items() if natural(text) is not None}
