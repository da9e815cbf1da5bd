"""NUMA nodes, and what of them a session may use, from both sides of each mark."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import pytest

from conftest import load
from torchtune_sys import engine
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts.numa import NumaNode
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Result, Rule, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import numa

RULES: dict[str, Rule] = {rule.id: rule for rule in numa.RULES}
FIRST, LAST = "0000:1b:00.0", "0000:df:00.0"
GIB = 1 << 30
replace = msgspec.structs.replace
seen = cache(load)


def gone(why: Why) -> Missing:
    return Missing(why, "test")


REFUSED, NOTHING = gone(Why.DENIED), gone(Why.ABSENT)


def node(number: int, cpus: str, memory: Any = 512 * GIB, gpu_memory: bool = False) -> NumaNode:
    found = CpuSet.parse(cpus)
    return NumaNode(id=number, cpus=found, memory_bytes=memory, free_bytes=0, distances=(10, 21), gpu_memory=gpu_memory)


NODES = (node(0, "0-15,32-47"), node(1, "16-31,48-63"))


def host(*nodes: NumaNode, mems: str = "0-9", affinity: str = "0-63") -> Snapshot:
    found = seen("healthy")
    assert not isinstance(found.numa, Missing) and not isinstance(found.cpu, Missing)
    return replace(
        found,
        numa=replace(found.numa, nodes=nodes or NODES, allowed_mems=CpuSet.parse(mems)),
        cpu=replace(found.cpu, affinity=CpuSet.parse(affinity)),
    )


def functions(found: Snapshot, **changes: dict[str, Any]) -> Snapshot:
    """PCI functions changed by address; None: it is not there; ``rest``: all others that are GPUs."""
    assert not isinstance(found.pci, Missing) and not isinstance(found.pci.devices, Missing)
    rest = changes.get("rest", {})
    changed = []
    for device in found.pci.devices:
        change = changes.get(device.address, rest if device.vendor == "0x10de" and device.class_ == "0x030200" else {})
        changed.append(replace(device, **change))
    return replace(found, pci=replace(found.pci, devices=tuple(changed)))


def judged(rule: str, found: Snapshot) -> Result:
    return engine.judge(found, [RULES[rule]])[0]


def verdict(rule: str, found: Snapshot) -> str:
    return judged(rule, found).verdict.value


def failed(rule: str, found: Snapshot) -> list[str]:
    return [item.subject for item in judged(rule, found).evidence if item.verdict is Verdict.FAIL]


@pytest.mark.parametrize(
    ("number", "expected"), [(-1, "fail"), (0, "pass"), (1, "pass"), (REFUSED, "unknown"), (gone(Why.NOT_SUPPORTED), "unknown")]
)
def test_nodes_of_gpus(number: Any, expected: str) -> None:
    rule = "gpu-numa-unknown"
    assert verdict(rule, functions(host(), **{FIRST: {"numa_node": number}})) == expected
    assert failed(rule, functions(host(), **{FIRST: {"numa_node": number}, LAST: {"numa_node": -1}}))[-1] == LAST
    one = host(node(0, "0-63"))
    assert verdict(rule, functions(one, **{FIRST: {"numa_node": number}})) == "na"


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"vendor": "0x10de", "class_": "0x030000"}, "fail"),
        ({"vendor": "0x10de", "class_": "0x030200"}, "fail"),
        ({"vendor": "0x1002", "class_": "0x038000"}, "fail"),
        ({"vendor": "0x1002", "class_": "0x120000"}, "fail"),
        ({"vendor": "0x10de", "class_": "0x040300"}, "na"),  # its sound
        ({"vendor": "0x10de", "class_": "0x068000"}, "na"),  # an NVSwitch
        ({"vendor": "0x1a03", "class_": "0x030000"}, "na"),  # the board controller's
        ({"vendor": REFUSED, "class_": "0x030200"}, "unknown"),
        ({"vendor": "0x10de", "class_": REFUSED}, "unknown"),
    ],
)
def test_what_is_a_gpu(change: dict[str, Any], wanted: str) -> None:
    none = {"class_": "0x060400", "vendor": "0x8086", "numa_node": -1}
    found = functions(host(), rest=none, **{FIRST: {**change, "numa_node": -1}})
    assert failed("gpu-numa-unknown", found) == [FIRST] * (wanted == "fail")
    assert verdict("gpu-numa-unknown", found) == wanted


@pytest.mark.parametrize("rule", ["gpu-numa-unknown", "session-cpus-far-from-gpus"])
def test_a_bus_that_is_not_there_and_one_that_was_not_seen(rule: str) -> None:
    found = host()
    assert not isinstance(found.pci, Missing)
    assert verdict(rule, replace(found, pci=replace(found.pci, devices=NOTHING))) == "na"
    assert verdict(rule, replace(found, pci=replace(found.pci, devices=REFUSED))) == "unknown"


HBM = node(2, "", 64 * GIB)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (NODES, "pass"),
        ((NODES[0], node(1, "16-31", 0)), "fail"),
        ((NODES[0], node(1, "16-31", 1)), "pass"),
        ((NODES[0], node(1, "16-31", 0), HBM), "pass"),  # memory of its own kind
        ((NODES[0], node(1, "16-31", 0), node(2, "", 64 * GIB, gpu_memory=True)), "fail"),
        ((NODES[0], node(1, "16-31", 0), node(2, "", 0)), "fail"),
        ((NODES[0], node(1, "16-31", 0), node(2, "", REFUSED)), "fail"),
        ((NODES[0], node(1, "16-31", REFUSED)), "unknown"),
        ((NODES[0],), "na"),
        ((NODES[0], HBM), "na"),
    ],
)
def test_nodes_without_memory(nodes: tuple[NumaNode, ...], expected: str) -> None:
    assert verdict("numa-node-without-memory", host(*nodes)) == expected


@pytest.mark.parametrize(
    ("model", "sizes", "expected"),
    [
        (
            "AMD Ryzen Threadripper 2990WX 32-Core Processor",
            (64, 0, 64, 0),
            "pass",
        ),  # two of its four dies have no memory channels
        ("AMD Ryzen Threadripper 2970WX 24-Core Processor", (64, 0, 64, 0), "pass"),
        ("AMD Ryzen Threadripper 2990WX 32-Core Processor", (64, 0, 0, 0), "fail"),
        ("AMD EPYC 7551 32-Core Processor", (64, 0, 64, 0), "fail"),  # each of its dies has channels
    ],
)
def test_dies_without_memory_channels(model: str, sizes: tuple[int, ...], expected: str) -> None:
    dies = host(*(node(number, f"{16 * number}-{16 * number + 15}", size * GIB) for number, size in enumerate(sizes)))
    assert not isinstance(dies.cpu, Missing)
    dies = replace(dies, cpu=replace(dies.cpu, model=model))
    assert verdict("numa-node-without-memory", dies) == expected


def test_each_node_without_memory_is_told() -> None:
    unread = host(node(0, "0-15", REFUSED), node(1, "16-31", 0), node(2, "32-47"))
    assert failed("numa-node-without-memory", unread) == ["node 1"]


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ((100, 100), []),
        ((100, 60), []),
        ((100, 59), ["node 1"]),
        ((59, 100), ["node 0"]),
        ((0, 59, 100), ["node 1"]),  # the first is another rule's
        ((100, 0, 59), ["node 2"]),
    ],
)
def test_memory_of_nodes(sizes: tuple[int, ...], found: list[str]) -> None:
    nodes = tuple(node(at, f"{at * 16}-{at * 16 + 15}", size * GIB) for at, size in enumerate(sizes))
    assert failed("numa-memory-imbalanced", host(*nodes)) == found
    assert verdict("numa-memory-imbalanced", host(*nodes, node(8, "", GIB))) == "na"
    unread = replace(nodes[0], memory_bytes=REFUSED)
    assert verdict("numa-memory-imbalanced", host(unread, *nodes[1:])) == "unknown"


@pytest.mark.parametrize(
    ("nodes", "mems", "affinity", "found"),
    [
        (NODES, "0-1", "0-63", []),
        (NODES, "0", "0-63", ["node 1"]),
        (NODES, "1", "0-63", ["node 0"]),
        (NODES, "0", "0-15", []),
        (NODES, "1", "0-15", ["node 0"]),
        (NODES, "0", "16-31", ["node 1"]),
        ((node(0, "0-15", 0), NODES[1]), "0", "0-63", ["node 1"]),
        ((node(0, "0-15", 1), NODES[1]), "1", "0-63", ["node 0"]),
        ((node(0, "0-15", 0), NODES[1]), "1", "0-63", []),  # it has none that one could be denied
    ],
)
def test_memory_that_a_session_may_use(nodes: tuple[NumaNode, ...], mems: str, affinity: str, found: list[str]) -> None:
    assert failed("session-memory-on-other-node", host(*nodes, mems=mems, affinity=affinity)) == found


FAR = "session-cpus-far-from-gpus"


@pytest.mark.parametrize(
    ("affinity", "expected", "found"),
    [
        ("0-63", "pass", []),
        ("0-15", "fail", ["node 1"]),
        ("16-31", "fail", ["node 0"]),
        ("15-16", "pass", []),
    ],
)
def test_cpus_at_the_gpus(affinity: str, expected: str, found: list[str]) -> None:
    some = host(affinity=affinity)
    assert verdict(FAR, some) == expected
    assert failed(FAR, some) == found
    third = host(node(5, "64-79"), *NODES, affinity=affinity)  # no GPU lies there
    assert failed(FAR, third) == found
    assert verdict(FAR, replace(some, intent=Workload(ranks=7))) == "na"
    assert verdict(FAR, replace(some, intent=Workload(ranks=8))) == expected
    assert verdict(FAR, replace(some, intent=Workload())) == expected


@pytest.mark.parametrize(
    ("first", "rest", "expected"),
    [
        ({"numa_node": 0}, {"numa_node": 0}, "na"),
        ({"numa_node": 1}, {"numa_node": 0}, "fail"),
        ({"numa_node": -1}, {}, "na"),
        ({"numa_node": REFUSED}, {}, "unknown"),
    ],
)
def test_where_the_gpus_are(first: dict[str, Any], rest: dict[str, Any], expected: str) -> None:
    assert verdict(FAR, functions(host(affinity="0-15"), rest=rest, **{FIRST: first})) == expected


def granted(found: Snapshot, count: int, **change: Any) -> Snapshot:
    """The driver shows the first GPUs alone."""
    assert not isinstance(found.gpu, Missing) and not isinstance(found.gpu.devices, Missing)
    shown = tuple(replace(gpu, **change) for gpu in found.gpu.devices[:count])
    return replace(found, gpu=replace(found.gpu, devices=shown), intent=Workload())


def test_gpus_that_the_session_was_not_granted() -> None:
    some = host(affinity="0-15")
    assert verdict(FAR, granted(some, 8)) == "fail"
    assert verdict(FAR, granted(some, 4)) == "na"  # all of node 0
    assert verdict(FAR, granted(some, 5)) == "fail"
    assert verdict(FAR, granted(some, 4, pci_address=REFUSED)) == "fail"
    assert verdict(FAR, granted(some, 0)) == "fail"
    assert verdict(FAR, replace(some, gpu=REFUSED)) == "fail"
    assert not isinstance(some.gpu, Missing)
    assert verdict(FAR, replace(some, gpu=replace(some.gpu, devices=REFUSED))) == "fail"
    assert verdict(FAR, replace(granted(some, 4), intent=Workload(ranks=3))) == "na"
