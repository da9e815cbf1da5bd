"""The fifteenth look (docs/security.md): words that are printed for copying, what ranks tell, surroundings of generated scripts, secrets of newer tools."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conftest import judge_one, load
from fuzz import fifteenth_secrets
from torchtune_sys.host.secrets import scrubbed
from torchtune_sys.model import actions
from torchtune_sys.model.plan import CommandStep, Unit
from torchtune_sys.render.plan import step_text

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
@pytest.mark.parametrize("row", fifteenth_secrets.ALL, ids=lambda row: row[0])
def test_a_secret_of_the_fifteenth_list(row: tuple[str, str, str]) -> None:
    name, text, secret = row
    plain, secret = text.replace("@", secret, 1).replace("%", "@").replace("\0", "%"), secret.replace("\0", "%")
    assert secret in plain
    assert name in KNOWN_TO_COME_OUT or [told for form in written(plain) if secret in (told := scrubbed(form))] == []
