"""docs/smoke-faults.md and its table by stage, made from the table of faults and from what is written of each list."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Iterator
from math import sqrt

from smoke.faults import lists
from smoke.faults.table import FAULTS

_HEAD = """# Faults that the smoke test catches

## How many are caught

{caught} faults are planted from outside (there is no switch for them in what is tested) and caught: a test asserts that the stage fails with the cause, that other stages do not, and that no
process is left. **Only** counts faults under which all other stages pass: no other one would have caught them. Each fault with its cause: [smoke-faults-by-stage.md](smoke-faults-by-stage.md).
All on machines with CPUs only; stages of the GPU are *not yet verified on a GPU*.

| stage | faults | only |
|---|---|---|
"""
_EXPECT = """
What catches many of these was built for them. Of a fault that nobody has planted before, expect less:

## What to expect

Each list was written down before anything was built for it. Part of it was *opened* after its first result, and what it found was mended (*last*). The rest stayed *sealed* and was run once at the end.
Only that run counts (intervals are Wilson's, 95 %):

| sealed parts | faults | right | vague or in part | wrong | not noticed |
|---|---|---|---|---|---|
"""
_LISTS = """
- *Right*: the stage, the cause, and the rank or what else had to be named. *Vague*: the stage fails without a cause, or a part is missing. *Wrong*: another cause, or rank, stood first.
- **A miss is mostly silence**: no stage looked at what was broken.
- **Own lists are not blind.** The same hand wrote the rows, knew the sealed ones, and built (so it is said of 2 to 5, 7, 10, 11, 17 to 20 and 22 to 28).
- What is sealed was chosen by digests of the names (7, 13), by lot (9, 10, 14 to 16) or by a seeded draw (18 to 20, 22 to 28); of the others it is not written down how.
- *Broke nothing* in a row: the fault was not in place. It counts as not noticed; lists 17 and 18 leave such rows out (three), and list 14 one that is no fault.

| list | drawn from | load on two cores | opened: right at first → last | sealed: right | vague or in part | wrong | not noticed |
|---|---|---|---|---|---|---|---|
"""
_MISSED = """
List 21 holds odd surroundings alone. Lists 2 and 3 stand in [verified.md](verified.md#the-smoke-tests-second-list-of-faults), with the rates of clean runs.

## What is not noticed

| fault | why |
|---|---|
"""
_OPEN = (
    ("A compiled optimizer's step goes on with the first learning rate", "needs a compilation of its own (list 20)"),
    ("Compiled code is wrong on another rank than a host's first", "the first alone compiles (list 9)"),
    (
        "One rank sends each message 15 ms late",
        "open in list 9; a fifth of messages, 20 ms late, is told since, but of no rank at 8 and more processes a CPU",
    ),
    ("Imports are slow on all ranks (opening each file of torch takes 2 ms)", "open since list 10"),
    (
        "Convolutions take one rank half as long again",
        "crowded hosts are not judged: not noticed at a load of 5, right on a quiet one (list 22)",
    ),
    ("The way back takes one rank 1.3 times as long", "the bound for one kind of work is 2 (list 22)"),
    (
        "A scheduler's SIGUSR1 ends a rank that has no handler for it",
        "ranks of the smoke test take SIGUSR1 to write their stacks (list 22)",
    ),
    ("Large messages of rank 1 lose a bit now and then", "vague: not whose; not tried again (the second stranger's list)"),
    (
        "torch.load gives AdamW's second moments back as zeros",
        "vague: a second save that is not read; not tried again (the same list)",
    ),
    ("One in eight batches of one rank's workers comes 80 ms late", "still not noticed at the last run (list 26)"),
)
"""What the lists left open, of rows that the tests do not try."""
_SECTIONS = """
Between two hosts (network namespaces with names of their own, `tests/smoke/test_nodes.py`): names that do not resolve, or stand for the loopback, and what a firewall keeps apart.
`tests/smoke/test_driver.py` breaks the driver's own surroundings: interrupts, kills, other processes on its socket, interpreters that are none.

## The lists

- Two ranks on two cores, on CPUs, each fault once; from list 9 on torch 2.13.0+cpu. The loads stand above.
- Run one: `PYTHONPATH=tests python -m smoke.faults.lists 28-opened` (or `-sealed`, `-harmless`: what breaks nothing, and no stage may fail). A dash: not run again.
- This page is made from `tests/smoke/faults/`; `./run docs` writes it anew.

"""
_STAGES = """# Faults that the smoke test catches, by stage

How often a fault that nobody planted before is caught: [smoke-faults.md](smoke-faults.md). **Only**: all other stages pass under it. Made from `tests/smoke/faults/`; `./run docs` writes it anew.

| fault | broken by | stage | cause | only |
|---|---|---|---|---|
"""
_GRADES = ("right", "part", "wrong", "unnoticed")
_FROM_DEFAULT_ON = (
    "one-sum-of-200",
    "sums-of-bfloat16-off",
    "embedding-seldom",
    "sparse-gradient-once",
    "jvp-doubled",
    "celu-alpha-backward",
    "lp-pool-floor",
    "max-pool3d-undilated",
    "fractional-pool-same-places",
    "pad-circular-swapped",
    "reflection-pad3d-once",
    "instance-norm-eval",
    "layer-norm-narrow-sums",
    "group-norm-channels-last",
    "adamw-rate-kept",
    "adam-complex-real-only",
    "spawn-broken",
)
"""Of 140 faults, tried on 2026-11-30 on one rank, each by its stage alone."""


def page() -> str:
    caught = [fault for fault in FAULTS if not fault.wrong]
    stages = sorted({fault.stage for fault in caught}, key=_order)
    counts = [
        [sum(each.stage == stage and (each.sole or not sole) for each in caught) for sole in (False, True)] for stage in stages
    ]
    by_stage = "".join(f"| *{stage}* | {faults} | {only or ''} |\n" for stage, (faults, only) in zip(stages, counts, strict=True))
    missed = (*((fault.what, fault.wrong) for fault in FAULTS if fault.wrong), *_OPEN)
    return (
        f"{_HEAD.format(caught=len(caught))}{by_stage}"
        f"{_EXPECT}{_sums()}{_LISTS}{''.join(map(_tally, _tallies()))}"
        f"{_MISSED}{''.join(f'| {what} | {why} |{chr(10)}' for what, why in missed)}"
        f"{_levels()}{_SECTIONS}{''.join(map(_section, lists.numbers()))[1:]}"
    )


def stages_page() -> str:
    """Return docs/smoke-faults-by-stage.md."""
    return _STAGES + "".join(
        f"| {fault.what} | {fault.means} | {fault.stage} | `{fault.cause}` | {'only' if fault.sole else ''} |\n"
        for fault in sorted(FAULTS, key=lambda fault: _order(fault.stage))
        if not fault.wrong
    )


def _tallies() -> list[dict[str, str]]:
    with (lists.HERE / "tally.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if int(row["sealed"]) != sum(int(row[grade]) for grade in _GRADES):
            raise ValueError(f"tally.csv: the grades of list {row['list']} are not as many as its sealed faults")
    return rows


def _sums() -> str:
    """Return the sums over the sealed parts."""
    own = [each for each in _tallies() if "**" not in each["drawn from"]]
    groups = {
        "of five lists by people who had not read the code": [each for each in _tallies() if "**" in each["drawn from"]],
        f"of our own {len(own)} lists": own,
        "of these the latest six (24 to 30)": own[-6:],
    }
    lines = []
    for name, rows in groups.items():
        faults, right, part, wrong, unnoticed = (sum(int(row[column]) for row in rows) for column in ("sealed", *_GRADES))
        lines.append(f"| {name} | {faults} | {right}, {_interval(right, faults)} | {part} | {wrong} | {unnoticed} |\n")
    return "".join(lines)


def _interval(hits: int, of: int) -> str:
    """Return a rate and its 95 % interval after Wilson, in percent."""
    rate, z2 = hits / of, 1.96**2
    middle, half = rate + z2 / 2 / of, 1.96 * sqrt(rate * (1 - rate) / of + z2 / 4 / of**2)
    low, high = ((middle + sign * half) / (1 + z2 / of) for sign in (-1, 1))
    return f"{100 * rate:.0f} % ({100 * low:.0f} to {100 * high:.0f})"


def _tally(row: dict[str, str]) -> str:
    last = f" → {row['last']}" if row["last"] else ""
    grades = " | ".join(row[grade] if row[grade] != "0" else "" for grade in _GRADES[1:])
    return (
        f"| {row['list']} | {row['drawn from']} | {row['load']} | {row['first']}{last} of {row['opened']} "
        f"| {row['right']} of {row['sealed']} | {grades} |\n"
    )


def _levels() -> str:
    """Return which faults ``--quick`` has no time for."""
    by_name = {fault.name: fault for fault in FAULTS}
    left = "".join(f"- {by_name[name].what} (*{by_name[name].stage}*)\n" for name in _FROM_DEFAULT_ON)
    return f"""
### With --quick

The tests try each at the default level. With `--quick` 140 were tried, each by its stage alone: all of *gemm*, *stress*, *layers* and *optimizer* that are broken
by sitecustomize, and half of those of *dataloader* and *checkpoint*. These {len(_FROM_DEFAULT_ON)} it passes over:

{left}"""


def _section(number: int) -> str:
    """Return what is written of a list, and a line for each fault that has a first and a last result."""
    texts = sorted(lists.folder(number).glob("*.md"))
    return "".join(
        f"\n{text.read_text(encoding='utf-8')}{''.join(_results(number)) if text.name == 'results.md' else ''}" for text in texts
    )


def _results(number: int) -> Iterator[str]:
    """Yield nothing for a list whose results are part of its text."""
    folder = lists.folder(number)
    if not (folder / "results.py").is_file():
        return
    results = importlib.import_module(f"{lists.__name__}.{folder.name}.results").RESULTS
    for part in ("opened", "sealed"):
        for fault in lists.rows(number, part):
            yield f"| {fault.what} | {part} | {' | '.join(results[fault.name])} |\n"


def _order(stage: str) -> int:
    from torchtune_sys.smoke.names import stage_names

    order = ("import", *stage_names())
    return order.index(stage) if stage in order else len(order)
