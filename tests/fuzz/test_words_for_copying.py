"""Words that are printed for copying, what ranks tell, surroundings of generated scripts, secrets of newer tools."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conftest import HOSTS, judge_one, load
from fuzz.forms_of_secrets import newer_issuers
from torchtune_sys.host.secrets.filter import scrubbed
from torchtune_sys.model import actions
from torchtune_sys.model.plan import CommandStep, Unit
from torchtune_sys.model.smoke import SmokeReport
from torchtune_sys.model.steering import CONTROL
from torchtune_sys.render import as_json
from torchtune_sys.render import smoke as rendered
from torchtune_sys.render.layout import Style
from torchtune_sys.render.plan import step_text
from torchtune_sys.smoke import proof
from torchtune_sys.smoke.driver import ProgressListener, SmokeOptions, smoke
from torchtune_sys.smoke.merge import worst
from two_users import PROGRAM

PLANTS = (";>mark;", "$(>mark)", "`>mark`", "\n>mark\n", "';>mark;'", '";>mark;"', "|>mark|", "&&>mark")


def planted(value: Any, old: str, new: str) -> Any:
    """The same facts with one text changed wherever it stands, keys of tables too."""
    if isinstance(value, msgspec.Struct):
        changed = {name: planted(getattr(value, name), old, new) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **changed)
    if type(value) is str:
        return new if value == old else value
    if isinstance(value, (tuple, list)):
        return type(value)(planted(item, old, new) for item in value)
    if isinstance(value, dict):
        return {planted(key, old, new): planted(item, old, new) for key, item in value.items()}
    return value


def fixes(host: str, old: str, new: str) -> Iterator[actions.Action]:
    """What is printed as the remedy of a rule's own faulty host, one of whose texts is another."""
    seen = load(f"{host}.fail")
    for evidence in judge_one(planted(seen, old, new), host).evidence:
        yield from evidence.fix


def started(command: str, folder: Path) -> bool:
    """Whether a shell that is given the line does more than to start the program that it is about."""
    (folder / "bin").mkdir(exist_ok=True)
    for name in ("pip", "sudo", "systemctl"):
        (folder / "bin" / name).write_text("#!/bin/sh\ncat >/dev/null\n")
        (folder / "bin" / name).chmod(0o755)
    env = {"PATH": f"{folder}/bin:/usr/bin:/bin"}
    subprocess.run(["bash", "-c", command], cwd=folder, env=env, capture_output=True, stdin=subprocess.DEVNULL, timeout=30)
    return (folder / "mark").exists()


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("hdd-scheduler-none", "sda"),
        ("nvme-scheduler-not-none", "nvme1n1"),
        ("read-ahead-small", "259:3"),
        ("mixed-nvidia-cuda-wheels", "2.28.9"),
        ("mixed-nvidia-cuda-wheels", "nvidia-nccl-cu12"),
        ("nvidia-wheel-files-altered", "nvidia-nccl-cu13"),
        ("nvidia-wheel-files-altered", "2.28.9"),
        ("nvidia-wheel-files-altered", "numpy"),
    ],
)
def test_no_word_of_a_recording_is_run_by_who_copies_a_fix(host: str, text: str, tmp_path: Path) -> None:
    assert [*fixes(host, text, text)], "the host is not told what to do"
    for plant in PLANTS:
        for new in (text + plant, plant + text):
            for action in fixes(host, text, new):
                assert isinstance(action, actions.Advice) or not started(actions.text(action), tmp_path), actions.text(action)


@pytest.mark.parametrize(
    "name", ["nvidia-own-tool", "--index-url=https://example.org/x", "nvidia-nccl-cu13@https://example.org/x", "nvidia-nccl-cu1x"]
)
def test_no_package_of_a_recording_s_choice_is_to_be_installed(name: str) -> None:
    """An index gives anybody's package to whoever asks for its name, and pip runs what is in it."""
    for host, text in (("nvidia-wheel-files-altered", "nvidia-nccl-cu13"), ("mixed-nvidia-cuda-wheels", "nvidia-nccl-cu13")):
        assert not [action for action in fixes(host, text, name) if isinstance(action, actions.Install) and name in action.text]


