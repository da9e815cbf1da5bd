"""Take a snapshot of the host that the options name."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from shlex import quote
from typing import Any

import msgspec

from torchtune_sys import PROGRAM, engine
from torchtune_sys.cli.options import DESCRIPTION, INTENT
from torchtune_sys.cli.terminal import clear_progress, progress, require_apart
from torchtune_sys.cli.watch import LIVE_TIMEOUT_S, TIMEOUT_S
from torchtune_sys.cli.workload import from_environment, intent_of
from torchtune_sys.errors import UnreadableInput, UserError
from torchtune_sys.host.base import Host
from torchtune_sys.host.input.limits import TIMEOUT_S as INPUT_TIMEOUT_S
from torchtune_sys.host.input.opening import PastedText, open_input
from torchtune_sys.host.input.reading import STANDARD_INPUT
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.values import Missing, known

_MARGIN_S = 1.5
"""How much earlier than the whole look a hanging tool is ended, so that it can be named: the time that ending it may take."""


def look(options: Mapping[str, Any], timings: dict[str, float] | None = None, only: Iterable[str] | None = None) -> Snapshot:
    """Return the facts, all or those of the families ``only``. Raises UnreadableInput."""
    return begin(options, timings, only)()


def begin(
    options: Mapping[str, Any],
    timings: dict[str, float] | None = None,
    only: Iterable[str] | None = None,
    found: Host | PastedText | None = None,
) -> Callable[[], Snapshot]:
    """Start reading the host (``found``, if it is open already), and return a function that waits for the facts. Raises UnreadableInput."""
    timeout_s = seconds_to_look(options)
    found = found or opened(options)
    workload = {name: options[name] for name in INTENT}
    if isinstance(found, PastedText):
        seen = _from_text(found, intent_of(workload, None))
        return lambda: seen
    intent = intent_of(workload, found)
    told = _outputs(found, intent) if found.keeps_outputs else None
    if told is not None and not _has_files(found):
        return lambda: _alone(told, found.origin, str(options["from_"]))
    under_way = engine.ProbeRun(found, intent, timings, only)
    return lambda: _completed(ended(under_way, timeout_s), told, only)


class _Told(msgspec.Struct, frozen=True):
    """What outputs of commands tell, and the files that tell nothing."""

    snapshot: Snapshot | None
    read: int
    unread: tuple[str, ...]
    apart: tuple[str, ...] = ()
    """Folders of several hosts."""


def _outputs(host: Host, intent: Workload) -> _Told:
    from torchtune_sys.evidence.outputs import SameHost, read
    from torchtune_sys.host.input.outputs import apart, outputs_of

    def report(text: str) -> Snapshot | None:
        return engine.report(text, host.origin, intent)

    found = outputs_of(host, SameHost(report).tells)
    hosts = apart(found)
    seen = read(found.texts.values(), report) if found.texts and not hosts else None
    return _Told(seen, len(found.texts), found.unread, hosts)


def _has_files(host: Host) -> bool:
    return any(host.exists(place) is True for place in ("/proc", "/sys"))


def _alone(told: _Told, origin: str, path: str) -> Snapshot:
    """Return what a folder tells that holds outputs of commands alone. Raises UnreadableInput."""
    name = origin.removeprefix("tree ")
    if told.apart:
        shown = ", ".join(told.apart[:4]) + " …" * (len(told.apart) > 4)
        raise UnreadableInput(
            f"{name}: holds the same outputs of {len(told.apart)} hosts or looks ({shown})",
            f"give one of them: torchtune-sys check --from {shlex.quote(os.path.join(path, told.apart[0]))}",
        )
    if told.snapshot is None:
        raise UnreadableInput(
            f"{name}: holds no recorded /proc or /sys, nor what a command printed about a host",
            f"give a tree with proc/ and sys/ in it, or a recording made with: torchtune-sys record; logs of a job: {to_diagnose(name)}",
        )
    from torchtune_sys.evidence.outputs import named

    return msgspec.structs.replace(told.snapshot, origin=named(told.snapshot.origin, told.read, told.unread))


def _completed(seen: Snapshot, told: _Told | None, only: Iterable[str] | None) -> Snapshot:
    if told is None or not (told.read or told.unread):
        return seen
    from torchtune_sys.evidence.outputs import completed, named

    if told.snapshot is not None:
        seen = completed(seen, told.snapshot, FAMILIES if only is None else only)
    return msgspec.structs.replace(seen, origin=named(seen.origin, told.read, told.unread))


def host_of(options: Mapping[str, Any]) -> Host | None:
    """Return the host again, for further reading; None for pasted text and for standard input, which has been read already."""
    if options["from_"] == "-":
        return None
    found = opened(options)
    return None if isinstance(found, PastedText) else found


def opened(options: Mapping[str, Any]) -> Host | PastedText:
    """Return the host or text that the options name. A host remembers what it read and what did not answer. Raises UnreadableInput."""
    if any(options.get(name) is not None for name in DESCRIPTION):
        from torchtune_sys.cli.described import described_host

        return described_host(options)
    require_apart((options.get("output"), options.get("facts")), (options["from_"],))
    timeout_s = seconds_to_look(options)
    within_s = timeout_s - min(_MARGIN_S, 0.3 * timeout_s)
    deadline = time.monotonic() + within_s
    for path in (options["from_"], options["root"]):
        if path and path != "-":
            from torchtune_sys.host.children.apart import require_answer

            require_answer(path, min(within_s, INPUT_TIMEOUT_S))
    found = open_input(options["from_"], options["root"], min(timeout_s, INPUT_TIMEOUT_S), deadline=deadline)
    if options.get("python") and isinstance(found, Host) and found.live and not options.get("python_is_judged"):
        _must_be_a_program(found, options["python"], min(within_s, INPUT_TIMEOUT_S))
    return found


def _must_be_a_program(host: Host, python: str, timeout_s: float) -> None:
    """Raise UserError where --python names nothing that could be started: a mistake of who typed it, and no finding of the host."""
    from torchtune_sys.host.children.apart import run_in_child
    from torchtune_sys.host.children.examined import no_program
    from torchtune_sys.probes.python.interpreter import chosen

    def check() -> str:
        place = chosen(host, host.env(), python)
        seen = f"--python: {place.detail}" if isinstance(place, Missing) else no_program(place)
        if seen:
            raise UserError(seen.replace("--python: --python", "--python"), "use --python to name the interpreter you train with")
        return ""

    run_in_child(
        check,
        UserError(f"--python {python}: no answer within {timeout_s:g} s", "check whether its file system still responds"),
        timeout_s,
    )


def seconds_to_look(options: Mapping[str, Any]) -> float:
    """Return how many seconds reading the whole host may take."""
    return float(options["timeout"] or (LIVE_TIMEOUT_S if options.get("live") else TIMEOUT_S))


def ended(under_way: engine.ProbeRun, timeout_s: float) -> Snapshot:
    """Return the facts; on a terminal, show the families that take long."""
    show = progress()
    try:
        return under_way.end(timeout_s, show)
    finally:
        clear_progress(show)


def _from_text(pasted: PastedText, intent: Workload) -> Snapshot:
    seen = engine.report(pasted.text, pasted.name, intent)
    if seen is None:
        from torchtune_sys.knowledge.sentences import first_known

        if line := first_known(pasted.text):
            raise UnreadableInput(
                f"{pasted.name}: does not describe a host, but contains a known error: {line}",
                f"{to_diagnose(pasted.name)} names its cause",
            )
        from torchtune_sys.evidence.pasted import not_read

        if named := not_read(pasted.text):
            what, _, todo = named.partition(": ")
            raise UnreadableInput(f"{pasted.name}: {what}", todo)
        raise UnreadableInput(
            f"{pasted.name}: is neither a recording nor a report that can be read",
            f"a failed program's output: {to_diagnose(pasted.name)}; of reports, collect_env, nvidia-smi, dmesg, lspci and those in "
            "docs/inputs.md are read",
        )
    env = {} if isinstance(seen.session, Missing) else known(seen.session.env, {})
    told = {name: value for name, value in from_environment(env).items() if getattr(intent, name) is None}
    return msgspec.structs.replace(seen, intent=msgspec.structs.replace(intent, **told))


def to_diagnose(name: str) -> str:
    """Return the command that diagnoses what was read, by its name.

    >>> to_diagnose("a b.log"), to_diagnose("standard input")
    ("torchtune-sys diagnose 'a b.log'", 'torchtune-sys diagnose -')
    """
    return f"{PROGRAM} diagnose {'-' if name == STANDARD_INPUT else quote(name)}"


def now() -> tuple[str, float]:
    """Return the time: RFC 3339 in UTC, and in seconds since 1970."""
    moment = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment)), moment
