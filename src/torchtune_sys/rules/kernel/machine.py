"""Rules on logged faults of memory, processors and programs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torchtune_sys.formats.kernel_log import is_wall_clock
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.kernel import KernelEvent
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, known, need
from torchtune_sys.rules.kernel.common import DAYS, grouped, none_logged, recent, seen_in_log, shorter, total, when


@rule(
    id="oom-kill-logged",
    title="The kernel killed a process because memory ran out",
    severity=Severity.WARNING,
    cause="host-memory-oom",
    fix=(
        Advice(
            text="give the job more memory (or its container a higher limit), or use fewer DataLoader workers and a smaller cache"
        ),
    ),
    params=(DAYS,),
)
def oom_kill_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log shows that the OOM killer ended a process because the machine, or a cgroup, ran out of memory.

    Why it matters
    A killed DataLoader worker ends its rank, and a killed rank ends the job; the other ranks wait until their NCCL timeout.
    Python prints nothing: the process is just gone (exit code 137, signal 9).

    When to leave it
    The killed process has nothing to do with training.

    References
    Linux mm/oom_kill.c; Documentation/admin-guide/cgroup-v2.rst (memory.max)
    """
    log = need(s.kernel)
    found: dict[tuple[str, str], list[KernelEvent]] = {}
    for event in recent(s, p, "oom-kill"):
        limit = _what_was_full(event)
        found.setdefault((event.who, limit), []).append(event)
    for (process, limit), events in found.items():
        group = events[-1].text.partition("CONSTRAINT_MEMCG ")[2]
        yield Evidence(
            subject=process,
            seen=f"killed{when(log, tuple(events))}: {limit} was reached{f' ({shorter(group, 80)})' if group else ''}",
            wanted="no killed process",
            source=log.source,
            about=("kills in the log",),
        )
    reports = recent(s, p, "oom-report") if not found else ()
    if reports:
        yield Evidence(
            subject=next((event.who for event in reports if event.who), "") or "memory",
            seen=f"the OOM killer ran{when(log, tuple(reports))}: {_limit_of(reports)}; which process it ended is not in the log",
            wanted="no killed process",
            source=log.source,
            about=("kills in the log",),
        )
    if not found and not reports:
        yield from none_logged(s, "memory", "kill")


def _limit_of(reports: Sequence[KernelEvent]) -> str:
    return "a cgroup's limit was reached" if any(event.subject == "memory" for event in reports) else "memory ran out"


def _what_was_full(event: KernelEvent) -> str:
    if event.subject.startswith(("Memory cgroup", "Detected")):  # slurmstepd says "Detected", of the cgroup of a job step
        return "a cgroup's limit"
    if event.subject in ("Killed", "sending", "Sending"):
        return "the limit of an OOM killer in user space (systemd-oomd, earlyoom)"
    if "CONSTRAINT_CPUSET" in event.text or "CONSTRAINT_MEMORY_POLICY" in event.text:
        return "the end of the memory nodes that it was bound to"
    return "the end of the machine's memory"


