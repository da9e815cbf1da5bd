"""What the tests of generate install share: bare hosts, cards, systems, and what holds of every plan."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import install_hosts as hosts
import jsonschema
import msgspec

from torchtune_sys.model.facts.system import Os
from torchtune_sys.model.install import Installation, InstallCommand, InstallOptions, InstallStep, Key
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.render import as_json, schemas
from torchtune_sys.render.generate.commands import step_commands
from torchtune_sys.render.generate.install import shell

SCHEMA = jsonschema.Draft202012Validator(msgspec.json.decode(Path(schemas.DATA, "install.schema.json").read_bytes()))
SHELLCHECK = Path(sys.executable).with_name("shellcheck")
WISHES = (
    InstallOptions(),
    InstallOptions(torch="2.14", python="3.12", tool="uv", extras=("container-toolkit", "cuda-toolkit", "jemalloc", "rdma")),
    InstallOptions(cpu=True, tool="pixi", venv="it's $(x)/env"),
    InstallOptions(torch="2.10.0+cu126", python="3.14t", tool="conda", branch=595),
)
SYSTEMS = [
    ("ubuntu", "22.04"),
    ("ubuntu", "24.04"),
    ("ubuntu", "26.04"),
    ("debian", "12"),
    ("debian", "13"),
    ("rhel", "8.10"),
    ("rocky", "9.4"),
    ("almalinux", "10.0"),
    ("ol", "9.5"),
    ("amzn", "2023"),
    ("fedora", "44"),
    ("sles", "15.7"),
    ("sles", "16.0"),
    ("arch", ""),
]


def words(found: Installation, key: str = "") -> list[str]:
    """Each command as one line."""
    return [
        " ".join(item.words)
        for step in found.steps
        if key in ("", step.key)
        for item in step_commands(step)
        if isinstance(item, InstallCommand)
    ]


def keys(found: Installation) -> list[str]:
    return [step.key for step in found.steps]


def step(found: Installation, key: str) -> InstallStep:
    return next(item for item in found.steps if item.key == key)


def bare(cards_: list[tuple[str, str, tuple[int, int] | None]], os_id: str = "ubuntu", release: str = "24.04") -> Snapshot:
    """A host without a driver and without torch."""
    seen = hosts.with_python(hosts.without_driver(hosts.with_gpus(hosts.healthy(), cards_)), "cp312", "2.39")
    os = Os(id=os_id, id_like=(), version=release, pretty_name=f"{os_id} {release}", codename="trixie")
    software = hosts.change(seen.software, packages=(), docker=False)
    return msgspec.structs.replace(seen, system=hosts.change(seen.system, os=os), software=software)


H100 = ("", "2330", None)
B200 = ("", "2901", None)
V100 = ("", "1db1", None)
P100 = ("", "15f8", None)
K80 = ("", "102d", None)
RTX4090 = ("", "2684", None)
RTX5090 = ("", "2b85", None)
RUBIN = ("", "3000", None)


def check_script(found: Installation) -> None:
    made = shell(found)
    assert made.isascii() or made.isprintable() or "\n" in made
    assert subprocess.run(["bash", "-n"], input=made, text=True, capture_output=True, check=False).stderr == ""
    if SHELLCHECK.exists():
        done = subprocess.run(
            [SHELLCHECK, "-o", "all", "-f", "gcc", "-"], input=made, text=True, capture_output=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, ""), made
    told = msgspec.json.decode(as_json.install(found))
    SCHEMA.validate(told)
    assert msgspec.convert(told["install"], Installation) == found


def check_sound(found: Installation) -> None:
    assert found.steps or found.refused or found.notes
    actions = [action for item in found.steps for action in item.actions]
    assert len(found.steps) <= 16 and len(actions) <= 64  # the role refuses more than twice as many (few_steps.yml)
    for refused in found.refused:
        assert refused.reason and refused.way and refused.blocked_by
    for item in found.steps:
        assert item.actions or item.by_hand
        assert item.why and item.source
    pip = [line for line in words(found) if " pip " in f" {line} "]
    parts = [part for item in found.steps if item.key == "torch" for part in step_commands(item)]
    assert not any(part.root for part in parts if not isinstance(part, Key)), pip
    reboot = [index for index, item in enumerate(found.steps) if item.reboot]
    torch = [index for index, item in enumerate(found.steps) if item.key == "torch"]
    assert not reboot or not torch or max(reboot) < min(torch)
