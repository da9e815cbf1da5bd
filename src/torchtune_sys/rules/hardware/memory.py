"""Rules on the population of memory slots, and on the errors that memory controllers count."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.hardware import MemoryController, MemoryDevice
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Unknown, Why, known, need, need_any, need_if_there
from torchtune_sys.rules.gates import gpu_host, not_in_container


def _metal(s: Snapshot) -> None:
    """Require a physical machine with a GPU: a virtual machine's modules are made up; a machine without GPU has its own needs."""
    gpu_host(s)
    not_in_container(s)
    if known(need(s.system).hypervisor, ""):
        raise NotApplicable("a virtual machine does not show the real memory modules")


def _fitted(s: Snapshot) -> tuple[MemoryDevice, ...]:
    found = need_if_there(need(s.hardware).memory_devices, "the firmware has no SMBIOS table")
    fitted = tuple(device for device in found if device.size_mib)
    if not fitted:
        raise NotApplicable("the firmware lists no memory module")
    return fitted


@rule(
    id="memory-modules-uneven",
    title="Memory modules are fitted unevenly",
    severity=Severity.ADVICE,
    superseded_by=("memory-channels-empty",),
    fix=(Advice(text="install identical modules, one on each channel of each socket, as described in the board's manual"),),
    applies=_metal,
)
def memory_modules_uneven(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The modules differ in size, or their number cannot be spread evenly over the sockets.

    Why it matters
        Processors interleave memory across channels only as far as these are equal. The rest runs on fewer channels, which slows
        down data loading, offloading and copies to the GPUs.

    When to leave it
        The vendor lists this configuration as balanced.

    References
        DMTF DSP0134 (SMBIOS), memory device (type 17)
        Intel and AMD: memory population rules in the guides of server makers
    """
    fitted = _fitted(s)
    sockets = need(need(s.cpu).sockets)
    sizes = sorted({device.size_mib for device in fitted})
    faults = []
    if len(sizes) > 1:
        faults.append("sizes of " + ", ".join(f"{size / 1024:g} GiB" for size in sizes))
    about: tuple[str, ...] = ()
    if sockets > 0 and len(fitted) % sockets:
        about = () if faults else ("memory channels",)
        faults.append(f"{len(fitted)} modules for {sockets} sockets")
    yield Evidence(
        subject="memory modules",
        seen="; ".join(faults) or f"{len(fitted)} of {sizes[0] / 1024:g} GiB",
        wanted="equal modules, as many on each socket",
        verdict=Verdict.FAIL if faults else Verdict.PASS,
        source="/sys/firmware/dmi/tables/DMI",
        about=about,
    )


@rule(
    id="memory-channels-empty",
    title="Some memory channels of the processors hold no module",
    severity=Severity.ADVICE,
    fix=(Advice(text="install identical modules, one on each channel of each socket, in the order given in the board's manual"),),
    applies=_metal,
)
def memory_channels_empty(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Fewer memory channels are in use than the processors have and the board has slots for. This is told by the number of modules, by the
    names of the slots, or by the memory controllers that the kernel found (EDAC, readable without privileges).

    Why it matters
        Each channel adds its share of memory bandwidth: with half of them, decoding, collating, copies of pinned memory and an
        offloaded optimizer run at half the speed, whatever the processor.

    When to leave it
        The board has fewer slots than the processors have channels, and the firmware does not say so; or the CPU only launches
        kernels.

    References
        DMTF DSP0134 (SMBIOS), memory device: Device Locator, Bank Locator
        https://docs.kernel.org/admin-guide/RAS/main.html (dimm_location)
        Linux drivers/edac: skx_base.c, i10nm_base.c, amd64_edac.c (controllers and channels by processor)
    """
    used, wanted, words, source = _channels(s)
    yield Evidence(
        subject="memory channels",
        seen=words if used < wanted else f"{used} in use",
        wanted=f"{wanted} in use",
        verdict=Verdict.FAIL if used < wanted else Verdict.PASS,
        source=source,
    )


def _channels(s: Snapshot) -> tuple[int, int, str, str]:
    """Channels in use (or the most that can be), those that could be, how to say it, and the source."""
    from torchtune_sys.knowledge import memory_channels

    cpu = need(s.cpu)
    sockets, each = need(cpu.sockets), memory_channels.channels(need(cpu.model))
    if not each or sockets < 1:
        raise NotApplicable("how many channels this processor has is not known")
    have = sockets * each
    of = f"of {have}" + (f" ({each} on each of {sockets} processors)" if sockets > 1 else "")
    counted = memory_channels.by_controllers(_places(s))
    counted = counted if counted <= have else 0
    found = need(s.hardware).memory_devices
    if isinstance(found, Missing):
        if not counted or len(_places(s)) < sockets:
            _fitted(s)  # says why
        return counted, have, f"{counted} {of}", "/sys/devices/system/edac/mc"
    fitted = _fitted(s)
    if any(device.form == "soldered" for device in fitted):
        raise NotApplicable("the memory is soldered to the board")
    wanted, table = min(have, len(found)), "/sys/firmware/dmi/tables/DMI"
    if len(fitted) == len(found) or len(fitted) < wanted:
        return min(len(fitted), wanted), wanted, f"{len(fitted)} modules: at most {len(fitted)} {of}", table
    names = memory_channels.by_names([(device.locator, device.bank) for device in found], sockets, each)
    if names is not None:
        used = len({name for name, device in zip(names, found, strict=True) if device.size_mib})
        return max(used, counted), have, f"{used} {of}, with {len(fitted)} modules", table
    if counted:
        return counted, have, f"{counted} {of}, with {len(fitted)} modules", "/sys/devices/system/edac/mc"
    raise Unknown(Missing(Why.UNPARSED, table, f"the channel of the slots is not clear from their names ({found[0].locator} …)"))


def _places(s: Snapshot) -> list[tuple[str, ...]]:
    """Where each memory controller found modules; nothing where one of them could not be asked."""
    found = need(s.hardware).memory_controllers
    places = [] if isinstance(found, Missing) else [controller.places for controller in found]
    named = [place for place in places if not isinstance(place, Missing)]
    return named if len(named) == len(places) else []


@rule(
    id="memory-below-rated-speed",
    title="Memory runs below the rated speed of its modules",
    severity=Severity.ADVICE,
    fix=(Advice(text="use one module per channel, and set the memory profile or frequency in the firmware to automatic"),),
    applies=_metal,
)
def memory_below_rated_speed(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The configured speed of a module is below its rated speed.

    Why it matters
        Bandwidth drops proportionally. The usual cause is a second module on a channel, or a limit of the processor.

    When to leave it
        The processor supports no higher speed, or you need the capacity of two modules per channel.

    References
        DMTF DSP0134 (SMBIOS), memory device: Speed, Configured Memory Speed
    """
    rated = [device for device in _fitted(s) if device.rated_mts and device.configured_mts]
    if not rated:
        raise NotApplicable("the firmware reports no speeds")
    slow = [device for device in rated if (device.configured_mts or 0) < 0.97 * (device.rated_mts or 0)]
    shown = slow[0] if slow else rated[0]
    yield Evidence(
        subject=f"{len(slow) or len(rated)} memory modules",
        seen=f"{shown.configured_mts} MT/s",
        wanted=f"{shown.rated_mts} MT/s",
        verdict=Verdict.FAIL if slow else Verdict.PASS,
        source="/sys/firmware/dmi/tables/DMI",
    )


@rule(
    id="memory-uncorrected-counted",
    title="A memory controller has counted an uncorrected error since boot",
    severity=Severity.ERROR,
    superseded_by=("memory-uncorrected-errors",),
    fix=(Advice(text="identify the module (ras-mc-ctl --error-count from rasdaemon, or edac-util -v) and have it replaced"),),
)
def memory_uncorrected_counted(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """EDAC's counter of uncorrected errors is above zero.

    Why it matters
        Data in memory was lost: the process that owned it was killed, or continued with wrong data.

    When to leave it
        The module was replaced while the machine was running, or the error was injected for a test.

    References
        https://docs.kernel.org/admin-guide/RAS/main.html (ue_count)
    """
    for controller in _controllers(s):
        yield _counted(controller, controller.uncorrected, "uncorrected", 1, "a memory controller")


@rule(
    id="memory-errors-counted",
    title="The memory controllers have counted many corrected errors",
    severity=Severity.WARNING,
    superseded_by=("memory-corrected-errors",),
    params=(Param("per_day", 50, "corrected errors of one controller per day since boot from which on they are reported"),),
    fix=(Advice(text="identify the module (ras-mc-ctl --error-count from rasdaemon, or edac-util -v) and have it replaced"),),
)
def memory_errors_counted(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """EDAC's count of corrected errors per day since boot (counted as at least one day) is high.

    Why it matters
        Modules with many corrected errors are the ones that later have uncorrectable errors. The limit is what rasdaemon allows
        for a single page in a day; applying it to a whole controller is a convention.

    When to leave it
        The module was replaced while the machine was running, or the counts are known to come from one old event.

    References
        https://docs.kernel.org/admin-guide/RAS/main.html (ce_count)
        rasdaemon, misc/rasdaemon.env (PAGE_CE_THRESHOLD 50 in PAGE_CE_REFRESH_CYCLE 24h)
        Schroeder, Pinheiro, Weber: DRAM errors in the wild (SIGMETRICS 2009)
    """
    controllers = _controllers(s)
    days = max(need(need(s.system).uptime_s) / 86400, 1.0)
    for controller in controllers:
        yield _counted(controller, controller.corrected, "corrected", float(p["per_day"]) * days)


def _controllers(s: Snapshot) -> tuple[MemoryController, ...]:
    return need_any(need(s.hardware).memory_controllers, "no memory controller reports errors here (no EDAC driver)")


def _counted(controller: MemoryController, count: Fact[int], kind: str, limit: float, *about: str) -> Evidence:
    if isinstance(count, Missing):
        return unsure(controller.name, count)
    return Evidence(
        subject=controller.name,
        seen=f"{count} {kind}",
        wanted=f"< {limit:.0f} {kind} since boot",
        verdict=Verdict.FAIL if count >= limit else Verdict.PASS,
        source=f"/sys/devices/system/edac/mc/{controller.name}",
        about=about,
    )
