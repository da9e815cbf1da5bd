"""``torchrun --rdzv-backend torchtune-sys`` on real hosts: who is unfit ends with the cause, the others go on as with c10d."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from planted_secrets import Secrets
from preflight.joint.agents_here import TRAINS, Agent, environment, ran, torchrun
from preflight.joint.cluster import cluster, run
from preflight.joint.faults import FAULTS

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("torchrun"))


def trained(found: dict[int, Agent]) -> list[int]:
    return sorted(number for number, agent in found.items() if agent.status == 0 and agent.trained)


def test_the_unfit_agent_ends_with_the_cause_and_the_others_go_on(tmp_path: Path, python: Path) -> None:
    with cluster(tmp_path, 3) as made:
        FAULTS["loopback-name"].plant(made, 2)
        found = ran(made, {number: torchrun(python, tmp_path, "2:3") for number in (1, 2, 3)}, tmp_path)
    assert trained(found) == [1, 3], found
    assert found[2].status == 1
    assert "Traceback" not in found[2].errors
    for agent in found.values():
        assert re.search(r"n2 \[node\] hostname-resolves-to-loopback", agent.told), agent
    assert "NO-GO" in found[2].told
    assert [agent.trained for agent in (found[1], found[3])] in (
        [["trained as 0 of 2, start 0"], ["trained as 1 of 2, start 0"]],
        [["trained as 1 of 2, start 0"], ["trained as 0 of 2, start 0"]],
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("nodes", [4, 16])
def test_healthy_agents_train(tmp_path: Path, python: Path, nodes: int) -> None:
    with cluster(tmp_path, nodes) as made:
        # c10d's own rendezvous of 16 took more than a minute on two processors at a load of 30
        words = torchrun(python, tmp_path, f"{nodes}", "join_timeout=300", script=TRAINS)
        commands = dict.fromkeys(range(1, nodes + 1), words)
        found = ran(made, commands, tmp_path, patience_s=500)
    assert trained(found) == [*range(1, nodes + 1)], found
    assert all(f"GO {nodes} of {nodes} nodes, {nodes} agents" in agent.told for agent in found.values()), found


@pytest.mark.exhaustive
def test_without_enough_that_are_fit_all_end_and_name_the_node(tmp_path: Path, python: Path) -> None:
    with cluster(tmp_path, 4) as made:
        FAULTS["loopback-name"].plant(made, 3)
        found = ran(made, {number: torchrun(python, tmp_path, "4") for number in range(1, 5)}, tmp_path)
    assert trained(found) == []
    assert {agent.status for agent in found.values()} == {1}
    assert all("n3 [node] hostname-resolves-to-loopback" in agent.told for agent in found.values()), found


@pytest.mark.exhaustive
@pytest.mark.parametrize("named", [True, False])
def test_an_absent_agent_is_named_by_all(tmp_path: Path, python: Path, named: bool) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("n1\nn2\nn3\nn4\n")
    conf = f"join_timeout=12{f',hostfile={hosts}' if named else ''}"
    with cluster(tmp_path, 4) as made:
        found = ran(made, {number: torchrun(python, tmp_path, "4", conf) for number in (1, 2, 4)}, tmp_path)
    assert [agent.status for agent in found.values()] == [1, 1, 1], found
    wanted = "did not come: n3" if named else "did not come: 1 of 4 agents"
    assert all(wanted in agent.told for agent in found.values()), found


@pytest.mark.exhaustive
def test_absentees_by_the_number_of_an_indexed_job(tmp_path: Path, python: Path) -> None:
    env = {number: {"JOB_COMPLETION_INDEX": f"{number - 1}"} for number in range(1, 5)}
    with cluster(tmp_path, 4) as made:
        found = ran(made, {number: torchrun(python, tmp_path, "4", "join_timeout=12") for number in (1, 2, 4)}, tmp_path, env=env)
    assert all("did not come: node 2" in agent.told for agent in found.values()), found


@pytest.mark.exhaustive
def test_nobody_at_the_endpoint(tmp_path: Path, python: Path) -> None:
    with cluster(tmp_path, 3) as made:
        found = ran(made, {number: torchrun(python, tmp_path, "2:3", "join_timeout=8") for number in (2, 3)}, tmp_path)
    assert [agent.status for agent in found.values()] == [1, 1], found
    assert all(
        "did not come: n1" in agent.told and "no pre-flight was started there" in agent.errors for agent in found.values()
    ), found


BROKEN = {
    "a package is gone": "msgspec",
    "the command fails": "click",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("where", [1, 2])
@pytest.mark.parametrize("package", [*BROKEN.values()], ids=[*BROKEN])
def test_our_own_crash_lets_the_job_start(tmp_path: Path, python: Path, where: int, package: str) -> None:
    """On one node a package that we need cannot be imported: it, and those that wait for it, train."""
    broken = tmp_path / "broken" / package
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('planted')\n")
    own = environment(tmp_path)
    (site,) = own.parents[1].glob("lib/python*/site-packages")
    (site / "aaa.pth").write_text(f"{broken.parent}\n")
    commands = {number: torchrun(own if number == where else python, tmp_path, "4") for number in range(1, 5)}
    with cluster(tmp_path, 4) as made:
        found = ran(made, commands, tmp_path)
    assert trained(found) == [1, 2, 3, 4], found
    assert "going on without it" in found[where].told


def test_the_log_of_an_agent_holds_no_secrets(tmp_path: Path) -> None:
    """What Python says where our own command does not even start, what the command says of a policy that is none, and what variables hold."""
    secrets, texts = Secrets(14), []
    while len(secrets.planted) < 200:
        texts += secrets.of_each()
    broken = tmp_path / "broken" / "click"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text(f"raise RuntimeError({chr(10).join(texts)!r})\n")
    own = environment(tmp_path)
    (site,) = own.parents[1].glob("lib/python*/site-packages")
    (site / "aaa.pth").write_text(f"{broken.parent}\n")
    (tmp_path / "odd.toml").write_text(f"[rules.'{secrets.token()}']\nfatal = '{secrets.password()}'\n")
    env = {1: {"NCCL_COMMENT": secrets.token(), "SLURM_JOB_NAME": secrets.password()}}
    said = []
    with cluster(tmp_path, 1) as made:
        for place in (broken, None):
            found = ran(made, {1: torchrun(own, tmp_path, "1", f"policy={tmp_path}/odd.toml")}, tmp_path, env=env)[1]
            said.append(found.out + found.errors)
            assert found.trained and "going on without it" in found.errors, found
            if place is not None:
                place.rename(place.with_name("gone"))
    assert "RuntimeError" in said[0] and "hidden-by-torchtune-sys" in said[0], said
    assert secrets.pieces_in("".join(said)) == []


@pytest.mark.exhaustive
def test_an_agent_that_is_killed_while_all_wait_is_told(tmp_path: Path, python: Path) -> None:
    with cluster(tmp_path, 4) as made:
        commands = {number: torchrun(python, tmp_path, "3:4", "last_call_timeout=20") for number in range(1, 4)}
        victim: list[int] = []
        import threading

        def kill() -> None:
            until_s = time.monotonic() + 60
            while time.monotonic() < until_s and not victim:
                words = subprocess.run(["ip", "netns", "pids", made.space(3)], capture_output=True, text=True).stdout.split()
                victim.extend(int(pid) for pid in words if b"torchtune_sys" in _words(pid))
                time.sleep(0.2)
            time.sleep(4)
            for pid in victim:
                os.kill(pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        found = ran(made, commands, tmp_path)
        killer.join()
    assert trained(found) == [1, 2, 3], found
    assert "going on without it" in found[3].told


def _words(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.exhaustive
def test_restarts_are_those_of_c10d(tmp_path: Path, python: Path) -> None:
    fails = "import os, sys\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': sys.exit(3)\n"
    with cluster(tmp_path, 2) as made:
        from preflight.joint.agents_here import TELLS

        words = {number: torchrun(python, tmp_path, "2", restarts=2, script=fails + TELLS) for number in (1, 2)}
        found = ran(made, words, tmp_path)
    assert trained(found) == [1, 2], found
    assert all(agent.trained[0].endswith("start 1") and agent.told.count("GO") == 1 for agent in found.values()), found


@pytest.mark.exhaustive
def test_elastic_sizes_are_those_of_c10d(tmp_path: Path, python: Path) -> None:
    """Two of 2:3 start after the last call. A third comes later, is judged by itself, and all start anew as three. Where torch 2.13 shares the
    rendezvous' store with the training, c10d itself fails there: rank 0 tells its address in the first round alone."""
    script = """
import os, time
env = os.environ
print(f"trained as {env['RANK']} of {env['WORLD_SIZE']}, start {env['TORCHELASTIC_RESTART_COUNT']}", flush=True)
until = time.time() + (90 if env['WORLD_SIZE'] == '2' else 1)
while time.time() < until:
    time.sleep(0.1)
"""
    with cluster(tmp_path, 3) as made:
        words = {number: torchrun(python, tmp_path, "2:3", restarts=3, script=script) for number in (1, 2, 3)}
        apart = {number: {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} for number in words}
        found = ran(made, words, tmp_path, after={3: lambda: "trained" in (tmp_path / "out1").read_text()}, env=apart)
    assert trained(found) == [1, 2, 3], found
    assert [len(found[number].trained) for number in (1, 2, 3)] == [2, 2, 1], found
    assert "this node was judged on its own" in found[3].told or "GO n3" in found[3].told


