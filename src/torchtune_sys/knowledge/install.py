"""Package names of the distributions, NVIDIA's repositories, and the driver branches that can be installed."""

from __future__ import annotations

import msgspec

from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.version import Version, version

REPOSITORIES = "https://developer.download.nvidia.com/compute/cuda/repos"
CONTAINER_TOOLKIT = "https://nvidia.github.io/libnvidia-container"
DRIVER_GUIDE = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"
FABRIC_MANAGER_GUIDE = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/"
CONTAINER_GUIDE = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"
LEGACY_DRIVERS = "https://www.nvidia.com/en-us/drivers/unix/"
ROCM_GUIDE = "https://pytorch.org/get-started/locally/"
TUNING_GUIDE = "PyTorch tuning guide (docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html)"
TRITON = "triton/runtime/build.py: Triton compiles its launcher with the C compiler and Python.h"
_MANAGERS = {
    **dict.fromkeys(("ubuntu", "debian"), "apt"),
    **dict.fromkeys(("el8", "el9", "el10", "amzn", "fedora"), "dnf"),
    "suse": "zypper",
    "arch": "pacman",
}
"""Family → package manager. Names that all families of a manager share stand below the manager in the table."""


class System(msgspec.Struct, frozen=True, kw_only=True):
    """One distribution release on which NVIDIA's packages can be installed."""

    family: str
    """``ubuntu``, ``debian``, ``el8``, ``el9``, ``el10``, ``amzn``, ``fedora``, ``suse`` or ``arch``."""
    repository: str
    """``ubuntu2404``; ``""`` where the distribution's own packages are taken."""
    source: str
    confidence: str

    @property
    def manager(self) -> str:
        """Return ``apt``, ``dnf``, ``zypper`` or ``pacman``."""
        return _MANAGERS[self.family]


def system(os_id: str, version_id: str) -> System | None:
    """Return the system by ``ID`` and ``VERSION_ID`` of os-release; None where NVIDIA has no packages for it that are known here.

    >>> system("rocky", "9.4").repository, system("ubuntu", "24.04").repository, system("arch", "").family, system("centos", "7")
    ('rhel9', 'ubuntu2404', 'arch', None)
    """
    for row in rows("install_systems"):
        if row["id"] == os_id and row["version"] in ("", version_id, version_id.partition(".")[0]):
            return System(family=row["family"], repository=row["repository"], source=row["source"], confidence=row["confidence"])
    return None


def releases_of(os_id: str) -> tuple[tuple[str, str], ...]:
    """Return name and version of the releases of a distribution that NVIDIA has packages for.

    >>> releases_of("debian"), releases_of("alpine")
    ((('Debian GNU/Linux', '12'), ('Debian GNU/Linux', '13')), ())
    """
    return tuple((row["name"], row["version"]) for row in rows("install_systems") if row["id"] == os_id)


def system_ids() -> tuple[str, ...]:
    """Return every ``ID`` of os-release that some table knows, ended releases included.

    >>> {"debian", "rhel", "centos", "arch"} <= set(system_ids())
    True
    """
    return tuple(dict.fromkeys(row["id"] for row in (*rows("install_systems"), *rows("eol"))))


def system_name(os_id: str, version_id: str) -> tuple[str, str]:
    """Return ``PRETTY_NAME`` in short and ``VERSION_CODENAME`` of a release.

    >>> system_name("debian", "12"), system_name("rocky", "9.4"), system_name("centos", "7")
    (('Debian GNU/Linux 12', 'bookworm'), ('Rocky Linux 9.4', ''), ('centos 7', ''))
    """
    named = next((row["name"] for row in rows("install_systems") if row["id"] == os_id), os_id)
    codename = next(
        (row["codename"] for row in rows("install_systems") if (row["id"], row["version"]) == (os_id, version_id)), ""
    )
    return f"{named} {version_id}".strip(), codename


_BRANCHES_AS_OF = "2026-11"
"""Month in which the table of branches was read."""


class DriverBranch(msgspec.Struct, frozen=True, kw_only=True):
    branch: int
    kind: str
    end: str
    """Month of the last release, ISO 8601."""
    first: Version
    """The oldest version that a repository of the branch may give."""
    source: str

    @property
    def has_ended(self) -> bool:
        """Return whether no security update comes any more."""
        return self.end < _BRANCHES_AS_OF


def driver_branches() -> tuple[DriverBranch, ...]:
    """Return the branches: the one to take by default first; those that have ended last.

    >>> [(item.branch, item.has_ended) for item in driver_branches()]
    [(580, False), (595, False), (620, False), (610, True), (535, True)]
    """
    found = (
        DriverBranch(
            branch=int(row["branch"]),
            kind=row["kind"],
            end=row["end"],
            first=version(row["first_version"]),
            source=row["source"],
        )
        for row in rows("install_branches")
    )
    return tuple(sorted(found, key=lambda item: item.has_ended))


class PackageNames(msgspec.Struct, frozen=True, kw_only=True):
    names: tuple[str, ...]
    source: str
    confidence: str


def packages(family: str, purpose: str, **values: str) -> PackageNames | None:
    """Return the packages for a purpose, None where no source tells their names.

    >>> packages("el8", "headers", kernel="4.18.0-553.el8.x86_64").names
    ('kernel-devel-4.18.0-553.el8.x86_64', 'kernel-headers')
    >>> packages("ubuntu", "numactl").names, packages("arch", "fabric-manager")
    (('numactl',), None)
    """
    for name in (family, _MANAGERS.get(family)):
        for row in rows("install_packages"):
            if (row["family"], row["purpose"]) == (name, purpose):
                return PackageNames(
                    names=tuple(word.format(**values) for word in row["packages"].split()),
                    source=row["source"],
                    confidence=row["confidence"],
                )
    return None


class SigningKey(msgspec.Struct, frozen=True, kw_only=True):
    """The key that signs a repository."""

    url: str
    fingerprint: str
    """40 digits; 8 where no source tells more, see :attr:`is_pinned`."""
    source: str
    confidence: str

    @property
    def is_pinned(self) -> bool:
        """Return whether nobody can make another key with that fingerprint: of 8 digits everybody can."""
        return len(self.fingerprint) >= 40


def key(name: str, base: str = "") -> SigningKey | None:
    """Return the key of a repository, ``base`` being where its packages are; None where no source tells it.

    >>> key("rhel9", "https://example.org").url, key("rhel9").is_pinned, key("rhel10").is_pinned, key("windows")
    ('https://example.org/D42D0685.pub', True, False, None)
    """
    for row in rows("install_keys"):
        if row["name"] == name:
            url = row["key"] if "://" in row["key"] else f"{base}/{row['key']}"
            return SigningKey(url=url, fingerprint=row["fingerprint"], source=row["source"], confidence=row["confidence"])
    return None


def architecture(machine: str) -> str:
    """Return the machine's name in NVIDIA's repositories.

    >>> architecture("aarch64")
    'sbsa'
    """
    return {"aarch64": "sbsa"}.get(machine, machine)
