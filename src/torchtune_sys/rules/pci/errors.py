"""Errors on PCIe links, as the kernel counted them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.pci import PciErrors
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent_or_unsupported, known, need
from torchtune_sys.rules.pci import common as pci_seen

_RESEAT = Advice(
    text="dmesg | grep -i aer shows when they occurred; reseat the card, its riser and cables, update its firmware, then have "
    "the slot or card replaced"
)
_HARMLESS = ("UnsupReq",)
"""Software that asks for what a device lacks; seen at boot on sound machines."""
_NOT_OF_THE_LINK = (
    "NonFatalErr",
    "CorrIntErr",
    "HeaderOF",
    "Advisory Non-Fatal",
    "Corrected Internal Error",
    "Header Log Overflow",
)
"""Advisory errors (mostly unsupported requests once more), a device's own, and a full log: nothing was sent again for these."""


@rule(
    id="pcie-errors-uncorrectable",
    title="A PCIe device or port has counted uncorrectable errors",
    severity=Severity.WARNING,
    fix=(_RESEAT,),
)
def uncorrectable(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The kernel counted fatal or non-fatal PCIe errors of a GPU, network card or NVMe drive, or of a bridge above one.

    Why it matters
        A transfer was lost, corrupted or refused. Xid 79 (fallen off the bus), I/O errors and hangs may follow. Hardware that
        failed once tends to fail again.

    When to leave it
        The errors come from a deliberate reset or hot-plug. The counters start when the kernel detects the device.

    References
        Linux Documentation/ABI/testing/sysfs-bus-pci-devices-aer
        Linux Documentation/PCI/pcieaer-howto.rst
    """
    yield from _each(s, _lost, "no fatal or non-fatal error")


def _lost(errors: PciErrors, _hours: float) -> tuple[str, bool]:
    serious = {kind: count for kind, count in errors.nonfatal.items() if kind not in _HARMLESS}
    words = [f"{count} {kind} (fatal)" for kind, count in errors.fatal.items()]
    words += [f"{count} {kind}" for kind, count in serious.items()]
    return ", ".join(words) or "none", bool(words)


@rule(
    id="pcie-errors-correctable",
    title="A PCIe link has counted many correctable errors",
    severity=Severity.WARNING,
    params=(
        Param("per_minute", 8, "average number of correctable errors per minute since boot from which on the link is reported"),
        Param("least", 100, "total number of errors below which nothing is reported"),
    ),
    fix=(_RESEAT,),
)
def correctable(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A link reports correctable errors at a rate that a healthy link does not reach.

    Why it matters
        Each error causes a retransmission; many of them cost bandwidth, and they often precede uncorrectable errors. They point
        to contacts, risers, cables or signal quality.

    When to leave it
        All of them come from one event (a reset, a hot-plug) and the count does not grow (--live watches it for a second).

    References
        Linux Documentation/ABI/testing/sysfs-bus-pci-devices-aer
        Linux drivers/pci/pcie/aer.c (aer_correctable_error_string; advisory errors are not judged)
        NVIDIA DCGM, dcgm_gpu_hardware_limits.h: 8 PCIe replays a minute are the most that a GPU should see
    """
    rate, least = float(p["per_minute"]), int(p["least"])

    def many(errors: PciErrors, hours: float) -> tuple[str, bool]:
        repeated = {kind: number for kind, number in errors.correctable.items() if kind not in _NOT_OF_THE_LINK}
        count = sum(repeated.values())
        kinds = ", ".join(f"{number} {kind}" for kind, number in repeated.items())
        return kinds or "none", count >= least and count > rate * 60 * hours

    yield from _growing(s, rate)
    yield from _each(s, many, f"fewer than {rate:g} a minute", rate=True)


def _growing(s: Snapshot, per_minute: float) -> Iterator[Evidence]:
    """Yield what came while the counters were watched (``--live``); a single error may be chance."""
    growth = need(s.pci).growth
    if isinstance(growth, Missing):
        if growth.why not in (Why.NOT_SUPPORTED, Why.NOT_RECORDED, Why.ABSENT):
            yield unsure("PCIe errors just now", growth, f"fewer than {per_minute:g} a minute")
        return
    functions = pci_seen.functions(s)
    for address, gained in growth.correctable.items():
        if address in functions and gained > 1 and gained * 60 / max(growth.seconds, 0.1) > per_minute:
            yield Evidence(
                subject=pci_seen.name(functions[address]),
                seen=f"{gained} in {growth.seconds:.1f} s, just now",
                wanted=f"fewer than {per_minute:g} a minute",
                source=f"/sys/bus/pci/devices/{address}/aer_dev_correctable, read twice",
            )


def _each(
    s: Snapshot, judge: Callable[[PciErrors, float], tuple[str, bool]], wanted: str, rate: bool = False
) -> Iterator[Evidence]:
    uptime = s.system if isinstance(s.system, Missing) else s.system.uptime_s
    hours = max(need(uptime) if rate else known(uptime, 0.0), 60.0) / 3600
    since = "" if isinstance(uptime, Missing) else f" in {hours:.1f} h"
    judged = False
    untold: Missing | None = None
    for device in pci_seen.functions(s).values():
        errors = device.errors
        if isinstance(errors, Missing):
            if errors.why in (Why.NOT_RECORDED, Why.DENIED):
                untold = errors
            elif not absent_or_unsupported(errors):
                judged = True
                yield unsure(pci_seen.name(device), errors, wanted)
            continue
        judged = True
        seen, bad = judge(errors, hours)
        if bad or known(device.class_, "")[2:4] in ("03", "12"):
            yield Evidence(
                subject=pci_seen.name(device),
                seen=seen + since,
                wanted=wanted,
                verdict=Verdict.FAIL if bad else Verdict.PASS,
                source=f"/sys/bus/pci/devices/{device.address}/aer_dev_*",
            )
    if not judged and untold is not None:
        need(untold)
    if not judged:
        raise NotApplicable("the kernel counts no PCIe errors here")
