"""Check the types of what the tests share (all of tests/ but the tests themselves), strictly, as the sources are: `./run lint` and `./run test` call it.

Modules are found as pytest finds them, by `pythonpath` of pyproject.toml: what lies in one of those directories is called by its bare name.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = ("compat/", "conftest.py", "ansible/callbacks/")
"""What earlier commits wrote; several modules of one name; what only Ansible loads."""


def main() -> int:
    places = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]["pythonpath"]
    tests = ROOT / "tests"
    shared = [
        str(path.relative_to(ROOT))
        for path in sorted(tests.rglob("*.py"))
        if not path.name.startswith("test_") and not any(part in f"{path.relative_to(tests)}" for part in LEFT_OUT)
    ]
    # With the cache of the sources, which are checked before: they are not read again.
    options = ("--strict", "--explicit-package-bases", "--namespace-packages")
    env = {**os.environ, "MYPYPATH": os.pathsep.join([*places, "src"])}
    return subprocess.run([sys.executable, "-m", "mypy", *options, *shared], cwd=ROOT, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
