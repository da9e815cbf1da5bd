"""Kernel arguments as boot loaders take them, and what takes them away again.

Sources: grubby(8), rpm-ostree(1), kernelstub(1), kernel-install(8) (/etc/kernel/cmdline), GRUB manual (GRUB_CMDLINE_LINUX; Debian's
grub-mkconfig reads /etc/default/grub.d/*.cfg after /etc/default/grub).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torchtune_sys.errors import UserError
from torchtune_sys.remediation.plan import files
from torchtune_sys.remediation.plan.kernel_arguments import Argument, is_plain
from torchtune_sys.render.layout import clean

Arguments = Iterable[Argument]


def words(arguments: Arguments) -> list[str]:
    found = [argument.argument for argument in arguments]
    for word in found:
        if not is_plain(word):
            raise UserError(f"{clean(word)!r} is no plain kernel argument", "add it by hand")
    return found


def line(arguments: Arguments) -> str:
    return " ".join(words(arguments)) + "\n"


def grub(arguments: Arguments) -> str:
    """Return the file for /etc/default/grub.d, as apply writes it."""
    arguments = tuple(arguments)
    blocks = {
        files.name(a.key): files.headed(a.key, a.rules, a.why, grub_line(word))
        for a, word in zip(arguments, words(arguments), strict=True)
    }
    return files.composed("", blocks)


def grub_line(word: str) -> str:
    return f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {word}"'


def grubby(arguments: Arguments) -> str:
    given = " ".join(words(arguments))
    return _pair(f'grubby --update-kernel=ALL --args="{given}"', f'grubby --update-kernel=ALL --remove-args="{given}"')


def rpm_ostree(arguments: Arguments) -> str:
    given = words(arguments)
    made, unmade = (" ".join(f"--{how}={word}" for word in given) for how in ("append-if-missing", "delete-if-present"))
    return _pair(f"rpm-ostree kargs {made}", f"rpm-ostree kargs {unmade}")


def kernelstub(arguments: Arguments) -> str:
    given = " ".join(words(arguments))
    return _pair(f'kernelstub --add-options "{given}"', f'kernelstub --delete-options "{given}"')


def _pair(command: str, inverse: str) -> str:
    """Return the command with the way back beside it: once the host was started anew, the rules ask for nothing more."""
    return f"{command}\n# to take them back: {inverse}\n"


def systemd_boot(arguments: Arguments) -> str:
    """Return commands for a POSIX shell, through a template: the words of /etc/kernel/cmdline with ours, or without; then the boot entries again."""
    from torchtune_sys.render.templates import environment

    return environment({}).get_template("kernel-args/systemd-boot.sh.j2").render(arguments=words(arguments))


FORMS: dict[str, Callable[[Arguments], str]] = {
    "line": line,
    "grub": grub,
    "grubby": grubby,
    "rpm-ostree": rpm_ostree,
    "kernelstub": kernelstub,
    "systemd-boot": systemd_boot,
}
