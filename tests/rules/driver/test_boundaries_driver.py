"""What several rules on the driver ask of a host, each answer from each side."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from torchtune_sys.model.facts.driver import DriverFacts
from torchtune_sys.model.facts.gpu import GpuFacts
from torchtune_sys.model.facts.pci import PciFacts
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Unknown, Why
from torchtune_sys.rules import gates
from torchtune_sys.rules.driver import common as driver_state

DENIED = Missing(Why.DENIED, "test")
NOTHING = Missing(Why.ABSENT, "test")
FIRST = "0000:1b:00.0"


def driver(seen: Snapshot) -> DriverFacts:
    assert not isinstance(seen.driver, Missing)
    return seen.driver


def gpu(seen: Snapshot) -> GpuFacts:
    assert not isinstance(seen.gpu, Missing)
    return seen.gpu


def pci(seen: Snapshot) -> PciFacts:
    assert not isinstance(seen.pci, Missing)
    return seen.pci


def with_driver(seen: Snapshot, **facts: Any) -> Snapshot:
    return msgspec.structs.replace(seen, driver=msgspec.structs.replace(driver(seen), **facts))


def with_gpu(seen: Snapshot, **facts: Any) -> Snapshot:
    return msgspec.structs.replace(seen, gpu=msgspec.structs.replace(gpu(seen), **facts))


def bound(seen: Snapshot, name: Any, *addresses: str) -> Snapshot:
    """The same host with these PCI functions (all without one named) under another kernel driver."""
    facts = pci(seen)
    assert not isinstance(facts.devices, Missing)
    devices = tuple(
        msgspec.structs.replace(device, driver=name) if device.address in addresses or not addresses else device
        for device in facts.devices
    )
    return msgspec.structs.replace(seen, pci=msgspec.structs.replace(facts, devices=devices))


def test_a_gpu_that_a_virtual_machine_has_is_not_this_hosts(healthy: Snapshot) -> None:
    assert FIRST in driver_state.gpu_addresses(healthy)
    rest = driver_state.gpu_addresses(bound(healthy, "vfio-pci", FIRST))
    assert (len(rest), FIRST in rest) == (7, False)
    with pytest.raises(NotApplicable):
        driver_state.gpu_addresses(bound(healthy, "vfio-pci"))


@pytest.mark.parametrize("found", [(), NOTHING])
def test_a_bus_without_gpu_is_not_judged(healthy: Snapshot, found: Any) -> None:
    with pytest.raises(NotApplicable):
        driver_state.gpu_addresses(with_driver(healthy, nvidia_devices=found))


def test_a_bus_that_was_not_seen_is_unknown(healthy: Snapshot) -> None:
    with pytest.raises(Unknown):
        driver_state.gpu_addresses(with_driver(healthy, nvidia_devices=DENIED))


def test_the_kernel_driver_of_a_function(healthy: Snapshot) -> None:
    assert driver_state.bound_driver(healthy, FIRST) == "nvidia"
    assert driver_state.bound_driver(healthy, "0000:ff:1f.7") == ""
    assert driver_state.bound_driver(bound(healthy, NOTHING, FIRST), FIRST) == ""
    assert driver_state.bound_driver(msgspec.structs.replace(healthy, pci=DENIED), FIRST) == ""
    without = msgspec.structs.replace(healthy, pci=msgspec.structs.replace(pci(healthy), devices=DENIED))
    assert driver_state.bound_driver(without, FIRST) == ""


def test_gpus_that_nvml_serves(healthy: Snapshot) -> None:
    devices = gpu(healthy).devices
    assert not isinstance(devices, Missing)
    assert len(driver_state.seen_by_nvml(healthy)) == 8
    lost = msgspec.structs.replace(devices[0], lost=True)
    nameless = msgspec.structs.replace(devices[1], pci_address=NOTHING)
    assert len(driver_state.seen_by_nvml(with_gpu(healthy, devices=(lost, nameless, *devices[2:])))) == 6
    assert driver_state.seen_by_nvml(with_gpu(healthy, devices=DENIED)) == frozenset()
    assert driver_state.seen_by_nvml(msgspec.structs.replace(healthy, gpu=DENIED)) == frozenset()


def test_what_nvml_said_of_itself(healthy: Snapshot) -> None:
    assert driver_state.nvml_error(healthy) == ""
    assert driver_state.nvml_error(with_gpu(healthy, error="driver-not-loaded")) == "driver-not-loaded"
    assert driver_state.nvml_error(msgspec.structs.replace(healthy, gpu=DENIED)) == ""


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"module_loaded": True, "library_version": NOTHING}, "loaded"),
        ({"library_version": NOTHING, "modules_for_kernel": False}, "no-driver"),
        ({"library_version": NOTHING, "modules_for_kernel": NOTHING}, "no-driver"),
        ({"library_version": NOTHING, "modules_for_kernel": True}, "not-loaded"),
        ({"modules_for_kernel": NOTHING, "secure_boot": True}, "not-loaded"),
        ({"modules_for_kernel": False, "secure_boot": True}, "not-built"),
        ({"modules_for_kernel": True, "secure_boot": True}, "secure-boot"),
        ({"modules_for_kernel": True, "secure_boot": False}, "not-loaded"),
    ],
)
def test_why_no_module_runs(healthy: Snapshot, facts: dict[str, Any], why: str) -> None:
    seen = with_driver(healthy, **{"module_loaded": False, "library_version": "580.95.05", **facts})
    assert driver_state.why_no_module(seen) == why


@pytest.mark.parametrize("missing", ["module_loaded", "library_version", "modules_for_kernel", "secure_boot"])
def test_why_no_module_runs_is_unknown_where_what_decides_is(healthy: Snapshot, missing: str) -> None:
    facts = {"module_loaded": False, "library_version": "580.95.05", "modules_for_kernel": True, "secure_boot": False}
    with pytest.raises(Unknown):
        driver_state.why_no_module(with_driver(healthy, **{**facts, missing: DENIED}))


@pytest.mark.parametrize("name", ["nouveau", "nova_core", "NovaCore"])
def test_another_kernel_driver_explains_it_before_all_else(healthy: Snapshot, name: str) -> None:
    seen = bound(with_driver(healthy, module_loaded=False, library_version=NOTHING), name, FIRST)
    assert driver_state.why_no_module(seen) == "nouveau"


def test_the_driver_in_use_goes_before_the_installed_one(healthy: Snapshot) -> None:
    versions = with_gpu(with_driver(healthy, module_version="1.1", library_version="3.3"), driver_version="2.2")
    assert driver_state.driver_version(versions) == "1.1"
    versions = with_driver(versions, module_version=NOTHING)
    assert driver_state.driver_version(versions) == "2.2"
    assert driver_state.driver_version(with_gpu(versions, driver_version=NOTHING)) == "3.3"
    assert driver_state.driver_version(msgspec.structs.replace(versions, gpu=DENIED)) == "3.3"
    assert driver_state.driver_version(with_driver(versions, module_version="none")) == "2.2"
    nowhere = msgspec.structs.replace(with_driver(versions, library_version=NOTHING), gpu=DENIED)
    assert driver_state.driver_version(nowhere) == NOTHING


@pytest.mark.parametrize(
    ("device", "version", "flavour", "served"),
    [
        ("0x2330", "580.95.05", "open", True),  # H100
        ("0x2330", "580.95.05", "proprietary", True),
        ("0x1db4", "580.95.05", "proprietary", True),  # V100: 580 is the last branch, and no open module serves it
        ("0x1db4", "590.44.01", "proprietary", False),
        ("0x1db4", "580.95.05", "open", False),
        ("0x2901", "580.95.05", "open", True),  # B200
        ("0x2901", "580.95.05", "proprietary", False),
        ("0x2901", "470.256.02", "open", False),
    ],
)
def test_gpus_that_a_driver_serves(healthy: Snapshot, device: str, version: str, flavour: str, served: bool) -> None:
    facts = pci(healthy)
    assert not isinstance(facts.devices, Missing)
    devices = tuple(msgspec.structs.replace(d, device=device) if d.address == FIRST else d for d in facts.devices)
    seen = msgspec.structs.replace(healthy, pci=msgspec.structs.replace(facts, devices=devices))
    seen = with_driver(seen, module_version=version, module_flavour=flavour)
    assert (FIRST not in driver_state.not_served(seen)) is served


@pytest.mark.parametrize("family", ["pci", "driver"])
def test_a_driver_is_not_blamed_for_what_was_not_seen(healthy: Snapshot, family: str) -> None:
    assert driver_state.not_served(msgspec.structs.replace(healthy, **{family: DENIED})) == frozenset()


def test_the_gate_for_nvidia_hardware(healthy: Snapshot) -> None:
    gates.nvidia_hardware(healthy)
    unseen = with_driver(healthy, nvidia_devices=NOTHING)
    gates.nvidia_hardware(unseen)  # NVML shows eight
    for nothing in (NOTHING, ()):
        bare = with_gpu(with_driver(healthy, nvidia_devices=nothing), devices=())
        with pytest.raises(NotApplicable):
            gates.nvidia_hardware(bare)
        with pytest.raises(NotApplicable):
            gates.nvidia_hardware(with_gpu(bare, vendor="amd", devices=gpu(healthy).devices))
        for why in (Why.TIMEOUT, Why.FAILED, Why.UNPARSED, Why.CRASHED):
            with pytest.raises(Unknown):
                gates.nvidia_hardware(with_gpu(bare, devices=Missing(why, "NVML")))
            with pytest.raises(Unknown):
                gates.nvidia_hardware(msgspec.structs.replace(bare, gpu=Missing(why, "NVML")))
        with pytest.raises(NotApplicable):
            gates.nvidia_hardware(msgspec.structs.replace(bare, gpu=Missing(Why.NO_TOOL, "NVML")))
    with pytest.raises(Unknown):
        gates.nvidia_hardware(with_gpu(with_driver(healthy, nvidia_devices=DENIED), devices=()))


def test_gpus_are_counted_from_both_sides(healthy: Snapshot) -> None:
    assert gates.gpu_count(healthy) == 8
    blind = with_gpu(healthy, devices=DENIED)
    assert gates.gpu_count(with_driver(blind, nvidia_devices=("a",), amd_devices=("b", "c"))) == 1  # its torch is for CUDA
    assert gates.gpu_count(with_driver(blind, nvidia_devices=("a",), amd_devices=NOTHING)) == 1
    assert gates.gpu_count(with_driver(blind, nvidia_devices=NOTHING, amd_devices=("b", "c"))) == 2
    for missing in ("nvidia_devices", "amd_devices"):
        with pytest.raises(Unknown):
            gates.gpu_count(with_driver(blind, **{"nvidia_devices": (), "amd_devices": (), missing: DENIED}))


@pytest.mark.parametrize("container", ["docker", "kubernetes"])
def test_a_containers_gpus_are_not_those_of_the_bus(healthy: Snapshot, container: str) -> None:
    unasked = with_gpu(healthy, devices=Missing(Why.NOT_RECORDED, "NVML"))
    assert gates.gpu_count(unasked) == 8 and not isinstance(unasked.system, Missing)
    inside = msgspec.structs.replace(unasked, system=msgspec.structs.replace(unasked.system, container=container))
    assert gates.gpu_count(inside) == 8  # by its nodes
    assert not isinstance(inside.driver, Missing) and not isinstance(inside.driver.device_nodes, Missing)
    two = tuple(
        node for node in inside.driver.device_nodes if node.path not in [f"/dev/nvidia{number}" for number in range(2, 8)]
    )
    assert gates.gpu_count(with_driver(inside, device_nodes=two)) == 2
    for untold in ((), DENIED):
        with pytest.raises(Unknown):
            gates.gpu_count(with_driver(inside, device_nodes=untold))


@pytest.mark.parametrize(
    ("nodes", "there"), [(("uverbs0", "rdma_cm"), True), (("rdma_cm",), False), ((), False), (NOTHING, False), (DENIED, True)]
)
def test_rdma_devices_are_opened_by_their_nodes(healthy: Snapshot, nodes: Any, there: bool) -> None:
    assert not isinstance(healthy.network, Missing)
    network = msgspec.structs.replace(healthy.network, verbs_nodes=nodes)
    seen = msgspec.structs.replace(healthy, network=network)
    assert gates.verbs_devices(seen) is there
    assert gates.rdma_active(seen) is there


@pytest.mark.parametrize(
    ("states", "active"),
    [(["DOWN", "ACTIVE"], True), (["DOWN", "INIT"], False), ([DENIED, "ACTIVE"], True), ([DENIED, "DOWN"], None)],
)
def test_one_active_port_is_enough(healthy: Snapshot, states: list[Any], active: bool | None) -> None:
    assert not isinstance(healthy.network, Missing)
    assert not isinstance(healthy.network.rdma, Missing)
    devices = tuple(
        msgspec.structs.replace(device, ports=(msgspec.structs.replace(device.ports[0], state=state),))
        for device, state in zip(healthy.network.rdma[:2], states, strict=True)
    )
    seen = msgspec.structs.replace(healthy, network=msgspec.structs.replace(healthy.network, rdma=devices))
    if active is None:
        with pytest.raises(Unknown):
            gates.rdma_active(seen)
    else:
        assert gates.rdma_active(seen) is active
