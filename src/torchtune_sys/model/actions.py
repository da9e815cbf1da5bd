"""The closed set of changes that a rule may propose as its fix.

An action is host-independent data: rules hold no bash and no YAML. ``text`` is the line a person reads.
"""

from __future__ import annotations

import enum

import msgspec

from torchtune_sys.model.target import AtLeast, AtMost, Exactly, OneOf, Target


class Safety(str, enum.Enum):
    """How much trust applying an action needs."""

    SAFE = "safe"
    UNSAFE = "unsafe"
    DISPLAY_ONLY = "display-only"


class Needs(str, enum.Enum):
    """What must happen before the change takes effect."""

    NOTHING = "nothing"
    LOGIN = "next login"
    SERVICE_RESTART = "service restart"
    REBOOT = "reboot"
    NEW_PROCESS = "restart of the job"


class _Action(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    safety: Safety = Safety.DISPLAY_ONLY
    needs: Needs = Needs.NOTHING
    but: str = ""
    """What our own rules would find on this host once it is done; empty where nothing, or nobody asked them."""


class Sysctl(_Action, frozen=True, kw_only=True, tag="sysctl"):
    key: str
    target: Target
    needs: Needs = Needs.NOTHING
    safety: Safety = Safety.SAFE


class SysfsWrite(_Action, frozen=True, kw_only=True, tag="sysfs-write"):
    path: str
    """Absolute; ``*`` stands for every match, a word in capitals for what only the evidence knows."""
    target: Target
    safety: Safety = Safety.SAFE


class OwnedFile(_Action, frozen=True, kw_only=True, tag="owned-file"):
    path: str
    content: str
    mode: int = 0o644
    safety: Safety = Safety.SAFE


class KernelArgument(_Action, frozen=True, kw_only=True, tag="kernel-argument"):
    argument: str
    needs: Needs = Needs.REBOOT
    safety: Safety = Safety.UNSAFE


class Limit(_Action, frozen=True, kw_only=True, tag="limit"):
    item: str
    """The item name of limits.conf(5), e.g. ``memlock``."""
    target: str
    needs: Needs = Needs.LOGIN
    safety: Safety = Safety.SAFE


class Service(_Action, frozen=True, kw_only=True, tag="service"):
    unit: str
    state: str
    """``enabled`` (and started), ``disabled`` (and stopped) or ``restarted``."""
    safety: Safety = Safety.UNSAFE


class ModuleOption(_Action, frozen=True, kw_only=True, tag="module-option"):
    module: str
    option: str
    needs: Needs = Needs.REBOOT
    safety: Safety = Safety.UNSAFE


class Install(_Action, frozen=True, kw_only=True, tag="install"):
    """A package or an install command, ``text`` being the command or what to install."""

    text: str
    torch: str = ""
    """The build that takes the place of the installed torch, as in ``2.9.1+cu128``; empty where it is about something else."""
    other_python: bool = False
    """Whether that build goes into an environment with another Python."""
    driver: str = ""
    """The version of the NVIDIA driver that it installs at least, with the start that a driver needs."""


class NvmlSetting(_Action, frozen=True, kw_only=True, tag="nvml-setting"):
    setting: str
    value: str


class EnvironmentVariable(_Action, frozen=True, kw_only=True, tag="environment"):
    """Set (or, with ``value=None``, unset) a variable in the job's environment."""

    name: str
    value: str | None
    needs: Needs = Needs.NEW_PROCESS


class Advice(_Action, frozen=True, kw_only=True, tag="advice"):
    """What only a person can do: move a card, change a script, ask the provider."""

    text: str


Action = (
    Sysctl
    | SysfsWrite
    | OwnedFile
    | KernelArgument
    | Limit
    | Service
    | ModuleOption
    | Install
    | NvmlSetting
    | EnvironmentVariable
    | Advice
)


def text(action: Action) -> str:
    """Return one line that says what to do, and what our rules would say of it."""
    return f"{_text(action)} (but then {action.but})" if action.but else _text(action)


def _text(action: Action) -> str:
    from shlex import quote  # for a finding alone

    match action:
        case Sysctl(key=key, target=target):
            value, as_good = _value_and_others(target)
            return f"sudo sysctl -w {quote(f'{key}={value}')}{as_good}"
        case SysfsWrite(path=path, target=target):
            value, as_good = _value_and_others(target)
            return f"echo {quote(value)} | sudo tee {'*'.join(quote(part) if part else '' for part in path.split('*'))}{as_good}"
        case OwnedFile(path=path):
            return f"write the file {path} (torchtune-sys plan shows its lines)"
        case KernelArgument(argument=argument):
            return f"boot with the kernel argument {argument}"
        case Limit(item=item, target=target):
            return f"raise the {item} limit to {target} (limits.d for logins, Limit{item.upper()}= for services)"
        case Service(unit=unit, state=state):
            return f"sudo systemctl {_VERBS.get(state, state)} {quote(unit)}"
        case ModuleOption(module=module, option=option):
            return f'put "options {module} {option}" into a file in /etc/modprobe.d/'
        case Install(text=words) | Advice(text=words):
            return words
        case NvmlSetting(setting=setting, value=value):
            return f"set the GPU's {setting} to {value}"
        case EnvironmentVariable(name=name, value=to):
            return f"unset {quote(name)}" if to is None else f"export {quote(name)}={quote(to)}"


_VERBS = {"enabled": "enable --now", "disabled": "disable --now", "restarted": "restart"}


def _value_and_others(target: Target) -> tuple[str, str]:
    """Return the value to write, and which others are as good.

    >>> _value_and_others(OneOf(("madvise", "always"))), _value_and_others(AtLeast(2048))
    (('madvise', ' (or always)'), ('2048', ' (or more)'))
    """
    match target:
        case Exactly(value=value):
            return value, ""
        case AtLeast(value=floor):
            return str(floor), " (or more)"
        case AtMost(value=ceiling):
            return str(ceiling), " (or less)"
        case OneOf(values=values):
            return values[0], f" (or {' or '.join(values[1:])})" if values[1:] else ""


def kind(action: Action) -> str:
    """Return the action's tag in JSON, e.g. ``sysctl``."""
    return str(action.__struct_config__.tag)


def trust(action: Action) -> str:
    """Return the word for people: safe, unsafe, or by hand."""
    return "by hand" if action.safety is Safety.DISPLAY_ONLY else action.safety.value


def changes(action: Action) -> bool:
    """Return whether it is a change of the host that ``apply`` can make: not what only a person can, nor what belongs into one job's environment."""
    return action.safety is not Safety.DISPLAY_ONLY and not isinstance(
        action, Advice | Install | NvmlSetting | EnvironmentVariable
    )


def doable(action: Action) -> bool:
    """Return whether ``apply`` could do it as it is: a path that only the evidence could have named is none."""
    named = not isinstance(action, SysfsWrite) or not any(
        word.isupper() for part in action.path.split("/") for word in part.split(":")
    )
    return named and changes(action)
