"""Pasted output of rocm-smi and amd-smi: every layout of the table since ROCm 3, the long form, JSON, amd-smi."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conftest import judge
from torchtune_sys.evidence import pasted, read, rocm_smi
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Missing, need

ROCM_3 = """
========================ROCm System Management Interface========================
================================================================================
GPU  Temp   AvgPwr  SCLK    MCLK    Fan     Perf  PwrCap  VRAM%  GPU%
1    24.0c  3.0W    852Mhz  167Mhz  13.73%  auto  170.0W  N/A    0%
================================================================================
==============================End of ROCm SMI Log ==============================
"""
ROCM_5 = """
======================= ROCm System Management Interface =======================
================================= Concise Info =================================
GPU  Temp (DieEdge)  AvgPwr  SCLK    MCLK     Fan  Perf  PwrCap  VRAM%  GPU%
0    39.0c           92.0W   800Mhz  1600Mhz  0%   auto  560.0W    0%   17%
1    28.0c           N/A     800Mhz  1600Mhz  0%   auto  0.0W      0%   0%    <- the second die
================================================================================
============================= End of ROCm SMI Log ==============================
"""
ROCM_6_0 = """
====================================== ROCm System Management Interface ======================================
================================================ Concise Info ================================================
Device  [Model : Revision]    Temp    Power  Partitions      SCLK    MCLK     Fan  Perf  PwrCap  VRAM%  GPU%
        Name (20 chars)       (Edge)  (Avg)  (Mem, Compute)
==============================================================================================================
0       [0x0c34 : 0x02]       32.0°C  38.0W  N/A, N/A        800Mhz  1600Mhz  0%   auto  300.0W    0%   0%
        Instinct MI210
1       [0x0c34 : 0x02]       33.0°C  39.0W  N/A, N/A        800Mhz  1600Mhz  0%   auto  300.0W   45%   99%
        Instinct MI210
==============================================================================================================
============================================ End of ROCm SMI Log =============================================
"""
ROCM_6_1 = """
============================================ ROCm System Management Interface ============================================
====================================================== Concise Info ======================================================
Device  Node  IDs              Temp        Power     Partitions          SCLK    MCLK    Fan  Perf  PwrCap  VRAM%  GPU%
              (DID,     GUID)  (Junction)  (Socket)  (Mem, Compute, ID)
==========================================================================================================================
0       4     0x74a1,   28851  50.0\u00c2\u00b0C      133.0W    NPS1, CPX, 0        137Mhz  900Mhz  0%   auto  750.0W  0%     0%
1       5     0x74a1,   50724  N/A         N/A       N/A, N/A, 1         N/A     N/A     0%   n/a   N/A     0%     N/A
==========================================================================================================================
================================================== End of ROCm SMI Log ===================================================
"""
RADEONS = """
WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status

======================================== ROCm System Management Interface ========================================
================================================== Concise Info ==================================================
Device  Node  IDs              Temp    Power    Partitions          SCLK  MCLK     Fan    Perf  PwrCap       VRAM%  GPU%
              (DID,     GUID)  (Edge)  (Avg)    (Mem, Compute, ID)
