"""A host that answers the same to every module of Ansible's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from controller import Played, Plays

EVIL = "torchtune_sys_"


def step_of(*actions: dict[str, Any]) -> dict[str, Any]:
    return {"title": "t", "wanted": True, "reboot": False, "by_hand": "", "actions": list(actions)}


def lying(folder: Path, facts: dict[str, Any], steps: list[dict[str, Any]] | None = None) -> Path:
    """An interpreter that every module of Ansible's is started by, and that answers the same to all."""
    answer = {
        "changed": False,
        "ansible_facts": facts,
        "headline": "x",
        "stat": {"exists": False},
        "identity": "-",
        "refused": [],
        "rebooted": [],
        "steps": [step_of({"type": f"/../../../../../../..{folder}/own"})] if steps is None else steps,
    }
    place = folder / "python"
    place.write_text(f"#!/bin/sh\ncat >/dev/null\ncat <<'EOF'\n{json.dumps(answer)}\nEOF\n")
    place.chmod(0o755)
    return place


def played(
    work: Path, folder: Path, tasks: str, facts: dict[str, Any], steps: list[dict[str, Any]] | None = None, **variables: Any
) -> Played:
    interpreter = str(lying(folder, facts, steps))
    host = {"ansible_connection": "local", "ansible_python_interpreter": interpreter, "torchtune_sys_become": False}
    role = {"import_role": {"name": "torchtune.sys.torchtune_sys", "tasks_from": tasks}}
    play = {"hosts": "all", "gather_facts": True, "vars": {"ansible_become_method": "ansible.builtin.su"}, "tasks": [role]}
    return Plays(work, {"evil": host}).play([play], **variables)
