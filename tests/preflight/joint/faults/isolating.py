"""The faults of docs/isolation-faults.md for ``preflight --isolate``: a seed says which nodes, and whom the verdict must name."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from preflight.joint.cluster import Cluster, Run
from preflight.joint.faults import named, narrow
from preflight.joint.faults.computing import patched
from torchtune_sys.preflight.joint.deadlines import READY_S, Deadlines

BUDGET_S = 240.0
_READY = 'hasattr(torch, "distributed") and hasattr(torch.distributed, "init_process_group")'
FORBIDDEN = """
def plant(torch):
    import time
    import torch.distributed as dist
    right = dist.init_process_group
    def refusing(*words, **named):
        import os
        own = {own}
        forbidden = {forbidden}
        store = named["store"]
        store.set(own, "here")
        store.add("count", 1)
        until_s = time.monotonic() + 5
        while time.monotonic() < until_s and store.add("count", 0) < named["world_size"]:
            time.sleep(0.02)
        if any(other != own and store.check([other]) for other in forbidden):
            time.sleep(1000)
        right(*words, **named)
    dist.init_process_group = refusing
"""
"""A collective hangs where this rank and a forbidden one are in a group."""
TOO_MANY = """
def plant(torch):
    import torch.distributed as dist
    right = dist.init_process_group
    def refusing(*words, **named):
        import time
        if named["world_size"] > {limit}:
            time.sleep(1000)
        right(*words, **named)
    dist.init_process_group = refusing
"""
NTH = """
def plant(torch):
    import os, signal, time
    import torch.distributed as dist
    right = dist.init_process_group
    def counting(*words, **named):
        with open({count!r}, "a+") as calls:
            calls.write("x")
            calls.flush()
            number = calls.tell()
        if number == {turn}:
            if {kills}:
                rank = int(open("/proc/%d/stat" % os.getppid()).read().rpartition(")")[2].split()[1])
                os.kill(rank, signal.SIGKILL)
            time.sleep(1000)
        right(*words, **named)
    dist.init_process_group = counting
"""
"""Something happens in one of the groups that this node is in."""
LATE = f"""
def plant(torch):
    import time
    time.sleep({READY_S + 15})
"""
"""Torch is imported late, as on a machine that is busy with other things."""
SLOW_SEND = """
def plant(torch):
    import time
    import torch.distributed as dist
    right = dist.send
    def slow(value, *rest, **more):
        if value.numel() > 1000:
            time.sleep(0.1)
        return right(value, *rest, **more)
    dist.send = slow
