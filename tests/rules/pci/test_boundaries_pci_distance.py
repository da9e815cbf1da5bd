"""Ways from GPUs to network cards: which card counts, who is far, and what of it depends on NUMA nodes and sockets."""

from __future__ import annotations

from typing import Any

import pytest
from pci_hosts import (
    FIRST,
    FIRST_CARD,
    LAST,
    LAST_CARD,
    PORT,
    failed,
    functions,
    gone,
    healthy,
    judged,
    only,
    pci_facts,
    put,
    replace,
    verdict,
    where,
    with_intent,
    with_pci,
)

from torchtune_sys.formats.pci_paths import is_gpu
from torchtune_sys.model.facts.pci import PciDistance, TopologyFile
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules.pci import distance


def paths(**told: tuple[str, str]) -> Snapshot:
    """A host of two nodes, with the GPUs' ways to two cards: those of each node."""
    ways = [
        PciDistance(gpu=gpu, other=card, path=path, rdma=name)
        for gpu, (near, far) in told.items()
        for card, name, path in ((FIRST_CARD, "mlx5_0", near), (LAST_CARD, "mlx5_7", far))
    ]
    return with_pci(with_intent(healthy(), nodes=2), distances=tuple(ways))


def routes(*told: tuple[str, str, str]) -> Snapshot:
    """(GPU, its way to the card of the first node, and of the second)"""
    return paths(**{gpu: (near, far) for gpu, near, far in told})


@pytest.mark.parametrize("rule", ["gpu-far-from-network", "gpu-network-distance-uneven", "network-cards-uneven-over-nodes"])
def test_distances_matter_to_jobs_that_leave_the_host(rule: str) -> None:
    def ports(host: Snapshot, state: str) -> Snapshot:
        network = host.network
        assert not isinstance(network, Missing) and not isinstance(network.rdma, Missing)
        devices = (replace(card, ports=tuple(replace(port, state=state) for port in card.ports)) for card in network.rdma)
        return replace(host, network=replace(network, rdma=tuple(devices)))

    for nodes, state, expected in (
        (1, "ACTIVE", "na"),
        (2, "ACTIVE", "pass"),
        (2, "DOWN", "pass"),
        (None, "ACTIVE", "pass"),
        (None, "DOWN", "na"),
    ):
        assert verdict(rule, with_intent(ports(healthy(), state), nodes=nodes)) == expected, (nodes, state)
    assert verdict(rule, replace(with_intent(healthy(), nodes=2), pci=gone(Why.DENIED))) == "unknown"
    assert verdict(rule, only(with_intent(healthy(), nodes=2), FIRST_CARD)) == "na"


@pytest.mark.parametrize(
    ("ways", "far"),
    [
        ([(FIRST, "PIX", "SYS"), (LAST, "SYS", "PXB")], []),
        ([(FIRST, "PIX", "SYS"), (LAST, "SYS", "PHB")], [LAST]),
        ([(FIRST, "PHB", "SYS"), (LAST, "SYS", "PXB")], [FIRST]),
        ([(FIRST, "PHB", "SYS"), (LAST, "SYS", "PHB")], []),
        ([(FIRST, "PIX", "SYS"), (LAST, "SYS", "SYS")], []),  # another rule's
        ([(FIRST, "PHB", "PIX"), ("0000:43:00.0", "PHB", "SYS"), (LAST, "PHB", "SYS")], ["0000:43:00.0", LAST]),
    ],
)
def test_some_nearer_than_others(ways: list[tuple[str, str, str]], far: list[str]) -> None:
    assert failed("gpu-network-distance-uneven", routes(*ways)) == [f"GPU {gpu}" for gpu in far]
    result = judged("gpu-network-distance-uneven", routes(*ways))
    assert all(item.wanted.startswith("PXB") is (item.verdict is Verdict.FAIL) for item in result.evidence)


def test_one_gpu_is_as_near_as_the_others() -> None:
    assert verdict("gpu-network-distance-uneven", routes((FIRST, "PHB", "SYS"))) == "na"


def test_the_first_of_two_equally_near_cards_is_named() -> None:
    (item,) = judged("gpu-far-from-network", only(routes((FIRST, "PHB", "PHB")), FIRST, FIRST_CARD, LAST_CARD)).evidence
    assert "mlx5_0" in item.seen


@pytest.mark.parametrize(
    ("near", "of", "expected"),
    [
        (1, 4, "unknown"),
        (2, 4, "fail"),
        (3, 4, "fail"),
        (1, 2, "fail"),
        (1, 3, "unknown"),
        (2, 3, "fail"),
        (4, 4, "pass"),
        (0, 4, "pass"),
    ],
)
def test_a_report_without_rates_has_cards_for_storage(near: int, of: int, expected: str) -> None:
    names = [device.address for device in functions(healthy()) if is_gpu(device)][:of]
    host = routes(*((gpu, "PXB" if at >= of - near else "PHB", "SYS") for at, gpu in enumerate(names)))
    host = replace(host, network=gone(Why.NOT_RECORDED))
    assert verdict("gpu-network-distance-uneven", host) == expected
    found = judged("gpu-network-distance-uneven", host).evidence
    assert len(found) == of  # each is told of, those behind an unknown one, too


