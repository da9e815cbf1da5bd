"""GPUs from both sides of each mark: one that is left out stops no other, and each reading that failed is told from a good one (gpu_links)."""

from __future__ import annotations

from typing import Any

import pytest
from gpu_hosts import (
    FOURTH,
    REFUSED,
    UNSAID,
    UNTOLD,
    every,
    failed,
    gone,
    gpu_facts,
    gpus,
    having,
    healthy,
    last,
    number,
    replace,
    seen,
    verdict,
    with_system,
    words,
)

from torchtune_sys.model.facts.gpu import LinkErrors, Peers
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why


def with_driver(host: Snapshot, **facts: Any) -> Snapshot:
    assert not isinstance(host.driver, Missing)
    return replace(host, driver=replace(host.driver, **facts))


# NVLinks


def unwired(host: Snapshot, **facts: Any) -> Snapshot:
    """GPUs of a report: no fabric, and nothing is known of NVSwitches."""
    return with_driver(every(host, fabric_state=UNTOLD, fabric_status=UNTOLD, **facts), nvswitches=UNTOLD)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ({"nvlinks_down": (3,)}, "fail"),
        ({"nvlinks_down": (3,), "mig": True}, "pass"),
        ({"nvlinks_down": (3,), "lost": True}, "pass"),
        ({"nvlinks_down": UNSAID}, "pass"),
        ({"nvlinks_down": REFUSED}, "unknown"),
        ({"nvlinks_down": tuple(range(18)), "mig": UNTOLD}, "unknown"),
        ({"nvlinks_down": tuple(range(17)), "mig": UNTOLD}, "fail"),
        ({"nvlinks_down": tuple(range(18)), "mig": UNSAID}, "fail"),
    ],
)
def test_links_of_a_board(first: dict[str, Any], expected: str) -> None:
    assert verdict("nvlink-inactive", having(healthy(), first)) == expected
    assert failed("nvlink-inactive", last(having(healthy(), first), nvlinks_down=(1, 5)))[-1] == 7
    assert words("nvlink-inactive", last(having(healthy(), first), nvlinks_down=(1, 5)))[-1] == "links 1, 5 down, of 18"
    assert words("nvlink-inactive", last(having(healthy(), first), nvlinks_down=(2,)))[-1] == "link 2 down, of 18"


def test_links_that_the_log_tells_of_are_left_to_it() -> None:
    host = seen("xid-nvlink-error.fail")
    at = [gpu.pci_address for gpu in gpus(host)].index(FOURTH)
    down = having(host, *([{}] * at), {"nvlinks_down": (6,)})
    assert verdict("nvlink-inactive", down) == "pass"  # of the others
    assert failed("nvlink-inactive", last(down, nvlinks_down=(2,))) == [7]
    assert verdict("nvlink-inactive", having(down, *([{"nvlinks_down": UNSAID}] * at))) == "pass"


@pytest.mark.parametrize(
    ("facts", "hypervisor", "expected"),
    [
        ({"nvlinks_down": tuple(range(18))}, "kvm", "na"),
        ({"nvlinks_down": tuple(range(17))}, "kvm", "fail"),
        ({"nvlinks_down": tuple(range(18))}, "", "fail"),
        ({"nvlinks_down": tuple(range(18))}, REFUSED, "fail"),
        ({"nvlinks_down": (0,), "nvlinks": 1}, "kvm", "na"),
        ({"nvlinks_down": (), "nvlinks": 0}, "kvm", "pass"),
        ({"nvlinks_down": (0,), "nvlinks": REFUSED}, "kvm", "unknown"),
        ({"nvlinks_down": REFUSED}, "kvm", "unknown"),
    ],
)
def test_a_single_gpu_of_a_board(facts: dict[str, Any], hypervisor: Any, expected: str) -> None:
    host = with_system(having(number(healthy(), 1), facts), hypervisor=hypervisor)
    assert verdict("nvlink-inactive", host) == expected


