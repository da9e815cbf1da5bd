"""A pre-flight's verdict: for people, as the reason that Slurm keeps of a node, and for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from itertools import groupby

from torchtune_sys.knowledge.causes import cause_rows
from torchtune_sys.model.preflight import Cause, Go, NodeVerdict, Preflight, Weight
from torchtune_sys.render import isolation, layout
from torchtune_sys.render.layout import Line, Style, clean, line
from torchtune_sys.render.node_set import is_host_name
from torchtune_sys.render.prometheus import Sample, metric

REASON_MARK = "torchtune-sys"
"""How each reason of ours begins: nobody else's node is taken back into service."""
_REASON_AT_MOST = 200
_STYLES = {Go.GO: "good", Go.NO_GO: "error", Go.UNKNOWN: "warning"}
_WEIGHTS = {Weight.FATAL: "error", Weight.WARNING: "warning", Weight.UNKNOWN: "dim"}


def text(value: Preflight, style: Style, *, quiet: bool = False) -> str:
    """Return the verdict first, then each cause with who can fix it."""
    return layout.render(_lines(value, quiet), style)


def _lines(value: Preflight, quiet: bool) -> Iterator[Line]:
    if value.scale.nodes > 1:
        yield from _lines_of_all(value, quiet)
        return
    yield line((value.verdict.value.upper(), _STYLES[value.verdict]), f"  {_headline(value)}")
    for node in value.nodes:
        shown = [cause for cause in node.causes if not quiet or _is_shown(cause)]
        for cause, more in _alike(shown):
            what = "figure" if cause.weight is Weight.WARNING else "stage"
            others = f" and {more} more {what}{'s' * (more > 1)}" if more else ""
            sentence = f"[{cause.blame.value}] {cause.cause}{others}: {clean(cause.seen)} ({cause.rule})"
            yield line(sentence, label=(cause.weight.value, _WEIGHTS[cause.weight]), indent=2, hang=11)
    if not quiet:
        yield from _next(value)
    # In torchrun the line says that no other agent was met. A proof beside a no-go would be read as "fine now".
    if value.proof and (value.where == "torchrun" or (not quiet and value.verdict is not Go.NO_GO)):
        yield line(clean(value.proof), indent=2)


def _alike(causes: Sequence[Cause]) -> Iterator[tuple[Cause, int]]:
    """Yield each cause, and how many stages of the smoke test after it could not be tried for the same reason, or were slower, too."""
    for _, group in groupby(causes, key=_shared):
        first, *others = group
        yield first, len(others)


def _shared(cause: Cause) -> object:
    if cause.weight is Weight.UNKNOWN and "smoke-" in cause.cause:
        return cause.seen
    return cause.cause if cause.weight is Weight.WARNING and cause.rule.startswith("smoke:") else cause


def _lines_of_all(value: Preflight, quiet: bool) -> Iterator[Line]:
    """One page, however many nodes: the bad ones by name, what is alike once."""
    bad = [node for node in value.nodes if node.verdict is Go.NO_GO and node.node not in value.absent]
    unsure = [node for node in value.nodes if node.verdict is Go.UNKNOWN]
    sentence = f"{len(value.nodes) - len(value.absent)} of {value.scale.nodes} nodes, {value.scale.ranks} {'agents' if value.level == 'fast' else 'ranks'}"
    sentence += f" ({value.where}, level {value.level}, {value.seconds:.1f} s)"
    against = _against(value)
    yield line((value.verdict.value.upper(), _STYLES[value.verdict]), f"  {against}{'; ' if against else ''}{sentence}")
    yield from _absent(value)
    for cause in value.causes:
        if not quiet or cause.weight is Weight.FATAL:
            sentence = f"no node's fault  [{cause.blame.value}] {cause.cause}: {clean(cause.seen)} ({cause.rule})"
            yield line(sentence, label=(cause.weight.value, _WEIGHTS[cause.weight]), indent=2, hang=11)
    for link in value.links[:_ROWS_AT_MOST]:
        sentence = f"{clean(link.from_)} -> {clean(link.to)}  {link.cause}: {clean(link.seen)}"
        yield line(sentence, label=("link", "error"), indent=2, hang=11)
    for node in [*bad, *unsure][:_ROWS_AT_MOST]:
        for cause in node.causes:
            if cause.weight is not Weight.WARNING and (not quiet or _is_shown(cause)):
                sentence = f"{clean(node.node)}  [{cause.blame.value}] {cause.cause}: {clean(cause.seen)} ({cause.rule})"
                yield line(sentence, label=(cause.weight.value, _WEIGHTS[cause.weight]), indent=2, hang=11)
    if len(bad) + len(unsure) > _ROWS_AT_MOST or len(value.links) > _ROWS_AT_MOST:
        yield line("more in --format json", indent=2)
    if quiet:
        return
    if value.suspects:
        yield line(f"one of: {_some(value.suspects)}", label=("suspect", "warning"), indent=2, hang=11)
    yield from _next(value)
    yield from _warnings(value)
    if value.isolation is not None:
        yield from isolation.lines(value.isolation)


