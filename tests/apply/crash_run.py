"""One run that applies a fixed plan, or undoes what there is: the product's own session."""

from __future__ import annotations

from crash_machine import FLAG, KEPT, OLD

from torchtune_sys.model.actions import Advice, Needs, Safety
from torchtune_sys.model.plan import Change, CommandStep, FileLine, Plan, PlannedFile, Step, Value
from torchtune_sys.remediation.apply import journal, session, undo

DROP_IN = "/etc/systemd/system/crash-test.service.d/90-torchtune-sys.conf"
TMPFILES = "/etc/tmpfiles.d/99-torchtune-sys.conf"


def change(key: str, *steps: Step) -> Change:
    return Change(
        key=key,
        action=Advice(text=key),
        rules=(key,),
        why="a test",
        seen="",
        wanted="",
        safety=Safety.SAFE,
        needs=Needs.NOTHING,
        steps=steps,
    )


CHANGES = (
    change(
        "map",
        Value(path="/proc/sys/vm/max_map_count", value="65530"),
        FileLine(path=KEPT, key="map", text="vm.max_map_count = 65530"),
    ),
    change(
        "dirty",
        Value(path="/proc/sys/vm/dirty_ratio", value="5", counterpart="/proc/sys/vm/dirty_bytes"),
        FileLine(path=KEPT, key="dirty", text="vm.dirty_ratio = 5"),
    ),
    change(
        "thp",
        Value(path="/sys/kernel/mm/transparent_hugepage/enabled", value="madvise"),
        FileLine(path=TMPFILES, key="thp", text="w x"),
    ),
    change("drop-in", FileLine(path=DROP_IN, key="drop-in", text="[Service]\nLimitMEMLOCK=infinity")),
    change("flag", CommandStep(argv=("touch", FLAG), undo=("rm", "-f", FLAG))),
)
FILES = (
    PlannedFile(path=KEPT, before=OLD.decode(), content="# new\nvm.max_map_count = 65530\nvm.dirty_ratio = 5\n"),
    PlannedFile(path=DROP_IN, before=None, content="[Service]\nLimitMEMLOCK=infinity\n"),
    PlannedFile(path=TMPFILES, before=None, content="w x\n"),
)
PLAN = Plan(host="crash", origin="live", changes=CHANGES, files=FILES, refused=(), by_hand=())
MOMENT = session.Moment(version="test", time="2026-01-01T00:00:00Z", boot_id="one")


def main(what: str) -> int:
    if what == "apply":
        run = session.run(PLAN, lambda failed: FILES, lambda: False, MOMENT)
        return int(bool(run.failed or run.rolled_back))
    status = 0
    for number in reversed(journal.numbers(journal.STATE)):
        found = journal.load(journal.STATE, number)
        if found.is_open:
            result = undo.undo(found, same_boot=True)
            status |= bool(result.kept or result.failed)
    return int(status)
