"""Judging what all nodes told, without any node: ways, losses, ranks that a signal ended, figures of one node."""

from __future__ import annotations

import errno
from typing import Any

import msgspec
import pytest

from preflight.joint.a_cluster import WELL, gathered, said, weighed
from torchtune_sys.model.preflight import Preflight, Scale
from torchtune_sys.preflight.joint import gathered as gathered_module
from torchtune_sys.preflight.joint import judge
from torchtune_sys.preflight.joint.gathered import Compute, Gathered, LinkTest
from torchtune_sys.preflight.joint.judge.losses import losing_nodes
from torchtune_sys.preflight.joint.judge.whole import unsound, whole
from torchtune_sys.render.layout import Style
from torchtune_sys.render.preflight import text

NODES = 4
WAYS = [(one, other) for one in range(NODES) for other in range(NODES) if one != other]


def a_test(**changed: Any) -> LinkTest:
    told: dict[str, Any] = {"connect": "ok", "small_s": 1e-4, "beyond": True, "rates": (1e9, 1e9), "sent": 200, "arrived": 200}
    return LinkTest(**{**told, **changed})


def test_what_is_so_between_all_nodes_is_no_node_s_fault_and_keeps_all_from_the_collectives() -> None:
    found = gathered(NODES)
    found.links = {way: [LinkTest(connect="time-out", sent=200, arrived=0)] for way in WAYS}
    verdict = whole(found)
    assert (verdict.verdict, said(verdict), verdict.links) == ("no-go", {}, ())
    assert [cause.cause for cause in verdict.causes] == ["port-dropped"]
    assert unsound(found) == {*range(NODES)}
    found.links[2, 3] = [WELL]
    assert whole(found).causes == ()


def test_a_connection_in_the_other_direction_says_that_the_way_is_open() -> None:
    found = gathered(NODES)
    for peer in (1, 2, 3):
        found.links[peer, 0] = [LinkTest(connect="time-out", sent=200, arrived=0)]
    assert said(whole(found)) == {"n0": {"port-dropped"}}


@pytest.mark.parametrize(
    ("test", "cause"),
    [
        (a_test(cut="reset", rates=(1e9,)), "port-refused"),
        (a_test(cut="silent", rates=()), "port-dropped"),
        (a_test(flows=(8, 4)), "port-dropped"),
        (a_test(connect="time-out", flows=(8, 4)), "port-dropped"),
    ],
)
def test_a_connection_that_is_cut_or_comes_about_only_sometimes_is_the_link_s(test: LinkTest, cause: str) -> None:
    found = gathered(NODES)
    found.links[2, 1] = [test, test]
    assert [(link.from_, link.to, link.cause) for link in whole(found).links] == [("n2", "n1", cause)]


def test_one_connection_of_many_that_fails_is_a_busy_host() -> None:
    found = gathered(NODES)
    found.links[2, 1] = [a_test(flows=(8, 7))]
    assert whole(found).verdict == "go"


def lossy(lost: dict[tuple[int, int], tuple[int, ...]]) -> dict[tuple[int, int], list[LinkTest]]:
    """What each test of a way lost; nothing where it is not said."""
    return {way: [a_test(arrived=200 - each) for each in lost.get(way, (0,))] for way in WAYS}


def test_small_losses_of_all_ways_to_a_node_are_the_node_s() -> None:
    assert [*losing_nodes(lossy({(0, 3): (2, 1), (1, 3): (1, 3), (2, 3): (0,)}))] == [3]
    assert [*losing_nodes(lossy({(3, 0): (1, 2), (3, 1): (3, 1), (3, 2): (1, 1)}))] == [3]


