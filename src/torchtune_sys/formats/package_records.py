"""The package manager's own records: dpkg's and pacman's are text, rpm's database is read by rpm alone."""

from __future__ import annotations

import re
from typing import Any

_WANTED = re.compile(
    rb"\nPackage: ((?:lib)?nvidia-[\w.+-]{1,80}|cuda-drivers[\w.+-]{0,40}|docker-ce|docker\.io|containerd(?:\.io)?|runc|unattended-upgrades)(?=\n)"
)
"""It begins with plain text, which re looks for four times as fast as for a line's beginning."""
_MOST = 200
_RPM_NAMES = (
    "nvidia-driver", "nvidia-driver-cuda", "nvidia-driver-cuda-libs", "nvidia-open", "cuda-drivers", "kmod-nvidia", "kmod-nvidia-latest-dkms",
    "kmod-nvidia-open-dkms", "kmod-nvidia-open", "akmod-nvidia", "akmod-nvidia-open", "dkms-nvidia", "xorg-x11-drv-nvidia",
    "xorg-x11-drv-nvidia-cuda", "nvidia-compute-G06", "nvidia-compute-G07", "nvidia-driver-G06-kmp-default", "nvidia-open-driver-G06-kmp-default",
    "nvidia-open-driver-G06-signed-kmp-default", "nvidia-open-driver-G06-signed-cuda-kmp-default", "nvidia-open-driver-G07-signed-kmp-default",
    "nvidia-fabricmanager", "nvidia-fabric-manager", "nvidia-container-toolkit", "nvidia-container-toolkit-base", "docker-ce", "docker",
    "moby-engine", "containerd.io", "containerd", "runc",
)  # fmt: skip
RPM_QUERY = ("rpm", "-q", "--qf", r"%{NAME}\t%|EPOCH?{%{EPOCH}:}:{}|%{VERSION}-%{RELEASE}\t%{VENDOR}\n", *_RPM_NAMES)
"""By exact names: looked up in an index, where a pattern would read the whole database."""
_VENDORS = (
    ("nvidia", "nvidia.com"), ("docker", "docker.com"), ("red hat", "redhat.com"), ("fedora project", "fedoraproject.org"),
    ("rpm fusion", "rpmfusion.org"), ("negativo17", "negativo17.org"), ("rocky", "rockylinux.org"), ("alma", "almalinux.org"),
    ("centos", "centos.org"), ("oracle", "oracle.com"), ("amazon", "amazon.com"), ("opensuse", "opensuse.org"), ("suse", "suse.com"),
)  # fmt: skip
"""The vendors that are told; of others the name may be a person's."""


def parse_rpm(text: str) -> list[dict[str, Any]]:
    r"""Return what RPM_QUERY prints; packages that are not installed are lines of words.

    >>> parse_rpm("nvidia-driver\t3:580.95.05-1.el9\t(none)\npackage runc is not installed\nkmod-nvidia\t1-2\tNVIDIA Corporation\n")[1]
    {'name': 'kmod-nvidia', 'version': '1-2', 'held': False, 'origin': 'nvidia.com'}
    """
    found: list[dict[str, Any]] = []
    for line in text.splitlines()[:_MOST]:
        fields = line.split("\t")
        if len(fields) == 3 and fields[0] and fields[1]:
            vendor = fields[2].lower()
            origin = next((domain for word, domain in _VENDORS if word in vendor), "")
            found.append({"name": fields[0][:100], "version": fields[1][:200], "held": False, "origin": origin})
    return found


def parse_pacman(names: list[str]) -> list[dict[str, Any]]:
    """Return the packages from the names of pacman's directories, ``name-version-release``.

    >>> parse_pacman(["nvidia-open-580.95.05-3", "vim-9.1-1", "nvidia-container-toolkit-1.18.0-1"])[0]["version"]
    '580.95.05-3'
    """
    found: list[dict[str, Any]] = []
    for entry in names:
        name, _, rest = (entry.rpartition("-")[0]).rpartition("-")
        if name.startswith("nvidia") or name in ("docker", "containerd", "runc", "opencl-nvidia"):
            version = f"{rest}-{entry.rpartition('-')[2]}"
            found.append({"name": name, "version": version, "held": False, "origin": ""})
    return found[:_MOST]


def parse_status(data: bytes) -> list[dict[str, Any]]:
    r"""Return the packages that matter to GPU training in dpkg's status file, as far as they are installed (deb-src-control, dpkg(1)).

    >>> parse_status(b"Package: runc\nStatus: hold ok installed\nMaintainer: A <a@lists.ubuntu.com>\nVersion: 1.1.12-0ubuntu2\n\nPackage: vim\n")
    [{'name': 'runc', 'version': '1.1.12-0ubuntu2', 'held': True, 'origin': 'ubuntu.com'}]
    """
    found: list[dict[str, Any]] = []
    data = b"\n" + data
    for match in _WANTED.finditer(data):
        end = data.find(b"\n\n", match.end())
        lines = data[match.end() : end if end >= 0 else match.end() + 65536][:65536].split(b"\n")
        fields = {line.partition(b": ")[0]: line.partition(b": ")[2].strip() for line in lines if line[:1] not in b" \t"}
        status = fields.get(b"Status", b"").split()
        if len(status) == 3 and status[2] == b"installed" and fields.get(b"Version"):
            words = {name: fields.get(key, b"").decode("utf-8", "replace")[:200] for name, key in _FIELDS}
            found.append(
                {
                    "name": match[1].decode(),
                    "version": words["version"],
                    "held": status[0] == b"hold",
                    "origin": _origin(words["maintainer"]),
                }
            )
        if len(found) >= _MOST:
            break
    return found


_FIELDS = (("version", b"Version"), ("maintainer", b"Maintainer"))


def _origin(maintainer: str) -> str:
    """Return the registered domain of the address: people's names and mailboxes stay on the host.

    >>> _origin("Ubuntu Developers <ubuntu-devel-discuss@lists.ubuntu.com>"), _origin("somebody")
    ('ubuntu.com', '')
    """
    domain = maintainer.rpartition("@")[2].rstrip("> ") if "@" in maintainer else ""
    return ".".join(domain.split(".")[-2:])[:80]
