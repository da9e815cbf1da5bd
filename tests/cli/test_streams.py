"""Where the result goes: a reader that is gone, a full disk, closed streams, a terminal with its colours and width, encodings."""

from __future__ import annotations

import ast
import fcntl
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from driven import HOSTS, PROGRAM, environment, run, shown

import torchtune_sys
from torchtune_sys.cli.main import COMMANDS
from torchtune_sys.cli.terminal import encoded

SMALL = str(HOSTS / "base-system.json")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["check", "--from", SMALL], (0, 1, 3)),
        (["rules"], (0,)),
        (["check", "--from", SMALL, "--format", "json"], (0, 1, 3)),
        (["--version"], (0,)),
        (["preflight", "--help"], (0,)),
        (["history"], (0,)),
    ],
)
def test_a_reader_that_went_away_is_no_error(arguments: list[str], status: tuple[int, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    child = subprocess.Popen([*PROGRAM, *arguments], stdout=writing, stderr=subprocess.PIPE, text=True, env=environment())
    os.close(writing)
    assert child.communicate(timeout=120)[1] == ""
    assert child.returncode in status


@pytest.mark.parametrize("arguments", [["check", "--from", SMALL], ["rules"], ["snapshot", "--from", SMALL], ["--help"]])
def test_a_full_disk_behind_standard_output_is_told(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        found = subprocess.run(
            [*PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, env=environment(), timeout=120
        )
    assert found.returncode == 4
    assert "No space left" in found.stderr and "Traceback" not in found.stderr


RESULTS = {
    **{name: [[name]] for name in ("check", "plan", "history", "help", "rules", "snapshot", "record")},
    "diagnose": [["diagnose", SMALL]],
    "apply": [["apply", "--dry-run", "--select", "limits"]],
    "undo": [["undo", "--dry-run"]],
    "note": [["note", "--run", "99999", "never entered"]],
    "launch": [],
    "smoke": [["smoke", "--list"], ["smoke", "--python", "/no/python"]],
    "preflight": [["preflight", "--select", "system"]],
    "generate": [["generate", "slurm", "conf"], ["generate", "install"]],
    "explain": [["explain", "dev-shm-too-small"]],
    "compare": [["compare", SMALL, SMALL]],
    "fleet": [["fleet", "--nodes", ""]],
    "completion": [["completion", "bash"]],
}
"""Command → ways to call it that have a result; launch has that of the program which it becomes."""


@pytest.mark.sampled(12, 20)
@pytest.mark.parametrize("output", ["/dev/full", "&-"])
@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_no_command_ends_well_where_its_result_cannot_be_written(name: str, output: str) -> None:
    words = [word for word in (name,) if word]
    called = [[*words, "--help"], *([["--version"], [], ["--help-all"]] if not name else RESULTS[name])]
    for arguments in called:
        found = shell(f"PROGRAM {shlex.join(arguments)} >{output}")
        assert found.returncode not in (0, 1) and "Traceback" not in found.stderr and found.stderr, arguments


def test_a_limit_on_the_size_of_files_is_a_finding_of_smoke() -> None:
    """Not even the script that the ranks run may be written."""
    found = shell(f"ulimit -f 100; PROGRAM smoke --python {sys.executable} --nproc-per-node 1 --format json")
    (stage,) = json.loads(found.stdout)["stages"]
    assert (found.returncode, stage["stage"], stage["verdict"], stage["cause"]) == (1, "import", "fail", "file-size-limit")


def test_a_full_disk_behind_output_is_told() -> None:
    found = run("check", "--from", SMALL, "--output", "/dev/full")
    assert found.returncode == 4
    assert "/dev/full" in found.stderr and found.stdout == ""


@pytest.mark.parametrize("place", ["/no/such/directory/x", "/", "/proc/x"])
def test_a_place_that_cannot_be_written_is_told(place: str) -> None:
    found = run("check", "--from", SMALL, "--output", place)
    assert found.returncode == 4
    assert place in found.stderr and "Traceback" not in found.stderr


@pytest.mark.parametrize("output", ["/no/such/directory/x", "/proc/version/x"])
@pytest.mark.parametrize(
    "words",
    [
        "smoke --python /no/python --output",
        "fleet --nodes '' --output",
        "diagnose /no/log --output",
        "diagnose /no/log --share",
        "preflight --isolate --lists",
    ],
)
def test_what_takes_long_is_not_begun_where_its_result_has_no_place(words: str, output: str) -> None:
    found = run(*words.split(), output)
    assert found.returncode == 4 and found.stderr.startswith(f"torchtune-sys: {output}"), found.stderr


def test_a_place_for_a_result_may_be_a_device() -> None:
    assert run("diagnose", "--output", "/dev/null", data="fine\n").returncode in (0, 3)


def shell(line: str) -> subprocess.CompletedProcess[str]:
    program = " ".join(PROGRAM)
    return subprocess.run(
        ["/bin/sh", "-c", line.replace("PROGRAM", program)], capture_output=True, text=True, env=environment(), timeout=120
    )


def test_closed_streams() -> None:
    found = shell(f"PROGRAM check --from {SMALL} >&-")
    assert found.returncode == 4 and "standard output is closed" in found.stderr
    found = shell(f"PROGRAM check --from {SMALL} 2>&-")
    assert found.returncode in (0, 1, 3) and "Traceback" not in found.stdout
    found = shell("PROGRAM check --from /no/such/file >&- 2>&-")
    assert found.returncode == 2
    found = shell(f"PROGRAM check --from {SMALL} <&-")
    assert found.returncode in (0, 1, 3)


@pytest.mark.parametrize("output", ["/dev/full", "&-"])
def test_an_error_that_cannot_be_told_to_monitoring_keeps_its_status(output: str) -> None:
    """1 would be a warning there."""
    for source in ("/no/such/file", SMALL):
        found = shell(f"PROGRAM check --from {source} --format nagios >{output}")
        assert found.returncode == 3 and "Traceback" not in found.stderr
        assert source != SMALL or "standard output" in found.stderr


def test_a_slow_reader_gets_everything_through_a_pipe_that_does_not_block() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    child = subprocess.Popen(
        [*PROGRAM, "rules", "--format", "json"], stdout=writing, stderr=subprocess.PIPE, text=True, env=environment()
    )
    os.close(writing)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(timeout=3)  # the pipe is full, and nobody reads
    with open(reading) as pipe:
        assert json.load(pipe)["rules"]
    assert child.communicate(timeout=60)[1] == ""


def test_a_closed_standard_output_is_no_matter_where_the_result_is_a_file(tmp_path: Path) -> None:
    found = shell(f"PROGRAM check --from {SMALL} --output {tmp_path}/r >&-")
    assert found.returncode in (0, 1, 3) and (tmp_path / "r").stat().st_size


def on_terminal(*arguments: str, columns: int = 0, **env: str) -> str:
    """What a person sees: standard output is a terminal of that many columns."""
    leader, follower = pty.openpty()
    if columns:
        import fcntl
        import struct
        import termios

        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    child = subprocess.Popen(
        [*PROGRAM, *arguments], stdout=follower, stderr=subprocess.DEVNULL, env=environment({"TERM": "xterm", **env})
    )
    os.close(follower)
    said = shown(leader)
    child.wait(timeout=120)
    return said.replace("\r\n", "\n")


def test_colour_on_a_terminal_only() -> None:
    assert "\x1b[" in on_terminal("check", "--from", SMALL)
    assert "\x1b[" not in run("check", "--from", SMALL).stdout


@pytest.mark.parametrize(
    ("arguments", "env", "colored"),
    [
        ([], {"NO_COLOR": "1"}, False),
        ([], {"NO_COLOR": ""}, True),
        ([], {"TERM": "dumb"}, False),
        (["--color", "never"], {"FORCE_COLOR": "1"}, False),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
        (["--output", "/dev/stdout"], {}, False),
    ],
)
def test_colour_can_be_chosen(arguments: list[str], env: dict[str, str], colored: bool) -> None:
    assert ("\x1b[" in on_terminal("check", "--from", SMALL, *arguments, **env)) is colored


def test_colour_can_be_forced_into_a_pipe() -> None:
    assert "\x1b[" in run("check", "--from", SMALL, env={"FORCE_COLOR": "1"}).stdout
    assert "\x1b[" in run("check", "--from", SMALL, "--color", "always").stdout
    assert "\x1b[" not in run("check", "--from", SMALL, env={"FORCE_COLOR": "0"}).stdout


@pytest.mark.parametrize(("columns", "limit"), [(60, 60), (90, 90), (200, 100), (0, 80)])
def test_the_terminals_width_is_used_up_to_100_columns(columns: int, limit: int) -> None:
    rows = on_terminal("check", "--from", SMALL, "--color", "never", "--verbose", columns=columns).splitlines()
    breakable = [row for row in rows if " " in row.strip()]
    assert max(map(len, breakable)) <= limit + 8
    assert max(map(len, breakable)) > limit - 25


SHOWN = ("rules", "render", "cli", "remediation", "consequences", "preflight", "model")
"""Packages whose texts people read."""
READ_NOT_SHOWN = {
    "model/steering.py",
    "remediation/plan/files.py",
    "model/numbers.py",
    "model/patterns.py",
    "model/codec.py",
    "model/facts/cpu.py",
    "render/comparison.py",
    "render/generate/script.py",
    "render/layout.py",
    "render/preflight.py",
}
"""Modules in which other signs stand for what is read or left out."""


def test_each_sign_of_our_own_texts_has_a_form_in_ascii() -> None:
    """LC_ALL=C, or POSIX, with Python's UTF-8 mode off: a person would read escapes."""
    source, signs = Path(torchtune_sys.__file__).parent, dict[str, str]()
    for file in sorted(source.glob("**/*.py")):
        name = str(file.relative_to(source))
        if name.startswith(SHOWN) and name not in READ_NOT_SHOWN:
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    signs |= {sign: name for sign in node.value if not sign.isascii()}
    assert {"→", "…", "°"} <= signs.keys()
    assert {sign: name for sign, name in signs.items() if b"\\" in encoded(sign, "ascii")} == {}


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_locale_that_lacks_the_characters_gets_ascii(encoding: str) -> None:
    found = subprocess.run(
        [*PROGRAM, "check", "--from", SMALL, "--verbose"],
        capture_output=True,
        env=environment({"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}),
        timeout=120,
    )
    assert found.returncode in (0, 1, 3)
    found.stdout.decode(encoding)
    assert b"Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("env", "is_plain"),
    [
        ({"LC_ALL": "C"}, True),
        ({"LC_ALL": "POSIX"}, True),
        ({"LC_ALL": "C.UTF-8", "LANG": "C"}, False),
    ],
)
def test_in_the_locale_c_our_own_signs_are_ascii(env: dict[str, str], is_plain: bool) -> None:
    """Python writes UTF-8 there, which a serial console shows as rubbish. What others wrote stays as it is."""
    said = run("plan", "--from", str(HOSTS / "swappiness-high.fail.json"), env=env).stdout
    assert ("60 -> 10" if is_plain else "60 → 10") in said and said.isascii() is is_plain
    assert "Ünï" in run("diagnose", env=env, data="Ünï: CUDA error: out of memory\n").stdout


def test_machine_formats_are_utf8_in_any_locale() -> None:
    found = subprocess.run(
        [*PROGRAM, "rules", "--format", "json"], capture_output=True, env=environment({"PYTHONIOENCODING": "ascii"}), timeout=120
    )
    assert json.loads(found.stdout.decode("utf-8"))


def test_progress_is_told_on_a_terminal_only_and_cleared() -> None:
    from torchtune_sys.cli import terminal

    leader, follower = pty.openpty()
    with os.fdopen(follower, "w", buffering=1) as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        show = terminal.progress(timeout_s=0)
        assert show is not None
        show({"storage", "gpu"})
        terminal.clear_progress(show)
    told = shown(leader)
    assert re.search(r"still reading: gpu, storage \(0 s\)", told) and told.endswith("\r\x1b[K")
    with pytest.MonkeyPatch.context() as patch, open(os.devnull, "w") as stream:
        patch.setattr(sys, "stderr", stream)
        assert terminal.progress() is None


@pytest.mark.parametrize(("kind", "wanted"), [("xterm", "\r\x1b[K" + "x" * 39 + "\r\x1b[K"), ("dumb", "")], ids=["xterm", "dumb"])
def test_a_status_line_is_one_row_and_needs_a_terminal_that_clears_it(kind: str, wanted: str) -> None:
    from torchtune_sys.cli import terminal

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", 24, 40, 0, 0))
    with os.fdopen(follower, "w", buffering=1) as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        patch.setattr(terminal, "environment", lambda: {"TERM": kind})
        terminal.status("x" * 200)
        terminal.status("")
    assert shown(leader) == wanted


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        (("diagnose", "train.log", "--share", "./train.log"), "./train.log"),
        (("diagnose", "train.log", "--output", "train.log"), "train.log"),
        (("check", "--from", "train.log", "-o", "train.log"), "train.log"),
        (("check", "--from", "train.log", "--facts", "train.log"), "train.log"),
        (("snapshot", "--from", "./train.log", "-o", "train.log"), "train.log"),
        (("compare", "train.log", "other", "-o", "train.log"), "train.log"),
        (("compare", "other", "--before", "train.log", "-o", "train.log"), "train.log"),
        (("fleet", "--nodes", "n1", "--save", "train.log", "--before", "train.log"), "train.log"),
    ],
)
def test_what_is_read_is_not_written_over(tmp_path: Path, arguments: tuple[str, ...], written: str) -> None:
    (tmp_path / "train.log").write_text("Bus error\n")
    (tmp_path / "other").write_text("Bus error\n")
    found = subprocess.run([*PROGRAM, *arguments], env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert found.returncode == 2 and found.stderr.startswith(f"torchtune-sys: {written} is read, so nothing is written over it\n")
    assert (tmp_path / "train.log").read_text() == "Bus error\n"


def test_a_log_named_as_the_report_to_share_is_not_written_over(tmp_path: Path) -> None:
    """``diagnose --share train.log`` would read standard input, and the log would be gone."""
    log = tmp_path / "train.log"
    log.write_text("Bus error\n")
    for name, status in (("train.log", 2), ("report.md", 1), ("report.md", 1)):
        words, said = [*PROGRAM, "diagnose", "--share", name], "Bus error\n"
        found = subprocess.run(words, env=environment(), cwd=tmp_path, input=said, capture_output=True, text=True, timeout=60)
        assert found.returncode == status, found.stderr
        assert name == "report.md" or found.stderr.startswith("torchtune-sys: train.log is there, and is no report of --share")
    assert log.read_text() == "Bus error\n"


def test_a_pipe_that_nobody_reads_keeps_nobody_who_is_asked_to_end() -> None:
    """What was left to write was waited for, with all signals ignored: a scheduler's SIGTERM, too."""
    reading, writing = os.pipe()
    os.write(writing, b"x" * fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ))
    child = subprocess.Popen([sys.executable, "-I", *PROGRAM[1:], "history"], stdout=writing, stderr=subprocess.DEVNULL)
    try:
        asleep = 0
        while asleep < 20:
            asleep = asleep + 1 if ") S " in Path(f"/proc/{child.pid}/stat").read_text() else 0
            time.sleep(0.05)
        child.terminate()
        assert child.wait(timeout=20) == 143
    finally:
        child.kill()
        os.close(reading), os.close(writing)
