"""A diagnosis for people: what it is in the first line, then each cause with the lines that decided and what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from torchtune_sys.model.diagnosis import WORDS, Confidence, Diagnosis, NamedCause, Quote, Unexplained
from torchtune_sys.model.numbers import counted
from torchtune_sys.render import layout
from torchtune_sys.render.layout import Line, Style, clean, cut, line
from torchtune_sys.render.node_set import node_set

_STYLES = {Confidence.CERTAIN: "error", Confidence.LIKELY: "warning", Confidence.POSSIBLE: "advice"}
_OR = re.compile(r"^or\b,? ")
"""Some remedies say themselves that they are the second."""
_QUOTES, _QUOTE, _ERROR, _RANKS, _SPAN, _UNREAD, _DIFFERENCES, _VALUE = 3, 300, 700, 16, 2, 6, 6, 60


def text(value: Diagnosis, style: Style) -> str:
    return layout.render(_lines(value), style)


def _lines(value: Diagnosis) -> Iterator[Line]:
    yield line((_headline(value), "bold"))
    shown: set[Quote] = set()
    for cause in value.causes:
        yield from _cause(cause, [quote for quote in cause.evidence if quote not in shown], alone=len(value.causes) == 1)
        shown.update(cause.evidence)
    for error in value.unexplained:
        whose = ", ".join(filter(None, ("" if error.ask else clean(error.program), *_where(error))))
        by = f" ({whose})" if whose else ""
        yield line(
            f"{clean(error.source)}:{error.line}{by}: {cut(error.text, _ERROR)}",
            label=(_kind(error), "warning"),
            indent=2,
            hang=13,
        )
        if error.place:
            yield line(f"at {cut(error.place, _QUOTE)}", indent=13)
        if error.fix:
            yield line(clean(error.fix), label="do: ", indent=13, hang=17)
        if error.ask:
            yield line(clean(error.ask), label="look at: ", indent=13, hang=22)
    if value.unexplained and not value.causes and not (value.unexplained[0].fix or value.unexplained[0].ask):
        yield line(
            "To find out more: the lines before this one, the logs of the other ranks, and torchtune-sys check on the host.",
            indent=2,
        )
    yield from _others(value)
    for difference in value.differences[:_DIFFERENCES]:
        values = ", ".join(f"{_short(each.value)} ({clean(each.where)})" for each in difference.values[:_RANKS])
        yield line(f"{clean(difference.fact)}: {values}", label=("differs", "dim"), indent=2, hang=13)
    if len(value.differences) > _DIFFERENCES:
        yield line(f"and {counted(len(value.differences) - _DIFFERENCES, 'more difference')}", indent=13)
    for unread in value.unread[:_UNREAD]:
        yield line(f"{clean(unread.source)}: {clean(unread.why)}", label=("not read", "dim"), indent=2, hang=13)
    if len(value.unread) > _UNREAD:
        yield line(f"and {len(value.unread) - _UNREAD:,} more not read", indent=2)
    if value.causes and value.causes[0].fix:  # else the words of a stage of the smoke test, which has no page
        yield line((f"more about a cause: torchtune-sys explain {value.causes[0].cause}", "dim"))


def _others(value: Diagnosis) -> Iterator[Line]:
    """Yield, where something failed, the ranks that only waited, and those of which there is no line."""
    failed = value.causes or value.unexplained
    if failed and value.waited:
        follows = "only waited for others or lost them: their errors follow from the one above"
        yield line(f"{_named(value.waited)} {follows}", label=("waited", "dim"), indent=2, hang=13)
    if failed and value.unheard:
        yield line(f"of {_named(value.unheard)}: give the logs of these, too", label=("no line", "dim"), indent=2, hang=13)


_STOPPED = "stopped"


def _kind(error: Unexplained) -> str:
    """Return in a word what an error without a cause is: where somebody interrupted the program, what somebody tells, a mistake of the program, or not known."""
    if error.ask:
        return _STOPPED if error.program == "python" else "told"
    return "in program" if error.fix else "not known"


def _headline(value: Diagnosis) -> str:
    if value.causes:
        return _first(value.causes)
    if value.unexplained:
        where = "".join(f", {each}" for each in _where(value.unexplained[0]))
        if _kind(value.unexplained[0]) == _STOPPED:
            return f"interrupted by somebody{where}: no error of a program stands before it"
        if value.unexplained[0].ask:
            return "cause not known: somebody tells that something fails, but no line of a program says what"
        if value.unexplained[0].fix:
            return f"error of the training program itself{where}; no sign of a fault of its host"
        return f"error not known{where}: it matches no known message and no rule"
    if not value.sources:
        return "nothing could be read"
    return f"no failure was found in {counted(value.lines, 'line')}"


def _first(causes: Sequence[NamedCause]) -> str:
    """Return what, how sure, where, and of what nothing decides both."""
    first = causes[0]
    where = f", {', '.join(_where(first))}" if _where(first) else ""
    words = f"{first.title} ({first.cause})"
    open_ = [cause for cause in causes[1:] if first.confidence is Confidence.POSSIBLE]
    told = ", from words alone" if first.sources == (WORDS,) and first.confidence is Confidence.POSSIBLE else ""
    if not open_:
        return f"{first.confidence.value}{told}: {words}{where}" + (
            f"; {counted(len(causes) - 1, 'more cause')}" if causes[1:] else ""
        )
    more = f"; {len(open_) - 1} more" if len(open_) > 1 else ""
    return f"{len(causes)} possible causes{told}: {words}{where}; {open_[0].title} ({open_[0].cause}){more}"


def _where(cause: NamedCause | Unexplained) -> list[str]:
    hosts = [f"on {node_set(cause.hosts)}"] if cause.hosts else []
    return hosts + ([_named(cause.ranks)] if cause.ranks else [])


def _named(ranks: Sequence[int]) -> str:
    """Return the ranks, those that follow each other as one span.

    >>> _named((3,)), _named((0, 1, 2, 3, 5, 8, 9))
    ('rank 3', 'ranks 0-3, 5, 8, 9')
    """
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][-1] + 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    words = [word for span in spans for word in ([f"{span[0]}-{span[-1]}"] if len(span) > _SPAN else map(str, span))]
    more = f", and {len(words) - _RANKS} more" if len(words) > _RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(words[:_RANKS])}{more}"


def _cause(cause: NamedCause, quotes: Sequence[Quote], *, alone: bool) -> Iterator[Line]:
    """``quotes``: of its evidence, what no cause above has shown; ``alone``: the first line names it already."""
    margin = 2 if alone else 13
    if not alone:
        named = ((clean(cause.title), "bold"), f" [{cause.cause}]", "".join(f", {where}" for where in _where(cause)))
        yield line(*named, label=(cause.confidence.value, _STYLES[cause.confidence]), indent=2, hang=margin)
    if cause.evidence and not quotes:
        yield line(("for the same lines", "dim"), indent=margin)
    for quote in quotes[:_QUOTES]:
        place = f"{clean(quote.source)}:{quote.line}" if quote.line else clean(quote.source)
        yield line((f"{place}: ", "dim"), cut(quote.text, _QUOTE), indent=margin, hang=margin + 2)
    if len(quotes) > _QUOTES:
        yield line((f"and {counted(len(quotes) - _QUOTES, 'more such line')}", "dim"), indent=margin)
    if cause.fix:
        yield line("; or ".join(_OR.sub("", clean(fix)) for fix in cause.fix[:2]), label="do: ", indent=margin, hang=margin + 4)
    if cause.confirm and cause.confidence is not Confidence.CERTAIN:
        yield line(clean(cause.confirm), label="confirm with: ", indent=margin, hang=margin + 14)


def _short(value: Any) -> str:
    return cut(value if isinstance(value, str) else json.dumps(value), _VALUE)
