"""placeholder"""

from __future__ import annotations

from torchtune_sys.host.base import Host
from torchtune_sys.model.facts.session import Intent, SessionFacts


def probe(host: Host, intent: Intent) -> SessionFacts:
    raise NotImplementedError
