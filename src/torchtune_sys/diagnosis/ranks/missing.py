"""Say which ranks of a job only waited for others, and of which there is no line: what somebody who reads the logs of many ranks asks first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchtune_sys.diagnosis.ranks import file_names, peers
from torchtune_sys.diagnosis.text.lines import LogLine
from torchtune_sys.knowledge.sentences import tells_of_wait
from torchtune_sys.model.diagnosis import NamedCause, Unexplained
from torchtune_sys.model.patterns import pattern

_RANK = pattern(r"[Rr]ank (\d{1,6})\]")
_FEW, _MOST = 2, 1 << 14


def waiting(lines: Mapping[str, Sequence[LogLine]], told: Sequence[NamedCause | Unexplained]) -> tuple[int, ...]:
    """Return the ranks that only say that a peer is gone or late, without those of what was found first."""
    late = {
        int(found[1])
        for part in lines.values()
        for line in part
        if tells_of_wait(words := line.text[:400]) and (found := _RANK.search(words)) is not None
    }
    first = set(told[0].ranks) if told else set()
    return tuple(sorted((peers.speakers(lines) | late) - first))


def unheard(lines: Mapping[str, Sequence[LogLine]]) -> tuple[int, ...]:
    """Return the ranks of which no line and no file is given, of a job of several of which most are."""
    heard = set(file_names.numbered(lines).values())
    heard |= {line.rank for part in lines.values() for line in part if line.rank is not None}
    world = max(peers.world(lines), max(heard, default=-1) + 1)
    absent = [rank for rank in range(world) if rank not in heard] if len(heard) > _FEW and world <= _MOST else []
    return tuple(absent) if len(absent) <= len(heard) else ()
