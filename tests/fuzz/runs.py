"""What is left of a training run, and the documents of this tool that are compared and merged."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
import tempfile
import zipfile
import zlib
from functools import lru_cache
from pathlib import Path

import msgspec

from fuzz.target import Target, in_a_file, recording, reports
from torchtune_sys import engine
from torchtune_sys.cli.commands import diagnose as diagnose_command
from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.diagnosis.merging import merged
from torchtune_sys.diagnosis.sharing import shared
from torchtune_sys.errors import UnreadableInput
from torchtune_sys.fleet.comparing import Comparing
from torchtune_sys.fleet.facts_file import document
from torchtune_sys.fleet.reading import read as read_hosts
from torchtune_sys.fleet.store import Store
from torchtune_sys.fleet.weights import Readers
from torchtune_sys.host.input.collection import InputText, collected
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model import codec
from torchtune_sys.model.diagnosis import Diagnosis
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.remediation.apply import journal
from torchtune_sys.remediation.apply.entries import Header, JournalNote, ValueEntry
from torchtune_sys.render import as_json, comparison
from torchtune_sys.render import diagnosis as diagnosis_text
from torchtune_sys.render.layout import Style
from torchtune_sys.rules import CATALOGUE


def _diagnosed(data: bytes) -> None:
    """As ``diagnose --share`` does with a file, and ``--merge`` with what ``--symptoms`` tells."""
    with in_a_file(data, ".log") as name:
        given = list(collected([name]))
        found = diagnose(given)
        line = as_json.diagnosis_line(found, "n")
        shared([item for item in given if isinstance(item, InputText)], found, line)
        diagnosis_text.text(found, Style())
        as_json.diagnosis(found)
        merged([("a", found), ("b", msgspec.json.decode(line, type=Diagnosis))])


def _merged(data: bytes) -> None:
    """As ``diagnose --merge`` does with what nodes told."""
    with in_a_file(data, ".json") as name:
        try:
            found = diagnose_command._merged((name,))
        except UnreadableInput:
            return
        as_json.diagnosis(found), diagnosis_text.text(found, Style())


def _told() -> list[bytes]:
    """What two nodes tell of one failure."""
    lines = []
    for number, node in enumerate(("n1", "n2")):
        with in_a_file(
            b"[rank%d]: torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.\n"
            % number,
            ".log",
        ) as name:
            lines.append(as_json.diagnosis_line(diagnose(collected([name])), node).encode())
    return [b"".join(lines), lines[0]]


def _compared(data: bytes) -> None:
    """As ``compare`` does with a file and a host that it knows."""
    with in_a_file(data, ".json") as name, in_a_file(_facts()) as other:
        store = Store()
        unread = read_hosts([other, name], store)
        found = Comparing(store, _readers()).among_themselves(unread)
        as_json.comparison(found), comparison.markdown(found), comparison.as_csv(found), comparison.text(found, Style())


@lru_cache(None)
def _readers() -> Readers:
    return Readers(CATALOGUE)


@lru_cache(None)
def _facts() -> bytes:
    seen = engine.snapshot(RecordedHost(recording("healthy"), "recording x"), Workload(), timeout_s=60)
    return document(seen, version="0", volatile={"host": "h"}).encode()


def _documents() -> list[bytes]:
    """What this tool writes itself, of a host with findings."""
    seen = engine.snapshot(RecordedHost(recording("swappiness-high.fail"), "recording x"), Workload(), timeout_s=60)
    facts = document(seen, version="0", volatile={"host": "g", "findings": {"error": ["swappiness-high"]}}).encode()
    report = b'{"schema": "torchtune-sys/report/2", "host": {"name": "h", "python": {"version": "3.11", "torch": "2.9"}}, "results": [{"rule":'
    report += b' "swappiness-high", "verdict": "fail", "severity": "warning", "evidence": [{"subject": "s", "seen": "60", "wanted": "1"}]}]}'
    preflight = b'{"schema": "torchtune-sys/preflight/1", "nodes": [{"node": "n1", "verdict": "no-go", "causes": [{"cause": "no-gpu", "seen":'
    preflight += b' "x", "weight": "fatal"}]}], "links": [{"from": "n1", "to": "n2", "seen": "x", "cause": "link-down"}], "absent": ["n3"]}'
    smoke = b'{"schema": "torchtune-sys/smoke/1", "stages": [{"stage": "import", "verdict": "fail", "cause": "no-gpu", "seen": "x", "ranks": [1]}]}'
    collected_line = b'{"schema": "torchtune-sys/fleet/1", "host": "n7", "clock_offset_s": 0.1, "document": ' + facts + b"}"
    snapshot = codec.dumps(seen, indent=0).encode()
    small = b'{"files": {"/proc/loadavg": "1 1 1 1/1 1"}, "env": {"RANK": "0"}, "answers": {}}'
    return [_facts(), facts, facts + facts, report, preflight, smoke, collected_line, small, snapshot]


def _dumps() -> list[bytes]:
    """The flight recorder's, as torch writes it and as JSON, and pickles that build upon themselves."""
    entry = {"collective_seq_id": 7, "profiling_name": "nccl:all_reduce", "state": "started", "process_group": ("0", "default_pg"),
             "frames": [{"filename": "a.py", "line": 3, "name": "f"}]}  # fmt: skip
    dump = {
        "version": "2.9",
        "rank": 3,
        "pg_config": {"0": {"ranks": "[0, 1, 2, 3]"}},
        "entries": [entry, {**entry, "is_p2p": True}],
    }
    return [*(pickle.dumps(dump, protocol=number) for number in (2, 4)), json.dumps(dump).encode(), doubled(6)]


