"""Secrets through real transports: what hosts, shells and Ansible say of a failure is in no answer that is kept or shown."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from controller import program, surroundings
from planted_secrets import Secrets

import warm

SAYING = """#!/bin/sh
case $1 in
a1) cat {quiet} >&2; exit 3;;
a2) cat {quiet};;
a3) cat {last} >&2; exit 1;;
*) {environment} {python} -m torchtune_sys snapshot --compact;;
esac
"""
HOSTS = ("a1", "a2", "a3", "a4")


def _tool(folder: Path, secrets: Secrets) -> Path:
    """Fails with secrets on stderr, prints them in the place of facts, or is asked where they stand in variables."""
    (folder / "quiet").write_text("\n".join([*secrets.of_each(), secrets.password()]) + "\n")
    (folder / "last").write_text(f"ssh: cannot log in with {secrets.token()} {secrets.password()}\n")
    environment = " ".join(f"NCCL_X{number}='{secrets.token()}'" for number in range(8))
    tool = folder / "tool"
    tool.write_text(SAYING.format(quiet=folder / "quiet", last=folder / "last", environment=environment, python=sys.executable))
    tool.chmod(0o755)
    return tool


def _leaks(folder: Path, secrets: Secrets, argv: list[str], environment: dict[str, str]) -> list[str]:
    done = subprocess.run([*warm.PROGRAM, "fleet", *argv], env=environment, capture_output=True, text=True, timeout=600)
    kept = (folder / "kept.jsonl").read_text()
    answers = {line["host"]: line for line in map(json.loads, kept.splitlines())}
    assert answers.keys() == set(HOSTS), done.stderr
    assert "document" in answers["a4"] and all("why" in answers[host] for host in HOSTS[:3]), answers
    assert "hidden-by-torchtune-sys" in kept
    return [secret for text in (kept, done.stdout, done.stderr) for secret in secrets.seen_in(text)]


@pytest.mark.skipif(not (shutil.which("clush") and shutil.which("nodeset")), reason="no ClusterShell")
def test_clush_keeps_no_secrets(tmp_path: Path) -> None:
    """Its worker exec starts the command here, once for each host, in the place of ssh."""
    secrets = Secrets()
    tool = _tool(tmp_path, secrets)
    (tmp_path / "defaults.conf").write_text("[task.default]\ndistant_workername: exec\n")
    environment = {**os.environ, "CLUSTERSHELL_CFGDIR": str(tmp_path)}
    argv = ["--nodes", "a[1-4]", "--save", str(tmp_path / "kept.jsonl"), "--", str(tool), "%h"]
    assert _leaks(tmp_path, secrets, argv, environment) == []


@pytest.mark.exhaustive
def test_ansible_keeps_no_secrets(tmp_path: Path) -> None:
    secrets = Secrets()
    tool = _tool(tmp_path, secrets)
    work = tmp_path / "work"
    work.mkdir()
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (tmp_path / "inventory.json").write_text(json.dumps({"all": {"hosts": dict.fromkeys(HOSTS, here)}}))
    environment = {name: value for name, value in surroundings(work).items() if "CALLBACK" not in name}
    environment["PATH"] = os.pathsep.join(
        [os.path.dirname(sys.executable), os.path.dirname(program("ansible")), os.environ["PATH"]]
    )
    argv = [
        "--inventory",
        str(tmp_path / "inventory.json"),
        "--save",
        str(tmp_path / "kept.jsonl"),
        "--",
        str(tool),
        "{{ inventory_hostname }}",
    ]
    assert _leaks(tmp_path, secrets, argv, environment) == []
