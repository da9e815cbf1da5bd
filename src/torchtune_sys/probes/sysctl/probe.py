"""Kernel settings that matter to training: the running value, and every place that may set it."""

from __future__ import annotations

from torchtune_sys.formats.sysctl_keys import KEYS, dotted, interface_keys
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.facts.sysctl import Assignment, Setting, SysctlFacts
from torchtune_sys.model.values import Missing, Why, fact, known, need
from torchtune_sys.probes.plan_context import tuned
from torchtune_sys.probes.sysctl import files
from torchtune_sys.probes.sysctl.files import Procps, Reading, SettingLine, Systemd


def probe(host: Host, intent: Workload) -> SysctlFacts:
    systemd_reading, procps_reading = files.readings(host)
    systemd, procps = Systemd(systemd_reading), Procps(procps_reading)
    profile = tuned.read(host)
    boot_arguments = parse_cmdline(known_text(host.text("/proc/cmdline")))
    settings = {}
    for path in (*KEYS, *_of_interfaces(host)):
        configured = files.assignment(host, systemd.winner(path))
        chosen = _tuned(profile, path)
        argument = boot_arguments.get(path, Missing(Why.ABSENT, "/proc/cmdline", "no such boot argument"))
        again = _reapplied(host, procps_reading, path) if profile.reapply else None
        settings[dotted(path)] = Setting(
            key=dotted(path),
            running=running(host, path),
            assignments=_assignments(host, systemd_reading, path),
            systemd=configured,
            procps=files.assignment(host, procps.winner(path)),
            tuned=chosen,
            cmdline=argument,
            boot=at_boot(argument, configured, chosen, again),
        )
    return SysctlFacts(settings=settings, tuned_profile=profile.profile)


def _of_interfaces(host: Host) -> tuple[str, ...]:
    names = host.names("/proc/sys/net/ipv4/conf")
    return () if isinstance(names, Missing) else interface_keys(names)


def known_text(text: Fact[str]) -> str:
    return known(text, "")


@fact
def running(host: Host, path: str) -> Fact[str]:
    return " ".join(need(host.word(f"/proc/sys/{path}")).split())


def parse_cmdline(text: str) -> dict[str, Fact[Assignment]]:
    """Parse ``sysctl.<key>=`` boot arguments, by path; the kernel applies them before any file is read.

    >>> parse_cmdline("quiet sysctl.vm.swappiness=10")["vm/swappiness"].value
    '10'
    """
    found: dict[str, Fact[Assignment]] = {}
    for word in text.split():
        if word.startswith(("sysctl.", "sysctl/")) and "=" in word:
            key, _, value = word[7:].partition("=")
            found[files.key_path(key)] = Assignment(value=value.strip('"'), source=f"kernel command line: {word}")
    return found


def at_boot(
    argument: Fact[Assignment], configured: Fact[Assignment], chosen: Fact[Assignment], again: Assignment | None
) -> Fact[Assignment]:
    """Return which assignment holds once the host is up (see ``Setting.boot``)."""
    base = argument if isinstance(configured, Missing) and configured.why is Why.ABSENT else configured
    if isinstance(chosen, Missing):
        return base if chosen.why is Why.ABSENT else chosen
    if again is not None:
        return again
    if chosen.value[:1] not in "<>" or isinstance(base, Missing):
        return chosen
    return chosen if _moves(chosen.value, base.value) else base


def _moves(directed: str, value: str) -> bool:
    """tuned's ``>n`` only raises and ``<n`` only lowers a value."""
    try:
        wanted, present = int(directed[1:]), int(value)
    except ValueError:
        return True
    return wanted > present if directed[0] == ">" else wanted < present


def _tuned(profile: tuned.TunedState, path: str) -> Fact[Assignment]:
    if path in profile.sysctls:
        return profile.sysctls[path]
    if profile.unread is not None:
        return profile.unread
    return Missing(Why.ABSENT, "tuned", "no active tuned profile sets it")


def _reapplied(host: Host, reading: Reading, path: str) -> Assignment | None:
    """tuned's own pass over the files knows neither patterns nor a leading "-", nor the vendor's directories."""
    found = None
    for line in reading.lines:
        if line.path == path and line.value is not None and line.file.startswith(("/etc/", "/run/")):
            found = line
    return known(None if found is None else files.assignment(host, found), None)


def _assignments(host: Host, reading: Reading, path: str) -> tuple[Assignment, ...]:
    def touches(line: SettingLine) -> bool:
        return line.path == path or (line.is_pattern and files.matches(line.path, path))

    made = (files.assignment(host, line) for line in reading.lines if line.value is not None and touches(line))
    return tuple(item for item in made if not isinstance(item, Missing))
