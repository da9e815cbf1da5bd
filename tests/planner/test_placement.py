"""Seats of ranks on machines of every shape."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seats import NOT_LOOKED, broken, gpus, machine

from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.placement import Board
from torchtune_sys.model.values import Unknown
from torchtune_sys.planner.cards import natural
from torchtune_sys.planner.placement import kept, seating
from torchtune_sys.planner.visible import visible

DGX = ((32, 1024), (32, 1024))
EIGHT = gpus(0, 0, 0, 0, 1, 1, 1, 1)
CPUS = CpuSet.parse


def shown(found: object) -> list[str]:
    return [str(seat.cpus) for seat in found.seats]  # type: ignore[attr-defined]


def test_eight_gpus_on_two_sockets() -> None:
    s, room = machine(DGX, EIGHT, threads=2)
    found = seating(s, room, 8)
    assert broken(s, room, found) == []
    assert shown(found)[:2] == ["0-7,64-71", "8-15,72-79"]
    assert shown(found)[4] == "32-39,96-103"
    assert {(seat.memory, seat.memory_node) for seat in found.seats} == {("bind", 0), ("bind", 1)}
    assert {seat.threads for seat in found.seats} == {8}
    assert found.notes == () and {seat.notes for seat in found.seats} == {()}


def test_without_hyperthreads_a_thread_for_each_cpu() -> None:
    s, room = machine(DGX, EIGHT)
    assert {seat.threads for seat in seating(s, room, 8).seats} == {8}


def test_one_thread_per_core() -> None:
    s, room = machine(DGX, EIGHT, threads=2)
    assert shown(seating(s, room, 8, one_thread_per_core=True))[0] == "0-7"


def test_four_nodes_per_socket_with_gpus_at_every_other_one() -> None:
    """An EPYC host of NVIDIA's reference design with NPS4: GPUs at nodes 3, 1, 7, 5."""
    s, room = machine([(16, 128)] * 8, gpus(3, 3, 1, 1, 7, 7, 5, 5), threads=2)
    found = seating(s, room, 8)
    assert broken(s, room, found) == []
    assert [seat.memory_node for seat in found.seats] == [3, 3, 1, 1, 7, 7, 5, 5]


def test_grace_memory_is_preferred_since_the_gpu_s_lies_on_nodes_of_its_own() -> None:
    s, room = machine([(72, 480), (0, 96)], gpus(0))
    (seat,) = seating(s, room, 1).seats
    assert (str(seat.cpus), seat.memory, seat.memory_node) == ("0-71", "prefer", 0)


def test_uneven_memory_is_preferred() -> None:
    s, room = machine([(8, 32), (8, 256)], gpus(0, 1))
    assert [seat.memory for seat in seating(s, room, 2).seats] == ["prefer", "bind"]


def test_a_node_without_memory_or_not_in_the_cpuset_gets_no_policy() -> None:
    s, room = machine([(8, 0), (8, 256)], gpus(0, 1))
    assert [seat.memory for seat in seating(s, room, 2).seats] == ["", "bind"]
    s, room = machine([(8, 64), (8, 64)], gpus(0, 1), mems=CPUS("1"))
    assert [seat.memory for seat in seating(s, room, 2).seats] == ["", "bind"]


def test_a_refused_memory_policy_leaves_the_cpus_and_is_said() -> None:
    s, room = machine(DGX, EIGHT)
    found = seating(s, msgspec.structs.replace(room, may_bind_memory=False), 8)
    assert {seat.memory for seat in found.seats} == {""}
    assert "memory policy is refused" in found.notes[0]
    unknown = seating(s, msgspec.structs.replace(room, may_bind_memory=NOT_LOOKED), 8)
    assert {seat.memory for seat in unknown.seats} == {"bind"}  # a recording does not tell; launch tries


