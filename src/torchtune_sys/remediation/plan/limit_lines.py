"""Find the lines of limits.conf(5) that win over ours: pam_limits takes a user's line before a group's, a group's before everybody's (``*``), and of equal
ones the last that it reads."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Limit
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.plan_context import LimitLine, PlanContext
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, known

_UNLIMITED = ("unlimited", "infinity", "-1")
_ROOT, _ALL = "root", "*"


def winners(context: PlanContext, action: Limit) -> Iterator[LimitLine]:
    """Yield the lines that hold somebody to less than what is asked for, whatever our file says."""
    for line in context.limit_lines:
        equal = line.who in (_ALL, _ROOT)  # our file has lines for these two
        if line.item == action.item and (line.is_after or not equal) and not _does(action, line.value):
            yield line


def _does(action: Limit, value: str) -> bool:
    if value in _UNLIMITED:
        return True
    number, wanted = natural(value), natural(action.target)
    return number is None or (wanted is not None and number >= wanted)  # of what is no number pam_limits takes no notice


def words(line: LimitLine) -> str:
    """Return the line, and whom it is for."""
    who = "all but root" if line.who == _ALL else f"group {line.who[1:]}" if line.who.startswith("@") else line.who
    return f"{line.source} ({line.kind} {line.item} {line.value}) wins over it for {who}"


def of_judged(s: Snapshot, context: PlanContext, action: Limit) -> LimitLine | None:
    """Return the first line that leaves the change without effect for the user who was judged, or who called sudo, or for all."""
    users = set() if isinstance(s.session, Missing) else {known(s.session.user, ""), known(s.session.sudo_user, "")}

    def holds(line: LimitLine) -> bool:
        return line.who == _ALL or line.who in users or bool((users - {_ROOT}) & {*line.members})  # no group's line reaches root

    return next(filter(holds, winners(context, action)), None)
