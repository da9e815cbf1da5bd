"""Locate data, checkpoints, temporary files and caches, and list the host's disks."""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Iterator
from itertools import islice

from torchtune_sys.formats.mounts import LOCAL, Mount, carrier, carrying
from torchtune_sys.host import queries
from torchtune_sys.host.base import PATH_MAX, Host, Space
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.facts.storage import INSTEAD, Array, IoLimit, StorageFacts, StoragePath, nowhere, without_inodes
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why, fact, known, need
from torchtune_sys.probes import cgroup
from torchtune_sys.probes.storage.block_devices import Descent, Stack, whole_disks
from torchtune_sys.probes.storage.disks import states
from torchtune_sys.probes.storage.mounts import read_mounts

_CACHES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
_MAY_BE_ARRAYS, _MOST_ARRAYS = ("/dev/md", "/dev/mapper/"), 64
_LINK_LIMIT = 40
"""As in the kernel (MAXSYMLINKS, include/linux/namei.h)."""
_NOT_DATA = Missing(Why.ABSENT, "scandir", "no directory of data that this user may read")


def probe(host: Host, intent: Workload) -> StorageFacts:
    mounts = read_mounts(host)
    descent = Descent(host, known(mounts, ()))
    look = _Look(host, mounts, descent)
    wanted = tuple(_wanted(host, intent))
    host.look_ahead(tuple(path for path, _ in wanted if isinstance(path, str)))
    places = tuple(look.place(path, role) for path, role in wanted)
    temporary = (place for place in places if place.role == "temporary files")
    closed = {place.path for place in temporary if place.writable is False or without_inodes(place)}
    if closed:
        places += tuple(look.place(path, INSTEAD) for path in _instead(host) if path not in closed)
    return StorageFacts(
        places=places,
        disks=whole_disks(host, descent),
        mounted_arrays=look.arrays(),
        states=states(host),
        io_limits=_io_limits(host),
    )


def _wanted(host: Host, intent: Workload) -> Iterator[tuple[Fact[str], str]]:
    """Paths and their roles; the working directory stands for what the person did not name, unless it is one of the system's."""
    cwd = host.ask(queries.CWD)
    base = "/" if isinstance(cwd, Missing) or not isinstance(cwd, str) else cwd
    for paths, role in ((intent.data, "data"), (intent.checkpoints, "checkpoints")):
        for path in paths:
            yield (cwd if isinstance(cwd, Missing) and not path.startswith("/") else posixpath.join(base, path)), role
    recorded = not isinstance(cwd, Missing) or cwd.why is not Why.NOT_RECORDED  # a tree of /proc and /sys has no session
    if not intent.data and not intent.checkpoints and recorded and not (isinstance(cwd, str) and _of_the_system(cwd)):
        yield cwd if isinstance(cwd, Missing) else base, "working directory"
    env = host.env()
    if isinstance(env, Missing):
        return
    temporary = next((env[name] for name in _TEMPORARY if env.get(name, "").startswith("/")), "/tmp")
    yield temporary, "temporary files"
    if env.get("HOME", "").startswith("/"):
        yield env["HOME"], "home"
    for path in dict.fromkeys(env[name] for name in _CACHES if env.get(name, "").startswith("/")):
        yield path, "cache"


def _instead(host: Host) -> Iterator[str]:
    """Yield what tempfile.gettempdir() tries behind the first directory, before /usr/tmp and the working directory."""
    env = host.env()
    named = () if isinstance(env, Missing) else (env.get(name, "") for name in _TEMPORARY)
    yield from dict.fromkeys((*(path for path in named if path.startswith("/")), "/tmp", "/var/tmp"))


_TEMPORARY = ("TMPDIR", "TEMP", "TMP")


_SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "usr", "var")


def _of_the_system(path: str) -> bool:
    """Whether nobody trains there: monitors, schedulers and cron start their programs in / or in a service's own directory.

    >>> [_of_the_system(path) for path in ("/", "/var/spool/slurmd", "/usr/src/app", "/workspace", "/root", "/variants")]
    [True, True, False, False, False, False]
    """
    first = path.strip("/").partition("/")[0]
    return not first or (
        first in _SYSTEM and not path.startswith(("/usr/src/", "/run/media/", "/var/home/", "/var/mnt/", "/var/scratch"))
    )


