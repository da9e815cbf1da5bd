"""Tell hidden from absent. If something else on the host proves that a tree of /proc or /sys must exist, its absence means that it is hidden.

gVisor has no /sys/bus/pci and passes /dev/nvidia0 through; sandboxes hide /sys, containers /proc/driver. Each row of ``TREES`` is a
directory that the kernel makes, and what else shows that there is something to list in it. A link to a PCI function, a disk or an
interface whose target is not there shows the same of the target: sysfs makes both at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host, Output, Space, Stat
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.values import Missing, Why, absent

_T = TypeVar("_T")
Witness = Callable[[Host], str]
"""What shows that the tree must be there; empty if nothing does."""


def _path(*paths: str) -> Witness:
    return lambda host: next((path for path in paths if host.exists(path) is True), "")


def _module(*names: str) -> Witness:
    def look(host: Host) -> str:
        text = host.text("/proc/modules")
        lines = "\n" + (text if isinstance(text, str) else "")
        return next((f"the module {name} in /proc/modules" for name in names if f"\n{name} " in lines), "")

    return look


def _line(path: str, *words: str) -> Witness:
    """Return a line of a file below /proc that begins so; any line without ``words``."""

    def look(host: Host) -> str:
        text = host.text(path)
        rows = [row.strip() for row in text.splitlines()] if isinstance(text, str) else []
        return next((path for row in rows if row and (not words or row.startswith(words))), "")

    return look


def _mounted(point: str) -> Witness:
    def look(host: Host) -> str:
        text = host.text("/proc/self/mountinfo")
        return f"{point} in /proc/self/mountinfo" if isinstance(text, str) and f" {point} " in text else ""

    return look


def _interface(host: Host) -> str:
    text = host.text("/proc/net/dev")
    names = [row.partition(":")[0].strip() for row in text.splitlines() if ":" in row] if isinstance(text, str) else []
    return next((f"{name} in /proc/net/dev" for name in names if name not in ("", "lo")), "")


def _addresses(host: Host) -> str:
    found = host.ask(queries.INTERFACES)
    names = [item.get("name") for item in found if isinstance(item, dict)] if isinstance(found, list) else []
    return next((f"the address of {name}" for name in names if name not in (None, "lo")), "")


def _entry(folder: str) -> Witness:
    def look(host: Host) -> str:
        names = host.names(folder)
        return f"{folder}/{names[0]}" if isinstance(names, tuple) and names else ""

    return look


def _verbs(host: Host) -> str:
    names = host.names("/dev/infiniband")
    return (
        next((f"/dev/infiniband/{name}" for name in names if name.startswith("uverbs")), "") if isinstance(names, tuple) else ""
    )


def _process_1(*names: str) -> Witness:
    def look(host: Host) -> str:
        text = host.text("/proc/1/environ")
        words = text.split("\0") if isinstance(text, str) else []
        return next(
            (
                f"{name} of process 1"
                for name in names
                for word in words
                if word.startswith(f"{name}=") and word[len(name) + 1 :] not in ("", "void", "none")
            ),
            "",
        )

    return look


def _nvml(host: Host) -> str:
    """GPUs that the driver's library names. Asked last, and only where there is one: it starts a process."""
    if not any(host.exists(path) is True for path in queries.NVML_LIBRARIES) or any(
        host.exists(path) is True for path in ("/dev/dxg", "/etc/nv_tegra_release")
    ):
        return ""  # below WSL and on a Jetson the library is there, and the bus has no GPU
    answer = host.ask(queries.NVML, queries.NVML_TIMEOUT_S)
    devices = answer.get("devices") if isinstance(answer, dict) else None
    return f"NVML with {len(devices)} GPUs" if isinstance(devices, list) and devices else ""


_NVIDIA_NODES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm")
_RUNNING = _path("/proc/cpuinfo")
"""A kernel runs, which makes these wherever it runs."""


class Tree(msgspec.Struct, frozen=True):
    root: str
    """Where it is mounted or made; what lies below is guarded."""
    listed: str
    """The directory that is there wherever the tree is."""
    witnesses: tuple[Witness, ...]
    linked: tuple[str, ...] = ()
    """Directories whose entries are links into the tree."""
    made_by: tuple[Witness, ...] = ()
    """What makes the directory and may leave it empty: asked only where it is not there at all."""


