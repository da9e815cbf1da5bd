"""A rule on the driver of Intel's GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, Install, Safety
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot, variables_told
from torchtune_sys.model.values import Missing, NotApplicable, absent, known, need
from torchtune_sys.rules.gates import intel_cards, intel_cards_served, torch_build


@rule(
    id="intel-gpu-not-served",
    title="torch is a build for Intel GPUs, and the driver for the one here is missing, or half of it",
    severity=Severity.ERROR,
    fix=(
        Advice(
            text="sudo modprobe xe (or i915); if that fails, dmesg | grep -i -e xe -e i915 shows why", safety=Safety.DISPLAY_ONLY
        ),
        Advice(
            text="grep -r -e i915 -e 'blacklist xe' /etc/modprobe.d /proc/cmdline shows what bars it; a kernel that is older than the card does not know it: "
            "Battlemage needs Linux 6.12, or Intel's own driver packages"
        ),
    ),
)
def intel_gpu_not_served(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A GPU of Intel's that is a card of its own is on the PCI bus, no driver is bound to it, and the installed torch is a build for XPU. Or the kernel's driver is there,
    and the loader does not find the user's side of it, libze_intel_gpu.so.1 (Level Zero), which no wheel brings.

    Why it matters
    torch.xpu.is_available() is False: training runs on the CPU, or ends at the first .to("xpu").

    When to leave it
    The card is kept for virtual machines (vfio-pci is bound to it then, which is not reported).

    References
    https://docs.pytorch.org/docs/stable/notes/get_start_xpu.html
    https://dgpu-docs.intel.com/driver/installation.html
    Linux drivers/gpu/drm/xe/xe_pci.c, drivers/gpu/drm/i915/i915_pci.c (pciidlist)
    """
    cards = intel_cards(s)
    if not cards and not isinstance(s.pci, Missing) and not isinstance(s.pci.devices, Missing):
        raise NotApplicable("no GPU of Intel's on the PCI bus that is a card of its own")
    build = torch_build(s)
    if absent(build.xpu):
        raise NotApplicable("torch is no build for Intel GPUs")
    need(build.xpu)
    need(need(s.pci).devices)
    for device in cards:
        if isinstance(device.driver, Missing) and not absent(device.driver):
            yield unsure(f"Intel GPU at {device.address}", device.driver, "xe or i915")
            continue
        bound = known(device.driver, "")
        yield Evidence(
            subject=f"Intel GPU at {device.address}",
            seen=f"bound to {bound}" if bound else "no driver is bound to it",
            wanted="bound to xe or i915",
            verdict=Verdict.PASS if bound else Verdict.FAIL,
            source=f"/sys/bus/pci/devices/{device.address}/driver",
        )
    yield from _without_level_zero(s)


_LEVEL_ZERO = Install(
    text="install Intel's compute runtime: libze-intel-gpu1 and libze1 (Ubuntu), intel-level-zero and level-zero (Fedora, Arch: level-zero-loader, intel-compute-runtime)"
)


def _without_level_zero(s: Snapshot) -> Iterator[Evidence]:
    """Fails where a driver of the kernel serves a card; another driver may be named (ZE_ENABLE_ALT_DRIVERS of the loader)."""
    found = True if isinstance(s.driver, Missing) else known(s.driver.level_zero, True)
    if not found and intel_cards_served(s) and "ZE_ENABLE_ALT_DRIVERS" not in variables_told(s):
        yield Evidence(
            subject="libze_intel_gpu.so.1",
            seen="the loader does not find it",
            wanted="Level Zero's driver, by which torch reaches the GPU",
            source="/etc/ld.so.cache",
            fix=(_LEVEL_ZERO,),
        )
