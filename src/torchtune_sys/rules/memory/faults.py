"""Rules on memory that failed, and on programs that wait: for memory, for disks, for huge pages."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, SysfsWrite
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.target import OneOf
from torchtune_sys.model.values import Missing, NotApplicable, absent_or_unsupported, need, need_if_there


@rule(
    id="memory-pages-poisoned",
    title="The kernel has taken faulty pages of memory out of use",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="find the module (ipmitool sel list, edac-util -v, ras-mc-ctl --errors), replace it, and restart the host, which alone brings the pages back"
        ),
    ),
)
def memory_pages_poisoned(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """HardwareCorrupted in /proc/meminfo counts the memory that had uncorrected errors, or so many corrected ones that it was given up, since boot.

    Why it matters
    Whatever lay there was lost: a program that read it was killed with SIGBUS. A module that fails once mostly fails again.

    When to leave it
    Pages were taken out for a test (mce-inject, hwpoison-inject, /sys/devices/system/memory/soft_offline_page).

    References
    Linux Documentation/filesystems/proc.rst (HardwareCorrupted), mm/memory-failure.c
    """
    lost = need_if_there(need(s.memory).poisoned_bytes, "this kernel does not count faulty memory")
    yield Evidence(
        subject="HardwareCorrupted",
        seen=f"{lost >> 10} KiB",
        wanted="0",
        verdict=Verdict.FAIL if lost else Verdict.PASS,
        source="/proc/meminfo",
    )


@rule(
    id="programs-wait-for-memory-or-disks",
    title="Programs on this host wait much of the time for memory or for disks",
    severity=Severity.WARNING,
    params=(
        Param("memory_percent", 10, "share of the last five minutes in which all programs waited for memory (a convention)"),
        Param("io_percent", 50, "the same for disks and file servers (a convention)"),
    ),
    fix=(
        Advice(text="memory: see who takes it (ps -eo rss,cmd --sort -rss), and end it, or start fewer DataLoader workers"),
        Advice(text="disks: see which is busy (iostat -x 5), and whether it is failing (dmesg, smartctl -a, nvme smart-log)"),
    ),
    nothing="this kernel does not tell how long programs wait (PSI is off)",
)
def programs_wait(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """By the kernel's pressure stall information all programs together stood still for a large share of the last five minutes.

    Why it matters
    Nothing ran meanwhile: pages are read back as soon as they were dropped (thrashing), or a disk or file server hardly answers. Training in addition to
    that makes it worse.

    When to leave it
    A copy or a backup is running, and ends before the training begins.

    References
    Linux Documentation/accounting/psi.rst (full, avg300)
    """
    for what, percent in need(need(s.memory).stalled).items():
        if isinstance(percent, Missing):
            if not absent_or_unsupported(percent):
                yield unsure(what, percent)
            continue
        limit = float(p["memory_percent" if what == "memory" else "io_percent"])
        yield Evidence(
            subject=what,
            seen=f"{percent:g} % of the last five minutes",
            wanted=f"< {limit:g} %",
            verdict=Verdict.FAIL if percent >= limit else Verdict.PASS,
            source=f"/proc/pressure/{what}",
        )


@rule(
    id="thp-defrag-always",
    title="Each page fault waits until a huge page is made free",
    severity=Severity.ADVICE,
    fix=(SysfsWrite(path="/sys/kernel/mm/transparent_hugepage/defrag", target=OneOf(("madvise", "defer+madvise", "defer"))),),
)
def thp_defrag_always(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """transparent_hugepage/defrag is "always", and huge pages are used by all programs.

    Why it matters
    Once memory is fragmented, a page fault compacts memory by itself before it goes on: DataLoader workers and pinned buffers stall at moments that
    nobody foresees.

    When to leave it
    Memory is far larger than what the job and the page cache take.

    References
    Linux Documentation/admin-guide/mm/transhuge.rst, defrag (the kernel's default is madvise)
    """
    memory = need(s.memory)
    everywhere = need_if_there(memory.thp, "this kernel has no transparent huge pages") == "always"
    if not everywhere:
        raise NotApplicable("only programs that ask for huge pages get them")
    chosen = need_if_there(memory.thp_defrag, "this kernel has no such setting")
    yield Evidence(
        subject="transparent_hugepage/defrag",
        seen=chosen,
        wanted="madvise, defer+madvise or defer",
        verdict=Verdict.FAIL if chosen == "always" else Verdict.PASS,
        source="/sys/kernel/mm/transparent_hugepage/defrag",
    )
