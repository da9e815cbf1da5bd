"""PCI functions: all by name, those that training depends on with their links."""

from __future__ import annotations

from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.pci import PciDevice, PciFacts, PciLink
from torchtune_sys.model.facts.session import Intent
from torchtune_sys.model.values import Missing, Why

DEVICES = "/sys/bus/pci/devices"
_WIDTHS = frozenset((1, 2, 4, 8, 12, 16, 32))
_NOT_LOOKED = Missing(Why.NOT_SUPPORTED, "sysfs", "not read: neither a GPU, a network card, an NVMe drive nor a bridge above one")


def probe(host: Host, intent: Intent) -> PciFacts:
    """Reads two small files for each function, and the link's only where it matters: a server has 300 functions."""
    names = host.names(DEVICES)
    if isinstance(names, Missing):
        return PciFacts(devices=names)
    found = [_read(host, name) for name in names if address_key(name) is not None]
    above = {device.address: device.parent for device in found}
    matter: set[str] = set()
    for device in found:
        place = device.address if is_of_interest(device.class_, device.vendor) else ""
        while place and place not in matter:
            matter.add(place)
            place = above.get(place, "")
    devices = [_with_link(host, device) if device.address in matter else device for device in found]
    return PciFacts(devices=tuple(sorted(devices, key=lambda device: address_key(device.address) or ())))


def is_of_interest(class_: Fact[str], vendor: Fact[str]) -> bool:
    """GPUs and accelerators (03, 12), network cards and InfiniBand (02), NVMe (0108), NVSwitches (0680 of NVIDIA).

    >>> is_of_interest("0x030200", "0x10de"), is_of_interest("0x068000", "0x8086"), is_of_interest("0x010802", "0x144d")
    (True, False, True)
    """
    if isinstance(class_, Missing):
        return False
    return class_[2:4] in ("02", "03", "12") or class_[2:6] == "0108" or (class_[2:6] == "0680" and vendor == "0x10de")


def address_key(name: str) -> tuple[int, ...] | None:
    """Sort key of a PCI address; None for what is none. Domains may have more than four digits (VMD, Azure).

    >>> address_key("0000:3b:00.1"), address_key("10000:00:04.0"), address_key("pci_bus")
    ((0, 59, 0, 1), (65536, 0, 4, 0), None)
    """
    parts = name.replace(".", ":").split(":")
    if len(parts) != 4 or len(name) > 20:
        return None
    try:
        return tuple(int(part, 16) for part in parts)
    except ValueError:
        return None


def _read(host: Host, name: str) -> PciDevice:
    place = f"{DEVICES}/{name}"
    text = host.text(f"{place}/uevent")
    event = {} if isinstance(text, Missing) else parse_uevent(text)
    target = host.link(place)
    vendor, device = _pair(event.get("PCI_ID", ""))
    sub_vendor, sub_device = _pair(event.get("PCI_SUBSYS_ID", ""))
    class_ = event.get("PCI_CLASS", "")
    return PciDevice(
        address=name,
        class_=f"0x{class_.zfill(6).lower()}" if _is_hex(class_) else host.word(f"{place}/class"),
        vendor=vendor or host.word(f"{place}/vendor"),
        device=device or host.word(f"{place}/device"),
        subsystem_vendor=sub_vendor or host.word(f"{place}/subsystem_vendor"),
        subsystem_device=sub_device or host.word(f"{place}/subsystem_device"),
        numa_node=host.number(f"{place}/numa_node"),
        driver=_driver(host, place, event if event else None),
        link=PciLink(current_gts=_NOT_LOOKED, max_gts=_NOT_LOOKED, current_width=_NOT_LOOKED, max_width=_NOT_LOOKED),
        parent="" if isinstance(target, Missing) else parse_parent(target),
        iommu_group=_NOT_LOOKED,
    )


def class_and_vendor(host: Host, name: str) -> tuple[Fact[str], Fact[str]]:
    """Class and vendor of one function, in sysfs' own form."""
    text = host.text(f"{DEVICES}/{name}/uevent")
    event = {} if isinstance(text, Missing) else parse_uevent(text)
    class_ = event.get("PCI_CLASS", "")
    known = f"0x{class_.zfill(6).lower()}" if _is_hex(class_) else host.word(f"{DEVICES}/{name}/class")
    return known, _pair(event.get("PCI_ID", ""))[0] or host.word(f"{DEVICES}/{name}/vendor")


