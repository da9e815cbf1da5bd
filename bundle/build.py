"""Make the self-contained file ``torchtune-sys-VERSION-ARCH.pyz``, or a directory of wheels for every Python.

    python bundle/build.py bundle [--arch aarch64] [--output dist]
    python bundle/build.py wheelhouse
    python bundle/build.py lock              # after a dependency was changed or is to be newer: writes wheels.lock

Takes the wheels that wheels.lock names, by their SHA-256, and no others; writes a bill of materials (CycloneDX) beside the bundle.
Runs in an environment with pip, build, hatchling and packaging; needs no interpreter but its own, and no machine of the architecture.
pip's own settings say where the wheels come from (PIP_FIND_LINKS, PIP_NO_INDEX, PIP_INDEX_URL …). The same wheels give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from email.parser import Parser
from pathlib import Path

import lock
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from sbom import sbom

HERE = Path(__file__).resolve().parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.14t", "3.15", "3.15t")
ARCHITECTURES = ("x86_64", "aarch64")
SIZE = "0" * 10
LOCKED = lock.read()
STARTS = ("__main__.py", "refuse.py", "unpack.py")
WHEN = (1980, 1, 1, 0, 0, 0)
LEFT_OUT = re.compile(r"\.pyi$|/RECORD$|^psutil/_ps(aix|bsd|osx|sunos|windows)\.py$")
"""What no start needs: stubs for type checkers, lists that no longer hold, other systems."""


class Missing(Exception):
    """A Python for which there are no wheels, and why."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("bundle", "wheelhouse", "lock"))
    parser.add_argument("--arch", default=platform.machine(), choices=ARCHITECTURES)
    parser.add_argument("--python", action="append", metavar="3.N", help=f"only for these (default: {' '.join(PYTHONS)})")
    parser.add_argument("--output", type=Path, default=HERE.parent / "dist", metavar="FOLDER")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        own = built(Path(scratch))
        if args.what == "lock":
            print(relocked(own, Path(scratch)))
            return 0
        wheels = fetched(own, args.python or PYTHONS, args.arch, Path(scratch))
        args.output.mkdir(parents=True, exist_ok=True)
        made = (bundle if args.what == "bundle" else wheelhouse)(own, wheels, args.arch, args.output)
    print(f"{made}\nfor {', '.join('CPython ' + python for python in wheels)} on {args.arch}")
    return 0


# --- wheels --------------------------------------------------------------------------------------------------------------


