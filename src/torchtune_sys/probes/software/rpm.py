"""dnf, yum, zypper and pacman: what is upgraded without being asked, and what is locked."""

from __future__ import annotations

import re

from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why, known

_WANTS = "/etc/systemd/system/timers.target.wants"
_YUM_CRON = "/etc/systemd/system/multi-user.target.wants/yum-cron.service"
_YES = ("yes", "true", "1", "on")
_MOST_FILES = 60


def upgrader(host: Host) -> Fact[str]:
    """Return what installs every upgrade on the running system by itself; ABSENT where nothing does.

    dnf-automatic(8): its timer obeys automatic.conf, whose default is not to install; dnf-automatic-install.timer installs whatever
    that says. Security upgrades alone leave NVIDIA's repositories alone, which carry no advisories. Systems of one image
    (rpm-ostree, transactional-update) upgrade the next boot's image, which is whole.
    """
    nothing = Missing(Why.ABSENT, _WANTS, "nothing upgrades this host by itself")
    if host.exists("/run/ostree-booted") is True or host.exists("/usr/sbin/transactional-update") is True:
        return Missing(Why.ABSENT, "/run/ostree-booted", "upgrades make a new image, for the next boot")
    names = host.names(_WANTS)
    if isinstance(names, Missing) and names.why is not Why.ABSENT:
        return names
    timers = known(names, ())
    found = [name for name in timers if name in ("dnf-automatic.timer", "dnf5-automatic.timer", "dnf-automatic-install.timer")]
    if found:
        text = host.text("/etc/dnf/automatic.conf")
        if isinstance(text, Missing) and text.why is not Why.ABSENT:
            return text
        settings = {} if isinstance(text, Missing) else parse_ini(text)
        install = "dnf-automatic-install.timer" in found or settings.get("apply_updates", "no").lower() in _YES
        return "dnf-automatic" if install and settings.get("upgrade_type", "default") != "security" else nothing
    if host.exists(_YUM_CRON) is True:
        text = host.text("/etc/yum/yum-cron.conf")
        settings = {} if isinstance(text, Missing) else parse_ini(text)
        install = settings.get("apply_updates", "no").lower() in _YES and settings.get("update_cmd", "default") == "default"
        return "yum-cron" if install else nothing
    return nothing


def parse_ini(text: str) -> dict[str, str]:
    r"""Parse all sections as one: the last word on each key.

    >>> parse_ini("[commands]\n# apply_updates = yes\nupgrade_type = default\napply_updates = no\n")["apply_updates"]
    'no'
    """
    pairs = (line.partition("=") for line in text.splitlines()[:2000] if not line.lstrip().startswith(("#", ";", "[")))
    return {name.strip().lower(): value.strip() for name, equals, value in pairs if equals}


def locks(host: Host) -> tuple[str, ...]:
    """Return the names (with ``*`` and ``?``) of packages that dnf, yum or zypper was told to leave as they are."""
    found: list[str] = []
    for path, parse in (
        ("/etc/dnf/plugins/versionlock.list", parse_versionlock),
        ("/etc/yum/pluginconf.d/versionlock.list", parse_versionlock),
        ("/etc/dnf/versionlock.toml", parse_versionlock_toml),
        ("/etc/zypp/locks", parse_zypp_locks),
    ):
        text = host.text(path)
        found += [] if isinstance(text, Missing) else parse(text)
    files = [f"/etc/yum.repos.d/{name}" for name in (known(host.names("/etc/yum.repos.d"), ()))[:_MOST_FILES]]
    for path in ("/etc/dnf/dnf.conf", "/etc/yum.conf", "/etc/dnf/automatic.conf", *files):
        text = host.text(path)
        found += [] if isinstance(text, Missing) else parse_excludes(text)
    return tuple(dict.fromkeys(found))