@pytest.mark.parametrize(
    "lost",
    [
        {(0, 3): (2,), (1, 3): (3,), (2, 3): (1,)},  # not tested again
        {(0, 3): (2, 0), (1, 3): (3, 0), (2, 3): (1, 0)},  # not again
        {(0, 3): (4, 4)},  # one way
        {(0, 3): (1, 1), (1, 3): (1, 0)},  # two of a thousand
        dict.fromkeys(WAYS, (2, 2)),  # everywhere alike
    ],
)
def test_other_losses_are_no_node_s(lost: dict[tuple[int, int], tuple[int, ...]]) -> None:
    assert losing_nodes(lossy(lost)) == {}


def test_connection_requests_that_are_lost_again_and_again_are_the_node_s() -> None:
    lost = {way: [a_test(flows=(8, 8), repeated=3 * (way[1] == 2))] * 2 for way in WAYS}
    assert losing_nodes(lost) == {2: "18 of 48 connection requests that were sent to it were lost, on 3 links"}
    assert losing_nodes({way: tests[:1] for way, tests in lost.items()}) == {}, "once is chance"
    assert losing_nodes({way: [a_test(flows=(8, 0))] * 2 for way in WAYS if way[1] == 2}) == {}, (
        "where none is made the port is closed"
    )


@pytest.mark.parametrize(
    ("ways", "named", "links"),
    [
        ([(0, 2)], {}, [("n0", "n2")]),
        ([(0, 2), (3, 2)], {"n2": {"silent-data-corruption"}}, []),
        ([(1, 0), (1, 3), (2, 1)], {"n1": {"silent-data-corruption"}}, []),
    ],
)
def test_data_that_arrives_other_than_it_was_sent_is_believed_at_once(
    ways: list[tuple[int, int]], named: dict[str, set[str]], links: list[tuple[str, str]]
) -> None:
    found = gathered(NODES)
    found.links.update({way: [a_test(damaged=1), a_test()] for way in ways})
    verdict = whole(found)
    assert (said(verdict), [(link.from_, link.to) for link in verdict.links]) == (named, links)
    assert verdict.verdict == "no-go"


def computes(turns: int = 8, **last: Any) -> dict[tuple[int, int], list[Compute]]:
    told: dict[str, Any] = {
        "hardware": "x",
        "kernel_s": (1.0,),
        "copy_s": (1e-3,),
        "weights": "aa",
        "kind": "x",
        "share": 0.9,
        "gap": 0.0,
    }
    well = Compute(**told)
    return {**{(node, 0): [well] * 2 for node in range(3)}, (3, 0): [Compute(**{**told, **last})] * turns}


@pytest.mark.parametrize(
    ("last", "causes"),
    [
        ({"error": "ended by SIGILL, at its start", "signal": "SIGILL", "kernel_s": ()}, {"software-differs-between-nodes"}),
        ({"error": "ended by SIGKILL, at its start", "signal": "SIGKILL", "kernel_s": ()}, {"rank-killed"}),
        ({"error": "RuntimeError: no kernel", "kernel_s": ()}, {"software-differs-between-nodes"}),
        ({"copy_s": (4e-3,)}, {"straggler-compute"}),
        ({"wrong": "1 of 16384 elements of a product are wrong"}, {"silent-data-corruption"}),
    ],
)
def test_what_goes_wrong_in_the_step_of_one_rank_alone_is_its_node_s(last: dict[str, Any], causes: set[str]) -> None:
    found = gathered(NODES, computes=computes(**last))
    assert said(whole(found)) == {"n3": causes}


def test_copies_are_timed_in_eight_turns_before_they_speak_against_a_node() -> None:
    """Of 1,024 healthy nodes under load sixty have a slow one in any turn, some in three."""
    for turns in range(1, 8):
        found = gathered(NODES, computes=computes(turns, copy_s=(4e-3,)))
        assert (3, 0) in judge.ranks_again(found)
        assert said(whole(found)) == {}
        found.turns_cut = True
        assert (whole(found).verdict, said(whole(found))) == ("unknown", {})
    assert judge.ranks_again(gathered(NODES, computes=computes(8, copy_s=(4e-3,)))) == frozenset()


