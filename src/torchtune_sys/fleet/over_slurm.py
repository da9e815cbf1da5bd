"""Slurm: one step for each host, so that a node that hangs, or died, holds up nobody else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.fleet.collecting import ANSWER_AT_MOST, Answer, shortened
from torchtune_sys.host.base import Output
from torchtune_sys.host.children import process
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

_ASK_S = 30.0
_FULL = ("alloc", "drain", "maint", "reserved")
"""States (sinfo(1)) in which Slurm starts no new job on a node: srun would wait for it."""
_DEAD = ("down", "fail", "power", "unknown", "no_respond", "not_responding", "invalid", "future", "reboot")
_OF_THE_WHOLE_JOB = ("SLURM_GPUS", "SLURM_NTASKS_PER_GPU", "SLURM_NTASKS_PER_TRES", "SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK")
"""What sbatch was asked for and leaves in the environment, where srun takes it for its options: more than a step on one node can have. A step
that asks for no GPUs gets those of the whole job, or of one task, so that it is asked for those of a node."""
_ASLEEP = ("*", "~", "!", "%", "@", "^")
"""What sinfo writes behind the state of a node that does not respond, is switched off, or is about to start again."""


class Slurm:
    """``nodes``: a Slurm node list; empty is the job's own, outside of a job all of the cluster."""

    width = 1

    def __init__(self, nodes: str, environment: Mapping[str, str]) -> None:
        self._nodes = nodes or environment.get("SLURM_JOB_NODELIST", "")
        self._environment = {name: value for name, value in environment.items() if name not in _OF_THE_WHOLE_JOB}
        self._in_a_job = bool(environment.get("SLURM_JOB_ID"))
        here = environment.get("SLURM_GPUS_ON_NODE")
        asked = self._in_a_job and here and len(self._environment) < len(environment)
        self._gpus = (f"--gpus-per-node={here}",) if asked else ()

    def hosts(self) -> tuple[Sequence[str], Sequence[Answer]]:
        where = (f"--nodes={self._nodes}",) if self._nodes else ()
        argv = ("sinfo", "--noheader", "--Node", "--format=%N|%T|%E", *where)
        found = process.run(argv, timeout_s=_ASK_S, env=self._environment)
        if isinstance(found, Missing) or found.rc:
            raise UnreadableInput(f"Slurm could not list its nodes: {_said(found)}", "run it where sinfo works")
        states: dict[str, tuple[str, str]] = {}
        for row in found.stdout.split("\n"):  # a reason may hold other signs that splitlines() takes for the end of a line
            name, state, reason = (*row.split("|", 2), "", "")[:3]
            if name.strip():
                states[name.strip()] = (state.strip(), reason.strip())
        if not states:
            raise UnreadableInput(f"Slurm knows no node {self._nodes}", "give nodes of this cluster")
        refused = {name: self._why_not(*state) for name, state in states.items()}
        return [name for name, why in refused.items() if not why], [
            Answer(host=name, why=why) for name, why in refused.items() if why
        ]

    def _why_not(self, state: str, reason: str) -> str:
        """Return why no step is started on a node; "" where one is. Nodes of the own job take steps even while they drain."""
        dead = state.endswith(_ASLEEP) or state.startswith(_DEAD)
        full = state.startswith(_FULL) and not self._in_a_job and not self._environment.get("SLURM_RESERVATION")
        if not dead and not full:
            return ""
        why = f"Slurm calls it {state}" + (f": {reason}" if reason not in ("", "none") else "")
        return why if dead else f"{why}; no job can start there now (without --slurm, --nodes asks it by ssh)"

    def run(self, hosts: Sequence[str], command: tuple[str, ...], timeout_s: float) -> Iterable[Answer]:
        host = hosts[0]
        # Without a job, srun would wait for a busy node; in one, the step shares what the job's other steps have.
        how = ("--overlap",) if self._in_a_job else (f"--immediate={max(int(timeout_s), 1)}",)
        argv = ("srun", "--quiet", "--nodes=1", "--ntasks=1", f"--nodelist={host}", "--input=none", *how, *self._gpus, *command)
        unfinished: list[str] = []
        found = process.run(argv, timeout_s=timeout_s, env=self._environment, unfinished=unfinished, at_most=ANSWER_AT_MOST)
        if isinstance(found, Missing):
            why = f"no answer within {timeout_s:g} s" if found.why is Why.TIMEOUT else str(found)
            return [Answer(host=host, out="".join(unfinished), why=why)]
        return [Answer(host=host, out=found.stdout, error=found.stderr, status=found.rc)]


def _said(found: Fact[Output]) -> str:
    return str(found) if isinstance(found, Missing) else shortened((found.stderr or found.stdout).strip().rpartition("\n")[2])
