"""What cannot be seen is not absent: while something else on the host shows that a tree must exist, its absence is a look that failed.

gVisor has no /sys/bus/pci and passes /dev/nvidia0 through; sandboxes hide /sys, containers /proc/driver. Each row of ``TREES`` is a
directory that the kernel makes, and what else shows that there is something to list in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from torchtune_sys.host.base import Host, Output, Space, Stat
from torchtune_sys.model.facts import Fact
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
    """A line of a file below /proc that begins so; any line without ``words``."""

    def look(host: Host) -> str:
        text = host.text(path)
        rows = [row.strip() for row in text.splitlines()] if isinstance(text, str) else []
        return next((path for row in rows if row and (not words or row.startswith(words))), "")

    return look


def _interface(host: Host) -> str:
    text = host.text("/proc/net/dev")
    names = [row.partition(":")[0].strip() for row in text.splitlines() if ":" in row] if isinstance(text, str) else []
    return next((f"{name} in /proc/net/dev" for name in names if name not in ("", "lo")), "")


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


_NVIDIA_NODES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm")


class Tree(msgspec.Struct, frozen=True):
    root: str
    """Where it is mounted or made; what lies below is guarded."""
    listed: str
    """The directory that is there wherever the tree is."""
    witnesses: tuple[Witness, ...]


TREES = (
    Tree(
        "/sys/bus/pci",
        "/sys/bus/pci/devices",
        (
            _path(*_NVIDIA_NODES, "/dev/kfd", "/proc/driver/nvidia/version"),
            _module("nvidia", "amdgpu", "mlx5_core", "nvme"),
            _verbs,
            _line("/proc/bus/pci/devices"),
            _process_1("NVIDIA_VISIBLE_DEVICES"),
        ),
    ),
    Tree("/sys/class/net", "/sys/class/net", (_interface,)),
    Tree("/sys/devices/system", "/sys/devices/system/cpu", (_line("/proc/cpuinfo", "processor"),)),
    Tree(
        "/sys/kernel/mm/transparent_hugepage", "/sys/kernel/mm/transparent_hugepage", (_line("/proc/meminfo", "AnonHugePages:"),)
    ),
    Tree("/sys/kernel/mm/hugepages", "/sys/kernel/mm/hugepages", (_line("/proc/meminfo", "Hugepagesize:"),)),
    Tree("/sys/block", "/sys/block", (_line("/proc/diskstats"), _line("/proc/partitions", "1", "2", "8"))),
    Tree("/sys/module", "/sys/module", (_line("/proc/modules"),)),
    Tree("/proc/driver/nvidia", "/proc/driver/nvidia", (_path(*_NVIDIA_NODES), _module("nvidia"))),
    Tree("/sys", "/sys", (_line("/proc/cpuinfo", "processor"),)),
)
"""The one table of witnesses."""


class Witnessed(Host):
    """The same host, whose hidden trees are Missing(NOT_SUPPORTED) and not ABSENT."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.origin, self.live = host.origin, host.live
        self._hidden: dict[str, str] = {}

    def _seen(self, found: Fact[_T], path: str) -> Fact[_T]:
        if not isinstance(found, Missing) or found.why is not Why.ABSENT:
            return found
        for tree in TREES:
            if path == tree.root or path.startswith(tree.root + "/"):
                witness = self._witness(tree)
                if witness:
                    return Missing(
                        Why.NOT_SUPPORTED, path, f"{tree.root} is hidden here: {witness} shows that there is something in it"
                    )
        return found

    def _witness(self, tree: Tree) -> str:
        if tree.root not in self._hidden:
            names = self._host.names(tree.listed)
            gone = names.why is Why.ABSENT if isinstance(names, Missing) else not names
            self._hidden[tree.root] = next(filter(None, (look(self._host) for look in tree.witnesses)), "") if gone else ""
        return self._hidden[tree.root]

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

    def run(self, argv: tuple[str, ...], timeout_s: float = 10.0) -> Fact[Output]:
        return self._host.run(argv, timeout_s)

    def env(self) -> Fact[dict[str, str]]:
        return self._host.env()

    def ask(self, question: str, timeout_s: float = 10.0) -> Fact[Any]:
        return self._host.ask(question, timeout_s)
