"""A fault tried, and judged."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from smoke.faults.bench import Bench, Outcome
from smoke.faults.row import Fault
from torchtune_sys.smoke.names import stage_names


def tried(faults: Sequence[Fault], folder: Path, python: str, alone: Collection[str] = ()) -> Outcome:
    """All at once, each in a stage of its own. ``alone``: the stages that run, none for those that the faults ask for. Raises NotHere where this machine does not allow one."""
    bench = Bench(folder, python)
    for fault in faults:
        fault.inject(bench)
    asked = {*alone} or {name for fault in faults for name in fault.stages.split(",")}
    stages = [name for name in stage_names() if name in asked or ("" in asked and name != "compile")]
    return bench.run(",".join(stages), faults[0].ranks)


def expected(fault: Fault, outcome: Outcome, beside: Collection[str] = ()) -> list[str]:
    """What is not as it must be. ``beside``: the stages in which other faults that were injected too show."""
    wrong = []
    found = outcome.stages.get(fault.stage, {})
    if found.get("verdict") != "fail" or found.get("cause") != fault.cause:
        wrong.append(f"{fault.stage} was to fail with {fault.cause}: {found.get('verdict')} {found.get('cause')!r}")
    if not re.search(fault.seen, words(found)):
        wrong.append(f"seen lacks {fault.seen!r}: {words(found)!r}")
    others = {
        name: verdict
        for name, verdict in outcome.verdicts.items()
        if verdict not in ("pass", "na") and name != fault.stage and name not in beside
    }
    due = {name: verdict for name, verdict in fault.others.items() if name not in beside}
    if others != due:
        wrong.append(f"other stages: {others}, not {due}")
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


def words(found: Mapping[str, Any]) -> str:
    """What was seen, with the ranks that saw it."""
    ranks = ", ".join(f"rank {number}" for number in found.get("ranks", ()))
    return f"{ranks}: {found.get('seen', '')}"
