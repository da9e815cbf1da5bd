"""apt's own resolver takes every command for Debian and Ubuntu: from a repository that has the packages by name."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest
from install_plans import B200, H100, RTX4090, SYSTEMS, V100, bare
from test_install_interpreter import empty

from conftest import load
from torchtune_sys.model.install import Installation, InstallCommand, InstallFile, InstallOptions
from torchtune_sys.remediation.install.plan import plan
from torchtune_sys.render.generate.commands import step_commands

pytestmark = pytest.mark.skipif(shutil.which("apt-get") is None, reason="needs apt")
APT = [(os_id, release) for os_id, release in SYSTEMS if os_id in ("ubuntu", "debian")]


def commands(found: Installation) -> list[tuple[str, ...]]:
    return [
        item.words
        for step in found.steps
        for item in step_commands(step)
        if isinstance(item, InstallCommand) and "apt-get" in item.words and "install" in item.words
    ]


def repository(place: Path, names: set[str]) -> list[str]:
    """Options that make apt see nothing but a flat repository with these packages."""
    for part in ("state/lists/partial", "cache/archives/partial", "etc", "flat"):
        (place / part).mkdir(parents=True)
    (place / "state/status").touch()
    entry = "Package: {}\nVersion: 580.95.05-1\nArchitecture: all\nMaintainer: x\nFilename: ./{}.deb\nSize: 1\nSHA256: {}\n"
    (place / "flat/Packages").write_text("\n".join(entry.format(name, name, "0" * 64) for name in sorted(names)))
    (place / "etc/sources.list").write_text(f"deb [trusted=yes] file:{place}/flat ./\n")
    settings = {
        "Dir::State": f"{place}/state",
        "Dir::State::status": f"{place}/state/status",
        "Dir::Cache": f"{place}/cache",
        "Dir::Etc": f"{place}/etc",
        "APT::Sandbox::User": "",
        "APT::Get::List-Cleanup": "0",
        "Dir::Log": f"{place}/state",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def test_apt_takes_every_command(tmp_path: Path) -> None:
    cards = ([H100] * 8, [B200] * 8, [V100], [RTX4090])
    wishes = (
        InstallOptions(extras=("container-toolkit", "cuda-toolkit", "jemalloc", "rdma")),
        InstallOptions(branch=595),
        InstallOptions(cpu=True),
    )
    plans = [plan(bare(here, *system), wish) for here, system, wish in product(cards, APT, wishes)]
    plans += [plan(empty(bare([H100], *system)), InstallOptions()) for system in APT]
    plans.append(plan(load("typical/azure-nd-h100.fabric-manager-not-running"), InstallOptions()))  # an exact version
    lines = sorted({line for found in plans for line in commands(found)})
    assert any("nvidia-fabricmanager=580.95.05*" in line for line in lines)
    names = {word.partition("=")[0] for line in lines for word in line[line.index("install") + 1 :] if word[0] != "-"}
    options = repository(tmp_path, names)
    update = subprocess.run(["apt-get", *options, "update"], capture_output=True, text=True, check=False)
    assert update.returncode == 0, update.stderr
    for line in lines:
        at = line.index("apt-get") + 1
        done = subprocess.run([*line[:at], *options, "--simulate", *line[at:]], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (line, done.stderr)
        wanted = {word.partition("=")[0] for word in line[line.index("install") + 1 :] if word[0] != "-"}
        assert {found[1] for found in re.finditer(r"^Inst (\S+) \(580.95.05-1", done.stdout, re.M)} == wanted
    print(f"{len(lines)} commands, {len(names)} packages")


def test_apt_would_say_so(tmp_path: Path) -> None:
    options = repository(tmp_path, {"numactl"})
    assert subprocess.run(["apt-get", *options, "update"], capture_output=True, check=False).returncode == 0
    wrong = subprocess.run(
        ["apt-get", *options, "--simulate", "install", "--yes", "numactl=570*"], capture_output=True, check=False
    )
    assert wrong.returncode == 100


def test_apt_reads_the_file_that_holds_the_driver(tmp_path: Path) -> None:
    found = plan(bare([H100], "debian", "12"), InstallOptions())
    (file,) = [action for step in found.steps if step.key == "hold" for action in step.actions if isinstance(action, InstallFile)]
    place = tmp_path / "hold"
    place.write_text(file.text)
    told = subprocess.run(["apt-config", "-c", str(place), "dump"], capture_output=True, text=True, check=False)
    assert told.returncode == 0 and told.stderr == ""
    patterns = re.findall(r'Unattended-Upgrade::Package-Blacklist:: "(.*)";', told.stdout)
    assert all(
        any(re.match(pattern, name) for pattern in patterns) for name in ("nvidia-open", "libnvidia-compute", "cuda-drivers")
    )
    assert not any(re.match(pattern, "cuda-toolkit-13-0") for pattern in patterns)


def test_the_list_of_the_container_toolkit(tmp_path: Path) -> None:
    """apt takes the line: its architecture, its key, its flat repository."""
    found = plan(bare([H100], "ubuntu", "22.04"), InstallOptions(extras=("container-toolkit",)))
    (file,) = [
        action
        for step in found.steps
        if step.key == "container-toolkit"
        for action in step.actions
        if isinstance(action, InstallFile)
    ]
    options = repository(tmp_path, {"x"})
    (tmp_path / "etc/sources.list").write_text(file.text)
    told = subprocess.run(["apt-get", *options, "update", "--print-uris"], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    here = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
    assert f"https://nvidia.github.io/libnvidia-container/stable/deb/{here}/InRelease" in told.stdout


def test_apt_reads_the_component_of_debian(tmp_path: Path) -> None:
    found = plan(bare([H100], "debian", "13"), InstallOptions())
    (file,) = [
        action for step in found.steps if step.key == "contrib" for action in step.actions if isinstance(action, InstallFile)
    ]
    options = repository(tmp_path, {"x"})
    (tmp_path / "etc/sources.list").unlink()
    (tmp_path / "etc/sources.list.d").mkdir()
    (tmp_path / "etc/sources.list.d/contrib.sources").write_text(file.text)
    told = subprocess.run(["apt-get", *options, "update", "--print-uris"], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert "http://deb.debian.org/debian/dists/trixie/InRelease" in told.stdout
