"""Network interfaces, their addresses and the way out, as ``ip addr``, ``ip route`` and ``ethtool NAME`` print them."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from torchtune_sys.evidence.partial import missing, partly
from torchtune_sys.model.facts.network import Address, Interface, NetworkFacts
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.values import Missing, Why

_LINK = pattern(r"\d{1,4}: ([\w.-]{1,15})(@[\w.-]{1,15})?: <([A-Z_,0-9-]{0,120})> mtu (\d{1,6})\b(.{0,300})")
_KIND = pattern(r" {4}link/(\w{1,12})\b")
_ADDRESS = pattern(r" {4}(inet6?) ([0-9a-f.:]{2,45})/(\d{1,3}) ")
_DEFAULT = pattern(r"^[ \t>]{0,8}default (?:via \S{1,45} )?dev ([\w.-]{1,15})\b(?:.{0,120}? metric (\d{1,9}))?", re.MULTILINE)
_SETTINGS = pattern(r"Settings for ([\w.-]{1,15}):")
_SETTING = pattern(r"\t(Speed|Duplex|Link detected): (\S{1,20})")
_BY_NAME = (
    ("docker|br-|virbr|cni|podman|lxdbr", "bridge"),
    ("veth|cali|lxc", "veth"),
    ("bond", "bond"),
    ("wl", "wifi"),
    ("dummy|kube-ipvs", "dummy"),
    ("tun|tap|wg|tailscale|flannel|vxlan|cilium|sit|gre|ip6", "tun"),
)
"""Beginnings of names that programs and the kernel give, and what carries them (``kind`` of an interface)."""
_MOST = 1024


def network_facts(text: str) -> NetworkFacts | None:
    """Return the interfaces and the default route; None where the text shows none, or several hosts'."""
    found: dict[str, Any] = {}
    links = _links(text) if "> mtu " in text else {}
    settings = _settings(text) if "Settings for " in text else {}
    if links or settings:
        alone = {name: Interface(**{**_NOTHING, "name": name}) for name in settings if not links}
        found["interfaces"] = tuple(
            msgspec.structs.replace(each, **settings.get(name, {})) for name, each in {**alone, **links}.items()
        )
    ways = [(int(metric or 0), name) for name, metric in _DEFAULT.findall(text)] if "default " in text else []
    if ways and (not links or min(ways)[1] in links):
        found["default_route_interface"] = min(ways)[1]
    return partly(NetworkFacts, **found) if found else None


_NOTHING: dict[str, Any] = {
    "index": -1,
    "kind": "ethernet",
    **dict.fromkeys(
        ("up", "running", "operstate", "speed_mbps", "mtu", "addresses", "numa_node", "pci_address", "vendor", "driver"),
        missing(),
    ),
}


def _links(text: str) -> dict[str, Interface]:
    """Return the interfaces of ``ip addr`` or ``ip link`` by name; nothing where a name comes twice, as two hosts' or two looks'.

    >>> seen = _links("2: ib0: <BROADCAST,UP,LOWER_UP> mtu 2044 state UP\\n    link/infiniband 00:11\\n    inet 10.1.0.5/24 brd 10.1.0.255 scope global ib0\\n")
    >>> seen["ib0"].kind, seen["ib0"].running, [(each.address, each.prefix_length) for each in seen["ib0"].addresses]
    ('infiniband', True, [('10.1.0.5', 24)])
    """
    rows: dict[str, dict[str, Any]] = {}
    row: dict[str, Any] = {}
    position = 0
    for line in text.split("\n"):
        if link := _LINK.match(line):
            name, below, flags, mtu, rest = link[1], link[2], link[3].split(","), link[4], link[5]
            if name in rows:
                return {}
            master = re.search(r" master (\S{1,15})", rest)
            state = re.search(r" state (\w{2,15})", rest)
            row = {
                **_NOTHING,
                "name": name,
                "index": int(line.partition(":")[0]),
                "kind": _kind(name, below or "", flags),
                "up": "UP" in flags,
                "running": "LOWER_UP" in flags,
                "operstate": state[1].lower() if state else missing(),
                "mtu": int(mtu),
                "master": master[1] if master else "",
            }
            rows[name] = row
        elif row and (kind := _KIND.match(line)):
            row["kind"] = {"infiniband": "infiniband", "none": "tun", "sit": "tun"}.get(kind[1], row["kind"])
        elif row and (address := _ADDRESS.match(line)):
            length = int(address[3])
            one = Address(family=address[1], address=address[2], prefix_length=length, position=position)
            row["addresses"] = (*(() if isinstance(row["addresses"], Missing) else row["addresses"]), one)
            position += 1
        elif not line.startswith((" ", "\t")):
            row = {}
    if position:  # ip addr shows those of all
        rows = {
            name: {**each, "addresses": () if isinstance(each["addresses"], Missing) else each["addresses"]}
            for name, each in rows.items()
        }
    return {name: Interface(**each) for name, each in list(rows.items())[:_MOST]}


def _kind(name: str, below: str, flags: list[str]) -> str:
    if "LOOPBACK" in flags:
        return "loopback"
    named = next((kind for begins, kind in _BY_NAME if re.match(begins, name)), "")
    return named or ("vlan" if below and not below.startswith("@if") else "veth" if below else "ethernet")


def _settings(text: str) -> dict[str, dict[str, Any]]:
    r"""Return what ethtool says of each interface.

    >>> _settings("Settings for eno1:\n\tSpeed: 100Mb/s\n\tDuplex: Full\n\tLink detected: yes\n")
    {'eno1': {'speed_mbps': 100, 'duplex': 'full', 'up': True, 'running': True}}
    """
    found: dict[str, dict[str, Any]] = {}
    own: dict[str, Any] = {}
    for line in text.split("\n"):
        if begun := _SETTINGS.match(line):
            own = found.setdefault(begun[1], {})
        elif said := _SETTING.match(line):
            name, value = said.groups()
            if name == "Speed":
                speed = re.fullmatch(r"(\d{1,7})Mb/s", value)
                unknown = Missing(Why.NOT_SUPPORTED, "ethtool", "no carrier, or the driver does not tell")
                own["speed_mbps"] = int(speed[1]) if speed else unknown
            elif name == "Duplex" and value in ("Full", "Half"):
                own["duplex"] = value.lower()
            elif name == "Link detected":
                own.update({"up": True, "running": True} if value == "yes" else {"running": False})
        elif line.strip() and not line.startswith(("\t", " ")):
            own = {}
    return {name: each for name, each in list(found.items())[:_MOST] if each}
