"""Make a Change with its primitive steps on this host from one merged action."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchtune_sys.model.actions import (
    Action,
    Advice,
    EnvironmentVariable,
    Install,
    KernelArgument,
    Limit,
    ModuleOption,
    NvmlSetting,
    OwnedFile,
    Service,
    Sysctl,
    SysfsWrite,
)
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.sysctl import Assignment
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.plan import Change, CommandStep, FileLine, Refusal, Step, Unit, Value
from torchtune_sys.model.plan_context import GRUB_FILE, LIMITS_FILE, MODPROBE_FILE, SYSCTL_FILE, PlanContext, UnitFacts
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.steering import steers
from torchtune_sys.model.target import AtLeast, AtMost, Exactly, OneOf, Target, choice, fits, whole
from torchtune_sys.model.values import Missing, Why, absent, known
from torchtune_sys.remediation.plan import persistence, precedence
from torchtune_sys.remediation.plan.change_requests import RequestGroup
from torchtune_sys.remediation.plan.kernel_arguments import in_the_way, is_plain, stands, way
from torchtune_sys.remediation.plan.units import HARD_NOFILE
from torchtune_sys.rules.sysctl.policy import kernel_default, proc

COUNTERPARTS = {
    "vm.dirty_bytes": "vm.dirty_ratio",
    "vm.dirty_ratio": "vm.dirty_bytes",
    "vm.dirty_background_bytes": "vm.dirty_background_ratio",
    "vm.dirty_background_ratio": "vm.dirty_background_bytes",
    "vm.overcommit_kbytes": "vm.overcommit_ratio",
    "vm.overcommit_ratio": "vm.overcommit_kbytes",
}
"""Writing one makes the kernel show 0 for the other (Documentation/admin-guide/sysctl/vm.rst)."""


def value_paths(asked: Iterable[Action]) -> Iterator[str]:
    for action in asked:
        if isinstance(action, SysfsWrite):
            yield action.path


def own_files(asked: Iterable[Action]) -> Iterator[str]:
    for action in asked:
        if isinstance(action, OwnedFile):
            yield action.path
            yield precedence.edited(action.path)


UNIT_DIRS = (
    *(
        "/etc/systemd/system",
        "/run/systemd/system",
        "/usr/local/lib/systemd/system",
        "/usr/lib/systemd/system",
        "/lib/systemd/system",
    ),
    *("/run/systemd/generator.early", "/run/systemd/generator", "/run/systemd/generator.late"),
)
"""Where systemd finds units (systemd.unit(5)), those made from scripts in /etc/init.d included."""


def unit_files(action: Action) -> Iterator[str]:
    """Yield the places where the unit of a service may be defined."""
    if isinstance(action, Service):
        name = action.unit if "." in action.unit else f"{action.unit}.service"
        stem, at, rest = name.partition("@")
        file = f"{stem}@.{rest.rpartition('.')[2]}" if at else name
        yield from (f"{folder}/{file}" for folder in UNIT_DIRS)


def _unit(s: Snapshot, context: PlanContext, action: Service) -> tuple[Step, ...] | str:
    """Return the steps for a unit: a recording holds what the rules looked at, which units are not."""
    if action.state == "restarted":
        return "a restart is a person's decision"
    looked = [context.files.get(path, Missing(Why.NOT_RECORDED, path)) for path in unit_files(action)]
    if any(isinstance(found, Missing) and found.detail.endswith(" /dev/null") for found in looked):
        from shlex import quote

        return f"{action.unit} is masked: somebody does not want it here (systemctl unmask {quote(action.unit)})"
    if all(absent(found) for found in looked) and s.origin.partition(" ")[0] in ("live", "root"):
        return f"{action.unit} is not installed here"
    wanted = action.state == "enabled"
    if wanted and _is_static(looked):
        return f"the unit {action.unit} has no [Install] section: systemctl enable does nothing, something else starts it"
    if context.units.get(action.unit) == UnitFacts(enabled=wanted, active=wanted):
        return f"{action.unit} is {'enabled and runs' if wanted else 'disabled and stopped'} already, but the finding remains"
    return (Unit(unit=action.unit, enabled=wanted),)


def _is_static(looked: list[Fact[str]]) -> bool:
    """Return whether the file that counts, the first one, says nothing of when the unit is to be started (systemd.unit(5))."""
    text = next((found for found in looked if not absent(found)), "")
    return isinstance(text, str) and "[Service]" in text and "[Install]" not in text


def chosen(target: Target, running: str) -> str:
    """Return the value to write. A directed target keeps what is better already; of several numbers it moves the last.

    >>> chosen(AtLeast(16777216), "4096 131072 6291456"), chosen(AtMost(10), "60"), chosen(OneOf(("madvise", "always")), "never")
    ('4096 131072 16777216', '10', 'madvise')
    >>> chosen(AtMost(10), "1"), chosen(OneOf(("0", "1")), "1")
    ('1', '1')
    """
    words = running.split()
    match target:
        case Exactly(value=value):
            return value
        case OneOf(values=values):
            return running if running in values else values[0]
        case AtLeast(value=bound) | AtMost(value=bound):
            if len(words) > 1:
                return " ".join([*words[:-1], words[-1] if fits(target, words[-1]) else str(bound)])
            return running if fits(target, running) else str(bound)


def _made(s: Snapshot, context: PlanContext, key: str, action: Action) -> tuple[Step, ...] | str:
    """Return the steps on this host, or why there are none."""
    match action:
        case Sysctl():
            return _sysctl(s, action)
        case SysfsWrite():
            return _sysfs(s, context, action)
        case OwnedFile(path=path, content=content):
            return (FileLine(path=path, key=key, text=content.rstrip("\n")),)
        case Limit():
            return _limit(s, action)
        case Service():
            return _unit(s, context, action)
        case ModuleOption(module=module, option=option):
            return (FileLine(path=MODPROBE_FILE, key=key, text=f"options {module} {option}"),)
        case KernelArgument(argument=argument):
            return _argument(s, context, key, argument)
        case Install() | NvmlSetting() | EnvironmentVariable() | Advice():  # never asked for: actions.doable says no
            return "torchtune-sys has no way to do it"


def change(s: Snapshot, context: PlanContext, group: RequestGroup) -> Change | Refusal | None:
    """Return the change; a Refusal where this host lacks what would be written; None where nothing is left to do."""
    action = group.merged
    assert not isinstance(action, str)
    made = _made(s, context, group.key, action)
    if not isinstance(made, str) and any(steers(text) for step in made for text in _texts(step)):
        made = "its name or its value holds control characters, which no kernel setting has"
    if isinstance(made, str):
        return Refusal(key=group.key, rules=group.rules, reason=made, way=_way(context, group, made))
    if not made:
        return None
    shown = _values(s, group, action)
    if shown is None:
        return None
    seen, wanted = shown
    return Change(
        key=group.key,
        action=action,
        rules=group.rules,
        why=group.requests[0].why,
        seen=seen,
        wanted=wanted,
        safety=action.safety,
        needs=action.needs,
        steps=made,
        but=action.but,
        later=tuple(precedence.overrides(s, context, action, made)),
        effect=precedence.effect(action),
        disrupts=isinstance(action, Service),
    )


_SYSCTLS = ("vm.", "kernel.", "net.", "fs.")


def _values(s: Snapshot, group: RequestGroup, action: Action) -> tuple[str, str] | None:
    """Return what this very setting is, and should be; None where only another one is wrong, by which this one would have to change."""
    requests = group.requests
    if not isinstance(action, Sysctl) or not all(
        request.subject.startswith(_SYSCTLS) and request.subject != action.key for request in requests
    ):
        return "; ".join(dict.fromkeys(request.seen for request in requests)), requests[0].wanted or precedence.value_text(action)
    running = _running(s, action.key)
    if isinstance(action.target, AtLeast | AtMost) and fits(action.target, running):
        return None
    return running, precedence.value_text(action)


def _running(s: Snapshot, key: str) -> str:
    found = None if isinstance(s.sysctl, Missing) else s.sysctl.settings.get(key)
    return "" if found is None else known(found.running, "")


def _texts(step: Step) -> tuple[str, ...]:
    """Everything of a step that is written, or names where."""
    match step:
        case Value(path=path, value=value, counterpart=counterpart):
            return path, value, counterpart
        case FileLine(path=path, key=key, text=text):
            return path, key, text
        case Unit(unit=unit):
            return (unit,)
        case CommandStep(argv=argv, undo=undo):
            return (*argv, *undo)


def _sysctl(s: Snapshot, action: Sysctl) -> tuple[Step, ...] | str:
    if isinstance(s.sysctl, Missing):
        return str(s.sysctl)
    found = s.sysctl.settings.get(action.key)
    if found is None or absent(found.running):
        return f"this kernel has no {action.key}"
    if isinstance(found.running, Missing):
        return str(found.running)
    target = _above_default(s, action)
    if isinstance(target, AtLeast | AtMost) and not _numbers(found.running):
        return f"{action.key} holds {found.running[:60]!r}, which is not a number"
    value = _configured(target, found.systemd) or chosen(target, found.running)
    counterpart = COUNTERPARTS.get(action.key, "")
    return (
        _value(proc(action.key), value, {proc(action.key): found.running}, proc(counterpart) if counterpart else ""),
        FileLine(path=SYSCTL_FILE, key=action.key, text=f"{action.key} = {value}"),
    )


def _value(path: str, value: str, now: dict[str, str], counterpart: str = "") -> Value:
    """Return the step for one path, or for all that match a pattern."""
    blanks_normalised = {place: " ".join(seen.split()) for place, seen in now.items()}
    return Value(path=path, value=value, is_pattern="*" in path, now=blanks_normalised, counterpart=counterpart)


def _numbers(text: str) -> bool:
    try:
        return bool([whole(word) for word in text.split()])
    except ValueError:
        return False


def _above_default(s: Snapshot, action: Sysctl) -> Target:
    """At least so much is never less than what the kernel would set by itself at the next start."""
    if not isinstance(action.target, AtLeast):
        return action.target
    default = kernel_default(s, action.key)
    return action.target if default is None else AtLeast(max(action.target.value, default))


def _configured(target: Target, found: Fact[Assignment]) -> str:
    """Return what a file sets at boot already, if that would do: a bound of ours beside it would lower a better value. Else empty."""
    value = "" if isinstance(found, Missing) else " ".join(found.value.split())
    if " " in value:
        return value if isinstance(target, AtLeast | AtMost) and _numbers(value) and chosen(target, value) == value else ""
    return value if value and fits(target, value) else ""


def _sysfs(s: Snapshot, context: PlanContext, action: SysfsWrite) -> tuple[Step, ...] | str:
    there = context.values.get(action.path, Missing(Why.NOT_RECORDED, action.path, "was not looked at"))
    if isinstance(there, Missing):
        return f"this host has no {action.path}" if absent(there) else str(there)
    values = []
    then = set()
    for path, value in there.items():
        if isinstance(value, Missing):
            return str(value)
        current, offered = choice(value)
        wanted = offered_value(action.target, current, offered)
        if wanted is None:
            return f"{path} offers {' '.join(offered)}, not {action.target}"
        then.add(wanted)
        if wanted != current:
            values.append(_value(path, wanted, {path: current}))
    if not values:
        return ()
    if len(then) > 1:  # what is better already, or another accepted word, keeps its own value, now and after a reboot
        lasts = {line.key: line for value in values for line in persistence.lines(s, context, value.path, value.value)}
        return (*values, *lasts.values())
    written = _value(action.path, values[0].value, {path: now for value in values for path, now in value.now.items()})
    return (written, *persistence.lines(s, context, action.path, written.value))


def offered_value(target: Target, current: str, offered: tuple[str, ...]) -> str | None:
    """Return the value to write, among what the file offers; None where it offers none that would do."""
    if fits(target, current):
        return current
    if offered and isinstance(target, OneOf):
        return next((value for value in target.values if value in offered), None)
    value = chosen(target, current)
    return value if not offered or value in offered else None


def _limit(s: Snapshot, action: Limit) -> tuple[Step, ...] | str:
    limits = {} if isinstance(s.limits, Missing) else s.limits.limits
    found = limits.get(action.item)
    if found is None or isinstance(found, Missing):
        return f"the present {action.item} limit could not be read" + (f": {found}" if found is not None else "")
    wanted = None if action.target == "unlimited" else int(action.target)
    soft, hard = _higher(found.soft, wanted), _higher(found.hard, wanted)
    if action.item == "nofile":
        most = _nr_open(s)
        # Others may log in with more than this session has; what systemd gives to all must not be lowered for them.
        hard = _higher(hard, HARD_NOFILE if most is None else min(HARD_NOFILE, most))
        if most is not None and any(value is None or value > most for value in (soft, hard)):
            return f"fs.nr_open is {most}: a limit on open files beyond it cannot be set, and pam_limits then lets nobody log in"
    rows = [
        f"{who} {kind} {action.item} {_limit_word(action.item, value)}"
        for who in ("*", "root")  # "*" does not reach root (limits.conf(5))
        for kind, value in (("soft", soft), ("hard", hard))
    ]
    return (FileLine(path=LIMITS_FILE, key=f"limit {action.item}", text="\n".join(rows)),)


def _nr_open(s: Snapshot) -> int | None:
    """Return the most that RLIMIT_NOFILE may be, root's too (setrlimit(2), EPERM)."""
    setting = None if isinstance(s.sysctl, Missing) else s.sysctl.settings.get("fs.nr_open")
    running = "" if setting is None else known(setting.running, "")
    return natural(running)


