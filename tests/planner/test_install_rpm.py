"""dnf, zypper and pacman take the commands: against a repository that has nothing but the packages' names."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest
from install_plans import B200, H100, RTX4090, SYSTEMS, V100, bare
from test_install_interpreter import empty

from torchtune_sys.model.install import Installation, InstallCommand, InstallOptions
from torchtune_sys.remediation.install.plan import plan
from torchtune_sys.render.generate.commands import step_commands
from torchtune_sys.render.generate.install import shell

CARDS = ([H100] * 8, [B200] * 8, [V100], [RTX4090])
WISHES = (InstallOptions(extras=("container-toolkit", "cuda-toolkit", "jemalloc", "rdma")), InstallOptions(cpu=True))
_PRIMARY = """<?xml version="1.0" encoding="UTF-8"?>
<metadata xmlns="http://linux.duke.edu/metadata/common" xmlns:rpm="http://linux.duke.edu/metadata/rpm" packages="{count}">
{packages}</metadata>
"""
_PACKAGE = """<package type="rpm"><name>{name}</name><arch>noarch</arch><version epoch="0" ver="{version}" rel="1"/>
<checksum type="sha256" pkgid="YES">{sum}</checksum><summary>x</summary><description>x</description><packager/><url/>
<time file="1" build="1"/><size package="1" installed="1" archive="1"/><location href="{name}.rpm"/>
<format><rpm:license>x</rpm:license><rpm:provides><rpm:entry name="{name}" flags="EQ" epoch="0" ver="{version}" rel="1"/></rpm:provides>
</format></package>
"""
_MODULES = """---
document: modulemd
version: 2
data:
  name: nvidia-driver
  stream: "{stream}"
  version: 1
  context: x
  arch: noarch
  summary: x
  description: x
  license: {{module: [MIT]}}
