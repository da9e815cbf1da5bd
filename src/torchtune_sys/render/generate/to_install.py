"""What a plan leaves to be installed: the commands of ``generate install`` for the rules that ask, in order."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.install import InstallCommand, InstallFile, InstallStep, Key
from torchtune_sys.model.plan import Plan
from torchtune_sys.model.steering import no_command
from torchtune_sys.render.generate.commands import step_commands, typed
from torchtune_sys.render.layout import Line, clean, line

_HANG = 8


def lines(plan: Plan) -> Iterator[Line]:
    if {item.rule for item in plan.by_hand} & {rule for item in plan.install for rule in item.rules}:
        yield line("instead of what stands above for the same finding", indent=2, hang=_HANG)
    for number, item in enumerate(plan.install, 1):
        optional = " (optional)" if item.step.optional else ""
        yield line(f"{number}. {item.step.title}{optional} ", (f"[{', '.join(item.rules)}]", "dim"), indent=2, hang=_HANG)
        commands = {typed(row) for row in step_commands(item.step) if isinstance(row, InstallCommand)}
        for words in rows(item.step):
            yield line((words, "dim"), indent=_HANG, is_command=words in commands)
        if item.step.reboot:
            yield line(("then start this host again, before the next step", "warning"), indent=_HANG)
    for refused in plan.install_refused:
        yield line((refused.what, "bold"), f": {refused.reason}", indent=2, hang=_HANG)
        yield line(refused.way, label=("instead: ", "good"), indent=_HANG)
    torch = f" --torch {plan.install_torch}" if plan.install_torch else ""
    who = (
        f"neither plan nor apply installs: torchtune-sys generate install{torch} prints these steps as a script, "
        f"generate script --stages install,tune,smoke{torch} takes a host from bare to proven"
    )
    yield line(who, indent=2, hang=_HANG)


def rows(step: InstallStep) -> list[str]:
    """Return one row for each action, commands as a person would type them."""
    found = [_row(item) for item in step_commands(step)]
    return [*found, *([f"by hand: {step.by_hand}"] if step.by_hand else [])]


def _row(item: InstallCommand | InstallFile | Key) -> str:
    if isinstance(item, InstallCommand):
        return typed(item)
    if isinstance(item, Key):
        return f"as root, trust the key {item.url} if its fingerprint is {item.fingerprint} (rpm --import)"
    content = [row for row in item.text.splitlines() if row and not row.startswith(("#", "//"))]
    return f"{'as root, ' if item.root else ''}write {item.path}: {' | '.join(content)}"


def markdown(plan: Plan) -> Iterator[str]:
    from torchtune_sys.render.markdown import cell, fenced

    for number, item in enumerate(plan.install, 1):
        shown = [clean(words) for words in rows(item.step)]
        yield f"{number}. {cell(item.step.title)} ({', '.join(item.rules)}){': reboot after it' if item.step.reboot else ''}"
        fence = "   " + fenced(shown)
        yield from ("", fence, *(f"   {no_command(words)}" for words in shown), fence, "")
    yield from (
        f"- not to be had: {cell(item.what)}: {cell(item.reason)}. Instead: {cell(item.way)}" for item in plan.install_refused
    )
