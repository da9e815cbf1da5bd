"""Find which users can change what lies at a path. Root must not run, load or obey files that others can change.

Used before the tool's own modules are found, so at its top it imports only what Python itself has loaded by then.
"""

import os
import stat

from torchtune_sys.host.mounted import may_be_mounted_by_a_user, mount_s_user, mounted_by, mounted_by_users, served_by_users

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


class Decision:
    """What was looked at for one decision about several paths, most of which share their first steps. It must live no longer than that one: what
    a step is may change."""

    def __init__(self) -> None:
        self.system = system_users()
        self.infos: dict[str, os.stat_result] = {}
        self.passed: set[tuple[str, bool, frozenset[int]]] = set()
        """Steps that nobody but the users named here decides, by whether the sticky bit counts."""
        self.mounted: dict[int, tuple[int, int] | None] = {}
        self.served = served_by_users() if os.geteuid() == 0 else {}
        self.allowed = tuple(f"{point}/" for point in mounted_by_users())
        self.private: dict[tuple[int, int], bool] = {}
        """By group and owner; in a list of 100,000 groups each look takes long."""

    def lstat(self, place: str) -> os.stat_result:
        """Return what lstat(2) says, the owner being who mounted the file system, where a user did. Raises OSError, as root also where a user's program would
        answer: it may never do so, and who waits for it cannot be killed."""
        info = self.infos.get(place)
        if info is None:
            if place in self.served:
                raise OSError(_DENIED, f"was mounted by user {user_name(self.served[place])}", place)
            info = os.lstat(place)
            if may_be_mounted_by_a_user(place, info) or f"{place}/".startswith(self.allowed):
                if info.st_dev not in self.mounted:
                    self.mounted[info.st_dev] = mounted_by(place)
                info = _owned_by(info, self.mounted[info.st_dev])
            self.infos[place] = info
        return info


_DENIED = 13
"""EACCES."""


def owner(handle: int, place: str) -> int:
    """Return the owner of what is open here: who mounted its file system, where a user did. Raises OSError."""
    info = os.fstat(handle)
    found = mount_s_user(handle) if may_be_mounted_by_a_user(place, info) or mounted_by_users() else None
    return info.st_uid if found is None else found[0]


def _owned_by(info: os.stat_result, user: "tuple[int, int] | None") -> os.stat_result:
    return info if user is None or info.st_uid == user[0] else os.stat_result((*info[:4], *user, *info[6:10]))


def steps(path: str, seen: "Decision | None" = None) -> "list[tuple[str, os.stat_result]]":
    """Return every directory, symbolic link and file that is passed on the way to an absolute path, with what lstat(2) says of it.

    Raises OSError, of which ``filename`` is the step that is not there or cannot be seen.
    """
    lstat = (seen or Decision()).lstat
    found = [("/", lstat("/"))]
    place, todo, links = "/", path.split("/")[::-1], 0
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            place = os.path.dirname(place)
            continue
        here = f"{place}/{part}" if place != "/" else f"/{part}"
        info = lstat(here)
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


def out_of_reach(path: str) -> str:
    """Return why this user cannot follow the links at ``path`` to their end, as those of a virtual environment; "" where it can."""
    try:
        steps(path)
    except PermissionError as error:
        return f"it leads into {os.path.dirname(error.filename or path)}, which this user may not enter"
    except FileNotFoundError as error:
        return f"it leads to {error.filename}, which is gone" if os.path.islink(path) else ""
    except OSError:
        pass
    return ""


def distrust(
    path: str,
    users: "frozenset[int] | None" = None,
    *,
    may_be_shared: bool = False,
    seen: "Decision | None" = None,
) -> str:
    """Say why others than ``users`` (the system's alone, if None) decide what lies at a path; "" where they do not.

    Directories that everybody may write to, but where nobody may replace another's file (the sticky bit, /tmp), are passed; the path itself
    may be one only where ``may_be_shared``. A path that is not there is judged by who could make it.
    """
    if not path.startswith("/"):
        return f"{path} is not an absolute path"
    seen = seen or Decision()
    allowed = seen.system | (users or frozenset())
    try:
        passed = steps(path, seen)
    except FileNotFoundError as error:
        return _who_could_make(error.filename, allowed, seen)
    except OSError as error:
        return f"{error.filename or path}: {error.strerror}"
    last = len(passed) - 1
    for number, (place, info) in enumerate(passed):
        step = (place, number < last or may_be_shared, allowed)
        if step not in seen.passed:
            reason = _distrusted(place, info, allowed, seen.private, sticky_helps=step[1])
            if reason:
                return reason
            seen.passed.add(step)
        if _holds_what_is_users(place, info):
            allowed -= {_unmapped()}
    return ""


