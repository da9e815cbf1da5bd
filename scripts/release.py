"""Walk through a release: version, changelog, tag, wheel, bundle, sums, and the same bytes twice.

    ./run release --dry-run [--wheel-only] [--output FOLDER]

Nothing is tagged, published or sent, and no file of the checkout is changed: the files lie in FOLDER (dist/release), and what a maintainer
then types is printed. Each artefact is built twice, in directories of its own, from what is committed; differing bytes are an error. Exit status: 0 ready to be released,
1 something stands in the way, 2 usage.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_VERSION = re.compile(r'(?m)^__version__ = "([^"]+)"$')
_UNRELEASED = "## Unreleased"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--dry-run", action="store_true", required=True, help="the only way so far: a maintainer tags and publishes"
    )
    parser.add_argument("--wheel-only", action="store_true", help="without the bundle, whose wheels pip has to fetch")
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "release")
    asked = parser.parse_args()
    version = version_of((ROOT / "src/torchtune_sys/__init__.py").read_text(encoding="utf-8"))
    told = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    in_the_way = obstacles(version, told, git("status", "--porcelain"), git("tag", "--list", f"v{version}"))
    day = time.strftime("%Y-%m-%d", time.gmtime(int(git("log", "-1", "--format=%ct"))))
    print(f"version    {version}, commit {git('rev-parse', '--short', 'HEAD')} of {day}")
    print(f"changelog  {len(unreleased(told).splitlines())} lines under Unreleased become: ## {version} ({day})")
    print(f"tag        v{version}, signed")
    shutil.rmtree(asked.output, ignore_errors=True)
    asked.output.mkdir(parents=True)
    in_the_way += built_twice(asked.output, bundle=not asked.wheel_only)
    sums = "".join(f"{digest(place)}  {place.name}\n" for place in sorted(asked.output.iterdir()))
    (asked.output / "SHA256SUMS").write_text(sums, encoding="utf-8")
    print(sums, end="")
    print(*("\nin the way:", *in_the_way) if in_the_way else after(version), sep="\n  ")
    return 1 if in_the_way else 0


def version_of(text: str) -> str:
    """Return the version that the package tells of itself."""
    found = _VERSION.search(text)
    if found is None:
        sys.exit("src/torchtune_sys/__init__.py has no __version__")
    return found[1]


def unreleased(changelog: str) -> str:
    """Return what stands below the unreleased head."""
    return changelog.partition(f"{_UNRELEASED}\n")[2].partition("\n## ")[0].strip()


def obstacles(version: str, changelog: str, changes: str, tag: str) -> list[str]:
    """Return what stands in the way of a release before anything is built."""
    return [
        *(
            ()
            if re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version)
            else (f"version {version} is none of semantic versioning",)
        ),
        *(() if unreleased(changelog) else ("CHANGELOG.md has nothing under Unreleased",)),
        *((f"the tag v{version} is there already: raise __version__",) if tag else ()),
        *(("uncommitted changes; what is built is the commit",) if changes else ()),
    ]


def built_twice(output: Path, *, bundle: bool) -> list[str]:
    """Build the committed state twice, keep the first, and return what differs between them."""
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as work:
        for number in ("1", "2"):
            tree, made = Path(work) / number / "tree", Path(work) / number / "made"
            tree.mkdir(parents=True)
            with tarfile.open(fileobj=BytesIO(archive()), mode="r:") as committed:
                committed.extractall(tree, filter="data")
            build(tree, made, bundle=bundle)
        first, second = (
            {place.name: digest(place) for place in (Path(work) / number / "made").iterdir()} for number in ("1", "2")
        )
        faults += [f"{name}: other bytes the second time" for name in first if second.get(name) != first[name]]
        for place in (Path(work) / "1" / "made").iterdir():
            shutil.copy(place, output)
    print(f"built      twice: {len(first)} files, {'the same bytes' if not faults else 'other bytes'}")
    return faults


def build(tree: Path, made: Path, *, bundle: bool) -> None:
    """Build the wheel, and the bundle with its bill of materials, of a tree."""
    env = {**os.environ, "SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct")}
    wheel = ["-m", "build", "-q", "--wheel", "--no-isolation", "--outdir", str(made)]
    subprocess.run([sys.executable, *wheel], cwd=tree, env=env, check=True, stdout=sys.stderr)
    if bundle:
        one_file = ["bundle/build.py", "bundle", "--output", str(made)]
        subprocess.run([sys.executable, *one_file], cwd=tree, env=env, check=True, stdout=sys.stderr)


def archive() -> bytes:
    """Return the files of the commit, without what lies in the checkout besides."""
    return subprocess.run(["git", "archive", "--format=tar", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout


def after(version: str) -> tuple[str, ...]:
    """Return what a maintainer types then."""
    return (
        "\nready. Then, by hand:",
        "rename the head in CHANGELOG.md, commit, and run this again",
        f"git tag --sign v{version} && git push origin v{version}",
        "ssh-keygen -Y sign -f KEY -n torchtune-sys dist/release/SHA256SUMS    # docs/bundle.md says how receivers verify it",
        "publish dist/release; the provenance of a build in CI is attested by the host of that CI, not by this script",
    )


def digest(place: Path) -> str:
    return hashlib.sha256(place.read_bytes()).hexdigest()


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
