"""``nvidia-smi topo -m`` as it is pasted: NVSwitch boards, bridges, MIG, no network cards, layouts of old drivers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import judge
from torchtune_sys import evidence
from torchtune_sys.evidence.nvidia.topology import parse_matrix, pci_facts
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.values import Missing


def matrix(count: int, links: str, cards: int = 0, odd: dict[tuple[int, int], str] | None = None) -> str:
    """A machine of ``count`` GPUs, half on each node, with ``cards`` network cards: PIX to the GPU of the same number."""
    odd = odd or {}
    names = [f"GPU{number}" for number in range(count)] + [f"NIC{number}" for number in range(cards)]
    lines = ["\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for row in range(count + cards):
        cells = []
        for column in range(count + cards):
            near = row % max(count, 1) // max(count // 2, 1) == column % max(count, 1) // max(count // 2, 1)
            way = "PIX" if row % count == column % count else "NODE" if near else "SYS"
            between_gpus = row < count and column < count
            cell = "X" if row == column else links if between_gpus and links else way
            cells.append(odd.get((row, column), odd.get((column, row), cell)))
        node = row // max(count // 2, 1)
        after = [f"{node * 32}-{node * 32 + 31}", str(node), "N/A"] if row < count else []
        lines.append("\t".join([names[row], *cells, *after]))
    legend = [f"  NIC{number}: mlx5_{number}" for number in range(cards)]
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", "", "NIC Legend:", "", *legend, ""])


def judged(text: str, nodes: int | None = None) -> Mapping[str, Result]:
    seen = evidence.read(text, "topo.txt", Workload(nodes=nodes))
    assert seen is not None, "not recognised"
    return judge(seen)


def failed(text: str, nodes: int | None = None) -> set[str]:
    return {name for name, result in judged(text, nodes).items() if result.verdict in (Verdict.FAIL, Verdict.CRASHED)}


@pytest.mark.parametrize(
    "text",
    [
        matrix(8, "NV18", 8),
        matrix(8, "NV8", 9),  # A800
        matrix(4, "NV4"),  # four A100 without switches: four links to each other GPU
        matrix(2, "NV12"),  # two cards with bridges
        matrix(8, "", 8),  # topo -mp, or a virtual machine
        matrix(2, ""),
        matrix(8, "NV2", odd={(0, 4): "SYS", (1, 2): "NV1"}),  # DGX-1: pairs are linked
        "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-63\tN/A\n",
    ],
)
@pytest.mark.parametrize("nodes", [None, 1, 2])
def test_a_machine_as_it_was_made_is_told_of_nothing(text: str, nodes: int | None) -> None:
    assert failed(text, nodes) == set()


def test_fewer_links_of_one_gpu_on_a_board_with_switches() -> None:
    odd = {(3, other): "NV16" for other in range(8) if other != 3}
    result = judged(matrix(8, "NV18", odd=odd))["nvlink-inactive"]
    assert [item.seen for item in result.evidence if item.verdict is Verdict.FAIL] == ["16 of 18 links"]
    assert [item.subject for item in result.evidence if item.verdict is Verdict.FAIL] == ["GPU 3"]


def test_a_gpu_without_links_may_be_cut_into_instances() -> None:
    odd = {(3, other): "SYS" for other in range(8) if other != 3}
    result = judged(matrix(8, "NV18", odd=odd))["nvlink-inactive"]
    assert result.verdict is Verdict.FAIL
    assert [item.seen for item in result.evidence if item.verdict is Verdict.FAIL] == ["0 of 18 links (or it alone has MIG on)"]
    several = {**odd, **{(number, other): "SYS" for number in (4, 5) for other in range(8) if other != number}}
    assert judged(matrix(8, "NV18", odd=several))["nvlink-inactive"].verdict is Verdict.UNKNOWN
    listed = "".join(f"GPU {number}: NVIDIA H100 80GB HBM3 (UUID: GPU-{number})\n" for number in range(8))
    cut = listed.replace("GPU-3)\n", "GPU-3)\n  MIG 1g.10gb     Device  0: (UUID: MIG-1)\n")
    assert "nvlink-inactive" not in failed(cut + matrix(8, "NV18", odd=odd))


def test_a_gpu_whose_card_is_not_at_its_switch_is_uneven_among_several_hosts() -> None:
    text = matrix(8, "NV18", 8, odd={(5, 8 + 5): "NODE"})
    assert failed(text, 1) == set() and failed(text) == set()
    result = judged(text, 2)["gpu-network-distance-uneven"]
    assert [item.subject for item in result.evidence if item.verdict is Verdict.FAIL] == ["GPU 5"]


def test_one_card_for_storage_near_to_one_gpu_is_no_unevenness() -> None:
    odd = {(gpu, 8 + card): "NODE" if gpu // 4 == card // 4 else "SYS" for gpu in range(8) for card in range(8)}
    assert failed(matrix(8, "NV18", 8, odd={**odd, (0, 8): "PIX"}), 2) == set()


def test_nodes_and_names() -> None:
    found = pci_facts(matrix(8, "NV18", 8))
    assert found is not None and not isinstance(found.devices, Missing)
    assert {device.address: device.rdma for device in found.devices if device.rdma}["NIC7"] == "mlx5_7"
    assert {device.address: device.numa_node for device in found.devices}["GPU7"] == 1


def test_the_layout_of_old_drivers() -> None:
    text = (
        "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\nGPU0\t X \tSOC\tPHB\t0-7,16-23\nGPU1\tSOC\t X \tSOC\t8-15\nmlx5_0\tPHB\tSOC\t X \n"
    )
    found = pci_facts(text)
    assert found is not None and not isinstance(found.distances, Missing)
    assert [(item.gpu, item.other, item.path) for item in found.distances] == [
        ("GPU0", "GPU1", "SYS"),
        ("GPU0", "mlx5_0", "PHB"),
        ("GPU1", "mlx5_0", "SYS"),
    ]


def test_spaces_in_place_of_tabs_and_quoted() -> None:
    text = matrix(8, "NV18", 8).replace("\t", "     ")
    assert len((parse_matrix("\n".join("> " + line for line in text.split("\n"))) or parse_matrix("")).gpus()) == 8  # type: ignore[union-attr]


def test_a_row_that_the_terminal_broke_is_left_out() -> None:
    text = matrix(8, "NV18", 8).replace("GPU3\tNV18\tNV18\tNV18\t", "GPU3\tNV18\tNV18\n\tNV18\t")
    found = parse_matrix(text)
    assert found is not None and "GPU3" not in found.rows and len(found.gpus()) == 8 and not found.whole()
    assert pci_facts(text) is None and failed(text, 2) == set()


def test_columns_that_stand_on_the_commands_own_line() -> None:
    text = "$ nvidia-smi topo -m                   GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID\nGPU0     X      PHB     0-23    0               N/A\nGPU1    PHB      X      0-23    0               N/A\n"
    seen = evidence.read(text, "x")
    assert seen is not None and len(seen.gpu.devices) == 2  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize("cards", [0, 2])
def test_without_its_first_line_rows_tell_the_columns(cards: int) -> None:
    text = matrix(4, "NV12", cards)
    whole, cut = parse_matrix(text), parse_matrix(text.partition("\n")[2])
    assert whole is not None and cut is not None
    assert (cut.columns, cut.cells, cut.nodes, cut.names) == (whole.columns, whole.cells, whole.nodes, whole.names)


@pytest.mark.parametrize(
    "lost",
    [
        "NIC0\t",  # a network card's row: whose column it is cannot be told
        "GPU1\t",
        "GPU3\t",
    ],
)
def test_without_its_first_line_and_a_row_nothing_is_told(lost: str) -> None:
    rows = matrix(4, "NV12", 1).split("\n")[1:]
    assert parse_matrix("\n".join(row for row in rows if not row.startswith(lost))) is None


def test_the_matrix_of_peer_access_is_another_one() -> None:
    assert parse_matrix(" \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n") is None


def test_a_single_gpu_of_a_board_with_some_links_down() -> None:
    links = "".join(f"\t Link {number}: {'<inactive>' if number in (4, 5) else '26.562 GB/s'}\n" for number in range(18))
    assert "nvlink-inactive" in failed("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)\n" + links)
    assert "nvlink-inactive" not in failed("GPU 0: NVIDIA H100 NVL (UUID: GPU-0)\n" + links)
    assert "nvlink-inactive" not in failed("GPU 0: Tesla V100-SXM2-32GB (UUID: GPU-0)\n" + links)


WORDS = st.sampled_from(
    ["GPU0", "GPU1", "NIC0", "X", "NV18", "SYS", "PIX", "CPU Affinity", "NUMA Affinity", "0-3", "1", "N/A", "\t", "\n", " "]
)


@given(st.lists(WORDS, max_size=60).map("\t".join) | st.text())
def test_any_text_survives(text: str) -> None:
    pci_facts(text)
    pci_facts("\tGPU0\tGPU1\tCPU Affinity\n" + text)
    evidence.read("\tGPU0\tGPU1\tCPU Affinity\n" + text, "x")
