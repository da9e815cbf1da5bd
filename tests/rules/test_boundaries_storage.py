"""What a mount, a disk or a share is judged by, each mark from both sides."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from torchtune_sys import engine
from torchtune_sys.model.facts.session import Intent
from torchtune_sys.model.facts.storage import Array, Disk, Place, StorageFacts
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import storage
from torchtune_sys.rules.storage_places import subject

DENIED = Missing(Why.DENIED, "test")
NOTHING = Missing(Why.ABSENT, "test")
GIB = 1 << 30
BY_ID = {rule.id: rule for rule in storage.RULES}
PASS, FAIL, UNKNOWN, NA = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN, Verdict.NA


def facts(seen: Snapshot) -> StorageFacts:
    assert not isinstance(seen.storage, Missing)
    return seen.storage


def first(seen: Snapshot) -> Place:
    return next(place for place in facts(seen).places if place.role == "working directory")


def disk(seen: Snapshot, **changed: Any) -> Disk:
    disks = first(seen).disks
    assert not isinstance(disks, Missing)
    return msgspec.structs.replace(disks[0], **changed)


def with_places(seen: Snapshot, *places: dict[str, Any]) -> Snapshot:
    """The healthy host with these places in the stead of its own, each described by how it differs from the working directory."""
    found = tuple(msgspec.structs.replace(first(seen), path=f"/p{number}", **place) for number, place in enumerate(places))
    return msgspec.structs.replace(seen, storage=msgspec.structs.replace(facts(seen), places=found))


def judged(seen: Snapshot, rule_id: str) -> Result:
    return engine.judge(seen, (BY_ID[rule_id],))[0]


def verdicts(seen: Snapshot, rule_id: str, *places: dict[str, Any]) -> list[Verdict]:
    return [item.verdict for item in judged(with_places(seen, *places), rule_id).evidence]


@pytest.mark.parametrize(
    ("filesystem", "options", "verdict"),
    [
        *((filesystem, ("rw",), FAIL) for filesystem in ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs")),
        *(("xfs", ("rw", option), PASS) for option in ("noatime", "relatime", "lazytime")),
        ("xfs", ("ro",), PASS),
        ("squashfs", ("rw",), PASS),  # keeps no access times
        ("xfs", ("rw", "relatime", "sync"), FAIL),
        ("xfs", ("rw", "relatime", "dirsync"), FAIL),
        (DENIED, ("rw", "relatime"), PASS),
        (DENIED, ("rw", "sync"), FAIL),
        (DENIED, ("rw",), UNKNOWN),  # the kernel marks access times by printing nothing, of some file systems only
        ("xfs", DENIED, UNKNOWN),
    ],
)
def test_mounts_on_which_every_access_waits(healthy: Snapshot, filesystem: Any, options: Any, verdict: Verdict) -> None:
    place = {"filesystem": filesystem, "options": options}
    fine = {"options": ("rw", "noatime")}
    assert verdicts(healthy, "mount-options-slow", place, fine) == [verdict, PASS]


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


def test_a_place_without_a_path_is_called_by_its_role(healthy: Snapshot) -> None:
    assert subject(msgspec.structs.replace(first(healthy), path="", role="data")) == "data"
    assert subject(msgspec.structs.replace(first(healthy), path="/x", role="data")) == "data /x"


# --- room


@pytest.mark.parametrize(
    ("place", "full", "low"),
    [
        ({"size_bytes": 1500 * GIB, "free_bytes": 15 * GIB}, PASS, FAIL),  # a hundredth
        ({"size_bytes": 1500 * GIB, "free_bytes": 15 * GIB - 1}, FAIL, NA),
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
    assert "see disk-full" in finding.seen or full is not FAIL


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
    saves = {"mount_point": "/data"}
    same, other = {"role": "temporary files", **saves}, {"role": "temporary files", "mount_point": "/tmp"}
    found = verdicts(
        healthy,
        "temporary-space-low",
        saves,
        {**same, "free_bytes": GIB - 1},  # disk-full says it
        {**same, "free_bytes": GIB},
        {**other, "free_bytes": DENIED},
        {**other, "free_bytes": GIB - 1},
        {**other, "free_bytes": 4 * GIB},
    )
    assert found == [NA, FAIL, UNKNOWN, FAIL, PASS]


# --- mounts and disks


@pytest.mark.parametrize(
    ("place", "verdict"),
    [
        ({"carrier": "nfs"}, FAIL),
        ({"carrier": DENIED}, UNKNOWN),
        ({"carrier": "parallel"}, NA),
        ({"carrier": "disk", "kinds": ("hdd",)}, FAIL),
        ({"carrier": "disk", "kinds": ("hdd", "hdd")}, FAIL),
        ({"carrier": "disk", "kinds": ("hdd", "nvme")}, NA),
        ({"carrier": "disk", "kinds": ("nvme",)}, NA),
        ({"carrier": "disk", "kinds": ()}, NA),
        ({"carrier": "disk", "disks": DENIED}, UNKNOWN),
        ({"carrier": "memory", "kinds": ("hdd",)}, NA),  # a tmpfs has no disks
        ({"carrier": "nfs", "read_ahead_kib": DENIED}, UNKNOWN),
        ({"carrier": "nfs", "read_ahead_kib": 1023}, FAIL),
        ({"carrier": "nfs", "read_ahead_kib": 1024}, PASS),
    ],
)
def test_read_ahead_of_what_answers_slowly(healthy: Snapshot, place: dict[str, Any], verdict: Verdict) -> None:
    slow = {"read_ahead_kib": 128, **place}
    if "kinds" in slow:
        slow["disks"] = tuple(disk(healthy, kind=kind) for kind in slow.pop("kinds"))
    assert verdicts(healthy, "read-ahead-small", slow, {"carrier": "nfs", "read_ahead_kib": 4096}) == [verdict, PASS]


@pytest.mark.parametrize(
    ("rule_id", "kind", "scheduler", "verdict"),
    [
        *(("nvme-scheduler-not-none", "nvme", name, PASS) for name in ("none", "noop")),
        *(("nvme-scheduler-not-none", "nvme", name, FAIL) for name in ("mq-deadline", "bfq", "kyber")),
        *(("hdd-scheduler-none", "hdd", name, PASS) for name in ("mq-deadline", "bfq", "kyber", "deadline", "cfq")),
        *(("hdd-scheduler-none", "hdd", name, FAIL) for name in ("none", "noop")),
        *(
            (rule_id, kind, DENIED, UNKNOWN)
            for rule_id, kind in (("nvme-scheduler-not-none", "nvme"), ("hdd-scheduler-none", "hdd"))
        ),
    ],
)
def test_schedulers_of_disks(healthy: Snapshot, rule_id: str, kind: str, scheduler: Any, verdict: Verdict) -> None:
    good = "none" if kind == "nvme" else "bfq"
    disks = [("a", kind, NOTHING), ("b", "ssd", "bfq"), ("c", kind, scheduler), ("d", kind, good)]
    found = tuple(disk(healthy, name=name, kind=kind, scheduler=chosen) for name, kind, chosen in disks)
    seen = msgspec.structs.replace(healthy, storage=msgspec.structs.replace(facts(healthy), disks=found))
    result = judged(seen, rule_id)
    assert [(item.subject, item.verdict) for item in result.evidence] == [("c", verdict), ("d", PASS)]
    assert bool(result.evidence[0].fix) is (verdict is FAIL)
    none = msgspec.structs.replace(healthy, storage=msgspec.structs.replace(facts(healthy), disks=found[1:2]))
    assert judged(none, rule_id).verdict is NA


TUNED = ("rw", "rsize=1048576", "wsize=1048576", "proto=tcp", "nconnect=8")


@pytest.mark.parametrize(
    ("options", "faults"),
    [
        (TUNED, ""),
        (("rw",), ""),  # what is not told is not judged
        (("rsize=131072",), ""),
        (("rsize=131071",), "rsize=131071"),
        (("rsize=x",), ""),
        (("rsize=\u0662",), ""),
        (("proto=udp",), "proto=udp"),
        (("proto=udp6",), "proto=udp"),
        (("proto=tcp",), "one connection (no nconnect)"),
        (("proto=tcp6",), "one connection (no nconnect)"),
        (("proto=tcp", "nconnect=1"), "one connection (no nconnect)"),
        (("proto=tcp", "nconnect=2"), ""),
        (("proto=rdma",), ""),
        (("noac",), "no attribute cache (noac)"),
        (("actimeo=0",), "no attribute cache (noac)"),
        (("actimeo=3",), ""),
        (("acregmax=0",), "no attribute cache (noac)"),
        (("rsize=4096", "proto=udp", "noac"), "rsize=4096, proto=udp, no attribute cache (noac)"),
        (("x=rsize=1", "rsize=1=2"), ""),  # no number of that name
    ],
)
def test_options_of_nfs(healthy: Snapshot, options: tuple[str, ...], faults: str) -> None:
    place = {"role": "data", "carrier": "nfs", "options": options}
    (finding, good) = judged(with_places(healthy, place, {"carrier": "nfs", "options": TUNED}), "nfs-mount-untuned").evidence
    assert (finding.verdict, good.verdict) == (FAIL if faults else PASS, PASS)
    assert not faults or finding.seen == faults


def test_only_data_wants_several_connections(healthy: Snapshot) -> None:
    for role in ("checkpoints", "working directory"):
        assert verdicts(healthy, "nfs-mount-untuned", {"role": role, "carrier": "nfs", "options": ("proto=tcp",)}) == [PASS]


def test_without_nfs_its_options_are_not_judged(healthy: Snapshot) -> None:
    assert judged(with_places(healthy, {}), "nfs-mount-untuned").verdict is NA
    assert judged(with_places(healthy, {"carrier": DENIED}), "nfs-mount-untuned").verdict is UNKNOWN
    assert verdicts(healthy, "nfs-mount-untuned", {}, {"carrier": "nfs", "options": TUNED}) == [PASS]


@pytest.mark.parametrize("role", ["checkpoints", "working directory"])
@pytest.mark.parametrize(
    ("options", "verdict"),
    [(("nobarrier",), FAIL), (("barrier=0",), FAIL), (("barrier=1",), PASS), ((), PASS), (DENIED, UNKNOWN)],
)
def test_mounts_that_flush_nothing(healthy: Snapshot, role: str, options: Any, verdict: Verdict) -> None:
    assert verdicts(healthy, "mount-without-barriers", {"role": role, "options": options}, {}) == [verdict, PASS]


@pytest.mark.parametrize(
    ("filesystem", "options", "nodes", "fault"),
    [
        ("lustre", (), 1, "lustre without flock on /m"),
        ("lustre", ("flock",), 1, ""),
        ("lustre", ("localflock",), 1, ""),
        *(
            (filesystem, options, 2, f"{filesystem} with {name} (locks hold on this host only) on /m")
            for filesystem in ("nfs", "nfs4")
            for options, name in (
                (("nolock",), "nolock"),
                (("local_lock=all",), "local_lock"),
                (("local_lock=flock",), "local_lock"),
            )
        ),
        ("nfs", ("nolock",), 1, ""),  # no other host locks the same file
        ("nfs", ("nolock",), None, ""),
        ("nfs", ("local_lock=none",), 2, ""),
        ("nfs", ("local_lock=posix",), 2, ""),  # torch and Hugging Face lock by flock
        ("nfs", (), 2, ""),
        ("ext4", ("nolock",), 2, ""),
    ],
)
def test_mounts_without_locks(
    healthy: Snapshot, filesystem: str, options: tuple[str, ...], nodes: int | None, fault: str
) -> None:
    seen = msgspec.structs.replace(healthy, intent=Intent(nodes=nodes))
    for role in ("home", "cache"):
        place = {"role": role, "filesystem": filesystem, "options": options, "mount_point": "/m"}
        unseen, good = {"role": role, "filesystem": DENIED}, {"role": role}
        found = judged(with_places(seen, unseen, place, good), "cache-without-file-locks").evidence
        assert [item.verdict for item in found] == [UNKNOWN, FAIL if fault else PASS, PASS]
        assert not fault or found[1].seen == fault
