"""Find the ranks that NCCL's RAS client reports as behind or without an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from torchtune_sys.diagnosis.symptoms import LIKELY, POSSIBLE, Candidate, Symptom
from torchtune_sys.diagnosis.text.lines import LogLine
from torchtune_sys.formats.nccl_ras import RasRank, communicators

_WORDS = "NCCL src/ras/client_support.cc"
_BETWEEN_TWO_LOOKS = 1
"""Operations by which a healthy rank may be behind while it is asked (NCCL user guide, RAS)."""
_SHOWN = 16


def symptoms_of(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    for source, part in lines.items():
        if not any(
            "launched up to operation" in line.text
            or "RAS" in line.text
            or "ranks_count" in line.text
            or "job process" in line.text
            for line in part
        ):
            continue
        for communicator in communicators(line.printed for line in part):
            missing = communicator.missing()
            if missing:
                how = "are dead, says RAS" if any(rank.is_dead for rank in missing) else "do not answer RAS"
                yield _symptom(
                    source, part, missing, f"{how} (communicator {communicator.name})", ("rank-killed", "rank-hung"), LIKELY
                )
            late, gap = communicator.behind()
            if late and not missing and 2 * len(late) <= len(communicator.ranks) + _SHOWN:
                weight = LIKELY if gap > _BETWEEN_TWO_LOOKS else POSSIBLE
                said = f"behind the others by {gap} operation{'s' if gap > 1 else ''} (communicator {communicator.name})"
                yield _symptom(source, part, late, said, ("rank-hung",), weight)


def _symptom(
    source: str, lines: Sequence[LogLine], ranks: Sequence[RasRank], how: str, causes: tuple[str, ...], weight: int
) -> Symptom:
    places = [_place(rank) for rank in ranks[:_SHOWN]]
    more = f", and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
    first = ranks[0]
    return Symptom(
        source=source,
        line=replace(lines[first.line], text=f"{', '.join(places)}{more}: {how}", host=first.host, rank=None),
        candidates=tuple(Candidate(cause=cause, weight=weight) for cause in causes),
        program="NCCL",
        ranks=tuple(sorted({rank.rank for rank in ranks if rank.rank >= 0})),
        words=_WORDS,
    )


def _place(rank: RasRank) -> str:
    name = f"rank {rank.rank}" if rank.rank >= 0 else "a rank"
    return f"{name} (process {rank.pid} on {rank.host})" if rank.host else name
