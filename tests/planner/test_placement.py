"""Seats of ranks on machines of every shape."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seats import NOT_LOOKED, broken, gpus, machine

from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.values import Unknown
from torchtune_sys.remediation.placement.assign import place_bound_rank, place_ranks
from torchtune_sys.remediation.placement.gpus import visible
from torchtune_sys.remediation.placement.nics import natural

DGX = ((32, 1024), (32, 1024))
EIGHT = gpus(0, 0, 0, 0, 1, 1, 1, 1)
CPUS = CpuSet.parse


def shown(found: object) -> list[str]:
    return [str(seat.cpus) for seat in found.seats]  # type: ignore[attr-defined]


def test_eight_gpus_on_two_sockets() -> None:
    s, room = machine(DGX, EIGHT, threads=2)
    found = place_ranks(s, room, 8)
    assert broken(s, room, found) == []
    assert shown(found)[:2] == ["0-7,64-71", "8-15,72-79"]
    assert shown(found)[4] == "32-39,96-103"
    assert {(seat.memory, seat.memory_node) for seat in found.seats} == {("bind", 0), ("bind", 1)}
    assert {seat.threads for seat in found.seats} == {8}
    assert found.notes == () and {seat.notes for seat in found.seats} == {()}


def test_without_hyperthreads_a_thread_for_each_cpu() -> None:
    s, room = machine(DGX, EIGHT)
    assert {seat.threads for seat in place_ranks(s, room, 8).seats} == {8}


def test_one_thread_per_core() -> None:
    s, room = machine(DGX, EIGHT, threads=2)
    assert shown(place_ranks(s, room, 8, one_thread_per_core=True))[0] == "0-7"


def test_four_nodes_per_socket_with_gpus_at_every_other_one() -> None:
    """An EPYC host of NVIDIA's reference design with NPS4: GPUs at nodes 3, 1, 7, 5."""
    s, room = machine([(16, 128)] * 8, gpus(3, 3, 1, 1, 7, 7, 5, 5), threads=2)
    found = place_ranks(s, room, 8)
    assert broken(s, room, found) == []
    assert [seat.memory_node for seat in found.seats] == [3, 3, 1, 1, 7, 7, 5, 5]


def test_grace_memory_is_preferred_since_the_gpu_s_lies_on_nodes_of_its_own() -> None:
    s, room = machine([(72, 480), (0, 96)], gpus(0))
    (seat,) = place_ranks(s, room, 1).seats
    assert (str(seat.cpus), seat.memory, seat.memory_node) == ("0-71", "prefer", 0)


def test_uneven_memory_is_preferred() -> None:
    s, room = machine([(8, 32), (8, 256)], gpus(0, 1))
    assert [seat.memory for seat in place_ranks(s, room, 2).seats] == ["prefer", "bind"]


def test_a_node_without_memory_or_not_in_the_cpuset_gets_no_policy() -> None:
    s, room = machine([(8, 0), (8, 256)], gpus(0, 1))
    assert [seat.memory for seat in place_ranks(s, room, 2).seats] == ["", "bind"]
    s, room = machine([(8, 64), (8, 64)], gpus(0, 1), mems=CPUS("1"))
    assert [seat.memory for seat in place_ranks(s, room, 2).seats] == ["", "bind"]


def test_memory_of_half_the_size_is_still_bound_and_less_is_not() -> None:
    assert [seat.memory for seat in place_ranks(*machine([(8, 32), (8, 64)], gpus(0, 1)), 2).seats] == ["bind", "bind"]
    assert [seat.memory for seat in place_ranks(*machine([(8, 31), (8, 64)], gpus(0, 1)), 2).seats] == ["prefer", "bind"]


def test_a_node_whose_memory_is_all_offline_gets_no_policy() -> None:
    s, room = machine([(8, 0), (8, 256)], gpus(0, 1), mems=CPUS("0-1"))
    assert [seat.memory for seat in place_ranks(s, room, 2).seats] == ["", "bind"]


