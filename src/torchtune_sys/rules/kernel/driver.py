"""Rules on what NVIDIA's driver and the module loader logged when the driver started."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge.cuda import LAST_OF_DISPLAYS
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.kernel import KernelEvent
from torchtune_sys.model.rule import Evidence, Params, Severity, rule
from torchtune_sys.model.snapshot import Snapshot, gpus_told
from torchtune_sys.model.values import Missing, NotApplicable, absent
from torchtune_sys.model.version import version
from torchtune_sys.rules.driver.amd import unserved
from torchtune_sys.rules.driver.common import bound_driver, display_cards, nvml_error
from torchtune_sys.rules.kernel.common import (
    DAYS,
    gpu_name,
    grouped,
    is_working,
    none_logged,
    nvidia_log,
    recent,
    seen_in_log,
    shorter,
    since_last_start,
)
from torchtune_sys.rules.kernel.common import events as log_events


def _version_in_log(s: Snapshot, p: Params, kinds: tuple[str, ...], what: str, wanted: str) -> Iterator[Evidence]:
    displays = display_cards(s)
    found = [
        event
        for event in since_last_start(s, p, *kinds)
        if not is_working(s, event.subject) and event.subject not in displays and not _is_old_display(s, event)
    ]
    groups = grouped(tuple(found))
    for address, events in groups.items():
        if not address and len(groups) > 1:
            continue  # the same failure again, in a message without the address
        words = shorter(events[0].text.rstrip("."))
        yield seen_in_log(s, gpu_name(s, address), words, events, wanted)
    if not found:
        yield from none_logged(s, "driver", what)


def _is_old_display(s: Snapshot, event: KernelEvent) -> bool:
    """Return whether the driver leaves a card alone that is as old as those for displays are, and serves others."""
    branch = version(event.who) if event.kind == "gpu-legacy" else ()
    return bool(branch) and branch[0] <= LAST_OF_DISPLAYS and bool(gpus_told(s))


@rule(
    id="gpu-bar-not-assigned",
    title="A GPU's PCI memory region (BAR) has no address",
    severity=Severity.ERROR,
    cause="gpu-bar-not-assigned",
    fix=(
        Advice(
            text='turn on "Above 4G Decoding" (and large BARs) in the firmware setup, or boot with pci=realloc; in a VM enlarge its MMIO window'
        ),
    ),
    params=(DAYS,),
    applies=nvidia_log,
)
def gpu_bar_not_assigned(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The driver found an I/O region of the GPU that firmware and kernel left without an address (BAR1 is 0M @ 0x0).

    Why it matters
    Accelerators need tens of gigabytes of address space. If the firmware stays within 32 bits there is none left for them, and
    the driver rejects the card.

    When to leave it
    Never.

    References
    NVIDIA/open-gpu-kernel-modules kernel-open/nvidia/nv-pci.c
    Linux Documentation/admin-guide/kernel-parameters.txt (pci=realloc)
    """
    yield from _version_in_log(s, p, ("gpu-bar",), "missing address space", "an address for each region")


