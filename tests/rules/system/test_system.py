"""Boundaries of the rules on the system, and the table of ends of life."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from altered import altered, result

from conftest import judge, load
from torchtune_sys.knowledge import eol, tables
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.snapshot import Snapshot


def verdict(rule_id: str, **overlay: Any) -> str:
    return judge(load("healthy", **overlay))[rule_id].verdict.value


def os_release(id_: str, version: str, name: str = "Some Linux") -> dict[str, Any]:
    return {"/etc/os-release": [f"ID={id_}", f'VERSION_ID="{version}"', f'PRETTY_NAME="{name}"']}


@pytest.mark.parametrize(("today", "expected"), [("2029-05-31", "pass"), ("2029-06-01", "fail")])
def test_the_last_day_is_still_supported(today: str, expected: str) -> None:
    assert verdict("operating-system-end-of-life", answers={"today": today}) == expected


@pytest.mark.parametrize(
    ("id_", "version", "name", "expected"),
    [
        ("centos", "7", "CentOS Linux 7 (Core)", "fail"),
        ("centos", "8", "CentOS Linux 8", "fail"),
        ("centos", "9", "CentOS Stream 9", "pass"),
        ("rhel", "8.10", "Red Hat Enterprise Linux 8.10 (Ootpa)", "pass"),
        ("rocky", "9.4", "Rocky Linux 9.4 (Blue Onyx)", "pass"),
        ("amzn", "2", "Amazon Linux 2", "fail"),
        ("amzn", "2023", "Amazon Linux 2023", "pass"),
        ("debian", "12", "Debian GNU/Linux 12 (bookworm)", "pass"),
        ("ubuntu", "18.04", "Ubuntu 18.04.6 LTS", "fail"),
        ("opensuse-leap", "15.6", "openSUSE Leap 15.6", "fail"),
        ("nixos", "24.11", "NixOS 24.11", "na"),
        ("debian", "", "Debian GNU/Linux trixie/sid", "na"),
    ],
)
def test_distributions(id_: str, version: str, name: str, expected: str) -> None:
    assert verdict("operating-system-end-of-life", files=os_release(id_, version, name)) == expected


def test_the_table_holds_dates_sources_and_no_row_twice() -> None:
    rows = tables.rows("eol")
    assert len({(row["id"], row["version"]) for row in rows}) == len(rows) > 50
    for row in rows:
        assert datetime.date.fromisoformat(row["eol"]) and row["source"].startswith("https://")
        if row["extended"]:
            assert row["extended"] > row["eol"] and row["extended_by"]
    assert datetime.date.fromisoformat(eol.AS_OF)


@pytest.mark.parametrize(("glibc", "expected"), [("2.28", "pass"), ("2.27", "fail"), ("2.9", "fail"), ("3.0", "pass")])
def test_the_tag_says_2_28(glibc: str, expected: str) -> None:
    without = load("no-wheel-for-python.pass", answers={"glibc": glibc})
    assert judge(without)["glibc-below-current-wheels"].verdict.value == expected


VENDORS = {
    "openEuler": "4.19.90-2312.1.0.0255.oe2003sp4.x86_64",
    "Anolis": "4.19.91-28.1.an7.x86_64",
    "TencentOS": "5.4.119-19.0009.28.tl3.x86_64",
    "Kylin": "4.19.90-52.22.v2207.ky10.x86_64",
    "Oracle's UEK": "5.4.17-2136.300.7uek.x86_64",
    "Lustre's": "4.18.0_lustre.x86_64.lustre",
}


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("5.5.0-1-generic", "pass"),
        ("5.4.0-216-generic", "na"),
        ("5.4.0-lab", "fail"),
        ("5.15.0-1", "pass"),
        ("4.14.355-275.572.amzn2.x86_64", "fail"),
        ("4.18.0-553.el8_10.x86_64", "na"),
        ("3.10.0-1160.el7.x86_64", "na"),
        ("5.3.18-150300.59.93-default", "na"),
        *((release, "na") for release in VENDORS.values()),
        ("4.4.0-19041-Microsoft", "na"),
        ("next", "na"),
    ],
)
def test_kernels_with_backports_are_not_judged_by_number(release: str, expected: str) -> None:
    answers = {"uname": {"release": release, "machine": "x86_64", "nodename": "n"}}
    assert verdict("kernel-old", answers=answers) == expected


@pytest.mark.parametrize(("today", "expected"), [(eol.AS_OF, "pass"), ("1970-01-01", "fail"), ("2099-01-01", "pass")])
def test_a_clock_before_the_tables_is_wrong(today: str, expected: str) -> None:
    assert verdict("system-clock-wrong", answers={"today": today}) == expected


@pytest.mark.parametrize(
    ("word", "affinity", "expected"),
    [
        ("isolcpus=2-3", "0-1", "fail"),
        ("isolcpus=2-3", "0-3", "pass"),  # this session is bound to one of them
        ("isolcpus=domain,managed_irq,2-3", "0-1", "fail"),
        ("isolcpus=managed_irq,2-3", "0-1", "pass"),  # interrupts alone
        ("isolcpus=nohz,2-3", "0-1", "pass"),
        ("isolcpus=8-N", "0-1", "fail"),
        ("nohz_full=2-3", "0-1", "pass"),
        ("memmap=8G$4G", "0-1", "fail"),
        ("memmap=16G!64G", "0-1", "pass"),  # persistent memory, which somebody wants
    ],
)
def test_processors_that_the_scheduler_leaves_alone(healthy: Snapshot, word: str, affinity: str, expected: str) -> None:
    seen = altered(healthy, system__cmdline=("ro", word), cpu__affinity=CpuSet.parse(affinity))
    assert result(seen, "boot-argument-withholds-hardware").verdict.value == expected


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("nr_cpus=4", "fail"),
        ("nr_cpus=512", "pass"),  # more than there are
        ("maxcpus=4", "fail"),
        ("maxcpus=2", "pass"),  # the others were brought up later
        ("maxcpus=0", "fail"),
        ("maxcpus=", "fail"),
        ("mem=64G", "fail"),
        ("mem=63g", "fail"),
        ("mem=2T", "pass"),
    ],
)
def test_limits_above_what_the_machine_has_withhold_nothing(healthy: Snapshot, word: str, expected: str) -> None:
    four = CpuSet.parse("0-3")
    seen = altered(
        healthy,
        system__cmdline=("ro", word),
        cpu__present=four,
        cpu__online=four,
        cpu__affinity=four,
        memory__total_bytes=62 << 30,
    )
    assert result(seen, "boot-argument-withholds-hardware").verdict.value == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("slub_debug", "fail"),
        ("slab_debug=FZPU", "fail"),
        ("slub_debug=-", "pass"),
        ("slub_debug=O", "pass"),
        ("slub_debug=P,kmalloc-64", "pass"),  # a few caches
        ("debug_pagealloc=on page_owner=off", "fail"),
        ("debug_pagealloc=off init_on_alloc=1", "pass"),
        ("quiet -- slub_debug", "pass"),  # an argument of init
    ],
)
def test_checks_of_the_kernel_that_a_boot_argument_switches_on(words: str, expected: str) -> None:
    assert verdict("kernel-debugging-at-boot", files={"/proc/cmdline": f"root=/dev/vda {words}\n"}) == expected
