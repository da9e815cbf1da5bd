"""Kernel settings, the operating system's age, and which interfaces share a subnet: each mark from both sides."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from torchtune_sys import engine
from torchtune_sys.model.actions import Safety, Sysctl
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts.memory import SwapDevice
from torchtune_sys.model.facts.network import Address
from torchtune_sys.model.facts.session import Intent
from torchtune_sys.model.facts.sysctl import Assignment, Setting
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why
from torchtune_sys.rules import sysctl, sysctl_network, sysctl_wishes, system

DENIED = Missing(Why.DENIED, "test")
NOTHING = Missing(Why.ABSENT, "test")
UNTOLD = Missing(Why.NOT_SUPPORTED, "test")
BY_ID = {rule.id: rule for rule in (*sysctl.RULES, *system.RULES)}
PASS, FAIL, UNKNOWN, NA = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN, Verdict.NA
GIB = 1 << 30


def changed(seen: Snapshot, family: str, **facts: Any) -> Snapshot:
    return msgspec.structs.replace(seen, **{family: msgspec.structs.replace(getattr(seen, family), **facts)})


def with_intent(seen: Snapshot, **intent: Any) -> Snapshot:
    return msgspec.structs.replace(seen, intent=Intent(**intent))


def made(value: str, source: str = "/etc/sysctl.d/a.conf:1") -> Assignment:
    return Assignment(value=value, source=source)


def with_keys(seen: Snapshot, keys: dict[str, Any], **also: Any) -> Snapshot:
    """The same host, where these keys run with these values, nothing sets them, and None is a key that the kernel does not have."""
    assert not isinstance(seen.sysctl, Missing)
    bare = {"assignments": (), "systemd": NOTHING, "procps": NOTHING, "tuned": NOTHING, "cmdline": NOTHING, "boot": NOTHING}
    settings = {key: found for key, found in seen.sysctl.settings.items() if key not in keys}
    settings |= {key: Setting(key=key, running=value, **{**bare, **also}) for key, value in keys.items() if value is not None}
    return changed(seen, "sysctl", settings=settings)


def judged(seen: Snapshot, rule_id: str) -> Result:
    return engine.judge(seen, (BY_ID[rule_id],))[0]


def over_tcp(seen: Snapshot, nodes: int | None = 2) -> Snapshot:
    return changed(with_intent(seen, nodes=nodes), "network", rdma=NOTHING)


def with_interfaces(seen: Snapshot, *interfaces: dict[str, Any]) -> Snapshot:
    """Interfaces that are each an Ethernet card that is up, but for what is told of them."""
    assert not isinstance(seen.network, Missing) and not isinstance(seen.network.interfaces, Missing)
    card = next(interface for interface in seen.network.interfaces if interface.name == "eno1")
    found = tuple(msgspec.structs.replace(card, **{"name": f"eth{n}", **told}) for n, told in enumerate(interfaces))
    return changed(seen, "network", interfaces=found)


# --- single values


@pytest.mark.parametrize(
    ("rule_id", "key", "good", "bad"),
    [
        ("swappiness-high", "vm.swappiness", "10", "11"),
        ("zone-reclaim-enabled", "vm.zone_reclaim_mode", "0", "1"),
        ("numa-balancing-enabled", "kernel.numa_balancing", "0", "1"),
        ("overcommit-strict", "vm.overcommit_memory", "0", "2"),
        ("overcommit-strict", "vm.overcommit_memory", "1", "2"),
        ("max-map-count-low", "vm.max_map_count", "65530", "65529"),
        ("shmmax-lowered", "kernel.shmmax", str(8 * GIB), str(8 * GIB - 1)),
        ("tcp-slow-start-after-idle", "net.ipv4.tcp_slow_start_after_idle", "0", "1"),
    ],
)
def test_values_at_the_mark(healthy: Snapshot, rule_id: str, key: str, good: str, bad: str) -> None:
    area = SwapDevice(path="/swap", kind="file", size_bytes=GIB, used_bytes=0)
    seen = changed(over_tcp(healthy), "memory", swaps=(area,))
    assert judged(with_keys(seen, {key: good}), rule_id).verdict is PASS
    found = judged(with_keys(seen, {key: bad}), rule_id)
    assert found.verdict is FAIL
    assert judged(with_keys(seen, {key: DENIED}), rule_id).verdict is UNKNOWN
    for none in (None, NOTHING):  # this kernel does not have it
        assert judged(with_keys(seen, {key: none}), rule_id).verdict is NA
    wishes = {wish.key: wish for wish in sysctl_wishes.WISHES}
    target = wishes[key].target(seen)
    assert sysctl_wishes.meets(target, good) and not sysctl_wishes.meets(target, bad)
    for action in found.evidence[0].fix:
        assert isinstance(action, Sysctl)
        assert action == Sysctl(key=key, target=target, safety=Safety.UNSAFE if rule_id == "overcommit-strict" else Safety.SAFE)


def test_the_wish_for_process_numbers_is_an_old_kernels_own(healthy: Snapshot) -> None:
    wish = next(wish for wish in sysctl_wishes.WISHES if wish.key == "kernel.pid_max")
    assert sysctl_wishes.meets(wish.target(healthy), "32768") and not sysctl_wishes.meets(wish.target(healthy), "32767")


@pytest.mark.parametrize(("limit", "told"), [(100 * GIB, "2 (CommitLimit 100 GiB)"), (DENIED, "2")])
def test_strict_overcommit_is_told_with_its_limit(healthy: Snapshot, limit: Any, told: str) -> None:
    seen = changed(healthy, "memory", commit_limit_bytes=limit)
    strict = with_keys(seen, {"vm.overcommit_memory": "2"})
    assert judged(strict, "overcommit-strict").evidence[0].seen == told
    assert judged(with_keys(seen, {"vm.overcommit_memory": "1"}), "overcommit-strict").evidence[0].seen == "1"
    assert judged(msgspec.structs.replace(strict, memory=DENIED), "overcommit-strict").evidence[0].seen == "2"


@pytest.mark.parametrize(
    ("in_bytes", "ratio", "total", "expected"),
    [
        (str(128 * GIB), "0", 1000 * GIB, PASS),
        (str(128 * GIB + 1), "0", 1000 * GIB, FAIL),
        ("0", "20", 640 * GIB, PASS),  # a fifth is 128 GiB
        ("0", "20", 640 * GIB + 4, PASS),  # the kernel counts whole bytes
        ("0", "20", 640 * GIB + 5, FAIL),
        (str(GIB), "90", 1000 * GIB, PASS),  # bytes go before the ratio
        ("0" * 23 + "7", "90", 1000 * GIB, PASS),
        ("7" * 24, "0", 1000 * GIB, FAIL),
        ("7" * 25, "0", 1000 * GIB, UNKNOWN),  # no kernel prints as many digits
        ("-1", "0", 1000 * GIB, UNKNOWN),
        ("\u0667", "0", 1000 * GIB, UNKNOWN),
        ("", "0", 1000 * GIB, UNKNOWN),
    ],
)
def test_what_may_wait_to_be_written(healthy: Snapshot, in_bytes: str, ratio: str, total: int, expected: Verdict) -> None:
    seen = with_keys(healthy, {"vm.dirty_bytes": in_bytes, "vm.dirty_ratio": ratio})
    assert judged(changed(seen, "memory", total_bytes=total), "dirty-limit-huge").verdict is expected


@pytest.mark.parametrize(
    ("pid_max", "threads_max", "gib", "intent", "expected"),
    [
        ("32768", "32768", 64, {}, [PASS, PASS]),
        ("32767", "32767", 64, {}, [FAIL, FAIL]),
        ("32768", "29491", 4, {}, [PASS, PASS]),  # 4 GiB let 32768 stacks of 16 KiB take an eighth, less a tenth
        ("32768", "29490", 4, {}, [PASS, FAIL]),
        ("32768", "7372", 1, {}, [PASS, PASS]),
        ("32768", "7371", 1, {}, [PASS, FAIL]),
        ("32768", "7", 1 / 1024, {}, [PASS, FAIL]),
        ("32768", "72", (82 * 131072 - 1) / GIB, {}, [PASS, PASS]),  # whole threads, as the kernel counts them: 81, less a tenth
        ("32768", "71", (82 * 131072 - 1) / GIB, {}, [PASS, FAIL]),
        ("132000", "132000", 64, {"ranks": 2, "threads": 32968}, [PASS, PASS]),  # twice 66000 tasks
        ("131999", "131999", 64, {"ranks": 2, "threads": 32968}, [FAIL, FAIL]),
        (None, "32768", 64, {}, [PASS]),
        (None, "1", 64, {}, [FAIL]),
        ("32768", None, 64, {}, [PASS]),
    ],
)
def test_numbers_for_tasks(
    healthy: Snapshot, pid_max: str | None, threads_max: str | None, gib: float, intent: dict[str, Any], expected: list[Verdict]
) -> None:
    seen = with_intent(healthy, **{"ranks": 1, "threads": 1, **intent})
    seen = with_keys(seen, {"kernel.pid_max": pid_max, "kernel.threads-max": threads_max})
    found = judged(changed(seen, "memory", total_bytes=int(gib * GIB)), "task-table-small").evidence
    assert [item.verdict for item in found] == expected


def test_of_a_host_of_unknown_memory_the_full_number_of_threads_is_asked(healthy: Snapshot) -> None:
    seen = with_keys(with_intent(healthy, ranks=1, threads=1), {"kernel.pid_max": None, "kernel.threads-max": "32767"})
    for blind in (changed(seen, "memory", total_bytes=DENIED), msgspec.structs.replace(seen, memory=DENIED)):
        assert judged(blind, "task-table-small").verdict is FAIL
        assert judged(with_keys(blind, {"kernel.threads-max": "32768"}), "task-table-small").verdict is PASS


# --- which settings matter here


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [
        (["0-1", "2-3"], FAIL),
        (["0", "1"], FAIL),
        (["0-3", ""], NA),  # a node of memory alone, as of a GPU or of CXL
        (["0-3"], NA),
        ([], NA),
        (NOTHING, NA),
        (DENIED, UNKNOWN),
        (["0-3", DENIED], UNKNOWN),
    ],
)
def test_nodes_with_processors(healthy: Snapshot, cpus: Any, expected: Verdict) -> None:
    nodes = cpus
    if isinstance(cpus, list):
        assert not isinstance(healthy.numa, Missing) and not isinstance(healthy.numa.nodes, Missing)
        first = healthy.numa.nodes[0]
        sets = [item if isinstance(item, Missing) else CpuSet.parse(item) for item in cpus]
        nodes = tuple(msgspec.structs.replace(first, cpus=item) for item in sets)
    seen = with_keys(changed(healthy, "numa", nodes=nodes), {"vm.zone_reclaim_mode": "1"})
    assert judged(seen, "zone-reclaim-enabled").verdict is expected


@pytest.mark.parametrize(("nodes", "expected"), [(None, NA), (0, NA), (1, NA), (2, FAIL), (3, FAIL)])
def test_tcp_matters_between_hosts(healthy: Snapshot, nodes: int | None, expected: Verdict) -> None:
    slow = {"net.ipv4.tcp_slow_start_after_idle": "1"}
    assert judged(with_keys(over_tcp(healthy, nodes), slow), "tcp-slow-start-after-idle").verdict is expected
    assert (
        judged(with_keys(with_intent(healthy, nodes=nodes), slow), "tcp-slow-start-after-idle").verdict is NA
    )  # RDMA carries it


RECEIVE, SEND = 6291456, 4194304
"""What the kernel takes by itself (net/ipv4/tcp.c)."""
FAST = 16 << 20


@pytest.mark.parametrize(
    ("speeds", "receive", "send"),
    [
        ([25000], FAST, FAST),
        ([24999], RECEIVE, SEND),
        ([1000, 100_000], FAST, FAST),
        ([DENIED, 100_000], FAST, FAST),
        ([UNTOLD, 1000], RECEIVE, SEND),  # a virtual machine's
        ([NOTHING, 1000], RECEIVE, SEND),  # a bridge
        ([NOTHING], RECEIVE, SEND),
        ([], RECEIVE, SEND),
        ([1000, DENIED], None, None),  # it may be a fast one
    ],
)
def test_buffers_by_the_fastest_link(healthy: Snapshot, speeds: list[Any], receive: int | None, send: int | None) -> None:
    seen = with_interfaces(over_tcp(healthy), *({"speed_mbps": speed} for speed in speeds))

    def verdicts(less_receive: int, less_send: int) -> list[Verdict]:
        values = {
            "net.ipv4.tcp_rmem": f"4096 131072 {(receive or FAST) - less_receive}",
            "net.ipv4.tcp_wmem": f"4096 16384 {(send or FAST) - less_send}",
        }
        found = judged(with_keys(seen, values), "tcp-buffer-ceiling-low")
        return [item.verdict for item in found.evidence] or [found.verdict]

    if receive is None:
        assert verdicts(0, 0) == [UNKNOWN]
    else:
        assert (verdicts(0, 0), verdicts(1, 0), verdicts(0, 1)) == ([PASS, PASS], [FAIL, PASS], [PASS, FAIL])


@pytest.mark.parametrize(
    ("nodes", "ranks", "queue", "expected"),
    [
        (None, 300, "128", NA),
        (1, 300, "128", NA),
        (2, 127, "128", NA),
        (2, 128, "255", FAIL),
        (2, 128, "256", PASS),
        (3, 100, "299", FAIL),
        (1000, 8, "2048", PASS),
        (1000, 8, "2047", FAIL),
    ],
)
def test_a_queue_as_long_as_the_job(healthy: Snapshot, nodes: int | None, ranks: int, queue: str, expected: Verdict) -> None:
    seen = with_keys(with_intent(healthy, nodes=nodes, ranks=ranks), {"net.core.somaxconn": queue})
    assert judged(seen, "somaxconn-low").verdict is expected


# --- how values are read and told


def test_values_of_files_as_the_kernel_takes_them() -> None:
    at_least = sysctl_wishes.AtLeast(5)
    for value, good in ((">5", True), ("<5", True), (">>5", True), ("X5", False), ("5 x 3", True), ("3 x 5", False), ("", False)):
        assert sysctl_wishes.meets(at_least, value) is good
    for value, good in ((">4", False), ("3 4 5", True), ("5 4 3", False), ("x 5", False), ("-5", False), ("\u0665", False)):
        assert sysctl_wishes.meets(at_least, value) is good
    assert sysctl_wishes.agree(">10", "10") and sysctl_wishes.agree("<10", "10") and sysctl_wishes.agree("10", "10")
    assert (
        not sysctl_wishes.agree("X10", "10") and not sysctl_wishes.agree("10>", "10") and not sysctl_wishes.agree("10", "10 11")
    )
    assert sysctl_wishes.proc("net.ipv4.conf.eth0/7.rp_filter") == "/proc/sys/net/ipv4/conf/eth0.7/rp_filter"


@pytest.mark.parametrize(
    ("facts", "told", "source"),
    [
        ({"boot": NOTHING}, "7", "/proc/sys/vm/swappiness (no file sets it)"),
        ({"boot": DENIED}, "7", "/proc/sys/vm/swappiness"),
        ({"boot": made("7")}, "7", "/proc/sys/vm/swappiness; /etc/sysctl.d/a.conf:1 sets 7"),
        ({"boot": made("60")}, "7 now, 60 after a reboot", "/proc/sys/vm/swappiness; /etc/sysctl.d/a.conf:1 sets 60"),
    ],
)
def test_where_a_value_comes_from(healthy: Snapshot, facts: dict[str, Any], told: str, source: str) -> None:
    key = "vm.swappiness"
    seen = with_keys(healthy, {key: "7"}, **facts)
    found = sysctl_wishes.setting(seen, key)
    assert (sysctl_wishes.told(seen, found, "7"), sysctl_wishes.origin(seen, found)) == (told, source)
    for system_facts, known in (
        ({"container": "docker"}, False),  # whose files are not the host's
        ({"init": "bash"}, False),
        ({"init": DENIED}, True),
        ({"container": DENIED}, True),
    ):
        other = changed(seen, "system", **system_facts)
        assert sysctl_wishes.told(other, found, "7") == (told if known else "7")
        assert sysctl_wishes.origin(other, found) == (source if known else "/proc/sys/vm/swappiness")
    assert sysctl_wishes.told(msgspec.structs.replace(seen, system=DENIED), found, "7") == told


@pytest.mark.parametrize(("container", "boxed"), [("docker", True), ("", False), (DENIED, False), (None, False)])
def test_a_container_shares_all_settings_but_those_of_its_network(healthy: Snapshot, container: Any, boxed: bool) -> None:
    seen = (
        msgspec.structs.replace(healthy, system=DENIED) if container is None else changed(healthy, "system", container=container)
    )
    target = sysctl_wishes.AtMost(10)
    shared = "<= 10 (set on the host: the container shares it)" if boxed else "<= 10"
    assert sysctl_wishes.wanted(seen, "vm.swappiness", target) == shared
    assert sysctl_wishes.wanted(seen, "net.core.somaxconn", target) == "<= 10"


def test_settings_of_a_host_of_which_nothing_was_read(healthy: Snapshot) -> None:
    for rule_id in ("sysctl-not-applied", "sysctl-lost-at-reboot", "sysctl-overridden", "sysctl-tools-disagree"):
        for why in (DENIED, NOTHING):
            found = judged(msgspec.structs.replace(healthy, sysctl=why), rule_id)
            assert (found.verdict, found.why_unknown, found.evidence) == (UNKNOWN, why, ())  # said once, not for each setting


# --- after the next boot


MAPS = "vm.max_map_count"
GOOD, BAD = "65530", "65529"
LATER = "kernel.shmmax"


def of_maps(seen: Snapshot, rule_id: str, running: str, **facts: Any) -> list[Verdict]:
    """What a rule says of vm.max_map_count; that it goes on to the settings after it is seen by kernel.shmmax."""
    later = {"boot": made(str(64 * GIB)), "systemd": made("1"), "procps": made("1")}
    both = with_keys(with_keys(seen, {MAPS: running}, **facts), {LATER: str(64 * GIB)}, **later)
    found = judged(both, rule_id).evidence
    assert LATER in [item.subject for item in found]
    return [item.verdict for item in found if item.subject == MAPS]


@pytest.mark.parametrize(
    ("running", "boot", "pending", "lost"),
    [
        (GOOD, made(GOOD), PASS, PASS),
        (BAD, made(GOOD), FAIL, None),
        (BAD, made(BAD), PASS, None),
        (GOOD, made(BAD), PASS, FAIL),
        (GOOD, NOTHING, None, PASS),  # the kernel's default is good
        (BAD, NOTHING, None, None),
        (GOOD, DENIED, None, UNKNOWN),
        (BAD, DENIED, UNKNOWN, None),
    ],
)
def test_now_and_after_the_next_boot(
    healthy: Snapshot, running: str, boot: Any, pending: Verdict | None, lost: Verdict | None
) -> None:
    assert of_maps(healthy, "sysctl-not-applied", running, boot=boot) == ([] if pending is None else [pending])
    assert of_maps(healthy, "sysctl-lost-at-reboot", running, boot=boot) == ([] if lost is None else [lost])


@pytest.mark.parametrize(
    ("boot", "others", "expected"),
    [
        (made(GOOD), {}, [PASS]),
        (made(BAD), {}, []),
        (made(BAD), {"assignments": (made(GOOD), made(BAD))}, [FAIL]),
        (made(BAD), {"assignments": (made(GOOD), made(GOOD), made(BAD))}, [FAIL, FAIL]),
        (made(BAD), {"tuned": made(GOOD)}, [FAIL]),
        (made(BAD), {"cmdline": made(GOOD)}, [FAIL]),
        (made(BAD), {"tuned": DENIED}, []),
        (NOTHING, {"assignments": (made(GOOD),)}, []),
        (DENIED, {"assignments": (made(GOOD),)}, [UNKNOWN]),
        (DENIED, {}, []),
    ],
)
def test_lines_that_are_overridden(healthy: Snapshot, boot: Any, others: dict[str, Any], expected: list[Verdict]) -> None:
    assert of_maps(healthy, "sysctl-overridden", GOOD, boot=boot, **others) == expected


@pytest.mark.parametrize(
    ("systemd", "procps", "expected"),
    [
        (made(GOOD), made(GOOD), [PASS]),
        (made(GOOD), made(BAD), [FAIL]),
        (made(GOOD), NOTHING, [FAIL]),
        (NOTHING, made(GOOD), [FAIL]),
        (NOTHING, NOTHING, []),
        (DENIED, made(GOOD), [UNKNOWN]),
        (made(GOOD), DENIED, [UNKNOWN]),
        (NOTHING, DENIED, [UNKNOWN]),
        (DENIED, NOTHING, [UNKNOWN]),
    ],
)
def test_the_two_tools(healthy: Snapshot, systemd: Any, procps: Any, expected: list[Verdict]) -> None:
    assert of_maps(healthy, "sysctl-tools-disagree", GOOD, systemd=systemd, procps=procps) == expected


# --- congestion control


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"systemd": made("bbr")}, ["bbr"]),
        ({"systemd": made("brr")}, ["brr!"]),
        ({"systemd": made("brr extra", "a"), "procps": made("cubic", "b")}, ["brr!", "cubic"]),
        ({"systemd": made("brr", "a"), "procps": made("brr", "a")}, ["brr!"]),  # one line that both read
        ({"systemd": made("brr", "a"), "procps": made("brr", "b")}, ["brr!", "brr!"]),
        ({"tuned": made("brr", "t"), "cmdline": made("mine", "c")}, ["brr!", "mine"]),
        ({"systemd": made("")}, ["!"]),
        ({"systemd": DENIED, "procps": made("bbr")}, ["?", "bbr"]),
        ({"procps": DENIED}, ["?"]),
        ({}, []),
    ],
)
def test_names_of_congestion_control(healthy: Snapshot, facts: dict[str, Any], expected: list[str]) -> None:
    control, offered = "net.ipv4.tcp_congestion_control", "net.ipv4.tcp_available_congestion_control"
    seen = with_keys(with_keys(healthy, {control: "cubic"}, **facts), {offered: "reno cubic mine"})
    marks = {FAIL: "!", UNKNOWN: "?", PASS: ""}
    found = judged(seen, "congestion-control-unknown").evidence
    assert [("" if item.verdict is UNKNOWN else item.seen) + marks[item.verdict] for item in found] == expected


ALGORITHMS = [
    "bbr",
    "bbr1",
    "bbr2",
    "bbr3",
    "bic",
    "cdg",
    "cubic",
    "dctcp",
    "highspeed",
    "htcp",
    "hybla",
    "illinois",
    "lp",
    "nv",
    "prague",
    "reno",
    "scalable",
    "vegas",
    "veno",
    "westwood",
    "yeah",
]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_modules_that_the_kernel_loads_when_they_are_asked_for(healthy: Snapshot, name: str) -> None:
    control, offered = "net.ipv4.tcp_congestion_control", "net.ipv4.tcp_available_congestion_control"
    seen = with_keys(with_keys(healthy, {control: "mine"}, systemd=made(name)), {offered: "mine"})
    assert judged(seen, "congestion-control-unknown").verdict is PASS


# --- subnets


def at(address: str, prefix: Any = 24, family: str = "inet") -> tuple[Address, ...]:
    return (Address(family=family, address=address, prefix_length=prefix),)


ONE, TWO = {"addresses": at("10.1.2.3")}, {"addresses": at("10.1.2.4")}


@pytest.mark.parametrize(
    ("interfaces", "shared"),
    [
        ([ONE, TWO], {"10.1.2.0/24": ["eth0", "eth1"]}),
        ([ONE, {"kind": "loopback", **TWO}], {}),
        ([ONE, {"master": "bond0", **TWO}], {}),
        ([ONE, {"up": False, **TWO}], {}),
        ([ONE, {"up": DENIED, **TWO}], {"10.1.2.0/24": ["eth0", "eth1"]}),
        ([{"kind": "loopback", **TWO}, {"addresses": DENIED}, ONE, TWO], {"10.1.2.0/24": ["eth2", "eth3"]}),
        ([{"kind": "infiniband", **ONE}, TWO, {"addresses": at("10.1.2.9")}], {"10.1.2.0/24": ["eth1", "eth2"]}),
        ([{"kind": "infiniband", **ONE}, {"kind": "infiniband", **TWO}], {}),  # native InfiniBand carries the data
        ([ONE, {"addresses": at("10.1.3.4")}], {}),
        ([{"addresses": at("10.1.2.3", 16)}, {"addresses": at("10.1.3.4", 16)}], {"10.1.0.0/16": ["eth0", "eth1"]}),
        ([ONE, {"addresses": at("10.1.2.4", 25)}], {}),
        ([{"addresses": at("10.1.2.3", 32)}, {"addresses": at("10.1.2.3", 32)}], {}),  # a host route
        ([{"addresses": at("10.1.2.3", 31)}, {"addresses": at("10.1.2.2", 31)}], {"10.1.2.2/31": ["eth0", "eth1"]}),
        ([{"addresses": at("10.1.2.3", 1)}, {"addresses": at("10.9.9.9", 1)}], {"0.0.0.0/1": ["eth0", "eth1"]}),
        ([{"addresses": at("10.1.2.3", 0)}, {"addresses": at("10.9.9.9", 0)}], {}),
        ([{"addresses": at("10.1.2.3", DENIED)}, TWO], {}),
        ([{"addresses": at("fe80::1", 24, "inet6")}, {"addresses": at("fe80::2", 24, "inet6")}], {}),
        ([{"addresses": at("10.1.2.3") + at("10.1.2.4")}], {}),  # two addresses of one interface
    ],
)
def test_interfaces_in_one_subnet(healthy: Snapshot, interfaces: list[dict[str, Any]], shared: dict[str, list[str]]) -> None:
    seen = with_interfaces(healthy, *interfaces)
    try:
        found = {net: [member.name for member in members] for net, members in sysctl_network.shared_subnets(seen).items()}
    except NotApplicable:
        found = {}
    assert found == shared


def test_ipoib_shares_a_subnet_where_no_rdma_is_active(healthy: Snapshot) -> None:
    seen = with_interfaces(healthy, {"kind": "infiniband", **ONE}, {"kind": "infiniband", **TWO})
    assert list(sysctl_network.shared_subnets(changed(seen, "network", rdma=NOTHING))) == ["10.1.2.0/24"]
    mixed = with_interfaces(healthy, ONE, TWO)  # RoCE: the addresses matter
    assert list(sysctl_network.shared_subnets(mixed)) == ["10.1.2.0/24"]


@pytest.mark.parametrize(
    ("address", "prefix", "network"),
    [
        ("10.1.2.3", 16, "10.1.0.0/16"),
        ("10.1.2.3", 31, "10.1.2.2/31"),
        ("255.255.255.255", 1, "128.0.0.0/1"),
        ("192.168.7.9", 30, "192.168.7.8/30"),
        ("0.0.0.1", 24, "0.0.0.0/24"),
        ("1.2.3.129", 25, "1.2.3.128/25"),
        ("10.1.2", 24, ""),
        ("10.1.2.3.4", 24, ""),
        ("10.1.2.x", 24, ""),
        ("10.1.2.", 24, ""),
        ("10.1.2.\u0663", 24, ""),
        ("10.1.2.1000", 24, ""),
        ("fe80::1", 24, ""),
    ],
)
def test_networks_of_addresses(address: str, prefix: int, network: str) -> None:
    assert sysctl_network._network(address, prefix) == network


def filtered(seen: Snapshot, leaf: str, common: Any, *own: Any, first: str = "eth0") -> Snapshot:
    keys = {f"net.ipv4.conf.{name}.{leaf}": value for name, value in zip((first, "eth1", "eth2"), own, strict=False)}
    return with_keys(seen, {f"net.ipv4.conf.all.{leaf}": common, **keys})


@pytest.mark.parametrize(
    ("common", "own", "strict", "answers"),
    [
        ("0", "0", PASS, FAIL),
        ("0", "1", FAIL, PASS),
        ("1", "0", FAIL, PASS),
        ("1", "2", PASS, PASS),
        ("2", "1", PASS, PASS),
        ("x", "1", FAIL, PASS),
        ("x", "x", PASS, FAIL),  # what the kernel cannot have printed says nothing
        ("0", None, UNKNOWN, UNKNOWN),
        (None, "1", UNKNOWN, UNKNOWN),
    ],
)
def test_the_higher_of_two_values_holds(healthy: Snapshot, common: Any, own: Any, strict: Verdict, answers: Verdict) -> None:
    seen = with_interfaces(healthy, ONE, TWO, {"addresses": at("10.1.2.5")})
    for rule_id, leaf, expected, good in (
        ("rp-filter-strict", "rp_filter", strict, "2"),
        ("arp-answers-on-any-interface", "arp_ignore", answers, "1"),
    ):
        found = judged(filtered(seen, leaf, common, own, good, good), rule_id).evidence
        last = UNKNOWN if common is None else PASS
        assert [item.verdict for item in found] == [expected, last, last]
        assert expected is not UNKNOWN or (found[0].why is not None and found[0].why.why is Why.NOT_RECORDED)


def test_an_interface_of_which_nobody_knows_whether_it_is_up(healthy: Snapshot) -> None:
    seen = with_interfaces(healthy, {"up": DENIED, **ONE}, TWO)
    found = judged(filtered(seen, "rp_filter", "0", "1", "1"), "rp-filter-strict").evidence
    assert [(item.verdict, item.why) for item in found] == [(UNKNOWN, DENIED), (FAIL, None)]


def test_interfaces_with_a_dot_in_their_name(healthy: Snapshot) -> None:
    seen = with_interfaces(healthy, {"name": "eth0.7", **ONE}, TWO)
    found = judged(filtered(seen, "rp_filter", "0", "1", "2", first="eth0/7"), "rp-filter-strict").evidence
    assert [(item.subject, item.verdict) for item in found] == [("eth0.7", FAIL), ("eth1", PASS)]


@pytest.mark.parametrize(
    ("hypervisor", "expected"), [("", FAIL), ("kvm", FAIL), (DENIED, FAIL), ("amazon", NA), ("microsoft", NA), ("google", NA)]
)
def test_virtual_networks_answer_arp_themselves(healthy: Snapshot, hypervisor: Any, expected: Verdict) -> None:
    seen = filtered(with_interfaces(healthy, ONE, TWO), "arp_ignore", "0", "0", "0")
    assert judged(changed(seen, "system", hypervisor=hypervisor), "arp-answers-on-any-interface").verdict is expected
    assert judged(msgspec.structs.replace(seen, system=DENIED), "arp-answers-on-any-interface").verdict is FAIL


# --- the operating system


@pytest.mark.parametrize(
    ("glibc", "old", "musl"),
    [
        ("2.28", PASS, PASS),
        ("2.27", FAIL, PASS),
        ("2.17", FAIL, PASS),
        ("3.0", PASS, PASS),
        (NOTHING, NA, FAIL),
        (DENIED, UNKNOWN, UNKNOWN),
    ],
)
def test_c_libraries(healthy: Snapshot, glibc: Any, old: Verdict, musl: Verdict) -> None:
    seen = changed(healthy, "system", glibc=glibc)
    assert judged(seen, "glibc-below-current-wheels").verdict is old
    assert judged(seen, "libc-is-musl").verdict is musl


@pytest.mark.parametrize(
    ("kernel", "hypervisor", "expected"),
    [
        ("5.5.0-1-generic", "", PASS),
        ("5.5", "", PASS),
        ("5.4.0-150-generic", "", FAIL),
        ("4.4.0-19041-Microsoft", "wsl1", NA),  # no Linux at all
        ("4.4.0-19041-Microsoft", DENIED, FAIL),
        ("5.4.72-microsoft-standard-WSL2", "wsl2", FAIL),
        ("5.4.0-150-generic", "wsl1", FAIL),
        ("4.18.0-553.el8_10.x86_64", "", NA),
        ("unknown", "", NA),
        (DENIED, "", UNKNOWN),
    ],
)
def test_old_kernels(healthy: Snapshot, kernel: Any, hypervisor: Any, expected: Verdict) -> None:
    assert judged(changed(healthy, "system", kernel=kernel, hypervisor=hypervisor), "kernel-old").verdict is expected


@pytest.mark.parametrize(
    ("kernel", "hypervisor", "expected"),
    [
        ("4.4.0-19041-Microsoft", "wsl1", FAIL),
        ("5.15.90.1-microsoft-standard-WSL2", "wsl2", PASS),
        ("6.8.0-45-generic", DENIED, NA),
        ("6.8.0-45-generic", "wsl2", NA),
        ("5.15.0-1041-azure", "microsoft", NA),
        ("5.15.90.1-microsoft-standard-WSL2", DENIED, UNKNOWN),
    ],
)
def test_the_first_wsl(healthy: Snapshot, kernel: str, hypervisor: Any, expected: Verdict) -> None:
    assert judged(changed(healthy, "system", kernel=kernel, hypervisor=hypervisor), "wsl1-without-gpu").verdict is expected