def test_one_node_needs_no_policy_and_a_node_that_is_not_there_no_words() -> None:
    """Firmware of virtual machines names nodes that the kernel does not have."""
    for cards in (gpus(0, 0), gpus(1, 1)):
        s, room = machine([(8, 64)], cards)
        assert [(str(seat.cpus), seat.memory, seat.notes) for seat in place_ranks(s, room, 2).seats] == [
            ("0-3", "", ()),
            ("4-7", "", ()),
        ]
        assert place_bound_rank(s, room, 1, 2).notes == ()


def test_threads_of_a_bound_rank_are_its_part_of_the_quota() -> None:
    s, room = machine([(8, 64)], allowed=CPUS("0-3"), quota=8.0)
    found = [place_bound_rank(s, room, rank, ranks).threads for rank, ranks in ((0, None), (3, None), (0, 8), (0, 2), (7, 2))]
    assert found == [4, 2, 1, 4, 1]


def test_a_refused_memory_policy_leaves_the_cpus_and_is_said() -> None:
    s, room = machine(DGX, EIGHT)
    found = place_ranks(s, msgspec.structs.replace(room, may_bind_memory=False), 8)
    assert {seat.memory for seat in found.seats} == {""}
    assert "memory policy is refused" in found.notes[0]
    unknown = place_ranks(s, msgspec.structs.replace(room, may_bind_memory=NOT_LOOKED), 8)
    assert {seat.memory for seat in unknown.seats} == {"bind"}  # a recording does not tell; launch tries


def test_a_cpuset_of_six_cpus() -> None:
    s, room = machine(DGX, EIGHT, threads=2, allowed=CPUS("0-2,64-66"))
    found = place_ranks(s, room, 2)
    assert shown(found) == ["0,64", "1,65"]
    assert broken(s, room, found) == []
    crowded = place_ranks(s, room, 8)
    assert broken(s, room, crowded) == []
    assert any("share the same 6 CPUs" in note for note in crowded.notes)


def test_a_cpuset_without_the_gpu_s_node() -> None:
    s, room = machine(DGX, gpus(1, 1), cpuset=CPUS("0-31"))
    found = place_ranks(s, room, 2)
    assert shown(found) == ["0-15", "16-31"]
    assert found.seats[0].notes == ("no CPU of node 1, where its GPU is, may be used here: node 0 is the nearest",)
    assert found.seats[0].memory_node == 0


def test_more_ranks_than_cores_then_than_threads() -> None:
    s, room = machine([(2, 16)], gpus(0), threads=2)
    found = place_ranks(s, room, 4)
    assert shown(found) == ["0", "1", "2", "3"]
    assert "4 ranks on 2 cores share cores" in " ".join(found.notes)
    assert shown(place_ranks(s, room, 5)) == ["0-3"] * 5
    s, room = machine([(2, 16)], gpus(0), threads=4)
    assert shown(place_ranks(s, room, 3)) == ["0,2", "1,3", "4,6"]
    s, room = machine([(4, 16)], gpus(0), threads=2)
    assert shown(place_ranks(s, room, 6)) == ["0", "1", "2", "3", "4", "5"]  # no core idles while two ranks share one


def test_as_many_ranks_as_cores_of_which_one_has_half_its_threads() -> None:
    s, room = machine([(2, 16)], gpus(0, 0), threads=2, offline=frozenset({3}))
    assert shown(place_ranks(s, room, 2)) == ["0,2", "1"]


def test_offline_and_isolated_cpus_are_left_out() -> None:
    s, room = machine([(8, 16)], gpus(0), allowed=CPUS("0-7"), offline=frozenset({1}))
    room = msgspec.structs.replace(room, isolated=CPUS("6-7"))
    assert shown(place_ranks(s, room, 1)) == ["0,2-5"]
    only = machine([(8, 16)], gpus(0), allowed=CPUS("6-7"))[0]
    assert shown(place_ranks(only, room, 1)) == ["6-7"]  # who was given only those meant it


