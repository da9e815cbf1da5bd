"""The isolation by groups, from the rounds to the page and the picture, with ranks that a function answers for: which ways fail, and which are slow."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from preflight.joint.a_cluster import gathered, said, weighed
from torchtune_sys.cli.joint_run import write_lists
from torchtune_sys.model.preflight import Preflight, Scale
from torchtune_sys.preflight.isolation.exchanges import Exchanges
from torchtune_sys.preflight.joint.gathered import Gathered, Late, LinkTest, Rank
from torchtune_sys.preflight.joint.isolating import Isolating
from torchtune_sys.preflight.joint.job import Leaf
from torchtune_sys.preflight.joint.judge.whole import Whole
from torchtune_sys.render import isolation
from torchtune_sys.render.layout import Style
from torchtune_sys.render.preflight import reason_of_all, text

USUAL_US, SLOW_US = 1000, 40_000
Way = tuple[int, int]
Hangs = Callable[[int, frozenset[Rank]], bool]
"""Whether a group hangs, by the number of the round."""


def isolated(
    nodes: int = 8,
    hangs: Hangs = lambda _round, _group: False,
    slow: Callable[[int, Way], bool] = lambda _round, _way: False,
    *,
    locals_: int = 1,
    leaves: Sequence[Leaf] = (),
    alive: Callable[[], set[int]] | None = None,
    noise: float = 0.1,
    slow_above: int = 1000,
) -> Gathered:
    found = gathered(nodes, locals_=locals_)
    ranks = [(node, local) for node in range(nodes) for local in range(locals_)]
    rng = random.Random(nodes)
    turns = [0]

    def answer(group: Sequence[Rank], turn: int) -> dict[Rank, Any]:
        if hangs(turn, frozenset(group)):
            return {rank: {"error": "did not end within 10 s, at connect"} for rank in group}
        told = {}
        for rank in group:
            peers = [other for other in group if other[1] == rank[1]]
            times = {
                str(at): [
                    int(
                        (SLOW_US if len(group) > slow_above or slow(turn, (rank[0], other[0])) else USUAL_US)
                        * (1 + noise * rng.random())
                    )
                    for _ in range(3)
                ]
                for at, other in enumerate(peers)
                if other != rank
            }
            told[rank] = {"ok": True, "ways": times}
        return told

    async def tester(
        groups: Sequence[Sequence[Rank]], within_s: Sequence[float], *, timed: bool = False, **_more: bool
    ) -> list[Any]:
        turns[0] += bool(groups)
        assert timed
        assert len(within_s) == len(groups)
        return [answer(group, turns[0]) for group in groups]

    everybody = {*range(nodes)}
    asyncio.run(Isolating(found, ranks, leaves, tester, alive or (lambda: everybody)).run(lambda _text: None, is_asked=True))
    return found


def page(verdict: Whole, nodes: int) -> Preflight:
    return Preflight(
        version="1",
        time="",
        epoch_s=0,
        where="srun",
        level="standard",
        seconds=1,
        verdict=verdict.verdict,
        nodes=verdict.nodes,
        scale=Scale(nodes=nodes, ranks=nodes),
        links=verdict.links,
        causes=verdict.causes,
        isolation=verdict.isolation,
    )


def links(verdict: Whole) -> list[tuple[str, str]]:
    return [(link.from_, link.to) for link in verdict.links]


@pytest.mark.parametrize("nodes", [3, 4, 8, 20])
def test_a_slow_node_is_named(nodes: int) -> None:
    verdict = weighed(isolated(nodes, slow=lambda _turn, way: 1 in way))
    assert (said(verdict), links(verdict), verdict.verdict) == ({"n1": {"straggler-network"}}, [], "no-go")
    assert verdict.isolation is not None
    assert verdict.isolation.exclude == ("n1",)


@pytest.mark.parametrize("nodes", [4, 8, 20])
def test_a_slow_direction_is_named_from_its_sender(nodes: int) -> None:
    verdict = weighed(isolated(nodes, slow=lambda _turn, way: way == (3, 1)))
    assert (said(verdict), links(verdict)) == ({}, [("n3", "n1")])
    assert "take up to 4" in verdict.links[0].seen


def test_what_was_slow_once_and_not_again_is_noise() -> None:
    verdict = weighed(isolated(slow=lambda turn, _way: turn == 1 and _way[0] == 2))
    assert (verdict.verdict, said(verdict), links(verdict), verdict.causes) == ("go", {}, [], ())


def test_noise_of_a_busy_machine_accuses_nobody() -> None:
    """Each time up to four times the usual, anew in each sweep."""
    for nodes in (4, 5, 8, 16, 20):
        verdict = weighed(isolated(nodes, noise=3.0))
        assert (said(verdict), links(verdict), verdict.verdict) == ({}, [], "go"), nodes


def test_what_is_slow_at_scale_alone_is_a_warning() -> None:
    found = isolated(slow=lambda turn, way: turn < 3 and 5 in way, noise=0.0)
    assert weighed(found).causes == (), "it did not come again"

    def at_once(turn: int, way: Way) -> bool:
        return (turn < 3 or turn > 9) and 5 in way

    found = isolated(slow=at_once, noise=0.0)
    verdict = weighed(found)
    assert (verdict.verdict, said(verdict), links(verdict)) == ("go", {}, [])
    assert [(cause.cause, cause.weight) for cause in verdict.causes] == [("straggler-network", "warning")]


@pytest.mark.parametrize("turn", range(1, 12))
@pytest.mark.parametrize("nodes", [6, 8])
def test_a_hang_in_any_one_round_accuses_nobody(nodes: int, turn: int) -> None:
    verdict = weighed(isolated(nodes, lambda now, group: now == turn and (2, 0) in group))
    assert (said(verdict), links(verdict)) == ({}, [])


@pytest.mark.parametrize("turn", range(2, 12))
def test_a_hang_in_any_one_round_hides_no_bad_link_and_accuses_no_node(turn: int) -> None:
    bad = {(1, 0), (4, 0)}
    verdict = weighed(isolated(8, lambda now, group: bad <= group or (now == turn and (6, 0) in group)))
    assert said(verdict) == {}
    assert links(verdict) == [("n1", "n4")]


def test_of_two_nodes_the_link_is_named() -> None:
    found = isolated(2, lambda _turn, _group: True)
    found.collectives = [{(node, 0): {"error": "time-out"} for node in range(2)}]
    verdict = weighed(found)
    assert (verdict.verdict, said(verdict), links(verdict)) == ("no-go", {}, [("n0", "n1")])
    assert weighed(isolated(2)).verdict == "go"


def test_what_fails_at_scale_alone_is_a_no_go_of_nobody(tmp_path: Path) -> None:
    found = isolated(8, lambda _turn, group: len(group) > 4)
    found.collectives = [{(node, 0): {"error": "time-out"} for node in range(8)}]
    verdict = weighed(found)
    assert (verdict.verdict, said(verdict), links(verdict)) == ("no-go", {}, [])
    assert [(cause.cause, cause.weight, cause.blame) for cause in verdict.causes] == [("fails-only-at-scale", "fatal", "network")]
    whole = page(verdict, 8)
    assert reason_of_all(whole).startswith("torchtune-sys: all nodes: [network] fails-only-at-scale: ")
    assert "no node's fault" in text(whole, Style())
    write_lists(str(tmp_path), whole)
    assert ((tmp_path / "bad_nodes.txt").read_text(), (tmp_path / "avoid.txt").read_text()) == ("", "")


def test_a_node_that_died_is_not_waited_for() -> None:
    """Its groups have failed without being run."""
    asked: list[frozenset[Rank]] = []
    left = {0, 1, 2, 3, 5, 6, 7}

    def hangs(_turn: int, group: frozenset[Rank]) -> bool:
        asked.append(group)
        return False

    found = isolated(8, hangs, alive=lambda: left)
    assert found.isolated is not None
    assert found.isolated.nodes == (4,)
    assert all((4, 0) not in group for group in asked)


def test_two_bad_links_that_share_an_end_are_links_and_one_end_is_left_out(tmp_path: Path) -> None:
    bad = [{(1, 0), (4, 0)}, {(1, 0), (6, 0)}]
    verdict = weighed(isolated(8, lambda _turn, group: any(pair <= group for pair in bad)))
    assert (said(verdict), links(verdict)) == ({}, [("n1", "n4"), ("n1", "n6")])
    whole = page(verdict, 8)
    write_lists(str(tmp_path), whole)
    assert ((tmp_path / "bad_nodes.txt").read_text(), (tmp_path / "avoid.txt").read_text()) == ("", "n1\n")
    shown = text(whole, Style())
    assert "--exclude=n1  (an end" in shown or "--exclude=n1 (an end" in shown
    assert "n1 - n4, n1 - n6 (" in shown


def test_a_link_that_connections_name_is_named_once() -> None:
    bad = {(1, 0), (4, 0)}
    found = isolated(8, lambda _turn, group: bad <= group)
    for way in ((1, 4), (4, 1)):
        found.links[way] = [type(found.links[way][0])(connect="time-out", sent=200, arrived=0)] * 2
    assert {link.cause for link in weighed(found).links} == {"port-dropped"}


def test_a_delay_that_an_exchange_refutes_was_a_busy_moment() -> None:
    """Connections say 20 ms at best; 512 KiB went there and back in 1 ms. A way on which the exchange takes 40 ms is not refuted."""
    late = [LinkTest(connect="ok", small_s=2e-2, beyond=True, rates=(1e9,), sent=200, arrived=200, is_alone=True)] * 2
    found = isolated(8)
    found.links[2, 5] = late
    assert links(weighed(found)) == []
    found = isolated(8, slow=lambda _turn, way: way in ((2, 5), (5, 2)))
    found.links[2, 5] = late
    assert [(link.from_, link.to, link.cause) for link in weighed(found).links] == [("n2", "n5", "link-delay")]


def test_a_rate_that_an_exchange_refutes_was_a_busy_moment() -> None:
    """Connections say 10 MB/s at most; 512 KiB went in 1 ms, as everywhere. In 4 ms it is more than 10 MB/s, too, but less than others carry."""
    few = [LinkTest(connect="ok", small_s=2e-4, beyond=True, rates=(1e7, 9e6), sent=200, arrived=200, is_alone=True)] * 2
    found = isolated(8)
    found.links[2, 5] = few
    assert links(weighed(found)) == []
    for taken_us in (SLOW_US, 4 * USUAL_US):
        found = isolated(8)
        found.links[2, 5] = few
        assert found.tests is not None
        found.tests.times[2, 5] = taken_us / 1e6
        assert [(link.from_, link.to, link.cause) for link in weighed(found).links] == [("n2", "n5", "narrow-link")]


def test_leaves_and_rails_are_nobody_s_fault() -> None:
    leaves = [
        Leaf(name=f"s{number}", nodes=tuple(f"n{node}.example" for node in nodes))
        for number, nodes in enumerate([(0, 1, 2), (3, 4, 5), (6, 7)])
    ]
    leaves = [Leaf(name=leaf.name, nodes=tuple(name.partition(".")[0] for name in leaf.nodes)) for leaf in leaves]
    one, other = {(0, 0), (1, 0), (2, 0)}, {(3, 0), (4, 0), (5, 0)}
    verdict = weighed(isolated(8, lambda _turn, group: bool(one & group and other & group), leaves=leaves))
    assert (said(verdict), links(verdict), verdict.verdict) == ({}, [], "no-go")
    assert verdict.isolation is not None
    assert verdict.isolation.parts == ("between leaf s0 and leaf s1",)
    assert {*verdict.isolation.exclude} in ({"n0", "n1", "n2"}, {"n3", "n4", "n5"})
    verdict = weighed(isolated(8, lambda _turn, group: len({node for node, local in group if local == 2}) > 1, locals_=4))
    assert (said(verdict), links(verdict), verdict.verdict) == ({}, [], "no-go")
    assert verdict.isolation is not None
    assert verdict.isolation.parts == ("rail 2",)


def test_without_time_it_says_so_and_is_no_go() -> None:
    found = gathered(4)

    async def late(*_groups: Any, **_more: Any) -> list[Any]:
        raise asyncio.TimeoutError

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(
            Isolating(found, [(node, 0) for node in range(4)], (), late, lambda: {*range(4)}).run(
                lambda _text: None, is_asked=True
            )
        )
    verdict = weighed(found)
    assert (verdict.verdict, said(verdict)) == ("unknown", {})
    assert "no time was left" in verdict.causes[0].seen


@pytest.mark.parametrize(
    ("nodes", "bad", "named", "ways"), [(4, 2, {"n2"}, []), (2, 1, set(), [("n0", "n1")]), (4, 9, set(), [])]
)
def test_exchanges_that_are_late_wherever_a_node_takes_part_are_that_node_s(
    nodes: int, bad: int, named: set[str], ways: list[tuple[str, str]]
) -> None:
    """Of all and of each group again; what is late in the group of all alone accuses nobody."""
    found = gathered(nodes)

    async def tester(groups: Sequence[Sequence[Rank]], _within_s: Sequence[float], **_more: bool) -> list[Any]:
        return [{rank: summed(bad in {node for node, _local in group}) for rank in group} for group in groups]

    def summed(is_late: bool) -> dict[str, Any]:
        return {"ok": True, "latest": ["all_gather", 0.3 if is_late else 1e-3]}

    ranks = [(node, 0) for node in range(nodes)]
    found.collectives = [{rank: summed(True) for rank in ranks}]
    tested = Isolating(found, ranks, (), tester, lambda: {*range(nodes)})
    asyncio.run(tested.run(lambda _text: None, is_asked=False, failed_s=1.0, late=Late("all_gather", 0.3)))
    verdict = weighed(found)
    assert ({*said(verdict)}, links(verdict)) == (named, ways)
    assert verdict.verdict == ("no-go" if named or ways else "go")
    told = [cause.seen for node in verdict.nodes for cause in node.causes] + [link.seen for link in verdict.links]
    assert all("300 ms" in words for words in told)


@pytest.mark.parametrize("nodes", [8, 72])
def test_the_heat_map_has_a_cell_for_each_two_and_ends_at_64_rows(nodes: int) -> None:
    bad = {(1, 0), (4, 0)}
    verdict = weighed(isolated(nodes, lambda _turn, group: bad <= group, slow=lambda _turn, way: way == (5, 2)))
    report = verdict.isolation
    assert report is not None
    assert report.heat is not None
    rows = len(report.heat.labels)
    assert rows == (8 if nodes == 8 else 36)
    assert {len(row) for row in report.heat.ms} == {rows}
    picture = ElementTree.fromstring(isolation.svg(report))
    cells = [cell for cell in picture.iter("{http://www.w3.org/2000/svg}rect") if len(cell)]
    assert len(cells) == rows * rows
    says = [part.text for part in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert says[0] is not None
    assert says[0].startswith("bad: n1 - n4, n2 - n5 (")
    assert (says.count("X"), says.count("#")) == (2, 1)
    assert ("of several nodes in a row the worst way" in str(says[-1])) is (nodes > 64)
    shown = text(page(verdict, nodes), Style())
    assert max(map(len, shown.splitlines())) <= 120
    if nodes == 8:
        assert "  n1  +-..X..." in shown or "X" in next(row for row in shown.splitlines() if row.strip().startswith("n1 "))
        assert any(title.text == "n1 to n4: fails" for title in picture.iter("{http://www.w3.org/2000/svg}title"))


def test_names_from_the_network_steer_neither_terminal_nor_picture() -> None:
    found = isolated(4, lambda _turn, group: {(0, 0), (2, 0)} <= group)
    found.names = ("\x1b[2J<script>", "n1", "n2", "n3")
    found.members[0].notes["facts"]["name"] = "\x1b[2J<script>"
    report = weighed(found).isolation
    assert report is not None
    assert "\x1b" not in text(page(weighed(found), 4), Style())
    picture = isolation.svg(report)
    assert "\x1b" not in picture
    assert "<script" not in picture
    ElementTree.fromstring(picture)


def test_a_column_is_headed_by_the_last_digit_of_its_node() -> None:
    found = isolated(3)
    found.names = ("a9", "a10", "login")
    for node, name in enumerate(found.names):
        found.members[node].notes["facts"]["name"] = name
    rows = text(page(weighed(found), 3), Style()).splitlines()
    place = next(at for at, row in enumerate(rows) if row.strip().startswith("a9 "))
    assert rows[place - 1].strip() == "902", "the third by its place"


def test_one_slow_node_among_four_does_not_make_slow_usual() -> None:
    known = Exchanges()
    ways = {(a, b): [0.2 if 0 in (a, b) else 0.001] * 3 for a in range(4) for b in range(4) if a != b}
    known.take(ways)
    assert known.usual_s == 0.001
    assert set(known.slow(ways)) == {way for way in ways if 0 in way}
