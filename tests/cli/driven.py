"""The real program as a child process, and the same with a few rules and probes replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import warm

HOSTS = Path(__file__).resolve().parent.parent / "hosts"
PROGRAM = [sys.executable, "-m", "torchtune_sys"]
"""A real start, for what only that shows: its streams, its signals while it begins, its time."""

RULES = '''
import sys
from torchtune_sys import rules
from torchtune_sys.model.rule import Evidence, Param, Rule, Severity
from torchtune_sys.model.values import Missing, Why, need

def made(id, severity, judge, **fields):
    return Rule(id=id, title=f"Title of {id}", severity=severity, judge=judge, family=fields.pop("family", "memory"), doc="", **fields)

def fails(s, p):
    yield Evidence(subject="it", seen="bad", wanted="good", source="/proc/it")

def crashes(s, p):
    yield from fails(s, p)
    raise ValueError("a rule's bug")

def late(s, p):
    need(Missing(Why.TIMEOUT, "nvidia-smi", "no answer within 10 s"))
    yield

def denied(s, p):
    need(Missing(Why.DENIED, "/proc/secret", "permission denied", "run as root"))
    yield

def at_most(s, p):
    if p["limit"] < 10:
        yield Evidence(subject="limit", seen=str(p["limit"]), wanted="10")

def passes(s, p):
    return ()

SEVERITY = {"E": Severity.ERROR, "W": Severity.WARNING, "A": Severity.ADVICE}
KINDS = {"fails": fails, "crashes": crashes, "late": late, "denied": denied, "passes": passes, "at-most": at_most}
LIMIT = {"at-most": (Param("limit", 20, "the limit"),)}

def catalogue(words):
    """``E-fails`` is a rule of severity error that fails, called ``made-e-fails``."""
    return tuple(
        made("made-" + word.lower(), SEVERITY[word[0]], KINDS[word[2:]], params=LIMIT.get(word[2:], ())) for word in words.split()
    )
'''


def run(
    *arguments: str, env: dict[str, str] | None = None, data: str | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*warm.PROGRAM, *arguments], env=environment(env), input=data, capture_output=True, encoding="utf-8", timeout=timeout
    )


def judged_by(words: str, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """``check`` of the smallest recording with only the rules that ``words`` names (see ``RULES``)."""
    code = RULES + f"rules.CATALOGUE = catalogue({words!r})\nfrom torchtune_sys.cli.main import main\nmain()"
    host = str(HOSTS / "base-system.json")
    return subprocess.run(
        [sys.executable, "-c", code, "check", "--from", host, *arguments],
        env=environment(env),
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )


def environment(changes: dict[str, str] | None = None) -> dict[str, str]:
    """This environment without what would colour or steer the program."""
    steering = (
        "NO_COLOR",
        "FORCE_COLOR",
        "TORCHTUNE_SYS_CONFIG",
        "TORCHTUNE_SYS_DEBUG",
        "TORCHTUNE_SYS_CALLED_AS",
        "WORLD_SIZE",
        "OMP_NUM_THREADS",
        "COLUMNS",
    )
    kept = {name: value for name, value in os.environ.items() if name not in steering}
    return {**kept, **(changes or {})}


def shown(leader: int) -> str:
    """All that came to a terminal once nobody writes to it any more; in one piece only where nothing else runs."""
    parts = []
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # EIO: the last writer closed
            break
        if not part:
            break
        parts.append(part)
    os.close(leader)
    return b"".join(parts).decode()
