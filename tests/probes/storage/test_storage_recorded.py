"""Storage of machines that other projects recorded."""

from __future__ import annotations

from elsewhere import recorded_elsewhere
from torchtune_sys.formats.mounts import carrying, parse_mountinfo
from torchtune_sys.host.input.opening import open_host
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.facts.storage import StorageFacts
from torchtune_sys.model.values import Missing
from torchtune_sys.probes.storage import probe as storage


def recorded(name: str, *data: str) -> StorageFacts:
    return storage.probe(open_host(str(recorded_elsewhere(name))), Workload(data=data))


def test_nvme_pmem_and_a_spinning_disk() -> None:
    disks = recorded("hwloc/32em64t-2n8c+dax+nvme+mic+dimms.tar.bz2").disks
    assert not isinstance(disks, Missing)
    # Names and sizes (KiB) as in hwloc's own expected output; the medium from what the makers say of the models.
    assert {disk.name: (disk.kind, not isinstance(disk.size_bytes, Missing) and disk.size_bytes >> 10) for disk in disks} == {
        "nvme0n1": ("nvme", 390711384),
        "sda": ("hdd", 244198584),
        "pmem0.1": ("pmem", 105281536),
        "pmem0.2s": ("pmem", 106849352),
        "pmem0.3": ("pmem", 471859200),
        "pmem1": ("pmem", 62914560),
        "pmem1.1s": ("pmem", 62852124),
        "pmem1.2": ("pmem", 61929472),
    }


def test_places_of_a_machine_that_kept_only_proc_mounts() -> None:
    facts = recorded("hwloc/32em64t-2n8c+dax+nvme+mic+dimms.tar.bz2", "/work/set", "/tacc/x", "/admin/y")
    lustre, local, nfs = facts.places[:3]
    assert (lustre.carrier, lustre.mount_point, nfs.carrier) == ("parallel", "/work", "nfs")
    assert not isinstance(nfs.options, Missing) and "rsize=1024" in nfs.options
    assert local.layers == ("partition sda3",)
    assert not isinstance(local.disks, Missing) and [disk.kind for disk in local.disks] == ["hdd"]


def test_a_google_cloud_disk_is_virtual() -> None:
    disks = recorded("ghw/linux-amd64-accel-nvidia.tar.gz").disks
    assert not isinstance(disks, Missing)
    assert [(disk.name, disk.kind, disk.transport) for disk in disks] == [("sda", "virtual", "virtio")]


def test_a_raid_controllers_drive_without_its_model_is_unknown() -> None:
    disks = recorded("ghw/linux-amd64-8581cf3a529e5d8b97ea876eade2f60d.tar.gz").disks
    assert not isinstance(disks, Missing)
    assert [(disk.name, disk.kind) for disk in disks] == [("sda", "unknown"), ("sr0", "optical")]


def test_mount_table_of_a_kubernetes_node() -> None:
    path = recorded_elsewhere("lsblk/mountinfo")
    mounts = parse_mountinfo(path.read_text())
    assert len(mounts) == len(path.read_text().splitlines())
    seen = {}
    for place in ("/", "/mnt/lepton-cache/vol-1/a", "/proc/cpuinfo", "/dev/shm/x", "/var/lib/kubelet/x"):
        mount = carrying(mounts, place)
        seen[place] = mount and (mount.source, mount.device)
    assert seen == {
        "/": ("/dev/mapper/vgroot-lvroot", "253:0"),
        "/mnt/lepton-cache/vol-1/a": ("/dev/nvme4n1p1", "259:16"),
        "/proc/cpuinfo": ("lxcfs", "0:44"),
        "/dev/shm/x": ("tmpfs", "0:67"),
        "/var/lib/kubelet/x": ("/dev/mapper/vgroot-lvroot", "253:0"),
    }


def test_a_tree_without_a_session_has_no_working_directory_to_judge() -> None:
    assert recorded("ghw/linux-amd64-accel-nvidia.tar.gz").places == ()
