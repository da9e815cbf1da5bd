"""A pre-flight's verdict: for people, as the reason that Slurm keeps of a node, and for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.preflight import Cause, Go, NodeVerdict, Preflight, Weight
from torchtune_sys.render import layout
from torchtune_sys.render.layout import Line, Style, clean, cut, line
from torchtune_sys.render.prometheus import Sample, metric

REASON_MARK = "torchtune-sys"
"""How each reason of ours begins: nobody else's node is taken back into service."""
_REASON_AT_MOST = 200
_STYLES = {Go.GO: "good", Go.NO_GO: "error", Go.UNKNOWN: "warning"}
_WEIGHTS = {Weight.FATAL: "error", Weight.WARNING: "warning", Weight.UNKNOWN: "dim"}


def text(value: Preflight, style: Style, *, quiet: bool = False) -> str:
    """The verdict first, then each cause with who can mend it."""
    return layout.render(_lines(value, quiet), style)


def _lines(value: Preflight, quiet: bool) -> Iterator[Line]:
    yield line((value.verdict.value.upper(), _STYLES[value.verdict]), f"  {_headline(value)}")
    for node in value.nodes:
        for cause in node.causes:
            if not quiet or cause.weight is Weight.FATAL:
                said = f"[{cause.blame.value}] {cause.cause}: {clean(cause.seen)} ({cause.rule})"
                yield line(said, label=(cause.weight.value, _WEIGHTS[cause.weight]), indent=2, hang=11)
    if value.proof and not quiet:
        yield line(clean(value.proof), indent=2)


def _headline(value: Preflight) -> str:
    node = value.nodes[0]
    fatal = sum(cause.weight is Weight.FATAL for cause in node.causes)
    says = {
        Go.GO: "a job may start here",
        Go.NO_GO: f"{fatal} reason{'s' if fatal != 1 else ''} against starting a job here",
        Go.UNKNOWN: "could not judge whether a job may start here",
    }[value.verdict]
    return f"{clean(node.node)}: {says} ({value.where}, level {value.level}, {value.seconds:.1f} s)"


def reason(node: NodeVerdict) -> str:
    """One line for ``scontrol update reason=``: who is to blame, what, and what was seen. ``""`` for a node that is well.

    No sign in it means anything to a shell, to Slurm's configuration or to a terminal.
    """
    fatal = [cause for cause in node.causes if cause.weight is Weight.FATAL]
    if node.verdict is not Go.NO_GO or not fatal:
        return ""
    first = fatal[0]
    more = f" (+{len(fatal) - 1} more)" if len(fatal) > 1 else ""
    return cut(f"{REASON_MARK}: [{first.blame.value}] {first.cause}: {_plain(first)}{more}", _REASON_AT_MOST)


def _plain(cause: Cause) -> str:
    return "".join(
        sign if sign.isascii() and (sign.isalnum() or sign in " .,:;/_+-()[]%=<>") else "?" for sign in clean(cause.seen)
    )


def prometheus(value: Preflight) -> str:
    """For node_exporter's textfile collector; each series once."""
    verdicts = [({"node": node.node, "verdict": node.verdict.value}, 1.0) for node in value.nodes]
    causes: dict[tuple[str, ...], Sample] = {}
    for node in value.nodes:
        for cause in node.causes:
            labels = {
                "node": node.node,
                "cause": cause.cause,
                "rule": cause.rule,
                "blame": cause.blame.value,
                "weight": cause.weight.value,
            }
            causes[tuple(labels.values())] = (labels, 1.0)
    rows = [
        *metric("preflight_timestamp_seconds", "When the node was judged.", [({}, value.epoch_s)]),
        *metric("preflight_duration_seconds", "How long it took.", [({}, value.seconds)]),
        *metric("preflight_verdict", "1 for the node's verdict: go, no-go or unknown.", verdicts),
        *metric("preflight_cause", "1 for each cause.", causes.values()),
    ]
    return "\n".join(rows) + "\n"
