"""Judge gathered results: pure functions that return a verdict."""

from torchtune_sys.preflight.joint.judge.compute import ranks_again
from torchtune_sys.preflight.joint.judge.connections import (
    accused_links,
    behind_bad_links,
    control_of,
    doubtful_links,
    least_rate,
    loses_much,
    noisy_links,
)
from torchtune_sys.preflight.joint.judge.facts import named_elsewhere
from torchtune_sys.preflight.joint.judge.slower import TURNS_AT_MOST
from torchtune_sys.preflight.joint.judge.whole import brief, judged, unsound

__all__ = [
    "TURNS_AT_MOST",
    "accused_links",
    "control_of",
    "behind_bad_links",
    "brief",
    "doubtful_links",
    "judged",
    "least_rate",
    "loses_much",
    "named_elsewhere",
    "noisy_links",
    "ranks_again",
    "unsound",
]
