"""The hooks under a real Slurm: a bad node is drained with our reason, a broken checker drains nobody."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import slurm_here

from conftest import HOSTS, exhaustive
from preflight.joint.faults.computing import SKEW
from preflight.slurm_node import MARKS, TOOL, Cluster, forget, generated, marks_alone
from torchtune_sys.host.recorded import load_recording


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("slurm")
    if not TOOL.exists():
        pytest.skip(f"the tool is not installed beside {sys.executable}")
    checks = root / "checks"
    checks.mkdir()
    (checks / "scratch").write_text(f"#!/bin/sh\n[ ! -e {root}/bad ] || {{ echo /scratch is not mounted; exit 2; }}\n")
    (checks / "scratch").chmod(0o755)
    (root / "policy.toml").write_text('warning = ["error"]\n')  # this machine's own findings are none of the test's
    words = ("--site-checks", str(checks), "--policy", str(root / "policy.toml"), "--budget", "50")
    generated(root / "prolog.sh", "prolog", *words)
    generated(root / "health-check.sh", "health-check", *words)
    more = f"Prolog={root}/prolog.sh\nPrologFlags=Alloc\nPrologEpilogTimeout=120\n"
    try:
        with marks_alone(), slurm_here.cluster(root, "task/none", 1, more) as env:
            yield Cluster(root, env)
    except slurm_here.Unavailable as why:
        pytest.skip(str(why))


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """In service and without a memory of earlier tests, as each leaves it: by a mark of another the hooks take a drain for theirs."""
    forget()
    yield running
    forget()
    (running.root / "bad").unlink(missing_ok=True)
    running.run("scancel", "--user=root")
    running.run("scontrol", "update", "nodename=here", "state=resume")  # fails where it is in service
    assert "DRAIN" not in running.until("DRAIN", is_there=False)


def test_a_bad_node_is_drained_with_our_reason_and_taken_back_once_it_is_well_twice(cluster: Cluster) -> None:
    assert cluster.run("srun", "-n1", "true").returncode == 0
    (cluster.root / "bad").touch()
    refused = cluster.run("srun", "-n1", "true")
    assert refused.returncode != 0
    assert "Reason=torchtune-sys: [node] site-scratch: /scratch is not mounted" in cluster.until("DRAIN")
    cluster.run("scancel", "--user=root")
    assert cluster.run(cluster.health).returncode == 0
    assert not cluster.in_service()
    (cluster.root / "bad").unlink()
    assert cluster.run(cluster.health).returncode == 0
    assert not cluster.in_service(), "once well is not enough"
    assert cluster.run(cluster.health).returncode == 0
    assert "DRAIN" not in cluster.until("DRAIN", is_there=False)
    cluster.until("State=IDLE ")
    assert cluster.run("srun", "-n1", "true").returncode == 0


def test_what_somebody_else_drained_stays_drained(cluster: Cluster) -> None:
    cluster.run("scontrol", "update", "nodename=here", "state=drain", "reason=fan broken")
    for _ in range(3):
        assert cluster.run(cluster.health).returncode == 0
    assert "Reason=fan broken" in cluster.until("DRAIN")
    assert not cluster.in_service()


def test_a_check_that_cannot_judge_takes_no_node_back(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "tool").chmod(0o755)
    hook = generated(tmp_path / "health-check.sh", "health-check", "--tool", str(tmp_path / "tool"))
    cluster.run("scontrol", "update", "nodename=here", "state=drain", "reason=torchtune-sys: [node] x: y")
    for _ in range(3):
        assert "this node is not checked" in cluster.run(hook).stderr
    assert not cluster.in_service()


@pytest.mark.parametrize(
    ("reason", "drains"), [("Not responding", True), ("Node unexpectedly rebooted", True), ("fan broken", False)]
)
def test_a_node_that_slurm_itself_takes_back_is_drained_while_it_is_down(cluster: Cluster, reason: str, drains: bool) -> None:
    """slurmd runs the health check before it registers: a bad node came back (ReturnToService), and jobs were started there."""
    (cluster.root / "bad").touch()
    try:
        cluster.run("scontrol", "update", "nodename=here", "state=down", f"reason={reason}")
        cluster.until("State=DOWN")
        cluster.checked(1)
        state = cluster.until("DRAIN", is_there=drains, seconds=10)
        assert ("Reason=torchtune-sys: [node] site-scratch" in state) is drains, state
        assert (f"Reason={reason}" in state) is not drains
        (cluster.root / "bad").unlink()
        cluster.checked(2)
        assert "DRAIN" not in cluster.until("DRAIN", is_there=False, seconds=10)
    finally:
        cluster.run("scontrol", "update", "nodename=here", "state=resume")


@pytest.mark.essential
def test_prolog_error_on_a_node_that_we_drained_is_ours(cluster: Cluster) -> None:
    """slurmd may repeat a failure that Slurm has answered already, and change our reason by that."""
    mark, known, _passes = MARKS
    assert cluster.run("scontrol", "update", "nodename=here", "state=drain", "reason=Prolog error").returncode == 0
    assert "DRAIN" in cluster.until("DRAIN")
    for _ in range(3):
        assert cluster.run(cluster.health).returncode == 0
    assert "Reason=Prolog error" in cluster.state() and not cluster.in_service(), "not by us"
    mark.write_text("torchtune-sys: [node] x: y\n")
    cluster.checked(2)
    assert "DRAIN" not in cluster.until("DRAIN", is_there=False)
    assert not mark.exists()
    cluster.run("scontrol", "update", "nodename=here", "state=drain", "reason=Prolog error")
    known.write_text("1\n")  # somebody took it back, and slurmd told once more
    cluster.checked(2)
    assert "DRAIN" not in cluster.until("DRAIN", is_there=False)


XID = "[{at:12.6f}] NVRM: Xid (PCI:0000:18:00): 119, pid=1, name=python, Timeout after 6s of waiting for RPC response from GPU0 GSP!"


@pytest.mark.long
def test_what_the_kernel_logged_drains_a_node_once(cluster: Cluster, tmp_path: Path) -> None:
    """A reset of a GPU leaves no trace in the log. Who takes the node back says that it is mended; only what comes later drains it again."""
    recording = tmp_path / "host.json"

    def logged(at: float) -> None:
        host = load_recording(str(HOSTS / "healthy.json"))
        log = host["answers"]["kernel-log"]
        log["now_s"] = at + 60
        log["lines"].append(XID.format(at=at))
        recording.write_text(json.dumps(host))

    tool = tmp_path / "tool"
    tool.write_text(f'#!/bin/sh\nexec {TOOL} "$@" --from {recording}\n')
    tool.chmod(0o755)
    hooks = [
        generated(tmp_path / f"{name}.sh", name, "--tool", str(tool), "--budget", "50") for name in ("prolog", "health-check")
    ]
    logged(at=40.0)
    assert cluster.run(hooks[0]).returncode == 1
    assert "Reason=torchtune-sys: [hardware] gsp-firmware-timeout" in cluster.until("DRAIN")
    assert cluster.run(hooks[0]).returncode == 1, "a job that had the node already"
    for _ in range(2):
        assert cluster.run(hooks[1]).returncode == 0
    assert not cluster.in_service(), "the health check takes back nothing that still stands in the log"
    cluster.run("scontrol", "update", "nodename=here", "state=resume")
    cluster.until("DRAIN", is_there=False)
    for hook in hooks:
        done = cluster.run(hook)
        assert done.returncode == 0, done.stderr
        assert cluster.in_service()
    logged(at=1_200_000.0)
    assert cluster.run(hooks[0]).returncode == 1
    assert not cluster.in_service()


BROKEN = {
    "the tool is gone": None,
    "its interpreter is broken": "#!/no/such/python\n",
    "it ends with 1 and a traceback": "#!/bin/sh\necho 'Traceback (most recent call last):' >&2; exit 1\n",
    "it prints garbage and ends with 1": "#!/bin/sh\nhead -c 3000 /dev/urandom; exit 1\n",
    "it prints noise and ends with 1": "#!/bin/sh\necho 'warning: something'; echo 'torchtune-sys: [node]'; exit 1\n",
    "it crashes": "#!/bin/sh\nkill -SEGV $$\n",
    "it is not executable": "",
    "it hangs": "#!/bin/sh\nsleep 600\n",
    "it ends with 4": "#!/bin/sh\nexit 4\n",
    "it ends with 126": "#!/bin/sh\nexit 126\n",
    "it ends with 127": "#!/bin/sh\nexec /no/such/program\n",
    "it cannot judge": "#!/bin/sh\nexit 3\n",
    "it prints noise and ends with 0": "#!/bin/sh\necho 'torchtune-sys: [node] x'; exit 0\n",
    "every rule crashes": f"""#!{sys.executable}