def test_a_quota_bounds_threads_and_not_cpus() -> None:
    s, room = machine([(64, 256)], gpus(0, 0), quota=4.0)
    found = place_ranks(s, room, 2)
    assert shown(found) == ["0-31", "32-63"]
    assert {seat.threads for seat in found.seats} == {2}
    assert "quota is the time of 4 CPUs" in found.notes[-1]


def test_gpus_whose_node_nobody_tells() -> None:
    s, room = machine(DGX, gpus(-1, -1, -1, -1))
    found = place_ranks(s, room, 4)
    assert broken(s, room, found) == []
    assert shown(found) == ["0-15", "16-31", "32-47", "48-63"]
    assert "in turn" in " ".join(found.notes) and {seat.notes for seat in found.seats} == {()}


def test_one_rank_without_a_gpu_keeps_the_whole_machine() -> None:
    s, room = machine(DGX)
    (seat,) = place_ranks(s, room, 1).seats
    assert (str(seat.cpus), seat.memory, seat.node) == ("0-63", "", None)
    assert shown(place_ranks(s, room, 2)) == ["0-31", "32-63"]
    assert [seat.memory_node for seat in place_ranks(s, room, 2).seats] == [0, 1]
    s, room = machine(DGX, gpus(-1))
    assert shown(place_ranks(s, room, 1)) == ["0-63"]


@pytest.mark.parametrize(
    ("cores", "ranks", "wanted"),
    [((1, 3), 4, [1, 3]), ((3, 1), 4, [3, 1]), ((4, 4), 3, [1, 2]), ((2, 2, 4), 4, [1, 1, 2]), ((8, 8), 16, [8, 8])],
)
def test_ranks_without_gpus_fill_the_nodes_by_their_cores(cores: tuple[int, ...], ranks: int, wanted: list[int]) -> None:
    s, room = machine([(count, 16) for count in cores])
    nodes = [seat.node for seat in place_ranks(s, room, ranks).seats]
    assert [nodes.count(number) for number in range(len(cores))] == wanted
    assert nodes == sorted(node for node in nodes if node is not None)


def test_unless_told_there_is_a_rank_for_each_gpu_that_is_seen() -> None:
    assert len(place_ranks(*machine(DGX, EIGHT), None).seats) == 8
    assert len(place_ranks(*machine(DGX, EIGHT, env={"CUDA_VISIBLE_DEVICES": "5,6"}), None).seats) == 2
    assert len(place_ranks(*machine(DGX), None).seats) == 1


def test_amd_gpus_after_their_own_lists() -> None:
    s, room = machine(DGX, EIGHT, vendor="0x1002", env={"ROCR_VISIBLE_DEVICES": "4,5,0", "HIP_VISIBLE_DEVICES": "1,2"})
    assert visible(s, room.boards).addresses == ("0000:15:00.0", "0000:10:00.0")
    assert [seat.memory_node for seat in place_ranks(s, room, 2).seats] == [1, 0]


def test_no_topology_takes_each_cpu_for_a_core() -> None:
    s, room = machine([(4, 16)], gpus(0, 0))
    found = place_ranks(s, msgspec.structs.replace(room, cores=NOT_LOOKED), 2)
    assert shown(found) == ["0-1", "2-3"]
    assert "each is taken for a core" in found.notes[0]


def test_no_affinity_places_nobody() -> None:
    s, room = machine([(4, 16)])
    s = msgspec.structs.replace(s, cpu=NOT_LOOKED)
    with pytest.raises(Unknown):
        place_ranks(s, room, 1)


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
    found = place_ranks(s, room, ranks)
    assert broken(s, room, found) == []
    assert len(found.seats) == ranks
    assert found == place_ranks(s, room, ranks)


def test_names_in_their_natural_order() -> None:
    assert sorted(("mlx5_10", "mlx5_2", "efa"), key=natural) == ["efa", "mlx5_2", "mlx5_10"]