def test_a_pinned_package_of_a_recording_s_choice_is_not_to_be_installed() -> None:
    seen = load("wheel-libs-not-found.fail")
    told = [line for item in seen.python.distributions for line in item.requires if line.startswith("nvidia-")]  # type: ignore[union-attr]
    assert told
    for line in told:
        made = planted(seen, line, line.replace("nvidia-", "nvidia-own-", 1))
        found = judge_one(made, "wheel-libs-not-found")
        assert "pip install nvidia-own-" not in " ".join(actions.text(each) for item in found.evidence for each in item.fix)


def test_units_and_commands_of_a_plan_are_words_of_a_shell(tmp_path: Path) -> None:
    for plant in PLANTS:
        words = (
            step_text(Unit(unit=f"x{plant}.service", enabled=True)),
            step_text(CommandStep(argv=("systemctl", f"a{plant}"), undo=())),
            actions.text(actions.Service(unit=f"x{plant}", state="disabled")),
            actions.text(actions.EnvironmentVariable(name="NCCL_X", value=plant)),
            actions.text(actions.EnvironmentVariable(name=f"NCCL_X{plant}", value=None)),
        )
        assert [text for text in words if started(text, tmp_path)] == []


def written(text: str) -> Iterator[str]:
    """The text as logs, hooks and reports hold it."""
    yield text
    lines = text.rstrip("\n").split("\n")
    for before in ("[rank0]: ", "2026-11-28T03:00:01.123456789Z stderr F ", "Nov 28 03:00:01 n1 slurmd[12]: ", "+"):
        yield "".join(f"{before}{line}\n" for line in lines)
    yield "\r\n".join([*lines, ""])
    yield json.dumps({"message": text}) + "\n"
    yield json.dumps({"log": json.dumps({"message": text})}) + "\n"
    yield f"RuntimeError: {text!r}\n"


KNOWN_TO_COME_OUT = ("Infisical", "ModelScope, alone")
"""Too little stands in them that a line could be looked through for first: ``st.``, ``ms-``."""


@pytest.mark.sampled(40)
@pytest.mark.parametrize("row", newer_issuers.ALL, ids=lambda row: row[0])
def test_a_secret_of_a_newer_issuer(row: tuple[str, str, str]) -> None:
    name, text, secret = row
    plain, secret = text.replace("@", secret, 1).replace("%", "@").replace("\0", "%"), secret.replace("\0", "%")
    assert secret in plain
    assert name in KNOWN_TO_COME_OUT or [told for form in written(plain) if secret in (told := scrubbed(form))] == []


SAID: tuple[dict[str, Any], ...] = (
    {"event": "hello", "role": "rank", "rank": 0, "host": "h"},
    {"event": "about", "device": "d", "kind": "k", "backend": "b", "torch": "t", "gpu": "g", "uuid": "u", "kills": ["/p", 0], "stages": ["a", "b"]},
    {"event": "begin", "stage": "a", "deadline_s": 9.5},
    {"event": "measure", "stage": "a", "name": "n", "value": 1.5, "unit": "GB/s", "expected": 1.0, "of_ranks": [1.0]},
    {"event": "end", "stage": "a", "verdict": "pass", "seconds": 1.0},
    {"event": "begin", "stage": "b", "deadline_s": 9.5},
    {"event": "end", "stage": "b", "verdict": "fail", "seconds": 1.0, "cause": "c", "seen": "s", "remedy": "r", "trace": "t"},
    {"event": "bye"},
)  # fmt: skip
RANK = """#!/bin/sh
exec /usr/bin/python3 -c '
import os, socket
speaks = socket.socket(socket.AF_UNIX)
speaks.connect(chr(0) + os.environ["TORCHTUNE_SYS_SMOKE_SOCKET"])
speaks.sendall(open("{0}", "rb").read())
print(open("{0}").read())'
"""


