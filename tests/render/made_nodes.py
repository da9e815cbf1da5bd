"""Verdicts on a node of Kubernetes, and the node, made by hand."""

from __future__ import annotations

from typing import Any

from torchtune_sys.model.preflight import Blame, Cause, Go, NodeVerdict, Preflight, Scale, Weight
from torchtune_sys.render import node_patch

OTHER = {"key": "maintenance", "effect": "NoSchedule"}
OURS = {"key": node_patch.TAINT, "value": "gpu-lost", "effect": "NoSchedule"}


def verdict(go: Go, *causes: str) -> Preflight:
    told = tuple(Cause(cause=each, rule=each, blame=Blame.NODE, weight=Weight.FATAL, seen="it is \033[31mred") for each in causes)
    return Preflight(
        version="1",
        time="2026-11-23T05:00:00Z",
        epoch_s=0.0,
        where="health-check",
        level="fast",
        seconds=1.0,
        verdict=go,
        nodes=(NodeVerdict(node="n1", verdict=go, causes=told),),
        scale=Scale(nodes=1, ranks=1),
    )


def node(*taints: dict[str, str]) -> dict[str, Any]:
    labels = {node_patch.LABEL: "true"} if any(each["key"] == node_patch.TAINT for each in taints) else {}
    return {"metadata": {"resourceVersion": "7", "labels": labels}, "spec": {"taints": [*taints]}}
