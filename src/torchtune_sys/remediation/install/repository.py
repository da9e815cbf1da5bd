"""The steps before the driver: NVIDIA's repository, its prerequisites, and what the kernel module is built with."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchtune_sys.knowledge import install as known
from torchtune_sys.model.install import RUNNING, RUNNING_VERSION, Action, InstallFile, InstallStep, KernelPackages
from torchtune_sys.model.version import version
from torchtune_sys.remediation.install import trust
from torchtune_sys.remediation.install.site import Site, install, root

_DEBIAN = "http://deb.debian.org/debian"
_PREFERRED = "/etc/apt/preferences.d/torchtune-sys-nvidia"
_PREFER = """# Written by torchtune-sys generate install, as NVIDIA's cuda-ubuntu*.pin: its packages before Ubuntu's of the same name.
Package: *
Pin: release l=NVIDIA CUDA
Pin-Priority: 600
"""


def repository(site: Site) -> Iterator[InstallStep]:
    """Yield the steps for NVIDIA's repository, and the key that its packages must be signed with."""
    if site.system.manager == "apt":
        yield from _contrib(site)
    else:
        yield from _epel(site)
    key = known.key(site.system.repository, site.base)
    source = f"{site.system.source} ({site.system.confidence})"
    yield InstallStep(
        key="repository",
        title="NVIDIA's repository",
        actions=_of_nvidia(site, key) if key else (),
        why=f"NVIDIA's packages for {site.os_id} {site.os_version}; the branch is pinned below{f'; {trust.why(key)}' if key else ''}",
        source=f"{source}; the key: {key.source} ({key.confidence})" if key else source,
        by_hand="" if key else f"{known.DRIVER_GUIDE} (no source on record tells the key of {site.base})",
    )


def _of_nvidia(site: Site, key: known.SigningKey) -> tuple[Action, ...]:
    name, arch = site.system.repository, known.architecture(site.machine)
    if site.system.manager == "apt":
        # NVIDIA's package cuda-keyring has the same file: two that name the same place must name the same key.
        place = f"/etc/apt/sources.list.d/cuda-{name}-{arch}.list"
        first = (InstallFile(path=_PREFERRED, text=_PREFER, root=True),) if site.os_id == "ubuntu" else ()
        return (*trust.of_apt(site, key, "nvidia-cuda", place, f"{site.base}/"), *first, root("apt-get", "update"))
    kept = f"torchtune-sys-cuda-{name}.asc"
    text = trust.repo(f"cuda-{name}-{arch}", site.base, kept)
    refresh = (root("zypper", "--non-interactive", "refresh"),) if site.system.manager == "zypper" else ()
    return (*trust.of_rpm(site, key, kept, f"cuda-{name}", text), *refresh)


