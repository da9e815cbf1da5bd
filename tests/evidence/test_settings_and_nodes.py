"""What ``sysctl -a`` and ``numactl -H`` print, pasted: the programs of this machine beside the probes, and outputs of public issues."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from conftest import judge
from torchtune_sys import engine, evidence
from torchtune_sys.evidence.numactl import numa_facts
from torchtune_sys.evidence.report_lines import parse_lines
from torchtune_sys.evidence.sysctl import sysctl_facts
from torchtune_sys.host.live import LiveHost
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Missing, need
from torchtune_sys.probes.numa import probe as numa
from torchtune_sys.probes.sysctl import probe as sysctl


def printed(*argv: str) -> str:
    program = shutil.which(argv[0]) or shutil.which(argv[0], path="/usr/sbin:/sbin")
    if program is None:
        pytest.skip(f"no {argv[0]} here")
    return subprocess.run([program, *argv[1:]], capture_output=True, text=True, timeout=60).stdout


def test_the_settings_of_this_machine_are_read_as_the_probe_reads_them() -> None:
    told = evidence.read(printed("sysctl", "-a"), "sysctl.txt")
    assert told is not None
    here = sysctl.probe(LiveHost(), Workload())
    read = {key: each.running for key, each in need(told.sysctl).settings.items() if not isinstance(each.running, Missing)}
    shown = {key: each.running for key, each in here.settings.items() if not isinstance(each.running, Missing)}
    assert len(read) > 20 and read == {key: shown[key] for key in read}
    assert set(read) == set(shown) & set(need(told.sysctl).settings)


def test_the_nodes_of_this_machine_are_read_as_the_probe_reads_them() -> None:
    told = numa_facts(printed("numactl", "-H"))
    assert told is not None
    here = numa.probe(LiveHost(), Workload())
    for one, other in zip(need(told.nodes), need(here.nodes), strict=True):
        assert (one.id, one.cpus) == (other.id, other.cpus)


BAD = """\
user@node:~$ sudo sysctl -a | grep -E 'overcommit|max_map'
vm.max_map_count = 4096
vm.overcommit_kbytes = 0
vm.overcommit_memory = 2
vm.overcommit_ratio = 50
"""


def test_wrong_settings_are_found_and_others_are_unknown() -> None:
    seen = evidence.read(BAD, "x")
    assert seen is not None
    found = judge(seen)
    assert found["overcommit-strict"].verdict is Verdict.FAIL
    assert found["max-map-count-low"].verdict is Verdict.FAIL
    assert found["shmmax-lowered"].verdict is Verdict.UNKNOWN
    assert "sets" not in found["overcommit-strict"].evidence[0].source


@pytest.mark.parametrize(
    "text",
    [
        "# /etc/sysctl.d/99.conf\nvm.overcommit_memory = 2\nvm.swappiness = 10\n",
        "$ sysctl -p\nvm.overcommit_memory = 2\n",
        "sudo sysctl -w vm.overcommit_memory=2\n",
        "kernel: fs.file-max limit 1000 reached\n",
    ],
)
def test_what_is_written_or_wished_is_not_what_runs(text: str) -> None:
    assert sysctl_facts(text) is None


THREADRIPPER = """\
$ numactl -H
available: 4 nodes (0-3)
node 0 cpus: 0 1 2 3 4 5 24 25 26 27 28 29
node 0 size: 0 MB
node 0 free: 0 MB
node 1 cpus: 6 7 8 9 10 11 30 31 32 33 34 35
node 1 size: 64307 MB
node 1 free: 19214 MB
node 2 cpus: 12 13 14 15 16 17 36 37 38 39 40 41
node 2 size: 64472 MB
node 2 free: 27945 MB
node 3 cpus: 18 19 20 21 22 23 42 43 44 45 46 47
node 3 size: 0 MB
node 3 free: 0 MB
node distances:
node   0   1   2   3
  0:  10  12  12  12
  1:  12  10  12  12
  2:  12  12  10  12
  3:  12  12  12  10
