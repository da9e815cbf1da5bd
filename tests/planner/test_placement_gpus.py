"""Which GPU each rank takes, and that ranks which each look for themselves come to one answer."""

from __future__ import annotations

import msgspec
import pytest
from seats import NOT_LOOKED, broken, gpus, machine

from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts.gpu import Gpu, GpuFacts
from torchtune_sys.model.placement import GpuDevice
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.remediation.placement.assign import place_bound_rank, place_ranks
from torchtune_sys.remediation.placement.gpus import on_bus, visible

DGX = ((32, 1024), (32, 1024))
EIGHT = gpus(0, 0, 0, 0, 1, 1, 1, 1)
CPUS = CpuSet.parse


def shown(found: object) -> list[str]:
    return [str(seat.cpus) for seat in found.seats]  # type: ignore[attr-defined]


# --- which GPU a rank takes


@pytest.mark.parametrize(
    ("listed", "wanted"),
    [
        ("3,1", ["0000:13:00.0", "0000:11:00.0"]),
        ("GPU-0002,GPU-0000-1", ["0000:12:00.0", "0000:10:00.0"]),
        ("0,9,1", ["0000:10:00.0"]),
        ("0,4,1", ["0000:10:00.0"]),
        ("1gpu2,2ampere", ["0000:11:00.0", "0000:12:00.0"]),  # torch's own example of strtoul
        ("+2, 01", ["0000:12:00.0", "0000:11:00.0"]),
        ("0,1,0", []),
        ("0,00", []),
        ("GPU-0001,GPU-0001", []),
        ("MIG-GPU-0002-1/1/0,MIG-GPU-0002-1/1/0", []),
        ("MIG-GPU-0002-1/1/0,MIG-GPU-0002-1/2/0", ["0000:12:00.0", "0000:12:00.0"]),
        ("1,GPU-0000", ["0000:11:00.0"]),
        ("GPU-0001,0", ["0000:11:00.0"]),
        ("1," + "9" * 5000 + ",0", ["0000:11:00.0"]),  # more digits than int() takes
        ("GPU-", []),  # names all of them, which is none
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("MIG-GPU-0002-1/1/0", ["0000:12:00.0"]),
        ("MIG-12345678-aaaa", [""]),
        ("٣", []),
    ],
)
def test_cuda_visible_devices(listed: str, wanted: list[str]) -> None:
    s, room = machine(DGX, gpus(0, 0, 1, 1), env={"CUDA_VISIBLE_DEVICES": listed})
    assert list(visible(s, room.boards).addresses) == wanted


def test_what_nvml_tells_comes_before_what_the_driver_does() -> None:
    """In a container the driver's directory may show GPUs that are not the session's."""
    s, room = machine(DGX, EIGHT)
    unseen = dict.fromkeys(Gpu.__struct_fields__, NOT_LOOKED) | {"lost": False}
    seen = [Gpu(**{**unseen, "index": at, "pci_address": f"0000:{bus}:00.0"}) for at, bus in enumerate(("17", "12", "14"))]
    seen[2] = msgspec.structs.replace(seen[2], lost=True)
    facts = GpuFacts(**{**dict.fromkeys(GpuFacts.__struct_fields__, NOT_LOOKED), "devices": tuple(seen)})
    s = msgspec.structs.replace(s, gpu=facts)
    assert visible(s, room.boards).addresses == ("0000:12:00.0", "0000:17:00.0")


def test_an_instance_of_unknown_place_is_near_all_gpus_that_are_at_one_node() -> None:
    s, room = machine(DGX, gpus(1, 1), env={"CUDA_VISIBLE_DEVICES": "MIG-1234,MIG-5678"})
    found = place_ranks(s, room, 2)
    assert shown(found) == ["32-47", "48-63"]
    assert "MIG" in found.notes[0]


def test_an_instance_of_the_only_gpu_is_a_part_of_that() -> None:
    s, room = machine(DGX, gpus(1), env={"CUDA_VISIBLE_DEVICES": "MIG-1234,MIG-5678"})
    assert visible(s, room.boards).addresses == ("0000:10:00.0", "0000:10:00.0")
    assert visible(s, room.boards).note == ""


