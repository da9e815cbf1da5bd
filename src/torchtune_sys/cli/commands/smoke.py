"""``torchtune-sys smoke``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.terminal import give, require_output, say, style, tell
from torchtune_sys.cli.watch import SMOKE_TIMEOUT_S

if TYPE_CHECKING:
    from torchtune_sys.model.smoke import SmokeReport, StageResult
    from torchtune_sys.model.snapshot import Snapshot

FORMATS = ("text", "json", "junit")


@shared.command(
    "smoke",
    common=("--python", "--quick", "--stages", "--device", "--nproc-per-node", "--output"),
    epilog="""\b
Examples:
  torchtune-sys smoke --python ~/train/.venv/bin/python3
  torchtune-sys smoke --quick
  torchtune-sys smoke --stages ddp,ddp-amp --nproc-per-node 4 --device cpu
  torchtune-sys smoke --scratch /checkpoints --format junit -o smoke.xml

\b
Trains two small models on generated data, without network or downloads. Runs
one rank per GPU, or two ranks on a host with one GPU or none. "torchtune-sys
generate smoke" prints the same test as one script. A pass is recorded: check
reports its age, and whether the host has changed. Stages are shown as they
end, the verdict last (first in a file and with --quiet). Ctrl-C and SIGTERM
keep the results so far.

\b
Exit status: 0 all stages that apply passed; 1 a stage failed; 2 usage error;
3 a stage could not run; 4 internal error.
""",
)
@click.option("--python", metavar="PATH", help="Python interpreter that you train with. [python3 of the active environment]")
@click.option(
    "--nproc-per-node",
    "ranks",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Number of ranks. [one per GPU; 2 with one GPU or none]",
)
@click.option("--quick", "level", flag_value="quick", help="Only the short stages (15 s on a GPU host).")
@click.option("--thorough", "level", flag_value="thorough", help="More stages, larger and longer.")
@click.option(
    "--stages",
    metavar="NAMES",
    multiple=True,
    help="Run only these stages, separated by commas (--list names them).",
    shell_complete=lambda *a: _complete(*a),
)
@click.option(
    "--device",
    type=click.Choice(("auto", "cpu", "cuda")),
    default="auto",
    help="Device to train on. [auto: the GPUs, if torch was built for them]",
)
@click.option(
    "--backend",
    type=click.Choice(("gloo", "nccl")),
    help="Backend of torch.distributed. [nccl with a GPU for each rank, else gloo]",
)
@click.option(
    "--scratch", metavar="DIR", help="Directory for test checkpoints, which are removed. [directory of temporary files]"
)
@click.option(
    "--master-port", type=click.IntRange(1, 65535), metavar="PORT", help="Also test a rendezvous at this loopback port. [none]"
)
@click.option(
    "--timeout",
    type=float,
    callback=shared.seconds(1.0),
    metavar="S",
    default=SMOKE_TIMEOUT_S,
    help="Stop the whole test after S seconds. [600]",
)
@click.option("--list", "list_", is_flag=True, help="List the stages and what each proves; run nothing.")
@click.option("--no-proof", is_flag=True, help="Do not record a pass.")
@shared.format_option(*FORMATS)
@shared.output_option
@click.option("-v", "--verbose", is_flag=True, help="Print all measurements, and the last output of each rank.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the verdict and what failed.")
@shared.color_option
def command(**options: Any) -> int:
    """Run a short training to prove that this host can train, or to name what is broken."""
    if options["list_"]:
        from torchtune_sys.render.layout import line, render
        from torchtune_sys.smoke.names import stages

        rows = (line(proof, label=(f"{name:<20}", "heading")) for name, proof in stages().items())
        give(render(rows, style(options["color"], options["output"], is_here=True)), options["output"])
        return 0
    require_output(options["output"])
    from torchtune_sys.cli.smoke_run import run_smoke

    shown = _Shown(options)
    seen_by = shown.ended if options["format_"] == "text" and options["output"] in (None, "-") and not options["quiet"] else None
    report = _beside_earlier(*run_smoke(options, seen_by, shown.rest), options)
    shown.rest(report)
    return _status(report)


class _Shown:
    """Print the text report stage by stage while the test runs, and remember what was printed."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._stages: dict[str, StageResult] = {}

    def ended(self, report: SmokeReport, stage: StageResult) -> None:
        from torchtune_sys.render import smoke as render

        laid_out = style(self._options["color"], self._options["output"], is_here=True)
        words = "" if self._stages else render.opening(report, laid_out)
        words += render.stage_text(stage, laid_out, verbose=self._options["verbose"])
        self._stages[stage.stage] = stage  # before it is seen: who reads it may interrupt at once, and the rest follows then
        say(words)

    def rest(self, report: SmokeReport) -> None:
        """Show the whole report, or what of it was not shown yet."""
        from torchtune_sys.render import smoke as render

        if not self._stages:
            give(_rendered(report, self._options), self._options["output"], machine=self._options["format_"] != "text")
            return
        laid_out = style(self._options["color"], self._options["output"], is_here=True)
        say(render.ending(report, self._stages, laid_out, verbose=self._options["verbose"]))


def _beside_earlier(report: SmokeReport, seen: Snapshot, epoch_s: float, options: Mapping[str, Any]) -> SmokeReport:
    """Return the report with what got slower here. A pass of all stages of a level is remembered; a choice of stages proves too little."""
    import msgspec

    from torchtune_sys.cli.proofs import earlier_runs, keep_run
    from torchtune_sys.smoke.proof import fingerprint, slower

    before = earlier_runs()
    compared = msgspec.structs.replace(report, slower=slower(before, report, fingerprint(seen)))
    if report.proven and not options["stages"] and not options["no_proof"]:
        hindered = keep_run(before, report, seen, epoch_s)
        if hindered:
            tell(f"torchtune-sys: the proof could not be saved: {hindered}")
    return compared


def _rendered(report: SmokeReport, options: Mapping[str, Any]) -> str:
    from torchtune_sys.render import smoke as render

    if options["format_"] == "json":
        from torchtune_sys.render import as_json

        return as_json.smoke(report)
    if options["format_"] == "junit":
        return render.junit(report)
    return render.text(
        report, style(options["color"], options["output"], is_here=True), quiet=options["quiet"], verbose=options["verbose"]
    )


def _status(report: SmokeReport) -> int:
    from torchtune_sys.model.rule import Verdict

    return {Verdict.PASS: 0, Verdict.NA: 0, Verdict.FAIL: 1, Verdict.UNKNOWN: 3, Verdict.CRASHED: 4}[report.verdict]


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from torchtune_sys.smoke.names import stage_names

    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in stage_names() if name.startswith(last)]