TREES = (
    Tree(
        "/sys/bus/pci",
        "/sys/bus/pci/devices",
        (
            _path(*_NVIDIA_NODES, "/dev/kfd", "/proc/driver/nvidia/version"),
            _module("nvidia", "nouveau", "nova_core", "amdgpu", "mlx5_core", "nvme"),
            _verbs,
            _line("/proc/bus/pci/devices"),
            _process_1("NVIDIA_VISIBLE_DEVICES"),
            _nvml,
        ),
    ),
    Tree(
        "/sys/class/infiniband", "/sys/class/infiniband", (_verbs,), made_by=(_module("ib_core", "ib_uverbs", "mlx5_ib", "efa"),)
    ),
    Tree("/sys/class/net", "/sys/class/net", (_interface, _addresses)),
    Tree("/sys/class", "/sys/class", (_RUNNING,)),
    Tree("/sys/devices", "/sys/devices", (_RUNNING,), linked=("/sys/class/net/", "/sys/class/infiniband/")),
    Tree("/sys/devices/system", "/sys/devices/system/cpu", (_RUNNING,)),
    Tree("/sys/kernel", "/sys/kernel", (_RUNNING,)),
    Tree("/sys/kernel/mm", "/sys/kernel/mm", (_RUNNING,)),
    Tree(
        "/sys/kernel/mm/transparent_hugepage", "/sys/kernel/mm/transparent_hugepage", (_line("/proc/meminfo", "AnonHugePages:"),)
    ),
    Tree("/sys/kernel/mm/hugepages", "/sys/kernel/mm/hugepages", (_line("/proc/meminfo", "Hugepagesize:"),)),
    Tree("/sys/block", "/sys/block", (_line("/proc/diskstats"), _line("/proc/partitions", "1", "2", "8"))),
    Tree("/sys/module", "/sys/module", (_line("/proc/modules"),)),
    Tree("/sys", "/sys", (_RUNNING,)),
    Tree("/proc/driver/nvidia", "/proc/driver/nvidia", (_path(*_NVIDIA_NODES), _module("nvidia"))),
    *(
        Tree(root, root, (_RUNNING,))
        for root in ("/proc/sys/fs", "/proc/sys/kernel", "/proc/sys/net", "/proc/sys/vm", "/proc/sys", "/proc/self")
    ),
    Tree("/proc/net", "/proc/net", (_entry("/sys/class/net"), _addresses)),
    Tree("/proc", "/proc", (_path("/sys/devices/system/cpu", "/sys/kernel"),)),
    Tree("/dev", "/dev", (_RUNNING,)),
    Tree("/dev/char", "/dev/char", (_RUNNING,)),  # udev's links, one for each device of the machine; a container has none
    Tree("/sys/fs/cgroup", "/sys/fs/cgroup", (_mounted("/sys/fs/cgroup"),)),
)
"""The one table of witnesses."""


_BELOW = tuple((tree, (f"{tree.root}/", *tree.linked)) for tree in TREES)
"""Each with how the paths in it begin: asked of every file that is not there."""
_PROCESS = pattern(r"/proc/(?!1(?:/|$))[0-9]")
LINKED = (
    "/sys/bus/pci/devices/",
    "/sys/class/block/",
    "/sys/block/",
    "/sys/dev/block/",
    "/sys/class/net/",
    "/sys/class/infiniband/",
)
"""Directories of links into /sys/devices."""


class Witnessed(Host):
    """The same host, whose hidden trees are Missing(HIDDEN) and not ABSENT."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.origin, self.live = host.origin, host.live
        self._hidden: dict[str, str] = {}
        self._links: dict[str, bool] = {}
        self._others_hidden: bool | None = None

    def _seen(self, found: Fact[_T], path: str) -> Fact[_T]:
        if not isinstance(found, Missing) or found.why is not Why.ABSENT:
            return found
        for tree, below in _BELOW:
            if path == tree.root or path.startswith(below):
                witness = self._witness(tree)
                if witness:
                    return Missing(Why.HIDDEN, path, f"{tree.root} is hidden here, though {witness} shows that it has entries")
        if _PROCESS.match(path) and self._hides_processes():
            return Missing(
                Why.HIDDEN, path, "/proc shows no other user's processes (hidepid): it has no process 1", "run as root"
            )
        link = self._dangling(path)
        return Missing(Why.HIDDEN, path, f"{link} leads to what is hidden here") if link else found

    def _witness(self, tree: Tree) -> str:
        if tree.root not in self._hidden:
            names = self._host.names(tree.listed)
            gone = isinstance(names, Missing) and names.why is Why.ABSENT
            looks = tree.witnesses + tree.made_by if gone else () if isinstance(names, Missing) or names else tree.witnesses
            self._hidden[tree.root] = next(filter(None, (look(self._host) for look in looks)), "")
        return self._hidden[tree.root]

    def _hides_processes(self) -> bool:
        """Every PID namespace has a process 1; a /proc mounted with hidepid=2 shows it to root and the group of gid= alone (proc(5))."""
        if self._others_hidden is None:
            self._others_hidden = self._host.exists("/proc/1") is False and bool(_RUNNING(self._host))
        return self._others_hidden

    def _dangling(self, path: str) -> str:
        """Return the link of a function, disk or interface on the way to ``path`` whose target is not there; ``""`` if it is."""
        folder = next((folder for folder in LINKED if path.startswith(folder)), "")
        link = folder + path[len(folder) :].partition("/")[0]
        if folder and link not in self._links:
            target = self._host.stat(link) if isinstance(self._host.link(link), str) else None
            self._links[link] = isinstance(target, Missing) and target.why is Why.ABSENT
        return link if folder and self._links[link] else ""

    def text(self, path: str) -> Fact[str]:
        return self._seen(self._host.text(path), path)

    def names(self, path: str) -> Fact[tuple[str, ...]]:
        found = self._host.names(path)
        if found == () and any(path == tree.listed for tree in TREES):
            hidden: Fact[tuple[str, ...]] = self._seen(Missing(Why.ABSENT, path), path)
            return found if absent(hidden) else hidden
        return self._seen(found, path)

    def link(self, path: str) -> Fact[str]:
        return self._seen(self._host.link(path), path)

    def real(self, path: str) -> Fact[str]:
        return self._seen(self._host.real(path), path)

    def stat(self, path: str) -> Fact[Stat]:
        return self._seen(self._host.stat(path), path)

    def space(self, path: str) -> Fact[Space]:
        return self._host.space(path)

    def look_ahead(self, paths: tuple[str, ...]) -> None:
        self._host.look_ahead(paths)

    def run(self, argv: tuple[str, ...], timeout_s: float = 10.0) -> Fact[Output]:
        return self._host.run(argv, timeout_s)

    def env(self) -> Fact[dict[str, str]]:
        return self._host.env()

    def ask(self, question: str, timeout_s: float = 10.0) -> Fact[Any]:
        return self._host.ask(question, timeout_s)
