"""Prometheus text exposition (version 0.0.4), for node_exporter's textfile collector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.render.layout import clean
from torchtune_sys.render.report import Report, can_train, failing, summary

Sample = tuple[Mapping[str, str], float]


def render(report: Report) -> str:
    """Return the metrics, every series once: a repeated one makes the collector refuse the whole file."""
    counts = summary(report.results)
    verdicts = {
        "pass": counts.passed,
        "fail": sum(counts.findings.values()),
        "unknown": counts.unknown,
        "na": counts.na,
        "crashed": counts.crashed,
    }
    rows = [
        *metric("info", "The version that checked, and what it looked at.", [(_info(report), 1)]),
        *metric("check_timestamp_seconds", "When the host was checked.", [({}, report.epoch_s)]),
        *metric(
            "can_train",
            "1 for what the host can train on: gpu, cpu, no or unknown.",
            [({"on": can_train(report).device.value}, 1)],
        ),
        *metric("rules", "Rules by verdict.", [({"verdict": name}, number) for name, number in verdicts.items()]),
        *metric("findings", "Failed rules by severity.", [({"severity": n}, number) for n, number in counts.findings.items()]),
        *metric("rule_verdict", "1 for the verdict of each rule that applies here.", map(_verdict, _applying(report))),
        *metric("finding", "1 for each subject that failed a rule.", _subjects(report.results)),
    ]
    return "\n".join(rows) + "\n"


def _info(report: Report) -> dict[str, str]:
    return {"version": report.version, "origin": report.snapshot.origin}


def _applying(report: Report) -> Iterator[Result]:
    """Yield the results that apply: a series for each of hundreds of rules that do not apply would cost every host the same; their number is told."""
    return (result for result in report.results if result.verdict is not Verdict.NA)


def _verdict(result: Result) -> Sample:
    return {**_rule(result), "verdict": result.verdict.value}, 1


def _subjects(results: tuple[Result, ...]) -> Iterator[Sample]:
    for result in results:
        if result.verdict is Verdict.FAIL:
            for subject in dict.fromkeys(item.subject for item in failing(result)):
                yield {**_rule(result), "subject": subject}, 1


def _rule(result: Result) -> dict[str, str]:
    return {"rule": result.rule.id, "family": result.rule.family, "severity": result.rule.severity.value}


def metric(name: str, text: str, samples: Iterable[Sample]) -> Iterator[str]:
    """Yield the lines of one metric, with its help and type."""
    full = f"torchtune_sys_{name}"
    yield f"# HELP {full} {text}"
    yield f"# TYPE {full} gauge"
    for labels, value in samples:
        shown = ",".join(f'{key}="{_label(text)}"' for key, text in labels.items())
        yield f"{full}{{{shown}}} {_number(value)}" if shown else f"{full} {_number(value)}"


def _label(text: str) -> str:
    return clean(text).replace("\\", "\\\\").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.3f}"
