"""Kernel settings, the operating system's age, and which interfaces share a subnet: each mark from both sides (sysctl)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sysctl_hosts import DENIED, FAIL, NA, NOTHING, PASS, UNKNOWN, changed, judged, made, over_tcp, with_intent, with_keys

from torchtune_sys.model.actions import Safety, Sysctl
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts.memory import SwapDevice
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.rules.sysctl import policy

GIB = 1 << 30
DEFAULTS = {"swappiness-high.max": 10}


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
    wishes = {wish.key: wish for wish in policy.POLICIES}
    target = wishes[key].target(seen, DEFAULTS)
    assert policy.meets(target, good) and not policy.meets(target, bad)
    for action in found.evidence[0].fix:
        assert isinstance(action, Sysctl)
        assert action == Sysctl(key=key, target=target, safety=Safety.UNSAFE if rule_id == "overcommit-strict" else Safety.SAFE)


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("vm.vfs_cache_pressure", "1", "0"),
        ("vm.panic_on_oom", "0", "2"),
        ("vm.watermark_scale_factor", "1000", "1001"),
        ("vm.dirty_writeback_centisecs", "1500", "0"),
        ("net.ipv4.tcp_retries2", "3", "2"),
    ],
)
def test_values_that_do_harm_anywhere(healthy: Snapshot, key: str, good: str, bad: str) -> None:
    rule_id = "kernel-setting-extreme"
    assert judged(with_keys(healthy, {key: good}), rule_id).verdict is PASS
    (found,) = (item for item in judged(with_keys(healthy, {key: bad}), rule_id).evidence if item.verdict is FAIL)
    assert found.subject == key and found.seen.startswith(f"{bad}: ")
    (action,) = found.fix
    assert isinstance(action, Sysctl) and action.key == key and policy.meets(action.target, str(action.target).split()[-1])
    assert judged(with_keys(healthy, {key: DENIED}), rule_id).verdict is UNKNOWN


def test_the_wish_for_process_numbers_is_an_old_kernels_own(healthy: Snapshot) -> None:
    wish = next(wish for wish in policy.POLICIES if wish.key == "kernel.pid_max")
    assert policy.meets(wish.target(healthy, DEFAULTS), "32768") and not policy.meets(wish.target(healthy, DEFAULTS), "32767")


@pytest.mark.parametrize(
    ("limit", "taken", "told"),
    [
        (100 * GIB, 99 * GIB, "2 (CommitLimit 100 GiB, 99 of them taken)"),
        (100 * GIB, DENIED, "2 (CommitLimit 100 GiB)"),
        (DENIED, 99 * GIB, "2"),
    ],
)
def test_strict_overcommit_is_told_with_its_limit(healthy: Snapshot, limit: Any, taken: Any, told: str) -> None:
    seen = changed(healthy, "memory", commit_limit_bytes=limit, committed_bytes=taken)
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


# --- how values are read and told


def test_values_of_files_as_the_kernel_takes_them() -> None:
    at_least = policy.AtLeast(5)
    for value, good in ((">5", True), ("<5", True), (">>5", True), ("X5", False), ("5 x 3", True), ("3 x 5", False), ("", False)):
        assert policy.meets(at_least, value) is good
    for value, good in ((">4", False), ("3 4 5", True), ("5 4 3", False), ("x 5", False), ("-5", False), ("\u0665", False)):
        assert policy.meets(at_least, value) is good
    assert policy.agree(">10", "10") and policy.agree("<10", "10") and policy.agree("10", "10")
    assert not policy.agree("X10", "10") and not policy.agree("10>", "10") and not policy.agree("10", "10 11")
    assert policy.proc("net.ipv4.conf.eth0/7.rp_filter") == "/proc/sys/net/ipv4/conf/eth0.7/rp_filter"


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
    found = policy.setting(seen, key)
    assert (policy.shown(seen, found, "7"), policy.origin(seen, found)) == (told, source)
    for system_facts, known in (
        ({"container": "docker"}, False),  # whose files are not the host's
        ({"init": "bash"}, False),
        ({"init": DENIED}, True),
        ({"container": DENIED}, True),
    ):
        other = changed(seen, "system", **system_facts)
        assert policy.shown(other, found, "7") == (told if known else "7")
        assert policy.origin(other, found) == (source if known else "/proc/sys/vm/swappiness")
    assert policy.shown(msgspec.structs.replace(seen, system=DENIED), found, "7") == told


@pytest.mark.parametrize(("container", "boxed"), [("docker", True), ("", False), (DENIED, False), (None, False)])
def test_a_container_shares_all_settings_but_those_of_its_network(healthy: Snapshot, container: Any, boxed: bool) -> None:
    seen = (
        msgspec.structs.replace(healthy, system=DENIED) if container is None else changed(healthy, "system", container=container)
    )
    target = policy.AtMost(10)
    shared = "<= 10 (set on the host: the container shares it)" if boxed else "<= 10"
    assert policy.wanted(seen, "vm.swappiness", target) == shared
    assert policy.wanted(seen, "net.core.somaxconn", target) == "<= 10"


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
    seen = changed(changed(healthy, "system", glibc=glibc), "python", torch=NOTHING)
    assert judged(seen, "glibc-below-current-wheels").verdict is old
    assert judged(seen, "libc-is-musl").verdict is musl


@pytest.mark.parametrize(
    ("kernel", "hypervisor", "expected"),
    [
        ("5.5.0-1-generic", "", PASS),
        ("5.5", "", PASS),
        ("5.4.0-150-generic", "", NA),
        ("5.4.0", "", FAIL),
        ("4.4.0-19041-Microsoft", "wsl1", NA),  # no Linux at all
        ("4.4.0-19041-Microsoft", DENIED, FAIL),
        ("5.4.72-microsoft-standard-WSL2", "wsl2", FAIL),
        ("5.4.0", "wsl1", FAIL),
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
