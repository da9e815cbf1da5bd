"""Condition and taint of a Kubernetes node: what is patched, and what a person would type."""

from __future__ import annotations

import json
import shlex
from typing import Any

import msgspec
import pytest
from made_nodes import OTHER, OURS, node, verdict

from torchtune_sys.model.preflight import Go, NodeVerdict
from torchtune_sys.render import node_patch


def test_the_condition_says_why() -> None:
    (told,) = node_patch.condition(verdict(Go.NO_GO, "gpu-lost"))["status"]["conditions"]
    assert (told["type"], told["status"], told["reason"]) == ("TorchtuneSysFit", "False", "NoGo")
    assert told["message"].startswith("[node] gpu-lost: it is")
    assert "\033" not in told["message"]


@pytest.mark.parametrize(
    ("status", "changes"),
    [
        ({}, True),
        ({"conditions": [{"type": "Ready", "status": "False"}]}, True),
        ({"conditions": [{"type": "TorchtuneSysFit", "status": "True"}]}, True),
        ({"conditions": [{"type": "Ready", "status": "True"}, {"type": "TorchtuneSysFit", "status": "False"}]}, False),
        ({"conditions": "nonsense"}, True),
    ],
)
def test_the_condition_says_since_when(status: dict[str, Any], changes: bool) -> None:
    """A merge keeps the old time where the patch has none."""
    (told,) = node_patch.condition(verdict(Go.NO_GO, "gpu-lost"), "", {"status": status})["status"]["conditions"]
    assert told.get("lastTransitionTime") == ("2026-11-23T05:00:00Z" if changes else None)


@pytest.mark.parametrize(
    ("go", "before", "after"),
    [
        (Go.NO_GO, [OTHER], [OTHER, OURS]),
        (Go.NO_GO, [OTHER, {**OURS, "value": "old"}], [OTHER, OURS]),
        (Go.NO_GO, [OTHER, OURS], None),
        (Go.GO, [OURS, OTHER], [OTHER]),
        (Go.GO, [OTHER], None),
        (Go.UNKNOWN, [OURS, OTHER], None),
        (Go.UNKNOWN, [], None),
    ],
)
def test_only_our_own_taint_comes_and_goes(go: Go, before: list[Any], after: list[Any] | None) -> None:
    found = node_patch.taints(verdict(go, *(["gpu-lost"] if go is Go.NO_GO else [])), node(*before))
    labels = {node_patch.LABEL: "true" if OURS in (after or ()) else None}
    assert found == (
        None if after is None else {"metadata": {"resourceVersion": "7", "labels": labels}, "spec": {"taints": after}}
    )


def test_what_a_person_would_type_touches_no_other_taint() -> None:
    unfit, well, unsure = (
        node_patch.commands(verdict(go, *causes)) for go, causes in ((Go.NO_GO, ["gpu-lost"]), (Go.GO, []), (Go.UNKNOWN, []))
    )
    assert unfit[1] == "kubectl taint node n1 torchtune-sys.io/unfit=gpu-lost:NoSchedule --overwrite"
    assert well[1] == "kubectl taint node n1 torchtune-sys.io/unfit-"
    assert len(unsure) == 1
    patch = json.loads(shlex.split(unfit[0])[-1])
    assert patch["status"]["conditions"][0]["status"] == "False"


@pytest.mark.parametrize("name", ["--all", "-l=x", "a b", "n1\nn2", "$(reboot)", "n1;x", "n" * 254, ""])
def test_nobody_is_told_to_type_what_a_recording_calls_a_node(name: str) -> None:
    """``kubectl taint node --all …`` would take every node out of service."""
    node = NodeVerdict(node=name, verdict=Go.NO_GO, causes=verdict(Go.NO_GO, "gpu-lost").nodes[0].causes)
    found = msgspec.structs.replace(verdict(Go.NO_GO, "gpu-lost"), nodes=(node,))
    assert node_patch.commands(found) == []
    assert len(node_patch.commands(verdict(Go.NO_GO, "gpu-lost"))) == 2
