"""Distances by NCCL's classes: trees drawn by hand, the classes worked out from NCCL's source."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchtune_sys.formats.pci_paths import CLASSES, above, distance, distances
from torchtune_sys.model.facts.pci import NOT_READ, PciDevice, PciLink
from torchtune_sys.model.values import Missing, Why

LINK = PciLink(current_gts=NOT_READ, max_gts=NOT_READ, current_width=NOT_READ, max_width=NOT_READ)


def device(
    address: str, parent: str, kind: str = "060400", node: int | Missing = 0, ids: str = "1000 c030 1028 224b"
) -> PciDevice:
    vendor, number, sub_vendor, sub_number = (f"0x{word}" for word in ids.split())
    return PciDevice(
        address=address,
        class_=f"0x{kind}",
        vendor="0x10de" if kind == "030200" else vendor,
        device=number,
        subsystem_vendor=sub_vendor,
        subsystem_device=sub_number,
        numa_node=node,
        driver="x",
        link=LINK,
        parent=parent,
        iommu_group=NOT_READ,
        rdma="mlx5_0" if kind == "020700" else "",
    )


def path(*devices: PciDevice) -> list[str]:
    return [item.path for item in distances(tuple(devices))]


def switch(root: str, up: str, *down: str, ids: str = "1000 c030 1028 224b", node: int = 0) -> list[PciDevice]:
    """A root port with a switch below: its upstream port, and the downstream ports."""
    return [device(root, "", node=node), device(up, root, node=node, ids=ids), *(device(d, up, node=node, ids=ids) for d in down)]


def test_one_switch_is_pix() -> None:
    tree = switch("r0", "u0", "d0", "d1")
    assert path(*tree, device("gpu", "d0", "030200"), device("nic", "d1", "020700")) == ["PIX"]


def test_a_switch_below_a_switch_is_pxb() -> None:
    tree = [*switch("r0", "u0", "d0", "d1"), device("u1", "d1"), device("d2", "u1")]
    assert path(*tree, device("gpu", "d0", "030200"), device("nic", "d2", "020700")) == ["PXB"]


def test_broadcoms_two_levels_are_one_switch_to_nccl() -> None:
    outer, inner = "1000 c030 1000 0001", "1000 c030 1000 1001"
    tree = [*switch("r0", "u0", "d0", "d1", ids=outer), device("u1", "d1", ids=inner), device("d2", "u1", ids=inner)]
    assert path(*tree, device("gpu", "d0", "030200"), device("nic", "d2", "020700")) == ["PIX"]
    other = [*switch("r0", "u0", "d0", "d1", ids=outer), device("u1", "d1", ids=outer), device("d2", "u1", ids=outer)]
    assert path(*other, device("gpu", "d0", "030200"), device("nic", "d2", "020700")) == ["PXB"]


def test_root_ports_of_one_node_are_phb_and_of_two_nodes_sys() -> None:
    ports = [device("r0", ""), device("r1", ""), device("r2", "", node=1)]
    cards = [device("gpu", "r0", "030200"), device("n1", "r1", "020700"), device("n2", "r2", "020700", node=1)]
    assert path(*ports, *cards) == ["PHB", "SYS"]


def test_the_node_that_counts_is_that_of_the_switch() -> None:
    tree = [*switch("r0", "u0", "d0", node=1), device("r1", "", node=1)]
    gpu = device("gpu", "d0", "030200", node=-1)  # firmware that names no node for what is below a switch
    assert path(*tree, gpu, device("nic", "r1", "020700", node=1)) == ["PHB"]


def test_functions_without_a_port_above_as_hypervisors_show_them() -> None:
    assert path(device("gpu", "", "030200"), device("nic", "", "020700")) == ["PHB"]


def test_without_a_node_there_is_no_class() -> None:
    unread = Missing(Why.NOT_RECORDED, "numa_node")
    assert path(device("gpu", "", "030200", node=unread), device("nic", "", "020700")) == []


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["060400", "030200", "020700"]), st.integers(-1, 2)), max_size=10))
def test_any_tree_even_in_circles(shape: list[tuple[int, str, int]]) -> None:
    tree = tuple(device(str(at), str(parent), kind, node) for at, (parent, kind, node) in enumerate(shape))
    by_address = {item.address: item for item in tree}
    for item in distances(tree):
        assert item.path in CLASSES
        assert distance(by_address[item.other], by_address[item.gpu], by_address) == item.path  # the same both ways
    assert all(len(above(item, by_address)) < len(tree) for item in tree)
