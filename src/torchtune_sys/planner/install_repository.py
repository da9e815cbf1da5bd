"""What comes before the driver: NVIDIA's repository, what it leans on, and what the kernel module is built with."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge import install as known
from torchtune_sys.model.install import Command, File, Step
from torchtune_sys.model.version import version
from torchtune_sys.planner.install_site import Site, install, root

_DEBIAN = "http://deb.debian.org/debian"


def repository(site: Site) -> Iterator[Step]:
    """NVIDIA's repository, made known by its own keyring or file."""
    name, base = site.system.repository, site.base
    why = f"NVIDIA's packages for {site.os_id} {site.os_version}; the branch is pinned below"
    source = f"{site.system.source} ({site.system.confidence})"
    if site.system.manager == "apt":
        yield from _contrib(site)
        fetch = known.packages(site.system.family, "fetch")
        keyring = "cuda-keyring_1.1-1_all.deb"
        yield Step(
            key="repository",
            title="NVIDIA's repository",
            actions=(
                root("apt-get", "update"),
                install(site, *(fetch.names if fetch else ())),
                Command(words=("curl", "-fsSL", "-o", f"/tmp/{keyring}", f"{base}/{keyring}")),
                root("dpkg", "--install", f"/tmp/{keyring}"),
                root("apt-get", "update"),
            ),
            why=why,
            source=source,
        )
        return
    yield from _epel(site)
    place = "/etc/zypp/repos.d" if site.system.manager == "zypper" else "/etc/yum.repos.d"
    refresh = (
        (root("zypper", "--non-interactive", "--gpg-auto-import-keys", "refresh"),) if site.system.manager == "zypper" else ()
    )
    yield Step(
        key="repository",
        title="NVIDIA's repository",
        actions=(root("curl", "-fsSL", "-o", f"{place}/cuda-{name}.repo", f"{base}/cuda-{name}.repo"), *refresh),
        why=why,
        source=source,
    )


def _contrib(site: Site) -> Iterator[Step]:
    """NVIDIA's packages for Debian lean on some of its component contrib."""
    if site.os_id != "debian" or not site.codename:
        return
    text = (
        "# Written by torchtune-sys generate install.\n"
        f"Types: deb\nURIs: {_DEBIAN}\nSuites: {site.codename}\nComponents: contrib\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )
    yield Step(
        key="contrib",
        title="Debian's component contrib",
        actions=(File(path="/etc/apt/sources.list.d/torchtune-sys-contrib.sources", text=text, root=True),),
        why="NVIDIA's packages depend on some of it; where it is enabled already apt says so, and goes on",
        source=f"{known.DRIVER_GUIDE} (Debian, preparation)",
    )


def _epel(site: Site) -> Iterator[Step]:
    """dkms, which builds the module for each kernel, is in EPEL."""
    number = site.os_version.partition(".")[0]
    if not site.system.family.startswith("el"):
        return
    url = f"https://dl.fedoraproject.org/pub/epel/epel-release-latest-{number}.noarch.rpm"
    names = {"ol": f"oracle-epel-release-el{number}", "rhel": url}
    by_hand = ""
    if site.os_id == "rhel":
        by_hand = "https://docs.fedoraproject.org/en-US/epel/ (EPEL also wants CodeReady Builder: subscription-manager repos)"
    yield Step(
        key="epel",
        title="EPEL, for dkms",
        actions=(install(site, names.get(site.os_id, "epel-release")),),
        why="dkms builds the kernel module for each kernel that is installed later",
        source="https://docs.fedoraproject.org/en-US/epel/",
        by_hand=by_hand,
    )


def headers(site: Site) -> Iterator[Step]:
    title, why = "what the kernel module is built with", "the module is built for the running kernel, now and after each upgrade"
    purpose = "headers-uek" if "uek" in site.kernel else "headers-6.12" if _is_newer_amazon(site) else "headers"
    found = known.packages(site.system.family, purpose, kernel=site.kernel)
    uses_kernel = found is not None and any(site.kernel in name for name in found.names if site.kernel)
    plain = known.packages(site.system.family, purpose, kernel="{}")
    needs_kernel = plain is not None and any("{}" in name for name in plain.names)
    if found is not None and (uses_kernel or not needs_kernel):
        yield Step(key="headers", title=title, actions=(install(site, *found.names),), why=why, source=found.source)
    elif site.system.family != "arch":
        what = "the running kernel could not be seen" if found is not None else "no source tells the package's name"
        page = f"{known.DRIVER_GUIDE} ({what})"
        yield Step(key="headers", title=title, why=why, source=known.DRIVER_GUIDE, by_hand=page)


def _is_newer_amazon(site: Site) -> bool:
    return site.system.family == "amzn" and version(site.kernel)[:2] >= (6, 12)
