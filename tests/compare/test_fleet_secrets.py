"""Secrets through real transports: what hosts, shells and Ansible say of a failure is in no answer that is kept or shown."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import slurm_of_many
import ssh_here
from controller import installed, program, surroundings

import warm
from conftest import load
from planted_secrets import Secrets
from torchtune_sys.fleet import collecting, facts_file

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
    """Fails with secrets on stderr, prints them in the place of facts, or is asked where they stand in variables: two hundred in all."""
    (folder / "last").write_text(f"ssh: cannot log in with {secrets.token()} {secrets.password()}\n")
    environment = " ".join(f"NCCL_X{number}='{secrets.token()}'" for number in range(40))
    with (folder / "quiet").open("w") as said:
        while len(secrets.planted) < 200:
            said.write(" ".join([*secrets.of_each(), secrets.password()]) + "\n")
    tool = folder / "tool"
    tool.write_text(SAYING.format(quiet=folder / "quiet", last=folder / "last", environment=environment, python=sys.executable))
    tool.chmod(0o755)
    return tool


def _start(folder: Path, tool: Path, variable: str) -> Path:
    """The same, told by a variable which host it is."""
    start = folder / "start"
    start.write_text(f"#!/bin/sh\nexec {tool} ${variable}\n")
    start.chmod(0o755)
    return start


def _leaks(folder: Path, secrets: Secrets, argv: list[str], environment: dict[str, str], dead: Sequence[str] = ()) -> list[str]:
    assert len(secrets.planted) >= 200
    done = subprocess.run([*warm.PROGRAM, "fleet", *argv], env=environment, capture_output=True, text=True, timeout=600)
    kept = (folder / "kept.jsonl").read_text()
    answers = {line["host"]: line for line in map(json.loads, kept.splitlines())}
    assert answers.keys() == {*HOSTS, *dead}, done.stderr
    assert "document" in answers["a4"] and all("why" in answers[host] for host in (*HOSTS[:3], *dead)), answers
    assert "hidden-by-torchtune-sys" in kept
    return [secret for text in (kept, done.stdout, done.stderr) for secret in secrets.pieces_in(text)]


@pytest.mark.skipif(not (shutil.which("clush") and shutil.which("nodeset")), reason="no ClusterShell")
def test_clush_keeps_no_secrets(tmp_path: Path) -> None:
    """Its worker exec starts the command here, once for each host, in the place of ssh."""
    secrets = Secrets()
    tool = _tool(tmp_path, secrets)
    (tmp_path / "defaults.conf").write_text("[task.default]\ndistant_workername: exec\n")
    environment = {**os.environ, "CLUSTERSHELL_CFGDIR": str(tmp_path)}
    argv = ["--nodes", "a[1-4]", "--save", str(tmp_path / "kept.jsonl"), "--", str(tool), "%h"]
    assert _leaks(tmp_path, secrets, argv, environment) == []


@pytest.mark.parametrize("form", ["snapshot/2", "facts/1", "report/1"])
def test_what_claims_to_be_a_document_of_ours_is_filtered(form: str) -> None:
    """fleet keeps what any command prints: that its schema is ours says nothing of who made it."""
    secrets = Secrets()
    told: dict[str, object] = {
        "schema": f"torchtune-sys/{form}",
        "epoch_s": 1.0,
        "password": secrets.password(),
        "safe": ["eth0", 7, None],
    }
    told["facts"] = {"session": {"env": {"NCCL_X": secrets.token(), "DB_PASSWORD": "hunter2-of-joe"}}, secrets.token(): "x"}
    while len(secrets.planted) < 200:
        told[f"said{len(told)}"] = [*secrets.of_each(), secrets.password()]
    kept = collecting.line(collecting.Answer(host="n1", out=f"motd\n{json.dumps(told)}\n", status=0))
    text = json.dumps(kept)
    assert secrets.pieces_in(text) == [] and "hunter2" not in text
    assert kept["document"]["safe"] == ["eth0", 7, None] and kept["document"]["schema"] == told["schema"]


def test_what_the_tool_wrote_is_kept_as_it_is() -> None:
    told = facts_file.document(load("healthy"), version="1", volatile={"epoch_s": 1})
    assert collecting.line(collecting.Answer(host="n1", out=told))["document"] == json.loads(told)


def test_a_document_of_somebody_else_s_is_no_answer() -> None:
    kept = collecting.line(collecting.Answer(host="n1", out='{"schema": "other/1", "password": "hunter2-of-joe"}', status=0))
    assert "document" not in kept and "hunter2" not in json.dumps(kept)


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[tuple[Path, Secrets]]:
    """A server that says secrets before the login."""
    secrets = Secrets()
    (tmp_path / "ssh").mkdir()
    try:
        with ssh_here.server(tmp_path / "ssh", f"use {secrets.token()} or {secrets.password()}\n", HOSTS) as conf:
            yield conf, secrets
    except ssh_here.Unavailable as why:
        pytest.skip(f"sshd: {why}")


@pytest.mark.skipif(not (shutil.which("clush") and shutil.which("nodeset")), reason="no ClusterShell")
def test_ssh_keeps_no_secrets(tmp_path: Path, ssh: tuple[Path, Secrets]) -> None:
    """ClusterShell with its own worker."""
    conf, secrets = ssh
    tool = _tool(tmp_path, secrets)
    (tmp_path / "clush.conf").write_text(f"[Main]\nssh_options: -F {conf} -o LogLevel=INFO\n")
    environment = {**os.environ, "CLUSTERSHELL_CFGDIR": str(tmp_path)}
    start = _start(tmp_path, tool, "LC_NODE")
    argv = ["--nodes", "a[1-4]", "--save", str(tmp_path / "kept.jsonl"), "--", str(start)]
    assert _leaks(tmp_path, secrets, argv, environment) == []


def test_srun_keeps_no_secrets(tmp_path: Path) -> None:
    """Also of why a node is down, as somebody wrote it."""
    secrets = Secrets()
    tool = _tool(tmp_path, secrets)
    start = _start(tmp_path, tool, "SLURMD_NODENAME")
    root = tmp_path / "slurm"
    root.mkdir()
    try:
        with slurm_of_many.cluster(root, [*HOSTS, "a5"], ["a5"]) as found:
            environment = {**os.environ, **found}
            why = f"reason=waits for {secrets.token()} {secrets.password()}"
            subprocess.run(["scontrol", "update", "nodename=a5", "state=down", why], env=environment, check=True, timeout=60)
            argv = ["--slurm", "--save", str(tmp_path / "kept.jsonl"), "--", str(start)]
            assert _leaks(tmp_path, secrets, argv, environment, dead=("a5",)) == []
    except slurm_of_many.Unavailable as why_not:
        pytest.skip(str(why_not))


@pytest.mark.long
def test_a_playbook_s_results_hold_no_secrets(tmp_path: Path, ssh: tuple[Path, Secrets]) -> None:
    """The collection's modules over ssh, registered, shown by debug and by ``-v``: a tool that is there, and one that a wrapper spoils."""
    conf, secrets = ssh
    work = tmp_path / "work"
    work.mkdir()
    installed(work)
    tool = _tool(tmp_path, secrets)
    wrappers = []
    for host in ("a1", "a2", "a3"):  # it fails, says something else, or says something before its answer
        wrapper = tmp_path / f"wrapper-{host}"
        before = (
            f"{tool} {host}\n"
            if host != "a3"
            else f'cat {tmp_path}/quiet {tmp_path}/last\nexec {sys.executable} -m torchtune_sys "$@"\n'
        )
        wrapper.write_text(f"#!/bin/sh\n{before}")
        wrapper.chmod(0o755)
        wrappers.append(str(wrapper))
    good = tmp_path / "good"
    environment = " ".join(f"NCCL_X{number}='{secrets.token()}'" for number in range(40))
    good.write_text(f'#!/bin/sh\n{environment} exec {sys.executable} -m torchtune_sys "$@"\n')
    good.chmod(0o755)
    tasks = []
    for number, path in enumerate([str(good), *wrappers]):
        for module in ("facts", "check"):
            name = f"said{number}{module}"
            task = {f"torchtune.sys.torchtune_{module}": {"path": path}, "register": name, "ignore_errors": True}
            tasks += [task, {"ansible.builtin.debug": {"var": name}}]
    (tmp_path / "play.json").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    here = {"ansible_python_interpreter": sys.executable, "ansible_ssh_common_args": f"-F {conf}"}
    (tmp_path / "inventory.json").write_text(json.dumps({"all": {"hosts": {"h1": here}}}))
    argv = [program("ansible-playbook"), "-v", "-i", str(tmp_path / "inventory.json"), str(tmp_path / "play.json")]
    around = {name: value for name, value in surroundings(work).items() if name != "ANSIBLE_SSH_ARGS"}
    done = subprocess.run(argv, env=around, capture_output=True, text=True, timeout=600)
    (tmp_path / "said.txt").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert done.stdout.count("failed=0") == 1 and "hidden-by-torchtune-sys" in done.stdout
    assert secrets.pieces_in(done.stdout + done.stderr) == []


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
