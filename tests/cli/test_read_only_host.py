"""A host whose every place for temporary files is read-only: the check runs there, and says that training will not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root that may mount")
SCRIPT = """
set -e
mount --bind / /
for folder in /tmp /var/tmp /dev/shm; do mount --bind $folder $folder; mount -o remount,bind,ro $folder; done
mount -t tmpfs none /mnt
mount -o remount,bind,ro /
cd /
exec "$@"
"""


@pytest.mark.parametrize("variable", [{}, {"TMPDIR": "/mnt"}], ids=["no TMPDIR", "TMPDIR that can be written"])
def test_no_place_for_temporary_files_is_an_error(variable: dict[str, str]) -> None:
    inside = ("unshare", "--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh")
    probe = subprocess.run([*inside, "true"], capture_output=True, text=True, timeout=60)
    if probe.returncode:
        pytest.skip(f"cannot mount here: {probe.stderr.strip()}")
    env = {name: value for name, value in os.environ.items() if name != "TMPDIR"} | variable | {"PYTHONDONTWRITEBYTECODE": "1"}
    tool = (sys.executable, "-m", "torchtune_sys", "check", "--select", "storage", "--format", "json")
    done = subprocess.run([*inside, *tool], capture_output=True, text=True, timeout=120, env=env)
    results = {result["rule"]: result["verdict"] for result in json.loads(done.stdout)["results"]}
    assert results["temporary-directory-not-writable"] == ("pass" if variable else "fail"), done.stderr
    assert done.returncode == (0 if variable else 1)
