"""Judging what nodes told, without any node."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from preflight.joint.a_cluster import WELL, gathered, said, weighed
from torchtune_sys.cli.joint_run import write_lists
from torchtune_sys.model.preflight import Preflight, Scale
from torchtune_sys.preflight.isolation.values import IsolationVerdict, Outcome
from torchtune_sys.preflight.joint import judge
from torchtune_sys.preflight.joint.gathered import Compute, LinkTest, NodeEvent, taken
from torchtune_sys.preflight.joint.judge.whole import Whole, whole
from torchtune_sys.render.preflight import reason_of_all


def test_healthy_nodes_are_go() -> None:
    verdict = whole(gathered())
    assert (verdict.verdict, verdict.links, verdict.absent) == ("go", (), ())


@pytest.mark.parametrize("nodes", [3, 4, 7])
@pytest.mark.parametrize(
    ("test", "cause"),
    [
        (LinkTest(connect="time-out", sent=200, arrived=200), "port-dropped"),
        (LinkTest(connect="refused", sent=200, arrived=200), "port-refused"),
        (LinkTest(connect="ok", small_s=1e-4, beyond=False, sent=200, arrived=200), "mtu-black-hole"),
        (LinkTest(connect="ok", small_s=1e-4, beyond=True, rates=(1e9,), sent=200, arrived=188), "packet-loss"),
        (LinkTest(connect="ok", small_s=2e-2, beyond=True, rates=(1e9,), sent=200, arrived=200), "link-delay"),
        (LinkTest(connect="ok", small_s=1e-4, beyond=True, rates=(1e7, 1e7), sent=200, arrived=200), "narrow-link"),
        (LinkTest(connect="ok", small_s=1e-4, beyond=True, rates=(1e9, 1e9), sent=200, arrived=200, segment=88), "narrow-link"),
    ],
)
def test_what_a_node_explains_is_the_node_s(nodes: int, test: LinkTest, cause: str) -> None:
    found = gathered(nodes)
    for peer in range(nodes):
        if peer != 1:
            found.links[peer, 1] = [test, test]
    verdict = whole(found)
    assert (said(verdict), verdict.links) == ({"n1": {cause}}, ())


def test_one_bad_way_is_a_link_s_and_no_node_s() -> None:
    found = gathered()
    found.links[2, 1] = [LinkTest(connect="time-out", sent=200, arrived=0)] * 2
    found.links[1, 2] = [LinkTest(connect="time-out", sent=200, arrived=200)] * 2
    verdict = whole(found)
    assert said(verdict) == {}
    assert [(link.from_, link.to, link.cause) for link in verdict.links] == [("n2", "n1", "link-one-way-drop")]
    assert verdict.verdict == "no-go"


def test_two_bad_links_that_share_an_end_are_links_where_the_rest_was_tested_in_short() -> None:
    """Once two failed with a node, of its other links no more than the connection is tried: that they came about speaks for the node."""
    found = gathered(8)
    dropped, short = LinkTest(connect="time-out", sent=200, arrived=0), LinkTest(connect="ok", is_short=True)
    for peer in range(1, 8):
        for way in ((0, peer), (peer, 0)):
            found.links[way] = [dropped] * 2 if peer < 3 else [short]
    verdict = whole(found)
    assert said(verdict) == {}
    assert {frozenset((link.from_, link.to)) for link in verdict.links} == {frozenset({"n0", "n1"}), frozenset({"n0", "n2"})}
    for peer in range(3, 8):
        found.links[0, peer] = found.links[peer, 0] = [dropped] * 2
    assert said(whole(found)) == {"n0": {"port-dropped"}}


def test_what_showed_once_and_not_again_is_noise() -> None:
    found = gathered()
    found.links[2, 1] = [LinkTest(connect="ok", small_s=0.5, beyond=True, rates=(1e9,), sent=200, arrived=150), WELL]
    assert whole(found).verdict == "go"


def test_datagrams_that_the_receiver_was_too_slow_for_are_not_lost_on_the_way() -> None:
    found = gathered()
    found.links[2, 1] = [LinkTest(connect="ok", small_s=1e-4, beyond=True, rates=(1e9,), sent=200, arrived=150, overflowed=50)]
    assert whole(found).verdict == "go"


def test_what_many_nodes_are_told_is_short_and_names_them_all() -> None:
    found = gathered(100, events=[NodeEvent(at_s=1, node=7, cause="rank-killed", seen="x")])
    for member in found.members.values():
        member.notes["node"] = [{"cause": "c", "rule": "r", "blame": "node", "weight": "warning", "seen": "s" * 100}] * 5
    found.members[9].notes["facts"]["name"] = "$(x)"
    whole_ = judge.judged(found)
    told = judge.brief(whole_)
    both = [msgspec.convert(each, Whole) for each in (whole_, told)]
    assert {(node.node, node.verdict) for node in both[0].all_nodes()} == {
        (node.node, node.verdict) for node in both[1].all_nodes()
    }
    assert said(both[0]) == said(both[1]) == {"n7": {"rank-killed"}}
    assert (len(msgspec.json.encode(whole_)) > 20_000, len(msgspec.json.encode(told)) < 2000) == (True, True)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, ""),
        (
            {"events": [NodeEvent(at_s=1, node=2, cause="rank-killed", seen="rank 2 was `killed`")]},
            "torchtune-sys: n2: [node] rank-killed: rank 2 was killed",
        ),
        (
            {"missing": {2: "refused", 3: "refused"}, "names": ("n0", "n1", "n2", "n3")},
            "torchtune-sys: n2: did not come (+1 more)",
        ),
        (
            {
                "links": {
                    (2, 1): [LinkTest(connect="refused", sent=200, arrived=200)] * 2,
                    (1, 2): [WELL],
                    (0, 1): [WELL],
                    (3, 1): [WELL],
                }
            },
            "torchtune-sys: n2 > n1: port-refused: connections to a listening port are refused (refused)",
        ),
    ],
)
def test_the_reason_names_who_is_bad_and_not_the_first_node(changed: dict[str, Any], reason: str) -> None:
    found = gathered(**changed)
    for node in found.missing:
        del found.members[node]
    verdict = whole(found)
    value = Preflight(version="", time="", epoch_s=0, where="", level="", seconds=0, verdict=verdict.verdict, nodes=verdict.nodes, links=verdict.links, absent=verdict.absent, scale=Scale(nodes=4, ranks=4))  # fmt: skip
    assert reason_of_all(value) == reason


def test_the_first_event_counts() -> None:
    found = gathered(
        events=[
            NodeEvent(at_s=2, node=2, cause="rank-killed", seen="later"),
            NodeEvent(at_s=1, node=2, cause="rank-stopped", seen="first"),
        ]
    )
    assert said(whole(found)) == {"n2": {"rank-stopped"}}


def test_a_coordinator_that_lost_most_at_once_was_cut_off_itself() -> None:
    found = gathered(events=[NodeEvent(at_s=1, node=node, cause="link-down", seen="") for node in (1, 2, 3)])
    assert said(whole(found)) == {"n0": {"link-down"}}


@pytest.mark.parametrize(("lossy", "named"), [(0, {"n0": {"packet-loss"}}), (3, {"n2": {"link-down"}, "n3": {"packet-loss"}})])
def test_who_is_silent_to_a_coordinator_that_loses_packets_is_not_down(lossy: int, named: dict[str, set[str]]) -> None:
    """A connection that loses 30 % of its packets is silent for seconds now and then."""
    lost = [msgspec.structs.replace(WELL, arrived=140)] * 2
    found = gathered(events=[NodeEvent(at_s=1, node=2, cause="link-down", seen="no answer for 8 s")])
    found.links = {way: lost if lossy in way else tests for way, tests in found.links.items()}
    assert said(whole(found)) == named


def test_a_node_whose_torch_does_not_start_is_named_unless_nobody_has_any() -> None:
    found = gathered(4)
    found.members[2].notes["worker/0"] = {"error": "ImportError: libtorch.so"}
    assert said(whole(found)) == {"n2": {"software-differs-between-nodes"}}
    for member in found.members.values():
        member.notes["worker/0"] = {"error": "ImportError: libtorch.so"}
    assert whole(found).verdict == "unknown"


def test_where_the_meeting_place_is_wrong_nobody_is_absent() -> None:
    found = gathered(3, missing={1: "unknown-address", 2: "unknown-address"}, master_wrong="MASTER_ADDR=h stands for 192.0.2.1")
    del found.members[1], found.members[2]
    verdict = whole(found)
    assert (said(verdict), verdict.absent, {link.cause for link in verdict.links}) == ({}, (), {"master-addr-wrong"})


def test_two_halves_that_do_not_reach_each_other_are_a_cut() -> None:
    found = gathered(4, missing={2: "time-out", 3: "unreachable"})
    del found.members[2], found.members[3]
    verdict = whole(found)
    assert (said(verdict), verdict.absent) == ({}, ())
    assert {link.cause for link in verdict.links} == {"network-partition"}


def test_hosts_that_answer_where_nothing_was_started_did_not_come() -> None:
    found = gathered(4, missing={2: "refused", 3: "refused"}, names=("n0", "n1", "n2", "n3"))
    del found.members[2], found.members[3]
    assert whole(found).absent == ("n2", "n3")


def test_other_hardware_is_not_compared() -> None:
    found = gathered(4)
    found.computes[3, 0] = [Compute(hardware="y", kind="y", weights="bb", kernel_s=(9.0,))] * 2
    assert whole(found).verdict == "go"


def test_what_a_peer_says_may_have_any_form() -> None:
    """Nothing that another node may send ends the judging."""
    rng = random.Random(7)
    junk: list[Any] = [None, 3, "x", [], [[]], {}, {"a": 1}, float("inf"), True, ["x", 1]]
    for _ in range(300):
        found = gathered(3)
        victim = found.members[rng.randrange(3)]
        for name in ("name", "interfaces", "own_name_addresses", "cpu_quota", "families", "env"):
            if rng.random() < 0.4 and isinstance(victim.notes["facts"], dict):
                victim.notes["facts"][name] = rng.choice(junk)
        for name in ("facts", "node", "worker/0"):
            if rng.random() < 0.3:
                victim.notes[name] = rng.choice(junk)
        names = ("hardware", "kernel_s", "weights", "wrong", "share", "gap", "spare", "class")
        told = taken({name: rng.choice(junk) for name in names if rng.random() < 0.3}, Compute)
        found.computes[1, 0] = [] if told is None else [told]
        found.collectives = [{(0, 0): rng.choice(junk), (1, 0): {"ok": True}, (2, 0): {"wrong": rng.choice(junk)}}]
        found.links[0, 1] = [LinkTest.of({key: rng.choice(junk) for key in ("connect", "small_s", "beyond", "rates", "sent")})]
        weighed(found)


@pytest.mark.parametrize("name", ["n2", "n1\nn2", "--all", "n1 n2", "", "n" * 300, "$(id)"])
def test_a_node_takes_no_name_but_its_own(name: str, tmp_path: Path) -> None:
    """Of another node, or with what a launcher would read as more than a name: it is called as the node list has it, and by no name where there is none."""
    found = gathered(3, events=[NodeEvent(at_s=1, node=1, cause="rank-killed", seen="")], names=("a", "b", "c"))
    found.members[1].notes["facts"]["name"] = name
    assert {*said(whole(found))} == {"b"}
    found.names = ()
    verdict = whole(found)
    assert {*said(verdict)} == {"node 1 (rank 1)"}
    alone = Preflight(version="", time="", epoch_s=0, where="", level="", seconds=0, verdict=verdict.verdict, nodes=verdict.nodes, scale=Scale(nodes=3, ranks=3))  # fmt: skip
    write_lists(str(tmp_path), alone)
    assert (tmp_path / "bad_nodes.txt").read_text() == (tmp_path / "exclude.txt").read_text() == ""
    assert "node 1" not in (tmp_path / "good_nodes.txt").read_text()


@pytest.mark.parametrize(
    ("bad", "nodes", "links"),
    [((2,), {"n2": {"straggler-network"}}, []), ((), {}, [("n1", "n3")])],
    ids=["a node", "a link"],
)
def test_what_makes_the_collective_fail_is_named_and_nobody_else(
    bad: tuple[int, ...], nodes: dict[str, set[str]], links: list[tuple[str, str]]
) -> None:
    found = gathered()
    found.collectives = [{rank: {"error": "Connection closed by peer"} for rank in found.collectives[0]}]
    found.isolated = IsolationVerdict(outcome=Outcome.NAMED, nodes=bad, pairs=() if bad else ((1, 3),))
    verdict = weighed(found)
    assert said(verdict) == nodes
    assert [(link.from_, link.to) for link in verdict.links] == links
    assert verdict.verdict == "no-go"


def test_a_wrong_result_that_most_have_is_not_theirs() -> None:
    """A node whose broadcast arrives changed would else be the only one that is called well."""
    found = gathered()
    found.collectives = [{rank: {"wrong": "broadcast by rank 0"} if rank[0] else {"ok": True} for rank in found.collectives[0]}]
    found.isolated = IsolationVerdict(outcome=Outcome.NAMED, nodes=(0,))
    assert said(weighed(found)) == {"n0": {"silent-data-corruption"}}
    found.collectives = [{rank: {"ok": True} if rank[0] != 3 else {"wrong": "all_reduce"} for rank in found.collectives[0]}]
    assert said(weighed(found)) == {"n3": {"silent-data-corruption"}}


def test_what_fails_at_scale_alone_accuses_nobody() -> None:
    found = gathered()
    found.collectives = [{rank: {} for rank in found.collectives[0]}]
    found.isolated = IsolationVerdict(outcome=Outcome.ONLY_AT_SCALE, why="every group of up to 2 units passes")
    verdict = weighed(found)
    assert (verdict.verdict, said(verdict), verdict.links) == ("no-go", {}, ())
    assert [(cause.cause, cause.weight) for cause in verdict.causes] == [("fails-only-at-scale", "fatal")]


def test_a_node_whose_torch_was_not_there_in_time_is_not_go() -> None:
    found = gathered(collectives=[])
    assert whole(found).verdict == "go"
    del found.members[2].notes["worker/0"]
    told = whole(found)
    assert told.verdict == "unknown"
    assert {node.node: node.verdict for node in told.nodes if node.verdict != "go"} == {"n2": "unknown"}
    assert "rank 2" in told.nodes[2].causes[0].seen


NARROW = msgspec.structs.replace(WELL, rates=(1e8, 1e8))


def test_a_link_that_was_narrow_once_is_asked_again_whatever_else_is_wrong() -> None:
    """Before, a node's dropped ports used up the tries of its peers: one slow transfer between two of these was enough."""
    found = gathered(8)
    for peer in (0, 1, 3, 4, 5, 6, 7):
        for way in ((2, peer), (peer, 2)):
            found.links[way] = [LinkTest(connect="time-out", sent=200, arrived=200)] * 2
    found.links[6, 3] = [NARROW]
    assert (said(whole(found)), whole(found).links) == ({"n2": {"port-dropped"}}, ())
    assert (6, 3) in judge.doubtful_links(found, and_shared=True)
    assert judge.doubtful_links(found, and_shared=False) == [], "busy CPUs may look so: it waits until they are free"


