"""Tries faults by hand (``PYTHONPATH=tests python -m smoke.faults NAME…``); ``write`` makes docs/smoke-faults.md anew, ``check`` fails where it is
not current (``./run docs`` and ``./run lint`` call them)."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from smoke.faults.bench import NotHere
from smoke.faults.page import page
from smoke.faults.table import FAULTS
from smoke.faults.trial import expected, tried

PAGE = Path(__file__).parents[3] / "docs" / "smoke-faults.md"


def main(names: list[str]) -> None:
    torch = os.environ.get("TORCHTUNE_SYS_TEST_TORCH", "")
    if names in (["write"], ["check"]):
        if PAGE.read_text(encoding="utf-8") != page():
            if names == ["check"]:
                sys.exit(f"{PAGE}: not current; run: ./run docs")
            PAGE.write_text(page(), encoding="utf-8")
        return
    if not torch:
        sys.exit("set TORCHTUNE_SYS_TEST_TORCH to the Python that has torch, e.g. .venv-torch/bin/python")
    for fault in FAULTS:
        if fault.name in names or "all" in names or ("sole" if fault.sole else "some") in names:
            with tempfile.TemporaryDirectory(prefix="tt-") as folder:
                try:
                    outcome = tried([fault], Path(folder), torch)
                except NotHere as why:
                    print(f"skipped {fault.name}: {why}", flush=True)
                    continue
            wrong = expected(fault, outcome)
            print(f"{'ok ' if not wrong else 'BAD'} {outcome.seconds:5.1f} s  {fault.name}", flush=True)
            if wrong or "-v" in names:
                print("\n".join(wrong), outcome.told, sep="\n", flush=True)


main(sys.argv[1:])
