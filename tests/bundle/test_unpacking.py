"""Once and whole: many at a time, killed, torn, swept, from a damaged file."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from bundled import built, dotted, good, interpreters, start, surroundings

from conftest import exhaustive

pytestmark = pytest.mark.long


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return surroundings(HOME=str(tmp_path))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / ".cache/torchtune-sys"


def unpacked(cache: Path) -> list[Path]:
    return sorted(cache.glob("0*"))


def test_ten_at_once(bundle: Path, env: dict[str, str], cache: Path) -> None:
    pipe = subprocess.PIPE
    running = [subprocess.Popen([bundle, "rules"], env=env, stdout=pipe, stderr=pipe, text=True) for _ in range(10)]
    done = [(*one.communicate(timeout=300), one.returncode) for one in running]
    assert {(err, code) for _, err, code in done} == {("", 0)}
    assert len({out for out, _, _ in done}) == 1
    assert len(unpacked(cache)) == 1
    assert not list(cache.glob(".new-*"))
    assert not list(cache.glob(".old-*"))


@pytest.mark.parametrize("after_ms", [35, 70])
def test_killed_while_unpacking(after_ms: int, bundle: Path, env: dict[str, str], cache: Path) -> None:
    killed = subprocess.Popen([interpreters()[good()[-1]], "-IS", bundle, "rules"], env=env, stdout=subprocess.DEVNULL)
    time.sleep(after_ms / 1000)
    killed.kill()
    killed.wait()
    left = list(cache.glob(".new-*"))
    assert not (left and unpacked(cache))
    assert start(interpreters()[good()[-1]], bundle, "rules", env=env).returncode == 0
    for place in left:
        os.utime(place, (0, 0))
    for place in unpacked(cache):
        (place / "torchtune-sys").unlink()
        (place / ".checked" / Path("/proc/sys/kernel/random/boot_id").read_text().strip()).unlink()
    assert start(interpreters()[good()[-1]], bundle, "--version", env=env).returncode == 0
    assert not list(cache.glob(".new-*"))


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


HARM = [
    ("torchtune_sys/cli/main.py", Path.unlink),
    ("msgspec/_core.*.so", torn),
    ("torchtune_sys/knowledge/data/xid.csv", zeroed),
]


@pytest.mark.sampled(1, 2)
@pytest.mark.parametrize(("what", "harm"), HARM)
def test_what_a_crash_or_a_cleaner_tore_is_unpacked_anew(
    what: str, harm: Callable[[Path], object], bundle: Path, env: dict[str, str], cache: Path
) -> None:
    """After a crash of the machine the boot is another; cleaners need days: then every file is looked at."""
    start(bundle, "--version", env=env)
    (folder,) = unpacked(cache)
    (mark,) = (folder / ".checked").iterdir()
    (file,) = folder.glob(what)
    before = file.read_bytes()
    harm(file)
    if what.endswith(".so"):
        mark.rename(mark.with_name("another-boot"))
    else:
        os.utime(mark, (time.time() - 90000,) * 2)
    assert start(bundle, "--version", env=env).returncode == 0
    assert file.read_bytes() == before


def test_marks_of_earlier_boots_go(bundle: Path, env: dict[str, str], cache: Path) -> None:
    """A home that many hosts share would gather one for each boot of each."""
    start(bundle, "--version", env=env)
    (folder,) = unpacked(cache)
    (mark,) = (folder / ".checked").iterdir()
    for name, hours in (("earlier", 50), ("another-host", 3), (mark.name, 26)):
        (folder / ".checked" / name).touch()
        os.utime(folder / ".checked" / name, (time.time() - hours * 3600,) * 2)
    assert start(bundle, "--version", env=env).returncode == 0
    assert {path.name for path in (folder / ".checked").iterdir()} == {"another-host", mark.name}
    assert time.time() - mark.stat().st_mtime < 60


def test_old_versions_are_swept_and_those_in_use_kept(bundle: Path, env: dict[str, str], cache: Path) -> None:
    ages = {"0.0.1-a-cp310": 40, "0.0.2-b-cp310": 20, "0.0.3-c-cp310": 40, ".new-killed": 1, ".new-now": 0}
    for name, days in ages.items():
        (cache / name / ".checked").mkdir(parents=True)
        at = time.time() - days * 86400
        if name.startswith("0.0.3"):
            (cache / name / ".checked" / "boot").touch()  # started today
        os.utime(cache / name / ".checked", (at, at))
        os.utime(cache / name, (at, at))
    cache.chmod(0o700)
    cache.parent.chmod(0o700)
    assert start(bundle, "--version", env=env).returncode == 0
    left = {path.name for path in cache.iterdir()}
    assert left & set(ages) == {"0.0.2-b-cp310", "0.0.3-c-cp310", ".new-now"}


@pytest.mark.parametrize("share", [0.02, 0.5, 0.9, 0.99999])
def test_a_file_cut_short(share: float, bundle: Path, env: dict[str, str], tmp_path: Path) -> None:
    copy = tmp_path / "tt.pyz"
    whole = bundle.read_bytes()
    copy.write_bytes(whole[: int(len(whole) * share)])
    copy.chmod(0o755)
    shell = start(copy, "check", env=env)
    assert shell.returncode == 2
    assert shell.stderr.endswith("tt.pyz is damaged or cut short; copy the file again, whole\n")
    for version in interpreters():
        named = start(interpreters()[version], copy, "check", env=env)
        assert named.returncode == 1  # Python's own, since it reads no line of ours
        assert "This copy of torchtune-sys is damaged or cut short: copy the file again, whole." in named.stderr


@pytest.mark.parametrize("place", [0.1, 0.5, 0.95])
def test_a_file_with_other_bytes(place: float, bundle: Path, env: dict[str, str], tmp_path: Path) -> None:
    copy = tmp_path / "tt.pyz"
    bits = bytearray(bundle.read_bytes())
    bits[int(len(bits) * place)] ^= 0x40
    copy.write_bytes(bits)
    copy.chmod(0o755)
    done = start(copy, "check", env=env)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "is damaged; copy the file again, whole" in done.stderr


@pytest.mark.parametrize("version", [good()[0], *exhaustive(*{good()[-1]} - {good()[0]})], ids=dotted)
def test_the_wheelhouse_installs_without_a_network(version: tuple[int, int], tmp_path: Path) -> None:
    house = built(tmp_path, f"--python={dotted(version)}", what="wheelhouse")
    subprocess.run([interpreters()[version], "-m", "venv", tmp_path / "venv"], check=True)
    pip = [tmp_path / "venv/bin/python", "-m", "pip", "install", "-q", "--no-index", "--find-links", house, "torchtune-sys"]
    done = start(*pip, env={"PATH": os.environ["PATH"], "PIP_CONFIG_FILE": os.devnull})
    assert done.returncode == 0, done.stderr
    assert start(tmp_path / "venv/bin/torchtune-sys", "rules", env=surroundings()).returncode == 0
