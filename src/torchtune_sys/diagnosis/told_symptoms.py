"""Find what people complain of where no line of a program says what failed: the run hangs, is slow, ends without a message, torch sees no GPU.

``told_symptoms.csv`` says what a complaint points to beside what else is told in the same text, in any order and at any distance, unlike ``told_states``, which reads a thing and its
state in one clause. Words alone prove nothing: a cause is no more than possible, and comes with the command that decides. A complaint that points to nothing says what to look at.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from torchtune_sys.diagnosis import stated_forms as forms
from torchtune_sys.diagnosis import taken_back
from torchtune_sys.diagnosis.symptoms import POSSIBLE, Candidate, Symptom, is_no_output
from torchtune_sys.diagnosis.text.lines import LogLine, joined
from torchtune_sys.host.secrets.filter import scrubbed
from torchtune_sys.knowledge import tables
from torchtune_sys.knowledge.stated_words import filled
from torchtune_sys.model.diagnosis import WORDS, Unexplained
from torchtune_sys.model.patterns import pattern

_LONGEST, _SHORT, _MOST, _TEXT = 1500, 600, 400, 300


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``data/told_symptoms.csv``."""

    causes: tuple[str, ...]
    complaint: re.Pattern[str]
    also: tuple[re.Pattern[str], ...]
    unless: re.Pattern[str] | None
    ask: str

    def fits(self, text: str) -> bool:
        """Return whether the text tells the rest of what the row asks for."""
        return all(each.search(text) for each in self.also) and not (self.unless is not None and self.unless.search(text))


@functools.cache
def rows() -> tuple[_Told, ...]:
    return tuple(
        _Told(
            causes=tuple(filter(None, row["cause"].split("|"))),
            complaint=pattern(f"(?i){filled(row['complaint'])}"),
            also=tuple(pattern(f"(?is){filled(each)}") for each in row["also"].split(" && ") if each),
            unless=pattern(f"(?is){filled(row['unless'])}") if row["unless"] else None,
            ask=row["ask"],
        )
        for row in tables.rows("told_symptoms")
    )


