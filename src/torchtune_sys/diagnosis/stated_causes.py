"""Find what somebody says was the cause, or what helped, in the words of people around a log.

``stated_causes.csv`` names the things that may be at fault, what is said of each where it is, and what is done with it where that helps. Four forms count. A *remedy*, in a clause
that says that it worked; a *blamed* thing, in a clause that puts the blame on it; a *claim*, words that by themselves say that something is broken; and a fault that is merely
*told* of a thing, in a report that somebody wrote in the first person: that is possible and no more. What is asked, denied, guessed, advised or told of a change of a program
is not taken.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from torchtune_sys.diagnosis import stated_forms as forms
from torchtune_sys.diagnosis import taken_back
from torchtune_sys.diagnosis.symptoms import LIKELY, POSSIBLE, Candidate, Symptom
from torchtune_sys.diagnosis.text.lines import LogLine, joined
from torchtune_sys.knowledge import tables
from torchtune_sys.knowledge.pattern_words import phrase
from torchtune_sys.knowledge.stated_words import filled
from torchtune_sys.model.patterns import Phrase, WordIndex, folded, pattern

_LONGEST, _GAP, _NEAR, _AFTER, _BEFORE, _SHORT, _CELLS, _MOST = 1500, 90, 34, 80, 50, 400, 3, 200
_SIGN, _SPACE = r"[\w/%.'-]", r"[^\w/%.'-]{1,3}"


def _gap(words: int) -> str:
    """Return what fits up to so many words and what parts them: each but the last ends where its signs do, so that a line of dashes is divided in one way only."""
    return rf"\W{{1,3}}(?:{_SIGN}+(?!{_SIGN}){_SPACE}){{0,{words - 1}}}?(?:{_SIGN}+\W{{1,3}})?"


class _Said(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a thing, or done with it: behind its name, or in front of it."""

    behind: re.Pattern[str]
    before: re.Pattern[str]


