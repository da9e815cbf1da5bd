"""What is installed as a person types it.

The script of the stages (``templates/provision/packages.sh.j2``) asks the same package managers in words of its own: it waits for locks, looks
first what would be removed, and can do without a network.
"""

from __future__ import annotations

from torchtune_sys.model.install import RUNNING, Action, Command, Environment, File, KernelPackages, Packages, Step
from torchtune_sys.render.script import quote


def step_commands(step: Step) -> list[Command | File]:
    """
    >>> step = Step(key="gcc", title="", why="", source="", actions=(Packages(manager="dnf", names=("gcc",)),))
    >>> [item.words for item in step_commands(step) if isinstance(item, Command)]
    [('dnf', 'install', '--assumeyes', 'gcc')]
    """
    return [item for action in step.actions for item in _commands(action)]


def _commands(action: Action) -> tuple[Command | File, ...]:
    match action:
        case Packages(manager=manager, names=names):
            return (Command(words=(*_INSTALL.get(manager, _PACMAN), *names), root=True),)
        case KernelPackages():
            return (Command(words=("sh", "-c", _by_kernel(action)), root=True),)
        case Environment(tool="uv", venv=venv, program=program):
            put = ("uv", "pip", "install", "--python", f"{venv}/bin/python", *action.specifiers, *_index(action))
            return Command(words=("uv", "venv", "--allow-existing", "--python", program, venv)), Command(words=put)
        case Environment(venv=venv, program=program):
            put = (f"{venv}/bin/python", "-m", "pip", "install", *action.specifiers, *_index(action))
            return Command(words=(program, "-m", "venv", venv)), Command(words=put)
        case _:
            return (action,)


_INSTALL = {
    "apt": ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "--yes"),
    "dnf": ("dnf", "install", "--assumeyes"),
    "zypper": ("zypper", "--non-interactive", "install", "--auto-agree-with-licenses"),
}
"""The distribution's own way to install without asking."""
_PACMAN = ("pacman", "--sync", "--needed", "--noconfirm")


def _by_kernel(action: KernelPackages) -> str:
    lines = []
    for pattern, names in action.choices:
        words = (*_INSTALL.get(action.manager, _PACMAN), *names)
        lines.append((pattern, "exec " + " ".join(f'"{word}"' if RUNNING in word else word for word in words)))
    if len(lines) == 1:
        return lines[0][1]
    return f"case {RUNNING} in {' '.join(f'{pattern}) {line};;' for pattern, line in lines)} esac"


def _index(made: Environment) -> tuple[str, ...]:
    return ("--index-url", made.index) if made.index else ()


def typed(command: Command) -> str:
    """One line for a shell.

    >>> typed(Command(words=("dnf", "install", "gcc make"), root=True))
    "sudo dnf install 'gcc make'"
    """
    return ("sudo " if command.root else "") + " ".join(quote(word) for word in command.words)
