"""What the failed rules ask for, as options of a tuned profile that includes another one.

Source: tuned 2.20, profiles/merger.py (options of one section are laid over those of the included profile's), plugins/plugin_*.py,
units/manager.py (a disk belongs to one section alone: the first by priority that names it).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from torchtune_sys.model.actions import KernelArgument, Safety, Sysctl, SysfsWrite
from torchtune_sys.model.plan import Change, Value
from torchtune_sys.model.plan_context import PlanContext, TunedOption, TunedProfile
from torchtune_sys.model.rule import Result
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.steering import steers
from torchtune_sys.model.target import OneOf, fits
from torchtune_sys.remediation.plan import change_requests, ownership, steps
from torchtune_sys.remediation.plan.kernel_arguments import is_plain

_SIGNS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:*+-@,|")
_CPU = {"scaling_governor": "governor", "energy_performance_preference": "energy_performance_preference", "no_turbo": "no_turbo"}
_ALIASES = {"vm.transparent_hugepages": ("vm.transparent_hugepages", "vm.transparent_hugepage")}
_ARGUMENTS = "cmdline_torchtune_sys"


class PlannedOption(msgspec.Struct, frozen=True, kw_only=True):
    section: str
    name: str
    value: str
    why: str = ""


class TunedOptions(msgspec.Struct, frozen=True, kw_only=True):
    options: tuple[PlannedOption, ...]
    left_out: tuple[str, ...] = ()
    """What a profile cannot hold, or what its owner is not tuned."""


def options(
    s: Snapshot, results: Iterable[Result], context: PlanContext, base: TunedProfile, safe_only: bool = False
) -> TunedOptions:
    """Return the options of a tuned profile, also for what planning refuses because tuned sets it: this is the way there. What our own active profile holds already is kept."""
    found: dict[tuple[str, str], PlannedOption] = {
        (own.section, own.option): PlannedOption(section=own.section, name=own.option, value=own.value)
        for own in base.own
        if not _steers(own)
    }
    left_out = [f"{own.option}: what our own profile sets holds control characters" for own in base.own if _steers(own)]
    for group in change_requests.grouped(change_requests.asked(results)):
        action = group.merged
        if not isinstance(action, Sysctl | SysfsWrite | KernelArgument) or (safe_only and action.safety is not Safety.SAFE):
            continue
        owner = ownership.system(s, context, action)
        if owner is not None:
            left_out.append(f"{group.key}: {owner[0]}")
            continue
        made = _argument(action, group, found) if isinstance(action, KernelArgument) else _value(s, context, base, group)
        if isinstance(made, str):
            left_out.append(f"{group.key}: {made}")
        else:
            for option in made:
                found[option.section, option.name] = _joined(option, found.get((option.section, option.name)))
    return TunedOptions(options=tuple(found.values()), left_out=tuple(left_out))


def _steers(option: TunedOption) -> bool:
    return any(map(steers, (option.section, option.option, option.value)))


def _joined(option: PlannedOption, before: PlannedOption | None) -> PlannedOption:
    """Join two options: what is dropped from an included section is one list."""
    if option.name != "drop" or before is None or option.value in before.value.split(","):
        return option if before is None or option.name != "drop" else before
    return msgspec.structs.replace(option, value=f"{before.value},{option.value}")


def _why(group: change_requests.RequestGroup) -> str:
    return f"{group.requests[0].why} ({', '.join(group.rules)})"


def _argument(
    action: KernelArgument, group: change_requests.RequestGroup, found: dict[tuple[str, str], PlannedOption]
) -> list[PlannedOption] | str:
    """One option holds all arguments: a second one of the same name would take the first one's place."""
    if not is_plain(action.argument):
        return "it has signs that boot loaders read differently"
    before = found.get(("bootloader", _ARGUMENTS))
    words = before.value.removeprefix("+").split() if before is not None else []
    words += [] if action.argument in words else [action.argument]
    return [PlannedOption(section="bootloader", name=_ARGUMENTS, value="+" + " ".join(words), why=_why(group))]


