"""Plans made by hand, for scripts."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.actions import Action, Advice, Needs, Safety, Sysctl
from torchtune_sys.model.plan import Change, FileLine, Plan, Step, Value
from torchtune_sys.model.plan_context import PlanContext
from torchtune_sys.model.target import Target
from torchtune_sys.remediation.plan import files

FILE = "/etc/sysctl.d/99-torchtune-sys.conf"
SWAP = "/proc/sys/vm/swappiness"
HOSTILE = "/sys/a b'c\"d$(touch /hit)`touch /hit`\\\n$x ~ ! {a,b} * ? [x] | & ; < > ( ) # é \u202e\x1b[2J\x7f END"


def change(key: str, *steps: Step, action: Action | None = None) -> Change:
    return Change(
        key=key,
        action=action or Advice(text=key),
        rules=("a-rule",),
        why="a test",
        seen="",
        wanted="",
        safety=Safety.SAFE,
        needs=Needs.NOTHING,
        steps=steps,
    )


def plan(*changes: Change, refresh: tuple[tuple[str, ...], ...] = (), ground: PlanContext | None = None) -> Plan:
    owned = tuple(msgspec.structs.replace(file, refresh=refresh) for file in files.owned(changes, ground or PlanContext()))
    return Plan(host="a", origin="b", changes=changes, files=owned, refused=(), by_hand=())


def sysctl(path: str, value: str, target: Target | None = None, counterpart: str = "") -> Change:
    key = path.removeprefix("/proc/sys/").replace("/", ".")
    return change(
        key,
        Value(path=path, value=value, counterpart=counterpart),
        FileLine(path=FILE, key=key, text=f"{key} = {value}"),
        action=Sysctl(key=key, target=target) if target else None,
    )
