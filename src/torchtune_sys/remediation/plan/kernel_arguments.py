"""The kernel arguments that the failed rules ask for, whatever boot loader the host has."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from torchtune_sys.model.actions import KernelArgument, Safety
from torchtune_sys.model.plan import Refusal
from torchtune_sys.model.plan_context import PlanContext
from torchtune_sys.model.rule import Result
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, known
from torchtune_sys.remediation.plan import change_requests, ownership

_SIGNS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.,:=/+@%")


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    argument: str
    rules: tuple[str, ...]
    why: str


def is_plain(argument: str) -> bool:
    """Return whether every boot loader and every shell takes it as one word; nothing else is ever written.

    >>> is_plain("iommu=pt"), is_plain('x="a b"'), is_plain("$(reboot)"), is_plain("")
    (True, False, False, False)
    """
    return bool(argument) and argument[0] not in "-=" and _SIGNS.issuperset(argument)


def stands(argument: str, context: PlanContext) -> bool:
    """Return whether every entry of the boot loader has it already."""
    return bool(context.boot_entries) and all(argument in words for words in context.boot_entries)


def in_the_way(s: Snapshot, argument: str, context: PlanContext) -> str:
    """Return what grubby would not only add to, and its inverse not bring back (grubby(8): a new value replaces the old ones)."""
    name = argument.partition("=")[0]
    running = () if isinstance(s.system, Missing) else known(s.system.cmdline, ())
    entries = context.boot_entries or (running,)
    for word in (word for words in entries for word in words):
        if word.partition("=")[0] == name and word != argument:
            return f"the next boot has {word}, which grubby would replace: give both by hand"
    if any(argument in words for words in context.boot_entries):
        return f"some boot entries have {argument} and some do not: add it to all of them by hand"
    return ""


_MKCONFIG = {"grub2-mkconfig": "/boot/grub2/grub.cfg", "grub-mkconfig": "/boot/grub/grub.cfg"}
_PRINTS = "torchtune-sys generate kernel-args --unsafe --format {} prints the commands that add and remove it"
_DEFAULTS = "GRUB_CMDLINE_LINUX in /etc/default/grub"


def way(argument: str, context: PlanContext) -> str:
    """Say how a person gives the argument to a boot loader that no step of ours is for. Sources: transactional-update(8), sdbootutil(8),
    grub-mkconfig(8), kernel-install(8), the manuals of kernelstub and bootc (kargs.d)."""
    if context.image:
        return f'kargs = ["{argument}"] in a file of /usr/lib/bootc/kargs.d of the image, or the image\'s own tool'
    if context.boot_way_first:
        return context.boot_way.replace("ARGUMENT", argument)
    if "sdbootutil" in context.tools:
        return f"add {argument} to /etc/kernel/cmdline, then: sudo sdbootutil update-all-entries"
    if "transactional-update" in context.tools:
        return f"add {argument} to {_DEFAULTS}, then: sudo transactional-update grub.cfg, and reboot"
    if "kernelstub" in context.tools:
        return f"{_PRINTS.format('kernelstub')}: sudo kernelstub --add-options {argument}"
    for tool, made in _MKCONFIG.items():
        if tool in context.tools:
            return f"add {argument} to {_DEFAULTS}, then: sudo {tool} -o {made}"
    if context.boot_way:
        return context.boot_way.replace("ARGUMENT", argument)
    if "bootctl" in context.tools:
        return f"{_PRINTS.format('systemd-boot')}: {argument} in /etc/kernel/cmdline and in the options of the files in /boot/loader/entries"
    return f"add {argument} to the kernel's arguments in the boot loader's own configuration"


def arguments(
    s: Snapshot, results: Iterable[Result], context: PlanContext, safe_only: bool = False
) -> tuple[tuple[Argument, ...], tuple[Refusal, ...]]:
    """Return what to boot with, and what somebody else owns or no boot loader could be told."""
    found, refused = [], []
    for group in change_requests.grouped(change_requests.asked(results)):
        if not any(isinstance(request.action, KernelArgument) for request in group.requests):
            continue
        action = group.merged
        owned = ownership.refusal(s, context, group.key, group.rules, action)
        if owned is not None:
            refused.append(owned)
        elif not isinstance(action, KernelArgument) or not is_plain(action.argument):
            reason = action if isinstance(action, str) else "it has signs that boot loaders read differently"
            refused.append(Refusal(key=group.key, rules=group.rules, reason=reason, way="add it by hand"))
        elif not safe_only or action.safety is Safety.SAFE:
            found.append(Argument(key=group.key, argument=action.argument, rules=group.rules, why=group.requests[0].why))
    return tuple(found), tuple(refused)
