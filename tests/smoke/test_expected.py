"""What is plausible for a GPU, and when nothing is said."""

from __future__ import annotations

import msgspec

from torchtune_sys.knowledge import gpus
from torchtune_sys.model.facts.gpu import Peers
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.smoke.expected import (
    FP8_SHARE,
    FRUGAL_GEMM_SHARE,
    GEMM_SHARE,
    MEMORY_SHARE,
    NVLINK_SHARE,
    PCIE_SHARE,
    expected,
)


def with_gpus(seen: Snapshot, **changes: object) -> Snapshot:
    assert not isinstance(seen.gpu, Missing) and not isinstance(seen.gpu.devices, Missing)
    first, *others = seen.gpu.devices
    devices = (msgspec.structs.replace(first, **changes), *others)
    return msgspec.structs.replace(seen, gpu=msgspec.structs.replace(seen.gpu, devices=devices))


def test_shares_of_the_data_sheet(healthy: Snapshot) -> None:
    # NVIDIA H100 data sheet, SXM5: 989 TFLOP/s dense in bfloat16, 67 in float32, 3.35 TB/s.
    found = expected(healthy)["NVIDIA H100 80GB HBM3"]
    shares = {"float32": 67, "bfloat16": 989, "float16": 989}
    assert {name: found["gemm"][f"{name} GEMM"] for name in shares} == {name: GEMM_SHARE * rate for name, rate in shares.items()}
    assert found["memory"] == {"memory copy": MEMORY_SHARE * 3350}
    assert found["copy"] == {"pinned to device": PCIE_SHARE * 63.0, "pinned to host": PCIE_SHARE * 63.0}


def test_what_all_reduce_is_to_reach_goes_by_the_links_between_all_gpus(healthy: Snapshot) -> None:
    """H100 SXM5: 900 GB/s both ways; some 360 GB/s of bus bandwidth in nccl-tests."""
    assert not isinstance(healthy.gpu, Missing) and not isinstance(healthy.gpu.devices, Missing)
    count = len(healthy.gpu.devices)
    pairs = [(one, other) for one in range(count) for other in range(one + 1, count)]

    def reached(links: int) -> dict[str, float]:
        peers = tuple(Peers(first=one, second=other, nvlinks=links if one == 0 else 18) for one, other in pairs)
        seen = msgspec.structs.replace(healthy, gpu=msgspec.structs.replace(healthy.gpu, p2p=peers))
        return expected(seen)["NVIDIA H100 80GB HBM3"].get("allreduce", {})

    assert reached(18) == dict.fromkeys(("bus bandwidth of 256 MiB", "bus bandwidth of 1024 MiB"), NVLINK_SHARE * 450)
    assert reached(0) == {}


def test_each_model_is_expected_to_do_what_it_can(healthy: Snapshot) -> None:
    several = expected(with_gpus(healthy, name="NVIDIA A40"))
    assert {*several} == {"NVIDIA A40", "NVIDIA H100 80GB HBM3"}
    found = several["NVIDIA A40"]
    assert found["gemm"]["bfloat16 GEMM"] == GEMM_SHARE * 149.7
    assert found["memory"]["memory copy"] == MEMORY_SHARE * 696


def test_a_board_of_little_power_is_allowed_what_was_measured_on_healthy_ones(healthy: Snapshot) -> None:
    """24 TFLOP/s in float16 (NVIDIA's forum, topic 264462)."""
    least = expected(with_gpus(healthy, name="Tesla T4"))["Tesla T4"]["gemm"]["float16 GEMM"]
    assert least == FRUGAL_GEMM_SHARE * 65 < 24


def test_fp8_is_asked_for_less_than_a_healthy_board_was_seen_to_do_at_its_power_cap(healthy: Snapshot) -> None:
    """580 TFLOP/s on an H100 PCIe (pytorch/ao#3342)."""
    least = expected(with_gpus(healthy, name="NVIDIA H100 PCIe"))["NVIDIA H100 PCIe"]["gemm"]["fp8 GEMM"]
    assert least == FP8_SHARE * 1513 < 580 < GEMM_SHARE * 1513


def test_nothing_is_expected_of_a_bus_on_which_all_is_encrypted(healthy: Snapshot) -> None:
    """Confidential computing: some GB/s, by one CPU."""
    assert not isinstance(healthy.gpu, Missing)
    for state, timed in (("off", True), ("ready", False)):
        seen = msgspec.structs.replace(healthy, gpu=msgspec.structs.replace(healthy.gpu, confidential=state))
        found = expected(seen)["NVIDIA H100 80GB HBM3"]
        assert ("copy" in found) is timed and "gemm" in found


def test_nothing_is_expected_of_what_is_not_known_and_the_others_keep_theirs(healthy: Snapshot) -> None:
    assert {*expected(with_gpus(healthy, name="NVIDIA X999"))} == {"NVIDIA H100 80GB HBM3"}
    assert not isinstance(healthy.gpu, Missing) and not isinstance(healthy.gpu.devices, Missing)
    parts = tuple(msgspec.structs.replace(device, mig=True) for device in healthy.gpu.devices)
    assert expected(msgspec.structs.replace(healthy, gpu=msgspec.structs.replace(healthy.gpu, devices=parts))) == {}


def test_no_model_is_expected_to_do_what_it_cannot() -> None:
    """V100 and T4 have no bfloat16 in hardware."""
    for name in ("Tesla T4", "Tesla V100-SXM2-16GB"):
        model = gpus.by_name(name)
        assert model is not None and model.bf16_tflops is None and model.fp16_tflops
