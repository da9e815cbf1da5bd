"""Read hosts from facts files, snapshots, reports, recordings, pre-flights, what fleet collected; also one a line."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from torchtune_sys import engine
from torchtune_sys.errors import UnreadableInput
from torchtune_sys.fleet import facts_file
from torchtune_sys.fleet.facts_file import LIST, ROWS
from torchtune_sys.fleet.store import HostFacts, Store
from torchtune_sys.host.input.documents import entries_in, read_documents
from torchtune_sys.host.input.limits import RECORDING_LIMIT, UNREAD_LIMIT, VALUE_LIMIT, values_in
from torchtune_sys.host.input.opening import PastedText, open_input
from torchtune_sys.host.input.reading import STANDARD_INPUT, display_name
from torchtune_sys.host.recorded import SECTIONS, recorded_document
from torchtune_sys.host.scrubbed import ScrubbedHost
from torchtune_sys.model import codec
from torchtune_sys.model.comparison import Unread
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.snapshot_json import from_json
from torchtune_sys.model.values import Missing

COLLECTED = "torchtune-sys/fleet/1"
_FORM = "1"
"""Of the schemas of all that is read."""
_TIMEOUT_S = 20.0
_DEPTH = 8
"""Directories below each other that are looked into."""
_WANTED = "is neither facts, a snapshot, a report, a recording nor a pre-flight"


class _Envelope(msgspec.Struct):
    schema: Any = None
    facts: dict[str, msgspec.Raw] | None = None
    tool: Any = None
    volatile: dict[str, Any] = {}


_envelope = msgspec.json.Decoder(_Envelope)
_encode = msgspec.json.Encoder(order="deterministic").encode


def read(paths: Iterable[str], store: Store, progress: Callable[[int], None] = lambda _count: None) -> tuple[Unread, ...]:
    """Read all that the paths name; what cannot be read is told, and stops nothing."""
    unread: list[Unread] = []
    before = len(store.hosts)
    for path in _files(paths, unread):
        try:
            for name, document in _documents(path):
                count = len(store.hosts)
                try:
                    add(document, name, store, unread)
                except (ValueError, UnreadableInput) as error:
                    unread.append(Unread(name=name, why=_said(error, name)))
                for host in store.hosts[count:]:
                    host.teller = host.teller or path
                progress(len(store.hosts))
                if len(unread) > UNREAD_LIMIT:
                    raise UnreadableInput(f"{name}: more than {UNREAD_LIMIT:,} are not read: the rest is left out", "")
        except UnreadableInput as error:
            unread.append(Unread(name=path, why=_said(error, path)))
        if len(unread) > UNREAD_LIMIT:
            break
    _note_documents(store, store.hosts[before:])
    _tell_apart(store.hosts[before:])
    return tuple(unread)


def _note_documents(store: Store, hosts: Sequence[HostFacts]) -> None:
    """Note of each host's document what makes it another than the others: it is days older, as of a host that no longer reports, or there are several of its
    name, where most hosts have one."""
    told_s = [host.epoch_s for host in hosts if host.epoch_s is not None]
    usual_s = median(told_s) if told_s else 0.0
    times = Counter(host.name for host in hosts)
    days = [0 if host.epoch_s is None else round((usual_s - host.epoch_s) / _DAY_S) for host in hosts]
    several = sum(times[host.name] > 1 for host in hosts)
    is_told = 0 < 2 * several < len(hosts)
    for host, old in zip(hosts, days, strict=True) if any(map(_is_far, days)) or is_told else ():
        facts = {"days_older": old if _is_far(old) else 0, "of_this_name": times[host.name] if is_told else 1}
        store.note(host, "document", _encode(facts))
        host.weights = {**host.weights, **dict.fromkeys(("document.days_older", "document.of_this_name"), "warning")}


def _is_far(days: int) -> bool:
    """Whether it is no matter of when in a day hosts are asked."""
    return abs(days) > 1


_DAY_S = 86400.0


def _tell_apart(hosts: Sequence[HostFacts]) -> None:
    """Hosts of one name get their files' names beside it, with the folder where these are alike, too: copies of an image, two days in one folder,
    a host whose facts say that it is another one."""
    times = Counter(host.name for host in hosts)
    files = Counter((host.name, os.path.basename(host.file)) for host in hosts)
    for host in hosts:
        file = os.path.basename(host.file)
        if times[host.name] > 1 and file != host.name:
            host.name = f"{host.name} ({file if files[host.name, file] == 1 else host.file})"


def _said(error: Exception, name: str) -> str:
    said = error.seen if isinstance(error, UnreadableInput) else str(error)
    return said.removeprefix(f"{name}: ")


def _files(paths: Iterable[str], unread: list[Unread]) -> Iterator[str]:
    for path in paths:
        if path == "-" or not os.path.isdir(path) or _is_copied_host(path):
            yield path
            continue
        unread_before = len(unread)
        found = False
        for file in _below(path, unread, _DEPTH):
            found = True
            yield file
        if not found and len(unread) == unread_before:
            unread.append(Unread(name=path, why="has no files"))


def _below(folder: str, unread: list[Unread], depth: int) -> Iterator[str]:
    """Yield the files of a directory, or, where it has none, those of the directories in it: Ansible's fetch makes one for each host."""
    try:
        found = entries_in(folder)
    except UnreadableInput as error:
        unread.append(Unread(name=folder, why=_said(error, folder)))
        return
    for file in found.files:
        if os.path.isfile(file) or not os.path.exists(file):
            yield file
        else:  # a FIFO or a device that somebody laid there would be waited for
            unread.append(Unread(name=file, why="is not a regular file"))
    for inner in found.folders:
        if _is_copied_host(inner):
            yield inner
        elif not found.files and depth:
            yield from _below(inner, unread, depth - 1)
        elif not _is_empty(inner):
            why = "is a directory beside files: name it, too, to have it read" if found.files else "lies too deep"
            unread.append(Unread(name=inner, why=why))


