"""Ways to break something from outside; there is no switch for it in what is tested."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from conftest import TIER
from smoke.faults.bench import Bench, NotHere
from smoke.faults.forking import FORKING
from smoke.faults.row import Inject

_HOOK = '''
import importlib.abc
import importlib.util
import os
import sys


class After(importlib.abc.MetaPathFinder):
    """Runs ``broken`` once a module is imported."""

    def find_spec(self, name, path, target=None):
        if name != {when!r}:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def then(module):
            execute(module)
            broken()

        spec.loader.exec_module = then
        return spec


def broken():
'''
_PLANTED = """

if os.environ.get("RANK") {which}:
    if {when!r} in sys.modules:  # this rank was forked (forking.py)
        broken()
    else:
        sys.meta_path.insert(0, After())
"""


def patched(text: str, *, rank: int | None = None, when: str = "torch") -> Inject:
    """A sitecustomize.py that runs ``text`` in the ranks (or in one) as soon as a module is imported."""

    def inject(bench: Bench) -> None:
        which = "is not None" if rank is None else f"== {str(rank)!r}"
        body = textwrap.indent(textwrap.dedent(text).strip("\n"), "    ")
        first = bench.folder / "front" / "sitecustomize.py"
        name = f"sitecustomize_{len(list(first.parent.iterdir()))}.py" if first.exists() else first.name
        front = FORKING if name == first.name and TIER != "all" else ""
        hook = _HOOK.format(when=when) + body + _PLANTED.format(when=when, which=which)
        in_front(bench, name, front + hook)
        if name != first.name:
            first.write_text(first.read_text() + f"\n\nimport {name[:-3]}\n")

    return inject


def scale_not_moved(way: str) -> Inject:
    """GradScaler.update leaves the scale as it was where it would make it less ("<") or more (">")."""
    return patched(f"""
        import torch
        real = torch.amp.GradScaler.update
        def update(self, *args, **more):
            scale = self.get_scale()
            real(self, *args, **more)
            if self.get_scale() {way} scale:
                self._scale.fill_(scale)
        torch.amp.GradScaler.update = update
    """)


def in_front(bench: Bench, name: str, text: str) -> None:
    """A file in a folder on PYTHONPATH."""
    place = bench.folder / "front"
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_text(text)
    bench.env["PYTHONPATH"] = str(place)


def file_in_front(name: str, text: str) -> Inject:
    return lambda bench: in_front(bench, name, text)


def variables(**values: str) -> Inject:
    return lambda bench: bench.env.update({name: value.replace("{folder}", str(bench.folder)) for name, value in values.items()})


def all_of(*several: Inject) -> Inject:
    def inject(bench: Bench) -> None:
        for one in several:
            one(bench)

    return inject


def limited(*words: str) -> Inject:
    """prlimit(1): ``--nofile=32``."""

    def inject(bench: Bench) -> None:
        bench.before += [tool("prlimit"), *words]

    return inject


def unshared(flags: str, script: str) -> Inject:
    """New namespaces, and what is done in them before the driver starts; ``{folder}`` is the bench's."""

    def inject(bench: Bench) -> None:
        _as_root()
        unshare = tool("unshare")
        if subprocess.run([unshare, *flags.split(), "true"], check=False, capture_output=True).returncode:
            raise NotHere(f"unshare {flags} is not allowed here")
        done = script.replace("{folder}", str(bench.folder))
        bench.before += [unshare, *flags.split(), "sh", "-ec", done + '\nexec "$@"', "sh"]

    return inject


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise NotHere(f"{name} is not installed")
    return found


def _as_root() -> None:
    if os.geteuid() != 0:
        raise NotHere("needs root")


def as_user(uid: int) -> Inject:
    """Under a number that no line of /etc/passwd has, and without the rights of root."""

    def inject(bench: Bench) -> None:
        words = [tool("unshare"), "--user", f"--map-user={uid}", f"--map-group={uid}"]
        if subprocess.run([*words, "true"], check=False, capture_output=True).returncode:
            raise NotHere("no user namespace can be made here")
        bench.before += words

    return inject


def owned_by_another(path: str) -> Inject:
    """A directory that only another user may enter."""

    def inject(bench: Bench) -> None:
        _as_root()
        place = Path(path.replace("{folder}", str(bench.folder)))
        place.mkdir(mode=0o700)
        os.chown(place, 12345, 12345)

    return inject


