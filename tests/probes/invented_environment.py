"""An environment that is not there, as a recording, and what the probe makes of it."""

from __future__ import annotations

from typing import Any

from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model.facts.python import PythonFacts
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.probes.python import probe as python

VENV = "/srv/env"
SITE = f"{VENV}/lib/python3.12/site-packages"
ANSWER: dict[str, Any] = {
    "executable": f"{VENV}/bin/python3",
    "version": "3.12.3",
    "implementation": "cpython",
    "machine": "x86_64",
    "free_threaded": False,
    "prefix": VENV,
    "base_prefix": "/usr",
    "path": ["/usr/lib/python3.12", SITE],
    "user_site": None,
    "glibc": "2.39",
    "abiflags": "",
}
VERSION_PY = "from typing import Optional\n__version__ = '2.5.1+cu124'\ndebug = False\ncuda: Optional[str] = '12.4'\nhip: Optional[str] = None\n"


def host(files: dict[str, Any] | None = None, env: dict[str, str] | None = None, **answer: Any) -> RecordedHost:
    return RecordedHost(
        {
            "files": {f"{VENV}/bin/python3": "", **(files or {})},
            "env": {"PATH": f"{VENV}/bin:/usr/bin", **(env or {})},
            "answers": {f"interpreter:{VENV}/bin/python3": {**ANSWER, **answer}, "cwd": "/srv"},
        },
        "recording",
    )


def probe(files: dict[str, Any] | None = None, env: dict[str, str] | None = None, **answer: Any) -> PythonFacts:
    return python.probe(host(files, env, **answer), Workload())