@fact
def _io_limits(host: Host) -> Fact[tuple[IoLimit, ...]]:
    found = need(cgroup.branch(host, "io"))
    if found.version != 2:
        return Missing(Why.ABSENT, "io.max", "a cgroup of version 1")
    limits: list[IoLimit] = []
    for directory in found.directories:
        text = host.text(f"{directory}/io.max")
        if isinstance(text, Missing):
            if text.why not in (Why.ABSENT, Why.NOT_RECORDED):
                return text
            continue  # the root has no limits, nor has a group whose parent does not hand the controller down
        limits += parse_io_max(text, f"{directory}/io.max")
    return tuple(limits)


def parse_io_max(text: str, source: str) -> list[IoLimit]:
    r"""Return the limits of a file io.max, those that are none left out.

    >>> parse_io_max("259:0 rbps=10485760 wbps=max riops=max wiops=120\n", "io.max")[0].values
    {'rbps': 10485760.0, 'wiops': 120.0}
    """
    found = []
    for line in text.splitlines():
        device, *words = line.split() or [""]
        pairs = (word.partition("=") for word in words)
        values = {name: float(number) for name, _, value in pairs if (number := natural(value)) is not None}
        if values:
            found.append(IoLimit(device=device, values=values, source=source))
    return found


class _Look:
    """Places of one host; what lies on the same mount is looked at once."""

    def __init__(self, host: Host, mounts: Fact[tuple[Mount, ...]], descent: Descent) -> None:
        self._host = host
        self._mounts = mounts
        self._descent = descent
        self._stacks: dict[int, Stack] = {}
        self._spaces: dict[str, Fact[Space]] = {}
        table = known(mounts, ())
        self._remote_points = {mount.point for mount in table if carrier(mount.filesystem, mount.source) not in LOCAL}

    def arrays(self) -> tuple[Array, ...]:
        """Return the md arrays (major number 9) that are mounted, by themselves or below the device mapper."""
        stacked = (
            mount for mount in known(self._mounts, ()) if mount.device.startswith("9:") or mount.source.startswith(_MAY_BE_ARRAYS)
        )
        found = {name: array for mount in islice(stacked, _MOST_ARRAYS) for name, array in self._stack(mount).arrays.items()}
        return tuple(found.values())

    def place(self, path: Fact[str], role: str) -> StoragePath:
        if isinstance(path, Missing):
            return nowhere("", role, path)
        if isinstance(self._mounts, Missing):
            return nowhere(path[:PATH_MAX], role, self._mounts)
        real, dead = self._resolve(path)
        mount = carrying(self._mounts, real)
        if mount is None:
            return nowhere(path, role, Missing(Why.ABSENT, "/proc/self/mountinfo", f"no mount carries {real}"))
        at_mount: Fact[bool] = True  # a mount point is there, whatever a recording lists
        exists = dead if dead is not None else at_mount if real == mount.point else self._host.exists(real)
        there = real
        while dead is None and there not in ("/", mount.point) and self._host.exists(there) is False:
            there = posixpath.dirname(there)
        return self._describe(path[:PATH_MAX], role, there, exists, mount, dead)

    def _describe(self, path: str, role: str, there: str, exists: Fact[bool], mount: Mount, dead: Missing | None) -> StoragePath:
        kind = carrier(mount.filesystem, mount.source)
        stack = self._stack(mount)
        space = self._space(there) if dead is None else dead
        access = self._access(there, mount, space) if dead is None else (dead, dead)
        closed, pointers = self._first_files(there) if role == "data" and access[0] is True else (_NOT_DATA, _NOT_DATA)
        return StoragePath(
            path=path,
            role=role,
            real_path=there,
            exists=exists,
            mount_point=mount.point,
            filesystem=mount.filesystem,
            carrier=kind,
            device=mount.device,
            mount_source=mount.source,
            options=mount.options,
            network=kind if isinstance(kind, Missing) else kind not in LOCAL,
            layers=tuple(stack.layers),
            disks=stack.found(),
            arrays=tuple(stack.arrays.values()),
            read_ahead_kib=self._read_ahead(mount, stack),
            size_bytes=space if isinstance(space, Missing) else space.size,
            free_bytes=space if isinstance(space, Missing) else space.free,
            inodes=space if isinstance(space, Missing) else space.inodes,
            inodes_free=space if isinstance(space, Missing) else space.inodes_free,
            readable=access[0],
            writable=access[1],
            closed_files=closed,
            pointer_files=pointers,
            errors_recorded=self._errors(mount, stack),
        )

    def _errors(self, mount: Mount, stack: Stack) -> Fact[int]:
        """Read errors_count of ext4 (Documentation/ABI/testing/sysfs-fs-ext4), which has a directory for each device that it is mounted from."""
        if mount.filesystem not in ("ext2", "ext3", "ext4"):
            return Missing(Why.ABSENT, mount.filesystem, "no counter of errors")
        if isinstance(stack.device, Missing):
            return stack.device
        return self._host.number(f"/sys/fs/ext4/{posixpath.basename(stack.device)}/errors_count")

    def _stack(self, mount: Mount) -> Stack:
        if mount.id not in self._stacks:
            self._stacks[mount.id] = self._descent.below(mount)
        return self._stacks[mount.id]

    def _space(self, path: str) -> Fact[Space]:
        if path not in self._spaces:
            self._spaces[path] = self._host.space(path)
        return self._spaces[path]

    def _resolve(self, path: str) -> tuple[str, Missing | None]:
        """``path`` without symbolic links, and why the walk ended early, if it did.

        Before the walk steps into a network file system, statvfs (which has a deadline) must have answered there:
        a look-up below a dead server never returns. No system call takes a path of PATH_MAX bytes: its folders are not looked at.
        """
        if len(path) >= PATH_MAX:
            return path[:PATH_MAX], Missing(Why.FAILED, path[:PATH_MAX], os.strerror(errno.ENAMETOOLONG))
        todo = [part for part in path.split("/") if part and part != "."]
        done, followed = "/", 0
        while todo:
            part = todo.pop(0)
            if part == "..":
                done = posixpath.dirname(done)
                continue
            here = posixpath.join(done, part)
            target = self._host.link(here)
            if isinstance(target, Missing) or followed >= _LINK_LIMIT:
                done = here
                if (dead := self._dead(here)) is not None:
                    return posixpath.normpath(posixpath.join(here, *todo)), dead
                continue
            followed += 1
            done = "/" if target.startswith("/") else done
            todo = [piece for piece in target.split("/") if piece and piece != "."] + todo
        return done, None

    def _dead(self, path: str) -> Missing | None:
        if path not in self._remote_points:
            return None
        space = self._space(path)
        return space if isinstance(space, Missing) and space.why is Why.TIMEOUT else None

    def _access(self, path: str, mount: Mount, space: Fact[Space]) -> tuple[Fact[bool], Fact[bool]]:
        """Whether this session may read and write there."""
        answer = self._host.ask(f"{queries.ACCESS}:{path}")
        if isinstance(answer, Missing):
            readable: Fact[bool] = answer
            writable: Fact[bool] = answer
        elif isinstance(answer, dict):
            readable, writable = answer.get("read") is True, answer.get("write") is True
        else:
            readable = writable = Missing(Why.UNPARSED, queries.ACCESS, "not an answer about access")
        if "ro" in mount.options or (not isinstance(space, Missing) and space.read_only):
            writable = False
        return readable, writable

    def _first_files(self, path: str) -> tuple[Fact[tuple[int, int]], Fact[int]]:
        answer = self._host.ask(f"{queries.FIRST_FILES}:{path}")
        if isinstance(answer, Missing):
            return answer, answer
        if isinstance(answer, list) and len(answer) in (2, 3) and all(isinstance(count, int) for count in answer):
            pointers = (
                answer[2] if len(answer) == 3 else Missing(Why.NOT_RECORDED, queries.FIRST_FILES, "an older release did not look")
            )
            return (answer[0], answer[1]), pointers
        unparsed = Missing(Why.UNPARSED, queries.FIRST_FILES, "not an answer about files")
        return unparsed, unparsed

    def _read_ahead(self, mount: Mount, stack: Stack) -> Fact[int]:
        """Read-ahead of the mount's backing device information, KiB (mm/backing-dev.c).

        A block device keeps it in its queue; NFS and FUSE have a bdi of their own under the mount's device number;
        btrfs, CIFS and CephFS number theirs in a way that no file tells.
        """
        if not isinstance(stack.device, Missing):
            directory = stack.device
            if self._host.exists(f"{directory}/partition") is True:
                directory = posixpath.dirname(directory)
            if mount.device.partition(":")[0] not in ("", "0"):
                return self._host.number(f"{directory}/queue/read_ahead_kb")
        return self._host.number(f"/sys/class/bdi/{mount.device}/read_ahead_kb")
