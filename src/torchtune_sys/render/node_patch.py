"""A verdict as patches of a Kubernetes node: its condition, and a taint while the node is unfit.

Source: kubernetes.io/docs, Node status (conditions) and Taints; conditions are merged by their type (strategic merge patch), taints are one
list, which a merge patch replaces whole: so the patch bears the version of the node that it was made from, and a change since is refused.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from torchtune_sys.model.preflight import Go, Preflight, Weight
from torchtune_sys.render.layout import clean

CONDITION = "TorchtuneSysFit"
TAINT = "torchtune-sys.io/unfit"
LABEL = TAINT
"""Beside the taint, so that the nodes that have it can be counted: the API selects by labels, and not by taints."""
_STATUS = {Go.GO: "True", Go.NO_GO: "False", Go.UNKNOWN: "Unknown"}
_MESSAGE_AT_MOST = 1024
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")
"""RFC 1123; a host's own name may have capitals, and kubelet makes them small."""
_VALUE_AT_MOST = 63
"""Of a taint: letters, digits, ``-``, ``_`` and ``.``, as of a label."""


def condition(found: Preflight, withheld: str = "", node: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the node's condition; ``withheld``: why an unfit node is not tainted. For ``/api/v1/nodes/NODE/status``, as application/strategic-merge-patch+json.

    ``node``: the node as the cluster has it, which tells whether the status is another one now (lastTransitionTime)."""
    causes = [cause for cause in found.nodes[0].causes if cause.weight is not Weight.WARNING]
    message = "; ".join(f"[{cause.blame.value}] {cause.cause}: {clean(cause.seen)}" for cause in causes) or "a job may start here"
    message = f"not tainted: {clean(withheld)}; {message}" if withheld else message
    entry = {
        "type": CONDITION,
        "status": _STATUS[found.verdict],
        "reason": "".join(part.capitalize() for part in found.verdict.value.split("-")),
        "message": message[:_MESSAGE_AT_MOST],
        "lastHeartbeatTime": found.time,
    }
    before = _part(node, "status").get("conditions") if node is not None else None
    known = [each for each in before if isinstance(each, dict)] if isinstance(before, list) else []
    if node is not None and not any((each.get("type"), each.get("status")) == (CONDITION, entry["status"]) for each in known):
        entry["lastTransitionTime"] = found.time
    return {"status": {"conditions": [entry]}}


def taint(found: Preflight) -> dict[str, str] | None:
    """Return the node's taint while it is unfit; None else."""
    if found.verdict is not Go.NO_GO:
        return None
    first = next(cause for cause in found.nodes[0].causes if cause.weight is Weight.FATAL)
    return {"key": TAINT, "value": _value(first.cause), "effect": "NoSchedule"}


def taints(found: Preflight, node: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the patch for ``/api/v1/nodes/NODE``, as application/merge-patch+json. ``node`` is the node as the cluster has it. None where nothing is to change:
    what could not be checked takes nothing back."""
    return None if found.verdict is Go.UNKNOWN else _patch(node, taint(found))


def untainted(node: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the same for a node that is to be without our taint."""
    return _patch(node, None)


def is_tainted(node: Mapping[str, Any]) -> bool:
    """Return whether the node has our taint."""
    return any(each.get("key") == TAINT for each in _taints(node))


def _patch(node: Mapping[str, Any], own: Mapping[str, str] | None) -> dict[str, Any] | None:
    now, meta = list(_taints(node)), _part(node, "metadata")
    others = [each for each in now if each.get("key") != TAINT]
    wanted = [*others, own] if own else others
    is_labelled = LABEL in _part(meta, "labels")
    if wanted == now and is_labelled == bool(own):
        return None
    version = meta.get("resourceVersion")
    metadata = {**({"resourceVersion": version} if version else {}), "labels": {LABEL: "true" if own else None}}
    return {"metadata": metadata, "spec": {"taints": wanted}}


def commands(found: Preflight) -> list[str]:
    """Return the same for a person who has not the cluster's view of the node: kubectl leaves the taints of others as they are. None for what cannot be
    a node's name: a recording may say ``--all``."""
    if _NODE.fullmatch(found.nodes[0].node) is None:
        return []
    name = shlex.quote(found.nodes[0].node)
    patch = shlex.quote(json.dumps(condition(found), ensure_ascii=True))
    lines = [f"kubectl patch node {name} --subresource=status --type=strategic -p {patch}"]
    if own := taint(found):
        lines.append(f"kubectl taint node {name} {own['key']}={own['value']}:{own['effect']} --overwrite")
    elif found.verdict is Go.GO:
        lines.append(f"kubectl taint node {name} {TAINT}-")
    return lines


def _taints(node: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    found = _part(node, "spec").get("taints")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _part(node: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object within what the API answered; an empty one where there is none."""
    found = node.get(name)
    return found if isinstance(found, dict) else {}


def _value(cause: str) -> str:
    """Return a cause as the value of a taint.

    >>> _value("site-mount:/x y"), _value("-")
    ('site-mount-x-y', 'unfit')
    """
    text = "".join(sign if sign.isascii() and (sign.isalnum() or sign in "-_.") else "-" for sign in cause)
    while "--" in text:
        text = text.replace("--", "-")
    return text[:_VALUE_AT_MOST].strip("-_.") or "unfit"
