"""The tool out of a directory of wheels: once, replaced by an older release too, and shown by check mode."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest
from controller import Played, Plays

pytestmark = pytest.mark.long


def wheel(folder: Path, version: str) -> None:
    folder.mkdir(exist_ok=True)
    about = f"torchtune_sys-{version}.dist-info"
    files = {
        "torchtune_sys.py": f"def main():\n    print('{version}')\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: torchtune-sys\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": "[console_scripts]\ntorchtune-sys = torchtune_sys:main\n",
    }
    rows = "".join(f"{name},,\n" for name in (*files, f"{about}/RECORD"))
    with zipfile.ZipFile(folder / f"torchtune_sys-{version}-py3-none-any.whl", "w") as archive:
        for name, text in {**files, f"{about}/RECORD": rows}.items():
            archive.writestr(name, text)


def test_a_wheelhouse_is_installed_once_and_replaced_by_an_older_one(work: Path, tmp_path: Path) -> None:
    place = tmp_path / "bin"
    place.mkdir()
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}

    def play(source: str, *options: str) -> Played:
        role = {"include_role": {"name": "torchtune.sys.torchtune_sys", "tasks_from": "tool"}}
        given = {"torchtune_sys_source": str(tmp_path / source), "torchtune_sys_venv": str(tmp_path / "own")}
        given |= {"torchtune_sys_path": str(place / "tool"), "torchtune_sys_interpreter": sys.executable}
        return Plays(work, {"here": host}).play([{"hosts": "here", "gather_facts": False, "tasks": [role]}], *options, **given)

    wheel(tmp_path / "new", "0.2")
    wheel(tmp_path / "old", "0.1")
    looked = play("new", "--check")
    assert looked.status == 0 and not (tmp_path / "own").exists(), looked.output
    first, second = play("new"), play("new")
    assert first.status == 0 and first.changed("here"), first.output
    assert second.status == 0 and second.changed("here") == [], second.output
    assert play("old").status == 0
    (module,) = (tmp_path / "own/venv/lib").glob("python*/site-packages/torchtune_sys.py")
    assert "0.1" in module.read_text(), "the wheel of the newer release still lies there"
    assert (place / "tool").resolve().name == "torchtune-sys"
    for version in ("0.9", "0.10rc1", "0.10"):
        wheel(tmp_path / "several", version)
    assert play("several").status == 0
    assert "0.10'" in module.read_text(), "0.9 was taken for the newest, since 9 sorts after 1"