def parse_excludes(text: str) -> list[str]:
    r"""Parse dnf.conf(5): ``excludepkgs`` (older: ``exclude``); values go on in indented lines.

    >>> parse_excludes("[main]\nexclude=nvidia* cuda-drivers,\n  kmod-nvidia*\ngpgcheck=1\n")
    ['nvidia*', 'cuda-drivers', 'kmod-nvidia*']
    """
    found: list[str] = []
    inside = False
    for line in text.splitlines()[:2000]:
        name, equals, value = line.partition("=")
        if line[:1] not in (" ", "\t"):
            inside = bool(equals) and name.strip().lower() in ("exclude", "excludepkgs")
        elif inside:
            value = line
        if inside:
            found += value.replace(",", " ").split()
    return found[:200]


def parse_versionlock(text: str) -> list[str]:
    r"""Return the plug-in's list: ``name-epoch:version-release.arch`` (yum: the epoch first); ``!`` only bars one version.

    >>> parse_versionlock("# Added\nkmod-nvidia-latest-dkms-3:580.95.05-1.el9.*\n!bash-0:5.1-1.el9.*\n0:runc-1.1.12-1.el7.*\nnvidia-*\n")
    ['kmod-nvidia-latest-dkms', 'runc', 'nvidia-*']
    """
    found: list[str] = []
    for line in text.splitlines()[:2000]:
        word = line.partition("#")[0].strip()
        if not word or word.startswith("!"):
            continue
        word = re.sub(r"^\d{1,9}:", "", word)
        parts = word.rsplit("-", 2)
        versioned = len(parts) == 3 and re.match(r"(?:\d{1,9}:)?[\d*]", parts[1])
        found.append(parts[0] if versioned else word)
    return found


def parse_versionlock_toml(text: str) -> list[str]:
    r"""Parse the file of dnf5-versionlock(8): one table for each lock; ``!=`` only bars one version.

    >>> parse_versionlock_toml('version = "1.0"\n[[packages]]\nname = "*nvidia*"\n[[packages.conditions]]\nkey = "evr"\n'
    ... 'comparator = "="\nvalue = "3:580.95.05-1.fc42"\n[[packages]]\nname = "bash"\n[[packages.conditions]]\ncomparator = "!="\n')
    ['*nvidia*']
    """
    found: list[str] = []
    for table in text.split("[[packages]]")[1:2000]:
        name = re.search(r"^\s{0,20}name\s{0,9}=\s{0,9}[\"']([^\"'\n]{1,200})[\"']", table, re.M)
        if name and not re.search(r"comparator\s{0,9}=\s{0,9}[\"']!=", table):
            found.append(name[1])
    return found


def parse_zypp_locks(text: str) -> list[str]:
    r"""Parse locks(5) of libzypp; a lock of one version alone, or on what is not installed, holds nothing.

    >>> parse_zypp_locks("\ntype: package\nmatch_type: glob\ncase_sensitive: on\nsolvable_name: nvidia*G06*\n")
    ['nvidia*G06*']
    """
    found: list[str] = []
    for record in re.split(r"\n[ \t]*\n", text):
        fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in record.split("\n"))}
        name = fields.get("solvable_name", "")
        if not name or "version" in fields or fields.get("install_status") == "not-installed":
            continue
        found.append(name if fields.get("match_type", "substring") in ("glob", "exact") else f"*{name}*")
    return found[:200]


def ignored(host: Host) -> tuple[str, ...]:
    """Return what pacman.conf tells it to leave as it is."""
    text = host.text("/etc/pacman.conf")
    return () if isinstance(text, Missing) else tuple(parse_ignored(text))


def parse_ignored(text: str) -> list[str]:
    r"""Parse IgnorePkg of pacman.conf(5).

    >>> parse_ignored("[options]\n#IgnorePkg   =\nIgnorePkg = linux nvidia-open\nIgnorePkg=nvidia-utils\n")
    ['linux', 'nvidia-open', 'nvidia-utils']
    """
    found: list[str] = []
    for line in text.splitlines()[:2000]:
        name, _, value = line.partition("=")
        found += value.partition("#")[0].split() if name.strip() == "IgnorePkg" else []
    return found
