# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""Who decides what lies at a path of the host: root starts nothing that another user can change."""

from __future__ import absolute_import, division, print_function

__metaclass__ = type

import errno
import os
import stat

MOST_LINKS = 40
FIRST_USERS_GROUP = 100
"""Group ids below it are given out by the distribution ("users" is 100)."""


def distrust(path, trusted=None):
    """Return why others than root and the user whose sudo this is decide what lies there; an empty text where they do not, where nothing is there yet, and
    for whoever is not root."""
    if os.geteuid() != 0:
        return ""
    users = (0, _caller()) if trusted is None else trusted
    here, todo, links = "/", os.path.abspath(path).split("/")[::-1], 0
    while todo:
        part = todo.pop()
        if part == "..":
            here = os.path.dirname(here)
        if part in ("", ".", ".."):
            continue
        here = os.path.join(here, part)
        try:
            info = os.lstat(here)
        except (IOError, OSError) as error:
            return "" if error.errno == errno.ENOENT else "%s: %s" % (here, error.strerror)
        reason = _of_one(here, info, users)
        if reason:
            return reason
        if stat.S_ISLNK(info.st_mode):
            links += 1
            if links > MOST_LINKS:
                return "%s: too many links" % here
            target = os.readlink(here)
            here = "/" if target.startswith("/") else os.path.dirname(here)
            todo += target.split("/")[::-1]
    return ""


def _caller():
    """The user who became root by sudo: whoever may do that decides anyway."""
    number = os.environ.get("SUDO_UID", "")
    return int(number) if number.isdigit() and len(number) < 12 else 0


def _of_one(here, info, users):
    if info.st_uid not in users:
        return "%s belongs to user %s" % (here, info.st_uid)
    if stat.S_ISLNK(info.st_mode) or (stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX):
        return ""
    if info.st_mode & stat.S_IWOTH or (info.st_mode & stat.S_IWGRP and _is_of_several(here, info)):
        return "others may write to %s" % here
    return ""


def _is_of_several(here, info):
    """Whether the group, or whom an access list names, is anybody but the distribution's and the owner's own."""
    if hasattr(os, "getxattr"):
        try:
            return bool(os.getxattr(here, "system.posix_acl_access"))
        except (IOError, OSError):
            pass
    return info.st_gid >= FIRST_USERS_GROUP and info.st_gid != info.st_uid
