"""A small run on plain files in a folder: two values, a file that was there, one in a directory to be made.

As a program it answers each line of JSON, ``{"folder": …, "what": "apply" or "undo", "strace": […]}``, with one that says what became
of it in a child.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from forked import in_child

from torchtune_sys.model.actions import Advice, Needs, Safety
from torchtune_sys.model.plan import Change, FileLine, Plan, PlannedFile, Step, Value
from torchtune_sys.remediation.apply import journal, session, undo

MOMENT = session.Moment(version="test", time="2026-01-01T00:00:00Z", boot_id="one")
OLD = {"one": "1\n", "two": "2\n", "kept.conf": "by hand\n"}


def set_up(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, content in OLD.items():
        (folder / name).write_text(content)


def files(folder: Path) -> tuple[PlannedFile, ...]:
    return (
        PlannedFile(path=f"{folder}/kept.conf", before=OLD["kept.conf"], content="by hand\none = 10\n"),
        PlannedFile(path=f"{folder}/made/new.conf", before=None, content="two = 20\n"),
    )


def plan(folder: Path) -> Plan:
    one = change("one", Value(path=f"{folder}/one", value="10"), FileLine(path=f"{folder}/kept.conf", key="one", text="one = 10"))
    two = change(
        "two", Value(path=f"{folder}/two", value="20"), FileLine(path=f"{folder}/made/new.conf", key="two", text="two = 20")
    )
    return Plan(host="small", origin="live", changes=(one, two), files=files(folder), refused=(), by_hand=())


def change(key: str, *steps: Step) -> Change:
    what = Advice(text=key)
    return Change(
        key=key, action=what, rules=(key,), why="", seen="", wanted="", safety=Safety.SAFE, needs=Needs.NOTHING, steps=steps
    )


def state(folder: Path) -> str:
    return f"{folder}/state"


def apply(folder: Path) -> session.ApplyRun:
    def kept(failed: frozenset[str]) -> tuple[PlannedFile, ...]:
        return tuple(file for file, key in zip(files(folder), ("one", "two"), strict=True) if key not in failed)

    return session.run(plan(folder), kept, lambda: False, MOMENT, state(folder))


def take_back(folder: Path) -> undo.Undone:
    """Everything that is open, as the command does it."""
    restored: list[str] = []
    kept: dict[str, str] = {}
    failed: dict[str, str] = {}
    for number in reversed(journal.numbers(state(folder))):
        found = journal.load(state(folder), number)
        if found.is_open:
            result = undo.undo(found, same_boot=True)
            restored += result.restored
            kept |= result.kept
            failed |= result.failed
    return undo.Undone(restored=tuple(restored), kept=kept, failed=failed)


def seen(folder: Path) -> dict[str, str]:
    """Every file but the journals; a draft that was left, too."""
    found: dict[str, str] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if f"{place}/{name}" != state(folder)]
        found |= {f"{place}/{name}": Path(place, name).read_text() for name in names}
        found |= {f"{place}/{name}/": "" for name in folders}
    return {path.removeprefix(f"{folder}/"): content for path, content in found.items()}


def told(folder: Path, what: str) -> str:
    try:
        if what == "apply":
            run = apply(folder)
            became = {"failed": run.failed, "rolled_back": run.rolled_back, "kept": run.kept}
        else:
            undone = take_back(folder)
            became = {"failed": undone.failed, "kept": undone.kept}
    except Exception as error:
        became = {"raised": f"{type(error).__name__}: {error}"}
    return json.dumps(became)


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        said = in_child(lambda: (0, told(Path(asked["folder"]), asked["what"])), asked["strace"])[1]  # noqa: B023
        print(said, flush=True)


if __name__ == "__main__":
    main()
