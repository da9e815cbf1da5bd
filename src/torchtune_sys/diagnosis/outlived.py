"""Find the exceptions that a program caught: what it prints later shows that its training went on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from torchtune_sys.diagnosis.frames import frame_of
from torchtune_sys.diagnosis.symptoms import Symptom
from torchtune_sys.diagnosis.text.lines import LogLine, is_raised
from torchtune_sys.model.patterns import pattern

_HEAD = "Traceback (most recent call last):"
_STEP = pattern(
    r"(?i)(?<![a-z])(?P<what>epochs?|(?:global_?)?steps?|iter(?:ation)?s?|batch)[\"'\]\[#:=( ]{1,4}(?P<number>\d{1,9})(?![\d.%]|\s?(?:s|ms|it|GB|MB)\b)"
    r"|\|\s{0,4}(?P<done>\d{1,9})/\d{1,9} \["
)
"""What training loops count: words with a number, and tqdm's bar."""
_AGAIN = pattern(
    r"(?i)\bre-?start|\bre-?launch|\bresum(?:e|ing|ed)\b|Worker group|^\S{0,80}[$#>] \S|\bloaded? (?:from )?(?:the )?checkpoint|^(?:Fatal Python error|Segmentation fault)"
)
"""Another process, or the same job once more: what follows says nothing about this one."""
_ENDED = pattern(
    r"ChildFailedError|exitcode\b|[Ww]atchdog|[Tt]imed ?out|\bSIG(?:TERM|KILL|ABRT|SEGV|BUS)\b|[Kk]illed\b|^Aborted|core dumped|non-zero exit|[Ee]xit(?:ed with|ed|) (?:exit )?(?:code|status):? [1-9]"
)
_STEPS, _GAP, _LONGEST = 2, 12, 400
_PASSING = frozenset(
    (
        "index-unreachable",
        "tracker-unreachable",
        "hostname-unresolvable",
        "port-refused",
        "port-dropped",
        "package-manager-locked",
    )
)
"""What an attempt of several meets: where a later one succeeded, nothing is left to mend."""


def lines_of(lines: Sequence[LogLine]) -> frozenset[int]:
    """Return the numbers of the lines of the tracebacks, and of the exceptions they end with, after which the same rank went on with its steps.

    >>> text = ['Traceback (most recent call last):', '  File "/a.py", line 3, in load', 'OSError: no', "step 1 loss 2", "step 2 loss 1"]
    >>> logged = [LogLine(number=at, text=each, printed=each) for at, each in enumerate(text, 1)]
    >>> sorted(lines_of(logged)), sorted(lines_of(logged[:4]))
    ([1, 2, 3], [])
    """
    found: set[int] = set()
    for of_rank in _by_rank(lines):
        for start, end in _tracebacks(of_rank):
            if not _went_on(of_rank, start, end):
                return frozenset()  # of processes that print without a rank the others may go on for some steps
            found.update(line.number for line in of_rank[start : end + 1])
    ended = found and any(line.number > max(found) and _ENDED.search(line.text[:_LONGEST]) for line in lines)
    return frozenset() if ended else frozenset(found)


def without(
    symptoms: Sequence[Symptom], lines: Mapping[str, Sequence[LogLine]]
) -> tuple[list[Symptom], dict[str, Sequence[LogLine]]]:
    """Return the symptoms but those of attempts that failed in a traceback that was caught, and the lines but those of such tracebacks."""
    caught = {source: lines_of(part) for source, part in lines.items()}
    gone = _events(symptoms, lines) | _tried_again(symptoms, lines) | _probed(symptoms, lines)
    tried = _attempts(symptoms, lines) | gone
    kept = [
        each
        for each in symptoms
        if (each.source, each.line.number) not in tried
        and (each.line.number not in caught.get(each.source, ()) or not _is_passing(each))
    ]
    over = {source: numbers.union(number for name, number in gone if name == source) for source, numbers in caught.items()}
    return kept, {
        source: [line for line in part if line.number not in over[source]] if over[source] else part
        for source, part in lines.items()
    }


def _is_passing(symptom: Symptom) -> bool:
    return any(one.cause in _PASSING for one in symptom.candidates)


_TRIES_ON = pattern(
    r"(?i)\btrying to resume\b|\bre-?trying\b|\bwill re-?try\b|\bentering retry loop\b|\btrying again\b|\b(?:attempt|try|retry) \(?\d{1,3} ?(?:/|of) ?\d|\bsleeping \d|\bretry (?:in|after) \d|\bwaiting for (?:the |another |other |cache )(?:\w+ ){0,3}(?:lock|process|to finish)\b"
)
_SUCCEEDED = pattern(
    r"100% ?\|.{0,60}[\d.]+ ?[kKMGT]i?B?/s\b|\bresuming normal operation\b|\b[Dd]ownload(?:ed)? (?:complete|finished|successfully)|\bSuccessfully installed\b|\bDownloaded newer image\b|\bImage is up to date\b|\bnetwork connection restored\b|\bTransaction finished\b|^\(\d{1,4}/\d{1,4}\) Installing: \S.{0,160}\[done\]|^Setting up \S|^Complete!$|\b(?:attempt|try|retry) \d{1,3}(?:/\d{1,3})?:? (?:succeeded|ok|successful)\b"
)
"""What was fetched is there: a bar that counts bytes, not the steps of a training loop."""


