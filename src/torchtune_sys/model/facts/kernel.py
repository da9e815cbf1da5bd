"""Facts from the kernel's log, as far back as it goes and permissions allow."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

_NOT_READ = Missing(Why.NOT_RECORDED, "kernel log", "not read")


class KernelEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Messages of one kind on one subject that followed each other closely."""

    kind: str
    """``xid``, ``sxid``, ``gpu-lost``, ``oom-kill`` …: the kinds in ``formats/kernel_message_table.py``."""
    subject: str = ""
    """PCI address (``0000:18:00.0``), device, server or CPU; ``""`` where the message names none."""
    code: int = 0
    """Number of an Xid or SXid, count of corrected errors, seconds of a lockup."""
    text: str = ""
    """What the first message says, without its time stamp."""
    who: str = ""
    """Process, library or cgroup that the message names."""
    count: int = 1
    first_s: float | None = None
    """Time of the first and the last message by the log's own clock; None where the log has no times."""
    last_s: float | None = None


class KernelDump(msgspec.Struct, frozen=True, kw_only=True):
    """A log or core that the kernel left when it crashed (pstore, kdump)."""

    path: str
    age_days: int | None = None
    """How long ago, as far as its name tells."""


class KernelFacts(msgspec.Struct, frozen=True, kw_only=True):
    events: Fact[tuple[KernelEvent, ...]] = _NOT_READ
    """In the order of their first messages. Missing where the log could not be read."""
    source: str = ""
    """``/dev/kmsg``, ``/var/log/kern.log``, ``journalctl -k`` or ``report``."""
    from_s: Fact[float] = _NOT_READ
    """Time of the oldest message that is left."""
    now_s: Fact[float] = _NOT_READ
    """The time of the look by the log's clock; in a pasted log that of its last message."""
    booted: Fact[float] = _NOT_READ
    """What to add to the log's clock for seconds since 1970; 0 where the log shows the wall clock."""
    whole: Fact[bool] = _NOT_READ
    """Whether the log reaches back to the boot; false once the ring buffer wrapped."""
    taint: Fact[int] = _NOT_READ
    """Bits of ``/proc/sys/kernel/tainted``, set since boot: 4 machine check, 5 bad page, 7 died (Oops)."""
    dumps: Fact[tuple[KernelDump, ...]] = _NOT_READ
    """What earlier crashes left, in the order of their paths."""
