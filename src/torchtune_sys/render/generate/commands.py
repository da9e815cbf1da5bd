"""What is installed as a person types it.

The script of the stages (``templates/provision/packages.sh.j2``) asks the same package managers in words of its own: it waits for locks, looks
first what would be removed, and can do without a network.
"""

from __future__ import annotations

from torchtune_sys.model.install import (
    RUNNING,
    Action,
    InstallCommand,
    InstallFile,
    InstallStep,
    KernelPackages,
    Key,
    Packages,
    PythonEnvironment,
)
from torchtune_sys.render.generate.script import quote


def step_commands(step: InstallStep) -> list[InstallCommand | InstallFile | Key]:
    """Return the commands and files of an installation step for the package manager of the host.

    >>> step = InstallStep(key="gcc", title="", why="", source="", actions=(Packages(manager="dnf", names=("gcc",)),))
    >>> [item.words for item in step_commands(step) if isinstance(item, InstallCommand)]
    [('dnf', 'install', '--assumeyes', 'gcc')]
    """
    return [item for action in step.actions for item in _commands(action)]


def _commands(action: Action) -> tuple[InstallCommand | InstallFile | Key, ...]:
    match action:
        case Packages(manager=manager, names=names):
            return (InstallCommand(words=(*_install(manager, names), *names), root=True),)
        case KernelPackages():
            return (InstallCommand(words=("sh", "-c", _by_kernel(action)), root=True),)
        case PythonEnvironment(tool="uv", venv=venv, program=program):
            put = ("uv", "pip", "install", "--python", f"{venv}/bin/python", *action.specifiers, *_index(action))
            return InstallCommand(words=("uv", "venv", "--allow-existing", "--python", program, venv)), InstallCommand(words=put)
        case PythonEnvironment(venv=venv, program=program):
            put = (f"{venv}/bin/python", "-I", "-m", "pip", "install", *action.specifiers, *_index(action))
            return InstallCommand(words=(program, "-I", "-m", "venv", venv)), InstallCommand(words=put)
        case _:
            return (action,)


INSTALL = {
    # A cloud image upgrades itself right after its first start (apt-daily), and apt-get ends at once where dpkg is locked.
    "apt": ("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", "DPkg::Lock::Timeout=900", "install", "--yes"),
    "dnf": ("dnf", "install", "--assumeyes"),
    "zypper": ("zypper", "--non-interactive", "install", "--auto-agree-with-licenses"),
    "pacman": ("pacman", "--sync", "--needed", "--noconfirm"),
}
"""The distribution's own way to install without asking."""
CHECKED = "--setopt=localpkg_gpgcheck=1"
"""dnf looks at no signature of a package that is given by its place unless it is told to (dnf.conf(5))."""


def _install(manager: str, names: tuple[str, ...]) -> tuple[str, ...]:
    words = INSTALL[manager]
    return (*words, CHECKED) if manager == "dnf" and any("://" in name for name in names) else words


def _by_kernel(action: KernelPackages) -> str:
    lines = []
    for pattern, names in action.choices:
        words = (*INSTALL[action.manager], *names)
        lines.append((pattern, "exec " + " ".join(f'"{word}"' if "$(" in word else word for word in words)))
    if len(lines) == 1:
        return lines[0][1]
    return f"case {RUNNING} in {' '.join(f'{pattern}) {line};;' for pattern, line in lines)} esac"


def _index(made: PythonEnvironment) -> tuple[str, ...]:
    return ("--index-url", made.index) if made.index else ()


def typed(command: InstallCommand) -> str:
    """Return one line for a shell.

    >>> typed(InstallCommand(words=("dnf", "install", "gcc make"), root=True))
    "sudo dnf install 'gcc make'"
    """
    return ("sudo " if command.root else "") + " ".join(quote(word) for word in command.words)