def _value(
    s: Snapshot, context: PlanContext, base: TunedProfile, group: change_requests.RequestGroup
) -> list[PlannedOption] | str:
    change = steps.change(s, context, group)
    if change is None:
        return []
    if not isinstance(change, Change):
        return change.reason
    value = next((step.value for step in change.steps if isinstance(step, Value)), "")
    name, value = _named(change, value, context)
    if not name:
        return "tuned sets it by a name that does not last (an NFS mount's read-ahead)"
    if (
        not _SIGNS.issuperset(name)
        or not _SIGNS.union(" ").issuperset(value)
        or (change.key.count("/") and name.startswith("sysctl."))
    ):
        return "a tuned profile cannot name it"
    if not base.is_active and _is_met(change, name, base):
        return []
    return list(_placed(name, value, base, _why(group)))


def _named(change: Change, value: str, context: PlanContext) -> tuple[str, str]:
    """``plugin.option`` (a disk's with its name: ``disk:sda.readahead``) and its value."""
    action = change.action
    if isinstance(action, Sysctl):
        return f"sysctl.{action.key}", value
    path = change.key
    leaf, parts = path.rpartition("/")[2], path.split("/")
    if path == "/sys/kernel/mm/transparent_hugepage/enabled":
        return "vm.transparent_hugepages", value
    if leaf in _CPU and path.startswith("/sys/devices/system/cpu/"):
        several = isinstance(action, SysfsWrite) and isinstance(action.target, OneOf)
        return f"cpu.{_CPU[leaf]}", "|".join(action.target.values) if several else value  # type: ignore[union-attr]
    if path.startswith("/sys/class/bdi/"):
        disk = context.device_names.get(parts[4], "")
        return (f"disk:{disk}.readahead", value) if disk else ("", "")
    if path.startswith("/sys/block/") and parts[4:] in (["queue", "scheduler"], ["queue", "read_ahead_kb"]):
        return f"disk:{parts[3]}.{'elevator' if leaf == 'scheduler' else 'readahead'}", value
    return f"sysfs.{path}", value


def _same(name: str, base: TunedProfile) -> Iterator[TunedOption]:
    """Yield the included profile's options for the same setting."""
    names = _ALIASES.get(name, (name, name.removeprefix("sysctl.")) if name.startswith("sysctl.vm.") else (name,))
    yield from (option for option in base.options if option.option in names)


def _is_met(change: Change, name: str, base: TunedProfile) -> bool:
    held = [option.value for option in _same(name, base)]
    target = change.action.target if isinstance(change.action, Sysctl | SysfsWrite) else None
    return bool(held) and target is not None and fits(target, held[-1].lstrip("<>="))


def _placed(name: str, value: str, base: TunedProfile, why: str) -> Iterator[PlannedOption]:
    plugin, _, option = name.partition(".")
    if plugin.startswith("disk:"):
        yield from _disk(plugin.partition(":")[2], option, value, base, why)
        return
    counterpart = steps.COUNTERPARTS.get(option, "")
    for other in _same(f"sysctl.{counterpart}", base) if counterpart else ():
        yield PlannedOption(section=other.section, name="drop", value=other.option.partition(".")[2], why=why)
    same = tuple(_same(name, base))
    for held in same:
        yield PlannedOption(section=held.section, name=held.option.partition(".")[2], value=value, why=why)
    if not same:
        yield PlannedOption(section=plugin, name=option, value=value, why=why)


def _disk(disk: str, option: str, value: str, base: TunedProfile, why: str) -> Iterator[PlannedOption]:
    """Yield a section of its own, that comes first; what the included profile sets for every disk is said there again."""
    section = f"disk.{disk}"
    yield PlannedOption(section=section, name="type", value="disk")
    yield PlannedOption(section=section, name="devices", value=disk)
    yield PlannedOption(section=section, name="priority", value="-10")
    for other in base.options:
        if other.section == "disk" and other.option != f"disk.{option}" and not _steers(other):
            yield PlannedOption(section=section, name=other.option.partition(".")[2], value=other.value)
    yield PlannedOption(section=section, name=option, value=value, why=why)
