"""What a mount, a disk or a share is judged by, each mark from both sides (storage_tuning)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from storage_hosts import DENIED, FAIL, NA, NOTHING, PASS, UNKNOWN, disk, facts, judged, verdicts, with_places

from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing


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


@pytest.mark.parametrize(
    ("server", "kernel", "expected"),
    [
        ("nas:/data", "6.8.0-45-generic", FAIL),
        ("fs-0123.efs.eu-west-1.amazonaws.com:/", "6.1.0", PASS),
        ("127.0.0.1:/", "6.1.0", PASS),  # EFS's tunnel for TLS
        ("nas:/data", "4.15.0-213-generic", PASS),  # does not know the word
        ("nas:/data", "5.3.0", FAIL),
    ],
)
def test_several_connections_where_they_can_be_had(healthy: Snapshot, server: str, kernel: str, expected: Verdict) -> None:
    seen = with_places(healthy, {"role": "data", "carrier": "nfs", "options": ("proto=tcp",), "mount_source": server})
    assert not isinstance(seen.system, Missing)
    seen = msgspec.structs.replace(seen, system=msgspec.structs.replace(seen.system, kernel=kernel))
    assert judged(seen, "nfs-mount-untuned").verdict is expected


def test_access_times_of_zfs_are_set_on_the_dataset(healthy: Snapshot) -> None:
    (found,) = judged(
        with_places(healthy, {"role": "data", "filesystem": "zfs", "options": ("rw",)}), "mount-options-slow"
    ).evidence
    assert [str(action.text) for action in found.fix if "zfs set relatime=on" in action.text] and found.verdict is FAIL


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
    seen = msgspec.structs.replace(healthy, intent=Workload(nodes=nodes))
    for role in ("home", "cache"):
        place = {"role": role, "filesystem": filesystem, "options": options, "mount_point": "/m"}
        unseen, good = {"role": role, "filesystem": DENIED}, {"role": role}
        found = judged(with_places(seen, unseen, place, good), "cache-without-file-locks").evidence
        assert [item.verdict for item in found] == [UNKNOWN, FAIL if fault else PASS, PASS]
        assert not fault or found[1].seen == fault
