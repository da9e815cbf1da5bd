"""Rules on logged faults of PCIe links and network adapters."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.kernel import KernelEvent, KernelFacts
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot, gpus_by_address, kept, pci_devices_by_address
from torchtune_sys.model.values import Missing, NotApplicable, known, need
from torchtune_sys.rules.kernel.common import (
    DAYS,
    device_name,
    grouped,
    logged_of_devices,
    none_logged,
    of_boot,
    recent,
    same_clock,
    seen_in_log,
    shorter,
    times_of,
    total,
    when,
)
from torchtune_sys.rules.kernel.common import events as log_events

_MINUTE_S = 60
_DAY = Param("days", 1, "older messages in the log are ignored, days")


@rule(
    id="pcie-uncorrected-errors",
    title="A PCIe link had uncorrected errors",
    severity=Severity.WARNING,
    fix=(Advice(text="reseat the card, its riser and cables; update the firmware; replace the part that keeps failing"),),
    params=(DAYS,),
)
def pcie_uncorrected_errors(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """PCIe advanced error reporting (AER) logged an uncorrected error, or a port was disabled to contain one (DPC).

    Why it matters
    A transaction was lost. After a fatal error the link is reset and whatever was running on the card is lost. Non-fatal errors
    often precede fatal ones.

    When to leave it
    They were logged while a device was removed or a virtual machine reset it. Unsupported requests, with which software probes a
    device's features, are ignored, and so are devices whose error counters can be read (pcie-errors-uncorrectable judges those).

    References
    Linux Documentation/PCI/pcieaer-howto.rst; drivers/pci/pcie/aer.c, dpc.c
    """
    events = recent(s, p, "aer-uncorrected", "pcie-contained") or recent(s, p, "aer-lost")
    serious = [event for event in events if not (event.who == "Non-Fatal" and "UnsupReq" in event.text)]
    found = {address: group for address, group in grouped(tuple(serious)).items() if not _counted(s, address)}
    for address, group in found.items():
        yield seen_in_log(s, device_name(s, address), shorter(group[-1].text), group, "no uncorrected error")
    if not found:
        yield from none_logged(s, "PCIe", "uncorrected error (beyond those that the kernel's counters tell)")


def _counted(s: Snapshot, address: str) -> bool:
    """Whether the kernel's own counters of the device were read: pcie-errors-uncorrectable and -correctable judge those."""
    device = pci_devices_by_address(s).get(address)
    return device is not None and not isinstance(device.errors, Missing)


