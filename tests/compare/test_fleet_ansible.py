"""fleet over a real Ansible: an inventory with hosts that answer, one that cannot be reached, one that hangs, one that answers something else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from controller import installed, program, surroundings

import warm
from torchtune_sys.fleet.over_ansible import of_result

HANG = "case $H in hung) sleep 1000;; garbage) echo hello; exit 0;; esac"


def inventory(folder: Path) -> Path:
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    hosts: dict[str, dict[str, str]] = dict.fromkeys(("a1", "a2", "a3", "odd", "hung", "garbage"), here)
    hosts["gone"] = {"ansible_host": "127.0.0.1", "ansible_port": "1", "ansible_ssh_common_args": "-o ConnectTimeout=2"}
    place = folder / "inventory.json"
    place.write_text(json.dumps({"all": {"hosts": hosts}}))
    return place


def fleet(work: Path, folder: Path, *words: str) -> dict[str, Any]:
    around = {name: value for name, value in surroundings(work).items() if "CALLBACK" not in name}
    path = os.pathsep.join([os.path.dirname(sys.executable), os.path.dirname(program("ansible")), os.environ["PATH"]])
    done = subprocess.run(
        [*warm.PROGRAM, "fleet", "--inventory", str(inventory(folder)), "--format", "json", *words],
        env={**around, "PATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.exhaustive
def test_by_a_command_each_host_is_named_with_what_it_answered(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    tool = tmp_path / "tool"
    tool.write_text(
        f"#!/bin/sh\nH=$1; {HANG}; [ $H = odd ] && export NCCL_DEBUG=INFO\n"
        f"exec {sys.executable} -m torchtune_sys snapshot --compact\n"
    )
    tool.chmod(0o755)
    found = fleet(work, tmp_path, "--timeout", "30", "--", str(tool), "{{ inventory_hostname }}")
    assert ("odd", "session.env[NCCL_DEBUG]") in {(item["host"], item["fact"]) for item in found["odd"]}
    why = {item["name"]: item["why"] for item in found["unread"]}
    assert set(why) == {"hung", "garbage", "gone"}
    assert "hello" in why["garbage"] and why["gone"].startswith("unreachable")
    assert found["hosts"] == 4


@pytest.mark.exhaustive
def test_without_a_command_the_collection_is_asked(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    installed(work)
    found = fleet(work, tmp_path, "--nodes", "a1:a2:gone", "--timeout", "60")
    assert found["hosts"] == 2, found
    assert [item["name"] for item in found["unread"]] == ["gone"]


def test_what_a_result_says() -> None:
    assert of_result("h", {"rc": 3, "stderr": "bad", "stdout": "", "failed": True}).status == 3
    assert of_result("h", {"failed": True, "msg": "Timed out after 3 second(s)."}).why == "Timed out after 3 second(s)."
    facts = {"ansible_facts": {"torchtune_sys": {"version": "1", "facts": {"gpu": {}}}}}
    assert json.loads(of_result("h", facts).out)["schema"] == "torchtune-sys/snapshot/1"


def test_each_of_ansible_s_processes_may_use_a_gibibyte_and_a_little_for_each_host(tmp_path: Path) -> None:
    """The answer of a host need not end, and one process holds it: here each host answers with the limit that it was asked under."""
    stub = tmp_path / "ansible"
    stub.write_text(
        '#!/bin/sh\nwhile [ "$1" != --tree ]; do shift; done\n'
        """for host in h1 h2 h3; do printf '{"rc": 0, "stdout": "%s"}' "$(ulimit -d)" >"$2/$host"; done\n"""
    )
    stub.chmod(0o755)
    for start in ("", "ulimit -S -d 1000000;"):  # a limit that is lower already stays
        code = (
            "import os; from torchtune_sys.fleet.over_ansible import Ansible\n"
            "asked = Ansible('x', '', dict(os.environ), 8, own_command=True).run(['h1', 'h2', 'h3'], ('true',), 20)\n"
            "print(*(one.out for one in asked))"
        )
        path = f"{tmp_path}:{os.environ['PATH']}"
        argv = ["sh", "-c", f'{start} exec "$@"', "sh", sys.executable, "-c", code]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd="/", env={**os.environ, "PATH": path})
        wanted = "1000000" if start else str((1 << 20) + 3 * 256)
        assert done.stdout.split() == [wanted] * 3, done
