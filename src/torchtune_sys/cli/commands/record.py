"""``torchtune-sys record``."""

from __future__ import annotations

from typing import Any

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.terminal import give, tell


@shared.command(
    "record",
    common=("--output", "--from", "--python"),
    epilog="""\b
Examples:
  torchtune-sys record -o host.json
  torchtune-sys check --from host.json


Names of users and hosts, addresses, UUIDs and serial numbers are replaced by
tokens, equal names by equal tokens. Read the file before you publish it.

Exit status: 0 recorded; 2 usage error; 3 not all of it: the time was up; 4
internal error, or the file cannot be written.
""",
)
@shared.intent_options
@shared.host_options
@shared.output_option
@click.option("--salt", metavar="TEXT", help="Replace equal names by equal tokens in the recordings of several hosts.")
def command(**options: Any) -> int:
    """Write an anonymised recording of this host (JSON) that can be judged elsewhere."""
    from torchtune_sys import engine
    from torchtune_sys.cli.status import missed, status_of_look
    from torchtune_sys.cli.take_snapshot import ended, opened, seconds_to_look
    from torchtune_sys.cli.workload import intent_of
    from torchtune_sys.host.input.opening import as_host
    from torchtune_sys.host.recording.pseudonym import pseudonymise
    from torchtune_sys.host.recording.recorder import RecordingHost
    from torchtune_sys.model import codec
    from torchtune_sys.model.values import Why

    host = as_host(opened(options))
    intent = intent_of({name: options[name] for name in shared.INTENT}, host)
    keeper = RecordingHost(host)
    seen = ended(engine.ProbeRun(keeper, intent), seconds_to_look(options))
    plain = keeper.to_recording(intent)
    found = pseudonymise(plain, options["salt"])
    give(codec.dumps(found, indent=1), options["output"], machine=True)
    tell(summary(found, _replaced(plain, found)))
    incomplete = missed(seen, Why.TIMEOUT, Why.CRASHED)
    if incomplete:
        tell(f"not recorded completely: {', '.join(incomplete)} (a longer --timeout may help)")
    return status_of_look(seen)


def summary(recording: dict[str, Any], replaced: int) -> str:
    """Return what a recording holds, in one line."""
    sections = {name: len(recording.get(name) or ()) for name in ("files", "commands", "answers", "env")}
    held = ", ".join(f"{count} {name if name != 'env' else 'variables'}" for name, count in sections.items() if count)
    return f"recorded {held or 'nothing'}; {replaced} texts held names or numbers that were replaced"


def _replaced(plain: object, changed: object) -> int:
    """Return how many texts differ between a recording and its pseudonymised form."""
    if isinstance(plain, dict) and isinstance(changed, dict):
        gone = sum(key not in changed for key in plain)
        return gone + sum(_replaced(value, changed[key]) for key, value in plain.items() if key in changed)
    if isinstance(plain, list) and isinstance(changed, list) and len(plain) == len(changed):
        return sum(_replaced(one, other) for one, other in zip(plain, changed, strict=True))
    return int(plain != changed)
