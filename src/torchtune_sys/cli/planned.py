"""From the options to a plan: look, judge, look again at what would be written, decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtune_sys.model.plan import Plan


def planned(options: Mapping[str, Any]) -> Plan:
    """Raises UnreadableInput, BadConfig, UnknownName."""
    from torchtune_sys import planner
    from torchtune_sys.cli.judged import judged
    from torchtune_sys.cli.look import host_of
    from torchtune_sys.model.ground import Ground
    from torchtune_sys.probes import ground

    seen, results, _ = judged(options)
    host = host_of(options)
    paths, files = planner.places(results)
    return planner.plan(seen, results, Ground() if host is None else ground.probe(host, paths, files))
