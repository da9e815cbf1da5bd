"""PCI functions: all by name, those that training depends on with their links."""

from __future__ import annotations

import msgspec

from torchtune_sys.formats.pci_paths import above, distances, is_gpu, is_network
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.pci import NOT_READ, PciConfig, PciDevice, PciFacts, PciLink
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.integrated_gpus import is_intel_card
from torchtune_sys.model.values import Missing, Why, fact, need
from torchtune_sys.probes.cpumask import read_set
from torchtune_sys.probes.pci import details

DEVICES = "/sys/bus/pci/devices"
RDMA = "/sys/class/infiniband"
_NODES = "/sys/devices/system/node"
_WIDTHS = frozenset((1, 2, 4, 8, 12, 16, 32))
_NO_LINK = PciLink(current_gts=NOT_READ, max_gts=NOT_READ, current_width=NOT_READ, max_width=NOT_READ)
_ASLEEP = Missing(Why.NOT_SUPPORTED, "power/runtime_status", "the device sleeps, and a look might wake it")


def probe(host: Host, intent: Workload) -> PciFacts:
    """Read two small files for each function, and more only where it matters: a server has 300 functions."""
    names = host.names(DEVICES)
    if isinstance(names, Missing):
        return PciFacts(devices=names, distances=names, topology_file=names)
    rdma = _rdma(host)
    found = {name: _read(host, name, rdma.get(name, "")) for name in names if address_key(name) is not None}
    for device_class in (device.class_ for device in found.values()):
        if (
            isinstance(device_class, Missing) and device_class.why is Why.HIDDEN
        ):  # names whose functions cannot be seen are no list of the bus
            return PciFacts(devices=device_class, distances=device_class, topology_file=device_class)
    matter: set[str] = set()
    for device in found.values():
        if is_of_interest(device.class_, device.vendor):
            matter.update((device.address, *(bridge.address for bridge in above(device, found))))
    asleep = _asleep(host, found)
    registers = _registers(host, found, asleep)
    for address in matter:
        found[address] = _with_details(host, found[address], registers.get(address, NOT_READ), address in asleep)
    devices = tuple(sorted(found.values(), key=lambda device: address_key(device.address) or ()))
    nothing = Missing(Why.ABSENT, "PCI", "no GPU on this host")
    gpus = any(is_gpu(device) for device in devices)
    facts = PciFacts(
        devices=devices,
        distances=distances(devices) if gpus else (),
        topology_file=details.topology_file(host) if gpus else nothing,
    )
    return msgspec.structs.replace(facts, growth=details.growth(host)) if intent.live else facts


def _rdma(host: Host) -> dict[str, str]:
    """PCI address → name of the RDMA device that the kernel made of it."""
    names = host.names(RDMA)
    found: dict[str, str] = {}
    for name in () if isinstance(names, Missing) else names[:256]:
        target = host.link(f"{RDMA}/{name}/device")
        if not isinstance(target, Missing):
            found.setdefault(target.rstrip("/").rpartition("/")[2], name)
    return found


def _asleep(host: Host, devices: dict[str, PciDevice]) -> set[str]:
    """GPUs that are runtime-suspended, and what sleeps above them. Some kernels wake a device to read its link or its registers."""
    found: set[str] = set()
    for gpu in [device for device in devices.values() if is_gpu(device)]:
        if details.sleeps(host, f"{DEVICES}/{gpu.address}"):
            bridges = [bridge.address for bridge in above(gpu, devices)]
            found.update((gpu.address, *(name for name in bridges if details.sleeps(host, f"{DEVICES}/{name}"))))
    return found


