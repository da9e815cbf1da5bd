"""RDMA devices and their ports (Documentation/ABI/stable/sysfs-class-infiniband)."""

from __future__ import annotations

from collections.abc import Callable

from torchtune_sys.host.base import Host, interpreted
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.network import Gid, RdmaDevice, RdmaPort
from torchtune_sys.model.values import Missing, T, Why, absent_or_unrecorded, fact, need
from torchtune_sys.probes.network import rdma_counters

ROOT = "/sys/class/infiniband"
_NET = "/sys/class/net"
_GIDS = 16
"""RoCE fills the table from the front, two entries (v1, v2) per address; it has 256 places."""
_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


@fact
def devices(host: Host) -> Fact[tuple[RdmaDevice, ...]]:
    names = need(host.names(ROOT))
    return tuple(_device(host, name) for name in sorted(names, key=_natural))


def _natural(name: str) -> tuple[str, int, str]:
    head = name.rstrip("0123456789")
    tail = name[len(head) :]
    return (head, int(tail[:9]) if tail.isascii() and tail else -1, name)


def _device(host: Host, name: str) -> RdmaDevice:
    base = f"{ROOT}/{name}"
    ports = host.names(f"{base}/ports")
    numbers = (
        []
        if isinstance(ports, Missing)
        else sorted(int(port) for port in ports if port.isascii() and port.isdigit() and len(port) < 6)
    )
    interfaces = _interfaces(host, base)
    return RdmaDevice(
        name=name,
        ports=tuple(_port(host, base, number) for number in numbers),
        firmware=host.word(f"{base}/fw_ver"),
        board=host.word(f"{base}/board_id"),
        pci_address=pci_address(host, base),
        numa_node=host.number(f"{base}/device/numa_node"),
        interfaces=interfaces,
        type=host.word(f"{base}/hca_type"),
        driver=last_part(host.link(f"{base}/device/driver")),
        congestion=_congestion(host, interfaces),
    )


@fact
def _congestion(host: Host, interfaces: Fact[tuple[str, ...]]) -> Fact[dict[str, str]]:
    """/sys/class/net/IF/ecn/roce_np/enable/0 to 7, and roce_rp; the driver in the kernel itself has no such files."""
    if isinstance(interfaces, Missing) or not interfaces:
        return Missing(Why.ABSENT, f"{_NET}/ecn", "no interface of this device")
    found: dict[str, str] = {}
    for point in ("roce_np", "roce_rp"):
        digits = ""
        for priority in range(8):
            path = f"{_NET}/{interfaces[0]}/ecn/{point}/enable/{priority}"
            word = need(host.word(path))
            if word not in ("0", "1"):
                return Missing(Why.UNPARSED, path, f"neither 0 nor 1: {word[:20]!r}")
            digits += word
        found[point] = digits
    return found


def _interfaces(host: Host, base: str) -> Fact[tuple[str, ...]]:
    """Those of the same function; a software device (rdma_rxe) names the interface that it stands on in ``parent``."""
    found = host.names(f"{base}/device/net")
    if absent_or_unrecorded(found):
        below = host.word(f"{base}/parent")
        return found if isinstance(below, Missing) or "/" in below else (below,)
    return found


def _port(host: Host, base: str, number: int) -> RdmaPort:
    place = f"{base}/ports/{number}"
    layer = host.word(f"{place}/link_layer")
    other = Missing(Why.ABSENT, place, "not an InfiniBand port")
    rate = host.word(f"{place}/rate")
    return RdmaPort(
        port=number,
        state=_after_colon(host.word(f"{place}/state")),
        physical_state=_after_colon(host.word(f"{place}/phys_state")),
        link_layer=layer,
        rate_gbps=_read(rate, parse_rate, f"{place}/rate"),
        gids=_gids(host, place) if layer == "Ethernet" else Missing(Why.ABSENT, f"{place}/gids", "not a RoCE port"),
        lanes=_read(rate, parse_lanes, f"{place}/rate"),
        signalling=_read(rate, parse_signalling, f"{place}/rate"),
        lid=_lid(host, f"{place}/lid") if layer == "InfiniBand" else other,
        sm_lid=_lid(host, f"{place}/sm_lid") if layer == "InfiniBand" else other,
        partitions=_partitions(host, place) if layer == "InfiniBand" else other,
        counters=rdma_counters.totals(host, place),
    )


