"""Reports of NCCL's RAS client, as text and as JSON, and environment variables as people paste them."""

from __future__ import annotations

import io

import pytest

from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.host.input.collection import InputText
from torchtune_sys.host.input.excerpts import excerpt
from torchtune_sys.model.diagnosis import Diagnosis

BEHIND = """\
Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   RUNNING  MISMATCH

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  6 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6600
  Rank 2 -- GPU 2 managed by process 483074 on node 10.16.64.210
  Rank 5 -- GPU 1 managed by process 483079 on node 10.16.64.211
"""
GONE = """\
Errors
======

#0-0 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 10.16.64.213 managing GPU 5
"""


def _json(rank: int, count: int) -> str:
    return f"""        {{
          "rank": {rank},
          "host": "10.0.0.{rank}",
          "pid": {700 + rank},
          "cuda_dev": 0,
          "nvml_dev": 0,
          "status": {{
            "init_state": 0,
            "async_error": 0,
            "abort_flag": false
          }},
          "collective_counts": {{
            "AllReduce": {count}
          }}
        }}"""


def _document(ranks: str, missing: str = "", comma: str = ",") -> str:
    return f"""{{
  "nccl_version": "2.28.9",
  "communicators_count": 1{comma}
  "communicators": [
    {{
      "hash": "0x27a079b828ff1a75",
      "size": 4,
      "ranks_count": 4,
      "missing_ranks_count": 0,
      "ranks": [
{ranks}
      ],
      "missing_ranks": [
{missing}
      ]
    }}
  ],
  "ras": {{
    "timeouts_count": 0
  }}
}}
"""


def diagnosed(text: str) -> Diagnosis:
    return diagnose([InputText(name="x", excerpt=excerpt(io.BytesIO(text.encode())))])


@pytest.mark.parametrize("comma", [",", ""], ids=["JSON", "malformed"])
def test_the_rank_that_is_behind_is_named(comma: str) -> None:
    text = diagnosed(BEHIND).causes[0]
    assert (text.cause, text.ranks, text.confidence.value) == ("rank-hung", (2, 5), "likely")
    ranks = ",\n".join(_json(rank, 40 if rank == 3 else 64) for rank in range(4))
    found = diagnosed(_document(ranks, comma=comma)).causes[0]
    assert (found.cause, found.ranks, found.hosts) == ("rank-hung", (3,), ("10.0.0.3",))


def test_the_process_that_does_not_answer_is_named() -> None:
    found = diagnosed(GONE).causes[0]
    assert found.cause == "rank-killed" and "10.16.64.213" in found.hosts
    dead = '        {\n          "rank": 9,\n          "host": "10.0.0.9",\n          "pid": 709,\n          "status": {\n            "considered_dead": true\n          }\n        }'
    found = diagnosed(_document(_json(0, 5), dead)).causes[0]
    assert (found.cause, found.ranks) == ("rank-killed", (9,)) and "dead" in found.evidence[0].text


def test_a_healthy_report_accuses_nobody() -> None:
    assert diagnosed(BEHIND.partition("Warnings")[0].replace("MISMATCH", "OK")).causes == ()
    assert diagnosed(_document(",\n".join(_json(rank, 64) for rank in range(4)))).causes == ()


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("$ NCCL_SOCKET_IFNAME=lo torchrun --nnodes 2 train.py", "NCCL_SOCKET_IFNAME", "lo"),
        ("mpirun -np 2 -x NCCL_IB_HCA=mlx5_0 -x NCCL_DEBUG=INFO ./all_reduce_perf", "NCCL_IB_HCA", "mlx5_0"),
        ('declare -x OMP_NUM_THREADS="4"', "OMP_NUM_THREADS", "4"),
        ("export CUDA_VISIBLE_DEVICES=0,1 # ours", "CUDA_VISIBLE_DEVICES", "0,1"),
        ("HOSTNAME=n1\nPATH=/bin\nPWD=/x\nNCCL_DEBUG=WARN\nLANG=C\n", "NCCL_DEBUG", "WARN"),
        ("n1:7:7 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.", "NCCL_IB_DISABLE", "1"),
    ],
)
def test_variables_are_read_wherever_they_stand(text: str, name: str, value: str) -> None:
    assert diagnosed(text).facts["x"]["session"]["env"][name] == value


def test_a_variable_with_two_values_is_told_by_none() -> None:
    assert diagnosed("export NCCL_IB_DISABLE=0\nexport NCCL_IB_DISABLE=1\nexport NCCL_DEBUG=INFO\n").facts["x"]["session"][
        "env"
    ] == {"NCCL_DEBUG": "INFO"}


def test_the_loopback_of_a_job_of_two_nodes_is_named() -> None:
    assert diagnosed("NCCL_SOCKET_IFNAME=lo torchrun --nnodes 2 train.py").causes[0].cause == "nccl-wrong-interface"
    assert diagnosed("NCCL_SOCKET_IFNAME=lo torchrun --nnodes 1 train.py").causes == ()