def _registers(host: Host, devices: dict[str, PciDevice], asleep: set[str]) -> dict[str, Fact[PciConfig]]:
    """Return registers of GPUs, of RDMA cards beside them, and of all bridges above these. The first refusal stands for all."""
    gpus = [device for device in devices.values() if is_gpu(device)]
    wanted: dict[str, None] = {}
    for device in (*gpus, *(device for device in devices.values() if gpus and device.rdma and is_network(device))):
        wanted.update(dict.fromkeys((device.address, *(bridge.address for bridge in above(device, devices)))))
    found: dict[str, Fact[PciConfig]] = {}
    refusal: Missing | None = None
    for address in wanted:
        if address in asleep:
            found[address] = _ASLEEP
            continue
        found[address] = details.config(host, address) if refusal is None else refusal
        answer = found[address]
        if isinstance(answer, Missing) and answer.why in (Why.DENIED, Why.NOT_RECORDED):
            refusal = answer
    return found


def is_of_interest(class_: Fact[str], vendor: Fact[str]) -> bool:
    """Return whether a function is one of GPUs and accelerators (03, 12), network cards and InfiniBand (02), NVMe (0108), NVSwitches (0680 of NVIDIA).

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


def _read(host: Host, name: str, rdma: str) -> PciDevice:
    place = f"{DEVICES}/{name}"
    text = host.text(f"{place}/uevent")
    event = {} if isinstance(text, Missing) else parse_uevent(text)
    pair, device = _pair(event.get("PCI_ID", ""))
    sub_vendor, sub_device = _pair(event.get("PCI_SUBSYS_ID", ""))
    code = event.get("PCI_CLASS", "")
    class_ = f"0x{code.zfill(6).lower()}" if _is_hex(code) else host.word(f"{place}/class")
    vendor = pair or _vendor(host, name)
    target = host.link(place)
    return PciDevice(
        address=name,
        class_=class_,
        vendor=vendor,
        device=device or host.word(f"{place}/device"),
        subsystem_vendor=sub_vendor or host.word(f"{place}/subsystem_vendor"),
        subsystem_device=sub_device or host.word(f"{place}/subsystem_device"),
        numa_node=_node(host, place),
        driver=_driver(host, place, event if event else None),
        link=_NO_LINK,
        parent="" if isinstance(target, Missing) else parse_parent(target),
        iommu_group=NOT_READ,
        rdma=rdma,
    )


def _node(host: Host, place: str) -> Fact[int]:
    """Return the NUMA node; in a recording without it, the one that has all CPUs which the kernel calls local to the function."""
    found = host.number(f"{place}/numa_node")
    if not isinstance(found, Missing) or found.why is not Why.NOT_RECORDED:
        return found
    local = read_set(host, f"{place}/local_cpulist")
    if isinstance(local, Missing):
        local = read_set(host, f"{place}/local_cpus", mask=True)
    names = host.names(_NODES)
    if isinstance(local, Missing) or isinstance(names, Missing) or not len(local):
        return found
    for name in names:
        if name.startswith("node") and name[4:].isdecimal() and len(name) < 11:
            cpus = read_set(host, f"{_NODES}/{name}/cpulist")  # of some kernels the offline ones, too
            cpus = read_set(host, f"{_NODES}/{name}/cpumap", mask=True) if isinstance(cpus, Missing) else cpus
            if not isinstance(cpus, Missing) and local <= cpus:
                return int(name[4:])
    return found


def class_and_vendor(host: Host, name: str) -> tuple[Fact[str], Fact[str]]:
    """Return class and vendor of one function, in sysfs' own form."""
    text = host.text(f"{DEVICES}/{name}/uevent")
    event = {} if isinstance(text, Missing) else parse_uevent(text)
    class_ = event.get("PCI_CLASS", "")
    known = f"0x{class_.zfill(6).lower()}" if _is_hex(class_) else host.word(f"{DEVICES}/{name}/class")
    return known, _pair(event.get("PCI_ID", ""))[0] or _vendor(host, name)


def _vendor(host: Host, name: str) -> Fact[str]:
    """Return the vendor's number: a recording may lack it, and still hold what NVIDIA's driver says of its GPUs."""
    found = host.word(f"{DEVICES}/{name}/vendor")
    if isinstance(found, Missing) and found.why is Why.NOT_RECORDED and host.exists(f"/proc/driver/nvidia/gpus/{name}") is True:
        return "0x10de"
    return found