def test_a_slow_link_says_what_shapes_the_interface_of_its_end() -> None:
    """No cable is bad where the kernel itself holds packets back."""
    found = gathered()
    shaper = {"cause": "network-interface-shaped", "rule": "network-interface-shaped", "blame": "node", "weight": "warning"}
    found.members[2].notes["node"] = [{**shaper, "seen": "eth0: tbf: limits the rate"}]
    found.links[2, 1] = [msgspec.structs.replace(NARROW, is_alone=True)] * 2
    (link,) = whole(found).links
    assert link.cause == "narrow-link" and link.seen.endswith("; n2: eth0: tbf: limits the rate")
    found.links[2, 1] = [LinkTest(connect="time-out", sent=200, arrived=0)] * 2
    assert all("tbf" not in link.seen for link in whole(found).links), "a shaper drops no connection"


def test_what_shares_switches_and_cpus_is_asked_alone_before_it_is_blamed() -> None:
    found = gathered()
    found.links[2, 1] = [NARROW] * 2
    for peer in (0, 1, 2):
        found.links[3, peer] = [NARROW] * 2
    assert {*said(whole(found))} == {"n3"}
    assert whole(found).links == (), "not while it was tested beside others only"
    asked = judge.accused_links(found)
    assert (len(asked), (2, 1) in asked) == (3, True), "two ways of the node, and the link"
    for way in asked:
        found.links[way].append(msgspec.structs.replace(WELL if way == (2, 1) else NARROW, is_alone=True))
    assert judge.accused_links(found) == []
    found.links[3, 0][-1] = msgspec.structs.replace(NARROW, rates=(5e6, 5e6, 9e6, 1e8), is_alone=True)
    assert judge.accused_links(found) == [(3, 0)], "runs that differ so much tell a busy CPU"
    assert (said(whole(found)), whole(found).links) == ({"n3": {"narrow-link"}}, ())


