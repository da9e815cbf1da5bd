"""``launch``, and what ``generate numactl`` prints, on a machine with two NUMA nodes: affinity and numa_maps read back."""

from __future__ import annotations

from typing import Any

import guest
import launch_guest
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

NODES = {0: list(range(8)), 1: list(range(8, 16))}
Found = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    try:
        said = launch_guest.boot(tmp_path_factory.mktemp("launch"))
    except guest.Unavailable as why:
        pytest.skip(f"no virtual machine here: {why}")
    return {(line["name"], line["rank"]): line for line in said}


@pytest.mark.parametrize(
    ("name", "rank", "node"),
    [("launch", "0", 1), ("launch", "1", 0), ("numactl", "0", 1), ("numactl", "1", 0), ("turned", "0", 0)],
)
def test_a_rank_runs_and_allocates_at_its_gpu_s_node(found: Found, name: str, rank: str, node: int) -> None:
    """The first GPU of the bus is at node 1; ``turned`` names the second first."""
    line = found[name, rank]
    assert line["cpus"] == NODES[node]
    assert (line["policy"], line["nodes"]) == (f"bind:{node}", [f"N{node}"])
    assert line["omp"] == (None if name == "numactl" else "8")


def test_ranks_that_share_a_gpu_part_its_node(found: Found) -> None:
    assert [found["shared", rank]["cpus"] for rank in ("0", "1")] == [[8, 9, 10, 11], [12, 13, 14, 15]]
    assert found["shared", "1"]["policy"] == "bind:1"


def test_memory_is_left_alone_on_demand(found: Found) -> None:
    assert (found["unbound", "0"]["cpus"], found["unbound", "0"]["policy"]) == (NODES[1], "default")


def test_a_cpuset_without_the_gpu_s_node_is_kept_to(found: Found) -> None:
    assert [found["cpuset", rank]["cpus"] for rank in ("0", "1")] == [[0], [1]]
    assert {found["cpuset", rank]["policy"] for rank in ("0", "1")} == {"bind:0"}


def test_eight_ranks_at_once_have_two_cores_each(found: Found) -> None:
    """Four of them at each of the two GPUs."""
    lines = [found["eight", str(rank)] for rank in range(8)]
    print(f"the last of eight ranks ran after {max(line['time'] for line in lines):.1f} s on 16 emulated CPUs")
    held = [cpu for line in lines for cpu in line["cpus"]]
    assert sorted(held) == list(range(16)) and {len(line["cpus"]) for line in lines} == {2}
    assert all(set(line["cpus"]) <= set(NODES[(rank + 1) % 2]) for rank, line in enumerate(lines))
    assert [line["policy"] for line in lines] == ["bind:1", "bind:0"] * 4
    assert {line["omp"] for line in lines} == {"2"}
