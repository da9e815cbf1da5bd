"""The tool on a machine whose defects are known: two NUMA nodes, a slow PCIe link, cgroup v2, bad settings.

One boot serves all tests. The guest runs ``check`` and ``snapshot`` itself (live), and its /proc and /sys are judged here
once more, as a recorded tree.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import guest

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return guest.boot(tmp_path_factory.mktemp("guest"))
    except guest.Unavailable as why:
        pytest.skip(f"no virtual machine here: {why}")


@pytest.fixture(scope="session")
def live(tree: Path) -> dict[str, Any]:
    """What ``check`` said inside the guest, by rule."""
    return {result["rule"]: result for result in _told(tree, "report")["results"]}


@pytest.fixture(scope="session")
def facts(tree: Path) -> dict[str, Any]:
    """What ``snapshot`` saw inside the guest."""
    found: dict[str, Any] = _told(tree, "snapshot")["facts"]
    return found


def _told(tree: Path, name: str) -> dict[str, Any]:
    with tarfile.open(tree) as archive:
        members = {member.name.removeprefix("./"): member for member in archive.getmembers()}
        texts = {}
        for suffix in ("json", "err"):
            file = archive.extractfile(members[f"{name}.{suffix}"])
            texts[suffix] = file.read() if file else b""
    assert texts["json"], texts["err"].decode("utf-8", "replace")
    found: dict[str, Any] = json.loads(texts["json"])
    return found


@pytest.fixture(scope="session")
def recorded(tree: Path) -> dict[str, Any]:
    """What ``check --from`` says here of the guest's /proc and /sys, by rule."""
    return {result["rule"]: result for result in _here(tree, "check")["results"]}


@pytest.fixture(scope="session")
def recorded_facts(tree: Path) -> dict[str, Any]:
    found: dict[str, Any] = _here(tree, "snapshot")["facts"]
    return found


def _here(tree: Path, command: str) -> dict[str, Any]:
    argv = (sys.executable, "-m", "torchtune_sys", command, "--from", str(tree), "--format", "json")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def seen(result: dict[str, Any]) -> str:
    return " ".join(item["seen"] for item in result["evidence"] if item["verdict"] == "fail")


# What QEMU was told (guest.py): nodes, their CPUs, the distances, and memory in MiB.
NODES = [(0, "0-1", [10, 21], 512), (1, "2-3", [21, 10], 1024)]


@pytest.mark.parametrize("source", ["facts", "recorded_facts"])
def test_numa_nodes(source: str, request: pytest.FixtureRequest) -> None:
    nodes = request.getfixturevalue(source)["numa"]["nodes"]
    assert [(node["id"], node["cpus"], node["distances"]) for node in nodes] == [node[:3] for node in NODES]
    for node, (_, _, _, mib) in zip(nodes, NODES, strict=True):
        assert 0.9 * mib < node["memory_bytes"] / (1 << 20) <= mib  # the kernel keeps some for itself


@pytest.mark.parametrize("source", ["facts", "recorded_facts"])
def test_slow_link_below_the_port_of_node_1(source: str, request: pytest.FixtureRequest) -> None:
    devices = {device["address"]: device for device in request.getfixturevalue(source)["pci"]["devices"]}
    (disk,) = (item for item in devices.values() if item["class"] == "0x010802" and item["parent"])
    port = devices[disk["parent"]]
    assert port["link"] == {"current_gts": 2.5, "max_gts": 16.0, "current_width": 1, "max_width": 16}
    assert (port["numa_node"], disk["numa_node"]) == (1, 1)
    assert disk["driver"] == "nvme"


@pytest.mark.parametrize("source", ["live", "recorded"])
def test_slow_link_is_found(source: str, request: pytest.FixtureRequest) -> None:
    result = request.getfixturevalue(source)["pcie-link-degraded"]
    assert result["verdict"] == "fail"
    (bad,) = (item for item in result["evidence"] if item["verdict"] == "fail")
    assert (bad["seen"], bad["wanted"]) == ("x1 at 2.5 GT/s", "x16 at 16 GT/s")


@pytest.mark.parametrize("source", ["live", "recorded"])
def test_bad_settings_are_found(source: str, request: pytest.FixtureRequest) -> None:
    results = request.getfixturevalue(source)
    assert results["swappiness-high"]["verdict"] == "fail"
    assert "100" in seen(results["swappiness-high"])
    assert results["thp-never"]["verdict"] == "fail"


@pytest.mark.parametrize("source", ["facts", "recorded_facts"])
def test_limits_of_the_cgroup_above(source: str, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue(source)
    assert found["cpu"]["quota"] == 1.5
    assert found["cpu"]["quota_source"] == "/sys/fs/cgroup/job/cpu.max"
    assert found["memory"]["cgroup_limit_bytes"] == 512 << 20


def test_storage_down_to_the_disks(facts: dict[str, Any]) -> None:
    data, saves = (next(item for item in facts["storage"]["places"] if item["role"] == role) for role in ("data", "checkpoints"))
    assert (saves["path"], saves["filesystem"], saves["mount_point"], saves["carrier"]) == ("/mnt", "ext4", "/mnt", "disk")
    assert [(disk["kind"], disk["transport"], disk["model"]) for disk in saves["disks"]] == [
        ("virtual", "pcie", "QEMU NVMe Ctrl")
    ]
    assert saves["writable"] is True
    assert data["layers"] == ["lvm vg0-data", "md0 raid1"]
    assert [disk["size_bytes"] for disk in data["disks"]] == [64 << 20]


def test_half_a_mirror_is_found(live: dict[str, Any]) -> None:
    assert live["md-array-degraded"]["verdict"] == "fail"
    assert seen(live["md-array-degraded"]) == "1 missing"


def test_what_a_virtual_disk_is_made_of_is_unknown(live: dict[str, Any]) -> None:
    assert live["data-on-spinning-disk"]["verdict"] == "unknown"


@pytest.mark.parametrize("source", ["live", "recorded"])
def test_nothing_crashes(source: str, request: pytest.FixtureRequest) -> None:
    results = request.getfixturevalue(source)
    assert {rule: result["evidence"] for rule, result in results.items() if result["verdict"] == "crashed"} == {}


def test_the_recorded_tree_is_judged_as_the_machine_itself(live: dict[str, Any], recorded: dict[str, Any]) -> None:
    """What the tree does not hold is unknown; what is known is the same."""
    families = {"sysctl", "numa", "pci"}
    told = {rule: (result["verdict"], live[rule]["verdict"]) for rule, result in recorded.items() if result["family"] in families}
    assert {rule: pair for rule, pair in told.items() if pair[0] not in ("unknown", pair[1])} == {}