def ports(host: Snapshot, **cards_: Any) -> Snapshot:
    """RDMA devices by name: what their ports are changed by; None: it has no port."""
    network = host.network
    assert not isinstance(network, Missing) and not isinstance(network.rdma, Missing)
    changed = []
    for card in network.rdma:
        change = cards_.get(card.name, {})
        changed.append(replace(card, ports=() if change is None else tuple(replace(port, **change) for port in card.ports)))
    return replace(host, network=replace(network, rdma=tuple(changed)))


@pytest.mark.parametrize(
    ("first_card", "expected"),
    [
        ({}, "PIX"),
        ({"rate_gbps": 25.0}, "SYS"),  # for storage
        ({"rate_gbps": gone(Why.ABSENT)}, "SYS"),
        ({"rate_gbps": 25.0, "state": "DOWN"}, "PIX"),  # it belongs to the rails, and is down
        ({"rate_gbps": 800.0}, "PIX"),
        (None, "PIX"),
    ],
)
def test_cards_that_are_meant_for_training(first_card: Any, expected: str) -> None:
    host = ports(routes((FIRST, "PIX", "SYS"), (LAST, "PIX", "SYS")), mlx5_0=first_card)
    (first, _) = judged("gpu-network-distance-uneven", host).evidence
    assert first.seen.endswith(expected)


def test_cards_without_any_rate_are_all_alike() -> None:
    unread = {f"mlx5_{at}": {"rate_gbps": gone(Why.ABSENT)} for at in range(8)}
    host = ports(routes((FIRST, "SYS", "PIX"), (LAST, "PIX", "SYS")), **unread)
    assert verdict("gpu-network-distance-uneven", host) == "pass"
    slow = ports(host, **{**unread, "mlx5_7": {"rate_gbps": 0.5}})
    assert judged("gpu-network-distance-uneven", slow).evidence[1].seen.endswith("SYS")


def on_node(host: Snapshot, node: Any, *addresses: str) -> Snapshot:
    return where(host, put(numa_node=node), *addresses)


@pytest.mark.parametrize(
    ("gpu_node", "card_node", "expected"),
    [
        (0, 0, "pass"),
        (0, 1, "fail"),
        (1, 0, "fail"),
        (-1, 0, "na"),
        (0, -1, "na"),
        (0, gone(Why.FAILED), "na"),
        (gone(Why.FAILED), 0, "unknown"),
    ],
)
def test_a_gpu_and_a_card(gpu_node: Any, card_node: Any, expected: str) -> None:
    host = only(routes((FIRST, "SYS", "SYS")), FIRST, FIRST_CARD)
    host = on_node(on_node(host, gpu_node, FIRST), card_node, FIRST_CARD)
    assert verdict("gpu-far-from-network", host) == expected


def test_as_many_cards_as_nodes_are_enough() -> None:
    ways = ((FIRST, "SYS", "SYS"), (LAST, "SYS", "SYS"))
    both = only(routes(*ways), FIRST, LAST, FIRST_CARD, LAST_CARD)
    assert failed("gpu-far-from-network", on_node(both, 0, FIRST_CARD, LAST_CARD)) == [f"GPU {LAST}"]
    assert verdict("gpu-far-from-network", only(both, FIRST, LAST, FIRST_CARD)) == "na"
    twins = where(both, put(address="0000:1a:00.1"), LAST_CARD)  # two functions of one card
    assert verdict("gpu-far-from-network", twins) == "na"


def clusters(*distances: tuple[int, ...]) -> Snapshot:
    """Four NUMA nodes with CPUs on two sockets; the GPUs are on 0 and 3, the cards on 1 and 3."""
    host = only(routes((FIRST, "SYS", "SYS"), (LAST, "SYS", "SYS")), FIRST, LAST, FIRST_CARD, LAST_CARD)
    assert not isinstance(host.numa, Missing) and not isinstance(host.numa.nodes, Missing)
    (node, *_) = host.numa.nodes
    nodes = tuple(replace(node, id=at, distances=row) for at, row in enumerate(distances))
    host = replace(host, numa=replace(host.numa, nodes=nodes))
    return on_node(on_node(on_node(host, 0, FIRST), 3, LAST, LAST_CARD), 1, FIRST_CARD)


@pytest.mark.parametrize(
    ("near", "expected"),
    [(12, "pass"), (19, "pass"), (20, "na"), (21, "na")],
)
def test_clusters_within_a_socket(near: int, expected: str) -> None:
    host = clusters((10, near, 32, 32), (near, 10, 32, 32), (32, 32, 10, near), (32, 32, near, 10))
    assert verdict("gpu-far-from-network", host) == expected


def test_clusters_of_the_other_socket_are_far() -> None:
    host = clusters((10, 32, 12, 32), (32, 10, 32, 12), (12, 32, 10, 32), (32, 12, 32, 10))
    assert failed("gpu-far-from-network", host) == [f"GPU {FIRST}"]


