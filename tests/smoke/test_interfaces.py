"""Which addresses connections go over, by real sockets."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

import pytest

from torchtune_sys.smoke.worker import interfaces


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_established_connections_are_told_with_their_interface(family: socket.AddressFamily, address: str) -> None:
    others = interfaces.open_sockets()  # those with which pytest's processes talk to each other
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(family))
        try:
            listener.bind((address, 0))
        except OSError:
            pytest.skip(f"{address} is not there")
        listener.listen()
        before = interfaces.open_sockets()
        assert interfaces.connected_over(before - others) == []  # it listens, nothing more
        client = stack.enter_context(socket.socket(family))
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        stack.enter_context(server)
        mine = interfaces.open_sockets() - before
        assert len(mine) == 2
        assert interfaces.connected_over(mine) == [f"{address} (lo)"]
        assert interfaces.connected_over(set()) == []


def test_a_mapped_address_is_told_as_what_it_is() -> None:
    """A socket of both families shows ::ffff:127.0.0.1 in tcp6."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_INET6))
        try:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind(("::", 0))
        except OSError:
            pytest.skip("no IPv6 here")
        listener.listen()
        before = interfaces.open_sockets()
        client = stack.enter_context(socket.create_connection(("127.0.0.1", listener.getsockname()[1])))
        server, _ = listener.accept()
        stack.enter_context(server)
        assert client
        assert interfaces.connected_over(interfaces.open_sockets() - before) == ["127.0.0.1 (lo)"]


@pytest.mark.parametrize(
    ("wish", "absent"),
    [("", []), ("lo", []), ("lo,", []), ("nowhere0", ["nowhere0"]), ("lo,nowhere0,nowhere1", ["nowhere0", "nowhere1"])],
)
def test_interfaces_that_are_named_but_absent(wish: str, absent: list[str]) -> None:
    assert interfaces.named_but_absent(wish) == absent


def test_where_gloo_listens_at_a_named_interface() -> None:
    assert interfaces.gloo_address("lo") == "127.0.0.1"
    assert interfaces.gloo_address("nowhere0") == ""


@pytest.mark.parametrize(
    ("answers", "address"),
    [
        (["127.0.1.1"], "127.0.1.1"),
        (["198.51.100.77", "127.0.0.1"], "127.0.0.1"),  # the first is documentation's (RFC 5737): nobody can listen there
        (["198.51.100.77"], ""),
        ([], ""),
    ],
)
def test_where_gloo_listens_by_the_hosts_own_name(monkeypatch: pytest.MonkeyPatch, answers: list[str], address: str) -> None:
    def asked(name: str, *_rest: object) -> list[tuple[object, ...]]:
        assert name == socket.gethostname()
        if not answers:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answer, 0)) for answer in answers]

    monkeypatch.setattr(socket, "getaddrinfo", asked)
    assert interfaces.gloo_address("") == address


def test_identity_is_of_kernel_and_network() -> None:
    """The loopback of one network namespace leads nowhere else."""
    assert interfaces.host_identity().endswith(os.readlink("/proc/self/ns/net"))
    assert interfaces.host_identity() == interfaces.host_identity()
