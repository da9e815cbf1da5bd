"""What ``nvidia-smi nvlink`` and ``nvidia-smi topo -p2p`` print, and what several forms say together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_sys import engine
from torchtune_sys.evidence import read
from torchtune_sys.evidence.nvidia.smi import parse_nvidia_smi
from torchtune_sys.model.facts.gpu import Gpu, GpuFacts, LinkErrors
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import gpu as gpu_rules

RULES = {rule.id: rule for rule in gpu_rules.RULES}
H100 = "NVIDIA H100 80GB HBM3"


def gpus(text: str) -> tuple[Gpu, ...]:
    found = parse_nvidia_smi(text)
    assert found is not None and not isinstance(found.devices, Missing)
    return found.devices


def status(index: int, *down: int, links: int = 18, name: str = H100) -> str:
    lines = [f"\t Link {link}: {'<inactive>' if link in down else '26.562 GB/s'}" for link in range(links)]
    return "\n".join([f"GPU {index}: {name} (UUID: GPU-{index})", *lines, ""])


def test_link_states() -> None:
    first, second = gpus(status(0) + status(1, 3, 17))
    assert (first.nvlinks, first.nvlinks_down) == (18, ())
    assert (second.nvlinks, second.nvlinks_down, second.uuid) == (18, (3, 17), "GPU-1")


@pytest.mark.parametrize(
    ("name", "links"), [(H100, 18), ("NVIDIA A100-SXM4-40GB", 12), ("Tesla V100-SXM2-32GB", 6), ("NVIDIA B200", 18)]
)
def test_all_links_down(name: str, links: int) -> None:
    says = "NVML: Unable to retrieve NVLink information as all links are inActive"
    (gpu,) = gpus(f"GPU 0: {name} (UUID: GPU-0)\n{says}\n")
    assert (gpu.nvlinks, gpu.nvlinks_down) == (links, tuple(range(links)))
    assert gpus(f"GPU 0: {name} (UUID: GPU-0) {says}\n") == (gpu,)


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 3090 Ti", "NVIDIA A100 80GB PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL"])
def test_cards_without_a_bridge_are_not_counted_as_down(name: str) -> None:
    says = "NVML: Unable to retrieve NVLink information as all links are inActive"
    (gpu,) = gpus(f"GPU 0: {name} (UUID: GPU-0)\n{says}\n")
    assert isinstance(gpu.nvlinks_down, Missing) and gpu.nvlinks_down.why is Why.NOT_RECORDED


def test_gpus_without_nvlink() -> None:
    (gpu,) = gpus("GPU 0: NVIDIA RTX A4000 (UUID: GPU-0) Device does not have or support Nvlink\n")
    assert isinstance(gpu.nvlinks_down, Missing) and gpu.nvlinks_down.why is Why.NOT_SUPPORTED


def test_error_counters() -> None:
    old = f"GPU 0: {H100} (UUID: GPU-0)\n"
    for link in range(3):
        old += f"\t Link {link}: Replay Errors: {2 * (link == 1)}\n\t Link {link}: Recovery Errors: 0\n\t Link {link}: CRC Errors: {5 * (link == 2)}\n\n"
    (gpu,) = gpus(old)
    assert gpu.nvlink_errors == (LinkErrors(link=1, replay=2), LinkErrors(link=2, crc_flit=5))
    assert isinstance(gpu.nvlinks, Missing)  # counters do not say whether a link is up
    new = (
        "GPU 0: NVIDIA B200 (UUID: GPU-0)\n\t Link 0: Tx packets: 77\n\t Link 0: Link recovery successful events: 4\n"
        "\t Link 0: Link recovery failed events: 1\n\t Link 0: Total link recovery events: 5\n\t Link 0: Effective BER: 15e-255\n"
    )
    assert gpus(new)[0].nvlink_errors == (LinkErrors(link=0, recovery=4, recovery_failed=1),)


def test_states_and_errors_together() -> None:
    (gpu,) = gpus(status(0) + f"GPU 0: {H100} (UUID: GPU-0)\n\t Link 0: Replay Errors: 0\n")
    assert (gpu.nvlinks, gpu.nvlinks_down, gpu.nvlink_errors) == (18, (), ())


MATRIX = "\t\x1b[4mGPU0\tGPU1\tGPU2\x1b[0m\n GPU0\tX\tOK\tCNS\n GPU1\tOK\tX\tU\n GPU2\tCNS\tU\tX\n\nLegend:\n\n  X    = Self\n"


def test_peer_access() -> None:
    matrix = MATRIX.replace("\x1b[4m", "").replace("\x1b[0m", "")
    found = parse_nvidia_smi(
        status(0) + f"$ nvidia-smi topo -p2p r\n{matrix}\n$ nvidia-smi topo -p2p n\n{matrix.replace('OK', 'NS')}"
    )
    assert found is not None and not isinstance(found.p2p, Missing)
    assert [(pair.first, pair.second) for pair in found.p2p] == [(0, 1), (0, 2), (1, 2)]
    first, second, third = found.p2p
    assert (first.read, first.nvlink) == ("ok", "not-supported") and isinstance(first.write, Missing)
    assert (second.read, third.read) == ("chipset-not-supported", "unknown")


def test_a_matrix_of_distances_is_no_matrix_of_access() -> None:
    found = parse_nvidia_smi(status(0) + "$ nvidia-smi topo -m\n\tGPU0\tGPU1\tNIC0\nGPU0\t X \tNV18\tPIX\nGPU1\tNV18\t X \tSYS\n")
    assert found is not None and not isinstance(found.p2p, Missing)
    (pair,) = found.p2p
    assert pair.nvlinks == 18 and all(isinstance(way, Missing) for way in (pair.read, pair.write, pair.nvlink))


def test_forms_fill_each_others_gaps() -> None:
    listed = "".join(f"GPU {n}: {H100} (UUID: GPU-{n})\n" for n in range(8))
    log = (
        "====NVSMI LOG====\nDriver Version : 580.95.05\nGPU 00000000:61:00.0\n    GPU UUID : GPU-3\n    Compute Mode : Default\n"
    )
    found = gpus(f"$ nvidia-smi -L\n{listed}$ nvidia-smi -q -i 3\n{log}\n$ nvidia-smi nvlink -s\n{status(3, 5)}")
    assert sorted(gpu.index for gpu in found) == list(range(8))
    third = next(gpu for gpu in found if gpu.uuid == "GPU-3")
    assert (third.index, third.compute_mode, third.nvlinks_down, third.name) == (3, "default", (5,), H100)


def test_mig_devices_in_the_list() -> None:
    listed = (
        f"GPU 0: {H100} (UUID: GPU-0)\n  MIG 1g.10gb     Device  0: (UUID: MIG-1)\n  MIG 1g.10gb+me  Device  1: (UUID: MIG-2)\n"
        f"GPU 1: {H100} (UUID: GPU-1)\n"
    )
    first, second = gpus(listed)
    assert (first.mig, first.mig_instances) == (True, 2)
    assert isinstance(second.mig, Missing)  # it may be on, without an instance
    assert gpus(listed + listed)[0].mig_instances == 2


def test_a_warning_of_a_corrupted_inforom() -> None:
    table = (
        "| NVIDIA-SMI 535.54.03   Driver Version: 535.54.03   CUDA Version: 12.2     |\n"
        "|   0  Tesla T4           On   | 00000000:3B:00.0 Off |                    0 |\n"
        "| N/A   31C    P8    26W /  70W |      0MiB / 15360MiB |      0%      Default |\n"
        "|   1  Tesla T4           On   | 00000000:86:00.0 Off |                    0 |\n"
        "| N/A   31C    P8    26W /  70W |      0MiB / 15360MiB |      0%      Default |\n"
        "WARNING: infoROM is corrupted at gpu 0000:86:00.0\n"
    )
    first, second = gpus(table)
    assert isinstance(first.inforom_valid, Missing) and second.inforom_valid is False


def verdict(rule: str, text: str) -> Verdict:
    seen = read(text, "report")
    assert seen is not None
    return engine.judge(seen, [RULES[rule]])[0].verdict


def boards(*, down: tuple[int, ...] = (), name: str = H100, count: int = 8, links: int = 18) -> str:
    return "".join(status(n, *(down if n == 5 else ()), name=name, links=links) for n in range(count))


def test_a_link_that_is_down_on_a_board_of_eight() -> None:
    assert verdict("nvlink-inactive", boards()) is Verdict.PASS
    assert verdict("nvlink-inactive", boards(down=(3,))) is Verdict.FAIL


def test_links_are_down_for_good_where_cards_are_bridged_in_pairs() -> None:
    for text in (
        boards(down=(0, 1), name="NVIDIA RTX A6000", links=4),
        boards(down=(0, 1), name="NVIDIA A100 80GB PCIe", links=12),
        boards(down=(0, 1), count=4),  # who knows which board this is
        boards(down=(0, 1), name="Tesla V100-SXM2-32GB", links=6),
    ):
        assert verdict("nvlink-inactive", text) is not Verdict.FAIL


def test_all_links_of_a_gpu_are_down_with_mig() -> None:
    every = tuple(range(18))
    assert verdict("nvlink-inactive", boards(down=every)) is Verdict.UNKNOWN
    mode = "====NVSMI LOG====\nGPU 00000000:9D:00.0\n    GPU UUID : GPU-5\n    MIG Mode\n        Current : {}\n"
    assert verdict("nvlink-inactive", boards(down=every) + mode.format("Disabled")) is Verdict.FAIL
    assert verdict("nvlink-inactive", boards(down=every) + mode.format("Enabled")) is Verdict.PASS


def test_peer_access_refused_on_a_board_of_eight() -> None:
    columns = "".join(f"\tGPU{n}" for n in range(8))
    rows = "".join(f" GPU{a}" + "".join("\tX" if a == b else "\tOK" for b in range(8)) + "\n" for a in range(8))
    text = boards() + f"$ nvidia-smi topo -p2p n\n{columns}\n{rows}"
    assert verdict("gpu-peer-access-broken", text) is Verdict.PASS
    assert verdict("gpu-peer-access-broken", text.replace(" GPU2\tOK\tOK\tX\tOK", " GPU2\tOK\tOK\tX\tNS")) is Verdict.FAIL


LINES = [
    *(status(0, 2) + status(1)).splitlines(),
    *MATRIX.splitlines(),
    "$ nvidia-smi topo -p2p n",
    "Link 99: Replay Errors: 7",
    "GPU0 X OK",
    "all links are inActive",
]


@given(st.lists(st.sampled_from(LINES), max_size=40), st.text(max_size=100))
def test_any_order_is_survived(lines: list[str], rest: str) -> None:
    found = parse_nvidia_smi("\n".join(lines) + rest)
    assert found is None or isinstance(found, GpuFacts)


def test_masked_identifiers_do_not_hide_links() -> None:
    """As people paste them: github.com/Azure/azhpc-diagnostics/issues/73."""
    text = (status(0) + status(1, 3, 5)).replace("UUID: GPU-0", "UUID: ...").replace("UUID: GPU-1", "UUID: ...")
    first, second = gpus(text)
    assert (first.nvlinks_down, second.nvlinks_down) == ((), (3, 5))
    assert isinstance(first.uuid, Missing) and isinstance(second.uuid, Missing)
