"""The weight of a fact comes from the rules: what a rule says changes only by facts that it is known to read."""

from __future__ import annotations

import pytest
from made_hosts import READERS
from planting import planted

from conftest import load
from torchtune_sys import engine
from torchtune_sys.fleet.weights import Readers
from torchtune_sys.model.comparison import DifferenceWeight
from torchtune_sys.model.rule import Result
from torchtune_sys.rules import CATALOGUE


def said(results: tuple[Result, ...]) -> dict[str, object]:
    return {result.rule.id: (result.verdict, result.evidence) for result in results}


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.exhaustive) for part in range(1, 8))])
def test_a_rule_that_says_otherwise_reads_the_fact_that_drifted(part: int) -> None:
    seen = load("healthy")
    before = said(engine.judge(seen, CATALOGUE))
    for number, (path, other) in enumerate(planted(seen)):
        if number % 8 != part or "[" in path:
            continue
        moved = {rule for rule, what in said(engine.judge(other, CATALOGUE)).items() if what != before[rule]}
        # A finding may be folded into another rule's: that one reads the fact.
        readers = {rule.id for rule in READERS.of(path)}
        assert readers or not moved, f"{path} moves {sorted(moved)}, and no rule is known to read it"


@pytest.mark.parametrize(
    ("fact", "weight"),
    [
        ("python.torch.version", DifferenceWeight.ERROR),
        ("network.interfaces[eth0].mtu", DifferenceWeight.WARNING),
        ("sysctl.settings[vm.swappiness].running", DifferenceWeight.ADVICE),
        ("sysctl.settings[net.ipv4.conf.eth0.rp_filter].running", DifferenceWeight.WARNING),
        ("sysctl.settings[no.such.zzz].running", DifferenceWeight.NOISE),
        ("limits.limits[memlock].soft", DifferenceWeight.ERROR),
        ("gpu.devices[3].bar1_total_bytes", DifferenceWeight.NOISE),
        ("memory.total_bytes", DifferenceWeight.WARNING),  # an error where a limit is larger, by which the memory is no fault
        ("limits.limits[stack].soft", DifferenceWeight.ERROR),
    ],
)
def test_a_fact_weighs_what_its_heaviest_reader_does(fact: str, weight: DifferenceWeight) -> None:
    assert READERS.weight(fact) is weight


def test_a_field_that_is_called_like_a_family_is_not_read_by_who_reads_the_family() -> None:
    """``system.kernel`` is the release; rules on the kernel's log read ``kernel.events``, and of ``system`` whether this is a container."""
    readers = {rule.id for rule in READERS.of("system.kernel")}
    assert "kernel-old" in readers
    assert not {"amdgpu-initialisation-failed", "xid-gpu-lost"} & readers


def test_without_rules_all_is_noise() -> None:
    assert Readers(()).weight("python.torch.version") is DifferenceWeight.NOISE
    errors = [rule for rule in CATALOGUE if rule.id == "gpu-vbios-differs"]
    assert Readers(errors).weight("gpu.devices[0].vbios") is DifferenceWeight.ADVICE
