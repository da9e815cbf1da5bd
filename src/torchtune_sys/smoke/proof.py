"""The proof that a run stores: what it ran on, its measurements, and those of earlier runs."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import msgspec

from torchtune_sys.model import codec
from torchtune_sys.model.facts.limits import SessionLimit
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.smoke import LOW_IS_GOOD, FigureComparison, SmokeReport
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, known
from torchtune_sys.probes.proof import PROOF_LIMIT

SCHEMA = "torchtune-sys/proof/1"
_KEPT = 20
"""Earlier runs whose figures are kept."""
_FEWEST = 3
"""Runs below which there is no saying what is usual here."""
NOISE = 0.1
"""A tenth: what clocks, heat and neighbours move such figures by without anything being wrong. A convention."""
_SPREADS = 5 * 1.4826
"""Five standard deviations, estimated from the median absolute deviation of logarithms: some 40 figures a run are compared. With three, 15 of 20
runs of a healthy host had a figure that was told as slower, with five 6, of which 4 ran beside other work."""
_NAMES = {
    "kernel": "kernel",
    "driver": "driver",
    "gpus": "GPUs",
    "torch": "torch",
    "nccl": "NCCL",
    "python": "interpreter",
    "packages": "packages beside torch",
    "nofile": "limit nofile",
    "memlock": "limit memlock",
}
_SAME_FIGURES = ("gpus", "torch", "ranks", "level")
"""What must be equal for figures to be comparable."""


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """One run that passed."""

    time: str
    epoch_s: float
    fingerprint: dict[str, str]
    figures: dict[str, float]
    """By "stage/figure/unit"."""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The file: the runs that passed, the last one last, and a digest over them."""

    schema: str = SCHEMA
    runs: tuple[Past, ...]
    digest: str = ""


def fingerprint(seen: Snapshot) -> dict[str, str]:
    """Return what a proof rests on, as far as it is known. GPUs by a digest of their UUIDs: the file tells nobody which they are."""
    found: dict[str, object] = {}
    if not isinstance(seen.system, Missing):
        found["kernel"] = seen.system.kernel
    if not isinstance(seen.gpu, Missing):
        found["driver"] = seen.gpu.driver_version
        uuids = sorted(known(gpu.uuid, "") for gpu in known(seen.gpu.devices, ()))
        found["gpus"] = sha256("\n".join(uuids).encode()).hexdigest()[:16] if uuids else ""
    if not isinstance(seen.python, Missing):
        found["python"] = seen.python.executable
        if not isinstance(seen.python.torch, Missing):
            found.update(torch=seen.python.torch.version, nccl=seen.python.torch.nccl)
        if not isinstance(seen.python.distributions, Missing):
            others = sorted({f"{each.name} {each.version}" for each in seen.python.distributions if each.name != "torch"})
            found["packages"] = sha256("\n".join(others).encode()).hexdigest()[:16]
    if not isinstance(seen.limits, Missing):
        for name in ("nofile", "memlock"):
            limit = seen.limits.limits.get(name)
            if isinstance(limit, SessionLimit):
                found[name] = "unlimited" if limit.soft is None else str(limit.soft)
    return {name: str(value) for name, value in found.items() if not isinstance(value, Missing)}


def parse(text: str) -> Proof | None:
    """Return the proof in a file; None for anything else, and for one that was changed after it was written."""
    try:
        found: Proof = codec.loads(text.encode("utf-8", "surrogateescape"), Proof)
    except ValueError:
        return None
    return found if found.schema == SCHEMA and found.runs and found.digest == _digest(found.runs) else None


def grown(before: Proof | None, report: SmokeReport, now: Mapping[str, str], epoch_s: float) -> str:
    """Return the file's new content after a run that passed; fewer runs where it would be larger than a reader takes."""
    runs = (*(before.runs if before is not None else ()), _past(report, now, epoch_s))[-_KEPT:]
    while len(text := _written(runs)) > PROOF_LIMIT and len(runs) > 1:
        runs = runs[1:]
    return text.decode()


