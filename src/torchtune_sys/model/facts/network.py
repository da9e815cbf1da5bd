"""Network interfaces, names, RDMA devices, and the configuration that NCCL and Gloo read."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact


class Address(msgspec.Struct, frozen=True, kw_only=True):
    family: str
    """``inet`` or ``inet6``."""
    address: str
    prefix_length: Fact[int]


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    index: int
    kind: str
    """``ethernet``, ``infiniband``, ``loopback``, ``bridge``, ``veth``, ``bond``, ``vlan``, ``tun``, ``wireguard``, ``wifi``, ``dummy`` or ``other``."""
    up: Fact[bool]
    """IFF_UP (administrative)."""
    operstate: Fact[str]
    speed_mbps: Fact[int]
    mtu: Fact[int]
    addresses: Fact[tuple[Address, ...]]
    """In the order in which getifaddrs gives them, which is the order NCCL and Gloo see."""
    numa_node: Fact[int]
    pci_address: Fact[str]
    vendor: Fact[str]
    """PCI vendor id, e.g. ``0x15b3``."""
    master: str = ""
    """The bridge or bond this interface belongs to."""


class RdmaPort(msgspec.Struct, frozen=True, kw_only=True):
    port: int
    state: Fact[str]
    """``ACTIVE``, ``DOWN``, ``INIT`` …"""
    physical_state: Fact[str]
    link_layer: Fact[str]
    """``InfiniBand`` or ``Ethernet`` (RoCE)."""
    rate_gbps: Fact[float]


class RdmaDevice(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    ports: tuple[RdmaPort, ...]
    firmware: Fact[str]
    pci_address: Fact[str]
    numa_node: Fact[int]


class NcclSetting(msgspec.Struct, frozen=True, kw_only=True):
    """The value of one NCCL_* variable that NCCL would use: environment first, then the user's file, then the host's."""

    name: str
    value: str
    source: str
    """``environment``, ``~/.nccl.conf`` or ``/etc/nccl.conf`` (with the line)."""


class NetworkFacts(msgspec.Struct, frozen=True, kw_only=True):
    interfaces: Fact[tuple[Interface, ...]]
    """In getifaddrs order."""
    default_route_interface: Fact[str]
    """Interface of the default route; ABSENT if there is none."""
    hostname_addresses: Fact[tuple[str, ...]]
    """What getaddrinfo gives for the host's own name; ABSENT if it resolves to nothing."""
    rdma: Fact[tuple[RdmaDevice, ...]]
    """ABSENT where the kernel has no /sys/class/infiniband."""
    nccl: Fact[tuple[NcclSetting, ...]]
    """Effective NCCL_* settings."""
