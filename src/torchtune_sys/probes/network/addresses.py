"""Assign addresses to interfaces, from the system's answer or from /proc/net of a recorded tree."""

from __future__ import annotations

from typing import Any

import msgspec

from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.network import Address
from torchtune_sys.model.values import Missing, Why, known


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """An interface by name, its addresses, and what the kernel told of it at the same time (``{}`` in a tree)."""

    name: str
    addresses: Fact[tuple[Address, ...]]
    attributes: dict[str, Any]


def from_answer(answer: Any) -> list[Named]:
    """Return the interfaces in the order of their first address; raises TypeError, KeyError or ValueError for what is not such an answer.

    >>> run = {"family": "inet", "address": "10.0.0.11", "prefix_length": 24}
    >>> [(item.name, len(item.addresses)) for item in from_answer([{"name": "eno1", "addresses": [run]}, {"name": "eno1", "addresses": [run]}])]
    [('eno1', 2)]
    """
    addresses: dict[str, list[Address]] = {}
    attributes: dict[str, dict[str, Any]] = {}
    position = 0
    for entry in answer:
        name = str(entry["name"])
        attributes.setdefault(
            name, {key: value for key, value in entry.items() if key not in ("name", "addresses") and value is not None}
        )
        mine = addresses.setdefault(name, [])
        for item in entry["addresses"]:
            length = int(item["prefix_length"])
            if not 0 <= length <= (128 if item["family"] == "inet6" else 32):
                raise ValueError(f"no prefix's length: {length}")
            mine.append(
                Address(family=str(item["family"]), address=str(item["address"]), prefix_length=length, position=position)
            )
            position += 1
    return [Named(name=name, addresses=tuple(found), attributes=attributes[name]) for name, found in addresses.items()]


def from_proc(host: Host, names: tuple[str, ...]) -> list[Named]:
    """Return what /proc/net/{fib_trie,route,if_inet6} say of the named interfaces; in index order, as the kernel dumps them."""
    trie, route, inet6 = (host.text(f"/proc/net/{name}") for name in ("fib_trie", "route", "if_inet6"))
    if isinstance(trie, Missing) or isinstance(route, Missing):
        why = trie if isinstance(trie, Missing) else route
        unknown = (
            why if isinstance(why, Missing) and why.why is not Why.ABSENT else Missing(Why.NOT_RECORDED, "/proc/net/fib_trie")
        )
        return [Named(name=name, addresses=unknown, attributes={}) for name in names]
    found: dict[str, list[Address]] = {name: [] for name in _by_index(host, names)}
    rank = {name: place for place, name in enumerate(found)}
    ipv4, homeless = _placed(parse_local(trie), parse_connected(route))
    ipv4.sort(key=lambda item: rank.get(item[0], len(rank)))
    pairs = [*ipv4, *parse_if_inet6(known(inet6, ""))]
    for position, (name, family, address, length) in enumerate(pairs):
        if name in found:
            found[name].append(Address(family=family, address=address, prefix_length=length, position=position))
    return [Named(name=name, addresses=_or_unknown(tuple(mine), homeless), attributes={}) for name, mine in found.items()]


def _or_unknown(found: tuple[Address, ...], homeless: tuple[str, ...]) -> Fact[tuple[Address, ...]]:
    """Return the addresses, or that they are unknown: a /32 of a cloud or a tunnel is in no connected network: an interface that seems to have no IPv4 address may hold it."""
    if not homeless or any(address.family == "inet" for address in found):
        return found
    return Missing(Why.NOT_RECORDED, "/proc/net/fib_trie", f"which interface has {', '.join(homeless[:3])} is not listed")


def _by_index(host: Host, names: tuple[str, ...]) -> list[str]:
    def index(name: str) -> tuple[int, str]:
        number = host.number(f"/sys/class/net/{name}/ifindex")
        return (1 << 31 if isinstance(number, Missing) else number, name)

    return sorted(names, key=index)


_Placed = tuple[str, str, str, int]
"""Interface, family, address, prefix length."""


