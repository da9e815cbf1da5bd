"""What is said of hosts that are no x86 server with eight GPUs, and what their head lines call them."""

from __future__ import annotations

import pytest

import platforms
import platforms_more
import platforms_owners
from machines import Recording, cut, function, ordinary, over, torch
from machines_libraries import with_libraries
from platforms_troubled import FAULTS, TROUBLED
from torchtune_sys import engine
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import need
from torchtune_sys.render.report_head import gpu_parts, host_parts
from torchtune_sys.rules import CATALOGUE

PLATFORMS = {**platforms.PLATFORMS, **platforms_more.MORE, **platforms_owners.OWNERS}
SAID = {**platforms.SAID, **platforms_more.SAID, **platforms_owners.SAID}
HEADS = {**platforms.HEADS, **platforms_more.HEADS, **platforms_owners.HEADS}


def look(host: Recording, name: str = "platform") -> Snapshot:
    return engine.snapshot(RecordedHost(with_libraries(host), name), Workload(**host.get("intent", {})), timeout_s=20)


def judged(host: Recording) -> dict[str, Result]:
    return {result.rule.id: result for result in engine.judge(look(host), CATALOGUE)}


def test_each_host_has_its_expectations() -> None:
    assert set(PLATFORMS) == set(SAID) == set(HEADS)
    assert set(TROUBLED) == set(FAULTS)


@pytest.mark.parametrize("name", PLATFORMS)
def test_what_is_said_of_a_platform(name: str) -> None:
    said: dict[str, set[str]] = {}
    blind = []
    for result in judged(PLATFORMS[name]()).values():
        if result.verdict is Verdict.FAIL:
            said.setdefault(result.rule.severity.value, set()).add(result.rule.id)
        elif result.verdict in (Verdict.UNKNOWN, Verdict.CRASHED):
            blind.append(f"{result.rule.id}: {result.why_unknown}")
    assert said == SAID[name]
    if name != "optimus-laptop":  # where every rule of the GPU says that it sleeps
        assert not [line for line in blind if not line.startswith("data-on-spinning-disk: ")]  # no virtual disk tells its medium


@pytest.mark.parametrize("name", TROUBLED)
def test_a_troubled_platform_says_its_trouble_and_no_more(name: str) -> None:
    healthy, wanted = FAULTS[name]
    known = {id_ for level in ("error", "warning") for id_ in SAID[healthy].get(level, ())}
    grave = [one for one in judged(TROUBLED[name]()).values() if one.rule.severity.value != "advice"]
    assert {one.rule.id for one in grave if one.verdict is Verdict.FAIL} - known == wanted
    assert not [one.rule.id for one in grave if one.verdict is Verdict.CRASHED]


@pytest.mark.parametrize("name", PLATFORMS)
def test_the_head_calls_a_platform_what_it_is(name: str) -> None:
    seen = look(PLATFORMS[name]())
    gpu, host = HEADS[name]
    assert ", ".join(gpu_parts(seen)).startswith(gpu)
    assert host in ", ".join(host_parts(seen))


def test_no_nvidia_finding_without_an_nvidia_gpu() -> None:
    for name in ("mi300x-container", "gaudi", "intel-xpu", "graviton", "github-runner"):
        results = judged(PLATFORMS[name]())
        about = ("nvlink", "nvidia", "fabric-manager", "persistence", "xid", "mig-")
        said = {id_ for id_, one in results.items() if one.verdict not in (Verdict.NA, Verdict.PASS)}
        assert not [id_ for id_ in said if any(word in id_ for word in about)]


def test_a_radeon_for_the_display_beside_a_geforce_that_trains() -> None:
    """Debian and Ubuntu give /dev/kfd to the group render alone, in which few desktop users are."""
    host = function(ordinary("desktop-4090"), "pci0000:00/0000:00:1c.4/0000:0a:00.0", "1002:743f", "30000", "amdgpu", -1)
    node = {"mode": 0o20660, "uid": 0, "gid": 105, "size": 0, "special": "235:0"}
    host = over(host, stats={"/dev/kfd": node}, answers={"access:/dev/kfd": {"read": False, "write": False}})
    assert judged(host)["rocm-device-permission"].verdict is Verdict.NA
    rocm = torch(host, "2.13.0+rocm7.2", hip="7.2.26043")
    assert judged(rocm)["rocm-device-permission"].verdict is Verdict.FAIL


def test_sockets_of_a_device_tree_are_those_that_it_names() -> None:
    """Kernels before 6.0 call a cluster a package."""
    board = PLATFORMS["jetson-orin"]()
    assert "3 x" not in ", ".join(host_parts(look(board)))
    server = cut(board, "/proc/device-tree/cpus")
    assert "3 x Arm" in ", ".join(host_parts(look(server)))
    named = {f"/proc/device-tree/cpus/cpu-map/socket{number}/cluster0/core0/cpu": "" for number in range(3)}
    assert "3 x Arm" in ", ".join(host_parts(look(over(server, files=named))))


def test_a_sleeping_gpu_is_not_asked() -> None:
    """The recording's answer for NVML is a crash: who asks, gets it."""
    results = judged(PLATFORMS["optimus-laptop"]())
    assert not [id_ for id_, one in results.items() if one.verdict is Verdict.CRASHED]


def test_a_gpu_that_is_missing_is_missed_outside_of_a_job_only() -> None:
    job = PLATFORMS["slurm-cgroup-v1"]()
    assert judged(job)["gpu-missing-from-driver"].verdict is Verdict.NA
    assert judged(over(job, env={"SLURM_JOB_ID": None}))["gpu-missing-from-driver"].verdict is Verdict.FAIL


def test_the_session_needs_cpus_at_its_own_gpus_only() -> None:
    job = PLATFORMS["slurm-cgroup-v1"]()
    everything = {"nvml": ordinary("rocky8-v100")["answers"]["nvml"]}
    assert judged(job)["session-cpus-far-from-gpus"].verdict is Verdict.NA
    assert judged(over(job, answers=everything))["session-cpus-far-from-gpus"].verdict is Verdict.FAIL


def test_memory_of_gpus_on_nvlink_is_marked_as_theirs() -> None:
    numa = look(PLATFORMS["power9-ac922"]()).numa
    assert {node.id for node in need(need(numa).nodes) if node.gpu_memory} == {252, 253, 254, 255}


@pytest.mark.parametrize(
    ("name", "library", "found_by"),
    [
        ("dgx-spark", "libcudnn.so.9", "DT_RPATH"),
        ("slurm-gres", "libcudnn.so.9", "DT_RPATH"),
        ("gcp-a3-mega", "libnccl.so.2", "DT_RPATH"),
        ("jetson-orin", "libcudnn.so.9", "ld.so.cache"),
        ("power9-ac922", "libnccl.so.2", "ld.so.cache"),
        ("apptainer", "libcuda.so.1", "LD_LIBRARY_PATH"),
        ("colab", "libcuda.so.1", "LD_LIBRARY_PATH"),
        ("wsl2-docker-desktop", "libcuda.so.1", "ld.so.cache"),
        ("kubernetes-static", "libcuda.so.1", "ld.so.cache"),
    ],
)
def test_what_the_loader_would_take_on_a_platform(name: str, library: str, found_by: str) -> None:
    loader = need(need(look(PLATFORMS[name]()).python).loader)
    assert next(item.found_by for item in loader if item.name == library) == found_by
    assert not [item.name for item in loader if not isinstance(item.path, str)]