def _against(value: Preflight) -> str:
    """Return who is to blame, or in doubt, for whoever reads one line: the worst first; "" where nobody is."""
    if value.verdict is not Go.NO_GO:
        doubts = [f"{clean(node.node)}: {_first(node, Weight.UNKNOWN)}" for node in value.nodes if node.verdict is Go.UNKNOWN]
        more = f" and {len(doubts) - _AGAINST_AT_MOST} more nodes" if len(doubts) > _AGAINST_AT_MOST else ""
        return f"in doubt: {', '.join(doubts[:_AGAINST_AT_MOST])}{more}" if doubts else ""
    found = [f"{clean(cause.cause)} between all nodes" for cause in value.causes if cause.weight is Weight.FATAL]
    found += [f"{clean(node.node)}: {clean(_fatal(node)[0].cause)}" for node in value.nodes if _fatal(node)]
    found += [f"{clean(link.from_)} -> {clean(link.to)}: {clean(link.cause)}" for link in value.links]
    more = f" and {len(found) - _AGAINST_AT_MOST} more" if len(found) > _AGAINST_AT_MOST else ""
    return ", ".join(found[:_AGAINST_AT_MOST]) + more


def _fatal(node: NodeVerdict) -> list[Cause]:
    return [cause for cause in node.causes if cause.weight is Weight.FATAL]


def _next(value: Preflight) -> Iterator[Line]:
    """Yield what helps against each cause, and how to start without the bad nodes meanwhile."""
    fatal = [
        *(cause for node in value.nodes for cause in _fatal(node)),
        *(each for each in value.causes if each.weight is Weight.FATAL),
    ]
    rows = cause_rows()
    causes = [
        cause
        for cause in dict.fromkeys([*(each.cause for each in fatal), *(link.cause for link in value.links)])
        if cause in rows
    ]
    for cause in causes[:_REASONS_AT_MOST] if value.verdict is Go.NO_GO else ():
        yield line(f"{cause}: {rows[cause].fix}; to be sure: {rows[cause].confirm}", label=("next", "heading"), indent=2, hang=11)
    if value.isolation is not None:  # it has its own
        return
    bad = [node.node for node in value.nodes if _fatal(node)]
    ends = _ends(value, {*bad})
    if not all(map(is_host_name, [*bad, *ends])):  # such a name is no launcher's, and may be anything
        return
    if (bad or ends) and len(value.nodes) - len(bad) - len(ends) > 1:
        words = f"  (an end of each bad link, which is not accused: {_some(ends)})" if ends else ""
        sentence = f"--exclude={','.join(map(clean, [*bad, *ends]))}{words}"
        yield line(sentence, label=("exclude", "heading"), indent=2, hang=11)


def _ends(value: Preflight, bad: Set[str]) -> list[str]:
    """Return nodes without which no link is left that has no bad node at an end: as few as are easily found."""
    left = [
        {link.from_, link.to} for link in value.links if link.cause != "network-partition" and not bad & {link.from_, link.to}
    ]
    found: list[str] = []
    while left:
        counts = Counter(end for ends in left for end in sorted(ends))
        found.append(max(sorted(counts, reverse=True), key=lambda end: counts[end]))  # rather not the first node: all meet there
        left = [ends for ends in left if found[-1] not in ends]
    return found


def _is_shown(cause: Cause) -> bool:
    """Also where little is to be said: what speaks against a start, and what happened between the nodes."""
    return cause.weight is Weight.FATAL or (cause.weight is Weight.UNKNOWN and cause.rule.startswith("joint:"))


def _warnings(value: Preflight) -> Iterator[Line]:
    """Each cause once, with its nodes."""
    warnings: dict[str, list[str]] = {}
    for node in value.nodes:
        for cause in node.causes:
            if cause.weight is Weight.WARNING:
                warnings.setdefault(cause.cause, []).append(node.node)
    for name, nodes in warnings.items():
        yield line(f"{name}: {_some(nodes)}", label=("warning", "dim"), indent=2, hang=11)


