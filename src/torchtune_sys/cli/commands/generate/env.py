"""``torchtune-sys generate env``."""

from __future__ import annotations

from typing import Any

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.terminal import give, tell

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
    from torchtune_sys.cli.undecided import status_of_looks
    from torchtune_sys.probes.plan_context import allocators
    from torchtune_sys.remediation.plan.job import variables
    from torchtune_sys.render import as_json
    from torchtune_sys.render.generate import job

    seen, results, _ = judged(options)
    host = host_of(options)
    found = variables(seen, results, () if host is None else allocators.probe(host))
    if options["format_"] == "json":
        give(as_json.environment(found), options["output"], machine=True)
        return status_of_looks(results)
    if found or options["output"]:  # what reads the file should find it
        give(job.FORMS[options["format_"]](found), options["output"])
    if not found:
        tell("nothing to set: the session's environment is fine as it is")
    return status_of_looks(results)