_FAILED_EVENT = pattern(
    r"\bWarning\s{1,40}(?:(?P<scheduling>FailedScheduling)|FailedMount|FailedAttachVolume|FailedCreatePodSandBox|(?:Failed|BackOff|ErrImagePull)\b(?=.{1,300}(?i:image)))"
)
_LATER_EVENT = pattern(r"\bNormal\s{1,40}(?:(?P<scheduled>Scheduled)|Started)\b")
_OF_POD = pattern(r"\bpod/(\S{1,200})")
"""Kubernetes pkg/kubelet/events/event.go, pkg/scheduler/schedule_one.go: a pod that was started has outlived what kept it waiting."""


def _events(symptoms: Sequence[Symptom], lines: Mapping[str, Sequence[LogLine]]) -> set[tuple[str, int]]:
    """Return where an event tells what kept a pod waiting that a later event says to run: each by its source and number."""
    found = set()
    for each in symptoms:
        failed = _FAILED_EVENT.search(each.line.text[:_LONGEST])
        if failed is not None and any(
            line.number > each.line.number and _ended_wait(each.line.text, failed, line.text[:_LONGEST])
            for line in lines[each.source]
        ):
            found.add((each.source, each.line.number))
    return found


def _ended_wait(event: str, failed: re.Match[str], later: str) -> bool:
    good = _LATER_EVENT.search(later)
    if good is None or (good["scheduled"] and not failed["scheduling"]):
        return False
    pods = [found[1] for found in map(_OF_POD.search, (event, later)) if found is not None]
    return len(set(pods)) < 2


def _tried_again(symptoms: Sequence[Symptom], lines: Mapping[str, Sequence[LogLine]]) -> set[tuple[str, int]]:
    """Return where the program tried once more soon behind a line, and came through before anything ended it: each by its source and number."""
    found = set()
    for source, part in lines.items():
        passing = {each.line.number: each for each in symptoms if each.source == source and _is_passing(each)}
        if not passing:
            continue
        texts = [line.text[:_LONGEST] for line in part]
        tries = {at for at, line in enumerate(part) if line.number in passing or _TRIES_ON.search(texts[at])}
        through = max((at for at, text in enumerate(texts) if at not in tries and _SUCCEEDED.search(text)), default=-1)
        trains = [at for at, text in enumerate(texts) if _TRAINS.search(text) and not _FETCHED.match(text)]
        ended = max(
            (at for at, text in enumerate(texts) if text.startswith(_HEAD) or (at not in tries and _ENDED.search(text))),
            default=-1,
        )
        for start in (at for at, line in enumerate(part) if line.number in passing):
            again = next((at for at in range(start, min(start + _SOON, len(texts))) if _TRIES_ON.search(texts[at])), None)
            went_on = trains[-_STEPS] if len(trains) >= _STEPS and not _is_of_tracker(passing[part[start].number]) else -1
            if again is not None and ended <= again <= max(through, went_on):
                found.add((source, part[start].number))
    return found


_SIZE_FOUND = pattern(
    r"(?i)\b(?:us(?:e|es|ing)|found|largest|biggest|best|optimal|final|finished)\b.{0,40}\bbatch[ _-]?size\b.{0,60}\d|\bbatch[ _-]?size\b.{0,20}\b(?:fits|works|is ok)\b"
)
_SOUGHT = pattern(
    r"(?i)\b(?:search|find|prob|try|scal|fail|tun)\w*\b.{0,40}\bbatch[ _-]?size|\bbatch[ _-]?size\b.{0,30}\b(?:search|finder|scal|failed|trying)"
)


def _probed(symptoms: Sequence[Symptom], lines: Mapping[str, Sequence[LogLine]]) -> set[tuple[str, int]]:
    """Return where memory did not suffice for a batch size that was only tried, and the program found one that fits, and nothing ended it later."""
    found: set[tuple[str, int]] = set()
    short = [each for each in symptoms if any(one.cause.startswith("gpu-memory-") for one in each.candidates)]
    for source in {each.source for each in short}:
        texts = [(line.number, line.text[:_LONGEST]) for line in lines[source]]
        fits = max((number for number, text in texts if _SIZE_FOUND.search(text)), default=-1)
        ended = any(number > fits and (text.startswith(_HEAD) or _ENDED.search(text)) for number, text in texts)
        tried = {each.line.number for each in short if each.source == source}
        if fits > max(tried) and not ended and any(_SOUGHT.search(text) for _, text in texts):
            found |= {(source, number) for number in tried}
    return found