==================================================================================================================
0       1     0x744c,   19047  35.0°C  0.0W     N/A, N/A, 0         0Mhz  96Mhz    29.8%  auto  327.0W       0%     0%
1       2     0x15bf,   17218  48.0°C  19.111W  N/A, N/A, 0         None  1000Mhz  0%     auto  Unsupported  82%    5%
==================================================================================================================
"""
LONG = """
======================= ROCm System Management Interface =======================
========================= Version of System Component ==========================
Driver version: 6.3.6
================================================================================
GPU[0]\t\t: Device Name: \t\tAMD Instinct MI250X
GPU[0]\t\t: Device ID: \t\t0x7408
GPU[1]\t\t: Card series: \t\tInstinct MI250X
GPU[0]\t\t: Temperature (Sensor edge) (C): 41.0
GPU[0]\t\t: Temperature (Sensor junction) (C): 45.0
GPU[0]\t\t: GPU use (%): 97
GPU[0]\t\t: VRAM Total Memory (B): 68702699520
GPU[0]\t\t: VRAM Total Used Memory (B): 10960896
GPU[0]\t\t: PCI Bus: 0000:C9:00.0
GPU[1]\t\t: PCI Bus: 0000:CA:00.0
============================= End of ROCm SMI Log ==============================
"""
AMD_SMI = """
+------------------------------------------------------------------------------+
| AMD-SMI 26.0.2+39589fda      amdgpu version: 6.16.13  ROCm version: 7.0.2    |
| Platform: Linux Baremetal                                                    |
|-------------------------------------+----------------------------------------|
| BDF                        GPU-Name | Mem-Uti   Temp   UEC       Power-Usage |
| GPU  HIP-ID  OAM-ID  Partition-Mode | GFX-Uti    Fan               Mem-Usage |
|=====================================+========================================|
| 0000:0d:00.0    AMD Instinct MI355X | N/A        N/A   0          N/A/1400 W |
|   0       1       7        SPX/NPS1 | N/A        N/A           283/294896 MB |
|-------------------------------------+----------------------------------------|
| 0000:26:00.0 ...Instinct MI355X OAM | 0 %      42 °C   12         45/1400 W |
|   1       3       5        SPX/NPS1 | 6 %     29.8 %        149820/294896 MB |
+-------------------------------------+----------------------------------------+
"""
STATIC = """
GPU: 0
    ASIC:
        MARKET_NAME: AMD Instinct MI300X
    BUS:
        BDF: 0000:05:00.0
GPU: 1
    ASIC:
        MARKET_NAME: AMD Instinct MI300X
    BUS:
        BDF: 0000:26:00.0
"""
METRIC = """
GPU: 0
    TEMPERATURE:
        EDGE: N/A
        HOTSPOT: 45 °C
    ECC:
        TOTAL_CORRECTABLE_COUNT: 4
        TOTAL_UNCORRECTABLE_COUNT: 2
    MEM_USAGE:
        TOTAL_VRAM: 196592 MB
        USED_VRAM: 285 MB
GPU: 1
    ECC:
        TOTAL_UNCORRECTABLE_COUNT: 0
