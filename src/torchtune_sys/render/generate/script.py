"""A plan as one bash script that needs no Python: the same values, and the same files byte for byte."""

from __future__ import annotations

from typing import Any

import msgspec

from torchtune_sys import __version__
from torchtune_sys.model.actions import Action, Sysctl, SysfsWrite
from torchtune_sys.model.plan import Change, CommandStep, FileLine, Plan, Unit, Value
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.steering import disarmed, no_command
from torchtune_sys.model.target import AtLeast, AtMost, OneOf
from torchtune_sys.model.values import Missing, known
from torchtune_sys.remediation.plan import files
from torchtune_sys.remediation.plan.files import one_line
from torchtune_sys.render.layout import clean

_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-/.:,+@%")
_PLAIN = frozenset(map(chr, range(0x20, 0x7F))) - frozenset("'\\$`~!") | {"\n"}
"""What stands in single quotes as it is, and without shellcheck's doubts."""


class MadeFor(msgspec.Struct, frozen=True, kw_only=True):
    """What a host is known by: its values were chosen for this. None: not known, and not asked."""

    system: str = ""
    """ID and VERSION_ID of os-release."""
    cpus: int | None = None
    memory_mib: int | None = None
    nvidia_gpus: int | None = None


def made_for(s: Snapshot) -> MadeFor:
    os_ = None if isinstance(s.system, Missing) else known(s.system.os, None)
    online = None if isinstance(s.cpu, Missing) else known(s.cpu.online, None)
    memory = None if isinstance(s.memory, Missing) else known(s.memory.total_bytes, None)
    gpus = None if isinstance(s.driver, Missing) else known(s.driver.nvidia_devices, None)
    return MadeFor(
        system="" if os_ is None else one_line(f"{os_.id} {os_.version}"),
        cpus=None if online is None else len(online),
        memory_mib=None if memory is None else memory >> 20,
        nvidia_gpus=None if gpus is None else len(gpus),
    )


def script(plan: Plan, made_for: MadeFor | None = None) -> str:
    """Return the plan as a script; ``made_for``: the host that alone it is for, unless it is forced."""
    from torchtune_sys.render.templates import environment

    template = environment({"quote": quote, "comment": clean, "path": path}).get_template("script/provision.sh.j2")
    steps = [(change, step) for change in plan.changes for step in change.steps]
    return template.render(
        version=__version__,
        host=plan.host or "a host without a name",
        origin=plan.origin,
        head=files.HEAD,
        changes=plan.changes,
        made_for=made_for if plan.changes and made_for != MadeFor() else None,
        values=[_value(change, step) for change, step in steps if isinstance(step, Value)],
        lines=[_line(change, step) for change, step in steps if isinstance(step, FileLine)],
        files=plan.files,
        units=[step for _, step in steps if isinstance(step, Unit)],
        commands=[step for _, step in steps if isinstance(step, CommandStep)],
    )


def _value(change: Change, step: Value) -> dict[str, Any]:
    return {
        "key": files.one_line(change.key),
        "direction": direction(change.action),
        "value": files.one_line(step.value),
        "counterpart": step.counterpart,
        "path": step.path,
        "is_pattern": step.is_pattern,
    }


def direction(action: Action) -> str:
    """Return which way the target points: a host whose value is better already, or as good, keeps it."""
    match action.target if isinstance(action, Sysctl | SysfsWrite) else None:
        case AtLeast():
            return "at-least"
        case AtMost():
            return "at-most"
        case OneOf(values=values):
            return f"one-of {' '.join(values)}"
        case _:
            return "exactly"


def _line(change: Change, step: FileLine) -> dict[str, str]:
    return {
        "path": step.path,
        "key": files.name(step.key),
        "change": files.one_line(change.key),
        "text": files.block(step, change),
    }


def quote(text: str) -> str:
    r"""Return one word of bash that is ``text``, whatever is in it, written in visible ASCII alone (and line breaks).

    >>> print(quote("/sys/a"), quote("two words"), quote("it's $(x)"), quote("\x1b\u202e"), quote("x\n::error::"))
    /sys/a 'two words' $'it\'s $(x)' $'\x1b\xe2\x80\xae' $'x\n::error::'
    """
    if text and _BARE.issuperset(text):
        return text
    inert = disarmed(text) == text and no_command(text) == text
    if inert and _PLAIN.issuperset(text):
        return f"'{text}'"
    # bash has no NUL in a word; a path with one names nothing, and neither does this
    word = "$'" + "".join(map(_escaped, text.replace("\0", "\ufffd"))) + "'"
    return word if inert else word.replace("\n", "\\n").replace("##", "#\\x23")


def _escaped(sign: str) -> str:
    if sign in "\\'":
        return "\\" + sign
    if sign == "\n" or " " <= sign <= "~":
        return sign
    return "".join(
        f"\\x{byte:02x}" for byte in sign.encode("utf-8", "surrogateescape" if "\udc80" <= sign <= "\udcff" else "replace")
    )


def path(value: str, is_pattern: bool) -> str:
    """Return a quoted path, the stars of a pattern left to the shell.

    >>> path("/sys/a b/policy*/x", True), path("/sys/a*", False)
    ("'/sys/a b/policy'*/x", "'/sys/a*'")
    """
    return "*".join(quote(part) if part else "" for part in value.split("*")) if is_pattern else quote(value)