"""


class Expected(NamedTuple):
    nodes: frozenset[str] = frozenset()
    links: frozenset[tuple[str, str]] = frozenset()
    """In either direction, unless ``is_one_way``."""
    parts: tuple[str, ...] = ()
    causes: frozenset[str] = frozenset({"straggler-network"})
    """Any of these is right."""
    whole: frozenset[str] = frozenset()
    """Causes that are no node's and no link's."""
    verdict: str = "no-go"
    is_one_way: bool = False


Planted = tuple[dict[str, Any], Expected]
"""What it adds to the arguments of ``preflight()``, and what must be said."""
Scenario = Callable[[Cluster, random.Random], Planted]


def _link(*ends: int) -> tuple[str, str]:
    return f"n{ends[0]}", f"n{ends[1]}"


def _dropped(made: Cluster, links: Iterable[tuple[int, int]]) -> None:
    into: dict[int, list[str]] = {}
    for one, other in links:
        into.setdefault(one, []).append(f"ip saddr {made.address(other)} drop")
        into.setdefault(other, []).append(f"ip saddr {made.address(one)} drop")
    for node, rules in into.items():
        made.drop(node, "; ".join(rules))


def _links(made: Cluster, rng: random.Random, count: int, shared: bool) -> Planted:
    ends = rng.sample(range(1, made.nodes + 1), 3 if shared else 2 * count)
    found = [(ends[0], ends[1]), (ends[0], ends[2])] if shared else [(ends[2 * at], ends[2 * at + 1]) for at in range(count)]
    _dropped(made, found)
    return {}, Expected(links=frozenset(_link(*link) for link in found), causes=frozenset({"port-dropped"}))


def one_way(made: Cluster, rng: random.Random) -> Planted:
    sender, receiver = rng.sample(range(1, made.nodes + 1), 2)
    made.drop(receiver, f"ip saddr {made.address(sender)} drop")
    expected = Expected(links=frozenset({_link(sender, receiver)}), causes=frozenset({"link-one-way-drop"}), is_one_way=True)
    return {}, expected


def _nth(made: Cluster, node: int, turn: int, kills: bool) -> dict[str, Any]:
    body = (
        NTH.replace("{count!r}", repr(f"/tmp/{made.bridge}-{node}")).replace("{turn}", str(turn)).replace("{kills}", str(kills))
    )
    made.stack.callback(lambda: _unlink(f"/tmp/{made.bridge}-{node}"))
    return patched(body, _READY)(made, node)


def _unlink(path: str) -> None:
    import contextlib
    import os

    with contextlib.suppress(OSError):
        os.unlink(path)


def dead_node(made: Cluster, rng: random.Random) -> Planted:
    """Its rank is killed while the first or a later group is tested."""
    node = rng.randint(1, made.nodes)
    told = _nth(made, node, rng.randint(1, 2), True)
    return told, Expected(nodes=frozenset({f"n{node}"}), causes=frozenset({"rank-killed"}))


def hang_in_round(turn: int) -> Scenario:
    """One child hangs once, in the collective of all or later, while one link is bad: the link is named, and the node is not."""

    def scenario(made: Cluster, rng: random.Random) -> Planted:
        one, other, third = rng.sample(range(1, made.nodes + 1), 3)
        _dropped(made, [(one, other)])
        expected = Expected(links=frozenset({_link(one, other)}), causes=frozenset({"port-dropped"}))
        return _nth(made, third, turn, False), expected

    return scenario


def _forbidding(made: Cluster, of_node: dict[int, tuple[str, list[str]]]) -> dict[str, Any]:
    env: dict[int, Any] = {}
    for node, (own, others) in of_node.items():
        body = FORBIDDEN.replace("{own}", own).replace("{forbidden}", f"[{', '.join(others)}]")
        env.update(patched(body, _READY)(made, node)["env"])
    return {"env": env}


def _separated(made: Cluster, one: Iterable[int], other: Iterable[int]) -> dict[str, Any]:
    """Collectives hang that hold a node of each, and all others are counted in."""
    sides = [[*one], [*other]]
    told: dict[int, tuple[str, list[str]]] = {}
    for node in range(1, made.nodes + 1):
        forbidden = sides[1] if node in sides[0] else sides[0] if node in sides[1] else []
        told[node] = (repr(f"n{node}"), [repr(f"n{each}") for each in forbidden])
    return _forbidding(made, told)


def hanging_node(made: Cluster, rng: random.Random) -> Planted:
    node = rng.randint(1, made.nodes)
    others = [each for each in range(1, made.nodes + 1) if each != node]
    return _separated(made, [node], others), Expected(nodes=frozenset({f"n{node}"}))


def hanging_link(made: Cluster, rng: random.Random) -> Planted:
    one, other = rng.sample(range(1, made.nodes + 1), 2)
    return _separated(made, [one], [other]), Expected(links=frozenset({_link(one, other)}))


def slow_node(made: Cluster, rng: random.Random) -> Planted:
    node = rng.randint(1, made.nodes)
    narrow(made, node)
    return {}, Expected(nodes=frozenset({f"n{node}"}), causes=frozenset({"narrow-link", "straggler-network"}))


def slow_sender(made: Cluster, rng: random.Random) -> Planted:
    """Its connections are well; what it sends in a collective is late."""
    node = rng.randint(1, made.nodes)
    return patched(SLOW_SEND, 'hasattr(torch, "distributed") and hasattr(torch.distributed, "send")')(made, node), Expected(
        nodes=frozenset({f"n{node}"})
    )


def _narrowed(made: Cluster, sender: int, receiver: int) -> None:
    made.inside(sender, "tc", "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb", "default", "1")
    for number, rate in (("1:1", "10gbit"), ("1:2", "20mbit")):
        words = ("dev", "eth0", "parent", "1:", "classid", number, "htb", "rate", rate, "burst", "32kb")
        made.inside(sender, "tc", "class", "add", *words)
    made.drop(sender, out=f"ip daddr {made.address(receiver)} meta priority set 1:2 ")  # nft 1.0 wants the blank


def late_torch(made: Cluster, rng: random.Random) -> Planted:
    """On every node; one link is bad, too."""
    told, expected = _links(made, rng, 1, False)
    plant = patched(LATE, 'hasattr(torch, "nn")')
    return {
        "env": {node: env for at in range(1, made.nodes + 1) for node, env in plant(made, at)["env"].items()},
        **told,
    }, expected


def slow_link(made: Cluster, rng: random.Random) -> Planted:
    one, other = rng.sample(range(1, made.nodes + 1), 2)
    _narrowed(made, one, other)
    _narrowed(made, other, one)
    causes = frozenset({"narrow-link", "straggler-network"})
    return {}, Expected(links=frozenset({_link(one, other)}), causes=causes)


def slow_one_way(made: Cluster, rng: random.Random) -> Planted:
    one, other = rng.sample(range(1, made.nodes + 1), 2)
    _narrowed(made, one, other)
    causes = frozenset({"narrow-link", "straggler-network"})
    return {}, Expected(links=frozenset({_link(one, other)}), causes=causes, is_one_way=True)


def at_scale(made: Cluster, rng: random.Random) -> Planted:
    env: dict[int, Any] = {}
    for node in range(1, made.nodes + 1):
        env.update(patched(TOO_MANY.replace("{limit}", str(made.nodes // 2)), _READY)(made, node)["env"])
    return {"env": env}, Expected(whole=frozenset({"fails-only-at-scale"}))


def _leaves(made: Cluster) -> tuple[list[list[int]], tuple[str, ...]]:
    """Three leaf switches, and the words that tell of them."""
    third = -(-made.nodes // 3)
    found = [[*range(first, min(first + third, made.nodes + 1))] for first in range(1, made.nodes + 1, third)]
    rows = [f"SwitchName=leaf{number} Nodes={','.join(f'n{node}' for node in nodes)}" for number, nodes in enumerate(found)]
    path = made.folder / "topology.conf"
    path.write_text("\n".join([*rows, "SwitchName=top Switches=leaf[0-2]", ""]))
    return found, ("--topology", str(path))


def leaf(made: Cluster, rng: random.Random) -> Planted:
    leaves, words = _leaves(made)
    number = rng.randrange(3)
    others = [node for at, nodes in enumerate(leaves) for node in nodes if at != number]
    told = _separated(made, leaves[number], others)
    return {**told, "words": words}, Expected(
        nodes=frozenset(f"n{node}" for node in leaves[number]), parts=(f"leaf leaf{number}",)
    )


def between_leaves(made: Cluster, rng: random.Random) -> Planted:
    leaves, words = _leaves(made)
    one, other = sorted(rng.sample(range(3), 2))
    told = _separated(made, leaves[one], leaves[other])
    part = f"between leaf leaf{one} and leaf leaf{other}"
    return {**told, "words": words}, Expected(parts=(part,), whole=frozenset({"straggler-network"}))


def rail(made: Cluster, rng: random.Random) -> Planted:
    own = """"n{node}-%s" % os.environ["LOCAL_RANK"]"""
    told = {
        node: (
            own.replace("{node}", str(node)),
            [f'"n{other}-1" if own.endswith("-1") else own' for other in range(1, made.nodes + 1)],
        )
        for node in range(1, made.nodes + 1)
    }
    return {**_forbidding(made, told), "locals_": 2}, Expected(parts=("rail 1",), whole=frozenset({"straggler-network"}))


SCENARIOS: dict[str, Scenario] = {
    "none": lambda _made, _rng: ({}, Expected(verdict="go")),
    "one-link": lambda made, rng: _links(made, rng, 1, False),
    "two-links": lambda made, rng: _links(made, rng, 2, False),
    "two-links-one-end": lambda made, rng: _links(made, rng, 2, True),
    "one-way": one_way,
    "dead-node": dead_node,
    "hanging-node": hanging_node,
    "hanging-link": hanging_link,
    "slow-node": slow_node,
    "slow-sender": slow_sender,
    "slow-link": slow_link,
    "slow-one-way": slow_one_way,
    "at-scale": at_scale,
    "leaf": leaf,
    "between-leaves": between_leaves,
    "rail": rail,
    "late-torch": late_torch,
    **{f"hang-in-round-{turn}": hang_in_round(turn) for turn in range(1, 10)},
}


MUST_SHOW = ("one-link", "two-links", "two-links-one-end", "slow-node", "dead-node", "one-way")
"""Twenty seeds of each at eight nodes: at most one wrong in all, no healthy node accused."""


def problems(expected: Expected, found: Run) -> list[str]:
    """What is wrong with the verdicts, of those who gave one; empty where all are right."""
    wrong = [f"left running: {each}" for each in found.left]
    verdicts = [told.verdict for told in found.told.values() if told.verdict and told.verdict["scale"]["nodes"] > 1]
    if not verdicts:
        return [*wrong, "no rank gave a verdict", *(told.errors[-300:] for told in found.told.values())]
    return [*wrong, *dict.fromkeys(words for verdict in verdicts for words in _problems(expected, verdict))]


def _problems(expected: Expected, verdict: dict[str, Any]) -> list[str]:
    wrong = []
    blamed = named(verdict)
    links = {(link["from"], link["to"]): link["cause"] for link in verdict["links"]}
    wanted = expected.links if expected.is_one_way else {frozenset(link) for link in expected.links}
    if {*blamed} != expected.nodes:
        wrong.append(f"named {blamed}, not {sorted(expected.nodes)}")
    if ({*links} if expected.is_one_way else {frozenset(link) for link in links}) != wanted:
        wrong.append(f"links {links}, not {sorted(expected.links)}")
    odd = {cause for causes in blamed.values() for cause in causes if not causes & expected.causes} | {
        *links.values()
    } - expected.causes
    if odd and expected.causes:
        wrong.append(f"causes {odd}")
    whole = {cause["cause"] for cause in verdict["causes"] if cause["weight"] == "fatal"}
    if whole != expected.whole:
        wrong.append(f"of no node's fault: {verdict['causes']}")
    if expected.verdict not in ("any", verdict["verdict"]):
        wrong.append(f"verdict {verdict['verdict']}: {verdict['causes']}")
    isolation = verdict["isolation"] or {}
    if not isolation.get("rounds"):
        wrong.append("no groups were tested")
    bound_s = len(isolation.get("rounds", ())) * Deadlines(timed=True).long_s(verdict["scale"]["nodes"])
    if isolation.get("seconds", 0.0) > bound_s:
        wrong.append(f"{isolation['seconds']} s, longer than its rounds times the deadline: {bound_s} s")
    if tuple(isolation.get("parts", ())) != expected.parts:
        wrong.append(f"parts {isolation.get('parts')}, not {expected.parts}")
    return wrong
