"""lsblk, findmnt, df and mount tables, pasted: from the path that is named down to the disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import judge
from elsewhere import recorded_elsewhere
from torchtune_sys import evidence
from torchtune_sys.evidence.block_devices import size_of
from torchtune_sys.evidence.storage import storage_facts
from torchtune_sys.host.input.opening import PastedText, open_input
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.facts.storage import StoragePath
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Missing, Why

TREE = {
    "blockdevices": [
        {
            "name": "sda",
            "type": "disk",
            "rota": True,
            "tran": "sata",
            "vendor": "ATA     ",
            "model": "ST8000NM000A-2KE101",
            "size": "7.3T",
            "children": [
                {
                    "name": "sda1",
                    "type": "part",
                    "rota": True,
                    "children": [
                        {
                            "name": "luks-1f",
                            "type": "crypt",
                            "rota": True,
                            "children": [
                                {
                                    "name": "vg-data",
                                    "type": "lvm",
                                    "rota": True,
                                    "fstype": "xfs",
                                    "mountpoints": ["/srv/data", None],
                                }
                            ],
                        }
                    ],
                }
            ],
        },
        {
            "name": "nvme0n1",
            "type": "disk",
            "rota": False,
            "tran": "nvme",
            "model": "SOLIDIGM",
            "fstype": "ext4",
            "mountpoint": "/",
        },
    ]
}
TABLE = """\
$ lsblk -o NAME,SIZE,TYPE,ROTA,TRAN,FSTYPE,MODEL,MOUNTPOINTS
NAME            SIZE TYPE  ROTA TRAN   FSTYPE            MODEL                MOUNTPOINTS
sda             7.3T disk     1 sata                     ST8000NM000A-2KE101
├─sda1            1G part     1        vfat                                   /boot/efi
└─sda2          7.3T part     1        linux_raid_member
  └─md127       7.3T raid1    1        xfs                                    /data
                                                                              /exports
sdb             7.3T disk     1 sata                     ST8000NM000A-2KE101
└─sdb1          7.3T part     1        linux_raid_member
  └─md127       7.3T raid1    1        xfs                                    /data
                                                                              /exports
