"""What differs is named; what is alike, or differs by nature, is not."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from fleet_changes import no_gpus
from hypothesis import given
from hypothesis import strategies as st
from made_hosts import READERS, compared, facts_line, odd, put, store

from torchtune_sys.cli.commands.compare import status
from torchtune_sys.fleet.comparing import Comparing, findings, heavy, value_seen
from torchtune_sys.fleet.reading import read
from torchtune_sys.fleet.spread import spread
from torchtune_sys.fleet.store import HostFacts, Store
from torchtune_sys.model.comparison import DifferenceWeight

TORCH = put("python/torch/version", "2.6.0+cu124")
KERNEL = put("system/kernel", "6.8.0-90-generic")
OTHER_IMAGE = (
    KERNEL,
    put("system/os/version", "24.04.9"),
    put("gpu/driver_version", "590.1"),
    put("sysctl/settings/vm.swappiness/running", "1"),
)


@cache
def ten_hosts() -> list[bytes]:
    """Return ten hosts; made by the first test that wants them, not by each worker that collects tests."""
    return [facts_line(number) for number in range(10)]


def test_hosts_that_differ_by_nature_alone_are_alike() -> None:
    found = compared(*ten_hosts())
    assert (found.odd, found.groups, found.various, found.incomparable) == ((), (), (), ())


@pytest.mark.parametrize(
    ("change", "fact", "weight"),
    [
        (TORCH, "python.torch.version", DifferenceWeight.ERROR),
        (put("network/interfaces/1/mtu", 1499), "network.interfaces[eno1].mtu", DifferenceWeight.WARNING),
        (put("limits/limits/memlock/soft", 65536), "limits.limits[memlock].soft", DifferenceWeight.ERROR),
        (put("gpu/devices/3/vbios", "96.00.00"), "gpu.devices[3].vbios", DifferenceWeight.ADVICE),
        (put("session/env/LANG", "de_DE"), "session.env[LANG]", DifferenceWeight.NOISE),
        (put("session/env/NCCL_IB_DISABLE", "1"), "session.env[NCCL_IB_DISABLE]", DifferenceWeight.WARNING),
        (put("memory/total_bytes", 500 << 30), "memory.total_bytes", DifferenceWeight.WARNING),
        (put("hardware/clock_synchronised", False), "hardware.clock_synchronised", DifferenceWeight.WARNING),
        (put("cpu/quota", 4.0), "cpu.quota", DifferenceWeight.WARNING),
    ],
)
def test_one_odd_host_is_named_with_the_weight_of_the_rules(change: object, fact: str, weight: DifferenceWeight) -> None:
    found = compared(*ten_hosts()[:4], facts_line(9, change))  # type: ignore[arg-type]
    assert odd(found) == [("node-00009", fact)]
    assert found.odd[0].weight is weight


SET = put("session/env/NCCL_IB_DISABLE", "1")


def _earlier(line: bytes) -> bytes:
    """Return a facts file as a release wrote it that did not tell which variables it looked for."""
    shorter = re.sub(rb'"env":"[0-9a-f]{6}",', b"", line)
    assert shorter != line
    return shorter


def test_a_variable_that_an_earlier_release_does_not_tell_is_not_none() -> None:
    """It may have been set there: the release did not look for it."""
    later = [facts_line(number, SET) for number in range(4)]
    assert odd(compared(*later, _earlier(facts_line(9)))) == []
    assert odd(compared(*later, facts_line(9))) == [("node-00009", "session.env[NCCL_IB_DISABLE]")]
    # Among hosts that the earlier release told of, one that tells it shows that it was looked for.
    assert odd(compared(*map(_earlier, later), _earlier(facts_line(9)))) == [("node-00009", "session.env[NCCL_IB_DISABLE]")]
    assert odd(compared(*later, _earlier(facts_line(9, put("session/env/NCCL_IB_DISABLE", "0"))))) == [
        ("node-00009", "session.env[NCCL_IB_DISABLE]")
    ]


def test_a_variable_that_was_not_looked_for_yesterday_is_not_new() -> None:
    for now, then in ((facts_line(1, SET), _earlier(facts_line(1))), (facts_line(1), _earlier(facts_line(1, SET)))):
        found = Comparing(store(then, now), READERS).before(1)
        assert found.odd == ()
    found = Comparing(store(facts_line(1), facts_line(1, SET)), READERS).before(1)
    assert [item.fact for item in found.odd] == ["session.env[NCCL_IB_DISABLE]"]


def test_what_is_heaviest_comes_first() -> None:
    found = compared(*ten_hosts()[:4], facts_line(8, put("session/env/LANG", "x")), facts_line(9, TORCH))
    assert [item.fact for item in found.odd] == ["python.torch.version", "session.env[LANG]"]
    assert [item.fact for item in heavy(found, DifferenceWeight.ADVICE).odd] == ["python.torch.version"]


def test_a_gpu_that_is_gone_is_one_difference_and_no_other_kind() -> None:
    def lose(facts: dict[str, dict[str, list[object]]]) -> None:
        del facts["gpu"]["devices"][7]

    found = compared(*ten_hosts()[:4], facts_line(9, lose))
    assert odd(found) == [("node-00009", "gpu.devices[7]")]
    assert found.odd[0].value is None
    assert not found.incomparable


def test_a_host_whose_gpus_are_all_gone_is_one_of_those_whose_board_it_has() -> None:
    found = compared(*ten_hosts()[:4], facts_line(9, no_gpus))
    assert {(item.host, item.fact.partition("[")[0]) for item in found.odd} == {
        ("node-00009", "gpu.devices"),
        ("node-00009", "pci.devices"),
    }
    other = facts_line(9, no_gpus, put("cpu/model", "another processor"))
    assert [item.host for item in compared(*ten_hosts()[:4], other).incomparable] == ["node-00009"]


def test_a_family_that_could_not_be_read_is_one_difference() -> None:
    found = compared(*ten_hosts()[:4], facts_line(9, put("network", {"$missing": "timeout", "source": "x"})))
    assert odd(found) == [("node-00009", "network")]


def test_two_images_half_and_half_are_two_groups() -> None:
    images = [facts_line(number, *(OTHER_IMAGE if number % 2 else ())) for number in range(10)]
    found = compared(*images)
    assert not found.odd
    assert [len(group.hosts) for group in found.groups] == [5, 5]
    assert {fact.fact for fact in found.groups[0].facts} == {
        "system.kernel",
        "system.os.version",
        "gpu.driver_version",
        "sysctl.settings[vm.swappiness].running",
    }


def test_a_host_that_has_one_package_of_the_other_image_is_odd_in_its_own() -> None:
    images = [facts_line(number, *(OTHER_IMAGE if number % 2 else ())) for number in range(10)]
    found = compared(*images, facts_line(11, *OTHER_IMAGE[:2], *OTHER_IMAGE[3:]))
    assert odd(found) == [("node-00011", "gpu.driver_version")]
    assert found.odd[0].usual == "590.1"
    assert sum(len(group.hosts) for group in found.groups) == 11


def test_racks_and_images_are_two_divisions() -> None:
    rack = put("network/default_route_interface", "ib0")
    lines = [
        facts_line(number, *(OTHER_IMAGE if number % 2 else ()), *((rack,) if number % 4 < 2 else ())) for number in range(16)
    ]
    found = compared(*lines)
    assert not found.odd
    assert {group.division for group in found.groups} == {1, 2}
    assert len(found.groups) == 4


def test_another_gpu_model_is_not_compared_and_this_is_said() -> None:
    def other(facts: dict[str, dict[str, list[dict[str, object]]]]) -> None:
        for gpu in facts["gpu"]["devices"]:
            gpu["name"] = "NVIDIA H200"
        for device in facts["pci"]["devices"]:
            if device["device"] == "0x2330":
                device["device"] = "0x2335"

    found = compared(*ten_hosts()[:4], facts_line(9, other))
    assert not found.odd
    assert [item.host for item in found.incomparable] == ["node-00009"]
    assert "H200" in found.incomparable[0].why


def test_a_node_without_gpus_has_another_role() -> None:
    found = compared(*ten_hosts()[:4], facts_line(9, name="typical/login-node"))
    assert not found.odd
    assert "no GPU" in found.incomparable[0].why


GO = b'{"schema": "torchtune-sys/preflight/1", "nodes": [{"node": "node-00009", "verdict": "go", "causes": []}]}'


def test_hosts_of_which_nothing_is_told_alike_are_not_compared() -> None:
    """A pre-flight without facts has nothing in common with facts: that none differ would be a verdict of nobody."""
    found = compared(ten_hosts()[0], GO)
    assert [item.host for item in found.incomparable] == ["node-00000", "node-00009"]
    assert found.kinds == () and status(found) == 3
    one_more = compared(*ten_hosts()[:2], GO)
    assert [item.host for item in one_more.incomparable] == ["node-00009"] and "preflight" in one_more.incomparable[0].why
    assert status(one_more) == 0
    assert status(compared(GO, GO.replace(b"09", b"08"))) == 0


def test_a_base_of_which_nothing_is_told_alike_compares_nothing() -> None:
    golden = Comparing(store(GO, ten_hosts()[0]), READERS).against(0)
    before = Comparing(store(GO, facts_line(9)), READERS).before(1)
    for found, host in ((golden, "node-00000"), (before, "node-00009")):
        assert [item.host for item in found.incomparable] == [host]
        assert status(found) == 3


def test_of_two_hosts_the_first_is_usual() -> None:
    found = compared(ten_hosts()[0], facts_line(9, TORCH))
    assert [(item.host, item.value) for item in found.odd] == [("node-00009", "2.6.0+cu124")]


def test_against_a_golden_host() -> None:
    found = Comparing(store(facts_line(99, TORCH), *ten_hosts()[:3]), READERS).against(0)
    assert {(item.fact, item.usual) for item in found.odd} == {("python.torch.version", "2.6.0+cu124")}
    assert len(found.odd) == found.hosts == 3


def test_against_what_each_was_before() -> None:
    yesterday = [*ten_hosts()[:3], facts_line(8)]
    today = [facts_line(0, seed=2), facts_line(1, TORCH, seed=2), facts_line(2, seed=2), facts_line(7)]
    found = Comparing(store(*yesterday, *today), READERS).before(4)
    assert odd(found) == [("node-00001", "python.torch.version")]
    assert {(item.host, item.why) for item in found.incomparable} == {
        ("node-00007", "was not there before"),
        ("node-00008", "was there before, and is not now"),
    }


def test_what_most_hosts_do_not_tell_is_not_compared() -> None:
    denied = put("pci/devices/1/config", {"$missing": "denied", "source": "config"})
    lines = [facts_line(number, denied) for number in range(4)]
    assert not compared(*lines, ten_hosts()[9]).odd
    told = compared(*ten_hosts()[:4], facts_line(9, denied))
    assert len(told.odd) <= 1


@pytest.mark.parametrize(("why", "shown"), [("crashed", True), ("failed", True), ("timeout", True), ("denied", False)])
def test_of_two_hosts_the_one_where_a_look_breaks_is_odd(why: str, shown: bool) -> None:
    """Of two no value is usual; who may not look, or from where, is no property of the host."""
    broken = put("memory", {"$missing": why, "source": "probe"})
    found = compared(ten_hosts()[0], facts_line(1, broken))
    assert [item.fact for item in found.odd] == (["memory"] if shown else [])


def test_each_host_with_its_own_value_is_no_oddity() -> None:
    found = compared(*(facts_line(number, put("session/env/NCCL_HOSTID", f"own {number}")) for number in range(8)))
    assert not found.odd
    assert [item.fact for item in found.various] == ["session.env[NCCL_HOSTID]"]


def test_an_entry_that_is_not_there_is_told_once_from_a_list_that_nobody_read() -> None:
    made = store(
        ten_hosts()[0],
        facts_line(1, put("session/env", {"$missing": "denied", "source": "x"})),
        facts_line(2, put("session/env", {})),
    )
    family = made.families["session"]
    variants = [host.variants["session"] for host in made.hosts]
    assert [value_seen(family, variant, "session.env[LANG]") for variant in variants] == [b'"C.UTF-8"', None, b"null"]


@given(st.lists(st.integers(0, 3), min_size=2, max_size=40))
def test_the_spread_of_any_values_is_one_of_three(values: list[int]) -> None:
    counts: dict[bytes, int] = {}
    for value in values:
        counts[str(value).encode()] = counts.get(str(value).encode(), 0) + 1
    found = spread("a.b", counts)
    assert (found.usual is not None) + bool(found.groups) + bool(found.various) == 1
    assert found.usual is None or counts[found.usual] == max(counts.values())
    assert set(found.groups) <= set(counts)


def test_quantities_that_spread_by_nature_are_alike_and_settings_are_not() -> None:
    memory = {str((1 << 40) + 4096 * step).encode(): 1 for step in range(9)} | {str(1 << 39).encode(): 1}
    assert len(set(spread("memory.total_bytes", memory).alike.values())) == 1
    assert spread("memory.total_bytes", memory).usual not in {None, str(1 << 39).encode()}
    assert spread("sysctl.settings[vm.swappiness].running", {b'"60"': 3, b'"61"': 1}).alike == {}
    assert spread("memory.total_bytes", {b"1099511627776": 9, b"1099511631872": 1}).alike == {}


def test_a_host_that_says_a_finding_a_thousand_times_is_one_host() -> None:
    """A report in a folder that hosts share made *1,001 hosts* of two."""
    loud = HostFacts(name="a", file="a.json", variants={}, findings={"error": ("x-y",) * 1000})
    told = findings([loud, HostFacts(name="b", file="b.json", variants={}, findings={"error": ("x-y",)})])
    assert [one.hosts for one in told] == [("a", "b")]


@pytest.mark.parametrize("names", ["made-up-{}", "node-00000"])
def test_hosts_that_one_file_makes_up_are_no_majority(names: str, tmp_path: Path) -> None:
    """In a folder where each node leaves its own: with forty in one file the three true ones were those that differ."""
    own = ten_hosts()[:3]
    for number, line in enumerate((*own, facts_line(7, TORCH))):
        (tmp_path / f"n{number}.json").write_bytes(line)
    crowd = [facts_line(4, KERNEL).replace(b"node-00004", names.format(number).encode()) for number in range(40)]
    (tmp_path / "n9.json").write_bytes(b"\n".join(crowd))
    into = Store()
    assert read([str(tmp_path)], into) == ()
    found = Comparing(into, READERS).among_themselves()
    assert {item.fact for item in found.odd} == {"python.torch.version"} and {item.host for item in found.odd} == {"node-00007"}
    assert any("40 told by n9.json" in kind.name for kind in found.kinds)
    together = Store()
    (tmp_path / "n9.json").write_bytes(b"\n".join((*own, facts_line(9, KERNEL))))
    read([str(tmp_path / "n9.json")], together)
    assert {item.host for item in Comparing(together, READERS).among_themselves().odd} == {"node-00009"}, "one file of all"
