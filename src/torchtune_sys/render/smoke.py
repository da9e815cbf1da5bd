"""The smoke test's report: text and JUnit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from torchtune_sys.model.diagnosis import Confidence
from torchtune_sys.model.numbers import counted
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.smoke import Figure, SmokeReport, StageResult
from torchtune_sys.render import layout
from torchtune_sys.render.layout import Line, Style, line
from torchtune_sys.render.node_set import host_word

_STYLES = {Verdict.PASS: "good", Verdict.FAIL: "error", Verdict.UNKNOWN: "warning", Verdict.CRASHED: "error", Verdict.NA: "dim"}
_HANG = 37
_OUTPUT_LINES = 20
_MOST_SLOWER = 3
_FEW = 3
"""Fewer stages that were not tried have a line each."""


def text(report: SmokeReport, style: Style, *, quiet: bool, verbose: bool) -> str:
    """Return the report for people: the verdict first, then a line for each stage."""
    lines = [line((headline(report), _STYLES[report.verdict]))]
    if not quiet:
        lines.append(line(about(report)))
        lines.append(line())
    told = [stage for stage in report.stages if not quiet or stage.verdict not in (Verdict.PASS, Verdict.NA)]
    lines.extend(_stages(told, verbose))
    lines.extend(_slower(report, verbose))
    lines.extend(_printed(report, verbose))
    return layout.render(lines, style)


def opening(report: SmokeReport, style: Style) -> str:
    """Return what comes before the first stage, where each is shown as it ends: who runs, and what will not be verified."""
    where = "" if report.team.device == "cuda" else "no GPU is tested (CPU only); "
    return layout.render([line(f"{host_word(report.host)}: {where}{about(report)}"), line()], style)


def stage_text(stage: StageResult, style: Style, *, verbose: bool) -> str:
    return layout.render(_stage(stage, verbose), style)


def ending(report: SmokeReport, shown: Mapping[str, StageResult], style: Style, *, verbose: bool) -> str:
    """Return what comes after the stages that were ``shown``: those that were not, or came out differently since, and the verdict."""
    left = [stage for stage in report.stages if not _was_shown(stage, shown)]
    if report.cut_off:  # the verdict counts those that were not reached
        left = [stage for stage in left if stage.verdict is not Verdict.UNKNOWN]
    lines = [
        *_stages(left, verbose),
        *_slower(report, verbose),
        *_printed(report, verbose),
        line(),
        line((headline(report), _STYLES[report.verdict])),
    ]
    return layout.render(lines, style)


def _was_shown(stage: StageResult, shown: Mapping[str, StageResult]) -> bool:
    before = shown.get(stage.stage)
    return before is not None and (before.verdict, before.cause, before.seen) == (stage.verdict, stage.cause, stage.seen)


def _printed(report: SmokeReport, verbose: bool) -> Iterator[Line]:
    if verbose and report.output:
        yield line()
        yield line(("What the ranks printed last", "bold"))
        yield from (line(row, indent=2) for row in report.output.splitlines()[-_OUTPUT_LINES:])


def headline(report: SmokeReport) -> str:
    """Return the verdict in a sentence; on a host without a GPU it says what was not verified: first, unless training fails."""
    failed = [stage for stage in report.stages if stage.verdict in (Verdict.FAIL, Verdict.CRASHED)]
    unknown = [stage for stage in report.stages if stage.verdict is Verdict.UNKNOWN]
    passed = sum(stage.verdict is Verdict.PASS for stage in report.stages)
    if report.cut_off and not failed:
        words = f"cut off ({report.cut_off}): {passed} of {len(report.stages)} stages passed, the others are not tried"
    elif _without_torch(failed):
        words = f"training does not work: {failed[0].seen}; nothing was tested"
    elif failed:
        first = next((stage for stage in failed if stage.cause), failed[0])
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        words = f"training does not work: {first.stage}{more}" + (f": {first.cause}" if first.cause else "")
        words += f" (cut off: {report.cut_off})" if report.cut_off else ""
    elif unknown:
        words = f"not proven: {len(unknown)} of {len(report.stages)} stages could not be checked"
    else:
        words = f"training works: {passed} stage{'' if passed == 1 else 's'} passed"
    team = report.team
    where = "" if team.device == "cuda" or _without_torch(failed) else "no GPU was tested (CPU only)"
    if 0 < len(team.gpus) < team.gpus_here:
        where = f"{len(team.gpus)} of {team.gpus_here} GPUs took part"
    parts = (words, where) if failed else (where, words)
    return f"{host_word(report.host)}: {'; '.join(filter(None, parts))}, {report.seconds:.0f} s"


def _without_torch(stages: Sequence[StageResult]) -> bool:
    return bool(stages) and stages[0].cause == "torch-not-installed"


def about(report: SmokeReport) -> str:
    """Return in one line which torch, ranks, GPUs, backend and level ran."""
    team = report.team
    gpus = f" on {len(team.gpus)} GPU{'s' if len(team.gpus) > 1 else ''}" if team.gpus else ""
    unknown = "no torch" if _without_torch(report.stages) else "torch of unknown version"
    torch = f"torch {team.torch}" if team.torch else unknown
    ranks = f"{team.ranks} rank{'s' if team.ranks != 1 else ''}{gpus}"
    judged_as = f"judged as user {team.user}" if team.user else ""
    return ", ".join(filter(None, (torch, ranks, team.backend, f"level {team.level}", team.python, judged_as)))


def _stages(stages: Sequence[StageResult], verbose: bool) -> Iterator[Line]:
    """Yield the stages; of those that follow each other and were not tried for one reason the names alone, lest they bury what failed."""
    for (verdict, seen), group in itertools.groupby(stages, lambda stage: (stage.verdict, stage.seen)):
        alike = list(group)
        if verbose or verdict is not Verdict.UNKNOWN or len(alike) < _FEW:
            yield from (row for stage in alike for row in _stage(stage, verbose))
            continue
        label = f"{verdict.value:<8}{len(alike)} stages"
        names = ", ".join(stage.stage for stage in alike)
        yield line(f"{seen}: {names}" if seen else names, label=(f"{label:<{_HANG - 3}}", _STYLES[verdict]), hang=_HANG)


def _stage(stage: StageResult, verbose: bool) -> Iterator[Line]:
    figures = [figure_text(figure) for figure in stage.figures]
    shown = figures if verbose or stage.verdict is Verdict.FAIL else figures[:3]
    ranks = f"rank {', '.join(map(str, stage.ranks))}: " if stage.ranks and not stage.seen.startswith("rank") else ""
    words = "; ".join(filter(None, (ranks + stage.seen if stage.seen else "", ", ".join(shown))))
    label = f"{stage.verdict.value:<8}{stage.stage:<19}{stage.seconds:5.1f} s"
    yield line(words, label=(label, _STYLES[stage.verdict]), hang=_HANG)
    if stage.verdict is Verdict.FAIL and stage.cause:
        sure = f" ({stage.confidence.value})" if stage.confidence not in (None, Confidence.CERTAIN) else ""
        yield line((stage.cause, "bold"), sure, label=("cause: ", "bold"), indent=_HANG)
    if stage.verdict is Verdict.FAIL and stage.remedy:
        yield line(stage.remedy, label=("fix: ", "good"), indent=_HANG)
    for place in (*stage.places, *(stage.trace.splitlines() if verbose else ())):
        yield line((place, "dim"), indent=_HANG)


def figure_text(figure: Figure) -> str:
    """Return a figure with its unit, and what was expected.

    >>> figure_text(Figure(name="bfloat16 GEMM", value=612.34, unit="TFLOP/s"))
    'bfloat16 GEMM 612 TFLOP/s'
    """
    value = f"{figure.value:.0f}" if abs(figure.value) >= 100 or figure.value == int(figure.value) else f"{figure.value:.3g}"
    return f"{figure.name} {value} {figure.unit}".rstrip()


def _worse(now: float, before: float) -> str:
    """Return by how much a figure is worse: in parts of what it was, or how many times where that says more.

    >>> _worse(450.0, 600.0), _worse(529.0, 0.617), _worse(2.0, 600.0)
    ('25 % worse', '857 times worse', '300 times worse')
    """
    times = max(now, before) / min(now, before) if min(now, before) > 0 else 0.0
    return f"{times:.0f} times worse" if times >= 4 else f"{abs(1 - now / before) * 100 if before else 0.0:.0f} % worse"


def _slower(report: SmokeReport, verbose: bool) -> Iterator[Line]:
    """Yield what is slower than it was; without ``verbose`` the worst of it in a line, where others hold the CPUs or there is much."""
    ordered = sorted(report.slower, key=lambda item: -max(item.now, item.before) / max(min(item.now, item.before), 1e-12))
    crowded = report.crowd > 0.0
    shown = report.slower if verbose else ordered[: 1 if crowded else _MOST_SLOWER]
    for item in shown:
        words = f"{item.figure}: {item.now:.3g} {item.unit}, {_worse(item.now, item.before)} than {item.before:.3g} {item.unit}"
        yield line(f"{words} (median of {item.proofs} earlier runs here)", label=(f"slower  {item.stage}", "warning"), hang=_HANG)
    if shown and crowded:
        words = f"other work used the CPUs: {report.crowd:.0f} processes per CPU before the test, so these figures are unreliable"
        yield line(words, label=("slower", "warning"), hang=_HANG)
    if len(shown) < len(report.slower):
        yield line(
            f"and {counted(len(report.slower) - len(shown), 'more figure')} (--verbose)", label=("slower", "warning"), hang=_HANG
        )


def junit(report: SmokeReport) -> str:
    """Return one suite, a case for each stage, and the verdict's sentence: it tells of a run that was cut off."""
    from torchtune_sys.render.junit import Case, Suite, document  # with all rules, as _inside

    suite = Suite(
        name="torchtune-sys.smoke",
        host=report.host,
        time=report.time,
        version=report.version,
        seconds=f"{report.seconds:.3f}",
        cases=tuple(
            Case(name=stage.stage, verdict=stage.verdict, seconds=f"{stage.seconds:.3f}", inside=_inside(stage))
            for stage in report.stages
        ),
        said=headline(report),
    )
    return document([suite])


def _inside(stage: StageResult) -> str:
    from torchtune_sys.render.junit import escape

    match stage.verdict:
        case Verdict.PASS:
            return ""
        case Verdict.FAIL:
            kind = escape(stage.cause or "unknown-cause")
            more = "\n".join((stage.seen, stage.remedy, *stage.places, stage.trace))
            return f'<failure type="{kind}" message="{escape(stage.seen)}">{escape(more)}</failure>'
        case Verdict.CRASHED:
            return f'<error type="crash" message="{escape(stage.seen)}"></error>'
        case Verdict.NA:
            return f'<skipped message="{escape(f"not applicable: {stage.seen}")}"/>'
        case Verdict.UNKNOWN:
            return f'<skipped message="{escape(f"unknown: {stage.seen}")}"/>'
