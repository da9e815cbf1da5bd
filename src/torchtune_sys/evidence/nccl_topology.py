"""NCCL's description of a machine (NCCL_TOPO_DUMP_FILE, or the file a provider ships), as text that somebody pasted."""

from __future__ import annotations

from torchtune_sys.formats.nccl_topology import Element, parse
from torchtune_sys.formats.pci_paths import distances
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.pci import PciDevice, PciFacts, PciLink
from torchtune_sys.model.values import Missing, Why


def pci_facts(text: str) -> PciFacts | None:
    """Return the functions that the description names; None where the text holds none.

    The links it tells are the most that function and slot can do (NCCL reads max_link_speed), never what they do now.
    """
    if "<system" not in text or "busid=" not in text:
        return None
    elements = parse(text)
    devices = tuple(_device(elements, at) for at, element in enumerate(elements) if element.name == "pci" and _address(element))
    if not devices:
        return None
    return PciFacts(devices=devices, distances=distances(devices, 1))


GPU = "0x03"


def _maker(elements: tuple[Element, ...], at: int) -> str:
    """Return the vendor of a GPU without a number for it: RCCL writes the instruction set of AMD's into ``gpu`` (``gcn``, in its src/graph/xml.cc), NCCL has no such word."""
    below = [element for element in elements[at + 1 : at + 64] if element.name == "gpu" and element.parent == at]
    return "0x1002" if any("gcn" in element.values for element in below) else "0x10de"


def _not_reported() -> Missing:
    return Missing(Why.NOT_RECORDED, "NCCL topology", "not stated")


def _address(element: Element) -> str:
    return element.values.get("busid", "").lower()[:32]


def _device(elements: tuple[Element, ...], at: int) -> PciDevice:
    values = elements[at].values
    above = elements[elements[at].parent] if elements[at].parent >= 0 else None
    class_ = values.get("class", "").lower()
    return PciDevice(
        address=_address(elements[at]),
        class_=class_ if len(class_) == 8 else _not_reported(),
        vendor=_hex(values, "vendor", _maker(elements, at) if class_.startswith(GPU) else ""),
        device=_hex(values, "device"),
        subsystem_vendor=_hex(values, "subsystem_vendor"),
        subsystem_device=_hex(values, "subsystem_device"),
        numa_node=_node(elements, at),
        driver=_not_reported(),
        link=PciLink(
            current_gts=_not_reported(), max_gts=_speed(values), current_width=_not_reported(), max_width=_width(values)
        ),
        parent=_address(above) if above is not None and above.name == "pci" else "",
        iommu_group=_not_reported(),
        errors=_not_reported(),
        config=_not_reported(),
        bars=_not_reported(),
        iommu_type=_not_reported(),
        rdma=_card(elements, at, class_),
        asleep=False,
    )


def _hex(values: dict[str, str], name: str, otherwise: str = "") -> Fact[str]:
    text = values.get(name, "").lower()
    return text if len(text) == 6 and text.startswith("0x") and text != "0x0000" else (otherwise or _not_reported())


def _node(elements: tuple[Element, ...], at: int) -> Fact[int]:
    """Return the number of the ``cpu`` element around it."""
    steps = 0
    while at >= 0 and steps < 64:
        if elements[at].name == "cpu":
            number = elements[at].values.get("numaid", "")
            return int(number) if number.lstrip("-").isdecimal() and number.isascii() and len(number) < 6 else _not_reported()
        at = elements[at].parent
        steps += 1
    return _not_reported()


def _card(elements: tuple[Element, ...], at: int, class_: str) -> str:
    """Name of the network device below it; provider's files name none and leave the class to tell."""
    for position in range(at + 1, min(at + 64, len(elements))):
        if elements[position].name == "net" and elements[elements[position].parent].parent == at:
            return elements[position].values.get("name", "")[:32]
    return "network card" if class_.startswith("0x02") else ""


def _speed(values: dict[str, str]) -> Fact[float]:
    """GT/s.

    >>> _speed({"link_speed": "32.0 GT/s PCIe"}), _speed({"link_speed": ""}).why.value
    (32.0, 'not-recorded')
    """
    number, _, unit = values.get("link_speed", "").partition(" ")
    try:
        found = float(number) if unit.startswith("GT/s") else 0.0
    except ValueError:
        found = 0.0
    return found if 1.0 < found < 1000.0 else _not_reported()


def _width(values: dict[str, str]) -> Fact[int]:
    text = values.get("link_width", "")
    return int(text) if text in ("1", "2", "4", "8", "12", "16", "32") else _not_reported()
