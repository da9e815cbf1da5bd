"""What reads the files of strangers, one function for each kind, with true files to start from.

``tests/host/test_fuzz.py`` changes the files a little and at random; ``scripts/fuzz_readers.py`` does so for as long as one wants,
led by which lines of our code are reached.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import pickle
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from torchtune_sys import engine, evidence
from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.diagnosis.merging import merged
from torchtune_sys.diagnosis.sharing import shared
from torchtune_sys.errors import BadConfig, UnknownName, UnreadableInput
from torchtune_sys.fleet.comparing import Comparing
from torchtune_sys.fleet.facts_file import document
from torchtune_sys.fleet.reading import read as read_hosts
from torchtune_sys.fleet.store import Store
from torchtune_sys.fleet.weights import Readers
from torchtune_sys.formats import elf, kernel_messages, mounts, nccl_topology, package_records, requirements, smbios
from torchtune_sys.formats.nvidia_smi import logs
from torchtune_sys.host.base import Output
from torchtune_sys.host.input.collection import InputText, collected
from torchtune_sys.host.input.opening import PastedText, open_input
from torchtune_sys.host.peers.wire import Gone
from torchtune_sys.host.recorded import RecordedHost, load_recording, parse_recording
from torchtune_sys.host.secrets import scrubbed
from torchtune_sys.model import codec
from torchtune_sys.model.diagnosis import Diagnosis
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.preflight import last_standard, site_checks
from torchtune_sys.preflight.joint import messages, names
from torchtune_sys.preflight.policy import Policy, parse_policy
from torchtune_sys.render import as_json, comparison
from torchtune_sys.render import diagnosis as diagnosis_text
from torchtune_sys.render.layout import Style
from torchtune_sys.rules import CATALOGUE
from torchtune_sys.rules.profiles import parse_config
from torchtune_sys.smoke import proof

TESTS = Path(__file__).parent
HOSTS = ("healthy", "base-amd-gpu", "numa-node-without-memory.fail", "infiniband-port-down.fail")
ODD: tuple[Any, ...] = (
    None,
    "",
    "0",
    "-1",
    "9" * 30,
    "nan",
    "x" * 5000,
    "\0",
    "\u2028",
    0,
    -1,
    10**30,
    1e308,
    True,
    [],
    {},
    [[]],
    [None],
)
"""What stands where something else is expected."""


class Target(NamedTuple):
    seeds: Callable[[], list[bytes]]
    read: Callable[[bytes], object]


class Crash(AssertionError):
    """A probe or a rule raised what it must not."""


def judged(seen: Snapshot) -> None:
    """Raises Crash where a probe or a rule crashed on it."""
    for family in FAMILIES:
        facts = getattr(seen, family)
        if isinstance(facts, Missing) and facts.why is Why.CRASHED:
            raise Crash(str(facts))
    for result in engine.judge(seen, CATALOGUE):
        if result.verdict is Verdict.CRASHED:
            raise Crash(f"{result.rule.id}: {result.note}: {result.why_unknown}")


def _host(recording: dict[str, Any]) -> None:
    judged(engine.snapshot(RecordedHost(recording, "recording x"), Workload(), timeout_s=60))


def _report(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    scrubbed(text)
    seen = evidence.read(text, "x")
    if seen is not None:
        judged(seen)


@contextlib.contextmanager
def _in_a_file(data: bytes, ending: str = "") -> Iterator[str]:
    with tempfile.NamedTemporaryFile(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None, suffix=ending) as file:
        file.write(data)
        file.flush()
        yield file.name


def _input(data: bytes) -> None:
    """As a command does with --from."""
    with _in_a_file(data) as name:
        try:
            found = open_input(name)
        except UnreadableInput:
            return
        if isinstance(found, PastedText):
            _report(found.text.encode())
        else:
            judged(engine.snapshot(found, Workload(), timeout_s=60))


def _diagnosed(data: bytes) -> None:
    """As ``diagnose --share`` does with a file, and ``--merge`` with what ``--symptoms`` tells."""
    with _in_a_file(data, ".log") as name:
        given = list(collected([name]))
        found = diagnose(given)
        line = as_json.diagnosis_line(found, "n")
        shared([item for item in given if isinstance(item, InputText)], found, line)
        diagnosis_text.text(found, Style())
        as_json.diagnosis(found)
        merged([("a", found), ("b", msgspec.json.decode(line, type=Diagnosis))])


def _compared(data: bytes) -> None:
    """As ``compare`` does with a file and a host that it knows."""
    with _in_a_file(data, ".json") as name, _in_a_file(_facts()) as other:
        store = Store()
        unread = read_hosts([other, name], store)
        found = Comparing(store, _readers()).among_themselves(unread)
        as_json.comparison(found), comparison.markdown(found), comparison.as_csv(found), comparison.text(found, Style())


@lru_cache(None)
def _readers() -> Readers:
    return Readers(CATALOGUE)


@lru_cache(None)
def _facts() -> bytes:
    seen = engine.snapshot(RecordedHost(_recording("healthy"), "recording x"), Workload(), timeout_s=60)
    return document(seen, version="0", volatile={"host": "h"}).encode()


def _documents() -> list[bytes]:
    """What this tool writes itself, of a host with findings."""
    seen = engine.snapshot(RecordedHost(_recording("swappiness-high.fail"), "recording x"), Workload(), timeout_s=60)
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


def _bug_report() -> list[bytes]:
    line = b"_" * 44 + b"\n"
    parts = [
        b"Start of NVIDIA bug report log file\n",
        b"\n*** /proc/cmdline\n*** ls: -r--r--r-- 1 root root 0 /proc/cmdline\nquiet\n",
    ]
    parts += [
        b"\ndmesg\n" + b"[    1.0] NVRM: Xid (PCI:0000:1b:00): 79, x\n" * 12,
        b"\n/usr/bin/lspci -nntv\n-[0000:00]-+-00.0\n",
    ]
    parts += [b"\n/usr/bin/nvidia-smi --query\n\n" + text[:3000] for text in reports() if b"NVSMI" in text][:1]
    return [line + line.join(parts)]


def _messages(data: bytes) -> None:
    """A line from a peer, to each side that may be told one."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(fields, dict):
        for hear in (messages.asked, messages.from_node, messages.from_coordinator, messages.me):
            with contextlib.suppress(Gone):
                hear(fields)


