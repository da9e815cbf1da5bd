"""Seats of ranks as commands, as a wrapper script, and as a table."""

from __future__ import annotations

import shlex

from torchtune_sys.model.launchers import STARTERS
from torchtune_sys.model.placement import Placement, RankPlacement
from torchtune_sys.render import layout
from torchtune_sys.render.layout import Style, clean, line

_MEMORY = {"bind": "--membind", "prefer": "--preferred"}


def command(seat: RankPlacement) -> tuple[str, ...]:
    """Return ``numactl`` with the seat's CPUs and memory; what is started follows.

    >>> from torchtune_sys.model.cpuset import CpuSet
    >>> seat = RankPlacement(rank=0, gpu="", gpu_index=None, node=0, cpus=CpuSet((0, 1)), memory="bind", memory_node=0, nic="")
    >>> command(seat)
    ('numactl', '--physcpubind=0-1', '--membind=0')
    """
    memory = (f"{_MEMORY[seat.memory]}={seat.memory_node}",) if seat.memory else ()
    return ("numactl", f"--physcpubind={seat.cpus}", *memory)


def about(seat: RankPlacement) -> str:
    """Return the GPU, its node and its network card, in words."""
    gpu = f"GPU {seat.gpu_index} ({seat.gpu})" if seat.gpu else "no GPU" if seat.gpu_index is None else f"GPU {seat.gpu_index}"
    node = "" if seat.node is None else f", node {seat.node}"
    return f"{gpu}{node}{', ' + seat.nic if seat.nic else ''}"


def commands(placement: Placement, argv: tuple[str, ...]) -> str:
    """Return one command line per rank, each below a comment that says why."""
    rows = [f"# {clean(note)}" for note in placement.notes]
    for seat in placement.seats:
        rows += [f"# local rank {seat.rank}: {clean(about(seat))}", *(f"# {clean(note)}" for note in seat.notes)]
        rows.append(f"LOCAL_RANK={seat.rank} {shlex.join((*command(seat), *(argv or ('python', 'train.py'))))}")
    return "\n".join(rows) + "\n"


def wrapper(placement: Placement, host: str) -> str:
    """Return a script that torchrun or srun starts in the place of the program."""
    from torchtune_sys.render.templates import environment

    template = environment({"quote": shlex.quote, "comment": clean}).get_template("placement/wrapper.sh.j2")
    seats = [{"rank": seat.rank, "command": command(seat), "about": about(seat)} for seat in placement.seats]
    return template.render(host=host or "this host", seats=seats, ranks=[name for name, _ in STARTERS])


def table(placement: Placement, style: Style, beside: str) -> str:
    lines = [line((f"{len(placement.seats)} local {'rank' if len(placement.seats) == 1 else 'ranks'}", "bold"))]
    for seat in placement.seats:
        memory = f", memory {'of' if seat.memory == 'bind' else 'preferably of'} node {seat.memory_node}" if seat.memory else ""
        lines.append(line(f"CPUs {seat.cpus}{memory}; {about(seat)}", label=(f"rank {seat.rank}", "bold"), hang=9))
        lines += [line((note, "warning"), indent=9) for note in seat.notes]
    lines += [line((note, "warning")) for note in placement.notes]
    if beside:
        lines += [line(), line(beside, label=("torchrun ", "bold"), hang=9)]
    return layout.render(lines, style)
