"""Read a host once, judge it once."""

from __future__ import annotations

import errno
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from torchtune_sys.host import threads
from torchtune_sys.host.base import Host
from torchtune_sys.host.witnesses import Witnessed
from torchtune_sys.model.actions import Action, Advice
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import SEE, Evidence, Param, Params, Result, Rule, Severity, Verdict, asked
from torchtune_sys.model.snapshot import Snapshot, container_told, is_pasted
from torchtune_sys.model.values import Missing, NotApplicable, Unknown, Why

if TYPE_CHECKING:
    from msgspec import Struct

_Item = TypeVar("_Item", bound="Struct")
Overrides = Mapping[str, Mapping[str, Any]]
"""Rule id → parameter name → value."""


Progress = Callable[[set[str]], None]
_LEFT_OUT = Missing(Why.NOT_RECORDED, "the whole look", "not asked for")


class ProbeRun:
    """Run the probes of one host, a few at a time.

    Probes that wait for a child process start at construction, each in its own thread. Probes that only read start in :meth:`end`, because two
    threads that read or import contend for the interpreter lock at every system call. Each thread takes one family after the other; if none
    finishes for a moment (waiting for a child or a disk, or a hang in the kernel), another thread starts. A family whose probe does not finish
    in time is Missing(TIMEOUT); one whose probe raises is Missing(CRASHED). A thread that hangs in the kernel is abandoned as a daemon, so the
    process can still exit.
    """

    def __init__(
        self, host: Host, intent: Workload, timings: dict[str, float] | None = None, only: Iterable[str] | None = None
    ) -> None:
        """``only``: the families to look at; the others are Missing(NOT_RECORDED)."""
        from torchtune_sys.probes import PROBES, WAIT_FOR_CHILDREN

        self._host, self._intent, self._timings = Witnessed(host), intent, timings
        self._started = time.monotonic()
        self._found: dict[str, Any] = {}
        self._asked = tuple(family for family in PROBES if only is None or family in only)
        self._left_out = tuple(family for family in PROBES if family not in self._asked)
        waiting = [family for family in self._asked if family in WAIT_FOR_CHILDREN]
        self._todo = deque(waiting)
        self._reading = [family for family in self._asked if family not in waiting]
        self._ended = threading.Semaphore(0)
        for _ in waiting:
            self._one_more()

    def _one_more(self) -> None:
        try:
            threads.start(self._work)
        except RuntimeError:  # no room for a thread (ulimit -v, -u, pids.max): then here
            self._work()

    def _work(self) -> None:
        """Probe the remaining families, one after the other."""
        from torchtune_sys.probes import PROBES

        while True:
            try:
                family = self._todo.popleft()
            except IndexError:
                return
            self._probe(family, PROBES[family])
            self._ended.release()

    def _probe(self, family: str, probe: Callable[[Host, Workload], Any]) -> None:
        begin = time.perf_counter()
        facts = _probed(family, probe, self._host, self._intent)
        if self._timings is not None:
            self._timings[family] = time.perf_counter() - begin
        self._found[family] = facts

    def end(self, timeout_s: float, progress: Progress | None = None) -> Snapshot:
        """Wait for all probes, but no longer than ``timeout_s`` after the start. ``progress`` is called about ten times
        a second with the families that are still running."""
        deadline = self._started + timeout_s
        told_s = time.monotonic()
        self._todo.extend(self._reading)
        if self._reading:
            self._one_more()
        while len(self._found) < len(self._asked) and (left := deadline - time.monotonic()) > 0:
            if not self._ended.acquire(timeout=min(left, _STALL_S if self._todo else _TELL_S)) and self._todo:
                self._one_more()
            if progress and time.monotonic() > told_s + _TELL_S:
                told_s = time.monotonic()
                progress({family for family in self._asked if family not in self._found})
        late = Missing(Why.TIMEOUT, "the whole look", f"not read within {timeout_s:g} s", "a longer --timeout")
        facts: dict[str, Any] = {family: self._found.get(family, late) for family in self._asked}
        facts |= dict.fromkeys(self._left_out, _LEFT_OUT)
        return Snapshot(**facts, intent=self._intent, origin=self._host.origin)


