"""Leave out what somebody told and then took back: it was a false alarm, or misread.

What follows these words is told anew, and what somebody else tells stands in lines that follow. Nothing is taken back where the same sentences say that the fault is still there,
or only correct how it was told.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from torchtune_sys.diagnosis.text.lines import LogLine
from torchtune_sys.model.patterns import pattern

_ALL = pattern(
    r"(?i)(?<!not a )(?<!no )(?<!n't a )\bfalse alarm\b(?! (?:rate|in|by|from))|\bsorry for the (?:noise|confusion)\b|(?:^|[.!?;:)\n] ?|\b(?:oh|ok|okay|so|but|and|ah),? |\bedit\W{1,3})\W{0,4}never ?mind\b(?! (?:the|that|about|if|how|what|which|my|our|this|these|those|it)\b)"
    r"|\b(?:my|our) (?:own )?(?:mistake\b|bad\b(?! \w))|\bhad (?:just |simply )?forgotten to activate\b"
)
"""All that was told before is not so."""
_NEAR = pattern(
    r"(?i)\b(?:I|we) (?:had |have |just |simply |also )*(?:mis-?read|mis-?understood|mistook|(?:was|were) (?:mistaken|wrong)\b(?! about)|(?:wrongly|mistakenly|falsely) (?:assumed|thought|believed|read|took))\b(?! nothing)"
)
"""What was told just before is not so."""
_WORDS = (
    "false alarm",
    "sorry for",
    "mind",
    "mistake",
    " bad",
    "forgotten",
    "misread",
    "misunder",
    "mis-",
    "mistook",
    "wrong",
    "falsely",
)
"""One of them is in each line that takes something back: few lines are tried."""
_LONGEST = 1500
_REACH = 4
"""Lines: a paragraph that somebody broke at a width."""
_STANDS = pattern(
    r"(?i)\b(?:still|persist\w*|remain(?:s|ed|ing)?|keeps?|(?:is|are|comes?|came) back|same (?:error|problem|issue)|not (?:solved|fixed|resolved|working)|typos?|title|format\w*|(?:I|we) (?:meant|mean|forgot to (?:add|mention|say|attach|include|post|paste|write)))\b"
)
_AFTER = 200


_BY_ONESELF = pattern(
    r"(?i)\b(?:that|it|this) was (?:just |only |actually )?me\b|\b(?:I|we) (?:then |just |had to |have |had |simply |manually |always |also |deliberately |intentionally )*(?:s?cancel\w*|kill(?:ed)?(?: -9)?|terminated?|abort\w*|interrupt\w*|stop(?:ped)?)(?:\W{1,3}(?:it|this|them|that|(?:a|one|the|my|our|this) (?:\w+ )?(?:jobs?|runs?|process(?:es)?|training|pods?|ranks?|workers?|step)|rank))\b|\b(?:I|we) (?:then |just |had to )?(?:scancel\w*|(?:pressed|hit) (?:\^C|ctrl\W{0,3}c))"
    r"|\b(?:cancell?ed|killed|stopped|terminated) by (?:me|myself|us|hand)\b|\bkill(?:s|ed)? (?:\S+ ){0,8}on purpose\b"
)
OF_ONESELF = frozenset(("job-preempted", "rank-killed", "rank-stopped"))
"""What somebody does who ends a job or a process by hand."""


def is_by_oneself(lines: Sequence[LogLine]) -> bool:
    """Return whether somebody says that he ended the job, or a process of it.

    >>> is_by_oneself([LogLine(number=1, text=text, printed=text) for text in ("The job ended. That was me (scancel).",)])
    True
    """
    return any(_BY_ONESELF.search(line.text[:_LONGEST]) for line in lines)


def without(lines: Sequence[LogLine]) -> Sequence[LogLine]:
    """Return the lines that nobody took back, and of the line that takes back what follows there.

    >>> texts = ("The disk is full.", "False alarm, it was another host. The swap is full.")
    >>> [line.text for line in without([LogLine(number=at, text=text, printed=text) for at, text in enumerate(texts)])]
    [', it was another host. The swap is full.']
    """
    kept = dict(enumerate(lines))
    first = 0
    for at, line in enumerate(lines):
        words = line.text[:_LONGEST]
        if not any(word in words.lower() for word in _WORDS):
            continue
        for phrase, reach in ((_ALL, at), (_NEAR, _REACH)):
            places = [found.span() for found in phrase.finditer(words)]
            if places and not _STANDS.search(_following(lines, at, places[-1][1])):
                for before in range(max(at - reach, first), at):
                    kept.pop(before, None)
                first = at if phrase is _ALL else first
                kept[at] = msgspec.structs.replace(line, text=_told_instead(line.text, places))
    return tuple(kept.values())


def _told_instead(text: str, places: Sequence[tuple[int, int]]) -> str:
    """Return what stands behind the words, or between the first and the last of them; what stands before them where it tells what it was instead."""
    if len(places) > 1:
        return text[places[0][1] : places[-1][0]] + text[places[-1][1] :]
    before = text[: places[0][0]]
    return text if _INSTEAD.search(before) is not None else text[places[0][1] :]


_INSTEAD = pattern(
    r"(?i)\b(?:I|we) (?:just |only |now |then |have |had )*(?:reali[sz]ed|found out|figured out|noticed|discovered)\b|\bturn(?:s|ed) out\b"
)


def _following(lines: Sequence[LogLine], at: int, end: int) -> str:
    return "\n".join((lines[at].text[end:], *(line.text[:_AFTER] for line in lines[at + 1 : at + 3])))[:_AFTER]
