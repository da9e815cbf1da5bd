"""Tries faults by hand (``PYTHONPATH=tests python -m smoke.faults NAME…``); ``write`` makes its two pages of docs/ anew, ``check`` fails where one is
not current (``./run docs`` and ``./run lint`` call them)."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from smoke.faults.bench import NotHere
from smoke.faults.page import page, stages_page
from smoke.faults.table import FAULTS
from smoke.faults.trial import expected, tried

DOCS = Path(__file__).parents[3] / "docs"
PAGES = {"smoke-faults.md": page, "smoke-faults-by-stage.md": stages_page}


def main(names: list[str]) -> None:
    torch = os.environ.get("TORCHTUNE_SYS_TEST_TORCH", "")
    if names in (["write"], ["check"]):
        for name, made in PAGES.items():
            place, text = DOCS / name, made()
            if not place.is_file() or place.read_text(encoding="utf-8") != text:
                if names == ["check"]:
                    sys.exit(f"{place}: not current; run: ./run docs")
                place.write_text(text, encoding="utf-8")
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
