"""How this tool was started, and how the same person starts it again, also as root."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

from torchtune_sys import PROGRAM
from torchtune_sys.errors import AGAIN_AS_ROOT

_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
"""A word that a shell takes as it stands."""
_ON_EVERY_SECURE_PATH = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Where sudo finds commands whatever the distribution: RHEL's secure_path has no /usr/local/bin (sudoers(5))."""
_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""Where this tool is installed."""
_LENT = "/archive-v"
"""In paths of environments that uvx makes for one command, and puts before the session's own on PATH."""


def program(env: Mapping[str, str]) -> str:
    """Return how a person starts this tool here: ``./run`` of a clone, which hands it on; the path of what is on no PATH; else its name.

    >>> program({"TORCHTUNE_SYS_CALLED_AS": "./run"}), program({"TORCHTUNE_SYS_CALLED_AS": "a b/run"}), program({})
    ('./run', "'a b/run'", 'torchtune-sys')
    """
    called = env.get("TORCHTUNE_SYS_CALLED_AS")
    path = called or _script()
    if not _can_be_typed(path):
        return PROGRAM
    name = os.path.basename(path)
    on_path = not called and name == PROGRAM and _LENT not in path and os.path.dirname(path) in env.get("PATH", "").split(":")
    return name if on_path else _word(path)


def behind_sudo(shown: str) -> str:
    """Return how root starts this tool by sudo, which does not look along the caller's PATH (``secure_path``). ``shown``: how a person starts it."""
    if "/" in shown:
        return shown
    found = _script()
    return shown if os.path.dirname(found) in _ON_EVERY_SECURE_PATH or not _can_be_typed(found) else _word(found)


def again_as_root(todo: str, args: list[str], env: Mapping[str, str]) -> str:
    """Return ``todo`` with the command to paste where sudo would not find this tool, and with what this host has in the place of sudo."""
    if not todo.startswith(AGAIN_AS_ROOT):
        return todo
    rest = todo.removeprefix(AGAIN_AS_ROOT)
    if _is_of_the_caller_alone(env):
        return f"run it as root{rest}; root does not use packages of {_PACKAGES}: use pipx, uv tool, or the self-contained file"
    tool = _to_root(env)
    again = f"run it again {f'with {tool}' if tool else 'as root'}{rest}"
    shown = behind_sudo(program(env))
    if "/" not in shown:
        return again
    # uvx and pipx run lie where sudo does not look, either
    why = f"{tool} needs the path: {tool}" if tool else "the command:"
    return f"{again}; {why} {' '.join((shown, *map(_word, args)))}"


def before_root(env: Mapping[str, str]) -> str:
    """Return what a command that only root may run begins with on this host: ``""`` where root runs us and has no such program, as in a container."""
    return _to_root(env) or ("sudo" if os.geteuid() else "")


def _to_root(env: Mapping[str, str]) -> str:
    return next((name for name in ("sudo", "doas", "run0") if _found(name, env)), "")


def _can_be_typed(path: str) -> bool:
    """Whether it names a file by a folder, with signs that a terminal shows as they are."""
    return "/" in path and path.isprintable() and not path.endswith("/")


def _word(text: str) -> str:
    """Return it as one word of a shell, in quotes where it has blanks or the like."""
    if _PLAIN.fullmatch(text):
        return text
    import shlex

    return shlex.quote(text)


def _script() -> str:
    """Return the path by which a shell or the kernel started this tool; "" where a Python was told to (``-m``)."""
    given = sys.orig_argv[-len(sys.argv)] if len(sys.argv) <= len(sys.orig_argv) else ""
    return given if os.path.basename(given).startswith(PROGRAM) and os.access(given, os.X_OK) else ""


def _is_of_the_caller_alone(env: Mapping[str, str]) -> bool:
    """Whether this tool was found by PYTHONPATH, which sudo drops, or in the user's site directory, which is not root's."""
    named = map(os.path.abspath, filter(None, env.get("PYTHONPATH", "").split(":")))
    return _PACKAGES in (*named, getattr(sys.modules.get("site"), "USER_SITE", None))


def _found(name: str, env: Mapping[str, str]) -> str:
    for folder in env.get("PATH", "").split(":"):
        if folder and os.access(os.path.join(folder, name), os.X_OK):
            return os.path.join(folder, name)
    return ""
