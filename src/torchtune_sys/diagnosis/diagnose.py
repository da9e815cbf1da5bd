"""All that was given → one diagnosis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchtune_sys.diagnosis import causes, facts, unexplained
from torchtune_sys.diagnosis.lines import LogLine, lines_of
from torchtune_sys.diagnosis.symptoms import Symptom, symptoms_of
from torchtune_sys.host.input.collection import Found, InputDump, InputText
from torchtune_sys.model.diagnosis import Confidence, Diagnosis, UnreadSource


def diagnose(found: Iterable[Found]) -> Diagnosis:
    """Read everything, then judge it together."""
    lines: dict[str, Sequence[LogLine]] = {}
    symptoms: list[Symptom] = []
    told: list[facts.Told] = []
    unread: list[UnreadSource] = []
    total = 0
    for item in found:
        if isinstance(item, UnreadSource):
            unread.append(item)
        elif isinstance(item, InputDump):
            unread.append(UnreadSource(source=item.name, why="is no text"))
        else:
            lines[item.name] = part = _scrubbed(item)
            total += item.excerpt.total
            symptoms += symptoms_of(item.name, part)
            told += facts.told_of(item.name, part, "\n".join(line for _, line in item.excerpt.lines))
    named = causes.causes_of(symptoms, told, lines)
    sure = any(each.confidence is not Confidence.POSSIBLE for each in named)
    return Diagnosis(
        causes=named,
        unexplained=() if sure else unexplained.unexplained_of(lines, symptoms),
        facts={f"{each.source} {each.host}".strip(): facts.shown(each.snapshot) for each in told},
        unread=tuple(unread),
        sources=len(lines),
        lines=total,
    )


def _scrubbed(text: InputText) -> tuple[LogLine, ...]:
    from torchtune_sys.host.secrets import scrubbed

    return lines_of([(number, scrubbed(line)) for number, line in text.excerpt.lines])