def _is_empty(folder: str) -> bool:
    try:
        found = entries_in(folder)
    except UnreadableInput:
        return False
    return not (found.files or found.folders)


def _is_copied_host(path: str) -> bool:
    """Whether the directory is a recording itself: a copied /proc or /sys."""
    return any(os.path.isdir(os.path.join(path, name)) for name in ("proc", "sys"))


def _documents(path: str) -> Iterator[tuple[str, bytes]]:
    """Each document with its name: the file, and its line where there are several."""
    if path != "-" and os.path.isdir(path):
        yield path, b""
        return
    name = display_name(path)
    before: bytes | None = None
    count = 0
    for line in read_documents(path):
        if before is not None:
            count += 1
            yield f"{name}:{count}", before
        before = line
    if before is not None:
        yield (f"{name}:{count + 1}" if count else name), before


def add(document: bytes, name: str, store: Store, unread: list[Unread]) -> None:
    """Add the host of one document. Raises ValueError or UnreadableInput."""
    if len(document) > RECORDING_LIMIT or values_in(document) > VALUE_LIMIT:
        raise ValueError(f"is more than a host tells ({RECORDING_LIMIT >> 20} MiB, {VALUE_LIMIT:,} values)")
    try:
        found = _envelope.decode(document)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        _add_other(document, name, store)
        return
    schema = found.schema[:100] if isinstance(found.schema, str) else ""
    kind, _, form = schema.removeprefix("torchtune-sys/").partition("/")
    if form not in ("", _FORM) and kind in ("facts", *_READERS):
        raise ValueError(f"is {schema}, which a later release wrote: this one reads {kind}/{_FORM}")
    if kind == "facts":
        _add_facts(found, name, store)
        return
    reader = _READERS.get(kind)
    whole = _decoded(document)
    if reader is None and isinstance(found.facts, dict):
        reader = _of_snapshot
    if reader is not None:
        try:
            reader(whole, name, store, unread)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"is not as {schema or 'a snapshot'} has it ({type(error).__name__})") from None
    elif kind == "recording" or not whole.keys().isdisjoint((*SECTIONS, "extends")):
        _of_recording(document, name, store)
    else:
        raise ValueError(_WANTED if not schema else f"{_WANTED}, but {schema}")


