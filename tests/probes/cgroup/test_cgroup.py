"""Where a session's cgroups lie, and what the tightest of them allows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes import cgroup

V2 = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "36 31 0:33 {root} /sys/fs/cgroup/{name} rw,relatime shared:11 - cgroup cgroup rw,{name}\n"
PIDS = {1: ("pids.max",), 2: ("pids.max",)}


def host(own: str, mountinfo: str, **files: str) -> RecordedHost:
    return RecordedHost({"files": {"/proc/self/cgroup": own, "/proc/self/mountinfo": mountinfo, **files}}, "test")


def pids(where: RecordedHost) -> tuple[float | Missing, str]:
    return cgroup.tightest(where, "pids", PIDS, lambda texts: cgroup.parse_max(texts[0]))


def directories(where: RecordedHost, controller: str) -> tuple[str, ...]:
    found = cgroup.branch(where, controller)
    assert not isinstance(found, Missing), found
    return found.directories


def test_version_2_gives_every_ancestor() -> None:
    where = host("0::/system.slice/slurmstepd.scope/job_7\n", V2.format(root="/"))
    assert directories(where, "cpu") == (
        "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7",
        "/sys/fs/cgroup/system.slice/slurmstepd.scope",
        "/sys/fs/cgroup/system.slice",
        "/sys/fs/cgroup",
    )


def test_version_1_container_without_namespace_is_bound_by_the_root_of_its_mount() -> None:
    where = host("7:memory:/docker/ab\n0::/docker/ab\n", V1.format(root="/docker/ab", name="memory"))
    assert directories(where, "memory") == ("/sys/fs/cgroup/memory",)


def test_hybrid_takes_the_controller_where_it_is() -> None:
    mounts = V1.format(root="/", name="pids") + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    where = host("8:pids:/user.slice\n0::/user.slice\n", mounts)
    assert directories(where, "pids") == ("/sys/fs/cgroup/pids/user.slice", "/sys/fs/cgroup/pids")
    assert directories(where, "cpu") == ("/sys/fs/cgroup/unified/user.slice", "/sys/fs/cgroup/unified")


@pytest.mark.parametrize(
    ("own", "root"),
    [("0::/../../other\n", "/"), ("0::/\n", "/../.."), ("0::/user.slice\n", "/docker/ab"), ("0::/docker/abc\n", "/docker/ab")],
)
def test_a_cgroup_that_is_not_visible_is_not_called_unlimited(own: str, root: str) -> None:
    found, _ = pids(host(own, V2.format(root=root)))
    assert isinstance(found, Missing) and found.why is Why.NOT_SUPPORTED


def test_a_cgroup_directory_that_is_not_there_is_not_called_unlimited() -> None:
    found, _ = pids(host("0::/gone (deleted)\n", V2.format(root="/")))
    assert isinstance(found, Missing)


def test_no_cgroup_file_system_is_not_called_unlimited() -> None:
    found, _ = pids(host("0::/a\n", "22 1 8:2 / / rw - ext4 /dev/sda2 rw\n"))
    assert isinstance(found, Missing) and found.why is Why.NOT_SUPPORTED


def test_a_kernel_without_cgroups_limits_nothing() -> None:
    assert pids(RecordedHost({}, "test")) == (math.inf, "")


def test_the_tightest_ancestor_wins_even_far_up() -> None:
    files = {
        "/sys/fs/cgroup/a/pids.max": "64\n",
        "/sys/fs/cgroup/a/b/pids.max": "max\n",
        "/sys/fs/cgroup/a/b/c/pids.max": "900\n",
    }
    assert pids(host("0::/a/b/c\n", V2.format(root="/"), **files)) == (64.0, "/sys/fs/cgroup/a/pids.max")


def test_a_denied_ancestor_leaves_the_limit_unknown() -> None:
    recording = {
        "files": {
            "/proc/self/cgroup": "0::/a\n",
            "/proc/self/mountinfo": V2.format(root="/"),
            "/sys/fs/cgroup/a/pids.max": "900\n",
            "/sys/fs/cgroup/pids.max": {"error": "denied"},
        }
    }
    found, _ = pids(RecordedHost(recording, "test"))
    assert isinstance(found, Missing) and found.why is Why.DENIED


def test_escaped_mount_points() -> None:
    (mount,) = cgroup.parse_mountinfo("30 23 0:26 / /mnt/a\\040b rw - cgroup2 none rw\n")
    assert mount.place == "/mnt/a b"


@given(st.text(), st.text())
def test_any_text_gives_an_answer(own: str, mounts: str) -> None:
    found, source = pids(host(own, mounts))
    assert isinstance(found, (float, Missing)) and isinstance(source, str)


@given(st.text(alphabet="0123456789:/,.acgroup2cpu- \n", max_size=200))
def test_near_misses_give_an_answer(text: str) -> None:
    cgroup.parse_own(text)
    cgroup.parse_mountinfo(text)
    cgroup.parse_mounts(text)


def test_an_inherited_file_that_no_visible_group_has_is_absent_and_of_a_hidden_branch_unknown() -> None:
    own = {
        "/proc/self/cgroup": "0::/a/b\n",
        "/proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    }
    for files, why in (
        ({}, Why.NOT_SUPPORTED),
        ({"/sys/fs/cgroup/x": "what lies over it"}, Why.NOT_SUPPORTED),
        ({"/sys/fs/cgroup/a/b/cgroup.procs": "1"}, Why.ABSENT),
    ):
        found, source = cgroup.nearest(RecordedHost({"files": {**own, **files}}, ""), "memory", {2: ("memory.events",)})
        assert isinstance(found, Missing) and found.why is why and source == "", files
