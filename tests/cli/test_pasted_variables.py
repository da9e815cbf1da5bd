"""A text of a rank's variables and nothing else: what it tells of the job, and what is certain by the variables alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from torchtune_sys.cli.main import cli

RANK = "RANK=8\nWORLD_SIZE=16\nLOCAL_WORLD_SIZE=8\nLOCAL_RANK=0\n"


def failed(folder: Path, text: str, *options: str) -> set[str]:
    (folder / "env.txt").write_text(text)
    done = CliRunner().invoke(cli, ["check", "--from", str(folder / "env.txt"), "--format", "json", *options])
    return {result["rule"] for result in json.loads(done.stdout)["results"] if result["verdict"] == "fail"}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("MASTER_ADDR=localhost", {"rank-seeks-master-on-own-host"}),
        ("MASTER_ADDR=10.0.0.1", set()),
        ("NCCL_SOCKET_IFNAME=lo", {"nccl-wrong-interface"}),
        ("NCCL_SOCKET_IFNAME==lo", {"nccl-wrong-interface"}),
        ("NCCL_SOCKET_IFNAME=^lo", set()),
        ("NCCL_SOCKET_IFNAME=lo,eth0", set()),
        ("GLOO_SOCKET_IFNAME=lo", {"gloo-interface-doubtful"}),
        ("GLOO_SOCKET_IFNAME=eth0", set()),
    ],
)
def test_what_variables_alone_decide(tmp_path: Path, line: str, found: set[str]) -> None:
    assert failed(tmp_path, f"{RANK}{line}\n") == found
    assert failed(tmp_path, f"{RANK}{line}\n", "--nnodes", "1") == set()  # an option wins over what the variables say
    assert failed(tmp_path, f"RANK=0\nLOCAL_RANK=0\n{line}\n") == set()
