"""What the boot loader passed to Linux that slows it down, or keeps hardware from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, known, need

_REMOVE = (
    Advice(
        text="remove the argument from the boot loader's configuration (GRUB_CMDLINE_LINUX, then update-grub or grub2-mkconfig), and reboot"
    ),
)


def _not_in_container(s: Snapshot) -> None:
    if known(need(s.system).container, ""):
        raise NotApplicable("inside a container: whoever boots the host decides")


def _told(found: Iterable[tuple[str, str]]) -> Iterator[Evidence]:
    """Yield a finding for each argument and what it does; that there is none, where there is none."""
    there = [Evidence(subject=word, seen=what, wanted="not set", source="/proc/cmdline") for word, what in found]
    yield from there or [Evidence(subject="boot arguments", seen="none of these", verdict=Verdict.PASS, source="/proc/cmdline")]


_WITHHELD = (
    ("mem", "memory above this"),
    ("maxcpus", "processors above this number"),
    ("nr_cpus", "processors above this number"),
    ("nosmp", "all processors but one"),
    ("memmap", "memory of this size, from this address on"),
    ("isolcpus", "these processors for what is not bound to them by hand"),
)


def _isolates(s: Snapshot, word: str) -> bool:
    """Tell whether isolcpus= takes processors out of the scheduler's domains ("domain", the default), and this session is not bound to any."""
    parts = word.partition("=")[2].split(",")
    flags = {"nohz", "domain", "managed_irq"}.intersection(parts)
    own = set() if isinstance(s.cpu, Missing) else set(known(s.cpu.affinity, CpuSet()))
    try:
        isolated = CpuSet.parse(",".join(part for part in parts if part not in flags))
    except ValueError:
        isolated = CpuSet()  # forms that only the kernel reads: "8-N"
    return (not flags or "domain" in flags) and own.isdisjoint(isolated)


_SIZE = pattern(r"([0-9]{1,15})([kmgtKMGT]?)")


def _is_beyond(s: Snapshot, word: str) -> bool:
    """Tell whether a limit is above what the machine has, or is over: processors that maxcpus= left out can be brought up later."""
    name, _, value = word.partition("=")
    if name == "mem" and (size := _SIZE.fullmatch(value)) and not isinstance(s.memory, Missing):
        return int(size[1]) << 10 * " kmgt".find(size[2].lower() or " ") > 1.5 * known(s.memory.total_bytes, float("inf"))
    number = natural(value, 5)
    if name not in ("maxcpus", "nr_cpus") or not number or isinstance(s.cpu, Missing):
        return False
    have = s.cpu.present if name == "nr_cpus" else s.cpu.online
    return not isinstance(have, Missing) and (number > len(have) or (name == "maxcpus" and number < len(have)))


_RESERVES = pattern(r"[0-9][gGtT]\$")
"""Smaller pieces are holes that a firmware forgot to name; what ``!`` sets apart is persistent memory, a device (/dev/pmem0) that somebody wants."""


@rule(
    id="boot-argument-withholds-hardware",
    title="A boot argument keeps Linux from using some of the memory or processors",
    severity=Severity.ADVICE,
    fix=_REMOVE,
)
def boot_argument_withholds(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The kernel was started with mem=, maxcpus=, nr_cpus=, nosmp, isolcpus= or a memmap= that reserves gigabytes, which limit what it uses of the machine.

    Why it matters
    The memory that free(1) shows, and the processors in /proc/cpuinfo, look like those of a smaller machine: nothing else says that there
    are more. Such arguments are left over from tests, from a crash kernel, or from a time with other modules.

    When to leave it
    The rest is kept for something else on purpose (DPDK, a partitioning hypervisor). Limits above what the
    machine has are not reported.

    References
    Linux Documentation/admin-guide/kernel-parameters.txt (mem, maxcpus, nr_cpus, nosmp, isolcpus, memmap: nn$ss reserves; nn!ss, for persistent memory, is not reported)
    """
    _not_in_container(s)
    if known(need(s.system).hypervisor, "") == "wsl2":
        raise NotApplicable("WSL 2: Windows starts Linux with the processors and the memory that .wslconfig names")
    words = need(need(s.system).cmdline)
    found = [(word, what) for name, what in _WITHHELD for word in words if word == name or word.startswith(f"{name}=")]
    found = [(word, what) for word, what in found if not word.startswith("memmap=") or _RESERVES.search(word)]
    found = [(word, what) for word, what in found if not word.startswith("isolcpus=") or _isolates(s, word)]
    yield from _told((word, f"Linux does not use {what}") for word, what in found if not _is_beyond(s, word))


_CHECKS = (
    (("debug_pagealloc=on",), "each page is unmapped when it is freed, and mapped again"),
    (("page_owner=on",), "the call stack of each page that is taken is kept"),
    (("kmemleak=on",), "each object that the kernel takes is kept in a tree, and memory is searched for pointers"),
    (
        ("page_poison=1", "page_poison=on", "page_poison=y"),
        "each page is filled when it is freed, and looked through when it is taken",
    ),
    (("ftrace=function", "ftrace=function_graph"), "each function of the kernel that runs is written down"),
)
_SLAB = pattern(r"slu?a?b_debug(?:=(?P<options>[FZPUTA]*))?")
"""All of the checks where no letter is given; "-" switches them off, "O" too where they cost most, and a name behind a comma keeps them to some caches."""


@rule(
    id="kernel-debugging-at-boot",
    title="A boot argument makes the kernel check its own memory",
    severity=Severity.ADVICE,
    fix=_REMOVE,
)
def kernel_debugging_at_boot(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The kernel was started with slub_debug (slab_debug), debug_pagealloc=on, page_owner=on, page_poison=1, kmemleak=on or ftrace=function.

    Why it matters
    Each allocation and release in the kernel does more, and all of them together wait for each other more often: packets, files that are opened,
    threads and page faults cost more. Such arguments are left over from the search for a fault of the kernel or a driver.

    When to leave it
    That search goes on.

    References
    Linux Documentation/admin-guide/kernel-parameters.txt; Documentation/mm/slab.rst (slab_debug), page_owner.rst; Documentation/dev-tools/kmemleak.rst
    """
    _not_in_container(s)
    words = need(need(s.system).cmdline)
    found = [(word, what) for names, what in _CHECKS for word in words if word in names]
    found += [(word, "each object is checked and marked when it is taken and freed") for word in words if _SLAB.fullmatch(word)]
    yield from _told(found)
