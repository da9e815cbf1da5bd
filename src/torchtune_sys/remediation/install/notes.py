"""Notes beside the steps: what stays, what another driver or Python would allow, what could not be read."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge import install as known
from torchtune_sys.model.install import Driver, InstallOptions, InstallRefused, Wheel
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.model.version import version
from torchtune_sys.remediation.install import branch, builds, trust
from torchtune_sys.remediation.install.builds import BuildTarget
from torchtune_sys.remediation.install.driver import key_of_modules
from torchtune_sys.remediation.install.gpus import capabilities_of, cards
from torchtune_sys.remediation.install.host import glibc, os_of, owner, packaged_pythons, running_driver
from torchtune_sys.remediation.install.site import Site, ended, over


def _newer(s: Snapshot, options: InstallOptions, wheel: Wheel | None) -> Iterator[str]:
    """Yield what a newer driver would allow."""
    here = cards(s)
    served = None if wheel is None or options.torch or not here or owner(s) is not None else branch.choose(here)
    if wheel is None or not isinstance(served, Driver):
        return
    place = BuildTarget(
        machine=wheel.machine,
        abi=wheel.abi,
        glibc=glibc(s) or (),
        capabilities=capabilities_of(here),
        driver=branch.first_version(served.branch),
    )
    better = builds.choose(place)
    if (
        isinstance(better, Wheel)
        and version(better.torch) > version(wheel.torch)
        and version(better.driver) > version(running_driver(s))
    ):
        yield f"with driver branch {served.branch} torch {better.local} would run here: --torch {better.torch} gives the steps"


def _newer_python(s: Snapshot, options: InstallOptions, wheel: Wheel | None, driver: Driver | None) -> Iterator[str]:
    """Yield what another Python of the distribution would allow."""
    if wheel is None or options.torch or options.python or owner(s) is not None or wheel.build.startswith("rocm"):
        return
    runs = () if driver is None else version(driver.installed) or branch.first_version(driver.branch)
    capabilities = capabilities_of(cards(s))
    for own in packaged_pythons(s):
        place = BuildTarget(machine=wheel.machine, abi=own.abi, glibc=glibc(s) or (), capabilities=capabilities, driver=runs)
        better = builds.choose(place, cpu=wheel.build == "cpu")
        if isinstance(better, Wheel) and version(better.torch) > version(wheel.torch):
            yield f"with the distribution's own Python {own.version} torch {better.local} would run here: --python {own.version}"
            return


def _enrolment(s: Snapshot, site: Site) -> Iterator[str]:
    """Yield what enrols the key: a module that DKMS builds is signed with a key of the host itself, which the firmware does not know."""
    secure_boot = None if isinstance(s.driver, Missing) else s.driver.secure_boot
    key = key_of_modules(site)
    if secure_boot is True and not key:
        yield "Secure Boot is on: a module loads only if the firmware knows the key that it is signed with (mokutil --import)"
    elif secure_boot not in (True, False):
        yield f"whether Secure Boot is on was not seen (mokutil --sb-state): if it is, a module that is built here loads only once its key is enrolled: sudo mokutil --import {key or 'KEY'}, which the next start asks for on the console"


def _pages_of_grace(s: Snapshot) -> Iterator[str]:
    """Source: Grace Performance Tuning Guide, Operating System Settings, Page Size."""
    kernel = "" if isinstance(s.system, Missing) or isinstance(s.system.kernel, Missing) else s.system.kernel
    if "64k" not in kernel:
        page = "https://docs.nvidia.com/grace-perf-tuning-guide/os-settings.html"
        yield f"NVIDIA recommends a kernel with 64 KiB pages for Grace (kernel-64k, linux-nvidia-64k), before the driver: {page}"


def notes(
    s: Snapshot, options: InstallOptions, wheel: Wheel | None, driver: Driver | None, site: Site | InstallRefused
) -> Iterator[str]:
    """Yield what a person should know beside the steps."""
    if wheel is not None and not glibc(s):
        yield f"glibc could not be seen: the wheel needs {wheel.glibc}"
    end, os = over(s), os_of(s)
    if end is not None and os is not None and (isinstance(site, Site) or wheel is not None):
        yield f"{ended(os.pretty_name or os.id, end)}: {'without them it gets' if end.extended else 'it gets'} no security update any more"
    yield from _newer_python(s, options, wheel, driver)
    if driver is not None:
        yield from _of_driver(s, options, wheel, driver)
    owned = owner(s)
    if owned is not None and not options.cpu:
        yield f"{owned[0]}; {owned[1]}"
    if isinstance(site, Site) and driver is not None and not driver.installed:
        yield from _enrolment(s, site)
        yield from _of_repository(site)
    yield from _of_gpus(s, options, wheel)
    if wheel is not None and wheel.build.startswith("cu"):
        yield "no CUDA toolkit, cuDNN or NCCL of the system is needed: the wheel brings its own"


def _of_driver(s: Snapshot, options: InstallOptions, wheel: Wheel | None, driver: Driver) -> Iterator[str]:
    if driver.installed:
        yield f"driver {driver.installed} stays"
        yield from _newer(s, options, wheel)
    over = branch.ended(driver, cards(s))
    if over:
        yield over


def _of_repository(site: Site) -> Iterator[str]:
    if site.system.confidence != "high":
        yield f"the repository's name {site.system.repository} is from: {site.system.source}"
    key = None if site.native else known.key(site.system.repository, site.base)
    if key is not None and not key.is_pinned:
        yield trust.unpinned(f"NVIDIA's repository {site.system.repository}", key)


def _of_gpus(s: Snapshot, options: InstallOptions, wheel: Wheel | None) -> Iterator[str]:
    if wheel is not None and wheel.build.startswith("rocm"):
        page = "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html"
        yield f"/dev/kfd and /dev/dri are of the groups render and video: usermod -a -G render,video for who trains ({page})"
    names = [] if options.cpu else [card.name for card in cards(s)]
    if any("GH200" in name or "GB200" in name or "GB300" in name for name in names):
        yield from _pages_of_grace(s)
    if any(name.startswith(("NVIDIA GB200", "GB200", "NVIDIA GB300", "GB300")) for name in names):
        page = "https://docs.nvidia.com/multi-node-nvlink-systems/"
        yield f"the rack's switch trays run the fabric manager; for NVLink between hosts nvidia-imex in the driver's version: {page}"
