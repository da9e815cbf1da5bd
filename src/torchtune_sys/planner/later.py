"""What may override a change once it is made, who then wins, and what running jobs notice meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Action, KernelArgument, Limit, Needs, OwnedFile, Service, Sysctl, SysfsWrite
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.sysctl import Assignment, Setting
from torchtune_sys.model.ground import GRUB_FILE, LIMITS_FILE, SYSCTL_FILE, UDEV_FILE, Ground
from torchtune_sys.model.plan import Line, Step
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.planner import files


def told(action: Action) -> str:
    """The target in words, where the evidence gave none."""
    if isinstance(action, Sysctl | SysfsWrite):
        return str(action.target)
    return action.target if isinstance(action, Limit) else ""


_AFTER = {
    UDEV_FILE: f"a rule in a file after {UDEV_FILE.rpartition('/')[2]} that sets the same attribute wins over it",
    GRUB_FILE: f"a file after {GRUB_FILE.rpartition('/')[2]} in /etc/default/grub.d that sets GRUB_CMDLINE_LINUX anew wins over it",
}


def overrides(s: Snapshot, ground: Ground, action: Action, made: tuple[Step, ...]) -> Iterator[str]:
    if isinstance(action, Sysctl) and not isinstance(s.sysctl, Missing):
        setting = s.sysctl.settings.get(action.key)
        if setting is not None:
            yield from _sysctl_winners(setting)
        yield from _by_hand(ground.files.get(SYSCTL_FILE), action.key)
    if isinstance(action, SysfsWrite) and not any(isinstance(step, Line) for step in made):
        yield "nothing keeps it: it holds until the file system is mounted anew or the host restarts"
    if isinstance(action, SysfsWrite) and not isinstance(s.sysctl, Missing) and isinstance(s.sysctl.tuned_profile, str):
        yield f"tuned is active (profile {s.sysctl.tuned_profile}); another profile may set it"
    yield from dict.fromkeys(_AFTER[step.path] for step in made if isinstance(step, Line) and step.path in _AFTER)
    if isinstance(action, OwnedFile):
        yield from _edited(action, ground.files.get(edited(action.path)))
    if isinstance(action, Limit):
        yield f"a line for a user or group, or a file after {LIMITS_FILE.rpartition('/')[2]} in /etc/security/limits.d, wins over it"
        yield "services do not read it: there Limit…= of the unit holds"


def _sysctl_winners(setting: Setting) -> Iterator[str]:
    """Who beats our file under systemd-sysctl, and who under ``sysctl --system``."""
    by_systemd, by_procps = setting.systemd, setting.procps
    if isinstance(by_systemd, Assignment) and _after_ours(by_systemd):
        yield f"{by_systemd.source} (= {by_systemd.value}) wins at boot: systemd-sysctl reads it after our file"
    if isinstance(by_systemd, Missing) and by_systemd.detail.startswith(_EXCLUDED):
        place = by_systemd.detail.removeprefix(_EXCLUDED)
        if _name(place) >= _name(SYSCTL_FILE):  # in our own file a person's lines stand behind ours
            yield f"{place} excludes it: at boot systemd-sysctl then leaves out what our file says"
    if isinstance(by_procps, Assignment) and (_is_last(by_procps) or _after_ours(by_procps)):
        yield f"{by_procps.source} (= {by_procps.value}) wins under sysctl --system, which reads it last"
    if isinstance(setting.cmdline, Assignment):
        yield f"{setting.cmdline.source} sets it earlier at boot; our file wins"
    if isinstance(setting.systemd, Missing) and setting.systemd.why.value not in ("absent", "not-recorded"):
        yield f"who else sets it at boot could not be read: {setting.systemd}"


def edited(path: str) -> str:
    """The drop-in beside ours that ``systemctl edit`` makes; its name sorts after ours, and the last one wins (systemd.unit(5))."""
    return f"{path.rpartition('/')[0]}/override.conf"


def _edited(action: OwnedFile, present: Fact[str] | None) -> Iterator[str]:
    names = {line.partition("=")[0] for line in action.content.splitlines() if "=" in line}
    for line in present.splitlines() if isinstance(present, str) else ():
        if line.partition("=")[0].strip() in names:
            yield f"{edited(action.path)} ({line.strip()}) wins over it: it is read after our file"


def _by_hand(present: Fact[str] | None, key: str) -> Iterator[str]:
    """What a person wrote into our file stands behind our lines."""
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
    """What a job that runs now notices; empty: nothing."""
    if isinstance(action, Service):
        return "the service starts" if action.state == "enabled" else "the service stops: what depends on it ends"
    if isinstance(action, SysfsWrite) and action.path.endswith("/queue/scheduler"):
        return "requests of the disk wait for a moment while its queue is drained"
    if isinstance(action, OwnedFile) and action.needs is Needs.SERVICE_RESTART:
        return "none until the service is restarted, which may end what it started"
    return "none until the reboot" if isinstance(action, KernelArgument) else ""
