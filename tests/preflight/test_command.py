"""The command as operators and hooks call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import warm
from torchtune_sys.cli.joint_run import tells_of_all
from torchtune_sys.model.preflight import Blame, Cause, Go, NodeVerdict, Preflight, Scale, Weight
from torchtune_sys.render.preflight import reason
from torchtune_sys.render.schemas import DATA

HOSTS = Path(__file__).parent.parent / "hosts"
BAD = str(HOSTS / "gpu-ecc-uncorrectable.fail.json")
HEALTHY = str(HOSTS / "healthy.json")


def preflight(*words: str, env: dict[str, str] | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*warm.PROGRAM, "preflight", *words],
        capture_output=True, text=True, timeout=120, env={**os.environ, **(env or {})}, **more,
    )  # fmt: skip


def document(*words: str, env: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(preflight(*words, "--format", "json", env=env, **more).stdout)
    return found


def test_a_bad_node_is_no_go_with_cause_and_who_can_mend_it() -> None:
    found = document("--from", BAD)
    (cause,) = [cause for cause in found["nodes"][0]["causes"] if cause["weight"] == "fatal"]
    assert (found["verdict"], cause["cause"], cause["blame"]) == ("no-go", "gpu-ecc-uncorrectable", "hardware")
    assert preflight("--from", BAD).returncode == 1
    assert preflight("--from", HEALTHY).returncode == 0
    with open(os.path.join(DATA, "preflight.schema.json"), encoding="utf-8") as file:
        jsonschema.validate(found, json.load(file))


def test_an_interpreter_without_torch_is_told_but_not_in_a_hook(tmp_path: Path) -> None:
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)

    def told(**env: str) -> tuple[str, list[tuple[str, str, str]]]:
        found = document("--python", str(bare), env=env)
        causes = found["nodes"][0]["causes"]
        return found["verdict"], [
            (each["weight"], each["blame"], each["rule"]) for each in causes if each["cause"] == "torch-not-installed"
        ]

    assert told() == ("go", [("warning", "user", "preflight:torch")])
    assert told(SLURM_JOB_ID="7", SLURM_SCRIPT_CONTEXT="prolog_slurmd")[1] == []


def test_the_reason_is_one_line_that_slurm_takes() -> None:
    reason = preflight("--from", BAD, "--format", "reason").stdout
    assert reason.startswith("torchtune-sys: [hardware] gpu-ecc-uncorrectable: ")
    assert reason.count("\n") == 1
    assert len(reason) < 210
    assert preflight("--from", HEALTHY, "--format", "reason").stdout == ""
    words = preflight("--from", str(HOSTS / "nvidia-driver-not-loaded.fail.json"), "--format", "reason").stdout
    assert "the drivers libraries are here" in words, "quotes mean something to shells"
    assert words.isascii() and "?" not in words


def test_a_long_reason_is_cut_and_still_says_how_many_there_are() -> None:
    cause = Cause(cause="x", rule="y", blame=Blame.NODE, weight=Weight.FATAL, seen="ä’" * 200)
    said = reason(NodeVerdict(node="n", verdict=Go.NO_GO, causes=(cause, cause)))
    assert said.isascii() and said.endswith("?... (+1 more)") and len(said) == 200


def test_prometheus_says_the_verdict_and_each_cause_once() -> None:
    rows = preflight("--from", BAD, "--format", "prometheus").stdout.splitlines()
    assert 'torchtune_sys_preflight_verdict{node="trainer-01",verdict="no-go"} 1' in rows
    assert len([row for row in rows if not row.startswith("#")]) == len(
        {row.rpartition(" ")[0] for row in rows if not row.startswith("#")}
    )


def test_the_policy_decides(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('ignore = ["gpu-ecc-uncorrectable"]\n')
    assert preflight("--from", BAD, "--policy", str(policy)).returncode == 0


def test_a_faulty_policy_is_a_usage_error_but_drains_nobody(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text("fatl = []\n")
    alone = preflight("--policy", str(policy))
    assert alone.returncode == 2
    assert "did you mean fatal?" in alone.stderr
    hook = preflight("--policy", str(policy), "--hook", "prolog")
    assert hook.returncode == 0
    assert "keeps it in service" in hook.stderr
    assert preflight("--policy", str(policy), "--hook", "prolog", "--fail-closed").returncode == 2


def test_lists_of_an_earlier_run_are_not_taken_for_those_of_this_one(tmp_path: Path) -> None:
    for name in ("good_nodes.txt", "avoid.txt", "other.txt"):
        (tmp_path / name).write_text("n7\n")
        os.utime(tmp_path / name, (time.time() - 86400,) * 2)
    refused = preflight("--alone", "--lists", str(tmp_path), "--policy", str(tmp_path / "gone"))
    assert refused.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["other.txt"], "a run that ends without a verdict leaves none"
    (tmp_path / "avoid.txt").write_text("n7\n")
    assert preflight("--alone", "--lists", str(tmp_path)).returncode in (0, 1)
    assert {path.name for path in tmp_path.iterdir()} == {*LISTS, "other.txt"}


LISTS = ("good_nodes.txt", "bad_nodes.txt", "exclude.txt", "hostfile")


def of_all(nodes: int, came: int, told: int) -> Preflight:
    names = [f"n{number}" for number in range(told)]
    found = tuple(NodeVerdict(node=name, verdict=Go.GO) for name in names)
    scale = Scale(nodes=nodes, ranks=nodes)
    return Preflight(version="", time="", epoch_s=0, where="", level="", seconds=0, verdict=Go.GO, nodes=found, scale=scale, absent=tuple(names[came:]))  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "came", "told", "is_written"),
    [(1, 1, 1, True), (4, 4, 4, True), (4, 3, 4, True), (4, 2, 4, True), (2, 1, 2, True), (4, 1, 4, False), (4, 1, 1, False)],
)
def test_lists_are_written_by_who_knows_of_all_nodes(nodes: int, came: int, told: int, is_written: bool) -> None:
    """A node that came when the others had ended, or got no verdict, wrote itself as the only good one over their lists."""
    assert tells_of_all(of_all(nodes, came, told)) is is_written


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--polcy", "x"), "did you mean --policy"),
        (("--level", "fats"), "'fats' is not one of"),
        (("--budget", "soon"), "'soon' is not a number"),
        (("node-1",), "unexpected extra argument"),
        (("--topology", "x"), "--topology tells --isolate"),
        (("--lists", "/nonexistent/folder"), "/nonexistent/folder"),
        (("-o", "/nonexistent/file"), "/nonexistent/file"),
    ],
)
def test_a_mistake_in_the_command_of_a_hook_drains_nobody(words: tuple[str, ...], says: str) -> None:
    """slurmd drains a node for every status but 0; by hand the mistake is one."""
    by_variable = preflight(*words, env={"SLURM_SCRIPT_CONTEXT": "prolog_slurmd"})
    by_option = preflight(*words, "--hook=health-check")
    for done in (by_variable, by_option):
        assert (done.returncode, done.stdout) == (0, "")
        assert "keeps it in service: " in done.stderr and says in done.stderr
    assert preflight(*words).returncode not in (0, 1)
    assert preflight(*words, "--fail-closed", "--hook=prolog").returncode not in (0, 1)


def test_the_folder_of_the_lists_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "lists.7"
    assert preflight("--alone", "--lists", str(folder)).returncode in (0, 1)
    assert {"good_nodes.txt", "bad_nodes.txt", "exclude.txt", "hostfile"} == {path.name for path in folder.iterdir()}
    (tmp_path / "link").symlink_to(folder)
    assert preflight("--alone", "--lists", f"{tmp_path}/link/.").returncode in (0, 1)
    (tmp_path / "file").write_text("")
    refused = preflight("--alone", "--lists", str(tmp_path / "file"))
    assert refused.returncode == 4 and "Not a directory" in refused.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--isolate",), "--isolate needs a job of several nodes"),
        (("--isolate", "--alone"), "--isolate tests nodes together, and --alone looks at one"),
        (("--isolate", "--hook", "prolog", "--fail-closed"), "--isolate tests nodes together, and a prolog looks at one"),
        (("--topology", "topology.conf"), "--topology tells --isolate which nodes are behind which switch"),
    ],
)
def test_isolation_is_for_nodes_together(words: tuple[str, ...], says: str) -> None:
    env = {"PATH": "/usr/bin:/bin"}
    done = preflight(*words, env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--rdzv-id", "7"), "--rdzv-id has no effect without --rdzv-endpoint"),
        (("--last-call", "3"), "--last-call has no effect without --rdzv-endpoint"),
        (("--drain-limit", "4"), "--drain-limit has no effect without --drain-state"),
        (("--domain", "rack1"), "--domain has no effect without --drain-state"),
        (("--log-after", "60"), "--log-after has no effect without --hook"),
    ],
)
def test_an_option_that_says_how_another_works_is_refused_alone(words: tuple[str, ...], says: str) -> None:
    done = preflight("--from", HEALTHY, *words)
    assert done.returncode == 2 and says in done.stderr
    if words[0] == "--log-after":  # the context names the hook
        assert preflight("--from", HEALTHY, *words, env={"SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}).returncode == 0


def test_what_could_not_be_judged_drains_nobody(tmp_path: Path) -> None:
    (tmp_path / "late").write_text("#!/bin/sh\nsleep 600\n")
    (tmp_path / "late").chmod(0o755)
    words = ("--from", HEALTHY, "--site-checks", str(tmp_path), "--budget", "5")
    (tmp_path / "policy.toml").write_text("[site-checks]\ntimeout = 0.2\n")
    assert preflight(*words, "--policy", str(tmp_path / "policy.toml")).returncode == 3
    hook = preflight(*words, "--policy", str(tmp_path / "policy.toml"), "--hook", "health-check")
    assert hook.returncode == 0
    assert "could not judge" in hook.stderr


def test_too_many_bad_nodes_speak_against_the_checker(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / "all").mkdir(exist_ok=True)
        (tmp_path / f"all/slot-{number}").write_text(f"n{number}")
    found = document("--from", BAD, "--drain-state", str(tmp_path), "--drain-limit", "2")
    assert found["verdict"] == "unknown"
    assert "suspect the checker or the image" in found["nodes"][0]["causes"][0]["seen"]
    assert document("--from", BAD, "--drain-state", str(tmp_path), "--drain-limit", "3")["verdict"] == "no-go"


def test_a_hook_judges_the_host_and_not_slurmd(tmp_path: Path) -> None:
    """Whatever slurmd's limits, CPUs, directory, environment and Python are, the verdict is the same."""
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    hostile = {
        "NCCL_SOCKET_IFNAME": "no-such-interface",
        "CUDA_VISIBLE_DEVICES": "99",
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_SCRIPT_CONTEXT": "prolog_slurmd",
        "SLURM_JOB_NUM_NODES": "4",
    }
    limited = [
        "sh",
        "-c",
        'ulimit -Sn 128 -Sl 64 2>/dev/null; exec taskset -c 0 "$@"',
        "sh",
        sys.executable,
        "-I",
        "-m",
        "torchtune_sys",
    ]
    done = subprocess.run(
        [*limited, "preflight", "--format", "json"], env=hostile, cwd="/proc", capture_output=True, text=True, timeout=120
    )
    plain = document("--hook", "prolog", env={"SLURM_JOB_NUM_NODES": "4"})
    found = json.loads(done.stdout)
    assert found["where"] == "prolog"

    def rules(one: dict[str, Any]) -> list[str]:
        return sorted(cause["rule"] for cause in one["nodes"][0]["causes"])

    assert rules(found) == rules(plain)
    without_hook = {**hostile, "SLURM_SCRIPT_CONTEXT": "", "SLURM_JOB_ID": "7"}
    seen = subprocess.run(
        [*limited, "preflight", "--format", "json"], env=without_hook, cwd="/", capture_output=True, text=True, timeout=120
    )
    assert len(rules(json.loads(seen.stdout))) > len(rules(found))


