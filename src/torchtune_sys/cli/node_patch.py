"""``preflight --format node-patch``: print the patches of the Kubernetes node, and with ``--act`` apply them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from torchtune_sys.cli.terminal import environment
from torchtune_sys.errors import UserError
from torchtune_sys.host.cluster import Cluster
from torchtune_sys.host.secrets.filter import scrubbed
from torchtune_sys.preflight.drain_limit import TaintLimit, parse_taint_limit
from torchtune_sys.render import node_patch

if TYPE_CHECKING:
    from torchtune_sys.model.preflight import Preflight

_TRIES = 4
"""Attempts to remove a taint: the node may change between reading and patching (kubelet writes there, too)."""


def patched(found: Preflight, *, act: bool, at_most: str) -> str:
    """Return condition and taint as one line of JSON, with the commands that a person would type; with ``act``, apply them first. Raises UserError."""
    withheld = ""
    if act:
        withheld = applied(found, Cluster(environment()), parse_taint_limit(at_most))
    document: dict[str, Any] = {"node": found.nodes[0].node, "condition": node_patch.condition(found, withheld)}
    document |= {"taint": node_patch.taint(found), "commands": node_patch.commands(found), "applied": act, "withheld": withheld}
    return json.dumps(document, ensure_ascii=True) + "\n"


def applied(found: Preflight, cluster: Cluster, limit: TaintLimit) -> str:
    """Patch the node. Return why it is not tainted although it is unfit, else "". Raises UserError.

    All nodes may be judged in the same second. So each node counts again after it tainted itself, and removes its taint if there are too many. Of the
    taints that remain, the last one was set by a node that had counted all of them.
    """
    name = found.nodes[0].node
    node = cluster.node(name)
    patch = node_patch.taints(found, node)
    is_new = node_patch.taint(found) is not None and not node_patch.is_tainted(node)
    withheld = _beyond(cluster, limit, 1) if is_new else ""
    if patch is not None and not withheld:
        cluster.patch(name, patch)
        withheld = _beyond(cluster, limit, 0) if is_new else ""
        if withheld:
            _take_back(cluster, name)
    cluster.patch_status(name, node_patch.condition(found, withheld, node))
    return withheld


def _beyond(cluster: Cluster, limit: TaintLimit, more: int) -> str:
    """Return what speaks against ``more`` nodes with the taint beside those that have it; "" where nothing does. Where nobody can tell, that does."""
    try:
        tainted, of_all = cluster.count(node_patch.LABEL), cluster.count()
    except UserError as error:
        return f"the number of tainted nodes cannot be determined ({scrubbed(error.seen)})"
    if tainted + more <= limit.nodes(of_all):
        return ""
    return f"{tainted - (1 - more)} of {of_all} nodes have the taint, the limit of --max-tainted {limit}: suspect the checker or the image"


def _take_back(cluster: Cluster, name: str) -> None:
    """Remove our taint. Raises UserError if the cluster keeps refusing."""
    for left in reversed(range(_TRIES)):
        try:
            patch = node_patch.untainted(cluster.node(name))
            if patch is not None:
                cluster.patch(name, patch)
            return
        except UserError:
            if not left:
                raise
