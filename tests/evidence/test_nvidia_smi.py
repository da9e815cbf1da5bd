"""Pasted nvidia-smi output of all forms and ages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts_nvidia_smi import SMI_570

from elsewhere import recorded_elsewhere
from torchtune_sys.evidence.nvidia.smi import parse_nvidia_smi, parse_table
from torchtune_sys.formats.nvidia_smi import complaints, logs
from torchtune_sys.model import codec
from torchtune_sys.model.facts.gpu import Gpu, GpuFacts
from torchtune_sys.model.values import Missing, Why

OLD = """
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 384.130                Driver Version: 384.130                   |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  GeForce GTX 1080    Off  | 00000000:01:00.0  On |                  N/A |
| 27%   45C    P8    11W / 180W |    361MiB /  8110MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+
|   1  Tesla K80           On   | 0000:06:00.0     Off |                    2 |
| N/A   31C    P8    26W / 149W |      0MiB / 11439MiB |      0%   E. Process |
+-------------------------------+----------------------+----------------------+

+-----------------------------------------------------------------------------+
| Processes:                                                       GPU Memory |
|  GPU       PID   Type   Process name                             Usage      |
|=============================================================================|
|    0      1291      G   /usr/lib/xorg/Xorg                            18MiB |
|    0      4711      C   python                                       330MiB |
+-----------------------------------------------------------------------------+
"""
NEW = """
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 610.43.02              KMD Version: 610.43.02     CUDA UMD Version: 13.3     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|=========================================+========================+======================|
|   0  NVIDIA B200                    On  |   00000000:1B:00.0 Off |                    0 |
| N/A   28C    P0            145W / 1000W |       0MiB / 183359MiB |      0%      Default |
|                                         |                        |             Disabled |
|   1  NVIDIA B200                    On  |   00000000:43:00.0 Off |                 ERR! |
|ERR!   ERR! ERR!             ERR! / ERR! |       0MiB / 183359MiB |    ERR!         ERR! |
|                                         |                        |                 ERR! |
+-----------------------------------------+------------------------+----------------------+
"""


def gpus(text: str) -> tuple[Gpu, ...]:
    found = parse_nvidia_smi(text)
    assert found is not None and not isinstance(found.devices, Missing)
    return found.devices


def test_table_of_an_old_driver() -> None:
    first, second = gpus(OLD)
    assert (first.name, first.pci_address, first.persistence) == ("GeForce GTX 1080", "0000:01:00.0", False)
    assert (first.display, second.display) == (True, False)  # Disp.A
    assert (first.memory_used_bytes, first.memory_total_bytes) == (361 << 20, 8110 << 20)
    assert isinstance(first.ecc_uncorrected_volatile, Missing) and first.ecc_uncorrected_volatile.why is Why.NOT_SUPPORTED
    assert (second.pci_address, second.ecc_uncorrected_volatile, second.ecc) == ("0000:06:00.0", 2, True)
    assert isinstance(first.ecc, Missing) and first.ecc.why is Why.NOT_SUPPORTED
    assert (second.compute_mode, second.power_limit_mw) == ("exclusive-process", 149_000)
    assert not isinstance(first.processes, Missing)
    assert [(item.pid, item.name) for item in first.processes] == [(4711, "python")]  # graphics is no training
    found = parse_nvidia_smi(OLD)
    assert found is not None and found.driver_version == "384.130" and isinstance(found.cuda_driver_version, Missing)


def test_table_of_a_new_driver_with_a_dead_gpu() -> None:
    first, second = gpus(NEW)
    assert (first.name, first.mig, first.lost) == ("NVIDIA B200", False, False)
    assert second.lost and isinstance(second.temperature_c, Missing) and second.temperature_c.why is Why.FAILED
    found = parse_nvidia_smi(NEW)
    assert found is not None and (found.driver_version, found.cuda_driver_version) == ("610.43.02", "13.3")


@pytest.mark.parametrize("prefix", ["", "> ", "worker-1  | ", "    "])
def test_table_in_a_quotation(prefix: str) -> None:
    assert len(gpus("\n".join(prefix + line for line in OLD.splitlines()))) == 2


INSTANCES = """
+-----------------------------------------------------------------------------------------+
| MIG devices:                                                                            |
+------------------+----------------------------------+-----------+-----------------------+
| GPU  GI  CI  MIG |                     Memory-Usage |        Vol|        Shared         |
|      ID  ID  Dev |                       BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |
|==================+==================================+===========+=======================|
ROWS
+-----------------------------------------------------------------------------------------+
"""


@pytest.mark.parametrize(
    ("rows", "count"),
    [
        ("|  No MIG devices found                                                                   |", 0),
        ("|  0    7   0   0  |              38MiB / 22144MiB    | 16      0 |  1   0    1    0    1 |", 1),
        ("\n".join(f"|  0   {gi:2}   0   {gi}  |              38MiB / 22144MiB    | 16      0 |" for gi in (7, 8, 12)), 3),
        ("", None),
    ],
)
def test_the_instances_of_a_gpu_in_mig_mode_are_counted(rows: str, count: int | None) -> None:
    on = SMI_570.replace("Disabled |", " Enabled |")
    (gpu,) = parse_table(on + INSTANCES.replace("ROWS", rows))[0]
    assert (gpu["mig"], gpu.get("mig_instances")) == (True, count)
    assert "mig_instances" not in parse_table(SMI_570 + INSTANCES.replace("ROWS", rows))[0][0]


def test_a_table_printed_twice_counts_once() -> None:
    assert len(gpus(NEW + NEW)) == 2


@pytest.mark.parametrize(
    ("text", "error", "why"),
    [
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.107",
            "LIB_RM_VERSION_MISMATCH",
            Why.FAILED,
        ),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure",
            "DRIVER_NOT_LOADED",
            Why.ABSENT,
        ),
        ("Failed to initialize NVML: Insufficient Permissions", "NO_PERMISSION", Why.DENIED),
        ("Failed to initialize NVML: Unknown Error", "UNKNOWN", Why.FAILED),
        ("Failed to initialize NVML: GPU access blocked by the operating system", "OPERATING_SYSTEM", Why.DENIED),
        ("No devices were found", "NO_DEVICES", Why.ABSENT),
        (
            "Unable to determine the device handle for GPU 0000:03:00.0: GPU is lost.  Reboot the system",
            "GPU_IS_LOST",
            Why.FAILED,
        ),
        ("Unable to determine the device handle for GPU0: 0000:03:00.0: Unknown Error", "GPU_IS_LOST", Why.FAILED),
        ("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", "LIBRARY_NOT_FOUND", Why.NO_TOOL),
    ],
)
def test_complaints(text: str, error: str, why: Why) -> None:
    found = parse_nvidia_smi(f"$ nvidia-smi\n{text}\n$\n")
    assert found is not None and found.error == error
    assert isinstance(found.devices, Missing) and found.devices.why is why


def test_the_container_counts_over_the_host_that_worked() -> None:
    found = parse_nvidia_smi(f"host$ nvidia-smi{OLD}\ncontainer$ nvidia-smi\nFailed to initialize NVML: Unknown Error\n")
    assert found is not None and found.error == "UNKNOWN" and isinstance(found.devices, Missing)
    assert found.driver_version == "384.130"


def test_a_repaired_host_counts_over_its_old_complaint() -> None:
    assert len(gpus(f"$ nvidia-smi\nFailed to initialize NVML: Driver/library version mismatch\n$ nvidia-smi{OLD}")) == 2


@pytest.mark.parametrize("text", ["", "hello", "| a | b | c |", "<nvidia_smi_log>", "GPU 0: x", "CUDA Version: 12.2"])
def test_other_text_is_not_taken_for_it(text: str) -> None:
    assert parse_nvidia_smi(text) is None


def test_xml_that_declares_entities_is_refused() -> None:
    bomb = '<nvidia_smi_log><!DOCTYPE x [<!ENTITY a "aaaa">]><gpu id="1">&a;</gpu></nvidia_smi_log>'
    assert logs.parse_xml(bomb) is None


def test_mig_devices_are_not_taken_for_the_gpus_own_memory() -> None:
    text = """<nvidia_smi_log><gpu id="00000000:01:00.0"><product_name>NVIDIA A100-SXM4-80GB</product_name>
    <mig_mode><current_mig>Enabled</current_mig></mig_mode>
    <mig_devices><mig_device><fb_memory_usage><total>9728 MiB</total></fb_memory_usage></mig_device></mig_devices>
    <fb_memory_usage><total>81920 MiB</total></fb_memory_usage></gpu></nvidia_smi_log>"""
    (gpu,) = gpus(text)
    assert gpu.mig is True and gpu.memory_total_bytes == 81920 << 20


QUERY = """==============NVSMI LOG==============
Driver Version                            : 535.161.08
CUDA Version                              : 12.2
Attached GPUs                             : 1
GPU 00000000:10:1C.0
    Product Name                          : NVIDIA A100-SXM4-40GB
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
            HW Power Brake Slowdown       : Not Active
    Clocks Event Reasons Counters
        SW Thermal Slowdown               : 100 us
    ECC Errors
        Volatile
            SRAM Uncorrectable            : 1
            DRAM Correctable              : 7
            DRAM Uncorrectable            : 3
        Aggregate
            DRAM Uncorrectable            : 9
    Remapped Rows
        Pending                           : Yes
        Remapping Failure Occurred        : No
    Processes
        GPU instance ID                   : N/A
        Process ID                        : 4242
            Type                          : C
            Name                          : python3
            Used GPU Memory               : 1024 MiB
        Process ID                        : 4243
            Type                          : G
            Name                          : Xorg
            Used GPU Memory               : 10 MiB