def test_a_cpuset_of_six_cpus() -> None:
    s, room = machine(DGX, EIGHT, threads=2, allowed=CPUS("0-2,64-66"))
    found = seating(s, room, 2)
    assert shown(found) == ["0,64", "1,65"]
    assert broken(s, room, found) == []
    crowded = seating(s, room, 8)
    assert broken(s, room, crowded) == []
    assert any("share the same 6 CPUs" in note for note in crowded.notes)


def test_a_cpuset_without_the_gpu_s_node() -> None:
    s, room = machine(DGX, gpus(1, 1), cpuset=CPUS("0-31"))
    found = seating(s, room, 2)
    assert shown(found) == ["0-15", "16-31"]
    assert found.seats[0].notes == ("no CPU of node 1, where its GPU is, may be used here: node 0 is the nearest",)
    assert found.seats[0].memory_node == 0


def test_more_ranks_than_cores_then_than_threads() -> None:
    s, room = machine([(2, 16)], gpus(0), threads=2)
    found = seating(s, room, 4)
    assert shown(found) == ["0", "2", "1", "3"]
    assert "4 ranks on 2 cores share cores" in " ".join(found.notes)
    assert shown(seating(s, room, 5)) == ["0-3"] * 5
    s, room = machine([(2, 16)], gpus(0), threads=4)
    assert shown(seating(s, room, 3)) == ["0,2", "4,6", "1,3"]


def test_as_many_ranks_as_cores_of_which_one_has_half_its_threads() -> None:
    s, room = machine([(2, 16)], gpus(0, 0), threads=2, offline=frozenset({3}))
    assert shown(seating(s, room, 2)) == ["0,2", "1"]


def test_offline_and_isolated_cpus_are_left_out() -> None:
    s, room = machine([(8, 16)], gpus(0), allowed=CPUS("0-7"), offline=frozenset({1}))
    room = msgspec.structs.replace(room, isolated=CPUS("6-7"))
    assert shown(seating(s, room, 1)) == ["0,2-5"]
    only = machine([(8, 16)], gpus(0), allowed=CPUS("6-7"))[0]
    assert shown(seating(only, room, 1)) == ["6-7"]  # who was given only those meant it


def test_a_quota_bounds_threads_and_not_cpus() -> None:
    s, room = machine([(64, 256)], gpus(0, 0), quota=4.0)
    found = seating(s, room, 2)
    assert shown(found) == ["0-31", "32-63"]
    assert {seat.threads for seat in found.seats} == {2}
    assert "quota is the time of 4 CPUs" in found.notes[-1]


def test_gpus_whose_node_nobody_tells() -> None:
    s, room = machine(DGX, gpus(-1, -1, -1, -1))
    found = seating(s, room, 4)
    assert broken(s, room, found) == []
    assert shown(found) == ["0-15", "16-31", "32-47", "48-63"]
    assert "by turns" in " ".join(found.notes) and {seat.notes for seat in found.seats} == {()}


def test_one_rank_without_a_gpu_keeps_the_whole_machine() -> None:
    s, room = machine(DGX)
    (seat,) = seating(s, room, 1).seats
    assert (str(seat.cpus), seat.memory, seat.node) == ("0-63", "", None)
    assert shown(seating(s, room, 2)) == ["0-31", "32-63"]
    s, room = machine(DGX, gpus(-1))
    assert shown(seating(s, room, 1)) == ["0-63"]


@pytest.mark.parametrize(
    ("cores", "ranks", "wanted"),
    [((1, 3), 4, [1, 3]), ((3, 1), 4, [3, 1]), ((4, 4), 3, [1, 2]), ((2, 2, 4), 4, [1, 1, 2]), ((8, 8), 16, [8, 8])],
)
def test_ranks_without_gpus_fill_the_nodes_by_their_cores(cores: tuple[int, ...], ranks: int, wanted: list[int]) -> None:
    s, room = machine([(count, 16) for count in cores])
    nodes = [seat.node for seat in seating(s, room, ranks).seats]
    assert [nodes.count(number) for number in range(len(cores))] == wanted
    assert nodes == sorted(node for node in nodes if node is not None)


