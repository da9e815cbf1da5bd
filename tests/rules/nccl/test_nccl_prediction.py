"""The interface that NCCL takes: expectations from NCCL's own rules (src/misc/socket.cc, 2.8 to 2.30.7)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_sys.knowledge.nccl import parse_names, predict_gloo, predict_interfaces
from torchtune_sys.model.facts.network import Address, Interface
from torchtune_sys.model.values import Missing, Unknown, Why

NOT_READ = Missing(Why.NOT_RECORDED, "not in this test")
OLD, NEW = (2, 27, 5), (2, 28, 9)


def interface(name: str, address: str = "", position: int = 0, *, running: bool = True, family: str = "inet") -> Interface:
    addresses = (Address(family=family, address=address, prefix_length=24, position=position),) if address else ()
    return Interface(
        name=name,
        index=position + 1,
        kind="ethernet",
        up=True,
        running=running,
        operstate="up" if running else "down",
        speed_mbps=NOT_READ,
        mtu=1500,
        addresses=addresses,
        numa_node=NOT_READ,
        pci_address=NOT_READ,
        vendor=NOT_READ,
        driver=NOT_READ,
    )


def host(*names: str) -> tuple[Interface, ...]:
    return tuple(interface(name, f"10.0.{number}.1", number) for number, name in enumerate(names))


@pytest.mark.parametrize(
    ("names", "settings", "version", "taken"),
    [
        (("lo", "eth0"), {}, NEW, ("eth0",)),
        (("lo", "docker0", "eth0"), {}, NEW, ("eth0",)),
        (("eth0", "ib0", "ib1"), {}, NEW, ("ib0", "ib1")),
        (("lo", "docker0"), {}, NEW, ("docker0",)),
        (("lo",), {}, NEW, ("lo",)),
        (("lo", "virbr0"), {}, NEW, ("lo",)),
        (("virbr0",), {}, NEW, ("virbr0",)),
        (("lo", "virbr0"), {}, OLD, ("virbr0",)),
        (("br-1a2b", "veth9", "eth0"), {}, NEW, ("br-1a2b", "veth9", "eth0")),
        (("tailscale0", "eth0"), {}, NEW, ("tailscale0", "eth0")),
        (("eth1", "eth10", "eth2"), {"NCCL_SOCKET_IFNAME": "eth1"}, NEW, ("eth1", "eth10")),
        (("eth1", "eth10"), {"NCCL_SOCKET_IFNAME": "=eth1"}, NEW, ("eth1",)),
        (("eth0", "eth1", "eth10"), {"NCCL_SOCKET_IFNAME": "=eth0,eth1"}, NEW, ("eth0", "eth1")),
        (("docker0", "eth0"), {"NCCL_SOCKET_IFNAME": "^docker"}, NEW, ("eth0",)),
        (("docker0", "docker01"), {"NCCL_SOCKET_IFNAME": "^=docker0"}, NEW, ("docker01",)),
        (("lo", "eth0"), {"NCCL_SOCKET_IFNAME": "bond0"}, NEW, ()),
        (("lo", "eth0"), {"NCCL_SOCKET_IFNAME": "e"}, NEW, ("eth0",)),
        (("lo", "eth0"), {"NCCL_SOCKET_IFNAME": ""}, NEW, ("eth0",)),
        (("eth0", "eth1"), {"NCCL_COMM_ID": "10.0.1.77:29500"}, NEW, ("eth1",)),
        (("ib0", "eth1"), {"NCCL_COMM_ID": "10.0.1.77:29500"}, NEW, ("ib0",)),
        (("eth0",), {"NCCL_SOCKET_FAMILY": "AF_INET6"}, NEW, ()),
        (("eth0",), {"NCCL_SOCKET_FAMILY": "ipv6"}, NEW, ("eth0",)),
    ],
)
def test_choice(names: tuple[str, ...], settings: dict[str, str], version: tuple[int, ...], taken: tuple[str, ...]) -> None:
    assert predict_interfaces(host(*names), settings, version).names == taken


def test_an_interface_without_a_carrier_counts_only_before_2_28_3() -> None:
    seen = (interface("eth0", "10.0.0.1", 0, running=False), interface("eth1", "10.0.1.1", 1))
    assert predict_interfaces(seen, {}, (2, 27, 7)).names == ("eth0", "eth1")
    assert predict_interfaces(seen, {}, (2, 28, 3)).names == ("eth1",)


def test_ipv6_loopback_is_no_address_and_sixteen_are_the_most() -> None:
    assert predict_interfaces((interface("eth0", "::1", family="inet6"),), {}, NEW).names == ()
    assert len(predict_interfaces(host(*(f"eth{number}" for number in range(20))), {}, NEW).names) == 16


def test_what_was_not_read_is_not_guessed() -> None:
    unread = Interface(
        **{name: getattr(interface("eth0"), name) for name in Interface.__struct_fields__} | {"addresses": NOT_READ}
    )
    with pytest.raises(Unknown):
        predict_interfaces((unread,), {}, NEW)


def test_gloo_takes_exact_names_else_what_the_host_name_resolves_to() -> None:
    seen = host("lo", "eth1", "eth10")
    assert [choice.interface for choice in predict_gloo(seen, (), ("eth1",)).choices] == ["eth1"]
    assert predict_gloo(seen, (), ("eth",)).missing == ("eth",)
    assert [choice.interface for choice in predict_gloo(seen, ("10.0.2.1",)).choices] == ["eth10"]
    assert [choice.address for choice in predict_gloo(seen, ("127.0.1.1",)).choices] == ["127.0.1.1"]
    assert [choice.address for choice in predict_gloo(seen, ("192.0.2.9",)).choices] == ["127.0.0.1"]


NAMES = st.sampled_from(["lo", "docker0", "docker1", "virbr0", "ib0", "ibs3", "eth0", "eth1", "eth10", "br-1", "veth1", "wg0"])
VALUES = st.lists(st.sampled_from(["eth", "eth1", "docker", "lo", "ib0", "x", "e"]), min_size=0, max_size=3).map(",".join)


def naive(names: list[str], value: str) -> list[str]:
    """NCCL's search said again, from its documentation, for hosts whose interfaces all run and have an IPv4 address."""
    if len(value) > 1:
        rest = value.lstrip("^").lstrip("=")
        words = [word for word in rest.split(",") if word]
        hits = [name for name in names if any(name == word if "=" in value else name.startswith(word) for word in words)]
        if not words:
            hits = list(names)
        return [name for name in names if (name in hits) != value.startswith("^")]
    for wanted in ("ib", None, "docker", "lo", "virbr"):
        found = [
            name for name in names if (name.startswith(wanted) if wanted else not name.startswith(("docker", "lo", "virbr")))
        ]
        if found:
            return found
    return []


