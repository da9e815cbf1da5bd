"""No word of a host becomes syntax in what ``generate`` prints: each form is read by a parser of its language, and means what it means without that word."""

from __future__ import annotations

import configparser
import itertools
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from outputs import GENERATE, Said, outputs
from test_hostile_output import planted, recorded

from torchtune_sys.host.recorded import RecordedHost

PLANTS = {
    "single quote": "'",
    "double quote": '"',
    "backtick": "`",
    "command": "$(touch PWNED",
    "brackets": ")}]\nfi\ndone\nesac\nPWNED=1\nexec PWNED\nRUN PWNED\nPWNED: x\n- PWNED\n[Service]\nExecStartPre=PWNED",
    "yaml": ": [- {PWNED: x} # !!python/object:x &a *a | > %TAG ---\t",
    "templates": "{{ 7 * 1091 }}{% set PWNED = 1 %}{# PWNED #}${PWNED}%n%i%h${{ PWNED }}",
    "here-document": "\nEOF\nEND\n.\nPWNED=1\n",
}
"""Each breaks the parser of one language or another where it is not quoted: two quotes would be a pair."""
SCRIPTS = (
    "script",
    "numactl --format commands",
    "numactl --format wrapper",
    "env --format shell",
    "install",
    "kernel-args --unsafe --format systemd-boot",
    "kernel-args --unsafe --format grubby",
)
ALL = (
    *(words for words in GENERATE if words[1] not in ("kernel-args", "modprobe")),
    *(("generate", "kernel-args", "--unsafe", "--format", form) for form in ("line", "grub", "grubby", "systemd-boot")),
    ("generate", "modprobe", "--unsafe"),
    ("generate", "systemd"),
)
PROSE = "generate numactl --format text"
"""For people alone: its lines are folded."""
_BARE = re.compile(r"^\s*(?:- )?(?:exec |RUN |ExecStartPre=|export |set )?\"?PWNED\b")


def bash(text: str) -> None:
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and not done.stderr, done.stderr


def as_yaml(text: str) -> None:
    for document in yaml.safe_load_all(text):
        assert not {name for name in names(document) if "PWNED" in name}, document
        for script in strings(document):
            if script.startswith("#!"):
                bash(script)
        for words in lists(document):
            for flag, script in itertools.pairwise(words):
                if flag == "-c":
                    bash(script)


def names(value: Any) -> Iterator[str]:
    """Keys at every depth."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield str(key)
            yield from names(each)
    elif isinstance(value, list):
        for each in value:
            yield from names(each)


def lists(value: Any) -> Iterator[list[Any]]:
    if isinstance(value, list):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from lists(each)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from strings(each)


def units(text: str) -> None:
    """Files of systemd, one after the other, each with its name in a comment: no specifier is the host's."""
    meant = "\n".join(line for line in text.splitlines() if not line.startswith(("#", ";")))
    assert not re.search(r"(?<!%)(?:%%)*%[nih](?!\w)", meant), meant
    parsed = configparser.RawConfigParser(strict=False, delimiters=("=",), allow_no_value=False)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read_string("[none]\n" + meant)
    assert not [name for section in parsed.sections() for name, value in parsed[section].items() if value.startswith("PWNED")]


def dockerfile(text: str) -> None:
    bin_ = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if bin_ is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([bin_, "--format", "json", "-"], input=text, capture_output=True, text=True, timeout=60)
    assert not [each for each in json.loads(done.stdout) if each["code"] in ("DL1000", "SC1000", "SC1009", "SC1072", "SC1073")], (
        done.stdout
    )


def parsed(command: str, text: str) -> None:
    """Raises what its parser does, or AssertionError."""
    form = command.removeprefix("generate ")
    if form.endswith("json"):
        json.loads(text)
    elif form.endswith("kubernetes") or form.startswith(("cloud-init", "kubernetes")):
        as_yaml(text)
    elif form.startswith(("systemd", "env --format systemd")):
        units(text)
    elif form == "dockerfile -o -":
        dockerfile(text)
    elif form.startswith((*SCRIPTS, "slurm", "dockerfile", "env --format slurm")):
        bash(text)


