"""The NVML child against a stub library with NVML's ABI: what NVML refuses, hangs on or crashes on stays one fact's or one look's loss."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from library import COMPILER, build

from torchtune_sys.host.live_queries import nvml
from torchtune_sys.model import codec
from torchtune_sys.model.facts.gpu import Gpu, GpuFacts
from torchtune_sys.model.values import Missing, Why, need

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build the NVML stub")


LATER = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetSupportedClocksEventReasons",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration",
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetMemoryInfo_v2",
)
"""What an old driver does not have."""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    top = tmp_path_factory.mktemp("nvml")
    return {"new": build(top / "new"), "old": build(top / "old", LATER)}


@pytest.fixture
def ask(libraries: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    def look(plan: str = "", library: str = "new", timeout_s: float = 20.0) -> GpuFacts | Missing:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries[library]))
        scenario = tmp_path / "scenario.txt"
        scenario.write_text("".join(f"{line}\n" for line in plan.split(", ")))
        monkeypatch.setenv("NVIDIA_STUB_FILE", str(scenario))
        answer = nvml.nvml("", timeout_s)
        return codec.as_fact(answer, GpuFacts, "NVML")

    return look


def facts(found: GpuFacts | Missing) -> GpuFacts:
    assert not isinstance(found, Missing), found
    return found


def gpus(found: GpuFacts | Missing) -> tuple[Gpu, ...]:
    devices = facts(found).devices
    assert not isinstance(devices, Missing), devices
    return devices


def why(fact: object) -> Why:
    assert isinstance(fact, Missing), fact
    return fact.why


def test_two_healthy_gpus(ask) -> None:
    found = facts(ask("nvmlDeviceGetNvLinkState.4 = 0"))
    assert (found.driver_version, found.cuda_driver_version, found.error) == ("580.95.05", "13.0", "")
    first, second = gpus(found)
    assert (first.name, first.pci_address, second.pci_address) == ("NVIDIA H100 80GB HBM3", "0000:19:00.0", "0000:1a:00.0")
    assert (first.compute_capability, first.architecture, first.memory_total_bytes) == ((9, 0), "Hopper", 85520809984)
    assert (first.nvlinks, first.nvlinks_down, first.fabric_state) == (18, (4,), "completed")
    assert (first.persistence, first.display) == (True, False)
    assert (first.ecc, first.ecc_uncorrected_volatile, first.rows_remap_failed, first.lost) == (True, 0, False, False)
    assert why(first.pages_retire_pending) is Why.NOT_SUPPORTED  # as on every GPU since Ampere
    assert (first.recovery_action, first.sram_threshold_exceeded, first.inforom_valid, first.nvlink_errors) == (
        "none",
        False,
        True,
        (),
    )
    assert (first.fabric_status, first.fabric_health, first.row_banks) == ("success", (), (2560, 0, 0, 0, 0))
    assert [(pair.first, pair.second, pair.read, pair.nvlink) for pair in need(found.p2p)] == [(0, 1, "ok", "ok")]


def test_a_process_is_named_with_its_owner(ask) -> None:
    import getpass

    first, second = gpus(ask("nvmlDeviceGetComputeRunningProcesses_v3@0 = 0 512"))
    assert not isinstance(first.processes, Missing) and second.processes == ()
    assert [(item.user, item.used_bytes) for item in first.processes] == [(getpass.getuser(), 512 << 20)]


def test_old_driver_lacks_functions_and_keeps_its_old_names(ask) -> None:
    first = gpus(
        ask(
            "nvmlDeviceGetCurrentClocksThrottleReasons = 0x204, nvmlDeviceGetComputeRunningProcesses_v2 = 0 512",
            library="old",
        )
    )[0]
    assert first.clock_event_reasons == 0x4  # 0x204 masked by the supported reasons
    assert not isinstance(first.processes, Missing) and len(first.processes) == 1
    for fact in (first.architecture, first.pcie_gen_max, first.rows_remap_pending, first.fabric_state):
        assert why(fact) is Why.NOT_SUPPORTED
    assert first.memory_total_bytes == 85520809984


@pytest.mark.parametrize(
    ("code", "name", "reason"),
    [
        (9, "DRIVER_NOT_LOADED", Why.ABSENT),
        (18, "LIB_RM_VERSION_MISMATCH", Why.FAILED),
        (4, "NO_PERMISSION", Why.DENIED),
        (17, "OPERATING_SYSTEM", Why.DENIED),
        (15, "GPU_IS_LOST", Why.FAILED),
        (999, "UNKNOWN", Why.FAILED),
    ],
)
def test_nvml_does_not_start(ask, code: int, name: str, reason: Why) -> None:
    found = facts(ask(f"nvmlInitWithFlags = !{code}"))
    assert found.error == name
    assert why(found.devices) is reason and why(found.driver_version) is reason


def test_geforce_refuses_what_it_does_not_have(ask) -> None:
    refused = ("nvmlDeviceGetEccMode", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetMigMode", "nvmlDeviceGetNvLinkState")
    first = gpus(ask(", ".join([*(f"{call} = !3" for call in refused), "nvmlDeviceGetName = NVIDIA GeForce RTX 4090"])))[0]
    for fact in (first.ecc, first.ecc_uncorrected_volatile, first.mig, first.nvlinks, first.nvlinks_down):
        assert why(fact) is Why.NOT_SUPPORTED
    assert first.name == "NVIDIA GeForce RTX 4090" and first.pcie_width == 16


def test_one_lost_gpu_does_not_hide_the_other(ask) -> None:
    first, second = gpus(ask("nvmlDeviceGetMemoryInfo@1 = !15, nvmlDeviceGetTemperature@1 = !15"))
    assert (first.lost, second.lost) == (False, True)
    assert why(second.memory_total_bytes) is Why.FAILED and second.name == "NVIDIA H100 80GB HBM3"


def test_what_the_driver_keeps_for_itself_is_not_used_memory(ask) -> None:
    """480 MiB of an idle H100, which nvidia-smi shows as reserved; a driver before 510 does not tell them apart."""
    plan = "nvmlDeviceGetMemoryInfo = 85520809984 503316480"
    assert [gpu.memory_used_bytes for gpu in gpus(ask(plan))] == [0, 0]
    assert [gpu.memory_used_bytes for gpu in gpus(ask(plan, "old"))] == [480 << 20, 480 << 20]


def test_a_gpu_without_a_handle(ask) -> None:
    first, second = gpus(ask("nvmlDeviceGetHandleByIndex_v2@0 = !15"))
    assert (first.lost, second.lost) == (True, False)
    assert why(first.name) is Why.FAILED


def test_no_permission_for_one_reading(ask) -> None:
    first = gpus(ask("nvmlDeviceGetEccMode = !4"))[0]
    assert isinstance(first.ecc, Missing)
    assert (first.ecc.why, first.ecc.remedy) == (Why.DENIED, "run as root")


def test_a_call_that_never_returns_costs_its_own_fact(ask) -> None:
    started = time.monotonic()
    first, second = gpus(ask("nvmlDeviceGetTemperature@1 = hang", timeout_s=4.0))
    assert time.monotonic() - started < 30
    assert isinstance(second.temperature_c, Missing) and second.temperature_c.why is Why.TIMEOUT
    assert "nvmlDeviceGetTemperature of GPU 1" in second.temperature_c.detail
    assert (first.temperature_c, second.power_limit_mw, second.processes) == (41, 700000, ())


def test_a_library_that_never_starts_costs_its_deadline(ask) -> None:
    found = facts(ask("nvmlInitWithFlags = hang", timeout_s=4.0))
    assert isinstance(found.devices, Missing) and found.devices.why is Why.TIMEOUT and "nvmlInit" in found.devices.detail


def test_a_crash_costs_its_own_fact_and_names_its_signal(ask) -> None:
    first, second = gpus(ask("nvmlDeviceGetName@1 = crash"))
    assert isinstance(second.name, Missing) and "SIGSEGV" in second.name.detail
    assert (first.name, second.temperature_c) == ("NVIDIA H100 80GB HBM3", 41)


def test_a_crash_of_the_library_itself(ask) -> None:
    found = ask("nvmlInitWithFlags = crash")
    assert isinstance(found, Missing)
    assert found.why is Why.FAILED and "SIGSEGV in nvmlInit" in found.detail


def script(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "nvidia-smi").write_text(text)
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    if Path("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").exists():
        pytest.skip("this machine has an NVIDIA driver")


SMI_XML = """<?xml version="1.0" ?>
<nvidia_smi_log><driver_version>580.95.05</driver_version><cuda_version>13.0</cuda_version><attached_gpus>1</attached_gpus>
<gpu id="00000000:18:00.0"><product_name>NVIDIA L4</product_name><fb_memory_usage><total>23034 MiB</total></fb_memory_usage></gpu>
</nvidia_smi_log>"""


def test_without_the_library_nvidia_smi_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, f"#!/bin/sh\ncat <<'END'\n{SMI_XML}\nEND\n", monkeypatch)
    found = facts(codec.as_fact(nvml.nvml("", 20.0), GpuFacts, "x"))
    assert (found.source, found.driver_version) == ("nvidia-smi", "580.95.05")
    assert [gpu.name for gpu in gpus(found)] == ["NVIDIA L4"]


def test_nvidia_smi_that_stops_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "#!/bin/sh\nkill -STOP $$\n", monkeypatch)
    started = time.monotonic()
    assert why(nvml.nvml("", 2.0)) is Why.TIMEOUT
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    "text", ["#!/bin/sh\nhead -c 100000 /dev/urandom\n", "#!/bin/sh\nexit 3\n", "#!/bin/sh\nkill -SEGV $$\n"]
)
def test_nvidia_smi_that_prints_no_sense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    script(tmp_path, text, monkeypatch)
    assert why(nvml.nvml("", 20.0)) is Why.FAILED


def test_nvidia_smi_that_cannot_reach_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    script(tmp_path, f'#!/bin/sh\necho "{line}"\nexit 9\n', monkeypatch)
    found = facts(codec.as_fact(nvml.nvml("", 20.0), GpuFacts, "x"))
    assert found.error == "DRIVER_NOT_LOADED" and why(found.devices) is Why.ABSENT


def test_neither_library_nor_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    found = codec.as_fact(nvml.nvml("", 20.0), GpuFacts, "x")
    if isinstance(found, Missing) or not found.error:
        pytest.skip("this machine has an NVIDIA driver")
    assert found.error == "LIBRARY_NOT_FOUND" and why(found.devices) is Why.NO_TOOL