def test_a_way_that_is_slow_in_the_moment_when_another_one_is_too_is_not_narrow() -> None:
    """Before, a load that began after the first tests had links named whose two ends were merely waiting for a CPU."""
    found = gathered(4)
    found.links[2, 1] = [NARROW]
    assert judge.control_of(found, (2, 1)) == (2, 0), "with the same sender"
    alone = msgspec.structs.replace(NARROW, is_alone=True)
    for control_rate, is_named in ((0.0, True), (max(WELL.rates), True), (max(NARROW.rates), False)):
        found.links[2, 1] = [NARROW, msgspec.structs.replace(alone, control_rate=control_rate)]
        assert [link.cause for link in whole(found).links] == ["narrow-link"] * is_named, control_rate


def test_ways_that_are_asked_again_do_not_make_the_others_look_narrow() -> None:
    """Before, on hosts that share CPUs, each way that was asked alone was several times as fast as those beside others, which were then asked one by one."""
    found = gathered(8)
    rates = (1e8, 2e8, 1.9e8, 2.1e8)
    for at, way in enumerate(found.links):
        found.links[way] = [msgspec.structs.replace(WELL, rates=(rates[at % 4], rates[at % 4]))]
    fast = msgspec.structs.replace(WELL, rates=(1e9, 1e9), is_alone=True)
    before = judge.least_rate(found)
    for way in [*found.links][:20]:
        found.links[way].append(fast)
    assert judge.least_rate(found) == before
    assert not {*judge.accused_links(found)} & {way for way in found.links if max(found.links[way][0].rates) > 1e8}


