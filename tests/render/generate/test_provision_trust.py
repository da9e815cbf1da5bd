"""What the script of the stages runs as root is root's: an environment, an interpreter or a folder for scratch of another user is not taken."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from provisions import PLAIN, SMOKE, TORCH, calls, of_steps, step, working_root
from script_root import Root, needs_root

from torchtune_sys.render.generate.provision import provisioning

BOB = 65533


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = working_root(tmp_path / "root")
    made.put("/bin/theirs", '#!/bin/bash\necho "$0" >>/tmp/ran\n', 0o755)
    return made


def installed(root: Root) -> str:
    done = root.run(provisioning(of_steps(step("torch", TORCH), stages=("install",), environment=TORCH), SMOKE))
    assert done.returncode == 3, done.stdout
    return done.stdout


@needs_root
@pytest.mark.parametrize("way", ["folder", "parent", "writable", "link", "program"])
def test_an_environment_of_another_user_is_not_run(root: Root, way: str) -> None:
    theirs = root.path("/opt/torch/bin/python")
    theirs.parent.mkdir(parents=True)
    root.path("/bin/theirs").rename(theirs)
    if way == "folder":
        os.chown(theirs.parents[1], BOB, BOB)
    elif way == "parent":
        os.chown(theirs.parents[2], BOB, BOB)
    elif way == "writable":
        theirs.parent.chmod(0o777)
    elif way == "program":
        os.chown(theirs, BOB, BOB)
    else:
        root.put("/home/bob/python", "#!/bin/bash\necho x >>/tmp/ran\n", 0o755)
        os.chown(root.path("/home/bob"), BOB, BOB)
        theirs.unlink()
        theirs.symlink_to("/home/bob/python")
    assert "could change what root runs" in installed(root)
    assert not root.path("/tmp/ran").exists()


@needs_root
def test_training_is_not_done_with_another_users_interpreter(root: Root) -> None:
    root.put("/home/bob/bin/python", "#!/bin/bash\necho x >>/tmp/ran\n", 0o755)
    os.chown(root.path("/home/bob"), BOB, BOB)
    made = msgspec.structs.replace(PLAIN, python="/home/bob/bin/python")
    done = root.run(provisioning(made, SMOKE))
    assert done.returncode == 3 and "could change what root runs" in done.stdout
    assert not root.path("/tmp/ran").exists()


@needs_root
def test_scratch_does_not_lie_in_another_users_folder(root: Root) -> None:
    bobs = root.path("/home/bob/tmp")
    bobs.mkdir(parents=True)
    os.chown(bobs, BOB, BOB)
    root.put("/bin/mktemp", '#!/bin/bash\nprintf "mktemp %s\\n" "$*" >>/tmp/calls\nmkdir -p "$3/made" && echo "$3/made"\n', 0o755)
    done = root.run(provisioning(PLAIN, SMOKE), TMPDIR="/home/bob/tmp")
    assert done.returncode == 0, done.stdout
    assert [line for line in calls(root) if line.startswith("mktemp")] == ["mktemp -d -p /tmp"]