def test_gpus_of_several_models() -> None:
    s, _ = machine(DGX, gpus(0, 1))
    boards = (
        GpuDevice(address="0000:10:00.0", name="T4", uuid="GPU-1"),
        GpuDevice(address="0000:11:00.0", name="A100", uuid="GPU-2"),
    )
    unordered = visible(s, boards)
    assert unordered.addresses == ("", "")
    assert "CUDA_DEVICE_ORDER" in unordered.note
    ordered = machine(DGX, gpus(0, 1), env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})[0]
    assert visible(ordered, boards).addresses == ("0000:10:00.0", "0000:11:00.0")
    by_uuid = machine(DGX, gpus(0, 1), env={"CUDA_VISIBLE_DEVICES": "GPU-2,GPU-1"})[0]
    assert visible(by_uuid, boards).addresses == ("0000:11:00.0", "0000:10:00.0")


def test_a_gpu_that_another_driver_holds_is_none() -> None:
    s, _ = machine(DGX, gpus(0, 1))
    first, second = s.pci.devices  # type: ignore[union-attr,misc]
    held = msgspec.structs.replace(s.pci, devices=(msgspec.structs.replace(first, driver="vfio-pci"), second))
    assert visible(msgspec.structs.replace(s, pci=held), NOT_LOOKED).addresses == ("0000:11:00.0",)


@pytest.mark.parametrize(
    ("vendor", "class_", "driver", "counts"),
    [
        ("0x10de", "0x030000", "nvidia", True),
        ("0x10de", "0x030200", "nvidia", True),
        ("0x10de", "0x040300", "nvidia", False),  # its sound
        ("0x10de", "0x068000", "nvidia", False),  # an NVSwitch
        ("0x10de", "0x030200", "nouveau", False),
        ("0x10de", "0x030200", Missing(Why.ABSENT, "driver", "none"), False),
        ("0x10de", "0x030200", Missing(Why.DENIED, "driver", "not allowed"), True),
        ("0x1a03", "0x030000", "ast", False),  # the service processor's screen
        ("0x8086", "0x030000", "i915", False),
    ],
)
def test_what_is_a_gpu_on_the_bus(vendor: str, class_: str, driver: str | Missing, counts: bool) -> None:
    s, _ = machine(DGX, gpus(0, 1))
    first, second = s.pci.devices  # type: ignore[union-attr,misc]
    other = msgspec.structs.replace(first, vendor=vendor, class_=class_, driver=driver)
    s = msgspec.structs.replace(s, pci=msgspec.structs.replace(s.pci, devices=(other, second)))
    wanted = ("0000:10:00.0", "0000:11:00.0") if counts else ("0000:11:00.0",)
    assert visible(s, NOT_LOOKED).addresses == on_bus(s) == wanted


# --- each rank in its own process

