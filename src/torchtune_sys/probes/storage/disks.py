"""One whole disk: what sysfs tells of its medium, and when it tells nothing that can be believed."""

from __future__ import annotations

import posixpath

from torchtune_sys.host.base import Host
from torchtune_sys.model.disk_media import INSTANCE_STORE, by_name, classify, is_made_up
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.storage import Disk
from torchtune_sys.model.values import Missing, Why, fact, known, need


def read_disk(host: Host, directory: str) -> Disk:
    """Return what sysfs tells of the disk whose directory (``/sys/devices/…/block/sda``, resolved) this is."""
    name = posixpath.basename(directory).replace("!", "/")
    found = host.number(f"{directory}/queue/rotational")
    rotational = found if isinstance(found, Missing) else bool(found)
    model = read_model(host, directory, name)
    transport = read_transport(host, directory, name)
    words = "" if isinstance(model, Missing) else model.lower()
    return Disk(
        name=name,
        kind=classify(name, transport, words, rotational),
        rotational=rotational,
        model=model,
        scheduler=read_scheduler(host, f"{directory}/queue/scheduler"),
        read_ahead_kib=host.number(f"{directory}/queue/read_ahead_kb"),
        size_bytes=read_size(host, directory),
        transport=transport,
        instance_store=(any(word in words for word in INSTANCE_STORE) and not is_made_up(words))
        or _is_of_azure(host, name, words),
    )


_RESOURCE_DISK = ("/dev/disk/azure/resource", "/dev/disk/cloud/azure_resource")
"""Links to the temporary disk of a virtual machine of Azure (udev rules of azure-vm-utils, and of WALinuxAgent before): its model is that of all others."""


def _is_of_azure(host: Host, name: str, model: str) -> bool:
    return model.startswith("msft ") and any(posixpath.basename(known(host.link(link), "")) == name for link in _RESOURCE_DISK)


@fact
def read_size(host: Host, directory: str) -> Fact[int]:
    """Return the size in bytes; ``size`` counts sectors of 512 bytes whatever the disk's own sectors are (block/genhd.c)."""
    return need(host.number(f"{directory}/size")) * 512


def read_model(host: Host, directory: str, name: str) -> Fact[str]:
    """Return ``vendor model`` as the disk (or who plays it) calls itself; ABSENT for those without a name."""
    if by_name(name) is not None and not name.startswith("sr"):
        return Missing(Why.ABSENT, f"{directory}/device/model", "this kind of device has no model")
    model = host.word(f"{directory}/device/model")
    if isinstance(model, Missing) or name.startswith("nvme"):
        return model
    vendor = host.word(f"{directory}/device/vendor")
    # libata gives "ATA" as the vendor of every SATA disk; virtio gives a number.
    return model if isinstance(vendor, Missing) or vendor == "ATA" or vendor[:2] == "0x" else f"{vendor} {model}"


def read_transport(host: Host, directory: str, name: str) -> str:
    """Return the way to the disk: the NVMe controllers' word, or the path of its device in sysfs."""
    if name.startswith("nvme"):
        return _nvme_transport(host, directory)
    given = by_name(name)
    return given[2] if given is not None else transport_of(directory)


def transport_of(directory: str) -> str:
    """Return what the path of a SCSI disk in sysfs says of the way to it; ``""`` if nothing.

    >>> transport_of("/sys/devices/pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0/block/sda")
    'sata'
    >>> transport_of("/sys/devices/pci0000:00/0000:00:01.1/0000:02:00.0/virtio6/host0/target0:0:0/0:0:0:1/block/sda")
    'virtio'
    """
    for part in reversed(directory.split("/")):
        for prefix, transport in _BY_PATH:
            rest = part[len(prefix) :]
            if part.startswith(prefix) and (rest[:1].isdigit() or prefix[-1] in "-:"):
                return transport
    return ""


_BY_PATH = (
    ("usb", "usb"),
    ("virtio", "virtio"),
    ("VMBUS:", "hyper-v"),
    ("vmbus_", "hyper-v"),
    ("vbd-", "xen"),
    ("session", "iscsi"),
    ("rport-", "fc"),
    ("end_device-", "sas"),
    ("ata", "sata"),
)


def _nvme_transport(host: Host, directory: str) -> str:
    """``pcie``, or ``nvme-tcp``, ``nvme-rdma``, ``nvme-fc`` for a namespace on another machine.

    With native multipath the namespace belongs to a subsystem, whose directory links to its controllers
    (drivers/nvme/host/multipath.c).
    """
    above = posixpath.dirname(directory)
    found = host.word(f"{above}/transport")
    if isinstance(found, Missing) and "/nvme-subsys" in above:
        for name in known(host.names(above), ()):
            if name[:4] == "nvme" and name[4:].isdigit():
                found = host.word(f"{above}/{name}/transport")
                break
    if isinstance(found, Missing):  # kernels before 4.8 have no such file, and no fabrics either
        return "pcie" if "/pci" in directory else ""
    return found if found == "pcie" else f"nvme-{found}"


@fact
def read_scheduler(host: Host, path: str) -> Fact[str]:
    text = need(host.word(path))
    return parse_scheduler(text) or Missing(Why.UNPARSED, path, f"no scheduler is marked: {text[:60]!r}")


def parse_scheduler(text: str) -> str:
    """Return the marked choice; a device without a choice shows one word without brackets. ``""`` if neither is there.

    >>> parse_scheduler("none [mq-deadline] kyber bfq"), parse_scheduler("none"), parse_scheduler("none bfq")
    ('mq-deadline', 'none', '')
    """
    _, opened, rest = text.partition("[")
    marked, closed, _ = rest.partition("]")
    if opened and closed:
        return marked.strip()
    words = text.split()
    return words[0] if len(words) == 1 and not opened else ""


@fact
def states(host: Host) -> Fact[dict[str, str]]:
    """Return what the kernel says of each local disk; a card reader without a medium has none to say of."""
    found: dict[str, str] = {}
    unseen: Missing | None = None
    for folder, begins, leaf in (("/sys/class/nvme", "nvme", "state"), ("/sys/block", "sd", "device/state")):
        names = host.names(folder)
        if isinstance(names, Missing):
            unseen = unseen if names.why is Why.ABSENT else names
            continue
        for name in names:
            place = f"{folder}/{name}"
            if not name.startswith(begins) or not _is_local(host, place, begins):
                continue
            state = host.word(f"{place}/{leaf}")
            if not isinstance(state, Missing):
                found[name] = state
            elif state.why is not Why.ABSENT:
                unseen = state
    return found if found or unseen is None else unseen


def _is_local(host: Host, place: str, begins: str) -> bool:
    return host.word(f"{place}/transport") == "pcie" if begins == "nvme" else host.number(f"{place}/size") != 0