def _holds_what_is_users(place: str, info: os.stat_result) -> bool:
    """Whether users make what lies there: in a namespace all whom it does not map go by one number, the host's root and they."""
    shared = stat.S_ISVTX | stat.S_IWOTH
    return place == "/home" or (stat.S_ISDIR(info.st_mode) and info.st_mode & shared == shared)


def _unmapped() -> int:
    """Return the number of users whom a user namespace does not map (user_namespaces(7)); -1 where it maps all."""
    try:
        with open("/proc/self/uid_map", "rb") as file:
            mapped = sum(int(line.split()[2]) for line in file)
        with open("/proc/sys/kernel/overflowuid", "rb") as file:
            return int(file.read()) if mapped < _ALL_USERS else -1
    except (OSError, ValueError, IndexError):
        return _OVERFLOW


_ALL_USERS, _OVERFLOW = (1 << 32) - 1, 65534


def _who_could_make(path: str, allowed: "frozenset[int]", seen: Decision) -> str:
    above = os.path.dirname(path)
    reason = distrust(above, allowed, seen=seen)
    return f"{path} is not there, and {reason}" if reason else ""


def _distrusted(
    place: str, info: os.stat_result, allowed: "frozenset[int]", private: "dict[tuple[int, int], bool]", *, sticky_helps: bool
) -> str:
    if info.st_uid not in allowed:
        return f"{place} belongs to user {user_name(info.st_uid)}"
    if stat.S_ISLNK(info.st_mode) or not others_may_write(place, info, allowed, private):
        return ""
    if sticky_helps and stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX:
        return ""
    return f"others may write to {place}"


def others_may_write(
    place: str,
    info: os.stat_result,
    allowed: "frozenset[int]" = frozenset(),
    private: "dict[tuple[int, int], bool] | None" = None,
) -> bool:
    """Say whether anybody but the owner, root and ``allowed`` may: a group of which the owner is the only member is nobody else.

    Where there is a POSIX access list (acl(5)), the group's bits are what the list gives to anybody it names at most. One of NFSv4 may give
    more than the bits say. ``private``: what was found of groups and owners in the same decision.
    """
    private = {} if private is None else private
    if info.st_mode & stat.S_IWOTH or _nfs_list_lets_write(place):
        return True
    if not info.st_mode & stat.S_IWGRP:
        return False
    users = allowed | {info.st_uid, 0}
    kinds = (NAMED_USER, GROUP_OWNER, NAMED_GROUP)
    writers = [(tag, number) for tag, permission, number in access_list(place) if permission & 2 and tag in kinds]
    for tag, number in writers or ((GROUP_OWNER, info.st_gid),):
        if tag == NAMED_USER and number not in users:
            return True
        group = info.st_gid if tag == GROUP_OWNER else number
        if tag in (GROUP_OWNER, NAMED_GROUP):
            if (group, info.st_uid) not in private:
                private[group, info.st_uid] = _is_private_group(group, info.st_uid)
            if not private[group, info.st_uid]:
                return True
    return False


_POSIX_LIST, _NFS_LIST = "system.posix_acl_access", "system.nfs4_acl"
NAMED_USER, GROUP_OWNER, NAMED_GROUP, MASK = 2, 4, 8, 16
_ENTRY = 8


def has_access_list(place: str, info: os.stat_result, *, nfs: bool) -> bool:
    """Say whether more than the permission bits decides who may write there. Without the group's bit no POSIX list lets anybody write (acl(5),
    the mask); ``nfs``: whether its file system knows those of NFSv4."""
    posix = info.st_mode & stat.S_IWGRP and _attribute(place, _POSIX_LIST)
    return bool(posix or (nfs and _attribute(place, _NFS_LIST)))


