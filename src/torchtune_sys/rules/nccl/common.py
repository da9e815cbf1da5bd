"""Code shared by the network rules: the NCCL version, the interfaces that it chooses, and what is wrong with an interface."""

from __future__ import annotations

import re

from torchtune_sys.knowledge import nccl
from torchtune_sys.model.facts.network import Interface, NcclSetting, NetworkFacts
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.snapshot import Snapshot, container_told, is_pasted, kept
from torchtune_sys.model.values import Missing, NotApplicable, absent, known, known_or_unknown, need
from torchtune_sys.model.version import Version, show, version
from torchtune_sys.rules.gates import cuda_torch, nccl_hardware, nvidia_hardware, rocm_torch, verbs_devices


def uses_nccl(s: Snapshot) -> None:
    """Require NVIDIA GPUs, and no torch that could not use them; or AMD's, and a torch for them, whose RCCL is NCCL but for the GPUs."""
    nccl_hardware(s)
    if not rocm_torch(s):
        uses_nvidias(s)


def uses_nvidias(s: Snapshot) -> None:
    """Require NVIDIA GPUs, and no torch that could not use them."""
    nvidia_hardware(s)
    if not isinstance(s.python, Missing) and not isinstance(s.python.torch, Missing):
        cuda_torch(s)


def several_hosts(s: Snapshot) -> None:
    """Require that the job is known to span hosts."""
    if s.intent.nodes is None:
        raise NotApplicable("whether the job spans several hosts is not known (--nnodes)")
    if s.intent.nodes < 2:
        raise NotApplicable("the job runs on this host only")


def at_loopback(s: Snapshot, variable: str) -> str:
    """Return the value of NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME of a job over several hosts that names the loopback alone, where the report that
    tells it lists no interfaces: with them, what the library would choose says more. ``""`` otherwise."""
    unlisted = isinstance(s.network, Missing) or isinstance(s.network.interfaces, Missing)
    if not is_pasted(s) or not unlisted or (s.intent.nodes or 1) < 2 or isinstance(s.session, Missing):
        return ""
    value = known(s.session.env, {}).get(variable, "")
    names = nccl.parse_names(value)
    return value if names.entries and not names.exclude and all(name == "lo" for name, _ in names.entries) else ""


def nccl_on_several_hosts(s: Snapshot) -> None:
    several_hosts(s)
    uses_nccl(s)


def nccl_version(s: Snapshot) -> tuple[Version, str]:
    """Return the NCCL that torch brings, and how to call it; the newest known where that cannot be seen."""
    torch = None if isinstance(s.python, Missing) else s.python.torch
    found = None if torch is None or isinstance(torch, Missing) else torch.nccl
    name, newest = ("RCCL", _RCCL) if rocm_torch(s) else ("NCCL", nccl.NEWEST)
    if found is None or isinstance(found, Missing) or not version(found):
        return newest, f"{name} {show(newest)} (assumed: the installed one is not known)"
    return version(found)[:3], f"{name} {found}"


_RCCL = (2, 27, 7)
"""The number of the RCCL in ROCm 7.1.1 to 7.2.4, which is that of the NCCL it was made from (https://github.com/ROCm/rccl/releases)."""


def settings(s: Snapshot) -> dict[str, NcclSetting]:
    """Return what the installed NCCL would use, by name."""
    installed, _ = nccl_version(s)
    found: dict[str, NcclSetting] = {}
    for setting in need(need(s.network).nccl):
        if read_by(installed, setting.first, setting.before) and not is_of_the_other(s, setting.source):
            found.setdefault(setting.name, setting)
    return found


def is_of_the_other(s: Snapshot, source: str) -> bool:
    """Return whether a line is of a file that torch's library does not read: NCCL's are ~/.nccl.conf and /etc/nccl.conf, RCCL's ~/.rccl.conf and
    /etc/rccl.conf (src/misc/param.cc of both)."""
    other = "nccl" if rocm_torch(s) else "rccl"
    return source.rpartition(":")[0].endswith((f"/.{other}.conf", f"/etc/{other}.conf"))


def read_by(installed: Version, first: str, before: str) -> bool:
    """Return whether a release reads a file that ``first`` was the first to read and ``before`` the first to leave alone."""
    return (not first or version(first) <= installed) and (not before or installed < version(before))


def values(s: Snapshot) -> dict[str, str]:
    return {name: setting.value for name, setting in settings(s).items()}


def prediction(s: Snapshot) -> nccl.Prediction:
    return nccl.predict_interfaces(need(need(s.network).interfaces), values(s), nccl_version(s)[0])


def sockets_carry_data(s: Snapshot) -> bool:
    """Return whether the data of a job over several hosts goes through TCP: no RDMA port that NCCL would open, itself or by a plug-in."""
    chosen = values(s)
    devices = need(s.network).rdma
    if absent(devices) or not verbs_devices(s):
        return True
    if nccl.plugin_ports(need(devices)):
        return False
    return nccl.ib_disabled(chosen) or not nccl.usable_ports(need(devices), chosen.get("NCCL_IB_HCA", ""))