def test_rows_of_distances_that_are_too_short() -> None:
    short = clusters((32,), (32, 10, 12, 12), (32, 12, 10, 12), (32, 12, 12, 10))
    assert verdict("gpu-far-from-network", short) == "fail"  # node 0 stands alone, and has no card
    nobody = clusters((32,), (32,), (32,), (32,))
    assert verdict("gpu-far-from-network", nobody) == "na"


def test_as_many_nodes_as_sockets_need_no_distances() -> None:
    host = only(routes((FIRST, "SYS", "SYS"), (LAST, "SYS", "SYS")), FIRST, LAST, FIRST_CARD, LAST_CARD)
    assert not isinstance(host.numa, Missing) and not isinstance(host.numa.nodes, Missing)
    nodes = tuple(replace(node, distances=gone(Why.FAILED)) for node in host.numa.nodes)
    assert verdict("gpu-far-from-network", replace(host, numa=replace(host.numa, nodes=nodes))) == "pass"


UNEVEN = "network-cards-uneven-over-nodes"


@pytest.mark.parametrize(
    ("here", "moved", "expected"),
    [
        ((FIRST, LAST, FIRST_CARD, LAST_CARD), {}, "pass"),
        ((FIRST, LAST, FIRST_CARD, "0000:42:00.0", LAST_CARD), {}, "fail"),
        ((FIRST, "0000:43:00.0", LAST, FIRST_CARD, "0000:42:00.0", LAST_CARD), {}, "pass"),  # two for two, one for one
        ((FIRST, "0000:43:00.0", LAST, FIRST_CARD, LAST_CARD), {}, "fail"),
        ((FIRST, LAST, FIRST_CARD), {}, "na"),
        ((FIRST, FIRST_CARD, LAST_CARD), {}, "na"),
        ((FIRST, LAST, FIRST_CARD, "0000:42:00.0", LAST_CARD), {LAST: -1}, "na"),
        ((FIRST, "0000:43:00.0", LAST, FIRST_CARD, "0000:42:00.0", LAST_CARD), {"0000:43:00.0": -1}, "na"),
        ((FIRST, LAST, FIRST_CARD, "0000:42:00.0", "0000:51:00.0", LAST_CARD), {"0000:51:00.0": -1}, "na"),
    ],
)
def test_cards_for_the_gpus_of_each_node(here: tuple[str, ...], moved: dict[str, int], expected: str) -> None:
    host = only(with_intent(healthy(), nodes=2), *here)
    gpus_here = {device.address for device in functions(host) if is_gpu(device)}
    distances = pci_facts(host).distances
    assert not isinstance(distances, Missing)
    host = with_pci(host, distances=tuple(item for item in distances if item.gpu in gpus_here))
    for address, node in moved.items():
        host = on_node(host, node, address)
    assert verdict(UNEVEN, host) == expected


def test_a_function_of_unknown_kind_may_be_a_gpu_with_a_card() -> None:
    host = where(
        only(with_intent(healthy(), nodes=2), FIRST, LAST, FIRST_CARD, LAST_CARD), put(class_=gone(Why.NOT_RECORDED)), PORT
    )
    assert verdict(UNEVEN, host) == "unknown"


def test_a_report_names_no_topology_file() -> None:
    host = with_pci(routes((FIRST, "PIX", "SYS"), (LAST, "SYS", "PIX")), topology_file=gone(Why.NOT_RECORDED))
    assert verdict("gpu-network-distance-uneven", host) == "pass"
    file = TopologyFile(path="/t.xml", source="environment", gpus=(), cards=())
    assert verdict("gpu-network-distance-uneven", with_pci(host, topology_file=file)) == "na"


@pytest.mark.parametrize(
    ("functions_of_the_slot", "class_", "expected"),
    [(4, "0x020700", "pass"), (2, "0x020700", "pass"), (4, "0x020000", "fail")],
)
def test_what_manages_nvswitches_is_no_rail(functions_of_the_slot: int, class_: str, expected: str) -> None:
    """HGX B200: a ConnectX-7 on the GPUs' board with four functions, near one of the two sockets."""
    host = with_intent(healthy(), nodes=2)
    card = next(device for device in functions(host) if device.address == FIRST_CARD)
    more = tuple(
        replace(card, address=f"0000:05:00.{at}", rdma=f"mlx5_{8 + at}", vendor="0x15b3", device="0x1021", class_=class_)
        for at in range(functions_of_the_slot)
    )
    assert verdict(UNEVEN, with_pci(host, devices=(*functions(host), *more))) == expected


@pytest.mark.parametrize(
    ("cards", "gpus", "other", "expected"),
    [((5, 4), 4, 4, True), ((4, 3), 4, 4, False), ((8, 4), 4, 4, False), ((9, 8), 8, 8, True), ((2, 1), 4, 4, False)],
)
def test_a_card_that_is_left_over_is_nobodys_share(cards: tuple[int, int], gpus: int, other: int, expected: bool) -> None:
    """A ninth card for storage beside eight GPUs makes no node poorer; a lost card does."""
    assert (distance._share(cards[0], gpus) == distance._share(cards[1], other)) is expected
