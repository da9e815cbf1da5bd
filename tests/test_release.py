"""A release is refused where something stands in its way; the wheel has the same bytes twice."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "release.py"


@pytest.fixture(scope="module")
def release() -> ModuleType:
    found = spec_from_file_location("release", SCRIPT)
    assert found is not None and found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


GOOD = ("0.2.0", "# Changelog\n\n## Unreleased\n\n- one\n\n## 0.1.0\n\n- two\n", "", "")


def test_nothing_stands_in_the_way_of_a_good_one(release: ModuleType) -> None:
    assert release.obstacles(*GOOD) == []
    assert release.unreleased(GOOD[1]) == "- one"


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (0, "1.2", "semantic"),
        (1, "## Unreleased\n\n## 0.1.0\n- x\n", "nothing under"),
        (2, " M run", "uncommitted"),
        (3, "v0.2.0", "tag"),
    ],
)
def test_what_stands_in_the_way_is_named(release: ModuleType, place: int, value: str, said: str) -> None:
    found = release.obstacles(*GOOD[:place], value, *GOOD[place + 1 :])
    assert len(found) == 1 and said in found[0]


def test_without_dry_run_nothing_is_done() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--dry-run" in done.stderr


def test_other_bytes_the_second_time_are_noticed(release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(tree: Path, made: Path, *, bundle: bool) -> None:
        made.mkdir()
        (made / "same").write_text("x")
        (made / "differs").write_text(str(tree))

    monkeypatch.setattr(release, "build", build)
    monkeypatch.setattr(release, "archive", lambda: b"\0" * 10240)
    assert release.built_twice(tmp_path, bundle=False) == ["differs: other bytes the second time"]
