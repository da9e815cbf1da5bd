"""One fault that two sources show is one finding, and the better source keeps what the other saw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from logged_hosts import ECC, seen_with_log

from conftest import judge, load
from torchtune_sys.model.rule import Result, Verdict


def with_log(*lines: str, gpus: dict[int, dict[str, Any]] | None = None, **overlay: Any) -> Mapping[str, Result]:
    return judge(seen_with_log(*lines, gpus=gpus, **overlay))


LINK = "[1200000.100000] NVRM: Xid (PCI:0000:61:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 6(0x10000)"
AGAIN = "[1201000.000000] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"


def failed(results: Mapping[str, Result], *names: str) -> dict[str, list[str]]:
    return {
        name: [evidence.subject.partition(" (")[0] for evidence in results[name].evidence if evidence.verdict is Verdict.FAIL]
        for name in names
        if results[name].verdict is Verdict.FAIL
    }


def test_a_failed_link_is_told_by_the_log_with_what_nvml_sees() -> None:
    results = with_log(LINK, gpus={3: {"nvlinks_down": [6]}})
    assert failed(results, "xid-nvlink-error", "nvlink-inactive") == {"xid-nvlink-error": ["GPU 3"]}
    assert "links down: 6" in results["xid-nvlink-error"].evidence[0].seen


def test_another_gpus_link_is_still_told() -> None:
    results = with_log(LINK, gpus={3: {"nvlinks_down": [6]}, 5: {"nvlinks_down": [1]}})
    assert failed(results, "xid-nvlink-error", "nvlink-inactive") == {"xid-nvlink-error": ["GPU 3"], "nvlink-inactive": ["GPU 5"]}


def test_a_link_that_is_down_after_the_driver_was_loaded_again_is_told_by_nvml() -> None:
    results = with_log(LINK, AGAIN, gpus={3: {"nvlinks_down": [6]}})
    assert failed(results, "xid-nvlink-error", "nvlink-inactive") == {"nvlink-inactive": ["GPU 3"]}


def test_memory_errors_of_a_gpu() -> None:
    names = ("xid-memory-error", "gpu-ecc-uncorrectable")
    both = with_log(ECC, gpus={3: {"ecc_uncorrected_volatile": 2}})
    assert failed(both, *names) == {"xid-memory-error": ["GPU 3"]}
    assert "2 uncorrectable errors counted" in both["xid-memory-error"].evidence[0].seen
    other = with_log(ECC, gpus={3: {"ecc_uncorrected_volatile": 2}, 1: {"ecc_uncorrected_volatile": 1}})
    assert failed(other, *names) == {"xid-memory-error": ["GPU 3"], "gpu-ecc-uncorrectable": ["GPU 1"]}
    since = with_log(ECC, AGAIN, gpus={3: {"ecc_uncorrected_volatile": 2}})
    assert failed(since, *names) == {"gpu-ecc-uncorrectable": ["GPU 3"]}
    assert failed(with_log(gpus={3: {"ecc_uncorrected_volatile": 2}}), *names) == {"gpu-ecc-uncorrectable": ["GPU 3"]}


def test_corrected_errors_of_a_module() -> None:
    names = ("memory-corrected-errors", "memory-errors-counted")
    mc = "/sys/devices/system/edac/mc"
    line = "[1200000.000000] EDAC MC0: 60 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x0)"
    assert failed(with_log(line, files={f"{mc}/mc0/ce_count": "40210"}), *names) == {
        "memory-corrected-errors": ["CPU_SrcID#0_MC#0_Chan#1_DIMM#0"]
    }
    other = with_log(line, files={f"{mc}/mc1/ce_count": "40210"})
    assert failed(other, *names)["memory-errors-counted"] == ["mc1"]
    few = with_log(line.replace("60 CE", "49 CE"), files={f"{mc}/mc0/ce_count": "40210"})
    assert failed(few, *names) == {"memory-errors-counted": ["mc0"]}
    only = with_log(line, files={f"{mc}/mc1/ce_count": None, f"{mc}/mc1/ue_count": None, f"{mc}/mc0/ce_count": "40210"})
    assert only["memory-errors-counted"].verdict is Verdict.NA
    assert only["memory-errors-counted"].note == "memory-corrected-errors tells of it"


def test_heat_of_the_processors() -> None:
    names = ("cpu-thermal-throttle-logged", "cpu-throttled-for-heat")
    count = {"/sys/devices/system/cpu/cpu63/thermal_throttle/package_throttle_count": "5120"}

    def lines(number: int) -> list[str]:
        return [
            f"[{1200000 + 300 * n}.000000] CPU0: Package temperature above threshold, cpu clock throttled (total events = {11 * n + 1})"
            for n in range(number)
        ]

    assert list(failed(with_log(*lines(10), files=count), *names)) == ["cpu-thermal-throttle-logged"]
    assert list(failed(with_log(*lines(9), files=count), *names)) == ["cpu-throttled-for-heat"]
    assert with_log(*lines(10), files=count)["cpu-throttled-for-heat"].verdict is Verdict.NA


def test_a_laptop_is_not_told_of_its_heat() -> None:
    count = "/sys/devices/system/cpu/cpu63/thermal_throttle/package_throttle_count"
    log = load("cpu-thermal-throttle-logged.fail").kernel
    for chassis, wanted in (
        ("10\n", Verdict.NA),
        ("31\n", Verdict.NA),
        ("23\n", Verdict.FAIL),
        ("3\n", Verdict.FAIL),
        ("x\n", Verdict.FAIL),
    ):
        seen = load("healthy", files={"/sys/class/dmi/id/chassis_type": chassis, count: "512000"})
        assert judge(seen)["cpu-throttled-for-heat"].verdict is wanted
        assert judge(msgspec.structs.replace(seen, kernel=log))["cpu-thermal-throttle-logged"].verdict is wanted
