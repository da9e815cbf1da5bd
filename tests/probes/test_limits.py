"""Limits: from the system call, from /proc/self/limits, and logind's choice."""

from __future__ import annotations

import contextlib
import json
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import HOSTS
from torchtune_sys.formats.process_limits import of_kernel
from torchtune_sys.host.live import LiveHost
from torchtune_sys.host.recorded import RecordedHost, load_recording, merged
from torchtune_sys.model.facts.limits import NAMES, LimitsFacts, SessionLimit
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.limits import logind
from torchtune_sys.probes.limits import probe as limits

PROC_LIMITS = """Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              unlimited            unlimited            seconds   
Max file size             unlimited            unlimited            bytes     
Max data size             unlimited            unlimited            bytes     
Max stack size            8388608              unlimited            bytes     
Max core file size        0                    unlimited            bytes     
Max resident set          unlimited            unlimited            bytes     
Max processes             96365                96365                processes 
Max open files            1024                 524288               files     
Max locked memory         8388608              8388608              bytes     
Max address space         unlimited            unlimited            bytes     
Max realtime timeout      unlimited            unlimited            us        
"""  # noqa: W291
HOSTILE = (
    "",
    "\0",
    "Max open files\n",
    "Max open files -1 -1 files\n",
    "Max open files " + "9" * 500,
    "CapEff: zz\n",
    "[Login]\nRemoveIPC\n",
)
PATHS = (
    "/proc/self/limits",
    "/proc/self/status",
    "/etc/systemd/logind.conf",
    "/proc/self/cgroup",
    "/proc/self/mountinfo",
    "/etc/os-release",
)
LOGIND = {"/usr/lib/systemd/systemd-logind": ""}


def seen(**sections: object) -> LimitsFacts:
    recording = merged(load_recording(str(HOSTS / "base-limits.json")), sections)
    return limits.probe(RecordedHost(recording, "test"), Workload())


def ipc(files: dict[str, object], links: dict[str, str] | None = None) -> tuple[object, str]:
    host = RecordedHost({"files": {**LOGIND, **files}, "links": links or {}}, "test")
    return logind.remove_ipc(host, logind.files(host))


def test_the_file_and_the_system_call_agree_on_this_machine() -> None:
    host = LiveHost()
    text = host.text("/proc/self/limits")
    assert isinstance(text, str)
    assert of_kernel(text) == limits.probe(host, Workload()).limits
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert of_kernel(text)["nofile"].soft == soft


def test_a_recorded_tree_without_the_answer_is_read_from_the_file() -> None:
    facts = seen(answers={"rlimits": {"error": "not-recorded"}}, files={"/proc/self/limits": PROC_LIMITS})
    assert facts.limits["nofile"] == SessionLimit(soft=1024, hard=524288)
    assert facts.limits["as"] == SessionLimit(soft=None, hard=None)
    assert set(facts.limits) == set(NAMES)


@pytest.mark.parametrize("content", HOSTILE, ids=repr)
@pytest.mark.parametrize("path", PATHS)
def test_hostile_content_raises_nothing(path: str, content: str) -> None:
    assert isinstance(seen(files={path: content}, answers={"rlimits": {"error": "failed"}}), LimitsFacts)


@given(st.text())
def test_parsers_survive_any_text(text: str) -> None:
    of_kernel(text)
    logind.parse_switch(text, "RemoveIPC")
    with contextlib.suppress(ValueError):
        limits.parse_capability(text, 14)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_an_answer_may_be_anything(answer: object) -> None:
    assert set(limits.parse_answer(answer)) == set(NAMES)
    assert all(isinstance(found, (SessionLimit, Missing)) for found in limits.parse_answer(answer).values())


def test_an_answer_with_a_negative_limit_is_not_taken() -> None:
    assert isinstance(limits.parse_answer(json.loads('{"nofile": [-1, 5]}'))["nofile"], Missing)


