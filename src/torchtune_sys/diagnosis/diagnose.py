"""All that was given → one diagnosis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torchtune_sys.diagnosis import causes, facts, own_documents, ranks, slowness, unexplained
from torchtune_sys.diagnosis.lines import LogLine, lines_of
from torchtune_sys.diagnosis.symptoms import Symptom, symptoms_of
from torchtune_sys.formats.flight_recorder import RankDump, dump_of
from torchtune_sys.formats.pickles import plain_data
from torchtune_sys.host.input.collection import Found, InputDump
from torchtune_sys.host.secrets import scrubbed_data
from torchtune_sys.model import codec
from torchtune_sys.model.diagnosis import Confidence, Diagnosis, UnreadSource


def diagnose(found: Iterable[Found]) -> Diagnosis:
    """Read everything, then judge it together."""
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
            if isinstance(pickled, RankDump):
                dumps.append(pickled)
            else:
                unread.append(pickled)
            continue
        document = _document(item.excerpt.document)
        dump = dump_of(document, item.name)
        if dump is not None:
            dumps.append(dump)
            continue
        try:
            own = own_documents.read(item.name, document, item.excerpt.document) if document else None
        except ValueError as error:
            unread.append(UnreadSource(source=item.name, why=str(error)))
            continue
        total += item.excerpt.total
        if own is not None:
            documents += 1
            told += own.told
            symptoms += own.symptoms
        else:
            lines[item.name] = part = ranks.attributed(lines_of(item.excerpt.lines), item.name)
            symptoms += symptoms_of(item.name, part)
            told += facts.told_of(item.name, part, "\n".join(line for _, line in item.excerpt.lines))
    symptoms += [*ranks.of_dumps(dumps), *ranks.of_time_outs(lines), *ranks.of_stacks(lines), *slowness.symptoms_of(lines)]
    named = causes.causes_of(symptoms, told, lines)
    sure = any(each.confidence is not Confidence.POSSIBLE for each in named)
    return Diagnosis(
        causes=named,
        unexplained=() if sure else unexplained.unexplained_of(lines, symptoms),
        facts={
            f"{each.source} {each.host}".strip(): scrubbed_data(shown) for each in told if (shown := facts.shown(each.snapshot))
        },
        unread=tuple(unread),
        sources=len(lines) + len(dumps) + documents,
        lines=total,
    )


def _document(text: str) -> dict[str, Any]:
    """The JSON object that the text is; empty where it is none."""
    try:
        found = codec.loads(text) if text else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _pickled(item: InputDump) -> RankDump | UnreadSource:
    """A dump of the flight recorder; else why it is none."""
    try:
        found = dump_of(plain_data(item.data), item.name)
    except (ValueError, RecursionError) as error:
        return UnreadSource(source=item.name, why=f"a pickle that is not read: {error}")
    return found or UnreadSource(source=item.name, why="a pickle that is no dump of the flight recorder")
