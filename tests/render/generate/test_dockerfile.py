"""A container image as text: what judges Dockerfiles, shell scripts and manifests finds nothing; hostile names stay comments."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from install_hosts import change

from conftest import HOSTS, load
from torchtune_sys.model.image import Image, ImageOptions
from torchtune_sys.remediation.image.plan import plan
from torchtune_sys.render.generate import dockerfile

NAMES = ["healthy", *sorted(f"typical/{path.stem}" for path in (HOSTS / "typical").glob("*.json"))]
FEW = ("healthy", "typical/gh200", "typical/laptop-cpu", "typical/mi300x")
WISHES = {
    "as the host is": ImageOptions(),
    "offline": ImageOptions(offline="wheels", cpu=True),
    "all": ImageOptions(extras=("jemalloc", "numactl", "rdma", "torchvision")),
    "rocky": ImageOptions(base="docker.io/library/rockylinux:9", extras=("rdma",)),
    "rocky offline": ImageOptions(base="docker.io/library/rockylinux:9", offline="a/b", extras=("rdma", "jemalloc")),
    "cuda": ImageOptions(base="nvidia/cuda:13.0.2-base-ubuntu24.04", compiler=False),
}


def program(name: str) -> str:
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} here")
    return found


@cache
def image(name: str, wishes: str = "as the host is", nodes: int = 1) -> Image | None:
    seen = load(name)
    found = plan(change(seen, intent=change(seen.intent, nodes=nodes)), WISHES[wishes])
    return None if found.refused else found


def made(form: str, wishes: str = "as the host is") -> dict[str, str]:
    """Text by host, for every host that gets one."""
    names = NAMES if wishes == "as the host is" else FEW
    images = {name: image(name, wishes, 2 if name.endswith("a100") else 1) for name in names}
    found = {name: dockerfile.FORMS[form](item) for name, item in images.items() if item is not None}
    assert len(found) > len(names) - 4
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("wishes", WISHES)
def test_hadolint_finds_nothing(wishes: str, tmp_path: Path) -> None:
    hadolint = program("hadolint")
    for at, text in enumerate(dict.fromkeys(made("dockerfile", wishes).values())):
        (tmp_path / f"{at}.Dockerfile").write_text(text)
    found = subprocess.run(
        [hadolint, "--no-color", *sorted(map(str, tmp_path.iterdir()))], capture_output=True, text=True, timeout=120
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_hadolint_would_find_something(tmp_path: Path) -> None:
    """Each ignored rule has its reason in the line above it, and no other is ignored."""
    (tmp_path / "Dockerfile").write_text(made("dockerfile")["healthy"].replace("--no-install-recommends ", ""))
    found = subprocess.run([program("hadolint"), str(tmp_path / "Dockerfile")], capture_output=True, text=True, timeout=60)
    assert found.returncode == 1 and "DL3015" in found.stdout
    ignored = [line for text in made("dockerfile").values() for line in text.splitlines() if "hadolint" in line]
    assert set(ignored) == {"# hadolint ignore=DL3008"}


@pytest.mark.parametrize("form", ["docker", "podman"])
def test_shellcheck_finds_nothing(form: str, tmp_path: Path) -> None:
    for at, text in enumerate(set(made(form).values())):
        (tmp_path / f"{at}.sh").write_text(text)
    found = subprocess.run(
        [program("shellcheck"), *sorted(map(str, tmp_path.iterdir()))], capture_output=True, text=True, timeout=120
    )
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.parametrize("form", ["docker", "podman"])
def test_the_script_passes_every_flag_and_the_command_on(form: str, tmp_path: Path) -> None:
    (tmp_path / form).write_text('#!/bin/sh\nprintf "%s\\n" "$@" = >>calls\n')
    (tmp_path / form).chmod(0o755)
    for name in ("healthy", "typical/laptop-cpu"):
        found = image(name)
        assert found is not None
        (tmp_path / "calls").unlink(missing_ok=True)
        (tmp_path / "train.sh").write_text(dockerfile.FORMS[form](found))
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        subprocess.run(["sh", "train.sh", "torchrun", "a b"], cwd=tmp_path, env=env, check=True, timeout=20)
        built, ran, _ = (tmp_path / "calls").read_text().split("=\n")
        assert built.splitlines() == ["build", "--tag", "training", "."]
        flags = [word for flag in found.flags for word in (flag.podman if form == "podman" else flag.docker)]
        assert ran.splitlines() == ["run", "--rm", *flags, "training", "torchrun", "a b"]


def test_kubernetes_takes_the_pod() -> None:
    validate, yaml = pytest.importorskip("kubernetes_validate"), pytest.importorskip("yaml")
    for name, text in made("kubernetes").items():
        pod = yaml.safe_load(text)
        validate.validate(pod, "1.30", strict=True)
        spec, asked = pod["spec"], image(name, nodes=2 if name.endswith("a100") else 1)
        assert asked is not None and spec.get("hostNetwork", False) is name.endswith("a100")
        assert spec["volumes"][0]["emptyDir"]["medium"] == "Memory"
        gpus = {flag.key: flag.amount for flag in asked.flags}.get("gpus")
        assert spec["containers"][0].get("resources", {}).get("limits", {}).get("nvidia.com/gpu") == (str(gpus) if gpus else None)


def test_the_command_promises_what_the_flags_bring() -> None:
    found = image("healthy")
    assert found is not None
    text = dockerfile.dockerfile(found)
    words = json.loads(next(line for line in text.splitlines() if line.startswith("CMD ")).removeprefix("CMD "))
    assert words[:2] == ["python", dockerfile.SMOKE] and words[2] == "--promised"
    promised = dict(pair.split("=") for pair in words[3].split(","))
    shm = next(word for flag in found.flags for word in flag.docker if word.startswith("--shm-size="))
    assert int(promised["shm"]) == 1024 * int(shm.removeprefix("--shm-size=").removesuffix("g"))
    assert promised["gpus"] == "8" and promised["memlock"] == "unlimited"
    assert f"COPY --chmod=0644 smoke.py {dockerfile.SMOKE}" in text


def test_what_a_host_calls_itself_stays_a_comment() -> None:
    seen = load("healthy")
    evil = "x\nRUN curl evil\\\n# syntax=evil/frontend\r\x1b[2J"
    system = change(seen.system, hostname=evil, os=change(seen.system.os, pretty_name=evil))  # type: ignore[union-attr]
    for form in dockerfile.FORMS.values():
        text = form(plan(change(seen, system=system, origin=evil), ImageOptions()))
        assert "\x1b" not in text and "\r" not in text
        assert not [line for line in text.splitlines() if "evil" in line and not line.startswith("#")]
        assert not text.startswith("# syntax")


def test_a_refusal_is_no_dockerfile() -> None:
    text = dockerfile.refused(plan(load("healthy"), ImageOptions(python="3.9")))
    assert text.startswith(dockerfile.MARK) and all(line.startswith("#") for line in text.splitlines())
    assert "way there" in text


def test_environments_of_root_are_not_the_users() -> None:
    """The user comes after everything that root writes, by numbers: Kubernetes' runAsNonRoot refuses names."""
    rows = [line for line in made("dockerfile")["healthy"].splitlines() if line and not line.startswith(("#", " "))]
    words = [row.split()[0] for row in rows]
    assert words.index("USER") > max(at for at, word in enumerate(words) if word in ("RUN", "COPY"))
    assert "USER ${USER_ID}:${GROUP_ID}" in rows