def built(scratch: Path) -> Path:
    """The project's own wheel."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(scratch / "own"), str(HERE.parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the project's own wheel cannot be built: {done.stdout}{done.stderr}")
    return next((scratch / "own").glob("*.whl"))


def relocked(own: Path, scratch: Path) -> Path:
    """Lock what pip gives now, for every Python and machine that has wheels of all."""
    LOCKED.clear()
    found: list[Path] = []
    for arch in ARCHITECTURES:
        (scratch / arch).mkdir()
        found += [path for paths in fetched(own, PYTHONS, arch, scratch / arch).values() for path in paths]
    lock.write(found)
    return lock.LOCK


def fetched(own: Path, pythons: list[str] | tuple[str, ...], arch: str, scratch: Path) -> dict[str, list[Path]]:
    """The wheels that each Python needs beside ``own``; a Python for which one is missing is told and left out."""
    found = {}
    with ThreadPoolExecutor(2) as pool:
        jobs = {python: pool.submit(wheels_for, python, own, arch, scratch / python) for python in pythons}
        for python, job in jobs.items():
            try:
                found[python] = job.result()
            except lock.Unlocked as error:
                sys.exit(f"not made: {error}")
            except Missing as error:
                print(f"left out: CPython {python}: {error}", file=sys.stderr)
    if not found:
        sys.exit("no Python has all its wheels: nothing is made")
    return found


def wheels_for(python: str, own: Path, arch: str, folder: Path) -> list[Path]:
    """Downloaded by pip for another interpreter; pip judges markers by the one it runs in, so what they say for ``python`` is asked here."""
    folder.mkdir()
    have: dict[str, Path] = {}
    wanted = requirements(own, python, arch)
    while wanted:
        download(wanted, python, arch, folder)
        have = {canonicalize_name(parse_wheel_filename(path.name)[0]): path for path in sorted(folder.iterdir())}
        asked = [one for wheel in (own, *have.values()) for one in requirements(wheel, python, arch)]
        wanted = [one for one in asked if canonicalize_name(one.name) not in have]
        for one in asked:
            path = have.get(canonicalize_name(one.name))
            if path and not one.specifier.contains(parse_wheel_filename(path.name)[1], prereleases=True):
                raise Missing(f"{path.name} does not fit {one}")
    if LOCKED:
        lock.check(have.values(), LOCKED)
    return sorted(have.values())


def pinned(one: Requirement) -> str:
    """In the version that is locked."""
    version = LOCKED.get(canonicalize_name(one.name), ("",))[0]
    return f"{one.name}=={version}" if version else f"{one.name}{one.specifier}"


def download(wanted: list[Requirement], python: str, arch: str, folder: Path) -> None:
    digits = python.replace(".", "")
    abis = [f"cp{digits}", "none"] + ([] if python.endswith("t") else ["abi3"])
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--only-binary=:all:"]
    command += ["--dest", str(folder), "--implementation=cp", f"--python-version={python.rstrip('t')}"]
    command += [f"--abi={abi}" for abi in abis]
    command += [f"--platform={one}_{arch}" for one in ("manylinux_2_17", "manylinux2014")]
    done = subprocess.run([*command, *map(pinned, wanted)], capture_output=True, text=True)
    if done.returncode:
        lines = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        raise Missing((lines or done.stderr.splitlines()[-1:] or [f"pip ended with status {done.returncode}"])[0][:300])
    for path in folder.iterdir():  # older pips take abi3 wheels for free-threaded interpreters, which cannot load them
        if python.endswith("t") and any(tag.abi == "abi3" for tag in parse_wheel_filename(path.name)[3]):
            raise Missing(f"{path.name} is not for free-threaded interpreters")


def requirements(wheel: Path, python: str, arch: str) -> list[Requirement]:
    """What a wheel asks for on that Python."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        asked = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    version = python.rstrip("t")
    where = {
        "implementation_name": "cpython",
        "implementation_version": f"{version}.0",
        "os_name": "posix",
        "platform_machine": arch,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{version}.0",
        "python_version": version,
        "sys_platform": "linux",
        "extra": "",
    }
    found = [Requirement(one) for one in asked]
    return [one for one in found if one.marker is None or one.marker.evaluate(where)]


def wheelhouse(own: Path, wheels: dict[str, list[Path]], arch: str, output: Path) -> Path:
    made = output / f"wheelhouse-{arch}"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    for path in (own, *(path for paths in wheels.values() for path in paths)):
        shutil.copyfile(path, made / path.name)
    return made


# --- the file ------------------------------------------------------------------------------------------------------------


def bundle(own: Path, wheels: dict[str, list[Path]], arch: str, output: Path) -> Path:
    version = str(parse_wheel_filename(own.name)[1])
    packed = layers({tag(python): contents([own, *paths]) for python, paths in wheels.items()})
    contained = hashlib.sha256()
    for path, content in sorted(packed.items()):
        contained.update(b"%s %d\n%s" % (path.encode(), len(content), content))
    name = f"{version}-{contained.hexdigest()[:16]}"
    entries = scripts(name, wheels, arch, zipped(packed), described(name, own, wheels, arch))
    # Not stored: of a file cut short Python would take the inner archive's end for the outer one's.
    archive = zipped(entries, frozenset(["payload.zip"]))
    made = output / f"torchtune-sys-{version}-{arch}.pyz"
    made.write_bytes(joined(wheels, arch, archive))
    made.chmod(0o755)
    every = [path for paths in wheels.values() for path in paths]
    made.with_suffix(".cdx.json").write_bytes(sbom(made, own, every))
    return made


