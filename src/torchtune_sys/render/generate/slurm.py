"""The hooks of Slurm that judge a node, and the lines of slurm.conf that they need."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence

from torchtune_sys import __version__
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.patterns import pattern
from torchtune_sys.render.layout import clean

PASSES = 2
"""After so many checks in a row that find it well a node is taken back."""
_GRACE_S = 3
"""What the tool gets beyond its budget before it is ended."""
_VERDICT_S = 6
"""What the verdict of all nodes may take beyond the budget."""
_KILLED_S = 15
"""What a check takes at most beyond its budget before it is ended, what is logged among it: a Prolog that slurmd ends drains its node."""
_DRAINING_S = 30
"""What Slurm's commands may take after that, where it answers late."""
_PATIENCE_S, _PATIENCE_IN_HEALTH_CHECK_S = 10, 4
"""What each of Slurm's commands gets before it is ended; 3 s more pass at most until that is done."""
HEALTH_CHECK_AT_MOST_S = 30.0
"""slurmd ends a HealthCheckProgram after 60 s (slurm.conf(5)). To drain takes four of Slurm's commands and a second, 30 s at most."""
SETTINGS: Mapping[str, tuple[str, str]] = {
    "Prolog": ("/etc/slurm/prolog.d/50-torchtune-sys.sh", "judges the node before a job's first step"),
    "PrologFlags": ("Alloc", "when the job gets the node, not when its first step starts"),
    "Epilog": ("/etc/slurm/epilog.d/50-torchtune-sys.sh", "logs what a job left behind"),
    "TaskProlog": ("/etc/slurm/torchtune-sys-task-prolog.sh", "environment and placement of each task"),
    "PrologEpilogTimeout": (
        "{timeout}",
        "more than a check takes: slurmd drains the node of one that it ends; 65534 s by default, for which a hung Prolog would block it",
    ),
    "SchedulerParameters": ("nohold_on_prolog_fail", "else a batch job whose Prolog failed is held, and never started again"),
    "HealthCheckProgram": ("/etc/slurm/torchtune-sys-health-check.sh", "judges idle nodes, and takes back what it drained"),
    "HealthCheckInterval": ("300", "seconds"),
    "HealthCheckNodeState": ("IDLE,CYCLE", "not beside a job; spread over the interval"),
}
"""What each line of slurm.conf is for (slurm.conf(5))."""
_LISTS = ("SchedulerParameters", "PrologFlags")
_PROGRAMS = ("Prolog", "Epilog", "TaskProlog", "HealthCheckProgram")


def script(
    name: str,
    tool: str,
    budget_s: float,
    options: Sequence[str],
    drain: tuple[int, int] | None = None,
    folder: str = "",
    isolate_s: float = 0.0,
) -> str:
    """Return the script of ``prolog``, ``epilog``, ``health-check``, ``task-prolog`` or ``batch``. ``options`` go to ``preflight`` as they are;
    ``drain``: how many nodes within how many seconds, where Slurm itself is asked, None where the check counts; ``folder``: where Slurm's
    commands lie, if it is none of the usual places; ``isolate_s``: the budget in which ``batch`` isolates bad nodes and links, 0 where it does not."""
    from torchtune_sys.render.templates import environment

    template = environment({"quote": shlex.quote}).get_template(f"slurm/{name}.sh.j2")
    nodes, window_s = drain or (0, 0)
    return template.render(
        version=__version__,
        tool=tool,
        budget=f"{budget_s:g}",
        limit=f"{budget_s + _GRACE_S:g}",
        minutes=int((budget_s + _GRACE_S) // 60) + 1,
        options="".join(f" {shlex.quote(word)}" for word in options),
        passes=PASSES,
        patience=_PATIENCE_IN_HEALTH_CHECK_S if name == "health-check" else _PATIENCE_S,
        late=int(HEALTH_CHECK_AT_MOST_S),
        folder=f"{folder}:" if folder else "",
        limited=drain is None,
        drain_limit=nodes,
        drain_window=window_s,
        isolated=isolate_s > 0,
        isolated_budget=f"{isolate_s:g}",
        isolated_limit=f"{isolate_s + _GRACE_S + _VERDICT_S:g}",
        isolated_minutes=int((isolate_s + _GRACE_S + _VERDICT_S) // 60) + 1,
    )


def conf(running: Mapping[str, str] | None, budget_s: float) -> str:
    """Return the lines of slurm.conf for scripts of this budget; ``running`` is what ``scontrol show config`` says, None where it could not be asked."""
    least = math.ceil(budget_s) + _KILLED_S
    rows = [f"# Made by torchtune-sys {__version__} generate slurm conf; tried with Slurm 22.05."]
    if running is None:
        rows.append("# scontrol did not answer: not compared with a running configuration.")
    for key, (value, why) in SETTINGS.items():
        wanted = value.format(timeout=least + _DRAINING_S)
        rows += _lines(key, wanted, why, None if running is None else clean(running.get(key, "(null)")), least)
    return "".join(f"{row}\n" for row in rows)


def _lines(key: str, value: str, why: str, now: str | None, least_s: int) -> list[str]:
    if now is None:
        return [f"# {why}", f"{key}={value}"]
    if set(value.split(",")) <= set(now.split(",")) or _is_long_enough(key, now, least_s):
        return [f"# {key}={now} is set already: {why}"]
    if key in _PROGRAMS and now != "(null)":
        others = "call ours from it" if key in ("TaskProlog", "HealthCheckProgram") else f"set {key}=DIR/* and put both into DIR"
        return [f"# {why}; now {now}: {others}", f"#{key}={value}"]
    kept = f"{now}," if key in _LISTS and _FLAGS.fullmatch(now) else ""
    return [f"# {why}; now {now}", f"{key}={kept}{value}"]


_FLAGS = pattern(r"[A-Za-z0-9_-]+(?:,[A-Za-z0-9_-]+)*")
"""One line of slurm.conf may hold several parameters."""


def _is_long_enough(key: str, now: str, least_s: int) -> bool:
    """``60 sec``, as scontrol words it, lies between what a check takes and what is sensible."""
    number = natural(now.split(" ")[0])
    least, most = {"PrologEpilogTimeout": (least_s, 600), "HealthCheckInterval": (60, 3600)}.get(key, (1, 0))
    return number is not None and least <= number <= most


def parse_config(text: str) -> dict[str, str]:
    """Return what ``scontrol show config`` prints, by name.

    >>> parse_config("Configuration data as of 2026\\nPrologFlags             = Alloc,Contain\\nProlog = (null)\\n")
    {'PrologFlags': 'Alloc,Contain', 'Prolog': '(null)'}
    """
    rows = (line.partition(" = ") for line in text.split("\n") if " = " in line)
    return {key.strip(): value.strip() for key, _, value in rows}
