"""The catalogue of messages: its families come from what programs print, and its causes from the vocabulary."""

from __future__ import annotations

import doctest
import importlib
import time
from pathlib import Path

import pytest

from torchtune_sys.knowledge import messages, tables
from torchtune_sys.knowledge.messages import causes, index, templates
from torchtune_sys.rules import CATALOGUE

FAMILIES = tables.rows("message_families")
OUTSIDE = {
    "apex",
    "apt",
    "bash",
    "binutils",
    "cargo",
    "cmake",
    "conda",
    "cpython",
    "cudnn",
    "cufile",
    "cython",
    "dcgm",
    "deepspeed",
    "dnf",
    "dpkg",
    "fabricmanager",
    "gcc",
    "git",
    "git-lfs",
    "go",
    "hip",
    "huggingface",
    "infiniband-diags",
    "kubelet",
    "libfabric",
    "libsolv",
    "libstdc++",
    "lightning",
    "lsf",
    "lustre",
    "meson",
    "nfs-utils",
    "numpy",
    "nvcc",
    "nvidia-container-cli",
    "nvidia-device-plugin",
    "nvidia-imex",
    "nvidia-installer",
    "nvidia-smi",
    "nvml",
    "openmp",
    "pbs",
    "perftest",
    "ray",
    "rocblas",
    "rpm",
    "safetensors",
    "sentencepiece",
    "setuptools",
    "systemd",
    "tar",
    "tensorflow",
    "urllib3",
    "yum-packaging-nvidia-plugin",
    "uv",
}
"""Programs whose sources are not read: what they print is known from their documentation."""


def filled(text: str) -> str:
    return text.replace("{}", "x").replace("{", "").replace("}", "")


@pytest.fixture(scope="module")
def texts() -> dict[str, list[str]]:
    """The catalogued texts by program."""
    found: dict[str, list[str]] = {}
    for row in index.catalogued():
        _, program, *_, text = row.split("\t")
        found.setdefault(program, []).append(text)
    return found


def test_the_catalogue_has_the_programs_that_it_promises(texts: dict[str, list[str]]) -> None:
    assert {
        "nccl",
        "rccl",
        "gloo",
        "torch",
        "cuda",
        "nvml",
        "nvidia-kernel-module",
        "linux",
        "docker",
        "slurm",
        "dkms",
        "kmod",
        "pip",
    } <= texts.keys()
    assert len(texts["nccl"]) > 1500


@pytest.mark.parametrize("row", FAMILIES, ids=lambda row: f"{row['family']}-{row['pattern'][:30]}")
def test_a_family_is_found_in_what_it_says(row: dict[str, str]) -> None:
    found = messages.match("2026-01-01 node1 [rank0]: " + filled(row["pattern"]))
    assert found is not None and row["family"] in found.families


def test_every_family_stands_for_causes_or_says_that_it_means_nothing() -> None:
    without = {row["family"] for row in FAMILIES} - causes.families()
    assert without == {"nccl-other-collectives", "driver-sxid", "mlx5-no-power"}, (
        "a family that is new has its row in family_causes.csv"
    )
    assert not causes.families() - {row["family"] for row in FAMILIES}


def test_facts_that_decide_can_hold() -> None:
    rules, families = {rule.id for rule in CATALOGUE}, causes.families()
    for family in families:
        for cause in messages.causes_of(family):
            assert cause.consequence == (not cause.cause), family
            assert cause.confidence in ("certain", "likely", "possible")
            for fact in (*cause.only_if, *cause.decided_by, *cause.unless):
                kind, _, what = fact.partition(":")
                assert kind in ("rule", "family", "text", "var") and what, fact
                assert kind != "rule" or what in rules, fact
                assert kind != "family" or what in families, fact


def test_names_of_holes_are_told() -> None:
    found = messages.match("[1.0] NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.")
    assert found is not None and found.variables["xid"] == "79" and found.variables["pci"] == "0000:01:00"


@pytest.mark.parametrize(
    "line", ["", "x" * 200_000, "a b " * 50_000, "NVRM: Xid (PCI:" * 5_000, "\x00\udc80 {}{} Connect to " * 1_000]
)
def test_no_line_is_too_hard(line: str) -> None:
    start = time.monotonic()
    messages.match(line)
    assert time.monotonic() - start < 5


def test_a_template_needs_its_words_in_order() -> None:
    template = templates.parsed("Connect to {address} failed : {errno}")
    assert templates.fitted(template, "Connect to 1.2.3.4<5> failed : Connection refused") == ("1.2.3.4<5>", "Connection refused")
    assert templates.fitted(template, "failed : Connect to 1.2.3.4") is None


def test_causes_are_of_the_vocabulary() -> None:
    vocabulary = {row["cause"] for row in tables.rows("causes")}
    named = {cause.cause for family in causes.families() for cause in messages.causes_of(family) if cause.cause}
    assert named <= vocabulary, f"causes that are new have their rows in causes.csv: {sorted(named - vocabulary)}"


@pytest.mark.parametrize(
    ("programs", "least"),
    [
        pytest.param({"nccl", "rccl", "gloo", "cuda", "dkms"}, 0.8, id="of-programs-read-whole"),
        pytest.param({row["program"] for row in FAMILIES} - OUTSIDE, 0.5, id="of-all-that-are-read"),
    ],
)
def test_most_families_say_what_a_source_has(texts: dict[str, list[str]], programs: set[str], least: float) -> None:
    """A pattern may also be put together by its program (an error's name behind a format), or stand in a file that is not catalogued: of Linux, glibc and
    Slurm those are read that print most."""
    rows = [row for row in FAMILIES if row["program"] in programs]
    longest = [(row["program"], max(templates.parsed(row["pattern"]).pieces, key=len).strip()) for row in rows]
    printed = sum(any(words in filled(text) for text in texts[program]) for program, words in longest)
    assert printed / len(rows) > least


@pytest.mark.parametrize("module", ["c_calls", "python_calls", "released"])
def test_the_extractors_find_what_their_examples_show(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    tried = doctest.testmod(importlib.import_module(f"catalogue.{module}"))
    assert tried.attempted and not tried.failed


def test_the_catalogue_is_in_the_order_that_it_is_searched_in() -> None:
    words = [row.split("\t", 1)[0] + "\t" for row in index.catalogued()]
    assert words == sorted(words)
