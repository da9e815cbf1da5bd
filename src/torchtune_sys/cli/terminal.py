"""Write to standard output and standard error, and end the process."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from torchtune_sys.cli.invocation import before_root, behind_sudo, program
from torchtune_sys.errors import CannotWrite, UserError
from torchtune_sys.model.numbers import natural

if TYPE_CHECKING:
    from typing import NoReturn, TextIO

    from torchtune_sys.render.layout import Style

NARROW, USUAL, WIDE = 40, 80, 100
_MOST_COLUMNS = 10_000
_ASCII = {"→": "->", "–": "-", "…": "...", "×": "x", "≥": ">=", "≤": "<=", "µ": "u", "°": "deg "}
"""Signs that our own texts hold (tests/cli/test_streams.py), and how they look where the terminal has ASCII alone, or was said to (LC_ALL=C)."""


def environment() -> Mapping[str, str]:
    """Return the environment of this process (not of the host that is judged)."""
    from torchtune_sys.host.live import LiveHost
    from torchtune_sys.model.values import known

    return known(LiveHost().env(), {})


def style(color: str, output: str | None = None, *, is_here: bool = False) -> Style:
    """Return how text for people is laid out where the result goes: ``color`` is auto, always or never; ``is_here``: its commands are for this host."""
    from torchtune_sys.render.layout import SUDO, Style

    to_terminal = output is None and is_terminal(sys.stdout)
    asked = asked_columns() if output is None else 0
    width = max(asked, NARROW) if asked else min(max(_columns(sys.stdout), NARROW), WIDE) if to_terminal else USUAL
    env = environment()
    shown = program(env)
    return Style(
        width=width,
        color=colored(color, env, to_terminal),
        program=shown,
        behind_sudo=behind_sudo(shown),
        before_root=before_root(env) if is_here else SUDO,
    )


def colored(color: str, env: Mapping[str, str], to_terminal: bool) -> bool:
    """Return whether to use colour: the option, then NO_COLOR (no-color.org), FORCE_COLOR, then whether somebody looks."""
    if color != "auto":
        return color == "always"
    if env.get("NO_COLOR"):
        return False
    if env.get("FORCE_COLOR", "0") != "0":
        return True
    return to_terminal and env.get("TERM") != "dumb"


def can_ask() -> bool:
    """Return whether somebody is there to answer a question."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


def is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def asked_columns() -> int:
    """Return the width that COLUMNS asks for, which overrides the terminal's own (environ(7)); 0 if it asks for none."""
    text = environment().get("COLUMNS", "")
    number = natural(text) or 0
    return number if number <= _MOST_COLUMNS else 0


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or USUAL
    except (OSError, ValueError):
        return USUAL


def give(text: str, output: str | None, *, machine: bool = False, readable: bool = False, program: bool = False) -> None:
    """Write the result to the file ``output``, or to standard output (``None`` or ``-``). Raises CannotWrite.

    ``readable``: a new file that root creates may be read by others. ``program``: a new file can be started, by others as well.
    """
    if output is None or output == "-":
        say(text, machine=machine)
    else:
        from torchtune_sys.host.files import EXECUTABLE, PRIVATE, READABLE, write_in_child

        write_in_child(output, text, by_root=EXECUTABLE if program else READABLE if readable else PRIVATE)


def require_output(output: str | None, *named: str | None) -> None:
    """Raise CannotWrite where the result of work that takes long, or changes the host, could not be written in the end: to ``output`` as
    :func:`give` takes it, and to each other file that is ``named``."""
    if output is None or output == "-":
        _open_stdout()
    for file in (output, *named):
        if file is not None and file != "-":
            from torchtune_sys.host.files import require_place

            require_place(file)


def require_apart(outputs: Iterable[str | None], inputs: Iterable[str | None]) -> None:
    """Raise UserError where a result would be written over what it is made from: a log that somebody pasted is then gone."""
    named = {os.path.normpath(path) for path in inputs if path}
    for output in outputs:
        if output and output != "-" and os.path.normpath(output) in named:
            raise UserError(f"{output} is read, so nothing is written over it", "name another file for the result")


class Closed(io.StringIO):
    """What stands for a standard output that was closed before the start: nothing can be written to it. Raises CannotWrite."""

    def write(self, text: str) -> int:
        raise CannotWrite("standard output is closed", "leave it open")


def _open_stdout() -> TextIO:
    stream = sys.stdout
    if stream is None or isinstance(stream, Closed) or stream.closed:
        raise CannotWrite("standard output is closed", "leave it open, or name a file with --output")
    return stream


def say(text: str, *, machine: bool = False) -> None:
    """Write to standard output. A reader that went away is not an error; a full disk or a closed stream is CannotWrite."""
    stream = _open_stdout()
    encoding = "utf-8" if machine else (stream.encoding or "utf-8")
    text = text if machine else _for_locale(text)
    with contextlib.suppress(OSError):
        os.set_blocking(stream.fileno(), True)  # Node.js and ssh leave pipes otherwise, and a slow reader would cost the rest
    try:
        stream.flush()
        stream.buffer.write(encoded(text, encoding))
        stream.flush()
    except BrokenPipeError:
        _discard(stream)
    except OSError as error:
        _discard(stream)
        raise CannotWrite.because(error, "standard output", "make room, or name a file with --output") from None


