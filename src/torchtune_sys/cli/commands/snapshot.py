"""``torchtune-sys snapshot``."""

from __future__ import annotations

from typing import Any

import click

from torchtune_sys import __version__, engine
from torchtune_sys.cli import options as shared
from torchtune_sys.cli.terminal import give, style, tell


@shared.command(
    "snapshot",
    common=("--compact", "--format", "--from", "--python"),
    epilog="\b\nExamples:\n  torchtune-sys snapshot --format json\n  torchtune-sys snapshot --from machine.tar.bz2 --timings\n"
    "  torchtune-sys snapshot --compact -o node-17.json",
)
@shared.intent_options
@shared.host_options
@shared.format_option("text", "json")
@shared.output_option
@click.option("--compact", is_flag=True, help="Print one line of JSON, a tenth of the size, for torchtune-sys compare.")
@click.option("--timings", is_flag=True, help="Print on stderr how long each family of facts took.")
@shared.color_option
def command(**options: Any) -> int:
    """Print the facts that the rules judge. A fact that could not be read has the reason."""
    from torchtune_sys.cli.status import status_of_look
    from torchtune_sys.cli.take_snapshot import look, now

    timings: dict[str, float] | None = {} if options["timings"] else None
    seen = look(options, timings)
    if options["compact"]:
        from torchtune_sys.cli.facts import facts_line
        from torchtune_sys.rules import CATALOGUE

        give(facts_line(seen, engine.judge(seen, CATALOGUE)), options["output"], machine=True)
    elif options["format_"] == "json":
        from torchtune_sys.render import as_json

        give(as_json.snapshot(seen, version=__version__, time=now()[0]), options["output"], machine=True)
    else:
        from torchtune_sys.render import tree

        give(tree.render(seen, style(options["color"], options["output"])), options["output"])
    if timings is not None:
        from torchtune_sys.render.tree import timings_text

        tell(*timings_text(timings).splitlines())
    return status_of_look(seen)
