"""``generate systemd``, ``tuned`` and ``kernel-args`` as a person calls them."""

from __future__ import annotations

import configparser
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from driven import HOSTS, run


def test_drop_ins_are_written_below_a_folder_and_foreign_ones_left(tmp_path: Path) -> None:
    arguments = ("generate", "systemd", "--from", str(HOSTS / "service-memlock-too-low.fail.json"), "--output-dir", str(tmp_path))
    done = run(*arguments, "--unit", "train", "--defaults")
    assert done.returncode == 0 and done.stdout == "", done.stderr
    unit = tmp_path / "etc/systemd/system/train.service.d/90-torchtune-sys.conf"
    assert "\nLimitMEMLOCK=infinity\n" in unit.read_text() and 'Environment="OMP_NUM_THREADS=' in unit.read_text()
    manager = tmp_path / "etc/systemd/system.conf.d/90-torchtune-sys.conf"
    assert "\nDefaultLimitMEMLOCK=infinity\n" in manager.read_text()
    assert run(*arguments, "--unit", "train").returncode == 0
    unit.write_text("[Service]\n")
    refused = run(*arguments, "--unit", "train")
    assert refused.returncode == 4 and "not made by torchtune-sys" in refused.stderr and unit.read_text() == "[Service]\n"


STARTED = [("slurm", piece, "--tool", "/opt/tt") for piece in ("prolog", "epilog", "health-check", "task-prolog", "batch")]
"""What Slurm or a person starts: a Prolog that is no program drains each node on which a job starts."""


@pytest.mark.parametrize("words", [*STARTED, ("numactl", "--format", "wrapper", "--from", str(HOSTS / "healthy.json"))])
def test_what_is_started_is_written_as_a_program_for_all(words: tuple[str, ...], tmp_path: Path) -> None:
    place, umask = tmp_path / "it", os.umask(0o022)
    try:
        assert run("generate", *words, "-o", str(place)).returncode == 0
        assert place.stat().st_mode & 0o777 == 0o755
        place.chmod(0o640)  # as an earlier release or an administrator left it
        assert run("generate", *words, "-o", str(place)).returncode == 0
    finally:
        os.umask(umask)
    assert place.stat().st_mode & 0o777 == 0o750


def test_several_drop_ins_are_printed_below_their_paths() -> None:
    done = run("generate", "systemd", "--from", str(HOSTS / "logind-removes-ipc.fail.json"), "--unit", "train@.service")
    heads = [row for row in done.stdout.splitlines() if row.startswith("# /etc/systemd") and row.endswith(".conf")]
    assert heads == [
        "# /etc/systemd/logind.conf.d/90-torchtune-sys.conf",
        "# /etc/systemd/system/train@.service.d/90-torchtune-sys.conf",
    ]


@pytest.mark.parametrize("unit", ["a b", "../x", "$(reboot)"])
def test_a_unit_that_is_none(unit: str) -> None:
    done = run("generate", "systemd", "--from", str(HOSTS / "healthy.json"), "--unit", unit)
    assert done.returncode == 2 and "not the name of a systemd unit" in done.stderr


def test_a_unit_that_is_no_service() -> None:
    """Of a slice systemd says "Unknown section 'Service'. Ignoring.": the limits were none."""
    done = run("generate", "systemd", "--from", str(HOSTS / "healthy.json"), "--unit", "user-1000.slice")
    assert done.returncode == 2 and "user-1000.slice is no service" in done.stderr


def test_a_profile_on_top_of_the_one_that_is_named() -> None:
    done = run("generate", "tuned", "--from", str(HOSTS / "thp-never.fail.json"), "--include", "latency-performance")
    parsed = configparser.RawConfigParser()
    parsed.read_string(done.stdout)
    assert parsed["main"]["include"] == "latency-performance" and parsed["vm"]["transparent_hugepages"] == "madvise"
    assert "for /etc/tuned/torchtune-sys/tuned.conf" in done.stderr
    hostile = run("generate", "tuned", "--from", str(HOSTS / "thp-never.fail.json"), "--include", "a\n[script]")
    assert hostile.returncode == 2 and hostile.stdout == ""


def test_arguments_in_each_form() -> None:
    host = str(HOSTS / "nouveau-loaded.fail.json")
    assert run("generate", "kernel-args", "--from", host).stdout == ""  # boot arguments need a decision
    assert run("generate", "kernel-args", "--unsafe", "--from", host).stdout == "modprobe.blacklist=nouveau\n"
    for form in ("grub", "systemd-boot"):
        assert "modprobe.blacklist=nouveau" in run("generate", "kernel-args", "--unsafe", "--from", host, "--format", form).stdout
    nothing = run("generate", "kernel-args", "--from", str(HOSTS / "healthy.json"))
    assert nothing.stdout == "" and "no kernel argument" in nothing.stderr and nothing.returncode == 0


