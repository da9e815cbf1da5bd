"""Determine the kernel of the next boot, and the GPU driver that it will find."""

from __future__ import annotations

import re

from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.software import NextKernel
from torchtune_sys.model.values import Missing, Why, fact, need
from torchtune_sys.probes.driver.files import MODULE_ENDS, has_module, modprobe_file

_DKMS = "/var/lib/dkms"


_VERSION = r"^\d[\d.]{0,40}(?:\+(?:deb|bpo)\w{0,20})?(?:-\d[\d.]{0,60})?[-.]?"
"""The kernel's version and its build; what follows names the distribution's release and the flavour."""


def release_key(release: str) -> tuple[tuple[int, ...], str]:
    """Order of kernels by the numbers of their version.

    >>> release_key("6.8.0-100-generic") > release_key("6.8.0-45-generic")
    True
    >>> release_key("5.14.0-570.9.1.el9_6.x86_64") > release_key("5.14.0-570.el9.x86_64")
    True
    """
    found = re.match(_VERSION, release)
    return tuple(int(number[:9]) for number in re.findall(r"\d+", found[0] if found else "")[:12]), release


def flavour(release: str) -> str:
    """Return what is left of a kernel's release without its version and its distribution's.

    >>> [flavour(name) for name in ("6.8.0-45-generic", "6.1.0-18-cloud-amd64", "5.14.0-427.13.1.el9_4.x86_64", "5.14.0-570.el9.x86_64+rt")]
    ['generic', 'cloud-amd64', 'x86_64', 'x86_64+rt']
    >>> [flavour(name) for name in ("5.15.0-200.131.27.el9uek.x86_64", "6.4.0-150600.23.50-default", "6.12.38+deb13-amd64")]
    ['uek.x86_64', 'default', 'amd64']
    """
    rest = re.sub(_VERSION, "", release)
    return re.sub(r"^[a-z]{2,9}\d[\d_]{0,20}\.?", "", rest) if "." in rest else rest


def next_kernel(host: Host) -> Fact[NextKernel]:
    running = host.word("/proc/sys/kernel/osrelease")
    boot = host.names("/boot")
    if isinstance(running, Missing):
        return running
    if isinstance(boot, Missing):
        return boot
    kernels = [name.removeprefix("vmlinuz-") for name in boot if name.startswith("vmlinuz-") and name[8:9].isdigit()]
    own = flavour(running)
    kernels = [name for name in kernels if flavour(name) == own] or kernels
    if running not in kernels:
        return Missing(Why.ABSENT, "/boot", "the running kernel is not there, so that which one boots next is not seen")
    newest = max(kernels, key=release_key)
    built = True if newest == running else has_module(host, newest)
    if built is False and has_module(host, running) is False:
        return Missing(Why.ABSENT, "modules.dep", "the driver comes from elsewhere (a container builds and loads it)")
    return NextKernel(
        release=newest,
        running=newest == running,
        nvidia=built,
        headers=host.exists(f"/lib/modules/{newest}/build/Makefile"),
        dkms=_dkms(host, newest),
        akmods=host.exists("/usr/sbin/akmods"),
        nouveau=_has_nouveau(host, newest),
        nouveau_barred=nouveau_barred(host),
    )


def _has_nouveau(host: Host, release: str) -> Fact[bool]:
    names = host.names(f"/lib/modules/{release}/kernel/drivers/gpu/drm/nouveau")
    if isinstance(names, Missing):
        return False if names.why is Why.ABSENT else names
    return any(f"nouveau.ko{end}" in names for end in MODULE_ENDS)


@fact
def _dkms(host: Host, release: str) -> Fact[str]:
    """``built``, ``failed`` or ``not-built``. The tree is ``<module>/<version>/<kernel>/<arch>``, while it builds, and after it failed,
    ``<module>/<version>/build/make.log`` (dkms(8))."""
    modules = need(host.names(_DKMS))
    state = ""
    for module in [name for name in modules if name.startswith("nvidia")][:10]:
        versions = host.names(f"{_DKMS}/{module}")
        for version in [] if isinstance(versions, Missing) else [name for name in versions if name[:1].isdigit()][:20]:
            if host.exists(f"{_DKMS}/{module}/{version}/{release}") is True:
                return "built"
            failed = host.exists(f"{_DKMS}/{module}/{version}/build/make.log") is True
            state = "failed" if failed or state == "failed" else "not-built"
    return state or Missing(Why.ABSENT, _DKMS, "DKMS has no NVIDIA module")


@fact
def nouveau_barred(host: Host) -> Fact[bool]:
    """Return what modprobe reads, and the command line. ``rd.driver.blacklist`` keeps nouveau out of the initramfs alone."""
    words = need(host.text("/proc/cmdline"))
    if bars_nouveau_on_command_line(words):
        return True
    found = modprobe_file(host, bars_nouveau)
    if isinstance(found, Missing):
        return False if found.why is Why.ABSENT else found
    return True


def bars_nouveau_on_command_line(text: str) -> bool:
    """Return whether the kernel's arguments keep nouveau from loading.

    >>> bars_nouveau_on_command_line("quiet rd.driver.blacklist=nouveau modprobe.blacklist=nouveau,nova_core")
    True
    >>> bars_nouveau_on_command_line("quiet rd.driver.blacklist=nouveau")
    False
    """
    for word in text.split():
        name, _, value = word.partition("=")
        if name.replace("-", "_") in ("modprobe.blacklist", "module_blacklist") and "nouveau" in value.split(","):
            return True
        if word in ("nouveau.modeset=0", "nomodeset", "nouveau.blacklist=1", "nouveau.blacklist=yes"):
            return True
    return False


def bars_nouveau(text: str) -> bool:
    r"""Return whether a file of modprobe.d keeps nouveau from loading.

    >>> bars_nouveau("# nvidia\nblacklist nouveau\n"), bars_nouveau("#blacklist nouveau\nalias lbm-nouveau off\n")
    (True, False)
    >>> bars_nouveau("options nouveau modeset=0\n"), bars_nouveau("install nouveau /bin/false\n")
    (True, True)
    """
    for line in text.splitlines()[:5000]:
        words = line.split()
        if len(words) < 2 or words[1] != "nouveau":
            continue
        if words[0] == "blacklist" or (words[0] == "alias" and words[2:3] == ["off"]):
            return True
        if words[0] == "install" or (words[0] == "options" and "modeset=0" in words):
            return True
    return False
