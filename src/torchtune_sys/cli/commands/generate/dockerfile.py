"""``torchtune-sys generate dockerfile``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.described import description_options
from torchtune_sys.cli.terminal import give, tell

if TYPE_CHECKING:
    from torchtune_sys.model.image import Image, ImageOptions

FORMATS = ("dockerfile", "docker", "podman", "kubernetes", "json")
EXTRAS = ("jemalloc", "numactl", "rdma", "torchvision")
_SYSTEM = r"[a-z]+(?:-[a-z]+)*:\d+(?:\.\d+)?"
_FOLDER = r"[A-Za-z0-9_][A-Za-z0-9._-]*(?:/[A-Za-z0-9_][A-Za-z0-9._-]*)*/?"


@shared.command(
    "dockerfile",
    common=("--system", "--gpu", "--torch", "--output"),
    epilog="""\b
Examples:
  torchtune-sys generate dockerfile -o image && docker build -t training image
  torchtune-sys generate dockerfile --from host.json --torch 2.14 --cpu
  torchtune-sys generate dockerfile --system ubuntu-24.04 --gpu H200 --gpus 8
  torchtune-sys generate dockerfile --base ubuntu:24.04 --offline wheels -o .
  torchtune-sys generate dockerfile --format docker -o train.sh
  torchtune-sys generate dockerfile --nproc-per-node 8 --format kubernetes

\b
The image has torch, a user and the smoke test, but no driver and no CUDA
toolkit. The last lines of the Dockerfile give the flags to start it with, and
why. Started without a command, the image runs the smoke test. If a requested
version is not available, this command gives the reason and exits with 1.
""",
)
@shared.host_options
@description_options
@click.option("--torch", metavar="VERSION", help="torch version: 2.14, 2.14.0 or 2.14.0+cu126. [the newest that runs here]")
@click.option("--python", metavar="VERSION", help="Python version: 3.12. [the host's, where an image has it]")
@click.option("--cpu", is_flag=True, help="Use the CPU build of torch.")
@click.option("--base", metavar="IMAGE", help="Base image. [an official Python image]")
@click.option("--base-system", metavar="ID:VERSION", help="System in IMAGE, where its name does not say it: ubuntu:24.04.")
@click.option(
    "--offline",
    metavar="DIR",
    help="Build without network, from the wheels (and packages) in this directory beside the Dockerfile.",
)
@click.option("--no-compiler", is_flag=True, help="Leave out what torch.compile needs.")
@click.option("--with", "extras", multiple=True, type=click.Choice(EXTRAS), help="Also install this; may be repeated.")
@click.option("--nproc-per-node", "ranks", type=shared.COUNT, metavar="N", help="Training processes on this host. [GPUs]")
@click.option(
    "--nnodes", "nodes", type=shared.COUNT, metavar="N", help="Hosts in the job; 2 or more need the host's network. [1]"
)
@click.option("--workers", type=click.IntRange(min=0), metavar="N", help="DataLoader workers per process. [4]")
@shared.format_option(*FORMATS)
@click.option("-o", "--output", metavar="PATH", help="Directory for Dockerfile and smoke.py; with other formats a file.")
def command(**options: Any) -> int:
    """Print a Dockerfile for training on this host, with the flags to start its containers with."""
    from torchtune_sys.cli.install_options import tell_refused
    from torchtune_sys.cli.take_snapshot import look
    from torchtune_sys.remediation.image.plan import plan
    from torchtune_sys.render import as_json
    from torchtune_sys.render.generate import dockerfile

    asked = _image_options(options)
    own = {name: options[name] for name in ("ranks", "nodes", "workers")}
    image = plan(look({**options, **shared.NO_INTENT, **own, "python": None}), asked)
    form, output = options["format_"], options["output"]
    if form == "json":
        give(as_json.image(image), output, machine=True)
    elif image.refused:
        give(dockerfile.refused(image), None, machine=True)
    elif form == "dockerfile" and output not in (None, "-"):
        _write(image, output)
    else:
        give(dockerfile.FORMS[form](image), output, machine=True)
        if form == "dockerfile":
            tell("it copies smoke.py: -o DIR writes both, generate smoke prints it")
    return tell_refused(image.refused)


def _write(image: Image, folder: str) -> None:
    """Write Dockerfile and smoke.py, unless files of others are in their place. Raises CannotWrite."""
    from torchtune_sys.host.files import write_below_in_child
    from torchtune_sys.render.generate import dockerfile
    from torchtune_sys.smoke import script

    write_below_in_child(folder, {"smoke.py": script.source()}, script.MARK)
    write_below_in_child(folder, {"Dockerfile": dockerfile.dockerfile(image)}, dockerfile.MARK)
    tell(f"{folder}: {dockerfile.build('docker', image)}")
    for row in dockerfile.rows("docker", image):
        tell(row)


def _image_options(options: Mapping[str, Any]) -> ImageOptions:
    """Return what the options ask of the image. Raises click.BadParameter."""
    from torchtune_sys.cli.install_options import torch_option
    from torchtune_sys.knowledge.images import parts
    from torchtune_sys.model.image import ImageOptions

    torch, cpu = torch_option(options["torch"], options["cpu"])
    python, base, system, offline = (options[name] or "" for name in ("python", "base", "base_system", "offline"))
    if python and not re.fullmatch(r"3\.\d{1,2}t?", python):
        raise click.BadParameter(f"{python} is not a version such as 3.12.", param_hint="--python")
    if base and not (parts(base) or ("", ""))[1]:
        raise click.BadParameter(f"{base} names no image with its tag, such as ubuntu:24.04.", param_hint="--base")
    if system and not (base and re.fullmatch(_SYSTEM, system)):
        raise click.BadParameter("it says which system --base contains, such as ubuntu:24.04.", param_hint="--base-system")
    if offline and not re.fullmatch(_FOLDER, offline):
        raise click.BadParameter(f"{offline} is not a plain path below the Dockerfile's directory.", param_hint="--offline")
    return ImageOptions(
        torch=torch,
        python=python,
        cpu=cpu,
        base=base,
        base_system=system,
        offline=offline.rstrip("/"),
        compiler=not options["no_compiler"],
        extras=tuple(options["extras"]),
    )
