"""``torchtune-sys generate env``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.terminal import give, tell

if TYPE_CHECKING:
    from torchtune_sys.model.rule import Result
    from torchtune_sys.model.snapshot import Snapshot

FORMATS = ("shell", "systemd", "slurm", "docker", "kubernetes", "json")


@shared.command(
    "env",
    common=("--nproc-per-node", "--workers", "--format", "--output"),
    epilog="""\b
Examples:
  torchtune-sys generate env --nproc-per-node 8 --workers 4 -o job.env && . ./job.env
  torchtune-sys generate env --nnodes 4 --format kubernetes
  torchtune-sys generate env --format docker -o env.list && docker run --env-file env.list IMAGE

\b
A comment above each variable gives the reason. Variables that depend on the job
or on a path that only you know are commented out.
""",
)
@shared.intent_options
@shared.host_options
@shared.selection_options
@shared.profile_options
@shared.format_option(*FORMATS)
@shared.output_option
def command(**options: Any) -> int:
    """Print the environment variables that a job should have on this host, each with its reason."""
    from torchtune_sys.cli.pipeline import judged
    from torchtune_sys.cli.take_snapshot import host_of
    from torchtune_sys.model.values import Missing
    from torchtune_sys.probes.plan_context import allocators
    from torchtune_sys.remediation.plan.job import variables
    from torchtune_sys.render import as_json
    from torchtune_sys.render.generate import job

    seen, results, _ = judged(options)
    host = host_of(options)
    found = variables(seen, results, () if host is None else allocators.probe(host))
    unread = _unread(seen, results)
    if options["format_"] == "json":
        give(as_json.environment(found), options["output"], machine=True)
        return unread
    if found or options["output"]:  # what reads the file should find it
        give(job.FORMS[options["format_"]](found), options["output"])
    if not found and not unread:
        unseen = isinstance(seen.session, Missing) or isinstance(seen.session.env, Missing)
        tell("nothing to set" if unseen else "nothing to set: the session's environment is fine as it is")
    return unread


def _unread(seen: Snapshot, results: Iterable[Result]) -> int:
    """Return 3, and tell of what, where the look failed at what variables are for: rules that ask for some, and facts of which some are made. Else 0."""
    from torchtune_sys.cli.main import UNJUDGED
    from torchtune_sys.cli.selection import status_of_looks
    from torchtune_sys.cli.status import missed
    from torchtune_sys.model.actions import EnvironmentVariable
    from torchtune_sys.model.values import Why
    from torchtune_sys.remediation.plan.job import MADE_FROM

    late = [family for family in missed(seen, Why.TIMEOUT, Why.CRASHED) if family in MADE_FROM]
    if late:
        tell(f"not read: {', '.join(late)} (a longer --timeout may help)")
    unjudged = status_of_looks(results, lambda action: isinstance(action, EnvironmentVariable))
    return UNJUDGED if late else unjudged
