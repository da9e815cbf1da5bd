"""``preflight --format node-patch``: what would be changed at the cluster's node, and, where that is asked for, the change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtune_sys.model.preflight import Preflight


def patched(found: Preflight, *, act: bool) -> str:
    """Condition and taint as one line of JSON, with the commands that a person would type; applied first with ``act``. Raises UserError."""
    import json

    from torchtune_sys.cli.terminal import environment
    from torchtune_sys.render import node_patch

    name, condition = found.nodes[0].node, node_patch.condition(found)
    if act:
        from torchtune_sys.host.cluster import Cluster

        cluster = Cluster(environment())
        taints = node_patch.taints(found, cluster.node(name))
        cluster.patch_status(name, condition)
        if taints is not None:
            cluster.patch(name, taints)
    told = {"node": name, "condition": condition, "taint": node_patch.taint(found), "commands": node_patch.commands(found)}
    return json.dumps({**told, "applied": act}, ensure_ascii=True) + "\n"