def _placed(local: tuple[int, ...], connected: tuple[tuple[str, int, int], ...]) -> tuple[list[_Placed], tuple[str, ...]]:
    """Return the addresses with their interfaces, which the local table does not name: an address belongs to the narrowest connected network that holds it, if there is one."""
    found: list[_Placed] = []
    homeless: list[str] = []
    names: dict[tuple[int, int], str] = {}
    for name, network, length in connected:
        if 0 < length <= 32:
            key = length, network >> (32 - length)
            names[key] = max(names.get(key, ""), name)
    lengths = sorted({length for length, _ in names}, reverse=True)
    for address in local:
        if address >> 24 == 127:
            found.append(("lo", "inet", _dotted(address), 8))
            continue
        fits = next((length for length in lengths if (length, address >> (32 - length)) in names), 0)
        if fits:
            found.append((names[fits, address >> (32 - fits)], "inet", _dotted(address), fits))
        else:
            homeless.append(_dotted(address))
    return found, tuple(homeless)


def _dotted(number: int) -> str:
    return ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))


def parse_local(text: str) -> tuple[int, ...]:
    """Return the host's own IPv4 addresses, as numbers, out of /proc/net/fib_trie.

    >>> parse_local('''Local:
    ...   +-- 0.0.0.0/0 3 0 5
    ...      |-- 10.0.0.11
    ...         /32 host LOCAL
    ...      |-- 10.0.0.255
    ...         /32 link BROADCAST
    ... ''') == (0x0A00000B,)
    True
    """
    found: dict[int, None] = {}
    leaf = ""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "|--":
            leaf = words[1]
        elif words == ["/32", "host", "LOCAL"] and leaf:  # 127.0.0.0/8 is a local network, no address
            number = _number(leaf)
            if number is not None:
                found.setdefault(number)
    return tuple(found)


def _number(dotted: str) -> int | None:
    parts = dotted.split(".")
    if len(parts) != 4 or not all(part.isascii() and part.isdigit() and int(part[:4]) < 256 for part in parts):
        return None
    return sum(int(part) << shift for part, shift in zip(parts, (24, 16, 8, 0), strict=True))


def parse_connected(text: str) -> tuple[tuple[str, int, int], ...]:
    """Return the networks without a gateway in /proc/net/route: (interface, network, prefix length). The file's numbers are in host order.

    >>> parse_connected("Iface\\tDestination\\tGateway\\tFlags\\tRefCnt\\tUse\\tMetric\\tMask\\neno1\\t0000000A\\t00000000\\t0001\\t0\\t0\\t0\\t00FFFFFF\\t0\\t0\\t0")
    (('eno1', 167772160, 24),)
    """
    found: list[tuple[str, int, int]] = []
    for line in text.splitlines()[1:]:
        parts = line.split()
        if len(parts) < 8 or parts[2] != "00000000":
            continue
        try:
            network, mask = (int.from_bytes(bytes.fromhex(part)[:4], "little") for part in (parts[1], parts[7]))
        except ValueError:
            continue
        found.append((parts[0], network, mask.bit_count()))
    return tuple(found)


_WIDEST_FIRST = {0x00: 0, 0x40: 1, 0x20: 2, 0x10: 3}
"""Scopes as if_inet6 prints them: global, site, link, host."""


def parse_if_inet6(text: str) -> tuple[_Placed, ...]:
    """Parse /proc/net/if_inet6: address, index, prefix length, scope, flags (all hexadecimal), name.

    The file lists in the order of a hash table; the kernel keeps (and getifaddrs gives) an interface's addresses with the widest scope
    first (ipv6_link_dev_addr in net/ipv6/addrconf.c).

    >>> text = "fe800000000000000000000000000001 02 40 20 80 eth0\\nfd000000000000000000000000000002 02 40 00 80 eth0"
    >>> [address for _, _, address, _ in parse_if_inet6(text)]
    ['fd00:0:0:0:0:0:0:2', 'fe80:0:0:0:0:0:0:1']
    """
    found: list[tuple[int, int, _Placed]] = []
    for line in text.splitlines():
        parts = line.split()
        if len(parts) != 6 or len(parts[0]) != 32:
            continue
        try:
            groups = [f"{int(parts[0][place : place + 4], 16):x}" for place in range(0, 32, 4)]
            scope = _WIDEST_FIRST.get(int(parts[3], 16), 0)
            found.append((int(parts[1], 16), scope, (parts[5], "inet6", ":".join(groups), int(parts[2], 16))))
        except ValueError:
            continue
    return tuple(item for _, _, item in sorted(found, key=lambda row: row[:2]))
