"""``PYTHONPATH=tests python -m smoke.faults.lists.list_10 proofs|opened|sealed [NAME …]``: whether each fault is in place, or what is said of it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from smoke.faults.bench import Bench, NotHere
from smoke.faults.lists.list_10.all import OPENED, PLANTED, SEALED
from smoke.faults.lists.list_10.ways import Planted
from smoke.faults.trial import words
from torchtune_sys.smoke.names import stage_names

PYTHON = os.environ["TORCHTUNE_SYS_TEST_TORCH"]


def proved(one: Planted, planted: bool) -> str:
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        bench = Bench(Path(folder), PYTHON)
        if planted:
            one.inject(bench)
        env = {**bench.env, "RANK": "1" if one.ranks == "all" else one.ranks, "WORLD_SIZE": "2"}
        with bench.closing:
            ended = subprocess.run(
                [*bench.before, PYTHON, "-c", textwrap.dedent(one.proof)],
                env=env,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
        return "in place" if ended.returncode == 0 else f"not there ({ended.returncode}: {ended.stderr.strip()[-300:]!r})"


def tried(one: Planted) -> None:
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        bench = Bench(Path(folder), PYTHON)
        one.inject(bench)
        compiled, asked = "compil" in one.what, os.environ.get("STAGES", "")
        outcome = bench.run(asked or ",".join(name for name in stage_names() if compiled or name != "compile"), 2)
    print(
        f"== {one.name} (ranks {one.ranks}; {one.causes}) status {outcome.rc}, {outcome.seconds:.0f} s, left {len(outcome.left)}"
    )
    for name, found in outcome.stages.items():
        if found["verdict"] not in ("pass", "na"):
            print(f"   {found['verdict']} {name} {found['cause']!r} [{found.get('confidence', '')}]: {words(found)[:400]}")
    if not outcome.stages:
        print("   ", outcome.errors[-600:])
    sys.stdout.flush()


def main(part: str, names: list[str]) -> None:
    for one in {"proofs": PLANTED, "opened": OPENED, "sealed": SEALED}[part]:
        if names and one.name not in names:
            continue
        try:
            if part == "proofs":
                print(f"{one.name}: {proved(one, True)}; without it: {proved(one, False)[:60]}", flush=True)
            else:
                tried(one)
        except NotHere as why:
            print(f"{one.name}: {why}", flush=True)


main(sys.argv[1], sys.argv[2:])
