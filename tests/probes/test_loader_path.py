"""The prediction against the system's own ld.so: small libraries are compiled, loaded by a real process, and its maps compared."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_sys.formats import elf
from torchtune_sys.host import queries
from torchtune_sys.host.live import LiveHost
from torchtune_sys.host.live_queries import loader
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.python import loader_path
from torchtune_sys.probes.python.loader_path import LoadingProcess

MAIN = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (!dlopen(argv[i], RTLD_LAZY | RTLD_GLOBAL)) printf("failed %s\n", dlerror());
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) if (strchr(line, '/')) fputs(strchr(line, '/'), stdout);
    return 0;
}
"""

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="no C compiler")
_SOURCE = "int one(void) { return 1; }\n"


class Yard:
    """A place to build libraries in: ``lib("a/libcudnn.so.9", needs=["b/libcublas.so.12"], rpath="$ORIGIN/../b")``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "one.c").write_text(_SOURCE)
        (root / "main.c").write_text(MAIN)

    def lib(
        self, name: str, *, needs: tuple[str, ...] = (), rpath: str = "", runpath: str = "", flags: tuple[str, ...] = ()
    ) -> str:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        argv = ["gcc", "-shared", "-fPIC", "-nostdlib", "-Wl,--no-as-needed", f"-Wl,-soname,{path.name}", "-o", str(path)]
        argv += ["one.c", *[str(self.root / need) for need in needs], "-Wl,--unresolved-symbols=ignore-all", *flags]
        argv += _paths(rpath, runpath)
        subprocess.run(argv, cwd=self.root, check=True)
        return str(path)

    def main(self, *, rpath: str = "", runpath: str = "") -> str:
        path = self.root / "bin" / "main"
        path.parent.mkdir(exist_ok=True)
        subprocess.run(["gcc", "-o", str(path), "main.c", "-ldl", *_paths(rpath, runpath)], cwd=self.root, check=True)
        return str(path)

    def truth(self, main: str, opened: tuple[str, ...], env: dict[str, str], here: str) -> list[str]:
        run = subprocess.run(
            [main, *opened], cwd=here, env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True, check=True
        )
        lines = dict.fromkeys(line for line in run.stdout.splitlines() if line.startswith("/"))
        return sorted(line for line in lines if line.rpartition("/")[2].startswith(loader_path.FOLLOWED))

    def predicted(self, main: str, opened: tuple[str, ...], env: dict[str, str], here: str) -> list[str]:
        process = LoadingProcess(LiveHost(), main, env, here)
        for path in opened:
            process.open(path)
        assert process.unsure is None
        return sorted(os.path.realpath(item.path) for item in process.loaded)


def _paths(rpath: str, runpath: str) -> list[str]:
    if not rpath and not runpath:
        return []
    return [f"-Wl,-rpath,{rpath or runpath}", "-Wl,--disable-new-dtags" if rpath else "-Wl,--enable-new-dtags"]


Case = Callable[[Yard], tuple[str, tuple[str, ...], dict[str, str]]]


def rpath_before_library_path(yard: Yard) -> tuple[str, tuple[str, ...], dict[str, str]]:
    yard.lib("own/libcublas.so.12")
    yard.lib("other/libcublas.so.12")
    top = yard.lib("lib/libtorch_cuda.so", needs=("own/libcublas.so.12",), rpath="$ORIGIN/../own")
    return yard.main(), (top,), {"LD_LIBRARY_PATH": f"{yard.root}/other"}


def library_path_before_runpath(yard: Yard) -> tuple[str, tuple[str, ...], dict[str, str]]:
    yard.lib("own/libcublas.so.12")
    yard.lib("other/libcublas.so.12")
    top = yard.lib("lib/libtorch_cuda.so", needs=("own/libcublas.so.12",), runpath="${ORIGIN}/../own")
    return yard.main(), (top,), {"LD_LIBRARY_PATH": f"{yard.root}/other"}


def rpath_is_inherited(yard: Yard) -> tuple[str, tuple[str, ...], dict[str, str]]:
    yard.lib("own/libnvJitLink.so.12")
    yard.lib("other/libnvJitLink.so.12")
    yard.lib("own/libcusparse.so.12", needs=("own/libnvJitLink.so.12",))
    top = yard.lib("lib/libtorch_cuda.so", needs=("own/libcusparse.so.12",), rpath="$ORIGIN/../own")
    return yard.main(), (top,), {"LD_LIBRARY_PATH": f"{yard.root}/other"}


def runpath_ends_the_inheritance(yard: Yard) -> tuple[str, tuple[str, ...], dict[str, str]]:
    yard.lib("own/libnvJitLink.so.12")
    yard.lib("other/libnvJitLink.so.12")
    yard.lib("own/libcusparse.so.12", needs=("own/libnvJitLink.so.12",), runpath="$ORIGIN")
    top = yard.lib("lib/libtorch_cuda.so", needs=("own/libcusparse.so.12",), rpath="$ORIGIN/../own")
    return yard.main(), (top,), {"LD_LIBRARY_PATH": f"{yard.root}/other"}


def runpath_is_not_inherited(yard: Yard) -> tuple[str, tuple[str, ...], dict[str, str]]:
    yard.lib("own/libnvJitLink.so.12")
    yard.lib("own/libcusparse.so.12", needs=("own/libnvJitLink.so.12",))
    top = yard.lib("lib/libtorch_cuda.so", needs=("own/libcusparse.so.12",), runpath="$ORIGIN/../own")
    return yard.main(), (top,), {}


def a_name_once_loaded_is_not_searched_again(yard: Yard) -> tuple[str, tuple[str, ...], dict[str, str]]:
    own = yard.lib("own/libnvJitLink.so.12")
    yard.lib("other/libnvJitLink.so.12")
    top = yard.lib("lib/libcusparse.so.12", needs=("own/libnvJitLink.so.12",), runpath="$ORIGIN/../other")
    return yard.main(), (own, top), {"LD_LIBRARY_PATH": f"{yard.root}/other"}


def breadth_first(yard: Yard) -> tuple[str, tuple[str, ...], dict[str, str]]:
    yard.lib("own/libcublasLt.so.12")
    yard.lib("other/libcublasLt.so.12")
    yard.lib("own/libcublas.so.12", needs=("own/libcublasLt.so.12",), runpath="$ORIGIN/../other")
    top = yard.lib("lib/libtorch_cuda.so", needs=("own/libcublas.so.12", "own/libcublasLt.so.12"), rpath="$ORIGIN/../own")
    return yard.main(), (top,), {"LD_LIBRARY_PATH": f"{yard.root}/other"}


def an_empty_part_is_the_working_directory(yard: Yard) -> tuple[str, tuple[str, ...], dict[str, str]]:
    yard.lib("own/libcudart.so.12")
    yard.lib("libcudart.so.12")
    top = yard.lib("lib/libc10_cuda.so", needs=("own/libcudart.so.12",), runpath="$ORIGIN/../own")
    return yard.main(), (top,), {"LD_LIBRARY_PATH": "/nowhere::/neither"}


def nothing_but_an_empty_variable(yard: Yard) -> tuple[str, tuple[str, ...], dict[str, str]]:
    yard.lib("own/libcudart.so.12")
    yard.lib("libcudart.so.12")
    top = yard.lib("lib/libc10_cuda.so", needs=("own/libcudart.so.12",), runpath="$ORIGIN/../own")
    return yard.main(), (top,), {"LD_LIBRARY_PATH": ""}


def preloaded(yard: Yard) -> tuple[str, tuple[str, ...], dict[str, str]]:
    yard.lib("own/libnccl.so.2")
    other = yard.lib("other/libnccl.so.2.18.5", flags=("-Wl,-soname,libnccl.so.2",))
    top = yard.lib("lib/libtorch_cuda.so", needs=("own/libnccl.so.2",), rpath="$ORIGIN/../own")
    return yard.main(), (top,), {"LD_PRELOAD": other}


def preloaded_by_name(yard: Yard) -> tuple[str, tuple[str, ...], dict[str, str]]:
    yard.lib("own/libnccl.so.2")
    yard.lib("other/libnccl.so.2")
    top = yard.lib("lib/libtorch_cuda.so", needs=("own/libnccl.so.2",), rpath="$ORIGIN/../own")
    return yard.main(), (top,), {"LD_PRELOAD": "libnccl.so.2:libnvidia-gone.so", "LD_LIBRARY_PATH": f"{yard.root}/other"}


def the_programs_rpath(yard: Yard) -> tuple[str, tuple[str, ...], dict[str, str]]:
    yard.lib("env/libcudnn.so.9")
    yard.lib("other/libcudnn.so.9")
    top = yard.lib("lib/libtorch_cuda.so", needs=("env/libcudnn.so.9",))
    return yard.main(rpath="$ORIGIN/../env"), (top,), {"LD_LIBRARY_PATH": f"{yard.root}/other"}


def the_programs_rpath_and_a_library_with_runpath(yard: Yard) -> tuple[str, tuple[str, ...], dict[str, str]]:
    yard.lib("env/libcudnn.so.9")
    yard.lib("other/libcudnn.so.9")
    top = yard.lib("lib/libtorch_cuda.so", needs=("env/libcudnn.so.9",), runpath="/nowhere")
    return yard.main(rpath="$ORIGIN/../env"), (top,), {"LD_LIBRARY_PATH": f"{yard.root}/other"}


def a_broken_link_is_passed_by(yard: Yard) -> tuple[str, tuple[str, ...], dict[str, str]]:
    yard.lib("own/libcudnn.so.9")
    (yard.root / "other").mkdir()
    (yard.root / "other" / "libcudnn.so.9").symlink_to("libcudnn.so.9.1.0")
    top = yard.lib("lib/libtorch_cuda.so", needs=("own/libcudnn.so.9",), runpath="$ORIGIN/../own")
    return yard.main(), (top,), {"LD_LIBRARY_PATH": f"{yard.root}/other"}


def an_empty_file_ends_it(yard: Yard) -> tuple[str, tuple[str, ...], dict[str, str]]:
    yard.lib("own/libcudnn.so.9")
    (yard.root / "other").mkdir()
    (yard.root / "other" / "libcudnn.so.9").write_text("")
    top = yard.lib("lib/libtorch_cuda.so", needs=("own/libcudnn.so.9",), runpath="$ORIGIN/../own")
    return yard.main(), (top,), {"LD_LIBRARY_PATH": f"{yard.root}/other"}


def another_machines_file_is_passed_by(yard: Yard) -> tuple[str, tuple[str, ...], dict[str, str]]:
    own = Path(yard.lib("own/libcudnn.so.9"))
    (yard.root / "other").mkdir()
    foreign = bytearray(own.read_bytes())
    foreign[18:20] = (183 if os.uname().machine == "x86_64" else 62).to_bytes(2, "little")
    (yard.root / "other" / "libcudnn.so.9").write_bytes(foreign)
    top = yard.lib("lib/libtorch_cuda.so", needs=("own/libcudnn.so.9",), runpath="$ORIGIN/../own")
    return yard.main(), (top,), {"LD_LIBRARY_PATH": f"{yard.root}/other"}


def origin_of_the_program_in_the_variable(yard: Yard) -> tuple[str, tuple[str, ...], dict[str, str]]:
    yard.lib("own/libcudnn.so.9")
    yard.lib("other/libcudnn.so.9")
    top = yard.lib("lib/libtorch_cuda.so", needs=("own/libcudnn.so.9",), runpath="$ORIGIN/../own")
    return yard.main(), (top,), {"LD_LIBRARY_PATH": "$ORIGIN/../other;/nowhere"}


def through_a_link(yard: Yard) -> tuple[str, tuple[str, ...], dict[str, str]]:
    """$ORIGIN is the directory of the name that was opened, not of the file behind it."""
    yard.lib("store/libcudart.so.12")
    yard.lib("env/libcudart.so.12")
    yard.lib("store/libc10_cuda.so", needs=("store/libcudart.so.12",), rpath="$ORIGIN")
    (yard.root / "env" / "libc10_cuda.so").symlink_to("../store/libc10_cuda.so")
    return yard.main(), (f"{yard.root}/env/libc10_cuda.so",), {}


CASES = (
    rpath_before_library_path,
    library_path_before_runpath,
    rpath_is_inherited,
    runpath_ends_the_inheritance,
    runpath_is_not_inherited,
    a_name_once_loaded_is_not_searched_again,
    breadth_first,
    an_empty_part_is_the_working_directory,
    nothing_but_an_empty_variable,
    preloaded,
    preloaded_by_name,
    the_programs_rpath,
    the_programs_rpath_and_a_library_with_runpath,
    a_broken_link_is_passed_by,
    an_empty_file_ends_it,
    another_machines_file_is_passed_by,
    origin_of_the_program_in_the_variable,
    through_a_link,
)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_same_files_as_ld_so_maps(case: Case, tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    main, opened, env = case(yard)
    assert yard.predicted(main, opened, env, str(tmp_path)) == yard.truth(main, opened, env, str(tmp_path))


@pytest.mark.parametrize("no_default", [False, True])
def test_the_systems_own_cache(no_default: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = subprocess.run([shutil.which("ldconfig") or "/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    name = next((name for name in ("libz.so.1", "libcurl.so.4") if f"\t{name} (" in listed), None)
    if name is None:
        pytest.skip("no library in the cache that this test knows")
    monkeypatch.setattr(loader_path, "FOLLOWED", (*loader_path.FOLLOWED, name))
    monkeypatch.setattr(loader, "NAMES", (name,))
    yard = Yard(tmp_path)
    yard.lib(f"away/{name}")
    flags = ("-Wl,-z,nodefaultlib",) if no_default else ()
    top = yard.lib("lib/libtorch_cuda.so", needs=(f"away/{name}",), flags=flags)
    main = yard.main()
    truth = [os.path.realpath(path) for path in yard.truth(main, (top,), {}, str(tmp_path))]
    stem = name.partition(".")[0]
    maps = subprocess.run([main, top], capture_output=True, text=True, env={}).stdout.splitlines()
    mapped = [line for line in dict.fromkeys(maps) if line.rpartition("/")[2].startswith(stem)]
    assert bool(mapped) is not no_default
    assert yard.predicted(main, (top,), {}, str(tmp_path)) == sorted({*truth, *map(os.path.realpath, mapped)})


def test_the_cache_as_ldconfig_prints_it(tmp_path: Path) -> None:
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
    if not os.path.exists(ldconfig):
        pytest.skip("no ldconfig")
    yard = Yard(tmp_path)
    yard.lib("one/libcudnn.so.9")
    yard.lib("two/libcudnn.so.9")
    yard.lib("two/libcublas.so.12")
    yard.lib("two/glibc-hwcaps/x86-64-v3/libcublas.so.12")
    (tmp_path / "conf").write_text(f"{tmp_path}/one\n{tmp_path}/two\n")
    argv = [ldconfig, "-X", "-f", str(tmp_path / "conf"), "-C", str(tmp_path / "cache")]
    subprocess.run(argv, check=True, stderr=subprocess.DEVNULL)
    printed = subprocess.run([ldconfig, "-p", "-C", str(tmp_path / "cache")], capture_output=True, text=True, check=True).stdout
    wanted = [line.split() for line in printed.splitlines() if line.startswith("\tlibcu")]
    found = elf.parse_cache((tmp_path / "cache").read_bytes(), ("libcu",))
    assert [(entry.name, entry.path) for entry in found] == [(words[0], words[-1]) for words in wanted]
    assert {entry.path: entry.level for entry in found if entry.level} == (
        {f"{tmp_path}/two/glibc-hwcaps/x86-64-v3/libcublas.so.12": "x86-64-v3"} if "hwcap" in printed else {}
    )
    assert len(found) >= 3


@pytest.mark.skipif(not shutil.which("readelf"), reason="no readelf")
def test_every_field_as_readelf_shows_it(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    yard.lib("own/libcudart.so.12")
    path = yard.lib(
        "lib/libc10_cuda.so", needs=("own/libcudart.so.12",), rpath="$ORIGIN:/" + "x" * 5000, flags=("-Wl,-z,nodefaultlib",)
    )
    answer = LiveHost().ask(f"{queries.DYNAMIC}:{path}")
    shown = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True, check=True).stdout
    assert answer["needed"] == ("libcudart.so.12",)
    assert f"[{answer['rpath']}]" in shown and len(answer["rpath"]) > 5000
    assert f"soname: [{answer['soname']}]" in shown
    assert answer["no_default"] is True and "NODEFLIB" in shown
    assert "runpath" not in answer


def test_libraries_that_were_cut(tmp_path: Path) -> None:
    """What a full disk, an interrupted installation or a copy leaves of a library."""
    whole = Path(sys.executable).resolve().read_bytes()
    for name, content in {
        "libwhole.so": whole,
        "libcut.so": whole[: len(whole) - 100],
        "libempty.so.1": b"",
        "libzero.so": bytes(9000),
        "libscript.so": b"INPUT(libwhole.so)",
        "notes.txt": whole[:5000],
    }.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "liblink.so").symlink_to("libcut.so")
    answer = LiveHost().ask(f"{queries.CUT_LIBRARIES}:{tmp_path}")
    assert [row[0] for row in answer] == ["libcut.so", "libempty.so.1", "libzero.so"]
    assert answer[0][1] == len(whole) - 100 < answer[0][2]
    assert LiveHost().ask(f"{queries.CUT_LIBRARIES}:{tmp_path}/none").why is Why.ABSENT


def test_what_is_no_library(tmp_path: Path) -> None:
    host = LiveHost()
    (tmp_path / "script").write_text("#!/bin/sh\n")
    os.mkfifo(tmp_path / "fifo")
    whys = {name: host.ask(f"{queries.DYNAMIC}:{tmp_path}/{name}") for name in ("script", "fifo", "none", "x\0y", "")}
    assert {name: found.why for name, found in whys.items() if isinstance(found, Missing)} == {
        "script": Why.UNPARSED,
        "fifo": Why.FAILED,
        "none": Why.ABSENT,
        "x\0y": Why.ABSENT,
        "": Why.FAILED,
    }


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_survived(data: bytes, with_magic: bool) -> None:
    whole = b"\x7fELF\x02\x01\x01" + data if with_magic else data
    with contextlib.suppress(ValueError):
        elf.parse_elf(lambda offset, size: whole[offset : offset + size])
    with contextlib.suppress(ValueError):
        elf.parse_cache(b"glibc-ld.so.cache1.1" + data, ("",))


def test_every_cut_and_flipped_byte_is_survived(tmp_path: Path) -> None:
    data = Path(Yard(tmp_path).lib("libcudart.so.12", rpath="/opt")).read_bytes()
    for place in range(0, 4096, 3):
        for broken in (data[:place], data[:place] + b"\xff" + data[place + 1 :]):
            with contextlib.suppress(ValueError, OverflowError):
                elf.parse_elf(lambda offset, size, broken=broken: broken[offset : offset + size])  # type: ignore[misc]