nvme0n1         3.5T disk     0 nvme                     Micron_7450_MTFDKCC3T8TFR
└─nvme0n1p1     3.5T part     0        ext4                                   /
"""


def place(text: str, path: str, role: str = "data") -> StoragePath:
    found = storage_facts(text, Workload(data=(path,)) if role == "data" else Workload(checkpoints=(path,)))
    assert found is not None
    return found.places[0]


def kinds(told: StoragePath) -> list[tuple[str, str]]:
    assert not isinstance(told.disks, Missing), told.disks
    return [(disk.name, disk.kind) for disk in told.disks]


def verdict(rule: str, text: str, *data: str) -> Verdict:
    seen = evidence.read(text, "paste", Workload(data=data))
    assert seen is not None
    return judge(seen)[rule].verdict


def test_json_tree_leads_through_lvm_and_luks_to_the_spinning_disk() -> None:
    text = json.dumps(TREE)
    told = place(text, "/srv/data/imagenet")
    assert kinds(told) == [("sda", "hdd")]
    assert told.layers == ("lvm vg-data", "dm-crypt luks-1f", "partition sda1")
    assert verdict("data-on-spinning-disk", text, "/srv/data/imagenet") is Verdict.FAIL
    assert verdict("data-on-spinning-disk", text, "/") is Verdict.PASS


def test_table_with_two_members_and_two_mount_points() -> None:
    for path in ("/data/x", "/exports"):
        told = place(TABLE, path)
        assert kinds(told) == [("sda", "hdd"), ("sdb", "hdd")], path
        assert [(array.name, array.level) for array in told.arrays] == [("md127", "raid1")]
        assert told.filesystem == "xfs"
    assert kinds(place(TABLE, "/")) == [("nvme0n1", "nvme")]


def test_old_ascii_tree() -> None:
    text = (
        "NAME   MAJ:MIN RM   SIZE RO TYPE MOUNTPOINT ROTA MODEL\nsda      8:0    0 931.5G  0 disk               1 ST1000DM010\n"
    )
    text += "|-sda1   8:1    0   512M  0 part /boot         1 \n`-sda2   8:2    0   931G  0 part /d            1 \n"
    assert kinds(place(text, "/d/x")) == [("sda", "hdd")]


def test_pairs_name_their_parents() -> None:
    text = (
        'NAME="/dev/sda" TYPE="disk" ROTA="1" TRAN="sas" VENDOR="SEAGATE " MODEL="ST600MM0009     " MOUNTPOINT="" PKNAME=""\n'
        'NAME="/dev/sda3" TYPE="part" ROTA="1" MOUNTPOINT="" PKNAME="/dev/sda"\n'
        'NAME="/dev/mapper/centos-root" TYPE="lvm" ROTA="1" MOUNTPOINT="/" FSTYPE="xfs" PKNAME="/dev/sda3"\n'
    )
    assert kinds(place(text, "/")) == [("sda", "hdd")]


@pytest.mark.parametrize(
    "disk",
    [
        {"name": "vda", "rota": True},
        {"name": "xvdf", "rota": True},
        {"name": "sda", "rota": True, "vendor": "QEMU    ", "model": "QEMU HARDDISK"},
        {"name": "sda", "rota": True, "vendor": "Msft    ", "model": "Virtual Disk"},
        {"name": "nvme1n1", "rota": False, "model": "Amazon Elastic Block Store"},
        {"name": "sda", "rota": None},
    ],
)
def test_made_up_disks_tell_no_medium(disk: dict[str, object]) -> None:
    text = json.dumps({"blockdevices": [{**disk, "type": "disk", "mountpoint": "/data"}]})
    assert verdict("data-on-spinning-disk", text, "/data") is Verdict.UNKNOWN


def test_lsblk_alone_does_not_show_a_share() -> None:
    told = place(json.dumps(TREE), "/mnt/share")
    assert isinstance(told.mount_point, Missing)
    assert "findmnt" in told.mount_point.remedy


def test_findmnt_names_the_share_and_the_room() -> None:
    text = json.dumps(
        {
            "filesystems": [
                {"target": "/mnt/s", "source": "10.0.0.5:/e", "fstype": "nfs4", "options": "rw,hard", "size": "2T", "avail": "1G"}
            ]
        }
    )
    told = place(text, "/mnt/s/x")
    assert (told.carrier, told.network, told.free_bytes) == ("nfs", True, 1 << 30)
    assert verdict("data-on-network-filesystem", text, "/mnt/s/x") is Verdict.FAIL


def test_findmnt_and_lsblk_together() -> None:
    mount = {
        "target": "/srv",
        "source": "/dev/mapper/vg-data[/sub]",
        "fstype": "xfs",
        "options": "ro",
        "size": "7T",
        "avail": "3T",
    }
    text = "# findmnt -J -T /srv\n" + json.dumps({"filesystems": [mount]}) + "\n# lsblk -J\n" + json.dumps(TREE)
    told = place(text, "/srv/x")
    assert kinds(told) == [("sda", "hdd")]
    assert told.writable is False


def test_findmnt_table() -> None:
    text = "TARGET   SOURCE         FSTYPE OPTIONS\n/        /dev/nvme0n1p2 ext4   rw,relatime\n├─/data  10.0.0.9:/data nfs4   rw,vers=4.2\n"
    assert place(text, "/data/x").carrier == "nfs"


DF = """\
Filesystem             Size  Used Avail Use% Mounted on
tmpfs                   26G  3.2M   26G   1% /run
/dev/nvme0n1p2         439G  439G     0 100% /
10.0.0.5:/vol/my data   10T    9T  1.0T  90% /mnt/my data
"""


def test_df_tells_of_a_full_root_without_any_path_named() -> None:
    seen = evidence.read(DF, "df.txt")
    assert seen is not None
    assert judge(seen)["disk-full"].verdict is Verdict.FAIL
    assert judge(seen)["data-on-spinning-disk"].verdict is not Verdict.FAIL
    assert place(DF, "/mnt/my data/x").carrier == "nfs"


def test_df_in_kib_with_types() -> None:
    text = "Filesystem     Type 1K-blocks     Used Available Use% Mounted on\n/dev/sda2      xfs  104857600 52428800  52428800  50% /ck\n"
    told = place(text, "/ck/run", "checkpoints")
    assert (told.filesystem, told.size_bytes, told.free_bytes) == ("xfs", 100 << 30, 50 << 30)


def test_inodes_are_not_bytes() -> None:
    found = storage_facts("Filesystem Inodes IUsed IFree IUse% Mounted on\n/dev/sda1 100 99 1 99% /\n", Workload())
    assert found is not None and isinstance(found.places[0].size_bytes, Missing)
    assert (found.places[0].inodes, found.places[0].inodes_free) == (100, 1)


def test_mount_table() -> None:
    text = "25 1 8:2 / / rw - ext4 /dev/sda2 rw\n40 25 0:50 / /data rw - fuse.gcsfuse bucket rw\n"
    assert place(text, "/data/x").carrier == "object-store"


@pytest.mark.parametrize("text", ["", "NAME  AGE  SIZE\npod 3d 4\n", "NAME READY STATUS\nx 1/1 Running\n", "Filesystem\n", "{}"])
def test_other_text_is_not_storage(text: str) -> None:
    found = storage_facts(text, Workload())
    assert found is None or found.disks == () or isinstance(found.disks, Missing)


def test_json_of_lsblk_is_opened_as_text(tmp_path: Path) -> None:
    path = tmp_path / "lsblk.json"
    path.write_text("\n" + json.dumps(TREE))
    assert isinstance(open_input(str(path)), PastedText)


@pytest.mark.parametrize(
    ("cell", "size"), [("0B", 0), ("894.3G", 960247313203), ("7,5K", 7680), ("20", 20), ("", None), ("1.7X", None), ("-5", None)]
)
def test_sizes(cell: str, size: int | None) -> None:
    assert size_of(cell) == size


@given(st.text(alphabet=st.sampled_from('NAMEsda1 \n│├└─|`-/{}[]":,%MOUNTPOISZblkdevc0G'), max_size=400))
def test_any_text_is_survived(text: str) -> None:
    storage_facts(text, Workload(data=("/data",)))
    storage_facts("NAME SIZE TYPE MOUNTPOINT\n" + text, Workload(data=("/data",)))


leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.sampled_from(["sda", "sdb", "/", "disk", "part"])
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["name", "type", "size", "rota", "children", "mountpoint", "mountpoints", "target", "source", "fstype", "pkname"]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["blockdevices", "filesystems"]), values)
def test_any_json_is_survived(key: str, value: object) -> None:
    text = json.dumps({key: [value] if isinstance(value, dict) else value})
    seen = evidence.read(text, "x", Workload(data=("/", "/data")))
    assert seen is None or Verdict.CRASHED not in {each.verdict for each in judge(seen).values()}


def test_deep_nesting_and_long_lines_are_survived() -> None:
    storage_facts('{"blockdevices": ' + "[" * 200_000, Workload())
    storage_facts("Filesystem Size Used Avail Use% Mounted on\n" + "1 " * 500_000, Workload())
    storage_facts("NAME SIZE TYPE\n" + "x " * 500_000, Workload())


EXPECTED = {
    "lsblk.2.json": ("/", "vda", "virtual"),  # virtio: rota is the driver's default
    "lsblk.4.json": ("/raid/x", "nvme0n1", "nvme"),  # eight drives below a stripe set
    "lsblk.5.json": ("/", "nvme0n1", "nvme"),
    "lsblk.3.txt": ("/data1/set", "nvme0n1", "nvme"),
    "lsblk.withlv.censored.json": ("/mnt/local_disk/d", "nvme2n1", "nvme"),
    "lsblk.xfs_vfat.json": ("/lepton-data-disk", "nvme0n1", "nvme"),
    "lsblk.3.json": ("/sample-data-disk", "nvme0n1", "nvme"),
    "lsblk.1.json": ("/mnt/local-volume/vol-0/x", "nvme2n1", "nvme"),
}


@pytest.mark.parametrize("path", ["/data/x", "relative"])
def test_the_device_number_that_no_report_tells_is_empty_text(path: str) -> None:
    told = place(json.dumps(TREE), path)
    assert told.device == ""
    assert isinstance(told.readable, Missing)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_real_hosts(name: str) -> None:
    path, disk, kind = EXPECTED[name]
    text = recorded_elsewhere(f"lsblk/{name}").read_text()
    found = kinds(place(text, path))
    assert found[0] == (disk, kind)
    assert {each for _, each in found} == {kind}
    assert verdict("data-on-spinning-disk", text, path) is (Verdict.PASS if kind == "nvme" else Verdict.UNKNOWN)


@pytest.mark.parametrize("name", ["findmnt.0.json", "findmnt.1.json"])
def test_real_findmnt_has_room(name: str) -> None:
    text = recorded_elsewhere(f"lsblk/{name}").read_text()
    told = place(text, json.loads(text)["filesystems"][0]["target"])
    assert isinstance(told.free_bytes, int)
    assert told.free_bytes > 1 << 40
    assert isinstance(told.disks, Missing)
    assert told.disks.why is Why.NOT_RECORDED
