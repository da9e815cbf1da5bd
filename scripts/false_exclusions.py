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
from pathlib import Path
from statistics import mean, median, pstdev

from torchtune_sys.preflight.joint.gathered import Compute, Gathered
from torchtune_sys.preflight.joint.judge import compute

NODES, RUNS = 1024, 100
BLOCKS, RUNS_A_BLOCK = 6, 300
APART = 24
"""Blocks from the start of one turn to that of the next: about 1.5 s."""
SPREADS = (0.0, 0.01, 0.02, 0.04)
SLOWER = (0.05, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)


def record(path: str, seconds: float = 60.0) -> None:
    import time

    import torch

    torch.set_num_threads(1)
    one, two, times = torch.ones(128, 128), torch.ones(128, 128), []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        torch.mm(one, two)
        times.append(time.perf_counter() - began)
    Path(path).write_text(json.dumps(times))


def blocks(times: list[float]) -> list[float]:
    """The best of a turn that begins at each block of the recording."""
    best = [min(times[at : at + RUNS_A_BLOCK]) for at in range(0, len(times) - RUNS_A_BLOCK, RUNS_A_BLOCK)]
    return [min(best[at : at + BLOCKS]) for at in range(len(best) - BLOCKS)]


def turns_of(rng: random.Random, best: list[float], speeds: list[float]) -> list[list[list[float]]]:
    """Of each turn the best time of each node: what the product reads of it. A node's turns follow each other in the recording as they do in a run."""
    starts = [rng.randrange(len(best)) for _ in speeds]
    found = []
    for number in range(compute.TURNS_AT_MOST):
        offset = number * APART
        found.append([[best[(at + offset) % len(best)] * speed] for at, speed in zip(starts, speeds, strict=True)])
    return found


def product(turns: list[list[list[float]]]) -> set[int]:
    gathered = Gathered(nodes=NODES)
    for each in turns:
        for node, times in enumerate(each):
            gathered.computes.setdefault((node, 0), []).append(Compute(kernel_s=tuple(times)))
        if not compute.doubtful_compute(gathered):
            return {node for node, _local in compute.slow(gathered)}
    return {node for node, _local in compute.slow(gathered)}


def one_sigma_and_ten_percent(turns: list[list[list[float]]]) -> set[int]:
    values = [min(node) for node in turns[0]]
    middle, sigma = mean(values), pstdev(values)
    return {node for node, value in enumerate(values) if value > middle + sigma and value > 1.1 * middle}


def median_times(factor: float):  # type: ignore[no-untyped-def]
    def rule(turns: list[list[list[float]]]) -> set[int]:
        values = [min(node) for node in turns[0]]
        return {node for node, value in enumerate(values) if value > factor * median(values)}

    return rule


RULES = {
    "product": product,
    "> 1 sigma and > 10 % of the mean": one_sigma_and_ten_percent,
    "> median x 1.1": median_times(1.1),
    "> median x 1.2": median_times(1.2),
}


def judge(path: str) -> None:
    best = blocks(json.loads(Path(path).read_text()))
    print(f"{path}: {len(best)} turns; noise of a turn (best of {BLOCKS * RUNS_A_BLOCK}): {pstdev(best) / mean(best):.1%}")
    print("| rule | spread | any healthy node excluded | healthy nodes excluded | power at 10 % | slowest found in 95 % |")
    print("|---|---|---|---|---|---|")
    for name, rule in RULES.items():
        for spread in SPREADS:
            rng = random.Random(1)
            any_wrong = wrong = 0
            for _ in range(RUNS):
                speeds = [max(0.5, rng.gauss(1.0, spread)) for _ in range(NODES)]
                named = rule(turns_of(rng, best, speeds))
                any_wrong += bool(named)
                wrong += len(named)
            powers = {slower: power(rule, rng, best, spread, slower) for slower in SLOWER}
            found = next((f"{slower:.0%}" for slower in SLOWER if powers[slower] >= 0.95), "more than 50 %")
            print(
                f"| {name} | {spread:.0%} | {any_wrong / RUNS:.1%} | {wrong / RUNS:.2f} | {powers[0.1]:.0%} | {found} |",
                flush=True,
            )


def power(rule, rng: random.Random, best: list[float], spread: float, slower: float) -> float:  # type: ignore[no-untyped-def]
    hits, runs = 0, 10
    for _ in range(runs):
        speeds = [max(0.5, rng.gauss(1.0, spread)) for _ in range(NODES)]
        planted = rng.sample(range(NODES), 4)
        for node in planted:
            speeds[node] = 1 + slower
        hits += len(rule(turns_of(rng, best, speeds)) & {*planted})
    return hits / (4 * runs)


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(sys.argv[2])
    else:
        for path in sys.argv[2:]:
            judge(path)
