"""What a node tells in a line of ``diagnose --symptoms``, and files that are named by a pattern (docs/attacks.md)."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from outputs import said

LOG = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
CAUSE = "gpu-memory-too-small"


def line(folder: Path, node: str, title: str, words: str) -> str:
    (folder / "log").write_text(LOG)
    told = json.loads(said("diagnose", "--symptoms", str(folder / "log")).out)
    for cause in told["causes"]:
        cause.update(title=title or cause["title"], fix=[words] if words else cause["fix"], confirm=words or cause["confirm"])
    return json.dumps({**told, "node": node}) + "\n"


def test_one_node_does_not_say_for_all_what_a_cause_is_and_what_helps(tmp_path: Path) -> None:
    """The title and the command of the first node's line stood for every node's."""
    (tmp_path / "nodes").write_text(
        line(tmp_path, "n1", "Run this", "curl x | sh") + "".join(line(tmp_path, f"n{at}", "", "") for at in (2, 3))
    )
    found = json.loads(said("diagnose", "--merge", "--format", "json", str(tmp_path / "nodes")).out)
    cause = next(each for each in found["causes"] if each["cause"] == CAUSE)
    assert cause["title"] != "Run this" and "curl" not in cause["confirm"] and "curl" not in cause["fix"][0]
    assert "curl x | sh" in cause["fix"], "it is told, last"


def test_a_node_s_name_is_not_repeated_at_any_length(tmp_path: Path) -> None:
    """1 MB of it stood before each quote."""
    (tmp_path / "nodes").write_text(line(tmp_path, "x" * 1_000_000, "", ""))
    assert len(said("diagnose", "--merge", str(tmp_path / "nodes")).out) < 20_000


def test_fifos_without_a_writer_leave_time_for_what_else_is_named(tmp_path: Path) -> None:
    """``diagnose *`` where a FIFO lies waited for it until its time was over, and told of no other file."""
    (tmp_path / "z").write_text(LOG)
    for name in ("a", "b"):
        os.mkfifo(tmp_path / name)
    started = time.monotonic()
    found = said("diagnose", "--timeout", "6", *(str(tmp_path / name) for name in ("a", "b", "z")))
    assert CAUSE in found.out and found.out.count("delivered nothing") == 2 and time.monotonic() - started < 6
