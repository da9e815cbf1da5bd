"""What a mount, a disk or a share is judged by, each mark from both sides."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from torchtune_sys import engine
from torchtune_sys.model.facts.storage import Disk, Place, StorageFacts
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import storage

DENIED = Missing(Why.DENIED, "test")
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
