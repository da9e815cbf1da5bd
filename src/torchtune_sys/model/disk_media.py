"""Tell whether a disk is an SSD or spins, from its name, model, bus and the kernel's flag, and when none of these is reliable."""

from __future__ import annotations

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing

# Words in "vendor model" (lower case) of disks that a hypervisor or a storage service makes up: their rotational
# flag is whatever the driver's default is, and tells nothing of the medium.
_VIRTUAL = (
    "virtual",
    "qemu",
    "vbox",
    "vmware",
    "persistentdisk",
    "nvme_card-pd",
    "amazon elastic block store",
    "msft nvme accelerator",
    "alibaba cloud elastic block",
    "blockvolume",
    "scsi_debug",
    "bhyve",
    "parallels",
    "nutanix",
    "lio-org",
    "red hat",
    "oracle vblock",
)
INSTANCE_STORE = ("amazon ec2 nvme instance storage", "microsoft nvme direct disk", "ephemeraldisk", "nvme_card")
_RAID_CONTROLLER = (
    "perc ",
    "megaraid",
    "raid",
    "logical volume",
    "smart array",
    "avago",
    "mr9",
    "adaptec",
    "areca",
    "arc-1",
    "smc3",
    "intel rms",
    "intel rs3",
    "hw-sas",
)
_VIRTUAL_TRANSPORTS = frozenset(("virtio", "hyper-v", "xen", "iscsi", "fc", "nbd", "rbd", "drbd", "dasd", "firecracker"))

_BY_NAME = (  # kernel name prefix → kind and transport
    ("zram", "zram", ""),
    ("ram", "ram", ""),
    ("nullb", "ram", ""),
    ("pmem", "pmem", "nvdimm"),
    ("mmcblk", "ssd", "mmc"),
    ("sr", "optical", ""),
    ("vd", "virtual", "virtio"),
    ("xvd", "virtual", "xen"),
    ("nbd", "virtual", "nbd"),
    ("rbd", "virtual", "rbd"),
    ("drbd", "virtual", "drbd"),
    ("dasd", "virtual", "dasd"),
)


def classify(name: str, transport: str, model: str, rotational: Fact[bool]) -> str:
    """Return the medium as far as it can be known (see ``Disk.kind``). ``model`` in lower case.

    >>> classify("sda", "sata", "mtfddak256mam-1k12", False), classify("sda", "virtio", "google persistentdisk", True)
    ('ssd', 'virtual')
    """
    given = by_name(name)
    if given is not None:
        return given[1]
    if any(word in model for word in INSTANCE_STORE) and not is_made_up(model):
        return "nvme" if name.startswith("nvme") else "ssd"
    if transport in _VIRTUAL_TRANSPORTS or is_made_up(model):
        return "virtual"
    if name.startswith("nvme"):
        return "nvme"
    if isinstance(rotational, Missing):
        return "unknown"
    if not rotational:
        return "ssd"
    # USB bridges and RAID controllers leave the kernel's default, 1, whatever is behind them.
    uncertain = transport == "usb" or any(word in model for word in _RAID_CONTROLLER)
    uncertain = uncertain or (not model and transport != "sata")
    return "unknown" if uncertain or not name.startswith(("sd", "hd")) else "hdd"


def is_made_up(model: str) -> bool:
    return any(word in model for word in _VIRTUAL)


def by_name(name: str) -> tuple[str, str, str] | None:
    for entry in _BY_NAME:
        rest = name[len(entry[0]) :]
        if name.startswith(entry[0]) and rest and (rest[0].isdigit() or entry[0] in ("vd", "xvd", "dasd")):
            return entry
    return None
