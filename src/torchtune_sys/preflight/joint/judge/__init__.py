"""Judging what the nodes told: pure functions from what was gathered to a verdict."""

from torchtune_sys.preflight.joint.judge.compute import TURNS_AT_MOST, doubtful_compute
from torchtune_sys.preflight.joint.judge.connections import behind_bad_links, doubtful_links
from torchtune_sys.preflight.joint.judge.whole import brief, judged, unsound

__all__ = ["TURNS_AT_MOST", "behind_bad_links", "brief", "doubtful_compute", "doubtful_links", "judged", "unsound"]
