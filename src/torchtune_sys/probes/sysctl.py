"""placeholder"""

from __future__ import annotations

from torchtune_sys.host.base import Host
from torchtune_sys.model.facts.session import Intent
from torchtune_sys.model.facts.sysctl import SysctlFacts


def probe(host: Host, intent: Intent) -> SysctlFacts:
    raise NotImplementedError