@pytest.mark.parametrize(
    ("env", "where"),
    [
        ({"SLURM_SCRIPT_CONTEXT": "epilog_slurmd"}, "epilog"),
        ({"TORCHELASTIC_RUN_ID": "x", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, "torchrun"),
        ({"OMPI_COMM_WORLD_RANK": "0", "SLURM_JOB_ID": "7"}, "mpirun"),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, "srun"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "pod"),
        ({}, "alone"),
    ],
)
def test_it_knows_where_it_is(env: dict[str, str], where: str) -> None:
    from torchtune_sys.preflight import context

    assert context.where(env) == where


def test_training_without_a_place_for_files_leaves_the_rest_of_the_verdict(tmp_path: Path) -> None:
    """As in a pod with a read-only root file system: nothing can be written, and the verdict says so."""
    if os.geteuid() or subprocess.run(("unshare", "--mount", "true"), capture_output=True).returncode:
        pytest.skip("needs root that may mount")
    closed = (
        'for place in /tmp /var/tmp /dev/shm; do mount --bind $place $place; mount -o remount,bind,ro $place; done; exec "$@"'
    )
    words = [sys.executable, "-I", "-m", "torchtune_sys", "preflight", "--level", "standard", "--alone", "--format", "json"]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", closed, "sh", *words], capture_output=True, text=True, timeout=120, cwd="/proc"
    )
    causes = {(cause["cause"], cause["weight"]) for cause in json.loads(done.stdout)["nodes"][0]["causes"]}
    assert done.returncode == 1, done.stderr
    assert {("no-temporary-directory", "fatal"), ("checker-fault", "unknown")} <= causes
