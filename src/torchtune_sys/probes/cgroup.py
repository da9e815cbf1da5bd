"""Find the session's control groups, and the tightest limit among them and their parents.

Limits of cgroups hold for the whole branch: a session is bound by the minimum over its own group and every ancestor.
Sources: cgroups(7), cgroup_namespaces(7), Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why, fact, need

OWN = "/proc/self/cgroup"
MOUNTS = "/proc/self/mountinfo"

T = TypeVar("T")

FileNames = Mapping[int, tuple[str, ...]]
"""cgroup version (1 or 2) → the files of a directory that are read together."""


class CgroupMount(msgspec.Struct, frozen=True, kw_only=True):
    """One mounted cgroup hierarchy."""

    root: str
    """The cgroup that is visible at ``place``; with a cgroup namespace it may begin with ``/..``."""
    place: str
    version: int
    controllers: tuple[str, ...]
    """Of version 1: the controllers bound to this hierarchy."""


class CgroupBranch(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    directories: tuple[str, ...]
    """From the session's own cgroup up to the topmost one that is visible."""


def tightest(host: Host, controller: str, names: FileNames, parse: Callable[[tuple[str, ...]], float]) -> tuple[Fact[float], str]:
    """Return the least value over the session's cgroup and all its ancestors, and the file that sets it.

    ``parse`` gets the texts of ``names[version]`` in that order and may raise ValueError. ``inf`` with the source ``""`` where
    no ancestor sets a limit; Missing where one of them could not be read, since it may be the tightest.

    >>> from torchtune_sys.host.recorded import RecordedHost
    >>> host = RecordedHost({"files": {
    ...     "/proc/self/cgroup": "0::/a/b\\n",
    ...     "/proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\\n",
    ...     "/sys/fs/cgroup/a/pids.max": "100\\n", "/sys/fs/cgroup/a/b/pids.max": "max\\n"}}, "")
    >>> tightest(host, "pids", {2: ("pids.max",)}, lambda texts: parse_max(texts[0]))
    (100.0, '/sys/fs/cgroup/a/pids.max')
    """
    found = branch(host, controller)
    if isinstance(found, Missing):
        return (math.inf if found.why is Why.ABSENT else found), ""
    files = names.get(found.version)
    if files is None:
        return math.inf, ""
    least, source, read = math.inf, "", 0
    for directory in found.directories:
        texts = _texts(host, directory, files)
        if isinstance(texts, Missing):
            if texts.why is Why.ABSENT or (texts.why is Why.NOT_RECORDED and read and directory == found.directories[-1]):
                continue  # the root of version 2 has no limits, nor has a group whose parent does not hand the controller down
            return texts, ""
        read += 1
        try:
            value = parse(texts)
        except ValueError as error:
            return Missing(Why.UNPARSED, f"{directory}/{files[0]}", str(error)), ""
        if value < least:
            least, source = value, f"{directory}/{files[0]}"
    return (least if read else _without_files(host, found, least)), source


def nearest(host: Host, controller: str, names: FileNames) -> tuple[Fact[str], str]:
    """Return the text of the first file that exists, from the session's own cgroup upwards, and its path.

    For values that are inherited, as ``cpuset.cpus.effective``. ``names[version]`` are alternatives, the first one preferred.
    ABSENT where no group of the branch has the file; NOT_SUPPORTED where the branch itself is not visible.
    """
    found = branch(host, controller)
    if isinstance(found, Missing):
        return found, ""
    missing = Missing(Why.ABSENT, found.directories[0], "no ancestor has the file")
    for directory in found.directories:
        for name in names.get(found.version, ()):
            path = f"{directory}/{name}"
            content = host.text(path)
            if not isinstance(content, Missing):
                return content, path
            if content.why is not Why.ABSENT:
                missing = content
    return (_without_files(host, found, missing) if missing.why is Why.ABSENT else missing), ""


def _without_files(host: Host, seen: CgroupBranch, otherwise: T) -> T | Missing:
    """Return what a branch says that has none of the files, or that not even the session's own directory is there: the mount holds something else."""
    own = seen.directories[0]
    return otherwise if host.exists(own) is True else Missing(Why.NOT_SUPPORTED, own, "the session's cgroup is not visible here")


def counter(text: str, name: str) -> int | None:
    """Return the number on the line of this name, as memory.stat, memory.events, cpu.stat and /proc/vmstat have them; None without one.

    >>> counter("low 0\\noom_kill 3\\n", "oom_kill"), counter("oom_kill 3\\n", "oom")
    (3, None)
    """
    return next((natural(value) for line in text.splitlines() for key, _, value in [line.partition(" ")] if key == name), None)


def parse_max(text: str) -> float:
    """Return a version 2 limit: a number, or ``max``.

    >>> parse_max("max\\n"), parse_max("8589934592\\n")
    (inf, 8589934592.0)
    """
    word = text.strip()
    if word == "max":
        return math.inf
    value = int(word)
    if value < 0:
        raise ValueError(f"a negative limit: {word[:40]!r}")
    return float(min(value, 1 << 64))