BY_SRUN = {"SLURM_GPUS_ON_NODE": "8", "SLURM_LOCALID": "0"}
BY_BATCH = {"SLURM_GPUS_PER_TASK": "1", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize("slurm", [BY_SRUN, BY_BATCH])
@pytest.mark.parametrize("cards", [EIGHT, gpus(3, 3, 1, 1, 7, 7, 5, 5)])
def test_tasks_that_each_see_one_gpu_are_disjoint(cards: object, slurm: dict[str, str]) -> None:
    """Each process comes to its own seat by what it sees."""
    nodes = [(8, 128)] * 8 if cards is not EIGHT else list(DGX)
    seats = []
    for rank in range(8):
        s, room = machine(nodes, cards, threads=2, env={**slurm, "CUDA_VISIBLE_DEVICES": str(rank)})  # type: ignore[arg-type]
        seats.append(place_ranks(s, room, 8).seats[rank])
    cpus = [cpu for seat in seats for cpu in seat.cpus]
    assert len(cpus) == len(set(cpus))
    assert {len(seat.cpus) for seat in seats} == {16 if cards is EIGHT else 8}
    assert [seat.node for seat in seats] == [node for _, node in cards]  # type: ignore[attr-defined]


def test_tasks_with_an_amd_gpu_each() -> None:
    cpus: list[int] = []
    for rank in range(8):
        s, room = machine(DGX, EIGHT, vendor="0x1002", env={**BY_SRUN, "ROCR_VISIBLE_DEVICES": str(rank)})
        cpus += place_ranks(s, room, 8).seats[rank].cpus
    assert sorted(cpus) == list(range(64))


def test_tasks_with_a_gpu_each_where_no_node_is_known() -> None:
    seats = []
    for rank in range(4):
        s, room = machine([(8, 64)], gpus(0, 0, 0, 0), env={**BY_SRUN, "CUDA_VISIBLE_DEVICES": str(rank)})
        s = msgspec.structs.replace(s, numa=NOT_LOOKED)
        seats.append(place_ranks(s, room, 4).seats[rank])
    assert [str(seat.cpus) for seat in seats] == ["0-1", "2-3", "4-5", "6-7"]


def test_tasks_with_a_gpu_each_whose_node_may_not_be_used() -> None:
    """The GPUs of node 1 are parted with those of node 0, whose CPUs all of them get."""
    seats = []
    for rank in range(8):
        allowed = CPUS("0-31")
        s, room = machine(DGX, EIGHT, allowed=allowed, env={**BY_SRUN, "CUDA_VISIBLE_DEVICES": str(rank)})
        seats.append(place_ranks(s, room, 8).seats[rank])
    assert [str(seat.cpus) for seat in seats] == ["0-3", "4-7", "8-11", "12-15", "16-19", "20-23", "24-27", "28-31"]
    assert {seat.threads for seat in seats} == {4}


def test_ranks_that_each_see_one_gpu_by_other_means_are_disjoint_too() -> None:
    cpus: list[int] = []
    for rank in range(8):
        s, room = machine(DGX, EIGHT, threads=2, env={"CUDA_VISIBLE_DEVICES": str(rank)})
        cpus += place_ranks(s, room, 8).seats[rank].cpus
    assert len(cpus) == len(set(cpus))


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"SLURM_GPUS_ON_NODE": "1"},
        {"SLURM_GPUS_ON_NODE": "3"},
        {**BY_BATCH, "LOCAL_RANK": "0"},  # torchrun below a batch script
        {**BY_SRUN, "LOCAL_RANK": "0"},
    ],
)
def test_ranks_that_share_one_gpu_under_slurm(env: dict[str, str]) -> None:
    s, room = machine(DGX, EIGHT, env={"CUDA_VISIBLE_DEVICES": "0", "SLURM_LOCALID": "0", **env})
    found = place_ranks(s, room, 4)
    assert broken(s, room, found) == []
    assert len({str(seat.cpus) for seat in found.seats}) == 4


def test_a_bound_rank_keeps_its_cpus() -> None:
    s, room = machine(DGX, EIGHT, allowed=CPUS("8-15"))
    seat = place_bound_rank(s, room, 5, 8)
    assert (str(seat.cpus), seat.threads, seat.memory, seat.memory_node) == ("8-15", 8, "bind", 0)
    assert seat.gpu == "0000:15:00.0"
    astride = machine(DGX, EIGHT, allowed=CPUS("28-35"))[0]
    assert place_bound_rank(astride, room, 5, 8).memory == ""
    assert place_bound_rank(astride, room, 5, 8).notes == ()


@pytest.mark.parametrize(("rank", "away"), [(0, False), (1, False), (4, True), (7, True)])
def test_a_rank_that_was_bound_away_from_its_gpu_is_told(rank: int, away: bool) -> None:
    """Open MPI binds more than two ranks to sockets by turns, whatever GPU they take."""
    s, room = machine(DGX, EIGHT, allowed=CPUS("0-31"))
    notes = place_bound_rank(s, room, rank, 8).notes
    assert [note.startswith("bound away from node 1, where its GPU is") for note in notes] == [True] * away


def test_a_bound_rank_whose_gpu_s_node_has_no_cpus_or_is_not_known_is_told_nothing_false() -> None:
    s, room = machine([(8, 64)] * 2, gpus(-1, 0), allowed=CPUS("0-3"))
    assert place_bound_rank(s, room, 0, 2).notes == place_bound_rank(s, room, 1, 2).notes == ()
    s, room = machine([(8, 64)] * 2, gpus(1), allowed=CPUS("0-3"))
    assert place_bound_rank(msgspec.structs.replace(s, numa=NOT_LOOKED), room, 0, 1).notes == ()
