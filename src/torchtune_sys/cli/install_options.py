"""The options of commands that install, as ``InstallOptions``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from torchtune_sys.cli import options as shared
from torchtune_sys.cli.terminal import tell
from torchtune_sys.errors import UserError

if TYPE_CHECKING:
    from torchtune_sys.model.install import InstallOptions, InstallRefused
    from torchtune_sys.model.snapshot import Snapshot

_F = TypeVar("_F", bound=Callable[..., Any])

EXTRAS = ("container-toolkit", "cuda-toolkit", "jemalloc", "rdma")
_SYSTEM = (
    r"/|/(bin|boot|dev|etc|home|lib\d*|media|mnt|opt|proc|root|run|sbin|srv|sys|tmp|var)|/usr(/(s?bin|lib\d*|local(/s?bin)?))?"
)
_TORCH = r"(?:torch==|v)?(\d+\.\d+(?:\.\d+)?)(?:\+(cpu|cu\d{2,3}|rocm\d+(?:\.\d+){1,2}))?"
_PYTHON = r"3\.\d{1,2}t?"


def install_options(venv: str) -> Callable[[_F], _F]:
    """Add ``--torch`` and the other options of what to install; ``venv`` is the default place of the environment."""
    return shared.together(
        (
            click.option(
                "--torch", metavar="VERSION", help="torch version: 2.14, 2.14.0 or 2.14.0+cu126. [the newest that runs here]"
            ),
            click.option("--cpu", is_flag=True, help="Install the CPU build of torch, and no driver."),
            click.option("--venv", metavar="DIR", default=venv, help=f"Virtual environment to install torch into. [{venv}]"),
            click.option(
                "--driver-branch",
                "branch",
                type=click.IntRange(min=300),
                metavar="N",
                help="Driver branch. [580, the LTS]",
            ),
            click.option(
                "--with", "extras", multiple=True, type=click.Choice(EXTRAS), help="Also install this; may be repeated."
            ),
        )
    )


def install_options_of(options: Mapping[str, Any]) -> tuple[InstallOptions, str | None]:
    """Return what to install, and the interpreter to look at (None for the usual one). Raises click.BadParameter.

    A host by description has no interpreter to look at.
    """
    from torchtune_sys.model.install import InstallOptions

    torch, cpu = torch_option(options["torch"], options["cpu"])
    python = options["python"]
    named = re.fullmatch(_PYTHON, python or "")
    if python and not named and (options.get("system") or re.match(r"\d", python)):
        raise click.BadParameter(f"{python} is not a version such as 3.12 or 3.14t.", param_hint="--python")
    return (
        InstallOptions(
            torch=torch,
            python=python if named else "",
            cpu=cpu,
            tool=options.get("tool") or "pip",
            venv=_folder(options["venv"]),
            branch=options["branch"],
            extras=tuple(options["extras"]),
        ),
        None if named else python,
    )


def must_start(seen: Snapshot, python: str | None) -> None:
    """Raise UserError where the interpreter that was named does not start: no other one takes its place in silence."""
    from torchtune_sys.model.values import Missing

    version = seen.python if isinstance(seen.python, Missing) else seen.python.version
    if python and isinstance(version, Missing):
        raise UserError(
            f"{python}: {version.detail or 'no Python that starts'}", "--python names an interpreter, or a version: 3.12"
        )


def tell_refused(refused: Iterable[InstallRefused]) -> int:
    """Say on standard error what cannot be had; the exit status."""
    from torchtune_sys.render.generate.install import refusal

    lines = [line for item in refused for line in refusal(item)]
    for line in lines:
        tell(line)
    return 1 if lines else 0


def _folder(text: str) -> str:
    """Return a folder that an environment may be made in: in a system's own one it would take the place of the system's Python."""
    whole = "/" + "/".join(part for part in text.split("/") if part not in ("", "."))
    if not text.strip() or not text.isprintable():
        raise click.BadParameter("an environment needs a directory with a name.", param_hint="--venv")
    if text.startswith("/") and (re.fullmatch(_SYSTEM, whole) or "/../" in f"{whole}/"):
        raise click.BadParameter(f"{text} cannot become an environment itself; name a directory in it.", param_hint="--venv")
    return text


def torch_option(text: str | None, cpu: bool) -> tuple[str, bool]:
    """Return the release that was asked for, as ``2.14``, ``2.14.0`` or ``2.14.0+cu126`` (``""`` for none), and whether it is the CPU's. Raises click.BadParameter.

    >>> torch_option("torch==2.14.0+cpu", False), torch_option("2.13+rocm7.2", False), torch_option(None, True)
    (('2.14.0+cpu', True), ('2.13+rocm7.2', False), ('', True))
    """
    if not text:
        return "", cpu
    found = re.fullmatch(_TORCH, text)
    if found is None:
        raise click.BadParameter(f"{text} is not a version such as 2.14 or 2.14.0+cu126.", param_hint="--torch")
    build = found[2] or ""
    if cpu and build not in ("", "cpu"):
        raise click.BadParameter("--cpu and a build for GPUs exclude each other.", param_hint="--torch")
    return found[1] + (f"+{build}" if build else ""), cpu or build == "cpu"