def _add_facts(found: _Envelope, name: str, store: Store) -> None:
    if found.facts is None:
        raise ValueError("a facts file without facts")
    volatile = found.volatile
    findings = volatile.get("findings")
    variables = found.tool.get("env") if isinstance(found.tool, dict) else None
    store.add(
        plain_name(str(volatile.get("host") or _stem(name))),
        name,
        {family: bytes(raw) for family, raw in found.facts.items()},
        findings={str(key): tuple(map(str, rules)) for key, rules in findings.items()} if isinstance(findings, dict) else {},
        variables=str(variables or ""),
        epoch_s=_moment(volatile.get("epoch_s")),
    )


def _moment(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and 0 < value < _LAST_S else None


_LAST_S = 1e12


def _decoded(document: bytes) -> dict[str, Any]:
    found = codec.loads(document)
    if not isinstance(found, dict):
        raise ValueError(_WANTED)
    return found


def _of_snapshot(whole: dict[str, Any], name: str, store: Store, _unread: list[Unread]) -> None:
    _add_snapshot(from_json(whole), name, store)


def _of_report(whole: dict[str, Any], name: str, store: Store, _unread: list[Unread]) -> None:
    """Add a report: what it says of each rule is a fact as heavy as the rule."""
    results = [item for item in whole.get("results") or () if isinstance(item, dict) and "rule" in item]
    if not results:
        raise ValueError("a report without results")
    host = whole.get("host") or {}
    facts = {"check": _encode({"rules": _by_key({str(item["rule"]): item.get("verdict") for item in results})})}
    python = host.get("python")
    if isinstance(python, dict) and "$missing" not in python:
        version, torch = python.get("version"), python.get("torch")
        known: dict[str, Any] = {"version": version} if isinstance(version, str) else {}
        known |= {"torch": {"version": torch}} if isinstance(torch, str) else {}  # a report does not say why there is none
        facts["python"] = _encode(known)
    findings: dict[str, list[str]] = {}
    for item in results:
        if item.get("verdict") == "fail":
            findings.setdefault(str(item.get("severity")), []).append(str(item["rule"]))
    store.add(
        _name_of(host.get("name"), name),
        name,
        facts,
        findings={severity: tuple(rules) for severity, rules in findings.items()},
        weights={f"check.rules[{item['rule']}]": str(item.get("severity")) for item in results},
    )


def _of_preflight(whole: dict[str, Any], name: str, store: Store, _unread: list[Unread]) -> None:
    nodes = [node for node in whole.get("nodes") or () if isinstance(node, dict)]
    if not nodes:
        raise ValueError("a pre-flight without nodes")
    for node in nodes:
        causes = {str(cause.get("cause")): cause for cause in node.get("causes") or ()}
        facts = {"preflight": _encode({"verdict": node.get("verdict"), "causes": _by_key(dict.fromkeys(sorted(causes), True))})}
        weight = {"fatal": "error", "warning": "warning"}
        weights = {cause: weight.get(str(item.get("weight")), "advice") for cause, item in causes.items()}
        findings: dict[str, list[str]] = {}
        for cause, item in causes.items():
            findings.setdefault(weights[cause], []).append(str(item.get("rule") or cause))
        store.add(
            _name_of(node.get("node"), name),
            name,
            facts,
            findings={severity: tuple(rules) for severity, rules in findings.items()},
            weights={"preflight.verdict": "error", **{f"preflight.causes[{cause}]": found for cause, found in weights.items()}},
        )


def _of_collected(whole: dict[str, Any], name: str, store: Store, unread: list[Unread]) -> None:
    """Add a line that fleet wrote: a host's document, or why there is none."""
    host = str(whole.get("host") or name)
    document = whole.get("document")
    if not isinstance(document, dict):
        unread.append(Unread(name=host, why=str(whole.get("why") or "no document")))
        return
    count = len(store.hosts)
    add(_encode(document), host, store, unread)
    clock = whole.get("clock_offset_s")
    for one in store.hosts[count:]:
        # What one host tells of several may be a joint pre-flight, or made up.
        one.teller = host
        one.name = plain_name(host) if len(store.hosts) - count == 1 else f"{one.name} (reported by {plain_name(host)})"
        if clock is not None:
            store.note(one, "clock", _encode({"offset_s": clock}))


def _of_recording(document: bytes, name: str, store: Store) -> None:
    host = ScrubbedHost(recorded_document(document, name, f"recording {os.path.basename(name)}"))
    _add_snapshot(engine.snapshot(host, Workload(), timeout_s=_TIMEOUT_S), name, store)


def _add_other(document: bytes, name: str, store: Store) -> None:
    """Add a tarball, a copied /proc and /sys, or text that somebody pasted."""
    if document and document.lstrip()[:1] == b"{":
        raise ValueError(_fault(document))
    path = "-" if name == STANDARD_INPUT else name
    if path == "-" or not os.path.exists(path):
        raise ValueError(_WANTED)
    found = open_input(path)
    if isinstance(found, PastedText):
        seen = engine.report(found.text, found.name, Workload())
        if seen is None:
            raise ValueError(_WANTED)
    else:
        seen = engine.snapshot(found, Workload(), timeout_s=_TIMEOUT_S)
    _add_snapshot(seen, name, store)


def _fault(document: bytes) -> str:
    """Say why an object is none of ours: no JSON, or not what its schema says."""
    try:
        _envelope.decode(document)
    except msgspec.ValidationError as error:
        return f"is not as its schema has it: {error}"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"is not JSON: {error}"
    return _WANTED


def _add_snapshot(seen: Snapshot, name: str, store: Store) -> None:
    host = None if isinstance(seen.system, Missing) else seen.system.hostname
    store.add(_name_of(host, name), name, {family: _encode(value) for family, value in facts_file.facts(seen).items()})


_REPLACED = re.compile(r"host-[0-9a-f]{8}")
"""What a recording puts in the place of a host's name, another each time: the file's name tells more."""


def _name_of(host: object, name: str) -> str:
    """
    >>> _name_of("n17.cluster", "x.json"), _name_of("host-0dce1d64", "/data/node-17.json"), _name_of(None, "/data/node-17.json")
    ('n17.cluster', 'node-17', 'node-17')
    """
    return plain_name(host if isinstance(host, str) and host and not _REPLACED.fullmatch(host) else _stem(name))


def plain_name(name: str) -> str:
    """Return a host's name as reports show it, which write several hosts as a set: in quotation marks where it could be read as others' names.

    >>> plain_name("n1.example"), plain_name("n1,n2"), plain_name("n[1-3]"), plain_name("n1 "), plain_name("all.jsonl:3")
    ('n1.example', '"n1,n2"', '"n[1-3]"', '"n1 "', 'all.jsonl:3')
    """
    is_plain = name.isascii() and name.isprintable() and name == name.strip() and not any(sign in name for sign in ',[]"')
    return name if is_plain else json.dumps(name)


def _stem(name: str) -> str:
    """
    >>> _stem("/data/node-17.json"), _stem("all.jsonl:3")
    ('node-17', 'all.jsonl:3')
    """
    base = os.path.basename(name.rstrip("/")) or name
    return base if ":" in base else base.removesuffix(".gz").removesuffix(".json").removesuffix(".facts") or base


def _by_key(values: Mapping[str, Any]) -> dict[str, Any]:
    return {ROWS: list(values), "": {LIST: list(values.values())}} if values else {}


_READERS: dict[str, Callable[[dict[str, Any], str, Store, list[Unread]], None]] = {
    "snapshot": _of_snapshot,
    "report": _of_report,
    "preflight": _of_preflight,
    "fleet": _of_collected,
}
