"""Make a node's verdict from results: what the policy makes fatal is a no-go; a fault of the checker never is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from torchtune_sys.host.secrets.filter import scrubbed
from torchtune_sys.model import codec
from torchtune_sys.model.preflight import Blame, Cause, Go, Preflight, Weight
from torchtune_sys.model.rule import Evidence, Result, Rule, Verdict
from torchtune_sys.model.smoke import SmokeReport
from torchtune_sys.preflight.policy import NO_GPU, NO_TORCH, Policy
from torchtune_sys.render.report import failing, reasons, unjudged, why_text
from torchtune_sys.render.text import seen_and_wanted

BLAMES: dict[str, Blame] = {
    "gpu": Blame.HARDWARE,
    "pci": Blame.HARDWARE,
    "hardware": Blame.HARDWARE,
    "kernel": Blame.HARDWARE,
    "network": Blame.NETWORK,
    "nccl": Blame.NETWORK,
    "rdma": Blame.NETWORK,
    "environment": Blame.USER,
    "torch": Blame.USER,
    "python": Blame.USER,
    "dataloader": Blame.USER,
}
"""Who can fix what a family of rules finds; for other families, the node's administrator."""
_BLAMES_OF_RULES: dict[str, Blame] = {
    "hostname-resolves-to-loopback": Blame.NODE,
    "hostname-unresolvable": Blame.NODE,
    "gloo-interface-missing": Blame.USER,
    "filesystem-not-answering": Blame.NETWORK,
    "file-server-not-responding": Blame.NETWORK,
    "file-system-client-evicted": Blame.NETWORK,
    "open-files-limit-reached-logged": Blame.NODE,
    "conntrack-table-full-logged": Blame.NODE,
    "neighbour-table-full-logged": Blame.NODE,
    "pids-limit-reached-logged": Blame.USER,  # of one job or container, most often one that has ended
    "oom-kill-logged": Blame.USER,
    "native-crash-logged": Blame.USER,
    "xid-of-program": Blame.USER,
    # software of the host that the kernel's log tells of
    **dict.fromkeys(
        (
            "kernel-crash-logged",
            "kernel-tainted-by-fault",
            "kernel-crash-dump-found",
            "cpu-lockup-logged",
            "iommu-fault-of-gpu",
            "driver-mismatch-logged",
            "driver-ignores-gpu",
            "gpu-needs-proprietary-module",
            "gpu-held-by-other-driver",
            "other-driver-holds-gpu",
            "gsp-firmware-missing",
            "module-signature-refused",
            "module-of-another-kernel-refused",
            "compute-mode-prohibited",
            "mig-without-instances",
        ),
        Blame.NODE,
    ),
    "cgroup-memory-tight": Blame.USER,  # what the job asked for (--mem)
    "cgroup-memory-far-below-host": Blame.USER,
}
"""The same for single rules that differ from their family."""
_NAMED_BY_ENVIRONMENT = ("gloo-interface-doubtful", "nccl-wrong-interface", "nccl-interface-doubtful")
"""Rules that the user must fix if an environment variable chose the interface."""
_MOUNTED_BY_CONTAINER = ("temporary-directory-not-writable", "dev-shm-too-small", "dev-shm-not-writable")
"""Rules about what the person who starts a container provides: a volume, --shm-size."""
_ORDER = tuple(Weight)
_SUBJECTS = 3
"""Number of subjects that are named per finding."""


def of_results(
    results: Iterable[Result], policy: Policy, nodes: int | None = None, *, hook: bool = False, contained: bool = False
) -> list[Cause]:
    """Return the findings that the policy does not ignore for a job of ``nodes``, or in a hook, and what could not be checked of severity error.
    ``contained``: in a container, where some things are its user's."""
    found = []
    for result in results:
        weight = policy.weight(result.rule, nodes, hook=hook)
        if weight is None:
            continue
        if result.verdict is Verdict.FAIL:
            blame = Blame.USER if contained and result.rule.id in _MOUNTED_BY_CONTAINER else _blame(result)
            found.append(_cause(result.rule, weight, _seen(failing(result)) or result.rule.title, blame=blame))
        elif result.verdict is Verdict.CRASHED:
            seen = f"the rule {result.rule.id} crashed (a bug): {result.note}"
            found.append(_cause(result.rule, Weight.UNKNOWN, seen, cause="checker-fault", blame=Blame.CHECKER))
        elif unjudged(result, strict=False):
            seen = "; ".join(map(why_text, reasons(result)))
            found.append(_cause(result.rule, Weight.UNKNOWN, seen, blame=Blame.CHECKER))
    return found