def device_id(host: Host, name: str) -> Fact[str]:
    """Return the device number of one function, in sysfs' own form."""
    text = host.text(f"{DEVICES}/{name}/uevent")
    event = {} if isinstance(text, Missing) else parse_uevent(text)
    return _pair(event.get("PCI_ID", ""))[1] or host.word(f"{DEVICES}/{name}/device")


def bound_driver(host: Host, name: str) -> Fact[str]:
    """Return the kernel driver of one function; ABSENT if none is bound."""
    text = host.text(f"{DEVICES}/{name}/uevent")
    return _driver(host, f"{DEVICES}/{name}", None if isinstance(text, Missing) else parse_uevent(text))


def parse_uevent(text: str) -> dict[str, str]:
    """Parse ``KEY=value`` lines.

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
    return 0 < len(text) <= 8 and not text.strip("0123456789abcdefABCDEF")


@fact
def _driver(host: Host, place: str, event: dict[str, str] | None) -> Fact[str]:
    if event is not None:
        return event.get("DRIVER") or Missing(Why.ABSENT, f"{place}/driver", "no driver is bound")
    return need(host.link(f"{place}/driver")).rpartition("/")[2]


def parse_parent(target: str) -> str:
    """Return the function above, in the target of a link of /sys/bus/pci/devices; ``""`` directly below a host bridge.

    >>> parse_parent("../../../devices/pci0000:17/0000:17:01.0/0000:18:00.0")
    '0000:17:01.0'
    >>> parse_parent("../../../devices/pci0000:17/0000:17:01.0")
    ''
    """
    parts = target.rstrip("/").split("/")
    above = parts[-2] if len(parts) > 1 else ""
    return above if address_key(above) is not None else ""


def _with_details(host: Host, device: PciDevice, registers: Fact[PciConfig], asleep: bool) -> PciDevice:
    place = f"{DEVICES}/{device.address}"
    peer = is_gpu(device) or bool(device.rdma)
    folder = _group(host, device.address, listed=peer)
    group = host.link(folder) if folder.startswith(DEVICES) else folder
    return msgspec.structs.replace(
        device,
        asleep=asleep,
        link=PciLink(current_gts=_ASLEEP, max_gts=_ASLEEP, current_width=_ASLEEP, max_width=_ASLEEP)
        if asleep
        else _link(host, place),
        iommu_group=group if isinstance(group, Missing) else group.rpartition("/")[2],
        iommu_type=host.word(f"{folder}/type") if peer else NOT_READ,
        errors=details.errors(host, place),
        config=registers,
        bars=details.bars(host, place) if is_gpu(device) or is_intel_card(device) else NOT_READ,
    )


_GROUPS = "/sys/kernel/iommu_groups"


def _group(host: Host, address: str, *, listed: bool) -> str:
    """Return the folder of a function's IOMMU group; with ``listed``, where a copied /sys has no link to it, by the groups' lists."""
    own = f"{DEVICES}/{address}/iommu_group"
    lists = host.names(_GROUPS) if listed and isinstance(link := host.link(own), Missing) and link.why is Why.NOT_RECORDED else ()
    numbers = () if isinstance(lists, Missing) else lists
    return next(
        (f"{_GROUPS}/{number}" for number in numbers if host.exists(f"{_GROUPS}/{number}/devices/{address}") is True), own
    )


def _link(host: Host, place: str) -> PciLink:
    return PciLink(
        current_gts=_speed(host, f"{place}/current_link_speed"),
        max_gts=_speed(host, f"{place}/max_link_speed"),
        current_width=_width(host, f"{place}/current_link_width"),
        max_width=_width(host, f"{place}/max_link_width"),
    )


@fact
def _speed(host: Host, path: str) -> Fact[float]:
    return parse_speed(need(host.word(path)), path)


def parse_speed(text: str, path: str = "link speed") -> Fact[float]:
    """Return the speed in GT/s. ``Unknown`` stands where a function has no link of its own (virtual functions, integrated endpoints).

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
