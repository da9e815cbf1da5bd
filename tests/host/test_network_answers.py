"""What the kernel is asked for directly must be what getifaddrs tells every other program, and no name server may hold us."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import socket
import struct
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_sys.host.live_queries import network
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.network.probe import localhost_addresses

LENGTHS = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}
"""Family → place and length of the address in its sockaddr."""


class IfAddrs(ctypes.Structure):
    pass


IfAddrs._fields_ = [
    ("next", ctypes.POINTER(IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("other", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def getifaddrs() -> list[tuple[str, str, bool]]:
    """Name, address and IFF_RUNNING of every IP address, in the C library's order."""
    library = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(IfAddrs)()
    if library.getifaddrs(ctypes.byref(first)):
        raise OSError(ctypes.get_errno(), "getifaddrs")
    found: list[tuple[str, str, bool]] = []
    item = first
    while item:
        row = item.contents
        family = ctypes.c_ushort.from_address(row.address).value if row.address else 0
        if family in LENGTHS:
            place, length = LENGTHS[socket.AddressFamily(family)]
            packed = ctypes.string_at(row.address + place, length)
            found.append((row.name.decode(), str(ipaddress.ip_address(packed)), bool(row.flags & 0x40)))
        item = row.next
    library.freeifaddrs(first)
    return found


def test_addresses_come_in_the_order_of_getifaddrs() -> None:
    seen = network.interfaces("", 5)
    assert not isinstance(seen, Missing)
    flat = [
        (entry["name"], str(ipaddress.ip_address(item["address"])), bool(entry["flags"] & 0x40))
        for entry in seen
        for item in entry["addresses"]
    ]
    assert flat == getifaddrs()


def test_every_interface_of_the_kernel_is_there() -> None:
    seen = network.interfaces("", 5)
    assert not isinstance(seen, Missing)
    assert {(entry["index"], entry["name"]) for entry in seen} == set(socket.if_nameindex())


def test_a_refused_dump_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: Any) -> Any:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(network, "_dump", refuse)
    seen = network.interfaces("", 5)
    assert isinstance(seen, Missing)
    assert seen.why is Why.DENIED


def test_a_dead_name_server_costs_its_deadline_only(monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()
    monkeypatch.setattr(network, "_resolve", lambda _name: end.wait(60))
    begin = time.monotonic()
    seen = network.hostname_addresses("", 0.2)
    end.set()
    assert time.monotonic() - begin < 30
    assert isinstance(seen, Missing)
    assert seen.why is Why.TIMEOUT


@pytest.mark.parametrize(
    ("number", "why"),
    [(socket.EAI_NONAME, Why.ABSENT), (socket.EAI_AGAIN, Why.FAILED), (socket.EAI_FAIL, Why.FAILED)],
)
def test_only_an_unknown_name_is_absent(monkeypatch: pytest.MonkeyPatch, number: int, why: Why) -> None:
    def fail(*_arguments: Any) -> Any:
        raise socket.gaierror(number, "what the resolver said")

    monkeypatch.setattr("_socket.getaddrinfo", fail)
    seen = network.hostname_addresses("", 5)
    assert isinstance(seen, Missing)
    assert seen.why is why


def test_that_localhost_does_not_resolve_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording without the answer is of a release that did not ask."""

    def fail(*_arguments: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("_socket.getaddrinfo", fail)
    assert network.localhost_addresses("", 5) == []
    old = localhost_addresses(RecordedHost({"answers": {}}, "old"), ("10.0.0.1",))
    assert isinstance(old, Missing) and old.why is Why.NOT_RECORDED


def attribute(kind: int, body: bytes) -> bytes:
    return struct.pack("HH", 4 + len(body), kind) + body + b"\0" * (-len(body) % 4)


def test_a_tunnels_own_address_is_not_its_peers() -> None:
    """On a point-to-point link IFA_ADDRESS is the other end (linux/if_addr.h)."""
    body = struct.pack("BBBBI", socket.AF_INET, 32, 0, 0, 7)
    ours, peer = socket.inet_aton("10.8.0.2"), socket.inet_aton("10.8.0.1")
    assert network._address(body + attribute(1, peer) + attribute(2, ours)) == (
        7,
        {"family": "inet", "address": "10.8.0.2", "prefix_length": 32},
    )


@given(st.binary(max_size=200))
def test_any_bytes_end_in_an_answer_or_a_plain_error(data: bytes) -> None:
    for read in (lambda: list(network._messages(data)), lambda: network._link(data), lambda: network._address(data)):
        with contextlib.suppress(struct.error, ValueError, IndexError):
            read()
