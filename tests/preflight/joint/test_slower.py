"""Who is slow, against noise that comes in stretches: simulated turns, judged by the product."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from torchtune_sys.preflight.joint.gathered import Compute, Gathered
from torchtune_sys.preflight.joint.judge import compute, slower


def judged(nodes: int, time_of: Callable[[int, int], float]) -> tuple[set[int], int]:
    """Which nodes are slow, and after how many turns that is known; ``time_of`` a node's turn."""
    gathered = Gathered(nodes=nodes)
    again, number = frozenset((node, 0) for node in range(nodes)), 0
    while again and number <= slower.TURNS_AT_MOST:
        for rank in again:
            gathered.computes.setdefault(rank, []).append(Compute(kernel_s=(time_of(rank[0], number),)))
        again, number = compute.ranks_again(gathered), number + 1
    return {node for node, _local in slower.standing(gathered).slow}, number


class Stretches:
    """A third of all moments are disturbed, in stretches of one to several turns; each node has its own."""

    def __init__(self, nodes: int, seed: int = 1, spread: float = 0.0) -> None:
        self._rng = random.Random(seed)
        self.speeds = [self._rng.gauss(1.0, spread) for _ in range(nodes)]
        self._disturbed = [self._rng.random() < 1 / 3 for _ in range(nodes)]

    def __call__(self, node: int, _turn: int) -> float:
        if self._rng.random() < 0.5:
            self._disturbed[node] = self._rng.random() < 1 / 3
        return self.speeds[node] * (1.25 if self._disturbed[node] else 1.0) * self._rng.uniform(1.0, 1.004)


@pytest.mark.parametrize("nodes", [3, 4, 8, 20, 100, 1024])
@pytest.mark.parametrize("spread", [0.0, 0.01, 0.04])
def test_a_disturbed_node_is_not_slow(nodes: int, spread: float) -> None:
    for seed in range(200 // nodes + 1):
        named, turns = judged(nodes, Stretches(nodes, seed, spread if nodes > 20 else min(spread, 0.01)))
        assert not named
        assert turns <= 30


@pytest.mark.parametrize("nodes", [100, 1024])
def test_ten_percent_slower_is_found_in_noise_of_a_quarter(nodes: int) -> None:
    """A limit that follows the upper side of the times finds nobody below 50 %."""
    noise = Stretches(nodes, spread=0.01)
    noise.speeds[7] = noise.speeds[60] = 1.1
    named, turns = judged(nodes, noise)
    assert named == {7, 60}
    assert turns < slower.TURNS_AT_MOST


@pytest.mark.parametrize("nodes", [4, 8])
def test_of_few_a_quarter_slower_is_found_without_noise(nodes: int) -> None:
    named, turns = judged(nodes, lambda node, turn: (1.25 if node == 2 else 1.0) + 0.001 * turn)
    assert named == {2}
    assert turns <= 2 * slower.TURNS_OF_ALL


def test_a_slow_node_was_never_fast() -> None:
    named, turns = judged(20, lambda node, turn: 1.3 if node == 5 and turn == 0 else 1.0)
    assert (named, turns) == (set(), 2)


def test_among_three_it_takes_more_than_two_turns_to_be_slow() -> None:
    """Of three ranks on a busy machine one had two bad turns in a row, and was healthy."""
    named, turns = judged(3, lambda node, turn: 1.3 if node == 2 and turn < 2 else 1.0)
    assert (named, turns) == (set(), 3)
    assert judged(3, lambda node, _turn: 1.3 if node == 2 else 1.0)[0] == {2}


@pytest.mark.parametrize(("part", "named"), [(0.3, 0), (0.01, 10)])
def test_many_that_are_slower_alike_are_a_group_and_no_outliers(part: float, named: int) -> None:
    count = int(1024 * part)
    assert len(judged(1024, lambda node, _turn: 1.08 if node < count else 1.0)[0]) == named


def test_beside_a_group_who_is_much_slower_is_still_named() -> None:
    assert judged(1024, lambda node, _turn: 1.6 if node == 500 else 1.08 if node < 300 else 1.0)[0] == {500}


def test_one_that_stops_answering_ends_no_run() -> None:
    """Its turns stay behind those of the others for ever."""
    gathered = Gathered(nodes=4)
    for node in range(4):
        gathered.computes[node, 0] = [Compute(kernel_s=(1.0,))] * (1 if node == 3 else 6)
    assert not compute.ranks_again(gathered)
