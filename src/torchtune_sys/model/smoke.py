"""The result of a smoke test."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.diagnosis import Confidence
from torchtune_sys.model.rule import Verdict

LOW_IS_GOOD = frozenset(("s", "ms"))
"""Units of figures that are better low; of the others more is better."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement of one rank."""

    name: str
    value: float
    unit: str
    """As the field writes it: TFLOP/s, GB/s (10**9 bytes), s, MiB; "" for a count."""
    expected: float = 0.0
    """The least that is plausible here; 0 where nobody knows."""
    of_ranks: tuple[float, ...] = ()
    """What each rank measured, in the order of ranks; empty where one measured alone."""


class RankEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a stage ended on one rank."""

    rank: int
    verdict: Verdict
    seconds: float
    cause: str = ""
    seen: str = ""
    remedy: str = ""
    trace: str = ""
    """Where it happened, one frame a line, the innermost last."""
    confidence: Confidence = Confidence.CERTAIN


class StageResult(msgspec.Struct, frozen=True, kw_only=True):
    """One stage over all ranks: its verdict is the worst of theirs."""

    stage: str
    verdict: Verdict
    seconds: float
    """On the slowest rank."""
    figures: tuple[Figure, ...] = ()
    """Over the ranks the lowest of each rate, and the highest of what is better low (seconds)."""
    ranks: tuple[int, ...] = ()
    """Those with this verdict, where others have another one."""
    cause: str = ""
    """The same vocabulary as the rules' causes; "" where none is known."""
    confidence: Confidence | None = None
    """How sure the cause is; null where none is named."""
    seen: str = ""
    remedy: str = ""
    trace: str = ""
    places: tuple[str, ...] = ()
    """Where each rank was when a hang was ended."""


class Team(msgspec.Struct, frozen=True, kw_only=True):
    """Who ran."""

    python: str
    torch: str = ""
    ranks: int = 0
    backend: str = ""
    device: str = "cpu"
    """cpu or cuda."""
    gpus: tuple[str, ...] = ()
    """Name and PCI address or UUID of the GPUs that were used."""
    gpus_here: int = 0
    """As many as this host has, by NVML or sysfs; 0 where nobody could look."""
    level: str = "default"
    user: str = ""
    """Who the ranks ran as, where it was not who ran the tool: root runs nobody else's files as root."""


_CROWD = "processes for each CPU before the test"
"""The figure by which the stage *device* tells of others on the CPUs."""


class FigureComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A figure beside this host's own earlier ones."""

    stage: str
    figure: str
    unit: str
    now: float
    before: float
    """Median of the earlier proofs with the same hardware and software."""
    proofs: int


class SmokeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the smoke test."""

    version: str
    time: str
    """UTC, ISO 8601."""
    host: str
    team: Team
    verdict: Verdict
    seconds: float
    stages: tuple[StageResult, ...]
    slower: tuple[FigureComparison, ...] = ()
    output: str = ""
    """The end of what the ranks printed, where something failed."""
    cut_off: str = ""
    """"interrupted" or "terminated" where a signal ended the test: the stages that are through, the others unknown."""

    @property
    def crowd(self) -> float:
        """Return how many processes wanted each CPU before the test; 0.0 where it was no crowd."""
        return max((one.value for stage in self.stages for one in stage.figures if one.name == _CROWD), default=0.0)

    @property
    def proven(self) -> bool:
        """Return whether every applicable stage of the level passed."""
        return self.verdict is Verdict.PASS and not self.cut_off