def bound_driver(host: Host, name: str) -> Fact[str]:
    """Kernel driver of one function; ABSENT if none is bound."""
    text = host.text(f"{DEVICES}/{name}/uevent")
    return _driver(host, f"{DEVICES}/{name}", None if isinstance(text, Missing) else parse_uevent(text))


def parse_uevent(text: str) -> dict[str, str]:
    """``KEY=value`` lines.

    >>> parse_uevent("DRIVER=nvidia\\nPCI_CLASS=30200\\nPCI_ID=10DE:2330\\n")["PCI_ID"]
    '10DE:2330'
    """
    pairs = (line.partition("=") for line in text.splitlines())
    return {key: value.strip() for key, equals, value in pairs if equals}


def _pair(text: str) -> tuple[str, str]:
    vendor, colon, device = text.partition(":")
    if not colon or not _is_hex(vendor) or not _is_hex(device):
        return "", ""
    return f"0x{vendor.lower().zfill(4)}", f"0x{device.lower().zfill(4)}"


def _is_hex(text: str) -> bool:
    return 0 < len(text) <= 8 and all(character in "0123456789abcdefABCDEF" for character in text)


def _driver(host: Host, place: str, event: dict[str, str] | None) -> Fact[str]:
    if event is not None:
        return event.get("DRIVER") or Missing(Why.ABSENT, f"{place}/driver", "no driver is bound")
    target = host.link(f"{place}/driver")
    return target if isinstance(target, Missing) else target.rpartition("/")[2]


def parse_parent(target: str) -> str:
    """The function above, in the target of a link of /sys/bus/pci/devices; ``""`` directly below a host bridge.

    >>> parse_parent("../../../devices/pci0000:17/0000:17:01.0/0000:18:00.0")
    '0000:17:01.0'
    >>> parse_parent("../../../devices/pci0000:17/0000:17:01.0")
    ''
    """
    parts = target.rstrip("/").split("/")
    above = parts[-2] if len(parts) > 1 else ""
    return above if address_key(above) is not None else ""


def _with_link(host: Host, device: PciDevice) -> PciDevice:
    import msgspec

    place = f"{DEVICES}/{device.address}"
    group = host.link(f"{place}/iommu_group")
    link = PciLink(
        current_gts=_speed(host, f"{place}/current_link_speed"),
        max_gts=_speed(host, f"{place}/max_link_speed"),
        current_width=_width(host, f"{place}/current_link_width"),
        max_width=_width(host, f"{place}/max_link_width"),
    )
    return msgspec.structs.replace(
        device, link=link, iommu_group=group if isinstance(group, Missing) else group.rpartition("/")[2]
    )


def _speed(host: Host, path: str) -> Fact[float]:
    text = host.word(path)
    return text if isinstance(text, Missing) else parse_speed(text, path)


def parse_speed(text: str, path: str = "link speed") -> Fact[float]:
    """GT/s. ``Unknown`` stands where a function has no link of its own (virtual functions, integrated endpoints).

    >>> parse_speed("16.0 GT/s PCIe"), parse_speed("2.5 GT/s"), parse_speed("Unknown").why.value
    (16.0, 2.5, 'not-supported')
    """
    if text.lower().startswith("unknown"):
        return Missing(Why.NOT_SUPPORTED, path, "no link of its own")
    number, _, unit = text.partition(" ")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not unit.startswith("GT/s") or not 1.0 < value < 1000.0:
        return Missing(Why.UNPARSED, path, f"not a link speed: {text[:60]!r}")
    return value


def _width(host: Host, path: str) -> Fact[int]:
    """0 and 255 stand where a function has no link of its own."""
    lanes = host.number(path)
    if isinstance(lanes, Missing) or lanes in _WIDTHS:
        return lanes
    return Missing(Why.NOT_SUPPORTED, path, f"no link of its own (width {lanes})")
