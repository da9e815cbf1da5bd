"""Read the settings of the active tuned profile: profiles include others, and later sections override earlier ones.

Source: tuned 2.2x, profiles/loader.py, plugins/plugin_sysctl.py and tuned-main.conf (``reapply_sysctl``, ``profile_dirs``).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.sysctl import Assignment
from torchtune_sys.model.plan_context import TunedOption, TunedProfile
from torchtune_sys.model.values import Missing, Why, absent_or_unrecorded

MAIN_CONF = "/etc/tuned/tuned-main.conf"
ACTIVE = "/etc/tuned/active_profile"
_RUNNING = ("/run/tuned/tuned.pid", "/etc/systemd/system/multi-user.target.wants/tuned.service")
_PROFILE_DIRS = ("/etc/tuned/profiles", "/etc/tuned", "/usr/lib/tuned/profiles", "/usr/lib/tuned")
"""Highest rank first; until 2.23 the profiles lay directly in /etc/tuned and /usr/lib/tuned."""
_NOT_SYSCTLS = frozenset(
    {
        "type",
        "enabled",
        "replace",
        "drop",
        "devices",
        "devices_udev_regex",
        "priority",
        "script_pre",
        "script_post",
        "uname_regex",
        "cpuinfo_regex",
    }
)


_VM_OPTIONS = frozenset({"dirty_bytes", "dirty_ratio", "dirty_background_bytes", "dirty_background_ratio"})
"""Options of the plug-in vm that are sysctls (since 2.22)."""


class TunedState(msgspec.Struct, frozen=True, kw_only=True):
    profile: Fact[str]
    sysctls: dict[str, Fact[Assignment]]
    """By path below /proc/sys."""
    unread: Missing | None = None
    """A profile that could not be read: any key may be set there."""
    others: tuple[tuple[str, str, str], ...] = ()
    """What it sets besides sysctls: ``vm.transparent_hugepages``, ``cpu.governor``, ``disk.readahead`` …, with value and place."""
    reapply: bool = True
    """Whether the files of /run/sysctl.d, /etc/sysctl.d and /etc/sysctl.conf are applied again after the profile."""


class ProfileOption(msgspec.Struct, frozen=True, kw_only=True):
    section: str
    name: str
    value: str
    line: int


def parse_ini(text: str) -> Iterator[ProfileOption]:
    r"""Yield the options of an ini file with ``=`` only; text after " #" is a comment.

    >>> [(o.section, o.name, o.value, o.line) for o in parse_ini("[main]\ninclude=balanced\n[sysctl]\nvm.swappiness = 10 # x\n")]
    [('main', 'include', 'balanced', 2), ('sysctl', 'vm.swappiness', '10', 4)]
    """
    section = ""
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line[0] == "[" and "]" in line:
            section = line[1 : line.index("]")]
            continue
        name, equals, value = line.partition("=")
        if equals and name.strip():
            plain = f" {value}".replace("\t#", " #").partition(" #")[0].strip()
            yield ProfileOption(section=section, name=name.strip(), value=plain, line=number)


def read(host: Host) -> TunedState:
    """Return the active profile's sysctls; ABSENT as profile where tuned neither runs nor is enabled."""
    off = Missing(Why.ABSENT, "/run/tuned/tuned.pid", "tuned is not active")
    active = host.word(ACTIVE)
    if isinstance(active, Missing):
        quiet = active.why in (Why.ABSENT, Why.UNPARSED)
        return TunedState(profile=off if quiet else active, sysctls={}, unread=None if quiet else active)
    seen = [host.exists(path) if place == 0 else not isinstance(host.link(path), Missing) for place, path in enumerate(_RUNNING)]
    if True not in seen:
        return TunedState(profile=off, sysctls={})
    main = _main(host)
    found = _Profiles(host, main.get("profile_dirs", ""))
    for name in active.split():
        found.load(name)
    return TunedState(
        profile=" ".join(active.split()),
        sysctls=found.sysctls(" ".join(active.split())),
        others=tuple(found.others()),
        unread=found.unread,
        reapply=main.get("reapply_sysctl", "1").lower() not in ("0", "false", "no", "off"),
    )


