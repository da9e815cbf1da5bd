"""``torchtune-sys launch``: binds this process, then becomes the program."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from torchtune_sys.errors import UserError

if TYPE_CHECKING:
    from torchtune_sys.model.placement import Seat

RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID")


@click.command(
    "launch",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="""\b
Examples:
  torchrun --no-python --nproc-per-node 8 torchtune-sys launch -- python train.py
  srun --ntasks-per-node 8 torchtune-sys launch -- python train.py
  mpirun -np 8 torchtune-sys launch -- python train.py

\b
It starts no ranks: torchrun, srun or mpirun does. One rank's process reads its
local rank, binds itself to the CPUs and the memory near its GPU, sets
OMP_NUM_THREADS if nobody did, and becomes the program, whose exit status is
then its own. Where binding is not possible the program starts unbound, and
that is said; --strict ends with 1 instead.
""",
)
@click.option("--local-rank", type=click.IntRange(min=0), metavar="N", help=f"[from {', '.join(RANKS[:3])}]")
@click.option("--nproc-per-node", "ranks", type=click.IntRange(min=1), metavar="N", help="Ranks on this host. [from the job]")
@click.option("--one-thread-per-core", is_flag=True, help="Only the first hardware thread of each core.")
@click.option("--memory/--no-memory", default=True, help="Whether to set a memory policy, too.")
@click.option("--strict", is_flag=True, help="End with 1 where the rank cannot be bound.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing where all is well.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def command(**options: Any) -> int:
    """Bind one rank to the CPUs and memory near its GPU, then become PROGRAM."""
    from torchtune_sys.cli.terminal import environment, tell

    env = environment_of_process()
    rank = _rank(options, environment())
    try:
        seat = _seat(options, rank)
        told = _bind(seat, env, memory=options["memory"])
        if not options["quiet"]:
            tell(f"torchtune-sys: local rank {rank}: {told}")
    except (UserError, OSError) as error:
        words = error.seen if isinstance(error, UserError) else error.strerror
        if options["strict"]:
            raise UserError(f"local rank {rank} could not be bound: {words}") from None
        tell(f"torchtune-sys: local rank {rank} starts unbound: {words}")
    return _become(options["program"], env)


def environment_of_process() -> dict[str, str]:
    """All of it: it is handed on, not judged."""
    from torchtune_sys.host.bind import whole_environment

    return whole_environment()


def _rank(options: Mapping[str, Any], env: Mapping[str, str]) -> int:
    if options["local_rank"] is not None:
        return int(options["local_rank"])
    for name in RANKS:
        value = env.get(name, "")
        if value.isascii() and value.isdigit():
            return int(value)
    raise UserError(
        f"no local rank in the environment ({', '.join(RANKS[:3])})",
        "start it by torchrun, srun or mpirun, or give --local-rank",
    )


def _seat(options: Mapping[str, Any], rank: int) -> Seat:
    from torchtune_sys.cli.seated import seated

    wishes = dict.fromkeys(("nodes", "threads", "workers", "python"), None) | {"data": (), "checkpoints": (), "live": False}
    asked = {**wishes, "ranks": options["ranks"], "from_": None, "root": None, "timeout": None}
    _, seating = seated(asked, one_thread_per_core=options["one_thread_per_core"])
    if rank >= len(seating.seats):
        raise UserError(f"there are seats for {len(seating.seats)} ranks, and this is rank {rank}", "give --nproc-per-node")
    return seating.seats[rank]


def _bind(seat: Seat, env: dict[str, str], *, memory: bool) -> str:
    from torchtune_sys.host import bind
    from torchtune_sys.render.placement import about

    bind.set_affinity(seat.cpus)
    told = f"CPUs {seat.cpus}; {about(seat)}"
    if seat.memory and memory:
        assert seat.memory_node is not None
        try:
            bind.set_memory_policy(seat.memory, seat.memory_node)
            told += f"; memory {'bound to' if seat.memory == 'bind' else 'preferred of'} node {seat.memory_node}"
        except OSError as error:
            told += f"; no memory policy ({error.strerror})"
    env.setdefault("OMP_NUM_THREADS", str(max(len(seat.cpus) // 2, 1)))
    return told


def _become(program: tuple[str, ...], env: dict[str, str]) -> int:
    try:
        os.execvpe(program[0], program, env)
    except OSError as error:
        raise UserError(f"{program[0]}: {error.strerror}", "the program must be on PATH or a path") from None
