"""Identify the distribution, and the C library that its files belong to."""

from __future__ import annotations

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.system import Os
from torchtune_sys.model.values import Missing, Why, absent_or_unrecorded, known

OS_RELEASE = ("/etc/os-release", "/usr/lib/os-release")

_LIBRARIES = (
    "/lib/{machine}-linux-gnu",
    "/usr/lib/{machine}-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
)


def read_os(host: Host) -> Fact[Os]:
    """Return the distribution, from os-release(5) or, where there is none, from what older distributions have."""
    reasons: list[Missing] = []
    for path in OS_RELEASE:
        text = host.text(path)
        if not isinstance(text, Missing):
            return parse_os_release(text, path)
        reasons.append(text)
    if not absent_or_unrecorded(reasons[0]):
        return reasons[0]
    answer = host.ask(queries.DISTRIBUTION)
    older = _answered(answer) if isinstance(answer, dict) else _older(host)
    return reasons[0] if older is None else older


def parse_os_release(text: str, source: str = OS_RELEASE[0]) -> Fact[Os]:
    """Parse os-release(5): shell assignments, of which only quoting matters.

    >>> parse_os_release('ID=ubuntu\\nID_LIKE=debian\\nVERSION_ID="24.04"\\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\\n').version
    '24.04'
    """
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith("#"):
            fields[name] = unquoted(value)
    if not any(fields.get(name) for name in ("ID", "NAME", "PRETTY_NAME")):
        return Missing(Why.UNPARSED, source, "names no distribution")
    return Os(
        id=fields.get("ID", "linux").lower(),  # the default that os-release(5) gives
        id_like=tuple(fields.get("ID_LIKE", "").lower().split()),
        version=fields.get("VERSION_ID", ""),
        pretty_name=fields.get("PRETTY_NAME") or fields.get("NAME", "Linux"),
        codename=fields.get("VERSION_CODENAME", ""),
    )


def unquoted(value: str) -> str:
    """Return the value of a shell assignment.

    >>> unquoted('"Debian GNU/Linux 12 (bookworm)"'), unquoted("'it\\\\'s'"), unquoted('say \\\\"hi\\\\"')
    ('Debian GNU/Linux 12 (bookworm)', "it's", 'say "hi"')
    """
    value = value.strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    for character in ('"', "'", "$", "`", "\\"):
        value = value.replace(f"\\{character}", character)
    return value


def _answered(answer: dict[str, object]) -> Os:
    field = {name: str(answer.get(name, "")) for name in ("id", "like", "version", "name", "codename")}
    return Os(
        id=field["id"],
        id_like=tuple(field["like"].split()),
        version=field["version"],
        pretty_name=field["name"],
        codename=field["codename"],
    )


def _older(host: Host) -> Os | None:
    """/etc/redhat-release and its like, as CentOS 6 has: ``CentOS release 6.10 (Final)``."""
    for path in ("/etc/centos-release", "/etc/redhat-release", "/etc/system-release"):
        text = host.text(path)
        if not isinstance(text, Missing) and (found := parse_redhat_release(text)) is not None:
            return found
    text = host.text("/etc/debian_version")
    if isinstance(text, Missing) or not text.strip()[:1].isdecimal():
        return None
    version = text.strip()[:20]
    return Os(id="debian", id_like=(), version=version.partition(".")[0], pretty_name=f"Debian {version}", codename="")


def parse_redhat_release(text: str) -> Os | None:
    """Parse /etc/redhat-release, for releases without os-release.

    >>> parse_redhat_release("CentOS release 6.10 (Final)\\n").version
    '6.10'
    """
    line = text.strip().partition("\n")[0][:200]
    name, word, rest = line.partition(" release ")
    if not word:
        return None
    ids = {
        "centos": "centos",
        "red hat": "rhel",
        "fedora": "fedora",
        "scientific": "scientific",
        "oracle": "ol",
        "amazon": "amzn",
    }
    found = next((known for start, known in ids.items() if name.lower().startswith(start)), "linux")
    return Os(id=found, id_like=("rhel", "fedora"), version=rest.split(" ")[0], pretty_name=line, codename="")


def glibc_of_files(host: Host, machine: Fact[str]) -> Fact[str]:
    """Return the version of glibc below a root that is not running: the name that libc.so.6 leads to (up to 2.33, ``libc-2.17.so``).

    From 2.34 on libc.so.6 is a plain file and its name tells nothing.
    """
    name = known(machine, "x86_64")
    musl = host.exists(f"/lib/ld-musl-{name}.so.1")
    if musl is True:
        return Missing(Why.ABSENT, f"/lib/ld-musl-{name}.so.1", "the C library is musl, not glibc")
    for place in _LIBRARIES:
        path = f"{place.format(machine=name)}/libc.so.6"
        target = host.link(path)
        if not isinstance(target, Missing) and (version := _libc_version(target)):
            return version
    if isinstance(musl, Missing):
        return musl
    return Missing(Why.UNPARSED, "libc.so.6", "its name does not tell the version", "look at the running host")


def _libc_version(target: str) -> str:
    """
    >>> _libc_version("libc-2.17.so"), _libc_version("/lib/libc.so")
    ('2.17', '')
    """
    name = target.rpartition("/")[2]
    if not (name.startswith("libc-") and name.endswith(".so")):
        return ""
    version = name[5:-3]
    return version if version.replace(".", "").isdecimal() and len(version) < 12 else ""
