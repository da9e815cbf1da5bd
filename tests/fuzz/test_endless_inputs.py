"""Inputs without an end: a line, a list of nodes, an answer, brackets of no document, addresses of a name (docs/attacks.md)."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
import subprocess
import tarfile
import threading
import time
from pathlib import Path

import pytest

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.fleet import collecting
from torchtune_sys.fleet.over_slurm import Slurm
from torchtune_sys.host.input.collection import InputText, collected
from torchtune_sys.host.input.reading import opened_input, read_input, whole
from torchtune_sys.host.peers import addresses


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


def test_directories_in_directories_cost_no_other_text_its_reading(tmp_path: Path) -> None:
    """Who owns what root diagnoses makes as many as a path may name."""
    (tmp_path / "z.log").write_text("RuntimeError: CUDA error: out of memory\n")
    here = os.getcwd()
    try:
        os.chdir(tmp_path)
        for _ in range(3000):
            os.mkdir("a")
            os.chdir("a")
    finally:
        os.chdir(here)
    try:
        found = list(collected([str(tmp_path)]))
    finally:
        subprocess.run(["rm", "-rf", str(tmp_path / "a")], check=True)
    assert [one.name for one in found if isinstance(one, InputText)] == [str(tmp_path / "z.log")]


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


def _sparse(path: Path, pieces: tuple[bytes, ...], hole: int) -> None:
    """A file in which a hole of so many bytes stands between every two pieces."""
    with path.open("wb") as file:
        for number, piece in enumerate(pieces):
            file.seek(hole if number else 0, os.SEEK_CUR)
            file.write(piece)
    if path.stat().st_blocks * 512 > hole:
        pytest.skip("this file system keeps no holes")


def _header(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.USTAR_FORMAT)


@pytest.mark.parametrize("kind", ["text", "member"])
def test_a_hole_takes_no_time(tmp_path: Path, kind: str) -> None:
    """3 GiB that were never written took a minute and more as text, 22 s as a member of an archive."""
    hole, oom = 3 << 30, b"RuntimeError: CUDA error: out of memory\n"
    pieces = (b"step 1\n" * 10, oom)
    if kind == "member":
        pieces = (_header("core", hole), _header("b.log", len(oom)) + oom.ljust(512, b"\0") + b"\0" * 1024)
    _sparse(tmp_path / "x", pieces, hole)
    begun = time.process_time()
    texts = [found for found in collected([str(tmp_path / "x")]) if isinstance(found, InputText)]
    assert time.process_time() - begun < 1
    assert [text.excerpt.lines[-1][1] for text in texts] == [oom.decode().strip()]


def test_zeros_behind_gzip_s_data_are_not_read_one_by_one(tmp_path: Path) -> None:
    """Python reads them so within one call: 100 GiB of a hole took all the time there was, and the command was killed behind its end."""
    packed = gzip.compress(b"step 1\n" * 100)
    place = tmp_path / "x.gz"
    begun = time.process_time()
    for zeros in (1, 4095, 5000, (3 << 20) - 7):
        place.write_bytes(packed + bytes(zeros) + packed + bytes(zeros))
        with opened_input(str(place)) as source:
            assert len(whole(source)) == 1400
    os.truncate(place, 100 << 30)
    with pytest.raises(UnreadableInput, match="larger than 4096 MiB"), opened_input(str(place)) as source:
        whole(source)
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("hole", [0, 4096, 70_000, 3 << 20])
def test_a_sparse_file_is_read_as_what_it_holds(tmp_path: Path, hole: int) -> None:
    place = tmp_path / "x"
    pieces = (b"", *(bytes([65 + number]) * (number * 4099 + 1) + b"\n" for number in range(9)), b"")
    with place.open("wb") as file:
        for piece in pieces:
            file.write(piece)
            file.seek(hole, os.SEEK_CUR)
        file.truncate()
    data = place.read_bytes()
    assert read_input(str(place)) == data
    with opened_input(str(place)) as source:
        assert source.skip(5000) and source.read(7000) == data[5000:12_000]
        assert source.skip(len(data) - 12_000) and not source.skip(1) and source.read(9) == b""
    with opened_input(str(place)) as source:
        assert b"".join(iter(lambda: source.written(70_001), b"")).replace(b"\0", b"") == b"".join(pieces)


def test_a_name_that_is_not_answered_for_is_waited_for_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The C library took a second for each look at a name of ten thousand addresses, and at the end asyncio waited for all: 73 s at a budget of 15 s."""
    answer = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_given, **_named: answer.wait(60) and [])
    begun = time.monotonic()
    assert asyncio.run(addresses.addresses_of("n1")) == ()
    with pytest.raises(OSError, match="time"):
        asyncio.run(asyncio.wait_for(addresses.resolved("n1", 0.1), 5))
    assert time.monotonic() - begun < 30
    answer.set()


def test_of_very_many_addresses_of_a_name_few_are_tried_and_the_own_ones_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [(socket.AF_INET, 1, 6, "", (f"10.1.{number // 256}.{number % 256}", 0)) for number in range(10_000)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_given, **_named: many)
    asked: list[str] = []
    own = [{"name": "eth0", "addresses": [{"address": "10.1.39.15"}]}]
    monkeypatch.setattr(addresses, "interfaces", lambda *_given: asked.append("") or own)
    assert len(asyncio.run(addresses.addresses_of("n1"))) == addresses.TRIED
    assert addresses.is_own("n1") and len(asked) == 1
    own[0]["addresses"] = [{"address": "10.2.0.1"}]
    assert not addresses.is_own("n1")
