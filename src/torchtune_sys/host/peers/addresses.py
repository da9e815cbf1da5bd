"""Resolve a host name, and tell whether the interface of an address has a carrier, and how often it lost it."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from torchtune_sys.host.live_queries.network import interfaces
from torchtune_sys.model.values import Missing

_PATIENCE_S = 2.0
_NO_HARDWARE_ADDRESS, _NO_ANSWER = "00:00:00:00:00:00", "0x0"
WATCHED = 64
"""Interfaces that are looked at, the oldest first: hosts of containers have thousands, made later than their network card's."""
_NO_CARRIER = ("down", "lowerlayerdown", "notpresent")


async def addresses_of(name: str) -> tuple[str, ...]:
    """Return the IPv4 addresses of a name; none if that is not given in time."""
    asked = asyncio.get_running_loop().getaddrinfo(name, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
    try:
        found = await asyncio.wait_for(asked, _PATIENCE_S)
    except (OSError, UnicodeError, asyncio.TimeoutError):
        return ()
    return tuple(dict.fromkeys(str(place[0]) for *_rest, place in found))


async def only_ipv6(name: str) -> str:
    """Return an IPv6 address of a name that stands for no other; "" where it stands for another, for none, or is no name in time."""
    try:
        asked = asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
        found = await asyncio.wait_for(asked, _PATIENCE_S)
    except (OSError, UnicodeError, asyncio.TimeoutError):
        return ""
    places = [str(place[0]) for family, *_rest, place in found if family == socket.AF_INET6]
    return (
        places[0] if len(places) == len(found) and not places[0].startswith("::ffff:") else ""
    )  # an IPv4 address in another form


async def unanswered_first(name: str, port: int) -> str:
    """Return the IPv6 address that a name stands for first and that does not answer at all, which those wait for who try a name's addresses in turn, as torch's store does; "" where there is none."""
    loop = asyncio.get_running_loop()
    try:
        found = await asyncio.wait_for(loop.getaddrinfo(name, port, type=socket.SOCK_STREAM), _PATIENCE_S)
    except (OSError, UnicodeError, asyncio.TimeoutError):
        return ""
    family, kind, protocol, _name, place = found[0]
    if family != socket.AF_INET6:
        return ""
    with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as tried:
        tried.setblocking(False)
        try:
            await asyncio.wait_for(loop.sock_connect(tried, place), _PATIENCE_S)
        except asyncio.TimeoutError:
            return str(place[0])
    return ""


def towards(name: str) -> str:
    """Return this host's address on the way to another: the kernel chooses it, and nothing is sent. "" where there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tried, contextlib.suppress(OSError, UnicodeError):
        tried.connect((name, 9))
        return str(tried.getsockname()[0])
    return ""


def is_own(name: str) -> bool:
    """Return whether a name stands for an address of this host."""
    found = asyncio.run(addresses_of(name))
    return any(address.startswith("127.") or has_carrier(address) is not None for address in found)


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


def _watched() -> list[str]:
    """Return the names of this host's interfaces, the oldest first; none where the kernel does not tell (a filter on netlink, no more descriptors)."""
    with contextlib.suppress(OSError):
        return [name for _index, name in sorted(socket.if_nameindex())[:WATCHED]]
    return []


def hardware_addresses() -> list[str]:
    """Return the hardware addresses of this host's own interfaces, without repetition, the oldest first."""
    found: dict[str, None] = {}
    for name in _watched():
        with contextlib.suppress(OSError, UnicodeError), open(f"/sys/class/net/{name}/address", encoding="ascii") as file:
            found[file.read().strip()] = None
    return [each for each in found if each != _NO_HARDWARE_ADDRESS]


def carrier_losses() -> dict[str, int]:
    """Return by interface how often it lost its carrier since it was made (Documentation/ABI/testing/sysfs-class-net, carrier_down_count, since Linux 4.16)."""
    found = {}
    for name in _watched():
        with (
            contextlib.suppress(OSError, ValueError),
            open(f"/sys/class/net/{name}/carrier_down_count", encoding="ascii") as file,
        ):
            found[name] = int(file.read())
    return found
