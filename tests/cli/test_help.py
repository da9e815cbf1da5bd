"""Help that fits on a screen, all of it on demand, and errors of one style."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from driven import HOSTS, environment, run

import torchtune_sys
from torchtune_sys import __version__
from torchtune_sys.cli.help import HELP_ALL, SCREEN, Command
from torchtune_sys.cli.main import cli

RECORDED = str(HOSTS / "healthy.json")


def _commands(group: click.Group = cli, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from _commands(found, (*before, name))
        else:
            yield (*before, name)


ALL = [*_commands()]
_ASKED = """
import os, sys
from torchtune_sys.__main__ import main
from torchtune_sys.cli.invocation import again_as_root
print(again_as_root("run it again with sudo", sys.argv[1:], os.environ)) if "undo" in sys.argv else main()
"""


def _all() -> Iterator[tuple[tuple[str, ...], Command]]:
    for words in ALL:
        context, found = click.Context(cli), cli
        for name in words:
            assert isinstance(found, click.Group)
            found = found.get_command(context, name)
        assert isinstance(found, Command), words
        yield words, found


def _said(*words: str) -> str:
    found = CliRunner().invoke(cli, words)
    assert found.exit_code == 0, found.output
    return found.output


def test_the_help_of_every_command_fits_on_a_screen_examples_first() -> None:
    for words in ALL:
        text = _said(*words, "--help")
        rows = text.splitlines()
        assert len(rows) <= SCREEN and max(map(len, rows)) <= 80, text
        assert text.isascii(), words
        assert not any(row.endswith("...") for row in rows if row.startswith("  -")), text  # no option's sentence is cut
        if "Example" in text:
            assert text.index("Example") < text.index("Options:"), text


def test_the_short_help_names_every_option_and_where_the_rest_is() -> None:
    for words in ALL:
        short, whole = _said(*words, "--help"), _said(*words, HELP_ALL)
        rows = re.findall(r"^ +(?:-\w, )?(--[a-z][a-z-]+)(?: / (--[a-z-]+))?", whole, re.MULTILINE)
        names = {name for row in rows for name in row} - {"", "--help", HELP_ALL}
        assert names <= set(re.findall(r"--[a-z][a-z-]+", short)), (words, short)
        assert short == whole or f"torchtune-sys {' '.join(words)} {HELP_ALL}" in short


def test_what_the_short_help_explains_first_is_an_option() -> None:
    for words, found in _all():
        names = {name for option in found.params for name in (*option.opts, *option.secondary_opts)}
        assert set(found.common) <= names, words


def test_every_default_is_shown() -> None:
    for words, found in _all():
        for option in found.params:
            if isinstance(option, click.Option) and option.to_info_dict()["default"] not in (None, False, (), ""):
                assert re.search(r"\[.+\]|\(default\)", option.help or ""), (words, option.opts)


def test_the_short_help_keeps_what_a_condition_is_for() -> None:
    text = _said("generate", "install", "--help")
    assert "With --system: GPU model" in text and "With --gpu: number of GPUs" in text


@pytest.mark.parametrize("group", [("generate",), ()])
def test_a_group_has_its_examples_before_its_commands(group: tuple[str, ...]) -> None:
    text = _said(*group, "--help")
    assert text.index("  torchtune-sys ") < text.index("Commands:")


def test_an_example_that_is_too_long_for_a_row_goes_on_as_a_shell_takes_it() -> None:
    text = _said("preflight", "--help")
    assert "policy.toml \\\n        --site-checks /etc" in text, text
    text = _said("diagnose", "--help")
    assert "srun torchtune-sys diagnose --symptoms /tmp/job/ \\\n        | torchtune-sys diagnose --merge" in text, text


def test_help_shows_all_of_a_command() -> None:
    assert _said("help", "check") == _said("check", HELP_ALL)
    assert _said("help", "generate", "script") == _said("generate", "script", HELP_ALL)
    assert _said("help") == _said("--help")


def test_version_in_short() -> None:
    assert _said("-V") == _said("--version") == f"torchtune-sys, version {__version__}\n"


@pytest.mark.parametrize(
    ("words", "seen", "todo"),
    [
        ("check --slect x", "no such option --slect", "did you mean --select"),
        ("check --json", "no such option --json", "did you mean --format json?"),
        ("check --fix", "no such option --fix", "torchtune-sys check --help-all"),
        ("version", "no such command 'version'", "did you mean --version?"),
        (
            "explain oom",
            "no rule or cause is called 'oom'",
            "did you mean oom-kill-logged, oom-kills-since-boot or host-memory-oom?",
        ),
        ("generate slurm prolog --tool bin/x", "--tool bin/x: Slurm starts the script", "give an absolute path"),
        ("chekc", "no such command 'chekc'", "did you mean check?"),
        ("help chekc", "no such command 'chekc'", "did you mean check?"),
        ("help check foo", "torchtune-sys check has no commands below it", "torchtune-sys check --help"),
        ("generate scrpt", "no such command 'scrpt'", "did you mean script?"),
        ("check --format x", "--format: 'x' is not one of 'text', ", "torchtune-sys check --help"),
        ("check --format jsn", "--format: 'jsn' is not one of 'text', ", "did you mean json? How it is used: "),
        ("smoke --device gpu", "--device: 'gpu' is not one of ", "did you mean cuda?"),
        ("explain nope", "no rule or cause is called 'nope'", "torchtune-sys rules lists the rules"),
        ("completion bsh", "SHELL: 'bsh' is not one of ", "did you mean bash?"),
        ("generate slurm prlog", "PIECE: 'prlog' is not one of ", "did you mean prolog?"),
        ("generate script --stages instal", "--stages: instal is none of install, tune, smoke", "did you mean install?"),
        ("diagnose --merge --share x", "--share writes what this node's files hold", "give --share on a node"),
        ("undo 3 --all", "--all undoes every run, and RUN names one", "give one of them"),
        ("generate numactl -- python train.py", "PROGRAM is for --format commands", "torchtune-sys generate numactl --help"),
        ("preflight --max-tainted 3", "--max-tainted has no effect without --act", "give both, or neither"),
        ("check --nproc-per-node 0", "--nproc-per-node: 0 is not in the range", "torchtune-sys check --help"),
        ("check --nproc-per-node x", "--nproc-per-node: 'x' is not a whole number", "torchtune-sys check --help"),
        ("check --python", "option '--python' requires an argument", "how it is used: torchtune-sys check --help"),
        ("check --root /no/such", "/no/such: No such file or directory", "check the path"),
        ("check extra", "got unexpected extra argument (extra)", "torchtune-sys check --from FILE"),
        ("rules shm", "got unexpected extra argument (shm)", "torchtune-sys rules --search shm"),
        (
            "plan nccl swap-in-use",
            "got unexpected extra arguments (nccl swap-in-use)",
            "torchtune-sys plan --select nccl,swap-in-use",
        ),
        ("explain NCCL_SHM_DISABLE", "no rule or cause is called 'NCCL_SHM_DISABLE'", "did you mean nccl-shm-disabled"),
        (
            "explain bottleneck",
            "no rule or cause is called 'bottleneck'",
            "torchtune-sys rules --search bottleneck lists those that speak of it",
        ),
        ("rules --search=", "--search is empty", "give a value, or leave it out"),
        ("rules --search ' '", "--search is empty", "torchtune-sys rules --search 'shared memory'"),
        ("apply --dry-run --only=", "--only is empty", "is it a variable that is not set?"),
        ("preflight --policy=", "--policy is empty", "is it a variable that is not set?"),
        ("check --data=", "--data is empty", "is it a variable that is not set?"),
        ("check --select=", "--select is empty", "is it a variable that is not set?"),
        ("compare a.json ''", "FILE|DIR|-... is empty", "is it a variable that is not set?"),
        ("explain", "missing argument 'RULE...'", "torchtune-sys explain --help"),
        ("generate slurm", "missing argument 'PIECE'", "choose from: prolog, epilog"),
        ("check --from /nope", "/nope: No such file or directory", "check the path"),
        ("--help-all", "no such option --help-all", "did you mean --help? All options: torchtune-sys --help"),
        ("apply --dry-run --from x", "no such option --from", "torchtune-sys plan --from FILE, or generate script --from FILE"),
        ("generate --frm x", "no such option --frm", "all options: torchtune-sys generate --help"),
        ("check --debug", "no such option --debug", "it stands before the command: torchtune-sys --debug check"),
        ("generate script --version", "no such option --version", "torchtune-sys --version generate script"),
        ("undo report.json", "RUN: 'report.json' is not a whole number", "torchtune-sys undo --help"),
        ("check --config /etc/hostname", "/etc/hostname: not valid TOML", "NAME = VALUE"),
        ("check --select nope", "no rule, family or severity is called 'nope'", "torchtune-sys rules"),
    ],
)
def test_errors_say_what_was_seen_and_what_to_do_in_one_style(words: str, seen: str, todo: str) -> None:
    found = run(*shlex.split(words))
    first, second = found.stderr.splitlines()
    assert (found.returncode, found.stdout) == (2, "")
    assert first.startswith(f"torchtune-sys: {seen}") and not first.endswith("."), first
    assert second.startswith("  ") and todo in second, second


@pytest.mark.parametrize("columns", [60, 140])
def test_columns_is_honoured(columns: int) -> None:
    env = {"COLUMNS": str(columns)}
    widest = max(map(len, run("check", "--from", RECORDED, env=env).stdout.splitlines()))
    assert columns - 20 < widest <= columns
    widest = max(map(len, run("check", HELP_ALL, env=env).stdout.splitlines()))
    assert widest <= max(columns, 80) and (columns < 80 or widest > 80)


def test_a_program_for_python_is_no_interpreter(tmp_path: Path) -> None:
    """A person gives what is to be trained; without root it would have been started."""
    place = tmp_path / "train.py"
    place.write_text("raise SystemExit(7)\n")
    place.chmod(0o755)
    for command in ("check", "smoke", "plan"):
        found = run(command, "--python", str(place))
        assert found.returncode == 2 and f"{place} is a program for Python, not an interpreter" in found.stderr, found.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("rules",),
        ("smoke", "--list"),
        ("check", "-v", "--from", RECORDED),
        ("plan", "-v", "--from", RECORDED),
        ("diagnose", "LOG"),
    ],
)
def test_on_a_narrow_terminal_only_a_word_alone_is_wider(words: tuple[str, ...], tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. " * 2 + "\n")
    given = [str(log) if word == "LOG" else word for word in words]
    shown = run(*given, env={"COLUMNS": "40"}).stdout
    assert shown and not [row for row in shown.splitlines() if len(row) > 40 and " " in row.strip()]


@pytest.mark.parametrize("columns", ["", "0", "-5", "x", "99999999999999", "²"])
def test_columns_that_are_none_are_left_aside(columns: str) -> None:
    found = run("check", "--from", RECORDED, env={"COLUMNS": columns})
    assert max(map(len, found.stdout.splitlines())) <= 80 and found.stderr == ""


@pytest.mark.parametrize(
    ("called", "shown"), [("./run", "./run"), ("/opt/a b/run", "'/opt/a b/run'"), ("evil\x1b[2J/run", "torchtune-sys")]
)
def test_help_begins_its_commands_as_the_person_did(called: str, shown: str) -> None:
    ended = run("check", "--help", env={"TORCHTUNE_SYS_CALLED_AS": called})
    assert f"Usage: {shown} check" in ended.stdout and f"\n    {shown} check --live" in ended.stdout, ended.stdout
    assert f"\n{shown} check --help-all explains them." in ended.stdout
    assert f"\n    {shown} explain RULE " in run("--help", env={"TORCHTUNE_SYS_CALLED_AS": called}).stdout


def test_commands_of_other_hosts_keep_their_names_in_help() -> None:
    shown = run("fleet", "--help", env={"TORCHTUNE_SYS_CALLED_AS": "./run"}).stdout
    assert "-- /opt/tt/bin/torchtune-sys snapshot" in shown and "-- torchtune-sys check" in shown and "\n    ./run fleet" in shown


@pytest.mark.parametrize(
    ("arguments", "todo"),
    [
        (("check", "--select", "no-such-rule", "--from", RECORDED), "./run rules lists them"),
        (("check", "--from", "/nowhere/at/all.json"), ""),
        (("diagnose", "-"), "(./run generate install prints"),
    ],
)
def test_commands_that_errors_and_brackets_name_begin_as_the_person_did(arguments: tuple[str, ...], todo: str) -> None:
    ended = run(*arguments, env={"TORCHTUNE_SYS_CALLED_AS": "./run"}, data="ModuleNotFoundError: No module named 'torch'\n")
    said = " ".join((ended.stdout + ended.stderr).split())
    assert todo in said and not re.search(r"torchtune-sys [a-z]", said), said


def test_a_group_without_a_command_names_what_it_has() -> None:
    ended = run("generate")
    assert ended.returncode == 2 and ended.stdout == ""
    first, second = ended.stderr.splitlines()
    assert first == "torchtune-sys: missing command" and second.startswith("  choose from: script, install, "), ended.stderr


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("diagnose tr", ["file,tr"]),
        ("check --from tr", ["file,tr"]),
        ("check --facts ", ["file,"]),
        ("compare --before tr", ["dir,tr"]),
        ("check --format j", ["plain,json", "plain,junit"]),
        ("check --select sysctl,dev-shm-t", ["plain,sysctl,dev-shm-too-small"]),
        ("generate ker", ["plain,kernel-args"]),
        ("help che", ["plain,check"]),
        ("help generate scr", ["plain,script"]),
    ],
)
def test_a_shell_completes_names_and_files(line: str, offered: list[str]) -> None:
    words = f"torchtune-sys {line}"
    asked = {"_TORCHTUNE_SYS_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert run(env=asked).stdout.splitlines() == offered


@pytest.mark.parametrize(
    ("folder", "on_path", "explains", "again"),
    [
        ("home/.local/bin", True, "torchtune-sys", "with sudo; sudo needs the path: sudo {path} undo --all"),
        ("home/venv/bin", False, "{path}", "with sudo; sudo needs the path: sudo {path} undo --all"),
        (".cache/uv/archive-v0/x1/bin", True, "{path}", "with sudo; sudo needs the path: sudo {path} undo --all"),
        (".cache/pipx/d610d3b/bin", False, "{path}", "as root; the command: {path} undo --all"),
        ("home/Jörg  Müller's/bin", False, "{path}", "with sudo; sudo needs the path: sudo {path} undo --all"),
        ("home/a b/bin", True, "torchtune-sys", "with sudo; sudo needs the path: sudo {path} undo --all"),
        ("home/a\nb/bin", False, "torchtune-sys", "with sudo"),
    ],
)
def test_what_is_to_be_run_next_can_be_pasted(tmp_path: Path, folder: str, on_path: bool, explains: str, again: str) -> None:
    """sudo looks along a PATH of its own (secure_path), which ends before a home; uvx changes PATH for its program alone."""
    path = tmp_path / folder / "torchtune-sys"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!{sys.executable}\n{_ASKED}")
    (tmp_path / "sudo").write_text("")
    path.chmod(0o755)
    (tmp_path / "sudo").chmod(0o755 if "with sudo" in again else 0o644)
    env = environment({"PATH": f"{tmp_path}:{path.parent}" if on_path else str(tmp_path)})
    said = subprocess.run([path, "explain", "no-such"], env=env, capture_output=True, text=True, check=False).stderr
    assert f"  {explains.format(path=shlex.quote(str(path)))} rules lists" in said
    told = subprocess.run([path, "undo", "--all"], env=env, capture_output=True, text=True, check=False).stdout
    assert told == f"run it again {again.format(path=shlex.quote(str(path)))}\n"


def test_a_path_with_blanks_is_not_broken_over_rows() -> None:
    from torchtune_sys.render import layout

    path = "'/home/Jörg  Müller/a folder with a long name/bin/torchtune-sys'"
    told = layout.render([layout.line("see torchtune-sys explain dev-shm-too-small")], layout.Style(width=40, program=path))
    assert told == f"see\n{path}\nexplain dev-shm-too-small\n"


def test_without_sudo_the_host_s_own_means_is_named() -> None:
    from torchtune_sys.cli.invocation import again_as_root

    assert again_as_root("run it again with sudo, or look", [], {"PATH": "/nowhere"}) == "run it again as root, or look"


def test_root_of_a_container_without_sudo_is_not_told_to_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtune_sys.cli.invocation import before_root
    from torchtune_sys.render import layout

    def told(means: str, words: str, is_elsewhere: bool = False) -> str:
        style = layout.Style(width=200, before_root=means)
        return layout.render([layout.line(words, is_elsewhere=is_elsewhere)], style).rstrip("\n")

    for euid, wanted in ((0, ""), (1000, "sudo")):
        monkeypatch.setattr("os.geteuid", lambda euid=euid: euid)
        assert before_root({"PATH": "/nowhere"}) == wanted
    fix = "fix: sudo sysctl -w a=1 (echo 1 | sudo tee /proc/x; sudo torchtune-sys apply)"
    assert told("", fix) == "fix: sysctl -w a=1 (echo 1 | tee /proc/x; torchtune-sys apply)"
    assert told("doas", fix) == fix.replace("sudo", "doas")
    for words in ("user root by sudo of bob", "was run with sudo: it judged root", "run it without sudo"):
        assert told("", words) == words
    assert told("", fix, is_elsewhere=True) == told("sudo", fix) == fix


def test_packages_of_one_user_are_not_promised_to_root() -> None:
    """``pip install --user`` and ``--target``: sudo drops PYTHONPATH, and the tool as root uses no packages that others may change."""
    from torchtune_sys.cli.invocation import again_as_root

    packages = Path(torchtune_sys.__file__).parent.parent
    told = again_as_root("run it again with sudo", ["undo"], {"PATH": "/usr/bin", "PYTHONPATH": f"/x:{packages}"})
    assert told.startswith(f"run it as root; root does not use packages of {packages}: use pipx, uv tool, ")
    assert "packages" not in again_as_root("run it again with sudo", ["undo"], {"PATH": "/usr/bin", "PYTHONPATH": "/x"})