def _probed(family: str, probe: Callable[[Host, Workload], Any], host: Host, intent: Workload) -> Any:
    """Return a family's facts. An exception affects only this family."""
    try:
        return probe(host, intent)
    except MemoryError:  # ulimit -v, of which each thread's heap takes 64 MiB (glibc): no room to tell where either
        return Missing(Why.FAILED, f"probe {family}", "no memory may be had", "a higher limit on address space (ulimit -v)")
    except OverflowError:
        return _too_large(f"probe {family}")
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):  # its module could not even be opened
            return Missing(Why.FAILED, f"probe {family}", "too many files are open", "a higher limit on open files (ulimit -n)")
        return Missing(Why.CRASHED, f"probe {family}", _where())


def _too_large(source: str) -> Missing:
    """Return the Missing for a number that no host has: hundreds of digits in a recording or text, which fit an int but not a float."""
    return Missing(Why.UNPARSED, source, "a number is too large to count with")


_STALL_S = 0.02
_TELL_S = 0.1


def snapshot(host: Host, intent: Workload, *, timeout_s: float, progress: Progress | None = None) -> Snapshot:
    """Probe ``host`` and wait for the result."""
    return ProbeRun(host, intent).end(timeout_s, progress)


def report(text: str, name: str, intent: Workload | None = None) -> Snapshot | None:
    """Return the host that pasted text tells of; None where nothing in it is known. What it shows of the host's own files the probes read, as on a host."""
    from torchtune_sys import evidence

    return evidence.read(text, name, intent, _of_files)


_OF_FILES = ("system", "cpu", "memory", "sysctl", "limits")
"""Families whose facts come from individual files."""


