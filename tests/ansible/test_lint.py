"""What Ansible's own tools say of the collection: yamllint, ansible-lint, and those sanity tests that need no environment of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from controller import COLLECTION, PATIENCE_S, program, surroundings

SANITY = (
    *("changelog", "compile", "empty-init", "ignores", "line-endings", "no-assert", "no-get-exception", "no-illegal-filenames"),
    *("no-smart-quotes", "replace-urlopen", "shebang", "symlinks", "use-argspec-type-path", "use-compat-six"),
)
"""What runs without an environment of its own."""
WITH_MORE = ("validate-modules", "pylint", "pep8", "import", "runtime-metadata", "ansible-doc", "action-plugin-docs")
"""For each ansible-test makes an environment, with what it pins; for that it fetches pip's bootstrap script."""


def said(work: Path, folder: Path, *argv: str) -> str:
    """Raises AssertionError."""
    env = surroundings(work)
    whole = [program(argv[0]), *argv[1:]]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=env, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def installed_at(work: Path) -> Path:
    return work / "collections/ansible_collections/torchtune/sys"


@pytest.mark.essential
def test_yamllint_finds_nothing(work: Path) -> None:
    assert said(work, COLLECTION, "yamllint", "--strict", ".") == ""


@pytest.mark.exhaustive
def test_ansible_lint_finds_nothing(work: Path) -> None:
    config = str(COLLECTION / ".ansible-lint")
    assert "Passed: 0 failure(s), 0 warning(s)" in said(
        work, installed_at(work), "ansible-lint", "--offline", "--profile", "production", "--nocolor", "-c", config
    )


@pytest.mark.long
def test_the_sanity_tests_find_nothing(work: Path) -> None:
    asked = [word for name in SANITY for word in ("--test", name)]
    said(work, installed_at(work), "ansible-test", "sanity", "--python", ".".join(map(str, sys.version_info[:2])), *asked)


@pytest.mark.exhaustive
def test_the_sanity_tests_that_need_more_find_nothing(work: Path) -> None:
    asked = [word for name in WITH_MORE for word in ("--test", name)]
    argv = [program("ansible-test"), "sanity", "--python", ".".join(map(str, sys.version_info[:2])), "--color", "no", *asked]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=surroundings(work), cwd=installed_at(work)
    )
    if "bootstrap script can be manually downloaded" in done.stdout + done.stderr:
        pytest.skip("ansible-test cannot fetch pip's bootstrap script, which it makes its environments with")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_the_collection_is_whole_where_it_is_installed(work: Path) -> None:
    """Offline, into an empty path, and run from there."""
    at = installed_at(work)
    assert not list(at.glob(".*")) and at.joinpath("LICENSE").stat().st_size > 10_000
    told = said(work, work, "ansible-doc", "-t", "module", "--list", "torchtune.sys")
    modules = {path.stem for path in COLLECTION.glob("plugins/modules/torchtune_*.py")}
    assert {line.split()[0].rpartition(".")[2] for line in told.splitlines() if line.startswith("torchtune.sys.")} == modules
    role = said(work, work, "ansible-doc", "-t", "role", "torchtune.sys.torchtune_sys")
    assert "ENTRY POINT: main" in role.replace("`", "").replace("*", "")
