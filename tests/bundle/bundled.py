"""Starting the self-contained file: which interpreters this machine has, in what surroundings the file is started."""

from __future__ import annotations

import fcntl
import functools
import glob
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
BUILD = REPO / "bundle" / "build.py"
NOBODY = 65534
OLDEST = (3, 10)


@functools.cache
def interpreters() -> dict[tuple[int, int], str]:
    """The CPythons of this machine by version: those of pyenv, and those on PATH."""
    places = {os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv"), os.path.expanduser("~/.pyenv")}
    of_pyenv = [path for place in sorted(places) for path in sorted(glob.glob(f"{place}/versions/*/bin/python"))]
    asking = "import sys; sys.stdout.write('%d %d' % sys.version_info[:2]); sys.exit('__pypy__' in sys.builtin_module_names)"
    found: dict[tuple[int, int], str] = {}

    def ask(path: str | None) -> None:
        done = path and subprocess.run([path, "-S", "-E", "-c", asking], capture_output=True, text=True)
        if done and not done.returncode:
            major, minor = map(int, done.stdout.split())
            found.setdefault((major, minor), str(path))

    for path in [sys.executable, *of_pyenv]:
        ask(path)
    for version in [(3, minor) for minor in range(16, 5, -1)] + [(2, 7)]:
        if version not in found:  # each worker of the tests asks as it collects, and what pyenv puts on PATH starts slowly
            ask(shutil.which(f"python{dotted(version)}"))
    ask(shutil.which("python3"))
    return found


def good() -> list[tuple[int, int]]:
    return sorted(version for version in interpreters() if version >= OLDEST)


def old() -> list[tuple[int, int]]:
    return sorted(version for version in interpreters() if version < OLDEST)


def dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def built(output: Path, *options: str, what: str = "bundle", env: dict[str, str] | None = None) -> Path:
    """What the builder made, by its own word; a test is skipped where it cannot work."""
    for name in ("build", "hatchling", "packaging", "pip"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed beside {sys.executable}")
    command = [sys.executable, str(BUILD), what, "--output", str(output), *options]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})})
    if "no Python has all its wheels" in done.stderr:
        pytest.skip(f"pip cannot get the wheels: {done.stderr[:300]}")
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.splitlines()[0])


def shared(factory: pytest.TempPathFactory, *options: str) -> Path:
    """Return what :func:`built` makes with ``options``, made once for all workers of a run: the first that asks makes it, the others wait."""
    own = factory.getbasetemp()
    folder = (own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own) / "-".join(
        ["bundle", *(word.lstrip("-") for word in options)]
    )
    with open(f"{folder}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            made = built(folder.parent / f"{folder.name}.part", *options)
            made.parent.rename(folder)
    (bundle,) = folder.glob("*.pyz")
    return bundle


def surroundings(**more: str) -> dict[str, str]:
    """An environment that names no folder to unpack to."""
    path = os.pathsep.join([os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"])
    return {"PATH": path, "LC_ALL": "C.UTF-8", "HOME": "/nonexistent", **more}


def start(*argv: str | Path, env: dict[str, str], **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(one) for one in argv], capture_output=True, text=True, timeout=60, env=env, **more)  # type: ignore[call-overload, no-any-return]


@functools.cache
def may_mount() -> bool:
    if os.geteuid() or not (shutil.which("unshare") and shutil.which("setpriv")):
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


needs_mount = pytest.mark.skipif("not __import__('bundled').may_mount()", reason="needs root, unshare and setpriv")


def apart(
    bundle: Path, mounts: str, *argv: str, user: int = 0, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Start the file, read-only below /mnt, after shell commands that prepare the file systems of a namespace of its own."""
    script = f'mount --bind {bundle.parent} /mnt && mount -o remount,ro,bind /mnt && {{ {mounts}\n}} && cd /mnt && exec "$@"'
    inside = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
    whole = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", script, "sh", *inside, *argv]
    return start(*whole, env=env or surroundings())


def system_python() -> str:
    """An interpreter that any user may start."""
    path = "/usr/bin/python3"
    if (
        not os.path.exists(path)
        or start(path, "-c", "import sys; sys.exit(sys.version_info < (3, 10))", env=surroundings()).returncode
    ):
        pytest.skip(f"{path} is no Python 3.10 or newer")
    return path
