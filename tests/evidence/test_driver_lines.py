"""DKMS's failures, the fabric manager's log, a container that lost its GPUs, and limits on locked memory, as they are pasted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import judge
from torchtune_sys import evidence
from torchtune_sys.evidence.driver import daemons, driver_facts, not_built_for
from torchtune_sys.evidence.limits import limits_facts
from torchtune_sys.evidence.nvidia.smi import worked_before
from torchtune_sys.formats import fabric_manager_log as log
from torchtune_sys.model.rule import Verdict


def failed(text: str) -> set[str]:
    seen = evidence.read(text, "report.txt")
    assert seen is not None, "not recognised"
    return {result.rule.id for result in judge(seen).values() if result.verdict in (Verdict.FAIL, Verdict.CRASHED)}


TABLE = """\
| NVIDIA-SMI {driver}    Driver Version: {driver}    CUDA Version: 12.4     |
|   0  {name}      On  | 00000000:1B:00.0 Off |                    0 |
| N/A   31C    P0    70W / 700W |      1MiB / 81559MiB |      0%      Default |
"""
MISMATCH = (
    "Nov 05 13:55:26 gpu7 nv-fabricmanager[104230]: fabric manager NVIDIA GPU driver interface version 550.127.05 {} match"
    " with driver version 550.120. Please update with matching NVIDIA driver package.\n"
)
STARTED = 'Nov 05 14:10:01 gpu7 nvidia-fabricmanager-start.sh[1049]: Started "Nvidia Fabric Manager"\n'
NO_SWITCH = (
    "Sep 18 03:19:01 gpu7 nv-fabricmanager[4756]: request to query NVSwitch device information from NVSwitch driver failed with"
    " error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]\n"
)
TOPOLOGY = (
    "[Apr 01 2026 16:37:00] [ERROR] [tid 99] detected number of NVSwitches don't match with any supported system topology,"
    " aborting fabric manager\n"
)


@pytest.mark.parametrize("words", ["don't", "doesn't"])
def test_a_fabric_manager_of_another_version_does_not_start(words: str) -> None:
    assert failed(MISMATCH.format(words)) == {"fabric-manager-not-running"}


def test_a_fabric_manager_that_finds_too_few_switches_does_not_start() -> None:
    assert failed(TOPOLOGY) == {"fabric-manager-not-running"}


def test_a_later_start_ends_the_failure() -> None:
    assert failed(MISMATCH.format("don't") + STARTED) == set()
    assert failed(STARTED + MISMATCH.format("don't")) == {"fabric-manager-not-running"}


@pytest.mark.parametrize("lines", [NO_SWITCH, MISMATCH.format("don't")])
def test_a_machine_without_switches_needs_no_fabric_manager(lines: str) -> None:
    table = TABLE.format(driver="550.120", name="NVIDIA GeForce RTX 4090")
    assert "fabric-manager-not-running" not in failed(table + lines)


def test_a_fabric_manager_without_switches_matters_on_a_board_that_has_them() -> None:
    assert failed(NO_SWITCH) == set()
    assert "fabric-manager-not-running" in failed(TABLE.format(driver="550.120", name="NVIDIA H100 80GB HBM3  ") + NO_SWITCH)


def test_a_fabric_manager_at_work_is_no_kernel_log_and_accuses_nothing() -> None:
    text = (
        "[Feb 25 2025 14:01:18] [INFO] [tid 1808] multicast group 0 is allocated.\n"
        "[Feb 27 2025 15:10:02] [ERROR] [tid 127] detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0"
        " physical id 3 port 61\n"
    )
    seen = evidence.read(text, "fabricmanager.log")
    assert seen is not None and "kernel" not in seen.origin
    assert failed(text) == set()


def test_a_fatal_error_of_a_switch_is_told_of_with_its_time() -> None:
    text = (
        "[Jul 23 2024 07:53:55] [ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0"
        " physical id 3 port 33\n"
    )
    seen = evidence.read(text, "fabricmanager.log")
    assert seen is not None
    result = judge(seen)["xid-nvlink-error"]
    assert result.verdict is Verdict.FAIL
    assert result.evidence[0].subject == "NVSwitch at 0000:86:00.0" and "20034, 2024-07-23 07:53" in result.evidence[0].seen


DKMS = """\
Building module:
Cleaning build area...
unset ARCH; env NV_VERBOSE=1 'make' -j16 NV_EXCLUDE_BUILD_MODULES='' KERNEL_UNAME=6.8.0-45-generic
Error! Bad return status for module build on kernel: 6.8.0-45-generic (x86_64)
Consult /var/lib/dkms/nvidia/550.90.07/build/make.log for more information.
"""


def test_a_module_that_dkms_could_not_build_is_told_of_once() -> None:
    smi = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
    assert failed(DKMS) == {"nvidia-module-not-built-for-kernel"}
    assert failed(smi + DKMS) == {"nvidia-module-not-built-for-kernel"}


def test_a_build_that_went_well_after_all_is_no_finding() -> None:
    assert not_built_for(DKMS + "nvidia/550.90.07, 6.8.0-45-generic, x86_64: installed\n") == ""


def test_a_build_for_another_kernel_is_no_finding_while_the_driver_serves_the_gpus() -> None:
    assert "nvidia-module-not-built-for-kernel" not in failed(
        TABLE.format(driver="550.120", name="NVIDIA L4              ") + DKMS
    )


def test_a_module_of_another_vendor_is_not_nvidias() -> None:
    text = "Error! Bad return status for module build on kernel: 6.8.0-45-generic (x86_64)\nConsult /var/lib/dkms/zfs/2.2/build/make.log\n"
    assert not_built_for(text) == "" and evidence.read(text, "x") is None


PROMPT = "root@0123456789ab:/workspace# nvidia-smi\n"
GOOD = "| NVIDIA-SMI 535.54.03    Driver Version: 535.54.03    CUDA Version: 12.2     |\n"
BAD = "Failed to initialize NVML: Unknown Error\n"


def test_a_container_in_which_nvml_worked_before_has_lost_its_devices() -> None:
    assert "container-lost-gpu-cgroup" in failed(PROMPT + GOOD + PROMPT + BAD)


@pytest.mark.parametrize(
    "text",
    [
        PROMPT + BAD,
        PROMPT + BAD + PROMPT + GOOD,
        "root@ba9876543210:/# nvidia-smi\n" + GOOD + PROMPT + BAD,
        "me@host:~$ nvidia-smi\n" + GOOD + PROMPT + BAD,
    ],
)
def test_without_the_same_container_at_work_before_nothing_is_proved(text: str) -> None:
    assert not worked_before(text)
    assert "container-lost-gpu-cgroup" not in failed(text)


UCX = (
    "[1736959004.001121] [n1:29714:0]   ib_iface.c:1060 UCX  ERROR mlx5_0: ibv_create_cq(cqe=4096) failed: Cannot allocate memory :"
    " Please set max locked memory (ulimit -l) to 'unlimited' (current: {} kbytes)\n"
)
ULIMIT = "max locked memory       (kbytes, -l) {}\nmax memory size         (kbytes, -m) unlimited\n"
NCCL = "n1:77:99 [0] NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n"


@pytest.mark.parametrize("text", [UCX.format(64), UCX.format(524288), NCCL + ULIMIT.format(8192)])
def test_a_verbs_call_that_failed_for_the_limit_is_told_of_once(text: str) -> None:
    assert failed(text) == {"memlock-limit-too-low"}


@pytest.mark.parametrize("text", [ULIMIT.format(64), NCCL + ULIMIT.format("unlimited")])
def test_a_limit_alone_or_a_failure_without_one_accuses_nothing(text: str) -> None:
    assert failed(text) == set()


def test_a_process_tells_both_limits() -> None:
    facts = limits_facts("Max locked memory         65536                1048576              bytes     \n")
    assert facts is not None and (facts.limits["memlock"].soft, facts.limits["memlock"].hard) == (65536, 1048576)  # type: ignore[union-attr]


PIECES = [
    MISMATCH.format("don't"),
    STARTED,
    NO_SWITCH,
    TOPOLOGY,
    DKMS,
    PROMPT,
    GOOD,
    BAD,
    UCX.format(9**30),
    ULIMIT.format(1),
    NCCL,
]


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("● nvidia-persistenced.service - NVIDIA Persistence Daemon\n     Loaded: loaded (/usr/lib/x; enabled)\n     Active: active (running) since Tue", True),
        ("× nvidia-persistenced.service - NVIDIA\n     Loaded: loaded\n     Active: failed (Result: exit-code) since Tue", False),
        ("Unit nvidia-persistenced.service could not be found.", False),
        ("$ systemctl is-active nvidia-persistenced\ninactive\n", False),
        ("● docker.service - Docker nvidia-\n     Active: active (running)\n", None),
        ("● nvidia-persistenced.service - NVIDIA\n     Active: activating (auto-restart)\n", None),
    ],
)  # fmt: skip
def test_what_systemctl_says_of_a_daemon(text: str, runs: bool | None) -> None:
    assert daemons(text).get("persistenced") is runs


@given(st.lists(st.sampled_from(PIECES) | st.text(), max_size=8).map("".join))
def test_any_text_survives(text: str) -> None:
    driver_facts(None, "", text)
    limits_facts(text)
    worked_before(text)
    log.failure(text)
    evidence.read(text, "x")


def test_a_module_beside_nvidias_own_is_not_it() -> None:
    other = DKMS.replace("/nvidia/", "/nvidia-fs/")
    assert not_built_for(other) == "" and not_built_for(DKMS.replace("/nvidia/", "/nvidia-current/")) == "6.8.0-45-generic"
    bumblebee = "==> dkms install bbswitch/0.8 -k 6.8.0\nError! Bad return status for module build on kernel: 6.8.0 (x86_64)\n"
    assert not_built_for(bumblebee + "==> dkms install nvidia/550.90.07 -k 6.8.0\n") == ""
    assert not_built_for("==> dkms install nvidia/550.90.07 -k 6.8.0\n" + bumblebee.partition("\n")[2]) == "6.8.0"


def test_a_container_in_the_network_of_its_host_is_one_where_systemd_was_reloaded() -> None:
    prompt = "(workflow) root@ip-10-0-0-7:~# nvidia-smi\n"
    assert not worked_before(prompt + GOOD + prompt + BAD)
    text = prompt + GOOD + "$ sudo systemctl daemon-reload\n" + prompt + BAD
    assert "container-lost-gpu-cgroup" in failed(text)


def test_a_build_for_cuda_beside_a_rocm_torch_wants_no_toolkit() -> None:
    from torchtune_sys import engine
    from torchtune_sys.evidence import read
    from torchtune_sys.rules import by_id

    said = "torch.__version__  = 2.7.0+{}\nUserWarning: flash_attn was requested, but nvcc was not found.\n"
    verdicts = {}
    for build in ("rocm6.3", "cu126"):
        seen = read(said.format(build), "build.log")
        assert seen is not None
        verdicts[build] = engine.judge(seen, [by_id()["cuda-toolkit-missing"]])[0].verdict.value
    assert verdicts == {"rocm6.3": "na", "cu126": "fail"}
