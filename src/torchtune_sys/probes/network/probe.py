"""Interfaces, routes, the host's own name; RDMA devices and NCCL's files are read in the modules beside this one."""

from __future__ import annotations

from typing import Any

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.network import Interface, NetworkFacts, RdmaDevice, Way
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why, absent_or_unrecorded, fact, known, need
from torchtune_sys.probes.network import nccl_conf, rdma, rdma_counters
from torchtune_sys.probes.network.addresses import Named, from_answer, from_proc
from torchtune_sys.probes.network.interface_kind import PHYSICAL, kind_of

NET = "/sys/class/net"
_UP, _RUNNING = 0x1, 0x40
_RESOLVER_TIMEOUT_S = 4.0
"""A resolver's first retry comes after 5 s (resolv.conf(5)): a job that waits that long for its own name has a fault."""


def probe(host: Host, intent: Workload) -> NetworkFacts:
    conf = nccl_conf.read(host)
    devices = rdma.devices(host)
    plugins, elsewhere = _plugins(host, devices)
    own = hostname_addresses(host)
    verbs = host.names("/dev/infiniband")
    return NetworkFacts(
        interfaces=interfaces(host),
        default_route_interface=default_route(host),
        hostname_addresses=own,
        localhost_addresses=localhost_addresses(host, own),
        master=master(host),
        rdma=devices,
        verbs_nodes=verbs,
        verbs_closed=verbs if isinstance(verbs, Missing) else _closed(host, verbs),
        verbs_library=_verbs_library(host, devices),
        nccl=conf if isinstance(conf, Missing) else conf[0],
        nccl_files=conf if isinstance(conf, Missing) else conf[1],
        gloo_interfaces=gloo_interfaces(host),
        tracked_connections=_tracked_connections(host),
        rdma_growth=devices if isinstance(devices, Missing) else rdma_counters.growth(host, intent.live),
        net_plugins=plugins,
        net_plugins_elsewhere=elsewhere,
    )


_CONNTRACK = "/proc/sys/net/netfilter/nf_conntrack_"


def _tracked_connections(host: Host) -> Fact[tuple[int, int]]:
    count, most = host.number(f"{_CONNTRACK}count"), host.number(f"{_CONNTRACK}max")
    if isinstance(count, Missing):
        return count
    return most if isinstance(most, Missing) else (count, most)


@fact
def _closed(host: Host, names: tuple[str, ...]) -> Fact[tuple[str, ...]]:
    found = []
    for name in names:
        answer = need(host.ask(f"{queries.ACCESS}:/dev/infiniband/{name}") if name.startswith("uverbs") else {})
        if isinstance(answer, dict) and False in (answer.get("read"), answer.get("write")):
            found.append(name)
    return tuple(found)


def _verbs_library(host: Host, devices: Fact[tuple[RdmaDevice, ...]]) -> Fact[bool]:
    """Return whether NCCL finds what it opens adapters by (NVIDIA/nccl src/misc/ibvsymbols.cc)."""
    if isinstance(devices, Missing):
        return devices
    if not devices:
        return Missing(Why.ABSENT, "/sys/class/infiniband", "no RDMA device")
    from torchtune_sys.probes.driver.files import loader_finds

    return loader_finds(host, "libibverbs.so.1")


def _plugins(host: Host, devices: Fact[tuple[RdmaDevice, ...]]) -> tuple[Fact[tuple[str, ...]], Fact[tuple[str, ...]]]:
    if isinstance(devices, Missing):
        return devices, devices
    from torchtune_sys.probes.network import net_plugin  # its time to load is for hosts with RDMA alone

    return net_plugin.look(host, devices)


def hostname_addresses(host: Host) -> Fact[tuple[str, ...]]:
    return _resolved(host, queries.HOSTNAME_ADDRESSES)


def localhost_addresses(host: Host, own: Fact[tuple[str, ...]]) -> Fact[tuple[str, ...]]:
    """Return what "localhost" resolves to. Nobody waits for a resolver that did not answer for the host's own name."""
    if isinstance(own, Missing) and own.why is Why.TIMEOUT:
        return own
    found = _resolved(host, queries.LOCALHOST_ADDRESSES)
    if isinstance(found, Missing) and found.why is Why.ABSENT:
        return Missing(Why.NOT_RECORDED, found.source, "recorded by a release that did not ask")
    return found


@fact
def _resolved(host: Host, query: str) -> Fact[tuple[str, ...]]:
    found = need(host.ask(query, _RESOLVER_TIMEOUT_S))
    if not isinstance(found, list):
        return Missing(Why.UNPARSED, query, "not a list of addresses")
    return tuple(dict.fromkeys(str(address) for address in found))