@given(st.lists(NAMES, unique=True, max_size=8), st.sampled_from(["", "^", "=", "^="]), VALUES)
def test_choice_agrees_with_an_independent_statement(names: list[str], marker: str, words: str) -> None:
    value = marker + words
    settings = {"NCCL_SOCKET_IFNAME": value} if value else {}
    assert list(predict_interfaces(host(*names), settings, NEW).names) == naive(names, value)


@given(st.text(max_size=60))
def test_any_value_is_taken_apart(value: str) -> None:
    assert len(parse_names(value).entries) <= 16


Entry = tuple[str, str, str, bool]
"""One element of getifaddrs' list: name, family, address, whether the interface runs."""

ENTRIES = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["inet", "inet6", "local"])), unique=True, max_size=10).map(
    lambda found: sorted(found, key=lambda item: item[1] != "inet")
)
SIX = ("lo", "docker0", "virbr0", "ib0", "eth0", "br-1")
RUNNING = st.tuples(*(st.booleans() for _ in SIX))


def flat(entries: list[tuple[int, str]], running: tuple[bool, ...]) -> list[Entry]:
    addresses = {"inet": "10.0.{}.1", "inet6": "2001:db8:{}::1", "local": "::1"}
    return [
        (SIX[number], "inet" if kind == "inet" else "inet6", addresses[kind].format(number), running[number])
        for number, kind in entries
    ]


def as_interfaces(entries: list[Entry], running: tuple[bool, ...]) -> tuple[Interface, ...]:
    found = []
    for number, name in enumerate(SIX):
        mine = tuple(
            Address(family=family, address=address, prefix_length=24 if family == "inet" else 64, position=position)
            for position, (owner, family, address, _) in enumerate(entries)
            if owner == name
        )
        bare = interface(name, running=running[number])
        found.append(Interface(**{field: getattr(bare, field) for field in Interface.__struct_fields__} | {"addresses": mine}))
    return tuple(found)


