"""All that was given → one diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torchtune_sys.diagnosis import (
    causes,
    change_descriptions,
    facts,
    node_values,
    own_documents,
    ranks,
    ras,
    shadowing,
    slowness,
    unexplained,
)
from torchtune_sys.diagnosis.lines import LogLine, lines_of
from torchtune_sys.diagnosis.symptoms import Symptom, symptoms_of
from torchtune_sys.formats.flight_recorder import RankDump, dump_of
from torchtune_sys.formats.pickles import plain_data
from torchtune_sys.host.input.collection import Found, InputDump
from torchtune_sys.host.input.excerpts import Room
from torchtune_sys.host.input.limits import ENTRY_COST, LINE_COST, SYMPTOM_COST, TOLD_COST
from torchtune_sys.host.secrets import scrubbed_data
from torchtune_sys.model import codec
from torchtune_sys.model.diagnosis import Confidence, Diagnosis, FactDifference, UnreadSource

Comparer = Callable[[Sequence[facts.Told], bool], tuple[Sequence[FactDifference], Sequence[Symptom]]]
"""In what the hosts and looks differ, and, where no program named a cause (the second argument), what that stands for."""


def diagnose(found: Iterable[Found], room: Room | None = None, compare: Comparer | None = None) -> Diagnosis:
    """Read everything, then judge it together. ``room``: what is left for what is made of the texts, shared with who reads them."""
    room = room or Room()
    lines: dict[str, Sequence[LogLine]] = {}
    symptoms: list[Symptom] = []
    told: list[facts.Told] = []
    unread: list[UnreadSource] = []
    dumps: list[RankDump] = []
    total = documents = 0
    for item in found:
        if isinstance(item, UnreadSource):
            unread.append(item)
            continue
        if isinstance(item, InputDump):
            pickled = _pickled(item)
            _take_dump(pickled, room, dumps, unread)
            continue
        document = _document(item.excerpt.document)
        dump = dump_of(document, item.name)
        if dump is not None:
            _take_dump(dump, room, dumps, unread)
            continue
        try:
            own = own_documents.read(item.name, document, item.excerpt.document) if document else None
        except ValueError as error:
            unread.append(UnreadSource(source=item.name, why=str(error)))
            continue
        total += item.excerpt.total
        if own is not None:
            documents += 1
            said: Sequence[Symptom] = own.symptoms
            hosts: Sequence[facts.Told] = own.told
        elif change_descriptions.is_one(part := ranks.attributed(lines_of(item.excerpt.lines), item.name)):
            lines[item.name], said, hosts = (), (), ()
            unread += _left_out(item.name, part)
        else:
            lines[item.name] = part
            room.take(LINE_COST * max(len(part) - len(item.excerpt.lines), 0))
            said = symptoms_of(item.name, part)
            raw = "\n".join(line for _, line in item.excerpt.lines)
            hosts = facts.told_of(item.name, part, raw) if room.left else ()
        symptoms += said
        told += hosts
        room.take(SYMPTOM_COST * len(said) + TOLD_COST * len(hosts))
    symptoms += [*ranks.of_dumps(dumps), *ranks.of_time_outs(lines), *ranks.of_stacks(lines), *ranks.of_processes(lines)]
    symptoms += [
        *ras.symptoms_of(lines),
        *slowness.symptoms_of(lines),
        *node_values.symptoms_of(lines),
        *shadowing.symptoms_of(lines),
    ]
    differences: Sequence[FactDifference] = ()
    if compare is not None and len(told) > 1:
        differences, differing = compare(told, not any(each.candidates for each in symptoms))
        symptoms += differing
    named = causes.causes_of(symptoms, told, lines)
    sure = any(each.confidence is not Confidence.POSSIBLE for each in named)
    return Diagnosis(
        causes=named,
        unexplained=() if sure else unexplained.unexplained_of(lines, symptoms),
        facts={each.name: scrubbed_data(shown) for each in told if (shown := facts.shown(each.snapshot))},
        differences=tuple(differences),
        unread=tuple(unread),
        sources=len(lines) + len(dumps) + documents,
        lines=total,
    )


def _take_dump(dump: RankDump | UnreadSource, room: Room, dumps: list[RankDump], unread: list[UnreadSource]) -> None:
    if isinstance(dump, UnreadSource):
        unread.append(dump)
        return
    entries = [entry for group in dump.collectives.values() for entry in group]
    cost = ENTRY_COST * (len(entries) + sum(map(len, dump.members.values()))) + sum(map(len, {entry.frame for entry in entries}))
    if cost > room.left:
        unread.append(UnreadSource(source=dump.source, why="a dump for which no memory was left: give fewer at a time"))
        return
    room.take(cost)
    dumps.append(dump)


def _left_out(source: str, lines: Sequence[LogLine]) -> Iterator[UnreadSource]:
    """Yield what a text that describes a change quotes, so that who did mean it is not left with nothing."""
    quoted = [symptom for symptom in symptoms_of(source, lines) if symptom.candidates]
    if not quoted:
        return
    causes = ", ".join(dict.fromkeys(symptom.candidates[0].cause for symptom in quoted))
    yield UnreadSource(
        source=source,
        why=f"it describes a change or a wish, so the errors that it quotes (line {quoted[0].line.number}: {causes}) are not taken"
        " for this host's: give the log alone if they are",
    )


def _document(text: str) -> dict[str, Any]:
    """Return the JSON object that the text is; empty where it is none."""
    try:
        found = codec.loads(text) if text else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _pickled(item: InputDump) -> RankDump | UnreadSource:
    """Return a dump of the flight recorder; else why it is none."""
    try:
        found = dump_of(plain_data(item.data), item.name)
    except (ValueError, RecursionError) as error:
        return UnreadSource(source=item.name, why=f"a pickle that is not read: {error}")
    return found or UnreadSource(source=item.name, why="a pickle that is no dump of the flight recorder")