def broken(found: list[tuple[str, Said]], *, folded: bool = True) -> list[str]:
    """What is wrong with each. ``folded``: what a host says has no line of its own; what a person typed may have, in quotes."""
    told = []
    for command, said in found:
        if not said.out:
            continue
        try:
            parsed(command, said.out)
        except Exception as error:
            told.append(f"{command}: {type(error).__name__}: {str(error)[:600]}")
        lines = [] if command == PROSE or not folded else [line for line in said.out.splitlines() if _BARE.search(line)]
        told += [f"{command}: a line of the host's: {lines[:3]}"] if lines else []
        if "7637" in said.out:
            told.append(f"{command}: a template was evaluated")
        if said.status == 4:
            told.append(f"{command}: internal error")
    return told


@pytest.mark.sampled(2, 3)
@pytest.mark.parametrize("name", PLANTS)
@pytest.mark.parametrize("plant", [lambda text, word: text + word, lambda text, word: word + text], ids=["after", "before"])
def test_no_value_is_syntax(name: str, plant: Callable[[str, str], str]) -> None:
    found = list(
        outputs(
            lambda: RecordedHost(recorded(), "recording x"),
            ALL,
            lambda seen: planted(seen, lambda text: plant(text, PLANTS[name])),
        )
    )
    assert broken(found) == []
    assert sum(bool(said.out) for _command, said in found) > 10


def test_what_is_generated_without_them_is_read_by_the_same_parsers() -> None:
    found = list(outputs(lambda: RecordedHost(recorded(), "recording x"), ALL))
    assert broken(found) == []
    assert {command for command, said in found if not said.out} <= {"generate modprobe --unsafe"}, (
        "each parser has something to read"
    )


@pytest.mark.parametrize("word", PLANTS.values(), ids=PLANTS)
@pytest.mark.parametrize(
    "command",
    [
        ("kubernetes", "job", "--image"),
        ("kubernetes", "job", "--name"),
        ("kubernetes", "jobset", "--namespace"),
        ("kubernetes", "daemonset", "--policy"),
        ("kubernetes", "job", "--secret"),
        ("kubernetes", "daemonset", "--runtime-class"),
        ("slurm", "prolog", "--policy"),
        ("slurm", "batch", "--python"),
        ("slurm", "health-check", "--site-checks"),
        ("slurm", "epilog", "--tool"),
        ("slurm", "task-prolog", "--drain-state"),
        ("systemd", "--unit"),
        ("cloud-init", "--stages", "install,tune", "--python"),
        ("script", "--python"),
    ],
    ids=" ".join,
)
def test_no_option_is_syntax(command: tuple[str, ...], word: str) -> None:
    """What a script of somebody's takes from elsewhere and hands on."""
    needed = {"kubernetes": ("--image", "r/x:1", "--nodes", "2")}.get(command[0], ())
    more = [
        each
        for pair in zip(needed[::2], needed[1::2], strict=True)
        if pair[0] not in command and "daemonset" not in command
        for each in pair
    ]
    more += ["--image", "r/x:1"] if "daemonset" in command else []
    words = ("generate", *command, f"/x{word}y", *more)
    found = list(outputs(lambda: RecordedHost(recorded(), "recording x"), (words,)))
    ((_name, said),) = found
    assert broken([(" ".join(words[:3]), said)], folded=False) == []
    assert said.status in (0, 2, 3), said.err


COMMANDS = (
    *("$({0})", "`{0}`", "'; {0}; '", '"; {0}; "', "\n{0}\n", "\r\n{0}\r\n", "& {0} &", "| {0} ;", "${{x:=$({0})}}", "a[$({0})]", "x[`{0}`]=1"),
    *("'\"$({0})\"'", "<({0})", "\\$({0})", "$'\\'; {0}; '", "EOF\n{0}\n", "!{0}"),
)  # fmt: skip
"""A command in each place where a shell would start one, also in arithmetic, which evaluates what stands between brackets."""
RUN = [words for words in ALL if " ".join(words[1:]).startswith((*SCRIPTS, "env --format slurm")) and "json" not in words]
AS_NOBODY = (
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "unshare",
    "--map-root-user",
    "--mount",
    "--net",
    "--pid",
    "--fork",
)


NAMESPACES = shutil.which("setpriv") and not subprocess.run([*AS_NOBODY, "true"], capture_output=True).returncode


