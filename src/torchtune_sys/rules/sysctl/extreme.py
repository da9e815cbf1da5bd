"""Kernel settings at values that help nothing, and that somebody once set: each with the range in which it does no harm."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from torchtune_sys.model.actions import Safety, Sysctl
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.target import AtLeast, AtMost, Exactly, Target
from torchtune_sys.model.values import Missing, NotApplicable, absent, need
from torchtune_sys.rules.sysctl.policy import meets, origin, shown, wanted


class HarmlessRange(msgspec.Struct, frozen=True, kw_only=True):
    """One setting, and where it harms."""

    key: str
    sane: Target
    default: str
    """The kernel's own value, or one that does no harm on any host."""
    harm: str
    instead: str = ""
    """The setting that counts in its place while this one is 0."""


_RANGES = (
    HarmlessRange(
        key="vm.vfs_cache_pressure",
        sane=AtLeast(1),
        default="100",
        harm="names and inodes of files are kept for ever, until a data set of many files has filled the memory",
    ),
    HarmlessRange(key="vm.panic_on_oom", sane=Exactly("0"), default="0", harm="the first program that runs out of memory takes the host down"),
    HarmlessRange(key="vm.watermark_scale_factor", sane=AtMost(1000), default="10", harm="more than a tenth of memory is kept free"),
    HarmlessRange(
        key="vm.dirty_writeback_centisecs",
        sane=AtLeast(1),
        default="500",
        harm="nothing is written in the background until vm.dirty_background_ratio of memory waits for it: a crash loses the checkpoint",
    ),
    HarmlessRange(
        key="vm.dirty_bytes",
        sane=AtLeast(4 << 20),
        default=str(1 << 30),
        harm="each writer waits for the disk after a few pages: checkpoints are written at the speed of single pages",
        instead="vm.dirty_ratio",
    ),
    HarmlessRange(key="net.ipv4.tcp_retries2", sane=AtLeast(3), default="15", harm="a second's interruption of the network ends every connection"),
)  # fmt: skip


@rule(
    id="kernel-setting-extreme",
    title="A kernel setting has a value that does harm on any host",
    severity=Severity.WARNING,
    fix=tuple(Sysctl(key=row.key, target=Exactly(row.default), safety=Safety.UNSAFE) for row in _RANGES),
)
def kernel_setting_extreme(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A setting that is rarely touched is far outside of what distributions, tuned and vendors' guides use.

    Why it matters
    Such values come from old tuning guides, an experiment or a mistyped number, and act much later: memory fills with names of files and
    programs are killed, the host panics instead of killing one program, or connections break. The finding says which.

    When to leave it
    Another program on this host (a cluster's fencing, a database) needs the value.

    References
    Linux Documentation/admin-guide/sysctl/vm.rst (vfs_cache_pressure: "can easily lead to out-of-memory conditions"; panic_on_oom; watermark_scale_factor;
        dirty_writeback_centisecs; dirty_bytes: 0 while dirty_ratio counts)
    Linux Documentation/networking/ip-sysctl.rst (tcp_retries2: RFC 1122 wants at least 100 seconds)
    """
    settings = need(s.sysctl).settings
    judged = False
    for row in _RANGES:
        found = settings.get(row.key)
        if found is None or absent(found.running):
            continue
        judged = True
        if isinstance(found.running, Missing):
            yield unsure(row.key, found.running)
            continue
        other = settings.get(row.instead)
        unused = found.running == "0" and other is not None and other.running != "0"
        good = unused or meets(row.sane, found.running)
        yield Evidence(
            subject=row.key,
            seen=shown(s, found, found.running) + ("" if good else f": {row.harm}"),
            wanted=wanted(s, row.key, row.sane),
            verdict=Verdict.PASS if good else Verdict.FAIL,
            source=origin(s, found),
            fix=() if good else (Sysctl(key=row.key, target=Exactly(row.default), safety=Safety.UNSAFE),),
        )
    if not judged:
        raise NotApplicable("this kernel shows none of these settings here")
