"""``torchtune-sys check``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from torchtune_sys import __version__
from torchtune_sys.cli import options as shared
from torchtune_sys.cli.terminal import give, style, tell

if TYPE_CHECKING:
    from torchtune_sys.host.base import Host
    from torchtune_sys.host.input.opening import PastedText
    from torchtune_sys.model.rule import Result
    from torchtune_sys.model.snapshot import Snapshot
    from torchtune_sys.render.report import Report
    from torchtune_sys.rules.profiles import Config

FORMATS = ("text", "json", "junit", "markdown", "github", "prometheus", "nagios")
_FAIL_ON = ("error", "warning", "advice", "never")


@shared.command(
    "check",
    common=("--python", "--nproc-per-node", "--data", "--live", "--from", "--select", "--format"),
    epilog="""\b
Examples:
  torchtune-sys check
  torchtune-sys check --python ~/train/.venv/bin/python3 --nproc-per-node 8
  torchtune-sys check --live --fail-on warning
  torchtune-sys check --select driver,torch --format json --output report.json
  torchtune-sys check --from host.json
  python -m torch.utils.collect_env | torchtune-sys check --from -

\b
Profiles set parameters and skip rules:
  workstation   one person's machine with a desktop
  single-node   skip what matters only between several hosts
  cluster       expect more ranks, files and checkpoints
  container     skip what only the container's host can change
  ci            skip advice

\b
A configuration file (TOML) may set profile, select, ignore and fail-on, and
in a table [rules.RULE] either enabled = false or a parameter of that rule
("torchtune-sys explain RULE" lists them).

