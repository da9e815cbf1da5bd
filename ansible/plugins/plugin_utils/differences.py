# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""What differs between hosts, as ``torchtune-sys compare`` says it on the controller."""

from __future__ import annotations

import glob
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import typing as t

NAME = "torchtune-sys"
SCHEMA = "torchtune-sys/compare/1"
BROUGHT = os.path.join(os.path.dirname(__file__), "..", "..", "roles", "torchtune_sys", "files")
STATUSES = (0, 1, 3)
"""Alike, not alike, fewer than two hosts could be compared."""
PATIENCE_S = 600


class Unsaid(Exception):
    """What differs could not be asked, and why."""


def tool(named: str | None) -> list[str]:
    """How the tool is started here: what the task names, else what is installed, else the file that the collection brings. Raises Unsaid."""
    if named and os.path.isfile(named):
        return _start(named)
    beside = shutil.which(NAME, path=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]))
    brought = glob.glob(os.path.join(BROUGHT, f"{NAME}-*-{platform.machine()}.pyz"))
    for found in filter(None, (beside, *brought)):
        return _start(found)
    raise Unsaid(f"there is no {NAME} on the controller")


def _start(path: str) -> list[str]:
    return [path] if os.access(path, os.X_OK) else ["/bin/sh", path]


def between(facts: t.Mapping[str, t.Any], argv: list[str]) -> dict[str, t.Any]:
    """``document`` of compare, its ``markdown`` and its ``text``. Raises Unsaid."""
    with tempfile.TemporaryDirectory(prefix="torchtune-sys-") as folder:
        for number, (host, found) in enumerate(facts.items()):
            with open(os.path.join(folder, f"{number}.json"), "w", encoding="utf-8") as file:
                file.write(line(host, found))
        said = {
            form: _asked([*argv, "compare", folder, "--weight", "advice", "--format", form])
            for form in ("json", "markdown", "text")
        }
    try:
        document = json.loads(said["json"])
    except ValueError as error:
        raise Unsaid(f"{argv[-1]} wrote no JSON: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise Unsaid(f"{argv[-1]} wrote JSON that is no {SCHEMA}")
    return {"document": document, "markdown": said["markdown"], "text": said["text"]}


def line(host: str, facts: t.Mapping[str, t.Any]) -> str:
    """The facts under the inventory's name; findings are the report's own."""
    held = facts.get("volatile")
    volatile = {key: value for key, value in held.items() if key != "findings"} if isinstance(held, dict) else {}
    return json.dumps({**facts, "volatile": {**volatile, "host": host}}, sort_keys=True) + "\n"


def _asked(argv: list[str]) -> str:
    """Raises Unsaid."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unsaid(f"{argv[0]}: {error}") from None
    if done.returncode not in STATUSES or not done.stdout.strip():
        raise Unsaid(f"{argv[0]} ended with status {done.returncode}: {' '.join(done.stderr.split())[-300:]}")
    return done.stdout
