"""Kernel settings: boundaries, directions, and what each finding quotes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from conftest import judge, load
from torchtune_sys import engine
from torchtune_sys.model.actions import Safety, Sysctl
from torchtune_sys.model.facts.driver import DriverFacts
from torchtune_sys.model.facts.memory import SwapDevice
from torchtune_sys.model.facts.sysctl import Assignment
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.target import AtLeast, AtMost, Exactly, OneOf, Target
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import sysctl
from torchtune_sys.rules.sysctl.network import shared_subnets
from torchtune_sys.rules.sysctl.policy import meets

NOTHING = Missing(Why.ABSENT, "test")


def said(seen: Snapshot, rule_id: str) -> Result:
    return next(result for result in engine.judge(seen, sysctl.RULES) if result.rule.id == rule_id)


def running(seen: Snapshot, **values: str) -> Snapshot:
    """The snapshot with other running values and nothing configured: ``running(s, vm__swappiness="1")``."""
    assert not isinstance(seen.sysctl, Missing)
    settings = dict(seen.sysctl.settings)
    for name, value in values.items():
        key = name.replace("__", ".")
        settings[key] = msgspec.structs.replace(
            settings[key],
            running=value,
            assignments=(),
            systemd=NOTHING,
            procps=NOTHING,
            tuned=NOTHING,
            cmdline=NOTHING,
            boot=NOTHING,
        )
    return msgspec.structs.replace(seen, sysctl=msgspec.structs.replace(seen.sysctl, settings=settings))


def with_swap(seen: Snapshot, *kinds: str) -> Snapshot:
    assert not isinstance(seen.memory, Missing)
    areas = tuple(SwapDevice(path=f"/{kind}", kind=kind, size_bytes=1 << 34, used_bytes=0) for kind in kinds)
    return msgspec.structs.replace(seen, memory=msgspec.structs.replace(seen.memory, swaps=areas))


@pytest.mark.parametrize(
    ("value", "verdict"), [("0", "pass"), ("1", "pass"), ("10", "pass"), ("11", "fail"), ("60", "fail"), ("200", "fail")]
)
def test_swappiness_is_never_asked_to_be_higher(healthy: Snapshot, value: str, verdict: str) -> None:
    assert said(running(with_swap(healthy, "partition"), vm__swappiness=value), "swappiness-high").verdict.value == verdict


@pytest.mark.parametrize(("kinds", "verdict"), [((), "na"), (("zram",), "na"), (("zram", "file"), "fail")])
def test_swappiness_matters_with_swap_on_a_disk_only(healthy: Snapshot, kinds: tuple[str, ...], verdict: str) -> None:
    assert said(running(with_swap(healthy, *kinds), vm__swappiness="60"), "swappiness-high").verdict.value == verdict


@pytest.mark.parametrize(("value", "verdict"), [("0", "pass"), ("1", "fail"), ("2", "pass"), ("3", "fail")])
def test_memory_tiering_is_not_numa_balancing(healthy: Snapshot, value: str, verdict: str) -> None:
    assert said(running(healthy, kernel__numa_balancing=value), "numa-balancing-enabled").verdict.value == verdict


def test_numa_balancing_goes_by_itself_only_where_ranks_are_bound(healthy: Snapshot) -> None:
    on = running(healthy, kernel__numa_balancing="1")
    assert not isinstance(on.cpu, Missing) and not isinstance(on.numa, Missing) and not isinstance(on.numa.nodes, Missing)
    for affinity, bound in ((on.cpu.online, False), (on.numa.nodes[0].cpus, True)):
        seen = msgspec.structs.replace(on, cpu=msgspec.structs.replace(on.cpu, affinity=affinity))
        result = said(seen, "numa-balancing-enabled")
        actions = result.evidence[0].fix or result.rule.fix
        assert [action.safety is Safety.SAFE for action in actions if isinstance(action, Sysctl)] == [bound]


def test_numa_balancing_is_no_question_without_a_gpu(healthy: Snapshot) -> None:
    assert not isinstance(healthy.driver, Missing)
    driver: DriverFacts = msgspec.structs.replace(healthy.driver, nvidia_devices=(), amd_devices=())
    bare = msgspec.structs.replace(running(healthy, kernel__numa_balancing="1"), gpu=NOTHING, driver=driver)
    assert said(bare, "numa-balancing-enabled").verdict is Verdict.NA


def test_a_ratio_and_its_bytes_exclude_each_other(healthy: Snapshot) -> None:
    assert said(running(healthy, vm__dirty_bytes="0", vm__dirty_ratio="20"), "dirty-limit-huge").verdict is Verdict.FAIL
    assert said(running(healthy, vm__dirty_bytes="0", vm__dirty_ratio="5"), "dirty-limit-huge").verdict is Verdict.PASS
    found = said(running(healthy, vm__dirty_bytes=str(1 << 30), vm__dirty_ratio="0"), "dirty-limit-huge")
    assert (found.verdict, found.evidence[0].subject) == (Verdict.PASS, "vm.dirty_bytes")


@pytest.mark.parametrize(("value", "verdict"), [("65529", "fail"), ("65530", "pass"), ("262144", "pass")])
def test_the_kernels_own_map_count_is_enough(healthy: Snapshot, value: str, verdict: str) -> None:
    assert said(running(healthy, vm__max_map_count=value), "max-map-count-low").verdict.value == verdict


def test_a_value_that_is_no_number_is_a_finding_with_the_value(healthy: Snapshot) -> None:
    found = said(running(healthy, vm__dirty_bytes="what"), "dirty-limit-huge")
    assert found.verdict is Verdict.UNKNOWN
    assert found.why_unknown is not None
    assert found.why_unknown.why is Why.UNPARSED


def test_tcp_buffers_larger_than_asked_are_left_alone() -> None:
    seen = running(
        load("base-tcp-cluster"), net__ipv4__tcp_rmem="4096 131072 67108864", net__ipv4__tcp_wmem="4096 65536 33554432"
    )
    assert said(seen, "tcp-buffer-ceiling-low").verdict is Verdict.PASS


def test_tcp_buffers_are_no_question_on_one_host(healthy: Snapshot) -> None:
    assert said(running(healthy, net__ipv4__tcp_rmem="4096 4096 4096"), "tcp-buffer-ceiling-low").verdict is Verdict.NA


def test_rmem_max_is_never_judged() -> None:
    seen = running(load("base-tcp-cluster"), net__core__rmem_max="65536", net__core__wmem_max="65536")
    assert not [result.rule.id for result in engine.judge(seen, sysctl.RULES) if result.verdict is Verdict.FAIL]


@pytest.mark.parametrize(
    ("nodes", "value", "verdict"), [(31, "128", "na"), (32, "255", "fail"), (32, "256", "pass"), (999, "2048", "pass")]
)
def test_the_queue_is_measured_by_the_job(healthy: Snapshot, nodes: int, value: str, verdict: str) -> None:
    seen = running(
        msgspec.structs.replace(healthy, intent=msgspec.structs.replace(healthy.intent, nodes=nodes)), net__core__somaxconn=value
    )
    assert said(seen, "somaxconn-low").verdict.value == verdict


@pytest.mark.parametrize(
    ("ranks", "ports", "verdict"),
    [
        (2, "32768 60999", "pass"),
        (2, "60900 60999", "fail"),
        (1, "60900 60999", "na"),
        (1, "60901 60999", "fail"),
        (1, "60990\t60999", "fail"),
        (1, "", "na"),
    ],
)
def test_few_local_ports_are_a_matter_of_many_ranks_and_very_few_of_one(
    healthy: Snapshot, ranks: int, ports: str, verdict: str
) -> None:
    one = msgspec.structs.replace(healthy, intent=msgspec.structs.replace(healthy.intent, ranks=ranks, nodes=1))
    assert said(running(one, net__ipv4__ip_local_port_range=ports), "local-ports-few").verdict.value == verdict


@pytest.mark.parametrize(
    ("name", "verdict"), [("bbr", "pass"), ("brr", "fail"), ("cubic", "pass"), ("dctcp", "pass"), ("Cubic", "fail"), ("", "fail")]
)
def test_a_module_that_is_not_loaded_yet_is_no_typing_error(healthy: Snapshot, name: str, verdict: str) -> None:
    seen = load("healthy", files={"/etc/sysctl.d/50.conf": f"net.ipv4.tcp_congestion_control={name}\n"})
    assert said(seen, "congestion-control-unknown").verdict.value == verdict


@pytest.mark.parametrize(
    ("common", "own", "verdict"),
    [("0", "0", "pass"), ("1", "0", "fail"), ("0", "1", "fail"), ("2", "1", "pass"), ("1", "2", "pass")],
)
def test_the_higher_of_all_and_interface_filters(common: str, own: str, verdict: str) -> None:
    seen = running(
        load("rp-filter-strict.pass"),
        net__ipv4__conf__all__rp_filter=common,
        net__ipv4__conf__ib0__rp_filter=own,
        net__ipv4__conf__ib1__rp_filter=own,
    )
    assert said(seen, "rp-filter-strict").verdict.value == verdict


def test_subnets_are_compared_by_address_and_length() -> None:
    found = shared_subnets(load("rp-filter-strict.pass"))
    assert {net: tuple(member.name for member in members) for net, members in found.items()} == {"10.1.0.0/24": ("ib0", "ib1")}


class TestBoot:
    def configured(self, **files: Any) -> Snapshot:
        return load("healthy", files={"/proc/sys/kernel/numa_balancing": "0\n", **files})

    def test_a_right_value_that_no_file_sets_is_lost(self) -> None:
        seen = load("sysctl-lost-at-reboot.fail")
        found = [item for item in said(seen, "sysctl-lost-at-reboot").evidence if item.verdict is Verdict.FAIL]
        assert [(item.subject, item.seen) for item in found] == [("kernel.numa_balancing", "0 now, 1 after a reboot")]

    def test_a_kernel_may_be_built_with_balancing_off(self, healthy: Snapshot) -> None:
        """CONFIG_NUMA_BALANCING_DEFAULT_ENABLED: a 0 that nobody wrote down may be what each boot gives."""
        found = said(running(healthy, kernel__numa_balancing="0"), "sysctl-lost-at-reboot").evidence
        assert [item.verdict for item in found if item.subject == "kernel.numa_balancing"] == [Verdict.UNKNOWN]

    def test_the_kernels_default_need_not_be_written_down(self, healthy: Snapshot) -> None:
        zone = [item for item in said(healthy, "sysctl-lost-at-reboot").evidence if item.subject == "vm.zone_reclaim_mode"]
        assert [item.verdict for item in zone] == [Verdict.PASS]

    @pytest.mark.parametrize(
        ("kernel", "receive", "send", "lost"),
        [  # a buffer of 32 MiB is the kernel's own from 6.16 on (commit 572be9bf9d0d), and somebody's doing before
            ("6.17.0-8-generic", "4096 131072 33554432", "4096 16384 16777216", ["net.ipv4.tcp_wmem"]),
            ("6.8.0-45-generic", "4096 131072 33554432", "4096 16384 16777216", ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"]),
        ],
    )
    def test_the_default_is_that_of_this_kernel(self, kernel: str, receive: str, send: str, lost: list[str]) -> None:
        seen = running(load("base-tcp-cluster"), net__ipv4__tcp_rmem=receive, net__ipv4__tcp_wmem=send)
        assert not isinstance(seen.system, Missing)
        seen = msgspec.structs.replace(seen, system=msgspec.structs.replace(seen.system, kernel=kernel))
        found = [item for item in said(seen, "sysctl-lost-at-reboot").evidence if item.verdict is Verdict.FAIL]
        assert [item.subject for item in found if item.subject.startswith("net.ipv4.tcp_")] == lost

    def test_a_short_listen_queue_comes_back_with_an_old_kernel(self) -> None:
        seen = running(load("base-tcp-cluster"), net__core__somaxconn="4096")
        assert not isinstance(seen.system, Missing)
        old = msgspec.structs.replace(seen.system, kernel="4.18.0-553.el8_10.x86_64")
        seen = msgspec.structs.replace(seen, system=old, intent=msgspec.structs.replace(seen.intent, nodes=64, ranks=8))
        found = [item for item in said(seen, "sysctl-lost-at-reboot").evidence if item.subject == "net.core.somaxconn"]
        assert [(item.verdict, item.seen) for item in found] == [(Verdict.FAIL, "4096 now, 128 after a reboot")]

    def test_the_finding_names_both_lines(self) -> None:
        found = said(load("sysctl-overridden.fail"), "sysctl-overridden").evidence
        quoted = " ".join(item.seen for item in found if item.verdict is Verdict.FAIL)
        assert "/etc/sysctl.d/90-training.conf:2" in quoted
        assert "/usr/lib/sysctl.d/99-vendor.conf:1" in quoted

    def test_equal_values_in_both_tools_are_no_disagreement(self) -> None:
        seen = load("healthy", files={"/etc/sysctl.conf": "kernel.numa_balancing = 0\n"})
        assert said(seen, "sysctl-tools-disagree").verdict is Verdict.PASS

    @pytest.mark.parametrize(
        "rule_id", ["sysctl-not-applied", "sysctl-lost-at-reboot", "sysctl-overridden", "sysctl-tools-disagree"]
    )
    def test_a_container_cannot_tell(self, healthy: Snapshot, rule_id: str) -> None:
        assert not isinstance(healthy.system, Missing)
        boxed = msgspec.structs.replace(healthy, system=msgspec.structs.replace(healthy.system, container="docker"))
        assert said(boxed, rule_id).verdict is Verdict.NA

    @pytest.mark.parametrize(
        "rule_id", ["sysctl-not-applied", "sysctl-lost-at-reboot", "sysctl-overridden", "sysctl-tools-disagree"]
    )
    def test_without_systemd_nothing_is_applied_at_boot(self, healthy: Snapshot, rule_id: str) -> None:
        assert not isinstance(healthy.system, Missing)
        other = msgspec.structs.replace(healthy, system=msgspec.structs.replace(healthy.system, init="openrc-init"))
        assert said(other, rule_id).verdict is Verdict.NA

    def test_the_origin_is_quoted_with_the_running_value(self) -> None:
        item = said(load("max-map-count-low.fail"), "max-map-count-low").evidence[0]
        assert item.source == "/proc/sys/vm/max_map_count; /etc/sysctl.d/10-map-count.conf:1 sets 4096"

    def test_a_pending_value_is_told(self, healthy: Snapshot) -> None:
        assert not isinstance(healthy.sysctl, Missing)
        settings = dict(healthy.sysctl.settings)
        made = Assignment(value="0", source="/etc/sysctl.d/1.conf:1")
        settings["kernel.numa_balancing"] = msgspec.structs.replace(settings["kernel.numa_balancing"], running="1", boot=made)
        seen = msgspec.structs.replace(healthy, sysctl=msgspec.structs.replace(healthy.sysctl, settings=settings))
        assert said(seen, "numa-balancing-enabled").evidence[0].seen == "1 now, 0 after a reboot"
        assert said(seen, "sysctl-not-applied").verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("target", "value", "good"),
    [
        (AtMost(10), "10", True),
        (AtMost(10), "011", False),
        (AtLeast(2048), ">2048", True),
        (AtLeast(5), "1 2 6", True),
        (AtLeast(7), "1 2 6", False),
        (Exactly("0"), "0 # off", True),
        (OneOf(("0", "1")), "2", False),
        (Exactly("0"), "", False),
        (AtMost(3), "-1", False),
        (AtMost(3), "x", False),
        (AtMost(10**400), "9" * 4000, False),
    ],
)
def test_values_as_people_write_them(target: Target, value: str, good: bool) -> None:
    assert meets(target, value) is good


def test_a_boot_argument_keeps_numa_balancing_off() -> None:
    seen = load("sysctl-lost-at-reboot.fail")
    assert not isinstance(seen.system, Missing)
    booted = msgspec.structs.replace(seen, system=msgspec.structs.replace(seen.system, cmdline=("ro", "numa_balancing=disable")))
    assert said(booted, "sysctl-lost-at-reboot").verdict is Verdict.PASS


def test_in_a_container_the_host_is_named_and_its_files_are_not_guessed_at() -> None:
    seen = load("overcommit-strict.fail")
    assert not isinstance(seen.system, Missing)
    boxed = msgspec.structs.replace(seen, system=msgspec.structs.replace(seen.system, container="docker"))
    item = said(boxed, "overcommit-strict").evidence[0]
    assert "on the host" in item.wanted
    assert item.source == "/proc/sys/vm/overcommit_memory"


BOOT_RULES = ("sysctl-not-applied", "sysctl-lost-at-reboot", "sysctl-overridden", "sysctl-tools-disagree")


@pytest.mark.parametrize("rule_id", BOOT_RULES)
def test_what_was_not_looked_at_is_not_called_good(healthy: Snapshot, rule_id: str) -> None:
    assert said(msgspec.structs.replace(healthy, sysctl=NOTHING), rule_id).verdict is Verdict.UNKNOWN
    hidden = {f"/proc/sys/{key}": {"error": "denied"} for key in ("vm/overcommit_memory", "kernel/numa_balancing")}
    assert said(load("healthy", files=hidden), rule_id).verdict is Verdict.UNKNOWN


def test_addresses_that_were_not_seen_leave_the_subnets_open(healthy: Snapshot) -> None:
    assert not isinstance(healthy.network, Missing)
    assert not isinstance(healthy.network.interfaces, Missing)
    hidden = tuple(msgspec.structs.replace(item, addresses=Missing(Why.NOT_RECORDED, "x")) for item in healthy.network.interfaces)
    seen = msgspec.structs.replace(healthy, network=msgspec.structs.replace(healthy.network, interfaces=hidden))
    assert said(seen, "rp-filter-strict").verdict is Verdict.UNKNOWN


def test_an_unreadable_file_may_hold_the_typing_error() -> None:
    seen = load("healthy", files={"/etc/sysctl.d/95-secret.conf": {"error": "denied"}})
    assert said(seen, "congestion-control-unknown").verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("memory_gib", "threads_max", "expected"),
    [(1.5, "11099", "pass"), (1.5, "6000", "fail"), (64, "30000", "fail"), (64, "514000", "pass")],
)
def test_the_kernels_own_number_of_threads_is_enough(memory_gib: float, threads_max: str, expected: str) -> None:
    files = {"/proc/meminfo": [f"MemTotal: {int(memory_gib * (1 << 20))} kB"], "/proc/sys/kernel/threads-max": threads_max}
    found = judge(load("healthy", files=files, intent={"ranks": 1, "workers": 0, "threads": 1}))["task-table-small"]
    assert found.verdict.value == expected
