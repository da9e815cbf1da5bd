"""The whole files that torchtune-sys owns: lines of this plan, and those that an earlier one left there."""

from __future__ import annotations

from collections.abc import Iterable

from torchtune_sys.model.actions import Action, Limit, ModuleOption, Sysctl
from torchtune_sys.model.ground import GRUB_FILE, LIMITS_FILE, MODPROBE_FILE, SYSCTL_FILE, UDEV_FILE, Ground
from torchtune_sys.model.plan import Change, File, Line
from torchtune_sys.model.values import Missing, Why

HEAD = "# Made by torchtune-sys; torchtune-sys undo takes it back."


def owned(changes: Iterable[Change], ground: Ground) -> tuple[File, ...]:
    """Every file as it will be, in the order of their paths."""
    blocks: dict[str, dict[str, str]] = {}
    for change in changes:
        for step in change.steps:
            if isinstance(step, Line):
                blocks.setdefault(step.path, {})[step.key] = block(step, change)
    return tuple(_file(path, new, ground) for path, new in sorted(blocks.items()))


def unread(action: Action, ground: Ground) -> Missing | None:
    """Why a file of ours that the action would write cannot be read: then nobody knows which lines of it to keep."""
    home = {Sysctl: SYSCTL_FILE, Limit: LIMITS_FILE, ModuleOption: MODPROBE_FILE}.get(type(action), getattr(action, "path", ""))
    present = ground.files.get(home, "")
    return present if isinstance(present, Missing) and present.why not in (Why.ABSENT, Why.NOT_RECORDED) else None


def stands(line: Line, ground: Ground) -> bool:
    """Whether the file holds these very lines already."""
    present = ground.files.get(line.path)
    held = parse(present).get(one_line(line.key), "") if isinstance(present, str) else ""
    return held.partition("\n")[2] == line.text


def block(line: Line, change: Change) -> str:
    rules = ", ".join(change.rules)
    return f"# {one_line(line.key)} ({rules}): {one_line(change.why)}\n{line.text}"


def one_line(text: str) -> str:
    return " ".join(text.split())


def _file(path: str, new: dict[str, str], ground: Ground) -> File:
    present = ground.files.get(path)
    before = present if isinstance(present, str) else None
    kept = parse(before) if before is not None else {}
    blocks = {**kept, **{one_line(key): text for key, text in new.items()}}
    content = "\n\n".join([HEAD, *(blocks[key] for key in sorted(blocks))]) + "\n"
    return File(path=path, before=before, content=content, refresh=refresh(path, ground))


def parse(content: str) -> dict[str, str]:
    r"""The blocks of a file of ours by their keys; what a person added is kept under its own text.

    >>> parse(HEAD + "\n\n# vm.swappiness (swappiness-high): Swaps.\nvm.swappiness = 10\n")
    {'vm.swappiness': '# vm.swappiness (swappiness-high): Swaps.\nvm.swappiness = 10'}
    >>> parse(HEAD + "\n# by hand\nvm.panic_on_oom = 1\n")
    {'by hand': '# by hand\nvm.panic_on_oom = 1'}
    """
    found = {}
    for text in content.split("\n\n"):
        block = text.strip("\n")
        while block.startswith(HEAD + "\n"):
            block = block[len(HEAD) + 1 :]
        first = block.partition("\n")[0]
        if block.strip(" \t\n\v\f\r") and block != HEAD:
            found[first[2:].partition(" (")[0] if first.startswith("# ") else first] = block
    return found


def refresh(path: str, ground: Ground) -> tuple[tuple[str, ...], ...]:
    """What makes the system read a file that changed; nothing where the tool is not here (an image that is being built)."""
    if path == UDEV_FILE and "udevadm" in ground.tools:
        return (("udevadm", "control", "--reload"),)
    if path == GRUB_FILE and "update-grub" in ground.tools:
        return (("update-grub",),)
    if path.startswith("/etc/systemd/") and "systemctl" in ground.tools:
        return (("systemctl", "daemon-reload"),)
    return ()