import sys
import msgspec
from torchtune_sys import rules
def crash(*_): raise RuntimeError("planted")
rules.CATALOGUE = tuple(msgspec.structs.replace(rule, judge=crash, applies=None) for rule in rules.CATALOGUE)
from torchtune_sys.cli.main import main
sys.exit(main())
""",
    "its modules are broken": f"#!{sys.executable}\nimport torchtune_sys, torchtune_sys.no_such_module\n",
}
PLANTED = {
    "the policy has an error": ("", ("--policy", "{bad}/policy.toml")),
    "the policy is gone": ("", ("--policy", "{bad}/gone.toml")),
    "a site check hangs": ("", ("--site-checks", "{bad}/hung")),
    "the site checks are gone": ("", ("--site-checks", "{bad}/gone")),
    "the state directory is read-only": ("mount -t tmpfs -o ro none {bad}/state", ("--drain-state", "{bad}/state")),
    "the state directory is full": (
        "mount -t tmpfs -o size=8k none {bad}/state; head -c 100k /dev/zero >{bad}/state/full 2>/dev/null || :",
        ("--drain-state", "{bad}/state"),
    ),
    "hardly a file can be opened": ("ulimit -n 8", ()),
    "memory is out": ("ulimit -v 42000", ()),
    "memory is out before anything is imported": ("ulimit -v 27000", ()),
}
"""Shell commands before the hook starts, and options of the hook. The node is bad, so that a check that worked would drain it."""


@pytest.mark.sampled(3, 5)
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_checker_drains_nobody_and_says_why(cluster: Cluster, tmp_path: Path, fault: str) -> None:
    tool = tmp_path / "tool"
    if BROKEN[fault] is not None:
        tool.write_text(BROKEN[fault])
        tool.chmod(0o755 if BROKEN[fault] else 0o644)
    budget = "1" if fault == "it hangs" else "30"
    for piece in ("prolog", "health-check"):
        hook = generated(tmp_path / f"{piece}.sh", piece, "--tool", str(tool), "--budget", budget)
        done = cluster.run(hook)
        assert done.returncode == 0
        assert "this node is not checked" in done.stderr
    assert cluster.in_service()


@pytest.mark.long
@pytest.mark.parametrize("fault", PLANTED)
def test_a_check_that_cannot_work_drains_nobody_and_says_why(cluster: Cluster, tmp_path: Path, fault: str) -> None:
    before, options = PLANTED[fault]
    (tmp_path / "state").mkdir()
    (tmp_path / "hung").mkdir()
    (tmp_path / "hung/late").write_text("#!/bin/sh\nsleep 600\n")
    (tmp_path / "hung/late").chmod(0o755)
    (tmp_path / "policy.toml").write_text("fatal = [\n")
    hung = "hangs" in fault
    words = [word.format(bad=tmp_path) for word in options]
    if "--policy" not in words:
        (tmp_path / "lenient.toml").write_text('warning = ["error"]\n[site-checks]\ntimeout = 1\n')
        words += ["--policy", str(tmp_path / "lenient.toml")]
    if "--site-checks" not in words:
        words += ["--site-checks", str(cluster.root / "checks")]
    (cluster.root / "bad").touch()
    for piece in ("prolog", "health-check"):
        hook = generated(tmp_path / f"{piece}.sh", piece, *words, "--budget", "50")
        run = f"{before.format(bad=tmp_path)}\nexec {hook}"
        done = cluster.run("unshare", "--mount", "--propagation", "private", "bash", "-c", run)
        assert done.returncode == 0
        assert "no verdict; this node is not checked" in done.stderr or "could not" in done.stderr or "cannot" in done.stderr
        assert cluster.in_service(), done.stderr
        assert not hung or "no answer within 1 s" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("most", [1, *exhaustive(2, 3, 5, 8)])
def test_where_no_process_can_be_started_nobody_is_drained(cluster: Cluster, tmp_path: Path, most: int) -> None:
    """bash waits 15 s for room, and then ends with 254, which Slurm would take for a Prolog that failed."""
    group = Path("/sys/fs/cgroup/pids") / f"torchtune-sys-test-{os.getpid()}"
    if not group.parent.is_dir():
        group = Path("/sys/fs/cgroup") / group.name
    try:
        group.mkdir()
        (group / "pids.max").write_text(str(most))
    except OSError as why:
        pytest.skip(f"control groups: {why}")
    try:
        done = cluster.run("sh", "-c", f"echo $$ >{group}/cgroup.procs; exec {cluster.prolog}")
        assert done.returncode == 0, done.stderr
        assert cluster.in_service()
    finally:
        for _ in range(600):
            if not (group / "cgroup.procs").read_text():
                break
            time.sleep(0.1)
        group.rmdir()


@pytest.mark.long
@pytest.mark.parametrize("seconds", [86_400, *exhaustive(-30 * 365 * 86_400, 30 * 365 * 86_400)])
def test_a_clock_that_jumped_drains_nobody_and_holds_no_slot(cluster: Cluster, tmp_path: Path, seconds: int) -> None:
    """The tool's own clock is off. Once it is right again, a bad node is drained as ever."""
    if shutil.which("cc") is None:
        pytest.skip("needs cc")
    (tmp_path / "skew.c").write_text(SKEW.replace("300", str(seconds)))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "skew.so", tmp_path / "skew.c", "-ldl"], check=True, timeout=60)
    tool = tmp_path / "tool"
    tool.write_text(f'#!/bin/sh\nLD_PRELOAD={tmp_path}/skew.so exec {TOOL} "$@"\n')
    tool.chmod(0o755)
    (tmp_path / "state").mkdir()
    words = ("--site-checks", str(cluster.root / "checks"), "--policy", str(cluster.root / "policy.toml"), "--budget", "50")
    words += ("--drain-state", str(tmp_path / "state"), "--drain-limit", "1")
    hooks = [generated(tmp_path / f"{piece}.sh", piece, *words, "--tool", str(tool)) for piece in ("prolog", "health-check")]
    for hook in hooks:
        done = cluster.run(hook)
        assert done.returncode == 0, done.stderr
        assert cluster.in_service(), done.stderr
    (cluster.root / "bad").touch()
    assert cluster.run(tool, "preflight", *words).returncode == 1, "it takes the one slot, at its own time"
    right = generated(tmp_path / "right.sh", "prolog", *words)
    assert cluster.run(right).returncode == 1
    assert "site-scratch" in cluster.until("DRAIN")