def grouped(controller: str, **limits: str) -> Inject:
    """A cgroup (v1) of its own with limits, e.g. ``pids_max="40"``."""

    def inject(bench: Bench) -> None:
        group = Path("/sys/fs/cgroup") / controller / f"torchtune-sys-{uuid.uuid4().hex[:8]}"
        try:
            group.mkdir()
        except OSError as error:
            raise NotHere(f"no cgroup of {controller}: {error}") from None
        bench.closing.callback(remove_group, group)
        for name, value in limits.items():
            try:
                (group / name.replace("_", ".", 1)).write_text(value)
            except OSError as error:
                bench.closing.close()
                raise NotHere(f"the cgroup takes no {name}: {error}") from None
        bench.before += ["sh", "-ec", f'echo $$ > {group}/cgroup.procs\nexec "$@"', "sh"]

    return inject


def remove_group(group: Path) -> None:
    until = time.monotonic() + 3
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)


def shared_library(bench: Bench, name: str, source: str, *flags: str) -> Path:
    """A library that is built from C in the bench's folder."""
    (bench.folder / f"{name}.c").write_text("#define _GNU_SOURCE\n" + textwrap.dedent(source))
    library = bench.folder / f"{name}.so"
    words = [tool("cc"), "-shared", "-fPIC", "-O1", *flags, "-o", str(library), str(bench.folder / f"{name}.c"), "-ldl"]
    built = subprocess.run(words, check=False, capture_output=True, text=True)
    if built.returncode:
        raise NotHere(f"no library can be built: {built.stderr}")
    return library


def preloaded(source: str) -> Inject:
    """A library in front of the C library's functions, in every process."""

    def inject(bench: Bench) -> None:
        bench.env["LD_PRELOAD"] = str(shared_library(bench, "fault", source))

    return inject


_FILTER = """
import ctypes, os, struct, sys
number, error, first = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
asked = [(0x20, 0, 0, 16), (0x15, 0, 1, first)] if first >= 0 else []
steps = [(0x20, 0, 0, 0), (0x15, 0, 1 + len(asked), number), *asked, (0x06, 0, 0, 0x00050000 | error), (0x06, 0, 0, 0x7FFF0000)]
held = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("steps", ctypes.c_void_p)]
program = Program(len(steps), ctypes.addressof(held))
library = ctypes.CDLL(None, use_errno=True)
if library.prctl(38, 1, 0, 0, 0) or library.prctl(22, 2, ctypes.byref(program), 0, 0):
    sys.exit("no seccomp filter here")
os.execv(sys.argv[4], sys.argv[4:])
"""
CLONE3 = 435
"""Of every architecture (since 5.3, system calls have one number)."""
SOCKET = 198 if os.uname().machine == "aarch64" else 41


def refused(number: int, error: int, first: int = -1) -> Inject:
    """A seccomp filter that answers a system call (with this first argument) with an error, as a container's profile does."""

    def inject(bench: Bench) -> None:
        bench.before += [sys.executable, "-I", "-c", _FILTER, str(number), str(error), str(first)]
        if subprocess.run([*bench.before, "/bin/true"], check=False, capture_output=True).returncode:
            raise NotHere("no seccomp filter can be set here")

    return inject


def port_taken(bench: Bench) -> None:
    """Somebody else listens where the ranks are told to meet."""
    held = bench.closing.enter_context(socket.socket())
    held.bind(("127.0.0.1", 0))
    held.listen()
    bench.options += ["--master-port", str(held.getsockname()[1])]


def options(*words: str) -> Inject:
    def inject(bench: Bench) -> None:
        bench.options += [word.replace("{folder}", str(bench.folder)) for word in words]

    return inject


def from_path(*without: str) -> Inject:
    """A PATH without some tools: links to all others."""

    def inject(bench: Bench) -> None:
        place = bench.folder / "bin"
        place.mkdir()
        for folder in bench.env["PATH"].split(os.pathsep):
            with contextlib.suppress(OSError):
                for tool in Path(folder).iterdir():
                    hidden = any(
                        tool.name == word or tool.name.startswith((f"{word}-", f"x86_64-linux-gnu-{word}")) for word in without
                    )
                    if not hidden and not (place / tool.name).exists():
                        (place / tool.name).symlink_to(tool)
        bench.env["PATH"] = str(place)

    return inject


def signalled(number: int, when: Callable[[Bench], int | None]) -> Inject:
    """A signal to a process as soon as it is there."""

    def inject(bench: Bench) -> None:
        def watch() -> None:
            for _ in _tries(120):
                pid = when(bench)
                if pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
                    return

        bench.watchers.append(watch)

    return inject


def _tries(seconds: float) -> Iterator[None]:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield None
        time.sleep(0.1)


def loading(rank: int, *, worker: bool = False) -> Callable[[Bench], int | None]:
    """A rank that has started workers of a DataLoader, or the first of these."""

    def look(bench: Bench) -> int | None:
        pid = bench.rank(rank)
        with contextlib.suppress(OSError):
            workers = bench.children(pid) if pid is not None else []
            if len(workers) > 1:  # importing torch may start a program, too
                return workers[0] if worker else pid
        return None

    return look
