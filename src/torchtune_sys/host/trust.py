"""Who decides what lies at a path: what root runs, loads or obeys must not be for others to change.

Used before the tool's own modules are found, so at its top it imports only what Python itself has loaded by then.
"""

import os
import stat

_MOST_LINKS = 40
_SYSTEM_GROUPS = 100
"""Group ids below it are given out by the distribution, not by a directory service ("users" is 100)."""


def system_users() -> "frozenset[int]":
    """Return the user ids that may decide everything: root, and in a user namespace also the number that the host's root goes by there."""
    found = {0}
    for place in ("/", "/proc"):
        if os.path.isdir(place):
            found.add(os.lstat(place).st_uid)
    return frozenset(found)


def steps(path: str) -> "list[tuple[str, os.stat_result]]":
    """Return every directory, symbolic link and file that is passed on the way to an absolute path, with what lstat(2) says of it.

    Raises OSError, of which ``filename`` is the step that is not there or cannot be seen.
    """
    found = [("/", os.lstat("/"))]
    place, todo, links = "/", path.split("/")[::-1], 0
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            place = os.path.dirname(place)
            continue
        here = os.path.join(place, part)
        info = os.lstat(here)
        found.append((here, info))
        if not stat.S_ISLNK(info.st_mode):
            place = here
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(40, os.strerror(40), here)
        target = os.readlink(here)
        place = "/" if target.startswith("/") else place
        todo += target.split("/")[::-1]
    return found


def distrust(path: str, users: "frozenset[int] | None" = None, *, may_be_shared: bool = False) -> str:
    """Say why others than ``users`` (the system's alone, if None) decide what lies at a path; "" where they do not.

    Directories that everybody may write to, but where nobody may replace another's file (the sticky bit, /tmp), are passed; the path itself
    may be one only where ``may_be_shared``. A path that is not there is judged by who could make it.
    """
    if not path.startswith("/"):
        return f"{path} is no absolute path"
    allowed = system_users() | (users or frozenset())
    try:
        passed = steps(path)
    except FileNotFoundError as error:
        return _who_could_make(error.filename, allowed)
    except OSError as error:
        return f"{error.filename or path}: {error.strerror}"
    last = len(passed) - 1
    for number, (place, info) in enumerate(passed):
        reason = _distrusted(place, info, allowed, sticky_helps=number < last or may_be_shared)
        if reason:
            return reason
    return ""


def _who_could_make(path: str, allowed: "frozenset[int]") -> str:
    above = os.path.dirname(path)
    reason = distrust(above, allowed)
    return f"{path} is not there, and {reason}" if reason else ""


def _distrusted(place: str, info: os.stat_result, allowed: "frozenset[int]", *, sticky_helps: bool) -> str:
    if info.st_uid not in allowed:
        return f"{place} belongs to user {user_name(info.st_uid)}"
    if stat.S_ISLNK(info.st_mode) or not others_may_write(place, info):
        return ""
    if sticky_helps and stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX:
        return ""
    return f"others may write to {place}"


def others_may_write(place: str, info: os.stat_result) -> bool:
    """Say whether anybody but the owner may: a group of which the owner is the only member is nobody else."""
    if info.st_mode & stat.S_IWOTH:
        return True
    return bool(info.st_mode & stat.S_IWGRP) and not _is_private_group(place, info)


def _is_private_group(place: str, info: os.stat_result) -> bool:
    """A group that is named as its only member, as most distributions make one for each user, or one of the system without members."""
    import grp

    try:
        if "system.posix_acl_access" in os.listxattr(place, follow_symlinks=False):
            return False  # the group's bits then stand for everybody whom the list names
    except OSError:
        pass
    try:
        group = grp.getgrgid(info.st_gid)
    except KeyError:
        return info.st_gid == info.st_uid
    owner = user_name(info.st_uid)
    if any(member != owner for member in group.gr_mem):
        return False
    private = group.gr_name == owner or info.st_gid < _SYSTEM_GROUPS
    return private and not _is_primary_group_of_another(info.st_gid, info.st_uid)


def _is_primary_group_of_another(gid: int, owner: int) -> bool:
    """Whether another user of this machine has the group as the first one."""
    import pwd

    return any(entry.pw_gid == gid and entry.pw_uid not in (owner, 0) for entry in pwd.getpwall())


def user_name(uid: int) -> str:
    """Return the name of a user, or the number where there is none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