def _of_files(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts, by family, that can be read from part of a recording."""
    from torchtune_sys.host.recorded import RecordedHost
    from torchtune_sys.host.scrubbed import ScrubbedHost
    from torchtune_sys.probes import PROBES

    host = ScrubbedHost(RecordedHost(shown, "report"))
    found = {family: _probed(family, PROBES[family], host, Workload()) for family in _OF_FILES}
    return {family: facts for family, facts in found.items() if isinstance(facts, Missing) or _tells(facts)}


def _tells(facts: Any) -> bool:
    """Return whether any fact is known, including those in dictionaries with names of their own."""
    if isinstance(facts, dict):
        return any(map(_tells, facts.values()))
    if isinstance(facts, Missing) or facts in ("", ()):
        return False
    fields = getattr(facts, "__struct_fields__", None)
    return fields is None or any(_tells(getattr(facts, name)) for name in fields if name != "key")


def judge(seen: Snapshot, rules: Iterable[Rule], overrides: Overrides | None = None) -> tuple[Result, ...]:
    """Return the verdict of each rule, in the order given. Never raises for what a rule does."""
    results = tuple(_short(_told(_judge_one(rule, seen, _params(rule, overrides or {})), seen)) for rule in rules)
    if container_told(seen):
        results = tuple(map(_flag_first, results))
    return fold(tuple(map(_of_report, results)) if is_pasted(seen) else results)


_QUOTED, _END = 4096, 200
"""Characters of what is quoted, the longest path among them, and of its end: a variable or a line of a file may have any length."""
_SHOWN = 512
"""Pieces of evidence of one rule: a host has some hundred links, disks or interfaces, a file of a user's any number of lines."""
_NAMES = 64
"""Other names of one subject, and fixes for it."""
_TOO_LONG = Advice(text="what would mend it names more than a path or a command can hold, and is left out")


def _short(result: Result) -> Result:
    """Return the result with the beginning and the end alone of what is quoted at length, and of very many pieces of evidence the worst."""
    if _is_short(result):
        return result
    if len(result.evidence) > _SHOWN:
        worst = sorted(result.evidence, key=lambda item: _WORST_FIRST.index(item.verdict))
        rest = f"{len(worst) - _SHOWN} more like these, which are not shown"
        result = replace(
            result, evidence=(*worst[:_SHOWN], replace(worst[_SHOWN], subject="others", seen=rest, fix=(), about=()))
        )
    short = replace(result, evidence=tuple(map(_short_evidence, result.evidence)), why_unknown=_short_reason(result.why_unknown))
    return _bounded(short, "note")


def _is_short(result: Result) -> bool:
    """Return whether there is nothing to cut, as in nearly all results: texts that are short together."""
    return (
        result.why_unknown is None
        and len(result.note) <= _QUOTED
        and len(result.evidence) <= _SHOWN
        and all(
            not item.about
            and not item.fix
            and item.why is None
            and len(item.subject) + len(item.seen) + len(item.wanted) + len(item.source) + len(item.cause) <= _QUOTED
            for item in result.evidence
        )
    )


def _short_evidence(shown: Evidence) -> Evidence:
    short = _bounded(shown, "subject", "seen", "wanted", "source", "cause")
    if shown.about:
        short = replace(short, about=tuple(map(_beginning_and_end, shown.about[:_NAMES])))
    if shown.fix:
        short = replace(short, fix=tuple(_TOO_LONG if _is_long(action) else action for action in shown.fix[:_NAMES]))
    return short if short.why is None else replace(short, why=_short_reason(short.why))


def _short_reason(why: Missing | None) -> Missing | None:
    if why is None:
        return None
    short = _bounded(why, "source", "detail")
    return replace(short, remedy="") if len(short.remedy) > _QUOTED else short  # a command that is cut short would be another one


def _is_long(action: Action) -> bool:
    """Return whether a fix names what no path or command holds: cut short, it would be another one."""
    return any(len(str(getattr(action, name))) > _QUOTED for name in action.__struct_fields__)


def _bounded(item: _Item, *names: str) -> _Item:
    """Return the item with the beginning and the end alone of those of its texts that are too long."""
    short = {name: _beginning_and_end(text) for name in names if len(text := getattr(item, name)) > _QUOTED}
    return replace(item, **short) if short else item


def _beginning_and_end(text: str) -> str:
    return text if len(text) <= _QUOTED else f"{text[:-_END][:_QUOTED]} … {text[-_END:]}"


_OF_WHO_STARTS = ("in a container:", "docker", "podman", "Kubernetes:")


def _flag_first(result: Result) -> Result:
    """Put first what the person who starts the container can do; the host's files are out of reach from inside."""

    def rank(action: Action) -> bool:
        return not (isinstance(action, Advice) and action.text.startswith(_OF_WHO_STARTS))

    fix = tuple(sorted(result.rule.fix, key=rank)) if result.verdict is Verdict.FAIL else result.rule.fix
    return result if fix == result.rule.fix else replace(result, rule=replace(result.rule, fix=fix))


_PLACES = ("/", "nvml", "NVML", "uname", "confstr(", "statvfs ", "getrlimit", "sysconf", "version.json", "loader", "ulimit")
"""Prefixes of evidence sources that mean "seen on the host itself": its files, system calls and libraries."""


def _of_report(result: Result) -> Result:
    """Return the result for a report: what was only pasted was not read at the place where a host has it."""
    if not any(item.source.startswith(_PLACES) for item in result.evidence):
        return result
    kept = tuple(replace(item, source="report") if item.source.startswith(_PLACES) else item for item in result.evidence)
    return replace(result, evidence=kept)


def fold(results: tuple[Result, ...]) -> tuple[Result, ...]:
    """Return the results with one finding for each fault: evidence that a better rule shows, too, is left to that rule.

    Only a finding that is there can take over: a rule that was not asked, passes or could not look hides nothing.
    """
    failed = {result.rule.id: result for result in results if result.verdict is Verdict.FAIL}
    return tuple(_folded(result, failed) if result.rule.id in failed else result for result in results)


def _folded(result: Result, failed: Mapping[str, Result]) -> Result:
    rule = result.rule
    if not any(other in failed for other in (*rule.superseded_by, *rule.explained_by)):
        return result
    tellers = [_teller(rule, item, failed) if item.verdict is Verdict.FAIL else "" for item in result.evidence]
    teller = next(filter(None, tellers), "")
    if not teller:
        return result
    kept = tuple(
        replace(item, verdict=Verdict.NA, wanted=f"{SEE}{other}") if other else item
        for item, other in zip(result.evidence, tellers, strict=True)
    )
    if any(item.verdict is Verdict.FAIL for item in kept):
        return replace(result, evidence=kept)
    reasons = (result.why_unknown, *(item.why for item in kept))
    missing = next((why for why in reasons if why is not None), None)
    verdict = _overall(kept) if missing is None else Verdict.UNKNOWN
    note = f"{teller} tells of it" if verdict is Verdict.NA else result.note
    return replace(result, verdict=verdict, evidence=kept, why_unknown=missing, note=note)


def _teller(rule: Rule, item: Evidence, failed: Mapping[str, Result]) -> str:
    """Return the rule that shows the same fault; where that one's finding is folded itself, the one that shows it in the end."""
    names = {item.subject, *item.about}
    for name in (*rule.superseded_by, *rule.explained_by):
        other = failed.get(name)
        for found in other.evidence if other is not None else ():
            if found.verdict is Verdict.FAIL and (
                name in rule.explained_by or not names.isdisjoint((found.subject, *found.about))
            ):
                return _teller(failed[name].rule, found, failed) or name
    return ""


def _told(result: Result, seen: Snapshot) -> Result:
    """Return the result as it is told: a program that failed by a defect knows better than facts from which its absence was inferred; it failed, and that is an
    error, however light the defect is elsewhere. What only lists things decides where the facts are silent."""
    saying = seen.said.get(result.rule.id)
    if saying is None:
        return result
    silent = result.verdict in (Verdict.UNKNOWN, Verdict.NA)
    rule = replace(result.rule, severity=Severity.ERROR) if saying.is_failure else result.rule
    if saying.is_failure and result.verdict is Verdict.FAIL:
        return replace(result, rule=rule)
    if not (silent or (saying.is_failure and result.verdict is Verdict.PASS)):
        return result
    if rule.severity is Severity.ADVICE:
        rule = replace(rule, severity=Severity.WARNING)
    fix = (Advice(text=saying.remedy),) if saying.remedy else ()
    printed = Evidence(subject="a program says", seen=saying.line, source="report", fix=fix)
    return Result(rule=rule, verdict=Verdict.FAIL, evidence=(printed, *result.evidence), why_unknown=result.why_unknown)


def _params(rule: Rule, overrides: Overrides) -> Params:
    """Return the rule's own parameters and those of the rules that it asks, whether or not these are judged."""
    own = {param.name: _value(rule, param, overrides) for param in rule.params}
    return own | {asked(other.id, param.name): _value(other, param, overrides) for other in rule.asks for param in other.params}


def _value(rule: Rule, param: Param, overrides: Overrides) -> int | float | str | bool:
    value: int | float | str | bool = overrides.get(rule.id, {}).get(param.name, param.default)
    return value


def _judge_one(rule: Rule, seen: Snapshot, params: Params) -> Result:
    evidence: list[Evidence] = []
    try:
        if rule.applies is not None:
            rule.applies(seen)
        for item in rule.judge(seen, params):
            evidence.append(item)  # kept when the rule stops later: what was found stays found
    except NotApplicable as reason:
        return Result(rule=rule, verdict=Verdict.NA, evidence=tuple(evidence), note=str(reason))
    except Unknown as unknown:
        return _with_unknown(rule, evidence, unknown.missing)
    except OverflowError:
        return _with_unknown(rule, evidence, _too_large(f"rule {rule.id}"))
    except Exception:
        error = sys.exc_info()[1]
        return Result(
            rule=rule,
            verdict=Verdict.CRASHED,
            evidence=tuple(evidence),
            note=f"{type(error).__name__}: {error}",
            why_unknown=Missing(Why.CRASHED, f"rule {rule.id}", _where()),
        )
    if rule.nothing and not evidence:
        return Result(rule=rule, verdict=Verdict.NA, note=rule.nothing)
    verdict = _overall(evidence)
    why = next((item.why for item in evidence if item.why is not None), None) if verdict is Verdict.UNKNOWN else None
    return Result(rule=rule, verdict=verdict, evidence=tuple(evidence), why_unknown=why)


def _with_unknown(rule: Rule, evidence: list[Evidence], missing: Missing) -> Result:
    failed = any(item.verdict is Verdict.FAIL for item in evidence)
    verdict = Verdict.FAIL if failed else (Verdict.CRASHED if missing.why is Why.CRASHED else Verdict.UNKNOWN)
    return Result(rule=rule, verdict=verdict, evidence=tuple(evidence), why_unknown=missing, note=missing.detail)


_WORST_FIRST = (Verdict.CRASHED, Verdict.FAIL, Verdict.UNKNOWN, Verdict.PASS, Verdict.NA)


def _overall(evidence: Iterable[Evidence]) -> Verdict:
    # A set would hash enums, in Python.
    return min((item.verdict for item in evidence), key=_WORST_FIRST.index, default=Verdict.PASS)


def _where() -> str:
    """Return the last frames of the exception being handled."""
    import traceback  # 2 ms that only a crash pays

    return traceback.format_exc(limit=-3).strip()
