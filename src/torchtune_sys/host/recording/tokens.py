"""Tokens that stand for a name, an address or a number, and keep what rules look at.

Equal values give equal tokens under one salt. Addresses are mapped bit by bit so that two that share a prefix still share one of
the same length (the construction of Xu, Fan, Ammar and Moon, "Prefix-preserving IP address anonymization", 2002); the bits that
make an address private, link-local, loopback or multicast are kept. Hexadecimal ids are mapped digit by digit in the same way,
because CUDA and Docker accept the beginning of an id for the whole.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Callable


class Tokens:
    """Every mapping under one salt."""

    def __init__(self, salt: str) -> None:
        self._salt = hashlib.blake2b(salt.encode(), digest_size=16).digest()
        self._known: dict[tuple[str, str], str] = {}

    def word(self, kind: str, value: str) -> str:
        """Return ``host-1a2b3c4d`` for a name of that kind."""
        return self._once(kind, value, lambda: f"{kind}-{self._digest(kind, value).hex()[:8]}")

    def hexadecimal(self, value: str) -> str:
        """Return another id of the same form (UUID, container id, WWN, GUID); what is all zeros or all f stays, it means "none"."""
        return self._once("hex", value, lambda: self._hexadecimal(value))

    def mac(self, value: str) -> str:
        """Return another hardware address of the same length; group and locally-administered bits stay."""
        return self._once("mac", value, lambda: self._mac(value))

    def ipv4(self, value: str) -> str:
        """Return another address of the same class; the last octet stays, so that networks and broadcasts still look like what they are."""
        return self._once("ipv4", value, lambda: str(ipaddress.IPv4Address(self._ipv4(int(ipaddress.IPv4Address(value))))))

    def ipv6(self, value: str) -> str:
        """Return another address of the same class."""
        return self._once("ipv6", value, lambda: str(ipaddress.IPv6Address(self.ipv6_number(int(ipaddress.IPv6Address(value))))))

    def ipv6_number(self, number: int) -> int:
        mapped = number >> 32
        if mapped == 0xFFFF or mapped == 0x64FF9B << 64:  # ::ffff:a.b.c.d, 64:ff9b::a.b.c.d
            return mapped << 32 | self._ipv4(number & 0xFFFFFFFF)
        if number <= 1 or number >> 120 == 0xFF:
            return self._group(number)
        if number >> 118 == 0x3FA:  # link-local: the rest of the prefix is zeros
            return number >> 64 << 64 | self._flip("ipv6", number, 128, 64, 128)
        return self._flip("ipv6", number, 128, 8 if number >> 121 == 0x7E else 16, 128)

    def _group(self, number: int) -> int:
        if number >> 24 == 0xFF0200000000000000000001FF:  # solicited-node: the end of an address of this host
            return number >> 24 << 24 | self._flip("ipv6", number, 128, 104, 128) & 0xFFFFFF
        return number

    def _ipv4(self, number: int) -> int:
        first, second = number >> 24, number >> 16 & 0xFF
        if number >> 16 in _BY_24:
            return self._flip("ipv4", number, 32, 24, 32)
        if first in (0, 127) or first >= 224 or number == 0xA9FEA9FE:  # this host, loopback, multicast, masks, cloud metadata
            return number
        if first == 172 and 16 <= second < 32:
            kept = 12
        elif first == 100 and 64 <= second < 128:
            kept = 10
        else:  # in these the second octet tells private or special from public
            kept = 16 if first in (100, 169, 172, 192, 198, 203) else 8
        return self._flip("ipv4", number, 32, kept, 24)

    def _flip(self, kind: str, number: int, width: int, start: int, stop: int) -> int:
        """Flip bits ``start`` … ``stop`` (counted from the highest), each by a hash of the bits before it; the first one always,
        so that nothing is mapped to itself."""
        mask = 0
        for place in range(start, stop):
            before = f"{place}:{number >> (width - place)}"
            if place == start or self._digest(kind, before)[0] & 1:
                mask |= 1 << (width - 1 - place)
        return number ^ mask

    def _hexadecimal(self, value: str) -> str:
        digits = [character.lower() for character in value if character in _HEX]
        if len(set(digits)) < 2:
            return value
        seen = ""
        result = []
        for character in value:
            if character not in _HEX:
                result.append(character)
                continue
            number = int(character, 16) ^ (self._digest("hex", seen)[0] & 15 or 1)
            seen += character.lower()
            result.append(f"{number:X}" if any(letter in value for letter in "ABCDEF") else f"{number:x}")
        return "".join(result)

    def _mac(self, value: str) -> str:
        octets = value.lower().split(":")
        if len(set(octets)) < 2:
            return value
        digest = self._digest("mac", value.lower())
        first = int(octets[0], 16) & 0x03 | digest[0] & 0xFC
        return ":".join([f"{first:02x}", *(f"{digest[index % 16]:02x}" for index in range(1, len(octets)))])

    def _digest(self, kind: str, value: str) -> bytes:
        return hashlib.blake2b(f"{kind}\0{value}".encode("utf-8", "surrogatepass"), digest_size=16, key=self._salt).digest()

    def _once(self, kind: str, value: str, make: Callable[[], str]) -> str:
        key = (kind, value)
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]


_BY_24 = (0xC000, 0xC633, 0xCB00)
"""192.0/16, 198.51/16 and 203.0/16, where single /24 networks are for documentation or special (RFC 6890)."""
_HEX = frozenset("0123456789abcdefABCDEF")