def _written(runs: tuple[Past, ...]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(Proof(runs=runs, digest=_digest(runs))), indent=1) + b"\n"


def _past(report: SmokeReport, now: Mapping[str, str], epoch_s: float) -> Past:
    about = {"ranks": str(report.team.ranks), "level": report.team.level}
    return Past(time=report.time, epoch_s=epoch_s, fingerprint={**now, **about}, figures=figures(report))


def _digest(runs: tuple[Past, ...]) -> str:
    return sha256(msgspec.json.encode(runs, order="deterministic")).hexdigest()


def figures(report: SmokeReport) -> dict[str, float]:
    """Return the figures of the stages that passed."""
    return {
        f"{stage.stage}/{figure.name}/{figure.unit}": figure.value
        for stage in report.stages
        if stage.verdict is Verdict.PASS
        for figure in stage.figures
        if figure.unit in LOW_IS_GOOD or "/s" in figure.unit
    }


def slower(before: Proof | None, report: SmokeReport, now: Mapping[str, str]) -> tuple[FigureComparison, ...]:
    """Return the figures that are worse than this host's own earlier ones by more than they vary."""
    from math import expm1, log
    from statistics import median  # with what it imports it takes longer than check, which shows a proof's age, has

    here = _past(report, now, 0.0)
    alike = [
        past
        for past in (before.runs if before is not None else ())
        if all(past.fingerprint.get(name) == here.fingerprint.get(name) for name in _SAME_FIGURES)
    ]
    found = []
    for name, value in here.figures.items():
        earlier = [past.figures[name] for past in alike if past.figures.get(name, 0.0) > 0.0]
        if len(earlier) < _FEWEST or value <= 0.0:
            continue
        usual = median(earlier)
        spread = median(abs(log(one / usual)) for one in earlier)
        stage, figure, unit = name.split("/", 2)
        if loss(value, usual, unit) > max(NOISE, expm1(_SPREADS * spread)):
            found.append(FigureComparison(stage=stage, figure=figure, unit=unit, now=value, before=usual, proofs=len(earlier)))
    return tuple(found)


def loss(now: float, before: float, unit: str) -> float:
    """Return by what part a figure is worse than before: negative where it is better.

    >>> round(loss(80.0, 100.0, "GB/s"), 2), loss(3.0, 2.0, "s")
    (0.25, 0.5)
    """
    return now / before - 1 if unit in LOW_IS_GOOD else before / now - 1


def standing(proof: Proof, now: Mapping[str, str], epoch_s: float) -> str:
    """Return what a look at the host says of the smoke test that last passed.

    >>> past = Past(time="", epoch_s=0.0, fingerprint={"driver": "580.95"}, figures={})
    >>> standing(Proof(runs=(past,)), {"driver": "580.95"}, 3 * 86400.0)
    'training proven 3 days ago'
    >>> standing(Proof(runs=(past,)), {"driver": "590.1"}, 60.0)
    'driver changed since the smoke test last passed'
    """
    last = proof.runs[-1]
    changed = [
        words
        for name, words in _NAMES.items()
        if name in now and name in last.fingerprint and now[name] != last.fingerprint[name]
    ]
    if changed:
        return f"{', '.join(changed)} changed since the smoke test last passed"
    return f"training proven {ago(epoch_s - last.epoch_s)}"


def ago(seconds: float) -> str:
    """Return how long ago something was, in words.

    >>> ago(-5), ago(100), ago(7200), ago(86400 * 1.5), ago(86400 * 9)
    ('in the future, by this clock', 'just now', '2 hours ago', 'a day ago', '9 days ago')
    """
    if seconds < 0:
        return "in the future, by this clock"
    for length, word in ((86400.0, "day"), (3600.0, "hour")):
        count = int(seconds // length)
        if count:
            return f"{'an' if word == 'hour' else 'a'} {word} ago" if count == 1 else f"{count} {word}s ago"
    return "just now" if seconds < 600 else f"{int(seconds // 60)} minutes ago"
