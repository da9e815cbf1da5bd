"""Many texts, dumps and hosts together take at most 512 MiB: what is kept of all has one limit, and what was cut is told."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import time
from pathlib import Path

import pytest

from memory import memory_mib
from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.diagnosis.merging import merged
from torchtune_sys.fleet.reading import read
from torchtune_sys.fleet.store import Store
from torchtune_sys.host.input import limits
from torchtune_sys.host.input.collection import InputText, collected
from torchtune_sys.host.input.excerpts import MemoryBudget
from torchtune_sys.model.diagnosis import Confidence, Diagnosis, NamedCause, UnreadSource

ROOM = 4 << 20


def _many_texts(folder: Path, lines: int, count: int = 40) -> None:
    for number in range(count):
        text = [f"node-1: step {number * lines + step} loss 3.1" for step in range(lines)]
        text[lines // 2] = f"RuntimeError: CUDA error: device-side assert number {number}"
        (folder / f"rank{number:03}.log").write_text("\n".join(text) + "\n")


def test_of_many_texts_each_is_read_in_part_and_it_is_told(tmp_path: Path) -> None:
    """Of twelve texts of 4 MiB, all of short lines, 567 MiB were taken. What is kept has one limit for all, and of each its ends and its complaint stay."""
    _many_texts(tmp_path, 2000)
    room = MemoryBudget(ROOM)
    *found, last = collected([str(tmp_path)], budget=room)
    texts = [item for item in found if isinstance(item, InputText)]
    assert len(texts) == 40 and texts[0].excerpt.whole and not texts[-1].excerpt.whole
    assert sum(text.excerpt.cost() for text in texts) < ROOM + 41 * limits.LEAST_BUDGET
    for number, text in enumerate(texts):
        kept = dict(text.excerpt.lines)
        assert {1, 1001, 2000} <= kept.keys() and text.excerpt.total == 2000
        assert kept[1001].endswith(f" number {number}") and kept[2000].endswith("loss 3.1")
    cut = [text for text in texts if text.excerpt.cut]
    assert isinstance(last, UnreadSource) and last.source == cut[0].name and f"of {len(cut) - 1} files after it" in last.why


def test_few_texts_are_read_whole(tmp_path: Path) -> None:
    _many_texts(tmp_path, 60_000, count=3)
    assert all(isinstance(item, InputText) and item.excerpt.whole for item in collected([str(tmp_path)]))


def test_half_a_document_is_not_taken_for_a_text(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"schema": "torchtune-sys/report/1", "results": [' + "1," * 20_000 + "1]}")
    (found,) = collected([str(tmp_path)], budget=MemoryBudget(0))
    assert isinstance(found, UnreadSource) and "not enough memory" in found.why


def test_dumps_share_the_room_with_texts(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"dump{rank}.json").write_text(json.dumps({"version": "2.9", "rank": rank, "entries": [{}] * 1000}))
    room = MemoryBudget(150_000)
    found = diagnose(collected([str(tmp_path)], budget=room), room)
    assert found.sources == 1 and len(found.unread) == 2 and all("not enough memory" in each.why for each in found.unread)


LOADS = {
    "short lines": lambda: [(f"t{n}.log", b"abcde\n" * 699_000) for n in range(12)],
    "dumps": lambda: [(f"d{n}.json", b'{"version":"2.9","rank":3,"entries":[' + b"{}," * 1_390_000 + b"{}]}") for n in range(8)],
    "lists of words": lambda: [(f"j{n}.json", (b'["' + b'","'.join([b"a"] * 15_000) + b'"]\n') * 60) for n in range(30)],
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LOADS)
def test_no_archive_of_texts_takes_more_than_512_mib(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "x.tgz", "w:gz") as archive:
        for member, data in LOADS[name]():
            info = tarfile.TarInfo(member)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    assert memory_mib("diagnose", str(tmp_path / "x.tgz")) < 512


FACTS = b'{"schema":"torchtune-sys/facts/1","facts":{'
COMPARED = {
    "families": lambda: FACTS + b",".join(b'"a%d":{}' % number for number in range(700_000)) + b"}}",
    "hosts": lambda: (FACTS + b"}}\n") * 700_000,
    "facts": lambda: b"".join(
        FACTS + b'"sysctl":{' + b",".join(b'"k%d":"%d"' % (n, host * 7 + n) for n in range(1000)) + b"}}}\n"
        for host in range(3000)
    ),
    "junk": lambda: (FACTS + b"}}\n") * 2 + b"x\n" * 2_000_000,
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", COMPARED)
def test_compare_takes_no_more_than_512_mib(tmp_path: Path, name: str) -> None:
    """1.5 million families of facts took 606 MiB, and so many hosts as anybody likes had no limit at all."""
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(COMPARED[name](), 1))
    assert memory_mib("compare", str(tmp_path / "x.jsonl.gz")) < 512


def test_a_host_has_no_thousand_families(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(FACTS + b",".join(b'"a%d":{}' % number for number in range(1001)) + b"}}")
    store = Store()
    (unread,) = read([str(tmp_path / "x.json")], store)
    assert "families" in unread.why and store.hosts == []


def test_hosts_that_do_not_fit_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtune_sys.fleet.store.HOSTS_BUDGET", 20 * limits.HOST_COST)
    (tmp_path / "x.jsonl").write_bytes((FACTS + b"}}\n") * 40)
    store = Store()
    unread = read([str(tmp_path / "x.jsonl")], store)
    assert len(store.hosts) == 21 and len(unread) == 19 and "left out" in unread[0].why


def test_twice_the_diagnoses_take_twice_the_time() -> None:
    """Of each node that tells a cause all nodes before it were copied: 10,000 took seconds, 85,000 minutes."""

    def seconds(nodes: int) -> float:
        parts = [(f"n{node}", Diagnosis(causes=(cause,))) for node in range(nodes)]
        begun = time.process_time()
        assert len(merged(parts).causes[0].hosts) == nodes
        return time.process_time() - begun

    cause = NamedCause(cause="rank-hung", confidence=Confidence.CERTAIN, title="a rank hangs")
    assert seconds(16_000) < 10 * seconds(4_000) + 0.2