def test_unless_told_there_is_a_rank_for_each_gpu_that_is_seen() -> None:
    assert len(seating(*machine(DGX, EIGHT), None).seats) == 8
    assert len(seating(*machine(DGX, EIGHT, env={"CUDA_VISIBLE_DEVICES": "5,6"}), None).seats) == 2
    assert len(seating(*machine(DGX), None).seats) == 1


def test_amd_gpus_after_their_own_lists() -> None:
    s, room = machine(DGX, EIGHT, vendor="0x1002", env={"ROCR_VISIBLE_DEVICES": "4,5,0", "HIP_VISIBLE_DEVICES": "1,2"})
    assert visible(s, room.boards).addresses == ("0000:15:00.0", "0000:10:00.0")
    assert [seat.memory_node for seat in seating(s, room, 2).seats] == [1, 0]


def test_no_topology_takes_each_cpu_for_a_core() -> None:
    s, room = machine([(4, 16)], gpus(0, 0))
    found = seating(s, msgspec.structs.replace(room, cores=NOT_LOOKED), 2)
    assert shown(found) == ["0-1", "2-3"]
    assert "each is taken for a core" in found.notes[0]


def test_no_affinity_places_nobody() -> None:
    s, room = machine([(4, 16)])
    s = msgspec.structs.replace(s, cpu=NOT_LOOKED)
    with pytest.raises(Unknown):
        seating(s, room, 1)


# --- which GPU a rank takes


