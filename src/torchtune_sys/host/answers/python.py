"""The interpreter one trains with: asked in a child of its own kind, from a neutral directory, in the user's environment."""

from __future__ import annotations

import os
import sys
from typing import Any

from torchtune_sys.host import process
from torchtune_sys.host.live import read_text
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

_HERE = os.path.dirname(os.path.dirname(__file__))
_LIVE_S = 60.0
"""A cold torch import from a network file system takes tens of seconds."""


def interpreter(path: str, timeout_s: float) -> Fact[Any]:
    """What ``interpreter_child.look`` says in the interpreter ``path``."""
    if path == sys.executable and not (sys.flags.isolated or sys.flags.ignore_environment or sys.flags.no_user_site):
        return _ourselves()
    return _child(path, "interpreter_child.py", timeout_s)


def live_torch(path: str, timeout_s: float) -> Fact[Any]:
    """What torch says in the interpreter ``path``; torch may hang, abort or print what it likes."""
    return _child(path, "torch_child.py", max(timeout_s, _LIVE_S))


def _ourselves() -> Any:
    from torchtune_sys.host import interpreter_child

    found: dict[str, Any] = interpreter_child.look()  # type: ignore[no-untyped-call]
    if not getattr(sys.flags, "safe_path", False):  # since Python 3.11; without it the first entry is our own script's place
        found["path"] = [entry for entry in sys.path[1:] if entry]
    return found


def _child(path: str, script: str, timeout_s: float) -> Fact[Any]:
    source = read_text(os.path.join(_HERE, script), script)
    if isinstance(source, Missing):
        return source
    output = process.run((path, "-c", source), timeout_s=timeout_s, env={**os.environ, "LC_ALL": "C.UTF-8"})
    if isinstance(output, Missing):
        return Missing(output.why, path, output.detail.replace(source, "…"), output.remedy)
    if output.rc < 0:
        return Missing(Why.FAILED, path, f"the interpreter was ended by {process.ended_by(output.rc)}")
    if output.rc != 0:
        last = output.stderr.strip().splitlines()[-1:] or ["no message"]
        return Missing(Why.FAILED, path, f"the interpreter ended with status {output.rc}: {last[0][:200]}")
    return _last_object(output.stdout, path)


def _last_object(text: str, path: str) -> Fact[Any]:
    """The JSON object on the last line: sitecustomize, torch and its plug-ins print too."""
    from torchtune_sys.model import codec

    lines = text.strip().splitlines()
    try:
        found = codec.loads(lines[-1]) if lines else None
    except ValueError as error:
        return Missing(Why.UNPARSED, path, str(error))
    return (
        found if isinstance(found, dict) else Missing(Why.UNPARSED, path, "the interpreter did not print what it was asked for")
    )
