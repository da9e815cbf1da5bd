"""Find the names in a recording that say whose host it is: users, hosts, serial numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

SHORT = 2
"""Letters; a name of no more is replaced only where nothing but a name can stand."""
GENERIC = frozenset(
    (
        # accounts and host names that images come with, and words that would mean something else elsewhere
        "root", "ubuntu", "debian", "centos", "fedora", "rocky", "almalinux", "rhel", "suse", "opensuse", "arch", "amazon", "linux", "ec2-user",
        "azureuser", "opc", "core", "vagrant", "admin", "administrator", "user", "users", "nobody", "daemon", "guest", "test", "default", "data",
        "train", "trainer", "training", "worker", "node", "host", "hostname", "master", "main", "gpu", "cuda", "nvidia", "amd", "intel", "torch",
        "pytorch", "python", "conda", "mamba", "venv", "jovyan", "runner", "gitpod", "coder", "docker", "podman", "container", "kube", "slurm",
        "home", "work", "workspace", "scratch", "shared", "none", "null", "true", "false", "local", "localhost", "localdomain", "localhost4",
        "localhost6", "localhost.localdomain", "broadcasthost", "lost+found", "linuxbrew", "app", "dev", "lib", "bin", "usr", "var", "opt", "etc",
        "mnt", "srv", "tmp", "proc", "sys", "run", "nfs", "model", "models", "project", "projects", "team", "research", "group",
    )
)  # fmt: skip
"""Never replaced: they identify nobody, and ``ubuntu`` is also the name of a distribution."""

USER_VARIABLES = ("USER", "LOGNAME", "LNAME", "USERNAME", "SUDO_USER", "DOAS_USER", "SLURM_JOB_USER", "SLURM_JOB_ACCOUNT")
HOST_VARIABLES = (
    "HOSTNAME",
    "HOST",
    "SLURMD_NODENAME",
    "SLURM_SUBMIT_HOST",
    "SLURM_CLUSTER_NAME",
    "MASTER_ADDR",
    "PBS_O_HOST",
    "LSB_SUB_HOST",
)
HOST_FILES = ("/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname", "/etc/hostname", "/etc/mailname")
_HOME = re.compile(r"/(?:home\d*|Users)/([^/\s:,;'\"()\[\]{}=]+)")
_SERVER = re.compile(r"(?:^|\s)(?:([\w.-]+)@)?([A-Za-z][\w-]*(?:\.[\w-]+)*):/", re.MULTILINE)
_NFS = re.compile(r"\bnfs: server (\S+) ")
_LOGIN = re.compile(r"\b(?:user(?:name)?|login)=([^,\s]+)")
_SERIAL = re.compile(r"serial(?:\s*number)?\s*[:=]\s*(\S+)", re.IGNORECASE)
_PLACEHOLDERS = re.compile(
    r"(?:none|n/a|0+|x+|unknown|not .*|default.*|to be filled.*|system serial.*|oem.*|\[n/a\])", re.IGNORECASE
)
SERIAL_FILES = re.compile(r"/(?:serial|[a-z]+_serial|product_uuid|[a-z_]*asset_tag|serial_number)$")


class Identities(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of this host's people and machines; each set holds the names in clear. Names of one or two letters, which
    stand everywhere for something else, are given too: :data:`SHORT` tells them."""

    users: frozenset[str]
    hosts: frozenset[str]
    serials: frozenset[str]


def identities(recording: Mapping[str, Any]) -> Identities:
    users: set[str] = set()
    hosts: set[str] = set()
    serials: set[str] = set()
    env = recording.get("env") or {}
    users.update(str(env[name]) for name in USER_VARIABLES if name in env)
    hosts.update(str(env[name]) for name in HOST_VARIABLES if name in env)
    for key, text in strings(recording):
        users.update(_HOME.findall(key))
        users.update(_HOME.findall(text))
    for path, names in (recording.get("dirs") or {}).items():
        if path in ("/home", "/Users") and isinstance(names, list):
            users.update(names)
    for path, text in _files(recording):
        _from_file(path, text, users, hosts, serials)
    _from_answers(recording.get("answers") or {}, users, hosts, serials)
    for name in tuple(hosts):
        label, _, domain = name.partition(".")
        hosts.update((label, domain))
    return Identities(
        users=frozenset(filter(_personal, users)),
        hosts=frozenset(filter(_host_name, hosts)),
        serials=frozenset(filter(_real_serial, serials)),
    )


def strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text in nested data, with the key it lies under; keys themselves too, under themselves."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield str(name), ""
            yield from strings(item, str(name))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings(item, key)


def _files(recording: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for path, content in (recording.get("files") or {}).items():
        if isinstance(content, str):
            yield path, content
        elif isinstance(content, list):
            yield path, "\n".join(content)


def _from_file(path: str, text: str, users: set[str], hosts: set[str], serials: set[str]) -> None:
    if path in HOST_FILES:
        hosts.add(text.strip())
    elif path == "/etc/hosts":
        for line in text.splitlines():
            hosts.update(name for name in line.partition("#")[0].split()[1:] if not name.startswith("ip6-"))
    elif path.endswith("resolv.conf"):
        for line in text.splitlines():
            if line.startswith(("search", "domain")):
                hosts.update(name.rstrip(".") for name in line.split()[1:])
    elif path.rpartition("/")[2] in ("mounts", "mountinfo", "fstab"):
        for user, server in _SERVER.findall(text):
            hosts.add(server)
            users.add(user)
        users.update(_LOGIN.findall(text))
    elif SERIAL_FILES.search(path):
        serials.add(text.strip())


def _from_answers(answers: Mapping[str, Any], users: set[str], hosts: set[str], serials: set[str]) -> None:
    for question, answer in answers.items():
        if question.partition(":")[0] == "hostname-addresses":
            hosts.add(question.partition(":")[2])
        for key, text in strings(answer):
            name = key.lower()
            if name in ("user", "username", "user_name", "judged_as"):
                users.add(text)
            elif name in ("nodename", "hostname", "host", "fqdn"):
                hosts.add(text)
            elif "serial" in name:
                serials.add(text)
            serials.update(_SERIAL.findall(text))
            hosts.update(_NFS.findall(text))


def _personal(name: str) -> bool:
    return bool(name) and not name.isdigit() and name.lower() not in GENERIC and "/" not in name


def _host_name(name: str) -> bool:
    """Addresses and top-level domains are no names of hosts."""
    return _personal(name) and not re.fullmatch(
        r"[\d.]+|(?:[0-9a-fA-F]+|:):[0-9a-fA-F:.]*|com|org|net|edu|gov|internal|cluster\.local|svc\..*", name
    )


def _real_serial(text: str) -> bool:
    """Short numbers are not taken for serial numbers: they would be found everywhere."""
    return len(text) > (8 if text.isdigit() else 5) and "\n" not in text and not _PLACEHOLDERS.fullmatch(text)
