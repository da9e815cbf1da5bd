"""Read all inputs and make one diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from torchtune_sys.diagnosis import (
    batch_scripts,
    causes,
    change_descriptions,
    documents,
    facts,
    frames,
    launchers,
    node_values,
    outlived,
    own_documents,
    own_texts,
    process_exits,
    shadowing,
    slowness,
    stated_causes,
    taken_back,
    told_states,
    told_symptoms,
    unexplained,
)
from torchtune_sys.diagnosis.over import listed, recovered
from torchtune_sys.diagnosis.ranks import barriers, collectives, file_names, members, missing, outliers, peers, ras, stalls
from torchtune_sys.diagnosis.stated_forms import FAILING
from torchtune_sys.diagnosis.symptoms import POSSIBLE, Symptom, is_no_output, symptoms_of
from torchtune_sys.diagnosis.text.cut_ends import completed_prose
from torchtune_sys.diagnosis.text.lines import LogLine, lines_of, seldom
from torchtune_sys.formats.flight_recorder import RankDump, dump_of
from torchtune_sys.formats.pickles import plain_data
from torchtune_sys.host.input.collection import Found, InputDump
from torchtune_sys.host.input.excerpts import Excerpt, MemoryBudget
from torchtune_sys.host.input.limits import ENTRY_COST, LINE_COST, SNAPSHOT_COST, SYMPTOM_COST
from torchtune_sys.host.secrets.filter import scrubbed_data
from torchtune_sys.knowledge.quoted_errors import is_asked, is_example, is_mentioned, quoted
from torchtune_sys.model import codec
from torchtune_sys.model.diagnosis import Confidence, Diagnosis, FactDifference, Quote, Unexplained, UnreadSource

_QUOTING = (
    (change_descriptions.is_one, "describes a change or a request"),
    (documents.is_one, "is a document"),
    (documents.is_over, "says that this is over"),
)
"""What texts are of which the errors are examples, and what is said of them."""
_SHORT, _SHORT_LINE = 120, 400
_QUOTED = 4
"""Causes that are named of a text whose errors are examples."""
_Told = TypeVar("_Told", Quote, Unexplained)
_Errors = Callable[[Sequence[Symptom]], tuple[Unexplained, ...]]
"""The errors that nothing explains beside these symptoms."""
Comparer = Callable[[Sequence[facts.ReportedHost], bool], tuple[Sequence[FactDifference], Sequence[Symptom]]]
"""In what the hosts and looks differ, and, where no program named a cause (the second argument), what that stands for."""


def diagnose(found: Iterable[Found], budget: MemoryBudget | None = None, compare: Comparer | None = None) -> Diagnosis:
    """Read everything, then judge it together. ``budget``: the memory that is left for the results, shared with the reader of the texts."""
    given = _Input(budget or MemoryBudget())
    for item in found:
        given.take(item)
    lines, own = file_names.attributed(given.lines, given.symptoms)
    own = barriers.of_reached_port(process_exits.without_consequences(own, lines), lines)
    symptoms = [*peers.at_the_one_named(own), *_across_sources(lines, given.dumps)]
    symptoms, heard = outlived.without(_without_own_doing(symptoms, lines), lines)
    symptoms, heard = _without_recovered(symptoms, heard, given)
    errors_but_for = unexplained.Asked(heard).but_for
    symptoms = _without_ended(symptoms, errors_but_for)
    differences: Sequence[FactDifference] = ()
    if compare is not None and len(given.reported) > 1:
        differences, differing = compare(given.reported, not any(each.candidates for each in symptoms))
        symptoms += differing
    claims = [each for each in symptoms if each.merely_told]
    symptoms = [each for each in symptoms if not each.merely_told]
    symptoms += _unless_disproved(claims, errors_but_for, symptoms)
    named = causes.causes_of(symptoms, given.reported, lines)
    if not named and (told := _unless_disproved(_told(heard, symptoms), errors_but_for, symptoms)):
        named = causes.causes_of([*symptoms, *told], given.reported, lines)
    if not named and (told := _unless_disproved(_told_at_cut_ends(heard, errors_but_for, symptoms), errors_but_for, symptoms)):
        named = causes.causes_of([*symptoms, *told], given.reported, lines)
    if not named and (waits := [*collectives.of_waits(heard)]) and not errors_but_for([*symptoms, *waits]):
        symptoms += waits
        named = causes.causes_of(symptoms, given.reported, lines)
    errors = causes.that_end_jobs(named)
    sure = any(each.confidence is not Confidence.POSSIBLE for each in errors)
    unknown = () if sure else outliers.named(errors_but_for(symptoms), lines)
    named, unknown = process_exits.of_process(errors if unexplained.ended(unknown) else named, unknown, lines)
    if not named and not unknown:
        unknown = _complaints(heard)
    return Diagnosis(
        causes=tuple(replace(each, evidence=tuple(map(given.as_printed, each.evidence))) for each in named),
        unexplained=tuple(map(given.as_printed, unknown)),
        waited=missing.waiting(lines, named or unknown),
        unheard=missing.unheard(lines),
        facts={each.name: scrubbed_data(shown) for each in given.reported if (shown := facts.shown(each.snapshot))},
        differences=tuple(differences),
        unread=tuple(given.unread),
        sources=len(lines) + len(given.dumps) + given.documents - given.empty,
        lines=given.total,
    )


class _Input:
    """What was read so far: the lines, symptoms and facts of each source, and the sources that could not be read."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.lines: dict[str, Sequence[LogLine]] = {}
        self.symptoms: list[Symptom] = []
        self.reported: list[facts.ReportedHost] = []
        self.unread: list[UnreadSource] = []
        self.dumps: list[RankDump] = []
        self.total = self.documents = self.empty = 0
        self.numbers: dict[str, Mapping[int, int]] = {}
        """Of a source of which one line holds several: which line of the file each is."""

    def take(self, item: Found) -> None:
        """Add one source: a text, a dump of the flight recorder, or one that could not be read."""
        if isinstance(item, UnreadSource):
            self.unread.append(item)
        elif isinstance(item, InputDump):
            self._take_dump(_pickled(item))
        else:
            self._take_text(item.name, item.excerpt)

    def _take_text(self, name: str, excerpt: Excerpt) -> None:
        document = _document(excerpt.document)
        dump = dump_of(document, name)
        if dump is not None:
            self._take_dump(dump)
            return
        try:
            own = own_documents.read(name, document, excerpt.document) if document else None
        except ValueError as error:
            self.unread.append(UnreadSource(source=name, why=str(error)))
            return
        self.total += excerpt.total
        if own is not None:
            self.documents += 1
            self._add(own.symptoms, own.reported)
        else:
            self._take_log(name, excerpt)

    def _take_log(self, name: str, excerpt: Excerpt) -> None:
        part = launchers.attributed(lines_of(excerpt.lines), name)
        quotes = next((words for is_one, words in _QUOTING if is_one(part)), "")
        if quotes:
            self.lines[name] = ()
            self.unread += _left_out(name, part, quotes)
            return
        quoting = [line for line in part if is_example(line.text)]
        quoting += _asked([line for line in part if line not in quoting])
        examples = {line: replace(line, text=quoted(line.text)) for line in quoting} | {
            line: line for line in listed.lines_of(part)
        }
        part = self._told_apart(name, tuple(line for line in part if line not in examples))
        self.lines[name] = part
        self.empty += not excerpt.total
        self.budget.take(LINE_COST * max(len(part) - len(excerpt.lines), 0))
        symptoms = [*own_texts.symptoms_of(name, part), *frames.with_places(symptoms_of(name, part), part)]
        mentioned = {line.number for line in part if is_mentioned(line.text)}
        symptoms = [_at_most_possible(each, each.line) if each.line.number in mentioned else each for each in symptoms]
        unsure = {*mentioned, *(line.number for line in part if is_no_output(line.text)), *(line.number for line in examples)}
        sure = tuple(line for line in part if line.number not in unsure)
        raw = "\n".join(line for number, line in excerpt.lines if number not in unsure)
        self._add(symptoms, facts.reported_hosts(name, sure, raw) if self.budget.left else ())
        self.unread += () if symptoms else _left_out(name, tuple(examples.values()), "speaks of errors as examples")

    def _told_apart(self, name: str, part: tuple[LogLine, ...]) -> tuple[LogLine, ...]:
        """Return the lines, each with a number of its own: a message of many lines is one line of a JSON document or of HTML."""
        if len({line.number for line in part}) == len(part):
            return part
        apart: list[LogLine] = []
        for line in part:
            before, at = (apart[-1].number, part[len(apart) - 1].number) if apart else (0, 0)
            apart.append(replace(line, number=before + max(line.number - at, 1)))
        self.numbers[name] = {own.number: line.number for own, line in zip(apart, part, strict=True)}
        return tuple(apart)

    def as_printed(self, told: _Told) -> _Told:
        """Return it with the number of its line in the file."""
        return replace(told, line=self.numbers.get(told.source, {}).get(told.line, told.line))

    def _add(self, symptoms: Sequence[Symptom], reported: Sequence[facts.ReportedHost]) -> None:
        self.symptoms += symptoms
        self.reported += reported
        self.budget.take(SYMPTOM_COST * len(symptoms) + SNAPSHOT_COST * len(reported))

    def _take_dump(self, dump: RankDump | UnreadSource) -> None:
        if isinstance(dump, UnreadSource):
            self.unread.append(dump)
            return
        entries = [entry for group in dump.collectives.values() for entry in group]
        cost = ENTRY_COST * (len(entries) + sum(map(len, dump.members.values()))) + sum(
            map(len, {entry.frame for entry in entries})
        )
        if cost > self.budget.left:
            self.unread.append(UnreadSource(source=dump.source, why="not enough memory for this dump: give fewer at a time"))
            return
        self.budget.take(cost)
        self.dumps.append(dump)