@pytest.mark.parametrize(
    ("count", "facts", "first", "expected"),
    [
        (8, {}, {}, "pass"),  # eight modules stand on a board with NVSwitches
        (8, {}, {"nvlinks_down": (4,)}, "fail"),
        (7, {}, {}, "na"),
        (7, {}, {"nvlinks_down": (4,)}, "fail"),  # on a module all links are used
        (7, {}, {"nvlinks_down": tuple(range(18))}, "na"),  # a virtual machine gets all or none
        (7, {}, {"nvlinks_down": (4,), "nvlinks": REFUSED}, "na"),
        (7, {}, {"nvlinks_down": UNSAID}, "na"),
        (8, {"name": "NVIDIA A100-SXM4-80GB"}, {}, "pass"),
        (8, {"name": "Tesla V100-SXM2-16GB"}, {}, "na"),  # a DGX-1 links pairs
        (8, {"name": "Tesla V100-SXM3-32GB"}, {}, "na"),
        (8, {"name": "NVIDIA A100-PCIE-40GB"}, {}, "na"),
        (8, {"name": REFUSED}, {}, "na"),
        (8, {"name": "a GPU of tomorrow"}, {}, "na"),
        (8, {}, {"name": "a GPU of tomorrow"}, "na"),
    ],
)
def test_boards_that_a_report_shows(count: int, facts: dict[str, Any], first: dict[str, Any], expected: str) -> None:
    host = having(unwired(number(healthy(), count), **facts), first)
    assert verdict("nvlink-inactive", host) == expected
    if expected == "pass":
        assert verdict("nvlink-inactive", with_driver(host, nvswitches=REFUSED)) == "na"
        assert verdict("nvlink-inactive", with_driver(host, nvswitches=0)) == "na"
        assert verdict("nvlink-inactive", with_driver(host, nvswitches=4)) == "pass"
        assert verdict("nvlink-inactive", replace(host, driver=UNTOLD)) == "pass"


def matrix(count: int, *links: Any, **facts: Any) -> Snapshot:
    """GPUs of which only ``nvidia-smi topo -m`` tells the links, pair by pair."""
    pairs = [(first, second) for first in range(count) for second in range(first + 1, count)]
    found = tuple(Peers(first=a, second=b, nvlinks=number_) for (a, b), number_ in zip(pairs, links, strict=True))
    host = number(healthy(), count)
    return having(host, *([{"nvlinks_down": UNTOLD, **facts}] * count), p2p=found)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (matrix(3, 10, 10, 10), "pass"),
        (matrix(3, 9, 9, 9), "unknown"),  # eighteen links may lead from one to the next
        (matrix(3, 9, 10, 9), "fail"),  # nineteen do not
        (matrix(3, 18, 18, 12), "pass"),  # each has a pair with all of them
        (matrix(3, 18, 12, 12), "fail"),
        (matrix(3, 19, 0, 0), "fail"),
        (matrix(3, 19, UNTOLD, UNTOLD), "fail"),
        (matrix(3, 19, 0, 0, mig=UNTOLD), "unknown"),
        (matrix(3, 19, UNTOLD, UNTOLD, mig=UNTOLD), "unknown"),
        (matrix(3, 19, 1, 0, mig=UNTOLD), "fail"),
        (matrix(4, 18, 18, 0, 18, 0, 0, mig=UNTOLD), "fail"),  # one of four alone
        (matrix(4, 19, 0, 0, 0, 0, 0, mig=UNTOLD), "unknown"),  # two of four
        (matrix(3, 18, 18, 12, nvlinks_down=()), "pass"),
        (matrix(3, 18, 12, 12, nvlinks_down=()), "pass"),  # where NVML tells the links themselves, the matrix is not asked
    ],
)
def test_links_by_a_matrix(host: Snapshot, expected: str) -> None:
    assert verdict("nvlink-inactive", host) == expected


@pytest.mark.parametrize("left_out", [{"mig": True}, {"lost": True}, {"index": 9}])
def test_who_is_left_out_of_a_matrix(left_out: dict[str, Any]) -> None:
    host = matrix(4, 0, 0, 0, 18, 12, 12)
    assert failed("nvlink-inactive", host) == [0, 3]
    assert failed("nvlink-inactive", having(host, left_out)) == [3]
    assert words("nvlink-inactive", having(host, left_out)) == ["12 of 18 links"]
    silent = having(host, {"mig": UNTOLD})
    assert failed("nvlink-inactive", silent) == [0, 3], "one of four alone: MIG is said, and does not excuse it"
    assert words("nvlink-inactive", silent)[0] == "0 of 18 links (or it alone has MIG on)"


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ((), []),
        ((LinkErrors(link=0, crc_flit=9, crc_data=9),), []),
        ((LinkErrors(link=3, replay=2),), ["link 3: 2 replays"]),
        ((LinkErrors(link=3, recovery=2, recovery_failed=1),), ["link 3: 2 recoveries, 1 failed recoveries"]),
        ((LinkErrors(link=0, crc_flit=9), LinkErrors(link=3, replay=1)), ["link 3: 1 replays"]),
    ],
)
def test_errors_of_links(errors: tuple[LinkErrors, ...], expected: list[str]) -> None:
    assert words("nvlink-errors", last(healthy(), nvlink_errors=errors)) == expected


PEERS = "gpu-peer-access-broken"


def pairs(host: Snapshot, *wrong: tuple[int, int], **ways: Any) -> Snapshot:
    """Every pair reaches the other but these, which are as ``ways`` says."""
    count = len(gpus(host))
    good = {"read": "ok", "write": "ok", "nvlink": "ok"}
    found = tuple(
        Peers(first=a, second=b, **(ways if (a, b) in wrong else good)) for a in range(count) for b in range(a + 1, count)
    )
    return replace(host, gpu=replace(gpu_facts(host), p2p=found))