def symptoms_of(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    """Yield the first complaint of each source that points to causes.

    >>> told = "My training hangs in init_process_group with two nodes."
    >>> [each.candidates[0].cause for each in symptoms_of({"x": [LogLine(number=1, text=told, printed=told)]})]
    ['firewall-blocks-nccl']
    """
    for source, part in lines.items():
        for line, row in _first(part, [row for row in rows() if row.causes]):
            asks = (row.ask, *([""] * len(row.causes)))
            candidates = tuple(
                Candidate(cause=cause, weight=POSSIBLE, confirm=ask) for cause, ask in zip(row.causes, asks, strict=False)
            )
            yield Symptom(source=source, line=line, candidates=candidates, program="reporter", words=WORDS, merely_told=True)


def complaints_of(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Unexplained]:
    """Yield the first complaint of each source that points to no cause, with what to look at."""
    for source, part in lines.items():
        for line, row in _first(part, [row for row in rows() if not row.causes]):
            text = scrubbed(line.text)[:_TEXT].strip()
            yield Unexplained(source=source, line=line.number, text=text, program="reporter", ask=row.ask)


def _first(part: Sequence[LogLine], given: Sequence[_Told]) -> Iterator[tuple[LogLine, _Told]]:
    """Yield the first row that the text fits, with the line that complains."""
    part = taken_back.without(part)[:_MOST]
    text = "\n".join(line.text[:_LONGEST] for line in part)
    if forms.WISHED.search(text) or not (forms.FIRST_PERSON.search(text) or _said(part) < _SHORT):
        return
    whole = [msgspec.structs.replace(pieces[0], text=words) for pieces, words in joined(part)]
    part, text = [*part, *whole], "\n".join((text, *(line.text[:_LONGEST] for line in whole)))
    fitting = [row for row in given if row.complaint.search(text) and row.fits(text)]
    spoken = (line for line in part if _is_spoken(line.text[:_LONGEST])) if fitting else ()
    clauses = [(line, clause) for line in spoken for clause in _clauses(line.text[:_LONGEST])]
    for row in fitting:
        for line, clause in clauses:
            if _complains(row, clause):
                yield line, row
                return


def _said(part: Sequence[LogLine]) -> int:
    """Return how much somebody says: a short text without "I" may hold long output."""
    return sum(len(line.text) for line in part if _is_spoken(line.text[:_LONGEST]))


def _is_spoken(words: str) -> bool:
    """Return whether somebody says it; names of code in a sentence do not make it code."""
    plain = _NAME.sub("it", words)
    return (
        forms.PROSE.search(plain) is not None
        and not any(printed.search(plain) for printed in (forms.CODE, forms.PRINTED, forms.SOURCE))
        and not forms.STATEMENT.match(plain)
        and not is_no_output(words)
    )


_NAME = pattern(
    r"`[^`\n]{1,80}`|(?<![\w-])[A-Za-z][\w-]{1,40}==[\w.+]{1,20}|(?<!\S)--[a-z][\w-]{1,40}(?:=[\w.-]{1,40})?|(?<![\w.])(?:[A-Za-z_]\w{0,40}\.){0,4}[A-Za-z_]\w{0,40}\(\)"
)
"""What Markdown marks as code, a version as pip takes it, an option, and a call without arguments."""


def _clauses(words: str) -> Iterator[str]:
    clauses = [*_SENTENCES.split(words), ""]
    return (
        clause
        for clause, then in itertools.pairwise(clauses)
        if clause and not _ASKS.search(clause) and not _MEANT.search(f"{clause} {then}")
    )


_SENTENCES = pattern(r"(?<=[.!?;。？！])\s+")
_ASKS = pattern(
    r"(?i)^(?!.{0,40}\b(?:why|how come)\b)(?!.{0,12}(?:what (?:am i|are we|do(?:es)? (?:i|we|this)|(?:is|are|could|can|might) (?:be |the |this |it )?(?:wrong|going|caus\w+|reasons?|problem|issue|happening|do))|how (?:do|can|could) (?:i|we) (?:fix|solve|debug|find|stop)|any idea|anyone)\b).{0,400}[?？]\W*$"
    r"|^\W*(?:if (?!i\b|we\b)|whether|in case|unless|(?:please )?(?:add|allow|support|make|check|ensure|note|avoid|consider|imagine|suppose|features?|wish|idea|rfc|proposal|docs|in (?:the|our) (?:\w+ )?(?:docs?|documentation|faq|wiki|guide|readme|blog))\b)|\b(?:fixed|resolved|solved)\b"
)
"""It asks, supposes, advises or tells of what was mended."""


def _complains(row: _Told, clause: str) -> bool:
    return any(
        not _SUPPOSED.search(clause[max(found.start() - _BEFORE, 0) : found.start()]) and not _LEARNT.match(clause, found.end())
        for found in row.complaint.finditer(clause)
    )


_BEFORE = 60
_SUPPOSED = pattern(
    r"(?i)\b(?:will|would|could|can|may|might|should|must|avoid\w*|prevent\w*|never|no longer|not|nothing|without|instead of|in case|so that|(?<!even )if (?!i\b|we\b)|whether|people|users?|docs?|documentation|tutorials?|papers?|lectures?|(?<!nccl )(?<!pip )(?<!conda )(?<!torch )(?<!python )(?<!slurm )(?<!kubectl )(?<!docker )(?<!smi )(?<!log )(?<!it )(?<!\d )says?|blogs?|posts?|articles?|explain\w*|replac\w+|handl\w+|ignor\w+|skip\w*|mask\w*|filter\w*|simulat\w+|inject\w*|(?:to|way to) detect|(?:moved|got) (?:away )?from)\b[^,;:()]{0,50}$|n't [^,;:()]{0,12}$"
    r"|\b(?:loss|accuracy|acc|score|metric|f1|map|reward|perplexity)(?: (?:is|was|gets?|got|stays?|just|always|seems|goes|still|remains|decreases?|falls?|drops?|converges?|improves?|\w{1,12}ly)){0,4} $"
)
"""Before a complaint: it did not happen, or it is the model's, not the run's."""
_LEARNT = pattern(
    r"(?i) (?:at|around|near) (?:about |around )?(?:\d{0,3}\.\d|\d{1,3}(?:\.\d{1,3})? ?%? (?:\w{1,12} )?(?:acc|f1|map|recall|precision))|(?: \w{1,12}){0,2} (?:local|plateau|minim)"
)
"""Behind it: what stands still is a measure of the model."""
_MEANT = pattern(
    r"(?i)\b(?:on purpose|by design|intentional(?:ly)?|deliberate(?:ly)?|(?<!works )(?<!work )(?<!worked )(?<!working )(?<!runs )as (?:planned|documented|intended|designed|expected)|which is (?:fine|ok(?:ay)?|normal|expected|what (?:i|we) want)|(?:now|again) (?:it|everything|training|the training)(?:'s| is| runs| works)? (?:\w{1,12} )?(?:fine|well|works?|good|stable))\b"
    r"|[.!;] (?:(?:that|this|it)(?:'s| is) (?:all )?(?:fine|ok(?:ay)?|expected|intended)(?= ?[.!,;]|$)|all (?:is )?good\b)|[;,] that(?:'s| is) fine\b"
)
"""In the same sentence or the next: it shall be so, or all is well."""