@fact
def branch(host: Host, controller: str) -> Fact[CgroupBranch]:
    """Return the directories that bind the session for ``controller`` (``memory``, ``cpu``, ``pids`` …), and the cgroup version that holds it.

    Missing(ABSENT) where the kernel has no such controller: then nothing is limited by it. Missing(NOT_SUPPORTED) where a
    cgroup exists but its files cannot be seen from here.
    """
    text = host.text(OWN)
    if isinstance(text, Missing):
        return _old_cpuset(host) if controller == "cpuset" else text  # ABSENT: a kernel without cgroups
    own = parse_own(text)
    version = 1 if controller in own else 2
    path = own.get(controller if version == 1 else "")
    if path is None:
        return Missing(Why.ABSENT, OWN, f"no hierarchy has the controller {controller}")
    mounts = need(_mounts(host))
    return _branch(mounts, version, controller, path)


def _old_cpuset(host: Host) -> Fact[CgroupBranch]:
    """Kernels before 2.6.24, and recordings that lack /proc/self/cgroup, name the cpuset alone."""
    path, mounts = host.word("/proc/self/cpuset"), _mounts(host)
    if isinstance(path, Missing):
        return path
    if isinstance(mounts, Missing):
        return mounts
    first = _branch(mounts, 1, "cpuset", path)
    return _branch(mounts, 2, "cpuset", path) if isinstance(first, Missing) else first


def _branch(mounts: tuple[CgroupMount, ...], version: int, controller: str, path: str) -> Fact[CgroupBranch]:
    suitable = [m for m in mounts if m.version == version and (version == 2 or controller in m.controllers)]
    if not suitable:
        return Missing(Why.NOT_SUPPORTED, MOUNTS, f"the cgroup file system with {controller} is not mounted here")
    found = [directories for mount in suitable if (directories := _directories(mount, path))]
    if not found:
        return Missing(Why.NOT_SUPPORTED, OWN, f"the cgroup {path} lies outside of what is mounted at {suitable[0].place}")
    return CgroupBranch(version=version, directories=max(found, key=len))


def parse_own(text: str) -> dict[str, str]:
    """Parse /proc/self/cgroup: controller → path of the session's cgroup; version 2 has the key ``""``.

    >>> parse_own("4:cpu,cpuacct:/docker/ab\\n1:name=systemd:/\\n0::/init.scope\\n")
    {'cpu': '/docker/ab', 'cpuacct': '/docker/ab', 'name=systemd': '/', '': '/init.scope'}
    """
    found: dict[str, str] = {}
    for line in text.split("\n"):
        parts = line.split(":", 2)
        if len(parts) == 3 and parts[2].startswith("/"):
            for controller in parts[1].split(","):
                found.setdefault(controller, parts[2])
    return found


def parse_mountinfo(text: str) -> tuple[CgroupMount, ...]:
    """Return the cgroup hierarchies among the mounts of /proc/self/mountinfo (proc(5)).

    >>> [m.place for m in parse_mountinfo("36 31 0:33 /a /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\\n")]
    ['/sys/fs/cgroup/memory']
    """
    found: list[CgroupMount] = []
    for line in text.split("\n"):
        if " - cgroup" not in line:
            continue
        before, _, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if len(left) >= 6 and len(right) >= 3:
            found.append(_mount(left[3], left[4], right[0], right[2]))
    return tuple(found)


def parse_mounts(text: str) -> tuple[CgroupMount, ...]:
    """Return the cgroup hierarchies of /proc/mounts, for recordings that lack mountinfo; it does not tell the roots.

    >>> parse_mounts("cgroup /sys/fs/cgroup/cpuset cgroup rw,nosuid,cpuset 0 0\\n")[0].controllers
    ('rw', 'nosuid', 'cpuset')
    """
    found: list[CgroupMount] = []
    for line in text.split("\n"):
        parts = line.split(" ")
        if len(parts) >= 4 and parts[2] in ("cgroup", "cgroup2", "cpuset"):
            found.append(_mount("/", parts[1], parts[2], parts[3]))
    return tuple(found)


def _mount(root: str, place: str, kind: str, options: str) -> CgroupMount:
    # The "cpuset" file system of kernels before 2.6.24 lives on as a cgroup hierarchy whose files have no prefix.
    controllers = (*options.split(","), "cpuset") if kind == "cpuset" else tuple(options.split(","))
    return CgroupMount(
        root=_unescaped(root), place=_unescaped(place), version=2 if kind == "cgroup2" else 1, controllers=controllers
    )


def _mounts(host: Host) -> Fact[tuple[CgroupMount, ...]]:
    text = host.text(MOUNTS)
    if not isinstance(text, Missing):
        return parse_mountinfo(text)
    older = host.text("/proc/mounts") if text.why is not Why.DENIED else text
    return text if isinstance(older, Missing) else parse_mounts(older)


def _directories(mount: CgroupMount, path: str) -> tuple[str, ...]:
    """Own directory first, the mount point last; ``()`` if the cgroup does not lie below this mount's root."""
    root = mount.root.rstrip("/")
    if ".." in path.split("/") or ".." in root.split("/") or not f"{path.rstrip('/')}/".startswith(f"{root}/"):
        # Outside of the cgroup namespace, or a mount made outside of it: the names in between are not told.
        return ()
    below = [part for part in path[len(root) :].split("/") if part]
    top = mount.place.rstrip("/")
    return tuple("/".join([top, *below[:depth]]) for depth in range(len(below), -1, -1))


@fact
def _texts(host: Host, directory: str, names: tuple[str, ...]) -> Fact[tuple[str, ...]]:
    texts: list[str] = []
    for name in names:
        content = need(host.text(f"{directory}/{name}"))
        texts.append(content)
    return tuple(texts)


def _unescaped(field: str) -> str:
    """Blanks and backslashes in mount tables are octal (``\\040``)."""
    if "\\" not in field:
        return field
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field
