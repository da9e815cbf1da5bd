"""Rules on the GPU driver at the next boot."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, Install, KernelArgument, Needs
from torchtune_sys.model.facts.software import NextKernel
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, absent, known, need, need_if_there
from torchtune_sys.rules.gates import nvidia_host


def _next_kernel(s: Snapshot) -> NextKernel:
    return need_if_there(need(s.software).next_kernel, "no kernel to boot is seen from here")


@rule(
    id="driver-not-built-for-next-boot",
    title="The kernel that boots next has no NVIDIA module",
    severity=Severity.WARNING,
    cause="nvidia-module-not-built-for-kernel",
    fix=(
        Install(
            text="install the headers of that kernel, then: sudo dkms autoinstall -k RELEASE (or install the package with its "
            "prebuilt modules)"
        ),
        Advice(text="or keep booting the running kernel, and hold its packages"),
    ),
    applies=nvidia_host,
)
def driver_not_built_for_next_boot(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A newer kernel is installed than the running one, and its modules do not include nvidia.ko.

    Why it matters
        Everything works until the host reboots; then no GPU is available, and the cause lies weeks back.

    When to leave it
        The boot loader is pinned to the running kernel. Nothing is reported where akmods builds modules at boot.

    References
        dkms(8), autoinstall
        https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/
        https://rpmfusion.org/Howto/NVIDIA (akmods)
    """
    kernel = _next_kernel(s)
    built = need(kernel.nvidia)
    if not built and need(kernel.akmods):
        raise NotApplicable("akmods builds the module when that kernel starts")
    dkms = known(kernel.dkms, "")
    how = ", DKMS failed to build it" if dkms == "failed" else ", and DKMS did not build it" if dkms == "not-built" else ""
    headers = "" if built or isinstance(kernel.headers, Missing) or kernel.headers else ", nor its headers"
    yield Evidence(
        subject=f"kernel {kernel.release}",
        seen="runs"
        if kernel.running
        else "has the nvidia module"
        if built
        else f"installed without an nvidia module{headers}{how}",
        wanted="an nvidia module",
        verdict=Verdict.PASS if built else Verdict.FAIL,
        source=f"/lib/modules/{kernel.release}/modules.dep",
    )


@rule(
    id="nouveau-not-barred",
    title="nouveau is not blacklisted and may take the GPUs at the next boot",
    severity=Severity.ADVICE,
    cause="nouveau-loaded",
    fix=(
        KernelArgument(argument="modprobe.blacklist=nouveau"),
        Advice(text='or put "blacklist nouveau" into /etc/modprobe.d/, and rebuild the initramfs', needs=Needs.REBOOT),
    ),
    applies=nvidia_host,
)
def nouveau_not_barred(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The kernel that boots next has both drivers, and neither modprobe.d nor the kernel command line blacklists nouveau.

    Both drivers claim the same GPUs, and whichever loads first wins. Every NVIDIA driver package blacklists nouveau, so a missing
    line means that somebody removed it, or that the driver was not installed from a package.

    Why it matters
        It worked this time. If nouveau loads first, nvidia.ko finds no GPU, and neither does any CUDA program.

    When to leave it
        nouveau is blocked in a way that is not visible here, for example only in the initramfs.

    References
        modprobe.d(5)
        https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/#disabling-nouveau
    """
    kernel = _next_kernel(s)
    if absent(kernel.nouveau) or not need(kernel.nouveau):
        raise NotApplicable("that kernel has no nouveau")
    if not known(kernel.nvidia, True):
        raise NotApplicable("that kernel has no NVIDIA module")
    barred = need(kernel.nouveau_barred)
    yield Evidence(
        subject=f"kernel {kernel.release}",
        seen="nouveau is barred" if barred else "has nouveau, which nothing bars",
        wanted="blacklist nouveau",
        verdict=Verdict.PASS if barred else Verdict.FAIL,
        source="/etc/modprobe.d, /proc/cmdline",
    )
