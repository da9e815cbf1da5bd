"""No reader of pasted text loses or changes what a report tells: every field is read twice, by two programs that share no expression."""

from __future__ import annotations

import pytest

from evidence.layouts import LAYOUTS, SGLANG, TORCH_2, VLLM
from fidelity import OF_SNAPSHOT, compared
from second_reading import second_reading
from torchtune_sys import evidence
from torchtune_sys.model.values import Missing


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_field_of_every_layout_is_read(layout: str) -> None:
    text, wanted = LAYOUTS[layout]
    told = compared(text)
    assert wanted <= {field for field, *_ in told}, "the second reading itself misses a field"
    assert [row for row in told if row[1] != "equal"] == []


def test_every_field_is_told_by_some_layout() -> None:
    told = {field for text, _ in LAYOUTS.values() for field in second_reading(text)}
    assert set(OF_SNAPSHOT) - told == set()


@pytest.mark.parametrize(
    ("field", "old", "new"),
    [
        ("gpu.names", "GPU 1: NVIDIA A100-SXM4-80GB", "GPU 1: NVIDIA H200"),
        ("numa.nodes", "NUMA node1 CPU(s):                  32-63,96-127", "NUMA node1 CPU(s):                  32-63"),
        ("torch.version", "PyTorch version: 2.5.1+cu124", "PyTorch version: 2.6.0+cu124"),
    ],
)
def test_the_comparison_tells_a_difference(field: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The product is shown another text than the second reading."""
    read = evidence.read
    monkeypatch.setattr(evidence, "read", lambda text, name: read(text.replace(old, new), name))
    assert field in {name for name, word, *_ in compared(TORCH_2) if word == "differs"}


def test_a_list_of_other_gpus_than_the_matrix_keeps_its_names_and_drops_the_matrix_numbers() -> None:
    """torch in a container is shown one of the host's two GPUs: which of them cannot be told."""
    seen = evidence.read(SGLANG.replace("GPU 0,1", "GPU 0"), "x")
    assert seen is not None
    gpu = seen.gpu
    assert [each.name for each in gpu.devices] == ["NVIDIA H20"]  # type: ignore[union-attr]
    assert isinstance(gpu.p2p, Missing)  # type: ignore[union-attr]


@pytest.mark.parametrize("cut", ["GPU1\tNV12", "GPU1\tNV12\t X \tSYS\tPXB\t32"])
def test_of_a_cut_matrix_the_number_of_gpus_alone_is_believed(cut: str) -> None:
    whole = LAYOUTS["nvidia-smi topo"][0]
    text = whole[: whole.index("GPU1\tNV12")] + cut
    seen = evidence.read(text, "x")
    assert seen is not None and len(seen.gpu.devices) == 2  # type: ignore[union-attr, arg-type]
    if "PXB" not in cut:
        assert isinstance(seen.pci, Missing)
        assert isinstance(seen.gpu.p2p, Missing) or seen.gpu.p2p == ()  # type: ignore[union-attr]


def test_columns_that_were_cut_are_no_matrix() -> None:
    rows = [line.split("\t") for line in LAYOUTS["nvidia-smi topo"][0].split("\n")[:3]]
    head = "\t".join(rows[0][:2])
    text = "\n".join([head, *("\t".join(row) for row in rows[1:])])
    seen = evidence.read(text + "\n" + LAYOUTS["nvidia-smi -L"][0], "x")
    assert seen is not None and isinstance(seen.pci, Missing)
    assert len(seen.gpu.devices) == 2  # type: ignore[union-attr, arg-type]


def test_the_environment_and_the_packages_of_vllm() -> None:
    seen = evidence.read(VLLM, "x")
    assert seen is not None and seen.session.env["LD_LIBRARY_PATH"] == "/usr/local/cuda/lib64"  # type: ignore[union-attr]
    assert seen.origin == "report (collect_env, nvidia-smi, nvidia-smi topo)"
