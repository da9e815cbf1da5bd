"""A plan for people: on a terminal, as Markdown, and as a unified diff of the files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import unified_diff

from torchtune_sys import PROGRAM
from torchtune_sys.model.actions import Needs, Safety
from torchtune_sys.model.plan import ByHand, Change, CommandStep, FileDiff, Plan, Refusal, Step, Unit, Value
from torchtune_sys.model.plan import FileLine as FileLine
from torchtune_sys.model.steering import CONTROL, disarmed, escaped, no_command
from torchtune_sys.render import layout
from torchtune_sys.render.generate import to_install
from torchtune_sys.render.layout import Line, Style, cut, line
from torchtune_sys.render.node_set import host_word

_HANG = 8
_BY_HAND_SHOWN = 5


def headline(plan: Plan, *, is_whole: bool = True) -> str:
    """Return what there is to do, in one sentence. ``is_whole``: all that decides it could be seen."""
    unsafe = sum(change.safety is Safety.UNSAFE for change in plan.changes)
    counts = [_count(len(plan.changes) - unsafe, "safe change"), _count(unsafe, "unsafe change")]
    counts += [f"{len(plan.waiting)} made already" if plan.waiting else ""]
    planned = {rule for change in (*plan.changes, *plan.waiting) for rule in change.rules}
    counts += [
        f"{len(plan.refused)} refused" if plan.refused else "",
        _count(sum(item.rule not in planned for item in plan.by_hand), "finding", " to fix by hand"),
    ]
    counts += [_count(len(plan.install), "step", " to install")]
    found = [count for count in counts if count]
    if (
        found and is_whole and not (plan.changes or plan.waiting or plan.refused)
    ):  # else "1 finding to fix by hand" answers "apply", too
        found.insert(0, "nothing to change")
    counted = ", ".join(found)
    name = host_word(plan.host) or ("this host" if plan.origin == "live" else "the given host")
    nothing = "nothing to change" if is_whole else "no change found, but not all that decides it could be read"
    return f"{name}: {counted or nothing}"


def _count(number: int, words: str, then: str = "") -> str:
    return "" if not number else f"{number} {words}" + ("" if number == 1 else "s") + then


def text(plan: Plan, style: Style, *, verbose: bool = False, closing: bool = True, given: str = "", is_whole: bool = True) -> str:
    """Return the plan for a person. ``given``: the options, each after a blank, with which ``apply`` makes the same plan; ``is_whole``: as in ``headline``."""
    lines = [line((headline(plan, is_whole=is_whole), "bold"))]
    if plan.origin != "live":
        lines.append(line(plan.origin, label=("From", "bold"), hang=_HANG))
    for change in plan.changes:
        lines += [line(), *_change(change, verbose)]
    if plan.waiting:
        lines += [line(), line(("Made already", "bold"))]
        lines += [line((c.key, "bold"), f": takes effect after: {c.needs.value}", indent=2, hang=_HANG) for c in plan.waiting]
    if plan.refused:
        lines += [line(), line(("Refused", "bold"))]
        lines += [row for refusal in plan.refused for row in _refusal(refusal)]
    if plan.by_hand:
        lines += [line(), line(("By hand", "bold"))]
        lines += list(_by_hand(plan.by_hand, verbose))
    if plan.install or plan.install_refused:
        lines += [line(), line(("To install", "bold")), *to_install.lines(plan)]
    if plan.changes and closing:
        on_it, there = (
            ("", "")
            if plan.origin == "live"
            else ("on that host, ", f"; {style.program} generate script, given the same host, prints them for it")
        )
        program = PROGRAM if on_it else style.behind_sudo
        safe = any(change.safety is Safety.SAFE for change in plan.changes)
        makes = f"apply{given} makes the safe changes" if safe else f"apply{given} --unsafe makes them once you decided"
        advice = f"Nothing was changed: {on_it}sudo {program} {makes}{there}, --format diff shows the files."
        lines += [line(), line(advice, label=("Next", "bold"), hang=_HANG, is_elsewhere=bool(on_it))]
    return layout.render(lines, style)


def _change(change: Change, verbose: bool) -> Iterator[Line]:
    label = ("safe", "good") if change.safety is Safety.SAFE else (change.safety.value, "warning")
    yield line((change.key, "bold"), f": {change.seen} → {goal(change)}", label=label, hang=_HANG)
    yield line(change.why, " ", (f"[{', '.join(change.rules)}]", "dim"), indent=_HANG)
    if change.needs is not Needs.NOTHING:
        yield line(f"takes effect after: {change.needs.value}", indent=_HANG)
    if change.but:
        yield line((f"but then {change.but}", "warning"), indent=_HANG)
    if change.effect:
        yield line(f"running jobs: {change.effect}", indent=_HANG)
    for words in change.later:
        yield line((words, "warning"), indent=_HANG)
    for step in change.steps:
        if verbose or not isinstance(step, Value):
            yield line((step_text(step), "dim"), indent=_HANG, is_command=isinstance(step, Unit | CommandStep))


def goal(change: Change) -> str:
    """Return what will be: the value that is written where there is one."""
    return next((step.value for step in change.steps if isinstance(step, Value)), change.wanted or "as below")


def step_text(step: Step) -> str:
    from shlex import join, quote

    match step:
        case Value(path=path, value=value):
            return f"write {value} to {path}"
        case FileLine(path=path, text=words):
            return f"{path}: {' | '.join(words.splitlines())}"
        case Unit(unit=unit, enabled=enabled):
            return f"systemctl {'enable' if enabled else 'disable'} --now {quote(unit)}"
        case CommandStep(argv=argv):
            return join(argv)


def _refusal(refusal: Refusal) -> Iterator[Line]:
    yield line((refusal.key, "bold"), f": {refusal.reason}", " ", (f"[{', '.join(refusal.rules)}]", "dim"), indent=2, hang=_HANG)
    yield line(refusal.way, label=("instead: ", "good"), indent=_HANG)


def _by_hand(items: tuple[ByHand, ...], verbose: bool) -> Iterator[Line]:
    shown = items if verbose else items[:_BY_HAND_SHOWN]
    for item in shown:
        yield line(item.why, " ", (f"[{item.rule}]", "dim"), indent=2, hang=_HANG)
        for words in item.texts if verbose else item.texts[:1]:
            yield line(words if verbose else cut(words.partition("\n")[0], 200), label="– ", indent=_HANG)
    if len(items) > len(shown):
        names = ", ".join(item.rule for item in items[len(shown) :])
        yield line((f"+{len(items) - len(shown)} more (--verbose): {names}", "dim"), indent=2)


def diff(plan: Plan) -> str:
    """Return what ``diff -u`` would say of running values and files, and each command behind a ``#``; what a terminal would act upon is shown as escapes."""
    commands = [step_text(step) for change in plan.changes for step in change.steps if isinstance(step, Unit | CommandStep)]
    return "".join([*map(_unified, differences(plan)), *(_shown(f"# {words}\n") for words in commands)])


