"""Faults of one host's exchanges: right, but late."""

from __future__ import annotations

from preflight.joint.faults.computing import patched
from preflight.joint.faults.expected import Fault
from preflight.joint.faults.network import node_with

_LATE = """
def plant(torch):
    import time
    import torch.distributed as dist
    def changed(right):
        def exchange(*words, **named):
            time.sleep(0.3)
            return right(*words, **named)
        return exchange
    for name in {names}:
        if hasattr(dist, name):
            setattr(dist, name, changed(getattr(dist, name)))
"""
_WITH_EXCHANGES = 'hasattr(torch, "distributed") and hasattr(torch.distributed, "all_reduce")'


def _late(*names: str, place: int, held: bool = False) -> Fault:
    return Fault(
        patched(_LATE.replace("{names}", repr(names)), _WITH_EXCHANGES),
        node_with("straggler-network", "straggler-compute"),
        place,
        held,
    )


FAULTS = {
    "late-sum": _late("all_reduce", place=2),
    "late-receive": _late("recv", "irecv", place=2),
    "late-broadcast": _late("broadcast", place=4, held=True),
    "late-reduce-scatter": _late(
        "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base", place=4, held=True
    ),
    "late-all-to-all": _late("all_to_all", "all_to_all_single", place=1),
    "late-send": _late("send", "isend", place=4),
    "late-barrier": _late("barrier", place=2),
}
