"""Read this tool's own documents: judge recordings and snapshots; take the causes of reports, smoke tests and pre-flights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from torchtune_sys import engine
from torchtune_sys.diagnosis.facts import ReportedHost, reported_host
from torchtune_sys.diagnosis.symptoms import CERTAIN, LIKELY, POSSIBLE, Candidate, Symptom, candidate_of
from torchtune_sys.diagnosis.text.lines import LogLine
from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host.recorded import SECTIONS, recorded_document
from torchtune_sys.host.scrubbed import ScrubbedHost
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.rule import Evidence, Result, Severity, Verdict
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.snapshot_json import from_json
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import CATALOGUE, by_id

_OWN = "torchtune-sys/"
_OF_RECORDINGS = frozenset((*SECTIONS, "schema", "tool", "origin", "extends", "complete", "intent"))
_TIMEOUT_S = 20.0
_WEIGHTS = {"certain": CERTAIN, "likely": LIKELY, "possible": POSSIBLE}
Document = Mapping[str, Any]


class OwnDocument(msgspec.Struct, frozen=True, kw_only=True):
    reported: tuple[ReportedHost, ...] = ()
    symptoms: tuple[Symptom, ...] = ()


def read(source: str, document: Document, text: str) -> OwnDocument | None:
    """Return what the JSON document tells; None where it is none of this tool's. Raises ValueError: it is one, and tells nothing."""
    schema = document.get("schema")
    kind = schema.removeprefix(_OWN).partition("/")[0] if isinstance(schema, str) and schema.startswith(_OWN) else ""
    if not kind and not document.keys().isdisjoint(SECTIONS) and document.keys() <= _OF_RECORDINGS:
        kind = "recording"
    if not kind:
        return None
    reader = _READERS.get(kind)
    if reader is None:
        raise ValueError(f"is {schema}, which describes no fault")
    try:
        return reader(source, document, text)
    except UnreadableInput as error:
        raise ValueError(error.seen.removeprefix(f"{source}: ")) from None
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"is not as {schema or 'a recording'} has it ({type(error).__name__})") from None


def _of_recording(source: str, _document: Document, text: str) -> OwnDocument:
    host = ScrubbedHost(recorded_document(text.encode(), source, source))
    return _judged(source, engine.snapshot(host, Workload(), timeout_s=_TIMEOUT_S))


def _of_snapshot(source: str, document: Document, _text: str) -> OwnDocument:
    return _judged(source, from_json(dict(document)))


def _judged(source: str, seen: Snapshot) -> OwnDocument:
    name = "" if isinstance(seen.system, Missing) or isinstance(seen.system.hostname, Missing) else seen.system.hostname
    return OwnDocument(reported=(reported_host(source, name, engine.judge(seen, CATALOGUE), _nothing()),))


def _nothing() -> Snapshot:
    """In place of the facts: the document holds them itself."""
    unseen: dict[str, Any] = dict.fromkeys(FAMILIES, Missing(Why.NOT_RECORDED, "a document"))
    return Snapshot(intent=Workload(), **unseen)


def _of_report(source: str, document: Document, _text: str) -> OwnDocument:
    rules = by_id()
    results = []
    for item in document["results"]:
        rule = rules.get(str(item["rule"]))
        if rule is not None and item["verdict"] in ("pass", "fail", "unknown"):
            evidence = tuple(_evidence(found) for found in item.get("evidence") or () if found.get("verdict", "fail") == "fail")
            results.append(Result(rule=rule, verdict=Verdict(item["verdict"]), evidence=evidence))
    name = document["host"].get("name")
    host = name if isinstance(name, str) else ""
    warned = (each for each in results if each.verdict is Verdict.FAIL and each.rule.severity is Severity.WARNING)
    return OwnDocument(
        reported=(reported_host(source, host, results, _nothing()),),
        symptoms=tuple(_warning(source, host, each) for each in warned),
    )


def _warning(source: str, host: str, result: Result) -> Symptom:
    """Return what a report warns of: possible, where it is no more by itself."""
    seen = "; ".join(f"{each.subject}: {each.seen}" for each in result.evidence) or result.rule.title
    return _symptom(source, seen, candidate_of(result.rule, POSSIBLE), host)


def _evidence(found: Mapping[str, Any]) -> Evidence:
    return Evidence(subject=str(found["subject"]), seen=str(found["seen"]), wanted=str(found.get("wanted", "")))


def _of_smoke(source: str, document: Document, _text: str) -> OwnDocument:
    def symptoms() -> Iterator[Symptom]:
        for stage in document["stages"]:
            if stage["verdict"] == "fail" and stage.get("cause"):
                ranks = stage.get("ranks") or [None]
                weight = _WEIGHTS.get(str(stage.get("confidence")), LIKELY)
                yield _symptom(
                    source,
                    f"{stage['stage']}: {stage['seen']}",
                    Candidate(cause=_name(stage["cause"]), weight=weight),
                    "",
                    ranks[0],
                )

    return OwnDocument(symptoms=tuple(symptoms()))


def _of_preflight(source: str, document: Document, _text: str) -> OwnDocument:
    def symptoms() -> Iterator[Symptom]:
        for node in document["nodes"]:
            for cause in node.get("causes") or ():
                if cause.get("weight", "fatal") == "fatal":
                    yield _symptom(source, str(cause["seen"]), _certain(cause["cause"]), str(node["node"]))
        for link in document.get("links") or ():
            said = f"{link['from']} → {link['to']}: {link['seen']}"
            yield _symptom(source, said, _certain(link["cause"]), str(link["from"]))
        absent = document.get("absent") or ()
        if isinstance(absent, str):
            raise TypeError("nodes are a list")
        for node in absent:
            yield _symptom(source, f"{node} did not come", _certain("node-never-came"), str(node))

    return OwnDocument(symptoms=tuple(symptoms()))


_RANKS = 1 << 31
"""Above it no program has ranks; an integer of any size may stand there."""


def _certain(cause: object) -> Candidate:
    return Candidate(cause=_name(cause), weight=CERTAIN)


_CAUSE = pattern(r"[a-z0-9]+(?:-[a-z0-9]+){0,15}")


def _name(cause: object) -> str:
    """Return the name of a cause, which is printed wherever the cause is spoken of. Raises TypeError for what is none."""
    if isinstance(cause, str) and len(cause) <= 100 and _CAUSE.fullmatch(cause):
        return cause
    raise TypeError("a cause is a name")


def _symptom(source: str, said: str, cause: Candidate, host: str, rank: object = None) -> Symptom:
    number = rank if isinstance(rank, int) and 0 <= rank < _RANKS else None
    line = LogLine(number=0, text=said, printed=said, host=host, rank=number)
    return Symptom(source=source, line=line, candidates=(cause,), program="torchtune-sys")


_READERS: dict[str, Callable[[str, Document, str], OwnDocument]] = {
    "recording": _of_recording,
    "snapshot": _of_snapshot,
    "report": _of_report,
    "report-brief": _of_report,
    "smoke": _of_smoke,
    "preflight": _of_preflight,
}
