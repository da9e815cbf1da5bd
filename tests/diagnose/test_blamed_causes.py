"""Causes that programs seldom name, and people do: blamed, or mended by what is against them."""

from __future__ import annotations

import io

import pytest

from torchtune_sys.diagnosis import stated_causes
from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.diagnosis.symptoms import LIKELY
from torchtune_sys.diagnosis.text.lines import lines_of
from torchtune_sys.host.input.collection import InputText
from torchtune_sys.host.input.excerpts import excerpt

BLAMED = [
    ("Training stops at connect. It turned out that the ephemeral ports were exhausted.", "ephemeral-ports-exhausted"),
    ("My Radeon is not found. The problem was that the amdgpu module was not loaded.", "amdgpu-not-loaded"),
    ("Saving fails with permission denied. The cause was that the output directory was read-only.", "checkpoints-not-writable"),
    ("torch.compile crashes. The reason was that /tmp is mounted noexec.", "compile-cache-not-executable"),
    ("No threads start in the container, it fails. It was the seccomp profile.", "container-seccomp-too-old"),
    ("CUDA fails to start: it turned out that the stubs folder was in LD_LIBRARY_PATH.", "cuda-stub-library-loaded"),
    ("nvidia-smi warns and fails. The problem is a corrupted infoROM.", "gpu-inforom-corrupted"),
    ("GDS fails. The cause was that nvidia-fs was not loaded.", "gpudirect-storage-off"),
    ("The driver does not start. The reason was that the GSP firmware was missing.", "gsp-firmware-missing"),
    ("The pull of the pod hangs. The problem was that the pull secret had expired.", "image-not-pulled"),
    ("exec format error on the Grace host, it fails. Turned out it was the amd64 image.", "program-for-other-architecture"),
    ("wandb timed out, so the run crashed. Setting WANDB_MODE=offline fixed it.", "tracker-unreachable"),
    ("NCCL crashes. It was caused by the system NCCL being loaded.", "nccl-shadowed-by-system-library"),
    ("tempfile fails. The cause was that /tmp was read-only.", "no-temporary-directory"),
    ("All threads share a core, it is slow. Unsetting OMP_PROC_BIND solved it.", "openmp-affinity-pins-process"),
    ("Could not get lock, apt fails. It was caused by unattended-upgrades running.", "package-manager-locked"),
    ("Unable to locate package, it fails. Running apt update fixed it.", "package-not-in-repository"),
    ("apt says that the repository is not signed. Installing cuda-keyring fixed it.", "package-repository-untrusted"),
    ("The job dies with Input/output error. The cause was a failing SSD.", "storage-io-error"),
    ("libGL.so.1 is not found. Installing libgl1 fixed it.", "system-library-missing"),
    ("out of resource in Triton. Reducing num_stages fixed it.", "triton-out-of-resources"),
    ("Triton fails. Setting TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas solved it.", "triton-ptxas-newer-than-driver"),
    ("undefined symbol iJIT_NotifyEvent. Downgrading mkl to 2024.0 fixed it.", "mkl-too-new-for-torch"),
    ("The import fails. TORCH_DEVICE_BACKEND_AUTOLOAD=0 fixed it.", "torch-backend-broken"),
    ("Jobs are killed. It turned out to be the CPU time limit, which was exceeded.", "cpu-time-limit"),
    ("Writing fails. The file size limit was too low: ulimit -f unlimited fixed it.", "file-size-limit"),
    ("cuInit fails. I hadn't done modprobe nvidia_uvm, after this the problem is gone.", "nvidia-uvm-broken-after-suspend"),
]
UNBLAMED = [
    "We added a check whether the ephemeral ports are exhausted, and one for a corrupted infoROM; a test fails.",
    "How do I set WANDB_MODE=offline? The error is gone, training works.",
    "Our docs say that libgl1 must be installed on Debian, or the import fails.",
    "Set OMP_PROC_BIND=true for the best performance on many cores, then it runs faster.",
    "I use the arm64 image, and it works on our Jetson; only the loss is wrong.",
    "I did not set TORCH_DEVICE_BACKEND_AUTOLOAD=0, and it still fails.",
    "I hadn't done modprobe nvidia_uvm before, and it fails all the same.",
]


@pytest.mark.parametrize(("text", "cause"), BLAMED)
def test_what_people_blame_is_taken(text: str, cause: str) -> None:
    assert _likely(text) == [cause]


@pytest.mark.parametrize("text", UNBLAMED)
def test_what_nobody_blames_is_not_taken(text: str) -> None:
    assert _likely(text) == []


def test_an_installation_is_no_stall() -> None:
    installed = "We installed it on two nodes. Because of the firewall we did it by hand."
    assert not _likely(installed)
    assert _likely(f"{installed} It stalls because of the firewall.") == ["firewall-blocks-nccl"]


def test_what_a_unit_test_prints_accuses_no_host() -> None:
    line = "ERROR:root:Caught exception: [gloo/transport/tcp/pair.cc:572] Connection closed by peer [172.17.0.2]:8356, exiting"
    assert _first(line) == "rank-killed"
    assert _first(f"Sep 10 09:30:49 test_invalid_names (__main__.RpcTest) ... {line}") is None
    full = "OSError: [Errno 28] No space left on device: '/data/x'"
    assert _first(f"test_saves (tests.test_io.Saving) ... {full}") == _first(full) == "disk-full-or-quota"


def _likely(text: str) -> list[str]:
    """Return the causes that are more than possible."""
    found = stated_causes.symptoms_of({"x": lines_of(enumerate(text.split("\n"), 1))})
    return [each.cause for symptom in found for each in symptom.candidates if each.weight >= LIKELY]


def _first(text: str) -> str | None:
    named = diagnose([InputText(name="x", excerpt=excerpt(io.BytesIO(text.encode())))]).causes
    return named[0].cause if named else None
