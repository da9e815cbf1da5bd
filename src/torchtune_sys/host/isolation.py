"""Protect the tool's imports, and the programs that it starts as root, from the caller's environment and working directory.

Runs before the tool's own modules are found, so at its top it imports only what Python itself has loaded by then. What Python does before
the tool's first line (PYTHONPATH's sitecustomize, LD_PRELOAD) no program can take back: it is for who starts Python to leave them out.
"""

import os
import sys

from torchtune_sys.host.trust import distrust

SET_ASIDE = "TORCHTUNE_SYS_SESSION_"
"""Before the names of variables that belong to the session that is judged, and must not steer this process."""
_STEERING = (
    "LD_",
    "PYTHON",
    "GLIBC_",
    "GCONV_",
    "OPENSSL_",
    "MALLOC_",
    "TMPDIR",
    "TMP",
    "TEMP",
    "TZDIR",
    "LOCPATH",
    "HOSTALIASES",
)
_SLOWING = ("PYTHONDEVMODE", "PYTHONMALLOC", "PYTHONTRACEMALLOC", "PYTHONASYNCIODEBUG")
"""With these Python checks each allocation, or each step of its event loop, from its start on: what this process measures would be its own slowness."""
_DIRECTORIES = ("LD_LIBRARY_PATH", "PYTHONPATH")
TEMPORARY = ("TMPDIR", "TMP", "TEMP")
"""Variables that may name a directory that everybody may write to: who makes a file there makes a new one."""
_OF_PLACES = (*TEMPORARY, "PATH", "PREFIX", "BASE", "HOME", "DIR", "CONF", "MODULES", "ENGINES", "ALIASES")
"""How the names of variables end whose value is a place also without a slash: one in the working directory."""
_RESTART = "import sys; sys.path.insert(0, sys.argv[1]); del sys.argv[1]; import torchtune_sys; del sys.path[0]; from torchtune_sys.__main__ import main; main()"
START_APART = (
    "import sys; here = [entry for entry in sys.path[:1] if not entry]; del sys.path[: len(here)]; "
    "from torchtune_sys.__main__ import main; sys.path[:0] = here; main()"
)
"""For ``python -c``: starts the program as ``-m torchtune_sys`` does, but that a package of this name in the working directory is not it."""
_NEEDED = "click"
"""A package that we need: where it is found, the others are, too."""

session_path: "list[str]" = []
"""sys.path as Python made it for this session."""
session_status: "list[str]" = []
"""/proc/self/status as the session handed it down, where that was changed since."""


def session() -> "dict[str, str]":
    """Return the environment as the caller gave it. Others than what is set aside keep their values: nobody makes up who called sudo."""
    env = dict(os.environ)
    for name in [name for name in env if name.startswith(SET_ASIDE)]:
        value, own = env.pop(name), name[len(SET_ASIDE) :]
        if own.startswith(_STEERING):
            env[own] = value
    return env


def hear_of_children() -> None:
    """Hear how children end also where the session ignores SIGCHLD: the kernel forgets that then, and each seems to have ended well (wait(2), NOTES)."""
    import _signal  # type: ignore[import-not-found]

    if _signal.getsignal(_signal.SIGCHLD) == _signal.SIG_IGN:
        try:
            with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
                session_status.append(file.read())
        except OSError:
            session_status.append("")
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)


def leave_children_unheard() -> None:
    """Take that back for a program that takes this one's place."""
    import signal

    if session_status:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def isolate() -> None:
    """Drop the working directory, PYTHONPATH and the user's site directory from where modules are looked for; start again where Python was asked to check
    itself, and as root where others than root can change what this process was started with. Standard streams that the caller closed lead nowhere."""
    session_path[:] = sys.path
    _name_what_runs()
    own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    offered = _offered()
    sys.path[:] = [entry for entry in sys.path if entry not in offered]
    _set_aside(own, offered, is_root=os.geteuid() == 0)
    _complete(own, offered)
    _fill_streams()


def _name_what_runs() -> None:
    """From 3.11 on PYTHONEXECUTABLE and __PYVENV_LAUNCHER__ name Python, even isolated: what is started again, or as a child, would be a caller's.
    Source: getpath.py."""
    started, runs = sys.orig_argv[0], "/proc/self/exe"
    own = os.path.abspath(started) if "/" in started else getattr(sys, "_base_executable", "")
    if _same(own, runs) and ("/" in started or not _same(sys.executable, runs)):
        sys.executable = own


