"""The diagnoses of many nodes → one: each cause once, with the nodes that have it, what follows from another node's failure after it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from torchtune_sys.diagnosis.causes import FOLLOWS
from torchtune_sys.model.diagnosis import Confidence, Diagnosis, NamedCause, Quote, Unexplained

_QUOTES, _ERRORS = 6, 10


def merged(parts: Sequence[tuple[str, Diagnosis]]) -> Diagnosis:
    """``parts``: the node's name, and what it told."""
    causes: dict[str, NamedCause] = {}
    for node, part in parts:
        for cause in part.causes:
            causes[cause.cause] = _with(causes.get(cause.cause), _of_node(node, cause))
    sure = any(each.confidence is not Confidence.POSSIBLE and each.cause not in FOLLOWS for each in causes.values())
    found = [
        replace(each, confidence=Confidence.POSSIBLE) if sure and each.cause in FOLLOWS else each for each in causes.values()
    ]
    errors = [_at(node, error) for node, part in parts for error in part.unexplained]
    distinct = {error.text: error for error in reversed(errors)}
    return Diagnosis(
        causes=tuple(sorted(found, key=lambda each: each.confidence.rank)),
        unexplained=() if sure else tuple(distinct.values())[::-1][:_ERRORS],
        facts={f"{node} {name}".strip(): facts for node, part in parts for name, facts in part.facts.items()},
        unread=tuple(replace(each, source=_place(node, each.source)) for node, part in parts for each in part.unread),
        sources=sum(part.sources for _, part in parts),
        lines=sum(part.lines for _, part in parts),
    )


def _place(node: str, source: str) -> str:
    return f"{node}:{source}" if node else source


def _at(node: str, error: Unexplained) -> Unexplained:
    return replace(error, source=_place(node, error.source))


def _of_node(node: str, cause: NamedCause) -> NamedCause:
    quotes = tuple(Quote(source=_place(node, quote.source), line=quote.line, text=quote.text) for quote in cause.evidence)
    return replace(cause, hosts=cause.hosts or ((node,) if node else ()), evidence=quotes)


def _with(one: NamedCause | None, other: NamedCause) -> NamedCause:
    if one is None:
        return other
    return replace(
        one,
        confidence=min(one.confidence, other.confidence, key=lambda each: each.rank),
        hosts=tuple(dict.fromkeys((*one.hosts, *other.hosts))),
        ranks=tuple(sorted({*one.ranks, *other.ranks})),
        evidence=(*one.evidence, *other.evidence)[:_QUOTES],
        fix=tuple(dict.fromkeys((*one.fix, *other.fix)))[:4],
        rules=tuple(dict.fromkeys((*one.rules, *other.rules))),
    )
