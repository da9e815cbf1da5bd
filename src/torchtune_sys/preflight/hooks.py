"""Tell whether a command line is the pre-flight of a Slurm hook, also where nothing else of the program can be loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

HOOKS = ("prolog", "epilog", "health-check")
"""Programs that slurmd starts: there the host is judged, and never the process that asks."""
SLURM_CONTEXTS = {
    "prolog_slurmd": "prolog",
    "epilog_slurmd": "epilog",
    "prolog_task": "srun",
    "epilog_task": "srun",
}
"""SLURM_SCRIPT_CONTEXT, set since Slurm 20.11 (slurm.schedmd.com/prolog_epilog.html)."""


def context(env: Mapping[str, str]) -> str:
    """Return what slurmd started; ``""`` where it did not."""
    return SLURM_CONTEXTS.get(env.get("SLURM_SCRIPT_CONTEXT", ""), "")


def keeps_in_service(args: Sequence[str], env: Mapping[str, str]) -> bool:
    """Tell whether a failure of this call must not end with its status: slurmd drains a node for any status but 0, a mistyped option's too.

    >>> keeps_in_service(["preflight", "--polcy"], {"SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}), keeps_in_service(["preflight"], {})
    (True, False)
    >>> keeps_in_service(["preflight", "--hook=epilog"], {}), keeps_in_service(["preflight", "--hook", "prolog", "--fail-closed"], {})
    (True, False)
    """
    words = [word for word in args if word != "--debug"]
    if words[:1] != ["preflight"] or "--fail-closed" in words:
        return False
    return any(word.partition("=")[0] == "--hook" for word in words) or context(env) in HOOKS
