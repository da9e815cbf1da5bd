"""Small trees of /sys and /proc for the storage tests, shaped like what lsblk shows on real machines."""

from __future__ import annotations

from typing import Any

from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.facts.storage import StorageFacts, StoragePath
from torchtune_sys.probes.storage import probe as storage

ATA = "/sys/devices/pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda"
NVME = "/sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1"
VIRTUAL = "/sys/devices/virtual/block"


class Tree:
    """Collects block devices and mounts, and probes them."""

    def __init__(self) -> None:
        self.files: dict[str, Any] = {}
        self.links: dict[str, Any] = {}
        self.dirs: dict[str, Any] = {}
        self.spaces: dict[str, Any] = {}
        self.answers: dict[str, Any] = {}
        self.mounts: list[str] = ["30 1 259:99 / / rw,relatime - ext4 /dev/root rw"]

    def block(self, directory: str, number: str, files: dict[str, str], slaves: tuple[str, ...] | None = None) -> Tree:
        name = directory.rpartition("/")[2]
        self.files |= {f"{directory}/size": "1000", **{f"{directory}/{path}": text for path, text in files.items()}}
        if "partition" not in files:
            self.links[f"/sys/block/{name}"] = "../" + directory.removeprefix("/sys/")
        self.links[f"/sys/class/block/{name}"] = "../../" + directory.removeprefix("/sys/")
        self.links[f"/sys/dev/block/{number}"] = "../../" + directory.removeprefix("/sys/")
        if slaves is not None:
            self.dirs[f"{directory}/slaves"] = list(slaves)
        return self

    def mount(self, line: str) -> Tree:
        self.mounts.append(line)
        return self

    def probe(self, *data: str, **more: Any) -> StorageFacts:
        self.files["/proc/self/mountinfo"] = self.mounts
        sections = {"files": self.files, "links": self.links, "dirs": self.dirs, "spaces": self.spaces, "answers": self.answers}
        return storage.probe(RecordedHost({**sections, **more}, "test"), Workload(data=data))

    def place(self, path: str) -> StoragePath:
        return self.probe(path).places[0]


def nvme(tree: Tree, directory: str = NVME, number: str = "259:0", model: str = "INTEL SSDPE2KX020T8") -> Tree:
    controller = directory.rpartition("/")[0]
    tree.files |= {f"{controller}/transport": "pcie", f"{controller}/model": model}
    tree.links[f"{directory}/device"] = f"../../{controller.rpartition('/')[2]}"
    return tree.block(directory, number, {"queue/rotational": "0", "queue/scheduler": "[none] mq-deadline"})


def scsi(tree: Tree, directory: str = ATA, number: str = "8:0", rotational: str = "1", model: str = "ST4000NM0035-1V4") -> Tree:
    files = {
        "queue/rotational": rotational,
        "queue/scheduler": "none [mq-deadline]",
        "device/model": model,
        "device/vendor": "ATA",
    }
    return tree.block(directory, number, files)
