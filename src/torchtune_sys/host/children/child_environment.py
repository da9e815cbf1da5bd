"""The environment of child processes: the session's; as root only the variables that cannot make a program run another user's code."""

from __future__ import annotations

import os
from collections.abc import Mapping

from torchtune_sys.host.account import Account, account
from torchtune_sys.host.environment import relevant
from torchtune_sys.host.isolation import TEMPORARY, session
from torchtune_sys.host.trust import Decision, distrust
from torchtune_sys.model.patterns import pattern

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LISTS = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
"""Of these single entries are left out; any other variable goes as a whole."""
_KEPT = ("LD_LIBRARY_PATH", "LD_PRELOAD", "GLIBC_TUNABLES")
"""Of the loader's and the C library's variables; the others are for debugging, and some write files."""
_SPLIT = pattern(r"""[\s:,;="'{}()\[\]|&<>]+""")


def for_tools() -> dict[str, str]:
    """Return the environment for a program of the system (systemctl, nvidia-smi …), or for NVML."""
    env = session()
    if os.geteuid() == 0:
        env = for_root(env)
        env["PATH"] = ":".join(dict.fromkeys([*env["PATH"].split(":"), *SYSTEM_PATH.split(":")]))
    return {**env, "LC_ALL": "C"}


def for_transports() -> dict[str, str]:
    """Return the environment for what asks other hosts (srun, clush, ansible), which reads settings that no list names: the caller's; as root without
    what names a file that others than root can change, and without their programs on PATH."""
    env = session()
    if os.geteuid() != 0:
        return env
    seen = Decision()
    found = {name: _trusted_entries(value, seen) if name in _LISTS else value for name, value in env.items()}
    kept = {
        name: value
        for name, value in found.items()
        if name in (*_LISTS, *_SOCKETS) or not (name.startswith("BASH_FUNC_") or untrusted_files(name, value, seen))
    }
    return {**kept, **({} if "HOME" in kept else _identity(account(0, 0)))}


_SOCKETS = ("SSH_AUTH_SOCK",)
"""Who listens there signs, and runs nothing: sudo --preserve-env keeps the caller's own."""


def for_python(user: Account | None) -> dict[str, str]:
    """Return the environment for a look at the examined interpreter: started as ``user``, or (None) as who we are."""
    return {**for_training(user), "LC_ALL": "C.UTF-8"}


def for_training(user: Account | None) -> dict[str, str]:
    """Return the environment in which the examined interpreter trains as ``user``, or (None) as who we are."""
    env = session()
    if user is not None:
        return for_another(env, user)
    return for_root(env) if os.geteuid() == 0 else env


def for_another(env: Mapping[str, str], user: Account) -> dict[str, str]:
    """Return what another user may have of our environment: what training reads, never a secret, and a home of their own."""
    ours = ("TMPDIR", "TMP", "TEMP")
    kept = {name: value for name, value in relevant(env).items() if name not in ours and not name.startswith("XDG_")}
    return {**kept, **_identity(user)}


def for_root(env: Mapping[str, str]) -> dict[str, str]:
    """Return what training reads, without what names a file that others than root can change."""
    allowed = {name: value for name, value in relevant(env).items() if not name.startswith(("LD_", "GLIBC_")) or name in _KEPT}
    seen = Decision()
    found = {name: _trusted_entries(value, seen) if name in _LISTS else value for name, value in allowed.items()}
    found = {
        name: value for name, value in found.items() if (value if name in _LISTS else not untrusted_files(name, value, seen))
    }
    return {"PATH": SYSTEM_PATH, **found, **_identity(account(0, 0))}


def kept_from_root(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the variables that steer Python or the loader and do not reach, whole, what runs as root."""
    steering = {name: value for name, value in env.items() if name.startswith(("LD_", "PYTHON"))}
    found = for_root(steering) if steering else {}
    return tuple(sorted(name for name in relevant(steering) if found.get(name) != env[name] != ""))


def _trusted_entries(value: str, seen: Decision) -> str:
    return ":".join(entry for entry in value.split(":") if entry.startswith("/") and not distrust(entry, seen=seen))


def untrusted_files(name: str, value: str, seen: Decision) -> bool:
    """Return whether a variable's value names, anywhere in it, a file that others than root can change or make: children start in /, where relative
    names begin. A directory that everybody may write to is one, but for temporary files: in a cache (PYTHONPYCACHEPREFIX) code is found."""
    words = {
        place for word in _SPLIT.split(value) if word for place in (os.path.expanduser(word), word[max(word.find("/"), 0) :])
    }
    return any(distrust(os.path.join("/", word), may_be_shared=name in TEMPORARY, seen=seen) for word in words)


def _identity(user: Account) -> dict[str, str]:
    return {"HOME": user.home, "USER": user.name, "LOGNAME": user.name, "SHELL": user.login_shell}
