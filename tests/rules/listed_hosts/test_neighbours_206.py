"""Healthy neighbours of the fifth list's faults: one thing differs, and the rule that names the fault finds nothing."""

from __future__ import annotations

import pytest
from hosts_082 import _library, _mounted, _site
from hosts_206 import _clocked, _level_zero, _pod_of_two, _roce, conda
from hosts_242 import _blocked, _flash, _instance, _served, _used, _way
from hosts_table import Build, desktop, dgx, mi300x, two_dgx
from test_listed_hosts import _seen
from test_neighbours_141 import _graphics

from conftest import judge_one
from machines import Recording, environment, over, text, torch
from platforms import intel_xpu
from platforms_arm import jetson_orin
from platforms_more import aws_p5_efa
from platforms_troubled import logged
from torchtune_sys.formats.failure_lines import failures
from torchtune_sys.model.actions import EnvironmentVariable
from torchtune_sys.model.rule import Verdict


def _temporary(what: str) -> Recording:
    return environment(_mounted(dgx(), "/scratch/tmp", what), TMPDIR="/scratch/tmp")


def _noexec_elsewhere() -> Recording:
    lines = [
        line.replace("rw,relatime", "rw,nosuid,noexec,relatime")
        for line in text(_mounted(desktop(), "/srv", "- ext4 /dev/sdb1 rw"), "/proc/self/mountinfo")
        if " /srv " in line
    ]
    host = _mounted(desktop(), "/srv", "- ext4 /dev/sdb1 rw")
    kept = [line for line in text(host, "/proc/self/mountinfo") if " /srv " not in line]
    return over(host, files={"/proc/self/mountinfo": [*kept, *lines]})


def _slow_roce() -> Recording:
    """Ports of 25 Gbit/s, as management networks have them."""
    host = _roce(1500)
    return over(host, files={f"/sys/class/infiniband/mlx5_{n}/ports/1/rate": "25 Gb/sec (1X EDR)" for n in range(16)})


def _renamed(host: Recording) -> Recording:
    """A wheel of one's own build: a file of this disk."""
    info = f"{_site(host)}/flash_attn-2.7.4.post1.dist-info"
    return over(host, files={f"{info}/direct_url.json": '{"dir_info": {}, "url": "file:///home/ops/src/flash-attention"}'})


def _bridge_with_a_card(master: str = "docker0") -> Recording:
    """br0 carries the host's network, a card is its port: its address is the host's own."""
    host = _way("172.17.0.1", "172.17.0.1")
    listed = host["answers"]["interfaces"]
    named = [{**one, "master": master} if one["name"] == "eno3" else one for one in listed]
    return over(host, answers={"interfaces": named})


def _refused(port: int, peer: str) -> Recording:
    return logged(_served(), _blocked(port, peer))


def _listing(value: str) -> Recording:
    return environment(two_dgx(), NCCL_IB_HCA=value)


