"""Kernel settings that a command sets once the host is up: enabled units, /etc/rc.local, cron's ``@reboot``, and what cloud-init does at each boot.

They run after the files of sysctl.d and tmpfiles.d were read, and so have the last word. Units are read that a link below /etc/systemd/system
enables, wherever they lie, with their drop-ins; and what programs that set a governor or values below /sys at boot are configured to.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import chain, islice

from torchtune_sys.host.base import Host
from torchtune_sys.model.plan_context import BootSetting
from torchtune_sys.model.values import Missing
from torchtune_sys.probes.drop_ins import files_by_name, first_text
from torchtune_sys.probes.sysctl.files import SYSCTL_CONF, key_path, parse_lines

_UNITS = "/etc/systemd/system"
_FOLDERS = (_UNITS, "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
"""Of the folders of systemd.unit(5) those that are there at the next boot."""
_CRON = ("/etc/crontab", "/var/spool/cron/crontabs/root", "/var/spool/cron/root")
_CLOUD, _PER_BOOT = "/etc/cloud/cloud.cfg.d", "/var/lib/cloud/scripts/per-boot"
_ENDS = (";", "&&", "||", "|", "&")
_MOST = 200
"""Units, and drop-ins of them, that are read at most."""
_WORDS, _LOADS = 2000, 16
"""Of a command line, which is searched from each sysctl on; and how often one unit or script has files loaded, each of 4 MiB at most."""


def probe(host: Host) -> tuple[BootSetting, ...]:
    found: list[BootSetting] = []
    units = dict(_units(host))
    for unit, text in units.items():
        found += _settings(host, _started(text.split("\n")), unit, unit)
    drop_ins = (files_by_name(host, (f"{folder}/{unit}.d" for folder in _FOLDERS)).values() for unit in units)
    for place in islice(chain.from_iterable(drop_ins), _MOST):
        found += _settings(host, _started(_lines(host, place)), place, "", is_numbered=True)
    found += _configured(host, units)
    for script in _scripts(host):
        found += _settings(host, _lines(host, script), script, "")
    for place in files_by_name(host, (_CLOUD,), ".cfg").values():
        found += _settings(host, bootcmd(_lines(host, place)), f"{place} (bootcmd)", "")
    for place in (*_CRON, *(f"/etc/cron.d/{name}" for name in _names(host, "/etc/cron.d"))):
        table = host.text(place)
        lines = [] if isinstance(table, Missing) else [line for line in table.splitlines() if line.lstrip().startswith("@reboot")]
        found += _settings(host, lines, place, "")
    return tuple(found)


def _scripts(host: Host) -> Iterator[str]:
    """Yield the scripts that run at boot; systemd and cloud-init leave out one that is not executable (systemd-rc-local-generator(8))."""
    for path in ("/etc/rc.local", *(f"{_PER_BOOT}/{name}" for name in _names(host, _PER_BOOT))):
        seen = host.stat(path)
        if (
            isinstance(seen, Missing) or not seen.device or seen.mode & 0o111
        ):  # a recording that holds the text alone tells no mode
            yield path


def _lines(host: Host, path: str) -> list[str]:
    text = host.text(path)
    return [] if isinstance(text, Missing) else text.split("\n")


def bootcmd(lines: Iterable[str]) -> Iterator[str]:
    r"""Yield the commands of cloud-init's module bootcmd, which runs at each boot, where runcmd runs once.

    >>> list(bootcmd(["#cloud-config", "bootcmd:", " - [sysctl, -w, vm.swappiness=60]", " - echo 1 > /x", "runcmd:", " - [ls]"]))
    [' -  sysctl  -w  vm.swappiness=60 ', ' - echo 1 > /x']
    """
    inside = False
    for line in lines:
        if line[:1] not in ("", " ", "-", "#"):
            inside = line.startswith("bootcmd:")
        elif inside:
            yield line.translate(_YAML) if line.lstrip(" -").startswith("[") else line


_YAML = dict.fromkeys(map(ord, "[],"), " ")


def _names(host: Host, folder: str) -> tuple[str, ...]:
    names = host.names(folder)
    return () if isinstance(names, Missing) else tuple(names)


def _units(host: Host) -> Iterator[tuple[str, str]]:
    """Yield the units that something wants at boot, by the file of the first folder that has one."""
    wanted = {
        name
        for folder in _names(host, _UNITS)
        if folder.endswith((".wants", ".requires"))
        for name in _names(host, f"{_UNITS}/{folder}")
        if name.endswith(".service")
    }
    for unit in sorted(wanted)[:_MOST]:
        # what is not there, or is masked (a link to /dev/null), starts nothing
        name = unit if "@" not in unit else f"{unit.partition('@')[0]}@.service"
        text = first_text(host, [f"{folder}/{name}" for folder in _FOLDERS])
        yield unit, "" if isinstance(text, Missing) else text


def _started(lines: list[str]) -> list[str]:
    """Return what each line of a unit starts; nothing of one that comes before the files of sysctl.d are read: those then win."""
    if any(line.startswith("Before=") and "systemd-sysctl.service" in line for line in lines):
        return []
    return [line.partition("=")[2] if line.strip().startswith("ExecStart") else "" for line in lines]


_KEPT = (
    ("cpupower.service", "/etc/default/cpupower", "governor", "scaling_governor"),
    ("cpupower.service", "/etc/cpupower-service.conf", "GOVERNOR", "scaling_governor"),
    ("cpupower.service", "/etc/sysconfig/cpupower", "CPUPOWER_START_OPTS", "scaling_governor"),
    ("tlp.service", "/etc/tlp.conf", "CPU_SCALING_GOVERNOR_ON_AC", "scaling_governor"),
    ("tlp.service", "/etc/tlp.conf", "CPU_ENERGY_PERF_POLICY_ON_AC", "energy_performance_preference"),
)
"""Unit, its configuration, the key, and what it sets of each CPU. Sources: cpupower.service of Arch, the kernel (since 6.16) and Fedora; TLP's settings."""
_SYSFS = "/etc/sysfs.conf"
"""Of Debian's sysfsutils; ``attribute = value`` below /sys."""