@rule(
    id="memory-uncorrected-errors",
    title="The machine's memory or processor had an uncorrected error",
    severity=Severity.ERROR,
    fix=(
        Advice(
            text="take the machine out of service, identify the module (ras-mc-ctl --errors, ipmitool sel list) and replace it"
        ),
    ),
    params=(DAYS,),
)
def memory_uncorrected_errors(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log holds a machine check exception, an uncorrected memory controller error, or a page retired because of one.

    Why it matters
    Data in memory was lost: the process that owned it was killed or, worse, continued with wrong data.

    When to leave it
    The errors were injected for a test.

    References
    Linux Documentation/arch/x86/x86_64/machinecheck.rst; mm/memory-failure.c; drivers/edac
    """
    events = tuple(
        event
        for event in recent(s, p, "memory-uncorrected", "machine-check")
        if event.kind != "machine-check" or _uncorrected(event)
    )
    for subject, group in grouped(events).items():
        name = group[0].who or (f"CPU {subject}" if natural(subject) is not None else subject) or "memory"
        yield seen_in_log(
            s,
            name,
            shorter(group[0].text),
            group,
            "no uncorrected error",
            about=tuple(dict.fromkeys(_controller(event) for event in group if event.kind == "memory-uncorrected")),
        )
    if not events:
        yield from none_logged(s, "memory", "uncorrected error")


def _controller(event: KernelEvent) -> str:
    """EDAC's name of the memory controller (``mc0``), as in /sys/devices/system/edac; firmware and kernel may not tell which it was."""
    return event.subject.lower() if event.subject.startswith("MC") else "a memory controller"


def _uncorrected(event: KernelEvent) -> bool:
    """Bit 61 (UC) of the bank's status: corrected errors are logged in the same form (Intel SDM volume 3B, IA32_MCi_STATUS)."""
    found = re.search(r"Bank [0-9]+: ([0-9a-f]{16})", event.text)
    return found is None or bool(int(found[1], 16) >> 61 & 1)


@rule(
    id="memory-corrected-errors",
    title="A memory module has many corrected errors",
    severity=Severity.WARNING,
    fix=(Advice(text="reseat or replace the module at the next maintenance"),),
    params=(
        Param("days", 1, "older messages in the log are ignored, days"),
        Param("count", 50, "corrected errors on one module from which on they are reported"),
    ),
)
def memory_corrected_errors(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The memory controller corrected at least 50 errors on one module within a day.

    Why it matters
    Corrected errors are harmless in themselves but often precede uncorrectable ones. Many of them also cost time, since each
    raises an interrupt.

    When to leave it
    The module's replacement is planned.

    References
    rasdaemon, PAGE_CE_THRESHOLD (50 of one page in 24 h); mcelog.conf, ce-error-threshold (10 of one module in 24 h)
    Linux drivers/edac/edac_mc.c
    """
    log = need(s.kernel)
    found: dict[str, list[KernelEvent]] = {}
    for event in recent(s, p, "memory-corrected"):
        found.setdefault(event.who or event.subject, []).append(event)
    many = False
    for module, events in found.items():
        errors = sum(max(event.code, 1) * event.count for event in events)
        if errors >= int(p["count"]):
            many = True
            yield Evidence(
                subject=module,
                seen=f"{errors} corrected errors{when(log, events)}",
                wanted=f"fewer than {p['count']} in {p['days']} d",
                source=log.source,
                about=tuple(dict.fromkeys(map(_controller, events))),
            )
    if not many:
        yield from none_logged(s, "memory", "module with many corrected errors")


@rule(
    id="cpu-lockup-logged",
    title="The kernel reported CPU lockups or hung tasks",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="look at the stack trace in the log: a module named there (nvidia, mlx5, nfs, lustre) is what hung; update its "
            "driver or repair its device"
        ),
    ),
    params=(
        DAYS,
        Param(
            "tasks",
            3,
            "hung tasks that are reported (on a virtual machine: also lockups); fewer only for Python, or with a GPU, network "
            "or storage module",
        ),
    ),
)
def cpu_lockup_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log holds soft or hard lockups or RCU stalls of a CPU, or tasks that were blocked in the kernel for minutes.

    Why it matters
    Nothing else runs on a locked-up CPU; a blocked task waits for a device or file server that does not respond. A rank stuck
    there shows up as an NCCL timeout on every other host.

    When to leave it
    The host of a virtual machine was overloaded for a while (stalls without a module), or a backup kept the disk busy once.
    Pauses of a virtual machine are not counted: there, everything blocked is logged once, or next to a jump of the clock.

    References
    Linux Documentation/admin-guide/lockup-watchdogs.rst; kernel/hung_task.c; Documentation/RCU/stallwarn.rst
    """
    locked = recent(s, p, "lockup")
    if _virtual(s) and total(locked) < int(p["tasks"]):
        locked = tuple(event for event in locked if "in the module" in event.text)  # the host paused or moved this machine
    hung = recent(s, p, "hung-task")
    if total(hung) < int(p["tasks"]):
        hung = tuple(event for event in hung if "in the module" in event.text or (of_training(event) and _lasted(s, p, event)))
    for subject, events in (("CPU", locked), ("tasks", hung)):
        if events:
            first = next((event for event in events if "in the module" in event.text), events[0])
            yield seen_in_log(s, subject, shorter(first.text, 160), events, "none")
    if not locked and not hung:
        yield from none_logged(s, "CPU", "lockup")


_TRAINING = pattern(r"python|^pt_|torchrun|^ray::|^cuda-")
"""Names of Python and of threads that torch (c10/util/thread_name.cpp users: pt_data_worker, pt_nccl_watchdg …), Ray and CUDA start."""
_NEAR_S = 60.0


def of_training(event: KernelEvent) -> bool:
    """Return whether the event names a program or thread of training."""
    return any(_TRAINING.search(name) for name in event.who.split(", "))


def _lasted(s: Snapshot, p: Params, event: KernelEvent) -> bool:
    """Whether the task was blocked itself, rather than the whole machine paused: a virtual machine that was paused, or a machine that
    slept, finds all its tasks overdue at once, together with its clock and its watchdogs; tasks that are really blocked are told of again."""
    jumps = recent(s, p, "time-jump", "lockup")
    if any(_near(event, other) for other in jumps):
        return False
    return not _virtual(s) or sum(map(of_training, recent(s, p, "hung-task"))) > 1 or _spans(event)


def _near(event: KernelEvent, other: KernelEvent) -> bool:
    if event.first_s is None or event.last_s is None or other.first_s is None or other.last_s is None:
        return True
    return other.first_s - _NEAR_S <= event.last_s and event.first_s <= other.last_s + _NEAR_S


def _spans(event: KernelEvent) -> bool:
    return event.first_s is not None and event.last_s is not None and event.last_s - event.first_s > _NEAR_S


def _virtual(s: Snapshot) -> bool:
    """Whether the machine is a virtual one, by its facts, or in a pasted log by the kernel's first lines."""
    if not isinstance(s.system, Missing) and known(s.system.hypervisor, ""):
        return True
    log = need(s.kernel)
    return not isinstance(log.events, Missing) and any(event.kind == "hypervisor" for event in log.events)


@rule(
    id="cpu-thermal-throttle-logged",
    title="The kernel log reports CPUs throttled because of heat",
    severity=Severity.WARNING,
    fix=(Advice(text="check fans, air flow and heat sinks, and the firmware's power and thermal profile"),),
    params=(
        Param("days", 1, "older messages in the log are ignored, days"),
        Param("count", 100, "how often one core or package may be throttled in that time"),
    ),
)
def cpu_thermal_throttle_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log says that a core or package was throttled for its temperature, a hundred times or more within a day. The kernel's own count
    decides: it logs at most one line in five minutes, which contains the total since boot.

    Why it matters
    Data loading and kernel launches slow down on this host alone, and every other rank waits for it.

    When to leave it
    On a small workstation, where this is normal under load. (Laptops are not judged.)

    References
    Linux drivers/thermal/intel/therm_throt.c
    """
    if not isinstance(s.hardware, Missing) and known(s.hardware.portable, False):
        raise NotApplicable("a laptop: thermal throttling is normal")
    log = need(s.kernel)
    found = grouped(recent(s, p, "cpu-hot"))
    hot = {subject: events for subject, events in found.items() if _throttled(events) >= int(p["count"])}
    for subject, group in hot.items():
        yield Evidence(
            subject=f"CPU ({subject.lower()})",
            seen=f"throttled {_throttled(group):,} times for its temperature{when(log, group).replace(' times', ' messages')}",
            wanted="below the threshold",
            source=log.source,
        )
    if not hot:
        yield from none_logged(s, "CPU", "repeated thermal throttling")


def _throttled(events: list[KernelEvent]) -> int:
    """How often the hottest core or package was throttled: by how much its own total grew between its first and its last message; of a
    single message, its total by the days since boot, where the log's clock tells them. Without totals, the messages."""
    totals: dict[str, list[KernelEvent]] = {}
    for event in events:
        totals.setdefault(event.who, []).append(event)
    return max(_grown(own) for own in totals.values())


def _grown(events: list[KernelEvent]) -> int:
    codes = [event.code for event in events if event.code]
    if not codes:
        return total(events)
    last = events[-1].last_s
    if len(codes) == 1 and last is not None and not is_wall_clock(last):
        return round(codes[0] / max(last / 86_400, 1.0))
    return max(codes) - min(codes) + 1


@rule(
    id="native-crash-logged",
    title="A program crashed inside a CUDA, NCCL or torch library",
    severity=Severity.ADVICE,
    fix=(
        Advice(
            text="run it again with PYTHONFAULTHANDLER=1 and NCCL_DEBUG=INFO; check for mixed versions of the library named in "
            "the log"
        ),
    ),
    params=(DAYS,),
)
def native_crash_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log shows a segmentation fault, or another trap, in a library of CUDA, ROCm, NCCL, torch, MKL or OpenMP, or in an extension module.

    Why it matters
    The rank died without a Python traceback; the library named by the kernel is the place to look.

    When to leave it
    The crash is already understood.

    References
    Linux arch/x86/mm/fault.c (show_signal_msg), arch/x86/kernel/traps.c (show_signal: "trap invalid opcode")
    """
    log = need(s.kernel)
    events = recent(s, p, "crash")
    found: dict[tuple[str, str], list[KernelEvent]] = {}
    for event in events:
        found.setdefault((event.subject, event.who), []).append(event)
    for (process, library), group in found.items():
        why = ", at an instruction that this processor does not have" if "invalid opcode" in group[-1].text else ""
        yield Evidence(subject=process, seen=f"crashed in {library}{why}{when(log, group)}", wanted="no crash", source=log.source)
    if not found:
        yield Evidence(subject="programs", seen="no such crash in the log", verdict=Verdict.PASS, source=log.source)
