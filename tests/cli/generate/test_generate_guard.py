"""A script is for the host that it was made for, and holds what apply would change without being asked for more."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_apply import MAPS, can_mount, staged

import warm
from conftest import HOSTS

MADE = "$TOOL generate script --select max-map-count-low -o /etc/tune.sh 2>/dev/null"
ANOTHER = {
    "memory": (r"s/[0-9]* MiB'$/9 MiB'/; s/here \* 16 < [0-9]* \* 15/here * 16 < 9 * 15/; s/here \* 15 > [0-9]* \* 16/here * 15 > 9 * 16/", "the memory is"),
    "CPUs": (r"s/here != [0-9]*))/here != 999))/", "the number of CPUs is"),
    "GPUs": (r"s/REPLY != [0-9]*))/REPLY != 16))/", "the number of NVIDIA GPUs is"),
    "system": (r"s/{here} != .* ]]/{here} != 'plan9 4' ]]/", "the operating system is"),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.skipif(not can_mount(), reason="needs root that may mount")
@pytest.mark.parametrize("name", ANOTHER)
def test_a_script_for_another_host_stops_unless_it_is_forced(name: str, tmp_path: Path) -> None:
    edit, words = ANOTHER[name]
    done = staged(
        f"""
        {MADE}; cp /etc/tune.sh /etc/other.sh; sed -i "{edit}" /etc/other.sh; cmp -s /etc/tune.sh /etc/other.sh && echo same
        bash /etc/other.sh --dry-run; echo "dry $?"
        bash /etc/other.sh; echo "stopped $?"; cat {MAPS}
        bash /etc/other.sh --force; echo "forced $?"; cat {MAPS}
        bash /etc/other.sh --undo; echo "undone $?"; cat {MAPS}
        bash /etc/tune.sh; echo "own $?"; cat {MAPS}
        """,
        tmp_path / "stage",
    )
    assert "same" not in done.stdout and words in done.stderr, done
    found = re.findall(r"^(dry|stopped|forced|undone|own) (\d+)|^(\d{4,})$", done.stdout, re.M)
    told = [first + second + third for first, second, third in found]
    assert told == ["dry0", "stopped1", "3000", "forced0", "65530", "undone0", "3000", "own0", "65530"], done


def said(*argv: str) -> str:
    host = str(HOSTS / "typical" / "dgx-h100.json")
    argv = (*warm.PROGRAM, *argv, "--from", host)
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def planned() -> list[dict[str, Any]]:
    found = json.loads(said("plan", "--format", "json"))["plan"]["changes"]
    assert isinstance(found, list)
    return found


def keys(*argv: str) -> set[str]:
    return set(re.findall(r"^([a-z][a-z0-9_.]*) = ", said("generate", "sysctl", *argv), re.M))


def test_what_needs_a_decision_is_left_out_unless_it_is_asked_for() -> None:
    by_safety = {safe: {item["key"] for item in planned() if (item["safety"] == "safe") is safe} for safe in (True, False)}
    named = keys("--unsafe")
    assert keys() == keys("--safe-only") == named & by_safety[True]
    assert named & by_safety[False] == {"kernel.numa_balancing"}, "ranks need not be bound"


def test_a_change_shows_the_value_of_its_own_setting() -> None:
    found = {item["key"]: (item["seen"], item["wanted"]) for item in planned()}
    assert found["vm.dirty_background_bytes"] == ("0", "4294967296") and found["vm.dirty_bytes"] == ("0", "34359738368")


GRUB = {"extends": "iommu-translates-gpu-traffic.fail.json", "files": {"/usr/sbin/update-grub": ""}}


@pytest.mark.parametrize(
    ("command", "host", "key"),
    [
        (("kernel-args",), GRUB, "kernel argument iommu"),
        (("script",), GRUB, "kernel argument iommu"),
        (("kernel-args",), {"extends": "nouveau-loaded.fail.json"}, "kernel argument modprobe.blacklist"),
        (("sysctl",), None, "kernel.numa_balancing"),
    ],
)
def test_what_is_left_out_for_want_of_a_decision_is_said(command: tuple[str, ...], host: Any, key: str, tmp_path: Path) -> None:
    """It was said that no change needs the file, that no argument is asked for, that the script does nothing."""
    for name in ("base-*.json", "healthy.json", "iommu-translates-gpu-traffic.fail.json", "nouveau-loaded.fail.json"):
        for recorded in HOSTS.glob(name):
            shutil.copy(recorded, tmp_path)
    place = tmp_path / "this-host.json"
    place.write_text(json.dumps(host)) if host else None
    words = [*warm.PROGRAM, "generate", *command, "--from", str(place if host else HOSTS / "typical/dgx-h100.json")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    asked = subprocess.run([*words, "--unsafe"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, asked.returncode) == (0, 0)
    assert f"left out, since it needs a decision (--unsafe includes it): {key}" in done.stderr
    assert not re.search("no kernel argument|nothing to write|does nothing", done.stderr)
    assert "left out, since" not in asked.stderr and asked.stdout != done.stdout