def _contrib(site: Site) -> Iterator[InstallStep]:
    """NVIDIA's packages for Debian lean on some of its component contrib."""
    if site.os_id != "debian" or not site.codename:
        return
    text = (
        "# Written by torchtune-sys generate install.\n"
        f"Types: deb\nURIs: {_DEBIAN}\nSuites: {site.codename}\nComponents: contrib\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )
    yield InstallStep(
        key="contrib",
        title="Debian's component contrib",
        actions=(InstallFile(path="/etc/apt/sources.list.d/torchtune-sys-contrib.sources", text=text, root=True),),
        why="NVIDIA's packages depend on some of it; where it is enabled already apt says so, and goes on",
        source=f"{known.DRIVER_GUIDE} (Debian, preparation)",
    )


def _epel(site: Site) -> Iterator[InstallStep]:
    """dkms, which builds the module for each kernel, is in EPEL, which leans on the repository that is called CRB from 9 on."""
    number = site.os_version.partition(".")[0]
    if not site.system.family.startswith("el"):
        return
    page = "https://docs.fedoraproject.org/en-US/epel/getting-started/"
    title, why = "EPEL, for dkms", "dkms builds the kernel module for each kernel that is installed later"
    if site.os_id == "rhel":
        url = f"https://dl.fedoraproject.org/pub/epel/epel-release-latest-{number}.noarch.rpm"
        by_hand = f"{page} (EPEL also wants CodeReady Builder: subscription-manager repos)"
        key = known.key(f"epel-{number}")
        if key is None:
            yield InstallStep(key="epel", title=title, why=why, source=page, by_hand=by_hand)
            return
        yield InstallStep(
            key="epel",
            title=title,
            actions=(*trust.trusted(site, key, f"torchtune-sys-epel-{number}.asc"), install(site, url)),
            why=f"{why}; {trust.why(key)}",
            source=f"{page}; the key: {key.source}",
            by_hand=by_hand,
        )
        return
    builder = f"ol{number}_codeready_builder" if site.os_id == "ol" else "powertools" if number == "8" else "crb"
    release = f"oracle-epel-release-el{number}" if site.os_id == "ol" else "epel-release"
    yield InstallStep(
        key="epel",
        title=title,
        actions=(install(site, "dnf-plugins-core", release), root("dnf", "config-manager", "--set-enabled", builder)),
        why=f"{why}; what EPEL leans on is in {builder}",
        source=page,
    )


_HEADERS_TITLE = "what the kernel module is built with"
_HEADERS_WHY = "the module is built for the running kernel, now and after each upgrade"


def headers(site: Site) -> Iterator[InstallStep]:
    if site.system.family == "arch":
        return
    if not site.kernel:
        yield _headers_of_any_kernel(site)
        return
    found = _headers_of(site, site.kernel, site.kernel)
    actions = () if found is None else (install(site, *found.names),)
    page = _uek(site) if found is not None else f"{known.DRIVER_GUIDE} (no source names the package)"
    source = known.DRIVER_GUIDE if found is None else found.source
    yield InstallStep(key="headers", title=_HEADERS_TITLE, actions=actions, why=_HEADERS_WHY, source=source, by_hand=page)


def _headers_of(site: Site, kernel: str, called: str) -> known.PackageNames | None:
    """Oracle has a kernel of its own beside RHEL's; Amazon's newer kernels have packages of their own names; Debian's headers come
    along with the next kernel only by the package of their flavour; SUSE's are called after the flavour, in the version of the kernel."""
    of_suse = site.system.family == "suse"
    flavour = re.search(r"(?<=-)[a-z][a-z0-9_]*$|(?<=-)64kb$" if of_suse else r"(?:cloud-|rt-)?(?:amd64|arm64)$", kernel)
    if of_suse and flavour is not None:
        called = RUNNING_VERSION if called == RUNNING else called.removesuffix(f"-{flavour[0]}")
    number = version(kernel)[:2]
    purpose = "headers"
    if "uek" in kernel:
        purpose = "headers-uek"
    elif kernel.endswith("+64k"):
        purpose = "headers-64k"
    elif (of_suse or site.os_id == "debian") and flavour is not None:
        purpose = "headers-flavour"
    elif site.os_id == "amzn" and number >= (6, 12):
        purpose = f"headers-{number[0]}.{number[1]}"
    return known.packages(site.system.family, purpose, kernel=called, flavour=flavour[0] if flavour else "")


_SUSE = {f"*-{flavour}": f"6.4.0-1-{flavour}" for flavour in ("default", "azure", "64kb", "rt")}
_KERNELS = {
    "sles": _SUSE,
    "opensuse-leap": _SUSE,
    "ol": {"*uek*": "5.15.0-1.el9uek.x86_64"},
    "amzn": {"6.12.*": "6.12.0", "6.18.*": "6.18.0"},
    "debian x86_64": {f"*-{flavour}": f"6.1.0-1-{flavour}" for flavour in ("cloud-amd64", "rt-amd64", "amd64")},
    "debian aarch64": {f"*-{flavour}": f"6.1.0-1-{flavour}" for flavour in ("cloud-arm64", "rt-arm64", "arm64")},
}
"""A pattern of the release for each kernel whose headers have names of their own, and an example."""


def _headers_of_any_kernel(site: Site) -> InstallStep:
    """For a host that is not there yet: the shell asks for the kernel's name when the step is done."""
    choices, sources = [], []
    kernels = _KERNELS.get(site.os_id) or _KERNELS.get(f"{site.os_id} {site.machine}", {})
    for pattern, example in {**kernels, "*": "5.14.0"}.items():
        found = _headers_of(site, example, RUNNING)
        if found is not None:
            choices.append((pattern, found.names))
            sources.append(found.source)
    if not choices:
        page = f"{known.DRIVER_GUIDE} (no source names the package)"
        return InstallStep(key="headers", title=_HEADERS_TITLE, why=_HEADERS_WHY, source=known.DRIVER_GUIDE, by_hand=page)
    is_named = any("$(" in name for _, names in choices for name in names)
    by_kernel = KernelPackages(manager=site.system.manager, choices=tuple(choices))
    action = by_kernel if is_named else install(site, *choices[-1][1])
    return InstallStep(
        key="headers",
        title=_HEADERS_TITLE,
        actions=(action,),
        why=_HEADERS_WHY,
        source="; ".join(dict.fromkeys(sources)),
        by_hand=_uek(site),
    )


def _uek(site: Site) -> str:
    """Oracle builds its own kernel with a newer compiler than the system's, and dkms takes the system's."""
    if site.os_id != "ol" or (site.kernel and "uek" not in site.kernel):
        return ""
    return f"where the kernel is UEK, tell dkms its compiler (gcc-toolset): {known.DRIVER_GUIDE}oracle-linux.html"
