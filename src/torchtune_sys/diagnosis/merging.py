"""Combine the diagnoses of many nodes: each cause once, with its nodes; consequences of another node's failure last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import TypeVar

from msgspec.structs import replace

from torchtune_sys.diagnosis.symptoms import FOLLOWS
from torchtune_sys.knowledge.causes import cause_rows
from torchtune_sys.model.diagnosis import Confidence, Diagnosis, NamedCause, Quote, Unexplained

_QUOTES, _ERRORS, _FIXES = 6, 10, 4


def merged(parts: Sequence[tuple[str, Diagnosis]]) -> Diagnosis:
    """Return one diagnosis of several nodes; ``parts``: the node's name, and its own diagnosis."""
    by_cause: dict[str, list[NamedCause]] = {}
    for node, part in parts:
        for cause in part.causes:
            by_cause.setdefault(cause.cause, []).append(_of_node(node, cause))
    causes = [_as_one(each) for each in by_cause.values()]
    sure = any(each.confidence is not Confidence.POSSIBLE and each.cause not in FOLLOWS for each in causes)
    found = [replace(each, confidence=Confidence.POSSIBLE) if sure and each.cause in FOLLOWS else each for each in causes]
    errors = [_at(node, error) for node, part in parts for error in part.unexplained]
    distinct = {error.text: error for error in reversed(errors)}
    return Diagnosis(
        causes=tuple(sorted(found, key=lambda each: each.confidence.rank)),
        unexplained=() if sure else tuple(distinct.values())[::-1][:_ERRORS],
        waited=tuple(
            sorted({rank for _, part in parts for rank in part.waited} - {rank for each in found for rank in each.ranks})
        ),
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


def _as_one(found: Sequence[NamedCause]) -> NamedCause:
    """One cause as several nodes tell it; in time in proportion to their number. What it is called is no node's to say where it is known, and what most nodes tell comes first."""
    row = cause_rows().get(found[0].cause)
    return replace(
        found[0],
        title=row.title if row is not None else found[0].title,
        confirm=next(iter(_most_told((each.confirm,) for each in found if each.confirm)), ""),
        confidence=min((each.confidence for each in found), key=lambda confidence: confidence.rank),
        hosts=_distinct(each.hosts for each in found),
        ranks=tuple(sorted(_distinct(each.ranks for each in found))),
        evidence=tuple(islice(chain.from_iterable(each.evidence for each in found), _QUOTES)),
        fix=_most_told(each.fix for each in found)[:_FIXES],
        rules=_distinct(each.rules for each in found),
    )


_Told = TypeVar("_Told")


def _distinct(parts: Iterable[Iterable[_Told]]) -> tuple[_Told, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(parts)))


def _most_told(parts: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Return each text once, first what most nodes tell."""
    return tuple(text for text, _ in Counter(chain.from_iterable(parts)).most_common())
