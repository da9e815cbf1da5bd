"""What a host can train on, and how every report says it first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch_hosts import asked, build, changed, without_gpu

from conftest import HOSTS, judge, load
from machines_libraries import with_libraries
from platforms import PLATFORMS
from platforms_more import MORE
from rules.test_platforms import look
from rules.test_typical import SAID, judged
from torchtune_sys import engine
from torchtune_sys.host.recorded import RecordedHost, load_recording
from torchtune_sys.model.facts.gpu import without
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import CATALOGUE
from torchtune_sys.rules.can_train import STOP_GPUS, STOP_TORCH, Device, ability, not_judged

GPUS = {
    "aws-g5": 1,
    "aws-p4d": 8,
    "azure-nd-h100": 8,
    "desktop-4090": 1,
    "dgx-h100": 8,
    "docker-workstation": 2,
    "gcp-a2": 4,
    "gh200": 1,
    "k8s-h100": 1,
    "laptop-cpu": 0,
    "login-node": 0,
    "mi300x": 8,
    "rocky8-v100": 4,
    "slurm-a100": 4,
    "wsl2-3080": 1,
}
PLATFORM_GPUS = {
    "apptainer": 4,
    "dgx-spark": 1,
    "gb200-tray": 4,
    "github-runner": 0,
    "graviton": 0,
    "intel-xpu": 1,
    "jetson-orin": 1,
    "mi300x-container": 8,
    "optimus-laptop": 1,
    "slurm-cgroup-v1": 1,
    "wsl2-docker-desktop": 1,
}
ABSENT, DENIED = Missing(Why.ABSENT, "test"), Missing(Why.DENIED, "test")


def typical(name: str) -> Snapshot:
    host = with_libraries(load_recording(str(HOSTS / "typical" / f"{name}.json")))
    return engine.snapshot(RecordedHost(host, name), Workload(**host.get("intent", {})), timeout_s=20)


def said(seen: Snapshot) -> tuple[Device, int]:
    found = ability(seen, engine.judge(seen, CATALOGUE))
    return found.device, found.gpus


def test_every_typical_host_has_its_number() -> None:
    assert set(GPUS) == set(SAID)


@pytest.mark.parametrize("name", GPUS)
def test_a_typical_host_trains_on_its_gpus(name: str) -> None:
    assert said(typical(name)) == (Device.GPU if GPUS[name] else Device.CPU, GPUS[name])


@pytest.mark.parametrize("name", PLATFORM_GPUS)
def test_a_platform_trains_on_its_gpus(name: str) -> None:
    count = PLATFORM_GPUS[name]
    assert said(look({**PLATFORMS, **MORE}[name]())) == (Device.GPU if count else Device.CPU, count)


def test_a_host_without_torch_cannot_train(healthy: Snapshot) -> None:
    found = ability(changed(healthy, "python", torch=ABSENT))
    assert (found.device, found.why) == (Device.NONE, "no torch in /data/train/.venv/bin/python3")


@pytest.mark.parametrize(
    ("change", "device"),
    [
        ({"torch": DENIED}, Device.UNKNOWN),
        ({"live": asked(cuda_available=False, device_count=0)}, Device.CPU),
        ({"live": asked(cuda_available=True, device_count=8)}, Device.GPU),
    ],
)
def test_what_torch_tells_or_hides(healthy: Snapshot, change: dict[str, Any], device: Device) -> None:
    assert ability(changed(healthy, "python", **change)).device is device


def test_torch_cuda_says_nothing_of_intel_gpus() -> None:
    arc = PLATFORMS["intel-xpu"]()
    told = changed(look(arc), "python", live=asked(cuda_available=False, device_count=0))
    assert ability(told).device is Device.GPU


@pytest.mark.parametrize(
    ("kinds", "device"),
    [
        ({"cuda": ABSENT}, Device.CPU),
        ({"cuda": DENIED, "version": "0.0.0"}, Device.UNKNOWN),
        ({"cuda": ABSENT, "hip": "6.4"}, Device.CPU),
    ],
)
def test_the_build_of_torch_decides(healthy: Snapshot, kinds: dict[str, Any], device: Device) -> None:
    assert ability(changed(healthy, "python", torch=build(healthy, **kinds))).device is device


@pytest.mark.parametrize(
    ("devices", "device"), [(ABSENT, Device.CPU), (DENIED, Device.UNKNOWN), (Missing(Why.TIMEOUT, "NVML"), Device.UNKNOWN)]
)
def test_gpus_that_are_not_seen_are_not_counted(healthy: Snapshot, devices: Missing, device: Device) -> None:
    import msgspec

    assert ability(msgspec.structs.replace(healthy, gpu=without(devices))).device is device
    assert ability(without_gpu(healthy)).device is Device.CPU


@pytest.mark.parametrize(("listed", "gpus"), [("0,1", 2), ("", 0), ("-1", 0), ("0,1,2,3,4,5,6,7", 8)])
def test_only_the_gpus_that_the_session_leaves_count(healthy: Snapshot, listed: str, gpus: int) -> None:
    assert ability(changed(healthy, "session", env={"CUDA_VISIBLE_DEVICES": listed})).gpus == gpus


def test_a_list_that_hides_some_gpus_leaves_their_number_unknown(healthy: Snapshot) -> None:
    seen = changed(healthy, "session", env={"CUDA_VISIBLE_DEVICES": "0,99,1"})
    assert ability(seen).device is Device.UNKNOWN


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("driver-too-old.fail", Device.CPU),
        ("nvml-driver-library-mismatch.fail", Device.CPU),
        ("torch-import-fails.fail", Device.NONE),
        ("disk-full.fail", Device.GPU),
        ("gpu-ecc-uncorrectable.fail", Device.GPU),
    ],
)
def test_an_error_counts_where_it_stops_torch_or_every_gpu(name: str, device: Device) -> None:
    seen = load(name)
    assert ability(seen, judge(seen).values()).device is device


def test_the_errors_that_stop_torch_exist() -> None:
    errors = {rule.id for rule in CATALOGUE if rule.severity.value == "error"}
    assert errors >= STOP_TORCH | STOP_GPUS


def test_a_family_of_which_nothing_applies_was_not_judged() -> None:
    results = tuple(judged("laptop-cpu").values())
    assert not_judged(typical("laptop-cpu"), results, ("gpu", "cpu", "torch")) == ["gpu"]


def test_the_same_is_told_in_every_format(tmp_path: Path) -> None:
    """A bare host: exit 0, since one checks before installing; 3 with --strict."""
    from driven import run

    host = json.loads((HOSTS / "typical" / "laptop-cpu.json").read_text())
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(_without_packages(host)))
    shown = run("check", "--from", str(bare))
    first = " ".join(shown.stdout.split("\n\n")[0].split())
    assert shown.returncode == 0
    assert "cannot train: no torch in " in first and "checks skipped)" in first and "no other problem found" in first
    last = " ".join(shown.stdout.split("\n\n")[-1].split())
    assert (
        "to train: record it with --python, the Python that trains; torchtune-sys generate install with the same --from " in last
    )
    assert json.loads(run("check", "--from", str(bare), "--format", "json").stdout)["summary"]["can_train"] == "no"
    assert "cannot train" in run("check", "--from", str(bare), "--format", "markdown").stdout
    assert "cannot train" in run("check", "--from", str(bare), "--format", "nagios").stdout
    assert 'torchtune_sys_can_train{on="no"} 1' in run("check", "--from", str(bare), "--format", "prometheus").stdout
    strict = run("check", "--from", str(bare), "--strict")
    assert strict.returncode == 3 and "no check in torch applies here" in strict.stderr
    selected = run("check", "--from", str(bare), "--strict", "--select", "sysctl,driver")
    assert selected.returncode == 3 and "no check in driver applies here" in selected.stderr
    assert run("check", "--from", str(bare), "--strict", "--select", "sysctl").returncode == 0
    assert run("check", "--from", str(bare), "--strict", "--format", "nagios").returncode == 3


def _without_packages(host: dict[str, Any]) -> dict[str, Any]:
    """The recording as it would be if no torch had been installed."""
    files = {path: text for path, text in host["files"].items() if "/torch-" not in path and "/torch/" not in path}
    return {**host, "files": files}