def doubled(depth: int, place: str = "pg_id") -> bytes:
    """A dump of a few bytes a level, in which a value is a pair of one pair twice, and so on: 2 ** ``depth`` values to who prints it."""
    levels = b"K\x01" + b"".join(b"q%cj%c\0\0\0\x86" % (level, level) for level in range(depth))
    word = b"X%c\0\0\0%s" % (len(place), place.encode())
    own = word + levels
    return b"\x80\x02}(X\x07\0\0\0versionX\x01\0\0\x002" + own + b"X\x07\0\0\0entries](}(" + own + b"ueu."


def _loaded(data: bytes) -> None:
    """A journal in which each line has the checksum that it should: what is behind it is read, too."""
    rows = [row.partition(b" ")[2] for row in data.split(b"\n")]
    with tempfile.TemporaryDirectory() as folder:
        for content in (data, b"".join(b"%08x %s\n" % (zlib.crc32(row), row) for row in rows)):
            Path(folder, "0001.journal").write_bytes(content)
            try:
                found = journal.load(folder, 1)
            except (journal.DamagedJournal, journal.NoJournals):
                continue
            assert isinstance((found.state, found.kept, found.elsewhere, found.touched, found.is_open), tuple)


def _journals() -> list[bytes]:
    entry = ValueEntry(path="/proc/sys/vm/swappiness", before="60", value="10", change="c")
    header = Header(schema=journal.SCHEMA, version="0", time="", boot_id="b", rules=("r",), changes=("c",), entries=(entry,))
    notes = [JournalNote(what=what, entry=0, after="10") for what in ("doing", "done", "undone")]
    return [journal.line(header) + b"".join(journal.line(note) for note in (*notes, JournalNote(what="applied")))]


def _logs() -> list[bytes]:
    """An archive of each kind with logs, a dump and an archive in it."""
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:gz") as file:
        for name, data in (("rank1.log", reports()[0][:2000]), ("d.pickle", _dumps()[0])):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    outer = io.BytesIO()
    with zipfile.ZipFile(outer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/rank0.log", "RuntimeError: CUDA error: out of memory\n")
        archive.writestr("../b.tar.gz", inner.getvalue())
    return [inner.getvalue(), outer.getvalue()]


TARGETS: dict[str, Target] = {
    "diagnose": Target(lambda: [*reports("diagnose"), *reports(), *_logs()[:1]], _diagnosed),
    "journal": Target(_journals, _loaded),
    "flight recorder": Target(_dumps, _diagnosed),
    "archive of logs": Target(_logs, _diagnosed),
    "own documents": Target(_documents, _diagnosed),
    "diagnoses of nodes": Target(_told, _merged),
    "facts": Target(_documents, _compared),
}
