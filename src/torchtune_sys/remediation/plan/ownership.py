"""Find who owns a setting if it is not /etc on this host. The change is then refused, with the way to make it there."""

from __future__ import annotations

from torchtune_sys.knowledge import containers
from torchtune_sys.model.actions import Action, KernelArgument, Limit, Sysctl, SysfsWrite
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.plan import Refusal
from torchtune_sys.model.plan_context import PlanContext
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, known
from torchtune_sys.remediation.plan.units import NAMES

_TUNED_OPTIONS = (
    ("/sys/kernel/mm/transparent_hugepage/enabled", ("vm.transparent_hugepages", "vm.transparent_hugepage")),
    ("/scaling_governor", ("cpu.governor",)),
    ("/energy_performance_preference", ("cpu.energy_performance_preference",)),
    ("/no_turbo", ("cpu.no_turbo",)),
    ("/cpufreq/boost", ("cpu.boost",)),
    ("/queue/scheduler", ("disk.elevator",)),
    ("/read_ahead_kb", ("disk.readahead",)),
)
"""Ends of paths, and the options of tuned's plug-ins that write them."""


def refusal(s: Snapshot, context: PlanContext, key: str, rules: tuple[str, ...], action: Action | str) -> Refusal | None:
    found = system(s, context, action) or _tuned(s, context, action)
    return Refusal(key=key, rules=rules, reason=found[0], way=found[1]) if found else None


def _fact(family: object, name: str) -> str:
    value: Fact[str] = "" if isinstance(family, Missing) else getattr(family, name)
    return known(value, "")


def system(s: Snapshot, context: PlanContext, action: Action | str) -> tuple[str, str] | None:
    """Return who owns the whole system's configuration, and the way there."""
    container = _fact(s.system, "container")
    if container:
        found = containers.ways(container)
        way = "run torchtune-sys on the container's host"
        if isinstance(action, Limit):
            way = found.limit.format(item=action.item, unit=NAMES.get(action.item, "Limit…"))
        elif isinstance(action, Sysctl) and action.key.startswith("net.") and found.sysctl:
            way = found.sysctl.format(key=action.key)
        return f"this is a container ({container}): its host owns the setting", way
    if _fact(s.system, "hypervisor") in ("wsl1", "wsl2"):
        if isinstance(action, Sysctl):
            return (
                "Windows starts this kernel (WSL)",
                f"kernelCommandLine = sysctl.{action.key}=… under [wsl2] in %UserProfile%\\.wslconfig",
            )
        if isinstance(action, Limit):
            way = f"ulimit in the shell, which no login starts, or Default{NAMES.get(action.item, 'Limit…')}= in /etc/systemd/system.conf of the guest (with systemd)"
            return "Windows starts this kernel (WSL), and its shells read no limits of logins", way
        return "Windows starts this kernel (WSL)", "[wsl2] in %UserProfile%\\.wslconfig, or [boot] command= in /etc/wsl.conf"
    if context.owner:
        return f"{context.owner} owns this system's configuration", context.way
    return None


def _tuned(s: Snapshot, context: PlanContext, action: Action | str) -> tuple[str, str] | None:
    profile = _fact(s.sysctl, "tuned_profile")
    found = None
    if isinstance(action, Sysctl) and not isinstance(s.sysctl, Missing):
        setting = s.sysctl.settings.get(action.key)
        if setting is not None and not isinstance(setting.tuned, Missing):
            found = (f"{action.key}={setting.tuned.value}", setting.tuned.source)
    elif isinstance(action, SysfsWrite):
        found = next(((f"{o.option}={o.value}", o.source) for o in context.tuned if o.option in _options(action.path)), None)
    elif isinstance(action, KernelArgument):
        name = action.argument.partition("=")[0]
        found = next(
            (
                (f"{o.option}={o.value}", o.source)
                for o in context.tuned
                if o.option.startswith("bootloader.cmdline") and name in o.value
            ),
            None,
        )
    if found is None:
        return None
    way = f"torchtune-sys generate tuned makes a profile that includes {profile or 'it'}; or change its option there"
    return f"tuned is active (profile {profile or 'unknown'}) and sets {found[0]} ({found[1]})", way


def _options(path: str) -> tuple[str, ...]:
    return next((options for end, options in _TUNED_OPTIONS if path.endswith(end)), ())
