"""How many nodes may be called bad in a while: the same failure on many nodes at once speaks against the checker or the image."""

from __future__ import annotations

import re

import msgspec

from torchtune_sys.host import slots
from torchtune_sys.model.preflight import Cause
from torchtune_sys.preflight.verdict import fault


class DrainLimit(msgspec.Struct, frozen=True, kw_only=True):
    """At most ``nodes`` in ``window_s`` seconds, in each failure domain, as a shared directory tells."""

    folder: str
    nodes: int
    window_s: float
    domain: str = ""

    def hold(self, node: str) -> Cause | None:
        """Take a place for ``node``; what speaks against calling it bad where there is none, or where nobody can tell."""
        domain = re.sub(r"[^A-Za-z0-9._-]", "_", self.domain).lstrip(".") or "all"
        try:
            held, others = slots.take(f"{self.folder}/{domain}", node, self.nodes, self.window_s)
        except OSError as error:
            return fault(f"the drain limit could not be asked: {self.folder}: {error.strerror}")
        if held:
            return None
        return fault(
            f"{self.nodes} nodes were called bad within {self.window_s:g} s ({', '.join(others)}): suspect the checker or the image; "
            "this node is left in service"
        )
