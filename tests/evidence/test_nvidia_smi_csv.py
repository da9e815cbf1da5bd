"""What ``nvidia-smi --query-gpu`` prints."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elsewhere import recorded_elsewhere
from torchtune_sys.evidence.nvidia.smi import parse_nvidia_smi
from torchtune_sys.evidence.nvidia.smi_csv import parse_csv
from torchtune_sys.model.facts.gpu import Gpu, GpuFacts
from torchtune_sys.model.values import Missing, Why


def gpus(text: str) -> tuple[Gpu, ...]:
    found = parse_nvidia_smi(text)
    assert found is not None and not isinstance(found.devices, Missing)
    return found.devices


HEADER = (
    "index, name, driver_version, pci.bus_id, memory.total [MiB], memory.used [MiB], enforced.power.limit [W], power.default_limit [W], "
    "temperature.gpu, utilization.gpu [%], clocks_event_reasons.supported, clocks_event_reasons.active, ecc.errors.uncorrected.volatile.total, "
    "remapped_rows.pending, compute_mode, mig.mode.current, compute_cap, persistence_mode"
)
ROWS = (
    "0, NVIDIA H100 80GB HBM3, 580.95.05, 00000000:1B:00.0, 81559 MiB, 1 MiB, 500.00 W, 700.00 W, 41, 0 %, "
    "0x00000000000001FF, 0x0000000000000044, 3, Yes, Exclusive_Process, Disabled, 9.0, Enabled\n"
    "1, NVIDIA H100 80GB HBM3, 580.95.05, 00000000:43:00.0, 81559 MiB, [N/A], [Not Supported], 700.00 W, 41, 0 %, "
    "0x00000000000001FF, 0x0000000000000000, [N/A], No, Default, [N/A], 9.0, Disabled\n"
)


def test_with_header_and_units() -> None:
    first, second = gpus(f"$ nvidia-smi --query-gpu=... --format=csv\n{HEADER}\n{ROWS}")
    assert (first.name, first.pci_address, first.compute_capability) == ("NVIDIA H100 80GB HBM3", "0000:1b:00.0", (9, 0))
    assert (first.memory_total_bytes, first.power_limit_mw, first.power_default_mw) == (81559 << 20, 500_000, 700_000)
    assert (first.clock_event_reasons, first.ecc_uncorrected_volatile, first.rows_remap_pending) == (0x44, 3, True)
    assert (first.compute_mode, first.mig, first.persistence) == ("exclusive-process", False, True)
    assert isinstance(second.power_limit_mw, Missing) and second.power_limit_mw.why is Why.NOT_SUPPORTED
    assert isinstance(second.vbios, Missing) and second.vbios.why is Why.NOT_RECORDED
    assert second.index == 1 and second.persistence is False
    found = parse_nvidia_smi(f"{HEADER}\n{ROWS}")
    assert found is not None and found.driver_version == "580.95.05"


def test_without_units() -> None:
    bare = ROWS.replace(" MiB", "").replace(" W", "").replace(" %", "")
    assert gpus(f"{HEADER}\n{bare}") == gpus(f"{HEADER}\n{ROWS}")


def test_without_a_header_the_command_tells_the_columns() -> None:
    (gpu,) = gpus(
        "$ nvidia-smi --query-gpu=name,memory.total,compute_cap --format=csv,noheader,nounits\nTesla T4, 15360, 7.5\n$\n"
    )
    assert (gpu.name, gpu.memory_total_bytes, gpu.compute_capability) == ("Tesla T4", 15360 << 20, (7, 5))


def test_reasons_under_the_old_names_and_one_by_one() -> None:
    (gpu,) = gpus("index, clocks_throttle_reasons.active, name\n0, 0x0000000000000008, Tesla T4\n\n")
    assert gpu.clock_event_reasons == 0x8
    (gpu,) = gpus("clocks_event_reasons.supported, clocks_event_reasons.active, name\n0x1, 0x0000000000000009, Tesla T4\n")
    assert gpu.clock_event_reasons == 0x1  # what it does not support is not meant
    (gpu,) = gpus(
        "index, memory.total [MiB], clocks_event_reasons.hw_slowdown, clocks_event_reasons.hw_thermal_slowdown\n0, 1 MiB, Active, Active\n"
    )
    assert gpu.clock_event_reasons == 0x48


def test_the_last_row_of_a_loop_counts() -> None:
    (gpu,) = gpus("index, temperature.gpu, memory.used [MiB]\n0, 41, 1 MiB\n0, 86, 7 MiB\n")
    assert (gpu.temperature_c, gpu.memory_used_bytes) == (86, 7 << 20)


@pytest.mark.parametrize("words", ["[GPU is lost]", "[GPU requires reset]"])
def test_a_lost_gpu_is_one_of_several(words: str) -> None:
    first, second = gpus(
        f"index, uuid, temperature.gpu, memory.total [MiB]\n0, GPU-1, 41, 81559 MiB\n1, GPU-2, {words}, {words}\n"
    )
    assert (first.lost, second.lost) == (False, True)


@pytest.mark.parametrize(
    "text",
    [
        "index, name\n0, alice\n",
        "name, age, city\nbob, 3, Rome\n",
        "timestamp, gpu_name, gpu_bus_id, pid\n2026, NVIDIA L4, 00000000:01:00.0, 7\n",
        "memory.total, utilization.gpu, and other things\n1, 2, 3\n",
        "index, memory.total [MiB], temperature.gpu\nI said: well, that, is it\n",
    ],
)
def test_other_tables_are_not_taken_for_it(text: str) -> None:
    assert parse_nvidia_smi(text) is None


def test_real_query_agrees_with_the_log_of_the_same_minute() -> None:
    text = recorded_elsewhere("nvidia-smi/h200-590.48.01.txt").read_text()
    idle = text.partition("# load ::")[0]
    (row,), driver, _ = parse_csv(idle)
    (log,) = gpus(idle.partition("# idle :: query-gpu")[0])
    assert driver == "590.48.01" and row["compute_capability"] == [9, 0] and row["inforom_valid"] is True
    same = set(row) - {"compute_capability", "inforom_valid", "lost", "fabric_health", "row_banks", "mig"}
    for name in same:
        fact = getattr(log, name)
        assert (row[name]["$missing"] == fact.why.value) if isinstance(fact, Missing) else (row[name] == fact), name
    assert tuple(row["row_banks"]) == log.row_banks


@settings(max_examples=100)
@given(
    st.lists(st.sampled_from([*HEADER.split(", "), "[N/A]", "ERR!", "-1", "9" * 40, "0x", "\n", ", "]), max_size=60),
    st.text(max_size=200),
)
def test_any_table_is_survived(pieces: list[str], rest: str) -> None:
    for text in (", ".join(pieces), HEADER + "\n" + rest, HEADER + "\n" + ", ".join(pieces[:18])):
        found = parse_nvidia_smi(text)
        assert found is None or isinstance(found, GpuFacts)


def test_a_long_table_costs_little() -> None:
    started = time.process_time()
    parse_nvidia_smi("uuid, memory.total [MiB]\n" + "".join(f"GPU-{n}, 1 MiB\n" for n in range(100_000)))
    parse_nvidia_smi("index, memory.total [MiB]\n" + "0, 1 MiB\n" * 100_000)
    assert time.process_time() - started < 60  # a second or two; hours if each row were compared with all others
