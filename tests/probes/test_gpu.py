"""Whether the driver may be asked: a GPU that sleeps is left asleep."""

from __future__ import annotations

from typing import Any

import pytest

from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.gpu import probe as gpu

BOUND = "/sys/bus/pci/drivers/nvidia"


def host(status: str) -> RecordedHost:
    tree: dict[str, Any] = {
        "files": {
            "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05",
            f"{BOUND}/0000:01:00.0/power/runtime_status": status,
            f"{BOUND}/0000:02:00.0/power/runtime_status": "active",
        },
        "dirs": {BOUND: ["0000:01:00.0", "0000:02:00.0", "bind", "module"]},
        "answers": {"nvml": {"devices": [], "driver_version": "580.95.05"}},
    }
    return RecordedHost(tree, "test")


@pytest.mark.parametrize(
    ("status", "live", "asked"),
    [("suspended", False, False), ("suspended", True, True), ("active", False, True), ("", False, True)],
)
def test_a_sleeping_gpu_is_not_woken_without_live(status: str, live: bool, asked: bool) -> None:
    found = gpu.probe(host(status), Workload(live=live))
    if asked:
        assert found.driver_version == "580.95.05"
    else:
        assert isinstance(found.devices, Missing) and found.devices.why is Why.NOT_SUPPORTED
        assert "0000:01:00.0" in found.devices.detail and "--live" in found.devices.remedy