\b
Exit status: 0 no finding at or above --fail-on; 1 findings; 2 usage error;
3 could not judge: a check of severity error failed or timed out (with
--strict: is unknown for any reason, or no check of a selected family or of the
whole selection applies, or, without --select, none of torch's); 4 internal
error. With --format nagios: 0, 1, 2 or 3 as monitoring expects.

\b
Default counts come from the job's environment:
LOCAL_WORLD_SIZE, WORLD_SIZE, SLURM_NTASKS_PER_NODE (if above 1),
SLURM_JOB_NUM_NODES, OMP_NUM_THREADS, OMPI_COMM_WORLD_LOCAL_SIZE.
""",
)
@shared.intent_options
@shared.host_options
@shared.selection_options
@shared.profile_options
@shared.format_option(*FORMATS)
@shared.output_option
@click.option("--fail-on", type=click.Choice(_FAIL_ON), help="Lowest severity that makes the exit status 1. [error]")
@click.option(
    "--strict",
    is_flag=True,
    help="Exit 3 if a check of severity error is unknown for any reason, or no check of a selected family or of the whole selection applies.",
)
@click.option(
    "--brief", is_flag=True, help="With --format json: about 20 kB; checks that passed or do not apply are listed by id only."
)
@click.option("-v", "--verbose", is_flag=True, help="Show everything in full, including what passed.")
@click.option("--facts", metavar="FILE", help="Also write the facts to FILE, in compact form for torchtune-sys compare.")
@click.option("--profile-probes", is_flag=True, help="Print on stderr how long each family of facts took.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the verdict and the findings.")
@shared.color_option
def command(**options: Any) -> int:
    """Find what is wrong with this host for PyTorch training, why, and how to fix it."""
    from torchtune_sys.cli.pipeline import judged
    from torchtune_sys.cli.take_snapshot import now, opened

    if options["brief"] and options["format_"] != "json":
        raise click.UsageError("--brief goes with --format json; for text there is --quiet.")
    timings: dict[str, float] | None = {} if options["profile_probes"] else None
    found = opened(options)
    seen, results, config = judged(options, timings, _load_text if options["format_"] == "text" else _load_report, found)
    from torchtune_sys.render.report import Report

    if options["facts"]:
        from torchtune_sys.cli.facts import facts_line

        give(facts_line(seen, results), options["facts"], machine=True)
    time, epoch_s = now()
    report = Report(
        snapshot=seen,
        results=results,
        version=__version__,
        time=time,
        epoch_s=epoch_s,
        proof=_proof(found, options["format_"], seen, epoch_s),
        unjudged_families=_unjudged_families(seen, results, options, config),
    )
    # node_exporter, which is not root, reads it where its textfile collector looks.
    collected = options["format_"] == "prometheus"
    give(_rendered(report, options), options["output"], machine=options["format_"] != "text", readable=collected)
    _tell_of_error(found, results)
    if timings is not None:
        from torchtune_sys.render.tree import timings_text

        tell(*timings_text(timings).splitlines())
    return _status(report, options, options["fail_on"] or config.fail_on or "error")


def _tell_of_error(found: Host | PastedText, results: tuple[Result, ...]) -> None:
    """Say that a pasted text holds an error that no rule judges, where the rules find nothing."""
    from torchtune_sys.host.base import Host
    from torchtune_sys.model.rule import Verdict

    if isinstance(found, Host) or any(result.verdict is Verdict.FAIL for result in results):
        return
    from torchtune_sys.cli.take_snapshot import to_diagnose
    from torchtune_sys.knowledge.sentences import first_known

    if line := first_known(found.text):
        tell(
            f"{found.name}: contains a known error that no check judges: {line}",
            f"{to_diagnose(found.name)} names its cause",
        )


def _proof(host: Host | PastedText, format_: str, seen: Snapshot, epoch_s: float) -> str:
    """Return when the smoke test last passed; only for this host, and only for text and JSON, which show it."""
    from torchtune_sys.host.base import Host

    if not isinstance(host, Host) or not host.live or format_ not in ("text", "json"):
        return ""
    from torchtune_sys.cli.proofs import last_pass

    return last_pass(host, seen, epoch_s)


def _unjudged_families(seen: Snapshot, results: tuple[Result, ...], options: dict[str, Any], config: Config) -> tuple[str, ...]:
    if not options["strict"]:
        return ()
    from torchtune_sys.model.rule import Verdict
    from torchtune_sys.rules import CATALOGUE
    from torchtune_sys.rules.can_train import not_judged
    from torchtune_sys.rules.profiles import families_asked

    found = not_judged(seen, results, families_asked(CATALOGUE, config, options["select"]))
    if not found and all(result.verdict is Verdict.NA for result in results):
        found = ["the selection"]
    for family in found if options["format_"] != "nagios" else ():
        tell(f"not judged: no check in {family} applies here (--strict)")
    return tuple(found)


def _load_report() -> None:
    import torchtune_sys.render.report  # noqa: F401


def _load_text() -> None:
    import torchtune_sys.render.text  # noqa: F401


def _rendered(report: Report, options: dict[str, Any]) -> str:
    name: str = options["format_"]
    if name == "text":
        from torchtune_sys.render import text

        return text.render(
            report,
            style(options["color"], options["output"], is_here=report.snapshot.origin == "live"),
            verbose=options["verbose"],
            quiet=options["quiet"],
        )
    if name == "nagios":
        from torchtune_sys.render import nagios

        return nagios.render(report, strict=options["strict"])
    if options["brief"]:
        from torchtune_sys.render import as_json

        return as_json.report_brief(report)
    from torchtune_sys.render import machine

    return machine(name, report)


def _status(report: Report, options: dict[str, Any], fail_on: str) -> int:
    if options["format_"] == "nagios":
        from torchtune_sys.render import nagios

        return nagios.exit_code(report, strict=options["strict"])
    from torchtune_sys.cli.status import status
    from torchtune_sys.render.report import unexplained

    return status(
        report.results,
        fail_on=fail_on,
        strict=options["strict"],
        unjudged_families=report.unjudged_families,
        unexplained=unexplained(report),
    )
