"""Find ranks that are slow, whose CPU is taken away, or that compute wrong results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median

import msgspec

from torchtune_sys.model.preflight import Weight
from torchtune_sys.preflight.joint.gathered import Gathered, Rank
from torchtune_sys.preflight.joint.judge.facts import cause_of_end, hint_of_end
from torchtune_sys.preflight.joint.judge.finding import JointFinding
from torchtune_sys.preflight.joint.judge.slower import MANY, TURNS_AT_MOST, TURNS_OF_ALL, standing

QUOTA_GAP = 0.25
"""The part of the time in which a rank that only computes neither ran nor waited for a CPU: somebody held it back."""
LEAST_SHARE = 0.45
"""Of the usual share of a CPU. Four healthy nodes on two CPUs had from 0.47 to 0.90."""
SPARE_CPUS = 0.5
"""Idle CPUs beside a rank that wanted to run: who gets little of busy CPUs was not held back (at a load of 30 on two CPUs a healthy node of
four had 6 % of one, the others 28 %)."""
_TURNS = 2
COPY_TIMES = 3.0
"""So many times as long as its peers' is a copy that is called slow. Of healthy virtual machines on one host, memory that neighbours use at the
same time was seen to take twice as long."""
_COPY_TURNS = 8
"""In which copies are slow, before that speaks against a rank. On two cores at a load of 20 copies of 6 % of the turns took three times as long as usual, and a sixth of
those that followed one a second later: with eight in a row of 1,024 healthy nodes hardly any is named."""
_LATE = ("did not end within", "the worker does not answer")


def throttled(gathered: Gathered) -> dict[Rank, str]:
    """Return the ranks that were held back in every turn."""
    found: dict[Rank, str] = {}
    shares = {rank: [turn.share for turn in turns if turn.share is not None] for rank, turns in gathered.computes.items()}
    usual = median([max(each) for each in shares.values() if each] or [1.0])
    spare = {
        rank: min([turn.spare for turn in turns if turn.spare is not None] or [0.0]) for rank, turns in gathered.computes.items()
    }
    for rank, turns in gathered.computes.items():
        gaps = [turn.gap for turn in turns if turn.gap is not None]
        if gaps and min(gaps) > QUOTA_GAP:
            found[rank] = f"for {min(gaps):.0%} of the time it neither ran nor waited for a CPU"
        elif shares[rank] and len(shares) > 2 and max(shares[rank]) < LEAST_SHARE * usual and spare[rank] > SPARE_CPUS:
            found[rank] = f"it gets {max(shares[rank]):.0%} of a CPU while others are idle; other ranks get {usual:.0%}"
    return found


def ranks_again(gathered: Gathered) -> frozenset[Rank]:
    """Return the ranks whose turn comes once more, where somebody looks odd: noise must come again and again to be believed.

    A few times all, so that peers show how often noise comes; then those who look slow, of many alone. Of few all: they may share what they run on.
    """
    turns = {rank: len(each) for rank, each in gathered.computes.items()}
    if not turns:
        return frozenset()
    most, (slow, suspects, noisy) = max(turns.values()), standing(gathered)
    is_odd = suspects or noisy or throttled(gathered) or fingerprints(gathered) or _copying_slowly(gathered)
    if most < _TURNS and is_odd:
        return frozenset(turns)
    if most < TURNS_OF_ALL and (suspects or (noisy and not slow)):
        return frozenset(turns)
    again = frozenset(rank for rank in suspects if turns[rank] < TURNS_AT_MOST)
    if again and len(turns) < MANY:
        return frozenset(turns)
    return again | {rank for rank in _copying_slowly(gathered) if turns[rank] < _COPY_TURNS}


def fingerprints(gathered: Gathered) -> list[JointFinding]:
    """Return a finding for ranks whose training step gave other bits than it must, or than most of their class."""
    found: list[JointFinding] = []
    classes: dict[str, dict[Rank, str]] = {}
    for rank, turns in gathered.computes.items():
        wrong = next((turn.wrong for turn in turns if turn.wrong), "")
        if wrong:
            found.append(_finding(gathered, rank, "silent-data-corruption", wrong))
        elif turns and turns[-1].weights:
            marks = {turn.weights for turn in turns if turn.weights}
            if len(marks) > 1:
                seen = "the same training step gave different weights when it was repeated"
                found.append(_finding(gathered, rank, "silent-data-corruption", seen))
            classes.setdefault(turns[0].kind, {})[rank] = turns[-1].weights
    named = {finding.node for finding in found}
    for ranks in classes.values():
        counts = Counter(ranks.values())
        usual = max(counts, key=lambda mark: counts[mark])
        odd = [rank for rank, mark in ranks.items() if mark != usual and rank[0] not in named]
        if odd and counts[usual] * 2 <= len(ranks):
            odd = []  # no majority: cannot be compared
        for rank in odd:
            seen = f"the checksum of the weights after an exact training step is {ranks[rank][:12]}; {counts[usual]} others have {usual[:12]}"
            found.append(_finding(gathered, rank, "silent-data-corruption", seen))
    return found


def _finding(gathered: Gathered, rank: Rank, cause: str, seen: str) -> JointFinding:
    node, local = rank
    where = f"local rank {local}: " if gathered.locals_ > 1 else ""
    part = "fingerprint" if cause == "silent-data-corruption" else "compute"
    return JointFinding(part=part, cause=cause, node=node, seen=where + seen)


def _uncertain(slow: JointFinding, turns: int) -> JointFinding:
    seen = f"{slow.seen}; it was slow in all {turns} turns, and time ran out before this was certain: give more by --budget"
    return msgspec.structs.replace(slow, seen=seen, weight=Weight.UNKNOWN)


def findings(gathered: Gathered, quotas: frozenset[int]) -> list[JointFinding]:
    """Return the findings on computing. ``quotas``: nodes whose facts tell of a quota."""
    found = fingerprints(gathered)
    held = throttled(gathered)
    for rank, seen in held.items():
        if rank[0] not in quotas:
            found.append(_finding(gathered, rank, "cpu-quota-on-one-node", seen))
    stand = standing(gathered)
    for rank, (slower, allowed) in (stand.slow | (stand.undecided if gathered.turns_cut else {})).items():
        if rank not in held and rank[0] not in quotas:
            seen = f"{slower:.0%} slower than the median of its peers, whose noise is {allowed:.0%}"
            slow = _finding(gathered, rank, "straggler-compute", seen)
            found.append(slow if rank in stand.slow else _uncertain(slow, len(gathered.computes[rank])))
    found += slow_copies(gathered)
    found += failures(gathered)
    return found


def failures(gathered: Gathered) -> list[JointFinding]:
    """Return the ranks whose training step ended with an error. Where it is well on more than half of them, that speaks against the node; that it took too long does not."""
    failed = {rank: turns[-1] for rank, turns in gathered.computes.items() if turns and turns[-1].error}
    found = []
    for rank, turn in failed.items():
        is_late = turn.error.startswith(_LATE)
        if is_late or 2 * len(failed) >= len(gathered.computes):
            found.append(
                JointFinding(part="compute", cause="checker-fault", node=rank[0], seen=turn.error[:300], weight=Weight.UNKNOWN)
            )
        else:
            seen = f"a training step fails here and succeeds on most others: {turn.error[:300]}{hint_of_end(turn.signal)}"
            found.append(JointFinding(part="compute", cause=cause_of_end(turn.signal), node=rank[0], seen=seen))
    return found


def slow_copies(gathered: Gathered) -> Iterator[JointFinding]:
    """Yield the ranks that copy memory at less than a third of the rate of their peers of the same hardware, in every turn."""
    for rank, (turns, best, usual) in _copying_slowly(gathered).items():
        words = f"a memory copy takes {best * 1e3:.1f} ms; on its peers it takes {usual * 1e3:.1f} ms"
        slow = _finding(gathered, rank, "straggler-compute", words)
        if turns >= _COPY_TURNS:
            yield slow
        elif gathered.turns_cut:
            yield _uncertain(slow, turns)


def _copying_slowly(gathered: Gathered) -> dict[Rank, tuple[int, float, float]]:
    """Return by rank, of at least three of the same hardware: in how many turns it copied, the seconds of its best copy, and of its peers' usual one."""
    classes: dict[str, dict[Rank, list[float]]] = {}
    for rank, turns in gathered.computes.items():
        if best := [min(turn.copy_s) for turn in turns if turn.copy_s and min(turn.copy_s) > 0]:
            classes.setdefault(turns[0].hardware, {})[rank] = best
    found = {}
    for ranks in classes.values():
        usual = median(min(best) for best in ranks.values())
        slow = {rank: best for rank, best in ranks.items() if len(ranks) > 2 and min(best) > COPY_TIMES * usual}
        found.update({rank: (len(best), min(best), usual) for rank, best in slow.items()})
    return found
