"""The causes of one error text, for the smoke test and the pre-flight, which have no more than that."""

from __future__ import annotations

import msgspec

from torchtune_sys.diagnosis.symptoms import LIKELY, symptoms_of
from torchtune_sys.diagnosis.text.lines import lines_of
from torchtune_sys.knowledge import sentences
from torchtune_sys.knowledge.causes import cause_rows

_LINES = 400
_ENDED = "rank-killed"
"""Of words that tell only that a process ended: who asks here saw how it ended."""


class KnownWords(msgspec.Struct, frozen=True, kw_only=True):
    causes: tuple[str, ...]
    """Slugs, the likeliest first."""
    remedy: str
    is_sure: bool
    """The words stand for nothing else that is known."""


def known(text: str, stage: str = "") -> KnownWords | None:
    """Return what the table of sentences and the catalogue of messages know of a text; the words of a stage of the smoke test first.

    >>> known("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.").causes
    ('dev-shm-too-small',)
    >>> known("OSError: [Errno 28] No space left on device", "checkpoint").causes
    ('disk-full-or-quota',)
    >>> known("all is well") is None
    True
    """
    own = sentences.in_stage(text, stage) if stage else None
    if own is not None:
        return _known(own.causes, own.remedy, own.role == "cause")
    lines = lines_of(enumerate(text.split("\n")[:_LINES], 1))
    found = [each for each in symptoms_of("", lines) if each.candidates and _ENDED not in (of.cause for of in each.candidates)]
    if not found:
        return None
    best = max(found, key=lambda each: each.candidates[0].weight)
    likeliest = best.candidates[0]
    return _known(tuple(each.cause for each in best.candidates), likeliest.fix, likeliest.weight >= LIKELY)


def _known(causes: tuple[str, ...], remedy: str, sure: bool) -> KnownWords:
    row = cause_rows().get(causes[0])
    return KnownWords(causes=causes, remedy=remedy or (row.fix if row is not None else ""), is_sure=sure and len(causes) == 1)
