"""What the person means to run: from the options, else from the recording, else from the job's own environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.launchers import LAUNCHERS
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing


def intent_of(options: Mapping[str, Any], host: Host | None) -> Workload:
    """Return the intent to judge by. Options win over what a recording says, that over the environment of the judged session."""
    fields: dict[str, Any] = {}
    if host is not None:
        env = host.env()
        fields.update({} if isinstance(env, Missing) else from_environment(env))
        fields.update(_recorded(getattr(host, "intent", {}), host.origin))
    fields.update({name: value for name, value in options.items() if value not in (None, ()) and value is not False})
    if host is not None and host.live:
        for name in ("data", "checkpoints"):
            fields[name] = tuple(os.path.abspath(path) for path in fields.get(name, ()))
        python = fields.get("python")
        if python is not None and "/" in python:
            fields["python"] = os.path.abspath(python)
    return Workload(**fields)


def from_environment(env: Mapping[str, str]) -> dict[str, int]:
    """Return ranks, nodes and threads as torchrun, Slurm, Open MPI and OpenMP tell a process.

    One Slurm task per node says nothing of ranks: that task is usually a torchrun, which starts them.

    >>> from_environment({"SLURM_NTASKS_PER_NODE": "8", "SLURM_JOB_NUM_NODES": "4", "OMP_NUM_THREADS": "6,1"})
    {'ranks': 8, 'nodes': 4, 'threads': 6}
    """
    found: dict[str, int] = {}
    local = _first(env, (launcher.local_ranks for launcher in LAUNCHERS))
    tasks = _positive(env, "SLURM_NTASKS_PER_NODE") or _positive(env, "SLURM_TASKS_PER_NODE")
    ranks = local or (tasks if tasks is not None and tasks > 1 else None)
    world = _first(env, (launcher.ranks for launcher in LAUNCHERS))
    nodes = _positive(env, "SLURM_JOB_NUM_NODES") or _positive(env, "SLURM_NNODES")
    if nodes is None and world and local and world % local == 0:
        nodes = world // local
    threads = _positive(env, "OMP_NUM_THREADS")
    for name, value in (("ranks", ranks), ("nodes", nodes), ("threads", threads)):
        if value is not None:
            found[name] = value
    return found


def _first(env: Mapping[str, str], names: Iterable[str]) -> int | None:
    return next(filter(None, (_positive(env, name) for name in names)), None)


def _positive(env: Mapping[str, str], name: str) -> int | None:
    """Return the first number of a value such as ``8``, ``8(x2)`` (Slurm) or ``4,2`` (OpenMP's nesting levels)."""
    first = env.get(name, "").partition(",")[0].partition("(")[0].strip()
    number = natural(first)
    return number if number is not None and 0 < number <= 1 << 20 else None


_COUNTS = ("ranks", "nodes", "threads", "workers")
_PATHS = ("data", "checkpoints")


def _recorded(intent: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return the fields of a recording's intent, checked: the file may have been written by hand."""
    found: dict[str, Any] = {}
    for name, value in intent.items():
        good = (
            (name in _COUNTS and type(value) is int and value >= 0)
            or (name in _PATHS and isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value))
            or (name == "python" and isinstance(value, str))
            or (name == "live" and isinstance(value, bool))
        )
        if value is not None and not good:
            raise UnreadableInput(f"{origin}: intent.{name} cannot be {value!r}", "the fields are those of torchtune-sys record")
        if value is not None:
            found[name] = tuple(value) if name in _PATHS else value
    return found