def contents(wheels: list[Path]) -> dict[str, bytes]:
    """What pip would install of them, by path."""
    found = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                path = re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", name)
                if not (LEFT_OUT.search(path) or path.endswith("/") or re.match(r"[^/]+\.data/", path)):
                    found[path] = archive.read(name)
    for name in ("torchtune-sys", "torchtune_sys_memory.py"):
        found[name] = (HERE / "stub" / name).read_bytes()
    return found


def layers(trees: dict[str, dict[str, bytes]]) -> dict[str, bytes]:
    """What all trees share below ``common``, the rest of each below its own name."""
    first = next(iter(trees.values()))
    common = {path: content for path, content in first.items() if all(tree.get(path) == content for tree in trees.values())}
    found = {f"common/{path}": content for path, content in common.items()}
    for name, tree in trees.items():
        found |= {f"{name}/{path}": content for path, content in tree.items() if path not in common}
    return found


def zipped(files: dict[str, bytes], deflated: frozenset[str] = frozenset()) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compresslevel=9) as archive:
        for path, content in sorted(files.items()):
            info = zipfile.ZipInfo(path, WHEN)
            info.external_attr, info.create_system = 0o100644 << 16, 3
            archive.writestr(info, content, zipfile.ZIP_DEFLATED if path in deflated else zipfile.ZIP_STORED)
    return stream.getvalue()


def tag(python: str) -> str:
    return "cp" + python.replace(".", "")


def wanted(pythons: dict[str, list[Path]], arch: str) -> str:
    """The interpreters in words: ``CPython 3.10 to 3.15 for x86_64 with glibc``."""
    minors = sorted(int(python.rstrip("t").partition(".")[2]) for python in pythons)
    return f"CPython 3.{minors[0]}" + (f" to 3.{minors[-1]}" if len(set(minors)) > 1 else "") + f" for {arch} with glibc"


def described(name: str, own: Path, wheels: dict[str, list[Path]], arch: str) -> bytes:
    every = {path.name: path for paths in wheels.values() for path in paths} | {own.name: own}
    hashes = {key: hashlib.sha256(path.read_bytes()).hexdigest() for key, path in sorted(every.items())}
    facts = {"id": name, "machine": arch, "pythons": [*wheels], "wheels": hashes}
    return (json.dumps(facts, indent=1) + "\n").encode()


def scripts(name: str, wheels: dict[str, list[Path]], arch: str, payload: bytes, info: bytes) -> dict[str, bytes]:
    """The entries of the outer archive, which Python reads anew at each start: few."""
    suffixes = {f".cpython-{python.replace('.', '')}-{arch}-linux-gnu.so": tag(python) for python in wheels}
    known = {"ID": name, "PYTHONS": suffixes, "MACHINE": arch, "WANTED": wanted(wheels, arch)}
    known["PAYLOAD_SHA256"] = hashlib.sha256(payload).hexdigest()
    found = {path: filled((HERE / "stub" / path).read_text(), known).encode() for path in STARTS}
    return {**found, "payload.zip": payload, "info.json": info}


def filled(text: str, known: Mapping[str, object]) -> str:
    """Constants that are empty in the source get their values."""
    return re.sub(
        r'^([A-Z_0-9]+) = (?:""|{})(?=$|  #)', lambda found: f"{found[1]} = {known[found[1]]!r}", text, flags=re.MULTILINE
    )


def joined(wheels: dict[str, list[Path]], arch: str, archive: bytes) -> bytes:
    """A shell script, then the archive; an archive is read from its end."""
    names = [f"python{python}" for python in reversed(wheels) if not python.endswith("t")]
    text = (HERE / "stub/start.sh").read_text().replace("PYTHONS", " ".join(names)).replace("WANTED", wanted(wheels, arch))
    return text.replace(SIZE, f"{len(text.encode()) + len(archive):010}").encode() + archive


if __name__ == "__main__":
    sys.exit(main())