def test_a_step_that_took_too_long_or_fails_on_many_is_nobody_s_fault() -> None:
    late = gathered(NODES, computes=computes(error="did not end within 20 s, at its start", kernel_s=()))
    assert (whole(late).verdict, said(whole(late))) == ("unknown", {})
    failing = Compute(error="RuntimeError: no kernel")
    many = gathered(NODES, computes={(node, 0): [failing] for node in range(NODES)})
    assert (whole(many).verdict, said(whole(many))) == ("unknown", {})


def test_a_collective_that_ends_by_a_signal_on_one_node_is_its_own() -> None:
    answers: dict[tuple[int, int], Any] = {(node, 0): {"error": "did not end within 20 s, at connect"} for node in range(3)}
    answers[3, 0] = {"error": "ended by SIGSEGV, at connect", "signal": "SIGSEGV"}
    assert said(whole(gathered(NODES, collectives=[answers]))) == {"n3": {"software-differs-between-nodes"}}


def test_a_node_with_which_no_collective_was_tried_is_not_called_well() -> None:
    found = gathered(NODES, collectives=[{(node, 0): {"ok": True} for node in range(3)}])
    assert [(node.node, node.verdict) for node in whole(found).nodes if node.verdict != "go"] == [("n3", "unknown")]


def test_a_master_s_name_that_leads_elsewhere_on_one_node_is_its_fault_where_it_did_not_reach_it() -> None:
    found = gathered(NODES)
    for node, member in found.members.items():
        member.notes["master"] = ["10.9.9.9" if node == 2 else "10.0.0.1"]
    assert whole(found).verdict == "go"
    found.members[2].words[0] = "unreachable"
    assert said(whole(found)) == {"n2": {"master-addr-wrong"}}


def test_the_address_of_a_node_s_own_name_that_nobody_reaches_is_told() -> None:
    assert said(whole(gathered(NODES, unreached_names={1: "192.168.77.2 (time-out)"}))) == {"n1": {"nccl-wrong-interface"}}


def test_nodes_are_called_as_the_list_has_them_and_one_that_is_missing_by_what_is_left_of_it() -> None:
    found = gathered(NODES, names=("n3", "n2.example", "n1", "n0"), missing={3: "is-node-0"}, resolved={3: ("10.0.0.1",)})
    del found.members[3]
    found.collectives = []
    verdict = whole(found)
    assert (verdict.absent, said(verdict).keys()) == (("n3",), {"n3"})
    assert {node.node for node in verdict.nodes} == {"n0", "n1", "n2.example", "n3"}
    assert [cause.seen for node in verdict.nodes if node.node == "n3" for cause in node.causes] == [
        "it did not join; present: n0, n1, n2.example"
    ]


def test_a_list_is_compared_with_the_nodes_own_names_once_for_all_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    names, missing = tuple(f"n{node}" for node in range(64)), range(48, 64)
    found = gathered(64, names=names, missing=dict.fromkeys(missing, "time-out"))
    found.resolved = {node: (f"10.9.9.{node}",) for node in missing}
    for node in missing:
        del found.members[node]
    calls: list[int] = []
    real = gathered_module.own_names
    monkeypatch.setattr(gathered_module, "own_names", lambda *a, **b: (calls.append(1), real(*a, **b))[1])
    assert whole(found).absent == names[48:]
    assert len(calls) < 8


def test_the_page_says_first_against_whom_it_is_and_whom_to_leave_out() -> None:
    found = gathered(NODES, unreached_names={1: "192.168.77.2 (time-out)"})
    found.links[3, 2] = [LinkTest(connect="time-out", sent=200, arrived=0)] * 2
    judged = whole(found)
    told = Preflight(
        version="1", time="", epoch_s=0, where="srun", level="standard", seconds=1, verdict=judged.verdict,
        nodes=judged.nodes, links=judged.links, scale=Scale(nodes=NODES, ranks=NODES),
    )  # fmt: skip
    page = text(told, Style(width=200)).splitlines()
    assert page[0].startswith("NO-GO n1: nccl-wrong-interface, n3 -> n2: port-dropped; 4 of 4 nodes")
    assert [line.split()[1] for line in page if line.lstrip().startswith("exclude")] == ["--exclude=n1,n3"]
    assert any(line.lstrip().startswith("next") and "nccl-wrong-interface: unset" in line for line in page)


