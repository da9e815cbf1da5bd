"""The tool's own modules are found as Python finds them, and their byte code is taken only where Python would take it."""

from __future__ import annotations

import os
import pkgutil
import py_compile
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import cache_from_source
from pathlib import Path

import pytest

import torchtune_sys
from torchtune_sys.host import own_modules

FINDER = own_modules._Finder
TAKEN = ("name", "origin", "cached", "has_location", "submodule_search_locations", "parent")


def test_each_module_is_found_as_python_finds_it() -> None:
    seen = 0
    for module in pkgutil.walk_packages(torchtune_sys.__path__, "torchtune_sys.", onerror=lambda name: None):
        path = [str(Path(module.module_finder.path))]  # type: ignore[union-attr]
        found, usual = FINDER.find_spec(module.name, path), PathFinder.find_spec(module.name, path)
        assert found is not None
        assert usual is not None
        assert [getattr(found, name) for name in TAKEN] == [getattr(usual, name) for name in TAKEN]
        seen += 1
    assert seen > 800


def test_what_is_not_ours_or_not_there_is_left_to_python(tmp_path: Path) -> None:
    assert FINDER.find_spec("json.decoder", ["/"]) is None
    assert FINDER.find_spec("torchtune_sys") is None
    assert FINDER.find_spec("torchtune_sys.there_is_none", [str(tmp_path)]) is None


def made(place: Path, value: int, mode: py_compile.PycInvalidationMode = py_compile.PycInvalidationMode.TIMESTAMP) -> ModuleSpec:
    """Write and compile a module, and return where it is found."""
    place.write_text(f"value = {value}\n")
    py_compile.compile(str(place), doraise=True, invalidation_mode=mode)
    found = FINDER.find_spec(f"torchtune_sys.{place.stem}", [str(place.parent)])
    assert found is not None
    return found


def value_of(found: ModuleSpec) -> object:
    space: dict[str, object] = {}
    code = found.loader.get_code(found.name)  # type: ignore[union-attr]
    assert code.co_filename == found.origin
    exec(code, space)
    return space["value"]


def test_byte_code_of_the_source_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = made(tmp_path / "a.py", 1)
    monkeypatch.setattr(SourceFileLoader, "get_code", lambda *_: pytest.fail("looked for in Python's own way"))
    assert value_of(found) == 1


@pytest.mark.parametrize("what", ["later", "of another size", "of another Python", "checked by a hash", "gone", "made elsewhere"])
def test_other_byte_code_is_not_taken(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    place, modes = tmp_path / "a.py", py_compile.PycInvalidationMode
    made(place, 1, modes.CHECKED_HASH if what == "checked by a hash" else modes.TIMESTAMP)
    cached, before = Path(cache_from_source(str(place))), place.stat()
    if what == "gone":
        cached.unlink()
    elif what == "made elsewhere":
        place, old = tmp_path / "b.py", place
        place.write_text(old.read_text())
        cached.rename(cache_from_source(str(place)))
        os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        place.write_text("value = 22\n" if what == "of another size" else "value = 2\n")
        os.utime(place, (before.st_atime, before.st_mtime + (10 if what == "later" else 0)))
    if what == "of another Python":
        cached.write_bytes(b"\0" + cached.read_bytes()[1:])
    found = FINDER.find_spec(f"torchtune_sys.{place.stem}", [str(tmp_path)])
    assert found is not None
    assert value_of(found) == {"of another size": 22, "gone": 1, "made elsewhere": 1}.get(what, 2)


@pytest.mark.parametrize(("option", "is_used"), [((), True), (("-O",), False), (("-X", "pycache_prefix=/nowhere"), False)])
def test_options_that_move_byte_code(option: tuple[str, ...], is_used: bool) -> None:
    import subprocess

    program = "from torchtune_sys.host import own_modules as o; import sys; o.find(); print(o._Finder in sys.meta_path)"
    told = subprocess.run([sys.executable, *option, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout == f"{is_used}\n"
