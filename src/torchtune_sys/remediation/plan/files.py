"""The whole files that torchtune-sys owns: lines of this plan, those that an earlier one left there, and what a person added.

A block of ours is a heading and the lines under it, one unless the heading counts them, none of them empty. Everything else is
somebody's own; it stays as it is, behind our blocks, and so wins over them (the script's files.sh.j2 does the same, byte for byte).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from torchtune_sys.host.secrets.values import HIDDEN
from torchtune_sys.model.actions import OwnedFile
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.plan import Change, FileLine, PlannedFile, Step
from torchtune_sys.model.plan_context import GRUB_FILE, UDEV_FILE, PlanContext
from torchtune_sys.model.steering import steers
from torchtune_sys.model.values import Missing, Why, absent_or_unrecorded

HEAD = "# Made by torchtune-sys; torchtune-sys undo takes it back."
_RULE_SIGNS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-, ")


class Present(msgspec.Struct, frozen=True, kw_only=True):
    """What a file of ours holds."""

    ours: dict[str, str]
    """Block by name."""
    by_hand: tuple[str, ...]
    """Paragraphs, in their order."""


def owned(changes: Iterable[Change], context: PlanContext) -> tuple[PlannedFile, ...]:
    """Return every file as it will be, in the order of their paths."""
    blocks: dict[str, dict[str, str]] = {}
    modes: dict[str, int] = {}
    for change in changes:
        if isinstance(change.action, OwnedFile):
            modes[change.action.path] = change.action.mode
        for step in change.steps:
            if isinstance(step, FileLine):
                blocks.setdefault(step.path, {})[name(step.key)] = block(step, change)
    return tuple(_file(path, new, modes.get(path), context) for path, new in sorted(blocks.items()))


def unread(steps: Iterable[Step], context: PlanContext) -> Missing | None:
    """Return why a file of ours that would be written cannot be read: then nobody knows which lines of it to keep."""
    for step in steps:
        present = context.files.get(step.path) if isinstance(step, FileLine) else None
        if isinstance(present, Missing) and not absent_or_unrecorded(present):
            return present
        if (
            isinstance(present, str) and "\ufffd" in present and isinstance(step, FileLine)
        ):  # what stands for bytes that are no UTF-8
            return Missing(Why.UNPARSED, step.path, "is not UTF-8 text, so its lines cannot be kept")
        if isinstance(present, str) and HIDDEN in present and isinstance(step, FileLine):
            return Missing(
                Why.UNPARSED, step.path, "holds what looks like a secret, which is not copied: move it to a file of its own"
            )
        if isinstance(present, str) and steers(present) and isinstance(step, FileLine):
            return Missing(Why.UNPARSED, step.path, "holds control characters, so its lines are not kept: take them out of it")
    return None


def stands(line: FileLine, context: PlanContext) -> bool:
    """Return whether the file holds these very lines already."""
    present = context.files.get(line.path)
    held = parse(present).ours.get(name(line.key), "") if isinstance(present, str) else ""
    return held.partition("\n")[2] == _inside(line.text)


def block(line: FileLine, change: Change) -> str:
    return headed(line.key, change.rules, change.why, line.text)


def headed(key: str, rules: tuple[str, ...], why: str, text: str) -> str:
    """Return the heading, and the lines under it."""
    text = _inside(text)
    count = text.count("\n") + 1
    about = ", ".join(rules) + (f"; {count} lines" if count > 1 else "")
    return f"# {name(key)} ({about}): {one_line(why)}\n{text}"


def name(key: str) -> str:
    r"""Return a key as it stands in a heading, where a bracket ends it.

    >>> name("vm.swappiness"), name("/sys/a (b)/x")
    ('vm.swappiness', '/sys/a \\(b)/x')
    """
    return one_line(key).replace("\\", "\\\\").replace(" (", " \\(")


def one_line(text: str) -> str:
    return " ".join(text.split())


def _inside(text: str) -> str:
    """Lines of a block, so that it ends where its heading says: comments take the place of empty lines, and of what reads as a heading."""
    lines = text.strip("\n").split("\n")
    return "\n".join("#" + line if not line or line == HEAD or heading(line) else line for line in lines)


def _file(path: str, new: dict[str, str], mode: int | None, context: PlanContext) -> PlannedFile:
    present = context.files.get(path)
    before = present if isinstance(present, str) else None
    content = composed(before or "", new)
    made = PlannedFile(path=path, before=before, content=content, refresh=refresh(path, context))
    return made if mode is None else msgspec.structs.replace(made, mode=mode)


def composed(before: str, new: dict[str, str]) -> str:
    """Return the file with our blocks in the order of their names, then what a person added."""
    found = parse(before)
    blocks = {**found.ours, **new}
    return "\n\n".join([HEAD, *(blocks[key] for key in sorted(blocks)), *found.by_hand]) + "\n"


def heading(line: str) -> tuple[str, int] | None:
    """Return the name and the number of lines of a block that begins so; None for any other line.

    >>> heading("# vm.swappiness (swappiness-high): Swaps."), heading("# limit nofile (nofile-limit-low; 4 lines): Few.")
    (('vm.swappiness', 1), ('limit nofile', 4))
    >>> heading("# by hand"), heading("# I (Jo) did this: why not")
    (None, None)
    """
    key, bracket, rest = line[2:].partition(" (")
    about, end, _ = rest.partition("):")
    rules, counted, count = about.partition("; ")
    if not (line.startswith("# ") and key and bracket and end and rules and _RULE_SIGNS.issuperset(rules)):
        return None
    if not counted:
        return key, 1
    number, _, word = count.partition(" ")
    lines = natural(number, 3)
    return (key, lines) if lines is not None and word == "lines" else None


def parse(content: str) -> Present:
    r"""Return the blocks of a file of ours, and what a person added.

    >>> parse(HEAD + "\n\n# vm.swappiness (swappiness-high): Swaps.\nvm.swappiness = 10\nvm.mine = 1\n")
    Present(ours={'vm.swappiness': '# vm.swappiness (swappiness-high): Swaps.\nvm.swappiness = 10'}, by_hand=('vm.mine = 1',))
    """
    ours: dict[str, str] = {}
    by_hand: list[str] = []
    open_, left, theirs = "", 0, ""
    for line in [*content.split("\n"), ""]:
        begun = heading(line)
        if begun is not None and begun[0] not in ours:
            open_, left = begun
            ours[open_] = line
        elif left and line and begun is None:
            ours[open_] += "\n" + line
            left -= 1
        elif line and (theirs or line != HEAD):
            theirs += "\n" * bool(theirs) + line
            left = 0
            continue
        left = left if line else 0
        if theirs.strip(" \t\n\v\f\r"):
            by_hand.append(theirs)
        theirs = ""
    return Present(ours=ours, by_hand=tuple(by_hand))


def refresh(path: str, context: PlanContext) -> tuple[tuple[str, ...], ...]:
    """Return what makes the system read a file that changed; nothing where the tool is not here (an image that is being built)."""
    if path == UDEV_FILE and "udevadm" in context.tools:
        return (("udevadm", "control", "--reload"),)
    if path == GRUB_FILE and "update-grub" in context.tools:
        return (("update-grub",),)
    if path.startswith("/etc/systemd/") and "systemctl" in context.tools:
        return (("systemctl", "daemon-reload"),)
    return ()
