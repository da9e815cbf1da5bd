"""Choose the Python for torch: the existing one, the requested one, or the distribution's own, to be installed."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from torchtune_sys.knowledge.install_python import Python
from torchtune_sys.knowledge.install_torch import builds
from torchtune_sys.knowledge.torch import newest
from torchtune_sys.model.install import InstallOptions, InstallRefused, InstallStep
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, known
from torchtune_sys.model.version import version
from torchtune_sys.remediation.install.builds import is_of_version
from torchtune_sys.remediation.install.host import machine_of, owner, packaged_pythons
from torchtune_sys.remediation.install.site import Site, install, root


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    abi: str
    """``cp312``, ``cp313t``"""
    program: str
    """What starts it, for making an environment."""
    is_here: bool
    """Whether it is there once torch is put in: it was seen on the host, or a step installs it."""
    package: Python | None = None
    """What a step installs; None where it is there, or somebody else brings it."""

    @property
    def version(self) -> str:
        """Return the version, ``3.12`` or ``3.13t``."""
        return f"3.{self.abi.removeprefix('cp3')}"


def interpreter(s: Snapshot, options: InstallOptions) -> Interpreter | InstallRefused:
    """Return the interpreter that was asked for, else the one that was found if any wheel is for it, else the distribution's own."""
    found = _found(s)
    offered = packaged_pythons(s)
    if options.python:
        wanted = f"cp{options.python.replace('.', '')}"
        if isinstance(found, Interpreter) and found.abi == wanted:
            return found
        own = next((item for item in offered if item.abi == wanted), None)
        return _of(own, s, options) if own else Interpreter(abi=wanted, program=f"python{options.python}", is_here=False)
    if isinstance(found, Interpreter) and any(found.abi in build.abis for build in builds(machine_of(s))):
        return found
    own = _fitting(s, options) or next(iter(offered), None)
    if own is None or (owner(s) is not None and options.tool == "pip"):  # no package is installed there
        return found
    return _of(own, s, options)


def _fitting(s: Snapshot, options: InstallOptions) -> Python | None:
    """Return the first that the distribution packages and that a wheel of the wanted release is for."""
    fitting = [build for build in builds(machine_of(s)) if is_of_version(build, options.torch)]
    return next((item for item in packaged_pythons(s) if any(item.abi in build.abis for build in fitting)), None)


def _of(own: Python, s: Snapshot, options: InstallOptions) -> Interpreter:
    """uv, conda and pixi bring a Python of the same version themselves, and its headers with it."""
    if options.tool != "pip" or owner(s) is not None:
        return Interpreter(abi=own.abi, program=f"python{own.version}", is_here=False)
    return Interpreter(abi=own.abi, program=own.program, is_here=True, package=own)


def _found(s: Snapshot) -> Interpreter | InstallRefused:
    python = s.python
    numbers = () if isinstance(python, Missing) else version(known(python.version, ""))
    if isinstance(python, Missing) or len(numbers) < 2:
        return _no_interpreter("no Python that starts was seen on this host")
    if known(python.implementation, "cpython") not in ("", "cpython"):
        return _no_interpreter(f"the interpreter is {python.implementation}, and wheels are for CPython")
    if "32-bit" in known(python.machine, ""):
        return _no_interpreter("the interpreter is a 32-bit one, and there are no such wheels")
    free = "t" if python.free_threaded is True else ""
    program = known(python.executable, "python3")
    base = known(python.base_prefix, "")
    # An environment is made with the Python below it, not with another environment.
    if base and base != known(python.prefix, base):
        program = f"{base}/bin/python{numbers[0]}.{numbers[1]}{free}"
    return Interpreter(abi=f"cp{numbers[0]}{numbers[1]}{free}", program=program, is_here=True)


def _no_interpreter(reason: str) -> InstallRefused:
    offered = [f"3.{abi.removeprefix('cp3')}" for abi in newest().abis if not abi.endswith("t")]
    return InstallRefused(
        key="torch",
        what="torch",
        reason=reason,
        blocked_by=("python",),
        way=f"name one that torch {newest().torch} has wheels for ({', '.join(offered)}): --python 3.12, which uv fetches by itself (--tool uv)",
    )


def with_way(refused: InstallRefused, s: Snapshot, options: InstallOptions) -> InstallRefused:
    """Return the refusal; where the interpreter is the reason and the distribution packages one that would do, with that one as the way."""
    if "python" not in refused.blocked_by or owner(s) is not None:
        return refused
    own = _fitting(s, options)
    if own is None or own.version == options.python:
        return refused
    return msgspec.structs.replace(refused, way=f"--python {own.version}, which this distribution packages; or {refused.way}")


def steps(site: Site, own: Python) -> Iterator[InstallStep]:
    """Yield the distribution's own Python, with what makes environments."""
    update = (root("apt-get", "update"),) if site.system.manager == "apt" else ()
    yield InstallStep(
        key="python",
        title=f"Python {own.version}, the distribution's own",
        actions=(*update, install(site, *own.packages)),
        why="no Python that torch has wheels for was seen" + ("; a fresh image has no lists of packages yet" if update else ""),
        source=f"{own.source} ({own.confidence})",
        by_hand=own.by_hand,
    )
