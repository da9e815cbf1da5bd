#!/usr/bin/env python3
"""How often the joint pre-flight would call a healthy node slow, and how slow a node must be to be found: 1,024 nodes, by resampling.

    false_exclusions.py record FILE     time the kernel of the joint pre-flight again and again on this machine (needs torch)
    false_exclusions.py judge FILE…     the table, for the product's own rule and for rules that others publish

The noise of a node is a stretch of the recording: neighbours in time stay together (a moving block), so that its correlation is kept. Nodes of one run take
different stretches. A spread between nodes is added: each has its own speed, normally distributed. Every judgement is the product's own code.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median, pstdev, quantiles

from torchtune_sys.preflight.joint.gathered import Compute, Gathered
from torchtune_sys.preflight.joint.judge import compute, slower

NODES, RUNS, RUNS_OF_OTHERS = 1024, 1000, 30
PLANTED, POWER_RUNS = 4, 25
BUCKET_S = 0.01
BLOCKS, BLOCK_BUCKETS = 6, 6
"""A turn's timed kernel: blocks of 60 ms, with other work of a rank between them."""
BLOCKS_APART, TURNS_APART, LATE_TURNS_APART = 14, 100, 150
"""In buckets, from start to start: of a turn's blocks, of turns of all, of turns of those who look slow."""
SPREADS = (0.0, 0.01, 0.02, 0.04)
SLOWER = (0.06, 0.07, 0.08, 0.09, 0.1, 0.12, 0.14, 0.16, 0.18, 0.2, 0.22, 0.25, 0.3, 0.35, 0.4, 0.5)


def record(path: str, seconds: float = 120.0) -> None:
    """The best time of each hundredth of a second in which the kernel ran to its end; of one in which it did not, that of the run that filled it."""
    import torch

    torch.set_num_threads(1)
    one, two = torch.ones(128, 128), torch.ones(128, 128)
    buckets = [0.0] * int(seconds / BUCKET_S)
    start = ended = time.perf_counter()
    while (at := int((ended - start) / BUCKET_S)) < len(buckets):
        began = time.perf_counter()
        torch.mm(one, two)
        ended = time.perf_counter()
        buckets[at] = min(buckets[at] or 1e9, ended - began)
    last = next(value for value in buckets if value)
    for at, value in enumerate(buckets):
        last = buckets[at] = value or last
    Path(path).write_text(json.dumps([float(f"{value:.4g}") for value in buckets]))


def turns_from(buckets: list[float]) -> list[float]:
    """The best time of a turn that begins in each bucket of the recording, which is taken as a ring."""
    count = len(buckets)
    blocks = [min(buckets[(at + more) % count] for more in range(BLOCK_BUCKETS)) for at in range(count)]
    return [min(blocks[(at + number * BLOCKS_APART) % count] for number in range(BLOCKS)) for at in range(count)]


class Noise:
    """The turns of each node of a run: a stretch of the recording for each, in which turns follow each other as in a run."""

    def __init__(self, rng: random.Random, turns: list[float], speeds: list[float]) -> None:
        self._turns, self._speeds = turns, speeds
        self._starts = [rng.randrange(len(turns)) for _ in speeds]

    def turn(self, number: int, node: int) -> float:
        of_all = min(number, slower.TURNS_OF_ALL)
        offset = of_all * TURNS_APART + (number - of_all) * LATE_TURNS_APART
        return self._turns[(self._starts[node] + offset) % len(self._turns)] * self._speeds[node]

    def first(self) -> list[float]:
        return [self.turn(0, node) for node in range(len(self._speeds))]


def product(noise: Noise) -> set[int]:
    gathered = Gathered(nodes=NODES)
    again, number = frozenset((node, 0) for node in range(NODES)), 0
    while again and number < slower.TURNS_AT_MOST:
        for rank in again:
            gathered.computes.setdefault(rank, []).append(Compute(kernel_s=(noise.turn(number, rank[0]),)))
        again, number = compute.ranks_again(gathered), number + 1
    TURNS.append(number)
    return {node for node, _local in slower.standing(gathered).slow}


Rule = Callable[[Noise], set[int]]

TURNS: list[int] = []
"""That the product took, of each run."""


def one_sigma_and_ten_percent(noise: Noise) -> set[int]:
    values = noise.first()
    middle, sigma = mean(values), pstdev(values)
    return {node for node, value in enumerate(values) if value > middle + sigma and value > 1.1 * middle}


def median_times(factor: float) -> Rule:
    def rule(noise: Noise) -> set[int]:
        values = noise.first()
        return {node for node, value in enumerate(values) if value > factor * median(values)}

    return rule


RULES: dict[str, Rule] = {
    "product": product,
    "> 1 sigma and > 10 % of the mean": one_sigma_and_ten_percent,
    "> median x 1.1": median_times(1.1),
    "> median x 1.2": median_times(1.2),
}


def judge(path: str) -> None:
    turns = turns_from(json.loads(Path(path).read_text()))
    parts = quantiles(turns, n=20)
    of_least = ", ".join(f"{parts[at] / parts[0]:.3f}" for at in (4, 9, 14, 18))
    print(
        f"{path}: {len(turns) * BUCKET_S:.0f} s; a turn's best time: 5 % {parts[0] * 1e6:.1f} us; 25, 50, 75 and 95 % are {of_least} of it"
    )
    print(
        "| rule | spread | any healthy node excluded | healthy nodes excluded | power at 10 % | slowest found in 95 % | turns |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, rule in RULES.items():
        for spread in SPREADS:
            rng = random.Random(1)
            any_wrong = wrong = 0
            TURNS.clear()
            runs = RUNS if rule is product else RUNS_OF_OTHERS
            for _ in range(runs):
                speeds = [max(0.5, rng.gauss(1.0, spread)) for _ in range(NODES)]
                named = rule(Noise(rng, turns, speeds))
                any_wrong += bool(named)
                wrong += len(named)
            taken = f"{median(TURNS):.0f} ({max(TURNS)})" if TURNS else "1"
            at_ten = power(rule, rng, turns, spread, 0.1)
            found = next((f"{by:.0%}" for by in SLOWER if power(rule, rng, turns, spread, by) >= 0.95), "more than 50 %")
            print(
                f"| {name} | {spread:.0%} | {any_wrong / runs:.1%} | {wrong / runs:.2f} | {at_ten:.0%} | {found} | {taken} |",
                flush=True,
            )


def power(rule: Rule, rng: random.Random, turns: list[float], spread: float, by: float) -> float:
    """The part of planted slow nodes that is named."""
    hits = 0
    for _ in range(POWER_RUNS):
        speeds = [max(0.5, rng.gauss(1.0, spread)) for _ in range(NODES)]
        planted = rng.sample(range(NODES), PLANTED)
        for node in planted:
            speeds[node] = 1 + by
        hits += len(rule(Noise(rng, turns, speeds)) & {*planted})
    return hits / (PLANTED * POWER_RUNS)


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(sys.argv[2])
    else:
        for path in sys.argv[2:]:
            judge(path)
