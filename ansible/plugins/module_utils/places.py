# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""Who decides what lies at a path of the host: root starts nothing that another user can change."""

from __future__ import absolute_import, division, print_function

__metaclass__ = type

import errno
import os
import stat
import struct

MOST_LINKS = 40
FIRST_USERS_GROUP = 100
"""Group ids below it are given out by the distribution ("users" is 100)."""
NAMED_USER, GROUP_OWNER, NAMED_GROUP = 2, 4, 8
ENTRY, MAY_WRITE = 8, 2
"""Bytes of an entry of a POSIX access list, and the permission in it."""
POSIX_LIST, NFS_LIST = "system.posix_acl_access", "system.nfs4_acl"


def distrust(path, trusted=None):
    """Return why others than root and the user whose sudo this is decide what lies there; an empty text where they do not, where nothing is there yet, and
    for whoever is not root."""
    if os.geteuid() != 0:
        return ""
    users = (0, _caller()) if trusted is None else trusted
    if not path.startswith("/"):
        path = os.path.join(os.getcwd(), path)
    served = _served_by_users()
    here, todo, links = "/", path.split("/")[::-1], 0
    reason = _of_one("/", os.lstat("/"), users, False)
    while todo and not reason:
        part = todo.pop()
        if part == "..":
            here = os.path.dirname(here)
        if part in ("", ".", ".."):
            continue
        here = os.path.join(here, part)
        if here in served:  # a user's program would answer, or never
            return "%s was mounted by user %s" % (here, served[here])
        try:
            info = os.lstat(here)
        except (IOError, OSError) as error:
            return "" if error.errno == errno.ENOENT else "%s: %s" % (here, error.strerror)
        reason = _of_one(here, info, users, not any(one not in ("", ".") for one in todo))
        if stat.S_ISLNK(info.st_mode) and not reason:
            links += 1
            if links > MOST_LINKS:
                return "%s: too many links" % here
            target = os.readlink(here)
            here = "/" if target.startswith("/") else os.path.dirname(here)
            todo += target.split("/")[::-1]
    return reason


def _caller():
    """The user who became root by sudo: whoever may do that decides anyway."""
    number = os.environ.get("SUDO_UID", "")
    return int(number) if number.isdigit() and len(number) < 12 else 0


def _served_by_users():
    """Where a program of a user's answers for a file system (FUSE), and may say that all is root's; and the user's number."""
    found = {}
    try:
        with open("/proc/self/mountinfo", "rb") as table:
            rows = getattr(os, "fsdecode", str)(table.read()).split("\n")  # as paths are, also where they are no text
    except (IOError, OSError):
        return found
    for row in rows:
        left, right = (part.split(" ") for part in (row + " - ").split(" - ")[:2])
        if len(left) < 5 or len(right) < 3 or not right[0].startswith("fuse"):
            continue
        user = dict(option.partition("=")[::2] for option in right[2].split(",")).get("user_id", "0")
        if user != "0":
            point = left[4]
            for code, sign in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
                point = point.replace(code, sign)
            found[point] = user
    return found


def _of_one(here, info, users, is_last):
    """The sticky bit keeps others from replacing what is there; it does not keep them from adding to the folder that is asked for."""
    if info.st_uid not in users:
        return "%s belongs to user %s" % (here, info.st_uid)
    if stat.S_ISLNK(info.st_mode) or (stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX and not is_last):
        return ""
    if info.st_mode & stat.S_IWOTH or _attribute(here, NFS_LIST):
        return "others may write to %s" % here
    if info.st_mode & stat.S_IWGRP and _others_write(here, info, users):
        return "others may write to %s" % here
    return ""


def _others_write(here, info, users):
    """Whether anybody but the owner and these users is who the group's bit lets write: the group, or whom a POSIX access list names (acl(5): the bit is its mask)."""
    listed = _attribute(here, POSIX_LIST)
    entries = [struct.unpack("<HHI", listed[at : at + ENTRY]) for at in range(4, len(listed) - ENTRY + 1, ENTRY)]
    groups = [info.st_gid] if not entries else []
    for kind, permission, number in entries:
        if not permission & MAY_WRITE:
            continue
        if kind == NAMED_USER and number != info.st_uid and number not in users:
            return True
        if kind in (GROUP_OWNER, NAMED_GROUP):
            groups.append(info.st_gid if kind == GROUP_OWNER else number)
    return any(_is_of_several(group, info.st_uid) for group in groups)


def _attribute(here, name):
    """An access list as the kernel gives it (linux/posix_acl_xattr.h); empty where there is none."""
    try:
        return os.getxattr(here, name, follow_symlinks=False)
    except (AttributeError, IOError, OSError):
        return b""


def _is_of_several(number, owner):
    """Whether the group is anybody but the owner's alone, as most distributions make one for each user, or one of the system's without members."""
    import grp
    import pwd

    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = str(owner)
    try:
        group = grp.getgrgid(number)
    except KeyError:
        return number != owner
    if any(member != name for member in group.gr_mem):
        return True
    # of two groups of one name the first alone is the user's
    if number >= FIRST_USERS_GROUP and (group.gr_name != name or grp.getgrnam(name).gr_gid != number):
        return True
    # getgrgid(3) gives the first row of a number; who is in any has it (getgrouplist(3))
    rows = [group] + [row for row in grp.getgrall() if row.gr_gid == number]
    told = [(row.gr_passwd, row.gr_mem) for row in rows] + _of_gshadow([row.gr_name for row in rows])
    if any(_is_password(password) or set(people).difference((name, "root", "")) for password, people in told):
        return True
    others = [entry for entry in pwd.getpwall() if entry.pw_uid not in (owner, 0)]
    return any(entry.pw_gid == number or entry.pw_name in (name, "root") for entry in others)


def _of_gshadow(groups):
    """Groups' passwords, and who may add members or enter without one (gpasswd(1), newgrp(1)); nothing where it cannot be read."""
    try:
        with open("/etc/gshadow", "rb") as table:
            rows = [row.split(":") for row in table.read().decode("utf-8", "replace").split("\n")]
    except (IOError, OSError):
        return []
    return [(row[1], ",".join(row[2:]).split(",")) for row in rows if row[0] in groups and len(row) > 1]


def _is_password(text):
    """Whether it lets anybody in who knows it: at least a hash of DES, not locked (crypt(5), gshadow(5))."""
    return len(text) > 12 and text[0] not in "!*"
