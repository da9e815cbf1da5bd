"""The winners that we predict are those of the real programs: systemd-sysctl and procps' sysctl --system.

Each layout is laid over the machine's own files in a private mount namespace, with throw-away files in place of /proc/sys.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model.values import Missing
from torchtune_sys.probes.sysctl.files import Procps, Systemd, readings

SANDBOX = Path(__file__).with_name("sysctl_sandbox.sh")
KEYS = (
    "vm/swappiness",
    "vm/dirty_ratio",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/conf/default/rp_filter",
    "net/ipv4/conf/eth0/rp_filter",
    "net/ipv4/conf/eth0.100/rp_filter",
    "net/ipv4/conf/eth1/rp_filter",
)
Layout = dict[str, str]
"""Path → text, or ``-> target`` for a link."""

LAYOUTS: dict[str, Layout] = {
    "the last file by name wins, whatever its directory": {
        "/etc/sysctl.d/10-a.conf": "vm.swappiness=1\n",
        "/usr/lib/sysctl.d/20-b.conf": "vm.swappiness=2\n",
    },
    "a file of the same name is masked by the higher directory": {
        "/etc/sysctl.d/50-x.conf": "vm.dirty_ratio=1\n",
        "/run/sysctl.d/50-x.conf": "vm.swappiness=2\n",
        "/usr/local/lib/sysctl.d/50-x.conf": "vm.swappiness=3\n",
        "/usr/lib/sysctl.d/50-x.conf": "vm.swappiness=4\n",
    },
    "run beats usr": {
        "/run/sysctl.d/50-x.conf": "vm.swappiness=2\n",
        "/usr/local/lib/sysctl.d/50-x.conf": "vm.swappiness=3\n",
        "/usr/lib/sysctl.d/50-x.conf": "vm.swappiness=4\n",
    },
    "etc before run for one name": {
        "/etc/sysctl.d/50-x.conf": "vm.swappiness=1\n",
        "/run/sysctl.d/50-x.conf": "vm.swappiness=2\n",
    },
    "a link to /dev/null masks": {
        "/etc/sysctl.d/60-vendor.conf": "-> /dev/null",
        "/usr/lib/sysctl.d/60-vendor.conf": "vm.swappiness=6\n",
        "/usr/lib/sysctl.d/10-other.conf": "vm.swappiness=1\n",
    },
    "an empty file masks": {
        "/etc/sysctl.d/60-vendor.conf": "",
        "/usr/lib/sysctl.d/60-vendor.conf": "vm.swappiness=6\n",
    },
    "only .conf counts": {
        "/etc/sysctl.d/10-a.conf": "vm.swappiness=1\n",
        "/etc/sysctl.d/99-z.conf.bak": "vm.swappiness=9\n",
        "/etc/sysctl.d/README": "vm.swappiness=8\n",
    },
    "procps reads sysctl.conf last, systemd not at all": {
        "/etc/sysctl.conf": "vm.swappiness=5\n",
        "/etc/sysctl.d/zz-last.conf": "vm.swappiness=7\n",
    },
    "the distribution's link gives sysctl.conf the place 99": {
        "/etc/sysctl.conf": "vm.swappiness=5\nvm.dirty_ratio=5\n",
        "/etc/sysctl.d/99-sysctl.conf": "-> ../sysctl.conf",
        "/etc/sysctl.d/99-zz.conf": "vm.swappiness=7\n",
        "/etc/sysctl.d/60-site.conf": "vm.dirty_ratio=6\n",
    },
    "separators, comments and blanks": {
        "/etc/sysctl.d/10.conf": "# vm.swappiness=9\n ; vm.swappiness=9\n\n  vm/swappiness   =  3  \n vm.swappiness 8\n",
        "/etc/sysctl.d/20.conf": "net.ipv4.conf.eth0/100.rp_filter=1\nnet/ipv4/conf/eth1/rp_filter=2\n",
        "/etc/sysctl.d/30.conf": "-vm.dirty_ratio = 4\n",
    },
    "a dot in an interface name needs the other separator": {
        "/etc/sysctl.d/10.conf": "net.ipv4.conf.eth0.100.rp_filter=1\nnet/ipv4/conf/eth0.100/rp_filter=2\n",
    },
    "a key of its own beats every pattern": {
        "/etc/sysctl.d/10.conf": "net.ipv4.conf.eth0.rp_filter=1\n",
        "/etc/sysctl.d/20.conf": "net.ipv4.conf.*.rp_filter=2\n",
    },
    "an excluded key is spared by patterns": {
        "/etc/sysctl.d/10.conf": "net.ipv4.conf.*.rp_filter=2\n-net.ipv4.conf.all.rp_filter\n",
        "/etc/sysctl.d/20.conf": "net.ipv4.conf.default.rp_filter=1\n",
    },
    "an exclusion after an assignment": {
        "/etc/sysctl.d/10.conf": "vm.swappiness=3\nnet.ipv4.conf.eth0.rp_filter=1\n",
        "/etc/sysctl.d/20.conf": "-vm.swappiness\n-net.ipv4.conf.eth0.rp_filter\n",
    },
    "an assignment after an exclusion": {
        "/etc/sysctl.d/10.conf": "-net.ipv4.conf.eth0.rp_filter\n",
        "/etc/sysctl.d/20.conf": "net.ipv4.conf.eth0.rp_filter=2\n",
    },
    "the later of two patterns wins": {
        "/etc/sysctl.d/10.conf": "net.ipv4.conf.*.rp_filter=1\n",
        "/etc/sysctl.d/20.conf": "net.ipv4.conf.eth?.rp_filter=2\n",
    },
    "a repeated pattern with an equal value": {
        "/etc/sysctl.d/10.conf": "net.ipv4.conf.*.rp_filter=1\n",
        "/etc/sysctl.d/20.conf": "net.ipv4.conf.eth[01].rp_filter=2\n",
        "/etc/sysctl.d/30.conf": "net.ipv4.conf.*.rp_filter=1\n",
    },
    "a repeated pattern with another value": {
        "/etc/sysctl.d/10.conf": "net.ipv4.conf.*.rp_filter=1\n",
        "/etc/sysctl.d/20.conf": "net.ipv4.conf.eth[01].rp_filter=2\n",
        "/etc/sysctl.d/30.conf": "net.ipv4.conf.*.rp_filter=3\n",
    },
    "a pattern does not cross a separator": {
        "/etc/sysctl.d/10.conf": "net.*.rp_filter=1\nvm.*ness=4\n",
    },
    "an excluding pattern": {
        "/etc/sysctl.d/10.conf": "net.ipv4.conf.*.rp_filter=1\n-net.ipv4.conf.eth*.rp_filter\n",
    },
    "a dangling link": {
        "/etc/sysctl.d/50-x.conf": "-> /nowhere/x.conf",
        "/usr/lib/sysctl.d/50-x.conf": "vm.swappiness=4\n",
        "/usr/lib/sysctl.d/40-y.conf": "vm.swappiness=1\nvm.dirty_ratio=1\n",
    },
    "value with an equals sign and a trailing remark": {
        "/etc/sysctl.d/10.conf": "vm.swappiness = 1=2\nvm.dirty_ratio = 3 # three\n",
    },
}


def predicted(layout: Layout, tool: str) -> dict[str, str]:
    files = {path: text for path, text in layout.items() if not text.startswith("-> ")}
    links = {path: text[3:] for path, text in layout.items() if text.startswith("-> ")}
    links = {path: "/etc/sysctl.conf" if target == "../sysctl.conf" else target for path, target in links.items()}
    systemd, procps = readings(RecordedHost({"files": files, "links": links}, "test"))
    winner = Systemd(systemd).winner if tool == "systemd" else Procps(procps).winner
    return {key: "" if isinstance(line := winner(key), Missing) else line.value or "" for key in KEYS}


def actual(layout: Layout, tool: str, tree: Path) -> dict[str, str]:
    for key in KEYS:
        place = tree / "proc-sys" / key
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("")
    for path, text in {"/etc/sysctl.conf": "", **layout}.items():
        place = tree / path[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            place.symlink_to(text[3:])
        else:
            place.write_text(text)
    command = [systemd_sysctl()] if tool == "systemd" else ["sysctl", "--system"]
    inside = ["unshare", "--mount", "--propagation", "private", "sh", str(SANDBOX), str(tree), *command]
    done = subprocess.run(inside, capture_output=True, text=True, timeout=30)
    if done.returncode == 77:
        pytest.skip("this machine lacks a directory that the sandbox would lay files over")
    assert done.returncode == 0, done.stderr
    return {key: (tree / "proc-sys" / key).read_text().strip() for key in KEYS}


def systemd_sysctl() -> str:
    return next((path for path in ("/usr/lib/systemd/systemd-sysctl", "/lib/systemd/systemd-sysctl") if os.path.exists(path)), "")


def may_unshare() -> bool:
    if not shutil.which("unshare"):
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, timeout=10).returncode == 0


PROCPS_SINCE_2025 = {"an excluding pattern"}
"""Layouts that releases of procps-ng from 2025 on treat as systemd does, 4.0.2 to 4.0.4 do not."""


def old_procps() -> bool:
    done = subprocess.run(["sysctl", "--version"], capture_output=True, text=True, timeout=10)
    return done.stdout.strip().rpartition(" ")[2] in {"4.0.2", "4.0.3", "4.0.4"}


@pytest.mark.sampled(12)
@pytest.mark.skipif(not may_unshare(), reason="no permission for a mount namespace (needs root)")
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("tool", ["systemd", "procps"])
def test_prediction_agrees_with_the_program(tool: str, name: str, tmp_path: Path) -> None:
    if not (systemd_sysctl() if tool == "systemd" else shutil.which("sysctl")):
        pytest.skip(f"the program of {tool} is not installed")
    if tool == "procps" and name in PROCPS_SINCE_2025 and not old_procps():
        pytest.skip("this release of procps matches patterns after '-'")
    layout = LAYOUTS[name]
    assert predicted(layout, tool) == actual(layout, tool, tmp_path)