def knows_nfs_lists(place: str) -> bool:
    """Say whether its file system has access lists of NFSv4: to ask it for each of a thousand files takes longer than all else about them."""
    try:
        os.getxattr(place, _NFS_LIST)
    except OSError as error:
        return error.errno != _NOT_SUPPORTED
    return True


_NOT_SUPPORTED = 95
"""EOPNOTSUPP; xattr(7)."""


def access_list(place: "str | int") -> "list[tuple[int, int, int]]":
    """Return the entries of a POSIX access list as kind, permission and number; none where there is no list. Source: linux/posix_acl_xattr.h."""
    data = _attribute(place, _POSIX_LIST)

    def number(start: int, size: int) -> int:
        return int.from_bytes(data[start : start + size], "little")

    return [(number(at, 2), number(at + 2, 2), number(at + 4, 4)) for at in range(4, len(data) - _ENTRY + 1, _ENTRY)]


_ALLOW, _INHERIT_ONLY = 0, 0x8
_NFS_WRITES = 0x2 | 0x4 | 0x40 | 0x40000 | 0x80000
"""Write or add a file, append or add a directory, delete what is in it, change the list, change the owner: RFC 7530, 6.2.1.3.1."""
_IN_THE_BITS = (b"OWNER@", b"GROUP@", b"EVERYONE@")


def _nfs_list_lets_write(place: str) -> bool:
    """Whether a list of NFSv4 names anybody but root who may write: the bits of the mode need not tell (RFC 7530, 6.3.2)."""
    data = _attribute(place, _NFS_LIST)
    at = 4
    while at + 16 <= len(data):
        kind, flags, mask, length = (int.from_bytes(data[at + 4 * word : at + 4 * word + 4], "big") for word in range(4))
        who = data[at + 16 : at + 16 + length]
        at += 16 + (length + 3) // 4 * 4
        named = who not in _IN_THE_BITS and who.partition(b"@")[0] not in (b"root", b"0")
        if kind == _ALLOW and named and mask & _NFS_WRITES and not flags & _INHERIT_ONLY:
            return True
    return False


def _attribute(place: "str | int", name: str) -> bytes:
    try:
        return os.getxattr(place, name) if isinstance(place, int) else os.getxattr(place, name, follow_symlinks=False)
    except OSError:
        return b""


def _is_private_group(gid: int, owner: int) -> bool:
    """Tell whether a group is private: named as its only member, as most distributions make one for each user, or one of the system without members. Several
    rows may have one number, as of a group that is too long for one: getgrgid(3) gives the first; who is in any has it (getgrouplist(3)). Of two groups of one name the first alone is the user's."""
    import grp
    import pwd

    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return gid == owner
    name = user_name(owner)
    is_theirs = group.gr_name == name and grp.getgrnam(name).gr_gid == gid
    if (gid >= _SYSTEM_GROUPS and not is_theirs) or any(member != name for member in group.gr_mem):
        return False
    others = [entry for entry in pwd.getpwall() if entry.pw_uid not in (owner, 0)]
    # Whose first group it is, or who goes by a name that is passed over.
    if any(entry.pw_gid == gid or entry.pw_name in (name, "root") for entry in others):
        return False
    rows = [group, *(row for row in grp.getgrall() if row.gr_gid == gid)]
    told = [(row.gr_passwd or "", row.gr_mem) for row in rows] + _of_gshadow({row.gr_name for row in rows})
    return not any(_is_password(password) or set(people) - {name, "root", ""} for password, people in told)


def _of_gshadow(groups: "set[str]") -> "list[tuple[str, list[str]]]":
    """Return groups' passwords, and who may add members or enter without a password (gpasswd(1), newgrp(1)); nothing where it cannot be read."""
    try:
        with open("/etc/gshadow", encoding="utf-8", errors="surrogateescape") as file:
            rows = [row.split(":") for row in file.read().split("\n")]
    except OSError:
        return []
    return [(row[1], ",".join(row[2:]).split(",")) for row in rows if row[0] in groups and len(row) > 1]


def _is_password(text: str) -> bool:
    """Whether it lets anybody in who knows it: at least a hash of DES, not locked. Source: crypt(5), gshadow(5)."""
    return len(text) > 12 and text[0] not in "!*"


def user_name(uid: int) -> str:
    """Return the name of a user, or the number where there is none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
