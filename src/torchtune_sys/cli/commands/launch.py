"""``torchtune-sys launch``: binds this process, then becomes the program."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.terminal import tell
from torchtune_sys.errors import UserError
from torchtune_sys.host.isolation import session

if TYPE_CHECKING:
    from torchtune_sys.model.launchers import LocalRank
    from torchtune_sys.model.placement import RankPlacement

UNBOUND, NOT_STARTED, NOT_FOUND = 125, 126, 127
"""As in env(1) and nohup(1); lower values are the program's own."""
STARTERS = frozenset(("torchrun", "srun", "mpirun", "mpiexec", "prterun", "deepspeed", "accelerate", "horovodrun", "flux"))
STARTER_MODULES = frozenset(("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"))


class CannotStart(UserError):
    """The program could not be started."""

    def __init__(self, seen: str, todo: str, exit_code: int) -> None:
        super().__init__(seen, todo)
        self.exit_code = exit_code


@shared.command(
    "launch",
    context_settings={"allow_interspersed_args": False},
    epilog="""\b
Examples:
  torchrun --no-python --nproc-per-node 8 torchtune-sys launch -- python train.py
  srun --ntasks-per-node 8 --cpu-bind=none torchtune-sys launch -- python train.py
  mpirun -np 8 --bind-to none torchtune-sys launch -- python train.py

\b
torchrun, srun or mpirun starts the ranks. launch runs in each of them: it reads
the local rank, binds the process to the CPUs and memory near the rank's GPU,
sets OMP_NUM_THREADS to the number of cores unless it is set, and replaces
itself with the program (exec). A binding by srun or mpirun is kept. Where
binding is not possible, the program starts unbound, with a warning.

\b
Exit status: that of the program; 125 if the rank cannot be bound (--strict),
126 if the program cannot be started, 127 if it is not found, 2 for a usage
error or no local rank.
""",
)
@click.option(
    "--local-rank", type=click.IntRange(min=0), metavar="N", help="Local rank. [LOCAL_RANK, or what mpirun or srun sets]"
)
@click.option(
    "--nproc-per-node", "ranks", type=click.IntRange(1, 1_000_000), metavar="N", help="Ranks on this host. [from the job]"
)
@click.option("--one-thread-per-core", is_flag=True, help="Use only each core's first hardware thread.")
@click.option("--memory/--no-memory", default=True, help="Also set a memory policy (default), or not.")
@click.option("--strict", is_flag=True, help="Exit with 125 if the rank cannot be bound.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing if all is well.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def command(**options: Any) -> int:
    """Bind one rank to the CPUs and memory near its GPU, then exec PROGRAM."""
    env, program = session(), options["program"]
    _refuse_starters(program)
    who = _rank(options, env)
    _bind_or_say(options, who, env)
    return _become(program, env)


def _refuse_starters(program: tuple[str, ...]) -> None:
    """Refuse launchers: once bound, they would give the CPUs of one rank to all ranks that they start."""
    name = program[0].rpartition("/")[2]
    rest = program[1:]
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        rest = rest[1:]
    module = rest[1] if len(rest) > 1 and rest[0] == "-m" else ""
    if name in STARTERS or (name.startswith("python") and module in STARTER_MODULES):
        started = module if name.startswith("python") else name
        raise UserError(
            f"{started} starts ranks: launch is for one rank", f"{started} … torchtune-sys launch -- python train.py …"
        )


def _rank(options: Mapping[str, Any], env: Mapping[str, str]) -> LocalRank:
    from torchtune_sys.model.launchers import LocalRank, launcher_of, local_rank

    found = local_rank(env)
    if options["local_rank"] is not None:
        ranks = options["ranks"] or (found.ranks if found is not None else None)
        return LocalRank(rank=options["local_rank"], ranks=ranks, source="--local-rank")
    if found is None and launcher_of(env):
        raise UserError(
            f"{launcher_of(env)}={env[launcher_of(env)]} is not a local rank",
            "it must be a number from 0 on; or give --local-rank",
        )
    if found is None:
        raise UserError(
            "no local rank in the environment (LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_RANK, SLURM_LOCALID …)",
            "start it by torchrun, srun or mpirun, or give --local-rank",
        )
    return LocalRank(rank=found.rank, ranks=options["ranks"] or found.ranks, source=found.source)


def _bind_or_say(options: Mapping[str, Any], who: LocalRank, env: dict[str, str]) -> None:
    """Bind the process, or report why not. A failure here, even our own bug, costs only speed; not starting would cost the job."""
    from torchtune_sys.cli.placing import placement_of_this_rank

    try:
        bound = _bound_already(who, env)
        seat, refused = placement_of_this_rank(
            who.rank, who.ranks, bound=bound, one_thread_per_core=options["one_thread_per_core"]
        )
        bound_to, failed = _bind(seat, memory=options["memory"])
        refused = (failed or refused) if options["memory"] else ""
    except Exception as error:
        words = error.seen if isinstance(error, UserError) else str(getattr(error, "strerror", "") or repr(error))
        if options["strict"]:
            raise CannotStart(f"local rank {who.rank} could not be bound: {words}", getattr(error, "todo", ""), UNBOUND) from None
        tell(f"torchtune-sys: local rank {who.rank} starts unbound: {words}")
        return
    if refused and options["strict"]:
        raise CannotStart(f"local rank {who.rank}: {refused}", "--no-memory does without", UNBOUND)
    _choose_threads(seat, env)
    bound_to += "; already bound by what started it" if bound else ""
    if not options["quiet"] or refused or seat.notes:
        tell(f"torchtune-sys: local rank {who.rank}: {'; '.join(filter(None, (bound_to, refused, *seat.notes)))}")


def _bound_already(who: LocalRank, env: Mapping[str, str]) -> bool:
    """Return whether this process is already bound to CPUs of its own: its parent may use more of them, or Slurm says so."""
    from torchtune_sys.host.bind import affinity, starter_affinity
    from torchtune_sys.model.launchers import slurm_binds_each

    if who.source == "SLURM_LOCALID" and slurm_binds_each(env):
        return True
    starter = starter_affinity()
    return starter is not None and affinity() < starter


def _bind(seat: RankPlacement, *, memory: bool) -> tuple[str, str]:
    """Return what was done, and what was refused. Raises OSError where not even the CPUs could be set."""
    from torchtune_sys.host import bind
    from torchtune_sys.render.generate.placement import about

    bind.set_affinity(seat.cpus)
    bound_to, refused = f"CPUs {seat.cpus}; {about(seat)}", ""
    if seat.memory and memory and seat.memory_node is not None:
        try:
            bind.set_memory_policy(seat.memory, seat.memory_node)
            bound_to += f"; memory {'of' if seat.memory == 'bind' else 'preferably of'} node {seat.memory_node}"
        except OSError as error:
            refused = f"no memory policy: set_mempolicy is refused here ({error.strerror})"
    return bound_to, refused


def _choose_threads(seat: RankPlacement, env: dict[str, str]) -> None:
    """torchrun sets OMP_NUM_THREADS to 1 for several ranks where nobody chose; that choice is replaced, a person's never.

    Source: torch/distributed/run.py, config_from_args.
    """
    from torchtune_sys.host.bind import starter_was_given

    name = "OMP_NUM_THREADS"
    by_torchrun = env.get(name) == "1" and "TORCHELASTIC_RUN_ID" in env and starter_was_given(name) is False
    if name not in env or by_torchrun:
        env[name] = str(seat.threads)


def _todo(program: str, error: OSError) -> str:
    from torchtune_sys.host.bind import is_there

    if isinstance(error, PermissionError):
        return "it must be a file that may be executed; or name what reads it: python train.py"
    if error.errno == errno.ENOEXEC or (isinstance(error, FileNotFoundError) and is_there(program)):
        return "the file is there: what its first line (#!) names is not, or it has none"
    return "the program must be on PATH or a path" if isinstance(error, FileNotFoundError) else ""


def _become(program: tuple[str, ...], env: dict[str, str]) -> int:
    from torchtune_sys.host.bind import become

    try:
        become(program, env)
    except OSError as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED
        raise CannotStart(f"{program[0]}: {error.strerror}", _todo(program[0], error), code) from None
    except ValueError as error:  # a name with "=" or nothing in it
        raise CannotStart(f"{program[0]}: {error}", "", NOT_STARTED) from None