def test_rates_that_differ_much_are_measured_again_and_what_is_suspected_is_asked_by_itself() -> None:
    found = gathered()
    assert judge.noisy_links(found) == [], "all alike: nothing to gain"
    for at, way in enumerate(found.links):
        found.links[way] = [msgspec.structs.replace(WELL, rates=(1e9, 1e9 / (1 + at % 3)))]
    found.links[2, 1] = [msgspec.structs.replace(WELL, rates=(1e6, 1e6))]
    assert {*judge.noisy_links(found)} == {*found.links} - {(2, 1)}
    for way in found.links:
        found.links[way] = [msgspec.structs.replace(WELL, rates=())]
    assert judge.noisy_links(found) == [], "no rate at all"


def test_a_node_that_loses_packets_is_named_though_time_ran_out() -> None:
    """Some of its ways were never counted, on some no connection came about, and what it sends is answered too late for a message beyond the MTU."""
    found = gathered(5, complete=False)
    lost = msgspec.structs.replace(WELL, arrived=140)
    for peer in (0, 1, 2, 4):
        found.links[3, peer] = [msgspec.structs.replace(WELL, beyond=False, rates=())]
        found.links[peer, 3] = [lost]
    found.links[0, 3] = [msgspec.structs.replace(WELL, arrived=None)]
    found.links[1, 3] = [LinkTest(connect="time-out", sent=200, arrived=140)]
    assert (said(whole(found)), whole(found).links) == ({"n3": {"packet-loss"}}, ())


