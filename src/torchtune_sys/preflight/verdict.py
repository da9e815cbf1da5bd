"""From results to a node's verdict: what a policy calls fatal is a no-go; what the checker itself got wrong never is."""

from __future__ import annotations

from collections.abc import Iterable

from torchtune_sys.model.preflight import Blame, Cause, Go, Weight
from torchtune_sys.model.rule import Evidence, Result, Rule, Verdict
from torchtune_sys.model.smoke import SmokeReport
from torchtune_sys.preflight.policy import NO_GPU, Policy
from torchtune_sys.render.report import failing, reasons, told, unjudged

BLAMES: dict[str, Blame] = {
    "gpu": Blame.HARDWARE,
    "pci": Blame.HARDWARE,
    "hardware": Blame.HARDWARE,
    "kernel": Blame.HARDWARE,
    "network": Blame.NETWORK,
    "nccl": Blame.NETWORK,
    "rdma": Blame.NETWORK,
    "environment": Blame.USER,
    "limits": Blame.NODE,
    "torch": Blame.USER,
    "python": Blame.USER,
    "dataloader": Blame.USER,
}
"""Who can mend what a family of rules finds; the node's administrator where it is not here."""
_ORDER = tuple(Weight)
_SUBJECTS = 3
"""How many subjects of one finding are told."""


def of_results(results: Iterable[Result], policy: Policy) -> list[Cause]:
    """The findings that the policy does not ignore, and what could not be judged of severity error."""
    found = []
    for result in results:
        weight = policy.weight(result.rule)
        if weight is None:
            continue
        if result.verdict is Verdict.FAIL:
            found.append(_cause(result.rule, weight, _seen(failing(result)) or result.rule.title))
        elif result.verdict is Verdict.CRASHED:
            seen = f"the rule {result.rule.id} crashed (a bug): {result.note}"
            found.append(_cause(result.rule, Weight.UNKNOWN, seen, cause="checker-fault", blame=Blame.CHECKER))
        elif unjudged(result, strict=False):
            seen = "; ".join(map(told, reasons(result)))
            found.append(_cause(result.rule, Weight.UNKNOWN, seen, blame=Blame.CHECKER))
    return found


def of_smoke(report: SmokeReport, policy: Policy) -> list[Cause]:
    """The stages of the smoke test that failed, or that could not be tried."""
    found = []
    for stage in report.stages:
        if stage.verdict in (Verdict.PASS, Verdict.NA):
            continue
        weight = Weight.FATAL if stage.verdict is Verdict.FAIL else Weight.UNKNOWN
        if any(stage.cause and stage.cause in table.ignore for table in policy.tables):
            continue
        blame = Blame.NODE if weight is Weight.FATAL else Blame.CHECKER
        found.append(
            Cause(
                cause=stage.cause or f"smoke-{stage.stage}",
                rule=f"smoke:{stage.stage}",
                blame=blame,
                weight=weight,
                seen=stage.seen,
            )
        )
    return found


def of_device(report: SmokeReport, policy: Policy) -> list[Cause]:
    """A finding where the training found no GPU, unless the policy says that this is how it should be."""
    if report.team.device == "cuda" or any(NO_GPU in table.ignore for table in policy.tables):
        return []
    seen = f'torch found no GPU; for nodes without: ignore = ["{NO_GPU}"] in the policy'
    return [Cause(cause=NO_GPU, rule="smoke:device", blame=Blame.NODE, weight=Weight.FATAL, seen=seen)]


def fault(seen: str) -> Cause:
    """What went wrong with the pre-flight itself."""
    return Cause(cause="checker-fault", rule="preflight", blame=Blame.CHECKER, weight=Weight.UNKNOWN, seen=seen)


def verdict(causes: Iterable[Cause]) -> Go:
    weights = {cause.weight for cause in causes}
    if Weight.FATAL in weights:
        return Go.NO_GO
    return Go.UNKNOWN if Weight.UNKNOWN in weights else Go.GO


def ordered(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    """The fatal ones first, each group as it was found."""
    return tuple(sorted(causes, key=lambda cause: _ORDER.index(cause.weight)))


def _cause(rule: Rule, weight: Weight, seen: str, cause: str = "", blame: Blame | None = None) -> Cause:
    return Cause(
        cause=cause or rule.cause or rule.id,
        rule=rule.id,
        blame=blame or BLAMES.get(rule.family, Blame.NODE),
        weight=weight,
        seen=seen,
    )


def _seen(evidence: Iterable[Evidence]) -> str:
    items = list(evidence)
    parts = [
        f"{item.subject}: {item.seen}" + (f" (should be {item.wanted})" if item.wanted else "") for item in items[:_SUBJECTS]
    ]
    return "; ".join(parts) + (f"; {len(items) - _SUBJECTS} more" if len(items) > _SUBJECTS else "")