@rule(
    id="driver-ignores-gpu",
    title="The driver says that it does not support this GPU",
    severity=Severity.ERROR,
    cause="driver-does-not-support-gpu",
    fix=(
        Advice(
            text="install the driver branch that the message names (or, for a new GPU, a newer one; Blackwell needs the open modules)"
        ),
    ),
    params=(DAYS,),
    applies=nvidia_log,
)
def driver_ignores_gpu(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log says that a GPU needs a legacy branch, is not supported by this release, or requires the open kernel modules.

    Why it matters
    The module loads, finds no GPU that it supports, and unloads: nvidia-smi cannot communicate with the driver.

    When to leave it
    The machine trains on another GPU, and this one drives a display or nothing. A GPU of Kepler or before beside others that the driver
    serves is not reported.

    References
    NVIDIA/open-gpu-kernel-modules kernel-open/nvidia/nv.c, src/nvidia/arch/nvalloc/unix/src/osinit.c
    https://www.nvidia.com/en-us/drivers/unix/legacy-gpu/
    """
    yield from _version_in_log(
        s, p, ("gpu-legacy", "gpu-unsupported", "gpu-needs-open"), "refused GPU", "a driver that supports it"
    )


@rule(
    id="gpu-needs-proprietary-module",
    title="The open kernel module says that it does not support this GPU",
    severity=Severity.ERROR,
    cause="open-module-on-pre-turing-gpu",
    fix=(Advice(text="install the proprietary kernel module (package names without -open)"),),
    params=(DAYS,),
    applies=nvidia_log,
)
def gpu_needs_proprietary_module(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log says that a GPU "is not supported by open nvidia.ko": it has no GPU System Processor.

    Why it matters
    The open module supports Turing and later. An older GPU has no driver until the proprietary module is installed.

    When to leave it
    The machine has a newer GPU for training.

    References
    NVIDIA/open-gpu-kernel-modules README.md, src/nvidia/arch/nvalloc/unix/src/osinit.c
    """
    yield from _version_in_log(s, p, ("gpu-needs-proprietary",), "GPU that is too old for the module", "the proprietary module")


@rule(
    id="other-driver-holds-gpu",
    title="The kernel log says that nouveau, not NVIDIA's driver, is bound to the GPU",
    severity=Severity.ERROR,
    cause="nouveau-loaded",
    superseded_by=("nouveau-loaded",),
    fix=(
        Advice(
            text="blacklist nouveau (blacklist nouveau, options nouveau modeset=0 in /etc/modprobe.d/), rebuild the initramfs, "
            "and reboot"
        ),
    ),
    params=(DAYS,),
    applies=nvidia_log,
)
def other_driver_holds_gpu(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """nouveau claimed a GPU at boot, and the log does not show that NVIDIA's driver was loaded afterwards.

    Why it matters
    Only one driver can be bound to a GPU, and CUDA works only with NVIDIA's.

    When to leave it
    The GPU only drives a display.

    References
    NVIDIA/open-gpu-kernel-modules kernel-open/nvidia/nv-pci.c (already bound)
    """
    loads = [event.first_s for event in log_events(s) if event.kind == "driver-load"]
    found = tuple(event for event in recent(s, p, "gpu-bound") if event.who == "nouveau")
    if any(load is None or any(event.last_s is None or load > event.last_s for event in found) for load in loads):
        found = tuple(event for event in found if "already bound" in event.text)
    if not isinstance(s.driver, Missing) and not isinstance(s.driver.nouveau_loaded, Missing):
        found = tuple(event for event in found if bound_driver(s, event.subject) == "nouveau")
        if not found:
            raise NotApplicable("nouveau-loaded judges which driver is loaded now")
    for address, events in grouped(found).items():
        yield seen_in_log(s, gpu_name(s, address), shorter(events[0].text), events, "NVIDIA's driver", about=(f"GPU {address}",))
    if not found:
        yield from none_logged(s, "driver", "GPU that nouveau holds")


@rule(
    id="gsp-firmware-missing",
    title="The kernel did not find the GPU's GSP firmware",
    severity=Severity.ERROR,
    cause="gsp-firmware-missing",
    fix=(
        Advice(
            text="install the firmware of exactly the driver's version and reload the module (Debian: firmware-nvidia-gsp; Ubuntu: "
            "nvidia-firmware-BRANCH-VERSION; RHEL with NVIDIA's repository: nvidia-kmod-common; SLES: kernel-firmware-nvidia-gspx-G06; "
            "Arch: nvidia-utils)"
        ),
    ),
    params=(DAYS,),
    applies=nvidia_log,
)
def gsp_firmware_missing(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The kernel could not load nvidia/VERSION/gsp_….bin (error -2, no such file), and the driver does not run the GPU.

    Why it matters
    Without the firmware the open module cannot start the GPU at all.

    When to leave it
    Never.

    References
    https://us.download.nvidia.com/XFree86/Linux-x86_64/580.95.05/README/gsp.html
    Linux drivers/base/firmware_loader/main.c
    """
    yield from _version_in_log(s, p, ("gsp-firmware",), "missing firmware", "the file below /lib/firmware")


@rule(
    id="driver-mismatch-logged",
    title="A program's driver library did not match the loaded kernel module",
    severity=Severity.ERROR,
    cause="nvml-driver-library-mismatch",
    explained_by=("nvml-driver-library-mismatch",),
    fix=(Advice(text="load the installed module (restart the machine, or rmmod and modprobe nvidia while nothing uses it)"),),
    params=(DAYS,),
    applies=nvidia_log,
)
def driver_mismatch_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The kernel module refused a client of another version ("API mismatch") and has not been reloaded since.

    Why it matters
    The driver's libraries were replaced while the module was loaded: no new process can use the GPU until both have the same
    version.

    When to leave it
    One program brings its own, wrong driver libraries (an image with the driver inside), and the others work.

    References
    NVIDIA/open-gpu-kernel-modules src/nvidia/arch/nvalloc/unix/src/osapi.c (API mismatch)
    """
    found = since_last_start(s, p, "api-mismatch")
    if found and _agree_now(s):
        raise NotApplicable("nvml-driver-library-mismatch compares the versions as they are now")
    if found:
        versions = f" {found[-1].who}" if found[-1].who else ""
        text = shorter(found[-1].text.removesuffix("but").rstrip(" ,"))
        yield seen_in_log(s, "kernel module" + versions, text, found, "client and module of one version")
    else:
        yield from none_logged(s, "driver", "version mismatch")


def _agree_now(s: Snapshot) -> bool:
    """Whether the loaded module and the installed libraries are known to be of one version by now, or to work together."""
    driver = s.driver
    if isinstance(driver, Missing) or isinstance(driver.module_version, Missing) or isinstance(driver.library_version, Missing):
        return False
    if nvml_error(s) == "LIB_RM_VERSION_MISMATCH":
        return False
    is_working = not isinstance(s.gpu, Missing) and not isinstance(s.gpu.devices, Missing)
    return is_working or version(driver.module_version) == version(driver.library_version)


@rule(
    id="module-signature-refused",
    title="The kernel refused a module because of its signature",
    severity=Severity.ERROR,
    cause="secure-boot-blocks-module",
    explained_by=("secure-boot-blocks-module",),
    fix=(
        Advice(text="enrol the signing key (mokutil --import …, then reboot), install signed modules, or turn Secure Boot off"),
    ),
    params=(DAYS,),
)
def module_signature_refused(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """With Secure Boot the kernel loads only signed modules; it refused one, and NVIDIA's module is not loaded, or AMD's serves no GPU.

    Why it matters
    DKMS signs the modules it builds with its own key. Until that key is enrolled, the module is built and installed, but refused.

    When to leave it
    The refused module is not needed.

    References
    Linux Documentation/admin-guide/module-signing.rst; kernel/module/signing.c
    """
    found = recent(s, p, "module-refused")
    nvidia = not isinstance(s.driver, Missing) and not absent(s.driver.nvidia_devices) and s.driver.nvidia_devices != ()
    if found and not isinstance(s.driver, Missing) and not nvidia and not unserved(s):
        raise NotApplicable("no GPU on this host that the module would serve")
    if found and not isinstance(s.driver, Missing) and s.driver.module_loaded is True:
        raise NotApplicable("NVIDIA's module is loaded")
    if found:
        yield seen_in_log(
            s,
            ", ".join(dict.fromkeys(event.who for event in found if event.who)) or "a module",
            shorter(found[0].text),
            found,
            "a signature with an enrolled key",
        )
    else:
        yield from none_logged(s, "modules", "refused module")


@rule(
    id="module-of-another-kernel-refused",
    title="The kernel refused a GPU driver module that was built for another kernel",
    severity=Severity.ERROR,
    cause="nvidia-module-not-built-for-kernel",
    explained_by=("nvidia-module-not-built-for-kernel",),
    fix=(
        Advice(
            text="build the module for the running kernel (install its headers, then dkms autoinstall), or boot the kernel that "
            "it was built for"
        ),
    ),
    params=(DAYS,),
)
def module_of_another_kernel_refused(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The module's version magic or symbol checksums do not match the kernel, so the kernel did not load it.

    Why it matters
    No GPU is available until a matching module is loaded. This happens after a kernel update, with a module copied from another
    host or image, and when a kernel is rebuilt under the same name.

    When to leave it
    The refused module is not needed.

    References
    Linux kernel/module/main.c (check_modinfo), kernel/module/version.c (check_version)
    """
    found = recent(s, p, "module-of-other-kernel")
    if found and not isinstance(s.driver, Missing) and s.driver.module_loaded is True and found[-1].who.startswith("nvidia"):
        raise NotApplicable("NVIDIA's module is loaded")
    if found:
        yield seen_in_log(
            s,
            ", ".join(dict.fromkeys(event.who for event in found if event.who)),
            shorter(found[0].text.removeprefix(found[0].who + ": ")),
            found,
            "a module built for the running kernel",
        )
    else:
        yield from none_logged(s, "modules", "module built for another kernel")
