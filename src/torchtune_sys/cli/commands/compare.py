"""``torchtune-sys compare``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.main import FINDINGS, UNJUDGED
from torchtune_sys.cli.terminal import give, growing_number, require_apart, style
from torchtune_sys.cli.watch import LOGS_TIMEOUT_S
from torchtune_sys.errors import UnreadableInput

if TYPE_CHECKING:
    from torchtune_sys.model.comparison import Comparison

FORMATS = ("text", "json", "markdown", "csv")
_FEW = 16
WEIGHTS = ("error", "warning", "advice", "noise")


@shared.command(
    "compare",
    common=("--golden", "--before", "--weight", "--format"),
    epilog="""\b
Examples:
  torchtune-sys compare node-1.json node-2.json
  torchtune-sys compare facts/ --weight warning
  torchtune-sys compare facts/ --golden golden.json --format csv -o drift.csv
  torchtune-sys compare today/ --before yesterday/
  ssh node-7 torchtune-sys snapshot --compact | torchtune-sys compare - node-1.json
  torchtune-sys fleet --nodes 'node[1-64]' -- torchtune-sys snapshot --compact

\b
Reads facts (snapshot --compact, preflight --facts), snapshots, recordings,
JSON of check and preflight, and files with one of these per line, also from
earlier releases. A file that cannot be read is reported and skipped.

\b
Without --golden and --before, a host is an outlier where it differs from the
majority of its kind (same machine and GPU model). Hosts that agree with each
other, for example of two images, form groups. Of two hosts, the first is the
reference.

\b
Weights, from the rules that read the fact (torchtune-sys rules):
  error     may break training          advice    could be better
  warning   slow, or fragile            noise     no rule reads it

\b
Exit status: 0 no difference; 1 outliers or groups, or a host of --before is
gone; 2 usage error; 3 nothing to compare, or something could not be read and
the rest is alike; 4 internal error.
""",
)
@click.argument("paths", nargs=-1, required=True, metavar="FILE|DIR|-...")
@click.option("--golden", metavar="FILE", help="Compare every host with the one in FILE.")
@click.option(
    "--before", metavar="DIR", help="Show what changed: compare each host with the one of the same name in DIR (or FILE)."
)
@click.option("--weight", type=click.Choice(WEIGHTS), default="noise", help="Lowest weight to show. [noise]")
@shared.timeout_of(f"Stop after S seconds. [{LOGS_TIMEOUT_S:g}]")
@click.option("--all", "whole", is_flag=True, help="Text: show all differences, however many.")
@shared.format_option(*FORMATS)
@shared.output_option
@shared.color_option
def command(**options: Any) -> int:
    """Show what differs between hosts, or on one host over time, most serious first."""
    if options["golden"] is not None and options["before"] is not None:
        raise UnreadableInput("--golden and --before exclude each other", "give one of them")
    found = compared(options)
    give_comparison(found, options)
    return status(found)


def compared(options: dict[str, Any]) -> Comparison:
    """Read and compare; what is lighter than --weight is left out. Raises UnreadableInput where --golden or --before gives nothing."""
    from torchtune_sys.fleet.comparing import Comparing, heavy, without_secrets
    from torchtune_sys.fleet.reading import read
    from torchtune_sys.fleet.store import Store
    from torchtune_sys.fleet.weights import Readers
    from torchtune_sys.host.children.apart import require_answer
    from torchtune_sys.model.comparison import DifferenceWeight
    from torchtune_sys.rules import CATALOGUE

    require_apart((options["output"],), (options["golden"], options["before"], *options["paths"]))
    for path in _places(options):
        require_answer(path)
    store = Store()
    show, clear = growing_number("hosts read")
    unread = _base(options, store)
    count = len(store.hosts)
    unread += read(options["paths"], store, show)
    clear()
    comparing = Comparing(store, Readers(CATALOGUE))
    if options["golden"] is not None:
        found = comparing.against(0, unread)
    elif options["before"] is not None:
        found = comparing.before(count, unread)
    else:
        found = comparing.among_themselves(unread)
    return without_secrets(heavy(found, DifferenceWeight(options["weight"])))


def _places(options: dict[str, Any]) -> Iterable[str]:
    """Yield what is looked at first, whether it answers: each file, of many the folders."""
    paths = [path for path in options["paths"] if path != "-"]
    paths = paths if len(paths) <= _FEW else sorted({os.path.dirname(path) or "." for path in paths})
    return [*filter(None, (options["golden"], options["before"])), *paths]


def _base(options: dict[str, Any], store: Any) -> tuple[Any, ...]:
    """Return what is compared with, ahead of all others."""
    from torchtune_sys.fleet.reading import read

    path = options["golden"] or options["before"]
    if path is None:
        return ()
    unread = read([path], store)
    option = "--golden" if options["golden"] else "--before"
    if not store.hosts:
        raise UnreadableInput(f"{option} {path}: {unread[0].why if unread else 'holds no host'}", "give facts or a snapshot")
    if options["golden"] and len(store.hosts) > 1:
        raise UnreadableInput(f"--golden {path}: holds {len(store.hosts)} hosts", "give a file with one")
    return unread


def status(found: Comparison) -> int:
    """Return the exit status: 1 where hosts are not alike, or one is gone; 3 where no two could be compared, or where those are alike that could be read."""
    from torchtune_sys.model.comparison import GONE, DifferenceWeight

    compared = sum(kind.hosts for kind in found.kinds)
    if compared < (2 if found.against == "majority" else 1):
        return UNJUDGED
    heavy = any(item.weight in (DifferenceWeight.ERROR, DifferenceWeight.WARNING) for item in found.various)
    if found.odd or found.groups or heavy or any(item.why == GONE for item in found.incomparable):
        return FINDINGS
    return UNJUDGED if found.unread else 0


def give_comparison(found: Comparison, options: dict[str, Any]) -> None:
    give(_rendered(found, options), options["output"], machine=options["format_"] != "text")


def _rendered(found: Comparison, options: dict[str, Any]) -> str:
    from torchtune_sys.render import comparison

    if options["format_"] == "json":
        from torchtune_sys.render import as_json

        return as_json.comparison(found)
    if options["format_"] == "markdown":
        return comparison.markdown(found)
    if options["format_"] == "csv":
        return comparison.as_csv(found)

    return comparison.text(found, style(options["color"], options["output"]), whole=options["whole"])
