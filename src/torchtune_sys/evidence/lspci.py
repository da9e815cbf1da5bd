"""What ``lspci``, ``lspci -nn``, ``lspci -vvv`` and ``lspci -tv`` print, as text that somebody pasted.

The layout is that of pciutils (lspci.c, ls-caps.c, ls-ecaps.c): a line per function, and below it, indented by tabs, what -v adds.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from torchtune_sys.evidence.lspci_tree import Tree, parse_tree
from torchtune_sys.formats.pci_paths import distances
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.pci import PciConfig, PciDevice, PciErrors, PciFacts, PciLink
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.values import Missing, Why, known

_CLASSES = {
    "Host bridge": "060000",
    "PCI bridge": "060400",
    "Bridge": "068000",
    "VGA compatible controller": "030000",
    "3D controller": "030200",
    "Display controller": "038000",
    "Processing accelerators": "120000",
    "Ethernet controller": "020000",
    "Network controller": "028000",
    "Infiniband controller": "020700",
    "InfiniBand controller": "020700",
    "Non-Volatile memory controller": "010802",
}
_VENDORS = (
    ("NVIDIA Corporation", "0x10de"),
    ("Advanced Micro Devices, Inc. [AMD/ATI]", "0x1002"),
    ("Advanced Micro Devices, Inc. [AMD]", "0x1022"),
    ("Mellanox Technologies", "0x15b3"),
    ("Broadcom / LSI", "0x1000"),
    ("Intel Corporation", "0x8086"),
)
_HEADER = pattern(
    r"(?:> ?)?((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ([A-Z0-9][^:\[\t]{2,60}?)(?: \[([0-9a-f]{4})\])?: (\S[^\t]{0,300})$"
)
_OF_VERBOSE = ("Region 0: Memory at", "LnkSta:", "Kernel driver in use:")
"""What -k, -v and -vv add to a function."""
_ACS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
_VIRTUAL = ("Red Hat, Inc.", "Virtio", "QEMU", "VMware", "Hyper-V", "XenSource", "Amazon.com", "Google, Inc.", "Virtual Function")
_LARGEST = 4096
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _not_reported(detail: str = "not in the output") -> Missing:
    return Missing(Why.NOT_RECORDED, "lspci", detail, "lspci -vvv as root")


def pci_facts(text: str) -> PciFacts | None:
    """Return the functions in ``text``; None where it holds one line of lspci alone, or none, and no tree."""
    blocks = _blocks(text)
    tree = parse_tree(text) if "-[" in text else {}
    if not blocks or (len(blocks) < 2 and not any(words in text for words in _OF_VERBOSE)):
        return _of_tree(tree) if len(tree) > 1 else None
    above = {address: parent or tree.get(address, ("", ""))[0] for address, parent in _parents(blocks).items()}
    found = {address: _device(address, header, body, above.get(address, "")) for address, (header, body) in blocks.items()}
    devices = _with_switches(tuple(found[address] for address in sorted(found, key=_key)))
    return PciFacts(devices=devices, distances=distances(devices))


def _with_switches(devices: tuple[PciDevice, ...]) -> tuple[PciDevice, ...]:
    """Return the devices with the upstream ports that the output leaves out: all downstream ports of one bus are those of one switch, which has one (PCI Express
    Base Specification, 1.3.3)."""
    orphans = {
        device.address: f"the switch of bus {device.address.rpartition(':')[0]}"
        for device in devices
        if not device.parent and known(device.config, PciConfig()).port_type == "downstream-port"
    }
    made = (replace(_branch(name, "", ""), class_="0x060400") for name in dict.fromkeys(orphans.values()))
    return (*made, *(replace(each, parent=orphans.get(each.address, each.parent)) for each in devices)) if orphans else devices


def _of_tree(tree: Tree) -> PciFacts:
    """Return the functions of a tree, which names no classes: GPUs and cards are told by their names."""
    found = tuple(_branch(address, *tree[address]) for address in sorted(tree, key=_key))
    return PciFacts(devices=found, distances=distances(found))


_NO_GPU = pattern(r"NVSwitch|Audio|USB|UCSI|[Bb]ridge|BlueField|nForce|MCP\d|ConnectX")
_GPU_NAME = pattern(r"\[[^\]]*(?:GeForce|Quadro|Tesla|RTX|TITAN|GTX|\b[ABHLPTV]\d{1,3}\b|GH200|GB\d{3})")


def _branch(address: str, parent: str, words: str) -> PciDevice:
    vendor, number = _by_name(re.sub(r"\[(?=[0-9a-f]{4}:[0-9a-f]{4}\]).*", "", words))
    ids = re.search(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]$", words)
    if ids:
        vendor, number = f"0x{ids[1]}", f"0x{ids[2]}"
    gpu = vendor == "0x10de" and address.endswith(".0") and not _NO_GPU.search(words) and _GPU_NAME.search(words)
    card = vendor == "0x15b3" and "ConnectX" in words and not re.search("Virtual Function|[Bb]ridge", words)
    return PciDevice(
        address=address,
        class_="0x030200" if gpu else "0x020000" if card else _not_reported("a class is not in the tree"),
        vendor=vendor or _not_reported("not named, or by name only"),
        device=number or _not_reported("a device by name only"),
        subsystem_vendor=_not_reported(),
        subsystem_device=_not_reported(),
        numa_node=_not_reported(),
        driver=_not_reported(),
        link=PciLink(
            current_gts=_not_reported(), max_gts=_not_reported(), current_width=_not_reported(), max_width=_not_reported()
        ),
        parent=parent,
        iommu_group=_not_reported(),
        errors=_not_reported(),
        config=_not_reported(),
        bars=_not_reported(),
        iommu_type=_not_reported(),
        rdma="ConnectX card" if card else "",
    )


def hypervisor(text: str) -> Fact[str]:
    """Return ``""`` where physical root ports are shown in full, ``other`` where a hypervisor's devices or virtual functions are.

    >>> hypervisor("00:02.0 PCI bridge: Red Hat, Inc. QEMU PCIe Root port\\n00:1f.0 ISA bridge: Intel Corporation ICH9")
    'other'
    """
    blocks = _blocks(text)
    if any(words in header.group(4) for header, _ in blocks.values() for words in _VIRTUAL):
        return "other"
    ports = any(re.search(r"Express \(v\d\) Root Port", body) for _, body in blocks.values())
    return "" if ports else _not_reported("the report does not show whether this is a virtual machine")


def _key(address: str) -> tuple[int, ...]:
    return tuple(int(part, 16) for part in address.replace(".", ":").split(":"))


def _blocks(text: str) -> dict[str, tuple[re.Match[str], str]]:
    """Address (with domain) → its first line and what stands below it."""
    found: dict[str, tuple[re.Match[str], list[str]]] = {}
    current: list[str] | None = None
    for line in text.split("\n"):
        header = _HEADER.match(line.rstrip()) if line[:1] not in ("\t", " ", "") else None
        if header is not None and (header[3] or header[2] in _CLASSES or found):
            address = header[1] if header[1].count(":") == 2 else f"0000:{header[1]}"
            if len(found) == _LARGEST:
                break
            current = []
            found.setdefault(address, (header, current))
        elif current is not None and line[:1] in ("\t", " ", ">"):
            current.append(line)
        elif line.strip():
            current = None
    return {address: (header, "\n".join(body)) for address, (header, body) in found.items()}


def _parents(blocks: dict[str, tuple[re.Match[str], str]]) -> dict[str, str]:
    """Who is above whom, by the buses that the bridges say are behind them."""
    behind: dict[str, str] = {}
    for address, (_, body) in blocks.items():
        buses = re.search(r"Bus: primary=[0-9a-f]{2}, secondary=([0-9a-f]{2})", body)
        if buses and buses[1] != "00":
            behind[f"{address[:-8]}:{buses[1]}"] = address
    found: dict[str, str] = {}
    for address in blocks:
        parent = behind.get(address[:-5], "")
        if parent != address:
            found[address] = parent
    return found


def _device(address: str, header: re.Match[str], body: str, parent: str) -> PciDevice:
    words = header[4]
    ids = re.search(r"\[([0-9a-f]{4}):([0-9a-f]{4})\](?: \(rev [0-9a-f]{2}\))?(?: \(prog-if.*\))?$", words)
    vendor, number = (f"0x{ids[1]}", f"0x{ids[2]}") if ids else _by_name(words)
    class_ = f"{header[3]}00" if header[3] else _CLASSES.get(header[2].strip(), "")
    driver = re.search(r"Kernel driver in use: (\S+)", body)
    node = re.search(r"NUMA node: (-?\d{1,4})\b", body)
    group = re.search(r"IOMMU group: (\d{1,6})\b", body)
    card = vendor == "0x15b3" and class_[:4] in ("0200", "0207")
    return PciDevice(
        address=address,
        class_=f"0x{class_}" if class_ else _not_reported(f"class {header[2]!r}"),
        vendor=vendor or _not_reported("a vendor by name only"),
        device=number or _not_reported("a device by name only"),
        subsystem_vendor=_not_reported(),
        subsystem_device=_not_reported(),
        numa_node=int(node[1]) if node else _not_reported(),
        driver=driver[1] if driver else _not_reported(),
        link=_link(body),
        parent=parent,
        iommu_group=group[1] if group else _not_reported(),
        errors=_errors(body),
        config=_config(body),
        bars=_bars(body),
        iommu_type=_not_reported(),
        rdma="ConnectX card" if card else "",
    )


def _by_name(words: str) -> tuple[str, str]:
    vendor = next((number for name, number in _VENDORS if words.startswith(name)), "")
    device = re.search(r" Device ([0-9a-f]{4})\b", words)
    return vendor, f"0x{device[1]}" if device and vendor else ""


def _denied(body: str) -> Missing:
    if "Capabilities: <access denied>" in body:
        return Missing(Why.DENIED, "lspci", "Capabilities: <access denied>", "lspci -vvv as root")
    return _not_reported()


def _link(body: str) -> PciLink:
    """Maximum and current link.

    >>> link = _link("\\t\\tLnkCap:\\tPort #0, Speed 32GT/s, Width x4, ASPM L1\\n\\t\\tLnkSta:\\tSpeed 16GT/s (downgraded), Width x4 (ok)")
    >>> link.max_gts, link.max_width, link.current_gts, link.current_width
    (32.0, 4, 16.0, 4)
    """
    most = re.search(r"LnkCap:\s+Port #\d{1,3}, Speed (\d{1,3}(?:\.\d)?)GT/s, Width x(\d{1,2})\b", body)
    now = re.search(r"LnkSta:\s+Speed (\d{1,3}(?:\.\d)?)GT/s(?: \(\w{1,12}\))?, Width x(\d{1,2})\b", body)
    # Integrated endpoints have an Express capability without a link.
    nothing = Missing(Why.NOT_SUPPORTED, "lspci", "no link of its own") if "Capabilities: [" in body else _denied(body)
    return PciLink(
        current_gts=float(now[1]) if now else nothing,
        current_width=int(now[2]) if now and int(now[2]) else nothing,
        max_gts=float(most[1]) if most else nothing,
        max_width=int(most[2]) if most and int(most[2]) else nothing,
    )


def _config(body: str) -> Fact[PciConfig]:
    control = re.search(r"DevCtl:(?:.*\n){0,3}?.*MaxPayload (\d{3,4}) bytes, MaxReadReq (\d{3,4}) bytes", body)
    access = re.search(r"ACSCtl:\s+(.*)", body)
    if control is None and access is None:
        return _denied(body)
    relaxed = re.search(r"RlxdOrd([+-])", control[0]) if control else None
    kind = re.search(r"Express \(v\d\) (Root Port|Upstream Port|Downstream Port|Endpoint|Legacy Endpoint)", body)
    kinds = {"Root Port": "root-port", "Upstream Port": "upstream-port", "Downstream Port": "downstream-port"}
    return PciConfig(
        port_type=kinds.get(kind[1], "endpoint") if kind else "other",
        max_payload_bytes=int(control[1]) if control else _not_reported(),
        max_read_request_bytes=int(control[2]) if control else _not_reported(),
        relaxed_ordering=relaxed[1] == "+" if relaxed else _not_reported(),
        acs=tuple(name for name in _ACS if f"{name}+" in access[1])
        if access
        else Missing(Why.ABSENT, "lspci", "no Access Control Services"),
    )


def _errors(body: str) -> Fact[PciErrors]:
    """Return the status bits of Advanced Error Reporting: 1 says that there was such an error at least once and nobody cleared it.

    Correctable ones stay set from the training of the link at boot, so they say nothing without a count.
    """
    status, masked, severe = (re.search(rf"{name}:\s+(.*)", body) for name in ("UESta", "UEMsk", "UESvrt"))
    if status is None:
        return Missing(Why.ABSENT, "lspci", "no Advanced Error Reporting") if "Capabilities: [" in body else _denied(body)
    kinds = re.findall(r"\b(\w{2,20})\+", status[1])
    hidden = set(re.findall(r"\b(\w{2,20})\+", masked[1])) if masked else set()
    fatal = set(re.findall(r"\b(\w{2,20})\+", severe[1])) if severe else set()
    kinds = [kind for kind in kinds if kind not in hidden]
    return PciErrors(
        correctable={},
        nonfatal={kind: 1 for kind in kinds if kind not in fatal},
        fatal={kind: 1 for kind in kinds if kind in fatal},
    )


def _bars(body: str) -> Fact[tuple[int, ...]]:
    sizes = re.findall(r"^\s*Region \d: Memory at .*\[size=(\d{1,6})([KMGT]?)\]$", body, re.MULTILINE)
    return tuple(int(size) * _UNITS[unit] for size, unit in sizes) or _not_reported()
