"""Merge the ranks' reports by stage."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import msgspec

from torchtune_sys.knowledge.causes import usual_fix
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.smoke import LOW_IS_GOOD, Figure, RankEnd, StageResult
from torchtune_sys.smoke import attribution

_FIRST = "silent-data-corruption"
"""What makes all others: who computes wrongly now and then is named before who sees what follows."""
_WORST = (Verdict.FAIL, Verdict.CRASHED, Verdict.UNKNOWN, Verdict.PASS, Verdict.NA)


def merged(
    stage: str,
    ends: Mapping[int, RankEnd],
    figures: Mapping[int, list[Figure]],
    found: Collection[str],
    before: Sequence[str] = (),
) -> StageResult:
    """Return one stage: the worst verdict, from the lowest rank that has it; the cause that a rank names itself goes before one that its
    error text stands for, which of a rank that only lost another is none. ``before``: the causes of the stages before."""
    ends_by_rank = [ends[rank] for rank in sorted(ends)]
    verdict = worst([end.verdict for end in ends_by_rank])
    undecided = [end for end in ends_by_rank if end.verdict is Verdict.UNKNOWN and end.cause]
    if undecided and all(end.verdict is not Verdict.FAIL or attribution.is_consequence(end) for end in ends_by_rank):
        verdict, ends_by_rank = Verdict.UNKNOWN, undecided  # the others only lost a rank that could not tell
    alike = [end for end in ends_by_rank if end.verdict is verdict]
    telling = [end for end in alike if not attribution.is_consequence(end)] or alike
    judged = [attribution.of_end(end, stage, found, before) for end in telling]
    first = next((end for end in telling if end.cause == _FIRST), None) or next((end for end in telling if end.cause), None)
    first = first or next((end for end in judged if end.cause), judged[0])
    return StageResult(
        stage=stage,
        verdict=verdict,
        seconds=max(end.seconds for end in ends_by_rank),
        figures=_figures(figures),
        ranks=tuple(end.rank for end in alike if end.rank >= 0) if len(alike) < len(ends_by_rank) else _named(first),
        cause=first.cause,
        confidence=first.confidence if first.cause else None,
        seen=first.seen,
        remedy=first.remedy or (usual_fix(first.cause) if verdict is Verdict.FAIL else ""),
        trace=first.trace,
    )


_WHO = re.compile(r"\(ranks? (\d+(?:, \d+)*)\)$|^rank (\d+) (?:\(|has )")


def _named(end: RankEnd) -> tuple[int, ...]:
    """Return the ranks that a finding names on which all agree."""
    found = _WHO.search(end.seen) if end.verdict is Verdict.FAIL else None
    return tuple(map(int, (found.group(1) or found.group(2)).split(", "))) if found else ()


def worst(verdicts: Collection[Verdict]) -> Verdict:
    """Return the verdict of several: a failure before what is unknown, that before success; na where nothing applied."""
    return min(verdicts, key=_WORST.index, default=Verdict.UNKNOWN)


def _figures(of_ranks: Mapping[int, list[Figure]]) -> tuple[Figure, ...]:
    """Return the worst of each figure over the ranks: the job goes at the pace of the slowest."""
    kept: dict[tuple[str, str], Figure] = {}
    for rank in sorted(of_ranks):
        for figure in of_ranks[rank]:
            other = kept.setdefault((figure.name, figure.unit), figure)
            worse = figure.value > other.value if figure.unit in LOW_IS_GOOD else figure.value < other.value
            kept[figure.name, figure.unit] = figure if worse else other
    return tuple(_beside_others(figure, of_ranks) for figure in kept.values())


def _beside_others(figure: Figure, of_ranks: Mapping[int, list[Figure]]) -> Figure:
    values = [
        one.value for rank in sorted(of_ranks) for one in of_ranks[rank] if (one.name, one.unit) == (figure.name, figure.unit)
    ]
    return msgspec.structs.replace(figure, of_ranks=tuple(values)) if len(values) > 1 else figure
