"""What sets a value again at each boot: commands of units wherever they lie, scripts, cloud-init, and programs that are configured to."""

from __future__ import annotations

from typing import Any

import pytest

from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.probes.plan_context import boot_commands

WANTS = "/etc/systemd/system/multi-user.target.wants"
VENDOR = "/usr/lib/systemd/system"
COMMAND = "[Service]\nExecStart=/usr/sbin/sysctl -w vm.swappiness=60\nExecStop=/usr/sbin/sysctl -w vm.swappiness=10\n"
PLAIN = "[Service]\nExecStart=/bin/true\n"
SWAP = "/proc/sys/vm/swappiness"
GOVERNOR = "/sys/devices/system/cpu/cpufreq/policy*/scaling_governor"


def told(files: dict[str, str], **sections: Any) -> list[tuple[str, str, str, str]]:
    found = boot_commands.probe(RecordedHost({"files": files, **sections}, "made"))
    return [(item.path, item.value, item.source, item.unit) for item in found]


def test_a_unit_of_a_vendor_that_a_link_enables_is_read_and_one_of_run_is_not() -> None:
    links = {
        f"{WANTS}/tune.service": f"{VENDOR}/tune.service",
        "/run/systemd/system/x.wants/once.service": "/run/systemd/system/once.service",
    }
    files = {f"{VENDOR}/tune.service": COMMAND, "/run/systemd/system/once.service": COMMAND, f"{VENDOR}/off.service": COMMAND}
    assert told(files, links=links) == [(SWAP, "60", "tune.service", "tune.service")]
    masked = {"/etc/systemd/system/tune.service": ""}
    assert told({**files, **masked}, links=links) == [], "the first folder's file hides the vendor's"
    early = {f"{VENDOR}/tune.service": f"[Unit]\nBefore=sysinit.target systemd-sysctl.service\n{COMMAND}"}
    assert told(early, links=links) == [], "our file is read after it"


def test_what_a_drop_in_adds_to_an_enabled_unit_is_a_line_of_that_file() -> None:
    place = "/etc/systemd/system/tune.service.d/10-site.conf"
    files = {f"{VENDOR}/tune.service": PLAIN, place: "[Service]\nExecStartPost=/usr/sbin/sysctl -w vm.swappiness=60\n"}
    assert told(files, links={f"{WANTS}/tune.service": f"{VENDOR}/tune.service"}) == [(SWAP, "60", f"{place}:2", "")]
    assert told(files) == []


@pytest.mark.parametrize("path", ["/etc/rc.local", "/var/lib/cloud/scripts/per-boot/tune.sh"])
@pytest.mark.parametrize(("mode", "runs"), [(0o100644, False), (0o100755, True)])
def test_a_script_that_may_not_be_run_sets_nothing(path: str, mode: int, runs: bool) -> None:
    """systemd and cloud-init leave it out; it was said to win over our file."""
    stats = {path: {"mode": mode, "uid": 0, "gid": 0, "size": 40, "device": "8:1"}}
    found = told({path: "#!/bin/sh\nsysctl -w vm.swappiness=60\n"}, stats=stats)
    assert found == ([(SWAP, "60", path, "")] if runs else [])


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("bootcmd:\n - [sysctl, -w, vm.swappiness=60]\n", ["60"]),
        ("bootcmd:\n- sysctl -w vm.swappiness=50\n- echo 40 > /proc/sys/vm/swappiness\n", ["50", "40"]),
        ("runcmd:\n - [sysctl, -w, vm.swappiness=60]\nbootcmd: []\n", []),
        ("# bootcmd:\n# - sysctl -w vm.swappiness=60\n", []),
    ],
)
def test_of_cloud_init_only_what_runs_at_each_boot_counts(text: str, values: list[str]) -> None:
    place = "/etc/cloud/cloud.cfg.d/99-site.cfg"
    assert told({place: f"#cloud-config\n{text}"}) == [(SWAP, value, f"{place} (bootcmd)", "") for value in values]


@pytest.mark.parametrize(
    ("unit", "place", "text"),
    [
        ("cpupower", "/etc/default/cpupower", "governor='powersave'"),
        ("cpupower", "/etc/sysconfig/cpupower", 'CPUPOWER_START_OPTS="frequency-set --governor powersave"'),
        ("cpupower", "/etc/cpupower-service.conf", "GOVERNOR=powersave"),
        ("tlp", "/etc/tlp.conf", "CPU_SCALING_GOVERNOR_ON_AC=powersave"),
    ],
)
def test_the_configuration_of_what_sets_a_governor_is_named_where_it_runs(unit: str, place: str, text: str) -> None:
    files = {f"{VENDOR}/{unit}.service": PLAIN, place: f"# governor='ondemand'\n{text}\n"}
    links = {f"{WANTS}/{unit}.service": f"{VENDOR}/{unit}.service"}
    assert told(files, links=links) == [(GOVERNOR, "powersave", f"{place}:2", "")]
    assert told(files) == []


def test_a_line_of_sysfsutils_sets_a_value_below_sys() -> None:
    files = {"/etc/sysfs.conf": "# x\nkernel/mm/transparent_hugepage/enabled = never\nmode power/state = 0660\n"}
    assert told(files) == [("/sys/kernel/mm/transparent_hugepage/enabled", "never", "/etc/sysfs.conf:2", "")]
