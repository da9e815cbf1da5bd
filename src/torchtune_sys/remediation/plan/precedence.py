"""Find what may override a change later, which file takes precedence, and what running jobs notice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from torchtune_sys.model.actions import Action, KernelArgument, Limit, ModuleOption, Needs, OwnedFile, Service, Sysctl, SysfsWrite
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.sysctl import Assignment, Setting
from torchtune_sys.model.numbers import counted, natural
from torchtune_sys.model.plan import Change, FileLine, Step, Value
from torchtune_sys.model.plan_context import GRUB_FILE, SYSCTL_FILE, TMPFILES_FILE, UDEV_FILE, BootSetting, PlanContext
from torchtune_sys.model.run import CommentOut, DisableUnit, LostAtBoot
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.steering import steers
from torchtune_sys.model.target import Target, fits
from torchtune_sys.model.values import Missing, absent
from torchtune_sys.remediation.plan import files, limit_lines
from torchtune_sys.rules.sysctl.policy import proc

_KEEP = "begin its value with $GRUB_CMDLINE_LINUX there"
_IN_INITRAMFS = "where the initramfs holds the module, it holds the options of before, too"
_INITRAMFS = {
    "transactional-update": "transactional-update initrd",
    "update-initramfs": "update-initramfs -u -k all",
    "mkinitcpio": "mkinitcpio -P",
    "dracut": "dracut --force --regenerate-all",
}
"""Program → the command that makes it anew for each kernel; of several the first, which calls the others. Sources: their manuals."""


def _initramfs(context: PlanContext) -> tuple[str, ...]:
    return () if context.image else tuple(command for tool, command in _INITRAMFS.items() if tool in context.tools)[:1]


def value_text(action: Action) -> str:
    """Return the target in words, where the evidence gave none."""
    if isinstance(action, Sysctl | SysfsWrite):
        return str(action.target)
    return action.target if isinstance(action, Limit) else ""


_TOLD_LINES = 4
_AFTER = {
    UDEV_FILE: f"a rule in a file after {UDEV_FILE.rpartition('/')[2]} that sets the same attribute wins over it",
    GRUB_FILE: f"a file after {GRUB_FILE.rpartition('/')[2]} in /etc/default/grub.d that sets GRUB_CMDLINE_LINUX anew wins over it, and so "
    "does what GRUB_CMDLINE_LINUX_DEFAULT says of the same: the kernel gets it last",
}


def overrides(s: Snapshot, context: PlanContext, action: Action, made: tuple[Step, ...]) -> Iterator[str]:
    if isinstance(action, Sysctl) and not isinstance(s.sysctl, Missing):
        setting = s.sysctl.settings.get(action.key)
        if setting is not None:
            yield from _sysctl_winners(setting)
        yield from _by_hand(context.files.get(SYSCTL_FILE), action.key)
    yield from (
        f"{_sets(rival, made)} at boot, {'in place of' if rival.beats == 'same' else 'after'} what our file says: {_way(rival)}"
        for rival in rivals(s, context, action, made)
    )
    if isinstance(action, SysfsWrite) and not any(isinstance(step, FileLine) for step in made):
        yield "not persistent: it holds until the file system is mounted again or the host reboots"
    if (
        s.origin.startswith("live")
        and "systemd-tmpfiles" not in context.tools
        and TMPFILES_FILE in {step.path for step in made if isinstance(step, FileLine)}
    ):
        yield "not persistent: no systemd-tmpfiles is here that would read its line at boot; repeat it there by what runs at boot"
    if isinstance(action, SysfsWrite) and not isinstance(s.sysctl, Missing) and isinstance(s.sysctl.tuned_profile, str):
        yield f"tuned is active (profile {s.sysctl.tuned_profile}); another profile may set it"
    yield from dict.fromkeys(_AFTER[step.path] for step in made if isinstance(step, FileLine) and step.path in _AFTER)
    if any(isinstance(step, FileLine) and step.path == GRUB_FILE for step in made):
        yield from (
            f"{line} sets GRUB_CMDLINE_LINUX anew after our file, and takes it away: {_KEEP}" for line in context.grub_resets
        )
    if isinstance(action, ModuleOption):
        yield from (f"{_IN_INITRAMFS}: sudo {command}" for command in _initramfs(context))
    if isinstance(action, OwnedFile):
        yield from _edited(action, context.files.get(edited(action.path)))
    if isinstance(action, Limit):
        lines = tuple(limit_lines.winners(context, action))
        yield from (f"{limit_lines.words(line)}: {_mended(line.source)}" for line in lines[:_TOLD_LINES])
        if len(lines) > _TOLD_LINES:
            yield f"it loses to {counted(len(lines) - _TOLD_LINES, 'more line')} below /etc/security"
        if context.limits_unread:
            yield context.limits_unread
        yield "services do not read it: for them Limit…= of the unit applies"


def rivals(s: Snapshot, context: PlanContext, action: Action, made: tuple[Step, ...]) -> Iterator[BootSetting]:
    """Yield what sets at boot what this change sets, after our files or in their place, to something that the target does not accept; or its counterpart, which
    takes the value away."""
    written = {_by_name(context, step.path) for step in made if isinstance(step, Value)}
    counterparts = {step.counterpart for step in made if isinstance(step, Value)}
    if isinstance(action, Sysctl | SysfsWrite):
        last = {found.path: found for found in (*_of_files(s, counterparts), *context.boot_settings)}
        for found in last.values():
            if found.path in counterparts and not (found.value.strip() == "0" and found.path in _LEFT_AT_0):
                yield found
            if accepts(action.target, found.value):
                continue
            if any(_same(found, path) for path in written):
                yield found


_LEFT_AT_0 = frozenset(map(proc, ("vm.dirty_ratio", "vm.dirty_bytes", "vm.dirty_background_bytes")))
"""A 0 there takes nothing away: the kernel refuses it, or finds it unchanged. Source: mm/page-writeback.c (dirty_ratio_handler, vm_page_writeback_sysctls)."""


def _of_files(s: Snapshot, paths: Iterable[str]) -> Iterator[BootSetting]:
    """Yield the lines of sysctl.d for these settings that are read after our file."""
    settings = {} if isinstance(s.sysctl, Missing) else {proc(key): setting for key, setting in s.sysctl.settings.items()}
    for path in paths:
        line = _last_line(settings[path]) if path in settings else None
        if isinstance(line, Assignment) and _after_ours(line):
            yield BootSetting(path=path, value=line.value, source=line.source)


def _sets(rival: BootSetting, made: tuple[Step, ...]) -> str:
    names = {step.counterpart: step.counterpart.rpartition("/")[2] for step in made if isinstance(step, Value)}
    what = f"{names[rival.path]}, which takes it away," if rival.path in names else "it"
    return f"{rival.source} sets {what} to {rival.value}"


def _same(found: BootSetting, path: str) -> bool:
    """Whether it sets what is written; a pattern stands for whatever matches it."""
    if path == found.path:
        return found.beats != "matching"
    return found.beats != "same" and (fnmatchcase(found.path, path) or fnmatchcase(path, found.path))


def _by_name(context: PlanContext, path: str) -> str:
    """Return the read-ahead of a device, as udev rules name it."""
    number = path.split("/")[4] if path.startswith("/sys/class/bdi/") else ""
    name = context.device_names.get(number, "")
    return f"/sys/block/{name}/queue/read_ahead_kb" if name else path


def accepts(target: Target, value: str) -> bool:
    """Return whether a value would do; of several numbers the last one decides.

    >>> from torchtune_sys.model.target import AtLeast
    >>> accepts(AtLeast(6291456), "4096 131072 6291456"), accepts(AtLeast(6291456), "4096 131072 1000"), accepts(AtLeast(1), "")
    (True, False, False)
    """
    return fits(target, value) or any(fits(target, text) for text in value.split()[-1:])


def lost_at_boot(s: Snapshot, context: PlanContext, change: Change) -> LostAtBoot | None:
    """Return who takes the change back at the next boot, and what to do about it; None if it stays, or that could not be seen.

    ``s`` is the host after the change was made, ``context`` may be of before.
    """
    action = change.action
    for rival in rivals(s, context, action, change.steps):
        mend = DisableUnit(unit=rival.unit) if rival.unit else _line_of(rival.source)
        return LostAtBoot(words=f"{_sets(rival, change.steps)} then: {_way(rival)}", remedy=mend)
    if isinstance(action, SysfsWrite) and not any(isinstance(step, FileLine) for step in change.steps):
        return LostAtBoot(words="not persistent: repeat it after each boot or mount")
    if isinstance(action, Limit) and (line := limit_lines.of_judged(s, context, action)):
        return LostAtBoot(words=f"{limit_lines.words(line)}: {_mended(line.source)}", remedy=_line_of(line.source))
    if not isinstance(action, Sysctl) or isinstance(s.sysctl, Missing) or action.key not in s.sysctl.settings:
        return None
    setting = s.sysctl.settings[action.key]
    boot = setting.boot
    if isinstance(boot, Missing):
        why = setting.systemd.detail if isinstance(setting.systemd, Missing) else boot.detail
        return LostAtBoot(words=f"no file sets it then: {why}") if absent(boot) else None
    if accepts(action.target, boot.value):
        return None
    words = f"{boot.source} sets it to {boot.value} then: {_mended(boot.source)}"
    return LostAtBoot(words=words, remedy=_line_of(boot.source))


def _way(rival: BootSetting) -> str:
    """Return what keeps it from being set to something else at the next boot."""
    from shlex import quote

    return f"systemctl disable {quote(rival.unit)}, or remove it from what it runs" if rival.unit else _mended(rival.source)


def _mended(source: str) -> str:
    """How the line that wins is taken out."""
    from shlex import quote

    found = _line_of(source)
    if found is not None:
        return f"sudo sed -i '{found.line}s/^/# /' {quote(found.path)}"
    path, _, number = source.rpartition(":")
    for place in _VENDORS:
        if path.startswith(place) and path.removeprefix(place).startswith(_BY_NAME) and not steers(path):
            own = f"/etc/{path.removeprefix(place)}"
            return f"a copy of it as {quote(own)} counts in its place: take line {number} out there"
    return "remove it there"


_VENDORS = ("/run/", "/usr/local/lib/", "/usr/lib/", "/lib/")
_BY_NAME = ("sysctl.d/", "tmpfiles.d/", "udev/rules.d/")
"""Directories of which a file in /etc takes the place of one of the same name elsewhere (sysctl.d(5), tmpfiles.d(5), udev(7))."""


def _line_of(source: str) -> CommentOut | None:
    """Return the line of a file of the administrator's that a source names.

    >>> _line_of("/etc/sysctl.d/zz-site.conf:3"), _line_of("/usr/lib/sysctl.d/50-default.conf:3")
    (CommentOut(path='/etc/sysctl.d/zz-site.conf', line=3), None)
    >>> _line_of("/etc/sysctl.d/zz my site.conf:3"), _line_of("/etc/sysctl.d/caf\\udce9.conf:3"), _line_of("a.service (loads /etc/x, line 3)")
    (CommentOut(path='/etc/sysctl.d/zz my site.conf', line=3), None, None)
    """
    path, _, number = source.rpartition(":")
    line = natural(number)
    named = path.startswith("/etc/") and not steers(path)  # nor one that is no UTF-8: it cannot be pasted
    return CommentOut(path=path, line=line) if line is not None and named else None


def _last_line(setting: Setting) -> Fact[Assignment]:
    """Return what systemd-sysctl sets. Where not every directory was seen, a line that is read after our file still wins over it."""
    if isinstance(setting.systemd, Missing) and not absent(setting.systemd):
        return next((line for line in reversed(setting.assignments) if _after_ours(line)), setting.systemd)
    return setting.systemd


def _sysctl_winners(setting: Setting) -> Iterator[str]:
    """Who beats our file under systemd-sysctl, and who under ``sysctl --system``."""
    by_systemd, by_procps = _last_line(setting), setting.procps
    if isinstance(by_systemd, Assignment) and _after_ours(by_systemd):
        yield f"{by_systemd.source} (= {by_systemd.value}) wins at boot: systemd-sysctl reads it after our file; {_mended(by_systemd.source)}"
    if isinstance(by_systemd, Missing) and by_systemd.detail.startswith(_EXCLUDED):
        place = by_systemd.detail.removeprefix(_EXCLUDED)
        if _name(place) >= _name(SYSCTL_FILE):  # in our own file a person's lines stand behind ours
            yield f"{place} excludes it: at boot systemd-sysctl then ignores our file's line"
    if isinstance(by_procps, Assignment) and (_is_last(by_procps) or _after_ours(by_procps)):
        yield f"{by_procps.source} (= {by_procps.value}) wins under sysctl --system, which reads it last"
    if isinstance(setting.cmdline, Assignment):
        yield f"{setting.cmdline.source} sets it earlier at boot; our file wins"
    if isinstance(setting.systemd, Missing) and setting.systemd.why.value not in ("absent", "not-recorded"):
        yield f"who else sets it at boot could not be read: {setting.systemd}"


def edited(path: str) -> str:
    """Return the drop-in beside ours that ``systemctl edit`` makes; its name sorts after ours, and the last one wins (systemd.unit(5))."""
    return f"{path.rpartition('/')[0]}/override.conf"


def _edited(action: OwnedFile, present: Fact[str] | None) -> Iterator[str]:
    names = {line.partition("=")[0] for line in action.content.splitlines() if "=" in line}
    for line in present.splitlines() if isinstance(present, str) else ():
        if line.partition("=")[0].strip() in names:
            yield f"{edited(action.path)} ({line.strip()}) wins over it: it is read after our file"


def _by_hand(present: Fact[str] | None, key: str) -> Iterator[str]:
    """Yield a note: what a person wrote into our file stands behind our lines."""
    for paragraph in files.parse(present).by_hand if isinstance(present, str) else ():
        for line in paragraph.splitlines():
            name, sign, value = line.partition("=")
            if sign and name.strip().lstrip("-").replace("/", ".") == key.replace("/", "."):
                yield f"a line by hand in {SYSCTL_FILE} (= {value.strip()}) wins at boot: it stands behind ours"


_EXCLUDED = "excluded in "
"""How the fact begins where the last line of a key is ``-key`` without a value (sysctl.d(5))."""


def _file(source: str) -> str:
    path, _, number = source.rpartition(":")
    return path if number.isdigit() else source


def _is_last(found: Assignment) -> bool:
    return not found.is_pattern and _file(found.source) == "/etc/sysctl.conf"


def _name(source: str) -> str:
    return _file(source).rpartition("/")[2]


def _after_ours(found: Assignment) -> bool:
    """Files are read in the order of their names, whatever directory they are in; and a pattern never beats the key itself."""
    return not found.is_pattern and _name(found.source) > _name(SYSCTL_FILE)


def effect(action: Action) -> str:
    """Return what a job that runs now notices; empty: nothing."""
    if isinstance(action, Service):
        return "the service starts" if action.state == "enabled" else "the service stops: what depends on it ends"
    if isinstance(action, SysfsWrite) and action.path.endswith("/queue/scheduler"):
        return "requests of the disk wait for a moment while its queue is drained"
    if isinstance(action, OwnedFile) and action.needs is Needs.SERVICE_RESTART:
        return "none until the service is restarted, which may end what it started"
    return "none until the reboot" if isinstance(action, KernelArgument) else ""
