"""Variables of the session: every name and value that counts, the neighbours that do not, and on which hosts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from conftest import load
from torchtune_sys import engine
from torchtune_sys.model.facts.python import Torch
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why, need
from torchtune_sys.rules.environment import RULES
from torchtune_sys.rules.environment.common import number

ABSENT = Missing(Why.ABSENT, "test")
DENIED = Missing(Why.DENIED, "test")
RULE = {rule.id: rule for rule in RULES}
PASS, FAIL, NA, UNKNOWN = Verdict.PASS, Verdict.FAIL, Verdict.NA, Verdict.UNKNOWN


def having(seen: Snapshot, family: str, **facts: Any) -> Snapshot:
    return msgspec.structs.replace(seen, **{family: msgspec.structs.replace(getattr(seen, family), **facts)})


def with_env(seen: Snapshot, **env: str) -> Snapshot:
    return having(seen, "session", env=env)


def with_gpus(seen: Snapshot, count: int, **facts: Any) -> Snapshot:
    assert not isinstance(seen.gpu, Missing) and not isinstance(seen.gpu.devices, Missing)
    return having(seen, "gpu", devices=tuple(msgspec.structs.replace(gpu, **facts) for gpu in seen.gpu.devices[:count]))


def with_torch(seen: Snapshot, release: str) -> Snapshot:
    assert not isinstance(seen.python, Missing) and isinstance(seen.python.torch, Torch)
    return having(seen, "python", torch=msgspec.structs.replace(seen.python.torch, version=release))


def verdict(rule_id: str, seen: Snapshot) -> Verdict:
    return engine.judge(seen, [RULE[rule_id]])[0].verdict


@pytest.mark.parametrize(
    ("text", "read"),
    [("1", 1), (" 2 ", 2), ("-1", -1), ("+3", 3), ("1x", 1), ("12 34", 12), ("", 0), ("x", 0), ("true", 0), ("0", 0), ("1-1", 0)],
)
def test_numbers(text: str, read: int) -> None:
    assert number(text) == read


SET = [
    *(("memory-debugging-on", "PYTHONMALLOC", v, FAIL) for v in ("debug", "malloc_debug", "pymalloc_debug", "mimalloc_debug")),
    *(("memory-debugging-on", "PYTHONMALLOC", v, PASS) for v in ("malloc", "pymalloc", "mimalloc", "default", "")),
    *(("memory-debugging-on", n, "1", FAIL) for n in ("PYTHONDEVMODE", "PYTHONTRACEMALLOC", "MALLOC_PERTURB_")),
    *(("memory-debugging-on", n, "0", PASS) for n in ("PYTHONTRACEMALLOC", "MALLOC_PERTURB_")),
    ("memory-debugging-on", "PYTHONDEVMODE", "yes", FAIL),
    ("memory-debugging-on", "MALLOC_CHECK_", "3", PASS),  # glibc 2.39 does not look at it
    *(("tool-injection-left", n, "/opt/tool.so", FAIL) for n in ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")),
    *(("cuda-caching-allocator-disabled", f"PYTORCH_NO_{n}_MEMORY_CACHING", "0", FAIL) for n in ("CUDA", "HIP")),
    ("cuda-launch-blocking", "CUDA_LAUNCH_BLOCKING", "1", FAIL),
    ("cuda-launch-blocking", "CUDA_LAUNCH_BLOCKING", "0", PASS),
    ("distributed-debug-detail", "TORCH_DISTRIBUTED_DEBUG", "detail", FAIL),
    ("cuda-module-loading-eager", "CUDA_MODULE_LOADING", "EAGER", FAIL),
    ("cuda-module-loading-eager", "CUDA_MODULE_LOADING", "LAZY", PASS),
    ("nccl-cumem-disabled", "NCCL_CUMEM_ENABLE", "0", FAIL),
    ("nccl-cumem-disabled", "NCCL_CUMEM_ENABLE", "1", PASS),
    ("session-under-sudo", "UNRELATED", "1", PASS),
]


@pytest.mark.parametrize(("rule_id", "name", "value", "expected"), SET)
def test_a_variable_and_its_value(healthy: Snapshot, rule_id: str, name: str, value: str, expected: Verdict) -> None:
    assert verdict(rule_id, with_env(healthy, **{name: value})) is expected


@pytest.mark.parametrize(
    ("glibc", "expected"),
    [("2.33", FAIL), ("2.33.9", FAIL), ("2.34", PASS), ("2.34.1", PASS), ("2.17", FAIL), (ABSENT, PASS)],
)
def test_malloc_check_counts_before_glibc_2_34(healthy: Snapshot, glibc: str | Missing, expected: Verdict) -> None:
    seen = with_env(having(healthy, "system", glibc=glibc), MALLOC_CHECK_="3")
    assert verdict("memory-debugging-on", seen) is expected
    assert verdict("memory-debugging-on", msgspec.structs.replace(seen, system=DENIED)) is PASS


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), NA), ((8, 0), FAIL), ((8, 9), FAIL), ((9, 0), FAIL)])
def test_tf32_came_with_ampere(healthy: Snapshot, capability: tuple[int, int], expected: Verdict) -> None:
    seen = with_env(with_gpus(healthy, 2, compute_capability=capability), NVIDIA_TF32_OVERRIDE="0")
    assert verdict("tf32-override-off", seen) is expected


@pytest.mark.parametrize(
    ("release", "name", "expected"),
    [
        ("2.2.0", "NCCL_BLOCKING_WAIT", FAIL),
        ("2.2.2", "NCCL_ASYNC_ERROR_HANDLING", FAIL),
        ("2.1.2", "NCCL_BLOCKING_WAIT", PASS),  # reads the old name only
        ("2.1.2", "TRANSFORMERS_CACHE", FAIL),  # not PyTorch's
    ],
)
def test_old_names_by_release(healthy: Snapshot, release: str, name: str, expected: Verdict) -> None:
    assert verdict("variable-renamed", with_env(with_torch(healthy, release), **{name: "1"})) is expected


def test_old_names_where_no_torch_is_seen(healthy: Snapshot) -> None:
    seen = with_env(healthy, NCCL_BLOCKING_WAIT="1")
    assert verdict("variable-renamed", having(seen, "python", torch=ABSENT)) is FAIL
    assert verdict("variable-renamed", msgspec.structs.replace(seen, python=DENIED)) is FAIL


@pytest.mark.parametrize(
    ("rule_id", "name", "count", "expected"),
    [(f"nccl-{way}-disabled", f"NCCL_{way.upper()}_DISABLE", n, v) for way in ("p2p", "shm") for n, v in ((1, NA), (2, FAIL))],
)
def test_two_gpus_can_talk(healthy: Snapshot, rule_id: str, name: str, count: int, expected: Verdict) -> None:
    unswitched = having(with_gpus(healthy, count), "driver", nvswitches=0)
    assert verdict(rule_id, with_env(unswitched, **{name: "1"})) is expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"name": "NVIDIA GeForce RTX 4090", "nvlinks": 0}, NA),
        ({"name": "NVIDIA GeForce RTX 4090", "nvlinks": ABSENT}, NA),
        ({"name": "NVIDIA GeForce RTX 3090", "nvlinks": 1}, FAIL),
        ({"name": "NVIDIA GeForce RTX 3090", "nvlinks": 4}, FAIL),
        ({"name": "NVIDIA A40", "nvlinks": 0}, FAIL),
        ({"name": DENIED, "nvlinks": 0}, FAIL),
    ],
)
def test_p2p_of_geforce_cards(healthy: Snapshot, facts: dict[str, Any], expected: Verdict) -> None:
    assert verdict("nccl-p2p-disabled", with_env(with_gpus(healthy, 2, **facts), NCCL_P2P_DISABLE="1")) is expected


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        ({"link_layer": "InfiniBand", "rate_gbps": 40.0}, FAIL),
        ({"link_layer": "InfiniBand", "rate_gbps": DENIED}, FAIL),
        ({"link_layer": "InfiniBand", "state": "DOWN"}, PASS),
        ({"link_layer": "Ethernet", "rate_gbps": 100.0}, FAIL),
        ({"link_layer": "Ethernet", "rate_gbps": 400.0}, FAIL),
        ({"link_layer": "Ethernet", "rate_gbps": 50.0}, PASS),
        ({"link_layer": "Ethernet", "rate_gbps": DENIED}, PASS),
        ({"link_layer": "Ethernet", "rate_gbps": 100.0, "state": "INIT"}, PASS),
        ({"link_layer": "Unspecified", "rate_gbps": 400.0}, PASS),
    ],
)
def test_ports_that_nccl_would_use(healthy: Snapshot, port: dict[str, Any], expected: Verdict) -> None:
    assert not isinstance(healthy.network, Missing) and not isinstance(healthy.network.rdma, Missing)
    replace = msgspec.structs.replace
    first = healthy.network.rdma[0]
    device = replace(first, ports=tuple(replace(it, **port) for it in first.ports))
    seen = with_env(having(healthy, "network", rdma=(device,)), NCCL_IB_DISABLE="1")
    assert verdict("nccl-ib-disabled", replace(seen, intent=Workload(nodes=2))) is expected
    assert verdict("nccl-ib-disabled", replace(seen, intent=Workload(nodes=1))) is NA
    none = having(seen, "network", rdma=ABSENT)
    assert verdict("nccl-ib-disabled", replace(none, intent=Workload(nodes=2))) is NA


@pytest.mark.parametrize(
    ("facts", "switches", "expected"),
    [
        ({}, True, FAIL),
        ({}, False, NA),
        ({"compute_capability": (8, 0)}, True, NA),  # an A100 has NVSwitches without SHARP
        ({"compute_capability": DENIED}, True, FAIL),  # its name tells
        ({"compute_capability": DENIED, "name": DENIED}, True, NA),
    ],
)
def test_nvlink_sharp_needs_hopper_and_switches(
    healthy: Snapshot, facts: dict[str, Any], switches: bool, expected: Verdict
) -> None:
    seen = with_env(with_gpus(healthy, 8, **facts), NCCL_CUMEM_ENABLE="0")
    seen = seen if switches else having(seen, "driver", nvswitches=())
    assert verdict("nccl-cumem-disabled", seen) is expected


@pytest.mark.parametrize(
    ("release", "env", "expected"),
    [
        ("2.12.0", {}, FAIL),
        ("2.13.0", {}, PASS),
        ("2.14.1", {}, PASS),
        *(("2.12.0", {name: "me"}, PASS) for name in ("LOGNAME", "USER", "LNAME", "USERNAME")),
        ("2.12.0", {"USER": ""}, FAIL),
    ],
)
def test_a_number_without_a_name(healthy: Snapshot, release: str, env: dict[str, str], expected: Verdict) -> None:
    seen = having(with_torch(healthy, release), "session", passwd_entry=False, env=env)
    assert verdict("container-uid-without-passwd", seen) is expected
    bare = having(seen, "session", env={})
    assert verdict("container-uid-without-passwd", having(bare, "python", torch=ABSENT)) is NA
    assert verdict("container-uid-without-passwd", msgspec.structs.replace(bare, python=DENIED)) is FAIL


@pytest.mark.parametrize(
    ("uid", "caller", "expected"), [(0, "alice", FAIL), (0, "root", PASS), (1000, "alice", PASS), (0, "", PASS)]
)
def test_root_that_somebody_called(healthy: Snapshot, uid: int, caller: str, expected: Verdict) -> None:
    assert verdict("session-under-sudo", having(healthy, "session", uid=uid, sudo_user=caller)) is expected


def test_visible_devices_are_compared_with_the_uuids_of_this_host(healthy: Snapshot) -> None:
    assert not isinstance(healthy.gpu, Missing) and not isinstance(healthy.gpu.devices, Missing)
    own = healthy.gpu.devices[0].uuid
    assert isinstance(own, str)
    rule = "cuda-visible-devices-wrong"
    assert verdict(rule, with_env(healthy, CUDA_VISIBLE_DEVICES=own)) is PASS
    foreign = with_env(healthy, CUDA_VISIBLE_DEVICES="GPU-ffffffff-0000-0000-0000-000000000000")
    assert verdict(rule, foreign) is FAIL
    assert verdict(rule, with_gpus(foreign, 8, uuid=DENIED)) is PASS  # nothing to compare with
    assert verdict(rule, with_env(healthy, CUDA_VISIBLE_DEVICES="8")) is FAIL
    sliced = with_env(with_gpus(healthy, 8, mig=True), CUDA_VISIBLE_DEVICES="8")
    assert verdict(rule, sliced) is PASS  # instances are counted, not GPUs


def test_allocator_settings_are_judged_for_the_installed_torch(healthy: Snapshot) -> None:
    rule = "cuda-allocator-setting-invalid"
    good = with_env(healthy, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    assert verdict(rule, good) is PASS
    assert verdict(rule, with_torch(good, "2.0.1")) is FAIL
    assert verdict(rule, having(good, "python", torch=ABSENT)) is NA
    assert verdict(rule, having(good, "python", torch=DENIED)) is PASS
    wrong = with_env(healthy, PYTORCH_CUDA_ALLOC_CONF="backend:async")
    assert verdict(rule, msgspec.structs.replace(wrong, python=DENIED)) is FAIL
    assert verdict(rule, with_env(healthy, PYTORCH_ALLOC_CONF="some_new_option:1")) is UNKNOWN


def test_a_torch_for_cpus_reads_no_settings_of_an_allocator(healthy: Snapshot) -> None:
    """Tried with 2.13.0+cpu: it trains."""
    rule, wrong = "cuda-allocator-setting-invalid", with_env(healthy, PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb=512")
    build = need(need(wrong.python).torch)
    for_cpus = msgspec.structs.replace(build, version="2.13.0+cpu", cuda=ABSENT, hip=ABSENT, xpu=ABSENT)
    assert verdict(rule, having(wrong, "python", torch=for_cpus)) is NA
    assert verdict(rule, having(wrong, "python", torch=msgspec.structs.replace(for_cpus, xpu="20250300"))) is FAIL


@pytest.mark.parametrize(
    ("release", "env", "expected"),
    [
        ("2.7.1", {"PYTORCH_ALLOC_CONF": "max_split_size_mb:512"}, FAIL),
        ("2.9.1", {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, FAIL),
        ("2.9.1", {"PYTORCH_ALLOC_CONF": "max_split_size_mb:512"}, PASS),
        ("2.11.0", {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, PASS),
        (
            "2.9.1",
            {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
            PASS,
        ),
    ],
)
def test_an_allocator_that_does_not_know_the_newer_name(
    healthy: Snapshot, release: str, env: dict[str, str], expected: Verdict
) -> None:
    assert verdict("variable-without-effect", with_env(with_torch(healthy, release), **env)) is expected


def test_nvswitches_leave_nothing_to_shared_memory(healthy: Snapshot) -> None:
    switched = having(with_gpus(healthy, 8), "driver", nvswitches=4)
    assert verdict("nccl-shm-disabled", with_env(switched, NCCL_SHM_DISABLE="1")) is NA
    assert verdict("nccl-shm-disabled", with_env(switched, NCCL_SHM_DISABLE="1", NCCL_P2P_DISABLE="1")) is FAIL


def test_a_host_without_gpus_has_no_allocator_to_switch_off() -> None:
    seen = load("typical/laptop-cpu", env={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
    assert verdict("cuda-caching-allocator-disabled", seen) is NA


@pytest.mark.parametrize("rule_id", sorted(RULE))
def test_an_empty_environment_has_no_fault(healthy: Snapshot, rule_id: str) -> None:
    result = engine.judge(with_env(healthy), [RULE[rule_id]])[0]
    assert result.verdict in (PASS, NA)
    assert all(it.verdict is PASS for it in result.evidence)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"NCCL_DEBUG": "trace"}, FAIL),
        ({"NCCL_DEBUG": "INFO"}, PASS),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV"}, PASS),
        ({"NCCL_DEBUG": "info", "NCCL_DEBUG_SUBSYS": "init, coll"}, FAIL),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "COLL,INIT"}, FAIL),
        ({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "COLL"}, PASS),
        ({"NCCL_DEBUG": "TRACE", "NCCL_DEBUG_FILE": "/tmp/nccl.log"}, PASS),
        ({"NCCL_DEBUG": "TRACE", "NCCL_DEBUG_FILE": "/dev/stderr"}, FAIL),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "^INIT,ENV"}, FAIL),  # all but these
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "^COLL,P2P,CALL,PROXY,TUNING,ALLOC,PROFILE"}, PASS),
    ],
)
def test_what_nccl_prints_all_the_time(healthy: Snapshot, env: dict[str, str], expected: Verdict) -> None:
    assert verdict("nccl-debug-verbose", with_env(healthy, **env)) is expected


@pytest.mark.parametrize("env", [{"USER": "me"}, {}])
def test_a_number_without_a_name_that_does_no_harm_is_told_as_good(healthy: Snapshot, env: dict[str, str]) -> None:
    seen = having(with_torch(healthy, "2.13"), "session", passwd_entry=False, env=env)
    (told,) = engine.judge(seen, [RULE["container-uid-without-passwd"]])[0].evidence
    assert told.verdict is PASS


@pytest.mark.parametrize(
    ("env", "refused"),
    [
        ({"MASTER_PORT": "0"}, []),
        ({"MASTER_PORT": "65535"}, []),
        ({"MASTER_PORT": " 29500 "}, []),
        ({"MASTER_PORT": "65536"}, ["MASTER_PORT"]),
        ({"MASTER_PORT": "-1"}, ["MASTER_PORT"]),
        ({"MASTER_PORT": "tcp://10.0.0.1:29500"}, ["MASTER_PORT"]),
        ({"RANK": "0", "WORLD_SIZE": "one"}, ["WORLD_SIZE"]),
        ({"RANK": "7", "WORLD_SIZE": "8"}, []),
        ({"RANK": "8", "WORLD_SIZE": "8"}, ["RANK"]),
        ({"RANK": "0", "WORLD_SIZE": "0"}, ["RANK"]),
        ({"RANK": "", "WORLD_SIZE": ""}, []),
        ({"TORCH_DISTRIBUTED_DEBUG": "detail"}, []),
        ({"TORCH_DISTRIBUTED_DEBUG": "1"}, ["TORCH_DISTRIBUTED_DEBUG"]),
        ({"TORCH_LOGS": "+dynamo, -inductor,torch.distributed,my_module"}, []),
        ({"TORCH_LOGS": "all"}, []),
        *(
            ({"TORCH_LOGS": value}, ["TORCH_LOGS"])
            for value in ("", "inductr", "+dynamo,", "dynamo ,aot", "dynamo=DEBUG", "INFO", "1", "help")
        ),
        (
            {
                "TORCH_NCCL_BLOCKING_WAIT": "True",
                "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
                "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "30m",
            },
            [],
        ),
        ({"TORCH_NCCL_BLOCKING_WAIT": "on"}, ["TORCH_NCCL_BLOCKING_WAIT"]),
        ({"NCCL_ASYNC_ERROR_HANDLING": "true"}, ["NCCL_ASYNC_ERROR_HANDLING"]),
        ({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": ""}, ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"]),
        ({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "9999999999"}, ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"]),
        ({"GLOO_DEVICE_TRANSPORT": "RDMA"}, ["GLOO_DEVICE_TRANSPORT"]),
        ({"GLOO_DEVICE_TRANSPORT": "TCP_TLS"}, ["GLOO_DEVICE_TRANSPORT"]),
        (
            {
                "GLOO_DEVICE_TRANSPORT": "TCP_TLS",
                **{f"GLOO_DEVICE_TRANSPORT_TCP_TLS_{name}": "/tls/x" for name in ("PKEY", "CERT", "CA_FILE")},
            },
            [],
        ),
    ],
)
def test_what_torch_refuses(env: dict[str, str], refused: list[str]) -> None:
    found = engine.judge(with_env(load("healthy"), **env), [RULE["variable-refused"]])[0]
    assert [item.subject for item in found.evidence if item.verdict is FAIL] == refused


def test_a_torch_without_nccl_reads_none_of_its_switches(healthy: Snapshot) -> None:
    build = need(need(healthy.python).torch)
    env = {"TORCH_NCCL_NAN_CHECK": "on"}
    for change, expected in (({}, FAIL), ({"cuda": ABSENT}, PASS), ({"cuda": ABSENT, "hip": "6.2"}, FAIL)):
        seen = having(healthy, "python", torch=msgspec.structs.replace(build, **change))
        assert verdict("variable-refused", with_env(seen, **env)) is expected


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2"}, FAIL),
        ({"RANK": "0", "WORLD_SIZE": "1"}, PASS),
        ({"WORLD_SIZE": "2"}, NA),
        ({"RANK": "1", "WORLD_SIZE": "2", "SLURM_JOB_ID": "5"}, NA),
        ({"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}, NA),
        ({"RANK": "1", "WORLD_SIZE": "2", "GROUP_RANK": "0"}, NA),
        ({"RANK": "1", "WORLD_SIZE": "2", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, NA),
    ],
)
def test_who_may_have_left_the_variables_of_a_rank(env: dict[str, str], expected: Verdict) -> None:
    live = with_env(load("healthy"), **env)
    assert engine.judge(live, [RULE["rank-variables-left"]])[0].verdict is expected
    pasted = msgspec.structs.replace(live, origin="report (environment)")
    assert engine.judge(pasted, [RULE["rank-variables-left"]])[0].verdict is NA


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"OMP_THREAD_LIMIT": "1"}, FAIL),
        ({"OMP_THREAD_LIMIT": "1", "OMP_NUM_THREADS": "1"}, PASS),
        ({"OMP_THREAD_LIMIT": "64", "OMP_NUM_THREADS": "8"}, PASS),
        ({"OMP_THREAD_LIMIT": "4", "OMP_NUM_THREADS": "8,2"}, FAIL),
    ],
)
def test_a_limit_on_threads_that_binds(env: dict[str, str], expected: Verdict) -> None:
    assert engine.judge(with_env(load("healthy"), **env), [RULE["fast-path-switched-off"]])[0].verdict is expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("OMP_NUM_THREADS", "auto", ["OMP_NUM_THREADS=auto: OpenMP refuses it: each rank starts a thread for every core"]),
        ("OMP_NUM_THREADS", "4,x", ["OMP_NUM_THREADS=4,x: OpenMP refuses it: each rank starts a thread for every core"]),
        ("OMP_NUM_THREADS", "4,2", []),
        ("MKL_NUM_THREADS", "auto", ["MKL_NUM_THREADS=auto: MKL reads it as 1: torch computes with one thread"]),
        ("MKL_NUM_THREADS", "4,2", ["MKL_NUM_THREADS=4,2: MKL reads it as 1: torch computes with one thread"]),
        ("MKL_NUM_THREADS", "0", []),
    ],
)
def test_what_the_libraries_make_of_a_number_of_threads(name: str, value: str, expected: list[str]) -> None:
    seen = with_env(load("healthy"), **{name: value})
    told = engine.judge(seen, [RULE["variable-without-effect"]])[0].evidence
    assert [item.seen for item in told] == expected
    arm = having(seen, "system", machine="aarch64")
    assert bool(engine.judge(arm, [RULE["variable-without-effect"]])[0].evidence) is (bool(expected) and name[0] == "O")


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, NA),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, FAIL),
        ({"NCCL_ASYNC_ERROR_HANDLING": "0"}, FAIL),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "NCCL_ASYNC_ERROR_HANDLING": "0"}, PASS),  # the first name counts
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_BLOCKING_WAIT": "1"}, NA),
    ],
)
def test_errors_of_collectives_that_end_nothing(healthy: Snapshot, env: dict[str, str], expected: Verdict) -> None:
    result = engine.judge(with_env(healthy, **env), [RULE["nccl-errors-not-handled"]])
    assert [item.verdict for item in result] == [expected]
