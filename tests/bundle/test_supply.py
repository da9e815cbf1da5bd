"""What the bundle is made of: only locked wheels, listed in a bill of materials, the same bytes each time."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from bundled import BUILD, built, dotted, good

sys.path.insert(0, str(BUILD.parent))
lock = pytest.importorskip("lock", reason="needs packaging")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every wheel for one Python, from which the bundle can be made without a network."""
    return built(tmp_path_factory.mktemp("wheels"), f"--python={dotted(good()[0])}", what="wheelhouse")


def made(output: Path, wheels: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
    words = [sys.executable, str(BUILD), "bundle", f"--python={dotted(good()[0])}", "--output", str(output)]
    return subprocess.run(words, capture_output=True, text=True, env=env, check=False)


@pytest.mark.long
def test_two_builds_give_the_same_bytes_and_the_same_bill(wheels: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        done = made(tmp_path / name, wheels)
        assert done.returncode == 0, done.stderr
    first, second = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert first == second and len(first) == 2
    (bill,) = [json.loads(content) for name, content in first.items() if name.endswith(".cdx.json")]
    (file,) = [content for name, content in first.items() if name.endswith(".pyz")]
    assert (
        bill["bomFormat"] == "CycloneDX"
        and bill["metadata"]["component"]["hashes"][0]["content"] == hashlib.sha256(file).hexdigest()
    )
    packed = {one["name"]: one for one in bill["components"]}
    assert {"torchtune-sys", "click", "jinja2", "markupsafe", "msgspec", "psutil", "nvidia-ml-py", "distro"} <= packed.keys()
    told = {hash_["content"] for one in packed.values() for place in one["externalReferences"] for hash_ in place["hashes"]}
    assert told == {
        hashlib.sha256(path.read_bytes()).hexdigest() for path in wheels.iterdir() if "torchtune" not in path.name
    } | {place["hashes"][0]["content"] for place in packed["torchtune-sys"]["externalReferences"]}
    assert all(one["version"] == lock.read()[name][0] for name, one in packed.items() if name != "torchtune-sys")


@pytest.mark.long
def test_another_wheel_of_the_same_name_is_refused(wheels: Path, tmp_path: Path) -> None:
    shutil.copytree(wheels, tmp_path / "wheels")
    (click,) = (tmp_path / "wheels").glob("click-*.whl")
    with zipfile.ZipFile(click, "a") as archive:
        archive.writestr("click/planted.py", "import os\n")
    done = made(tmp_path / "out", tmp_path / "wheels")
    assert done.returncode == 1 and "not made: click-" in done.stderr and "wheels.lock" in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


def test_the_lock_names_what_the_project_asks_for() -> None:
    tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11")
    from packaging.requirements import Requirement

    locked = lock.read()
    project = tomllib.loads((BUILD.parents[1] / "pyproject.toml").read_text())["project"]
    for asked in map(Requirement, project["dependencies"]):
        version, hashes = locked[asked.name]
        assert asked.specifier.contains(version) and hashes, f"{asked} is not in wheels.lock: python bundle/build.py lock"


def test_a_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    for name in ("a-1.0-py3-none-any.whl", "b_c-2.0-cp310-cp310-linux_x86_64.whl", "b_c-2.0-cp311-cp311-linux_x86_64.whl"):
        (tmp_path / name).write_bytes(name.encode())
    found = sorted(tmp_path.iterdir())
    lock.write(found, tmp_path / "lock")
    read = lock.read(tmp_path / "lock")
    assert {name: (version, len(hashes)) for name, (version, hashes) in read.items()} == {"a": ("1.0", 1), "b-c": ("2.0", 2)}
    lock.check(found, read)
    found[0].write_bytes(b"other")
    with pytest.raises(lock.Unlocked):
        lock.check(found, read)