@rule(
    id="pcie-corrected-errors",
    title="A PCIe link has many corrected errors",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="reseat the card, its riser and cables; compare the link's speed and width with its neighbours; then replace "
            "parts"
        ),
    ),
    params=(
        _DAY,
        Param("count", 80, "corrected errors of one device from which on they are reported"),
        Param(
            "few",
            10,
            "corrected errors of one device, over a minute or more, from which on their rate is reported where it reaches the count",
        ),
    ),
)
def pcie_corrected_errors(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """PCIe advanced error reporting (AER) logged at least 80 corrected errors for one device within a day, or at least 10 that come as often as that.

    Why it matters
    Each one is a retransmitted packet: the link is slower than it looks, and such links tend to fail. A few corrected errors are
    normal. The kernel rate-limits these messages, so there were more errors than the log shows.

    When to leave it
    The card is not used for training, or the platform is known to report errors caused by link power management (ASPM).

    References
    NVIDIA DCGM, diagnostic pcie, max_pcie_replays (80)
    Linux drivers/pci/pcie/aer.c
    """
    log = need(s.kernel)
    # An advisory error (ANFE) has the transaction layer: an unsupported request, not a packet that was sent again.
    found = grouped(tuple(event for event in recent(s, p, "aer-corrected") if not event.who.startswith("Transaction")))
    many = {address: events for address, events in found.items() if _often(log, events, p) and not _counted(s, address)}
    for address, events in many.items():
        yield Evidence(
            subject=device_name(s, address),
            seen=f"corrected errors ({events[-1].who}){when(log, events)}",
            wanted=f"fewer than {p['count']} in {p['days']} d"
            + (", also by their rate" if total(events) < int(p["count"]) else ""),
            source=log.source,
        )
    if not many:
        yield from none_logged(s, "PCIe", "device with many corrected errors")


def _often(log: KernelFacts, events: list[KernelEvent], p: Params) -> bool:
    """Return whether the errors are as many as the rule reports, or come as often up to the end of the log. Those of one moment (a link that is
    trained, a card that is reset) have no rate."""
    count, many = total(events), int(p["count"])
    if count >= many:
        return True
    times = times_of(events)
    if count < int(p["few"]) or not times or isinstance(log.now_s, Missing) or not same_clock(min(times), log.now_s):
        return False
    lasted, since = max(times) - min(times), log.now_s - min(times)
    return lasted >= _MINUTE_S and count * float(p["days"]) * 86_400 >= many * since


@rule(
    id="pcie-slot-link-down",
    title="The link of a PCIe slot went down",
    severity=Severity.ADVICE,
    fix=(Advice(text="check the power and seating of the card in that slot"),),
    params=(DAYS,),
)
def pcie_slot_link_down(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A hot-plug slot reported that its link is down.

    Why it matters
    The device in it disappeared from the system. On a server where nobody removed it, the card or slot is failing.

    When to leave it
    A disk or card was swapped on purpose, a cloud volume was detached, a dock was unplugged, or the device in the slot was reset.

    References
    Linux drivers/pci/hotplug/pciehp_ctrl.c
    """
    yield from logged_of_devices(s, p, ("slot-down",), "PCIe slots", "slot whose link went down", "link up")


@rule(
    id="pcie-narrow-slot-logged",
    title="The kernel says that a GPU or network card has fewer PCIe lanes than it can use",
    severity=Severity.ADVICE,
    fix=(
        Advice(
            text="put the card into a slot that provides all its lanes (see the board's manual: bifurcation, shared slots), "
            "without a riser"
        ),
        Advice(text="if it already is in such a slot: reseat the card, and inspect the slot and connector"),
    ),
)
def pcie_narrow_slot_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """On detecting the card, the kernel logged that a link with fewer lanes than the card has limits its bandwidth.

    Why it matters
    Copies between host and GPU, or the traffic of the network card, get only that fraction of the bandwidth.

    When to leave it
    The board has no wider slot free, or shares lanes between two cards, and data loading is not limited by it. Speeds are not
    judged, because idle GPUs slow their links down. Cards whose links can be read directly are judged by
    gpu-slot-narrower-than-card and pcie-link-degraded.

    References
    Linux drivers/pci/pci.c (pcie_print_link_status)
    """
    log = need(s.kernel)
    if not isinstance(s.system, Missing) and not isinstance(s.system.hypervisor, Missing) and s.system.hypervisor:
        raise NotApplicable("a virtual machine: the links are what its hypervisor shows")
    latest = {event.subject: event for event in log_events(s) if event.kind == "pcie-narrow"}
    judged = {address: event for address, event in latest.items() if _trains(s, event) and not _read(s, address)}
    for address, event in judged.items():
        yield Evidence(
            subject=device_name(s, address),
            seen=shorter(event.text.partition(f"{address}: ")[2] or event.text, 180),
            wanted="as many lanes as the card has",
            source=log.source,
        )
    if not judged:
        yield from none_logged(s, "PCIe", "GPU or network card with too few lanes")


def _trains(s: Snapshot, event: KernelEvent) -> bool:
    """Whether the device is a GPU, or a card of a driver of fast networks."""
    if event.text.startswith(("mlx5_core ", "bnxt_en ", "nvidia ", "amdgpu ")):
        return True
    return event.subject in _nvidia_devices(s) or event.subject in gpus_by_address(s)


@kept
def _nvidia_devices(s: Snapshot) -> frozenset[str]:
    return frozenset() if isinstance(s.driver, Missing) else frozenset(known(s.driver.nvidia_devices, ()))


def _read(s: Snapshot, address: str) -> bool:
    """Whether the device's own link was read."""
    device = pci_devices_by_address(s).get(address)
    return device is not None and not isinstance(device.link.current_width, Missing)


@rule(
    id="network-adapter-fault",
    title="A network adapter reported a hardware or firmware fault",
    severity=Severity.ERROR,
    fix=(
        Advice(
            text="restart the machine and update the adapter's firmware; if it recurs, replace the adapter, or the cable or "
            "transceiver named in the message"
        ),
    ),
    params=(DAYS,),
    cause="rdma-adapter-failed",
)
def network_adapter_fault(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The mlx5 driver logged compromised health, a fatal error or syndrome, a cable or transceiver error, too high a temperature, or that it
    could not start the card; the EFA driver that its device does not answer; or one of Intel's that the card's PCIe link is lost, or that no reset helped.

    Why it matters
    After a health error the adapter is reset: RDMA connections break, and NCCL fails with "Got async event" or a timeout. A port
    whose transceiver is rejected or too hot stays down.

    When to leave it
    The adapter's firmware was updated or reset at that time, or the port with the faulty module is not used.

    References
    Linux drivers/net/ethernet/mellanox/mlx5/core/health.c, events.c, main.c; drivers/infiniband/hw/efa/efa_com.c
    Linux drivers/net/ethernet/intel: ice, i40e, igc, igb
    """
    kinds = ("nic-hot", "module-fault", "adapter-fault", "efa-fault", "mlx5-fault")
    for item in logged_of_devices(s, p, kinds, "network adapters", "adapter fault", "no fault"):
        if "PCIe link lost" in item.seen and _is_unplugged(s, item.subject):
            continue
        of_cable = item.verdict is Verdict.FAIL and "Cable error" in item.seen
        yield replace(item, fix=(_CABLE,), cause="link-down") if of_cable else item


def _is_unplugged(s: Snapshot, subject: str) -> bool:
    """Return whether the bus is seen and the device is not on it: a dock or a card was taken away while its driver ran, which says the same."""
    there = pci_devices_by_address(s)
    return bool(there) and not any(address in subject for address in there)


_CABLE = Advice(text="reseat the cable or transceiver named in the message; replace it if this recurs")


@rule(
    id="network-link-flapping",
    title="A network link repeatedly goes down, or an adapter repeatedly stops sending",
    severity=Severity.WARNING,
    fix=(
        Advice(text="replace the cable or transceiver, and check the switch port's error counters"),
        Advice(
            text="if a transmit queue hangs: update the adapter's driver and firmware, and check whether the switch pauses the "
            "port (ethtool -S)"
        ),
    ),
    params=(_DAY, Param("count", 3, "how often a link may go down, or an adapter may stop sending, in that time")),
)
def network_link_flapping(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """At least three times within a day, an interface lost its link, or its adapter stopped sending until the driver reset the queue.

    Why it matters
    Each time, connections stall or break; NCCL gives up after its retries, and the job fails.

    When to leave it
    Somebody worked on the cable or the switch, or it is a management port. (Cables of laptops come and go, and are not judged.)

    References
    leptonai/gpud, threshold for InfiniBand link flaps (3); Linux net/sched/sch_generic.c (dev_watchdog)
    Linux drivers/net/ethernet/mellanox/mlx5/core/en_main.c
    """
    log = need(s.kernel)
    portable = not isinstance(s.hardware, Missing) and known(s.hardware.portable, False)
    downs = grouped(tuple(event for event in recent(s, p, "link-down") if not portable and not of_boot(log, event)))
    many = [
        (name, what, events)
        for what, found in (("link down", downs), ("a transmit queue timed out", _hangs(s, p)))
        for name, events in found.items()
        if total(events) >= int(p["count"])
    ]
    for name, what, events in many:
        yield seen_in_log(s, name, what, events, f"fewer than {p['count']} in {p['days']} d")
    if not many:
        yield from none_logged(s, "network", "flapping link")


def _hangs(s: Snapshot, p: Params) -> dict[str, list[KernelEvent]]:
    """Return time-outs of transmit queues by interface. The kernel tells of each (before 6.6 of the first alone), and mlx5 of the same once more."""
    watched, timed_out = grouped(recent(s, p, "tx-watchdog")), grouped(recent(s, p, "tx-timeout"))
    return {
        name: max(watched.get(name, []), timed_out.get(name, []), key=total) for name in dict.fromkeys((*watched, *timed_out))
    }
