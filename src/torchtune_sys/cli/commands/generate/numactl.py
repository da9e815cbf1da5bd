"""``torchtune-sys generate numactl``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.terminal import give, style, tell

if TYPE_CHECKING:
    from torchtune_sys.model.snapshot import Snapshot


@shared.command(
    "numactl",
    common=("--nproc-per-node", "--format", "--from", "--output"),
    epilog="""\b
Examples:
  torchtune-sys generate numactl --nproc-per-node 8
  torchtune-sys generate numactl --format commands -- python train.py --lr 3e-4
  torchtune-sys generate numactl --format wrapper -o bind.sh
  torchrun --no-python --nproc-per-node 8 ./bind.sh python train.py

\b
Each rank gets whole physical cores of its GPU's NUMA node, within what this
session may use. GPUs on the same node share its cores equally. torchtune-sys
launch does the same without numactl.
""",
)
@shared.intent_options
@shared.host_options
@shared.format_option("text", "commands", "wrapper", "json")
@click.option("--one-thread-per-core", is_flag=True, help="Use only each core's first hardware thread.")
@shared.output_option
@shared.color_option
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def command(**options: Any) -> int:
    """Print the CPUs, memory node, GPU and network card of each local rank."""
    from torchtune_sys.cli.placing import placement_of_host
    from torchtune_sys.model.values import Missing, known
    from torchtune_sys.render import as_json
    from torchtune_sys.render.generate import placement

    if options["program"] and options["format_"] != "commands":
        raise click.UsageError("PROGRAM is for --format commands.")
    seen, room, seating = placement_of_host(options, one_thread_per_core=options["one_thread_per_core"])
    if options["format_"] == "json":
        give(as_json.placement(seating), options["output"], machine=True)
    elif options["format_"] == "commands":
        give(placement.commands(seating, options["program"]), options["output"])
    elif options["format_"] == "wrapper":
        host = "" if isinstance(seen.system, Missing) else known(seen.system.hostname, "")
        give(placement.wrapper(seating, host), options["output"], program=True)
    else:
        give(placement.table(seating, style(options["color"], options["output"]), _beside(seen)), options["output"])
    if room.numactl is False and not options["from_"] and options["format_"] in ("commands", "wrapper"):
        tell("numactl is not installed here: install its package, or use torchtune-sys launch, which does not need it")
    return 0


def _beside(seen: Snapshot) -> str:
    """Return what torchrun's own option does, where this torch has it (2.9), and what it lacks.

    Source: torch/numa/binding.py of 2.9, with numactl's --cpunodebind and --physcpubind, and of 2.13, with --physcpubind alone.
    """
    from torchtune_sys.model.values import Missing
    from torchtune_sys.model.version import version

    torch = None if isinstance(seen.python, Missing) or isinstance(seen.python.torch, Missing) else seen.python.torch
    if torch is None or isinstance(torch.version, Missing) or version(torch.version)[:2] < (2, 9):
        return ""
    return (
        "--numa-binding=exclusive also divides each node among its GPUs (node: each rank gets all of it). It sets no memory policy, "
        "stops the job if ranks outnumber GPUs or a node's cores, treats an unknown node as node 0, and needs CUDA and numactl"
    )
