"""``torchtune-sys diagnose``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.main import FINDINGS, UNJUDGED
from torchtune_sys.cli.terminal import give, growing_number, require_apart, require_output, style, tell
from torchtune_sys.cli.watch import LOGS_TIMEOUT_S
from torchtune_sys.errors import UnreadableInput, UserError
from torchtune_sys.host.input.limits import TIMEOUT_S

if TYPE_CHECKING:
    from torchtune_sys.host.input.collection import Found
    from torchtune_sys.model.diagnosis import Diagnosis

FORMATS = ("text", "json")


_LONGEST_NAME = 255
"""Characters of a node's name, which stands at each line of its log: what gethostname(2) gives is shorter."""


class _Node(msgspec.Struct):
    node: str
    schema: Literal["torchtune-sys/diagnosis/1"]


@shared.command(
    "diagnose",
    epilog="""\b
Examples:
  torchtune-sys diagnose train.log
  torchtune-sys diagnose logs/ nvidia-bug-report.log.gz
  dmesg | torchtune-sys diagnose - train.log --format json
  kubectl logs --prefix -l job=train | torchtune-sys diagnose
  torchtune-sys diagnose train.log --share report.md
  srun torchtune-sys diagnose --symptoms /tmp/job/ | torchtune-sys diagnose --merge

\b
Reads any mix of logs, tracebacks, reports and messages: NCCL, torch and
torchrun, collect_env, nvidia-smi, dmesg and the journal, docker, Slurm,
Kubernetes, pip, compilers. They may be plain text, Markdown, HTML or JSON,
have the prefixes of launchers and log collectors, and be packed (.gz, .bz2,
.xz, .zst, .tar, .zip). From several files and ranks it names the first
failure, not what followed from it. It reads only the given files, runs
nothing in them, and sends nothing anywhere.

\b
Confidence of a cause:
  certain    the error message has no other cause
  likely     other evidence in the input supports it
  possible   the message has several causes, and nothing in the input tells which

\b
Exit status: 0 no failure found; 1 causes found; 2 usage error; 3 an error or a
complaint without a known cause, or nothing could be read; 4 internal error.
""",
)
@click.argument("paths", nargs=-1, metavar="[FILE|DIR|-]...")
@click.option("--share", metavar="FILE", help="Also write the evidence to FILE (Markdown), anonymised, for a bug report.")
@click.option("--symptoms", is_flag=True, help="Print the diagnosis as one line of JSON, for --merge.")
@click.option("--merge", is_flag=True, help="Combine lines of --symptoms from many nodes: one diagnosis of them all.")
@shared.timeout_of(f"Stop after S seconds. [{LOGS_TIMEOUT_S:g}]")
@shared.format_option(*FORMATS)
@shared.output_option
@shared.color_option
def command(**options: Any) -> int:
    """Find the cause of a failed or slow training run in its logs and reports."""
    if options["symptoms"] and options["merge"]:
        raise UnreadableInput("--symptoms and --merge exclude each other", "give one of them")
    if options["share"] and options["merge"]:
        raise UnreadableInput(
            "--share writes what this node's files hold, and --merge reads no such file", "give --share on a node"
        )
    require_apart((options["output"], options["share"]), options["paths"])
    _require_report(options["share"])
    require_output(options["output"], options["share"])
    paths = options["paths"] or ("-",)
    found = _merged(paths) if options["merge"] else _diagnosed(paths, options["share"], options["timeout"] or LOGS_TIMEOUT_S)
    give(_rendered(found, options), options["output"], machine=options["symptoms"] or options["format_"] != "text")
    return status(found)


def _require_report(share: str | None) -> None:
    """Raise UserError where --share names a file that it did not write: ``--share train.log`` means the log that is to be read."""
    from torchtune_sys.diagnosis.sharing import TITLE
    from torchtune_sys.host.input.reading import opened_input

    if share is None or share == "-" or not os.path.isfile(share) or not os.path.getsize(share):
        return
    with opened_input(share, strangers=False) as there:
        written = there.look(len(TITLE)) == TITLE.encode()
    if not written:
        raise UserError(
            f"{share} is there, and is no report of --share, so nothing is written over it",
            "give what is read first, then a new file: torchtune-sys diagnose LOG --share report.md",
        )