"""
"""https://github.com/numactl/numactl/issues/165."""


def test_nodes_without_memory_are_found() -> None:
    seen = evidence.read(THREADRIPPER, "x")
    assert seen is not None
    assert seen.origin == "report (numactl)"
    bad = judge(seen)["numa-node-without-memory"]
    assert [item.subject for item in bad.evidence if item.verdict is Verdict.FAIL] == ["node 0", "node 3"]
    assert [result.rule.id for result in engine.judge(seen, [bad.rule]) if result.verdict is Verdict.CRASHED] == []


def test_of_a_cut_output_nothing_is_made_up() -> None:
    whole = numa_facts(THREADRIPPER)
    cut = numa_facts(THREADRIPPER[: THREADRIPPER.index("node 2 cpus")])
    assert whole is not None and cut is not None
    assert isinstance(cut.nodes, Missing) and "tells 4 nodes, 2 are" in cut.nodes.detail
    late = numa_facts(THREADRIPPER[: THREADRIPPER.index("  2:  12")])
    assert late is not None
    assert [isinstance(node.distances, Missing) for node in need(late.nodes)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$ env | grep NCCL\nNCCL_DEBUG=INFO\nNCCL_SOCKET_IFNAME=lo\n", {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "lo"}),
        ("root@n1:/w# printenv\nMASTER_ADDR=10.0.0.1\nHOME=/root\n", {"MASTER_ADDR": "10.0.0.1", "HOME": "/root"}),
        ("# for the job\nexport NCCL_DEBUG=WARN\nOMP_NUM_THREADS=8\n", {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "8"}),
        ("TORCH_DISTRIBUTED_DEBUG=yes\n", {"TORCH_DISTRIBUTED_DEBUG": "yes"}),
        ("NCCL_DEBUG=INFO\nTraceback (most recent call last):\n", {}),  # a program printed it: of which node, and when?
        ("NCCL_DEBUG=INFO\nepoch 1 loss=0.3\n", {}),
        ("NCCL_DEBUG=INFO NCCL_IB_DISABLE=1 ./train.sh\n", {}),
        ("LANG=C\nLC_ALL=C\nHOME=/root\n", {}),  # locale(1) and others
    ],
)
def test_a_part_of_an_environment(text: str, expected: dict[str, str]) -> None:
    assert parse_lines(text).env == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "It hangs here:\n[me@n1 w]$ env | grep -E 'NCCL|GLOO' | sort\nNCCL_IB_HCA=mlx5_0\n\nSorry: NCCL_DEBUG=INFO\n",
            {"NCCL_IB_HCA": "mlx5_0"},
        ),
        (
            "### Environment variables\n```\nNCCL_P2P_DISABLE=1\nOMP_NUM_THREADS=8\n```\nIt hangs.\n",
            {"NCCL_P2P_DISABLE": "1", "OMP_NUM_THREADS": "8"},
        ),
        ("it hangs\n$ docker exec -it train env\nLD_LIBRARY_PATH=/a b:/c\n", {"LD_LIBRARY_PATH": "/a b:/c"}),
        ("it hangs\n$ echo $CUDA_VISIBLE_DEVICES\n0,1\n$ echo ${RANK}\n$ date\n", {"CUDA_VISIBLE_DEVICES": "0,1"}),
        ("it hangs\nn1$ env | grep RANK\nRANK=0\nn2$ env | grep RANK\nRANK=1\n", {}),
        ("it hangs\n$ cat job.env\nNCCL_P2P_DISABLE=1\n", {}),
        ("set NCCL_DEBUG in your env\nNCCL_DEBUG=INFO\n", {}),
    ],
)
def test_what_a_command_prints_of_the_environment_beside_other_text(text: str, expected: dict[str, str]) -> None:
    assert parse_lines(text).env == expected
