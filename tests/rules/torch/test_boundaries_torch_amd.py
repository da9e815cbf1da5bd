"""AMD GPUs by the names that torch has for them and by their numbers on the bus, and the builds of torch that have code for them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from altered import DENIED, FAIL, NA, NOTHING, PASS, altered, lines, verdict
from torch_tools_hosts import UNTOLD, with_torch

from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing


def with_amd(seen: Snapshot, version: str, names: tuple[Any, ...] = (), devices: tuple[tuple[str, Any], ...] = ()) -> Snapshot:
    """GPUs by the names that torch has for them, or PCI functions by vendor and device."""
    assert not isinstance(seen.gpu, Missing) and not isinstance(seen.gpu.devices, Missing)
    assert not isinstance(seen.pci, Missing) and not isinstance(seen.pci.devices, Missing)
    gpus = tuple(
        msgspec.structs.replace(gpu, index=at, name=name)
        for at, (gpu, name) in enumerate(zip(seen.gpu.devices, names, strict=False))
    )
    functions = tuple(
        msgspec.structs.replace(one, vendor=vendor, device=device)
        for one, (vendor, device) in zip(seen.pci.devices, devices, strict=False)
    )
    seen = altered(seen, gpu__vendor="amd", gpu__devices=gpus, pci__devices=functions)
    return with_torch(seen, version=version, cuda=NOTHING, hip="7.1")


@pytest.mark.parametrize(
    ("version", "judged"),
    [
        ("2.11.0+rocm7.2", True),
        ("2.4.1+rocm6.1", True),
        ("2.0.1+rocm5.4.2", True),
        ("2.13.0.dev20260901+rocm7.2", True),
        ("2.14.0+rocm7.3", False),  # may serve more
        ("2.11.0+rocm7.2.git1234", False),  # AMD's own
        ("2.11.0a0+git1234", False),
        ("1.13.1+rocm5.2", False),
    ],
)
def test_which_rocm_builds_are_known(healthy: Snapshot, version: str, judged: bool) -> None:
    seen = with_amd(healthy, version, ("AMD Radeon (gfx1010)", "gfx942:sramecc+:xnack-"))
    told = [("GPU 0", FAIL), ("GPU 1", PASS)] if judged else []
    assert lines(seen, "rocm-arch-not-in-wheel") == told
    assert verdict(seen, "rocm-arch-not-in-wheel") is (FAIL if judged else NA)


@pytest.mark.parametrize(
    ("names", "devices", "told"),
    [
        (("gfx90a",), (("0x1002", "0x731f"),), ["GPU 0"]),  # what torch calls them comes first
        ((), (("0x1002", "0x731f"), ("0x1002", "0x74a1")), ["GPU 0000", "GPU 0000"]),
        ((), (("0x1022", "0x731f"), ("0x1002", UNTOLD), ("0x1002", "0xffff")), []),
        (("AMD Radeon Graphics", UNTOLD), (("0x1002", "0x731f"),), []),
        (("xgfx942", "gfx12345"), (), []),
        ((), (), []),
    ],
)
def test_what_an_amd_gpu_is(
    healthy: Snapshot, names: tuple[Any, ...], devices: tuple[tuple[str, Any], ...], told: list[str]
) -> None:
    seen = with_amd(healthy, "2.11.0+rocm7.2", names, devices)
    assert [subject.partition(":")[0] for subject, _ in lines(seen, "rocm-arch-not-in-wheel")] == told
    assert (verdict(seen, "rocm-arch-not-in-wheel") is NA) is (not told)


def test_graphics_of_a_processor_beside_a_card_and_an_override(healthy: Snapshot) -> None:
    rule_id, build = "rocm-arch-not-in-wheel", "2.11.0+rocm7.2"
    for names, expected in ((("gfx1100", "gfx1036"), PASS), (("gfx1036",), FAIL)):  # a Ryzen 7000 with a Radeon, and alone
        assert lines(with_amd(healthy, build, names), rule_id) == [("GPU 0", expected)]
    for set_to, expected in (("10.3.0", PASS), ("10.1.0", FAIL), ("gfx1030", FAIL), ("9.0.10", FAIL), ("11.0.0", FAIL)):
        env = {"HSA_OVERRIDE_GFX_VERSION": set_to}
        assert verdict(altered(with_amd(healthy, build, ("gfx1031",)), session__env=env), rule_id) is expected, set_to
    for name, set_to, expected in (("gfx909", "9.0.10", PASS), ("gfx942", "9.4.2", PASS), ("gfx942", "10.3.0", FAIL)):
        seen = altered(with_amd(healthy, build, (name,)), session__env={"HSA_OVERRIDE_GFX_VERSION": set_to})
        assert verdict(seen, rule_id) is expected, name


def test_a_cuda_build_beside_a_radeon_that_no_wheel_serves(healthy: Snapshot) -> None:
    for device, expected in (("0x67df", NA), ("0x747e", FAIL), ("0xffff", FAIL)):  # an RX 580, an RX 7800 XT
        seen = with_torch(with_amd(healthy, "", (), (("0x1002", device),)), version="2.11.0+cu130", cuda="13.0", hip=NOTHING)
        assert verdict(seen, "cuda-build-on-amd-host") is expected, device


@pytest.mark.parametrize("unseen", [{"pci": DENIED}, {"pci__devices": DENIED}])
def test_amd_gpus_on_a_bus_that_is_not_seen(healthy: Snapshot, unseen: dict[str, Any]) -> None:
    seen = altered(with_amd(healthy, "2.11.0+rocm7.2"), **unseen)
    assert verdict(seen, "rocm-arch-not-in-wheel") is NA
    named = altered(with_amd(healthy, "2.11.0+rocm7.2", ("gfx1010",)), **unseen)
    assert lines(named, "rocm-arch-not-in-wheel") == [("GPU 0", FAIL)]


@pytest.mark.parametrize("unseen", [{"gpu": UNTOLD}, {"gpu__devices": UNTOLD, "gpu__vendor": ""}])
def test_amd_gpus_that_only_the_bus_tells(healthy: Snapshot, unseen: dict[str, Any]) -> None:
    seen = with_amd(healthy, "2.11.0+rocm7.2", (), (("0x1002", "0x731f"),))
    seen = altered(seen, driver__amd_devices=("0000:1b:00.0",), driver__nvidia_devices=NOTHING, **unseen)
    assert verdict(seen, "rocm-arch-not-in-wheel") is FAIL
