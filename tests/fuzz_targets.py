"""What reads the files of strangers, one function for each kind, with true files to start from.

``tests/host/test_fuzz.py`` changes the files a little and at random; ``scripts/fuzz_readers.py`` does so for as long as one wants,
led by which lines of our code are reached.
"""

from __future__ import annotations

import copy
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from torchtune_sys import engine, evidence
from torchtune_sys.errors import UnreadableInput
from torchtune_sys.formats import elf, kernel_messages, mounts, nccl_topology, package_records, requirements, smbios
from torchtune_sys.formats.nvidia_smi import logs
from torchtune_sys.host.input.opening import PastedText, open_input
from torchtune_sys.host.recorded import RecordedHost, load_recording, parse_recording
from torchtune_sys.host.secrets import scrubbed
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import CATALOGUE

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


def _input(data: bytes) -> None:
    """As a command does with --from."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as file:
        file.write(data)
        file.flush()
        try:
            found = open_input(file.name)
        except UnreadableInput:
            return
        if isinstance(found, PastedText):
            _report(found.text.encode())
        else:
            judged(engine.snapshot(found, Workload(), timeout_s=60))


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
    "NCCL topology": Target(
        lambda: [b'<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200"/></cpu></system>'],
        _refusing(_text(nccl_topology.parse)),
    ),
}