def _higher(present: int | None, wanted: int | None) -> int | None:
    return None if present is None or wanted is None else max(present, wanted)


_IN_KIB = ("as", "core", "data", "fsize", "memlock", "rss", "stack")
"""limits.conf(5) counts these in KiB, the kernel in bytes."""


def _limit_word(item: str, value: int | None) -> str:
    return "unlimited" if value is None else str(-(-value // 1024) if item in _IN_KIB else value)


def _argument(s: Snapshot, context: PlanContext, key: str, argument: str) -> tuple[Step, ...] | str:
    if not is_plain(argument):
        return f"boot loaders read {argument!r} differently"
    if context.image == "rpm-ostree" and ("rpm-ostree" in context.tools or "bootc" not in context.tools):
        return (
            CommandStep(
                argv=("rpm-ostree", "kargs", f"--append-if-missing={argument}"),
                undo=("rpm-ostree", "kargs", f"--delete-if-present={argument}"),
            ),
        )
    if context.image or context.boot_way_first:
        return _NO_TOOL
    if "grubby" in context.tools:
        if not stands(argument, context) and (reason := in_the_way(s, argument, context)):
            return reason
        return (
            CommandStep(
                argv=("grubby", "--update-kernel=ALL", f"--args={argument}"),
                undo=("grubby", "--update-kernel=ALL", f"--remove-args={argument}"),
            ),
        )
    if "update-grub" in context.tools:
        return (FileLine(path=GRUB_FILE, key=key, text=f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {argument}"'),)
    return _NO_TOOL


_NO_TOOL = "there is no tool here that can add and remove kernel arguments (grubby, update-grub, rpm-ostree)"


def _way(context: PlanContext, group: RequestGroup, reason: str) -> str:
    action = group.merged
    if isinstance(action, KernelArgument) and reason is _NO_TOOL:
        return way(action.argument, context)
    return f"torchtune-sys explain {group.rules[0]}"