def test_who_was_slow_in_all_turns_until_time_ran_out_is_not_go() -> None:
    """Before, the verdict was go: of five, one that is a quarter slower takes twelve turns to be told for sure, and a busy machine has time for eleven."""
    found = gathered(5)
    for (node, _local), turns in found.computes.items():
        slow = msgspec.structs.replace(turns[0], kernel_s=(1.25 if node == 3 else 1.0,))
        turns[:] = [slow] * 5
    assert whole(found).verdict == "go", "turns ended with certainty, or nobody asked for more"
    found.turns_cut = True
    told = {node.node: node.verdict for node in whole(found).nodes if node.verdict != "go"}
    assert (whole(found).verdict, told) == ("unknown", {"n3": "unknown"})


@pytest.mark.parametrize(("spare", "named"), [(1.5, {"n1": {"cpu-quota-on-one-node"}}), (0.0, {}), (None, {})])
def test_little_of_busy_cpus_is_no_quota(spare: float | None, named: dict[str, set[str]]) -> None:
    """Who gets little of a CPU was held back only if one of its CPUs stood idle meanwhile: else something else runs there."""
    found = gathered(4)
    usual = found.computes[0, 0][0]
    found.computes = {(node, 0): [msgspec.structs.replace(usual, share=0.28, spare=0.0)] * 3 for node in range(4)}
    found.computes[1, 0] = [msgspec.structs.replace(usual, share=0.06, spare=spare)] * 3
    assert said(weighed(found)) == named