def encoded(text: str, encoding: str) -> bytes:
    """Return ``text`` for a stream that may not know all its characters: arrows and dashes in ASCII, escapes for the rest."""
    try:
        return text.encode(encoding)
    except UnicodeEncodeError:
        return _plain(text).encode(encoding, "backslashreplace")


def _for_locale(text: str) -> str:
    """Return the text with our own signs in ASCII below LC_ALL=C, as people have it on a serial console: Python writes UTF-8 there, too (PEP 540)."""
    return _plain(text) if environment().get("LC_ALL") in ("C", "POSIX") else text


def _plain(text: str) -> str:
    for sign, plain in _ASCII.items():
        text = text.replace(sign, plain)
    return text


_LONGEST = 4000
"""Characters of a row: it may hold words of an input, as long as the input is."""
_LONG_WORD, _KEPT = 255, 100
"""Characters of a word that is told whole, as long as a file's name may be (NAME_MAX), and how many are told of a longer one."""


def tell(*rows: str) -> None:
    """Say something beside the result, on standard error. A row may hold words of the host that is judged."""
    from torchtune_sys.host.secrets.filter import scrubbed
    from torchtune_sys.render.layout import row, startable

    stream = sys.stderr
    if stream is None or stream.closed:
        return
    started_as = program(environment())
    text = _for_locale("".join(startable(row(_short(scrubbed(words))), started_as) for words in rows))
    with contextlib.suppress(OSError):
        stream.write(encoded(text, stream.encoding or "utf-8").decode(stream.encoding or "utf-8"))
        stream.flush()


def _short(words: str) -> str:
    """Return what is told of a row: its first characters, and of long words theirs. The filter of secrets has read it whole."""
    return re.sub(rf"(?<![^\s/])([^\s/]{{{_KEPT}}})[^\s/]{{{_LONG_WORD - _KEPT + 1},}}", r"\1…", words)[:_LONGEST]


def progress(timeout_s: float = 2.0) -> Callable[[set[str]], None] | None:
    """Return a callback that shows which families are still being read once that takes long; None if stderr is no terminal."""
    if not is_terminal(sys.stderr):
        return None
    import time

    started = time.monotonic()

    def show(families: set[str]) -> None:
        if time.monotonic() - started > timeout_s:
            status(f"still reading: {', '.join(sorted(families))} ({time.monotonic() - started:.0f} s)")

    return show


def stage_progress() -> tuple[Callable[[str, int, int], None], Callable[[], None]]:
    """Return a callback that shows the running stage and one that clears it; both do nothing if stderr is no terminal."""
    if not is_terminal(sys.stderr):
        return (lambda _stage, _rank, _ranks: None), (lambda: None)
    import time

    started = time.monotonic()

    def show(stage: str, _rank: int, ranks: int) -> None:
        status(f"{time.monotonic() - started:4.0f} s  {stage}  ({ranks} rank{'s' if ranks != 1 else ''})")

    return show, lambda: status("")


def growing_number(what: str) -> tuple[Callable[[int], None], Callable[[], None]]:
    """Return a callback that shows a growing count after two seconds and one that clears it; both do nothing if stderr is no terminal."""
    if not is_terminal(sys.stderr):
        return (lambda _count: None), (lambda: None)
    import time

    started = shown = time.monotonic()

    def show(count: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - started > 2 and now - shown > 0.2:
            shown = now
            status(f"{what}: {count:,} ({now - started:.0f} s)")

    return show, lambda: status("")


def status(text: str) -> None:
    """Replace the terminal's status line, of one row where each character takes a column; "" clears it. It may hold words of a rank, which may run as another user. A terminal
    that cannot clear a row (TERM=dumb) has none."""
    if environment().get("TERM") == "dumb":
        return
    if text:
        from torchtune_sys.render.layout import clean

        text = clean(text[:_LONGEST]).encode("ascii", "replace").decode()[: _columns(sys.stderr) - 1]
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def clear_status() -> None:
    """Clear what the status line shows, so that a message does not go on in it."""
    if is_terminal(sys.stderr):
        status("")


def clear_progress(show: Callable[[set[str]], None] | None) -> None:
    """Clear the status line, if there is one."""
    if show is not None:
        status("")


def _discard(stream: TextIO) -> None:
    """Redirect the stream to /dev/null, so that what is still buffered is not written again at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def leave(code: int) -> NoReturn:
    """End the process without waiting for threads that hang in the kernel; children are ended first. A pipe that is full, and that nobody reads, is
    waited for until a signal comes; after one, a second."""
    import signal

    from torchtune_sys.cli.watch import SIGNALLED, heeded_signals

    def at_once(number: int, _frame: object) -> None:
        os._exit(code if number == signal.SIGALRM else SIGNALLED + number)

    heeded = heeded_signals()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C while the children are ended
    process = sys.modules.get("torchtune_sys.host.children.process")
    if process is not None and hasattr(process, "end_all"):  # a thread may be in the middle of importing it
        process.end_all(for_good=True)
    signal.signal(signal.SIGALRM, at_once)
    if code > SIGNALLED:
        signal.alarm(1)
    else:
        for asked in heeded:
            signal.signal(asked, at_once)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except BrokenPipeError:
                pass
            except (OSError, ValueError):
                code = code or 4
    os._exit(code)
