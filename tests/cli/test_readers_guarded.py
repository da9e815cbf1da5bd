"""Which command reads what a stranger may have made, and what holds it: one table, in which each option that names a place must stand."""

from __future__ import annotations

import gzip
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from torchtune_sys.cli.main import cli
from torchtune_sys.cli.watch import MOST_DATA, _reads_a_file

CONFINED, SMALL, WRITTEN, NAMED, RUN, OTHERS = "confined", "small", "written", "named", "run", "others"
"""Read in a child with limits of the kernel's and --timeout; read as one text of at most 4 MiB, in a child that is left behind; written; a
name that is printed, or a place that is looked at but not read; a program, started as its owner; read by another program."""
OPTIONS = {
    "--from": CONFINED, "--root": CONFINED, "--golden": CONFINED, "--before": CONFINED, "--dir": CONFINED, "paths": CONFINED,
    "--config": SMALL, "--hostfile": SMALL, "--secret-file": SMALL, "--topology": SMALL,
    "-o": WRITTEN, "--share": WRITTEN, "--facts": WRITTEN, "--save": WRITTEN, "--lists": WRITTEN, "--output-dir": WRITTEN, "--script": WRITTEN,
    "--data": NAMED, "--checkpoints": NAMED, "--scratch": NAMED, "--venv": NAMED, "--offline": NAMED, "--tool": NAMED, "--drain-state": NAMED,
    "--python": RUN, "--site-checks": RUN,
    "--inventory": OTHERS,
}  # fmt: skip
OF_A_COMMAND = {
    ("preflight", "--policy"): SMALL,
    ("generate slurm", "--policy"): NAMED,
    ("generate kubernetes", "--policy"): NAMED,
}
"""Where one option is another thing elsewhere."""
PLACES = ("FILE", "DIR", "PATH")


def options(command: click.Command, name: str = "") -> Iterator[tuple[str, str]]:
    context = click.Context(command)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from options(found, f"{name} {each}".strip())
        return
    for parameter in command.params:
        if not isinstance(parameter.type, click.Choice) and any(word in parameter.make_metavar(context) for word in PLACES):
            yield name, parameter.opts[0]


FOUND = sorted(options(cli))


def kind_of(command: str, option: str) -> str | None:
    return OF_A_COMMAND.get((command, option)) or OPTIONS.get(option)


def test_each_option_that_names_a_place_is_in_the_table() -> None:
    assert [pair for pair in FOUND if kind_of(*pair) is None] == []
    assert len(FOUND) > 150
    named = {option for _, option in FOUND}
    assert OPTIONS.keys() <= named | {"paths"}, "an option that is gone"


def words(command: str, option: str, place: str) -> list[str]:
    if option == "paths":
        return [*command.split(), place]
    if command == "compare":
        return ["compare", os.devnull, option, place]
    if command == "fleet" and option != "--dir":
        return ["fleet", "--dir", os.path.dirname(place) + "/none", option, place]
    if option in ("--secret-file", "--hostfile"):
        other = ["--hostfile", os.devnull] if option == "--secret-file" else []
        return ["preflight", "--level", "standard", *other, option, place]
    if option == "--topology":
        return ["preflight", "--level", "standard", "--isolate", option, place]
    return [*command.split(), option, place]


READ = [pair for pair in FOUND if kind_of(*pair) in (CONFINED, SMALL)]


@pytest.mark.parametrize(("command", "option"), [pair for pair in READ if kind_of(*pair) == CONFINED])
def test_what_reads_strangers_files_does_so_in_a_child_with_limits(command: str, option: str) -> None:
    assert _reads_a_file(words(command, option, "/tmp/x"))
    assert _reads_a_file(["--debug", *words(command, option, "/tmp/x")])


def _fifo(place: Path) -> None:
    os.mkfifo(place)


def _large(place: Path) -> None:
    with place.open("wb") as file:
        file.truncate(6 << 30)


def _bomb(place: Path) -> None:
    place.write_bytes(gzip.compress(b'{"schema": "torchtune-sys/facts/1", "facts": {' + b'"a":[],' * (8 << 20), 1))


def _brackets(place: Path) -> None:
    place.write_bytes(b"[" * (3 << 20))


HOSTILE: dict[str, Callable[[Path], None]] = {"fifo": _fifo, "large": _large, "bomb": _bomb, "brackets": _brackets}
ONE_OF_EACH = {("compare", "paths"), ("preflight", "--policy"), ("preflight", "--hostfile")}
"""The others come to the same reader."""


def _proves_nothing() -> list[str]:
    """Root's training leaves its result below /var/lib, where the next pre-flight of this machine would find it."""
    return ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /var/lib; exec "$@"', "-"] if os.geteuid() == 0 else []


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("command", "option"), [pair if pair in ONE_OF_EACH else pytest.param(*pair, marks=pytest.mark.exhaustive) for pair in READ]
)
def test_hostile_files_take_neither_time_nor_memory(tmp_path: Path, command: str, option: str) -> None:
    for shape, make in HOSTILE.items():
        place = tmp_path / shape
        make(place)
        (tmp_path / "none").mkdir(exist_ok=True)
        argv = [*_proves_nothing(), sys.executable, "-m", "torchtune_sys", *words(command, option, str(place))]
        argv += ["--timeout", "5"] if kind_of(command, option) == CONFINED and command not in ("fleet", "preflight") else []
        begun = time.monotonic()
        with subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        ) as child:
            assert child.stderr is not None
            said = child.stderr.read()
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode in (0, 1, 2, 3), (shape, child.returncode, said)
        assert "Traceback" not in said and "internal error" not in said, (shape, said)
        assert used.ru_maxrss >> 10 < 512, (shape, used.ru_maxrss)
        assert time.monotonic() - begun < 40, shape


def test_the_limit_of_the_kernel_is_there(tmp_path: Path) -> None:
    """compare asks a FIFO for facts, and is looked at meanwhile; so is fleet --dir with a file that a program still writes."""
    place = tmp_path / "facts"
    os.mkfifo(place)
    handle = os.open(place, os.O_RDWR)
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "torchtune_sys", "compare", str(place), "--timeout", "20"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            assert MOST_DATA in _limits_below(child.pid)
        finally:
            child.terminate()
            child.wait(30)
    finally:
        os.close(handle)


def _limits_below(pid: int) -> list[int]:
    """RLIMIT_DATA of the processes that it started, as soon as one has its limit."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        found = [resource.prlimit(int(each), resource.RLIMIT_DATA)[0] for each in below]
        if MOST_DATA in found:
            return found
        time.sleep(0.02)
    return []
