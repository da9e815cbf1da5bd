"""torchrun agents that meet before there are ranks: the job they form, absent agents, and agents that started without a pre-flight."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from torchtune_sys.errors import UserError
from torchtune_sys.host.peers import torch_store
from torchtune_sys.host.peers.addresses import is_own
from torchtune_sys.host.peers.wire import Door
from torchtune_sys.model.numbers import natural
from torchtune_sys.preflight.joint.gathered import Gathered, own_name, own_names, taken
from torchtune_sys.preflight.joint.job import PORTS_TRIED, Agents, Job, as_bytes

DEFAULT_PORT = 29400
"""Of torchrun's rendezvous where the endpoint names none (torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py, DEFAULT_PORT)."""
_HEAR_S = 5.0
_CONNECTIONS = 2048
"""Connections that are held at once: a launcher has one, and whoever reaches the port may open thousands."""
AFTER_PASSING_S = 15.0
"""So long the others are waited for once a launcher went on: its own rendezvous gives up after 60 s."""


def place_of(endpoint: str) -> tuple[str, int]:
    """Return host and port of a rendezvous endpoint. Raises UserError.

    >>> place_of("n1:29500"), place_of("n1"), place_of(""), place_of("[fd00::1]:29500")
    (('n1', 29500), ('n1', 29400), ('localhost', 29400), ('fd00::1', 29500))
    """
    text = endpoint.strip()
    host, _, port = text.rpartition(":") if ":" in text and not text.endswith("]") else (text, "", "")
    is_in_brackets = host.startswith("[") and host.endswith("]")
    number = natural(port) if port else DEFAULT_PORT
    if number is None or not 0 < number < 65536:
        raise UserError(f"{endpoint}: the port is not a number between 1 and 65535", "an endpoint is HOST or HOST:PORT")
    if ":" in host and not is_in_brackets:
        raise UserError(f"{endpoint}: an IPv6 address stands in brackets", "an endpoint is HOST, HOST:PORT or [ADDRESS]:PORT")
    return host[1:-1] if is_in_brackets else host or "localhost", number


def job_of(
    endpoint: str,
    run_id: str,
    least: int,
    most: int,
    *,
    label: str,
    labels: Sequence[str],
    secret: bytes,
    last_call_s: float,
    is_host: bool | None = None,
    name: str = "",
) -> Job:
    """Return the job of a launcher that is to meet the others at ``endpoint``. Raises UserError.

    ``is_host``: whether it is this host that they meet at; None where its addresses shall tell.
    """
    host, port = place_of(endpoint)
    key = hashlib.sha256(as_bytes(f"agents {run_id} {host} {port} {most}") + secret).hexdigest()[:24]
    return Job(
        rank=0,
        world=most,
        local=0,
        locals_=1,
        node=0 if (is_own(host) if is_host is None else is_host) else -1,
        nodes=most,
        master=host,
        ports=tuple(1024 + (port + 1 + step - 1024) % 64512 for step in range(PORTS_TRIED)),
        secret=secret or key.encode(),
        key=key,
        agents=Agents(name=name, least=least, label=label, labels=tuple(labels), endpoint_port=port, last_call_s=last_call_s),
    )


def come(gathered: Gathered, nodes: Iterable[int], *, and_passed: bool = True) -> int:
    """Return how many launchers there are on these nodes, and of those that went on."""
    here = sum(len(gathered.members[node].ranks) for node in nodes if node in gathered.members)
    return here + len(gathered.passed) * and_passed


def came_again(gathered: Gathered, most: int) -> set[int]:
    """Return the places of launchers that went, and whose host sent another one since: there is one of its name, or all that should come are there."""
    stay = [node for node, member in gathered.members.items() if member.alive and node not in gathered.departed]
    names = own_names(gathered.members, of=stay)
    is_full = come(gathered, stay) >= most
    return {
        node
        for node in gathered.departed
        if not gathered.has_passed(node) and (is_full or own_name(gathered.members[node]) in names.values())
    }


def absent(gathered: Gathered, agents: Agents, most: int) -> dict[int, str]:
    """Return who did not come, each under a number that is free: by name where all that came stand in the list of all, else how many.
    Who came and went is not among them."""
    here = come(gathered, [node for node in gathered.members if not gathered.has_passed(node)])
    here += sum(not gathered.members[node].ranks for node in gathered.departed if not gathered.has_passed(node))
    if here >= most:
        return {}
    told = Counter(label for member in gathered.members.values() for label in taken(member.notes.get("agents"), list[str]) or ())
    names = list((Counter(agents.labels) - told).elements()) if {*told} <= {*agents.labels} and not gathered.passed else []
    free = [node for node in range(most) if node not in gathered.members]
    if not names or len(names) != most - here:
        return {free[0]: f"{most - here} of {most} agents"} if free else {}
    return dict(zip(free, names, strict=False))


class Passing:
    """Listens where the launchers' own rendezvous will, to learn of those that went there without a pre-flight."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._server: asyncio.AbstractServer | None = None
        self._held: set[asyncio.StreamWriter] = set()
        self._door = Door(_CONNECTIONS)
        self.since_s: dict[str, float] = {}
        """By address, when each was heard first."""

    async def start(self, port: int) -> None:
        """Where the port is taken nobody is heard."""
        with contextlib.suppress(OSError):
            self._server = await asyncio.start_server(self._hear, None, port, limit=512)

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Keep a client of torch's store, which waits for an answer; it gets none, and tries again when we are gone."""
        self._held.add(writer)
        try:
            with self._door.held(writer), contextlib.suppress(OSError, asyncio.TimeoutError):
                said = await asyncio.wait_for(reader.read(64), _HEAR_S)
                if torch_store.MAGIC in said and said != torch_store.QUESTION:
                    peer = writer.get_extra_info("peername") or ("",)
                    self.since_s.setdefault(str(peer[0]), time.monotonic())
                    self._changed()
                    await reader.read(1)  # until it goes, or we do
        finally:
            self._held.discard(writer)
            writer.close()

    def stop(self) -> None:
        """Leave the port to the launchers' own rendezvous."""
        if self._server is not None:
            self._server.close()
        for writer in [*self._held]:
            writer.transport.abort()
