"""What a mount, a disk or a share is judged by, each mark from both sides (storage)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from storage_hosts import DENIED, FAIL, NA, NOTHING, PASS, UNKNOWN, disk, first, judged, verdicts, with_places

from torchtune_sys.model.facts.storage import Array
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules.storage.common import subject

GIB = 1 << 30


@pytest.mark.parametrize(
    ("carrier", "stores", "verdict"),
    [
        ("disk", DENIED, UNKNOWN),  # it may be an instance store
        ("disk", (False,), PASS),
        ("disk", (True,), FAIL),
        ("disk", (True, True), FAIL),
        ("disk", (True, False), PASS),
        ("disk", (), PASS),
        ("memory", DENIED, FAIL),
        ("layers", DENIED, FAIL),
        ("layers", (), FAIL),
        ("layers", (False,), PASS),  # an overlay of the host itself, such as a live system's
        ("layers", (True,), FAIL),
        ("nfs", DENIED, PASS),
        (DENIED, (False,), UNKNOWN),
    ],
)
def test_places_where_checkpoints_are_lost(healthy: Snapshot, carrier: Any, stores: Any, verdict: Verdict) -> None:
    disks = stores if isinstance(stores, Missing) else tuple(disk(healthy, instance_store=store) for store in stores)
    place = {"role": "checkpoints", "carrier": carrier, "disks": disks}
    fine = {"role": "checkpoints", "carrier": "nfs"}
    assert verdicts(healthy, "checkpoints-on-volatile-storage", place, fine) == [verdict, PASS]


# --- what the data lies on


@pytest.mark.parametrize(
    ("kinds", "verdict"),
    [
        (("nvme",), PASS),
        (("ssd", "nvme"), PASS),
        (("pmem",), PASS),
        (("hdd",), FAIL),
        (("hdd", "hdd"), FAIL),
        (("hdd", "ssd"), UNKNOWN),  # which of them holds the data?
        (("hdd", "virtual"), UNKNOWN),
        (("virtual",), UNKNOWN),
        (("unknown",), UNKNOWN),
        (("nvme", "unknown"), UNKNOWN),
        ((), PASS),
    ],
)
def test_the_medium_under_the_data(healthy: Snapshot, kinds: tuple[str, ...], verdict: Verdict) -> None:
    place = {"disks": tuple(disk(healthy, name=f"d{number}", kind=kind) for number, kind in enumerate(kinds))}
    (finding,) = judged(with_places(healthy, place), "data-on-spinning-disk").evidence
    assert finding.verdict is verdict
    assert (finding.why.why if finding.why is not None else None) is (Why.NOT_SUPPORTED if verdict is UNKNOWN else None)
    assert kinds or finding.seen == "memory"


@pytest.mark.parametrize(
    ("place", "verdict"),
    [
        ({"network": True, "disks": DENIED}, NA),
        ({"network": DENIED}, UNKNOWN),
        ({"network": False, "disks": DENIED}, UNKNOWN),
        ({"network": False}, PASS),
    ],
)
def test_disks_of_another_machine_are_not_judged(healthy: Snapshot, place: dict[str, Any], verdict: Verdict) -> None:
    hdd = {"disks": (disk(healthy, kind="hdd"),)}
    assert verdicts(healthy, "data-on-spinning-disk", place, hdd) == [verdict, FAIL]


def test_disks_on_usb(healthy: Snapshot) -> None:
    usb = {"disks": (disk(healthy, transport="usb"),)}
    mixed = {"disks": (disk(healthy, transport="sata"), disk(healthy, transport="usb"), disk(healthy, transport="usb"))}
    elsewhere, unseen = {"network": True, "disks": DENIED}, {"network": False, "disks": DENIED}
    assert verdicts(healthy, "data-on-usb-disk", elsewhere, unseen, {}, mixed, usb) == [NA, UNKNOWN, FAIL, FAIL, FAIL]
    assert verdicts(healthy, "data-on-usb-disk", {"network": DENIED, "disks": DENIED}) == [UNKNOWN]


@pytest.mark.parametrize(
    ("carrier", "rule_id"),
    [
        ("object-store", "data-on-object-store"),
        ("nfs", "data-on-network-filesystem"),
        ("smb", "data-on-network-filesystem"),
        ("remote", "data-on-network-filesystem"),
        ("layers", "data-on-container-layer"),
        ("parallel", ""),
        ("disk", ""),
    ],
)
def test_what_carries_the_data(healthy: Snapshot, carrier: str, rule_id: str) -> None:
    for other in ("data-on-object-store", "data-on-network-filesystem", "data-on-container-layer"):
        found = verdicts(
            healthy, other, {"role": "data", "carrier": DENIED}, {"role": "data", "carrier": carrier}, {"role": "data"}
        )
        assert found == [UNKNOWN, FAIL if other == rule_id else PASS, PASS]


@pytest.mark.parametrize(
    ("place", "windows"),
    [
        ({"carrier": "hypervisor", "mount_source": "C:\\", "options": ("rw",)}, True),
        ({"carrier": "hypervisor", "mount_source": "drvfs", "options": ("rw",)}, True),
        ({"carrier": "hypervisor", "mount_source": "none", "options": ("rw", "aname=drvfs;path=D:\\")}, True),
        ({"carrier": "hypervisor", "mount_source": DENIED, "options": ("aname=drvfs;path=D:\\",)}, True),
        ({"carrier": "hypervisor", "mount_source": "C:\\", "options": DENIED}, True),
        ({"carrier": "hypervisor", "mount_source": "share", "options": DENIED}, False),
        ({"carrier": "hypervisor", "mount_source": DENIED, "options": ("rw",)}, False),
        ({"carrier": "hypervisor", "mount_source": "share", "options": ("trans=virtio",)}, False),
        ({"carrier": "disk", "mount_source": "C:\\", "options": ("rw",)}, False),
    ],
)
def test_windows_drives(healthy: Snapshot, place: dict[str, Any], windows: bool) -> None:
    other = {"carrier": "hypervisor", "mount_source": "C:\\"}
    found = verdicts(healthy, "data-on-windows-drive", {"carrier": DENIED}, place, other)
    assert found == [UNKNOWN, *[FAIL] * windows, FAIL]


def array(name: str, degraded: Any) -> Array:
    return Array(name=name, level="raid5", degraded=degraded)


def test_arrays_that_lost_a_member(healthy: Snapshot) -> None:
    def found(*places: dict[str, Any]) -> list[tuple[str, Verdict]]:
        return [(item.subject, item.verdict) for item in judged(with_places(healthy, *places), "md-array-degraded").evidence]

    assert found({"arrays": (array("md0", 1),)}) == [("md0", FAIL)]
    assert found({"arrays": (array("md0", 0), array("md1", 2))}) == [("md0", PASS), ("md1", FAIL)]
    assert found({"arrays": (array("md0", 1),)}, {"arrays": (array("md0", 1),)}) == [("md0", FAIL)]  # once
    assert found({"arrays": (array("md0", NOTHING), array("md1", DENIED))}) == [("md1", UNKNOWN)]
    assert found({"mount_point": DENIED}, {"arrays": (array("md0", 0),)})[1:] == [("md0", PASS)]
    assert judged(with_places(healthy, {}), "md-array-degraded").verdict is NA
    seen = with_places(healthy, {})
    assert not isinstance(seen.storage, Missing)
    both = msgspec.structs.replace(seen.storage, mounted_arrays=(array("md3", 1), array("md4", 0)))
    mounted = msgspec.structs.replace(seen, storage=both)
    assert [(item.subject, item.verdict) for item in judged(mounted, "md-array-degraded").evidence] == [
        ("md3", FAIL),
        ("md4", PASS),
    ]


def test_a_place_without_a_path_is_called_by_its_role(healthy: Snapshot) -> None:
    assert subject(msgspec.structs.replace(first(healthy), path="", role="data")) == "data"
    assert subject(msgspec.structs.replace(first(healthy), path="/x", role="data")) == "data /x"


# --- room


@pytest.mark.parametrize(
    ("place", "full", "low"),
    [
        ({"size_bytes": 300 * GIB, "free_bytes": 3 * GIB}, PASS, FAIL),  # a hundredth
        ({"size_bytes": 300 * GIB, "free_bytes": 3 * GIB - 1}, FAIL, NA),
        ({"size_bytes": 1500 * GIB, "free_bytes": 14 * GIB}, PASS, FAIL),  # most checkpoints still fit
        ({"size_bytes": 1, "free_bytes": 0}, FAIL, NA),
        ({"size_bytes": 0, "free_bytes": 0}, UNKNOWN, UNKNOWN),
        ({"size_bytes": DENIED}, UNKNOWN, UNKNOWN),
        ({"free_bytes": DENIED}, UNKNOWN, UNKNOWN),
        ({"size_bytes": 1500 * GIB, "free_bytes": 0, "options": ("ro",)}, NA, NA),
        ({"size_bytes": 1500 * GIB, "free_bytes": 0, "options": DENIED}, FAIL, NA),
    ],
)
def test_room_for_checkpoints(healthy: Snapshot, place: dict[str, Any], full: Verdict, low: Verdict) -> None:
    assert verdicts(healthy, "disk-full", place, {}) == [full, PASS]
    (finding, other) = judged(with_places(healthy, place, {}), "disk-space-low").evidence
    assert (finding.verdict, other.verdict) == (low, PASS)
    assert finding.wanted == "see disk-full" or full is not FAIL


def test_a_file_system_that_tells_no_size_is_unknown_for_that(healthy: Snapshot) -> None:
    (finding,) = judged(with_places(healthy, {"size_bytes": 0}), "disk-full").evidence
    assert finding.why is not None and finding.why.why is Why.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("inodes", "free", "exhausted", "low"),
    [
        (0, 0, PASS, PASS),
        (1, 0, FAIL, NA),
        (1, 1, PASS, PASS),
        (32_000_000, 0, FAIL, NA),
        (198, 99, PASS, PASS),  # half of few is left
        (199, 99, FAIL, NA),
        (DENIED, 5, UNKNOWN, UNKNOWN),
        (500, DENIED, UNKNOWN, UNKNOWN),
    ],
)
def test_inodes_for_checkpoints(healthy: Snapshot, inodes: Any, free: Any, exhausted: Verdict, low: Verdict) -> None:
    place = {"inodes": inodes, "inodes_free": free}
    assert verdicts(healthy, "inodes-exhausted", place, {}) == [exhausted, PASS]
    assert verdicts(healthy, "inodes-low", place, {}) == [low, PASS]
    (finding, _) = judged(with_places(healthy, place, {}), "inodes-exhausted").evidence
    assert (finding.seen == "no fixed number of inodes") is (inodes == 0)


def test_room_for_temporary_files_of_each_place(healthy: Snapshot) -> None:
    saves = {"mount_point": "/data", "free_bytes": GIB - 1}
    same, other = {"role": "temporary files", "mount_point": "/data"}, {"role": "temporary files", "mount_point": "/tmp"}
    found = verdicts(
        healthy,
        "temporary-space-low",
        saves,
        {**same, "free_bytes": GIB - 1},  # disk-full says it of the same file system
        {**same, "free_bytes": GIB},
        {**other, "free_bytes": DENIED},
        {**other, "free_bytes": GIB - 1},
        {**other, "free_bytes": 4 * GIB},
    )
    assert found == [NA, NA, UNKNOWN, FAIL, PASS]
