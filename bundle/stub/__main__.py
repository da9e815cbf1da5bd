"""The first thing a Python sees of the self-contained file: find what it unpacked before, and run that.

Python 2.7 must be able to read this file, and it is compiled at every start: it is short, and whatever is not needed for
that lies beside it.
"""

import os
import sys
import time

ID = ""  # the version, and a hash of everything packed
PYTHONS = {}  # what this interpreter calls its extension modules → the folder with those that were built for it
MACHINE = ""
SHARED = ["/tmp", "/var/tmp", "/dev/shm"]
NOEXEC = 8  # ST_NOEXEC of statvfs(3)
DAY_S = 86400
FILE = os.path.dirname(__file__)


def places():
    """Folders of our own, the best first. Only their last part is not followed where it is a symbolic link."""
    env, uid = os.environ, os.geteuid()
    homes = [env.get("XDG_CACHE_HOME", ""), env.get("HOME", "") and os.path.join(env["HOME"], ".cache")]
    shared = [env.get("TMPDIR", "")] + SHARED
    found = [env.get("TORCHTUNE_SYS_CACHE", "").rstrip("/")]
    found += [os.path.join(home, "torchtune-sys") for home in homes + ([] if uid else ["/var/cache"])]
    found += [os.path.join(folder, "torchtune-sys-%d" % uid) for folder in shared]
    points = [] if uid else by_users()
    for paths in (found, unusual("torchtune-sys-%d-" % uid)):
        for path in paths:
            above, name = os.path.split(path)
            if os.path.isabs(path) and name and not below(path, points):  # a user's program may never answer there
                place = os.path.join(os.path.realpath(above), name)
                if not below(place, points) and ours(place):
                    yield place


def unusual(beginning):
    """Made where somebody else has the usual name."""
    for folder in SHARED:
        if os.access(folder, os.R_OK):
            for name in sorted(os.listdir(folder)):
                if name.startswith(beginning):
                    yield os.path.join(folder, name)


def ours(place):
    """Whether it is a folder of ours or root's, or not there: nothing is looked for in another's, who may lead anywhere by a link."""
    try:
        info = os.lstat(place)
    except (IOError, OSError):
        return True
    return info.st_mode & 0o170000 == 0o040000 and info.st_uid in (0, os.geteuid())


def distrust(place):
    """Why others could put code of theirs there, or None. The path has no symbolic link."""
    uid = os.geteuid()
    # In a user namespace the host's root may go by another number: the owner of / and /proc.
    trusted = [0, uid] + [os.lstat(path).st_uid for path in ("/", "/proc") if os.path.exists(path)]
    path, owners, sticky = place, [0, uid], 0
    while True:
        info = os.lstat(path)
        if info.st_mode & 0o170000 != 0o040000:
            return "%s is no directory" % path
        if info.st_uid not in owners:
            return "%s belongs to user %d" % (path, info.st_uid)
        # Not root's: its group may have members, and the group's bit stands for whom an access list names.
        private = info.st_gid == info.st_uid == uid != 0 and not info.st_mode & 0o002
        if info.st_mode & 0o022 and not info.st_mode & sticky and not private:
            return "others may write to %s" % path
        if path == "/":
            break
        path, owners, sticky = os.path.dirname(path), trusted, 0o1000
    point = None if uid else below(place, by_users())
    return point and "%s was mounted by a user" % point


def below(path, points):
    """The one of these folders in which a path lies, or None."""
    for point in points:
        if (path + "/").startswith(point + "/"):
            return point
    return None


def by_users():
    """Where files may say of their owner what a user wants, who mounted the file system (FUSE, a disk by udisks2)."""
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            lines = [getattr(os, "fsdecode", str)(line).split(" ") for line in file]
    except (IOError, OSError):
        return []
    found = []
    for fields in lines:
        point, options = fields[4], fields[-1].strip().split(",")
        for code, sign in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
            point = point.replace(code, sign)
        by_user = [word for word in options if word.startswith("user_id=") and word != "user_id=0"]
        plugged = point.startswith(("/media/", "/run/media/")) and "nosuid" in fields[5]
        if by_user or plugged:
            found.append(point)
    return found


def boot():
    """What changes when the machine starts anew: until then, what was written is what is read."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except (IOError, OSError):
        return "unknown"


def unpacked(tag):
    """The folder that was unpacked for this file and interpreter, and looked through since this boot, within a day; or None."""
    mark = os.path.join("%s-%s" % (ID, tag), ".checked", boot())
    noexec = None
    for place in places():
        try:
            age_s = time.time() - os.stat(os.path.join(place, mark)).st_mtime
            if not 0 <= age_s < DAY_S or distrust(place):
                continue
            folder = os.path.join(place, "%s-%s" % (ID, tag))
            if not os.statvfs(folder).f_flag & NOEXEC:
                return folder
            noexec = noexec or folder
        except OSError:
            continue
    return noexec


def main():
    """Run the tool in this process, or, where the environment could steer this one, in a process that nothing steers."""
    try:
        from _imp import extension_suffixes

        tag = PYTHONS.get((extension_suffixes() or [""])[0])
    except ImportError:
        tag = None
    if tag is None or sys.argv[1:2] == ["--bundle-info"]:
        import refuse

        refuse.other(sys.modules[__name__])
    folder = unpacked(tag)
    if folder is None:
        import unpack

        folder = unpack.unpack(sys.modules[__name__], tag)
    start = os.path.join(folder, "torchtune-sys")
    own = os.path.abspath(sys.orig_argv[0])
    if "/" in sys.orig_argv[0] and os.path.exists("/proc/self/exe") and os.path.samefile(own, "/proc/self/exe"):
        sys.executable = own  # PYTHONEXECUTABLE and __PYVENV_LAUNCHER__ give it another's name from 3.11 on, even with -I
    if (sys.flags.isolated and sys.flags.no_site) or not sys.executable:
        sys.path[:] = [entry for entry in sys.path if entry != FILE]
        with open(start) as file:
            exec(compile(file.read(), start, "exec"), {"__name__": "__main__", "__file__": start})
    else:
        before = len(sys.orig_argv) - len(sys.argv)
        options = sys.orig_argv[1:before] if sys.orig_argv[before] == sys.argv[0] else []
        os.execv(sys.executable, [sys.executable, "-IS"] + options + [start] + sys.argv[1:])


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
