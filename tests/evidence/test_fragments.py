"""What is left of an output when somebody pastes a few lines of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import judge
from torchtune_sys import evidence
from torchtune_sys.evidence.shared_memory import memory_facts
from torchtune_sys.formats.nvidia_smi.logs import parse_query
from torchtune_sys.model.rule import Verdict


def failed(text: str) -> set[str]:
    seen = evidence.read(text, "report.txt")
    assert seen is not None, "not recognised"
    return {result.rule.id for result in judge(seen).values() if result.verdict in (Verdict.FAIL, Verdict.CRASHED)}


FABRIC = "    Fabric\n        State                             : {}\n        Status                            : N/A\n"
CLOCKS = """\
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : {0}
            HW Thermal Slowdown           : {0}
            HW Power Brake Slowdown       : Not Active
        SW Thermal Slowdown               : Not Active
"""
ECC = """\
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable            : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : {}
"""


def test_a_section_that_comes_again_is_another_gpu() -> None:
    text = "$ nvidia-smi -q | grep -A2 Fabric\n" + "--\n".join(map(FABRIC.format, ("Completed", "In Progress")))
    found = parse_query(text)
    assert found is not None and [gpu["fabric_state"] for gpu in found["devices"]] == ["completed", "in-progress"]
    assert failed(text) == {"fabric-manager-not-running"}


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        (CLOCKS.format("Active"), {"gpu-thermal-throttle"}),
        (CLOCKS.format("Not Active"), set()),
        ("> " + CLOCKS.format("Active").replace("\n", "\n> "), {"gpu-thermal-throttle"}),
        (CLOCKS.format("Active").replace("\n    ", "\n").lstrip(), {"gpu-thermal-throttle"}),
        (ECC.format(7), {"gpu-ecc-uncorrectable"}),
        (ECC.format(0), set()),
        (FABRIC.format("N/A"), set()),
    ],
)
def test_a_section_by_itself(text: str, rules: set[str]) -> None:
    assert failed(text) == rules


def test_sections_of_one_gpu_belong_together() -> None:
    found = parse_query(CLOCKS.format("Active") + ECC.format(1))
    assert found is not None and len(found["devices"]) == 1


def test_words_of_another_program_are_no_section() -> None:
    assert parse_query("Fabric\n  State: up\n") is None
    assert parse_query("fabric:\n  state                  : up\n") is None


GPU = "GPU 0: NVIDIA L4 (UUID: GPU-1)\n"


@pytest.mark.parametrize(
    "line",
    [
        "$ df -h | grep shm\ntmpfs            64M     0   64M   0% /dev/shm\n",
        "shm             64M  1.2M   63M   2% /dev/shm\n",
        "shm                 65536       0     65536   0% /dev/shm\n",
        "Filesystem      Size  Used Avail Use% Mounted on\noverlay         1.8T  900G  800G  53% /\nshm              64M     0   64M   0% /dev/shm\n",
        "shm on /dev/shm type tmpfs (rw,nosuid,nodev,noexec,relatime,size=65536k,inode64)\n",
        "shm /dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,size=65536k,inode64 0 0\n",
    ],
)
def test_the_shared_memory_of_a_container(line: str) -> None:
    facts = memory_facts(line)
    assert facts is not None and facts.shm_size_bytes == 64 << 20
    assert "dev-shm-too-small" in failed(GPU + line)


@pytest.mark.parametrize(
    "line",
    [
        "tmpfs            32G     0   32G   0% /dev/shm\n",
        "tmpfs        16438544    1052   16437492   1% /dev/shm\n",
        "tmpfs on /dev/shm type tmpfs (rw,nosuid,nodev,size=263856364k)\n",
    ],
)
def test_shared_memory_that_is_large(line: str) -> None:
    assert not {rule for rule in failed(GPU + line) if rule.startswith("dev-shm")}


def test_a_mount_without_its_size_tells_nothing() -> None:
    assert memory_facts("tmpfs on /dev/shm type tmpfs (rw,nosuid,nodev)\n") is None
    assert memory_facts("drwxrwxrwt 2 root root 40 Jan 1 00:00 /dev/shm\n") is None


NO_DRIVER = "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver"


def test_torch_that_was_asked_for_cuda_and_found_no_driver() -> None:
    assert failed(f"RuntimeError: {NO_DRIVER}\n") == {"cuda-not-available-to-torch"}
    assert failed(f"AssertionError: \n{NO_DRIVER}\n") == {"cuda-not-available-to-torch"}


def test_torch_that_only_looked_accuses_nothing() -> None:
    assert failed(f"torch/cuda/__init__.py:52: UserWarning: CUDA initialization: {NO_DRIVER}\n") == set()


def test_what_nvidia_smi_says_of_the_driver_counts_alone() -> None:
    smi = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
    assert failed(f"{smi}RuntimeError: {NO_DRIVER}\n") == {"nvidia-driver-not-loaded"}


@given(
    st.lists(
        st.sampled_from([FABRIC, CLOCKS, ECC, GPU, "shm 9 9 9 9% /dev/shm\n", " size=9g", NO_DRIVER]) | st.text(), max_size=8
    ).map("".join)
)
def test_any_text_survives(text: str) -> None:
    parse_query(text)
    memory_facts(text)
    evidence.read(text, "x")