@fact
def master(host: Host) -> Fact[tuple[Way, ...]]:
    env = need(host.env())
    name = env.get("MASTER_ADDR", "")
    if not name:
        return ()
    query = f"{queries.WAY_TO}:{name}"
    found = host.ask(query, _RESOLVER_TIMEOUT_S)
    if isinstance(found, Missing):
        unasked = found.why is Why.ABSENT and not host.live and not found.detail
        return Missing(Why.NOT_RECORDED, query, "recorded by a release that did not ask") if unasked else found
    try:
        rows = zip(found["addresses"], found["refused"], found["own"], strict=True)
        return tuple(Way(address=str(one), refused=str(why), own=str(own)) for one, why, own in rows)
    except (TypeError, KeyError, ValueError) as error:
        return Missing(Why.UNPARSED, query, str(error))


@fact
def gloo_interfaces(host: Host) -> Fact[tuple[str, ...]]:
    env = need(host.env())
    value = env.get("GLOO_SOCKET_IFNAME", "")
    return tuple(value.removesuffix(",").split(",")) if len(value) > 1 else ()  # std::getline gives nothing behind a last comma


def interfaces(host: Host) -> Fact[tuple[Interface, ...]]:
    """Return the interfaces from the answer of the system's calls; where there is none (a recorded tree), from /sys and /proc."""
    answer = host.ask(queries.INTERFACES)
    if not isinstance(answer, Missing):
        try:
            return _made(host, from_answer(answer))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            return Missing(Why.UNPARSED, queries.INTERFACES, str(error))
    names = host.names(NET)
    if isinstance(names, Missing):
        return names if absent_or_unrecorded(answer) else answer
    return _made(host, from_proc(host, tuple(name for name in names if name != "bonding_masters")))


def _made(host: Host, named: list[Named]) -> tuple[Interface, ...]:
    return tuple(_interface(host, item) for item in named)


def _interface(host: Host, item: Named) -> Interface:
    base = f"{NET}/{item.name}"
    attributes = item.attributes
    flags = _attribute(attributes, "flags", host.number(f"{base}/flags") if "flags" not in attributes else 0)
    operstate = host.word(f"{base}/operstate") if "operstate" not in attributes else str(attributes["operstate"])
    kind = kind_of(host, item.name, attributes)
    physical = kind in PHYSICAL
    device = _virtual(f"{base}/device")
    if isinstance(entries := host.names(base), Missing) and entries.why is Why.HIDDEN:
        device = entries
    speed = _speed(host, base) if physical or kind == "bond" else device
    more: dict[str, Any] = {"qdisc": str(attributes["qdisc"])} if "qdisc" in attributes else {}
    if kind == "ethernet" and known(speed, 0) >= _FAST_MBPS:
        more["interrupt_cpus"] = interrupt_cpus(host, base)
    if kind == "ethernet" and operstate == "up":
        more["counters"] = _counters(host, f"{base}/statistics")
    master = _master(host, base, attributes)
    if physical and master:
        more["links_lost"] = host.number(f"{base}/bonding_slave/link_failure_count")
    if physical and 0 < known(speed, 0) <= _HALF_AT_MOST_MBPS:
        more["duplex"] = host.word(f"{base}/duplex")
    return Interface(
        **more,
        name=item.name,
        index=_index(host, item),
        kind=kind,
        up=(operstate == "up" or flags) if isinstance(flags, Missing) else bool(flags & _UP),
        running=_running(flags, operstate, "flags" in attributes),
        operstate=operstate,
        speed_mbps=speed,
        mtu=_attribute(attributes, "mtu", host.number(f"{base}/mtu") if "mtu" not in attributes else 0),
        addresses=item.addresses,
        numa_node=host.number(f"{base}/device/numa_node") if physical else device,
        pci_address=rdma.pci_address(host, base) if physical else device,
        vendor=host.word(f"{base}/device/vendor") if physical else device,
        driver=rdma.last_part(host.link(f"{base}/device/driver")) if physical else device,
        master=master,
    )


_COUNTERS = ("rx_packets", "rx_crc_errors", "rx_missed_errors")


@fact
def _counters(host: Host, folder: str) -> Fact[dict[str, int]]:
    return {name: need(host.number(f"{folder}/{name}")) for name in _COUNTERS}


_FAST_MBPS = 25_000
_HALF_AT_MOST_MBPS = 1000
_FIRST = 9
"""Interrupts that are looked at: a card has one for each CPU, and one of its own before them (mlx5)."""


@fact
def interrupt_cpus(host: Host, base: str) -> Fact[tuple[int, ...]]:
    """Return which CPU serves each of the first interrupts (Documentation/core-api/irq/irq-affinity.rst: effective_affinity)."""
    names = need(host.names(f"{base}/device/msi_irqs"))
    found: list[int] = []
    for number in sorted(number for name in names if (number := natural(name, 8)) is not None)[:_FIRST]:
        text = host.text(f"/proc/irq/{number}/effective_affinity_list")
        if isinstance(text, Missing):
            return _unserved(host, number, text) if text.why is Why.ABSENT else text
        cpu = text.strip()
        if cpu.isascii() and cpu.isdigit():  # an interrupt that nobody has asked for yet has none
            found.append(int(cpu))
    return tuple(found)