def test_the_page_says_first_who_is_in_doubt_and_how_to_be_certain() -> None:
    found = gathered(NODES, computes=computes(3, copy_s=(4e-3,)))
    found.turns_cut = True
    judged = whole(found)
    told = Preflight(
        version="1", time="", epoch_s=0, where="srun", level="standard", seconds=1, verdict=judged.verdict,
        nodes=judged.nodes, links=judged.links, scale=Scale(nodes=NODES, ranks=NODES),
    )  # fmt: skip
    page = text(told, Style(width=200))
    assert page.startswith("UNKNOWN in doubt: n3: straggler-compute; 4 of 4 nodes") and "give more by --budget" in page


def test_what_each_host_may_have_its_own_is_no_difference() -> None:
    found = gathered(NODES)
    for node, member in found.members.items():
        member.notes["facts"]["families"] = {"session": {"env": {"NCCL_DEBUG": "INFO"} if node == 1 else {}}}
    assert weighed(found).verdict == "go"


def changed(found: Gathered, node: int, **fields: Any) -> None:
    found.members[node] = msgspec.structs.replace(found.members[node], **fields)


def noted(found: Gathered, node: int, **notes: Any) -> None:
    changed(found, node, notes={**found.members[node].notes, **notes})


def test_a_verdict_that_nobody_could_make_says_what_it_waited_for() -> None:
    """Before, it was *unknown* without a word."""
    found = gathered(NODES, complete=False, stage="testing connections")
    (cause,) = whole(found).causes
    assert (whole(found).verdict, cause.seen) == ("unknown", "the time was up at: testing connections (--budget, budget_s)")
    changed(found, 2, unanswered_s=40.0)
    told = {node.node: [cause.seen for cause in node.causes] for node in whole(found).nodes if node.verdict != "go"}
    words = "the time was up at: testing connections; an answer of this node is overdue by 40 s"
    assert (whole(found).verdict, told) == ("unknown", {"n2": [words]})
    for node in range(NODES):
        changed(found, node, unanswered_s=40.0)
    assert {node.verdict for node in whole(found).nodes} == {"go"}, "all wait for each other: no node is to blame"


@pytest.mark.parametrize(
    ("number", "cause", "verdict"),
    [(errno.EMFILE, "nofile-limit-too-low", "no-go"), (errno.ENOMEM, "checker-fault", "unknown")],
)
def test_what_a_node_s_own_kernel_refuses_is_the_node_s(number: int, cause: str, verdict: str) -> None:
    found = gathered(NODES)
    noted(found, 3, unable={"errno": number, "words": "no"})
    told = {node.node: {each.cause for each in node.causes} for node in whole(found).nodes if node.verdict != "go"}
    assert (whole(found).verdict, told) == (verdict, {"n3": {cause}})


def test_an_interface_that_loses_its_carrier_again_and_again_is_named_and_another_s_is_not() -> None:
    found = gathered(NODES)
    changed(found, 1, carrier_losses={"docker0": 9})
    assert whole(found).verdict == "go"
    changed(found, 1, carrier_losses={"eth0": 1})
    assert [cause.weight for cause in whole(found).nodes[1].causes] == ["warning"]
    found.links[0, 1] = [a_test(arrived=100)] * 2
    assert whole(found).links, "one loss of the carrier explains nothing"
    changed(found, 1, carrier_losses={"eth0": 4})
    assert (said(whole(found)), whole(found).links) == ({"n1": {"link-down"}}, ())


