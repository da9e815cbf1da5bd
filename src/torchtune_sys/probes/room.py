"""What placing ranks needs besides the facts that rules judge."""

from __future__ import annotations

from torchtune_sys.host import questions
from torchtune_sys.host.base import Host
from torchtune_sys.model.placement import Room
from torchtune_sys.probes.topology import core_sets

_PROGRAM_DIRS = ("/usr/bin", "/bin", "/usr/local/bin")


def probe(host: Host) -> Room:
    allowed = host.ask(questions.MEMORY_POLICY)
    return Room(
        cores=core_sets(host),
        may_bind_memory=allowed,
        numactl=any(host.exists(f"{place}/numactl") is True for place in _PROGRAM_DIRS),
    )
