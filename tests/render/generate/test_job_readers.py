"""A job's environment through the programs that take it: systemd starts a service, Slurm a task, podman a container; Kubernetes' own
schema takes the manifest. Whatever the values hold, the process finds them as they were.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import slurm_here
import systemd_here
from systemd_here import needs_systemd
from values import HOSTILE, variable

from torchtune_sys.errors import UserError
from torchtune_sys.model.job import JobVariable
from torchtune_sys.render.generate import job, units

_SIGNS = "ab7 \t$`'\"\\%{}()#;&|<>*?[]!~=-+^@:,./_é→\x85\u2028\U0001f600"
_BEGINNINGS = (
    "export X=1",
    "print x",
    "unset A_NAME",
    "# x",
    " lead",
    "trail ",
    "=x",
    "x=y",
    "[Service]",
    "- name: x",
    "$(A_NAME)",
)
CONTROL = ("\x01\x02", "\x1b[2J", "del\x7f")
LINES = ("two\nlines\n", "\n", "a\n[Service]\nExecStart=/bin/false", "cr\r\n")


def values() -> list[str]:
    """Of one line, without control characters."""
    chance = random.Random(0)
    return [*HOSTILE, *_BEGINNINGS, "x" * 3000, *("".join(chance.choices(_SIGNS, k=chance.randrange(25))) for _ in range(150))]


def variables(texts: list[str]) -> list[JobVariable]:
    found = [variable(text, f"V{at}", reason=text) for at, text in enumerate(texts)]
    return [*found, variable(None, "GONE"), variable("x", "SHOWN", sure=False)]


def read(text: bytes) -> dict[str, str]:
    """What ``env -0`` prints."""
    return dict(entry.split("=", 1) for entry in text.decode().split("\0") if "=" in entry)


def compare(found: Mapping[str, str], texts: list[str]) -> None:
    print(f"{len(texts)} values")
    assert {name: found.get(name) for name in (f"V{at}" for at in range(len(texts)))} == {
        f"V{at}": text for at, text in enumerate(texts)
    }
    assert not {"GONE", "SHOWN", "X", "EVIL"} & set(found)


@needs_systemd
def test_systemd_starts_a_service_with_it(tmp_path: Path) -> None:
    texts = [*values(), *LINES[:3]]
    unit = f"[Service]\nType=oneshot\nEnvironment=GONE=1\nExecStart=/bin/sh -c 'env -0 >{tmp_path}/out'\n"
    folder = "/run/systemd/user/a.service"
    files = {folder: unit, f"{folder}.d/{units.NAME}": units.service((), variables(texts))}
    done = systemd_here.told(tmp_path, files, "timeout 20 systemctl --user start a.service; echo $?")
    assert done.stdout.split() == ["0"], done.stderr
    compare(read((tmp_path / "out").read_bytes()), texts)


@pytest.mark.slow
def test_slurm_starts_a_task_with_it(tmp_path: Path) -> None:
    texts = [*values(), *CONTROL]
    try:
        with slurm_here.cluster(tmp_path, "task/none", 1) as env:
            slurm_here.write_task_prolog(tmp_path, job.slurm(variables(texts)))
            own = {"HOME": "/", "GONE": "1", **env}
            done = subprocess.run(["srun", "-n1", "--quiet", "env", "-0"], env=own, capture_output=True, timeout=60, check=True)
    except slurm_here.Unavailable as why:
        pytest.skip(f"no Slurm here: {why}")
    compare(read(done.stdout), texts)


@pytest.fixture
def container(tmp_path: Path) -> Iterator[list[str]]:
    """A container of busybox alone. Its limits are low: a root without CAP_SYS_RESOURCE may not raise them."""
    busybox = shutil.which("busybox")
    if shutil.which("podman") is None or shutil.which("runc") is None or busybox is None or os.geteuid() != 0:
        pytest.skip("needs root, podman, runc and busybox")
    for name in ("bin", "proc", "dev", "sys", "etc", "run", "tmp"):
        (tmp_path / "root" / name).mkdir(parents=True)
    shutil.copy(busybox, tmp_path / "root/bin/busybox")
    (tmp_path / "root/bin/env").symlink_to("busybox")
    limits = ["--ulimit", "nofile=1000:1000", "--ulimit", "nproc=1000:1000"]
    group = f"torchtune-sys-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as runs:  # podman takes no longer path than 50 signs
        own = ["podman", "--runtime", "runc", "--root", str(tmp_path / "store"), "--runroot", runs]
        yield [
            *own,
            "run",
            "--rm",
            "--network=none",
            f"--cgroup-parent=/{group}",
            *limits,
            "--rootfs",
            f"{tmp_path / 'root'}:O",
            "/bin/env",
            "-0",
        ]
    for _ in range(20):  # podman's own cleaning goes on for a moment
        for left in list(Path("/sys/fs/cgroup").glob(f"**/{group}")):
            for folder in (left / "conmon", left):
                with contextlib.suppress(OSError):
                    folder.rmdir()
        time.sleep(0.05)


@pytest.mark.slow
def test_podman_starts_a_container_with_it(tmp_path: Path, container: list[str]) -> None:
    texts = [*values(), *CONTROL]
    (tmp_path / "env.list").write_text(job.docker(variables(texts)))
    at = container.index("--rootfs")
    argv = [*container[:at], "--env-file", str(tmp_path / "env.list"), *container[at:]]
    done = subprocess.run(argv, capture_output=True, timeout=60)
    if done.returncode and b"OCI" in done.stderr:
        pytest.skip(f"no container here: {done.stderr.decode()[-300:]}")
    assert done.returncode == 0, done.stderr
    compare(read(done.stdout), texts)


@pytest.mark.parametrize("text", [*CONTROL, "cr\r"])
def test_systemd_would_drop_control_characters(text: str) -> None:
    with pytest.raises(UserError, match="control characters"):
        job.systemd([variable(text)])


def test_kubernetes_takes_the_manifest() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    yaml = pytest.importorskip("yaml")
    texts = [*values(), *CONTROL, *LINES]
    env = "\n".join(f"    {row}" for row in job.kubernetes(variables(texts)).splitlines())
    pod = f"apiVersion: v1\nkind: Pod\nmetadata:\n  name: job\nspec:\n  containers:\n  - name: train\n    image: x\n{env}\n"
    made = yaml.safe_load(pod)
    validate.validate(made, "1.30", strict=True)
    found = {item["name"]: item["value"].replace("$$", "$") for item in made["spec"]["containers"][0]["env"]}
    compare(found, texts)
    made["spec"]["containers"][0]["env"][0]["vlaue"] = "x"
    with pytest.raises(validate.ValidationError):
        validate.validate(made, "1.30", strict=True)
