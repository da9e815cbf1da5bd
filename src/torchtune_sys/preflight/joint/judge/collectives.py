"""Findings on the collective of all nodes: wrong sums, ranks that ended in it, and what failed or hung."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchtune_sys.model.preflight import Weight
from torchtune_sys.preflight.joint.gathered import Gathered, Rank
from torchtune_sys.preflight.joint.judge import facts, isolated
from torchtune_sys.preflight.joint.judge.finding import JointFinding
from torchtune_sys.preflight.joint.sums import ended_by_signals, late, odd_sums


def findings(gathered: Gathered, found: Sequence[JointFinding]) -> list[JointFinding]:
    """Return the findings. ``found``: those of the other parts, which a collective that fails may follow from."""
    if not gathered.collectives:
        return []
    if gathered.strangers:  # what fails then is nobody's fault
        seen = "; ".join(f"{gathered.name(node)}: {words}" for node, words in [*gathered.strangers.items()][:4])
        return [JointFinding(part="collectives", cause="stranger-among-ranks", seen=seen, weight=Weight.UNKNOWN)]
    answers = {rank: value if isinstance(value, dict) else {} for rank, value in gathered.collectives[0].items()}
    return list(_of_single_ranks(answers)) or _failed(gathered, answers, found)


def _of_single_ranks(answers: Mapping[Rank, Mapping[str, Any]]) -> Iterator[JointFinding]:
    """Yield the ranks with a wrong sum; without any, those that a signal ended."""
    odd = odd_sums(answers)
    for rank, seen in odd.items():
        yield JointFinding(part="collectives", cause="silent-data-corruption", node=rank[0], seen=seen[:200])
    for rank, by in {} if odd else ended_by_signals(answers).items():
        seen = f"{str(answers[rank].get('error'))[:200]}; most other ranks ran on{facts.hint_of_end(by)}"
        yield JointFinding(part="collectives", cause=facts.cause_of_end(by), node=rank[0], seen=seen)


def _failed(gathered: Gathered, answers: Mapping[Rank, Mapping[str, Any]], found: Sequence[JointFinding]) -> list[JointFinding]:
    """Return whom a collective that failed or hung accuses, without what ``found`` explains."""
    failed = [rank for rank, value in answers.items() if not value.get("ok")]
    is_asked = gathered.tests is not None and gathered.tests.is_asked
    delay = late(answers)
    if not is_asked and (not (failed or delay) or any(f.weight is Weight.FATAL for f in found)):
        return []
    errors = "; ".join(dict.fromkeys(str(answers[rank].get("error", "no answer"))[:160] for rank in failed[:3]))
    is_wrong = any(value.get("wrong") for value in answers.values())
    cause = "silent-data-corruption" if is_wrong else "straggler-network"
    nodes = sorted({rank[0] for rank in answers})
    if failed and len(nodes) == 2:
        seen = f"a collective between these two nodes fails: {errors}"
        return [JointFinding(part="collectives", cause=cause, link=(nodes[0], nodes[1]), seen=seen)]
    if delay and not failed and len(nodes) == 2:
        seen = f"{delay.what} over these two nodes takes {delay.seconds * 1e3:.0f} ms, again and again"
        return [JointFinding(part="collectives", cause=cause, link=(nodes[0], nodes[1]), seen=seen)]
    known_nodes = {f.node for f in found if f.node is not None and f.weight is Weight.FATAL}
    known_links = {frozenset(f.link) for f in found if f.link is not None}
    return [
        f
        for f in isolated.findings(gathered, cause, errors)
        if f.node not in known_nodes and (f.link is None or not (frozenset(f.link) in known_links or known_nodes & {*f.link}))
    ]
