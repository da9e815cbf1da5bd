"""Read what planning needs, once there is something to plan."""

from __future__ import annotations

from collections.abc import Iterable

from torchtune_sys.host.base import Host
from torchtune_sys.model.appliances import APPLIANCES, appliance
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.plan_context import LIMITS_FILE, OWNED, TOOLS, PlanContext, TunedOption, UnitFacts
from torchtune_sys.model.values import Missing, Why, fact, need
from torchtune_sys.probes.plan_context import (
    boot_commands,
    boot_entries,
    boot_loaders,
    device_rules,
    limit_files,
    tuned,
    writable,
)
from torchtune_sys.probes.system.os_release import read_os

_PROGRAM_DIRS = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
_DAEMONS = {"udevadm": "/run/udev/control", "systemctl": "/run/systemd/system"}
"""What is there while the daemon runs that the tool talks to (udevadm(8), sd_booted(3))."""


def probe(
    host: Host, paths: Iterable[str], files: Iterable[str], units: Iterable[str] = (), settings: Iterable[str] = ()
) -> PlanContext:
    """Read what planning needs. ``paths`` are the values below /sys that may be written (patterns included), ``files`` those that may be ours, ``units`` systemd's,
    ``settings`` the kernel settings below /proc/sys."""
    owner, way = _owner(host)
    wanted, files = sorted(set(paths)), sorted(set(files))
    boot_way, boot_way_first = boot_loaders.probe(host)
    return PlanContext(
        files={path: _file(host, path) for path in files},
        values={path: _values(host, path) for path in wanted},
        units={name: state for name in sorted(set(units)) if (state := _unit_state(host, name)) is not None},
        tools=tuple(tool for tool in TOOLS if _answers(host, tool)),
        owner=owner,
        way=way,
        image="rpm-ostree" if host.exists("/run/ostree-booted") is True else "",
        boot_entries=boot_entries.probe(host),
        boot_way=boot_way,
        boot_way_first=boot_way_first,
        grub_resets=boot_loaders.grub_resets(host),
        tuned=tuple(TunedOption(option=name, value=value, source=source) for name, value, source in tuned.read(host).others),
        boot_settings=(*device_rules.probe(host), *boot_commands.probe(host)),
        limit_lines=limit_files.probe(host) if LIMITS_FILE in files else (),
        limits_unread=limit_files.unread(host) if LIMITS_FILE in files else "",
        unwritable=_unwritable(host, [*settings, *wanted], files),
        device_names=_device_names(host, wanted),
    )


def _unwritable(host: Host, values: Iterable[str], files: Iterable[str]) -> dict[str, str]:
    there = [path for path in values if "*" not in path]
    owned = [path for path in files if path in OWNED or (path.startswith("/etc/systemd/") and path.endswith(".conf"))]
    found = {path: writable.reason(host, path) for path in (*there, *owned)}
    return {path: why for path, why in found.items() if why}


def _file(host: Host, path: str) -> Fact[str]:
    """Return the text of a file. A link is never replaced, and what it leads to is not ours."""
    leads_to = host.link(path)
    if isinstance(leads_to, Missing):
        return host.text(path)
    return Missing(Why.FAILED, path, f"is a symbolic link to {leads_to}")


def _answers(host: Host, tool: str) -> bool:
    """Whether a tool is installed, and not plainly talking to nobody: a chroot has udevadm, and no udevd that would listen."""
    if tool in _DAEMONS and host.exists(_DAEMONS[tool]) is False:
        return False
    return any(host.exists(f"{place}/{tool}") is True for place in _PROGRAM_DIRS)


def _owner(host: Host) -> tuple[str, str]:
    release = read_os(host)
    found = None if isinstance(release, Missing) else appliance(release.id)
    found = found or next((item for item in APPLIANCES if item.mark and host.exists(item.mark) is True), None)
    if found is not None and found.settings:
        return found.name, found.settings
    space = host.space("/etc")
    if not isinstance(space, Missing) and space.read_only:
        return "the image (/etc is read-only)", "change the image, or remount /etc writable if it is yours to change"
    return "", ""


def _unit_state(host: Host, unit: str) -> UnitFacts | None:
    """None where systemd cannot be asked (a recording, a root below a directory, another init)."""
    output = host.run(("systemctl", "show", "--property=UnitFileState,ActiveState", unit))
    if isinstance(output, Missing) or output.rc:
        return None
    found = dict(line.split("=", 1) for line in output.stdout.splitlines() if "=" in line)
    if not {"UnitFileState", "ActiveState"} <= set(found):
        return None
    enabled = found["UnitFileState"].startswith("enabled") or found["UnitFileState"] in ("static", "alias", "generated")
    return UnitFacts(enabled=enabled, active=found["ActiveState"] in ("active", "activating", "reloading"))


@fact
def _values(host: Host, path: str) -> Fact[dict[str, Fact[str]]]:
    if "*" not in path:
        value = host.word(path)
        absent = isinstance(value, Missing) and value.why is Why.ABSENT
        return value if isinstance(value, Missing) and absent else {path: value}
    before, _, rest = path.partition("*")
    directory, _, start = before.rpartition("/")
    names = need(host.names(directory))
    end, slash, leaf = rest.partition("/")
    found = {f"{directory}/{n}{slash}{leaf}" for n in names if n.startswith(start) and n.endswith(end)}
    read = {place: host.word(place) for place in sorted(found)}
    there = {place: value for place, value in read.items() if not (isinstance(value, Missing) and value.why is Why.ABSENT)}
    return there or Missing(Why.ABSENT, path, "nothing matches")


def _device_names(host: Host, paths: Iterable[str]) -> dict[str, str]:
    numbers = [path.split("/")[4] for path in paths if path.startswith("/sys/class/bdi/")]
    links = {number: host.link(f"/sys/dev/block/{number}") for number in numbers}
    return {number: link.rpartition("/")[2] for number, link in links.items() if not isinstance(link, Missing)}
