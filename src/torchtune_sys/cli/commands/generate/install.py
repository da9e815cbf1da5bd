"""``torchtune-sys generate install``."""

from __future__ import annotations

from typing import Any

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.described import description_options
from torchtune_sys.cli.install_options import install_options, install_options_of, must_start, tell_refused
from torchtune_sys.cli.terminal import give

FORMATS = ("shell", "json")
TOOLS = ("pip", "uv", "conda", "pixi")


@shared.command(
    "install",
    common=("--system", "--gpu", "--gpus", "--torch", "--output"),
    epilog="""\b
Examples:
  torchtune-sys generate install
  torchtune-sys generate install --torch 2.14 --python 3.12 --tool uv
  torchtune-sys generate install --from host.json -o install.sh
  torchtune-sys generate install --system debian-12 --gpu H200 --gpus 8
  bash install.sh            (it asks for a reboot where one is needed)
  bash install.sh 6          (and goes on with step 6)

\b
This command installs nothing. If a requested version is not available for this
host, it gives the reason and the newest version that is, and exits with 1.
""",
)
@shared.host_options
@description_options
@click.option(
    "--python", metavar="VERSION|PATH", help="Python version (3.12, 3.14t) or interpreter. [python3 of the active environment]"
)
@install_options(".venv")
@click.option("--tool", type=click.Choice(TOOLS), default="pip", help="Installer of torch; conda and pixi use conda-forge. [pip]")
@shared.format_option(*FORMATS)
@shared.output_option
def command(**options: Any) -> int:
    """Print the commands that install the driver, torch and what they need, in order, with the reboot."""
    from torchtune_sys.cli.take_snapshot import look
    from torchtune_sys.remediation.install.plan import plan
    from torchtune_sys.render import as_json
    from torchtune_sys.render.generate.install import shell

    asked, python = install_options_of(options)
    seen = look({**options, **shared.NO_INTENT, "python": python})
    must_start(seen, python)
    found = plan(seen, asked)
    is_json = options["format_"] == "json"
    give(as_json.install(found) if is_json else shell(found), options["output"], machine=True)
    return tell_refused(found.refused)
