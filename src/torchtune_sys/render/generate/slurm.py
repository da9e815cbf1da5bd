"""The hooks of Slurm that judge a node, and the lines of slurm.conf that they need."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from torchtune_sys import __version__
from torchtune_sys.render.layout import clean

PASSES = 2
"""After so many checks in a row that find it well a node is taken back."""
_GRACE_S = 3
"""What the tool gets beyond its budget before it is ended."""
SETTINGS: Mapping[str, tuple[str, str]] = {
    "Prolog": ("/etc/slurm/prolog.d/50-torchtune-sys.sh", "judges the node before a job's first step"),
    "PrologFlags": ("Alloc", "when the job gets the node, not when its first step starts"),
    "PrologEpilogTimeout": ("60", "65534 s where nobody sets it: a hung Prolog would keep the node that long"),
    "SchedulerParameters": ("nohold_on_prolog_fail", "else a batch job whose Prolog failed is held, and never started again"),
    "HealthCheckProgram": ("/etc/slurm/torchtune-sys-health-check.sh", "judges idle nodes, and takes back what it drained"),
    "HealthCheckInterval": ("300", "seconds"),
    "HealthCheckNodeState": ("IDLE,CYCLE", "not beside a job; spread over the interval"),
}
"""What each line of slurm.conf is for (slurm.conf(5))."""


def hook(name: str, tool: str, budget_s: float, options: Sequence[str]) -> str:
    """The script of ``prolog`` or ``health-check``. ``options`` go to ``preflight`` as they are."""
    from torchtune_sys.render.templates import environment

    template = environment({"quote": shlex.quote}).get_template(f"slurm/{name}.sh.j2")
    return template.render(
        version=__version__,
        tool=tool,
        budget=f"{budget_s:g}",
        limit=f"{budget_s + _GRACE_S:g}",
        options="".join(f" {shlex.quote(word)}" for word in options),
        passes=PASSES,
    )


def conf(running: Mapping[str, str] | None) -> str:
    """The lines of slurm.conf; ``running`` is what ``scontrol show config`` says, None where it could not be asked."""
    rows = [f"# Made by torchtune-sys {__version__} generate slurm conf; tried with Slurm 22.05."]
    if running is None:
        rows.append("# scontrol did not answer: not compared with a running configuration.")
    for key, (value, why) in SETTINGS.items():
        now = "" if running is None else running.get(key, "(null)")
        if running is not None and set(value.split(",")) <= set(now.split(",")):
            rows.append(f"# {key}={clean(now)} is set already: {why}")
            continue
        kept = f"{clean(now)}," if key in ("SchedulerParameters", "PrologFlags") and now not in ("", "(null)") else ""
        seen = f"; now {clean(now)}" if running is not None else ""
        rows += [f"# {why}{seen}", f"{key}={kept}{value}"]
    return "".join(f"{row}\n" for row in rows)


def parse_config(text: str) -> dict[str, str]:
    """What ``scontrol show config`` prints, by name.

    >>> parse_config("Configuration data as of 2026\\nPrologFlags             = Alloc,Contain\\nProlog = (null)\\n")
    {'PrologFlags': 'Alloc,Contain', 'Prolog': '(null)'}
    """
    rows = (line.partition(" = ") for line in text.splitlines() if " = " in line)
    return {key.strip(): value.strip() for key, _, value in rows}
