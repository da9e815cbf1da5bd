"""Real interfaces in network namespaces of our own: what is there is seen, and the predicted choice follows NCCL's rules."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from torchtune_sys.knowledge.nccl import predict_gloo, predict_interfaces, share_subnet
from torchtune_sys.model.facts.network import Address, Interface
from torchtune_sys.model.values import Missing, Why

Ip = Callable[..., None]
UNREAD = Missing(Why.NOT_RECORDED, "namespace")


@pytest.fixture
def namespace() -> Iterator[str]:
    if not shutil.which("ip"):
        pytest.skip("ip (iproute2) is not installed")
    name = f"tts-test-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, timeout=20)
    if made.returncode:
        pytest.skip(f"network namespaces are not permitted here: {made.stderr.strip()}")
    yield name
    subprocess.run(["ip", "netns", "delete", name], check=True, timeout=20)


def ip(namespace: str, *lines: str) -> None:
    for line in lines:
        made = subprocess.run(["ip", "-n", namespace, *line.split()], capture_output=True, text=True, timeout=20)
        if made.returncode and ("not supported" in made.stderr or "Unknown device type" in made.stderr):
            pytest.skip(f"this kernel lacks it: ip {line}: {made.stderr.strip()}")
        assert made.returncode == 0, f"ip {line}: {made.stderr}"


def seen(namespace: str) -> dict[str, Any]:
    argv = ["ip", "netns", "exec", namespace, sys.executable, "-m", "torchtune_sys", "snapshot", "--format", "json"]
    run = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert run.stdout, run.stderr
    return dict(json.loads(run.stdout)["facts"]["network"])


def predicted(facts: dict[str, Any]) -> tuple[str, ...]:
    return predict_interfaces(listed(facts), {}).names


def listed(facts: dict[str, Any]) -> tuple[Interface, ...]:
    found = []
    for row in facts["interfaces"]:
        addresses = tuple(
            Address(family=a["family"], address=a["address"], prefix_length=a["prefix_length"], position=a["position"])
            for a in row["addresses"]
        )
        unread = dict.fromkeys(("operstate", "speed_mbps", "mtu", "numa_node", "pci_address", "vendor", "driver"), UNREAD)
        found.append(
            Interface(
                name=row["name"], index=row["index"], kind=row["kind"], up=row["up"], running=row["running"], addresses=addresses,
                **unread,
            )
        )  # fmt: skip
    return tuple(found)


def by_name(facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in facts["interfaces"]}


def test_no_network_at_all(namespace: str) -> None:
    facts = seen(namespace)
    assert set(by_name(facts)) == {"lo"}
    assert by_name(facts)["lo"]["up"] is False
    assert predicted(facts) == ()


def test_a_bridge_of_containers_is_taken_before_the_real_link(namespace: str) -> None:
    ip(
        namespace,
        "link set lo up",
        "link add br-0a1b2c3d type bridge",
        "link add veth0 type veth peer name veth1",
        "link set veth1 master br-0a1b2c3d",
        "link set veth0 up",
        "link set veth1 up",
        "link set br-0a1b2c3d up",
        "addr add 172.18.0.1/16 dev br-0a1b2c3d",
        "addr add 10.9.8.7/24 dev veth0",
        "link set veth0 mtu 9000",
    )
    facts = seen(namespace)
    rows = by_name(facts)
    assert (rows["br-0a1b2c3d"]["kind"], rows["veth0"]["kind"], rows["lo"]["kind"]) == ("bridge", "veth", "loopback")
    assert rows["veth1"]["master"] == "br-0a1b2c3d"
    assert rows["veth0"]["mtu"] == 9000
    assert [(a["address"], a["prefix_length"]) for a in rows["veth0"]["addresses"] if a["family"] == "inet"] == [("10.9.8.7", 24)]
    assert predicted(facts)[0] == "br-0a1b2c3d"


def test_docker_comes_last_and_a_dead_link_not_at_all(namespace: str) -> None:
    ip(
        namespace,
        "link set lo up",
        "link add docker0 type bridge",
        "addr add 172.17.0.1/16 dev docker0",
        "link set docker0 up",
        "link add veth0 type veth peer name veth1",
        "addr add 192.0.2.5/24 dev veth0",
        "link set veth0 up",
    )
    facts = seen(namespace)
    assert by_name(facts)["veth0"]["running"] is False, "its peer is down"
    assert "veth0" not in predicted(facts)
    ip(namespace, "link set veth1 up")
    assert "veth0" in predicted(seen(namespace))
    assert "docker0" not in predicted(seen(namespace))


def test_ipv6_only(namespace: str) -> None:
    ip(
        namespace,
        "link set lo up",
        "link add veth0 type veth peer name veth1",
        "link set veth0 up",
        "link set veth1 up",
        "addr add 2001:db8::5/64 dev veth0 nodad",
    )
    facts = seen(namespace)
    addresses = {a["address"] for a in by_name(facts)["veth0"]["addresses"]}
    assert "2001:db8::5" in addresses
    assert "veth0" in predicted(facts)


def test_gloo_and_nccl_part_ways_where_only_one_is_told(namespace: str) -> None:
    """The host's name is not resolved to these addresses, so that Gloo is named the one network and NCCL takes the first."""
    ip(
        namespace,
        "link set lo up",
        *(f"link add rail{n} type veth peer name peer{n}" for n in (0, 1, 2)),
        *(f"link set {end}{n} up" for n in (0, 1, 2) for end in ("rail", "peer")),
        "addr add 10.9.0.5/24 dev rail0",
        "addr add 10.9.1.5/24 dev rail1",
        "addr add 10.9.0.6/24 dev rail2",
    )
    found = listed(seen(namespace))
    first = predict_interfaces(found, {}).choices[0]
    assert (first.interface, first.address) == ("rail0", "10.9.0.5")
    told = {name: predict_gloo(found, (), (name,)).choices[0] for name in ("rail0", "rail1", "rail2")}
    assert share_subnet(found, told["rail0"], first)
    assert not share_subnet(found, told["rail1"], first)
    assert share_subnet(found, told["rail2"], first), "another interface, the same network"
