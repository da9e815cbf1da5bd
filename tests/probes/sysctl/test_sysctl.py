"""Kernel settings: who sets them at boot, beyond what the real programs show in test_sysctl_tools.py."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_sys.formats.sysctl_keys import dotted, interface_keys
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.facts.sysctl import Assignment, Setting, SysctlFacts
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.plan_context import tuned
from torchtune_sys.probes.sysctl import files as sysctl_files
from torchtune_sys.probes.sysctl import probe as sysctl

RUNNING = {"/proc/sys/vm/swappiness": "60\n", "/proc/sys/net/core/somaxconn": "4096\n"}
ACTIVE = {"/etc/tuned/active_profile": "site\n", "/run/tuned/tuned.pid": "12\n"}
SITE = "/etc/tuned/profiles/site/tuned.conf"


def probe(files: dict[str, Any], links: dict[str, Any] | None = None) -> SysctlFacts:
    return sysctl.probe(RecordedHost({"files": {**RUNNING, **files}, "links": links or {}}, "test"), Workload())


def swappiness(files: dict[str, Any], links: dict[str, Any] | None = None) -> Setting:
    return probe(files, links).settings["vm.swappiness"]


def value(made: Assignment | Missing) -> str:
    return made.why.value if isinstance(made, Missing) else made.value


def test_each_value_names_its_file_and_line() -> None:
    found = swappiness(
        {"/etc/sysctl.d/10-a.conf": "# site\n\nvm.swappiness = 10\n", "/usr/lib/sysctl.d/20-b.conf": "vm/swappiness=1\n"}
    )
    assert [(made.value, made.source) for made in found.assignments] == [
        ("10", "/etc/sysctl.d/10-a.conf:3"),
        ("1", "/usr/lib/sysctl.d/20-b.conf:1"),
    ]
    assert found.systemd == found.boot == Assignment(value="1", source="/usr/lib/sysctl.d/20-b.conf:1")
    assert found.running == "60"


def test_a_linked_file_is_named_by_what_it_is() -> None:
    found = swappiness({"/etc/sysctl.conf": "vm.swappiness=5\n"}, {"/etc/sysctl.d/99-sysctl.conf": "../sysctl.conf"})
    assert not isinstance(found.systemd, Missing)
    assert found.systemd.source == "/etc/sysctl.conf:1 (read as /etc/sysctl.d/99-sysctl.conf)"


def test_nothing_set_is_absent_not_unknown() -> None:
    found = swappiness({})
    assert [value(made) for made in (found.systemd, found.procps, found.tuned, found.cmdline, found.boot)] == ["absent"] * 5


def test_an_unreadable_file_that_comes_later_leaves_the_winner_open() -> None:
    later = swappiness({"/etc/sysctl.d/10-a.conf": "vm.swappiness=1\n", "/etc/sysctl.d/99-z.conf": {"error": "denied"}})
    assert value(later.systemd) == value(later.boot) == "denied"
    sooner = swappiness({"/etc/sysctl.d/10-a.conf": {"error": "denied"}, "/etc/sysctl.d/99-z.conf": "vm.swappiness=1\n"})
    assert value(sooner.systemd) == "1"


def test_a_pattern_does_not_win_against_a_file_that_cannot_be_read() -> None:
    found = swappiness({"/etc/sysctl.d/10-a.conf": {"error": "denied"}, "/etc/sysctl.d/99-z.conf": "vm.swap*=1\n"})
    assert value(found.systemd) == "denied"


def test_an_unlistable_directory_leaves_everything_open() -> None:
    host = RecordedHost({"files": RUNNING, "dirs": {"/etc/sysctl.d": {"error": "denied"}}}, "test")
    assert value(sysctl.probe(host, Workload()).settings["vm.swappiness"].systemd) == "denied"


def test_what_a_recording_lacks_is_not_recorded() -> None:
    host = RecordedHost({"files": RUNNING, "complete": False}, "test")
    found = sysctl.probe(host, Workload()).settings["vm.swappiness"]
    assert (found.running, value(found.systemd), value(found.boot)) == ("60", "not-recorded", "not-recorded")


def test_a_boot_argument_holds_until_a_file_names_the_key() -> None:
    argument = {"/proc/cmdline": "ro quiet sysctl.vm.swappiness=7 sysctl.kernel/pid_max=99999\n"}
    assert value(swappiness(argument).boot) == "7"
    assert value(swappiness({**argument, "/etc/sysctl.d/10-a.conf": "vm.swappiness=1\n"}).boot) == "1"
    assert value(probe(argument).settings["kernel.pid_max"].cmdline) == "99999"


class TestTuned:
    def test_is_ignored_where_it_neither_runs_nor_is_enabled(self) -> None:
        files = {"/etc/tuned/active_profile": "site\n", SITE: "[sysctl]\nvm.swappiness=10\n"}
        facts = probe(files)
        assert value(facts.settings["vm.swappiness"].tuned) == "absent"
        assert isinstance(facts.tuned_profile, Missing)

    def test_enabled_is_enough(self) -> None:
        wants = {"/etc/systemd/system/multi-user.target.wants/tuned.service": "/usr/lib/systemd/system/tuned.service"}
        files = {"/etc/tuned/active_profile": "site\n", SITE: "[sysctl]\nvm.swappiness=10\n"}
        assert value(swappiness(files, wants).boot) == "10"

    def test_wins_over_the_vendors_files(self) -> None:
        found = swappiness({**ACTIVE, SITE: "[sysctl]\nvm.swappiness = 10\n", "/usr/lib/sysctl.d/50.conf": "vm.swappiness=30\n"})
        assert found.boot == Assignment(value="10", source=f"tuned profile site ({SITE}:2)")

    @pytest.mark.parametrize("place", ["/etc/sysctl.d/10-a.conf", "/run/sysctl.d/10-a.conf", "/etc/sysctl.conf"])
    def test_applies_the_administrators_files_again(self, place: str) -> None:
        assert value(swappiness({**ACTIVE, SITE: "[sysctl]\nvm.swappiness=10\n", place: "vm.swappiness=30\n"}).boot) == "30"

    def test_does_not_if_told_so(self) -> None:
        files = {**ACTIVE, SITE: "[sysctl]\nvm.swappiness=10\n", "/etc/sysctl.d/10-a.conf": "vm.swappiness=30\n"}
        assert value(swappiness({**files, tuned.MAIN_CONF: "reapply_sysctl = 0\n"}).boot) == "10"

    def test_a_profile_overrides_what_it_includes(self) -> None:
        files = {
            **ACTIVE,
            SITE: "[main]\ninclude=base, other\n[sysctl]\nvm.swappiness=5\n",
            "/usr/lib/tuned/base/tuned.conf": "[main]\ninclude=site\n[sysctl]\nvm.swappiness=8\nnet.core.somaxconn=>2048\n",
            "/usr/lib/tuned/profiles/other/tuned.conf": "[sysctl]\nnet.core.somaxconn=>8192\n",
        }
        facts = probe(files)
        assert value(facts.settings["vm.swappiness"].boot) == "5"
        assert value(facts.settings["net.core.somaxconn"].boot) == ">8192"
        assert facts.tuned_profile == "site"

    def test_a_value_that_may_only_be_raised_is_not_lowered(self) -> None:
        files = {**ACTIVE, SITE: "[sysctl]\nnet.core.somaxconn=>2048\n", "/usr/lib/sysctl.d/50.conf": "net.core.somaxconn=4096\n"}
        assert value(probe(files).settings["net.core.somaxconn"].boot) == "4096"

    def test_a_section_of_another_name_counts_by_its_type(self) -> None:
        text = "[mine]\ntype=sysctl\nvm.swappiness=3\n[sysctl]\nenabled=false\nvm.swappiness=4\n[disk]\nvm.swappiness=5\n"
        assert value(swappiness({**ACTIVE, SITE: text}).tuned) == "3"

    def test_a_computed_value_is_not_guessed(self) -> None:
        found = swappiness({**ACTIVE, SITE: "[variables]\nx=10\n[sysctl]\nvm.swappiness=${x}\n"})
        assert value(found.tuned) == value(found.boot) == "unparsed"

    def test_an_unreadable_profile_leaves_every_key_open(self) -> None:
        assert value(swappiness({**ACTIVE, SITE: {"error": "denied"}}).boot) == "denied"


@given(st.text(), st.text(alphabet="abc./*?[]-!=", max_size=30))
def test_parsers_survive_any_text(text: str, pattern: str) -> None:
    sysctl_files.parse_lines(text, "f")
    list(tuned.parse_ini(text))
    sysctl.parse_cmdline(text)
    sysctl_files.matches(pattern, "net/ipv4/conf/eth0/rp_filter")
    sysctl_files.matches(sysctl_files.key_path(pattern), "vm/swappiness")


@pytest.mark.parametrize(
    "content",
    ["", "\0", "=\n", "-\n-=\n", "=" * 9999, "a" * 100000, "[z-a]=1\nvm.[z-a]=2\n", "*=*\n", "/=1\n.=2\n"],
    ids=lambda x: repr(x)[:12],
)
def test_hostile_files_raise_nothing(content: str) -> None:
    files = dict.fromkeys(("/etc/sysctl.d/a.conf", "/etc/sysctl.conf", "/proc/cmdline", SITE, tuned.MAIN_CONF), content)
    assert value(swappiness({**ACTIVE, **files}).systemd) == "absent"
    assert isinstance(probe({**files, "/etc/tuned/active_profile": content}), SysctlFacts)
    assert isinstance(probe(dict.fromkeys(RUNNING, content)), SysctlFacts)


def test_a_directory_in_place_of_a_file_says_nothing() -> None:
    files = {
        "/etc/sysctl.d/10-a.conf": {"error": "failed", "detail": "not a regular file"},
        "/etc/sysctl.d/20.conf": "vm.swap*=3\n",
    }
    assert value(swappiness(files).systemd) == "3"


def test_rails_are_the_interfaces_that_may_share_a_subnet() -> None:
    names = ("all", "default", "lo", "docker0", "veth12", "eth0", "eth1.100")
    assert "net/ipv4/conf/eth1.100/rp_filter" in interface_keys(names)
    assert not any("docker" in key or "/lo/" in key for key in interface_keys(names))
    assert dotted("net/ipv4/conf/eth1.100/rp_filter") == "net.ipv4.conf.eth1/100.rp_filter"


def test_absent_is_told_from_denied_in_running_values() -> None:
    found = swappiness({"/proc/sys/vm/swappiness": {"error": "denied", "remedy": "run as root"}}).running
    assert isinstance(found, Missing)
    assert found.why is Why.DENIED
    assert found.remedy == "run as root"


def test_the_plugin_vm_of_tuned_sets_dirty_limits() -> None:
    found = probe({**ACTIVE, SITE: "[vm]\ndirty_ratio=40\ndirty_background_bytes=10%\ntransparent_hugepages=never\n"}).settings
    assert value(found["vm.dirty_ratio"].tuned) == "40"
    assert value(found["vm.dirty_background_bytes"].boot) == "unparsed"


THUNDERX = """[variables]
thunderx_cpuinfo_regex=CPU part\\s+:\\s+(0x0?516)|(0x0?af)|(0x0?a[0-3])|(0x0?b8)\\b
[sysctl]
vm.swappiness=10
[sysctl.thunderx]
type=sysctl
uname_regex=aarch64
cpuinfo_regex=${thunderx_cpuinfo_regex}
kernel.numa_balancing=0
"""


@pytest.mark.parametrize(
    ("machine", "part", "expected"),
    [
        ("x86_64", "", "absent"),
        ("aarch64", "CPU part\t: 0xd4f\n", "absent"),
        ("aarch64", "CPU part\t: 0x516\n", "0"),
        ("aarch64", None, "unparsed"),
    ],
)
def test_a_section_of_tuned_for_other_machines_does_not_count(machine: str, part: str | None, expected: str) -> None:
    files = {**RUNNING, **ACTIVE, SITE: THUNDERX, "/proc/cpuinfo": part}
    answers = {"uname": {"release": "6.8.0", "machine": machine, "nodename": "n1"}}
    host = RecordedHost({"files": {path: text for path, text in files.items() if text is not None}, "answers": answers}, "test")
    found = sysctl.probe(host, Workload()).settings
    assert value(found["kernel.numa_balancing"].tuned) == expected
    assert value(found["vm.swappiness"].tuned) == "10"


def test_a_computed_include_leaves_open_what_the_profile_itself_does_not_set() -> None:
    files = {**ACTIVE, SITE: "[main]\ninclude=${f:virt_check:virtual-guest:throughput-performance}\n[sysctl]\nvm.swappiness=10\n"}
    found = probe(files).settings
    assert value(found["vm.swappiness"].tuned) == "10"
    assert value(found["net.core.somaxconn"].tuned) == "unparsed"
