"""One fault of a node or a link, with who must act."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.preflight import BLAMES_BETWEEN_NODES, Blame, Weight

_BLAME_OF = {cause: blame for blame, causes in BLAMES_BETWEEN_NODES.items() for cause in causes}


class JointFinding(msgspec.Struct, frozen=True, kw_only=True):
    part: str
    """``meeting``, ``liveness``, ``facts``, ``connections``, ``collectives``, ``compute`` or ``fingerprint``."""
    cause: str
    seen: str
    node: int | None = None
    link: tuple[int, int] | None = None
    weight: Weight = Weight.FATAL

    @property
    def blame(self) -> Blame:
        return _BLAME_OF.get(self.cause, Blame.CHECKER)
