"""Which wheels may go into the bundle: names, versions and SHA-256, in ``wheels.lock`` (the form of pip's requirements with hashes)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename

LOCK = Path(__file__).resolve().parent / "wheels.lock"
_HEAD = """# Written by `python bundle/build.py lock`: every wheel that the bundle may be made of, for each CPython and machine.
# Also to be had by: pip install --require-hashes -r wheels.lock
"""


class Unlocked(Exception):
    """A wheel that is not in the lock."""


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read(path: Path = LOCK) -> dict[str, tuple[str, frozenset[str]]]:
    """Return version and hashes by name."""
    found = {}
    text = path.read_text().replace("\\\n", " ")
    for line in text.splitlines():
        asked = re.match(r"([\w.-]+)==(\S+)", line)
        if asked:
            found[canonicalize_name(asked[1])] = asked[2], frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", line))
    return found


def check(paths: Iterable[Path], locked: dict[str, tuple[str, frozenset[str]]]) -> None:
    """Raise Unlocked for the first wheel that is not as locked."""
    for path in paths:
        name = canonicalize_name(parse_wheel_filename(path.name)[0])
        version, hashes = locked.get(name, ("", frozenset()))
        found = digest(path)
        if found not in hashes:
            told = f"{version} with other hashes" if version else "nothing of that name"
            raise Unlocked(f"{path.name} (sha256 {found}) is not in {LOCK.name}, which has {told}")


def write(paths: Iterable[Path], path: Path = LOCK) -> None:
    """Write the lock of these wheels; one version of each package."""
    versions: dict[str, str] = {}
    hashes: dict[str, set[str]] = {}
    for wheel in paths:
        name, version = canonicalize_name(parse_wheel_filename(wheel.name)[0]), str(parse_wheel_filename(wheel.name)[1])
        if versions.setdefault(name, version) != version:
            raise Unlocked(f"{name} in two versions: {versions[name]} and {version}")
        hashes.setdefault(name, set()).add(digest(wheel))
    rows = [
        " \\\n".join([f"{name}=={versions[name]}", *(f"    --hash=sha256:{one}" for one in sorted(hashes[name]))])
        for name in sorted(versions)
    ]
    path.write_text(_HEAD + "\n".join(rows) + "\n")