def _partitions(host: Host, place: str) -> Fact[tuple[int, ...]]:
    found: list[int] = []
    for index in range(_GIDS):
        key = interpreted(host.word(f"{place}/pkeys/{index}"), lambda text: int(text, 16) & 0xFFFF, f"{place}/pkeys/{index}")
        if isinstance(key, Missing):
            return tuple(found) if found and absent_or_unrecorded(key) else key
        if found and not key:
            break  # what follows is empty, too
        found.append(key)
    return tuple(found)


def _lid(host: Host, path: str) -> Fact[int]:
    found = host.number(path)
    if isinstance(found, Missing) or 0 <= found < 1 << 32:
        return found
    return Missing(Why.UNPARSED, path, f"not a local identifier: {found}")


def _read(found: Fact[str], parse: Callable[[str], T | None], path: str) -> Fact[T]:
    if isinstance(found, Missing):
        return found
    value = parse(found)
    return Missing(Why.UNPARSED, path, f"not a rate: {found[:60]!r}") if value is None else value


def _after_colon(found: Fact[str]) -> Fact[str]:
    return found if isinstance(found, Missing) else parse_state(found)


def parse_state(text: str) -> str:
    """Return the word in ``state`` or ``phys_state``.

    >>> parse_state("4: ACTIVE"), parse_state("5: LinkUp")
    ('ACTIVE', 'LinkUp')
    """
    return text.partition(":")[2].strip() or text.strip()


def parse_rate(text: str) -> float | None:
    """Return the gigabits per second in ``rate``; None where the text holds no such number.

    >>> parse_rate("400 Gb/sec (4X NDR)"), parse_rate("2.5 Gb/sec (1X SDR)"), parse_rate("fast")
    (400.0, 2.5, None)
    """
    words = text.split()
    if len(words) < 2 or words[1] != "Gb/sec":
        return None
    try:
        rate = float(words[0])
    except ValueError:
        return None
    return rate if 0 < rate < 1e6 else None


def parse_lanes(text: str) -> int | None:
    """Return the active lanes in ``rate``.

    >>> parse_lanes("400 Gb/sec (4X NDR)"), parse_lanes("200 Gb/sec (2X NDR)"), parse_lanes("400 Gb/sec")
    (4, 2, None)
    """
    lanes = text.partition("(")[2].partition("X")[0]
    return int(lanes) if lanes in ("1", "2", "4", "8", "12") else None


_SIGNALLING = frozenset(("SDR", "DDR", "QDR", "FDR10", "FDR", "EDR", "HDR", "NDR", "XDR"))


def parse_signalling(text: str) -> str | None:
    """Return the speed of a lane in ``rate``; older kernels write nothing for SDR.

    >>> parse_signalling("2.5 Gb/sec (1X SDR)"), parse_signalling("40 Gb/sec (4X FDR10)"), parse_signalling("10 Gb/sec (4X)")
    ('SDR', 'FDR10', None)
    """
    word = text.partition("(")[2].partition("X ")[2].partition(")")[0].strip()
    return word if word in _SIGNALLING else None


def _gids(host: Host, place: str) -> Fact[tuple[Gid, ...]]:
    found: list[Gid] = []
    for index in range(_GIDS):
        gid = host.word(f"{place}/gids/{index}")
        if isinstance(gid, Missing):
            if index == 0:
                return gid
            break
        if gid != _NO_GID:
            found.append(Gid(index=index, gid=gid, type=host.word(f"{place}/gid_attrs/types/{index}")))
    return tuple(found)


@fact
def pci_address(host: Host, base: str) -> Fact[str]:
    """Return the PCI function behind a class device: the last one on its path (a virtio NIC is a child of its function)."""
    path = need(host.real(f"{base}/device"))
    found = parse_pci_address(path)
    return found if found else Missing(Why.ABSENT, f"{base}/device", "not a PCI device")


def parse_pci_address(path: str) -> str:
    """Return the last PCI address in a sysfs path, ``""`` if there is none.

    >>> parse_pci_address("/sys/devices/pci0000:00/0000:00:03.0/virtio0")
    '0000:00:03.0'
    """
    for part in reversed(path.split("/")):
        domain, _, rest = part.partition(":")
        digits = domain + rest.replace(":", "", 1).replace(".", "", 1)
        if len(rest) == 7 and rest[2:3] == ":" and rest[5:6] == "." and all(digit in "0123456789abcdef" for digit in digits):
            return part
    return ""


def last_part(target: Fact[str]) -> Fact[str]:
    """Return the last component of a link's target: the driver's or the master's name."""
    return target if isinstance(target, Missing) else target.rstrip("/").rpartition("/")[2]
