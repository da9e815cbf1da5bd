"""Boundaries of the rules on what PCI devices do together: siblings, ACS, the IOMMU, errors over time, distances, topology files."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from conftest import load
from torchtune_sys import engine
from torchtune_sys.model.rule import Result, Rule, Verdict
from torchtune_sys.model.values import Missing
from torchtune_sys.rules import pci

RULES: dict[str, Rule] = {rule.id: rule for rule in pci.RULES}
GPU = "/sys/devices/pci0000:17/0000:17:01.0/0000:1b:00.0"
ROOT_PORTS = ("17:01.0", "3f:01.0", "4e:01.0", "5d:01.0", "99:01.0", "bf:01.0", "cd:01.0", "db:01.0")
REDIRECTS = {"port_type": "root-port", "acs": ["SrcValid", "ReqRedir", "CmpltRedir"]}


def verdict(rule: str, base: str = "healthy", **overlay: Any) -> Result:
    return engine.judge(load(base, **overlay), [RULES[rule]])[0]


def virtual(rule: str, base: str = "healthy", **overlay: Any) -> Result:
    seen = load(base, **overlay)
    assert not isinstance(seen.system, Missing)
    guest = msgspec.structs.replace(seen, system=msgspec.structs.replace(seen.system, hypervisor="kvm"))
    return engine.judge(guest, [RULES[rule]])[0]


def failed(result: Result) -> list[str]:
    return [item.subject for item in result.evidence if item.verdict is Verdict.FAIL]


def test_in_a_guest_a_gpu_narrower_than_its_siblings_stands_out() -> None:
    assert virtual("gpu-pcie-link-degraded").verdict is Verdict.PASS
    result = virtual("gpu-pcie-link-degraded", files={f"{GPU}/current_link_width": "8"})
    assert failed(result) == ["GPU 0000:1b:00.0"]
    of_another_kind = {f"{GPU}/current_link_width": "8", f"{GPU}/max_link_width": "8"}
    assert virtual("gpu-pcie-link-degraded", files=of_another_kind).verdict is Verdict.PASS


def test_in_a_guest_cards_are_compared_with_cards() -> None:
    result = virtual("pcie-link-degraded", files={"/sys/devices/pci0000:1a/0000:1a:00.0/current_link_width": "4"})
    assert failed(result) == ["mlx5_0 (0000:1a:00.0)"]


def test_acs_matters_between_devices_of_one_switch_only() -> None:
    ports = {f"pci-config:0000:{port}": REDIRECTS for port in ROOT_PORTS}
    assert verdict("acs-redirects-peer-traffic", answers=ports).verdict is Verdict.NA
    # The root port above the switch is on the way of no two of its devices.
    assert verdict("acs-redirects-peer-traffic", "base-switched", answers=ports).verdict is Verdict.PASS
    down = {"pci-config:0000:19:00.0": {**REDIRECTS, "port_type": "downstream-port"}}
    assert failed(verdict("acs-redirects-peer-traffic", "base-switched", answers=down)) == ["bridge 0000:19:00.0"]
    assert virtual("acs-redirects-peer-traffic", "base-switched", answers=down).verdict is Verdict.NA


def test_gpus_given_to_guests_must_stay_apart() -> None:
    uevent = ["DRIVER=vfio-pci", "PCI_CLASS=30200", "PCI_ID=10DE:2330"]
    place = "/sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:00.0/0000:1b:00.0/uevent"
    assert verdict("acs-redirects-peer-traffic", "base-switched", files={place: uevent}).verdict is Verdict.NA
    assert verdict("iommu-translates-gpu-traffic", "base-switched", files={place: uevent}).verdict is Verdict.NA


@pytest.mark.parametrize(
    ("kind", "expected"), [("DMA", "fail"), ("DMA-FQ", "fail"), ("identity", "pass"), ("unmanaged", "pass"), ("blocked", "pass")]
)
def test_types_of_iommu_domains(kind: str, expected: str) -> None:
    group = {"/sys/kernel/iommu_groups/31/type": kind}
    assert verdict("iommu-translates-gpu-traffic", files=group).verdict.value == expected
    assert virtual("iommu-translates-gpu-traffic", files=group).verdict is Verdict.NA


def test_one_gpu_and_no_card_talk_to_nobody() -> None:
    nobody = {f"/sys/class/infiniband/mlx5_{number}/device": None for number in range(8)}
    result = verdict(
        "iommu-translates-gpu-traffic", "base-single-gpu", links=nobody, files={"/sys/kernel/iommu_groups/31/type": "DMA"}
    )
    assert result.verdict is Verdict.NA


@pytest.mark.parametrize(
    ("count", "uptime_s", "expected"),
    [
        (99, 600, "pass"),  # few
        (100, 600, "fail"),  # ten a minute
        (480, 3600, "pass"),  # eight a minute, exactly
        (481, 3600, "fail"),
        (481, 86400, "pass"),
    ],
)
def test_correctable_errors_are_judged_by_their_rate(count: int, uptime_s: int, expected: str) -> None:
    files = {f"{GPU}/aer_dev_correctable": f"RxErr {count}\nTOTAL_ERR_COR {count}\n", "/proc/uptime": f"{uptime_s}.00 1.00\n"}
    assert verdict("pcie-errors-correctable", files=files).verdict.value == expected


def test_errors_of_the_port_above_are_told_of_the_port() -> None:
    port = GPU.rpartition("/")[0]
    zero = "DLP 0\nTOTAL_ERR 0\n"
    files = {
        f"{port}/aer_dev_correctable": zero,
        f"{port}/aer_dev_nonfatal": zero,
        f"{port}/aer_dev_fatal": "SDES 1\nTOTAL_ERR_FATAL 1\n",
    }
    assert failed(verdict("pcie-errors-uncorrectable", files=files)) == ["bridge 0000:17:01.0"]


def far(node: str, *cards: str) -> dict[str, Any]:
    return {f"/sys/devices/pci0000:{card}/0000:{card}:00.0/numa_node": node for card in cards}


def test_a_gpu_far_from_every_card() -> None:
    two = {"nodes": 2}
    result = verdict("gpu-far-from-network", intent=two, files=far("0", "9c", "c2", "d0", "de"))
    assert len(failed(result)) == 4 and "0000:9d:00.0" in failed(result)[0]
    assert verdict("gpu-far-from-network", intent=two, files=far("0", "9c", "c2", "d0")).verdict is Verdict.PASS
    unknown = verdict("gpu-far-from-network", intent=two, files=far("-1", "9c", "c2", "d0", "de"))
    assert unknown.verdict is Verdict.NA
    gone = {f"/sys/class/infiniband/mlx5_{number}/device": None for number in range(1, 8)}
    one = verdict("gpu-far-from-network", intent=two, links=gone)
    assert one.verdict is Verdict.NA and "fewer cards" in one.note
    assert verdict("gpu-far-from-network", intent={"nodes": 1}, files=far("0", "9c", "c2", "d0", "de")).verdict is Verdict.NA


def test_clusters_of_one_socket_are_near() -> None:
    """AMD's NPS, Intel's SNC: NCCL says SYS, and the card is at the same socket all the same."""
    nodes = {
        f"/sys/devices/system/node/node{number}/cpulist": cpus for number, cpus in enumerate(("0-7", "16-23", "8-15", "24-31"))
    }
    files = {**nodes, "/sys/devices/system/node/online": "0-3", **far("2", "1a", "42", "51", "60")}
    for number in (2, 3):
        files[f"/sys/devices/system/node/node{number}/meminfo"] = (
            f"Node {number} MemTotal: 268435456 kB\nNode {number} MemFree: 1000000 kB\n"
        )
    rows = {0: "10 32 12 32", 1: "32 10 32 12", 2: "12 32 10 32", 3: "32 12 32 10"}
    told = {f"/sys/devices/system/node/node{number}/distance": row for number, row in rows.items()}
    result = verdict("gpu-far-from-network", intent={"nodes": 2}, files={**files, **told})
    assert result.verdict is Verdict.PASS and "SYS" in result.evidence[0].seen
    flat = {path: row.replace("12", "32") for path, row in told.items()}
    assert verdict("gpu-far-from-network", intent={"nodes": 2}, files={**files, **flat}).verdict is Verdict.NA


def test_a_topology_file_tells_nccl_the_distances() -> None:
    topology = {
        "/var/run/nvidia-topologyd/virtualTopology.xml": '<system><cpu numaid="0"><pci busid="0000:1b:00.0" class="0x030200"/></cpu></system>'
    }
    result = verdict("gpu-far-from-network", intent={"nodes": 2}, files={**topology, **far("0", "9c", "c2", "d0", "de")})
    assert result.verdict is Verdict.NA and "topology file" in result.note


def test_slow_cards_for_storage_are_no_rails() -> None:
    slow = {f"/sys/class/infiniband/mlx5_{number}/ports/1/rate": "25 Gb/sec (1X EDR)" for number in range(4, 8)}
    result = verdict("gpu-far-from-network", intent={"nodes": 2}, files=slow)
    assert len(failed(result)) == 4  # the second node has slow cards only


def test_a_lost_card_leaves_the_nodes_uneven() -> None:
    gone = {"/sys/class/infiniband/mlx5_5/device": None}
    assert failed(verdict("network-cards-uneven-over-nodes", intent={"nodes": 2}, links=gone)) == ["node 1"]


def topology(*functions: tuple[str, str]) -> dict[str, Any]:
    named = "".join(f'<pci busid="{address}" class="{kind}"/>' for address, kind in functions)
    return {"/etc/topology.xml": f'<system version="1"><cpu numaid="0">{named}</cpu></system>'}


HERE = [(f"0000:{bus}:00.0", "0x030200") for bus in ("1b", "43", "52", "61", "9d", "c3", "d1", "df")]


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        (HERE, "pass"),
        (HERE[:7], "fail"),
        ([*HERE, ("0009:00:00.0", "0x030200")], "fail"),
        ([*HERE, ("0000:1a:00.0", "0x020700"), ("0101:00:00.0", "0x020700")], "pass"),  # NCCL drops a card that is not there
        ([*HERE, ("0101:00:00.0", "0x020700")], "fail"),
        ([("0000:00:16.0", "")], "pass"),  # without classes: switches, perhaps
        ([], "pass"),
    ],
)
def test_topology_files(functions: list[tuple[str, str]], expected: str) -> None:
    result = verdict("topology-file-of-another-machine", env={"NCCL_TOPO_FILE": "/etc/topology.xml"}, files=topology(*functions))
    assert result.verdict.value == expected


def test_a_small_region_of_a_geforce_is_as_it_should_be() -> None:
    small = {f"{GPU}/resource": ["0xc0000000 0xcfffffff 0x14220c"]}
    assert verdict("gpu-bar-small", files=small).verdict is Verdict.FAIL
    names = {"nvml": {"devices": [{"index": 0, "name": "NVIDIA GeForce RTX 4090", "pci_address": "0000:1b:00.0"}]}}
    assert verdict("gpu-bar-small", files=small, answers=names).verdict is not Verdict.FAIL


def test_a_sleeping_gpu_is_left_alone() -> None:
    seen = load("healthy", files={f"{GPU}/power/runtime_status": "suspended", f"{GPU}/current_link_width": "1"})
    assert not isinstance(seen.pci, Missing) and not isinstance(seen.pci.devices, Missing)
    gpu = next(device for device in seen.pci.devices if device.address == "0000:1b:00.0")
    assert gpu.asleep and isinstance(gpu.link.current_width, Missing) and isinstance(gpu.config, Missing)
    assert engine.judge(seen, [RULES["gpu-pcie-link-degraded"]])[0].verdict is Verdict.PASS  # of the others


@pytest.mark.parametrize(("gained", "expected"), [(0, "pass"), (1, "pass"), (2, "fail"), (500, "fail")])
def test_errors_that_come_while_one_looks(gained: int, expected: str) -> None:
    answer = {"pci-errors": {"seconds": 1.0, "correctable": {"0000:17:01.0": gained, "0000:ff:00.0": 9}}}
    assert verdict("pcie-errors-correctable", intent={"live": True}, answers=answer).verdict.value == expected
    assert verdict("pcie-errors-correctable", answers=answer).verdict is Verdict.PASS  # not asked for


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([], Verdict.UNKNOWN),
        ({"seconds": "1"}, Verdict.UNKNOWN),
        ({"seconds": 0, "correctable": {"0000:1b:00.0": 3}}, Verdict.FAIL),
    ],
)
def test_odd_answers_about_errors(answer: Any, expected: Verdict) -> None:
    assert verdict("pcie-errors-correctable", intent={"live": True}, answers={"pci-errors": answer}).verdict is expected


@pytest.mark.parametrize(
    ("name", "capability", "expected"),
    [
        ("NVIDIA GeForce RTX 4090", (8, 9), Verdict.NA),  # its driver offers no peer-to-peer over PCIe
        ("NVIDIA GeForce GTX 1080 Ti", (6, 1), Verdict.FAIL),
        ("NVIDIA RTX A6000", (8, 6), Verdict.FAIL),
    ],
)
def test_a_translating_iommu_harms_only_who_talks(name: str, capability: tuple[int, int], expected: Verdict) -> None:
    seen = load("healthy", files={"/sys/kernel/iommu_groups/31/type": "DMA-FQ"})
    assert not isinstance(seen.gpu, Missing) and not isinstance(seen.gpu.devices, Missing)
    replace = msgspec.structs.replace
    devices = tuple(replace(gpu, name=name, compute_capability=capability) for gpu in seen.gpu.devices)
    host = replace(seen, gpu=replace(seen.gpu, devices=devices))
    assert engine.judge(host, [RULES["iommu-translates-gpu-traffic"]])[0].verdict is expected