@pytest.mark.parametrize(
    ("listed", "wanted"),
    [
        ("3,1", ["0000:13:00.0", "0000:11:00.0"]),
        ("GPU-0002,GPU-0000-1", ["0000:12:00.0", "0000:10:00.0"]),
        ("0,9,1", ["0000:10:00.0"]),
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


def test_an_instance_of_unknown_place_is_near_all_gpus_that_are_at_one_node() -> None:
    s, room = machine(DGX, gpus(1, 1), env={"CUDA_VISIBLE_DEVICES": "MIG-1234,MIG-5678"})
    found = seating(s, room, 2)
    assert shown(found) == ["32-47", "48-63"]
    assert "MIG" in found.notes[0]


def test_gpus_of_several_models() -> None:
    s, _ = machine(DGX, gpus(0, 1))
    boards = (Board(address="0000:10:00.0", name="T4", uuid="GPU-1"), Board(address="0000:11:00.0", name="A100", uuid="GPU-2"))
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
        seats.append(seating(s, room, 8).seats[rank])
    cpus = [cpu for seat in seats for cpu in seat.cpus]
    assert len(cpus) == len(set(cpus))
    assert {len(seat.cpus) for seat in seats} == {16 if cards is EIGHT else 8}
    assert [seat.node for seat in seats] == [node for _, node in cards]  # type: ignore[attr-defined]


def test_tasks_with_a_gpu_each_where_no_node_is_known() -> None:
    seats = []
    for rank in range(4):
        s, room = machine([(8, 64)], gpus(0, 0, 0, 0), env={**BY_SRUN, "CUDA_VISIBLE_DEVICES": str(rank)})
        s = msgspec.structs.replace(s, numa=NOT_LOOKED)
        seats.append(seating(s, room, 4).seats[rank])
    assert [str(seat.cpus) for seat in seats] == ["0-1", "2-3", "4-5", "6-7"]


def test_tasks_with_a_gpu_each_whose_node_may_not_be_used() -> None:
    """The GPUs of node 1 are parted with those of node 0, whose CPUs all of them get."""
    seats = []
    for rank in range(8):
        allowed = CPUS("0-31")
        s, room = machine(DGX, EIGHT, allowed=allowed, env={**BY_SRUN, "CUDA_VISIBLE_DEVICES": str(rank)})
        seats.append(seating(s, room, 8).seats[rank])
    assert [str(seat.cpus) for seat in seats] == ["0-3", "4-7", "8-11", "12-15", "16-19", "20-23", "24-27", "28-31"]
    assert {seat.threads for seat in seats} == {4}


def test_ranks_that_each_see_one_gpu_by_other_means_are_disjoint_too() -> None:
    cpus: list[int] = []
    for rank in range(8):
        s, room = machine(DGX, EIGHT, threads=2, env={"CUDA_VISIBLE_DEVICES": str(rank)})
        cpus += seating(s, room, 8).seats[rank].cpus
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
    found = seating(s, room, 4)
    assert broken(s, room, found) == []
    assert len({str(seat.cpus) for seat in found.seats}) == 4


def test_a_bound_rank_keeps_its_cpus() -> None:
    s, room = machine(DGX, EIGHT, allowed=CPUS("8-15"))
    seat = kept(s, room, 5, 8)
    assert (str(seat.cpus), seat.threads, seat.memory, seat.memory_node) == ("8-15", 8, "bind", 0)
    assert seat.gpu == "0000:15:00.0"
    astride = machine(DGX, EIGHT, allowed=CPUS("28-35"))[0]
    assert kept(astride, room, 5, 8).memory == ""
    assert kept(astride, room, 5, 8).notes == ()


@pytest.mark.parametrize(("rank", "away"), [(0, False), (1, False), (4, True), (7, True)])
def test_a_rank_that_was_bound_away_from_its_gpu_is_told(rank: int, away: bool) -> None:
    """Open MPI binds more than two ranks to sockets by turns, whatever GPU they take."""
    s, room = machine(DGX, EIGHT, allowed=CPUS("0-31"))
    notes = kept(s, room, rank, 8).notes
    assert [note.startswith("bound away from node 1, where its GPU is") for note in notes] == [True] * away


def test_a_bound_rank_whose_gpu_s_node_has_no_cpus_or_is_not_known_is_told_nothing_false() -> None:
    s, room = machine([(8, 64)] * 2, gpus(-1, 0), allowed=CPUS("0-3"))
    assert kept(s, room, 0, 2).notes == kept(s, room, 1, 2).notes == ()
    s, room = machine([(8, 64)] * 2, gpus(1), allowed=CPUS("0-3"))
    assert kept(msgspec.structs.replace(s, numa=NOT_LOOKED), room, 0, 1).notes == ()


# --- what must hold everywhere

SHAPES = st.lists(st.tuples(st.integers(0, 6), st.sampled_from((0, 8, 64))), min_size=1, max_size=5).filter(
    lambda nodes: sum(count for count, _ in nodes) > 0
)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_promises_hold_on_any_machine(data: st.DataObject) -> None:
    nodes, threads = data.draw(SHAPES), data.draw(st.integers(1, 4))
    total = sum(count for count, _ in nodes) * threads
    cards = gpus(*data.draw(st.lists(st.integers(-1, len(nodes)), max_size=9)))
    some = st.sets(st.integers(0, total - 1), min_size=1).map(CpuSet)
    off = data.draw(st.sets(st.integers(1, total - 1), max_size=total // 3)) if total > 1 else set()
    online = CpuSet(set(range(total)) - off)
    allowed = data.draw(some.filter(lambda found: bool(found & online)))
    ranks = data.draw(st.integers(1, 20))
    s, room = machine(
        nodes,
        cards,
        threads=threads,
        allowed=allowed,
        offline=frozenset(off),
        quota=data.draw(st.sampled_from((0.5, 3.0, float("inf")))),
    )
    found = seating(s, room, ranks)
    assert broken(s, room, found) == []
    assert len(found.seats) == ranks
    assert found == seating(s, room, ranks)


def test_names_in_their_natural_order() -> None:
    assert sorted(("mlx5_10", "mlx5_2", "efa"), key=natural) == ["efa", "mlx5_2", "mlx5_10"]
