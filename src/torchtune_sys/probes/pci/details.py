"""Read more than the link of the PCI functions that training depends on: errors, registers, memory regions, IOMMU mode."""

from __future__ import annotations

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model import codec
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.pci import PciConfig, PciErrorGrowth, PciErrors, TopologyFile
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why, fact, need

DEFAULT_TOPOLOGY = "/var/run/nvidia-topologyd/virtualTopology.xml"
"""What NCCL reads where NCCL_TOPO_FILE is not set (src/graph/topo.cc)."""

_LARGEST = 1 << 63


def sleeps(host: Host, place: str) -> bool:
    """Return whether runtime power management has suspended the function at ``place``, of which sysfs tells without waking it."""
    return host.word(f"{place}/power/runtime_status") == "suspended"


@fact
def errors(host: Host, place: str) -> Fact[PciErrors]:
    """Return the counters of the function at ``place``. One missing file tells that none of the three is there."""
    found: list[dict[str, int]] = []
    for name in ("correctable", "nonfatal", "fatal"):
        path = f"{place}/aer_dev_{name}"
        text = need(host.text(path))
        if text.count(" 0\n") == text.count("\n") > 0:  # nearly always, and there are hundreds of these files
            found.append({})
            continue
        counters = parse_errors(text)
        if not counters:
            return Missing(Why.UNPARSED, path, "holds no counters")
        found.append({kind: count for kind, count in counters.items() if count and not kind.startswith("TOTAL_ERR_")})
    return PciErrors(correctable=found[0], nonfatal=found[1], fatal=found[2])


def parse_errors(text: str) -> dict[str, int]:
    """Return the counters by name.

    >>> parse_errors("RxErr 2\\nBadTLP 0\\nTOTAL_ERR_COR 2\\n")
    {'RxErr': 2, 'BadTLP': 0, 'TOTAL_ERR_COR': 2}
    """
    found: dict[str, int] = {}
    for line in text.splitlines()[:64]:
        name, _, count = line.strip().rpartition(" ")
        if name and len(name) < 40 and (number := natural(count)) is not None:
            found[name] = min(number, _LARGEST)
    return found


def config(host: Host, address: str) -> Fact[PciConfig]:
    question = f"{queries.PCI_CONFIG}:{address}"
    return codec.as_fact(host.ask(question), PciConfig, question)


def growth(host: Host) -> Fact[PciErrorGrowth]:
    """Return what the counters of all functions gained within a second."""
    return codec.as_fact(host.ask(queries.PCI_ERRORS), PciErrorGrowth, queries.PCI_ERRORS)


@fact
def bars(host: Host, place: str) -> Fact[tuple[int, ...]]:
    return parse_bars(need(host.text(f"{place}/resource")), f"{place}/resource")


def parse_bars(text: str, path: str) -> Fact[tuple[int, ...]]:
    """Return the sizes of the memory regions, in bytes; ports and unused places left out.

    >>> parse_bars("0x210042000000 0x210042ffffff 0x14220c\\n0x0 0x0 0x0\\n0x210000000000 0x211fffffffff 0x14220c\\n", "resource")
    (16777216, 137438953472)
    """
    found: list[int] = []
    for line in text.splitlines()[:6]:  # the expansion ROM and bridge windows follow
        words = line.split()
        try:
            first, last, flags = (int(word, 16) for word in words if len(word) <= 18)
        except ValueError:
            return Missing(Why.UNPARSED, path, f"not a region: {line[:60]!r}")
        if flags & 0x200 and last > first:  # IORESOURCE_MEM
            found.append(last - first + 1)
    return tuple(found)


@fact
def topology_file(host: Host) -> Fact[TopologyFile]:
    """Return the file that describes the machine to NCCL, if one is named, or lies where it looks by itself."""
    from torchtune_sys.formats.nccl_topology import addresses, parse
    from torchtune_sys.probes.network import nccl_conf

    found = nccl_conf.read(host)
    settings = () if isinstance(found, Missing) else found[0]
    named = next((setting for setting in settings if setting.name == "NCCL_TOPO_FILE"), None)
    path = DEFAULT_TOPOLOGY if named is None else named.value
    if not path.startswith("/"):
        return Missing(Why.NOT_SUPPORTED, "NCCL_TOPO_FILE", "not an absolute path")
    text = need(host.text(path))
    elements = parse(text)
    gpus, cards = addresses(elements, ("0x03", "0x12")), addresses(elements, ("0x02",))
    return TopologyFile(path=path, source=named.source if named else "NCCL's default", gpus=gpus, cards=cards)