def told(said: list[dict[str, Any]], folder: Path) -> list[str]:
    """All that a smoke test prints and keeps, whose one rank says this."""
    (folder / "rank").write_text(RANK.format(folder / "said"))
    (folder / "rank").chmod(0o755)
    (folder / "said").write_text("".join(json.dumps(line) + "\n" for line in said))
    shown: list[str] = []
    listener = ProgressListener(ended=lambda _team, stage: shown.append(rendered.stage_text(stage, Style(), verbose=True)))
    asked = SmokeOptions(python=str(folder / "rank"), ranks=1, cpus=1, timeout_s=20)
    team, stages, output = smoke(asked, {"PATH": "/usr/bin:/bin"}, (), listener)
    verdict = worst([stage.verdict for stage in stages])
    report = SmokeReport(version="", time="", host="h", team=team, verdict=verdict, seconds=1.0, stages=stages, output=output)
    kept = proof.grown(None, report, {}, 0.0)
    assert proof.parse(kept) is not None
    texts = (rendered.text(report, Style(), quiet=quiet, verbose=True) for quiet in (False, True))
    return [
        *shown,
        *texts,
        as_json.smoke(report),
        rendered.junit(report),
        rendered.ending(report, {}, Style(), verbose=True),
        kept,
    ]


PLACES = [(number, name) for number, line in enumerate(SAID) for name in line if name != "event"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{SAID[place[0]]['event']}-{place[1]}-{place[0]}")
def test_no_secret_and_no_escape_of_a_rank_s_is_told(place: tuple[int, str], tmp_path: Path) -> None:
    secrets = {
        "password=": "correcthorse7battery",
        "": "hf_q8Zr1vT5nB3xW7yK9mP2sL4dq8Zr1vT5",
        "https://joe:": "c0rrect21horse@h/x",
    }
    text = "".join(f"\n::error::x \x1b[2J\u202e\u2028\r 2.9+{name}{secret}" for name, secret in secrets.items())
    number, name = place
    for odd in (text, [{text: text}]):
        said = [dict(line) for line in SAID]
        said[number][name] = odd
        for printed in told(said, tmp_path):
            assert [secret for secret in secrets.values() if secret.partition("@")[0] in printed] == []
            assert [line for line in printed.split("\n") if CONTROL.search(line) or line.strip().startswith("::error::")] == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{SAID[place[0]]['event']}-{place[1]}-{place[0]}")
def test_no_word_of_a_rank_s_ends_the_test_otherwise_than_by_a_verdict(place: tuple[int, str], tmp_path: Path) -> None:
    number, name = place
    for odd in (None, [[]], [{}], -1, 10**400, 1e308, "9" * 5000, ["/proc/self/mem", 0], ["a"] * 1000, "crashed"):
        said = [dict(line) for line in SAID]
        said[number][name] = odd
        told(said, tmp_path)


EXPORTED = (
    "umask",
    "set",
    "unset",
    "printf",
    "mkdir",
    "builtin",
    "command",
    "return",
    "shopt",
    "declare",
    "[",
    "test",
    "cat",
    "sha256sum",
    "sudo",
    "readlink",
)


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        (("script", "--from", str(HOSTS / "swappiness-high.fail.json")), "--check"),
        (("script", "--stages", "tune,smoke"), "--dry-run"),
    ],
    ids=["tune", "stages"],
)
def test_no_function_that_a_caller_exported_stands_for_a_program_of_a_generated_script(
    words: tuple[str, ...], mode: str, tmp_path: Path
) -> None:
    script, mark = tmp_path / "script", tmp_path / "mark"
    made = subprocess.run([*PROGRAM, "generate", *words, "-o", str(script)], capture_output=True, text=True, timeout=60)
    assert script.exists(), made.stderr
    functions = {f"BASH_FUNC_{name}%%": f"() {{ echo {name} >>'{mark}'; }}" for name in EXPORTED}
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(tmp_path)}
    asked = ["bash", "-c", "umask; mkdir x"]
    subprocess.run(asked, env={**env, **functions}, timeout=60, capture_output=True)
    assert mark.exists(), "this bash takes no functions from its environment"
    mark.unlink()
    plain = subprocess.run(["bash", script, mode], env=env, capture_output=True, text=True, timeout=60)
    steered = subprocess.run(["bash", script, mode], env={**env, **functions}, capture_output=True, text=True, timeout=60)
    assert (steered.returncode, steered.stdout, mark.exists()) == (plain.returncode, plain.stdout, False), steered.stderr
