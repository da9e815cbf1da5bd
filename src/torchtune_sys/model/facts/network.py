"""Network interfaces, names, RDMA devices, and the configuration that NCCL and Gloo read."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why


class Address(msgspec.Struct, frozen=True, kw_only=True):
    family: str
    """``inet`` or ``inet6``."""
    address: str
    """Without a scope: ``fe80::1``, never ``fe80::1%eth0``."""
    prefix_length: Fact[int]
    position: int = 0
    """Rank in the one list that getifaddrs gives for all interfaces: IPv4 of all of them comes before IPv6 of any."""


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    index: int
    kind: str
    """``ethernet`` (a physical or virtual NIC with a device behind it), ``infiniband``, ``loopback``, ``bridge``, ``veth``, ``bond``,
    ``vlan``, ``macvlan``, ``tun``, ``wireguard``, ``wifi``, ``usb``, ``wwan``, ``dummy`` or ``other``."""
    up: Fact[bool]
    """IFF_UP (administrative)."""
    running: Fact[bool]
    """IFF_RUNNING: up and with a carrier, as netdevice(7) has it. sysfs ``flags`` lacks the bit: there, up and operstate ``up`` or ``unknown``."""
    operstate: Fact[str]
    speed_mbps: Fact[int]
    mtu: Fact[int]
    addresses: Fact[tuple[Address, ...]]
    """In the order in which getifaddrs gives them, which is the order NCCL and Gloo see."""
    numa_node: Fact[int]
    pci_address: Fact[str]
    vendor: Fact[str]
    """PCI vendor id, e.g. ``0x15b3``."""
    driver: Fact[str]
    """Kernel driver of the device, e.g. ``mlx5_core``; ABSENT for virtual interfaces."""
    interrupt_cpus: Fact[tuple[int, ...]] = Missing(Why.ABSENT, "msi_irqs", "looked at for Ethernet of 25 Gb/s or more")
    """The CPUs that serve its first interrupts, one for each; NOT_SUPPORTED where the kernel does not show them (before 4.15)."""
    duplex: Fact[str] = Missing(
        Why.ABSENT, "duplex", "looked at for wired links up to 1 Gb/s, above which there is no half duplex"
    )
    """``full``, ``half`` or ``unknown``."""
    qdisc: Fact[str] = Missing(Why.NOT_RECORDED, "rtnetlink", "not read")
    """Its root queueing discipline: ``mq``, ``fq_codel``, ``noqueue``, ``netem`` …"""
    counters: Fact[dict[str, int]] = Missing(Why.ABSENT, "statistics", "counted of Ethernet ports with a carrier")
    """``rx_packets``, ``rx_crc_errors`` and ``rx_missed_errors`` since the driver was loaded."""
    master: str = ""
    """The bridge or bond this interface belongs to."""
    links_lost: Fact[int] = Missing(Why.ABSENT, "bonding_slave", "no port of a bond")
    """How often its link was lost since it joined its bond."""


class Gid(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a RoCE port's GID table (``ports/1/gids/N``, ``gid_attrs/types/N``)."""

    index: int
    gid: str
    """Eight groups of four hex digits; an IPv4 address is ``0000:…:ffff:0a00:000b``."""
    type: Fact[str]
    """``IB/RoCE v1`` or ``RoCE v2``."""


_NOT_READ = Missing(Why.NOT_RECORDED, "network", "not read")


class RdmaPort(msgspec.Struct, frozen=True, kw_only=True):
    port: int
    state: Fact[str]
    """``ACTIVE``, ``DOWN``, ``INIT``, ``ARMED``, ``ACTIVE_DEFER`` …"""
    physical_state: Fact[str]
    """``LinkUp``, ``Polling``, ``Disabled`` …"""
    link_layer: Fact[str]
    """``InfiniBand`` or ``Ethernet`` (RoCE)."""
    rate_gbps: Fact[float]
    gids: Fact[tuple[Gid, ...]]
    """The filled entries among the first sixteen, for RoCE ports only (ABSENT on InfiniBand, where routing needs no choice)."""
    lanes: Fact[int] = _NOT_READ
    """Active width: 4 of ``400 Gb/sec (4X NDR)``. On Ethernet the driver makes it up of the speed."""
    signalling: Fact[str] = _NOT_READ
    """``SDR``, ``DDR``, ``QDR``, ``FDR10``, ``FDR``, ``EDR``, ``HDR``, ``NDR`` or ``XDR``."""
    lid: Fact[int] = _NOT_READ
    """Local identifier that the subnet manager gave; 0 if none did. InfiniBand only, as is the next."""
    sm_lid: Fact[int] = _NOT_READ
    """Where the subnet manager is; 0 if the port never heard of one."""
    partitions: Fact[tuple[int, ...]] = _NOT_READ
    """The first entries of its table of partition keys (``pkeys/N``); the highest bit of one says that the port is a full member."""
    counters: Fact[dict[str, int]] = _NOT_READ
    """``link_downed``, ``link_error_recovery``, ``symbol_error``, ``port_rcv_errors`` since the driver was loaded or somebody cleared
    them; they stop at 255 (the first two) or 65535."""