def _diagnosed(paths: Sequence[str], share: str | None, limit_s: float) -> Diagnosis:
    from torchtune_sys.diagnosis.diagnose import diagnose
    from torchtune_sys.fleet.pasted_hosts import compared
    from torchtune_sys.host.input.collection import InputText, collected
    from torchtune_sys.host.input.excerpts import MemoryBudget

    budget = MemoryBudget()
    given = _counted(collected(paths, _patience_s(paths, limit_s), budget))
    if share is None:
        return diagnose(given, budget, compared)
    from torchtune_sys.diagnosis.sharing import shared as bundle
    from torchtune_sys.render import as_json
    from torchtune_sys.render.layout import row

    texts: list[InputText] = []

    def kept() -> Iterator[Found]:
        for item in given:
            if isinstance(item, InputText):
                texts.append(item)
            yield item

    found = diagnose(kept(), budget, compared)
    made = bundle(texts, found, as_json.diagnosis_line(found, facts=False))
    give("".join(map(row, made.removesuffix("\n").split("\n"))), share, machine=True)
    if share != "-":
        tell(f"{share} holds the evidence, anonymised; look through it before you send it")
    return found


def _merged(paths: Sequence[str]) -> Diagnosis:
    from torchtune_sys.diagnosis.merging import merged
    from torchtune_sys.host.input.documents import read_documents
    from torchtune_sys.host.input.excerpts import MemoryBudget
    from torchtune_sys.host.input.limits import HOSTS_BUDGET, document_cost
    from torchtune_sys.model import codec
    from torchtune_sys.model.diagnosis import Diagnosis, UnreadSource

    parts: list[tuple[str, Diagnosis]] = []
    budget = MemoryBudget(HOSTS_BUDGET)
    without_facts = 0

    def unread(path: str, why: str) -> tuple[str, Diagnosis]:
        return "", Diagnosis(unread=(UnreadSource(source=path, why=why),))

    for path in paths:
        for document in read_documents(path):
            try:
                node = codec.loads(document, _Node).node[:_LONGEST_NAME]
                part = codec.loads(document, Diagnosis)
                codec.not_too_deep(part.facts)
            except ValueError as error:
                part = Diagnosis(unread=(UnreadSource(source=path, why=f"a line that is no diagnosis: {error}"),))
                node = ""
            cost = document_cost(document)
            if cost > budget.left // 2 and part.facts:
                part = msgspec.structs.replace(part, facts={})
                cost = document_cost(msgspec.json.encode(part))
                without_facts += 1
            if cost > budget.left:
                parts.append(
                    unread(path, f"the diagnoses before it fill {HOSTS_BUDGET >> 20} MiB of memory: the rest is left out")
                )
                return merged(parts)
            budget.take(cost)
            parts.append((node, part))
    if without_facts:
        parts.append(
            unread(
                "facts",
                f"those of {without_facts:,} nodes are left out: those of the nodes before them fill {HOSTS_BUDGET >> 21} MiB of memory",
            )
        )
    return merged(parts)


def _patience_s(paths: Sequence[str], limit_s: float) -> float:
    """Return the seconds that one path may deliver nothing: FIFOs without a writer together (``diagnose *``) leave the others two thirds of the time."""
    silent = sum(not os.path.isfile(path) and not os.path.isdir(path) for path in paths)
    return min(TIMEOUT_S, limit_s / 3 / silent) if len(paths) > 1 and silent else TIMEOUT_S


def _counted(found: Iterable[Found]) -> Iterator[Found]:
    """Yield the texts, and show their number on a terminal if that takes long."""
    show, clear = growing_number("texts read")
    try:
        for number, item in enumerate(found, 1):
            show(number)
            yield item
    finally:
        clear()


def status(found: Diagnosis) -> int:
    if found.causes:
        return FINDINGS
    return UNJUDGED if found.unexplained or not found.sources else 0


def _rendered(found: Diagnosis, options: dict[str, Any]) -> str:
    if options["symptoms"]:
        from torchtune_sys.cli.privilege import node_name
        from torchtune_sys.render import as_json

        return as_json.diagnosis_line(found, node_name())
    if options["format_"] == "json":
        from torchtune_sys.render import as_json

        return as_json.diagnosis(found)
    from torchtune_sys.render import diagnosis

    return diagnosis.text(found, style(options["color"], options["output"]))
