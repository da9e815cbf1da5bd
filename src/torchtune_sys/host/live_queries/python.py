"""The interpreter one trains with: asked in a child of its own kind, from a neutral directory, in the user's environment."""

from __future__ import annotations

import os
import sys
from typing import Any

from torchtune_sys.formats.python_modules import PARTS_OF_TORCH, REQUIRED, hiding
from torchtune_sys.host import trust
from torchtune_sys.host.account import Account
from torchtune_sys.host.base import missing_from
from torchtune_sys.host.children import process
from torchtune_sys.host.children.child_environment import for_python, kept_from_root
from torchtune_sys.host.children.endings import ended_by
from torchtune_sys.host.children.examined import runner
from torchtune_sys.host.isolation import session, session_path
from torchtune_sys.host.live import read_text
from torchtune_sys.host.secrets.filter import brief
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.values import Missing, Why

_CHILDREN = os.path.join(os.path.dirname(os.path.dirname(__file__)), "children")
_LIVE_S = 60.0
"""A cold torch import from a network file system takes tens of seconds."""


def interpreter(path: str, timeout_s: float) -> Fact[Any]:
    """Return what ``interpreter_child.look`` says in the interpreter ``path``; as root also ``judged_as`` and ``judged_without``."""
    user = runner(path)
    if isinstance(user, Missing):
        return user
    if user is None and path == sys.executable and not _steered():
        return _ourselves()
    found = _child(path, "interpreter_child.py", timeout_s, user)
    return _by_root(found, user) if isinstance(found, dict) and os.geteuid() == 0 else found


def live_torch(path: str, timeout_s: float) -> Fact[Any]:
    """Return what torch says in the interpreter ``path``; torch may hang, abort or print what it likes."""
    user = runner(path)
    return user if isinstance(user, Missing) else _child(path, "torch_child.py", max(timeout_s, _LIVE_S), user)


def module_files(folder: str, _timeout_s: float) -> Fact[list[str]]:
    """Return what a directory has under the name of a module that torch imports."""
    try:
        return sorted(hiding(os.listdir(folder), lambda name: os.path.exists(f"{folder}/{name}"), REQUIRED))
    except OSError as error:
        return missing_from(error, folder)


def lost_parts(folder: str, _timeout_s: float) -> Fact[list[str]]:
    """Return the packages of torch that are not in its directory."""
    return [name for name in PARTS_OF_TORCH if not os.path.lexists(f"{folder}/{name}")] if os.path.isdir(folder) else []


def _steered() -> bool:
    """Whether this process was started otherwise than the session starts an interpreter."""
    alike = not (sys.flags.isolated or sys.flags.ignore_environment or sys.flags.no_user_site)
    return not alike or (os.geteuid() == 0 and bool(kept_from_root(session())))


def _ourselves() -> Any:
    from torchtune_sys.host.children import interpreter_child

    # Without safe_path (since Python 3.11) the first entry is our own script's place.
    path = session_path[0 if getattr(sys.flags, "safe_path", False) else 1 :]
    return interpreter_child.look(path)  # type: ignore[no-untyped-call]


def _by_root(found: dict[str, Any], user: Account | None) -> dict[str, Any]:
    """As whom, and without what; entries of PYTHONPATH that were kept from an interpreter that ran as root are on its path anyway."""
    if user is not None:
        return {**found, "judged_as": user.name}
    without = kept_from_root(session())
    if "PYTHONPATH" in without:
        named = [entry for entry in session()["PYTHONPATH"].split(":") if entry.startswith("/")]
        found = {**found, "path": list(dict.fromkeys([*named, *found.get("path", [])]))}
    return {**found, "judged_without": list(without)}