@pytest.mark.long
def test_slurmd_itself_runs_the_health_check(cluster: Cluster, tmp_path: Path) -> None:
    """A node that is bad while nobody uses it is drained, and comes back once it is well: nobody but slurmd starts anything. It leaves the marks of ``cluster``'s node."""
    checks = tmp_path / "checks"
    checks.mkdir()
    (checks / "scratch").write_text(f"#!/bin/sh\n[ ! -e {tmp_path}/bad ] || {{ echo /scratch is not mounted; exit 2; }}\n")
    (checks / "scratch").chmod(0o755)
    (tmp_path / "policy.toml").write_text('warning = ["error"]\n')
    words = ("--site-checks", str(checks), "--policy", str(tmp_path / "policy.toml"), "--budget", "40")
    hook = generated(tmp_path / "health-check.sh", "health-check", *words)
    folder = tmp_path / "slurm"
    folder.mkdir()
    start = (
        tmp_path / "start.sh"
    )  # slurmd gives it the node's name and nothing else: this cluster's configuration is not at its usual place
    start.write_text(f"#!/bin/sh\nexport SLURM_CONF={folder}/slurm.conf\nexec {hook}\n")
    start.chmod(0o755)
    more = f"HealthCheckProgram={start}\nHealthCheckInterval=2\nHealthCheckNodeState=IDLE,CYCLE\n"
    try:
        with slurm_here.cluster(folder, "task/none", 1, more) as env:
            own = Cluster(folder, env)
            (tmp_path / "bad").touch()
            own.until("DRAIN", seconds=90)
            assert "Reason=torchtune-sys: [node] site-scratch: /scratch is not mounted" in own.state()
            (tmp_path / "bad").unlink()
            assert "DRAIN" not in own.until("DRAIN", is_there=False, seconds=90)
    except slurm_here.Unavailable as why:
        pytest.skip(str(why))


def test_the_configuration_that_is_there_is_compared(cluster: Cluster) -> None:
    found = cluster.run(TOOL, "generate", "slurm", "conf").stdout
    assert "# PrologFlags=Alloc is set already" in found
    assert "# SchedulerParameters=" in found
    assert "# PrologEpilogTimeout=120 is set already" in found
    assert "; now (null)\nEpilog=/etc/slurm/epilog.d/50-torchtune-sys.sh" in found
    assert f"now {cluster.root}/task-prolog: call ours from it\n#TaskProlog=" in found
