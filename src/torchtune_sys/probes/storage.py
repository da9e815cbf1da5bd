"""placeholder"""

from __future__ import annotations

from torchtune_sys.host.base import Host
from torchtune_sys.model.facts.session import Intent
from torchtune_sys.model.facts.storage import StorageFacts


def probe(host: Host, intent: Intent) -> StorageFacts:
    raise NotImplementedError