def _configured(host: Host, units: Container[str]) -> Iterator[BootSetting]:
    for unit, place, key, leaf in _KEPT:
        for number, name, value in _assigned(host, place) if unit in units else ():
            if name == key:
                words = value.replace("--governor", "-g").replace("=", " ").split()
                value = words[words.index("-g") + 1] if "-g" in words[:-1] else value
                path = f"/sys/devices/system/cpu/cpufreq/policy*/{leaf}"
                yield BootSetting(path=path, value=value, source=f"{place}:{number}")
    for number, name, value in _assigned(host, _SYSFS):
        if " " not in name:  # as in: mode ATTRIBUTE = 0660
            yield BootSetting(path=f"/sys/{name}", value=value, source=f"{_SYSFS}:{number}")


def _assigned(host: Host, place: str) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(_lines(host, place), 1):
        name, sign, value = line.strip().partition("=")
        if sign and not name.startswith("#"):
            yield number, name.strip(), value.strip().strip("'\"")


def _settings(host: Host, commands: Iterable[str], place: str, unit: str, *, is_numbered: bool = False) -> list[BootSetting]:
    """``is_numbered``: the commands are the lines of ``place``, one each."""
    found = []
    loads = 0
    for number, command in enumerate(commands, 1):
        source = f"{place}:{number}" if is_numbered else place
        if command.lstrip().startswith("#"):
            continue
        for path, value, loaded in assignments(command):
            if path:
                found.append(BootSetting(path=path, value=value, source=source, unit=unit))
            elif loads < _LOADS:
                loads += 1
                text = host.text(loaded)
                lines = [] if isinstance(text, Missing) else parse_lines(text, loaded)
                found += [
                    BootSetting(
                        path=f"/proc/sys/{line.path}",
                        value=" ".join(line.value.split()),
                        source=f"{source} (loads {loaded}, line {line.number})",
                        unit=unit,
                    )
                    for line in lines
                    if line.value is not None and not line.is_pattern
                ]
    return found


def assignments(command: str) -> Iterator[tuple[str, str, str]]:
    """Yield what a command line sets, as (path, value, ""), and the files that it loads, as ("", "", file).

    >>> list(assignments("/sbin/sysctl -q -w vm.swappiness=60 net.core.somaxconn=128"))
    [('/proc/sys/vm/swappiness', '60', ''), ('/proc/sys/net/core/somaxconn', '128', '')]
    >>> list(assignments("/usr/sbin/sysctl -p")), list(assignments("sysctl -p /etc/my.conf; true"))
    ([('', '', '/etc/sysctl.conf')], [('', '', '/etc/my.conf')])
    >>> list(assignments("/bin/sh -c 'echo never > /sys/kernel/mm/transparent_hugepage/enabled'"))
    [('/sys/kernel/mm/transparent_hugepage/enabled', 'never', '')]
    >>> list(assignments('sh -c "echo never | tee /sys/kernel/mm/transparent_hugepage/enabled >/dev/null"'))
    [('/sys/kernel/mm/transparent_hugepage/enabled', 'never', '')]
    """
    plain = command.replace("'", " ").replace('"', " ").replace(">", " > ").replace(";", " ; ").replace("|", " | ")
    words = plain.split()[:_WORDS]
    for place, word in enumerate(words):
        if word.rpartition("/")[2] == "sysctl":
            yield from _of_sysctl(_until_end(words[place + 1 :]))
        elif word in (">", "tee") and place + 1 < len(words) and words[place + 1].startswith(("/proc/sys/", "/sys/")):
            settings = _echoed(words[:place])
            if settings:
                yield words[place + 1], settings, ""


def _until_end(words: list[str]) -> list[str]:
    end = next((place for place, word in enumerate(words) if word in _ENDS or word == ">"), len(words))
    return words[:end]


def _of_sysctl(words: list[str]) -> Iterator[tuple[str, str, str]]:
    loads = any(word.startswith(("-p", "--load")) for word in words)
    files = [word.partition("=")[2] for word in words if word.startswith("--load=")]
    files += [word for word in words if loads and not word.startswith("-")]
    if loads:
        yield from (("", "", file) for file in files or [SYSCTL_CONF])
    elif "--system" in words:
        yield "", "", SYSCTL_CONF  # which it reads last
    else:
        for word in words:
            key, sign, value = word.partition("=")
            if sign and not key.startswith("-"):
                yield f"/proc/sys/{key_path(key)}", value, ""


def _echoed(words: list[str]) -> str:
    """Return what the last echo or printf before it says."""
    starts = [place for place, word in enumerate(words) if word.rpartition("/")[2] in ("echo", "printf")]
    return " ".join(word for word in words[starts[-1] + 1 :] if word not in ("|", "-n", "-e")) if starts else ""