def _absent(value: Preflight) -> Iterator[Line]:
    if not value.absent:
        return
    yield line(f"did not come: {_some(value.absent)}", label=("absent", "error"), indent=2, hang=11)
    why = [(node.node, cause.seen) for node in value.nodes if node.node in value.absent for cause in node.causes[:1]]
    for name, seen in why[:_REASONS_AT_MOST]:
        yield line(f"{clean(name)}: {clean(seen)}", indent=11, hang=11)


_ROWS_AT_MOST = 30
_NAMES_AT_MOST = 6
_REASONS_AT_MOST = 3
_AGAINST_AT_MOST = 2


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_AT_MOST} more" if len(names) > _NAMES_AT_MOST else ""
    return ", ".join(map(clean, names[:_NAMES_AT_MOST])) + more


def _headline(value: Preflight) -> str:
    node = value.nodes[0]
    says = {
        Go.GO: "a job may start here",
        Go.NO_GO: f"{_first(node, Weight.FATAL)}: no job should start here",
        Go.UNKNOWN: f"could not judge whether a job may start here: {_first(node, Weight.UNKNOWN)}",
    }[value.verdict]
    return f"{clean(node.node)}: {says} ({value.where}, level {value.level}, {value.seconds:.1f} s)"


def _first(node: NodeVerdict, weight: Weight) -> str:
    """Return the first cause of this weight, and how many others there are."""
    first, *others = dict.fromkeys(clean(cause.cause) for cause in node.causes if cause.weight is weight) or ("no cause told",)
    return first + (f" and {len(others)} more" if others else "")


def reason(node: NodeVerdict) -> str:
    """Return one line for ``scontrol update reason=``: who is to blame, what, and what was seen. ``""`` for a node that is well.

    No sign in it means anything to a shell, to Slurm's configuration or to a terminal.
    """
    fatal = [cause for cause in node.causes if cause.weight is Weight.FATAL]
    if node.verdict is not Go.NO_GO or not fatal:
        return ""
    first = fatal[0]
    more = f" (+{len(fatal) - 1} more)" if len(fatal) > 1 else ""
    return _short(f"{REASON_MARK}: [{first.blame.value}] {first.cause}: {_sober(first.seen)}", more)


def reason_of_all(value: Preflight) -> str:
    """Return the same of the nodes of a job together: which one is bad, or which link. ``""`` where all are well."""
    if value.scale.nodes == 1:
        return reason(value.nodes[0])
    bad = [node for node in value.nodes if node.verdict is Go.NO_GO and node.node not in value.absent]
    reasons = [(node.node, *_worst(node)) for node in bad] + [(name, "did not come") for name in value.absent]
    reasons += [(f"{link.from_} > {link.to}", link.cause, link.seen) for link in value.links]
    reasons += [("all nodes", _slug(cause), cause.seen) for cause in value.causes if cause.weight is Weight.FATAL]
    if value.verdict is not Go.NO_GO or not reasons:
        return ""
    more = f" (+{len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return _short(f"{REASON_MARK}: {_sober(': '.join(reasons[0]))}", more)


def _worst(node: NodeVerdict) -> tuple[str, str]:
    first = next(cause for cause in node.causes if cause.weight is Weight.FATAL)
    return _slug(first), first.seen


def _slug(cause: Cause) -> str:
    return f"[{cause.blame.value}] {cause.cause}"


def _short(text: str, more: str) -> str:
    """Shorten the causes: what else there is stays, however long the first cause is."""
    room = _REASON_AT_MOST - len(more)
    return (text if len(text) <= room else f"{text[: room - 3].rstrip()}...") + more


_NO_QUOTES = str.maketrans({"'": None, '"': None, "`": None, "’": None, "–": "-", "…": "..."})


def _sober(text: str) -> str:
    signs = clean(text).translate(_NO_QUOTES)
    return "".join(sign if sign.isascii() and (sign.isalnum() or sign in " .,:;/_+-()[]%=<>") else "?" for sign in signs)


def prometheus(value: Preflight) -> str:
    """Return the metrics for node_exporter's textfile collector; each series once."""
    verdicts = [({"node": node.node, "verdict": node.verdict.value}, 1.0) for node in value.nodes]
    causes: dict[tuple[str, ...], Sample] = {}
    of_nodes = [(node.node, cause) for node in value.nodes for cause in node.causes]
    for name, cause in [*of_nodes, *(("", cause) for cause in value.causes)]:
        labels = {
            "node": name,
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
