"""Choose the user as whom root starts the examined interpreter, because another user may own it or what it imports."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from torchtune_sys.host import trust
from torchtune_sys.host.account import Account, account, caller
from torchtune_sys.host.children.programs import interpreters
from torchtune_sys.host.isolation import session
from torchtune_sys.host.live import read_text
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.values import Missing, Why

_PTH_LIMIT = 1000
"""Lines of a .pth file; site itself reads all of them, and such files have a few."""
_NOT_PLAIN = stat.S_IWGRP | stat.S_IWOTH | (stat.S_IFLNK & ~stat.S_IFREG)
"""Others may write to it, or it may be a symbolic link: no file and no folder has that bit of the kind (inode(7))."""
_REMEDY = "run it as the user who trains with it, or let nobody else write there"


def runner(path: str) -> Fact[Account | None]:
    """Return the user to start an interpreter as; None stands for who we are.

    Root starts what another user may change as that user, what only root may change as who called sudo (else as root), and nothing
    that two may change.
    """
    if os.geteuid() != 0:
        return None
    try:
        trust.steps(path)
        places = tuple(dict.fromkeys(_places(path)))
        seen = trust.Decision()
        owners = {info.st_uid: (place, info) for place, info in reversed(_steps(places, seen)) if info.st_uid not in seen.system}
    except FileNotFoundError:
        return Missing(Why.NO_TOOL, path, trust.out_of_reach(path) or "no such file")
    except OSError as error:
        return _refused(path, f"{error.filename or path}: {error.strerror}")
    if len(owners) > 1:
        return _refused(
            path, " and ".join(f"{place} belongs to user {trust.user_name(uid)}" for uid, (place, _) in owners.items())
        )
    reason = next(filter(None, (trust.distrust(place, frozenset(owners), seen=seen) for place in places)), "")
    if reason:
        return _refused(path, reason)
    for uid, (_, info) in owners.items():
        return account(uid, info.st_gid)
    user = caller(session())
    return user if user is not None and _may_execute(user, path) else None


def no_program(path: str) -> str:
    """Return why nothing at ``path`` could be started by anybody; "" where something may be."""
    try:
        info = os.stat(path)
    except OSError as error:
        return f"{path}: {error.strerror}" if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP) else ""
    if stat.S_ISDIR(info.st_mode):
        return f"{path} is a directory without bin/python3"
    if path.endswith(".py"):
        return f"{path} is a program for Python, not an interpreter"
    return "" if info.st_mode & 0o111 else f"{path} is not executable"


def _refused(path: str, reason: str) -> Missing:
    return Missing(Why.DENIED, path, f"not run as root: {reason}", _REMEDY)


def _may_execute(user: Account, path: str) -> bool:
    return all(stat.S_ISLNK(info.st_mode) or user.may_pass(info, place) for place, info in trust.steps(path))


def _steps(places: tuple[str, ...], seen: trust.Decision) -> list[tuple[str, os.stat_result]]:
    """Of what is not there, the steps to where it could be made."""
    found: dict[str, os.stat_result] = {}
    for place in places:
        while True:
            try:
                found.update(trust.steps(place, seen))
                break
            except FileNotFoundError:
                place = os.path.dirname(place)
    return list(found.items())


def _places(path: str) -> Iterator[str]:
    """Yield the interpreter, and what it executes: its library, and in its packages' directories what is not whose the directory is.

    A pyvenv.cfg decides where the library is, so it matters who could make one. Source: getpath.py, and the documentation of site.
    """
    yield path
    yield from interpreters(path)  # a wrapper's own
    folders = list(dict.fromkeys((os.path.dirname(path), os.path.dirname(os.path.realpath(path)))))
    for folder in folders:
        prefix = os.path.dirname(folder)
        for config in (f"{folder}/pyvenv.cfg", f"{prefix}/pyvenv.cfg"):
            yield config
            folders += [home for home in _home(config) if home not in folders]
        yield f"{prefix}/lib"
        for library in {
            os.path.realpath(f"{prefix}/{name}"): f"{prefix}/{name}" for name in ("local/lib", "lib64", "lib")
        }.values():
            # Conda's packages find libraries there by their own place (RPATH). What else lies there (node_modules) Python does not load.
            yield from (place for place in _other_owners(library) if ".so" in os.path.basename(place))
            for name in _names(library):
                if name.startswith(("python3", "pypy3", "libpython3")):
                    yield from _library(f"{library}/{name}")


def _home(config: str) -> Iterator[str]:
    text = read_text(config, config)
    for line in () if isinstance(text, Missing) else text.splitlines():
        name, _, value = line.partition("=")
        if name.strip().lower() == "home" and os.path.isdir(value.strip()):
            yield os.path.abspath(value.strip())


def _library(place: str) -> Iterator[str]:
    yield place
    if os.path.isdir(place):
        yield from _other_owners(place)
        yield from _other_owners(f"{place}/lib-dynload")
        for packages in (f"{place}/site-packages", f"{place}/dist-packages"):
            if os.path.isdir(packages):
                yield packages
                yield from _other_owners(packages)
                for name in _names(packages):
                    if name.endswith(".pth"):
                        yield from _named_by(packages, name)


def _other_owners(folder: str) -> Iterator[str]:
    """Yield what of a directory may be others' than the directory itself: root's site-packages with one package that a user unpacked there."""
    try:
        of_folder = os.stat(folder)
        nfs = trust.knows_nfs_lists(folder)
        with os.scandir(folder) as entries:
            plain = (of_folder.st_uid, of_folder.st_dev, 0, False)
            for entry in entries:
                info = entry.stat(follow_symlinks=False)
                if (info.st_uid, info.st_dev, info.st_mode & _NOT_PLAIN, nfs) == plain:
                    continue  # as nearly all are: what follows would say the same, in three times the time
                if stat.S_ISLNK(info.st_mode) and info.st_uid == of_folder.st_uid and _names_library(os.readlink(entry.path)):
                    continue  # another name of a file that is looked at, too
                new_writers = info.st_mode & ~of_folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
                same = (info.st_uid, info.st_gid if info.st_mode & stat.S_IWGRP else of_folder.st_gid)
                different = stat.S_ISLNK(info.st_mode) or new_writers or same != (of_folder.st_uid, of_folder.st_gid)
                if different or trust.has_access_list(entry.path, info, nfs=nfs or info.st_dev != of_folder.st_dev):
                    yield entry.path
    except OSError:
        return


def _names_library(target: str) -> bool:
    """Whether a symbolic link leads to a library beside it: of two thousand libraries most have a second name."""
    return "/" not in target and ".so" in target


def _named_by(packages: str, name: str) -> Iterator[str]:
    """Directories that a .pth file adds to where modules are looked for (an editable installation), and what in them is others'.

    One that is not there may be made. Source: site.addpackage.
    """
    text = read_text(f"{packages}/{name}", name)
    for line in () if isinstance(text, Missing) else text.splitlines()[:_PTH_LIMIT]:
        if line.startswith(("import ", "import\t")):
            yield from _mapped_by(packages, line)
        elif line.strip() and not line.startswith("#") and "\0" not in line:
            place = os.path.abspath(os.path.join(packages, line.rstrip()))
            yield place
            yield from _other_owners(place)


def _mapped_by(packages: str, line: str) -> Iterator[str]:
    """Yield the places where a module that a line of a .pth file imports finds others: that of an editable installation (PEP 660; setuptools, editables, scikit-build-core and meson-python
    each write one, with absolute paths)."""
    for module in dict.fromkeys(_WORD.findall(line)):
        text = read_text(f"{packages}/{module}.py", module)
        for place in () if isinstance(text, Missing) else dict.fromkeys(_PLACE.findall(text)[:_PTH_LIMIT]):
            yield place
            yield from _other_owners(place)


_WORD, _PLACE = pattern(r"\w+"), pattern(r"""["'](/[^"'\n\0]{1,4095})["']""")


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
