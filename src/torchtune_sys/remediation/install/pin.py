"""Pin a driver to its branch, and to its version until a person upgrades it."""

from __future__ import annotations

from torchtune_sys.knowledge import install as known
from torchtune_sys.model.install import Action, Driver, InstallCommand, InstallFile, InstallStep
from torchtune_sys.remediation.install.site import Site, install, root


def pin(site: Site, driver: Driver) -> tuple[Action, ...]:
    """Return what keeps the branch, before anything of it is installed."""
    branch, family = driver.branch, site.system.family
    if site.native:
        return ()
    if site.system.manager == "apt":
        found = known.packages(family, "pin", branch=str(branch))
        return (install(site, *found.names),) if found else ()
    if family in ("el8", "el9", "amzn"):
        stream = f"{branch}-{'open' if driver.module == 'open' else 'dkms'}"
        return (
            root("dnf", "module", "reset", "--assumeyes", "nvidia-driver"),
            root("dnf", "module", "enable", "--assumeyes", f"nvidia-driver:{stream}"),
        )
    if family in ("el10", "fedora"):
        return (*_lock_plugin(site), root("dnf", "versionlock", "add", f"*nvidia*{branch}*"))
    return ()


def of_branch(site: Site, driver: Driver, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the packages to ask for, so that they stay in the branch. zypper has no pin that comes before the package: it is asked for a version below the next branch."""
    if site.system.manager != "zypper":
        return names
    return tuple(f"{name}<{driver.branch + 1}" for name in names)


def _of_installed(command: str) -> InstallCommand:
    """``command`` with the names of all packages of the driver that are installed then."""
    listed = "rpm --query --all --queryformat '%{NAME}\\n' '*nvidia*'"
    return root("sh", "-c", f"{listed} | xargs --no-run-if-empty {command}")


# dnf 4 adds no lock where one matches already (plugins/versionlock.py, _search_locklist), neither does dnf 5 for a version that is
# locked: what pins the branch would leave every version of it allowed. dnf 5 takes whole names alone (versionlock_delete.cpp).
_UNLOCK = _of_installed("dnf '--disablerepo=*' versionlock delete")


def _lock_plugin(site: Site) -> tuple[Action, ...]:
    """dnf 5 has it built in."""
    plugin = None if site.system.family == "fedora" else known.packages(site.system.family, "version-lock")
    return (install(site, *plugin.names),) if plugin else ()


def unlocked(site: Site) -> tuple[Action, ...]:
    """Return what lifts the hold of an earlier branch, which would keep this one away."""
    if site.system.manager == "zypper":
        return (_of_installed("zypper --non-interactive removelock"),)
    return (*_lock_plugin(site), _UNLOCK) if site.system.manager == "dnf" else ()


_HOLD_FILE = "/etc/apt/apt.conf.d/99-torchtune-sys-driver"
_HOLD = """// Written by torchtune-sys generate install: the driver is upgraded by a person, when no job runs.
Unattended-Upgrade::Package-Blacklist {
  "nvidia-";
  "libnvidia-";
  "cuda-drivers";
  "linux-modules-nvidia-";
};
"""


def hold(site: Site, driver: Driver) -> InstallStep:
    """Return the step that holds the driver against upgrades that nobody watches: a library that is newer than the module that runs ends every new job."""
    title = "hold the driver back from automatic upgrades"
    why = "new libraries while the old module is loaded lead to: Driver/library version mismatch"
    if site.system.manager == "apt":
        return InstallStep(
            key="hold",
            title=title,
            actions=(InstallFile(path=_HOLD_FILE, text=_HOLD, root=True),),
            why=f"{why}; apt-get upgrade by hand still upgrades it within the branch",
            source="README of unattended-upgrades",
        )
    if site.system.manager == "dnf":
        return InstallStep(
            key="hold",
            title=title,
            # For "*nvidia*" dnf 5 also locks what is only to be had.
            actions=(*_lock_plugin(site), _UNLOCK, _of_installed("dnf '--disablerepo=*' versionlock add")),
            why=f"{why}; it locks what is installed now; the command before it removes earlier locks, and later this one",
            source="https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/version-locking.html",
        )
    if site.system.manager == "zypper":
        return InstallStep(
            key="hold",
            title=title,
            # A lock for "*nvidia*" would also keep away what is not there yet: nvidia-container-toolkit.
            actions=(_of_installed("zypper --non-interactive addlock"),),
            why=f"{why}; it locks what is installed now (zypper locks shows it, zypper removelock NAME removes it)",
            source="zypper(8), Package Lock Management",
        )
    if site.system.manager != "pacman":
        raise NotImplementedError(f"remediation/install/pin.py does not say how {site.system.manager} holds packages")
    return InstallStep(
        key="hold",
        title=title,
        why=f"{why}; branch {driver.branch} cannot be kept on a rolling release otherwise",
        source="pacman.conf(5)",
        by_hand="IgnorePkg = linux nvidia-open nvidia-utils in /etc/pacman.conf: the module is built for one kernel, so they stay together",
    )
