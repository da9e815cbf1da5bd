"""Run a command on many hosts with an existing transport, each under a deadline, and report the answers and failures."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from itertools import chain, islice
from typing import Any, Protocol

import msgspec

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.fleet.reading import COLLECTED
from torchtune_sys.host.secrets.filter import brief, scrubbed
from torchtune_sys.host.secrets.values import HIDDEN
from torchtune_sys.model import codec
from torchtune_sys.render.layout import clean

_CLOCK_S = 2.0
"""How far a host's clock may lie outside the interval in which it was asked."""
_SAID, _SAID_AT_MOST = 100, 300
_NAME = re.compile(r"(?:\w[\w.+-]{0,63}@)?(?:\w|::)[\w.:%-]{0,252}")
_LOOKED_AT = 1 << 16
ANSWER_AT_MOST = 4 << 20
"""Bytes of one host; facts have some 20 kB. Many hosts answer at once."""
_HOSTS_AT_MOST = 65_533
"""As many as a Slurm cluster can have (MAX_NODES of slurm.h)."""
_DOCUMENTS_AT_MOST = 16
"""Lines of a host that are tried as a document."""
_OURS = "torchtune-sys/"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one host."""

    host: str
    out: str = ""
    error: str = ""
    status: int | None = None
    """None if the command did not end there."""
    why: str = ""
    """Why there is no answer, in the transport's full words; shortened only after secrets are removed."""
    begun_s: float = 0.0
    ended_s: float = 0.0


class Transport(Protocol):
    """Slurm, ClusterShell …"""

    width: int
    """Number of hosts per call."""

    def hosts(self) -> tuple[Sequence[str], Sequence[Answer]]:
        """Return the hosts to ask, and answers for those known to be down. Raises UnreadableInput."""

    def run(self, hosts: Sequence[str], command: tuple[str, ...], timeout_s: float) -> Iterable[Answer]:
        """Run the command on some hosts, and return an answer for each within little more than ``timeout_s``."""


def collect(
    transport: Transport,
    command: tuple[str, ...],
    timeout_s: float,
    at_once: int,
    put: Callable[[str], None],
    show: Callable[[int], None],
) -> None:
    """Pass a line of JSON to ``put`` for each host as it answers. Raises UnreadableInput if there is no host to ask, or are too many."""
    listed, dead = transport.hosts()
    if len(listed) + len(dead) > _HOSTS_AT_MOST:
        raise UnreadableInput(
            f"{len(listed) + len(dead)} hosts are more than {_HOSTS_AT_MOST}", "name fewer of them with --nodes"
        )
    hosts = [name for name in listed if may_be_asked(name)]
    dead = [*dead, *(Answer(host=name, why="not asked: this is no name of a host") for name in listed if not may_be_asked(name))]
    for count, answer in enumerate(chain(dead, _answers(transport, hosts, command, timeout_s, at_once)), 1):
        put(codec.line(line(answer)))
        show(count)


def may_be_asked(name: str) -> bool:
    """Return whether a transport can be given a name: ssh takes one that begins with ``-`` for an option, and runs what it names; others
    take one with ``/`` for a file, and several signs for lists, patterns and commands.

    >>> [may_be_asked(name) for name in ("n1.example", "ada@n1", "fe80::1%eth0", "-oProxyCommand=x", "ada@-oProxyCommand=x", "a/b", "a,b", "$(x)", "")]
    [True, True, True, False, False, False, False, False, False]
    """
    return _NAME.fullmatch(name) is not None