@pytest.mark.exhaustive
def test_agents_of_one_host_count_as_one_node(tmp_path: Path, python: Path) -> None:
    with cluster(tmp_path, 2) as made:
        words = torchrun(python, tmp_path, "3")
        second = subprocess.Popen(made.argv(2, words), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        found = ran(made, {1: words, 2: words}, tmp_path)
        errors = second.communicate(timeout=60)[1]
    assert trained(found) == [1, 2], found
    assert second.returncode == 0, errors
    assert "GO 2 of 2 nodes, 3 agents" in found[1].told


def test_a_torchrun_that_does_not_choose_it_prints_nothing_and_loads_nothing(tmp_path: Path, python: Path) -> None:
    text = (
        "import sys, time, importlib.metadata as m\n"
        "(point,) = m.entry_points(group='torchrun.handlers')\n"
        "before, began = set(sys.modules), time.process_time()\n"
        "made = point.load()()\n"
        "print(time.process_time() - began, *sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run([str(python), "-c", text], capture_output=True, text=True, timeout=60, check=True)
    seconds, *loaded = done.stdout.split()
    assert float(seconds) <= 0.010
    assert [*loaded] == ["torchtune_sys", "torchtune_sys.torchrun"]
    assert done.stderr == ""


def test_the_same_before_torchrun(tmp_path: Path) -> None:
    """Where the package is not beside torch: the command that meets as the agents would."""
    from preflight.joint.cluster import TOOL

    policy = tmp_path / "policy.toml"
    policy.write_text('warning = ["error"]\n')
    with cluster(tmp_path, 3) as made:
        run("ip", "-n", made.space(3), "link", "set", "eth0", "mtu", "1300")
        words = [
            str(TOOL),
            "preflight",
            "--policy",
            str(policy),
            "--nnodes",
            "2:3",
            "--rdzv-endpoint",
            "n1:29400",
            "--rdzv-id",
            "7",
        ]
        found = ran(made, dict.fromkeys((1, 2, 3), words), tmp_path)
    assert [found[number].status for number in (1, 2, 3)] == [0, 0, 1], found
    assert all("n3 [network] mtu-differs-between-nodes" in agent.out for agent in found.values()), found


def test_what_is_asked_wrongly_is_said(tmp_path: Path) -> None:
    from preflight.joint.cluster import TOOL

    for words in (
        ["--rdzv-endpoint", "n1"],
        ["--rdzv-endpoint", "n1:x", "--nnodes", "2"],
        ["--nnodes", "3:2"],
        ["--nnodes", "0"],
    ):
        done = subprocess.run([str(TOOL), "preflight", *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2, (words, done.stderr)