@pytest.mark.long
@pytest.mark.skipif(not NAMESPACES, reason="needs setpriv, unshare and namespaces of users")
def test_no_value_is_run() -> None:
    """Each script in each of its modes, by a user who may change nothing and takes itself for root."""
    place = Path(tempfile.mkdtemp(dir="/var/tmp"))
    place.chmod(0o777)
    mark, ran = place / "mark", 0
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(place)}
    try:
        for form in COMMANDS:
            word = form.format(f"touch {mark}")
            host = lambda seen, word=word: planted(seen, lambda text: word + text + word)  # noqa: E731
            for command, said in outputs(lambda: RecordedHost(recorded(), "recording x"), RUN, host):
                for mode in ([], ["--check"], ["--dry-run"], ["--undo"]) if command == "generate script" else ([],):
                    words = [*AS_NOBODY, "timeout", "20", "bash", "-c", said.out or "exit", "script", *mode]
                    subprocess.run(words, cwd=place, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
                    ran += bool(said.out)
                    assert not mark.exists(), (command, mode, form)
        assert ran > 100
        subprocess.run([*AS_NOBODY, "bash", "-c", f"touch {mark}"], cwd=place, env=env, check=True)
        assert mark.exists(), "nobody could have left the mark"
    finally:
        shutil.rmtree(place)


PARTS = 12


def texts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where each text of a recording stands, names of files, links and answers too (then the last step is None)."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict):
        for key, each in value.items():
            yield (*path, key, None)
            yield from texts(each, (*path, key))
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield from texts(each, (*path, place))


def changed(value: Any, words: dict[tuple[Any, ...], Callable[[str], str]], path: tuple[Any, ...] = ()) -> Any:
    same: Callable[[str], str] = lambda text: text  # noqa: E731
    if isinstance(value, str):
        return words.get(path, same)(value)
    if isinstance(value, dict):
        return {words.get((*path, key, None), same)(key): changed(each, words, (*path, key)) for key, each in value.items()}
    if isinstance(value, list):
        return [changed(each, words, (*path, place)) for place, each in enumerate(value)]
    return value


@pytest.mark.sampled(1, 2)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_text_of_a_stranger_s_recording_is_syntax_or_run(part: int) -> None:
    """Each text is changed in one of the parts, while the others stay what they are, so that the changes which it is a word of are still made.
    (A field of the intent that there is not is refused as a whole.)"""
    place = Path(tempfile.mkdtemp(dir="/var/tmp"))
    place.chmod(0o777)
    chance = random.Random(part)
    forms = [
        *(form.format(f"touch {place}/mark") for form in COMMANDS),
        *PLANTS.values(),
        "\x1b]0;x\x07",
        "::set-output name=a::b",
    ]
    ways = [lambda text, word: text + word, lambda text, word: word + text, lambda text, word: word]
    whole = recorded()
    host = {name: value for name, value in whole.items() if name not in ("schema", "tool", "origin", "complete")}
    words = {
        path: partial(chance.choice(ways), word=chance.choice(forms))
        for number, path in enumerate(texts(host))
        if number % PARTS == part and path[1:] != (None,) and not (path[0] == "intent" and path[-1] is None)
    }
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(place)}
    try:
        found = list(outputs(lambda: RecordedHost({**whole, **changed(host, words)}, "recording x"), ALL))
        assert broken(found) == [] and sum(bool(said.out) for _command, said in found) > 10
        for command, said in found:
            if command.startswith(tuple(" ".join(form) for form in RUN)) and said.out and NAMESPACES:
                argv = [*AS_NOBODY, "timeout", "20", "bash", "-c", said.out, "script"]
                subprocess.run(argv, cwd=place, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
                assert not (place / "mark").exists(), command
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("generate script", "echo '"),
        ("generate env --format kubernetes", "a: [\n"),
        ("generate cloud-init --stages install,tune", "a: 1\nPWNED: x\n"),
        ("generate systemd --unit train --defaults", "[Service]\nEnvironment=A=%n\n"),
        ("generate dockerfile -o -", "FROM x\nPWN x\n"),
        ("generate sysctl", "a = 1\nPWNED = 1\n"),
    ],
)
def test_the_parsers_see_it(command: str, text: str) -> None:
    assert broken([(command, Said(text, "", 0))])
