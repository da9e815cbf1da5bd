"""What a fix says to type: a command that reaches the interpreter one trains with, whichever pip is first on PATH."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from altered import NOTHING, altered

from conftest import RULES, load
from torchtune_sys import engine
from torchtune_sys.model.actions import Install
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.rules.torch.fixes import build_for, pip, pip_install


@pytest.mark.parametrize(
    ("facts", "command"),
    [
        ({"has_pip": True}, "/data/train/.venv/bin/python3 -m pip install torch"),
        ({}, "/data/train/.venv/bin/python3 -m pip install torch"),  # nobody looked whether it has pip
        ({"has_pip": False}, "uv pip install torch --python /data/train/.venv/bin/python3"),
        (
            {"has_pip": True, "externally_managed": True},
            "/data/train/.venv/bin/python3 -m pip install --break-system-packages torch",
        ),
        ({"executable": NOTHING}, "pip install torch"),
        ({"executable": "/tmp/x; reboot #/python3"}, "'/tmp/x; reboot #/python3' -m pip install torch"),
    ],
)
def test_the_command_is_for_the_judged_interpreter(facts: dict[str, Any], command: str) -> None:
    untold = {"has_pip": NOTHING, "externally_managed": NOTHING}
    seen = altered(load("healthy"), **{f"python__{name}": value for name, value in {**untold, **facts}.items()})
    assert pip(seen, "install", "torch") == command


def test_a_build_that_needs_another_python_names_no_interpreter() -> None:
    from torchtune_sys.knowledge import torch as known

    release = known.release("2.11.0")
    assert release is not None
    old = altered(load("healthy"), python__version="3.6.9")
    assert ": pip install torch==2.11.0+cu130 torchvision==0.26.0+cu130 --index-url " in build_for(old, release, "cu130").text
    assert ".venv" not in build_for(old, release, "cu130").text


@pytest.mark.parametrize(
    "name", ["mixed-nvidia-cuda-wheels", "nvidia-wheel-version-differs", "triton-version-differs", "cpu-only-build"]
)
def test_what_rules_name_is_such_a_command(name: str) -> None:
    seen: Snapshot = load(f"{name}.fail")
    texts = [
        action.text
        for finding in engine.judge(seen, [RULES[name]])
        for item in finding.evidence
        for action in item.fix
        if isinstance(action, Install)
    ]
    assert texts
    assert all(shlex.split(text)[:3] == ["/data/train/.venv/bin/python3", "-m", "pip"] for text in texts), texts


def test_root_runs_no_interpreter_of_a_user() -> None:
    seen = altered(load("healthy"), python__judged_as="ana")
    assert pip(seen, "install", "torch").startswith("sudo -u ana /data/train/.venv/bin/python3 -m pip ")


def test_several_requirements_are_one_command() -> None:
    (fix,) = pip_install(load("healthy"), "nvidia-nccl-cu13==2.28.9", "triton>=3.4,<3.5")
    assert shlex.split(fix.text)[-2:] == ["nvidia-nccl-cu13==2.28.9", "triton>=3.4,<3.5"]
    assert pip_install(load("healthy"), "nvidia-nccl-cu13==2.28.9", "triton; reboot") == ()
