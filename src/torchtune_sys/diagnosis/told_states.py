"""Find what people tell of a thing of their host without saying that it is the cause: the memory is full, the data lies on a hard disk, the machine restarts.

``told_states.csv`` is a grammar of things and of their states. What it finds is possible, and counts only where nothing else names a cause: so a guess counts, too, unlike in
``stated_causes``. What is denied, advised, asked for, or told of a condition is not taken.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from torchtune_sys.diagnosis import stated_forms as forms
from torchtune_sys.diagnosis import taken_back
from torchtune_sys.diagnosis.symptoms import POSSIBLE, Candidate, Symptom
from torchtune_sys.diagnosis.text.lines import LogLine
from torchtune_sys.knowledge import tables
from torchtune_sys.knowledge.pattern_words import phrase
from torchtune_sys.knowledge.stated_words import filled
from torchtune_sys.model.diagnosis import WORDS
from torchtune_sys.model.patterns import Phrase, folded, pattern

_LONGEST, _CLAUSE, _SHORT, _MOST = 1500, 600, 600, 400
_NOT = r"(?!(?:not?|never|without|nor|if|unless|whether|doesn't|don't|isn't|didn't|wasn't)\b)"
_SIGN, _BETWEEN = r"[\w/%.'+-]", r"[^\w/%.'+;!?\n-]{1,3}"
_EDGE = r"[^\w.;!?\n]{1,3}"


def _gap(words: int) -> str:
    """Return what fits up to so many words and what parts them: each but the last ends where its signs do, so that no run of signs is divided in every way."""
    return rf"{_EDGE}(?:{_NOT}{_SIGN}+(?!{_SIGN}){_BETWEEN}){{0,{words - 1}}}?(?:{_NOT}{_SIGN}+{_EDGE})?"


_BEHIND, _BEFORE = _gap(8), _gap(3)


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``data/told_states.csv``."""

    causes: tuple[str, ...]
    named: tuple[Phrase, ...]
    """The thing and its state: a text that tells of it holds a word of each, and few texts do."""
    words: re.Pattern[str]
    also: re.Pattern[str] | None
    unless: re.Pattern[str] | None


@functools.cache
def _rows() -> tuple[_Told, ...]:
    return tuple(map(_row, _table()))


def _table() -> Iterator[Mapping[str, str]]:
    return ({key: filled(words) for key, words in row.items()} for row in tables.rows("told_states"))


def _row(row: Mapping[str, str]) -> _Told:
    thing, state = _named(row)
    return _Told(
        causes=tuple(row["cause"].split("|")),
        named=(phrase(thing), phrase(state)),
        words=pattern(rf"(?i){thing}{_BEHIND}{state}|{state}{_BEFORE}{thing}"),
        also=pattern(f"(?is){row['also']}") if row["also"] else None,
        unless=pattern(f"(?is){row['unless']}") if row["unless"] else None,
    )


def _named(row: Mapping[str, str]) -> tuple[str, str]:
    """Return the patterns of the thing and of its state."""
    return rf"(?<![\w-])(?:{row['subject']})(?![\w-])", rf"(?<![\w-])(?:{row['state']})(?![\w-])"


def phrases() -> Iterator[str]:
    """Yield the patterns of what people name."""
    for row in _table():
        yield from _named(row)