"""


def test_query_text() -> None:
    (gpu,) = gpus(QUERY)
    assert gpu.pci_address == "0000:10:1c.0"
    assert gpu.clock_event_reasons == 0x4 | 0x8 | 0x40  # the counter of the same name is none
    assert gpu.ecc_uncorrected_volatile == 4  # volatile only, uncorrectable only
    assert (gpu.rows_remap_pending, gpu.rows_remap_failed) == (True, False)
    assert not isinstance(gpu.processes, Missing)
    assert [(item.pid, item.name, item.used_bytes) for item in gpu.processes] == [(4242, "python3", 1024 << 20)]


@pytest.mark.parametrize(
    ("file", "driver", "name", "mib"),
    [
        ("gtx-1660-ti.xml", "418.43", "Graphics Device", 5912),
        ("tesla-t4.xml", "515.105.01", "Tesla T4", 15360),
        ("quadro-p2000-v12.xml", "525.125.06", "Quadro P2000", 5120),
        ("rtx-3090-v12.xml", "525.147.05", "NVIDIA GeForce RTX 3090", 24576),
        ("a100-sxm4-v12.xml", "535.54.03", "NVIDIA A100-SXM4-80GB", 81920),
        ("rtx-3080-v13.xml", "595.58.03", "NVIDIA GeForce RTX 3080", 10240),
        ("h200-590.48.01.txt", "590.48.01", "NVIDIA H200", 143771),
    ],
)
def test_real_output_over_the_schema_versions(file: str, driver: str, name: str, mib: int) -> None:
    text = recorded_elsewhere(f"nvidia-smi/{file}").read_text()
    found = parse_nvidia_smi(text)
    assert found is not None and found.driver_version == driver and found.error == ""
    (gpu,) = gpus(text)
    assert (gpu.name, gpu.memory_total_bytes) == (name, mib << 20)
    assert not any(
        isinstance(fact := getattr(gpu, field), Missing) and fact.why in (Why.UNPARSED, Why.FAILED)
        for field in gpu.__struct_fields__
    )


@given(st.text(max_size=2000))
def test_any_text_is_survived(text: str) -> None:
    found = parse_nvidia_smi(text)
    assert found is None or isinstance(found, GpuFacts)


LINES = [line for sample in (OLD, NEW, QUERY) for line in sample.splitlines()] + ["ERR!", "N/A", "|" * 300, "GPU x:", "    :  : "]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(LINES), max_size=40), st.integers(0, 30))
def test_torn_and_shuffled_output_is_survived(lines: list[str], cut: int) -> None:
    text = "\n".join(line[cut // 2 :] if cut % 2 else line for line in lines)
    found = parse_nvidia_smi(text)
    assert found is None or isinstance(found, GpuFacts)
    for parse in (logs.parse_query, complaints.parse_failure, logs.parse_xml):
        answer = parse(text)
        assert answer is None or isinstance(codec.as_fact(answer, GpuFacts, "x"), GpuFacts)
    parse_table(text)


def test_a_huge_paste_is_read_in_reasonable_time() -> None:
    import time

    started = time.monotonic()
    parse_nvidia_smi(OLD + "| 0 " * 200_000 + "\n" + "|   0  x | y | z |\n" * 20_000)
    assert time.monotonic() - started < 5