def _told() -> list[bytes]:
    """One of each message of the joint pre-flight."""
    join = {"is": "join", "node": 1, "control": 2, "link": [1, 2, "x"], "ranks": [0], "expected": 2, "notes": {"facts": {}},
            "words": {"1": "x"}, "lost": {"1": ["a", "b"]}, "ended": {}}  # fmt: skip
    task = {"is": "task", "id": "1", "do": "link", "deadline_s": 3.0, "tasks": {"0": {"a": 1}}, "tokens": ["x"]}
    others = ({"is": "note", "key": "facts", "value": {}}, {"is": "event", "cause": "a", "seen": "b", "local": 0}, {"is": "pong", "n": 1,
              "clock": 1.5}, {"is": "table", "nodes": {"1": ["a", 2]}}, {"is": "verdict", "value": {}}, {"is": "redirect", "to": -1, "via": 0})  # fmt: skip
    return [json.dumps(each).encode() for each in (join, task, *others)]


def _settings(text: str) -> None:
    for parse in (lambda: parse_policy(text, "x", CATALOGUE, "gpu"), lambda: parse_config(text, "x", CATALOGUE)):
        with contextlib.suppress(BadConfig, UnknownName):
            parse()


def _words(text: str) -> None:
    """Single values of others': what a site's check prints, lists of nodes, notes of an earlier run, a proof."""
    for status in (0, 1, 2, 9, -9):
        site_checks._judged("a.sh", Output(rc=status, stdout=text, stderr=text), Policy())
    names.expanded(text), names.hosts_of(text), names.is_host_name(text), last_standard.parse(text), proof.parse(text)


@lru_cache(None)
def _recording(name: str) -> dict[str, Any]:
    return load_recording(str(TESTS / "hosts" / f"{name}.json"))


def _known() -> list[str]:
    return [name for name in HOSTS if (TESTS / "hosts" / f"{name}.json").exists()]


def _one_file(data: bytes) -> None:
    """The first byte says of which host, the next two which file, the rest is what stands in it."""
    recording = _recording(_known()[data[0] % len(_known())]) if data else _recording("healthy")
    files = sorted(key for key, value in recording["files"].items() if isinstance(value, str))
    name = files[int.from_bytes(data[1:3], "big") % len(files)]
    _host({**recording, "files": {**recording["files"], name: data[3:].decode("utf-8", "replace")}})


