"""Boundaries of what torch.compile needs, and of what other processes hold."""

from __future__ import annotations

import pytest

from conftest import HOSTS, judge, load, recording
from torchtune_sys.host.recorded import SECTIONS, load_recording, merged
from torchtune_sys.model.rule import Verdict


def verdict(rule: str, overlay: str, **changes: object) -> Verdict:
    recording = load_recording(str(HOSTS / f"{overlay}.json"))
    sections = {name: recording[name] for name in SECTIONS if name in recording}
    return judge(load("healthy", **merged(sections, changes)))[rule].verdict


def test_without_triton_nothing_is_compiled() -> None:
    site = "/data/train/.venv/lib/python3.12/site-packages/triton-3.6.0.dist-info/INSTALLER"
    results = judge(load("healthy", files={site: None, "/usr/include/stdlib.h": None}))
    for rule in (
        "c-library-headers-missing",
        "compile-cache-not-writable",
        "compile-cache-not-executable",
        "compile-cache-on-network",
    ):
        assert results[rule].verdict is Verdict.NA


@pytest.mark.parametrize(("env", "found"), [({"TORCHINDUCTOR_CACHE_DIR": "/tmp/c"}, Verdict.FAIL), ({}, Verdict.NA)])
def test_a_cache_that_somebody_named_matters_without_a_gpu_too(env: dict[str, str], found: Verdict) -> None:
    """torch.compile keeps its C++ for CPUs there; a usual place is judged beside an NVIDIA GPU with Triton alone."""
    files = {
        "/proc/self/mountinfo": load_recording(str(HOSTS / "compile-cache-not-executable.fail.json"))["files"][
            "/proc/self/mountinfo"
        ]
    }
    seen = load("typical/laptop-cpu", files=files, env=env)
    assert judge(seen)["compile-cache-not-executable"].verdict is found


def test_one_process_alone_may_use_the_network() -> None:
    one = verdict("compile-cache-on-network", "compile-cache-on-network.fail", intent={"ranks": 1, "nodes": 1})
    two_hosts = verdict("compile-cache-on-network", "compile-cache-on-network.fail", intent={"ranks": 1, "nodes": 2})
    assert (one, two_hosts) == (Verdict.NA, Verdict.FAIL)


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({"RANK": "0"}, Verdict.FAIL),
        ({"RANK": "3"}, Verdict.NA),
        ({"SLURM_PROCID": "1"}, Verdict.NA),
        ({"TORCHELASTIC_RUN_ID": "none"}, Verdict.NA),
        ({"MASTER_ADDR": "trainer-01.example.org"}, Verdict.FAIL),
        ({"MASTER_ADDR": "trainer-02"}, Verdict.NA),
        ({"MASTER_ADDR": "10.0.0.12"}, Verdict.NA),
        ({"MASTER_PORT": "29501"}, Verdict.UNKNOWN),
        ({"KUBERNETES_SERVICE_HOST": "10.96.0.1", "container": "oci"}, Verdict.NA),
    ],
)
def test_who_would_listen(env: dict[str, str], wanted: Verdict) -> None:
    assert verdict("master-port-in-use", "master-port-in-use.fail", env=env) is wanted


def test_a_host_without_gpu_has_a_rendezvous_too() -> None:
    assert verdict("master-port-in-use", "master-port-in-use.fail", files={"/proc/driver/nvidia/version": None}) is Verdict.FAIL


def test_a_daemon_outside_the_container_is_not_accused() -> None:
    inside = {"container": "podman"}
    assert verdict("mps-server-unreachable", "mps-server-unreachable.fail", env=inside) is Verdict.NA
    assert verdict("mps-server-unreachable", "mps-server-unreachable.fail.asked-for", env=inside) is Verdict.FAIL


def test_root_may_use_anybodys_daemon() -> None:
    root = {"uid": {"uid": 0, "gid": 0, "groups": [0], "user": "root", "home": "/root"}}
    assert verdict("mps-server-unreachable", "mps-server-unreachable.fail.another-user", answers=root) is Verdict.PASS


def test_flags_that_name_the_compiler_are_trusted() -> None:
    told = verdict("host-compiler-too-new", "host-compiler-too-new.fail", env={"NVCC_PREPEND_FLAGS": "-ccbin=/usr/bin/g++-13"})
    assert told is Verdict.NA


@pytest.mark.parametrize(
    ("options", "compiler", "found"),
    [("rw,nosuid,noexec", True, "fail"), ("rw,nosuid", True, "pass"), ("rw,noexec", False, "na")],
)
def test_a_temporary_directory_without_exec_stops_torch_compile_on_cpus(options: str, compiler: bool, found: str) -> None:
    """Hardening guides mount /tmp so, and torch.compile builds a library there whatever the device."""
    mounts = [*recording("typical/laptop-cpu")["files"]["/proc/self/mountinfo"], f"99 1 0:99 / /tmp {options} - tmpfs tmpfs rw"]
    gcc = {"mode": 0o100755, "uid": 0, "gid": 0, "size": 9}
    stats = {f"/usr/bin/{name}": gcc if compiler and name == "gcc" else None for name in ("gcc", "clang", "cc")}
    seen = load("typical/laptop-cpu", files={"/proc/self/mountinfo": mounts}, stats=stats)
    assert judge(seen)["compile-cache-not-executable"].verdict.value == found