def _without_recovered(
    symptoms: list[Symptom], heard: Mapping[str, Sequence[LogLine]], given: _Input
) -> tuple[list[Symptom], dict[str, Sequence[LogLine]]]:
    """Return the symptoms and the lines but of events that were over; the facts of their sources are read anew, without them."""
    rest, kept = recovered.without(symptoms, heard)
    for source in (name for name, part in kept.items() if len(part) < len(heard[name])):
        told = facts.reported_hosts(source, kept[source], "\n".join(line.printed for line in kept[source]))
        given.reported = [each for each in given.reported if each.source != source] + list(told)
    return list(rest), dict(kept)


def _asked(part: Sequence[LogLine]) -> list[LogLine]:
    """Return the lines that ask about an error's words; none where another line tells of a failure."""
    asked = [line for line in part if is_asked(line.text)]
    fails = asked and any(FAILING.search(line.text[:_SHORT_LINE]) for line in part if line not in asked)
    return [] if fails else asked


def _across_sources(lines: Mapping[str, Sequence[LogLine]], dumps: Sequence[RankDump]) -> Iterator[Symptom]:
    """Yield the symptoms that need several ranks, nodes or sources together."""
    yield from collectives.of_dumps(dumps)
    for symptoms_in in (
        collectives.of_time_outs,
        peers.symptoms_of,
        process_exits.symptoms_of,
        stalls.symptoms_of,
        collectives.of_unwritten_keys,
        collectives.of_stacks,
        collectives.of_processes,
        barriers.symptoms_of,
        batch_scripts.symptoms_of,
        members.symptoms_of,
        members.places_taken_twice,
        ras.symptoms_of,
        slowness.symptoms_of,
        node_values.symptoms_of,
        shadowing.symptoms_of,
    ):
        yield from symptoms_in(lines)
    yield from stated_causes.symptoms_of(_prose(lines))