def test_current_tasks_are_those_of_the_group_that_limits() -> None:
    facts = seen(
        files={
            "/proc/self/cgroup": "0::/a/b\n",
            "/proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            "/sys/fs/cgroup/a/pids.max": "100\n",
            "/sys/fs/cgroup/a/pids.current": "60\n",
            "/sys/fs/cgroup/a/b/pids.max": "max\n",
            "/sys/fs/cgroup/a/b/pids.current": "3\n",
        }
    )
    assert (facts.pids_max, facts.pids_current, facts.pids_source) == (100, 60, "/sys/fs/cgroup/a/pids.max")


def test_no_logind_no_question() -> None:
    found = logind.files(RecordedHost({}, "test"))
    assert isinstance(found, Missing)
    assert found.why is Why.ABSENT


def test_a_tree_without_usr_does_not_tell_whether_logind_is_there() -> None:
    found = logind.files(RecordedHost({"complete": False}, "test"))
    assert isinstance(found, Missing)
    assert found.why is Why.NOT_RECORDED


def test_the_last_drop_in_by_name_wins_over_the_main_file() -> None:
    files = {
        "/etc/systemd/logind.conf": "[Login]\nRemoveIPC=yes\n",
        "/usr/lib/systemd/logind.conf.d/90-site.conf": "[Login]\nRemoveIPC=no\n",
        "/etc/systemd/logind.conf.d/10-own.conf": "[Login]\nRemoveIPC=yes\n",
    }
    assert ipc(files) == (False, "/usr/lib/systemd/logind.conf.d/90-site.conf:2")


def test_a_drop_in_is_masked_by_a_link_to_dev_null() -> None:
    files = {
        "/usr/lib/systemd/logind.conf.d/90-site.conf": "[Login]\nRemoveIPC=no\n",
        "/etc/systemd/logind.conf": "[Login]\nRemoveIPC=yes\n",
    }
    assert ipc(files, {"/etc/systemd/logind.conf.d/90-site.conf": "/dev/null"}) == (True, "/etc/systemd/logind.conf:2")


@pytest.mark.parametrize(
    ("files", "on"),
    [
        (
            {"/etc/systemd/logind.conf": "[Login]\n#RemoveIPC=no\n", "/etc/os-release": "ID=fedora\n"},
            False,
        ),  # what the build shows
        ({"/etc/os-release": 'ID="rhel"\nID_LIKE="fedora"\n'}, False),
        ({"/etc/os-release": 'ID="rocky"\nID_LIKE="rhel centos fedora"\n'}, False),
        ({"/etc/os-release": "ID=ubuntu\nID_LIKE=debian\n"}, True),
        ({"/etc/os-release": 'ID="CentOS"\n'}, False),  # as the family is told everywhere else
        ({"/etc/centos-release": "CentOS Linux release 7.9.2009 (Core)\n"}, False),  # os-release is gone from some images
        ({"/etc/systemd/logind.conf": "[Other]\nRemoveIPC=no\n", "/etc/os-release": "ID=debian\n"}, True),
    ],
)
def test_the_built_in_choice(files: dict[str, object], on: bool) -> None:
    assert ipc(files)[0] is on


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ""),
        ({"/etc/systemd/logind.conf": "[Login]\n#KillUserProcesses=no\n"}, ""),
        ({"/etc/systemd/logind.conf": "[Login]\n#KillUserProcesses=yes\n"}, "built-in choice of systemd-logind"),
        ({"/etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\n"}, "/etc/systemd/logind.conf:2"),
        (
            {
                "/etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\n",
                "/etc/systemd/logind.conf.d/50-x.conf": "[Login]\nKillUserProcesses=no\n",
            },
            "",
        ),
        (
            {
                "/etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\nKillExcludeUsers=root mia\n",
                "/etc/systemd/logind.conf.d/50-x.conf": "[Login]\nKillExcludeUsers=ann\n",  # one more, not another list
            },
            "",
        ),
        (
            {"/etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\nKillExcludeUsers=mia\nKillExcludeUsers=\n"},
            "/etc/systemd/logind.conf:2",
        ),
    ],
)
def test_whether_logind_ends_processes_at_logout(files: dict[str, object], expected: str) -> None:
    host = RecordedHost({"files": {**LOGIND, **files}}, "test")
    assert logind.kills_at_logout(logind.files(host), "mia") == expected