PIECES = ("script", "env", "numactl", "sysctl", "limits", "modprobe", "tmpfiles", "udev", "systemd", "tuned", "kernel-args")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("piece", PIECES)
def test_help_has_examples_that_run(piece: str) -> None:
    """Those of one command alone: what stands behind && needs root, another program or a file of one's own."""
    done = run("generate", piece, "--help")
    assert done.returncode == 0 and "\n  Examples:\n" in done.stdout
    joined = re.sub(r" \\\n +", " ", done.stdout)
    examples = [row.strip() for row in joined.splitlines() if row.startswith("    torchtune-sys generate")]
    assert examples and all(row.split()[2] == piece for row in examples)
    for row in examples:
        words = shlex.split(row.partition(" && ")[0].partition(" | ")[0])[1:]
        if not {"-o", "--from", "--output-dir"} & set(words):
            host = str(HOSTS / "healthy.json")
            program = words.index("--") if "--" in words else len(words)
            ran = run(*words[:program], "--from", host, *words[program:])
            assert ran.returncode == 0 and "Traceback" not in ran.stderr, row


@pytest.mark.sampled(10)
@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (("--from", "/nonexistent.json"), 2, "No such file"),
        (("--nproc-per-nod", "8"), 2, "did you mean --nproc-per-node"),
        (("-o", "/nonexistent/file"), 4, "/nonexistent/file"),
        (("-o", "/"), 4, "is a directory"),
        (("--nproc-per-node", "none"), 2, "not a whole number"),
    ],
)
def test_mistakes_are_told_in_words(piece: str, options: tuple[str, ...], status: int, words: str) -> None:
    """With a host on which each piece has something to write."""
    if piece == "modprobe" and "-o" in options:
        pytest.skip("no rule asks for a module's option yet")
    host = str(HOSTS / f"{_TEACHER.get(piece, 'swappiness-high.fail')}.json")
    given = ("--from", host) if "-o" in options else ()
    extra = {"systemd": ("--unit", "train"), "kernel-args": ("--unsafe",)}.get(piece, ())
    done = run("generate", piece, *given, *extra, *options)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert words in " ".join(done.stderr.split()) and "Traceback" not in done.stderr


_TEACHER = {
    "limits": "memlock-limit-too-low.fail",
    "tmpfiles": "thp-never.fail",
    "udev": "hdd-scheduler-none.fail",
    "tuned": "thp-never.fail",
    "kernel-args": "nouveau-loaded.fail",
}


@pytest.mark.parametrize(("typed", "meant"), [("sysctll", "sysctl"), ("kernelargs", "kernel-args"), ("numa", "numactl")])
def test_a_wrong_name_is_corrected(typed: str, meant: str) -> None:
    done = run("generate", typed)
    assert done.returncode == 2 and f"did you mean {meant}?" in done.stderr


def test_a_file_that_is_there_is_replaced_as_a_whole(tmp_path: Path) -> None:
    place = tmp_path / "job.env"
    place.write_text("old\n" * 1000)
    assert run("generate", "env", "--from", str(HOSTS / "healthy.json"), "-o", str(place)).returncode == 0
    assert "old" not in place.read_text() and "export OMP_NUM_THREADS=" in place.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["job.env"]


@pytest.mark.parametrize("form", ["shell", "systemd", "slurm", "docker", "kubernetes"])
def test_with_nothing_to_set_the_file_is_there_nevertheless(tmp_path: Path, form: str) -> None:
    """``. ./job.env`` stands behind it."""
    place = tmp_path / "job.env"
    nothing = ("--from", str(HOSTS / "base-system.json"), "--threads", "4", "--select", "swappiness-high")
    done = run("generate", "env", *nothing, "--format", form, "-o", str(place))
    assert (done.returncode, done.stdout) == (0, "") and "nothing to set" in done.stderr
    assert "=" not in place.read_text()
    assert run("generate", "env", *nothing, "--format", form).stdout == ""


def test_a_tuned_profile_that_is_not_there_is_not_built_upon(tmp_path: Path) -> None:
    (tmp_path / "usr/lib/tuned/balanced").mkdir(parents=True)
    (tmp_path / "usr/lib/tuned/balanced/tuned.conf").write_text("[main]\nsummary=x\n")
    (tmp_path / "proc").mkdir()
    done = run("generate", "tuned", "--root", str(tmp_path), "--include", "balancd")
    assert done.returncode == 2 and "tuned has no profile 'balancd' here" in done.stderr
    assert run("generate", "tuned", "--root", str(tmp_path), "--include", "balanced").returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@pytest.mark.long
def test_nothing_needs_root() -> None:
    """With the modules in a place that another user may read, and Debian's interpreter if it is of the same version."""
    python = next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if _is_alike(path)), None)
    if python is None:
        pytest.skip("no interpreter of this version that another user may read")
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        for name in ("torchtune_sys", "msgspec", "click", "jinja2", "markupsafe", "psutil"):
            (source,) = importlib.import_module(name).__path__
            shutil.copytree(source, Path(place, name), ignore=shutil.ignore_patterns("__pycache__"))
        templates = Path(__file__).resolve().parents[3] / "templates"
        shutil.copytree(templates, Path(place, "torchtune_sys/templates"), dirs_exist_ok=True)
        for piece in PIECES:
            argv = [
                "setpriv",
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                python,
                "-m",
                "torchtune_sys",
                "generate",
                piece,
            ]
            env = {"PATH": os.environ["PATH"], "PYTHONPATH": place, "HOME": "/", "PYTHONDONTWRITEBYTECODE": "1"}
            done = subprocess.run(argv, cwd="/", env=env, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0 and "Traceback" not in done.stderr, (piece, done.stderr)


def _is_alike(python: str) -> bool:
    if not Path(python).exists() or shutil.which("setpriv") is None:
        return False
    code = "import sys; print(sys.implementation.cache_tag)"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip() == sys.implementation.cache_tag
