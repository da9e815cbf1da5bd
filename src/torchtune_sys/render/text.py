"""The report for people: one screen, the verdict first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from torchtune_sys.formats.kernel_log import EARLIER
from torchtune_sys.model import actions
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.numbers import counted
from torchtune_sys.model.rule import SEE, TO_DO, Evidence, Result, Severity, Verdict
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.render import layout, report_head
from torchtune_sys.render.layout import Line, Style, cut, line
from torchtune_sys.render.report import (
    Report,
    Summary,
    can_train,
    failing,
    findings,
    fixes,
    host_name,
    reasons,
    summary,
    unexplained,
    why_text,
)
from torchtune_sys.rules.can_train import Device, skipped_without_torch

_SHOWN = {Severity.ERROR: 8, Severity.WARNING: 6, Severity.ADVICE: 4}
"""Findings of a severity that one screen has room for."""
_SUBJECTS = {Severity.ERROR: 3, Severity.WARNING: 2, Severity.ADVICE: 1}
_ROOM = {Severity.ERROR: 300, Severity.WARNING: 200, Severity.ADVICE: 140}
"""Characters for one line of evidence."""
_HANG = 8


def render(report: Report, style: Style, *, verbose: bool = False, quiet: bool = False) -> str:
    """Return the whole text. ``verbose`` cuts nothing and adds what passed; ``quiet`` leaves the headline and the findings."""
    counts = summary(report.results)
    lines = [headline(report, counts)]
    if not quiet:
        if report.snapshot.origin != "live":
            lines.append(line(report.snapshot.origin, label=("From", "bold"), hang=_HANG))
        lines.extend(report_head.head(report.snapshot))
    lines.extend(_findings(report.results, verbose))
    lines.extend(_unexplained(unexplained(report)))
    lines.extend(_crashes(report.results))
    if not quiet:
        lines.extend(_unknowns(report.results, verbose))
        if verbose:
            lines.extend(_passes(report.results))
        lines.extend(_closing(report, counts))
    return layout.render(lines, style)


def headline(report: Report, counts: Summary) -> Line:
    """Return host, what was found, and what it means for training."""
    name = host_name(report.snapshot)
    worst = next(iter(findings(report.results)), None)
    mostly_passed = counts.passed >= counts.unknown and counts.passed and not counts.crashed
    good = mostly_passed and can_train(report).device is not Device.NONE
    style = worst.rule.severity.value if worst else ("good" if good else "warning")
    outdated = counts.findings["error"] or can_train(report).device is Device.NONE  # by what is seen now
    proof = f"; {report.proof}" if report.proof and not outdated else ""
    return line((f"{name}: {verdict(report, counts)}{proof}", style))


def verdict(report: Report, counts: Summary) -> str:
    """Return what the host can train on, and what was found, in one sentence."""
    found = _found(report.results, counts, explained=not unexplained(report), trains=can_train(report).device is not Device.NONE)
    return "; ".join(filter(None, (_ability(report, counts), found)))


def _ability(report: Report, counts: Summary) -> str:
    """Where an error is found, that one says what training can expect; a missing torch is told anyway."""
    found = can_train(report)
    if unexplained(report) and unexplained(report)[0].startswith(EARLIER):
        return cut(unexplained(report)[0][0].lower() + unexplained(report)[0][1:], 200)
    if unexplained(report):
        return f"a program failed, and no check explains it: {cut(unexplained(report)[0], 200)}"
    match found.device:
        case Device.NONE if not found.by_finding:
            skipped = skipped_without_torch(report.results)
            return f"cannot train: {found.why}" + (f" ({_count(skipped, 'check')} skipped)" if skipped else "")
        case Device.GPU if not counts.findings["error"]:
            return f"trains on {_count(found.gpus, 'GPU')}" if found.gpus else "trains on GPUs (how many is not known)"
        case Device.CPU if not counts.findings["error"]:
            return "trains on the CPU only" + (f" ({found.why})" if found.why else "")
        case Device.UNKNOWN if found.missing is not None and found.missing.why is not Why.NOT_RECORDED:
            return f"whether it can train is unknown ({cut(found.why, 80)})"
        case _:
            return ""


def _found(results: tuple[Result, ...], counts: Summary, *, explained: bool, trains: bool) -> str:
    found = ", ".join(_count(number, level) for level, number in counts.findings.items() if number)
    crashed = f"; {_count(counts.crashed, 'check')} crashed" if counts.crashed else ""
    errors = [result for result in findings(results) if result.rule.severity is Severity.ERROR]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        means = " – training will fail or go wrong" if trains else ""
        return f"{found}{means}: {errors[0].rule.title}{more}{crashed}"
    if counts.findings[Severity.WARNING.value]:
        return f"{found} – training may be slow or fragile{crashed}" if trains else f"{found}{crashed}"
    known = f"{_count(counts.passed, 'check')} passed"
    unknown = f", {counts.unknown} could not be checked" if counts.unknown else ""
    advice = f", {found}" if found else ""
    if not (counts.passed or counts.unknown or found):
        return f"nothing to judge: no check applies{crashed}"
    if not explained:
        return f"{known}{unknown}{advice}{crashed}"
    if not (counts.passed or counts.crashed or found):
        return f"nothing could be checked: what {_count(counts.unknown, 'check')} would need was not seen"
    if counts.unknown > counts.passed and not _given_little(results):
        return f"too little could be seen to judge this host{advice}: {known}{unknown}{crashed}"
    ran = " by the checks that ran" if counts.crashed else (" in the input" if counts.unknown > counts.passed else "")
    return f"no {'' if trains else 'other '}problem found{ran}{advice}; {known}{unknown}{crashed}"


def _given_little(results: tuple[Result, ...]) -> bool:
    """Whether most of what is unknown was not in the recording or the report, and nobody could expect it there."""
    unknown = [result for result in results if result.verdict is Verdict.UNKNOWN]
    given = [result for result in unknown if any(missing.why is Why.NOT_RECORDED for missing in reasons(result))]
    return 2 * len(given) > len(unknown)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 or word == "advice" else f"{number} {word}s"


def _findings(results: tuple[Result, ...], verbose: bool) -> Iterator[Line]:
    found = findings(results)
    for level in Severity:
        of_level = [result for result in found if result.rule.severity is level]
        shown = of_level if verbose else of_level[: _SHOWN[level]]
        for result in shown:
            if result is shown[0]:
                yield line()
            yield from _finding(result, verbose)
        if len(of_level) > len(shown):
            names = ", ".join(result.rule.id for result in of_level[len(shown) :])
            yield line((f"+{len(of_level) - len(shown)} more (--verbose): {names}", "dim"), indent=_HANG)


def _finding(result: Result, verbose: bool) -> Iterator[Line]:
    rule = result.rule
    yield line((rule.title, "bold"), " ", (f"[{rule.id}]", "dim"), label=(rule.severity.value, rule.severity.value), hang=_HANG)
    groups = grouped(failing(result))
    shown = groups if verbose else groups[: _SUBJECTS[rule.severity]]
    for group in shown:
        text = evidence_text(group)
        yield line(text if verbose else cut(text, _ROOM[rule.severity]), indent=_HANG)
    if len(groups) > len(shown):
        yield line((f"+{len(groups) - len(shown)} more (--verbose)", "dim"), indent=_HANG)
    yield from _fixes(fixes(result), verbose)


def _fixes(found: tuple[actions.Action, ...], verbose: bool) -> Iterator[Line]:
    for action in found if verbose else found[:1]:
        words = actions.text(action)
        after = "" if action.needs is actions.Needs.NOTHING else f" (takes effect after: {action.needs.value})"
        more = f" (+{len(found) - 1} more fix{'es' * (len(found) > 2)}: explain)" if len(found) > 1 and not verbose else ""
        first = words if verbose else words.partition("\n")[0]
        yield line(f"{first}{after}", (more, "dim"), label=("fix: ", "good"), indent=_HANG)


def evidence_text(item: Evidence) -> str:
    """Return ``GPU 0-3: x4, should be x16 (/sys/…)``."""
    source = f" ({item.source})" if item.source and item.source != item.subject else ""
    return f"{seen_and_wanted(item)}{source}"


def seen_and_wanted(item: Evidence) -> str:
    """Return ``GPU 0-3: x4, should be x16``; what is to be done, and which rule tells more, follows as it is."""
    joint = "; " if item.wanted.startswith((SEE, TO_DO)) else ", should be "
    wanted = f"{joint}{item.wanted}" if item.wanted else ""
    return f"{item.subject}: {item.seen}{wanted}" if item.subject else f"{item.seen}{wanted}"


def grouped(items: Iterable[Evidence]) -> list[Evidence]:
    """Return evidence that differs only in its subject as one, its subjects joined: GPU 0, GPU 1, GPU 3 → ``GPU 0-1,3``."""
    groups: dict[tuple[str, str, str], list[Evidence]] = {}
    for item in items:
        groups.setdefault((item.seen, item.wanted, item.source), []).append(item)
    return [msgspec.structs.replace(group[0], subject=subjects([item.subject for item in group])) for group in groups.values()]


def subjects(names: list[str]) -> str:
    """Return the names joined, numbered ones of one kind as ranges.

    >>> subjects(["GPU 0", "GPU 1", "GPU 3", "eth0"])
    'GPU 0-1,3, eth0'
    """
    kinds: dict[str, list[int]] = {}
    for name in dict.fromkeys(names):
        stem = name.rstrip("0123456789")
        digits = name[len(stem) :]
        plain = digits and len(digits) < 7 and digits == str(int(digits)) and (stem[-1:].isalpha() or stem[-1:] in " _#")
        kinds.setdefault(stem if plain else name, []).extend([int(digits)] if plain else [])
    return ", ".join(stem + (str(CpuSet(numbers)) if numbers else "") for stem, numbers in kinds.items())


_LABELS = {True: "an earlier boot: ", False: "said by a program: "}


def _unexplained(errors: tuple[str, ...]) -> Iterator[Line]:
    if errors:
        yield line()
    for error in errors:
        logged = error.startswith(EARLIER)
        yield line(cut(error.removeprefix(EARLIER), 300), label=(_LABELS[logged], "warning"), indent=2)
    if errors:
        yield line(
            "torchtune-sys diagnose of the same text; check --live and smoke on that host, or the whole report",
            label=("to find out: ", "good"),
            indent=2,
            is_elsewhere=True,
        )


def _crashes(results: tuple[Result, ...]) -> Iterator[Line]:
    """Yield what raised, with the rules that it kept from judging."""
    groups: dict[str, list[str]] = {}
    for result in results:
        if result.verdict is Verdict.CRASHED:
            missing = result.why_unknown
            groups.setdefault(why_text(missing) if missing is not None else result.note, []).append(result.rule.id)
    if groups:
        yield line()
    for reason, rules in groups.items():
        listed = ", ".join(rules[:4]) + (f" +{len(rules) - 4} more" if len(rules) > 4 else "")
        yield line(f"{cut(reason, 200)} ", (f"[{listed}]", "dim"), label=("bug", "error"), hang=_HANG)


_PHRASES = {
    Why.ABSENT: "not there on this host",
    Why.DENIED: "permission denied",
    Why.NO_TOOL: "a tool is missing",
    Why.TIMEOUT: "no answer in time",
    Why.FAILED: "reading failed",
    Why.UNPARSED: "read, but not understood",
    Why.NOT_SUPPORTED: "not offered by this kernel, driver or device",
    Why.HIDDEN: "hidden from here",
    Why.NOT_RECORDED: "not in the input",
    Why.CRASHED: "a probe crashed (a bug)",
}


def _unknowns(results: tuple[Result, ...], verbose: bool) -> Iterator[Line]:
    """Yield what could not be checked, by what would find out: what hangs first, since that is a fault in itself, then what a person can mend."""
    groups: dict[tuple[str, Why], dict[str, Missing]] = {}
    for result in results:
        for missing in reasons(result) if result.verdict in (Verdict.UNKNOWN, Verdict.FAIL) else ():
            groups.setdefault((missing.remedy, missing.why), {}).setdefault(result.rule.id, missing)
    if not groups:
        return
    yield line()
    yield line(("Could not be checked", "heading"))
    ordered = sorted(
        groups.items(), key=lambda group: (group[0][1] is not Why.TIMEOUT, not group[0][0], list(Why).index(group[0][1]))
    )
    for (remedy, why), rules in ordered if verbose else ordered[:5]:
        yield from _unknown(remedy, why, rules, verbose)
    if len(ordered) > 5 and not verbose:
        yield line((f"+{counted(len(ordered) - 5, 'more reason')} (--verbose)", "dim"), indent=2)


_SHORT = 40
"""Characters up to which a remedy leads its line; a longer one (a command to run) gets a line of its own."""


def _unknown(remedy: str, why: Why, rules: dict[str, Missing], verbose: bool) -> Iterator[Line]:
    sources = list(dict.fromkeys(why_text(missing) for missing in rules.values()))
    example = sources[0] if len(sources) == 1 or verbose else f"{sources[0]} and {len(sources) - 1} more"
    names = list(rules)
    listed = ", ".join(names if verbose else names[:4]) + (f" +{len(names) - 4} more" if len(names) > 4 and not verbose else "")
    detail = "; ".join(sources) if verbose else cut(example, 110)
    short = remedy if remedy and len(remedy) <= _SHORT else _PHRASES[why]
    summary_line = f"{short} " if why is Why.NOT_RECORDED and not verbose else f"{short} – {detail} "
    yield line(summary_line, (f"[{listed}]", "dim"), label=f"{len(names):3}  ", indent=1)
    if remedy and short != remedy:
        yield line(remedy, label=("to find out: ", "good"), indent=6)


def _passes(results: tuple[Result, ...]) -> Iterator[Line]:
    for title, wanted in (("Passed", Verdict.PASS), ("Not applicable", Verdict.NA)):
        chosen = [result for result in results if result.verdict is wanted]
        if chosen:
            yield line()
            yield line((title, "heading"))
        for result in chosen:
            shown = "; ".join(evidence_text(item) for item in grouped(result.evidence)) or result.note
            yield line(f"{result.rule.id}{': ' + shown if shown else ''}", label="  ", hang=6)


def _closing(report: Report, counts: Summary) -> Iterator[Line]:
    results, live = report.results, report.snapshot.origin == "live"
    failed = sum(counts.findings.values())
    numbers = (
        f"{_count(len(results), 'check')}: {counts.passed} passed, {failed} failed, "
        f"{counts.unknown} could not be checked, {counts.na} not applicable"
    )
    crashed = f", {counts.crashed} crashed" if counts.crashed else ""
    yield line()
    yield line((numbers + crashed, "dim"))
    worst = next(iter(findings(results)), None)
    if worst:
        yield line((f"more about a finding: torchtune-sys explain {worst.rule.id}", "dim"))
    more = "" if live else " with the same --from"
    trains = can_train(report)
    if trains.device is Device.NONE and not trains.by_finding:
        named = "--python names the Python that you train with" if live else "record it with --python, the Python that trains"
        yield line(f"{named}; torchtune-sys generate install{more} prints how to install torch", label=("to train: ", "good"))
    if any(actions.doable(action) for result in findings(results) for action in result.rule.fix):
        yield line((f"the changes that would fix it: torchtune-sys plan{more}", "dim"))
