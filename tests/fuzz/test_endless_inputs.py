"""Inputs without an end: a line, a list of nodes, an answer, brackets of no document (docs/security.md, "Fourteenth look")."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.fleet import collecting
from torchtune_sys.fleet.over_slurm import Slurm


def slurm(folder: Path, *, sinfo: str, srun: str = "exit 1") -> Slurm:
    """Slurm's commands as somebody may have put them in their place."""
    for name, body in (("sinfo", sinfo), ("srun", srun)):
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return Slurm("", {"PATH": f"{folder}:/usr/bin:/bin"})


def told(transport: Slurm) -> list[str]:
    found: list[str] = []
    collecting.collect(transport, ("true",), 20.0, 4, found.append, lambda count: None)
    return found


def test_an_error_of_one_endless_line_is_told_in_part(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput) as raised:
        told(slurm(tmp_path, sinfo="head -c 1000000 /dev/zero | tr '\\0' e >&2; exit 1"))
    assert "eee" in str(raised.value) and len(str(raised.value)) < 1000


def test_more_nodes_than_a_cluster_can_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="70000 hosts are more than"):
        told(slurm(tmp_path, sinfo="seq -f 'n%.0f|down|x' 70000"))


def test_what_one_node_says_leaves_memory_for_the_others(tmp_path: Path) -> None:
    rows = told(slurm(tmp_path, sinfo="echo 'n1|idle|'", srun="head -c 5000000 /dev/zero"))
    assert len(rows) == 1 and "printed more than 4 MiB" in rows[0]


def test_lines_that_only_look_like_documents_take_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    loads = collecting.codec.loads
    monkeypatch.setattr(collecting.codec, "loads", lambda text: tried.append(text) or loads(text))
    line = '{"schema": "torchtune-sys/x", }'
    rows = told(slurm(tmp_path, sinfo="echo 'n1|idle|'", srun=f"yes '{line}' | head -n 20000"))
    assert "answered no JSON of ours" in rows[0] and 0 < len(tried) <= 20