"""


def commands(manager: str, verb: str) -> list[tuple[str, ...]]:
    found: list[Installation] = [plan(bare(here, *system), wish) for here, system, wish in product(CARDS, SYSTEMS, WISHES)]
    found += [plan(empty(bare([H100], *system)), InstallOptions()) for system in SYSTEMS]
    steps = {step for made in found for step in made.steps}
    lines = {item.words for step in steps for item in step_commands(step) if isinstance(item, InstallCommand)}
    return sorted(line for line in lines if line[0] == manager and verb in line)


def names(lines: list[tuple[str, ...]], verb: str) -> set[str]:
    told = {word for line in lines for word in line[line.index(verb) + 1 :] if word[0] != "-" and "://" not in word}
    return {word.partition("<")[0] for word in told}


def repository(place: Path, wanted: set[str]) -> Path:
    """Metadata as createrepo writes it, module streams included."""
    data = place / "repo/repodata"
    data.mkdir(parents=True)
    told = [
        _PACKAGE.format(name=name, version="580.95.05", sum=hashlib.sha256(name.encode()).hexdigest()) for name in sorted(wanted)
    ]
    files = {
        "primary": _PRIMARY.format(count=len(told), packages="".join(told)),
        "modules": "...\n".join(_MODULES.format(stream=stream) for stream in ("580-open", "580-dkms")),
    }
    rows = ""
    for kind, text in files.items():
        (data / kind).write_text(text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        rows += f'<data type="{kind}"><checksum type="sha256">{digest}</checksum><location href="repodata/{kind}"/>'
        rows += f"<timestamp>1</timestamp><size>{len(text)}</size></data>"
    (data / "repomd.xml").write_text(f'<repomd xmlns="http://linux.duke.edu/metadata/repo"><revision>1</revision>{rows}</repomd>')
    return place / "repo"


def dnf(place: Path, repo: Path) -> list[str]:
    (place / "repos").mkdir()
    (place / "log").mkdir()
    (place / "dnf.conf").write_text("[main]\n")
    (place / "repos/x.repo").write_text(f"[x]\nname=x\nbaseurl=file://{repo}\ngpgcheck=0\n")
    settings = (f"reposdir={place}/repos", f"cachedir={place}/cache", f"persistdir={place}/persist", f"logdir={place}/log")
    told = [f"--setopt={setting}" for setting in (*settings, "module_platform_id=platform:el9")]
    return ["dnf", f"--config={place}/dnf.conf", f"--installroot={place}/root", "--releasever=9", *told]


@pytest.mark.skipif(shutil.which("dnf") is None, reason="needs dnf")
def test_dnf_takes_every_command(tmp_path: Path) -> None:
    lines, streams = commands("dnf", "install"), commands("dnf", "enable")
    options = dnf(tmp_path, repository(tmp_path, names(lines, "install")))
    for line in lines:
        asked = ["--assumeno" if word == "--assumeyes" else word for word in line[1:]]
        if any("://" in word for word in asked):
            continue
        done = subprocess.run([*options, *asked], capture_output=True, text=True, check=False)
        assert "Operation aborted" in done.stderr and "No match" not in done.stdout, (line, done.stdout, done.stderr)
        assert all(f" {word} " in done.stdout for word in names([line], "install")), (line, done.stdout)
    assert {line[-1] for line in streams} == {"nvidia-driver:580-open", "nvidia-driver:580-dkms"}
    for line in streams:
        done = subprocess.run([*options, *line[1:]], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (line, done.stderr)
        reset = subprocess.run([*options, "module", "reset", "--assumeyes", "nvidia-driver"], capture_output=True, check=False)
        assert reset.returncode == 0
    print(f"dnf: {len(lines)} commands, {len(streams)} streams")


@pytest.mark.skipif(shutil.which("zypper") is None, reason="needs zypper")
def test_zypper_takes_every_command(tmp_path: Path) -> None:
    lines = commands("zypper", "install")
    repo = repository(tmp_path, names(lines, "install"))
    options = ["zypper", f"--root={tmp_path}/root", "--no-gpg-checks"]  # --installroot would write into this host's own list
    (tmp_path / "root/etc/zypp").mkdir(parents=True)
    added = subprocess.run(
        [*options, "addrepo", "--no-gpgcheck", f"dir:{repo}", "x"], capture_output=True, text=True, check=False
    )
    assert added.returncode == 0, added.stderr
    for line in [*lines, *commands("zypper", "refresh")]:
        at = line.index("install") + 1 if "install" in line else len(line)
        dry = ["--dry-run"] if "install" in line else []
        done = subprocess.run([*options, *line[1:at], *dry, *line[at:]], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        assert all(word in done.stdout for word in (names([line], "install") if dry else ()))
    print(f"zypper: {len(lines)} commands")


@pytest.mark.skipif(shutil.which("pacman") is None, reason="needs pacman")
def test_pacman_knows_the_options() -> None:
    """It has no database here: what it says against a package is that it is not found, and nothing against the options."""
    for line in commands("pacman", "--sync"):
        done = subprocess.run([*line[:-1], "--print", line[-1]], capture_output=True, text=True, check=False)
        assert "invalid option" not in done.stderr and "unrecognized option" not in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["dnf", "microdnf"])
def test_where_microdnf_stands_in_for_dnf_it_installs_dnf_first(name: str, tmp_path: Path) -> None:
    """Minimal images of RHEL: the script ended with "dnf: command not found"."""
    head, _, _ = shell(plan(bare([H100], "rocky", "9.4"), InstallOptions())).partition("\n# 1. ")
    asked = re.search(r"if ! command -v dnf.*?\nfi\n", head, re.S)
    assert asked is not None and "microdnf" not in shell(plan(bare([H100]), InstallOptions()))
    (tmp_path / name).write_text('#!/bin/sh\necho "$0 $*"\n')
    (tmp_path / name).chmod(0o755)
    said = subprocess.run(
        ["/bin/bash", "-c", f'as_root() {{ "$@"; }}\n{asked[0]}'], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert said.stdout == (f"{tmp_path}/microdnf install --assumeyes dnf\n" if name == "microdnf" else ""), said.stderr
