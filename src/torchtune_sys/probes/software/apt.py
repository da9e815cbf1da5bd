"""apt: what it may upgrade by itself, and what it must not."""

from __future__ import annotations

import re

from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, fact, known, need

_APT = "/etc/apt/apt.conf.d"
_PINS = "/etc/apt/preferences"
_MOST_FILES = 100


def pins(host: Host) -> tuple[str, ...]:
    """Return the names (with ``*`` and ``?``) of packages that a pin keeps at their version."""
    files = [f"{_PINS}.d/{name}" for name in (known(host.names(f"{_PINS}.d"), ()))[:_MOST_FILES] if _is_pin_file(name)]
    return tuple(pin for path in (_PINS, *files) if not isinstance(text := host.text(path), Missing) for pin in parse_pins(text))


def _is_pin_file(name: str) -> bool:
    return "." not in name or name.endswith(".pref")


def parse_pins(text: str) -> tuple[str, ...]:
    r"""Return the names (with ``*`` and ``?``) that apt_preferences(5) keeps from being upgraded: pinned to one version, or below 0 whoever
    offers them. A version with ``*`` lets upgrades through, and so does a pin of one origin among several.

    >>> parse_pins("Package: nvidia-driver-* libnvidia-*\nPin: version 580.95.05-0ubuntu1\nPin-Priority: 1001\n")
    ('nvidia-driver-*', 'libnvidia-*')
    >>> parse_pins("Package: *nvidia*\nPin: release *\nPin-Priority: -1\n\nPackage: nvidia-*\nPin: version 580.*\nPin-Priority: 900\n")
    ('*nvidia*',)
    """
    found: list[str] = []
    for record in re.split(r"\n[ \t]*\n", "\n".join(line for line in text.splitlines() if not line.startswith("#"))):
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in record.split("\n"))}
        priority = re.fullmatch(r"([+-]?)\d{1,6}", fields.get("pin-priority", ""))
        kind, _, what = fields.get("pin", "").partition(" ")
        exact = kind == "version" and what and "*" not in what and not what.startswith("/")
        never = what.strip() in ("*", "o=*", "a=*") or (kind == "origin" and what.strip() in ("*", '"*"'))
        if priority and ((priority[1] == "-" and never) or (priority[1] != "-" and exact)):
            found += [name for name in fields.get("package", "").split() if not name.startswith("/")][:200]
    return tuple(found)


@fact
def configuration(host: Host) -> Fact[str]:
    """Return all of apt's configuration, in the order in which apt reads it."""
    names = need(host.names(_APT))
    parts = []
    for name in names[:_MOST_FILES]:
        if "." not in name or name.endswith(".conf"):  # apt.conf(5): other extensions are skipped
            text = need(host.text(f"{_APT}/{name}"))
            parts.append(text)
    return "\n".join(parts)


def _uncommented(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("//", "#")))


def parse_automatic(text: str) -> bool:
    r"""Return whether apt's configuration switches unattended upgrades on; the last word counts.

    >>> parse_automatic('APT::Periodic::Update-Package-Lists "1";\nAPT::Periodic::Unattended-Upgrade "1";\n')
    True
    >>> parse_automatic('//APT::Periodic::Unattended-Upgrade "1";\n')
    False
    """
    values = re.findall(r'Unattended-Upgrade\s{1,9}"([^"]{0,20})"', _uncommented(text))
    return bool(values) and values[-1] not in ("0", "", "false", "no")


def parse_exclusions(text: str) -> tuple[str, ...]:
    r"""Parse the packages that unattended-upgrades leaves out.

    >>> parse_exclusions('Unattended-Upgrade::Package-Blacklist {\n  // "linux-";\n  "nvidia-";\n};\n')
    ('nvidia-',)
    """
    plain = _uncommented(text)
    start = plain.find("Package-Blacklist")
    block = plain[start:].partition("{")[2].partition("}")[0] if start >= 0 else ""
    return tuple(re.findall(r'"([^"]{1,200})"', block)[:200])
