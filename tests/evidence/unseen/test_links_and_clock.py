"""What ip, ethtool, timedatectl, chronyc, lsmod and systemctl's lists tell of a host."""

from __future__ import annotations

import pytest

from conftest import judge
from torchtune_sys import engine
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Missing

ADDRESSES = """1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN group default qlen 1000
    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00
    inet 127.0.0.1/8 scope host lo
2: eno1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc mq state UP group default qlen 1000
    link/ether 0c:42:a1:00:00:01 brd ff:ff:ff:ff:ff:ff
    inet 10.2.0.11/24 brd 10.2.0.255 scope global eno1
3: rail0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP group default qlen 1000
    link/ether 0c:42:a1:00:00:02 brd ff:ff:ff:ff:ff:ff
    inet 10.9.0.1/16 brd 10.9.255.255 scope global rail0
4: rail1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP group default qlen 1000
    link/ether 0c:42:a1:00:00:03 brd ff:ff:ff:ff:ff:ff
    inet 10.9.0.2/16 brd 10.9.255.255 scope global rail1
5: docker0: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc noqueue state DOWN group default
    link/ether 02:42:00:00:00:04 brd ff:ff:ff:ff:ff:ff
    inet 172.17.0.1/16 brd 172.17.255.255 scope global docker0
7: veth1a2b@if6: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue master docker0 state UP group default
    link/ether 02:42:00:00:00:05 brd ff:ff:ff:ff:ff:ff link-netnsid 0
"""
ROUTES = "default via 10.2.0.1 dev eno1 proto static metric 100\ndefault via 10.9.0.1 dev rail0 proto static metric 300\n"
ETHTOOL = "Settings for eno1:\n\tSupported ports: [ TP ]\n\tSpeed: {speed}\n\tDuplex: {duplex}\n\tLink detected: yes\n"
CLOCK = "               Local time: Tue 2026-11-24 09:41:29 UTC\nSystem clock synchronized: {kept}\n              NTP service: {service}\n"


def failing(text: str) -> set[str]:
    seen = engine.report(text, "a report")
    assert seen is not None
    return {name for name, result in judge(seen).items() if result.verdict is Verdict.FAIL}


@pytest.mark.parametrize(
    ("speed", "duplex", "wrong"),
    [("100Mb/s", "Full", True), ("1000Mb/s", "Half", True), ("10000Mb/s", "Full", False), ("Unknown!", "Unknown! (255)", False)],
)
def test_a_slow_link_is_seen_in_ethtool_alone_and_by_the_way_out(speed: str, duplex: str, wrong: bool) -> None:
    shown = ETHTOOL.format(speed=speed, duplex=duplex)
    for text in (shown, ROUTES + shown, ADDRESSES + ROUTES + shown):
        assert ("ethernet-link-slow" in failing(text)) is wrong


def test_a_slow_link_that_is_not_the_way_out_is_none() -> None:
    shown = ETHTOOL.format(speed="100Mb/s", duplex="Full").replace("eno1", "rail1")
    assert "ethernet-link-slow" not in failing(ADDRESSES + ROUTES + shown)


@pytest.mark.parametrize(("value", "wrong"), [(1, True), (2, False), (0, False)])
def test_rails_of_one_subnet_with_strict_filters_are_seen_in_ip_and_sysctl(value: int, wrong: bool) -> None:
    settings = "\n".join(f"net.ipv4.conf.{name}.rp_filter = {value}" for name in ("all", "eno1", "rail0", "rail1"))
    assert ("rp-filter-strict" in failing(f"{ADDRESSES}\nkernel.ostype = Linux\n{settings}\n")) is wrong


def test_two_hosts_addresses_are_none() -> None:
    both = ADDRESSES + ADDRESSES.replace("10.2.0.11", "10.2.0.12").replace("rail", "port")
    seen = engine.report(f"{both}\n{CLOCK.format(kept='yes', service='active')}", "a report")
    assert seen is not None and isinstance(seen.network, Missing)


@pytest.mark.parametrize(
    ("kept", "service", "wrong"),
    [("no", "active", True), ("no", "inactive", True), ("yes", "active", False), ("yes", "inactive", False)],
)
def test_timedatectl_tells_of_the_clock(kept: str, service: str, wrong: bool) -> None:
    assert ("clock-not-synchronised" in failing(CLOCK.format(kept=kept, service=service))) is wrong


@pytest.mark.parametrize(("leap", "wrong"), [("Not synchronised", True), ("Normal", False), ("Insert second", False)])
def test_chronyc_tells_of_the_clock(leap: str, wrong: bool) -> None:
    text = f"Reference ID    : 0A460002 (ntp-a)\nStratum         : 3\nLeap status     : {leap}\n"
    assert ("clock-not-synchronised" in failing(text)) is wrong


def test_two_looks_at_the_clock_that_differ_tell_nothing() -> None:
    both = CLOCK.format(kept="yes", service="active") + "\n" + CLOCK.format(kept="no", service="active") + ROUTES
    assert failing(both) == set()


@pytest.mark.parametrize("loaded", [("nvidia", "nvidia_uvm"), ("nvidia",), ("nouveau",)])
def test_lsmod_tells_which_modules_are_loaded_and_a_part_of_it_does_not(loaded: tuple[str, ...]) -> None:
    names = (*loaded, "xfs", "nfs", "nvme", "mlx5_core", "ib_core", "dm_mod", "raid0", "raid1")
    rows = [f"{name:20} {8192 + size}  0" for size, name in enumerate(names)]
    head = "Module                  Size  Used by"
    seen = engine.report("\n".join((head, *rows)), "a report")
    assert seen is not None and not isinstance(seen.driver, Missing)
    told = (seen.driver.module_loaded, seen.driver.uvm_loaded, seen.driver.nouveau_loaded)
    assert told == tuple(name in loaded for name in ("nvidia", "nvidia_uvm", "nouveau"))
    assert engine.report("\n".join((head, *rows[:3])), "a report") is None
