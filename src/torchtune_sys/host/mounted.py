"""Find which user mounted a file system: what its files say of their owner is up to them.

Used before the tool's own modules are found, as ``trust``, so it imports no more at its top.
"""

import os


def served_by_users(mountinfo: "str | None" = None) -> "dict[str, int]":
    """Return where a program of a user's, not root's, answers for a file system (FUSE), and which user's.

    >>> served_by_users("37 35 0:45 / /home/a/x\\\\040y rw - fuse.sshfs a@b: rw,user_id=1000,group_id=1000\\n38 35 0:46 / /s rw - fuse.s3fs s rw,user_id=0")
    {'/home/a/x y': 1000}
    """
    try:
        text = mount_table() if mountinfo is None else mountinfo
    except OSError:
        return {}
    found = [(point, _fuse_user(kind, options)) for _, point, _, kind, options in _mounts(text)] if ",user_id=" in text else []
    return {point: user[0] for point, user in found if user}


def mount_table() -> str:
    """Return /proc/self/mountinfo, in which names are as Python has them of paths, also where they are no text. Raises OSError."""
    return _read_names("/proc/self/mountinfo")


def _read_names(path: str) -> str:
    with open(path, "rb") as file:
        return os.fsdecode(file.read())


def _mounts(table: str) -> "list[tuple[str, str, str, str, str]]":
    """Return the number, point and options of each mount, and its file system's kind and options (proc(5)).

    What parses all of a line for the probes, formats.mounts, is not loaded where this is asked.
    """
    found = []
    for line in table.split("\n"):  # who mounts something names it, and splitlines() knows ten other ends of a line
        before, _, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if len(left) > 5 and len(right) > 2:
            point = left[4]
            found.append((left[0], _plain(point), left[5], right[0], right[2]))
    return found


def _plain(point: str) -> str:
    for code, sign in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(code, sign)
    return point


def mounted_by_users(utab: "str | None" = None) -> "dict[str, tuple[int, int]]":
    """Return where mount(8) mounted something for a user, as /etc/fstab may allow (``user``, ``users``), and which user's and group's it is.

    >>> mounted_by_users("SRC=/dev/loop0 TARGET=/mnt/a\\\\040b ROOT=/ OPTS=user=nobody\\nSRC=x TARGET=/y OPTS=uhelper=z")
    {'/mnt/a b': (65534, 65534)}
    """
    try:
        utab = _read_names("/run/mount/utab") if utab is None else utab
    except OSError:
        return {}
    found = {}
    for line in utab.split("\n"):
        words = dict(word.partition("=")[::2] for word in line.split(" "))
        options = dict(option.partition("=")[::2] for option in words.get("OPTS", "").split(","))
        user = _user_of_name(options.get("user", ""))
        if user:
            found[_plain(words.get("TARGET", ""))] = user
    return found


def _fuse_user(kind: str, options: str) -> "tuple[int, int] | None":
    """Return the user and group whose program answers for a file system; None where it is root's, or the kernel answers."""
    told = dict(option.partition("=")[::2] for option in options.split(","))
    user = told.get("user_id", "0")
    if not kind.startswith("fuse") or not user.isdigit() or user == "0":
        return None
    return int(user), int(told.get("group_id", user))


_REMOVABLE = ("/media/", "/run/media/")
"""Where udisks2 mounts what a user plugged in, or made of a file of theirs, in a folder of the user's name. Source: udisks(8)."""


def may_be_mounted_by_a_user(place: str, info: os.stat_result) -> bool:
    """Tell whether it is worth a look: FUSE has no disk's number, and disks that a user may mount have their places."""
    return not os.major(info.st_dev) or place.startswith(_REMOVABLE)


def mounted_by(place: str) -> "tuple[int, int] | None":
    handle = os.open(place, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return mount_s_user(handle)
    finally:
        os.close(handle)


def mount_s_user(handle: int) -> "tuple[int, int] | None":
    """Return the user and group who mounted the file system of an open file; None where root did. What its files say of their owner is up to that user:
    a server of FUSE's, an image that udisks2 mounts. Source: fuse (kernel, filesystems/fuse.rst: user_id), proc(5): fdinfo, mountinfo.
    """
    try:
        with open(f"/proc/self/fdinfo/{handle}", encoding="ascii") as file:
            number = next(line.split()[1] for line in file if line.startswith("mnt_id:"))
        _, point, how, kind, options = next(mount for mount in _mounts(mount_table()) if mount[0] == number)
    except (OSError, StopIteration):
        return None  # the root of a chroot is in no list, and neither is anything without /proc
    user = _fuse_user(kind, options) or mounted_by_users().get(point)
    if user:
        return user
    if point.startswith(_REMOVABLE) and "nosuid" in how.split(","):
        return _user_of_name(point.partition("media/")[2].partition("/")[0])
    return None


def _user_of_name(name: str) -> "tuple[int, int] | None":
    import pwd

    try:
        entry = pwd.getpwnam(name) if name else None  # no directory service is asked for nobody, at each mount
    except (KeyError, ValueError):
        return None
    return (entry.pw_uid, entry.pw_gid) if entry and entry.pw_uid else None