_COMPAT = "/usr/local/cuda/compat"
VARIANTS: dict[str, tuple[str, Build, Verdict]] = {
    "temporary files on Lustre": (
        "temporary-directory-on-nfs",
        lambda: _temporary("- lustre 10.1.1.1@o2ib:/scratch rw,flock"),
        Verdict.PASS,
    ),
    "temporary files in memory": ("temporary-directory-on-nfs", lambda: _temporary("- tmpfs tmpfs rw,size=64g"), Verdict.PASS),
    "a time-out of NCCL's own first default": (
        "nccl-ib-timeout-short",
        lambda: environment(two_dgx(), NCCL_IB_TIMEOUT="14"),
        Verdict.PASS,
    ),
    "a time-out without end": ("nccl-ib-timeout-short", lambda: environment(two_dgx(), NCCL_IB_TIMEOUT="0"), Verdict.PASS),
    "a short time-out on one host": ("nccl-ib-timeout-short", lambda: environment(dgx(), NCCL_IB_TIMEOUT="2"), Verdict.NA),
    "another file system without execution": ("environment-not-executable", _noexec_elsewhere, Verdict.PASS),
    "an environment on Lustre": (
        "environment-not-executable",
        lambda: _mounted(desktop(), "/home", "- lustre 10.1.1.1@o2ib:/home rw,flock"),
        Verdict.PASS,
    ),
    "a newer cuda-compat": (
        "nvml-driver-library-mismatch",
        lambda: _library(dgx(), _COMPAT, "libcuda.so.1", "libcuda.so.590.44.01"),
        Verdict.PASS,
    ),
    "cuda-compat of the driver's own version": (
        "nvml-driver-library-mismatch",
        lambda: _library(dgx(), _COMPAT, "libcuda.so.1", "libcuda.so.580.95.05"),
        Verdict.PASS,
    ),
    "RoCE with packets of 4096 bytes": ("ethernet-mtu-small", lambda: _roce(4220), Verdict.PASS),
    "slow RoCE": ("ethernet-mtu-small", _slow_roce, Verdict.NA),
    "flash-attn for this torch": ("extension-torch-abi-mismatch", lambda: _flash("2.11"), Verdict.PASS),
    "flash-attn built here": ("extension-torch-abi-mismatch", lambda: _renamed(_flash("2.6")), Verdict.PASS),
    "the only instance by its number": (
        "cuda-visible-devices-wrong",
        lambda: _instance(CUDA_VISIBLE_DEVICES="0"),
        Verdict.PASS,
    ),
    "a master at another host": ("master-address-unreachable", lambda: _way("10.33.0.12", "10.33.0.13"), Verdict.PASS),
    "a master at a bridge with a card": ("master-address-unreachable", _bridge_with_a_card, Verdict.PASS),
    "a refused login of a neighbour": (
        "firewall-drops-connections-logged",
        lambda: _refused(22, "10.33.0.12"),
        Verdict.PASS,
    ),
    "a refused scanner at the rendezvous' port": (
        "firewall-drops-connections-logged",
        lambda: _refused(29500, "203.0.113.9"),
        Verdict.PASS,
    ),
    "a neighbour refused at a high port": (
        "firewall-drops-connections-logged",
        lambda: _refused(45123, "10.33.0.12"),
        Verdict.FAIL,
    ),
    "a stranger refused at a high port": (
        "firewall-drops-connections-logged",
        lambda: _refused(45123, "10.99.0.12"),
        Verdict.PASS,
    ),
    "a list for hosts with more adapters": (
        "nccl-ib-hca-unmatched",
        lambda: _listing("mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_21,mlx5_22"),
        Verdict.PASS,
    ),
    "a list that leaves an adapter out": ("nccl-ib-hca-unmatched", lambda: _listing("^mlx5_8,mlxl5_9"), Verdict.PASS),
    "CUDA's build beside graphics on the processor": (
        "cpu-only-build",
        lambda: torch(_graphics("a7a0", "0000:00:02.0", "i915"), "2.11.0+cu130", cuda="13.0"),
        Verdict.NA,
    ),
    "the build for Intel's GPUs": ("cpu-only-build", intel_xpu, Verdict.PASS),
    "512 threads": ("fast-path-switched-off", lambda: environment(dgx(), NCCL_NTHREADS="512"), Verdict.PASS),
    "a short time-out of adapters that are switched off": (
        "nccl-ib-timeout-short",
        lambda: environment(two_dgx(), NCCL_IB_TIMEOUT="2", NCCL_IB_DISABLE="1"),
        Verdict.NA,
    ),
    "a short time-out on EFA": (
        "nccl-ib-timeout-short",
        lambda: over(environment(aws_p5_efa(), NCCL_IB_TIMEOUT="2"), intent={"nodes": 2}),
        Verdict.NA,
    ),
    "a scanner of the same network": (
        "firewall-drops-connections-logged",
        lambda: logged(_served(), *(_blocked(port, "10.33.0.250") for port in (21, 22, 443, 3389, 29500, 45123))),
        Verdict.PASS,
    ),
    "a master at a bridge of Open vSwitch": (
        "master-address-unreachable",
        lambda: _bridge_with_a_card("ovs-system"),
        Verdict.PASS,
    ),
    "both spellings": (
        "nccl-variable-unknown",
        lambda: environment(two_dgx(), CCL_DEBUG="INFO", NCCL_DEBUG="INFO"),
        Verdict.PASS,
    ),
    "oneCCL's own variables": (
        "nccl-variable-unknown",
        lambda: environment(two_dgx(), CCL_WORKER_COUNT="4", CCL_ATL_TRANSPORT="ofi"),
        Verdict.NA,
    ),
    "JetPack's CUDA in place": ("wheel-libs-not-found", jetson_orin, Verdict.NA),
    "torch that brings its CUDA": ("wheel-libs-not-found", conda, Verdict.PASS),
    "a port of RoCE among RoCE ports": ("roce-without-routable-address", lambda: _roce(4220), Verdict.PASS),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_healthy_neighbour_of_a_reported_fault_is_not_accused(name: str) -> None:
    rule_id, build, verdict = VARIANTS[name]
    found = judge_one(_seen(build), rule_id)
    assert found.verdict is verdict, found


@pytest.mark.parametrize(("where", "advised"), [("/tmp", "/path/on/a/disk"), ("/scratch/tmp", "/tmp")])
def test_what_is_advised_instead_is_not_the_same_directory(where: str, advised: str) -> None:
    host = environment(_mounted(dgx(), where, "- nfs4 nfs01:/export rw,vers=4.2"), TMPDIR=where)
    found = judge_one(_seen(lambda: host), "temporary-directory-on-nfs")
    fixes = found.evidence[0].fix or found.rule.fix
    assert [fix.value for fix in fixes if isinstance(fix, EnvironmentVariable)] == [advised]


def test_errors_of_the_fabric_manager_are_failures() -> None:
    line = "[Nov 12 2025 09:14:22] [{}] [tid 1234] failed to find the GPU handle 12345 in the multicast team request setup 1."
    assert failures(line.format("ERROR")) and not failures(line.format("INFO"))


@pytest.mark.parametrize(("tasks", "verdict"), [(3728, Verdict.PASS), (3729, Verdict.FAIL)])
def test_what_the_user_runs_already_counts_against_the_limit_on_tasks(tasks: int, verdict: Verdict) -> None:
    """Four ranks with 28 threads and eight workers each take 368 of 4096."""
    assert judge_one(_seen(lambda: _used(tasks)), "nproc-limit-too-low").verdict is verdict


def _working(level: str, mhz: int, busy: int) -> Recording:
    return _clocked([2100, 2100, mhz, *[2100] * 5], [100, 100, busy, *[100] * 5], level)


@pytest.mark.parametrize(
    ("level", "mhz", "busy", "verdict"),
    [
        ("auto", 1300, 100, Verdict.PASS),  # at its power limit
        ("auto", 132, 0, Verdict.PASS),
        ("high", 2100, 100, Verdict.PASS),
        ("manual", 1200, 100, Verdict.PASS),
        ("auto", 500, 100, Verdict.FAIL),
        ("profile_min_sclk", 2100, 0, Verdict.FAIL),
    ],
)
def test_clocks_of_amd_gpus(level: str, mhz: int, busy: int, verdict: Verdict) -> None:
    assert judge_one(_seen(lambda: _working(level, mhz, busy)), "gpu-clock-held-down").verdict is verdict


def _verbs_library(**variables: str) -> Recording:
    return environment(_pod_of_two(), **variables)


@pytest.mark.parametrize(
    "host",
    [
        lambda: over(_pod_of_two(), intent={"nodes": 1}),
        lambda: _verbs_library(NCCL_IB_DISABLE="1"),
        lambda: over(_pod_of_two(), answers={"loader-cache:libibverbs.so.1": [{"name": "libibverbs.so.1", "path": "/opt/x.so"}]}),
        lambda: _verbs_library_of_conda(),
    ],
    ids=["one node", "NCCL_IB_DISABLE", "in the cache", "conda's"],
)
def test_the_rdma_library_is_not_missed_without_need(host: Build) -> None:
    found = judge_one(_seen(host), "rdma-driver-not-loaded")
    assert all("libibverbs" not in item.subject for item in found.evidence if item.verdict is Verdict.FAIL)


def _verbs_library_of_conda() -> Recording:
    host = _verbs_library(CONDA_PREFIX="/opt/conda")
    return over(host, stats={"/opt/conda/lib/libibverbs.so.1": {"mode": 33188, "uid": 0, "gid": 0, "size": 130_000}})


@pytest.mark.parametrize(
    "host",
    [lambda: environment(_level_zero(), ZE_ENABLE_ALT_DRIVERS="/opt/ze/libze_intel_gpu.so"), intel_xpu],
    ids=["another driver is named", "not asked"],
)
def test_level_zero_is_not_missed_without_need(host: Build) -> None:
    assert judge_one(_seen(host), "intel-gpu-not-served").verdict is not Verdict.FAIL


@pytest.mark.parametrize("value", ["11.0.0", "9.4.2"])
def test_an_override_that_names_a_gpu_is_not_an_empty_one(value: str) -> None:
    found = judge_one(_seen(lambda: environment(mi300x(), HSA_OVERRIDE_GFX_VERSION=value)), "rocm-arch-not-in-wheel")
    assert all("gfx000" not in item.seen for item in found.evidence)


@pytest.mark.parametrize("address", ["10.33.0.13", "node-head", ""])
def test_an_address_of_this_host_or_a_name_is_not_another_hosts(address: str) -> None:
    assert (
        judge_one(_seen(lambda: environment(two_dgx(), VLLM_HOST_IP=address)), "rank-variables-left").verdict is not Verdict.FAIL
    )


def test_flashinfer_with_compiled_kernels_or_without_sglang_needs_no_nvcc() -> None:
    for names in (
        ("sglang-0.5.5", "flashinfer_python-0.5.2", "flashinfer_jit_cache-0.5.2"),
        ("vllm-0.11.0", "flashinfer_python-0.5.2"),
    ):
        files = {f"{_site(conda())}/{name}.dist-info/INSTALLER": "pip\n" for name in names}
        host = over(conda(), files=files)
        assert judge_one(_seen(lambda host=host: host), "cuda-toolkit-missing").verdict is not Verdict.FAIL
