"""How much runs when: what ``./run test`` leaves out of a row of tests that are alike, and when it leaves nothing out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import conftest

HERE = Path(__file__)


def left_out(count: int, of: int, args: list[str], keyword: str = "", ci: tuple[int, ...] = ()) -> list[int]:
    marker = SimpleNamespace(args=(count, *ci))
    made = {"path": HERE, "name": "test_row", "keywords": {"sampled"}, "get_closest_marker": lambda _name: marker}
    items: Any = [SimpleNamespace(number=number, originalname="test_row", **made) for number in range(of)]
    config: Any = SimpleNamespace(args=args, option=SimpleNamespace(keyword=keyword, markexpr=""))
    left: Any = conftest._sampled(config, items)
    return [item.number for item in left]


@pytest.mark.parametrize(("count", "of"), [(1, 1), (1, 40), (3, 8), (8, 48), (50, 154), (40, 41)])
def test_as_many_run_as_the_marker_says(count: int, of: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "TIER", "default")
    assert len(left_out(count, of, [str(HERE.parent)])) == of - count


def test_of_each_parameter_every_value_is_in_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "TIER", "default")
    kept = set(range(48)) - set(left_out(8, 48, [str(HERE.parent)]))
    assert {number % 2 for number in kept} == {0, 1} and {number // 2 % 2 for number in kept} == {0, 1}


@pytest.mark.parametrize(("tier", "kept"), [("default", 3), ("ci", 5), ("all", 48)])
def test_ci_runs_as_many_as_the_marker_s_second_number_says(tier: str, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "TIER", tier)
    assert len(left_out(3, 48, [str(HERE.parent)], ci=(5,))) == 48 - kept


@pytest.mark.parametrize(
    ("tier", "args", "keyword"),
    [
        ("ci", ["."], ""),
        ("all", ["."], ""),
        ("default", [str(HERE)], ""),
        ("default", [f"{HERE}::test_row"], ""),
        ("default", ["."], "row"),
    ],
)
def test_the_whole_row_runs_in_ci_and_for_who_names_it(
    tier: str, args: list[str], keyword: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conftest, "TIER", tier)
    assert left_out(3, 48, args, keyword) == []


def test_each_costly_test_exists() -> None:
    for name in conftest._costly():
        module, _, test = name.partition("::")
        path = HERE.parents[1] / f"{module.replace('.', '/')}.py"
        assert path.is_file() and f"def {test}(" in path.read_text(), (
            f"{name} in tests/costs.csv has another name now, or is gone"
        )


@pytest.mark.parametrize(("keywords", "is_left"), [((), True), (("essential",), False)])
def test_a_costly_test_is_left_to_ci_unless_it_is_essential(keywords: tuple[str, ...], is_left: bool) -> None:
    module, _, test = min(conftest._costly()).partition("::")
    path = HERE.parents[1] / f"{module.replace('.', '/')}.py"
    item: Any = SimpleNamespace(path=path, name=f"{test}[row]", originalname=test, keywords={*keywords})
    assert conftest._is_left_to_ci(item) == is_left
    item.originalname = "test_that_nobody_measured"
    assert not conftest._is_left_to_ci(item)


def test_the_turns_of_ci_have_each_costly_test_once_and_rows_of_one_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    cheap, dear = "tests.test_tiers::test_each_costly_test_exists", min(conftest._costly())
    ran: dict[str, list[Any]] = {}
    for turn in (*conftest.TURNS, "all"):
        monkeypatch.setattr(conftest, "TURN", turn)
        for name in (cheap, dear):
            module, _, test = name.partition("::")
            path = HERE.parents[1] / f"{module.replace('.', '/')}.py"
            rows: Any = [
                SimpleNamespace(
                    path=path,
                    nodeid=f"{path}::{test}[{row}]",
                    originalname=test,
                    keywords={*word},
                    row=row,
                    get_closest_marker=lambda _name: None,
                )
                for row in range(40)
                for word in ((), ("essential",))
            ]
            ran[f"{turn} {name}"] = [
                each.row for each in rows if not each.keywords and not conftest._is_left_to_another_turn(each)
            ]
            assert not any(conftest._is_left_to_another_turn(each) for each in rows if each.keywords)
    assert sorted(row for turn in conftest.TURNS for row in ran[f"{turn} {dear}"]) == ran[f"all {dear}"] == list(range(40))
    assert all(ran[f"{turn} {dear}"] for turn in conftest.TURNS)
    assert all(ran[f"{turn} {cheap}"] == list(range(40)) for turn in conftest.TURNS)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_what_shares_something_costly_is_in_one_turn_whatever_it_costs(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = SimpleNamespace(args=(number,))
    rows: Any = [
        SimpleNamespace(
            path=HERE, nodeid=f"row {row}", originalname="test_row", keywords={"turn"}, get_closest_marker=lambda _name: marker
        )
        for row in range(10)
    ]
    left = {}
    for turn in (*conftest.TURNS, "all"):
        monkeypatch.setattr(conftest, "TURN", turn)
        left[turn] = sum(conftest._is_left_to_another_turn(row) for row in rows)
    assert left == {**dict.fromkeys(conftest.TURNS, 10), str(number): 0, "all": 0}
    assert all(map(conftest._is_left_to_ci, rows))
