"""AMD's library of collectives, which has NCCL's variables and its ways to choose interfaces and adapters."""

from __future__ import annotations

import pytest

from conftest import judge_one
from machines import Recording, environment, ordinary, over
from torchtune_sys import engine
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Result, Verdict

_FOR_CPUS = "__version__ = '2.9.1+cpu'\ndebug = False\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"


def _found(rule_id: str, host: Recording) -> Result:
    return judge_one(engine.snapshot(RecordedHost(host, "a test"), Workload(nodes=2), timeout_s=20), rule_id)


def _with_torch_for_cpus(host: Recording) -> Recording:
    path = next(path for path in host["files"] if path.endswith("/torch/version.py"))
    return over(host, files={path: _FOR_CPUS})


@pytest.mark.parametrize(
    ("rule_id", "env"),
    [
        ("nccl-p2p-disabled", {"NCCL_P2P_DISABLE": "1"}),
        ("nccl-shm-disabled", {"NCCL_SHM_DISABLE": "1", "NCCL_P2P_DISABLE": "1"}),
        ("nccl-ib-disabled", {"NCCL_IB_DISABLE": "1"}),
        ("nccl-debug-verbose", {"NCCL_DEBUG": "TRACE"}),
        ("nccl-errors-not-handled", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}),
        ("nccl-wrong-interface", {"NCCL_SOCKET_IFNAME": "eth7"}),
        ("nccl-ib-hca-unmatched", {"NCCL_IB_HCA": "mlx4_0"}),
        ("nccl-value-ignored", {"NCCL_IB_DISABLE": "true"}),
    ],
)
def test_what_it_reads_as_nccl_does(rule_id: str, env: dict[str, str]) -> None:
    host = ordinary("mi300x")
    assert _found(rule_id, environment(host, **env)).verdict is Verdict.FAIL
    assert _found(rule_id, host).verdict is not Verdict.FAIL
    assert _found(rule_id, _with_torch_for_cpus(environment(host, **env))).verdict is not Verdict.FAIL


@pytest.mark.parametrize(
    ("line", "rule_id"),
    [
        ("NCCL_SOCKET_IFNAME=eth7", "nccl-wrong-interface"),
        ("NCCL_P2P_DISABLE=1", "nccl-conf-hides-setting"),
        ("export NCCL_DEBUG=INFO", "nccl-conf-line-ignored"),
    ],
)
def test_its_own_file_counts_and_nccl_does_not_read_it(line: str, rule_id: str) -> None:
    files = {"/etc/rccl.conf": f"{line}\n", "/sys/module/amdgpu/version": "6.12.12\n"}
    assert _found(rule_id, over(ordinary("mi300x"), files=files)).verdict is Verdict.FAIL
    assert _found(rule_id, over(ordinary("dgx-h100"), files=files)).verdict is not Verdict.FAIL


def test_it_is_called_by_its_name_and_reads_no_file_of_nvidias() -> None:
    host = over(
        ordinary("mi300x"), files={"/etc/nccl.conf": "NCCL_SOCKET_IFNAME=eth7\nNCCL_P2P_DISABLE=1\nexport NCCL_DEBUG=INFO\n"}
    )
    choice = _found("nccl-wrong-interface", host)
    assert choice.verdict is Verdict.PASS and "RCCL 2.27.7" in choice.evidence[0].seen
    for rule_id in ("nccl-conf-hides-setting", "nccl-conf-line-ignored"):
        assert _found(rule_id, host).verdict is not Verdict.FAIL
    named = environment(over(host, files={"/opt/rccl.conf": "NCCL_SOCKET_IFNAME=eth7\n"}), NCCL_CONF_FILE="/opt/rccl.conf")
    assert _found("nccl-wrong-interface", named).verdict is Verdict.FAIL
