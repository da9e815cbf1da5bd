"""From a path to the disks below it, on trees shaped like real machines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_trees import NVME, VIRTUAL, Tree, nvme, scsi

from torchtune_sys.formats.mounts import carrier, carrying, parse_mountinfo, parse_mounts, unescape
from torchtune_sys.model.disk_media import classify
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.storage.disks import parse_scheduler, transport_of


def kinds(tree: Tree, path: str = "/data/x") -> list[tuple[str, str]]:
    disks = tree.place(path).disks
    assert not isinstance(disks, Missing), disks
    return [(disk.name, disk.kind) for disk in disks]


# --- mounts -----------------------------------------------------------------------------------------------------------


def at(lines: list[str], path: str) -> str:
    mount = carrying(parse_mountinfo("\n".join(lines)), path)
    assert mount is not None
    return mount.source


ROOT = "30 1 8:1 / / rw - ext4 /dev/sda1 rw"


def test_longest_mount_point_wins_and_names_do_not_match_by_halves() -> None:
    lines = [ROOT, "31 30 8:2 / /data rw - xfs /dev/sda2 rw", "32 31 8:3 / /data/fast rw - xfs /dev/sda3 rw"]
    assert at(lines, "/data/fast/x") == "/dev/sda3"
    assert at(lines, "/data/fastest") == "/dev/sda2"
    assert at(lines, "/database") == "/dev/sda1"


def test_of_two_mounts_on_one_point_the_later_one_is_seen() -> None:
    lines = [ROOT, "31 30 8:2 / /data rw - xfs /dev/old rw", "40 31 8:3 / /data rw - xfs /dev/new rw"]
    assert at(lines, "/data/x") == "/dev/new"


def test_a_mount_above_hides_what_was_mounted_below_it_before() -> None:
    lines = [ROOT, "31 30 8:2 / /mnt/deep rw - xfs /dev/hidden rw", "32 30 8:3 / /mnt rw - xfs /dev/over rw"]
    assert at(lines, "/mnt/deep/x") == "/dev/over"


def test_bind_mount_of_a_directory_has_the_device_of_what_it_shows() -> None:
    tree = nvme(Tree()).mount("41 30 259:0 /datasets /srv/bound rw - ext4 /dev/nvme0n1 rw")
    assert kinds(tree, "/srv/bound/imagenet") == [("nvme0n1", "nvme")]


def test_blank_in_the_mount_point() -> None:
    tree = nvme(Tree()).mount(r"41 30 259:0 / /mnt/my\040data rw - ext4 /dev/nvme0n1 rw")
    assert tree.place("/mnt/my data/x").mount_point == "/mnt/my data"


def test_optional_fields_of_any_number() -> None:
    for optional in ("", "shared:1 ", "shared:1 master:2 propagate_from:3 "):
        assert parse_mountinfo(f"36 35 98:0 /r /m rw,noatime {optional}- ext3 /dev/root rw")[0].filesystem == "ext3"


def test_proc_mounts_serves_where_mountinfo_is_not_recorded() -> None:
    tree = scsi(Tree())
    tree.mounts = []
    tree.files["/proc/mounts"] = "rootfs / rootfs rw 0 0\n/dev/sda / ext3 rw 0 0\nfiler:/w /srv nfs rw,vers=3 0 0\n"
    tree.dirs["/srv/a"] = []
    tree.files["/proc/self/mountinfo"] = ""
    places = tree.probe("/srv/a", "/home/x").places
    assert [place.filesystem for place in places[:2]] == ["nfs", "ext3"]
    assert not isinstance(places[1].disks, Missing) and places[1].disks[0].name == "sda"


def test_relative_path_is_taken_from_the_working_directory_and_links_are_followed() -> None:
    tree = nvme(Tree()).mount("41 30 259:0 / /fast rw - ext4 /dev/nvme0n1 rw")
    tree.links["/home/me/data"] = "/fast/sets"
    tree.links["/fast/sets/train"] = "../other"
    tree.dirs["/fast/other"] = []
    tree.answers["cwd"] = "/home/me"
    assert tree.place("data/train").real_path == "/fast/other"


def test_links_in_a_circle_end() -> None:
    tree = Tree()
    tree.links |= {"/a": "/b", "/b": "/a"}
    assert tree.place("/a/x").mount_point == "/"


def test_what_is_not_there_yet_is_judged_by_its_nearest_parent() -> None:
    tree = nvme(Tree()).mount("41 30 259:0 / /ck rw - ext4 /dev/nvme0n1 rw")
    tree.dirs["/ck/runs"] = []
    place = tree.place("/ck/runs/a/b")
    assert (place.exists, place.real_path, place.mount_point) == (False, "/ck/runs", "/ck")


def test_dead_server_is_not_walked_into() -> None:
    tree = Tree().mount("41 30 0:50 / /mnt/dead rw - nfs4 filer:/x rw,hard")
    tree.spaces["/mnt/dead"] = {"error": "timeout", "detail": "no answer within 2 s"}
    tree.links["/mnt/dead/link"] = "/elsewhere"
    place = tree.place("/mnt/dead/link/a")
    assert isinstance(place.size_bytes, Missing) and place.size_bytes.why is Why.TIMEOUT
    assert isinstance(place.exists, Missing)
    assert place.mount_point == "/mnt/dead"


@pytest.mark.parametrize(
    ("filesystem", "source", "wanted"),
    [
        ("nfs4", "filer:/x", "nfs"),
        ("smb3", "//filer/x", "smb"),
        ("lustre", "10.0.0.1@o2ib:/scratch", "parallel"),
        ("beegfs", "beegfs_nodev", "parallel"),
        ("fuse.glusterfs", "host:/vol", "parallel"),
        ("fuse.sshfs", "me@host:/x", "remote"),
        ("fuse.gcsfuse", "bucket", "object-store"),
        ("fuse", "blobfuse2", "object-store"),
        ("fuse.juicefs", "JuiceFS:x", "object-store"),
        ("fuseblk", "/dev/sdb1", "disk"),
        ("fuse.fuse-overlayfs", "fuse-overlayfs", "layers"),
        ("fuse.lxcfs", "lxcfs", "memory"),
        ("virtiofs", "share", "hypervisor"),
        ("tmpfs", "tmpfs", "memory"),
    ],
)
def test_carriers(filesystem: str, source: str, wanted: str) -> None:
    assert carrier(filesystem, source) == wanted


# --- block devices ----------------------------------------------------------------------------------------------------


def test_lvm_on_luks_on_md_on_partitions_of_two_nvme_drives() -> None:
    tree = Tree()
    second = NVME.replace("01:00.0", "02:00.0").replace("nvme0", "nvme1")
    nvme(tree), nvme(tree, second, "259:4")
    tree.block(f"{NVME}/nvme0n1p3", "259:3", {"partition": "3"}).block(f"{second}/nvme1n1p3", "259:7", {"partition": "3"})
    md = {"md/level": "raid1", "md/degraded": "0"}
    tree.block(f"{VIRTUAL}/md0", "9:0", md, ("nvme0n1p3", "nvme1n1p3"))
    tree.block(f"{VIRTUAL}/dm-0", "253:0", {"dm/name": "cryptroot", "dm/uuid": "CRYPT-LUKS2-ab-cryptroot"}, ("md0",))
    vg = {"dm/name": "vg-data", "dm/uuid": "LVM-xyz", "queue/read_ahead_kb": "512"}
    tree.block(f"{VIRTUAL}/dm-1", "253:1", vg, ("dm-0",))
    place = tree.mount("41 30 253:1 / /data rw - xfs /dev/mapper/vg-data rw").place("/data/x")
    assert place.layers == (
        "lvm vg-data",
        "dm-crypt cryptroot",
        "md0 raid1",
        "partition nvme0n1p3",
        "partition nvme1n1p3",
    )
    assert not isinstance(place.disks, Missing)
    assert [(disk.name, disk.kind, disk.transport) for disk in place.disks] == [
        ("nvme0n1", "nvme", "pcie"),
        ("nvme1n1", "nvme", "pcie"),
    ]
    assert place.read_ahead_kib == 512
    assert [(array.name, array.degraded) for array in place.arrays] == [("md0", 0)]


def test_multipath_and_its_partition() -> None:
    tree = Tree()
    path = "/sys/devices/pci0000:00/0000:00:05.0/0000:04:00.0/host1/rport-1:0-2/target1:0:0/1:0:0:0/block/sdb"
    tree.block(path, "8:16", {"queue/rotational": "1", "device/model": "VV", "device/vendor": "3PARdata"})
    tree.block(f"{VIRTUAL}/dm-3", "253:3", {"dm/name": "mpatha", "dm/uuid": "mpath-3600"}, ("sdb",))
    tree.block(f"{VIRTUAL}/dm-4", "253:4", {"dm/name": "mpatha1", "dm/uuid": "part1-mpath-3600"}, ("dm-3",))
    tree.mount("41 30 253:4 / /data rw - ext4 /dev/mapper/mpatha1 rw")
    assert tree.place("/data").layers == ("partition mpatha1", "multipath mpatha")
    assert kinds(tree) == [("sdb", "virtual")]  # a LUN of an array: its rotational flag is a default


def test_loop_device_leads_to_the_file_systems_disk() -> None:
    tree = scsi(Tree()).mount("40 30 8:0 / /images rw - ext4 /dev/sda rw").mount("41 30 7:0 / /data rw - ext4 /dev/loop0 rw")
    tree.block(f"{VIRTUAL}/loop0", "7:0", {"loop/backing_file": "/images/set.img (deleted)", "queue/rotational": "0"})
    assert kinds(tree) == [("sda", "hdd")]
    assert tree.place("/data").layers == ("loop0 /images/set.img (deleted)",)


def test_loop_device_whose_file_lies_on_itself_ends() -> None:
    tree = Tree().mount("41 30 7:0 / /data rw - ext4 /dev/loop0 rw")
    tree.block(f"{VIRTUAL}/loop0", "7:0", {"loop/backing_file": "/data/self.img"})
    assert isinstance(tree.place("/data").disks, Missing)


def test_btrfs_has_an_anonymous_device_and_spans_several() -> None:
    tree = scsi(nvme(Tree()))
    tree.dirs |= {"/sys/fs/btrfs": ["features", "ab-12"], "/sys/fs/btrfs/ab-12/devices": ["nvme0n1", "sda"]}
    tree.dirs["/dev/nvme0n1"] = []
    tree.mount("41 30 0:33 /@data /data rw - btrfs /dev/nvme0n1 rw,subvol=/@data")
    assert kinds(tree) == [("nvme0n1", "nvme"), ("sda", "hdd")]


def test_mapper_name_is_found_without_dev() -> None:
    tree = scsi(Tree()).block(f"{VIRTUAL}/dm-0", "253:0", {"dm/name": "luks-1", "dm/uuid": "CRYPT-LUKS1-x"}, ("sda",))
    tree.mount("41 30 0:33 / /data rw - btrfs /dev/mapper/luks-1 rw")
    assert kinds(tree) == [("sda", "hdd")]


def test_zfs_names_its_pool_and_says_what_would_tell() -> None:
    place = Tree().mount("41 30 0:44 / /data rw - zfs tank/sets rw").place("/data")
    assert place.layers == ("zfs pool tank",)
    assert isinstance(place.disks, Missing) and place.disks.remedy == "zpool status tank"
    named = Tree().mount("41 30 0:44 / /data rw - fuse.zfs x;id rw,user_id=1000").place("/data").disks
    assert isinstance(named, Missing) and named.remedy == "zpool status 'x;id'", "a user's own mount may have any name"


def test_overlay_in_a_container_does_not_tell_its_disks() -> None:
    tree = Tree()
    tree.mounts = ["30 1 0:80 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/var/lib/docker/c0/diff,workdir=/w"]
    place = tree.place("/workspace")
    assert place.carrier == "layers" and isinstance(place.disks, Missing)


def test_overlay_on_the_host_leads_to_the_disk_of_its_upper_directory() -> None:
    tree = nvme(Tree()).mount("40 30 259:0 / /srv rw - ext4 /dev/nvme0n1 rw")
    tree.dirs["/srv/upper"] = []
    tree.mount("41 30 0:80 / /data rw - overlay overlay rw,lowerdir=/l,upperdir=/srv/upper,workdir=/srv/work")
    assert kinds(tree) == [("nvme0n1", "nvme")]


def test_overlay_in_a_tree_without_its_directories_was_not_recorded() -> None:
    tree = Tree().mount("41 30 0:80 / /data rw - overlay overlay rw,lowerdir=/l,upperdir=/srv/upper,workdir=/srv/work")
    disks = tree.probe("/data", complete=False).places[0].disks
    assert isinstance(disks, Missing) and disks.why is Why.NOT_RECORDED


def test_native_nvme_multipath_over_tcp() -> None:
    head = "/sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1"
    tree = Tree().block(head, "259:1", {"queue/rotational": "0"})
    tree.dirs[head.rpartition("/")[0]] = ["model", "nvme0", "nvme0n1", "nvme1"]
    tree.files[f"{head.rpartition('/')[0]}/nvme0/transport"] = "tcp"
    tree.mount("41 30 259:1 / /data rw - ext4 /dev/nvme0n1 rw")
    disks = tree.place("/data").disks
    assert not isinstance(disks, Missing) and (disks[0].kind, disks[0].transport) == ("nvme", "nvme-tcp")


def test_host_disks_leave_out_loops_ram_mapped_and_empty_devices_and_hidden_paths() -> None:
    tree = scsi(nvme(Tree()))
    tree.block(f"{VIRTUAL}/loop0", "7:0", {}).block(f"{VIRTUAL}/ram0", "1:0", {}).block(f"{VIRTUAL}/dm-0", "253:0", {}, ())
    tree.block(f"{VIRTUAL}/nbd0", "43:0", {"size": "0"}).block(f"{VIRTUAL}/zram0", "251:0", {})
    tree.block("/sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0/nvme0c0n1", "259:9", {"hidden": "1"})
    disks = tree.probe().disks
    assert not isinstance(disks, Missing)
    assert [disk.name for disk in disks] == ["nvme0n1", "sda"]
    assert disks[1].size_bytes == 512_000


@pytest.mark.parametrize(
    ("name", "transport", "model", "rotational", "kind"),
    [
        ("nvme0n1", "pcie", "samsung mzql27t6hbla-00a07", False, "nvme"),
        ("nvme1n1", "pcie", "amazon elastic block store", False, "virtual"),
        ("nvme2n1", "pcie", "amazon ec2 nvme instance storage", False, "nvme"),
        ("nvme0n1", "pcie", "nvme_card-pd", False, "virtual"),
        ("nvme0n1", "pcie", "nvme_card", False, "nvme"),
        ("nvme0n1", "pcie", "msft nvme accelerator v1.0", False, "virtual"),
        ("nvme0n1", "pcie", "microsoft nvme direct disk", False, "nvme"),
        ("nvme0n1", "pcie", "qemu nvme ctrl", False, "virtual"),
        ("sda", "hyper-v", "msft virtual disk", False, "virtual"),
        ("sda", "", "vmware virtual disk", True, "virtual"),
        ("sda", "sata", "qemu harddisk", True, "virtual"),
        ("sda", "sata", "st18000nm000j-2t", True, "hdd"),
        ("sda", "sata", "st18000nm000j-2t", False, "ssd"),
        ("sda", "sas", "dell perc h740p mini", True, "unknown"),
        ("sda", "sas", "hpe logical volume", False, "ssd"),
        ("sdb", "usb", "samsung portable ssd t5", True, "unknown"),
        ("sda", "", "st9250610ns", True, "hdd"),
        ("sda", "", "", True, "unknown"),  # a recording without the model: perhaps a RAID controller's
        ("vda", "virtio", "", False, "virtual"),
        ("xvda", "xen", "", False, "virtual"),
        ("pmem0", "nvdimm", "", False, "pmem"),
        ("sr0", "sata", "dvd-rom", True, "optical"),
        ("zram0", "", "", False, "zram"),
    ],
)
def test_media(name: str, transport: str, model: str, rotational: bool, kind: str) -> None:
    assert classify(name, transport, model, rotational) == kind


def test_medium_is_unknown_where_the_flag_is() -> None:
    assert classify("sda", "sata", "x", Missing(Why.DENIED, "rotational")) == "unknown"


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/sys/devices/pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host6/target6:0:0/6:0:0:0/block/sdc", "usb"),
        ("/sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/0000-1111/host0/target0:0:0/0:0:0:0/block/sda", "hyper-v"),
        ("/sys/devices/platform/host8/session1/target8:0:0/8:0:0:1/block/sdb", "iscsi"),
        ("/sys/devices/pci0000:00/0000:03:00.0/host0/port-0:0/end_device-0:0/target0:0:0/0:0:0:0/block/sda", "sas"),
        ("/sys/devices/pci0000:00/0000:03:00.0/host2/target2:2:0/2:2:0:0/block/sda", ""),
    ],
)
def test_transports(path: str, wanted: str) -> None:
    assert transport_of(path) == wanted


# --- hostile input ----------------------------------------------------------------------------------------------------


@given(st.text())
def test_parsers_take_any_text(text: str) -> None:
    for mounts in (parse_mountinfo(text), parse_mounts(text)):
        carrying(mounts, "/data/x")
    unescape(text)
    parse_scheduler(text)
    transport_of(text)
    carrier(text, text)


number = st.sampled_from(["0", "1", "2", "3", "30"])
line = st.builds(
    "{} {} {}:{} / {} rw - {} {} rw,upperdir=/d,lowerdir=/d".format,
    number,
    number,
    st.sampled_from(["0", "8", "7", "253"]),
    number,
    st.sampled_from(["/", "/d", "/d/e", "/f"]),
    st.sampled_from(["ext4", "overlay", "btrfs", "zfs", "tmpfs", "nfs4", "ecryptfs", "fuse.mergerfs"]),
    st.sampled_from(["/dev/sda", "/d", "/dev/mapper/x", "none", "/dev/sda:/dev/sdb"]),
)


@given(st.lists(line, max_size=8))
def test_any_table_of_mounts_gives_places(lines: list[str]) -> None:
    tree = scsi(Tree())
    tree.dirs["/d/e"] = []
    tree.block(f"{VIRTUAL}/loop0", "7:0", {"loop/backing_file": "/d/x"}).block(f"{VIRTUAL}/dm-0", "253:0", {}, ("dm-0", "loop0"))
    tree.mounts = lines
    assert len(tree.probe("/d/e/f").places) >= 1


@pytest.mark.parametrize(
    "content", ["", "\0\0", "-5", "9" * 400, "[", "x" * 100_000, {"error": "denied"}, {"error": "failed"}, None]
)
def test_each_file_may_hold_anything(content: object) -> None:
    tree = scsi(nvme(Tree()))
    tree.block(f"{VIRTUAL}/md0", "9:0", {"md/level": "raid5", "md/degraded": "0"}, ("sda", "nvme0n1"))
    tree.block(f"{VIRTUAL}/dm-0", "253:0", {"dm/name": "a", "dm/uuid": "LVM-x"}, ("md0",))
    tree.mount("41 30 253:0 / /data rw - xfs /dev/mapper/a rw")
    tree.probe("/data")
    for path in list(tree.files):
        hostile = Tree()
        hostile.links, hostile.dirs, hostile.mounts = tree.links, tree.dirs, tree.mounts
        hostile.files = {key: value for key, value in {**tree.files, path: content}.items() if value is not None}
        if path == "/proc/self/mountinfo":
            hostile.mounts = content if isinstance(content, list) else [str(content)]
        hostile.probe("/data")


def test_wrong_answers_of_the_host_are_not_believed() -> None:
    tree = nvme(Tree()).mount("41 30 259:0 / /data rw - ext4 /dev/nvme0n1 rw")
    tree.answers |= {"cwd": 7, "access:/data": ["read"]}
    tree.dirs["/data"] = []
    place = tree.place("/data")
    assert isinstance(place.writable, Missing)


def test_a_read_only_mount_is_not_writable_whatever_the_file_mode_says() -> None:
    tree = nvme(Tree()).mount("41 30 259:0 / /data ro - ext4 /dev/nvme0n1 rw")
    tree.dirs["/data"] = []
    tree.answers["access:/data"] = {"read": True, "write": True}
    assert tree.place("/data").writable is False
