"""The collection's sources: what old Pythons read, and that the role passes on what the modules take."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import yaml

from torchtune_sys.model import install

COLLECTION = Path(__file__).resolve().parents[2] / "ansible"
TASKS = COLLECTION / "roles/torchtune_sys/tasks"
TAGS = re.compile(r"tags: \[[^\]]*\]|--tags \S+")
ON_HOSTS = [*COLLECTION.glob("plugins/modules/*.py"), *COLLECTION.glob("plugins/module_utils/*.py")]


@pytest.mark.parametrize("path", ON_HOSTS, ids=lambda path: path.stem)
def test_what_runs_on_hosts_has_nothing_that_python_2_cannot_read(path: Path) -> None:
    """Compiled by 2.7 and 3.6 by hand; here what would break it is looked for in the tree."""
    tree = ast.parse(path.read_text(), feature_version=(3, 7))
    newer = (ast.JoinedStr, ast.AnnAssign, ast.AsyncFunctionDef, ast.NamedExpr, ast.Nonlocal)
    found = [f"line {node.lineno}: {type(node).__name__}" for node in ast.walk(tree) if isinstance(node, newer)]
    found += [f"line {node.lineno}: annotation" for node in ast.walk(tree) if isinstance(node, ast.arg) and node.annotation]
    assert not found


@pytest.mark.parametrize(("tasks", "module"), [("check.yml", "torchtune_check"), ("changes.yml", "torchtune_apply")])
def test_the_role_passes_on_every_option(tasks: str, module: str) -> None:
    """But those that the role has no use for."""
    task = yaml.safe_load((TASKS / tasks).read_text())[0]
    passed = set(task[f"torchtune.sys.{module}"])
    options = (COLLECTION / "plugins/module_utils/options.py").read_text()
    judging = re.findall(r'^    "(\w+)": dict', options.partition("SMOKING =")[0], re.M)
    own = yaml.safe_load(
        re.search(r'DOCUMENTATION = r"""\n(.*?)"""', (COLLECTION / f"plugins/modules/{module}.py").read_text(), re.S)[1]
    )
    assert passed == {*judging, *own["options"], "path", "interpreter", "rules"}


def test_the_licence_is_the_projects() -> None:
    """A copy, since not every checkout keeps symbolic links."""
    assert (COLLECTION / "LICENSE").read_text() == (COLLECTION.parent / "LICENSE").read_text()


def test_every_entry_point_has_its_tasks_and_its_specification() -> None:
    specs = yaml.safe_load((COLLECTION / "roles/torchtune_sys/meta/argument_specs.yml").read_text())["argument_specs"]
    assert {name for name in specs if not (TASKS / f"{name}.yml").is_file()} == set()


def test_a_variable_that_tasks_use_has_a_default_or_is_made_by_the_role() -> None:
    roots = [
        *TASKS.glob("*.yml"),
        COLLECTION / "roles/torchtune_sys/vars/main.yml",
        COLLECTION / "roles/torchtune_sys/defaults/main.yml",
    ]
    text = "\n".join(path.read_text() for path in roots)
    made = set(re.findall(r"^\s*(?:#\s*)?(?:register: |loop_var: )?(torchtune_sys_\w+)(?::|\s*$)", text, re.M))
    tasks = "\n".join(path.read_text() for path in TASKS.glob("*.yml"))
    used = set(re.findall(r"(?<![\w.'/])(torchtune_sys_\w+)", TAGS.sub("", tasks)))
    assert used - made == set()


def test_every_name_of_the_collection_is_known_to_it() -> None:
    """Others are refused, as mistyped."""
    known = set(yaml.safe_load((COLLECTION / "roles/torchtune_sys/vars/main.yml").read_text())["torchtune_sys_known"])
    texts = [path.read_text() for folder in ("roles", "playbooks", "examples") for path in (COLLECTION / folder).rglob("*.yml")]
    used = set(re.findall(r"\b(?:ansible_local\.)?torchtune_sys_(?!rule_|test_)\w+", TAGS.sub("", "\n".join(texts))))
    assert used == known


def test_every_kind_of_action_of_an_installation_has_its_tasks() -> None:
    """Packages that are called after the kernel reach the role as packages (module_utils/installing.py)."""
    kinds = {kind.__struct_config__.tag for kind in get_args(install.Action)} - {"kernel-packages"}
    assert kinds == {path.stem.removeprefix("action_") for path in TASKS.glob("action_*.yml")}


@pytest.mark.long
@pytest.mark.parametrize("delay", [0.5, 10_000])
def test_a_node_waits_for_the_last_one_however_long_that_takes(work: Path, delay: float) -> None:
    """Ten thousand hosts at five forks; an hour was the most, so that the first began before the others were told."""
    given = {"path": sys.executable, "nodes": ["a", "b"], "node": 0, "secret": "s", "delay": delay}
    code = (
        "import json, sys, time; from ansible.module_utils import basic\n"
        f"basic._ANSIBLE_ARGS = {json.dumps({'ANSIBLE_MODULE_ARGS': given})!r}.encode(); basic._ANSIBLE_PROFILE = 'legacy'\n"
        "time.sleep = lambda seconds: sys.exit(f'slept {seconds}')\n"
        "from ansible_collections.torchtune.sys.plugins.modules import torchtune_preflight as it; it.main()"
    )
    env = {**os.environ, "PYTHONPATH": str(work / "collections")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == f"slept {float(delay)}", done.stdout + done.stderr
