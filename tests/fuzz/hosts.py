"""What tells of a host: recordings, archives, pasted reports, single files and answers."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from functools import lru_cache
from typing import Any

import msgspec

from fuzz.target import TESTS, Target, in_a_file, judged, leaves, recording, reports
from torchtune_sys import engine, evidence
from torchtune_sys.engine import ProbeRun
from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host.input.opening import PastedText, open_input
from torchtune_sys.host.recorded import RecordedHost, parse_recording
from torchtune_sys.host.secrets.filter import scrubbed
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Result
from torchtune_sys.model.snapshot import FAMILIES, Snapshot

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


class _Asked(RecordedHost):
    """Notes what of the recording is read."""

    def __init__(self, recording: dict[str, Any]) -> None:
        super().__init__(recording, "recording x")
        self.asked: set[tuple[str, str]] = set()

    def stat(self, path: str) -> Any:
        self.asked.add(("files", self._resolve(path)))
        return super().stat(path)

    def _get(self, section: str, key: str, *more: Any) -> Any:
        self.asked.add((section, key))
        return super()._get(section, key, *more)


@lru_cache(None)
def _known(name: str) -> tuple[Snapshot, dict[str, set[tuple[str, str]]]]:
    """Return a recorded host as it is, and what of its recording each family reads."""
    host, asked = _Asked(recording(name)), {}
    for family in FAMILIES:
        host.asked = set()
        ProbeRun(host, Workload(), only=(family,)).end(60)
        asked[family] = host.asked
    return engine.snapshot(RecordedHost(recording(name), "recording x"), Workload(), timeout_s=60), asked


def _changed(name: str, found: dict[str, Any], changes: set[tuple[str, str]]) -> None:
    """Judge the host whose recording has other values at ``changes``; families that read none of these find what they found."""
    if (seen := _seen(name, found, changes)) is not None:
        judged(seen)


def _seen(name: str, found: dict[str, Any], changes: set[tuple[str, str]]) -> Snapshot | None:
    before, asked = _known(name)
    families = [family for family in FAMILIES if asked[family] & changes]
    if not families:
        return None
    seen = ProbeRun(RecordedHost(found, "recording x"), Workload(), only=families).end(60)
    return msgspec.structs.replace(before, **{family: getattr(seen, family) for family in families})


def judged_as_changed(name: str, found: dict[str, Any], changes: set[tuple[str, str]]) -> tuple[Snapshot, tuple[Result, ...]]:
    """Return the facts and the results of such a host."""
    seen = _seen(name, found, changes) or _known(name)[0]
    return seen, judged(seen)


def _report(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    scrubbed(text)
    seen = evidence.read(text, "x")
    if seen is not None:
        judged(seen)


def _input(data: bytes) -> None:
    """As a command does with --from."""
    with in_a_file(data) as name:
        try:
            found = open_input(name)
        except UnreadableInput:
            return
        if isinstance(found, PastedText):
            _report(found.text.encode())
        else:
            judged(engine.snapshot(found, Workload(), timeout_s=60))


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


def known_hosts() -> list[str]:
    return [name for name in HOSTS if (TESTS / "hosts" / f"{name}.json").exists()]


def _one_file(data: bytes) -> None:
    """The first byte says of which host, the next two which file, the rest is what stands in it."""
    of = known_hosts()[data[0] % len(known_hosts())] if data else "healthy"
    host = recording(of)
    files = sorted(key for key, value in host["files"].items() if isinstance(value, str))
    name = files[int.from_bytes(data[1:3], "big") % len(files)]
    _changed(of, {**host, "files": {**host["files"], name: data[3:].decode("utf-8", "replace")}}, {("files", name)})


@lru_cache(None)
def _copied(name: str) -> bytes:
    return pickle.dumps(recording(name))


def _odd_values(data: bytes) -> None:
    """In an answer of the host stands what nobody expects: four bytes each say where and what."""
    of = known_hosts()[data[0] % len(known_hosts())] if data else "healthy"
    host = pickle.loads(_copied(of))
    places = leaves(host.get("answers", {})) or leaves(host)
    for at in range(1, min(len(data), 41), 4):
        word = data[at : at + 4]
        container, key = places[int.from_bytes(word[:3], "big") % len(places)]
        container[key] = ODD[word[-1] % len(ODD)]
    try:
        found = parse_recording(json.dumps(host).encode(), "x", None)
    except UnreadableInput:
        return
    _changed(
        of,
        found,
        {("answers", name) for name, value in found.get("answers", {}).items() if value != recording(of)["answers"].get(name)},
    )


def tarball() -> bytes:
    """A small host in an archive with a file, a link, a hard link, a long name and a pax header."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as file:
        for name, text in list(recording("healthy")["files"].items())[:50]:
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


def _files() -> list[bytes]:
    """Of each recorded host, every fifteenth file, as it is: each takes a whole look and all rules to read."""
    found = []
    for index, name in enumerate(known_hosts()):
        host = recording(name)
        files = sorted(key for key, value in host["files"].items() if isinstance(value, str))
        found += [bytes((index,)) + at.to_bytes(2, "big") + host["files"][key].encode() for at, key in enumerate(files)][::15]
    return found


TARGETS: dict[str, Target] = {
    "input": Target(lambda: [tarball()[:20_000], *_packed(), json.dumps(recording("healthy")).encode(), *reports()[:20]], _input),
    "archive": Target(lambda: [tarball()], _input),
    "report": Target(reports, _report),
    "file of a host": Target(_files, _one_file),
    "answer of a host": Target(lambda: [bytes((n, 0, n, n, n)) * 3 for n in range(40)], _odd_values),
    "nvidia-bug-report": Target(_bug_report, _input),
}