def walk(entries: list[Entry], prefix: str, shunned: tuple[str, ...], family: str, carrier: bool) -> list[tuple[str, str]]:
    taken: dict[str, str] = {}
    for name, kind, address, runs in entries:
        fits = name.startswith(prefix) and not name.startswith(shunned)
        if fits and (runs or not carrier) and family in ("", kind) and address != "::1":
            taken.setdefault(name, address)
    return list(taken.items())


def said_again(entries: list[Entry], family: str, subnet: int | None, *, new: bool) -> list[tuple[str, str]]:
    """The list is walked once per search; the first search that finds anything ends it."""
    virtual = ("virbr",) if new else ()
    if ib := walk(entries, "ib", (), family, new):
        return ib
    if subnet is not None:  # the subnet counts whatever the family asked for, and without a carrier, too
        for name, _, address, _ in entries:
            if address == f"10.0.{subnet}.1":
                return [(name, address)]
    for prefix, shunned in (("", ("docker", "lo", *virtual)), ("docker", ()), ("lo", ()), *((word, ()) for word in virtual)):
        if found := walk(entries, prefix, tuple(shunned), family, new):
            return found
    return []


@given(ENTRIES, RUNNING, st.sampled_from(["", "AF_INET", "AF_INET6"]), st.none() | st.integers(0, 6), st.booleans())
def test_the_automatic_choice_agrees_with_a_walk_over_one_list(
    found: list[tuple[int, str]], running: tuple[bool, ...], family: str, subnet: int | None, new: bool
) -> None:
    entries = flat(found, running)
    settings = {"NCCL_SOCKET_FAMILY": family} | ({} if subnet is None else {"NCCL_COMM_ID": f"10.0.{subnet}.99:1"})
    predicted = predict_interfaces(as_interfaces(entries, running), settings, (2, 28, 3) if new else (2, 27, 7))
    short = {"": "", "AF_INET": "inet", "AF_INET6": "inet6"}[family]
    wanted = said_again(entries, short, subnet, new=new)
    assert [(choice.interface, choice.address) for choice in predicted.choices] == wanted
    if subnet is None:
        assert predicted.bootstrap == (predicted.choices[0] if predicted.choices else None)
    else:
        first = [name for name, _, address, _ in entries if address == f"10.0.{subnet}.1"][:1]
        assert [predicted.bootstrap.interface] == first if predicted.bootstrap else not first
        assert bool(predicted.comm_id_fault) is not bool(first)


def comm_id(value: str, *seen: Interface) -> tuple[str, bool, bool]:
    found = predict_interfaces(seen, {"NCCL_COMM_ID": value}, NEW)
    return found.bootstrap.interface if found.bootstrap else "", bool(found.comm_id_fault), bool(found.undecided)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("10.0.1.200:29500", ("eth1", False, False)),
        ("10.0.1.200", ("eth1", False, False)),
        ("127.0.0.1:1", ("lo", False, False)),
        ("10.9.9.9:1", ("", True, False)),
        ("", ("", True, False)),
        ("x", ("", True, False)),
        ("head:1", ("lo", False, True)),
        ("[2001:db8::9]:1", ("eth1", False, False)),
        ("[fe80::9]:1", ("", True, False)),
        ("[fe80::9%eth1]:1", ("eth1", False, False)),
        ("[fe80::9%lo]:1", ("", True, False)),
        ("[2001:db8::9", ("", True, False)),
    ],
)
def test_comm_id_decides_the_first_contact_and_has_no_fallback(value: str, wanted: tuple[str, bool, bool]) -> None:
    """bootstrapNetInit: an invalid address or no interface in the subnet ends in an error, whatever else there is."""
    addresses = tuple(
        Address(family=family, address=address, prefix_length=length, position=place)
        for place, (family, address, length) in enumerate(
            [("inet", "10.0.1.1", 24), ("inet6", "2001:db8::1", 64), ("inet6", "fe80::1", 64)], 1
        )
    )
    bare = interface("eth1")
    eth1 = Interface(**{field: getattr(bare, field) for field in Interface.__struct_fields__} | {"addresses": addresses})
    assert comm_id(value, interface("lo", "127.0.0.1", 0), eth1)[1:] == wanted[1:]
    if not wanted[2]:
        assert comm_id(value, interface("lo", "127.0.0.1", 0), eth1)[0] == wanted[0]
