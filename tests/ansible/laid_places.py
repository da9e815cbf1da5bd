# mypy: disable-error-code="func-returns-value"
"""Places of root's, and what a user of the host may change about them: three judges must say the same of each."""

from __future__ import annotations

import contextlib
import grp
import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fuzz.test_lying_file_systems import shown_as_root_s
from two_users import User


class Place(NamedTuple):
    """A folder and a tool of root's in it, as they are before a case changes them."""

    folder: Path
    tool: Path
    alice: User
    closing: contextlib.ExitStack


def _upwards(place: Place, owner: int = 0) -> Path:
    """``there`` leads to a folder elsewhere: what lies above that one is not what lies above the link."""
    for name in ("deep/inner", "deep/other"):
        (place.folder / name).mkdir(parents=True)
    (place.folder / "there").symlink_to("deep/inner")
    os.chown(place.folder / "deep" / "other", owner, 0)
    return place.folder / "there" / ".." / "other" / "tool"


def _group_of_the_systems(place: Place) -> str:
    """The name of a new one, in which nobody is; it may write to the folder."""
    number = str(next(gid for gid in range(99, 50, -1) if gid not in {group.gr_gid for group in grp.getgrall()}))
    name = f"low{number}"
    subprocess.run(["groupadd", "--gid", number, name], check=True)
    place.closing.callback(subprocess.run, ["groupdel", name], check=False)
    place.folder.chmod(0o775)
    os.chown(place.folder, 0, int(number))
    return name


def _in_a_group_of_the_systems(place: Place, *, second_row: bool = False) -> None:
    """``second_row``: another name has the number too, and the first one that is found has no members."""
    joined = _group_of_the_systems(place)
    if second_row:
        number, joined = joined.removeprefix("low"), f"twice{joined}"
        subprocess.run(["groupadd", "--non-unique", "--gid", number, joined], check=True)
        place.closing.callback(subprocess.run, ["groupdel", joined], check=False)
    subprocess.run(["usermod", "--append", "--groups", joined, place.alice.name], check=True)


def _that_gets_in(place: Place, *options: str) -> None:
    """An administrator (-A) adds members, herself too; newgrp(1) asks /etc/gshadow for members (-M), and strangers for a password."""
    who = [option.replace("alice", place.alice.name) for option in options]
    subprocess.run(["gpasswd", *who, _group_of_the_systems(place)], check=True)


def _with_a_password(place: Place, password: str) -> None:
    subprocess.run(["groupmod", "--password", password, _group_of_the_systems(place)], check=True)


def _answered_by_their_program(place: Place) -> Path:
    behind = place.folder / "behind"
    behind.mkdir()
    (behind / "tool").write_text("")
    place.closing.enter_context(shown_as_root_s(place.alice, behind))
    return place.alice.home / "tool"


def _with_a_list(place: Place, *named: tuple[int, int, int], group: int = 5, mask: int = 7) -> None:
    """A POSIX access list. Source: linux/posix_acl_xattr.h."""
    place.folder.chmod(0o775 if mask & 2 else 0o755)
    entries = ((1, 7, -1), (4, group, -1), *named, (16, mask, -1), (32, 5, -1))
    data = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in sorted(entries))
    os.setxattr(place.folder, "system.posix_acl_access", data)


def _theirs(place: Place) -> None:
    os.chown(place.folder, place.alice.uid, 0)


def _linked(place: Place, target: Path, owner: int = 0) -> None:
    place.tool.unlink()
    place.tool.symlink_to(target)
    os.chown(place.tool, owner, 0, follow_symlinks=False)


HASH = "$6$kjNqDdLpIxl.5UEB$" + 86 * "x"
USER, GROUP = 2, 8
"""Kinds of entries of a list."""
LAID: dict[str, tuple[Callable[[Place], object], bool]] = {
    "as it is": (lambda at: None, False),
    "nothing there": (lambda at: at.tool.unlink(), False),
    "as in /tmp": (lambda at: at.folder.chmod(0o1777), False),
    "root's group": (lambda at: at.folder.chmod(0o775), False),
    "an empty group of the system's": (lambda at: (at.folder.chmod(0o2775), os.chown(at.folder, 0, 50)), False),
    "a list that lets nobody write": (lambda at: _with_a_list(at, (USER, 5, at.alice.uid), mask=5), False),
    "a list that names root": (lambda at: _with_a_list(at, (USER, 7, 0)), False),
    "a list by which root's group writes": (lambda at: _with_a_list(at, (USER, 5, at.alice.uid), group=7), False),
    "up behind a link": (_upwards, False),
    "their file": (lambda at: os.chown(at.tool, at.alice.uid, 0), True),
    "their folder": (_theirs, True),
    "nothing in their folder": (lambda at: (at.tool.unlink(), _theirs(at)), True),
    "their link": (lambda at: _linked(at, Path("/bin/sh"), at.alice.uid), True),
    "links in a circle": (lambda at: _linked(at, at.tool), True),
    "everybody's folder": (lambda at: at.folder.chmod(0o777), True),
    "everybody's file": (lambda at: at.tool.chmod(0o777), True),
    "a folder as /tmp is asked for": (lambda at: (at.tool.unlink(), at.tool.mkdir(), at.tool.chmod(0o1777)), True),
    "a group without a name": (lambda at: (at.folder.chmod(0o775), os.chown(at.folder, 0, 54321)), True),
    "their group": (lambda at: (at.folder.chmod(0o775), os.chown(at.folder, 0, at.alice.gid)), True),
    "a group of the system's that they are in": (_in_a_group_of_the_systems, True),
    "a group of the system's whose second row": (lambda at: _in_a_group_of_the_systems(at, second_row=True), True),
    "a group that they administer": (lambda at: _that_gets_in(at, "-A", "alice"), True),
    "a group that root administers": (lambda at: _that_gets_in(at, "-A", "root", "-M", "root"), False),
    "a group with a password": (lambda at: _with_a_password(at, HASH), True),
    "a group whose password is locked": (lambda at: _with_a_password(at, f"!{HASH}"), False),
    "a list": (lambda at: _with_a_list(at, (USER, 7, at.alice.uid)), True),
    "a list that names their group": (lambda at: _with_a_list(at, (GROUP, 7, at.alice.gid)), True),
    "a list that names a system's group and theirs": (
        lambda at: _with_a_list(at, (GROUP, 7, 50), (GROUP, 7, at.alice.gid)),
        True,
    ),
    "up behind a link to theirs": (lambda at: _upwards(at, at.alice.uid), True),
    "a program of theirs answers": (_answered_by_their_program, True),
}
UNREADABLE = ("a list that names root", "a list by which root's group writes")
"""What a shell refuses, and says why, where no program reads the list to it."""