BROKEN = {"read": "chipset-not-supported", "write": "ok", "nvlink": UNSAID}


def test_pairs() -> None:
    assert verdict(PEERS, pairs(healthy())) == "pass"
    assert failed(PEERS, pairs(number(healthy(), 2), (0, 1), **BROKEN)) == [0]
    assert verdict(PEERS, pairs(number(healthy(), 1))) == "na"
    assert verdict(PEERS, pairs(unwired(number(healthy(), 7)), (0, 1), **BROKEN)) == "na"
    ways = {"read": "a", "write": "b", "nvlink": "c"}
    assert words(PEERS, pairs(healthy(), (6, 7), **ways)) == ["read: a, write: b, nvlink: c"]
    assert verdict(PEERS, pairs(healthy(), (6, 7), read=REFUSED, write=REFUSED, nvlink=REFUSED)) == "unknown"


@pytest.mark.parametrize(
    "unsound",
    [
        {"fabric_state": "in-progress"},
        {"fabric_status": "failure"},
        {"lost": True},
        {"mig": True},
        {"nvlinks_down": (3,)},
        {"nvlinks_down": UNSAID},
    ],
)
def test_who_has_a_rule_of_his_own_is_no_peer(unsound: dict[str, Any]) -> None:
    for at in (0, 1):
        host = having(healthy(), *([{}] * at), unsound)
        assert failed(PEERS, pairs(host, (0, 1), **BROKEN)) == []
        assert failed(PEERS, pairs(host, (0, 1), (6, 7), **BROKEN)) == [6]


@pytest.mark.parametrize("sound", [{"fabric_state": UNSAID}, {"fabric_status": UNSAID}, {"mig": UNSAID}, {"mig": False}])
def test_what_is_not_told_excuses_nobody(sound: dict[str, Any]) -> None:
    assert failed(PEERS, pairs(having(healthy(), sound), (0, 1), **BROKEN)) == [0]


@pytest.mark.parametrize("at", [0, 1])
def test_links_that_were_not_read_may_explain_it(at: int) -> None:
    host = having(healthy(), *([{}] * at), {"nvlinks_down": REFUSED})
    assert verdict(PEERS, pairs(host)) == "pass"
    assert verdict(PEERS, pairs(host, (0, 1), **BROKEN)) == "unknown"
    assert failed(PEERS, pairs(host, (0, 1), (6, 7), **BROKEN)) == [6]


IMEX = "imex-not-ready"


def rack(**driver: Any) -> Snapshot:
    host = every(replace(healthy(), intent=Workload(nodes=2)), fabric_of_hosts=True, name="NVIDIA GB200")
    return with_driver(host, **{"imex": True, "imex_channels": ("channel0",), **driver})


@pytest.mark.parametrize(
    ("driver", "system", "expected", "said"),
    [
        ({}, {}, "pass", ""),
        ({"imex": False}, {}, "fail", "nvidia-imex does not run"),
        ({"imex_channels": ()}, {}, "fail", "no /dev/nvidia-caps-imex-channels/channelN"),
        ({"imex": REFUSED}, {}, "unknown", ""),
        ({"imex": REFUSED}, {"container": "docker"}, "pass", ""),  # the service runs on the host
        ({"imex": REFUSED}, {"container": REFUSED}, "unknown", ""),
        ({"imex": False}, {"container": "docker"}, "fail", "nvidia-imex does not run"),
        ({"imex": REFUSED, "imex_channels": ()}, {"container": "docker"}, "fail", "no /dev/nvidia-caps-imex-channels/channelN"),
        ({"imex_channels": REFUSED}, {}, "unknown", ""),
    ],
)
def test_the_service_and_its_channels(driver: dict[str, Any], system: dict[str, Any], expected: str, said: str) -> None:
    host = with_system(rack(**driver), **system)
    assert verdict(IMEX, host) == expected
    assert words(IMEX, host) == ([said] if said else [])
    assert verdict(IMEX, replace(rack(imex=REFUSED), system=REFUSED)) == "unknown"


@pytest.mark.parametrize(
    ("name", "told", "expected"),
    [
        ("NVIDIA GB200", UNTOLD, "unknown"),
        ("NVIDIA GB300", UNTOLD, "unknown"),
        ("NVIDIA B200", UNTOLD, "na"),
        (UNTOLD, UNTOLD, "na"),
        ("NVIDIA GB200", UNSAID, "na"),
        ("NVIDIA GB200", gone(Why.ABSENT), "na"),
        ("NVIDIA GB200", REFUSED, "unknown"),
        ("NVIDIA GB200", False, "na"),
    ],
)
def test_gpus_that_do_not_tell_where_their_links_lead(name: Any, told: Any, expected: str) -> None:
    assert verdict(IMEX, every(rack(), name=name, fabric_of_hosts=told)) == expected
