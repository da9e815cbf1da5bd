"""``torchtune-sys generate cloud-init``."""

from __future__ import annotations

import re
from typing import Any

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.commands.generate.files import plan_options
from torchtune_sys.cli.commands.generate.script import STAGES, VENV, provisioned
from torchtune_sys.cli.described import description_options
from torchtune_sys.cli.install_options import install_options, tell_refused
from torchtune_sys.cli.terminal import give, tell

_URL = r"https?://[A-Za-z0-9._~:/?#@!&()*+,;=%-]+"


@shared.command(
    "cloud-init",
    common=("--system", "--gpu", "--gpus", "--output"),
    epilog="""\b
Examples:
  torchtune-sys generate cloud-init --system debian-12 --gpu H200 --gpus 8 -o user-data
  torchtune-sys generate cloud-init --from first-of-its-kind.json -o user-data
  torchtune-sys generate cloud-init --system ubuntu-24.04 --gpu L40S \\
      --url https://files.example.org/provision.sh --script provision.sh -o user-data

\b
The user data contains the script of generate script --stages, runs it at first
boot and continues after each reboot. If the smoke test fails, cloud-init status
is error. The command reports the size, and which clouds do not accept it. See
docs/cloud-init.md.
""",
)
@plan_options
@description_options
@click.option(
    "--stages", metavar="LIST", default=",".join(STAGES), help="Stages, separated by commas: install, tune, smoke. [all]"
)
@install_options(VENV)
@click.option("--offline", metavar="DIR", help="Install from this directory in the image (packages, wheels), without network.")
@click.option(
    "--url", metavar="URL", help="Download the script from URL and check its SHA-256; for clouds with a small limit on user data."
)
@click.option("--script", metavar="FILE", help="Write the script that URL must serve to FILE.")
def command(**options: Any) -> int:
    """Print cloud-init user data that installs, tunes and tests a new machine, through its reboots."""
    from torchtune_sys.render.generate.cloud_init import fits, user_data

    url = options["url"] or ""
    if options["url"] is not None and not re.fullmatch(_URL, url):
        raise click.BadParameter(f"{url} is not an http or https address.", param_hint="--url")
    if bool(url) is not bool(options["script"]):
        raise click.UsageError("--url says where the script will lie, and --script writes it: give both.")
    if url and options["script"] == options["output"]:
        raise click.UsageError("--script and --output name one file: give two.")
    made, text, unread = provisioned(options)
    if url:
        give(text, options["script"], machine=True)
    found = user_data(made, text, url)
    give(found, options["output"], machine=True)
    for words in fits(found):
        tell(words)
    return tell_refused(made.refused if "install" in made.stages else ()) or unread
