"""Agents of torchrun with a secret meet while somebody attacks: no healthy node is told not to start, and nobody is waited for without end."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from preflight.joint import attackers
from preflight.joint.agents_here import Agent, ran
from preflight.joint.cluster import TOOL, cluster
from torchtune_sys.preflight.joint import agents

pytestmark = pytest.mark.long
PORT = 29400


def met(folder: Path, attack: str, where: int, *, meet_s: float = 10.0) -> tuple[dict[int, Agent], int]:
    """How both agents end, the second two seconds late, while a host attacks; and how many files the first one's process had open at most."""
    policy, secret = folder / "policy.toml", folder / "secret"
    policy.write_text('warning = ["error"]\n')
    secret.write_text("hush")
    secret.chmod(0o600)
    words = [str(TOOL), "preflight", "--policy", str(policy), "--nnodes", "2:2", "--rdzv-endpoint", f"n1:{PORT}", "--rdzv-id", "7",
             "--meet-within", str(meet_s), "--secret-file", str(secret)]  # fmt: skip
    with cluster(folder, 3) as made:
        command = made.argv(where, [sys.executable, attackers.__file__, attack, made.address(1), str(PORT)])
        attacker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        made.stack.callback(attacker.wait)
        made.stack.callback(attacker.kill)
        assert attacker.stdout is not None
        made.stack.callback(attacker.stdout.close)
        assert attacker.stdout.readline() == "ready\n"
        began_s, most = time.monotonic(), 0

        def is_late() -> bool:
            nonlocal most
            counted = subprocess.run(made.argv(1, ["ss", "-Htn", f"sport = :{PORT}"]), capture_output=True, text=True)
            most = max(most, counted.stdout.count("ESTAB"))
            return time.monotonic() > began_s + 2

        return ran(made, dict.fromkeys((1, 2), words), folder, after={2: is_late}), most


def test_a_stranger_who_says_that_it_went_on_ends_no_meeting(tmp_path: Path) -> None:
    """Before, the first agent went on with a stranger in the place of the second, which was then told that nobody had come; then both could not tell."""
    found, held = met(tmp_path, "passing", 3)
    assert {agent.status for agent in found.values()} == {0}, "all agents came: whoever else speaks there is none"
    assert all("is not one of the agents" in " ".join(agent.out.split()) for agent in found.values()), found
    assert all("n1, n2" in agent.out for agent in found.values()), "both are in one verdict"
    assert not [agent for agent in found.values() if "NO-GO" in agent.out], found
    assert held < agents._CONNECTIONS + 100, "all that are opened are held without a limit"


@pytest.mark.parametrize("attack", ["squat", "older"])
def test_who_listens_where_agents_would_meet_stops_no_job(tmp_path: Path, attack: str) -> None:
    """Before, the first agent was told that the second had not come, and must not start."""
    found, _ = met(tmp_path, attack, 1)
    assert not [agent for agent in found.values() if "NO-GO" in agent.out or agent.status == 1], found
    assert "other processes are listening where the agents would meet" in " ".join(found[1].out.split())
    assert "no other agent was found" in " ".join(found[2].out.split())


def test_who_holds_the_port_of_the_rendezvous_is_told_by_all(tmp_path: Path) -> None:
    """No job can start there. Before, each agent was judged by itself and waited for two minutes in c10d."""
    found, _ = met(tmp_path, "endpoint", 1)
    assert [agent.status for agent in found.values()] == [1, 1], found
    for agent in found.values():
        assert (
            "n1 [user] master-port-in-use: a program of uid 0 that is not torchrun's rendezvous is listening on port 29400"
            in " ".join(agent.out.split())
        ), found


def test_noise_costs_no_healthy_node_its_job(tmp_path: Path) -> None:
    found, _ = met(tmp_path, "noise", 3)
    assert not [agent for agent in found.values() if "NO-GO" in agent.out], found
    assert all(agent.seconds < 60 for agent in found.values())
