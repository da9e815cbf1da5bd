"""Leave out events after which the same thing was well again, where nothing in the text tells that anything else failed.

A server that answered again, a link that came up, a pod that is ready: what failed and what is well later carry the same name. Where a job failed beside it, or somebody complains, the event
may be the reason, and stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from torchtune_sys.diagnosis import stated_forms as forms
from torchtune_sys.diagnosis.symptoms import Symptom
from torchtune_sys.diagnosis.text.failures import begins_with_failure
from torchtune_sys.diagnosis.text.lines import LogLine
from torchtune_sys.diagnosis.unexplained import unexplained_of
from torchtune_sys.model.patterns import pattern

_LONGEST = 400
_HEAD = pattern(
    r"^(?:\[[^\]\n]{4,40}\] ?|\w{3} {1,2}\d{1,2} [\d:]{8} \S{1,64} (?=\S)|[\d-]{10}[T ][\d:.,+Z-]{8,24} )(?:kernel: )?"
)
_TAG = pattern(r"(?:^|\s)(?P<name>[A-Za-z][\w.-]{2,40})\[\d{1,9}\]: ")
_NAME = pattern(
    r"(?<![\w.-])(?!mlx\d_core|nfs\d\b|ipv\d|x86_64)(?P<name>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d|[A-Za-z][\w.]{0,60}(?:-[\w.]{1,60}){1,8}(?<=[\w])|[A-Za-z]{2,40}\d[\w.]{0,40})"
)
"""Of a device, a server, a pod: a word with a number or hyphens."""
_WELL = pattern(
    r"\bOK\b|\b(?:[Rr]estored|[Rr]ecovered|[Rr]econnected|[Ss]uccessfully|Started)\b|\bback (?:online|up)\b|\b[Ll]ink(?: is| status definitely)? [Uu]p\b|\bactive \(running\)|\bis (?:now |again )?(?:ready|online|healthy|reachable|responding|up)\b"
    r"|\s(?P<ready>[1-9]\d{0,2})/(?P=ready) +(?:Running|Completed)\b|\s0/\d{1,3} +Completed\b"
)
_NAMES = 64
"""Things that failed: of more, each line would be looked through for too long."""
_OFTEN = 3
"""What comes and goes as often is no event that is over."""
_LASTING = frozenset(
    (
        "host-memory-oom",
        "rank-killed",
        "rank-hung",
        "node-lost",
        "gpu-fallen-off-bus",
        "gpu-ecc-uncorrectable",
        "memory-uncorrected-errors",
        "gpu-memory-too-small",
        "disk-full-or-quota",
        "storage-io-error",
        "narrow-link",
    )
)
"""What ended a job, or damaged something: that a thing of this name runs later mends nothing."""
_ILL = pattern(r"\b(?:not|no|un\w+|failed|without)\b(?=.{0,40}\b(?:OK|[Rr]estored|[Rr]ecovered|[Ss]tarted|[Ss]uccessfully)\b)")


def without(
    symptoms: Sequence[Symptom], lines: Mapping[str, Sequence[LogLine]]
) -> tuple[Sequence[Symptom], Mapping[str, Sequence[LogLine]]]:
    """Return the symptoms and the lines, without the events that were over before the text ended, if they are all that it tells of.

    >>> text = ["nfs: server filer1 not responding, still trying", "nfs: server filer1 OK"]
    >>> logged = [LogLine(number=at, text=each, printed=each) for at, each in enumerate(text)]
    >>> told = [Symptom(source="x", line=logged[0])]
    >>> without(told, {"x": logged})[0], without(told, {"x": logged[:1]})[0] == told
    ([], True)
    """
    over = {
        source: _over(part, {each.line.number for each in symptoms if each.source == source}) for source, part in lines.items()
    }
    if not any(over.values()):
        return symptoms, lines
    kept: dict[str, Sequence[LogLine]] = {
        source: [line for line in part if line.number not in over[source]] for source, part in lines.items()
    }
    rest = [
        each
        for each in symptoms
        if each.line.number not in over.get(each.source, ()) or any(one.cause in _LASTING for one in each.candidates)
    ]
    if len(rest) == len(symptoms) or any(each.candidates for each in rest) or unexplained_of(kept, rest):
        return symptoms, lines
    if any(_complains(line) for part in kept.values() for line in part):
        return symptoms, lines
    return rest, kept


def _over(lines: Sequence[LogLine], known: set[int]) -> set[int]:
    """Return the numbers of the lines that tell of a failure of what a later line calls well, and no later one ill."""
    names = {name for line in lines if line.number in known and (name := _name(line))}
    named = [line for line in lines if any(name in line.printed for name in names)] if len(names) <= _NAMES else []
    if not any(_is_well(line) for line in named):
        return set()
    state: dict[str, bool] = {}
    over: dict[int, str] = {}
    times: Counter[str] = Counter()
    fell: dict[str, bool] = {}
    for line in reversed(named):
        text, name, is_well = line.text[:_LONGEST], _name(line), _is_well(line)
        if line.number in known or begins_with_failure(text) or (not is_well and forms.FAILING.search(text)):
            if name and state.setdefault(name, False):
                over[line.number] = name
                times[name] += not fell.get(name, False)
                fell[name] = True
        elif is_well:
            state.setdefault(name, True)
            fell[name] = False
    return {number for number, name in over.items() if times[name] < _OFTEN}


def _is_well(line: LogLine) -> bool:
    return _WELL.search(line.text[:_LONGEST]) is not None and _ILL.search(line.text[:_LONGEST]) is None


def _name(line: LogLine) -> str:
    tag = _TAG.search(line.printed[:_LONGEST])
    text = _HEAD.sub("", line.text[:_LONGEST])
    found = tag or _NAME.search(text)
    return found["name"] if found is not None else ""


def _complains(line: LogLine) -> bool:
    text = _PLANNED.sub("", line.text[:_LONGEST])
    return (
        forms.FAILING.search(text) is not None
        and forms.PROSE.search(text) is not None
        and not _PRINTED.search(line.printed[:_LONGEST])
    )


_PLANNED = pattern(r"(?i)\bfail-?overs?\b|\bno (?:errors?|failures?)\b|\b0 (?:errors|failures|failed)\b")
_PRINTED = pattern(r"^\[|^\w{3} {1,2}\d{1,2} [\d:]{8} |^\S{1,80}[$#] |\S {2,}\S")
