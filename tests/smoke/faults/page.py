"""docs/smoke-faults.md, made from the table and from what is written of each list."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from smoke.faults import lists
from smoke.faults.row import Fault
from smoke.faults.table import FAULTS

_HEAD = """# Faults that the smoke test catches

Each row is broken from outside on a test machine (there is no switch for it in what is tested), and a test asserts that the stage
fails with the cause, that other stages do not, and that no process is left. **Only** marks faults under which all other stages pass:
no other one would have caught them. Made from `tests/smoke/faults/`; `./run docs`
writes it anew. On a machine with CPUs only; stages of the GPU are *not yet verified on a GPU*.

| fault | broken by | stage | cause | only |
|---|---|---|---|---|
"""
_TAIL = """
Between two hosts (network namespaces with names of their own, `tests/smoke/test_nodes.py`): names that do not resolve, or stand for
the loopback, and what a firewall keeps apart. `tests/smoke/test_driver.py` breaks the driver's own surroundings: interrupts, kills,
other processes on its socket, interpreters that are none.
"""
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
    rows = [
        f"| {fault.what} | {fault.means} | {fault.stage} | `{fault.cause}` | {'only' if fault.sole else ''} |"
        for fault in sorted(FAULTS, key=_place)
        if not fault.wrong
    ]
    missed = [f"| {fault.what} | {fault.wrong} |" for fault in FAULTS if fault.wrong]
    table = "\nNot noticed:\n\n| fault | why |\n|---|---|\n" + "\n".join(missed) + "\n" if missed else ""
    return _HEAD + "\n".join(rows) + "\n" + table + _levels() + _TAIL + "".join(map(_section, lists.numbers()))


def _levels() -> str:
    """Return which faults ``--quick`` has no time for."""
    by_name = {fault.name: fault for fault in FAULTS}
    left = "".join(f"- {by_name[name].what} (*{by_name[name].stage}*)\n" for name in _FROM_DEFAULT_ON)
    return f"""
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


def _place(fault: Fault) -> int:
    from torchtune_sys.smoke.names import stage_names

    order = ("import", *stage_names())
    return order.index(fault.stage) if fault.stage in order else len(order)
