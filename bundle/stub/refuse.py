"""What is asked of the self-contained file itself, and what it says to an interpreter it is not for. Python 2.7 must be able to read it."""

import os
import stat
import sys
import zipimport

WANTED = ""  # the interpreters this file is for, in words


def say(words):
    """End with one line. Monitoring reads standard output, and would take our 2 for CRITICAL."""
    if "nagios" in " ".join(sys.argv):
        sys.stdout.write("TORCHTUNE-SYS UNKNOWN - %s\n" % words.replace("|", "/"))
        sys.exit(3)
    sys.stderr.write("torchtune-sys: %s\n" % words)
    sys.exit(2)


def content(start, name):
    """An entry of the archive. ``start`` is __main__, here and below: whoever is started calls, and is not imported."""
    try:
        return zipimport.zipimporter(start.FILE).get_data(name)
    except Exception as error:  # whatever a damaged archive makes it raise
        say("%s is damaged (%s); copy the file again, whole" % (start.FILE, error))


def other(start):
    """Never returns: what the file holds, or for another interpreter a better one, or a word."""
    if sys.argv[1:2] == ["--bundle-info"]:
        sys.stdout.write(content(start, "info.json").decode("utf-8"))
        sys.exit(0)
    better = another(start)
    if better and getattr(sys.flags, "isolated", 0) and sys.flags.no_site:  # the shell took the first python3 it found
        os.execv(better, [better, "-IS", start.FILE] + sys.argv[1:])
    if os.uname()[4] != start.MACHINE:
        do = "use the file made for %s" % os.uname()[4]
    elif better:
        do = "run: %s %s" % (better, start.FILE)  # a secret may stand among the arguments
    else:
        do = "install one and run: /path/to/python3 %s" % start.FILE
    say("%s is %s; this file needs a %s: %s" % (sys.executable or "the interpreter", seen(start), WANTED, do))


def seen(start):
    """This interpreter in words: what of it does not fit first."""
    version = "%d.%d.%d" % sys.version_info[:3]
    name = getattr(getattr(sys, "implementation", None), "name", "pypy" if "PyPy" in sys.version else "cpython")
    if name != "cpython":
        return "%s %s" % ({"pypy": "PyPy"}.get(name, name), version)
    kind = []
    if sys.maxsize <= 1 << 32:
        kind.append("a 32-bit build")
    elif os.uname()[4] != start.MACHINE:
        kind.append("on %s" % os.uname()[4])
    flags = getattr(sys, "abiflags", "")
    if "d" in flags:
        kind.append("a debug build")
    if "t" in flags:
        kind.append("a free-threaded build")
    if "musl" in suffix():
        kind.append("built for musl libc")
    return "Python %s%s" % (version, " (%s)" % ", ".join(kind) if kind else "")


def suffix():
    try:
        from _imp import extension_suffixes

        return (extension_suffixes() or [""])[0]
    except ImportError:
        return ""


def another(start):
    """The path of an interpreter that will do, or None."""
    import subprocess

    names = ["python3"] + ["python3.%d" % minor for minor in range(30, 9, -1)]
    folders = [path for path in os.environ.get("PATH", "").split(":") if path] + ["/usr/bin", "/usr/local/bin"]
    code = "import _imp,sys; sys.exit((_imp.extension_suffixes() or [''])[0] not in %r)" % (sorted(start.PYTHONS),)
    with open(os.devnull, "r+") as null:
        for path in [os.path.join(folder, name) for name in names for folder in folders]:
            usable = os.access(path, os.X_OK) and (os.geteuid() or only_roots(path))
            if usable and not subprocess.call([path, "-IS", "-c", code], stdin=null, stdout=null, stderr=null):
                return path
    return None


def only_roots(path):
    """Whether nobody but root decides what lies there; start.sh asks the same of the first python3."""
    owners = [0] + [os.lstat(folder).st_uid for folder in ("/", "/proc") if os.path.exists(folder)]
    place, todo, left = "", path.split("/")[::-1], 200
    try:
        while left and os.path.isabs(path):
            left -= 1
            info = os.lstat(place or "/")
            sticky = stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX
            link = stat.S_ISLNK(info.st_mode)
            if info.st_uid not in owners or (info.st_mode & 0o022 and not sticky and not link):
                return False
            if link:
                target = os.readlink(place)
                place = "" if os.path.isabs(target) else os.path.dirname(place).rstrip("/")
                todo += target.split("/")[::-1]
            while todo and todo[-1] in ("", ".", ".."):
                if todo.pop() == "..":
                    place = os.path.dirname(place).rstrip("/")
            if not todo:
                return True
            place += "/" + todo.pop()
    except OSError:
        pass
    return False
