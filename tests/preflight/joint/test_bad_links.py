"""Links that look narrow while others are tested, or while something else is wrong: judged without any node."""

from __future__ import annotations

import msgspec

from preflight.joint.a_cluster import WELL, gathered, said
from torchtune_sys.preflight.joint import judge
from torchtune_sys.preflight.joint.gathered import LinkTest
from torchtune_sys.preflight.joint.judge.whole import whole

NARROW = msgspec.structs.replace(WELL, rates=(1e8, 1e8))


def test_a_link_that_was_narrow_once_is_asked_again_whatever_else_is_wrong() -> None:
    """Before, a node's dropped ports used up the tries of its peers: one slow transfer between two of these was enough."""
    found = gathered(8)
    for peer in (0, 1, 3, 4, 5, 6, 7):
        for way in ((2, peer), (peer, 2)):
            found.links[way] = [LinkTest(connect="time-out", sent=200, arrived=200)] * 2
    found.links[6, 3] = [NARROW]
    assert (said(whole(found)), whole(found).links) == ({"n2": {"port-dropped"}}, ())
    assert (6, 3) in judge.doubtful_links(found)


def test_what_shares_switches_and_cpus_is_asked_alone_before_it_is_blamed() -> None:
    found = gathered()
    found.links[2, 1] = [NARROW] * 2
    for peer in (0, 1, 2):
        found.links[3, peer] = [NARROW] * 2
    assert {*said(whole(found))} == {"n3"}
    asked = judge.accused_links(found)
    assert (len(asked), (2, 1) in asked) == (3, True), "two ways of the node, and the link"
    for way in asked:
        found.links[way].append(msgspec.structs.replace(WELL if way == (2, 1) else NARROW, is_alone=True))
    assert judge.accused_links(found) == []
    found.links[3, 0][-1] = msgspec.structs.replace(NARROW, rates=(5e6, 9e6, 1e8), is_alone=True)
    assert judge.accused_links(found) == [(3, 0)], "runs that differ so much tell a busy CPU"
    assert (said(whole(found)), whole(found).links) == ({"n3": {"narrow-link"}}, ())


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
