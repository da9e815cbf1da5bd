"""The Dockerfile for real: built without a network from a wheelhouse and a Debian made here, run as a user that is not root. With the flags
that it asks for the smoke test passes in it; without one of them the smoke test names that flag."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from conftest import load
from smoke.faults.bench import torch_python
from torchtune_sys.model.image import Flag, Image, ImageOptions
from torchtune_sys.remediation.image.plan import plan
from torchtune_sys.render.generate import dockerfile
from torchtune_sys.smoke import script

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

NEEDED = ("buildah", "mmdebstrap", "podman", "runc", "unshare")
FILES = min(16384, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
"""A root without CAP_SYS_RESOURCE may not raise its limits; nor those of a container."""
STAGES = "dataloader,checkpoint,ddp,fsdp,checkpoint-sharded"


def run(*words: str, timeout: float = 300, **more: object) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, **more)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{' '.join(words)}: {done.stdout[-1500:]}{done.stderr[-3000:]}"
    found: str = done.stdout
    return found


def lowered(flag: Flag) -> Flag:
    if flag.key != "nofile":
        return flag
    words = ("--ulimit", f"nofile={FILES}:{FILES}")
    return msgspec.structs.replace(flag, amount=FILES, docker=words, podman=words, promise=f"nofile={FILES}")


class Place(NamedTuple):
    """Where images and containers are kept, and the image."""

    stores: tuple[str, ...]
    group: str
    image: Image

    def container(self, flags: list[str], *words: str, one_rank: bool = False) -> subprocess.CompletedProcess[str]:
        env = [f"--env={name}" for name in ("RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0")] if one_rank else []
        own = ["--ulimit", "nproc=4000:4000", "--network=none", f"--cgroup-parent=/{self.group}"]
        argv = ["podman", *self.stores, "--runtime", "runc", "run", "--rm", *own, *env, *flags, dockerfile.NAME, *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=240)

    def flags(self, *without: str) -> list[str]:
        return [word for flag in self.image.flags if flag.key not in without for word in flag.podman]


def wheelhouse(folder: Path, python: str) -> None:
    """torch as the tests have it, and what it needs, for the Python of the image."""
    torch = torch_python()
    release = run(torch, "-c", "import torch; print(torch.__version__)").strip()
    if not release.endswith("+cpu"):
        pytest.skip(f"torch {release} is no CPU build")
    words = [torch, "-m", "pip", "download", "-q", "--only-binary=:all:", "--python-version", python, "-d", str(folder)]
    done = subprocess.run([*words, f"torch=={release}", "numpy"], capture_output=True, text=True, timeout=240)
    if done.returncode:
        pytest.skip(f"no wheels: {done.stderr[-300:]}")


def quick_place() -> str | None:
    """torch is 20,000 files, which are written twice and deleted: in memory, where there is enough."""
    try:
        return "/dev/shm" if shutil.disk_usage("/dev/shm").free > 8 << 30 else None
    except OSError:
        return None


def debian(suite: str, packages: tuple[str, ...]) -> Path:
    """A small Debian with Python as an archive, made once."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torchtune-sys-tests"
    made, draft = folder / f"debian-{suite}-python.tar", folder / f"debian-{suite}-python.{os.getpid()}.tar"
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        run("mmdebstrap", "-q", "--variant=minbase", f"--include={','.join(packages)}", suite, str(draft))
        draft.rename(made)
    return made


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    missing = [program for program in NEEDED if shutil.which(program) is None]
    system = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    if missing or os.geteuid() != 0 or system["ID"] != "debian":
        pytest.skip(f"needs root on Debian, and {' '.join(missing) or 'nothing else'}")
    folder, base = tmp_path_factory.mktemp("image"), f"docker.io/library/debian:{system['VERSION_CODENAME']}-slim"
    wishes = ImageOptions(cpu=True, torch="2.13", base=base, offline="wheels", compiler=False)
    image = plan(load("typical/laptop-cpu"), wishes)
    assert image.base is not None and not image.refused
    image = msgspec.structs.replace(image, flags=tuple(lowered(flag) for flag in image.flags))
    wheelhouse(folder / "wheels", image.base.python)
    (folder / "Dockerfile").write_text(dockerfile.dockerfile(image))
    (folder / "smoke.py").write_text(script.source())
    with tempfile.TemporaryDirectory(dir=quick_place()) as store:  # podman takes no longer path than 50 signs
        stores = ("--root", f"{store}/s", "--runroot", f"{store}/r", "--storage-driver", "overlay")
        run("podman", *stores, "import", "-q", str(debian(system["VERSION_CODENAME"], image.base.packages)), base)
        built = ("buildah", *stores, "bud", "--isolation=chroot", "--layers=false", "--pull=never", "--tag", dockerfile.NAME)
        run("unshare", "--net", *built, str(folder), timeout=500)
        group = f"torchtune-sys-{uuid.uuid4().hex[:8]}"
        yield Place(stores, group, image)
    for left in list(Path("/sys/fs/cgroup").glob(f"**/{group}")):  # podman leaves them, empty
        for folder in (left / "conmon", left):
            with contextlib.suppress(OSError):
                folder.rmdir()