def symptoms_of(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    """Yield the first state that each source tells.

    >>> told = "I train on my own images, but the swap is full after an hour."
    >>> [each.candidates[0].cause for each in symptoms_of({"x": [LogLine(number=1, text=told, printed=told)]})]
    ['host-memory-oom']
    """
    for source, whole in lines.items():
        part = taken_back.without(whole)
        spoken = [line for line in part if _is_spoken(line.text[:_LONGEST])]
        if spoken and _ASKED.match(spoken[0].text[:_LONGEST]) and not _fails(line for line in part if line is not spoken[0]):
            del spoken[0]
        text = "\n".join(line.text[:_LONGEST] for line in part[:_MOST])
        if (
            spoken
            and (sum(len(line.text) for line in spoken) < _SHORT or forms.FIRST_PERSON.search(text))
            and not forms.WISHED.search(text)
        ):
            yield from _first(source, spoken[:_MOST], text)


def _is_spoken(words: str) -> bool:
    return forms.PROSE.search(words) is not None and not any(
        printed.search(words) for printed in (forms.CODE, forms.PRINTED, forms.SOURCE, forms.STATEMENT)
    )


def _fails(lines: Iterable[LogLine]) -> bool:
    return any(forms.FAILING.search(line.text[:_LONGEST]) for line in lines)


_ASKED = re.compile(r"# (?!(?i:why|how come)\b).{1,200}[?？]\s*$")
"""A heading that asks: whether something is so is told only by a text that tells of a failure as well."""


def _first(source: str, spoken: Sequence[LogLine], text: str) -> Iterator[Symptom]:
    told = folded("\n".join(line.text[:_LONGEST] for line in spoken))
    for row in _rows():
        if not all(each.may_be_in(told) for each in row.named):
            continue
        if (row.also is not None and not row.also.search(text)) or (row.unless is not None and row.unless.search(text)):
            continue
        line = next((line for line in spoken if _tells(row, line.text[:_LONGEST])), None)
        if line is not None:
            candidates = tuple(Candidate(cause=cause, weight=POSSIBLE) for cause in row.causes)
            yield Symptom(source=source, line=line, candidates=candidates, program="reporter", words=WORDS, merely_told=True)
            return


def _tells(row: _Told, words: str) -> bool:
    return any(
        not (_is_general(clause[: place.start()]) or _WANTS.match(clause))
        for clause in forms.CLAUSES.split(words)
        if clause and not _OF_OTHERS.search(clause[:_CLAUSE])
        for place in row.words.finditer(clause[:_CLAUSE])
    )


def _is_general(before: str) -> bool:
    """Return whether the words before a thing make it one of a condition or an advice; what stands in parentheses belongs to the words before them."""
    reasons = _REASON.findall(before)
    told, reason, after = before.rpartition(reasons[-1]) if reasons else ("", "", before)
    if reason and _DENIED.search(told):
        return "," not in after
    before = after
    outside, opened, inside = before.rpartition("(")
    return _GENERAL.search(before[-_NEAR:]) is not None or (
        bool(opened) and ")" not in inside and _GENERAL.search(outside.rstrip()[-_NEAR:]) is not None
    )


_NEAR = 70
_REASON = re.compile(r"(?i)\b(?:because of|due to|caused by)\b")
"""What was not, or should be, stands before it; what follows is so."""
_DENIED = re.compile(
    r"(?i)(?:\b(?:not|never|nor|hardly|whether|if|doubt\w*)|n't)(?: (?:be|been|being|it|it's|is|was|that|this|simply|just|really|necessarily|at all))*\s*$"
)
"""Before the word of reason: what follows is no reason."""
_GENERAL = re.compile(
    r"(?i)(?:\b(?:if|unless|whether|in case|whenever|avoid\w*|would|should|must|ensure|make sure|check|support for|for example|e\.g|such as"
    r"|users?|heard|(?:people|they|docs?|readme|tutorial) says?|plan(?:s|ning)?|feature|proposal|option|handl\w+|not|never|no|without|don't|doesn't|isn't|didn't|wasn't|aren't|nor|instead of|(?:want|need|have|has|how|try|trying|like|able|order|way) to)\b[^,;:()]{0,40})$"
)
_WANTS = re.compile(
    r"(?i)^\W*(?:(?:feat|fix|docs?|chore|build|refactor|test)\b[(:]|(?:add|allow|support|handle|detect|document|improve|implement|introduce|make|ensure|verify|please|consider|note|remove|update|use|do|does|can|could|would|should|is there|are there|will)\b|(?:another|one|an|the other|a second|a possible) (?:\w+ )?(?:option|alternative|idea|possibility|approach)\b)"
)
"""What is asked for, proposed, or changed in a program."""
_OF_OTHERS = re.compile(
    r"(?i)\b(?:(?:the|my|our) (?:previous|former) (?:machine|host|node|cluster|laptop|server|computer|pc)|(?:some(?:one|body)(?: else)?|a (?:colleague|friend|user))(?: \w+){0,4} (?:wrote|writes|said|says|told|tells|reported|reports))\b|\b(?:describes?|defines?|documents|explains) (?:\S+ ){1,6}as\b"
)
"""What is told of another's machine, or of one that is no more, or what a word means."""