def _answers(
    transport: Transport, hosts: Sequence[str], command: tuple[str, ...], timeout_s: float, at_once: int
) -> Iterator[Answer]:
    parts = [hosts[place : place + transport.width] for place in range(0, len(hosts), transport.width)]
    pool = ThreadPoolExecutor(max(at_once // transport.width, 1))
    try:
        for done in as_completed([pool.submit(_asked, transport, part, command, timeout_s) for part in parts]):
            yield from done.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # interrupted, nobody waits for who is still asked


def _asked(transport: Transport, hosts: Sequence[str], command: tuple[str, ...], timeout_s: float) -> list[Answer]:
    begun = time.time()
    found = {answer.host: answer for answer in transport.run(hosts, command, timeout_s)}
    ended = time.time()
    silent = Answer(host="", why="no answer")
    return [msgspec.structs.replace(found.get(host, silent), host=host, begun_s=begun, ended_s=ended) for host in hosts]


def line(answer: Answer) -> dict[str, Any]:
    """Return the line of a host: its document, or why there is none. Nothing that it says need have been filtered there: ``fleet`` runs any command."""
    row: dict[str, Any] = {"schema": COLLECTED, "host": answer.host, "status": answer.status}
    document = None if answer.why and not answer.out else _document(answer.out)
    if document is None:
        return {**row, "why": _why(answer)}
    row["document"] = document
    offset = _clock_offset(answer, document)
    return {**row, "clock_offset_s": offset} if offset is not None else row


def _document(out: str) -> dict[str, Any] | None:
    """Return the JSON that the command printed; what a login shell or a batch system prints before it is left out."""
    for candidate in _candidates(out):
        try:
            found = codec.loads(candidate)
        except ValueError:
            continue
        if isinstance(found, dict) and str(found.get("schema", "")).startswith(_OURS):
            with suppress(RecursionError):
                return _filtered(found)
    return None


def _filtered(document: dict[str, Any]) -> dict[str, Any]:
    """Return it without what looks like a secret by itself, or by the name that it stands under. A document that the tool made has none, and stays as it is."""
    text = codec.line(document)
    if scrubbed(text) == text:
        return document
    return {name: _without_secrets(value, name) for name, value in document.items()}


def _without_secrets(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {scrubbed(each): _without_secrets(item, each) for each, item in value.items()}
    if isinstance(value, list):
        return [_without_secrets(item, name) for item in value]
    if not isinstance(value, str):
        return value
    found = scrubbed(value)
    named = f'"{name}": {json.dumps(found)}'
    return found if scrubbed(named) == named else HIDDEN


def _candidates(out: str) -> Iterator[str]:
    rows = out.split("\n")
    whole = (row for row in rows if row.startswith("{") and _OURS in row and row.rstrip().endswith("}"))
    yield from islice(whole, _DOCUMENTS_AT_MOST)
    for place, row in enumerate(rows):
        if row.startswith("{"):
            yield "\n".join(rows[place:])
            return


def _why(answer: Answer) -> str:
    if answer.why:
        return shortened(answer.why)
    last = next((row for row in reversed(answer.error.strip().splitlines()) if row.strip()), "")
    said = f": {shortened(last, _SAID)}" if last else ""
    if answer.status:
        return f"exit status {answer.status}{said}"
    if answer.out.strip():
        return f"answered no JSON of ours, but: {shortened(answer.out, _SAID)}"
    return f"answered nothing{said}"


def shortened(text: str, most: int = _SAID_AT_MOST) -> str:
    """Return shortened output of foreign programs, without secrets."""
    found = clean(brief(text[:_LOOKED_AT], most))
    return found if len(found) < most else found[: most - 1] + "…"


def _clock_offset(answer: Answer, document: dict[str, Any]) -> int | None:
    """Return by how many seconds the host's clock lies outside the interval in which it was asked; 0 if inside; None if unknown."""
    volatile = document.get("volatile")
    moment = volatile.get("epoch_s") if isinstance(volatile, dict) else document.get("epoch_s")
    if not isinstance(moment, (int, float)) or not answer.begun_s:
        return None
    if moment < answer.begun_s - _CLOCK_S:
        return round(moment - answer.begun_s)
    return round(moment - answer.ended_s) if moment > answer.ended_s + _CLOCK_S else 0