def _same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


def _fill_streams() -> None:
    """Open nothing in the place of each closed stream: the next file that is opened would take its number, and what a library or the loader
    of a child writes to that stream would stand in the file. Python knows by now which are closed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _offered() -> "list[str]":
    """Entries of sys.path that come from the caller and not from the installation, in their order."""
    if sys.flags.isolated:
        return []
    found = [""] if getattr(sys.flags, "safe_path", False) else ["", *sys.path[:1]]
    if not sys.flags.ignore_environment:
        named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        found += [*named, *map(os.path.abspath, named)]
    site = sys.modules.get("site")
    if getattr(site, "ENABLE_USER_SITE", None):
        found.append(getattr(site, "USER_SITE", None) or "")
    return [entry for entry in sys.path if entry in found and entry not in _standard_library()]


def _standard_library() -> "tuple[str, str]":
    """Where Python itself lies: on PYTHONPATH, too, it is not the caller's."""
    library = os.path.dirname(os.__file__)
    return library, library + "/lib-dynload"


def _complete(own: str, offered: "list[str]") -> None:
    """Complete the module path with the tool's own directory, and, where that does not bring what it needs, what else the caller offered: behind the standard library."""
    first = [] if own in sys.path or not _missing("torchtune_sys", sys.path) else [own]
    named = offered or session().get("PYTHONPATH", "").split(os.pathsep)
    rest = [entry for entry in named if entry not in (own, "")] if _missing(_NEEDED, sys.path + first) else []
    if os.geteuid() == 0:
        rest = [entry for entry in rest if not distrust(entry)]
    if first or rest:
        behind = max((at for at, entry in enumerate(sys.path) if entry in _standard_library()), default=-1) + 1
        sys.path[behind:behind] = [*first, *rest]


def _missing(package: str, path: "list[str]") -> bool:
    return not any(os.path.isdir(os.path.join(entry, package)) for entry in path if entry)


def _set_aside(own: str, offered: "list[str]", *, is_root: bool) -> None:
    """Leave out the variables that slow this process, and as root those that let others than root steer it; of those that Python and the loader obeyed at
    the start only a new start is rid: as this one was started, with all its options, or, where others steered it, without what they say."""
    obeyed = () if sys.flags.ignore_environment else _SLOWING
    # What is set aside and there again was set by what runs at each start.
    slowing = [name for name in obeyed if os.environ.get(name) and SET_ASIDE + name not in os.environ]
    rest = [name for name in os.environ if name.startswith(_STEERING) and name not in slowing] if is_root else []
    foreign = [name for name in rest if _is_foreign(name, os.environ[name])]
    user_site = is_root and any(entry.endswith("-packages") and distrust(entry) for entry in offered)
    for name in (*slowing, *foreign):
        os.environ[SET_ASIDE + name] = os.environ.pop(name)
    steered = user_site or any(name.startswith(("LD_", "PYTHON", "GLIBC_")) for name in foreign)
    if sys.executable and (slowing or steered):
        again = ["-I", *(["-B"] if sys.flags.dont_write_bytecode else []), "-c", _RESTART, own, *sys.argv[1:]]
        try:
            os.execv(sys.executable, [sys.executable, *(again if steered and not sys.flags.isolated else sys.orig_argv[1:])])
        except OSError:  # slow is better than not at all
            if steered:
                raise


def _is_foreign(name: str, value: str) -> bool:
    """Whether a variable names what others than root decide. In a list of directories the empty name stands for the working directory, too
    (ld.so(8)); in one that everybody may write to they decide which library is found, but not what becomes of temporary files."""
    if name in _DIRECTORIES:
        return bool(value) and any(_distrusted(entry) for entry in value.replace(";", ":").split(":"))
    words = value.replace("=", ":").replace(",", ":").replace(" ", ":").replace(";", ":").split(":")
    shared = name in TEMPORARY
    return any(
        _distrusted(word, shared) or _distrusted("/" + word.partition("/")[2], shared)
        for word in words
        if "/" in word or (word and name.endswith(_OF_PLACES))
    )


def _distrusted(place: str, may_be_shared: bool = False) -> bool:
    try:
        return bool(distrust(os.path.abspath(place), may_be_shared=may_be_shared))
    except FileNotFoundError:  # the working directory is gone
        return True