class RdmaDevice(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    ports: tuple[RdmaPort, ...]
    firmware: Fact[str]
    board: Fact[str]
    """``board_id``, which names the card's exact model (``MT_0000000838``), so that like is compared with like."""
    pci_address: Fact[str]
    numa_node: Fact[int]
    interfaces: Fact[tuple[str, ...]]
    """Network interfaces of the same PCI function (IPoIB or RoCE)."""
    type: Fact[str] = _NOT_READ
    """``hca_type``: ``MT4129`` is a ConnectX-7; empty for many drivers."""
    driver: Fact[str] = _NOT_READ
    """Kernel driver of the function: ``mlx5_core``, ``efa`` …; ABSENT for software devices."""
    congestion: Fact[dict[str, str]] = _NOT_READ
    """RoCE congestion control (DCQCN) of NVIDIA's OFED driver: ``roce_np`` (notification point) and ``roce_rp`` (reaction point) → a digit
    for each of the eight priorities, 1 where it is on. ABSENT with other drivers, and for InfiniBand."""


class CounterGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """What the error counters of RDMA ports gained while they were watched."""

    seconds: float
    gained: dict[str, dict[str, int]]
    """Port (``mlx5_0:1``) → counter → count; what stayed the same is left out."""


class NcclSetting(msgspec.Struct, frozen=True, kw_only=True):
    """The value of one NCCL_* variable that NCCL would use: environment first, then the user's file, then the host's."""

    name: str
    value: str
    source: str
    """``environment``, or a file with the line: ``/etc/nccl.conf:3``."""
    first: str = ""
    """The first NCCL release that reads this file; ``""`` if all do."""
    before: str = ""
    """The first NCCL release that no longer reads this file; ``""`` if all still do."""


class IgnoredLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of an nccl.conf that does not do what it says."""

    source: str
    """``/etc/nccl.conf:3``"""
    text: str
    why: str
    cured_in: str = ""
    """The NCCL release that takes the line as it was meant; ``""`` if none does."""
    first: str = ""
    before: str = ""
    """As in :class:`NcclSetting`."""


class NcclFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What nccl.conf files give, beside what is effective of it."""

    ignored: tuple[IgnoredLine, ...]
    missing_topology: Fact[str] = ""
    """The value of NCCL_TOPO_FILE if there is no such file; ``""`` if there is, or the variable is not set."""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """An address that MASTER_ADDR stands for."""

    address: str
    refused: str
    """Why the kernel would send nothing there (``Network is unreachable``); ``""`` where it has a route."""
    own: str = ""
    """From which of its own addresses this host would send there."""


class NetworkFacts(msgspec.Struct, frozen=True, kw_only=True):
    interfaces: Fact[tuple[Interface, ...]]
    """In getifaddrs order."""
    default_route_interface: Fact[str]
    """Interface of the default route (IPv4, else IPv6); ABSENT if there is none."""
    hostname_addresses: Fact[tuple[str, ...]]
    """What getaddrinfo gives for the host's own name; ABSENT if it resolves to nothing."""
    rdma: Fact[tuple[RdmaDevice, ...]]
    """ABSENT where the kernel has no /sys/class/infiniband."""
    verbs_nodes: Fact[tuple[str, ...]]
    """Names in /dev/infiniband (``uverbs0`` …), through which programs reach RDMA devices; ABSENT where there is no such directory."""
    verbs_closed: Fact[tuple[str, ...]] = _NOT_READ
    """Those of them that this session may not open for reading and writing."""
    verbs_library: Fact[bool] = _NOT_READ
    """Whether the loader finds libibverbs.so.1; ABSENT where there is no RDMA device."""
    nccl: Fact[tuple[NcclSetting, ...]]
    """Effective NCCL_* settings. Where the home directory of the user database is not ``$HOME``, a name may be there more than once,
    for different releases, in the order of precedence."""
    nccl_files: Fact[NcclFiles]
    gloo_interfaces: Fact[tuple[str, ...]]
    """GLOO_SOCKET_IFNAME, split at commas as torch does; empty where it is unset, empty or one character long (torch ignores that)."""
    localhost_addresses: Fact[tuple[str, ...]] = _NOT_READ
    """The same of localhost, where the ranks of one host meet; empty if it resolves to nothing."""
    master: Fact[tuple[Way, ...]] = _NOT_READ
    """What MASTER_ADDR resolves to, and whether there is a way; empty where the variable is not set, ABSENT where the name resolves to nothing."""
    tracked_connections: Fact[tuple[int, int]] = _NOT_READ
    """How many connections the firewall tracks (nf_conntrack) in this network namespace, and how many it may; ABSENT where it tracks none."""
    rdma_growth: Fact[CounterGrowth] = _NOT_READ
    """Only with ``--live``."""
    net_plugins: Fact[tuple[str, ...]] = _NOT_READ
    """``libnccl-net*.so`` files that the loader would find; ABSENT where no RDMA device needs such a plug-in (EFA does)."""
    net_plugins_elsewhere: Fact[tuple[str, ...]] = _NOT_READ
    """The same in the usual places of their installers, off the loader's path."""