def _without_ended(symptoms: list[Symptom], errors_but_for: _Errors) -> list[Symptom]:
    """Return the symptoms; that ranks are behind follows where one of them ended by an exception of its own, which nobody caught."""
    behind = {id(each) for each in symptoms if each.ranks and [one.cause for one in each.candidates] == ["rank-hung"]}
    if not behind:
        return symptoms
    errors = errors_but_for([each for each in symptoms if id(each) not in behind])
    ended = {rank for each in errors if each.place for rank in each.ranks}
    return [
        replace(each, candidates=(), consequence=True) if id(each) in behind and ended.intersection(each.ranks) else each
        for each in symptoms
    ]


def _complaints(lines: Mapping[str, Sequence[LogLine]]) -> tuple[Unexplained, ...]:
    """Return an error without its traceback, else what somebody complains of; where he interrupted the program, with the place; else that alone, if nobody says that he only wanted to end it."""
    stopped = unexplained.interrupted(lines)
    if not stopped and (alone := unexplained.alone(lines)):
        return alone
    said = _prose(lines)
    told = tuple(told_symptoms.complaints_of(said))[:1]
    if told or not stopped:
        return tuple(replace(each, place=stopped[0].place) for each in told) if stopped else told
    return () if any(map(taken_back.is_by_oneself, said.values())) else stopped


def _without_own_doing(symptoms: list[Symptom], lines: Mapping[str, Sequence[LogLine]]) -> list[Symptom]:
    """Return the symptoms; that a job or a rank was ended tells nothing where somebody says that he ended it."""
    ended = {each.source for each in symptoms if _was_ended(each)}
    said = _prose({source: lines[source] for source in ended})
    by_oneself = {source for source in ended if taken_back.is_by_oneself(said[source])}
    return [
        replace(each, candidates=(), consequence=True) if each.source in by_oneself and _was_ended(each) else each
        for each in symptoms
    ]