def smoke(place: Place) -> list[str]:
    """The image's own command."""
    config = json.loads(run("podman", *place.stores, "image", "inspect", dockerfile.NAME))[0]["Config"]
    assert config["User"] == "1000:1000"
    command: list[str] = config["Cmd"]
    return command


def test_with_the_flags_that_it_asks_for_training_is_proven(place: Place) -> None:
    done = place.container(place.flags(), *smoke(place), "--stages", STAGES)
    rows = [row.split()[:2] for row in done.stdout.splitlines()]
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert [["pass", name] for name in ("import", "container", "device", *STAGES.split(","))] == [
        row for row in rows if row[1:] != ["rendezvous"]
    ][: 3 + STAGES.count(",") + 1]


@pytest.mark.parametrize(
    ("without", "instead", "cause", "named"),
    [
        ("shm", [], "dev-shm-too-small", "--shm-size=1024m"),
        ("nofile", ["--ulimit", "nofile=1024:1024"], "nofile-limit-too-low", f"--ulimit nofile={FILES}:{FILES}"),
        ("tasks", ["--pids-limit=500"], "cgroup-pids-limit", "--pids-limit=-1"),
    ],
)
def test_without_a_flag_it_is_named(place: Place, without: str, instead: list[str], cause: str, named: str) -> None:
    done = place.container([*place.flags(without), *instead], *smoke(place), "--stages", "device", one_rank=True)
    rows = done.stdout.splitlines()
    failed = [row for row in rows if row.startswith("fail")]
    assert done.returncode == 1 and len(failed) == 1, done.stdout + done.stderr[-2000:]
    assert failed[0].split()[1] == "container" and failed[0].endswith(f"[{cause}]")
    assert rows[rows.index(failed[0]) + 1].strip() == f"start the container with {named}" + (
        " (Kubernetes: an emptyDir with medium: Memory)" if without == "shm" else ""
    )


WHO = """
import getpass, os, pwd, sys
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
os.makedirs(default_cache_dir(), exist_ok=True)
open(os.path.join(os.environ["HOME"], "written"), "w").close()
print(getpass.getuser(), os.getuid(), os.access("/opt/venv", os.W_OK), os.access(sys.executable, os.W_OK), os.getcwd())
"""


@pytest.mark.parametrize(("user", "uid"), [([], 1000), (["--user", "12345"], 12345)])
def test_the_user_has_a_name_and_a_home_and_cannot_change_torch(place: Place, user: list[str], uid: int) -> None:
    done = place.container([*place.flags(), *user], "python", "-W", "ignore", "-c", WHO)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["trainer", str(uid), "False", "False", "/home/trainer"]