def _is_of_tracker(symptom: Symptom) -> bool:
    """Whether training does not wait for it: that steps follow tells nothing of it."""
    return any(one.cause == "tracker-unreachable" for one in symptom.candidates)


_SOON = 4


_ATTEMPT = pattern(
    r"\[c10d\] (?:The client socket has timed out after|TCP client failed to connect/validate to)|The client socket has failed to connect to (?!any network address)\S{1,200} ?\S{0,200}\(errno: \d"
)
"""torch/csrc/distributed/c10d/socket.cpp, TCPStore.cpp: one attempt of several; rank 0 may begin later."""
_FETCHED = pattern(r"(?i)\W{0,8}(?:down)?load|\W{0,8}(?:fetch|extract|capturing|compiling|building|resolving)")
"""A bar that counts weights, files or graphs, which a program loads before it does anything else."""
_TRAINS = pattern(r"(?i)Init COMPLETE|\bloss\b['\"]?\s?[:=]?\s?\d|\bepoch\b\W{0,3}\d|\d(?:it/s|s/it)\b")
_GAVE_UP = pattern(r"Dist(?:Network|Store)Error: ")


_BEGINS = pattern(
    r"^(?:\([\w.-]{1,40}\) )?(?:\[[^\]\n]{1,80}\][$#]|\S{0,80}[\w)\]~:/][$#>]|\$) \S|ChildFailedError|exitcode\b|[Nn]on-zero exit|core dumped|^Terminated\b|^Killed\b"
    r"|(?i:\b(?:second|next|another|new) (?:run|try|attempt|launch)\b|\bafter (?:setting|changing|exporting|adding|opening|switching)\b)"
)
"""The job ended, or somebody started it once more, with something changed: what trains behind it says nothing of the attempts before."""


def _attempts(symptoms: Sequence[Symptom], lines: Mapping[str, Sequence[LogLine]]) -> set[tuple[str, int]]:
    """Return where an attempt to reach torch's store failed, and the same run trains behind it: each by its source and number."""
    found: set[tuple[str, int]] = set()
    for source in {each.source for each in symptoms if _ATTEMPT.search(each.line.text[:_LONGEST])}:
        tries = {each.line.number for each in symptoms if each.source == source and _ATTEMPT.search(each.line.text[:_LONGEST])}
        waiting: set[int] = set()
        passed: set[int] = set()
        for line in lines[source]:
            words = line.text[:_LONGEST]
            if line.number in tries:
                waiting.add(line.number)
            elif _GAVE_UP.search(words):
                waiting, passed = set(), set()
            elif _BEGINS.search(words):
                found.update((source, number) for number in passed)
                waiting, passed = set(), set()
            elif waiting and _TRAINS.search(words) and not _FETCHED.match(line.text):
                passed |= waiting
                waiting = set()
        found.update((source, number) for number in passed)
    return found


def _by_rank(lines: Sequence[LogLine]) -> Iterator[list[LogLine]]:
    ranks: dict[int | None, list[LogLine]] = {}
    for line in lines:
        ranks.setdefault(line.rank, []).append(line)
    yield from (of_rank for of_rank in ranks.values() if any(line.text.startswith(_HEAD) for line in of_rank))


def _tracebacks(lines: Sequence[LogLine]) -> Iterator[tuple[int, int]]:
    """Yield where each begins, and where the exception stands."""
    start, has_frame = -1, False
    for at, line in enumerate(lines):
        if line.text.startswith(_HEAD):
            start, has_frame = at, False
        elif start >= 0 and frame_of(line) is not None:
            has_frame = True
        elif start >= 0 and has_frame and is_raised(line, lines[at - 1]):
            yield start, at
            start = -1


def _went_on(lines: Sequence[LogLine], start: int, end: int) -> bool:
    """Whether steps are counted soon after the exception, further than before it, and nothing says that the program ended between."""
    last = max((number for line in lines[:start] for number in _numbers(line)), default=-1)
    seen: list[int] = []
    for at, line in enumerate(lines[end + 1 :]):
        if _AGAIN.search(line.text[:_LONGEST]) or (not seen and at > _GAP):
            return False
        seen += [number for number in _numbers(line) if number >= max([last, *seen])]
        if len(set(seen)) >= _STEPS:
            return True
    return False


def _numbers(line: LogLine) -> Iterator[int]:
    found = _STEP.search(line.text[:_LONGEST])
    if found is not None and not _FETCHED.match(line.text):
        yield int(found["number"] or found["done"])
