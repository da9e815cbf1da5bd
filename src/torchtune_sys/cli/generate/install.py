"""``torchtune-sys generate install``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.described import description_options

if TYPE_CHECKING:
    from torchtune_sys.model.install import Wishes

FORMATS = ("shell", "json")
TOOLS = ("pip", "uv", "conda", "pixi")
EXTRAS = ("container-toolkit", "cuda-toolkit", "jemalloc", "rdma")
_TORCH = r"(?:torch==|v)?(\d+\.\d+(?:\.\d+)?)(?:\+(cpu|cu\d{2,3}))?"
_PYTHON = r"3\.\d{1,2}t?"


@click.command(
    "install",
    epilog="""\b
Examples:
  torchtune-sys generate install
  torchtune-sys generate install --torch 2.14 --python 3.12 --tool uv
  torchtune-sys generate install --from host.json -o install.sh
  torchtune-sys generate install --system debian-12 --gpu H200 --gpus 8
  bash install.sh            (it asks for a reboot where one is needed)
  bash install.sh 6          (and goes on with step 6)

\b
Nothing is installed by this command. What cannot be had on this host is said
with its reason, the newest that can and the way there; it then exits with 1.
""",
)
@shared.host_options
@description_options
@click.option("--torch", metavar="VERSION", help="2.14, 2.14.0 or 2.14.0+cu126. [the newest that runs here]")
@click.option("--python", metavar="VERSION|PATH", help="3.12, 3.14t, or an interpreter. [python3 of the active environment]")
@click.option("--cpu", is_flag=True, help="torch for the CPU, and no driver.")
@click.option(
    "--tool", type=click.Choice(TOOLS), default="pip", help="What installs torch; conda and pixi take conda-forge. [pip]"
)
@click.option("--venv", metavar="DIR", default=".venv", help="The environment that torch goes into. [.venv]")
@click.option("--driver-branch", "branch", type=click.IntRange(min=300), metavar="N", help="Branch of the driver. [580, the LTS]")
@click.option("--with", "extras", multiple=True, type=click.Choice(EXTRAS), help="Also this; may be repeated.")
@shared.format_option(*FORMATS)
@shared.output_option
def command(**options: Any) -> int:
    """Print what to install on this host, in order: the driver, a reboot, torch, and what goes with them."""
    from torchtune_sys.cli.look import look
    from torchtune_sys.cli.terminal import give, tell
    from torchtune_sys.planner.install import plan
    from torchtune_sys.render import as_json
    from torchtune_sys.render.install import shell

    wishes, python = _wishes(options)
    seen = look({**options, **shared.NO_INTENT, "python": python})
    found = plan(seen, wishes)
    is_json = options["format_"] == "json"
    give(as_json.install(found) if is_json else shell(found), options["output"], machine=True)
    for refused in found.refused:
        tell(f"refused: {refused.what}: {refused.reason}")
        if refused.newest:
            tell(f"  can be had: {refused.newest}")
        tell(f"  way there: {refused.way}")
    return 1 if found.refused else 0


def _wishes(options: Mapping[str, Any]) -> tuple[Wishes, str | None]:
    """The wishes, and the interpreter to look at (None for the usual one). Raises click.BadParameter."""
    from torchtune_sys.model.install import Wishes

    python, torch, cpu = options["python"], "", options["cpu"]
    named = re.fullmatch(_PYTHON, python or "")
    if options["torch"]:
        found = re.fullmatch(_TORCH, options["torch"])
        if found is None:
            raise click.BadParameter(f"{options['torch']} is no version such as 2.14 or 2.14.0+cu126.", param_hint="--torch")
        cpu = cpu or found[2] == "cpu"
        torch = found[1] + (f"+{found[2]}" if found[2] else "")
    if cpu and torch.rpartition("+")[2].startswith("cu"):
        raise click.BadParameter("--cpu and a CUDA build exclude each other.", param_hint="--torch")
    return (
        Wishes(
            torch=torch,
            python=python if named else "",
            cpu=cpu,
            tool=options["tool"],
            venv=options["venv"],
            branch=options["branch"],
            extras=tuple(options["extras"]),
        ),
        None if named else python,
    )