def _was_ended(symptom: Symptom) -> bool:
    return any(one.cause in taken_back.OF_ONESELF for one in symptom.candidates)


def _prose(lines: Mapping[str, Sequence[LogLine]]) -> Mapping[str, Sequence[LogLine]]:
    return {source: tuple(_without_frames(seldom(_unstamped(part)))) for source, part in lines.items()}


def _unstamped(part: Sequence[LogLine]) -> Sequence[LogLine]:
    """Return the lines that no log has stamped with a time; all of them where it stamped the most: it may have stamped what somebody says, too."""
    said = [line for line in part if not line.time]
    return said if 2 * len(said) > len(part) else part


def _unless_disproved(told: list[Symptom], errors_but_for: _Errors, symptoms: Sequence[Symptom]) -> list[Symptom]:
    """Return what people tell of their host, unless a program ended by an error of its own in another line: what is merely told is no reason for it.

    An error that only follows from another one leaves open what that was.
    """
    following = {(each.source, each.line.number) for each in symptoms if each.consequence}
    errors = [each for each in errors_but_for(symptoms) if (each.source, each.line) not in following] if told else ()
    return [] if any(each.place or not any(each.text in one.line.text for one in told) for each in errors) else told


def _told(lines: Mapping[str, Sequence[LogLine]], symptoms: Sequence[Symptom]) -> list[Symptom]:
    """Return what people tell in the lines of which no table of programs knows what they stand for."""
    known = {(each.source, each.line.number) for each in symptoms if each.candidates or each.consequence}
    prose = {source: [line for line in part if (source, line.number) not in known] for source, part in _prose(lines).items()}
    return [*told_states.symptoms_of(prose)] or [*told_symptoms.symptoms_of(prose)]


def _told_at_cut_ends(
    lines: Mapping[str, Sequence[LogLine]], errors_but_for: _Errors, symptoms: Sequence[Symptom]
) -> list[Symptom]:
    """Return what people tell in the first or the last line of a short text, where it lost letters to the copy: no more than possible.

    Nothing where a program ended by an error of its own, which disproves all of it (``_unless_disproved``): each end is read up to 24 times.
    """
    short = {source: part for source, part in lines.items() if 0 < len(part) <= _SHORT}
    if not short or any(each.place for each in errors_but_for(symptoms)):
        return []
    for source, part in short.items():
        for at in sorted({0, len(part) - 1}):
            for words in completed_prose(part[at].text[:_SHORT_LINE]):
                whole = {source: (*part[:at], replace(part[at], text=words), *part[at + 1 :])}
                told = [*stated_causes.symptoms_of(_prose(whole)), *_told(whole, symptoms)]
                if told:
                    return [_at_most_possible(each, part[at]) for each in told]
    return []


def _at_most_possible(symptom: Symptom, line: LogLine) -> Symptom:
    candidates = tuple(replace(each, weight=POSSIBLE) for each in symptom.candidates)
    return replace(symptom, candidates=candidates, line=line if symptom.line.number == line.number else symptom.line)


def _without_frames(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield the lines but empty ones (of which only a prefix is left) and those of a traceback's frames: names of functions and code are nothing that somebody says."""
    is_code = False
    for line in lines:
        is_frame = line.text.lstrip().startswith('File "')
        if line.text and not is_frame and not (is_code and line.text.startswith("  ")):
            yield line
        is_code = is_frame


def _left_out(source: str, lines: Sequence[LogLine], what: str) -> Iterator[UnreadSource]:
    """Yield what a text quotes that describes a change, or how to find faults, so that who did mean it is not left with nothing."""
    quoted = [symptom for symptom in symptoms_of(source, lines) if symptom.candidates]
    if not quoted:
        return
    named = [*dict.fromkeys(symptom.candidates[0].cause for symptom in quoted)]
    causes = ", ".join([*named[:_QUOTED], *(["…"] if len(named) > _QUOTED else [])])
    yield UnreadSource(
        source=source,
        why=f"it {what}, so the errors that it quotes (line {quoted[0].line.number}: {causes}) are not attributed"
        " to this host: if they are its own, give the log alone",
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
        return UnreadSource(source=item.name, why=f"a pickle file that is not read: {error}")
    return found or UnreadSource(source=item.name, why="a pickle file that is not a dump of the flight recorder")