"""


def gpus(text: str) -> tuple[Gpu, ...]:
    found = rocm_smi.gpu_facts(text)
    assert found is not None and found.vendor == "amd"
    return need(found.devices)


def told(gpu: Gpu, *names: str) -> list[Any]:
    return [None if isinstance(value := getattr(gpu, name), Missing) else value for name in names]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ROCM_3, [(1, None, 24, 170_000, 0)]),
        (ROCM_5, [(0, None, 39, 560_000, 17), (1, None, 28, None, 0)]),
        (ROCM_6_0, [(0, "AMD Instinct MI210", 32, 300_000, 0), (1, "AMD Instinct MI210", 33, 300_000, 99)]),
        (ROCM_6_1, [(0, "AMD Instinct MI300X", 50, 750_000, 0), (1, "AMD Instinct MI300X", None, None, None)]),
        (RADEONS, [(0, "AMD Radeon RX 7900 XT/XTX", 35, 327_000, 0), (1, None, 48, None, 5)]),
    ],
    ids=["3", "5", "6.0", "6.1", "radeons"],
)
def test_each_layout_of_the_table(text: str, expected: list[tuple[Any, ...]]) -> None:
    for form in (text, text.replace("\n", "  \r\n"), "".join(f"    {line}\n" for line in text.splitlines())):
        found = gpus(pasted.plain(form))
        assert [gpu.index for gpu in found] == [row[0] for row in expected]
        for gpu, row in zip(found, expected, strict=True):
            name, *numbers = told(gpu, "name", "temperature_c", "power_limit_mw", "utilization_pct")
            assert numbers == list(row[2:])
            assert name == row[1]


def test_the_long_form_and_json_say_the_same() -> None:
    cards = {
        "card0": {"Device Name": "AMD Instinct MI250X", "Device ID": "0x7408", "Temperature (Sensor junction) (C)": "45.0", "GPU use (%)": "97",
                  "VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "10960896", "PCI Bus": "0000:C9:00.0"},
        "card1": {"Card series": "Instinct MI250X", "PCI Bus": "0000:CA:00.0"},
    }  # fmt: skip
    assert gpus(LONG) == gpus(json.dumps(cards)) == gpus(json.dumps(cards, indent=4))
    first, second = gpus(LONG)
    names = ("name", "pci_address", "temperature_c", "utilization_pct", "memory_total_bytes", "memory_used_bytes")
    assert told(first, *names) == ["AMD Instinct MI250X", "0000:c9:00.0", 45, 97, 68_702_699_520, 10_960_896]
    assert told(second, *names) == ["AMD Instinct MI250X", "0000:ca:00.0", None, None, None, None]
    assert rocm_smi.gpu_facts(LONG).driver_version == "6.3.6"  # type: ignore[union-attr]


def test_the_table_of_amd_smi_tells_of_errors() -> None:
    first, second = gpus(AMD_SMI)
    names = (
        "name",
        "pci_address",
        "temperature_c",
        "power_limit_mw",
        "memory_total_bytes",
        "memory_used_bytes",
        "utilization_pct",
    )
    assert told(first, *names) == ["AMD Instinct MI355X", "0000:0d:00.0", None, 1_400_000, 294_896 << 20, 283 << 20, None]
    assert told(second, *names) == ["AMD Instinct MI355X OAM", "0000:26:00.0", 42, 1_400_000, 294_896 << 20, 149_820 << 20, 6]
    snapshot = read(AMD_SMI, "report")
    assert snapshot is not None
    found = judge(snapshot)["amdgpu-uncorrectable-errors-counted"]
    assert [(item.subject, item.seen, item.verdict, item.source) for item in found.evidence] == [
        ("AMD GPU at 0000:0d:00.0", "no uncorrectable error", Verdict.PASS, "amd-smi"),
        ("AMD GPU at 0000:26:00.0", "12 in all blocks", Verdict.FAIL, "amd-smi"),
    ]


def test_the_lists_of_amd_smi() -> None:
    first, second = gpus(STATIC + METRIC)
    assert told(first, "name", "pci_address", "temperature_c", "memory_total_bytes") == [
        "AMD Instinct MI300X",
        "0000:05:00.0",
        45,
        196_592 << 20,
    ]
    assert second.pci_address == "0000:26:00.0"
    assert rocm_smi.counted(STATIC + METRIC)["amd_errors"][0].uncorrected == 2
    assert "amd_errors" not in rocm_smi.counted(STATIC)  # not told is not none
    assert rocm_smi.counted(METRIC) == {}  # of which GPU is not told


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GPU  Temp (DieEdge)  AvgPwr  SCLK  MCLK  Fan  Perf  PwrCap  VRAM%  GPU%\n\n------------- End of ROCm SMI Log -------------\n",
        "GPU: 0\nsome log of a training: GPU: 1\n",
        "GPU[0] is busy: 97\n",
    ],
)
def test_what_lists_no_gpu_is_none(text: str) -> None:
    assert rocm_smi.gpu_facts(text) is None


def test_a_report_of_torch_beside_it_trains_on_these_gpus() -> None:
    build = "PyTorch version: 2.9.1+rocm6.4\nCUDA used to build PyTorch: N/A\nROCM used to build PyTorch: 6.4.43483\n"
    snapshot = read(build + ROCM_6_1, "report")
    assert snapshot is not None
    assert len(need(need(snapshot.gpu).devices)) == 2