def _main(host: Host) -> dict[str, str]:
    text = host.text(MAIN_CONF)
    return {} if isinstance(text, Missing) else {option.name: option.value for option in parse_ini(text)}


class _Profiles:
    """Profiles laid over each other in tuned's order: what a profile includes comes before it."""

    def __init__(self, host: Host, dirs: str) -> None:
        listed = [place.strip() for place in dirs.replace(";", ",").split(",") if place.strip().startswith("/")]
        self._host = host
        self._dirs = (*reversed(listed), *_PROFILE_DIRS)
        self._seen: set[str] = set()
        self._sections: dict[str, dict[str, tuple[str, str]]] = {}
        self.unread: Missing | None = None

    def load(self, name: str) -> None:
        name = name.removeprefix("-")  # "-name": no error if there is no such profile
        if "$" in name and self.unread is None:
            self.unread = Missing(Why.UNPARSED, ACTIVE, f"tuned computes which profile is included: {name[:60]}")
        if not name or "/" in name or "$" in name or len(self._seen) > 50:
            return
        path, text = self._find(name)
        if isinstance(text, Missing):
            self.unread = text if self.unread is None else self.unread
            return
        if path in self._seen:
            return
        self._seen.add(path)
        options = tuple(parse_ini(text))
        for option in options:
            if option.section == "main" and option.name == "include":
                for other in option.value.replace(";", ",").split(","):
                    self.load(other.strip())
        self._lay(path, options)

    def _lay(self, path: str, options: tuple[ProfileOption, ...]) -> None:
        """Options over those of included profiles (tuned, profiles/merger.py)."""
        for option in options:
            if option.name == "replace" and option.value.lower() in ("1", "true"):
                self._sections.pop(option.section, None)
        for option in options:
            if option.name == "drop":
                for other in option.value.replace(";", ",").split(","):
                    self._sections.get(option.section, {}).pop(other.strip(), None)
        for option in options:
            self._sections.setdefault(option.section, {})[option.name] = (option.value, f"{path}:{option.line}")

    def _find(self, name: str) -> tuple[str, Fact[str]]:
        text: Fact[str] = Missing(Why.ABSENT, f"/usr/lib/tuned/profiles/{name}/tuned.conf", "no such tuned profile")
        for directory in self._dirs:
            path = f"{directory}/{name}/tuned.conf"
            found = self._host.text(path)
            if not isinstance(found, Missing):
                return path, found
            if not absent_or_unrecorded(found):
                return path, found
            text = found if found.why is Why.NOT_RECORDED else text
        return "", text

    def active(self) -> Iterator[tuple[str, str, dict[str, tuple[str, str]], bool | None]]:
        """Sections that are switched on: name, plug-in, options, and whether they are for this machine (None: could not tell)."""
        for section, options in self._sections.items():
            if options.get("enabled", ("1", ""))[0].lower() in ("0", "false", "no"):
                continue
            if (here := self._is_for_this_machine(options)) is not False:
                yield section, options.get("type", (section, ""))[0], options, here

    def others(self) -> Iterator[tuple[str, str, str]]:
        for _, plugin, options, _ in self.active():
            for name, (value, where) in options.items():
                if (
                    plugin in ("vm", "cpu", "disk", "sysfs", "bootloader")
                    and name not in _NOT_SYSCTLS
                    and name not in _VM_OPTIONS
                ):
                    yield f"{plugin}.{name}", value, where

    def sysctls(self, profile: str) -> dict[str, Fact[Assignment]]:
        found: dict[str, Fact[Assignment]] = {}
        for _, plugin, options, here in self.active():
            if plugin not in ("sysctl", "vm"):
                continue
            for name, (value, where) in options.items():
                source = f"tuned profile {profile} ({where})"
                if plugin == "vm" and name in _VM_OPTIONS:
                    found[f"vm/{name}"] = _assignment(value, source, here)
                elif plugin == "sysctl" and name not in _NOT_SYSCTLS:
                    found[name.replace(".", "/")] = _assignment(value, source, here)
        return found

    def _is_for_this_machine(self, options: dict[str, tuple[str, str]]) -> bool | None:
        """Sections may be for some machines only (throughput-performance has one for ThunderX); None: could not tell."""
        verdicts: list[bool | None] = []
        for name, look in (("uname_regex", self._uname), ("cpuinfo_regex", self._cpuinfo)):
            if name in options and False not in verdicts:
                verdicts.append(holds(self._expanded(options[name][0]), look()))
        return False if False in verdicts else None if None in verdicts else True

    def _expanded(self, text: str) -> str:
        for name, (value, _) in self._sections.get("variables", {}).items():
            text = text.replace(f"${{{name}}}", value)
        return text

    def _uname(self) -> str:
        answer = self._host.ask(queries.UNAME)
        if not isinstance(answer, dict):
            return ""
        return f"Linux {answer.get('nodename')} {answer.get('release')} {answer.get('machine')}"

    def _cpuinfo(self) -> str:
        text = self._host.text("/proc/cpuinfo")
        return "" if isinstance(text, Missing) else text[:4096]