def test_a_clone_is_told_by_its_hardware_address_and_a_router_that_answers_for_all_is_not() -> None:
    found = gathered(NODES)
    for node in range(NODES):
        noted(found, node, hardware=[f"02:00:00:00:00:0{node}"])
    del found.members[3]
    found.missing, found.resolved = {3: "time-out"}, {3: ("10.0.0.4",)}
    for answers, told in (("02:00:00:00:00:01", {"n1", "n3"}), ("12:34:56:78:9a:bc", {"n3"})):
        found.neighbours = {"10.0.0.2": answers, "10.0.0.4": answers}
        found.names = ("n0", "n1", "n2", "n3")
        causes = said(whole(found))
        assert {*causes} == told
        assert ({"duplicate-address"} in causes.values()) == (len(told) == 2)
    found.missing, found.neighbours = {3: "refused"}, {"10.0.0.4": "02:00:00:00:00:01"}
    assert said(whole(found)) == {"n3": {"node-never-came"}}, "containers of one host that share a hardware address"


def test_the_first_node_is_named_where_most_get_no_answer_from_its_first_address_else_who_gets_none() -> None:
    found = gathered(NODES)
    noted(found, 2, silent="fd00::1")
    assert said(whole(found)) == {"n2": {"port-dropped"}}
    noted(found, 3, silent="fd00::1")
    assert said(whole(found)) == {"n0": {"port-dropped"}}


def test_small_packets_that_are_sent_again_where_no_datagram_is_lost_are_no_black_hole() -> None:
    found = gathered(NODES)
    for peer in (0, 1, 3):
        found.links[peer, 2] = [a_test(beyond=False, rates=(), resent=6)] * 2
        found.links[2, peer] = [a_test(beyond=False, rates=())] * 2
    assert said(whole(found)) == {"n2": {"packet-loss"}}
    for way in [way for way in found.links if 2 in way]:
        found.links[way] = [a_test(beyond=False, rates=(), resent=1)] * 2
    assert said(whole(found)) == {"n2": {"mtu-black-hole"}}


@pytest.mark.parametrize(
    ("word", "master", "cause", "words"),
    [
        ("time-out", ("10.0.0.1",), "port-dropped", "do not arrive: time-out"),
        ("refused", ("10.0.0.1",), "port-refused", "do not arrive: refused"),
        ("other-job", (), "node-never-came", "meet another: the pre-flight there belongs to another job"),
        ("time-out", ("10.0.0.9",), "master-addr-wrong", "do not arrive: time-out"),
    ],
)
def test_a_node_that_answers_and_does_not_come_is_told_by_its_own_calls(
    word: str, master: tuple[str, ...], cause: str, words: str
) -> None:
    found = gathered(NODES, missing={3: "ok"}, unreached={3: (word, master)})
    for node in (1, 2):
        found.members[node] = msgspec.structs.replace(found.members[node], notes={"master": ("10.0.0.1",)})
    verdict = whole(found)
    assert said(verdict) == {"n3": {cause}}
    seen = next(node for node in verdict.nodes if node.node == "n3").causes[0].seen
    assert words in seen and all(address in seen for address in master)
    assert verdict.absent == (("n3",) if cause == "node-never-came" else ())


def test_half_of_many_nodes_that_give_no_answer_are_cut_off_although_only_some_were_called() -> None:
    called = {node: "time-out" if node < 82 else "" for node in range(50, 100)}
    found = gathered(100, missing=called)
    for node in called:
        del found.members[node]
    found.links = {way: tests for way, tests in found.links.items() if {*way} <= found.members.keys()}
    verdict = whole(found)
    assert ({link.cause for link in verdict.links}, verdict.absent) == ({"network-partition"}, ())


def test_a_rank_that_answered_no_training_step_is_not_go() -> None:
    """Its node's process was late by a second, and what the rank computes was never seen."""
    found = gathered(NODES)
    del found.computes[2, 0]
    verdict = weighed(found)
    assert verdict.verdict == "unknown"
    assert [(node.node, node.causes[0].seen[:28]) for node in verdict.nodes if node.verdict == "unknown"] == [
        ("n2", "rank 2 did no training step,")
    ]