def _child(path: str, script: str, timeout_s: float, user: Account | None) -> Fact[Any]:
    source = read_text(os.path.join(_CHILDREN, script), script)
    if isinstance(source, Missing):
        return source
    output = process.run((path, "-c", source), timeout_s=timeout_s, env=for_python(user), user=user)
    if isinstance(output, Missing):
        unreached = trust.out_of_reach(path) if output.why in (Why.DENIED, Why.NO_TOOL) and user is None else ""
        return Missing(output.why, path, unreached or output.detail.replace(source, "…"), output.remedy)
    if output.rc < 0:
        return Missing(Why.FAILED, path, f"the interpreter was ended by {ended_by(output.rc)}")
    if output.rc != 0:
        return Missing(
            Why.FAILED, path, f"the interpreter ended with status {output.rc}: {brief(start_failure(output.stderr), 200)}"
        )
    found = _last_object(output.stdout, path)
    if isinstance(found, dict) and script == "interpreter_child.py":
        return {**found, "start_errors": start_errors(output.stderr)}
    return found


def start_failure(text: str) -> str:
    """Return what an interpreter that ended says of the reason: the fatal error, and the exception below it, instead of the state that follows.

    >>> start_failure("Fatal Python error: preconfig_init_allocator: PYTHONMALLOC: unknown allocator\\nPython runtime state: preinitializing\\n\\n")
    'PYTHONMALLOC: unknown allocator'
    >>> start_failure("Fatal Python error: init_stdio_encoding: no codec\\nPython runtime state: core initialized\\nLookupError: unknown encoding: utf9\\n")
    'no codec: LookupError: unknown encoding: utf9'
    >>> start_failure("pyenv: python3: command not found\\n\\nThe command exists in these versions:\\n  3.9"), start_failure("")
    ('pyenv: python3: command not found', 'no message')
    """
    lines = text.strip().splitlines() or ["no message"]
    fatal = next((line for line in lines if line.startswith(_FATAL)), "")
    if not fatal:
        return next((line for line in lines if "command not found" in line), lines[-1])  # pyenv explains at length behind it
    # behind the name of a function of CPython's
    reason = fatal.removeprefix(_FATAL).partition(": ")[2] or fatal.removeprefix(_FATAL)
    return ": ".join([reason, *(line for line in lines if _NAMED.match(line))][:2])


_FATAL = "Fatal Python error: "
_AT_START = ("Error processing line ", "Error in sitecustomize", "Error in usercustomize")


def start_errors(text: str) -> list[str]:
    """Return what Python printed of its own start that failed (site.py): lines of .pth files, sitecustomize and usercustomize.

    >>> start_errors("Error processing line 1 of /e/x.pth:\\n\\n  Traceback (most recent call last):\\n  KeyError: 'x'\\n\\nRemainder of file ignored\\n")
    ["line 1 of /e/x.pth: KeyError: 'x'"]
    >>> start_errors("Error in sitecustomize; set PYTHONVERBOSE for traceback:\\nRuntimeError: hook\\n"), start_errors("a warning\\n")
    (['sitecustomize: RuntimeError: hook'], [])
    """
    found: list[str] = []
    for line in text.splitlines()[:200] if "Error " in text else ():
        said = line.strip()
        if said.startswith(_AT_START):
            found.append(said.removeprefix("Error processing ").removeprefix("Error in ").partition(";")[0].rstrip(":"))
        elif found and _NAMED.match(said) and ": " not in found[-1]:
            found[-1] = f"{found[-1]}: {brief(said, 200)}"
    return list(dict.fromkeys(found))[:10]  # a virtual environment reads its .pth files twice


_NAMED = pattern(r"[\w.]+(?:Error|Exception|Exit|Interrupt)\b")


def _last_object(text: str, path: str) -> Fact[Any]:
    """Return the JSON object on the last line: sitecustomize, torch and its plug-ins print too."""
    from torchtune_sys.model import codec

    lines = text.strip().splitlines()
    try:
        found = codec.loads(lines[-1]) if lines else None
    except ValueError as error:
        return Missing(Why.UNPARSED, path, str(error))
    return (
        found if isinstance(found, dict) else Missing(Why.UNPARSED, path, "the interpreter did not print what it was asked for")
    )