OURS = "torchtune-sys"
_PREFERRED = ("throughput-performance", "accelerator-performance", "balanced")
_WRITTEN = ("sysctl", "vm", "cpu", "disk", "sysfs", "bootloader")


def base(host: Host, include: str = "") -> TunedProfile:
    """Return what a profile of ours includes: ``include`` if named, else the active profiles, else the distribution's for throughput."""
    places = ("/usr/lib/tuned/profiles", "/etc/tuned/profiles")
    newer = host.exists(places[0]) is True
    path = f"{places[1] if newer else '/etc/tuned'}/{OURS}/tuned.conf"
    now = read(host).profile
    active = now.split() if isinstance(now, str) else []
    main = _main(host).get("profile_dirs", "")
    text = host.text(path) if OURS in active else ""
    ours = tuple(parse_ini(text)) if isinstance(text, str) else ()
    inner = [name for o in ours if (o.section, o.name) == ("main", "include") for name in o.value.replace(";", ",").split(",")]
    names = [include] if include else [name.strip() for name in [*inner, *(name for name in active if name != OURS)]]
    names = names or [next((name for name in _PREFERRED if _is_installed(host, name)), _PREFERRED[0])]
    found = _Profiles(host, main)
    for name in names:
        found.load(name)
    return TunedProfile(
        path=path,
        include=tuple(dict.fromkeys(names)),
        is_active=bool(active) and not include,
        options=tuple(
            TunedOption(option=f"{plugin}.{name}", value=value, source=where, section=section)
            for section, plugin, options, _ in found.active()
            for name, (value, where) in options.items()
            if plugin in _WRITTEN and name not in _NOT_SYSCTLS
        ),
        own=tuple(
            TunedOption(option=option.name, value=option.value, source=f"{path}:{option.line}", section=option.section)
            for option in ours
            if option.section != "main"
        ),
        unread=found.unread,
    )


def _is_installed(host: Host, name: str) -> bool:
    return any(host.exists(f"{place}/{name}/tuned.conf") is True for place in _PROFILE_DIRS)


def holds(pattern: str, text: str) -> bool | None:
    r"""Return whether a pattern is found; None if that is unknown: nothing to look at, or a pattern that might take for ever.

    >>> holds("aarch64", "Linux n1 6.8.0 x86_64"), holds(r"CPU part\s+:\s+(0x0?516)", "CPU part : 0x516"), holds("(a+)+b", "aaa")
    (False, True, None)
    """
    import re

    if not text or "$" in pattern or re.search(r"\)[*+{]", pattern):
        return None
    try:
        return re.search(pattern, text, re.MULTILINE) is not None
    except (re.error, RecursionError, OverflowError):
        return None


def _assignment(value: str, source: str, here: bool | None) -> Fact[Assignment]:
    plain = " ".join(value.strip("\"'").split())
    if here is None:
        return Missing(Why.UNPARSED, source, "the section is for some machines only, and whether for this one was not seen")
    if "${" in plain or plain.endswith("%"):  # a share of the memory, in bytes
        return Missing(Why.UNPARSED, source, f"tuned computes the value: {plain[:60]}")
    return Assignment(value=plain, source=source)
