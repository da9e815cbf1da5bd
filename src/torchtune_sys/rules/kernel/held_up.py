"""A rule on programs that the kernel itself makes wait, by its own word."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, known, need
from torchtune_sys.rules.kernel.common import DAYS, grouped, none_logged, of_boot, recent, seen_in_log, shorter, total

_AUDIT = Advice(
    text="see which rule writes so much (sudo aureport --summary, auditctl -l) and narrow it; a larger queue helps for bursts (auditctl -b 65536); or restart auditd, if "
    "it hangs"
)
_IDLED = Advice(
    text="find what asks for it (systemctl status thermald; grep . /sys/class/thermal/cooling_device*/cur_state): heat first, else stop thermald or unload intel_powerclamp"
)
_FIX = {"audit_backlog": _AUDIT, "intel_powerclamp": _IDLED}


@rule(
    id="programs-held-up-logged",
    title="The kernel makes programs wait: for the audit daemon, or to save power",
    severity=Severity.WARNING,
    fix=(_AUDIT, _IDLED),
    params=(DAYS, Param("count", 3, "how often it may do so in that time")),
)
def programs_held_up_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log says at least three times that the queue to the audit daemon was full, or that processors were made idle to save power (intel_powerclamp).

    Why it matters
    While the queue is full, each system call that is audited waits for up to a minute. Idle injection takes its share of the time from all processors at once, whatever
    they have to do. Ranks of other hosts wait for this one, and its load looks ordinary.

    When to leave it
    The machine is known to be short of cooling or power. (Idle injection of laptops is not reported, nor a queue that is full while the machine starts.)

    References
    Linux kernel/audit.c (audit_log_start, audit_backlog_wait_time); auditctl(8), -b
    Linux Documentation/admin-guide/thermal/intel_powerclamp.rst
    """
    portable = not isinstance(s.hardware, Missing) and known(s.hardware.portable, False)
    log = need(s.kernel)
    found = grouped(tuple(event for event in recent(s, p, "held-up") if not of_boot(log, event)))
    many = {
        name: events
        for name, events in found.items()
        if total(events) >= int(p["count"]) and not (portable and name == "intel_powerclamp")
    }
    for name, events in many.items():
        wanted = "a queue that is emptied" if name == "audit_backlog" else "processors that work while there is work"
        yield seen_in_log(s, name, shorter(events[-1].text), events, wanted, fix=(_FIX[name],))
    if not many:
        yield from none_logged(s, "programs", "that the kernel held up")
