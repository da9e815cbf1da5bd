"""placeholder"""

from __future__ import annotations

from torchtune_sys.host.base import Host
from torchtune_sys.model.facts.network import NetworkFacts
from torchtune_sys.model.facts.session import Intent


def probe(host: Host, intent: Intent) -> NetworkFacts:
    raise NotImplementedError
