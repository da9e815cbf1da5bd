"""Crashes of the kernel itself: in its log, by its taint flags, by the dumps that they left."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot, container_told
from torchtune_sys.model.values import NotApplicable, need, need_if_there
from torchtune_sys.rules.kernel.common import DAYS, none_logged, recent, seen_in_log, shorter


@rule(
    id="kernel-crash-logged",
    title="The kernel crashed, or continued after an internal fault (Oops)",
    severity=Severity.ERROR,
    fix=(
        Advice(text="restart the machine; update the kernel, or the driver of the module that the log names"),
        Advice(text="if it recurs in different places: take the machine out of service, and test memory and processor"),
    ),
    params=(DAYS,),
)
def kernel_crash_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log holds a kernel panic, an Oops, a "kernel BUG at", or a "Bad page state".

    Why it matters
    After a panic the machine stops or restarts, and the job is gone. After an Oops it continues with one task killed inside the
    kernel: locks that the task held stay locked, and whatever needs them (a GPU, a mount) hangs until the machine is restarted.

    When to leave it
    The machine has been restarted since, and the cause is fixed.

    References
    Linux Documentation/admin-guide/bug-hunting.rst; kernel/panic.c; arch/x86/kernel/dumpstack.c; arch/arm64/kernel/traps.c
    """
    found = False
    for kind, subject in (("panic", "kernel panic"), ("oops", "kernel Oops")):
        events = recent(s, p, kind)
        if events:
            found = True
            first = next((event for event in events if "in the module" in event.text), events[0])
            yield seen_in_log(s, subject, shorter(first.text, 160), events, "none", about=("the kernel since boot",))
    if not found:
        yield from none_logged(s, "kernel", "panic or Oops")


_FLAGS = ((7, "D: the kernel died (Oops) and went on"), (5, "B: a page of memory was in a bad state"), (4, "M: a machine check"))


@rule(
    id="kernel-tainted-by-fault",
    title="The kernel has been tainted by a fault since boot",
    severity=Severity.WARNING,
    superseded_by=("kernel-crash-logged",),
    fix=(Advice(text="save the log (journalctl -k), and restart the machine"),),
)
def kernel_tainted_by_fault(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """/proc/sys/kernel/tainted has a flag that only a fault sets: D (Oops), B (bad page) or M (machine check exception).

    Why it matters
    The flag remains when the log has wrapped or cannot be read. A kernel that continued after an Oops holds locks that nobody
    will release: calls into the affected driver or file system may hang.

    When to leave it
    The fault is known and did not touch GPU, network or storage. Flags for proprietary, unsigned or out-of-tree modules (P, E, O)
    and for warnings (W) are not faults and are not reported.

    References
    Linux Documentation/admin-guide/tainted-kernels.rst
    """
    otherwise = "there is no /proc/sys/kernel/tainted here: not Linux itself, or a recording without it"
    bits = need_if_there(need(s.kernel).taint, otherwise)
    names = [name for bit, name in _FLAGS if bits >> bit & 1]
    yield Evidence(
        subject="the kernel since boot",
        seen=f"tainted ({bits}): {'; '.join(names)}" if names else f"tainted is {bits}: no fault flag",
        wanted="no flag D, B or M" if names else "",
        verdict=Verdict.FAIL if names else Verdict.PASS,
        source="/proc/sys/kernel/tainted",
    )


@rule(
    id="kernel-crash-dump-found",
    title="The kernel of this machine crashed recently",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="read the end of the dump (dmesg.txt, dmesg-efi-*) for the module or device it names, then move the dump elsewhere"
        ),
    ),
    params=(
        Param(
            "age_days",
            30,
            "older crashes are ignored, days; a dump without a date counts as long as it is in the firmware's store",
        ),
    ),
)
def kernel_crash_dump_found(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """pstore holds a kernel log saved at a crash, or /var/crash holds a dump, no older than 30 days.

    Why it matters
    The log of the current boot does not show why the machine restarted. A node that crashed under load is likely to crash again
    and take the whole job with it.

    When to leave it
    The cause is known and fixed, or somebody crashed the kernel on purpose (sysrq c) to test the dump.

    References
    Linux Documentation/ABI/testing/pstore; systemd-pstore.service(8); Documentation/admin-guide/kdump/kdump.rst
    """
    if container_told(s):
        raise NotApplicable("inside a container: crash dumps are the host's")
    recent_ones = 0
    for dump in need(need(s.kernel).dumps):
        age = dump.age_days
        if age is not None and age > int(p["age_days"]):
            continue
        if age is None and not dump.path.startswith("/sys/fs/pstore/"):
            continue
        recent_ones += 1
        if recent_ones <= _SHOWN:
            seen = "a dump whose name holds no date" if age is None else f"the kernel crashed {max(age, 0)} d ago"
            yield Evidence(
                subject=dump.path, seen=seen, wanted=f"no crash in {p['age_days']} d", source=dump.path.rpartition("/")[0]
            )
    if not recent_ones:
        yield Evidence(
            subject="crash dumps", seen=f"none of the last {p['age_days']} d", verdict=Verdict.PASS, source="/sys/fs/pstore"
        )


_SHOWN = 3
"""A crash is stored in several parts."""
