"""A fault tried, and judged."""

from __future__ import annotations

import re
from pathlib import Path

from smoke.faults.bench import Bench, Outcome
from smoke.faults.row import Fault
from torchtune_sys.smoke.names import stage_names


def tried(fault: Fault, folder: Path, python: str) -> Outcome:
    """Raises NotHere where this machine does not allow the fault."""
    bench = Bench(folder, python)
    fault.inject(bench)
    return bench.run(fault.stages or ",".join(name for name in stage_names() if name != "compile"), fault.ranks)


def expected(fault: Fault, outcome: Outcome) -> list[str]:
    """What is not as it must be."""
    wrong = []
    found = outcome.stages.get(fault.stage, {})
    if found.get("verdict") != "fail" or found.get("cause") != fault.cause:
        wrong.append(f"{fault.stage} was to fail with {fault.cause}: {found.get('verdict')} {found.get('cause')!r}")
    if not re.search(fault.seen, found.get("seen", "")):
        wrong.append(f"seen lacks {fault.seen!r}: {found.get('seen')!r}")
    others = {
        name: verdict for name, verdict in outcome.verdicts.items() if verdict not in ("pass", "na") and name != fault.stage
    }
    if others != dict(fault.others):
        wrong.append(f"other stages: {others}, not {dict(fault.others)}")
    for name, stage in outcome.stages.items():
        if stage["verdict"] == "fail" and not stage["seen"]:
            wrong.append(f"{name} fails without a word")
        if "Traceback" in stage["seen"] or "\n" in stage["seen"].strip():
            wrong.append(f"{name} is told in more than a sentence: {stage['seen']!r}")
    if outcome.rc != 1:
        wrong.append(f"exit status {outcome.rc}")
    if "Traceback" in outcome.errors:
        wrong.append("the driver itself raised")
    if outcome.left:
        wrong.append(f"processes outlive the driver: {outcome.left}")
    return wrong