def differences(plan: Plan) -> tuple[FileDiff, ...]:
    """Return what would be written and is not there yet: running values first, then files."""
    values = (
        FileDiff(path=path, before=f"{now}\n", after=f"{step.value}\n")
        for change in plan.changes
        for step in change.steps
        if isinstance(step, Value)
        for path, now in step.now.items()
    )
    files = (FileDiff(path=file.path, before=file.before, after=file.content) for file in plan.files)
    return tuple(one for one in (*values, *files) if one.before != one.after)


def _unified(file: FileDiff) -> str:
    before, after = (_lines_of(text) for text in (file.before or "", file.after))
    source = f"a{file.path}" if file.before is not None else "/dev/null"
    rows = unified_diff(before, after, source, f"b{file.path}", lineterm="\n")
    return "".join(_shown(row) if row.endswith("\n") else f"{_shown(row)}\n\\ No newline at end of file\n" for row in rows)


def _lines_of(text: str) -> list[str]:
    """As diff counts them: only a line feed ends one."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


def _shown(row: str) -> str:
    return no_command(CONTROL.sub(lambda found: escaped(found[0]), disarmed(row)))


def markdown(plan: Plan, *, is_whole: bool = True) -> str:
    from torchtune_sys.render.markdown import cell, code

    rows = [f"# Plan: {cell(headline(plan, is_whole=is_whole))}", ""]
    if plan.changes:
        rows += ["| change | now | then | risk | takes effect | rules |", "|---|---|---|---|---|---|"]
        rows += [
            f"| {code(c.key)} | {cell(c.seen)} | {cell(goal(c))} | {c.safety.value} | {_when(c)} | {', '.join(c.rules)} |"
            for c in plan.changes
        ]
        rows.append("")
        rows += [f"- {code(change.key)}: {cell(words)}" for change in plan.changes for words in change.later]
    if plan.refused:
        rows += ["", "## Refused", ""]
        rows += [f"- {code(item.key)}: {cell(item.reason)}. Instead: {cell(item.way)}" for item in plan.refused]
    if plan.by_hand:
        rows += ["", "## By hand", ""]
        rows += [f"- {cell(item.why)} ({item.rule}): {cell('; '.join(item.texts))}" for item in plan.by_hand]
    if plan.install or plan.install_refused:
        rows += ["", "## To install", "", *to_install.markdown(plan)]
    return "\n".join(rows) + "\n"


def _when(change: Change) -> str:
    return "at once" if change.needs is Needs.NOTHING else f"after {change.needs.value}"
