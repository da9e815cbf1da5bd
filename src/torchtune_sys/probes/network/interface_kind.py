"""Classify a network interface: physical, bridge, veth, tunnel and so on."""

from __future__ import annotations

import re
from typing import Any

from torchtune_sys.host.base import Host
from torchtune_sys.model.values import Missing

PHYSICAL = frozenset({"ethernet", "infiniband", "wifi", "usb", "wwan"})
"""Kinds with a device behind them (in a virtual machine, a virtual one)."""

_BY_LINK_KIND = {
    **{name: name for name in ("bridge", "veth", "bond", "vlan", "macvlan", "tun", "wireguard", "dummy")},
    "openvswitch": "bridge",
    "team": "bond",
    "netkit": "veth",
    "ipoib": "infiniband",
    **dict.fromkeys(("macvtap", "ipvlan", "ipvtap"), "macvlan"),
    **dict.fromkeys(
        ("vxlan", "geneve", "gre", "gretap", "ip6gre", "ip6gretap", "ipip", "sit", "ip6tnl", "vti", "vti6", "xfrm"), "tun"
    ),
}
"""IFLA_INFO_KIND (rtnl_link_ops.kind in the kernel's drivers/net) → our word."""

_BY_DEVTYPE = {
    "wlan": "wifi",
    "wwan": "wwan",
    "bridge": "bridge",
    "bond": "bond",
    "vlan": "vlan",
    "macvlan": "macvlan",
    "vxlan": "tun",
    "wireguard": "wireguard",
}
_ETHERNET, _INFINIBAND, _LOOPBACK, _NONE = 1, 32, 772, 65534
_TUNNELS = frozenset({768, 769, 776, 778, 823})
"""ARPHRD_TUNNEL, TUNNEL6, SIT, IPGRE, IP6GRE (linux/if_arp.h)."""

_BY_PREFIX = (
    ("veth", "veth"),
    ("docker", "bridge"),
    ("br-", "bridge"),
    ("virbr", "bridge"),
    ("cni", "bridge"),
    ("wg", "wireguard"),
)


def kind_of(host: Host, name: str, attributes: dict[str, Any]) -> str:
    """Return Netlink's link kind where there is one; else hardware type and sysfs; the name only as the last resort."""
    link_kind = str(attributes.get("kind") or "")
    if link_kind in _BY_LINK_KIND:
        return _BY_LINK_KIND[link_kind]
    base = f"/sys/class/net/{name}"
    hardware = int(attributes["type"]) if "type" in attributes else host.number(f"{base}/type")
    if hardware == _LOOPBACK:
        return "loopback"
    if hardware == _INFINIBAND:
        return "infiniband"
    if hardware == _NONE or (isinstance(hardware, int) and hardware in _TUNNELS):
        return "tun"
    if link_kind:
        return "other"
    return _from_sysfs(host, name, base, from_kernel="type" in attributes)


def _from_sysfs(host: Host, name: str, base: str, *, from_kernel: bool) -> str:
    entries = host.names(base)
    if isinstance(entries, Missing):
        return _from_name(name)
    uevent = host.text(f"{base}/uevent")
    devtype = "" if isinstance(uevent, Missing) else parse_devtype(uevent)
    if devtype in _BY_DEVTYPE:
        return _BY_DEVTYPE[devtype]
    for entry, kind in (
        ("wireless", "wifi"),
        ("phy80211", "wifi"),
        ("bridge", "bridge"),
        ("bonding", "bond"),
        ("tun_flags", "tun"),
    ):
        if entry in entries:
            return kind
    if "device" in entries:
        bus = host.link(f"{base}/device/subsystem")
        return "usb" if not isinstance(bus, Missing) and bus.rstrip("/").endswith("/usb") else "ethernet"
    if from_kernel:
        return "other"
    return _without_device(host, name, base)


def _without_device(host: Host, name: str, base: str) -> str:
    mine, peer = host.number(f"{base}/ifindex"), host.number(f"{base}/iflink")
    if isinstance(mine, int) and isinstance(peer, int) and mine != peer:
        return "vlan" if not isinstance(host.text(f"/proc/net/vlan/{name}"), Missing) else "veth"
    return _from_name(name)


def _from_name(name: str) -> str:
    """
    >>> [_from_name(name) for name in ("lo", "br-4f2a", "eno1np0", "enp65s0f0", "eth0")]
    ['loopback', 'bridge', 'ethernet', 'ethernet', 'other']
    """
    if name == "lo":
        return "loopback"
    if re.fullmatch(
        r"en[ops]\d\w{0,12}", name
    ):  # systemd.net-naming-scheme(7): of a device's firmware number, slot or place on the bus
        return "ethernet"
    return next(
        (kind for prefix, kind in _BY_PREFIX if name.startswith(prefix)), "dummy" if name.startswith("dummy") else "other"
    )


def parse_devtype(text: str) -> str:
    """Return the DEVTYPE in an interface's uevent file.

    >>> parse_devtype("DEVTYPE=wlan\\nINTERFACE=wlp3s0\\nIFINDEX=3\\n")
    'wlan'
    """
    return next((line[8:].strip() for line in text.splitlines() if line.startswith("DEVTYPE=")), "")
