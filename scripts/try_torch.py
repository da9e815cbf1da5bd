"""Run the smoke test under other releases of torch, each pinned, in environments of their own.

    python scripts/try_torch.py 2.4.1 2.15.0

The environments (several GB each: PyPI's torch for x86-64 brings CUDA along) are kept in ~/.cache/torchtune-sys/torch or --place DIR, so
a second run is quick. Exit status 1 if a release fails. Not a part of the test suite: it downloads a lot.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path


def interpreter(version: str, place: Path) -> Path:
    """The Python of an environment with exactly this torch; made if it is not there."""
    python = place / version / "bin" / "python"
    stamp = place / version / "complete"
    if not stamp.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place / version)], check=True)
        numpy = "numpy<2" if tuple(map(int, version.split(".")[:2])) < (2, 3) else "numpy"
        subprocess.run([str(python), "-m", "pip", "install", "-q", f"torch=={version}", numpy], check=True)
        stamp.touch()
    return python


def smoke(python: Path) -> dict[str, object]:
    """The report of one run, nothing remembered."""
    argv = [sys.executable, "-m", "torchtune_sys", "smoke", "--python", str(python), "--format", "json", "--no-proof"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=900)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+")
    parser.add_argument("--place", type=Path, default=Path.home() / ".cache" / "torchtune-sys" / "torch")
    asked = parser.parse_args()
    failed = 0
    for version in asked.versions:
        report = smoke(interpreter(version, asked.place))
        stages = report["stages"]
        assert isinstance(stages, list)
        verdicts = {
            verdict: [stage["stage"] for stage in stages if stage["verdict"] == verdict]
            for verdict in ("fail", "unknown", "na", "pass")
        }
        print(f"{version}: {report['verdict']}, {report['seconds']:.0f} s, {len(verdicts['pass'])} passed", flush=True)
        for verdict in ("fail", "unknown", "na"):
            for stage in stages:
                if stage["verdict"] == verdict:
                    print(f"  {verdict:<8}{stage['stage']:<20}{stage['cause']} {stage['seen']}")
        failed += report["verdict"] != "pass"
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
