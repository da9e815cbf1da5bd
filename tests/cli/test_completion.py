"""What bash, zsh and fish complete, each asked itself."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from driven import environment, run

from torchtune_sys.rules import CATALOGUE

ROWS = [
    ("torchtune-sys chec", "check"),
    (f"torchtune-sys explain {CATALOGUE[0].id[:-2]}", CATALOGUE[0].id),
    ("torchtune-sys check --profile clu", "cluster"),
    ("torchtune-sys check --select memory,sysctl-l", "memory,sysctl-lost-at-reboot"),
    ("torchtune-sys apply --only thp-never,swappiness-h", "thp-never,swappiness-high"),
    ("torchtune-sys check --from a-reco", "a-recording.json"),
]
PATIENCE_S = 60


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory with the command in ``bin`` and a file to be named."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin/torchtune-sys"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m torchtune_sys "$@"\n')
    command.chmod(0o755)
    (tmp_path / "a-recording.json").touch()
    return tmp_path


def surroundings(shell: str, home: Path) -> dict[str, str]:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    return {**environment(None), "PATH": f"{home / 'bin'}:{os.environ['PATH']}", "HOME": str(home), "TERM": "dumb", "PS1": "> "}


@pytest.mark.parametrize(("words", "expected"), ROWS)
def test_fish_completes(words: str, expected: str, home: Path) -> None:
    env = surroundings("fish", home)
    (home / "completion.fish").write_text(run("completion", "fish").stdout)
    asked = ["fish", "--no-config", "-c", f"source completion.fish; complete -C '{words}'"]
    told = subprocess.run(asked, env=env, cwd=home, capture_output=True, text=True, timeout=PATIENCE_S)
    assert [line.partition("\t")[0] for line in told.stdout.splitlines()] == [expected], told


def test_fish_shows_a_description_to_its_end(home: Path) -> None:
    env = surroundings("fish", home)
    (home / "completion.fish").write_text(run("completion", "fish").stdout)
    asked = ["fish", "--no-config", "-c", "source completion.fish; complete -C 'torchtune-sys check --'"]
    told = subprocess.run(asked, env=env, cwd=home, capture_output=True, text=True, timeout=PATIENCE_S).stdout
    assert "," in told


@pytest.mark.parametrize(("words", "expected"), ROWS)
def test_bash_completes(words: str, expected: str, home: Path) -> None:
    env = surroundings("bash", home)
    count = len(words.split())
    script = f"""
    eval "$(torchtune-sys completion bash)"
    function=$(complete -p torchtune-sys | sed 's/.*-F \\([^ ]*\\).*/\\1/')
    COMP_WORDS=({words}) COMP_CWORD={count - 1}
    "$function" torchtune-sys {words.split()[-1]} {words.split()[-2]}
    if [ ${{#COMPREPLY[@]}} -gt 0 ]; then printf '%s\\n' "${{COMPREPLY[@]}}"; else compgen -f {words.split()[-1]}; fi
    """
    told = subprocess.run(["bash", "--norc", "-c", script], env=env, cwd=home, capture_output=True, text=True, timeout=PATIENCE_S)
    assert told.stdout.split() == [expected], told


@pytest.mark.sampled(3, 4)
@pytest.mark.parametrize(("words", "expected"), ROWS)
def test_zsh_completes(words: str, expected: str, home: Path) -> None:
    """At a terminal, by the key: zsh completes nowhere else."""
    env = surroundings("zsh", home)
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(home)
        os.execvpe("zsh", ["zsh", "-f", "-i"], env)
    try:
        os.write(terminal, b'autoload -Uz compinit; compinit -u; eval "$(torchtune-sys completion zsh)"; echo re"ady"\n')
        assert _read_until(terminal, b"ready\r\n") is not None
        os.write(terminal, words.encode() + b"\t")
        wanted = " ".join([*words.split()[:-1], expected]).encode() + b" "
        assert _read_until(terminal, wanted) is not None
    finally:
        os.kill(child, 9)
        os.close(terminal)
        os.waitpid(child, 0)


def _read_until(terminal: int, end: bytes) -> bytes | None:
    seen, until = b"", time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 65536)
        if end in seen:
            return seen
    return None
