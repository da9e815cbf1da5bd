"""Tell the package manager of a repository and of the one key that must sign its packages."""

from __future__ import annotations

from torchtune_sys.knowledge import install as known
from torchtune_sys.model.install import Action, InstallFile, Key
from torchtune_sys.remediation.install.site import Site, install, root

_APT_KEYS, _RPM_KEYS = "/usr/share/keyrings", "/etc/pki/rpm-gpg"
_REPOSITORIES = {"dnf": "/etc/yum.repos.d", "zypper": "/etc/zypp/repos.d"}
_LIST = "# Written by torchtune-sys generate install.\ndeb [signed-by={path},{fingerprint}] {url} /\n"
_REPO = """# Written by torchtune-sys generate install.
[{name}]
name={name}
baseurl={url}
enabled=1
{checks}
gpgkey=file://{path}
"""


def why(key: known.SigningKey) -> str:
    """Return what the key is held against."""
    if key.is_pinned:
        return f"its key must have the fingerprint {key.fingerprint}"
    return f"its key is not pinned: only the end of its fingerprint is on record, {key.fingerprint}"


def unpinned(name: str, key: known.SigningKey) -> str:
    """Return the note on a key that anybody could make one of the same name for."""
    return (
        f"not pinned: the key of {name}: no source on record tells its whole fingerprint, it is only checked to end in "
        f"{key.fingerprint}; compare it: gpg --show-keys, {key.url}"
    )


def of_apt(site: Site, key: known.SigningKey, kept: str, place: str, url: str) -> tuple[Action, ...]:
    """Return what sets up apt: the key is fetched as it comes: apt takes nothing that is not signed by the one of this fingerprint (sources.list(5), Signed-By)."""
    path = f"{_APT_KEYS}/{kept}.asc"
    fetch = known.packages(site.system.family, "fetch")
    text = _LIST.format(path=path, fingerprint=key.fingerprint, url=url)
    return (
        root("apt-get", "update"),
        install(site, *(fetch.names if fetch else ())),
        root("curl", "-fsSL", "-o", path, key.url),
        InstallFile(path=place, text=text, root=True),
    )


def of_rpm(site: Site, key: known.SigningKey, kept: str, file: str, text: str) -> tuple[Action, ...]:
    """Return a repository in a file of ours: the vendor's own names a key by its URL, which the manager would take as it comes."""
    return (
        *trusted(site, key, kept),
        InstallFile(path=f"{_REPOSITORIES[site.system.manager]}/{file}.repo", text=text, root=True),
    )


def repo(name: str, url: str, kept: str, *, signed: str = "packages") -> str:
    """Return the text of such a file; ``signed`` is what there are signatures of: ``packages``, or ``metadata`` with the packages' sums."""
    checks = "gpgcheck=1" if signed == "packages" else "gpgcheck=0\nrepo_gpgcheck=1"
    return _REPO.format(name=name, url=url, checks=checks, path=f"{_RPM_KEYS}/{kept}")


def trusted(site: Site, key: known.SigningKey, kept: str) -> tuple[Action, ...]:
    """Return what reads the key, and the key."""
    check = known.packages(site.system.family, "check-key")
    reads = (install(site, *check.names),) if check else ()
    return (*reads, Key(path=f"{_RPM_KEYS}/{kept}", url=key.url, fingerprint=key.fingerprint))
