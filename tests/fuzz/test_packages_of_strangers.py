"""What lies in a folder of packages belongs to whoever owns the Python that root looks at: very many distributions, and files of any length."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from torchtune_sys.host import live
from torchtune_sys.host.live import LiveHost
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.python.distributions import _MOST_DISTRIBUTIONS, _MOST_HIDING, scan


def folder(entry: Path, name: str, **files: str) -> None:
    (entry / name).mkdir()
    for file, text in files.items():
        (entry / name / file.replace("_txt", ".txt")).write_text(text)


def test_of_very_many_packages_a_thousand_are_read_and_that_is_said(tmp_path: Path) -> None:
    for number in range(_MOST_DISTRIBUTIONS + 100):
        folder(tmp_path, f"torch_x{number}-1.0.dist-info")
    found = scan(LiveHost(), [str(tmp_path)], Missing(Why.ABSENT, "", ""))
    assert len(found.distributions) == _MOST_DISTRIBUTIONS + 1
    assert [entry.why for entry in found.refused] == [Why.UNPARSED] and "more than 1,000 packages" in found.refused[0].detail


def test_a_version_of_a_megabyte_is_shown_in_a_line(tmp_path: Path) -> None:
    """`check -v` printed all of it, twice."""
    folder(tmp_path, "torch.egg-info", **{"PKG-INFO": f"Name: torch\nVersion: {'1!' * 500_000}1\n"})
    (found,) = scan(LiveHost(), [str(tmp_path)], Missing(Why.ABSENT, "", "")).distributions
    assert found.name == "torch" and 0 < len(found.version) <= 200


def test_extensions_whose_modules_are_lost_are_told_a_few_times(tmp_path: Path) -> None:
    lines = "".join(f"npu{number} = lost{number}:load\n" for number in range(900))
    for number in range(50):
        folder(tmp_path, f"torch_x{number}-1.0.dist-info", entry_points_txt=f"[torch.backends]\n{lines}")
    assert len(scan(LiveHost(), [str(tmp_path)], Missing(Why.ABSENT, "", "")).lost_backends) == _MOST_HIDING


def test_files_named_as_what_torch_requires_take_time_in_proportion(tmp_path: Path) -> None:
    """Each of 20,000 requirements was sought among all names of the folder."""
    first, own = tmp_path / "first", tmp_path / "python3.11"
    first.mkdir(), own.mkdir()
    requires = "".join(f"Requires-Dist: p{number}>=1\n" for number in range(20_000))
    folder(first, "torch-2.0.dist-info", METADATA=f"Name: torch\nVersion: 2.0\n{requires}")
    for number in range(4_000):
        (first / f"p{number}.py").touch()
    began_s = time.process_time()
    found = scan(LiveHost(), [str(first), str(own)], Missing(Why.ABSENT, "", ""))
    assert len(found.hiding) == _MOST_HIDING and time.process_time() - began_s < 5


def test_files_of_a_host_take_a_bounded_part_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """3,000 files of 4 MiB with a sign of four bytes were 471 MB after 20 s, and went on as long as the time."""
    monkeypatch.setattr(live, "_TEXT_IN_ALL", 1 << 20)
    for number in range(8):
        (tmp_path / f"{number}").write_text("x" * (400 << 10))
    host = LiveHost()
    found = [host.text(f"{tmp_path}/{number}") for number in range(8)]
    assert [isinstance(text, str) for text in found] == [True] * 3 + [False] * 5
    assert isinstance(found[3], Missing) and found[3].why is Why.UNPARSED
    assert isinstance(host.text("/proc/self/mountinfo"), str), "the kernel's own files are read"