def _leaves(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON value that holds something, as its container and its key or index."""
    found = []
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found.append((value, key))
        found += _leaves(inner)
    return found


def _odd_values(data: bytes) -> None:
    """In an answer of the host stands what nobody expects: four bytes each say where and what."""
    recording = copy.deepcopy(_recording(_known()[data[0] % len(_known())] if data else "healthy"))
    for at in range(1, min(len(data), 41), 4):
        word = data[at : at + 4]
        places = _leaves(recording.get("answers", {})) or _leaves(recording)
        container, key = places[int.from_bytes(word[:3], "big") % len(places)]
        container[key] = ODD[word[-1] % len(ODD)]
    try:
        found = parse_recording(json.dumps(recording).encode(), "x", None)
    except UnreadableInput:
        return
    _host(found)


def _text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode("utf-8", "replace"))


def _refusing(parse: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """``parse`` is documented to raise ValueError for what it cannot read."""

    def read(data: bytes) -> object:
        try:
            return parse(data)
        except ValueError:
            return None

    return read


def tarball() -> bytes:
    """A small host in an archive with a file, a link, a hard link, a long name and a pax header."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as file:
        for name, text in list(_recording("healthy")["files"].items())[:50]:
            if isinstance(text, str) and len(text) < 4096:
                info = tarfile.TarInfo(f"host{name}")
                info.size = len(text.encode())
                file.addfile(info, io.BytesIO(text.encode()))
        for name, kind in (("x" * 150, tarfile.SYMTYPE), ("host/é", tarfile.LNKTYPE), ("host/dev/null", tarfile.CHRTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "host/proc/cpuinfo"
            file.addfile(info)
    return buffer.getvalue()


def _packed() -> list[bytes]:
    import bz2
    import gzip
    import lzma

    return [pack(tarball()) for pack in (gzip.compress, bz2.compress, lzma.compress)]


def reports() -> list[bytes]:
    """Pasted texts: those in the tests' own files, long strings in them, of which each names what it is."""
    import ast

    found = []
    for path in sorted((TESTS / "evidence").glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count("\n") > 3:
                found.append(node.value.encode("utf-8", "replace"))
    return found


def _files() -> list[bytes]:
    """Of each recorded host, every fifteenth file, as it is: each takes a whole look and all rules to read."""
    found = []
    for index, name in enumerate(_known()):
        recording = _recording(name)
        files = sorted(key for key, value in recording["files"].items() if isinstance(value, str))
        found += [bytes((index,)) + at.to_bytes(2, "big") + recording["files"][key].encode() for at, key in enumerate(files)][
            ::15
        ]
    return found


def _programs() -> list[bytes]:
    return [Path(path).read_bytes()[:4096] for path in ("/bin/true", "/bin/sh") if os.path.exists(path)]


TARGETS: dict[str, Target] = {
    "input": Target(
        lambda: [tarball()[:20_000], *_packed(), json.dumps(_recording("healthy")).encode(), *reports()[:20]], _input
    ),
    "archive": Target(lambda: [tarball()], _input),
    "report": Target(reports, _report),
    "file of a host": Target(_files, _one_file),
    "answer of a host": Target(lambda: [bytes((n, 0, n, n, n)) * 3 for n in range(40)], _odd_values),
    "elf": Target(_programs, _refusing(lambda data: elf.parse_elf(lambda at, size: data[at : at + size]))),
    "ld.so.cache": Target(
        lambda: [Path(path).read_bytes()[:8192] for path in ("/etc/ld.so.cache",) if os.path.exists(path)],
        _refusing(lambda data: elf.parse_cache(data, ("libc",))),
    ),
    "smbios": Target(
        lambda: [bytes((17, 40, 0, 1)) + bytes(36) + b"DIMM 0\0A\0\0" + bytes((127, 4, 2, 0, 0, 0))], smbios.memory_devices
    ),
    "package records": Target(
        lambda: [b"Package: a\nStatus: install ok installed\nVersion: 1\n\nPackage: b\nVersion: 2\n"],
        package_records.parse_status,
    ),
    "requirements": Target(
        lambda: [b"torch>=2.1,<3; python_version < '3.12' and extra == 'x'", b"a[b,c] (==1.*)"],
        _refusing(_text(lambda text: (lambda found: requirements.holds(found.marker, {}))(requirements.parse(text)))),
    ),
    "mounts": Target(
        lambda: [b"36 35 98:0 / /mnt rw,noatime master:1 - ext3 /dev/root rw\n"],
        _text(lambda text: (mounts.parse_mountinfo(text), mounts.parse_mounts(text))),
    ),
    "kernel log": Target(
        lambda: [text for text in reports() if b"NVRM" in text], _text(lambda text: kernel_messages.read_log(text, "x"))
    ),
    "nvidia-smi": Target(
        lambda: (
            [text for text in reports() if b"NVSMI" in text or b"nvidia_smi_log" in text]
            or [b"<nvidia_smi_log></nvidia_smi_log>"]
        ),
        _text(lambda text: (logs.parse_xml(text), logs.parse_query(text))),
    ),
    "diagnose": Target(lambda: [*reports(), *_logs()[:1]], _diagnosed),
    "flight recorder": Target(_dumps, _diagnosed),
    "archive of logs": Target(_logs, _diagnosed),
    "own documents": Target(_documents, _diagnosed),
    "facts": Target(_documents, _compared),
    "nvidia-bug-report": Target(_bug_report, _input),
    "peers' messages": Target(_told, _messages),
    "policy": Target(
        lambda: [
            b'fatal = ["error"]\nwarning = ["swappiness-high"]\n[partition.gpu]\nignore = ["network"]\n[site-checks]\ntimeout = 5\n[rules.swappiness-high]\nmost = 1\n'
        ],
        _text(_settings),
    ),
    "others' words": Target(
        lambda: [
            b'{"verdict": "fail", "cause": "x", "blame": "node", "seen": "y"}',
            b"DISK CRITICAL - x | a=1",
            b"tt[1-3,07],login",
            b"a slots=8\n",
        ],
        _text(_words),
    ),
    "secrets": Target(
        lambda: [b"curl -u a:b https://x --password y", *(text for text in reports()[:30] if b"=" in text)], _text(scrubbed)
    ),
    "NCCL topology": Target(
        lambda: [b'<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200"/></cpu></system>'],
        _refusing(_text(nccl_topology.parse)),
    ),
}
