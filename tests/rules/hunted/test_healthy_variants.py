"""Healthy neighbours of the fourth list's faults: one thing differs, and the rule that names the fault finds nothing."""

from __future__ import annotations

import pytest
from hunted_fourth import Build, _data_on_nfs, _partitioned, _step_of_a_task
from hunted_second import desktop, dgx, mi300x
from test_hunted import _seen

from conftest import judge_one
from machines import Recording, environment, function, over, text, torch, without_gpus
from platforms import intel_xpu
from platforms_arm import gb200_tray
from torchtune_sys.model.rule import Verdict

_RANK = {"LOCAL_RANK": "3", "RANK": "3", "WORLD_SIZE": "8"}


def _graphics(device: str, address: str, driver: str) -> Recording:
    host = torch(without_gpus(desktop()), "2.9.1+cpu", cuda=None)
    return function(host, f"pci0000:00/0000:00:01.0/{address}", f"8086:{device}", "30000", driver, -1)


def _fabric(told: bool) -> Recording:
    host = environment(gb200_tray(), NCCL_MNNVL_ENABLE="0")
    nvml = host["answers"]["nvml"]
    devices = [device | {"fabric_of_hosts": told} for device in nvml["devices"]]
    return over(host, answers={"nvml": nvml | {"devices": devices}}, intent={"nodes": 2})


def _data_on_nfs_read_only(options: str) -> Recording:
    host = _data_on_nfs(options)()
    lines = text(host, "/proc/self/mountinfo")
    return over(host, files={"/proc/self/mountinfo": [line.replace("/nfs/data rw,", "/nfs/data ro,") for line in lines]})


_ONE_ANOTHER = ("SPX", "SPX", "SPX", "CPX", *("SPX",) * 4)

VARIANTS: dict[str, tuple[str, Build, Verdict]] = {
    "copy engines that AMD's scripts leave off": (
        "fast-path-switched-off",
        lambda: environment(mi300x(), HSA_ENABLE_SDMA="0"),
        Verdict.PASS,
    ),
    "a list of protocols": ("fast-path-switched-off", lambda: environment(dgx(), NCCL_PROTO="LL,Simple"), Verdict.PASS),
    "no NVLink between hosts": ("fast-path-switched-off", lambda: _fabric(False), Verdict.PASS),
    "NVLink between hosts": ("fast-path-switched-off", lambda: _fabric(True), Verdict.FAIL),
    "a rank without its GPU": ("several-ranks-on-one-gpu", lambda: environment(_step_of_a_task(), **_RANK), Verdict.FAIL),
    "a rank that shares": (
        "several-ranks-on-one-gpu",
        lambda: environment(_step_of_a_task(), NCCL_MULTI_RANK_GPU_ENABLE="1", **_RANK),
        Verdict.NA,
    ),
    "LOCAL_RANK of no job": ("several-ranks-on-one-gpu", lambda: environment(desktop(), LOCAL_RANK="3"), Verdict.NA),
    "partitions of which the job chooses": (
        "gpu-models-mixed",
        lambda: environment(_partitioned(*_ONE_ANOTHER), HIP_VISIBLE_DEVICES="0,1,2"),
        Verdict.NA,
    ),
    "partitions in a container": (
        "gpu-models-mixed",
        lambda: over(
            _partitioned(*_ONE_ANOTHER),
            files={"/.dockerenv": "", "/proc/1/comm": "bash\n"},
            links={"/proc/self/ns/pid": "pid:[4026532841]"},
        ),
        Verdict.NA,
    ),
    "partitions that the driver does not tell": (
        "gpu-models-mixed",
        lambda: _partitioned("SPX", "UNKNOWN", *("SPX",) * 6),
        Verdict.PASS,
    ),
    "a card of Intel's": ("cpu-only-build", lambda: _graphics("e20b", "0000:03:00.0", "xe"), Verdict.FAIL),
    "a part of a processor's graphics in a guest": (
        "cpu-only-build",
        lambda: _graphics("a7a0", "0000:06:10.0", "i915"),
        Verdict.NA,
    ),
    "a second function of a chipset's graphics": (
        "intel-gpu-not-served",
        lambda: function(intel_xpu(), "pci0000:00/0000:00:02.1", "8086:2a43", "38000", "", -1),
        Verdict.PASS,
    ),
    "a card of Intel's beside AMD's GPUs": (
        "cpu-only-build",
        lambda: function(
            torch(mi300x(), "2.9.1+cpu", cuda=None, hip=None),
            "pci0000:00/0000:00:01.0/0000:04:00.0",
            "8086:56a5",
            "30000",
            "i915",
            -1,
        ),
        Verdict.NA,
    ),
    "several plug-ins of NCCL": (
        "variable-names-missing-file",
        lambda: environment(dgx(), NCCL_NET_PLUGIN="/opt/a/libnccl-net.so,/opt/b/libnccl-net.so"),
        Verdict.NA,
    ),
    "data that is only read": ("nfs-mount-untuned", lambda: _data_on_nfs_read_only("soft,timeo=600,retrans=2"), Verdict.PASS),
    "data that is written": ("nfs-mount-untuned", _data_on_nfs("soft,timeo=600,retrans=2"), Verdict.FAIL),
    "data with soft revalidation": ("nfs-mount-untuned", _data_on_nfs("hard,softreval,timeo=600,retrans=2"), Verdict.PASS),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_healthy_neighbour_of_a_fault_is_not_accused(name: str) -> None:
    rule_id, build, verdict = VARIANTS[name]
    found = judge_one(_seen(build), rule_id)
    assert found.verdict is verdict, found