def _unserved(host: Host, number: int, absent: Missing) -> Missing:
    """Return why the CPU of an interrupt that its card names cannot be told: kernels before 4.13 do not, but have its directory."""
    place = f"/proc/irq/{number}"
    if host.exists(place) is False:
        return Missing(Why.HIDDEN, place, f"{place} is hidden here: the network card has this interrupt")
    return Missing(Why.NOT_SUPPORTED, absent.source, absent.detail)


def _attribute(attributes: dict[str, Any], key: str, otherwise: Fact[int]) -> Fact[int]:
    return int(attributes[key]) if key in attributes else otherwise


def _index(host: Host, item: Named) -> int:
    if "index" in item.attributes:
        return int(item.attributes["index"])
    found = host.number(f"{NET}/{item.name}/ifindex")
    return -1 if isinstance(found, Missing) else found


def _running(flags: Fact[int], operstate: Fact[str], from_kernel: bool) -> Fact[bool]:
    if isinstance(flags, Missing):
        return operstate == "up" or flags  # no other interface is (RFC 2863), which the flags would tell
    if from_kernel:
        return bool(flags & _RUNNING)
    if isinstance(operstate, Missing):
        return operstate
    return bool(flags & _UP) and operstate in ("up", "unknown")


@fact
def _speed(host: Host, base: str) -> Fact[int]:
    """Megabits per second; reading fails with EINVAL on an interface that is down, and gives -1 where the driver cannot tell."""
    found = need(host.number(f"{base}/speed"))
    unknown = found <= 0 or found >= 0xFFFFFFFF
    return Missing(Why.NOT_SUPPORTED, f"{base}/speed", "no carrier, or the driver does not tell") if unknown else found


def _virtual(source: str) -> Missing:
    return Missing(Why.ABSENT, source, "a virtual interface")


def _master(host: Host, base: str, attributes: dict[str, Any]) -> str:
    if "master" in attributes:
        return str(attributes["master"])
    return known(rdma.last_part(host.link(f"{base}/master")), "")


def default_route(host: Host) -> Fact[str]:
    """Return the interface that a packet to the world leaves by; IPv4 first, as most jobs use it."""
    ipv4 = host.text("/proc/net/route")
    if not isinstance(ipv4, Missing) and (name := parse_default_route(ipv4)):
        return name
    ipv6 = host.text("/proc/net/ipv6_route")
    if not isinstance(ipv6, Missing) and (name := parse_default_route6(ipv6)):
        return name
    if isinstance(ipv4, Missing) and ipv4.why is not Why.ABSENT:
        return ipv4
    return Missing(Why.ABSENT, "/proc/net/route", "no default route")


_RTF_UP, _RTF_REJECT = 0x1, 0x200


def parse_default_route(text: str) -> str:
    """Return the interface of the default route with the lowest metric in /proc/net/route, ``""`` if there is none.

    >>> parse_default_route('''Iface\\tDestination\\tGateway \\tFlags\\tRefCnt\\tUse\\tMetric\\tMask\\t\\tMTU\\tWindow\\tIRTT
    ... eno1\\t00000000\\t0100000A\\t0003\\t0\\t0\\t100\\t00000000\\t0\\t0\\t0
    ... eno1\\t0000000A\\t00000000\\t0001\\t0\\t0\\t100\\t00FFFFFF\\t0\\t0\\t0
    ... ''')
    'eno1'
    """
    found: list[tuple[int, str]] = []
    for line in text.splitlines()[1:]:
        parts = line.split()
        if len(parts) < 8 or parts[1] != "00000000" or parts[7] != "00000000":
            continue
        _keep_route(found, parts[0], parts[3], parts[6], 10)
    return min(found)[1] if found else ""


def parse_default_route6(text: str) -> str:
    """Return the same of /proc/net/ipv6_route, which also lists the kernel's own "unreachable" default on lo.

    >>> zero = "0" * 32
    >>> parse_default_route6(f"{zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0")
    'eth0'
    >>> parse_default_route6(f"{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200       lo")
    ''
    """
    found: list[tuple[int, str]] = []
    for line in text.splitlines():
        parts = line.split()
        if len(parts) == 10 and parts[0] == "0" * 32 and parts[1] == "00":
            _keep_route(found, parts[9], parts[8], parts[5], 16)
    return min(found)[1] if found else ""


def _keep_route(found: list[tuple[int, str]], name: str, flags: str, metric: str, base: int) -> None:
    try:
        usable = int(flags, 16) & (_RTF_UP | _RTF_REJECT) == _RTF_UP
        if usable:
            found.append((int(metric, base), name))
    except ValueError:
        return
