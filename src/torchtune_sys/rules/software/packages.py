"""Rules on packages: upgrades that may change the driver under a running job, and the container runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, Needs
from torchtune_sys.model.facts.software import Package
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, absent, need, need_if_there
from torchtune_sys.rules.gates import nvidia_host


def _packages(s: Snapshot) -> tuple[Package, ...]:
    return need_if_there(need(s.software).packages, "the package list is not available here")


_WHOLE = ("nvidia-driver", "nvidia-headless-")
"""Those that depend on all the others at exactly their own version: while one of them is held, none of the others can be upgraded.
rpm's packages of the driver depend on each other so."""
_DRIVER_NAMES = (
    "nvidia-driver",
    "nvidia-dkms-",
    "nvidia-kernel-",
    "libnvidia-compute-",
    "nvidia-headless-",
    "cuda-drivers",
    "kmod-nvidia",
    "akmod-nvidia",
    "xorg-x11-drv-nvidia",
    "nvidia-open",
    "nvidia-compute-G0",
    "nvidia-utils",
)
"""Of Debian and Ubuntu, RHEL and Fedora (NVIDIA's repository, RPM Fusion, ELRepo), SUSE and Arch."""


def _driver_packages(s: Snapshot) -> tuple[Package, ...]:
    return tuple(package for package in _packages(s) if package.name.startswith(_DRIVER_NAMES))


@rule(
    id="driver-upgrades-unattended",
    title="Automatic upgrades may replace the GPU driver under a running job",
    severity=Severity.ADVICE,
    cause="nvml-driver-library-mismatch",
    fix=(
        Advice(
            text='add "nvidia-"; and "libnvidia-"; to Unattended-Upgrade::Package-Blacklist, and upgrade the driver while no job is running'
        ),
        Advice(text="or hold the driver's packages: sudo apt-mark hold PACKAGE (sudo dnf versionlock add PACKAGE)"),
    ),
    applies=nvidia_host,
)
def driver_upgrades_unattended(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """unattended-upgrades, dnf-automatic or yum-cron installs upgrades, and the driver's packages are neither held nor excluded.

    Why it matters
        Once the libraries have been replaced while the old kernel module is loaded, every new CUDA process fails with
        "Driver/library version mismatch" until a reboot. Running ranks continue; restarts, and new DataLoader workers that use
        CUDA, fail.

    When to leave it
        The host is drained and rebooted after upgrades anyway. On Debian and Ubuntu, packages from NVIDIA's own repository are
        not judged, because unattended-upgrades does not use its origin by default. dnf-automatic uses every repository.

    References
        README of unattended-upgrades (Package-Blacklist, Allowed-Origins)
        https://documentation.ubuntu.com/server/how-to/graphics/install-nvidia-drivers/
        dnf-automatic(8), dnf5-automatic(8), dnf-versionlock(8)
    """
    packages = _driver_packages(s)
    dpkg = need(need(s.software).manager) == "dpkg"
    driver = [package for package in packages if not dpkg or package.origin in ("ubuntu.com", "debian.org")]
    if not driver:
        raise NotApplicable("the driver does not come from the distribution's packages")
    automatic = need(s.software).automatic_upgrades
    there = not dpkg or any(package.name == "unattended-upgrades" for package in _packages(s))
    on = not absent(automatic) and need(automatic) and there
    excluded = need(s.software).upgrade_exclusions
    kept = [package.name for package in driver if package.held or _excluded(package.name, excluded)]
    whole = any(name.startswith(_WHOLE) or not dpkg for name in kept)
    open_ = [] if whole else [package for package in driver if package.name not in kept]
    yield Evidence(
        subject=need(s.software).upgrader,
        seen=f"on, {', '.join(package.name for package in open_[:3])} neither held nor excluded"
        if on and open_
        else "leaves the driver alone",
        wanted="the driver held or excluded",
        verdict=Verdict.FAIL if on and open_ else Verdict.PASS,
        source="/etc/apt/apt.conf.d, /var/lib/dpkg/status" if dpkg else "/etc/dnf, /etc/systemd/system, rpm",
    )


def _excluded(name: str, patterns: tuple[str, ...]) -> bool:
    for pattern in patterns:
        try:
            if re.match(pattern, name):
                return True
        except re.error:
            continue
    return False


@rule(
    id="driver-installed-twice",
    title="The GPU driver was installed both from packages and by NVIDIA's installer",
    severity=Severity.WARNING,
    cause="nvml-driver-library-mismatch",
    fix=(
        Advice(
            text="remove one of them while no job is running: sudo nvidia-uninstall, then reinstall the packages and reboot",
            needs=Needs.REBOOT,
        ),
    ),
    applies=nvidia_host,
)
def driver_installed_twice(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The uninstaller of the .run file is present, and so are the driver's packages.

    Why it matters
        Each overwrites the other's libraries at its next upgrade, and the kernel module no longer matches them.

    When to leave it
        The .run file provides a part that the packages lack, and both are the same version.

    References
        https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/ (removing, handling conflicting installation methods)
    """
    runfile = need_if_there(need(s.software).runfile_installed, "no NVIDIA driver runs on this kernel")
    driver = _driver_packages(s)
    if not runfile and not driver:
        raise NotApplicable("no driver package is installed")
    both = bool(runfile and driver)
    yield Evidence(
        subject="NVIDIA driver",
        seen=f"/usr/bin/nvidia-uninstall and {driver[0].name} {driver[0].version}" if both else "one installation",
        wanted="one installation",
        verdict=Verdict.FAIL if both else Verdict.PASS,
        source="/usr/bin/nvidia-uninstall",
    )


def _asks_for_reboots(s: Snapshot) -> bool:
    """Tell whether something here would write /run/reboot-required; Debian itself does not."""
    found = need(s.software).packages
    names = ("update-notifier-common", "unattended-upgrades")
    return absent(found) or any(package.name in names for package in need(found))


@rule(
    id="reboot-pending",
    title="A reboot is pending after upgrades",
    severity=Severity.ADVICE,
    fix=(Advice(text="drain the host and reboot it before starting a long job", needs=Needs.REBOOT),),
    applies=nvidia_host,
)
def reboot_pending(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A package has requested a reboot; or, where packages do not, an installed kernel is newer than the running one.

    Why it matters
        New processes use the new libraries with the old kernel and driver. If automatic upgrades may reboot the host, they will
        end the job.

    When to leave it
        A job is running, and automatic reboots are disabled.

    References
        Debian Policy and update-notifier: /run/reboot-required
        zypper(8), needs-rebooting: /run/reboot-needed
    """
    asked = need(s.software).reboot_required
    kernel = need(s.software).next_kernel
    manager = need(s.software).manager
    newer = not isinstance(kernel, Missing) and not kernel.running
    if absent(asked) and (absent(manager) or need(manager) != "dpkg" or (newer and not _asks_for_reboots(s))):
        if absent(kernel):
            raise NotApplicable("nothing here records pending reboots")
        yield Evidence(
            subject="reboot",
            seen=f"kernel {need(kernel).release} is installed" + (" and runs" if need(kernel).running else ", an older one runs"),
            wanted="none pending",
            verdict=Verdict.PASS if need(kernel).running else Verdict.FAIL,
            source="/boot",
        )
        return
    names = () if absent(asked) else need(asked)
    yield Evidence(
        subject="reboot",
        seen="none is asked for" if absent(asked) else f"asked for by {', '.join(names[:4]) or 'a package'}",
        wanted="none pending",
        verdict=Verdict.PASS if absent(asked) else Verdict.FAIL,
        source="/run/reboot-required",
    )
