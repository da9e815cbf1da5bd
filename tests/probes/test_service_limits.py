"""The services that start jobs, found by their cgroup or pid file, and slurm.conf(5)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_sys.host.live import LiveHost
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.host.tree import below
from torchtune_sys.model.facts.limits import SessionLimit
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.limits import services, units

CARD = {"/sys/class/infiniband/mlx5_0/fw_ver": "28.41.1000"}
EIGHT_MIB = "Max locked memory         8388608              8388608              bytes     \n"


def process(pid: int, comm: str, text: Any = EIGHT_MIB) -> dict[str, Any]:
    return {f"/proc/{pid}/comm": comm + "\n", f"/proc/{pid}/limits": text}


def look(**files: Any) -> Any:
    return services.look(RecordedHost({"files": files}, "test"))


V2, V1 = "/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/systemd/system.slice"


@pytest.mark.parametrize("place", [V2, V1])
def test_a_unit_of_either_cgroup_version(place: str) -> None:
    (found,) = look(**CARD, **{f"{place}/slurmd.service/cgroup.procs": "77\n78\n"}, **process(78, "slurmd"))
    assert (found.unit, found.pid, found.memlock) == ("slurmd", 78, SessionLimit(soft=8388608, hard=8388608))


def test_a_pid_file_serves_where_slurmd_runs_without_systemd() -> None:
    (found,) = look(**CARD, **{"/run/slurmd.pid": "90\n"}, **process(90, "slurmd"))
    assert found.pid == 90
    assert look(**CARD, **{"/run/slurmd.pid": "90\n"}, **process(90, "bash")) == (), "a number that another process has by now"


def test_without_rdma_nothing_is_looked_for() -> None:
    files = {f"{V2}/slurmd.service/cgroup.procs": "77\n", **process(77, "slurmd")}
    found = look(**files)
    assert isinstance(found, Missing)
    assert found.why is Why.ABSENT


def test_limits_that_may_not_be_read_are_unknown_and_others_are_not_taken_for_them() -> None:
    unit = {f"{V2}/slurmd.service/cgroup.procs": "77\n"}
    (denied,) = look(**CARD, **unit, **process(77, "slurmd", {"error": "denied"}))
    assert isinstance(denied.memlock, Missing)
    assert denied.memlock.why is Why.DENIED
    (odd,) = look(**CARD, **unit, **process(77, "slurmd", "Max open files 1 2 files\n"))
    assert isinstance(odd.memlock, Missing)
    assert odd.memlock.why is Why.UNPARSED


def test_a_unit_that_does_not_run_is_no_service() -> None:
    assert look(**CARD, **{f"{V2}/slurmd.service/cgroup.procs": ""}) == ()
    assert look(**CARD, **{f"{V2}/slurmd.service/cgroup.procs": "5\n"}) == ()


def test_a_hostile_tree(tmp_path: Path) -> None:
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/system.slice/slurmd.service/cgroup.procs").mkdir(parents=True)
    unit = tmp_path / "sys/fs/cgroup/system.slice/crio.service"
    unit.mkdir()
    (unit / "cgroup.procs").write_bytes(b"\xff\xfe-1\n99999999999999999999\n12\n")
    (tmp_path / "proc/12/comm").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    os.symlink("slurmd.pid", tmp_path / "run/slurmd.pid")
    assert services.look(below(str(tmp_path))) == ()


@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    assert all(pid > 0 for pid in services.parse_pids(text))
    assert services.parse_propagation(text) in (True, False)


@pytest.mark.parametrize(
    ("conf", "wanted"),
    [
        ("", True),
        ("PropagateResourceLimits=ALL", True),
        ("PropagateResourceLimits=NONE", False),
        ("PropagateResourceLimits=CORE,MEMLOCK", True),
        ("PropagateResourceLimits=CORE,NOFILE", False),
        ("PropagateResourceLimitsExcept=MEMLOCK", False),
        ("PropagateResourceLimitsExcept=core,memlock", False),
        ("PropagateResourceLimitsExcept=CORE", True),
        ("PropagateResourceLimitsExcept=NONE", True),
        ("#PropagateResourceLimitsExcept=MEMLOCK", True),
        ("NodeName=a CPUs=4 # PropagateResourceLimitsExcept=MEMLOCK", True),
    ],
)
def test_what_slurm_hands_on(conf: str, wanted: bool) -> None:
    assert services.parse_propagation(f"ClusterName=x\n{conf}\n") is wanted


def test_the_first_slurm_conf_counts_and_a_refused_one_is_unknown() -> None:
    first, second, _ = services.SLURM_CONF
    both = RecordedHost({"files": {first: "PropagateResourceLimits=NONE\n", second: "x=y\n"}}, "test")
    assert services.slurm_propagates(both) is False
    denied = RecordedHost({"files": {first: {"error": "denied"}, second: "x=y\n"}}, "test")
    assert isinstance(services.slurm_propagates(denied), Missing)


def test_the_limits_of_another_process_of_this_machine_can_be_read() -> None:
    found = services._service(LiveHost(), "parent", os.getppid())
    if isinstance(found.memlock, Missing):
        pytest.skip(f"hidden here: {found.memlock}")
    assert found.memlock.soft is None or found.memlock.soft >= 0


PATHS = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd", "/lib/systemd")


def _denied(**files: Any) -> Any:
    (found,) = look(
        **CARD, **{f"{V2}/slurmd.service/cgroup.procs": "77\n"}, **process(77, "slurmd", {"error": "denied"}), **files
    )
    return found


def _unit(*lines: str, section: str = "Service") -> str:
    return "\n".join((f"[{section}]", *lines, ""))


def test_the_unit_file_tells_where_the_process_may_not_be_asked() -> None:
    found = _denied(**{"/usr/lib/systemd/system/slurmd.service": _unit("LimitMEMLOCK=infinity", "LimitNOFILE=131072")})
    assert found.memlock == SessionLimit(soft=None, hard=None)
    assert found.nofile == SessionLimit(soft=131072, hard=131072)
    assert found.source == "/usr/lib/systemd/system/slurmd.service"


@pytest.mark.parametrize("number", range(5))
def test_the_unit_file_of_the_first_directory_counts(number: int) -> None:
    files = {f"{root}/system/slurmd.service": _unit(f"LimitNOFILE={2000 + n}") for n, root in enumerate(PATHS) if n >= number}
    assert _denied(**files).nofile == SessionLimit(soft=2000 + number, hard=2000 + number)


def test_drop_ins_go_by_name_and_hide_others_of_their_name() -> None:
    unit = {"/usr/lib/systemd/system/slurmd.service": _unit("LimitNOFILE=1", "LimitMEMLOCK=1M")}
    early = {"/etc/systemd/system/slurmd.service.d/10-a.conf": _unit("LimitNOFILE=10")}
    late = {"/usr/lib/systemd/system/slurmd.service.d/90-z.conf": _unit("LimitNOFILE=90")}
    assert _denied(**unit, **early).nofile == SessionLimit(soft=10, hard=10)
    assert _denied(**unit, **early, **late).nofile == SessionLimit(soft=90, hard=90)
    mine = {"/etc/systemd/system/slurmd.service.d/90-z.conf": _unit("LimitMEMLOCK=infinity")}
    found = _denied(**unit, **early, **late, **mine)
    assert (found.nofile, found.memlock) == (SessionLimit(soft=10, hard=10), SessionLimit(soft=None, hard=None))
    other = {"/etc/systemd/system/slurmd.service.d/95.conf.bak": _unit("LimitNOFILE=5")}
    assert _denied(**unit, **other).nofile == SessionLimit(soft=1, hard=1)


def test_the_managers_defaults_and_those_that_are_built_in() -> None:
    unit = {"/usr/lib/systemd/system/slurmd.service": _unit("Type=notify")}
    assert _denied(**unit).memlock == SessionLimit(soft=8 << 20, hard=8 << 20)
    assert _denied(**unit).nofile == SessionLimit(soft=1024, hard=524288)
    manager = {"/etc/systemd/system.conf": _unit("DefaultLimitMEMLOCK=infinity", section="Manager")}
    assert _denied(**unit, **manager).memlock == SessionLimit(soft=None, hard=None)
    over = {"/etc/systemd/system.conf.d/50.conf": _unit("DefaultLimitMEMLOCK=64K:128K", section="Manager")}
    assert _denied(**unit, **manager, **over).memlock == SessionLimit(soft=65536, hard=131072)
    back = {"/etc/systemd/system/slurmd.service.d/1.conf": _unit("LimitMEMLOCK=")}
    own = {"/usr/lib/systemd/system/slurmd.service": _unit("LimitMEMLOCK=1G")}
    assert _denied(**own, **manager).memlock == SessionLimit(soft=1 << 30, hard=1 << 30)
    assert _denied(**own, **back, **manager).memlock == SessionLimit(soft=None, hard=None)
    odd = _denied(**{"/usr/lib/systemd/system/slurmd.service": _unit("LimitMEMLOCK=much", "LimitNOFILE=7")})
    assert isinstance(odd.memlock, Missing) and odd.memlock.why is Why.UNPARSED


def test_a_recording_without_processes_has_enabled_units() -> None:
    wants = "/etc/systemd/system/multi-user.target.wants/slurmd.service"
    files = {**CARD, "/usr/lib/systemd/system/slurmd.service": _unit("LimitMEMLOCK=infinity")}
    recorded = RecordedHost({"files": files, "links": {wants: "/usr/lib/systemd/system/slurmd.service"}}, "test")
    (found,) = services.look(recorded)  # type: ignore[misc]
    assert (found.unit, found.pid, found.memlock) == ("slurmd", 0, SessionLimit(soft=None, hard=None))


def test_tasks_of_a_control_group() -> None:
    def tasks(unit: str, comm: str, **files: Any) -> Any:
        (found,) = look(**CARD, **{f"{V2}/{unit}.service/cgroup.procs": "77\n"}, **process(77, comm), **files)
        return found.tasks_max

    v1 = "/sys/fs/cgroup/pids/system.slice"
    assert tasks("ray", "raylet", **{f"{V2}/ray.service/pids.max": "4915\n"}) == 4915
    assert tasks("ray", "raylet", **{f"{V2}/ray.service/pids.max": "max\n"}) == float("inf")
    assert tasks("slurmd", "slurmd", **{f"{v1}/slurmd.service/pids.max": "512\n"}) == 512
    assert tasks("slurmd", "slurmd", **{f"{V2}/slurmd.service/pids.max": "512\n"}).why is Why.NOT_SUPPORTED
    assert tasks("ray", "raylet", **{f"{V2}/ray.service/pids.max": "-3\n"}).why is Why.UNPARSED


@given(st.text(max_size=300))
def test_any_unit_file(text: str) -> None:
    units.parse_limit(text)
    found = _denied(**{"/usr/lib/systemd/system/slurmd.service": "[Service]\n" + text, "/etc/systemd/system.conf": text})
    assert found.unit == "slurmd"
