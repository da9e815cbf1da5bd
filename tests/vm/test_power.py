"""A power cut at any moment of ``apply`` or ``undo`` loses nothing: after the next start ``undo`` restores what was there before.

TORCHTUNE_SYS_POWER_CUTS says at how many points (fewer where nothing is said, for time's sake).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import guest
import power_guest as power
import pytest

import torchtune_sys

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

CUTS = int(os.environ.get("TORCHTUNE_SYS_POWER_CUTS", "5"))
SEED = 2026
RECOVER = f"{power.SEE}; echo BETWEEN; busybox sysctl -q -p {power.OWN}; {power.UNDO}; echo UNDO $?; {power.SEE}"
"""As at a start of a real host, what is kept for it is read first."""
FSYNCS = {
    "a file's content": ("remediation/apply/durable.py", "            os.fsync(handle)"),
    "the journal's lines": ("remediation/apply/journal.py", "            os.fsync(handle)"),
}


class Stage:
    """The machine, its disk as it was in the beginning, and (made when it is asked for) its disk with everything applied."""

    def __init__(self, folder: Path) -> None:
        self.bench = power.Bench(folder)
        self.original = self.bench.disk("original")
        self.before = power.seen(self.bench.do(self.original, power.PREPARE))

    @cached_property
    def applied(self) -> Path:
        made = self.bench.disk("applied", self.original)
        assert "STATUS 0" in self.bench.do(made, f"{power.APPLY}; echo STATUS $?")
        return made

    def cut(self, disk: Path, command: str, flushes: int, after_s: float) -> tuple[str, str]:
        """(what the cut left, what is wrong after undoing) of one point."""
        cut = self.bench.disk("cut", disk)
        ended = self.bench.cut(cut, command, flushes, after_s)
        left, _, said = self.bench.do(cut, RECOVER).partition("BETWEEN")
        found, now = power.seen(left), power.seen(said)
        wrong = sorted(path for path in {*self.before, *now} if self.before.get(path) != now.get(path))
        files = sum(found.get(path) != self.before.get(path) for path in {*found, *self.before})
        if "UNDO 0" not in said:
            wrong.append(next((line for line in said.splitlines() if line.startswith("UNDO")), "no undo"))
        state = "all done" if ended else "nothing to undo" if "nothing to undo" in said else f"{files:2} names changed"
        return state, ", ".join(wrong)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    try:
        yield Stage(tmp_path_factory.mktemp("power"))
    except guest.Unavailable as why:
        pytest.skip(f"no virtual machine here: {why}")


@pytest.mark.parametrize("what", ["apply", "undo"])
def test_a_power_cut_loses_nothing(stage: Stage, what: str) -> None:
    if what == "apply":
        disk, command = stage.original, power.APPLY
    else:
        disk, command = stage.applied, power.UNDO
    flushes = stage.bench.flushes_of(stage.bench.disk("count", disk), command)
    assert flushes > 10, "nothing was synced"
    table: Counter[str] = Counter()
    wrong = {}
    for point in power.points(CUTS if what == "apply" else max(3, CUTS // 3), flushes, SEED):
        left, lost = stage.cut(disk, command, *point)
        table[f"{left}: {'recovered' if not lost else 'NOT RECOVERED'}"] += 1
        print(
            f"{what} cut {point[1] * 1000:4.1f} ms after flush {point[0]:2} of {flushes}: {left}, {lost or 'recovered'}",
            flush=True,
        )
        if lost:
            wrong[point] = lost
    print(what, dict(sorted(table.items())))
    assert not wrong
    assert any("names changed" in left for left in table), "no cut fell into the changes"


@pytest.mark.parametrize("fsync", FSYNCS)
def test_without_one_fsync_a_power_cut_loses_something(stage: Stage, fsync: str) -> None:
    """The test of the test above: it sees what a missing fsync does."""
    file, line = FSYNCS[fsync]
    source = (Path(torchtune_sys.__file__).parent / file).read_text()
    assert source.splitlines().count(line) == 1
    maimed = f"sed -i 's/^{line}$/{line.replace('os.fsync(handle)', 'pass')}/' /opt/packages/torchtune_sys/{file}; {power.APPLY}"
    flushes = stage.bench.flushes_of(stage.bench.disk("count", stage.original), maimed)
    for point in power.points(12, flushes, SEED):
        left, lost = stage.cut(stage.original, maimed, *point)
        print(
            f"without {fsync}: {point[1] * 1000:4.1f} ms after flush {point[0]:2} of {flushes}: {left}, {lost or 'recovered'}",
            flush=True,
        )
        if lost:
            return
    raise AssertionError("every cut was survived")
