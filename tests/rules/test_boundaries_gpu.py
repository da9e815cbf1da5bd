"""GPUs from both sides of each mark: one that is left out stops no other, and each reading that failed is told from a good one."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import pytest

from conftest import load
from torchtune_sys import engine
from torchtune_sys.model.facts.gpu import Gpu, GpuFacts, GpuProcess, LinkErrors, Peers
from torchtune_sys.model.facts.session import Intent
from torchtune_sys.model.rule import Result, Rule, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import gpu as rules_of_gpus
from torchtune_sys.rules.gpu_facts import subject

RULES: dict[str, Rule] = {rule.id: rule for rule in rules_of_gpus.RULES}
FIRST, FOURTH = "0000:1b:00.0", "0000:61:00.0"
MIB = 1 << 20
replace = msgspec.structs.replace
seen = cache(load)


def gone(why: Why) -> Missing:
    return Missing(why, "test")


UNSAID, REFUSED, UNTOLD = gone(Why.NOT_SUPPORTED), gone(Why.DENIED), gone(Why.NOT_RECORDED)


def healthy() -> Snapshot:
    return seen("healthy")


def gpu_facts(host: Snapshot) -> GpuFacts:
    assert not isinstance(host.gpu, Missing)
    return host.gpu


def gpus(host: Snapshot) -> tuple[Gpu, ...]:
    found = gpu_facts(host).devices
    assert not isinstance(found, Missing)
    return found


def having(host: Snapshot, *changes: dict[str, Any], **facts: Any) -> Snapshot:
    """The first GPU changed by the first of ``changes``, and so on; facts of NVML as a whole beside."""
    old = gpus(host)
    changed = (replace(gpu, **change) for gpu, change in zip(old, changes, strict=False))
    return replace(host, gpu=replace(gpu_facts(host), **{"devices": (*changed, *old[len(changes) :]), **facts}))


def number(host: Snapshot, count: int) -> Snapshot:
    return replace(host, gpu=replace(gpu_facts(host), devices=gpus(host)[:count]))


def every(host: Snapshot, **facts: Any) -> Snapshot:
    return having(host, *([facts] * len(gpus(host))))


def last(host: Snapshot, **facts: Any) -> Snapshot:
    return having(host, *([{}] * (len(gpus(host)) - 1)), facts)


def with_system(host: Snapshot, **facts: Any) -> Snapshot:
    assert not isinstance(host.system, Missing)
    return replace(host, system=replace(host.system, **facts))


def with_driver(host: Snapshot, **facts: Any) -> Snapshot:
    assert not isinstance(host.driver, Missing)
    return replace(host, driver=replace(host.driver, **facts))


def with_session(host: Snapshot, **facts: Any) -> Snapshot:
    assert not isinstance(host.session, Missing)
    return replace(host, session=replace(host.session, **facts))


def judged(rule: str, host: Snapshot) -> Result:
    return engine.judge(host, [RULES[rule]])[0]


def verdict(rule: str, host: Snapshot) -> str:
    return judged(rule, host).verdict.value


def failed(rule: str, host: Snapshot) -> list[int]:
    """Numbers of the GPUs (the first of a pair) that fail."""
    return [int(item.subject.split()[1]) for item in judged(rule, host).evidence if item.verdict is Verdict.FAIL]


def words(rule: str, host: Snapshot) -> list[str]:
    return [item.seen for item in judged(rule, host).evidence if item.verdict is Verdict.FAIL]


def test_names_of_gpus() -> None:
    assert subject(gpus(healthy())[0]) == f"GPU 0 ({FIRST})"
    assert subject(replace(gpus(healthy())[0], pci_address=UNTOLD)) == "GPU 0"


@pytest.mark.parametrize(
    ("rule", "fact", "bad"),
    [
        ("gpu-ecc-uncorrectable", "ecc_uncorrected_volatile", 1),
        ("gpu-row-remap-failed", "rows_remap_failed", True),
        ("gpu-ecc-off", "ecc", False),
        ("gpu-thermal-throttle", "clock_event_reasons", 0x40),
        ("gpu-power-limit-lowered", "power_default_mw", 800_000),
        ("gpu-power-limit-lowered", "power_limit_mw", 300_000),
        ("exclusive-compute-mode", "compute_mode", "exclusive-process"),
        ("compute-mode-prohibited", "compute_mode", "prohibited"),
        ("mig-mode-limits", "mig", True),
        ("gpu-sram-threshold-exceeded", "sram_threshold_exceeded", True),
        ("gpu-inforom-corrupted", "inforom_valid", False),
        ("gpu-fabric-registration-failed", "fabric_status", "error"),
        ("gpu-fabric-unhealthy", "fabric_health", ("degraded bandwidth",)),
        ("nvlink-errors", "nvlink_errors", (LinkErrors(link=2, replay=1),)),
    ],
)
def test_one_reading_of_each_gpu(rule: str, fact: str, bad: Any) -> None:
    host = healthy()
    assert verdict(rule, host) == "pass"
    assert failed(rule, last(host, **{fact: bad})) == [7]
    for left_out in (gone(Why.NOT_SUPPORTED), gone(Why.ABSENT)):
        assert verdict(rule, every(host, **{fact: left_out})) == "na"
        assert verdict(rule, having(host, {fact: left_out})) == "pass"
        assert failed(rule, last(having(host, {fact: left_out}), **{fact: bad})) == [7]
    for refused in (gone(Why.DENIED), gone(Why.TIMEOUT), gone(Why.NOT_RECORDED)):
        assert verdict(rule, having(host, {fact: refused})) == "unknown"
        assert verdict(rule, having(host, {fact: refused, "lost": True})) == "pass"  # a lost one has a rule of its own
        assert verdict(rule, every(host, **{fact: refused, "lost": True})) == "na"
        assert failed(rule, last(having(host, {fact: refused}), **{fact: bad})) == [7]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"ecc": False}, "fail"),
        ({"ecc": False, "name": "NVIDIA T1000 8GB"}, "pass"),
        ({"ecc": False, "name": REFUSED}, "unknown"),
        ({"ecc": True, "name": REFUSED}, "pass"),
        ({"ecc": UNSAID, "name": REFUSED}, "pass"),
    ],
)
def test_ecc_off(facts: dict[str, Any], expected: str) -> None:
    assert verdict("gpu-ecc-off", having(healthy(), facts)) == expected
    assert failed("gpu-ecc-off", last(having(healthy(), facts), ecc=False))[-1] == 7


@pytest.mark.parametrize("error", ["GPU_IS_LOST", "RESET_REQUIRED"])
def test_a_library_that_stops_at_a_lost_gpu(error: str) -> None:
    host = replace(healthy(), gpu=replace(gpu_facts(healthy()), devices=REFUSED, error=error))
    assert verdict("gpu-fallen-off-bus", host) == "fail"
    host = replace(healthy(), gpu=replace(gpu_facts(healthy()), devices=REFUSED, error="UNKNOWN"))
    assert verdict("gpu-fallen-off-bus", host) == "unknown"


def test_errors_that_the_log_tells_of_are_left_to_it() -> None:
    host = seen("xid-memory-error.fail")
    at = [gpu.pci_address for gpu in gpus(host)].index(FOURTH)
    counted = having(host, *([{}] * at), {"ecc_uncorrected_volatile": 3})
    assert verdict("gpu-ecc-uncorrectable", counted) == "pass"  # of the others
    assert failed("gpu-ecc-uncorrectable", last(counted, ecc_uncorrected_volatile=1)) == [7]


@pytest.mark.parametrize(
    ("facts", "seen_words"),
    [
        ({"rows_remap_pending": True}, "row remapping pending"),
        ({"pages_retire_pending": True}, "page retirement pending"),
        ({"repair_pending": True}, "repair pending"),
        ({"recovery_action": "gpu-reset"}, "recovery action: gpu-reset"),
        ({"repair_pending": True, "recovery_action": "reboot"}, "repair pending, recovery action: reboot"),
    ],
)
def test_what_waits_for_a_reset(facts: dict[str, Any], seen_words: str) -> None:
    assert words("gpu-reset-pending", last(healthy(), **facts)) == [seen_words]


PENDING = ("rows_remap_pending", "pages_retire_pending", "repair_pending", "recovery_action")


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (dict.fromkeys(PENDING, UNSAID), "na"),
        (dict.fromkeys(PENDING, REFUSED), "unknown"),
        ({**dict.fromkeys(PENDING, UNSAID), "repair_pending": REFUSED}, "unknown"),
        ({**dict.fromkeys(PENDING, REFUSED), "lost": True}, "na"),
        ({**dict.fromkeys(PENDING, REFUSED), "repair_pending": False}, "pass"),
        ({**dict.fromkeys(PENDING, UNSAID), "repair_pending": False}, "pass"),
    ],
)
def test_gpus_that_say_nothing_of_resets(first: dict[str, Any], expected: str) -> None:
    assert verdict("gpu-reset-pending", every(healthy(), **first)) == expected
    assert failed("gpu-reset-pending", last(having(healthy(), first), repair_pending=True)) == [7]


VBIOS = "gpu-vbios-differs"


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ([{"vbios": "b"}, {"vbios": "a"}, {"vbios": "a"}], [0]),
        ([{"vbios": "a"}, {"vbios": "b"}, {"vbios": "b"}], [0]),
        ([{"vbios": "b"}, {"vbios": "a"}, {"vbios": "a", "lost": True}], [0]),  # a tie: the first by name is taken for usual
        ([{"vbios": "a"}, {"vbios": "b", "lost": True}, {"vbios": "a"}], []),
        ([{"vbios": "a"}, {"vbios": "b", "name": REFUSED}, {"vbios": "a"}], []),
        ([{"vbios": "a"}, {"vbios": "b", "name": "NVIDIA L4"}, {"vbios": "a"}], []),
        ([{"vbios": "a"}, {"vbios": UNSAID}, {"vbios": "b"}], [2]),
        ([{"vbios": "a"}, {"vbios": REFUSED}, {"vbios": "b"}], [2]),
    ],
)
def test_firmware_of_equal_gpus(first: list[dict[str, Any]], expected: list[int]) -> None:
    assert failed(VBIOS, having(number(healthy(), 3), *first)) == expected


def test_firmware_that_is_not_compared() -> None:
    host = having(number(healthy(), 2), {"vbios": "a"}, {"vbios": "b"})
    assert verdict(VBIOS, host) == "fail"
    assert verdict(VBIOS, number(host, 1)) == "na"
    assert verdict(VBIOS, every(host, name="NVIDIA GeForce RTX 4090")) == "na"
    assert verdict(VBIOS, having(host, {"lost": True})) == "na"
    assert verdict(VBIOS, having(host, {"name": "NVIDIA L4"})) == "na"
    assert verdict(VBIOS, every(host, vbios=REFUSED)) == "unknown"
    assert verdict(VBIOS, every(host, vbios=UNSAID)) == "pass"
    assert verdict(VBIOS, having(host, {"vbios": REFUSED})) == "unknown"


@pytest.mark.parametrize(
    ("limit", "default", "expected"),
    [(693_000, 700_000, "pass"), (692_999, 700_000, "fail"), (700_000, 700_000, "pass"), (800_000, 700_000, "pass")],
)
def test_power_limits(limit: int, default: int, expected: str) -> None:
    host = having(healthy(), {"power_limit_mw": limit, "power_default_mw": default})
    assert verdict("gpu-power-limit-lowered", host) == expected


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
    assert words("nvlink-inactive", last(having(healthy(), first), nvlinks_down=(1, 5)))[-1] == "links 1, 5 of 18 down"


def test_links_that_the_log_tells_of_are_left_to_it() -> None:
    host = seen("xid-nvlink-error.fail")
    at = [gpu.pci_address for gpu in gpus(host)].index(FOURTH)
    down = having(host, *([{}] * at), {"nvlinks_down": (6,)})
    assert verdict("nvlink-inactive", down) == "na"
    assert failed("nvlink-inactive", last(down, nvlinks_down=(2,))) == [7]
    assert verdict("nvlink-inactive", having(down, {"nvlinks_down": UNSAID})) == "na"


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
    assert failed("nvlink-inactive", silent) == [3]


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


# Memory that others hold


def used(mib: int, *processes: tuple[Any, Any]) -> dict[str, Any]:
    listed = tuple(
        GpuProcess(pid=at, user=user, used_bytes=size * MIB if isinstance(size, int) else size)
        for at, (user, size) in enumerate(processes)
    )
    return {"memory_used_bytes": mib * MIB, "processes": listed}


MEMORY = "gpu-memory-in-use"


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (used(2048), "fail"),
        (used(2047), "pass"),
        ({**used(2048), "processes": UNSAID}, "fail"),
        ({**used(2047), "processes": UNSAID}, "pass"),
        (used(4600, ("ubuntu", 2048), ("ubuntu", 2048)), "pass"),
        (used(4600, ("ubuntu", 2048), ("eve", 2048)), "fail"),
        (used(9000, ("ubuntu", UNSAID), ("eve", 4000)), "pass"),  # whose it is cannot be told
        (used(9000, ("eve", UNSAID)), "fail"),
        (used(3000, ("ubuntu", 9000)), "pass"),
        ({"memory_used_bytes": UNSAID}, "pass"),
        ({"memory_used_bytes": REFUSED}, "unknown"),
        ({**used(9000), "lost": True}, "pass"),
    ],
)
def test_memory_that_is_taken(first: dict[str, Any], expected: str) -> None:
    assert verdict(MEMORY, having(healthy(), first)) == expected
    assert failed(MEMORY, last(having(healthy(), first), **used(5000)))[-1] == 7
    report = replace(having(healthy(), first), gpu=replace(gpu_facts(having(healthy(), first)), source="report"))
    assert verdict(MEMORY, report) == "na"


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (used(2047), "pass"),
        (used(2048), "unknown"),
        ({**used(2048), "processes": REFUSED}, "unknown"),
        (used(2048, ("eve", 2048)), "fail"),
    ],
)
def test_a_container_hides_whose_memory_it_is(first: dict[str, Any], expected: str) -> None:
    host = with_system(healthy(), container="docker")
    assert verdict(MEMORY, having(host, first)) == expected
    assert failed(MEMORY, last(having(host, first), **used(5000, ("eve", 5000))))[-1] == 7


def test_a_user_without_a_name_is_a_number() -> None:
    host = having(healthy(), used(5000, ("1000", 5000)))
    assert verdict(MEMORY, host) == "fail"
    nameless = with_session(host, user=gone(Why.ABSENT))
    assert verdict(MEMORY, nameless) == "pass"
    assert verdict(MEMORY, with_session(nameless, uid=1001)) == "fail"
    assert verdict(MEMORY, with_session(nameless, uid=REFUSED)) == "unknown"
    assert verdict(MEMORY, with_session(host, user=REFUSED)) == "unknown"


# Ranks, and memory that hosts share


def test_an_instance_of_a_gpu_is_none_that_ranks_share() -> None:
    host = replace(number(healthy(), 1), intent=Intent(ranks=2))
    assert verdict("several-ranks-on-one-gpu", host) == "fail"
    named = with_session(host, env={"CUDA_VISIBLE_DEVICES": "MIG-4d6b4dbb-1bb8-5e3a-8c4b-5a6d0f1f4b1e"})
    for instance in (named, having(host, {"mig": True})):
        result = judged("several-ranks-on-one-gpu", instance)
        assert result.verdict is Verdict.NA and "MIG instances" in result.note
    assert verdict("several-ranks-on-one-gpu", with_session(host, env={"CUDA_VISIBLE_DEVICES": "0"})) == "fail"


IMEX = "imex-not-ready"


def rack(**driver: Any) -> Snapshot:
    host = every(replace(healthy(), intent=Intent(nodes=2)), fabric_of_hosts=True, name="NVIDIA GB200")
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


def test_gpus_of_the_bus_that_the_driver_lacks() -> None:
    rule = "gpu-missing-from-driver"
    host = healthy()
    lacking = having(number(host, 7))
    assert verdict(rule, host) == "pass"
    assert verdict(rule, lacking) == "fail"
    assert verdict(rule, having(lacking, {"lost": True})) == "fail"
    assert verdict(rule, having(lacking, {"pci_address": REFUSED})) == "na"
    batch = {"env": {"SLURM_JOB_ID": "7"}}
    assert verdict(rule, with_session(lacking, **batch)) == "na"
    assert verdict(rule, with_session(number(host, 0), **batch)) == "fail"
    assert verdict(rule, with_session(host, **batch)) == "pass"
    for hidden, expected in (("docker", "na"), (REFUSED, "unknown"), ("", "fail")):
        assert verdict(rule, with_system(lacking, container=hidden)) == expected


@pytest.mark.parametrize(
    ("single", "double", "expected"),
    [
        (62, 0, "pass"),
        (63, 0, "fail"),
        (0, 63, "fail"),
        (31, 32, "fail"),
        (63, UNSAID, "na"),
        (UNSAID, 63, "na"),
        (1, REFUSED, "unknown"),
        (REFUSED, 1, "unknown"),
    ],
)
def test_pages_that_were_retired(single: Any, double: Any, expected: str) -> None:
    pages = {"pages_retired_single_bit": single, "pages_retired_double_bit": double}
    assert verdict("gpu-pages-retired", having(healthy(), pages)) == expected
