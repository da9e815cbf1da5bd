"""From a bare root to a proven one, for real: no Python, no network, through a start of the host, killed in every stage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from guest import Unavailable
from provision_machine import Machine, folder, machine, root, until
from script_plans import change, plan

from torchtune_sys import engine
from torchtune_sys.host.described import Description, described
from torchtune_sys.model.actions import Needs
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.install import InstallOptions, Packages
from torchtune_sys.model.plan import CommandStep, FileLine, Value
from torchtune_sys.model.provision import STAGES, Provision
from torchtune_sys.remediation.install import plan as install
from torchtune_sys.remediation.plan.provision import provision
from torchtune_sys.render.generate.provision import provisioning
from torchtune_sys.smoke.script import source

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

LOG = "/var/log/torchtune-sys-provision.log"
RUN = ("bash", "/provision.sh", "--offline", "/offline", "--reboot", "--level", "quick")


def made() -> Provision:
    """What is planned for a described Debian 12, but for the compiler, which is one more package and a minute; and changes to tune."""
    host = described(Description(os_id="debian", os_version="12", os_name="Debian 12", codename="bookworm", machine="x86_64"))
    wishes = InstallOptions(torch="2.13", cpu=True, venv="/opt/torch")
    seen = engine.snapshot(host, Workload(), timeout_s=20)
    slow = CommandStep(argv=("sleep", "3"), undo=("true",))
    value = Value(path="/proc/sys/vm/swappiness", value="11")
    line = FileLine(path="/etc/sysctl.d/99-torchtune-sys.conf", key="vm.swappiness", text="vm.swappiness = 11")
    tune = plan(msgspec.structs.replace(change("vm.swappiness", value, line, slow), needs=Needs.REBOOT))
    found = provision(seen, install.plan(seen, wishes), tune, wishes, STAGES, "")
    assert [step.key for step in found.steps] == ["python", "compiler", "python-headers", "torch"]
    return msgspec.structs.replace(found, steps=(found.steps[0], found.steps[-1]))


def for_download(value: Provision) -> str:
    """Its packages alone: this root has no Python to choose wheels with."""
    steps = tuple(step for step in value.steps if any(isinstance(action, Packages) for action in step.actions))
    return provisioning(msgspec.structs.replace(value, stages=("install",), steps=steps, environment=None, tune=None), "")


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Machine]:
    value = made()
    try:
        root()
        offline = folder(for_download(value))
    except Unavailable as why:
        pytest.skip(str(why))
    with machine(tmp_path, provisioning(value, source()), offline) as found:
        yield found


def killed_at(bare: Machine, word: str, *whom: str) -> None:
    """The script is started, and killed once the log has that word."""
    before = bare.text(LOG).count(word)
    running = bare.begin(*RUN)
    until(lambda: bare.text(LOG).count(word) > before or running.poll() is not None, 300)
    assert bare.kill(*whom), bare.text(LOG)[-2000:]
    assert running.wait(20) != 0
    status = bare.run("bash", "/provision.sh", "--status")
    assert status.returncode == 3 and "no verdict yet" in status.stdout


def test_from_bare_to_proven(bare: Machine) -> None:
    assert bare.run("python3", "--version").returncode == 127
    killed_at(bare, "Unpacking libpython3.11-stdlib", "provision.sh", "apt-get", "dpkg")
    assert bare.run("dpkg", "--audit").stdout != ""
    killed_at(bare, "Installing collected packages", "provision.sh")  # pip lives on
    killed_at(bare, "+ tune\n", "provision.sh", "bash -s", "sleep 3")
    assert bare.run("/opt/torch/bin/python", "-c", "import torch").returncode == 0

    boot = bare.text("/proc/sys/kernel/random/boot_id")
    asked = bare.run(*RUN, timeout_s=900)
    assert asked.returncode == 10 and "continues by itself" in asked.stdout, asked.stdout
    until(lambda: bare.text("/proc/sys/kernel/random/boot_id") not in ("", boot), 100)
    until(lambda: "training" in bare.text("/var/lib/torchtune-sys/provision/where"), 200)
    until(lambda: bare.kill("provision.sh", "smoke.py"), 20)
    assert bare.run("bash", "/provision.sh", "--status").returncode == 3

    proven = bare.run(*RUN, timeout_s=900)
    assert proven.returncode == 0 and proven.stdout.count("nothing to do") == 3, proven.stdout + bare.text(LOG)[-2000:]
    assert "proven: this host, on its CPUs, trains" in proven.stdout
    assert bare.run("bash", "/provision.sh", "--status").returncode == 0
    assert bare.run("systemctl", "is-enabled", "torchtune-sys-provision.service").returncode != 0
    assert bare.text("/proc/sys/vm/swappiness").strip() == "11"

    before = bare.state()
    again = bare.run(*RUN, "--stages", "install,tune", timeout_s=900)
    assert again.returncode == 0 and again.stdout.count("nothing to do") == 3
    assert bare.state() == before and len(before) > 20000
    assert bare.run(*RUN[:4], "--check").returncode == 0
