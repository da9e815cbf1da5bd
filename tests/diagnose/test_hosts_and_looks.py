"""One text that tells of several hosts, or of one host twice: nothing is put together, and what differs is told."""

from __future__ import annotations

import io

import pytest

from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.fleet.pasted_hosts import compared
from torchtune_sys.host.input.collection import InputText
from torchtune_sys.host.input.excerpts import excerpt
from torchtune_sys.model.diagnosis import Diagnosis

SMI = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI {driver}    Driver Version: {driver}    CUDA Version: {cuda}     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  {gpu}  Off  | 00000000:04:00.0 Off |                    0 |
| N/A   32C    P0    54W / 400W |      0MiB / 40536MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+
"""
OLD = SMI.format(driver="535.183.01", cuda="12.2", gpu="NVIDIA A100-SXM...")
NEW = SMI.format(driver="550.54.14", cuda="12.4", gpu="NVIDIA A100-SXM...")
OTHER = SMI.format(driver="535.183.01", cuda="12.2", gpu="NVIDIA H100 80G...")
ENVIRONMENT = """\
Collecting environment information...
PyTorch version: {torch}
Is debug build: False
CUDA used to build PyTorch: {cuda}
OS: Ubuntu 22.04.4 LTS (x86_64)
Is CUDA available: {available}
GPU models and configuration: GPU 0: NVIDIA A100-SXM4-80GB
Nvidia driver version: 550.54.14
Versions of relevant libraries:
[pip3] torch=={torch}
"""
WORKS = ENVIRONMENT.format(torch="2.4.0+cu121", cuda="12.1", available="True")
CPU_BUILD = ENVIRONMENT.format(torch="2.4.0+cpu", cuda="None", available="False")


def _diagnosed(text: str) -> Diagnosis:
    return diagnose([InputText(name="x", excerpt=excerpt(io.BytesIO(text.encode())))], compare=compared)


def _differing(found: Diagnosis, fact: str) -> list[tuple[str, object]]:
    return [(each.where, each.value) for one in found.differences if one.fact == fact for each in one.values]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("## node01", "## node02"),
        ("root@gpu01:~# nvidia-smi", "root@gpu02:~# nvidia-smi"),
        ("On server A:", "On server B:"),
        ("worker-0:", "worker-1:"),
    ],
)
def test_two_nodes_with_two_drivers(first: str, second: str) -> None:
    found = _diagnosed(f"Training hangs at the first allreduce.\n\n{first}\n{OLD}\n{second}\n{NEW}")
    assert [value for _, value in _differing(found, "gpu.driver_version")] == ["535.183.01", "550.54.14"]
    assert [(each.cause, each.confidence.value) for each in found.causes] == [("software-differs-between-nodes", "likely")]
    assert len(found.facts) == 2


def test_a_program_that_names_the_cause_goes_before_what_only_differs() -> None:
    error = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error."
    found = _diagnosed(f"## node01\n{OLD}\n## node02\n{NEW}\n{error}")
    assert [each.cause for each in found.causes] == ["dev-shm-too-small"]
    assert _differing(found, "gpu.driver_version")


def test_nodes_of_two_kinds() -> None:
    found = _diagnosed(f"worker-0:\n{OLD}\nworker-1:\n{OTHER}")
    assert [each.cause for each in found.causes] == ["hardware-differs-between-nodes"]


@pytest.mark.parametrize(("before", "after"), [("Before the upgrade:", "After:"), ("this works:", "and this does not work:")])
def test_a_host_before_and_after(before: str, after: str) -> None:
    found = _diagnosed(f"{before}\n{OLD}\n{after}\n{NEW}")
    assert _differing(found, "gpu.driver_version") == [
        (before.rstrip(":"), "535.183.01"),
        (after.rstrip(":"), "550.54.14"),
    ]
    assert found.causes == ()


def test_what_was_wrong_before_is_not_wrong_now() -> None:
    assert _diagnosed(f"Before:\n{CPU_BUILD}\nAfter:\n{WORKS}").causes == ()
    assert [each.cause for each in _diagnosed(f"Before:\n{WORKS}\nAfter:\n{CPU_BUILD}").causes] == ["cpu-only-build"]


def test_a_container_and_its_host_are_two_and_no_nodes() -> None:
    found = _diagnosed(f"On the host:\n{OLD}\nInside the container:\n{NEW}")
    assert len(found.facts) == 2
    assert found.causes == ()


def test_the_same_report_again_is_one_look() -> None:
    found = _diagnosed(OLD + "\n" + OLD)
    assert (len(found.facts), found.differences) == (1, ())