class _Stated(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``data/stated_causes.csv``."""

    causes: tuple[str, ...]
    subject: Phrase | None
    fault: _Said | None
    help: _Said | None
    setting: Phrase | None
    claim: Phrase | None
    alone: bool
    also: re.Pattern[str] | None
    unless: re.Pattern[str] | None
    fix: str
    source: str

    def named(self) -> list[Phrase]:
        """Return the thing, what is done with it, and a claim of it."""
        return [each for each in (self.subject, self.setting, self.claim) if each is not None]


_Numbered: TypeAlias = Sequence[tuple[int, _Stated]]
"""Rows that a line may fit, with their places in the table."""


class _Place(NamedTuple):
    """Where in a clause a thing stands with what is said of it, and what stands between these two."""

    start: int
    end: int
    gap: str = ""


class _Text(msgspec.Struct, kw_only=True):
    """A source as a whole: what a row asks of it is looked for once."""

    words: str
    failing: bool
    personal: bool
    fits: dict[int, bool]

    def holds(self, number: int, row: _Stated) -> bool:
        if number not in self.fits:
            self.fits[number] = (row.also is None or row.also.search(self.words) is not None) and (
                row.unless is None or not row.unless.search(self.words)
            )
        return self.fits[number]


def _whole(words: str) -> str:
    return rf"(?<!\w)(?:{words})(?!\w)"


def _said(words: str) -> _Said | None:
    if not words:
        return None
    return _Said(
        behind=pattern(rf"(?i)({_gap(7)}){_whole(words)}"),
        before=pattern(rf"(?i){_whole(words)}({_gap(2)})$"),
    )


def _looked_for(words: str) -> re.Pattern[str] | None:
    return pattern(f"(?is){words}") if words else None


@functools.cache
def _rows() -> tuple[_Stated, ...]:
    return tuple(
        _Stated(
            causes=tuple(row["cause"].split("|")),
            subject=phrase(_whole(row["subject"])) if row["subject"] else None,
            fault=_said(row["fault"]),
            help=_said(row["help"]),
            setting=phrase(row["setting"]) if row["setting"] else None,
            claim=phrase(row["claim"]) if row["claim"] else None,
            alone=bool(row["alone"]),
            also=_looked_for(row["also"]),
            unless=_looked_for(row["unless"]),
            fix=row["fix"],
            source=row["source"],
        )
        for row in _table()
    )


def _table() -> Iterator[tables.Row]:
    return ({key: filled(words) for key, words in row.items()} for row in tables.rows("stated_causes"))


def phrases() -> Iterator[str]:
    """Yield the patterns of what people name."""
    for row in _table():
        yield from filter(None, (row["subject"] and _whole(row["subject"]), row["setting"], row["claim"]))


@functools.cache
def _index() -> WordIndex:
    """Of one thing whose words are unknown, its row may be in each text: asking each row on each line took most of the time of a log of prose."""
    return WordIndex(
        () if any(not each.words for each in row.named()) else tuple(word for each in row.named() for word in each.words)
        for row in _rows()
    )


def _that_may_be_in(text: str) -> _Numbered:
    """Return the rows of which a text, ``folded``, holds a word, in their order."""
    return [(number, _rows()[number]) for number in _index().places(text)]


def _names_a_thing(words: str) -> bool:
    text = folded(words)
    looked_for = (each for _, row in _that_may_be_in(text) for each in row.named())
    return any(each.may_be_in(text) and each.search(words) is not None for each in looked_for)


def symptoms_of(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    """Yield what people say was the cause, or helped.

    >>> found = symptoms_of({"x": [LogLine(number=1, text=text, printed=text) for text in ("It hung. Setting NCCL_SOCKET_IFNAME=eth1 solved it.",)]})
    >>> [each.cause for symptom in found for each in symptom.candidates]
    ['nccl-wrong-interface']
    """
    for source, part in lines.items():
        whole = [msgspec.structs.replace(pieces[0], text=words) for pieces, words in joined(part)]
        spoken = list(_spoken(part, whole))
        words = "\n".join(line.text[:_LONGEST] for line in (*part, *whole)) if spoken else ""
        failing = forms.FAILING.search(words) is not None
        personal = failing and (len(words) < _SHORT or forms.FIRST_PERSON.search(words) is not None)
        text = _Text(words=words, failing=failing, personal=personal, fits={})
        looked_at = spoken if len(spoken) <= 2 * _MOST else [*spoken[:_MOST], *spoken[-_MOST:]]
        found = [(line, *each) for line, told in looked_at if (each := _stated(told, text)) is not None]
        if found:
            stands = set() if forms.WISHED.search(words) else set(part).intersection(taken_back.without(part))
            numbers = {line.number for line in stands}
            found = [each for each in found if each[3] or each[0].number in numbers]
        sure = any(is_sure for _, _, is_sure, _ in found)
        for line, row, is_sure, is_blamed in found:
            if is_sure or not sure:
                yield _symptom(source, line, row, is_sure, is_blamed)


def _spoken(part: Sequence[LogLine], whole: Iterable[LogLine]) -> Iterator[tuple[LogLine, str]]:
    """Yield the lines of prose that name a thing, also as they were before somebody broke them at a width, each with its words."""
    for at, line in enumerate(part):
        words = _words(part, at)
        if (_is_prose(line) or (words != line.text and forms.COMMAND.match(line.text))) and _names_a_thing(words):
            yield line, words
    for line in whole:
        if _is_prose(line) and _names_a_thing(words := line.text[:_LONGEST]):
            yield line, words


def _is_prose(line: LogLine) -> bool:
    words = line.text[:_LONGEST]
    return words.count("|") < _CELLS and forms.PROSE.search(words) is not None and not forms.PRINTED.search(words)


def _symptom(source: str, line: LogLine, row: _Stated, is_sure: bool, is_blamed: bool) -> Symptom:
    weight = LIKELY if is_blamed and len(row.causes) == 1 else POSSIBLE
    candidates = (Candidate(cause=cause, weight=weight, fix="" if at else row.fix) for at, cause in enumerate(row.causes))
    return Symptom(
        source=source,
        line=line,
        candidates=tuple(candidates),
        program="reporter",
        words=row.source,
        merely_told=not is_sure,
        is_blamed=is_blamed,
    )


def _words(part: Sequence[LogLine], at: int) -> str:
    """Return the line, with the one below it where it announces that."""
    words, below = part[at].text[:_LONGEST], [line.text[:_LONGEST] for line in part[at + 1 : at + 7]]
    if forms.SOLVED.search(words[-_GAP:]):
        command = next((text for text in below if forms.COMMAND.match(text)), "")
        words = f"{words.rstrip('.: ')} by {command}" if command else words
    if forms.ANNOUNCES.search(words[-_GAP:]):
        announced = next((number for number, text in enumerate(below[:3]) if re.search(r"\w{3}", text)), None)
        if announced is None:
            return words
        words, below = f"{words} {below[announced]}", below[announced + 1 :]
    elif not forms.COMMAND.match(words):
        return words
    outcome = next((text for text in below if re.search(r"\w{3}", text)), "")
    return f"{words}: {outcome}" if forms.SUCCEEDS.match(outcome) else words


def _stated(words: str, text: _Text) -> tuple[_Stated, bool, bool] | None:
    """Return the first row that a clause of the line fits, whether it is more than told, and whether it is blamed or was mended, not only claimed."""
    clauses = [clause for clause in forms.CLAUSES.split(words) if clause]
    whole = folded(" ".join((words, *clauses)))
    rows = _that_may_be_in(whole)
    claims = text.failing and any(row.claim is not None and row.claim.search(words) for _, row in rows)
    for at, clause in enumerate(clauses):
        following = clauses[at + 1] if at + 1 < len(clauses) and forms.ONCE_MORE.match(clauses[at + 1]) else ""
        for each in (clause, *([f"{clause} {following}"] if following else []), *_blamed(clause)):
            blamed = _found(each, text, rows)
            row = blamed or (_claimed(each, text, rows) if claims else None)
            if row is not None:
                return row, True, blamed is not None
    row = _claimed(words, text, rows) if claims and len(clauses) > 1 else None
    if row is not None:
        return row, True, False
    if text.personal and not forms.CODE.search(words) and not forms.SOURCE.search(words):
        for clause in clauses:
            row = None if forms.ADVISES.search(clause) else _told(clause, text, rows)
            if row is not None:
                return row, False, False
    return None


def _is_denied(clause: str, place: _Place, *, whole: bool = False) -> bool:
    """Return whether what stands around the words takes them back: a "not" in the same part of the sentence, a "maybe" anywhere.

    ``whole``: a remedy, which a "not" behind it takes back too, up to the colon that begins to tell of the fault, and one before it in the same part.
    """
    rest = _beyond(clause, place)
    near = _here(clause, place)
    if whole:
        near = f"{clause[: place.start].rpartition(', ')[2]} …{place.gap}… {clause[place.end :].partition(': ')[0]}"
    if whole and forms.UNTIL.search(clause[max(place.start - _GAP, 0) : place.start]):
        near = near.rpartition(" until ")[2]
    made_up = forms.MADE_UP_FOR.search(clause, place.end) if whole else None
    if made_up is not None and forms.SOLVED.search(made_up[1]):
        near = place.gap
    return bool(forms.NEGATED.search(near) or forms.HEDGED.search(rest))


def _here(clause: str, place: _Place) -> str:
    return f"{forms.PARTS.split(clause[: place.start])[-1]} …{place.gap}… {forms.PARTS.split(clause[place.end :], maxsplit=1)[0]}"


def _blamed(clause: str) -> Iterator[str]:
    """Yield what the clause puts the blame on."""
    blame = forms.BLAME.search(clause)
    if blame is not None and not forms.OPEN.search(clause[: blame.start()]):
        yield clause[blame.start() :]


def _found(clause: str, text: _Text, rows: _Numbered) -> _Stated | None:
    """Return the row of which the clause says that what helps did, or on whose thing it puts the blame."""
    helped = bool(
        forms.SOLVED.search(clause)
        or forms.ANSWERED.search(clause)
        or (text.failing and (forms.WORKS.search(clause) or " until " in clause))
    )
    blamed = text.failing and bool(
        forms.BLAMED.search(clause) or forms.IS_THE_CAUSE.search(clause) or forms.IT_WAS.search(clause)
    )
    for number, row in rows if helped or blamed else ():
        cures = _cures(row, clause, text.failing) if helped else ()
        if any(not _is_denied(clause, place, whole=True) for place in cures) and text.holds(number, row):
            return row
        blames = _blames(row, clause) if blamed else ()
        if any(not _is_denied(clause, place) for place in blames) and text.holds(number, row):
            return row
    return None


def _claimed(words: str, text: _Text, rows: _Numbered) -> _Stated | None:
    """Return the row whose fault the words claim, whatever is around them."""
    for number, row in rows:
        claims = row.claim.finditer(words) if row.claim is not None else ()
        if any(not _is_denied(words, _Place(*claim.span())) for claim in claims) and text.holds(number, row):
            return row
    return None


def _cures(row: _Stated, clause: str, failing: bool) -> Iterator[_Place]:
    """Yield what is done in the clause that helps against the row's cause, where it says that it did."""
    for each in row.setting.finditer(clause) if row.setting is not None else ():
        if _helped(clause, place := _Place(*each.span()), failing):
            yield place
    for thing in row.subject.finditer(clause) if row.subject is not None and row.help is not None else ():
        yield from (place for place in _together(row.help, clause, thing) if _helped(clause, place, failing))


def _blames(row: _Stated, clause: str) -> Iterator[_Place]:
    """Yield where the clause puts the blame on the row's thing."""
    for thing in row.subject.finditer(clause) if row.subject is not None else ():
        yield from (place for place in _together(row.fault, clause, thing) if _is_blamed(clause, place, _GAP))
        if row.alone and _is_blamed(clause, place := _Place(*thing.span()), _NEAR):
            yield place


def _together(said: _Said | None, clause: str, thing: re.Match[str]) -> Iterator[_Place]:
    """Yield where the thing stands together with what is said of it."""
    if said is None:
        return
    behind = said.behind.match(clause, thing.end(), thing.end() + _AFTER)
    if behind is not None:
        yield _Place(thing.start(), behind.end(), behind[1])
    start = max(thing.start() - _BEFORE, 0)
    before = said.before.search(clause[start : thing.start()])
    if before is not None:
        yield _Place(start + before.start(), thing.end(), before[1])


def _beyond(clause: str, place: _Place) -> str:
    """Return the clause without the words that were found: a "not" among them is the fault's own."""
    rest = forms.OWN_TRIAL.sub("", f"{clause[: place.start]} …{place.gap}… {clause[place.end :]}")
    return rest.rstrip("?？ ") if forms.NOTICED.search(clause[: place.start]) else rest


def _helped(clause: str, place: _Place, failing: bool) -> bool:
    before, after = clause[max(place.start - _GAP, 0) : place.start], clause[place.end : place.end + _GAP]
    if forms.WELL_UNTIL.search(before):
        return False
    if forms.SOLVED.search(before) or forms.SOLVED.search(after) or forms.ANSWER.search(before):
        return True
    if not failing:
        return False
    return bool(forms.UNTIL.search(before)) or bool(
        forms.BY.search(before) and (forms.WORKS.search(before) or forms.WORKS.search(after))
    )


def _is_blamed(clause: str, place: _Place, gap: int) -> bool:
    before, after = clause[max(place.start - gap, 0) : place.start], clause[place.end : place.end + _GAP]
    if forms.BLAMED.search(before) or forms.IS_THE_CAUSE.search(after):
        return True
    named = forms.NAMED.search(before) and forms.IS_ALL.match(after)
    return gap == _NEAR and bool(named or (forms.ISSUE.match(after) and forms.IT_WAS.search(before)))


def _told(clause: str, text: _Text, rows: _Numbered) -> _Stated | None:
    """Return the row whose fault the clause tells of its thing, as something that is so here."""
    for number, row in rows:
        if row.subject is None or row.fault is None:
            continue
        for thing in row.subject.finditer(clause):
            for place in _together(row.fault, clause, thing):
                if _is_told(clause, place) and text.holds(number, row):
                    return row
    return None


def _is_told(clause: str, place: _Place) -> bool:
    return not (forms.UNSURE.search(_here(clause, place)) or _is_denied(clause, place))
