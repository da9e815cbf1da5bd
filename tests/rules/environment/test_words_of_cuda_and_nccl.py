"""Values of CUDA's and NCCL's variables that mean another thing than their writer thought."""

from __future__ import annotations

import msgspec
import pytest
from altered import with_env

from conftest import load
from torchtune_sys import engine
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Verdict
from torchtune_sys.rules.environment import RULES

RULE = {rule.id: rule for rule in RULES}
PASS, FAIL = Verdict.PASS, Verdict.FAIL


@pytest.mark.parametrize(("ranks", "nodes", "expected"), [(1, 1, PASS), (2, 1, FAIL), (1, 2, FAIL), (None, None, FAIL)])
def test_one_channel_binds_where_several_ranks_meet(ranks: int | None, nodes: int | None, expected: Verdict) -> None:
    seen = with_env(load("healthy"), {"NCCL_MAX_CTAS": "1"})
    asked = msgspec.structs.replace(seen, intent=Workload(ranks=ranks, nodes=nodes))
    assert engine.judge(asked, [RULE["fast-path-switched-off"]])[0].verdict is expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("CUDA_DEVICE_ORDER", "pci_bus_id", []),
        ("CUDA_DEVICE_ORDER", "BUS_ID", ["CUDA_DEVICE_ORDER=BUS_ID: CUDA does not know it"]),
        ("CUDA_MODULE_LOADING", "EAGER", []),
        ("CUDA_MODULE_LOADING", "", []),
    ],
)
def test_words_that_cuda_knows(name: str, value: str, expected: list[str]) -> None:
    told = engine.judge(with_env(load("healthy"), {name: value}), [RULE["variable-without-effect"]])[0].evidence
    assert [item.seen for item in told] == expected


@pytest.mark.parametrize(
    ("host", "variable", "value", "nodes", "expected"),
    [
        ("base-amd-gpu", "AMD_SERIALIZE_KERNEL", "3", 1, FAIL),  # what PyTorch's errors on AMD GPUs suggest
        ("base-amd-gpu", "AMD_SERIALIZE_KERNEL", "0", 1, PASS),
        ("base-amd-gpu", "HIP_LAUNCH_BLOCKING", "1", 1, FAIL),
        ("healthy", "AMD_SERIALIZE_KERNEL", "3", 1, PASS),  # no AMD GPU here reads it
        ("healthy", "NCCL_NET_GDR_LEVEL", "LOC", 2, FAIL),
        ("healthy", "NCCL_NET_GDR_LEVEL", "LOC", 1, PASS),
        ("healthy", "NCCL_NET_GDR_LEVEL", "PHB", 2, PASS),
        ("base-tcp-cluster", "NCCL_NET_GDR_LEVEL", "LOC", 2, PASS),  # no RDMA device
        ("healthy", "FI_PROVIDER", "tcp", 2, PASS),  # no EFA
        ("efa-plugin-missing.fail", "FI_PROVIDER", "tcp", 2, FAIL),
        ("efa-plugin-missing.fail", "FI_PROVIDER", "tcp", 1, PASS),
        ("efa-plugin-missing.fail", "FI_PROVIDER", "efa", 2, PASS),
    ],
)
def test_switches_of_what_a_host_has(host: str, variable: str, value: str, nodes: int, expected: Verdict) -> None:
    seen = load(host, env={variable: value}, intent={"nodes": nodes, "ranks": 8})
    assert engine.judge(seen, [RULE["fast-path-switched-off"]])[0].verdict is expected


def test_cublas_may_print_at_every_call() -> None:
    loud = [load("healthy", env={"CUBLASLT_LOG_LEVEL": level}) for level in ("5", "1")]
    assert [engine.judge(seen, [RULE["library-prints-each-call"]])[0].verdict for seen in loud] == [FAIL, PASS]


@pytest.mark.parametrize(
    ("name", "loud", "quiet"),
    [
        ("MIOPEN_ENABLE_LOGGING", "1", "0"),
        ("MIOPEN_LOG_LEVEL", "7", "4"),
        ("ROCBLAS_LAYER", "1", "0"),
        ("MLIR_ENABLE_DUMP", "1", "0"),
    ],
)
def test_libraries_that_print_each_call(name: str, loud: str, quiet: str) -> None:
    """As the probe takes them from a session's environment."""
    hosts = [load("base-amd-gpu", env={name: value}) for value in (loud, quiet)]
    assert [engine.judge(host, [RULE["library-prints-each-call"]])[0].verdict for host in hosts] == [FAIL, PASS]