def without_own(results: Iterable[Result], *, listens: bool = True) -> tuple[Result, ...]:
    """Return the results but those on what a test of all ranks is the reason for: its RANK is no leftover, and who listens on the rendezvous port is the job
    itself (``listens``)."""

    def is_own(result: Result) -> bool:
        if result.rule.id == "master-port-in-use":
            return listens
        return result.rule.id == "rank-variables-left" and {one.subject for one in result.evidence} <= {"RANK", "PET_NNODES"}

    return tuple(result for result in results if not is_own(result))


def of_known(results: Iterable[Result], fresh: Iterable[Result], policy: Policy) -> list[Cause]:
    """Return what only the known part of the log tells, which is not among the ``fresh`` results: warnings, whatever it weighs else."""
    judged = {result.rule.id: result.verdict for result in fresh}
    old = [one for one in results if one.verdict is Verdict.FAIL and judged.get(one.rule.id) is not Verdict.FAIL]
    return [
        _cause(
            one.rule,
            Weight.WARNING,
            f"already known when this node was returned to service: {_seen(failing(one))}",
            blame=_blame(one),
        )
        for one in old
        if policy.weight(one.rule) is not None
    ]


def of_smoke(report: SmokeReport, policy: Policy) -> list[Cause]:
    """Return the stages of the smoke test that failed, as the policy weighs their causes, or that could not be tried."""
    found = []
    for stage in report.stages:
        weight = policy.weight_of(stage.cause, Weight.FATAL)
        if stage.verdict in (Verdict.PASS, Verdict.NA) or weight is None:
            continue
        blame = Blame.USER if stage.cause == NO_TORCH else Blame.NODE
        if stage.verdict is not Verdict.FAIL:
            weight, blame = Weight.UNKNOWN, Blame.CHECKER
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
    """Return a finding where the training found no GPU, unless the policy says that this is how it should be."""
    if report.team.device == "cuda" or not report.team.torch:  # without torch nobody looked for GPUs
        return []
    seen = f'torch found no GPU; for nodes without: ignore = ["{NO_GPU}"] in the policy'
    return own(policy, NO_GPU, "smoke:device", Blame.NODE, Weight.FATAL, seen)


def own(policy: Policy, cause: str, rule: str, blame: Blame, default: Weight, seen: str) -> list[Cause]:
    """Return a finding that is no rule's, as the policy weighs it; none where it is ignored."""
    weight = policy.weight_of(cause, default)
    return [] if weight is None else [Cause(cause=cause, rule=rule, blame=blame, weight=weight, seen=seen)]


def fault(seen: str) -> Cause:
    """Return what went wrong with the pre-flight itself."""
    return Cause(cause="checker-fault", rule="preflight", blame=Blame.CHECKER, weight=Weight.UNKNOWN, seen=seen)


def without_secrets(found: Preflight) -> Preflight:
    """Return it with what programs, processes and other nodes said filtered once more, names too: everybody reads a scheduler's reason and a node's condition."""
    return codec.convert(_filtered(msgspec.to_builtins(found)), Preflight)


def _filtered(value: Any) -> Any:
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else scrubbed(value)
    if isinstance(value, dict):
        return {key: _filtered(part) for key, part in value.items()}
    return [_filtered(part) for part in value] if isinstance(value, (list, tuple)) else value


_PLAIN = re.compile(r"[\w.-]{0,15}")
"""A word of which no filter knows that it is secret: most names of nodes."""


def verdict(causes: Iterable[Cause]) -> Go:
    weights = {cause.weight for cause in causes}
    if Weight.FATAL in weights:
        return Go.NO_GO
    return Go.UNKNOWN if Weight.UNKNOWN in weights else Go.GO


def ordered(causes: Iterable[Cause]) -> tuple[Cause, ...]:
    """Return the fatal ones first, each group as it was found."""
    return tuple(sorted(causes, key=lambda cause: _ORDER.index(cause.weight)))


def _cause(rule: Rule, weight: Weight, seen: str, cause: str = "", blame: Blame | None = None) -> Cause:
    return Cause(
        cause=cause or rule.cause or rule.id,
        rule=rule.id,
        blame=blame or _blame_of(rule),
        weight=weight,
        seen=seen,
    )


def _blame(result: Result) -> Blame:
    rule = result.rule
    if rule.id in _NAMED_BY_ENVIRONMENT and any("_SOCKET_IFNAME" in f"{item.subject} {item.seen}" for item in failing(result)):
        return Blame.USER
    return _blame_of(rule)


def _blame_of(rule: Rule) -> Blame:
    return _BLAMES_OF_RULES.get(rule.id) or BLAMES.get(rule.family, Blame.NODE)


def _seen(evidence: Iterable[Evidence]) -> str:
    items = list(evidence)
    parts = [seen_and_wanted(item) for item in items[:_SUBJECTS]]
    return "; ".join(parts) + (f"; {len(items) - _SUBJECTS} more" if len(items) > _SUBJECTS else "")
