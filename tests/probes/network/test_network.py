"""Interfaces, routes, RDMA devices and NCCL's files: expectations from the kernel's formats and NCCL's reader."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elsewhere import recorded_elsewhere
from torchtune_sys.host.live import LiveHost
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.host.tree import below
from torchtune_sys.model.facts.network import Address, Interface, RdmaDevice
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.network import addresses, interface_kind, nccl_conf, rdma
from torchtune_sys.probes.network import probe as network

HOME = {"HOME": "/home/ubuntu"}

ROUTES = [
    "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT",
    "wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0",
    "eno1\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0",
    "eno1\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0",
    "wlan0\t0001A8C0\t00000000\t0001\t0\t0\t600\t00FFFFFF\t0\t0\t0",
]
LOCAL = [
    "Main:",
    "  +-- 0.0.0.0/0 3 0 5",
    "Local:",
    "  +-- 0.0.0.0/0 2 0 2",
    "     |-- 10.0.0.11",
    "        /32 host LOCAL",
    "     |-- 10.0.0.255",
    "        /32 link BROADCAST",
    "     +-- 127.0.0.0/8 2 0 2",
    "        |-- 127.0.0.0",
    "           /8 host LOCAL",
    "        |-- 127.0.0.1",
    "           /32 host LOCAL",
    "     |-- 192.168.1.5",
    "        /32 host LOCAL",
]
INET6 = [
    "00000000000000000000000000000001 01 80 10 80       lo",
    "fe800000000000000000000000000001 02 40 20 80     eno1",
]


def host(**sections: Any) -> RecordedHost:
    return RecordedHost(sections, "recording test.json")


def sysfs(name: str, index: int, flags: str = "0x1003", operstate: str = "up", kind: str = "1") -> dict[str, str]:
    fields = {"ifindex": str(index), "iflink": str(index), "flags": flags, "operstate": operstate, "type": kind, "mtu": "1500"}
    return {f"/sys/class/net/{name}/{field}": value for field, value in fields.items()}


def seen(recorded: RecordedHost) -> dict[str, Interface]:
    found = network.interfaces(recorded)
    assert not isinstance(found, Missing)
    return {interface.name: interface for interface in found}


def test_a_tree_without_answers_is_read_from_proc_and_sys() -> None:
    files: dict[str, Any] = {"/proc/net/route": ROUTES, "/proc/net/fib_trie": LOCAL, "/proc/net/if_inet6": INET6}
    files |= sysfs("lo", 1, "0x9", "unknown", "772") | sysfs("eno1", 2) | sysfs("wlan0", 3, operstate="down")
    found = seen(host(files=files))
    assert {name: [item.address for item in found[name].addresses] for name in found} == {
        "lo": ["127.0.0.1", "0:0:0:0:0:0:0:1"],
        "eno1": ["10.0.0.11", "fe80:0:0:0:0:0:0:1"],
        "wlan0": ["192.168.1.5"],
    }
    assert [item.prefix_length for item in found["eno1"].addresses] == [24, 64]
    assert (found["lo"].kind, found["lo"].running, found["wlan0"].running) == ("loopback", True, False)


def test_a_tree_without_proc_net_does_not_say_that_there_are_no_addresses() -> None:
    found = seen(host(files=sysfs("eno1", 2)))
    assert isinstance(found["eno1"].addresses, Missing)


def test_ipv4_of_all_interfaces_comes_before_ipv6_of_any() -> None:
    answer = [
        {"name": "eno1", "addresses": [{"family": "inet", "address": "10.0.0.11", "prefix_length": 24}]},
        {"name": "ens2", "addresses": [{"family": "inet", "address": "10.0.1.11", "prefix_length": 24}]},
        {"name": "eno1", "addresses": [{"family": "inet6", "address": "fe80::1", "prefix_length": 64}]},
        {"name": "ib0", "addresses": []},
    ]
    found = seen(host(answers={"interfaces": answer}))
    assert list(found) == ["eno1", "ens2", "ib0"]
    assert [(item.address, item.position) for item in found["eno1"].addresses] == [("10.0.0.11", 0), ("fe80::1", 2)]
    assert found["ib0"].addresses == ()


@pytest.mark.parametrize("answer", [7, "text", [7], [{}], [{"name": "a"}], [{"name": "a", "addresses": [{}]}], {"name": "a"}])
def test_an_answer_of_another_shape_is_unparsed(answer: Any) -> None:
    found = network.interfaces(host(answers={"interfaces": answer}))
    assert isinstance(found, Missing)
    assert found.why is Why.UNPARSED


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("25000", 25000),
        ("-1", Why.NOT_SUPPORTED),
        ("4294967295", Why.NOT_SUPPORTED),
        ("0", Why.NOT_SUPPORTED),
        ("fast", Why.UNPARSED),
    ],
)
def test_a_speed_that_the_driver_cannot_tell_is_no_speed(text: str, wanted: Any) -> None:
    files = sysfs("eno1", 2) | {"/sys/class/net/eno1/speed": text, "/sys/class/net/eno1/device/vendor": "0x8086"}
    speed = seen(host(files=files))["eno1"].speed_mbps
    assert (speed.why if isinstance(speed, Missing) else speed) == wanted


BASE = "/sys/class/net/x0/"


@pytest.mark.parametrize(
    ("told", "sections", "kind"),
    [
        ({"kind": "veth", "type": 1}, {}, "veth"),
        ({"kind": "ipoib", "type": 32}, {}, "infiniband"),
        ({"kind": "vxlan", "type": 1}, {}, "tun"),
        ({"kind": "openvswitch", "type": 1}, {}, "bridge"),
        ({"kind": "ifb", "type": 1}, {}, "other"),
        ({"kind": "", "type": 65534}, {}, "tun"),
        ({"kind": "", "type": 32}, {}, "infiniband"),
        ({}, {"files": {BASE + "type": "772"}}, "loopback"),
        ({}, {"files": {BASE + "type": "1", BASE + "uevent": "DEVTYPE=wlan\nINTERFACE=x0\n"}}, "wifi"),
        ({}, {"files": {BASE + "type": "1", BASE + "bridge/bridge_id": "8000.000000000000"}}, "bridge"),
        ({}, {"files": {BASE + "type": "1", BASE + "bonding/mode": "802.3ad 4"}}, "bond"),
        ({}, {"files": {BASE + "type": "1", BASE + "tun_flags": "0x1002"}}, "tun"),
        ({}, {"files": {BASE + "type": "1", BASE + "device/vendor": "0x15b3"}}, "ethernet"),
        ({}, {"files": {BASE + "type": "1", BASE + "ifindex": "5", BASE + "iflink": "6"}}, "veth"),
        (
            {},
            {"files": {BASE + "type": "1", BASE + "ifindex": "5", BASE + "iflink": "2", "/proc/net/vlan/x0": "x0 VID: 7"}},
            "vlan",
        ),
        (
            {"type": 1},
            {"files": {"/sys/d/x": ""}, "links": {BASE + "device": "/sys/d", "/sys/d/subsystem": "../../../bus/usb"}},
            "usb",
        ),
    ],
)
def test_kind(told: dict[str, Any], sections: dict[str, Any], kind: str) -> None:
    assert interface_kind.kind_of(host(**sections), "x0", told) == kind


def test_the_default_route_is_that_of_the_lowest_metric() -> None:
    assert network.default_route(host(files={"/proc/net/route": ROUTES})) == "eno1"


def test_a_host_with_ipv6_alone_has_a_default_route_too() -> None:
    zero = "0" * 32
    line = f"{zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0"
    assert network.default_route(host(files={"/proc/net/route": ROUTES[:1], "/proc/net/ipv6_route": [line]})) == "eth0"


def test_no_default_route_and_one_that_cannot_be_seen_differ() -> None:
    none = network.default_route(host(files={"/proc/net/route": ROUTES[:1]}))
    hidden = network.default_route(host(files={"/proc/net/route": {"error": "denied"}}))
    assert isinstance(none, Missing)
    assert isinstance(hidden, Missing)
    assert (none.why, hidden.why) == (Why.ABSENT, Why.DENIED)


@pytest.mark.parametrize(("value", "wanted"), [("", ()), ("e", ()), ("eth0", ("eth0",)), ("eth0,eth1", ("eth0", "eth1"))])
def test_gloo_takes_names_apart_at_commas(value: str, wanted: tuple[str, ...]) -> None:
    assert network.gloo_interfaces(host(env={"GLOO_SOCKET_IFNAME": value})) == wanted


TEXT = st.text(max_size=200) | st.lists(
    st.sampled_from([*ROUTES, *LOCAL, *INET6, "|-- 999.1.2.3", "|-- ", "NCCL_X=1", "=", "a\tb\tc"]), max_size=8
).map("\n".join)


@given(TEXT)
def test_any_text_is_read_without_an_exception(text: str) -> None:
    for parse in (
        network.parse_default_route,
        network.parse_default_route6,
        addresses.parse_local,
        addresses.parse_connected,
        addresses.parse_if_inet6,
        interface_kind.parse_devtype,
        rdma.parse_rate,
        rdma.parse_state,
        rdma.parse_pci_address,
    ):
        parse(text)
    nccl_conf.parse_conf(text, "/etc/nccl.conf")


# --- NCCL's files


def settings(env: dict[str, str], **files: Any) -> dict[str, tuple[str, str]]:
    found = nccl_conf.read(host(env=env, files=files))
    assert not isinstance(found, Missing)
    return {setting.name: (setting.value, setting.source) for setting in found[0]}


MINE, THEIRS = "/home/ubuntu/.nccl.conf", "/etc/nccl.conf"


def test_environment_before_the_users_file_before_the_hosts() -> None:
    found = settings(
        HOME | {"NCCL_A": "env"},
        **{MINE: ["NCCL_A=mine", "NCCL_B=mine"], THEIRS: ["# all", "NCCL_A=host", "NCCL_B=host", "NCCL_C=host"]},
    )
    assert found == {
        "NCCL_A": ("env", "environment"),
        "NCCL_B": ("mine", f"{MINE}:2"),
        "NCCL_C": ("host", f"{THEIRS}:4"),
    }


def test_an_empty_variable_hides_the_file() -> None:
    """setenv(name, value, 0) leaves a variable alone that is there, even empty."""
    assert settings(HOME | {"NCCL_A": ""}, **{THEIRS: ["NCCL_A=host"]})["NCCL_A"] == ("", "environment")


def test_a_named_file_replaces_the_users_but_not_the_hosts() -> None:
    env = HOME | {"NCCL_CONF_FILE": "/opt/nccl.conf"}
    found = settings(env, **{"/opt/nccl.conf": ["NCCL_A=named"], MINE: ["NCCL_B=mine"], THEIRS: ["NCCL_C=host"]})
    assert set(found) == {"NCCL_A", "NCCL_C", "NCCL_CONF_FILE"}


def test_the_first_line_for_a_name_wins() -> None:
    assert settings(HOME, **{THEIRS: ["NCCL_A=1", "NCCL_A=2"]})["NCCL_A"] == ("1", f"{THEIRS}:1")


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("NCCL_A=x=y", "x=y"),
        ('NCCL_A="x"', '"x"'),
        ("NCCL_A= x", " x"),
        ("NCCL_A=", ""),
        ("NCCL_A", None),
        ("export NCCL_A=x", None),
    ],
)
def test_a_line_is_taken_as_it_is(line: str, value: str | None) -> None:
    found = {setting.name: setting.value for setting in nccl_conf.parse_conf(line, THEIRS)[0]}
    assert found.get("NCCL_A") == value


@pytest.mark.parametrize(
    ("line", "odd"),
    [
        ("NCCL_A=x", False),
        ("#NCCL_A=x", False),
        ("", False),
        ("NCCL_A=x,y", False),
        ("export NCCL_A=x", True),
        ("NCCL_A = x", True),
        ("NCCL_A='x'", True),
        ("NCCL_A=x # why", True),
        ("NCCL_A x", True),
        ("UCX_TLS=rc # of UCX", False),
    ],
)
def test_lines_that_do_not_do_what_they_say(line: str, odd: bool) -> None:
    assert bool(nccl_conf.parse_conf(line, THEIRS)[1]) is odd


def test_what_nccl_cannot_open_either_is_as_good_as_absent_and_a_failed_look_is_unknown() -> None:
    denied = nccl_conf.read(host(env=HOME, files={MINE: {"error": "denied"}}))
    failed = nccl_conf.read(host(env=HOME, files={MINE: {"error": "failed"}}))
    assert not isinstance(denied, Missing)
    assert isinstance(failed, Missing)


# --- RDMA


def test_the_recorded_h100_node() -> None:
    found = rdma.devices(below(str(recorded_elsewhere("infiniband/h100"))))
    assert not isinstance(found, Missing)
    assert [device.name for device in found] == [*(f"mlx5_{number}" for number in (0, 1, 4, 5, 6, 7, 8, 9)), "mlx5_bond_0"]
    ports = {device.name: device.ports[0] for device in found}
    assert {(port.state, port.physical_state) for port in ports.values()} == {("ACTIVE", "LinkUp")}
    assert (ports["mlx5_9"].rate_gbps, ports["mlx5_9"].link_layer) == (400.0, "InfiniBand")
    assert (ports["mlx5_bond_0"].rate_gbps, ports["mlx5_bond_0"].link_layer) == (200.0, "Ethernet")
    assert found[0].firmware == "28.41.1000"
    assert isinstance(found[0].pci_address, Missing), "the recording holds no device links"


def device(**files: Any) -> RdmaDevice:
    base = "/sys/class/infiniband/mlx5_0/"
    found = rdma.devices(host(files={base + name: text for name, text in files.items()}))
    assert not isinstance(found, Missing)
    return found[0]


def test_devices_are_in_the_order_of_their_numbers() -> None:
    names = ("mlx5_10", "mlx5_2", "mlx5_bond_0", "irdma0")
    found = rdma.devices(host(files={f"/sys/class/infiniband/{name}/fw_ver": "1" for name in names}))
    assert not isinstance(found, Missing)
    assert [device.name for device in found] == ["irdma0", "mlx5_2", "mlx5_10", "mlx5_bond_0"]


def test_gids_are_read_on_roce_ports_up_to_the_end_of_the_table() -> None:
    gid, none = "0000:0000:0000:0000:0000:ffff:0a00:000b", "0000:" * 7 + "0000"
    files = {
        "ports/1/link_layer": "Ethernet",
        "ports/1/gids/0": none,
        "ports/1/gids/1": gid,
        "ports/1/gid_attrs/types/1": "RoCE v2",
    }
    gids = device(**files).ports[0].gids
    assert not isinstance(gids, Missing)
    assert [(entry.index, entry.gid, entry.type) for entry in gids] == [(1, gid, "RoCE v2")]
    assert isinstance(device(**files | {"ports/1/link_layer": "InfiniBand"}).ports[0].gids, Missing)


@pytest.mark.parametrize("text", ["", "Gb/sec", "-1 Gb/sec", "nan Gb/sec", "inf Gb/sec", "1e400 Gb/sec", "400"])
def test_a_rate_that_is_none_is_missing(text: str) -> None:
    assert isinstance(device(**{"ports/1/rate": text, "ports/1/state": "4: ACTIVE"}).ports[0].rate_gbps, Missing)


def test_a_port_whose_files_are_gone_still_counts_as_a_port() -> None:
    port = device(**{"ports/1/link_layer": "InfiniBand"}).ports[0]
    assert isinstance(port.state, Missing)
    assert port.port == 1


def test_a_host_without_anything_gives_facts_all_the_same() -> None:
    facts = network.probe(host(), Workload())
    assert isinstance(facts.interfaces, Missing)
    assert isinstance(facts.rdma, Missing)
    assert facts.nccl == ()


def test_proc_of_this_machine_tells_the_same_as_its_kernel() -> None:
    live = LiveHost()
    route, told = live.text("/proc/net/route"), network.interfaces(live)
    if isinstance(route, Missing) or isinstance(told, Missing):
        pytest.skip("this machine does not show its routes")
    connected = [(net, length) for _, net, length in addresses.parse_connected(route)]
    if len(connected) != len(set(connected)):
        pytest.skip("two interfaces share a network here: /proc does not say which has an address")
    names = tuple(interface.name for interface in told)
    read = {item.name: item.addresses for item in addresses.from_proc(live, names)}
    for interface in told:
        found = read[interface.name]
        if not isinstance(found, Missing) and not isinstance(interface.addresses, Missing):
            assert plain(found) == plain(interface.addresses), interface.name


def test_ipv6_addresses_of_wider_scope_come_first() -> None:
    lines = [
        "fe800000000000000000000000000001 02 40 20 80 eno1",
        "fe800000000000000000000000000009 01 40 20 80 lo",
        "fd000000000000000000000000000002 02 40 00 80 eno1",
    ]
    found = addresses.parse_if_inet6("\n".join(lines))
    assert [(name, address[:4]) for name, _, address, _ in found] == [("lo", "fe80"), ("eno1", "fd00"), ("eno1", "fe80")]


def plain(found: tuple[Address, ...]) -> list[tuple[bool, str, Any]]:
    """Sorted within a scope: of equals only the kernel knows the order."""
    rows = [(ipaddress.ip_address(item.address), item.prefix_length) for item in found]
    return sorted((row.version == 6 and row.is_link_local, str(row), length) for row, length in rows)