def fast_roce_interfaces(s: Snapshot) -> dict[str, int]:
    """Return the MTU of each interface of a fast RoCE port that NCCL opens itself."""
    network, found = need(s.network), {}
    for device, port in nccl.usable_ports(need(network.rdma), values(s).get("NCCL_IB_HCA", "")):
        if port.link_layer != "Ethernet" or not nccl.is_made_for_training(port):
            continue
        for name in known_or_unknown(device.interfaces, ()):
            interface = interface_named(network, name)
            if interface and known_or_unknown(interface.up, False):
                found[name] = need(interface.mtu)
    return found


_DOUBTS = {
    "loopback": "the loopback interface",
    "bridge": "a bridge of containers or virtual machines",
    "veth": "a container's veth interface",
    "tun": "a tunnel",
    "wireguard": "a VPN",
    "dummy": "a dummy",
    "usb": "a USB network (often the board controller's)",
    "wwan": "a mobile network",
}


_WITH_DEVICE = ("ethernet", "infiniband", "wifi", "usb", "wwan", "bond", "vlan")


SWITCHED_OFF = "it is switched off (down)"
NO_CARRIER = "no carrier"


def doubt(s: Snapshot, interface: Interface, address: str) -> str:
    """Return why other hosts of a job will hardly reach this interface; ``""`` if nothing speaks against it.

    With a carrier the interface of the default route is never doubted: in a pod it is a veth, on a virtualisation host a bridge. A veth is this host's
    own way out, too, where nothing with a device behind it has an address: inside a container or a network namespace. In a container of Docker or
    Podman its address tells: what they give their own bridges by default leads to no other host (docs.docker.com/engine/network/, default-address-pools;
    containers.conf(5), default_subnet), unless the master is on that bridge, too: several containers of one host then play a job's hosts. Other
    containers may be bridged to a network of the site that has such addresses.
    """
    if nccl.is_loopback(address) or interface.kind == "loopback":
        return _DOUBTS["loopback"]
    if not known(interface.up, True):
        return SWITCHED_OFF
    if not known(interface.running, True):
        return NO_CARRIER
    if _is_on_own_bridge(s, interface, address):
        return "on a bridge inside its host, which Docker or Podman made: addresses there are the same on every host"
    if _is_behind_windows(s, interface, address):
        return "in the network that Windows makes for WSL (NAT), whose addresses no other machine reaches"
    network = need(s.network)
    if interface.name == network.default_route_interface or (interface.kind == "veth" and _is_inside(network)):
        return ""
    if interface.kind in _DOUBTS:
        return _DOUBTS[interface.kind]
    return "an address that is valid on one wire only" if nccl.is_link_local(address) else ""


def _is_on_own_bridge(s: Snapshot, interface: Interface, address: str) -> bool:
    inside = container_told(s)
    if interface.kind != "veth" or inside not in _WITH_OWN_BRIDGES or not _WITH_OWN_BRIDGES[inside].match(address):
        return False
    ways = [
        way for way in known(need(s.network).master, ()) if way.own == address and _WITH_OWN_BRIDGES[inside].match(way.address)
    ]
    if any(way.address != address or not address.startswith(_DEFAULT_BRIDGE) for way in ways):
        return False
    return any(one.address == address and known(one.prefix_length, 0) == 16 for one in known(interface.addresses, ()))


_OF_WSL = pattern(r"172\.(?:1[6-9]|2[0-9]|3[01])\.")


def _is_behind_windows(s: Snapshot, interface: Interface, address: str) -> bool:
    """Return whether WSL 2 gave this address by its default, NAT: one of 172.16.0.0/12 with 20 bits (learn.microsoft.com/windows/wsl/networking). With
    mirrored networking the guest has Windows' addresses, and an interface named loopback0."""
    network = need(s.network)
    if isinstance(s.driver, Missing) or s.driver.wsl is not True or not _OF_WSL.match(address):
        return False
    if container_told(s) or any(one.name == "loopback0" for one in known(network.interfaces, ())):
        return False
    return any(one.address == address and known(one.prefix_length, 0) == 20 for one in known(interface.addresses, ()))


_DEFAULT_BRIDGE = "172.17."
"""Docker's, on which containers know no names of each other; on the networks that compose makes they do."""
_WITH_OWN_BRIDGES = {"docker": pattern(r"172\.(?:1[7-9]|2[0-9]|3[01])\."), "podman": pattern(r"10\.88\.")}


def _is_inside(network: NetworkFacts) -> bool:
    interfaces = known(network.interfaces, ())
    return not any(interface.kind in _WITH_DEVICE and known(interface.addresses, ()) for interface in interfaces)


_PLAIN_NAME = pattern(r"[\w.@+-]+", re.ASCII)


def better(s: Snapshot) -> tuple[str, ...]:
    """Return the interfaces with an address that nothing speaks against, that of the default route first. Not those whose name a variable of NCCL's or gloo's cannot hold, in
    which ``^``, ``=``, ``,`` and ``:`` mean something: who may name an interface would choose among the others."""
    network = need(s.network)
    found = [
        interface.name
        for interface in need(network.interfaces)
        for address in known(interface.addresses, ())[:1]
        if _PLAIN_NAME.fullmatch(interface.name) and not doubt(s, interface, address.address)
    ]
    return tuple(sorted(found, key=lambda name: name != network.default_route_interface))


def interface_named(network: NetworkFacts, name: str) -> Interface | None:
    return _by_name(network).get(name)


@kept
def _by_name(network: NetworkFacts) -> dict[str, Interface]:
    return {interface.name: interface for interface in reversed(need(network.interfaces))}
