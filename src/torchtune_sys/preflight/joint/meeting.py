"""Find the other nodes: at the lowest of a few candidate nodes that this node reaches, directly or through another.

Every candidate may become the coordinator, so the first node may be the bad one. A node whose way to the coordinator is cut comes through a
third one: then the link is to blame, and nobody "did not come".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from torchtune_sys.host.peers.streams import connect
from torchtune_sys.host.peers.wire import BUFFER, Gone, OtherRelease, Wire, call, handshake
from torchtune_sys.preflight.joint import messages
from torchtune_sys.preflight.joint.gathered import OTHER_RANK
from torchtune_sys.preflight.joint.job import Job

DIAL_S = 2.5
"""Time for a second SYN, not for a third."""
_OF_ANOTHER = ("other-", OTHER_RANK)
Place = tuple[str, tuple[int, ...]]
"""An address, and the ports to try there."""


class Reached:
    """A connection to a candidate, which accepted us."""

    def __init__(self, answer: messages.Me, wire: Wire, via: int | None, dialled: str) -> None:
        self.node, self.wire, self.via, self.dialled = answer.node, wire, via, dialled
        self.members = answer.members
        """How many follow it, itself among them; 0 where it follows another."""


class Map:
    """Where candidates are: told by the launcher at first, by the coordinator later."""

    def __init__(self, job: Job, own_port: Callable[[], int]) -> None:
        self._job, self._own_port = job, own_port
        self.table: dict[int, tuple[str, int]] = {}
        self.words: dict[int, str] = {}
        """How the last try to reach a candidate ended."""
        self.answers: dict[int, messages.Me] = {}
        """What nodes said last when they were reached."""

    def places(self, node: int) -> Iterable[Place]:
        if not 0 <= node < self._job.nodes:
            return
        if node == self._job.node:
            yield "127.0.0.1", (self._own_port(),)
            return
        if node in self.table:
            address, port = self.table[node]
            yield address, (port,)
            return
        if node == 0:
            yield self._job.master, self._job.ports
        if node < len(self._job.names) and not (node == 0 and self._job.names[0] == self._job.master):
            yield self._job.names[node], self._job.ports

    async def dial(self, node: int) -> Reached | None:
        """Connect to a candidate, at each place and port where it may be. What went wrong is in ``words``."""
        word = "unknown-address"
        for address, ports in self.places(node):
            for port in ports:
                try:
                    wire = await call(address, port, self._job.secret, DIAL_S)
                    word = await self._who(wire, node)
                    if word == "ok":
                        self.words[node] = word
                        return Reached(self.answers[node], wire, None, address)
                    wire.close()
                except OtherRelease:
                    word = "other-release"
                except Gone as error:
                    word = f"no-greeting: {error}"
                except ConnectionRefusedError:
                    word = word if word.startswith(_OF_ANOTHER) else "refused"  # at another port somebody answers
                except TimeoutError:
                    word = "time-out"
                    break  # the other ports of this address are tried the next time
                except OSError as error:
                    word = (
                        "unresolvable"
                        if "ddress" not in str(error) and getattr(error, "errno", 0) in (-2, -3, -5)
                        else "unreachable"
                    )
                    break
        self.words[node] = word
        return None

    async def _who(self, wire: Wire, node: int) -> str:
        """Ask who answers: ``ok`` where it is the node. Whoever greets, and then does not know what we sign with, belongs to another job."""
        wire.send(messages.plain(messages.Who()))
        try:
            answer = messages.me(await wire.receive(DIAL_S))
        except Gone as error:
            return "other-job" if str(error) == "closed" else f"no-greeting: {error}"
        if answer.key != self._job.key:
            return "other-job"
        if answer.node != node:
            return f"{OTHER_RANK}{answer.node}"
        self.answers[node] = answer
        return "ok"

    async def dial_through(self, helper: int, node: int) -> Reached | None:
        """Reach ``node`` through ``helper``, which passes on what we say, and can neither read ahead nor change it."""
        reached = await self.dial(helper)
        if reached is None:
            return None
        wire = reached.wire
        wire.send(messages.plain(messages.Relay(to=node)))
        try:
            if (await wire.receive(2 * DIAL_S)).get("is") != "through":
                wire.close()
                return None
            inner = await handshake(*wire.streams(), self._job.secret, first=True, timeout_s=DIAL_S)
            inner.send(messages.plain(messages.Who()))
            answer = messages.me(await inner.receive(DIAL_S))
            if answer.node == node:
                return Reached(answer, inner, helper, "")
        except Gone:
            pass
        wire.abort()
        return None


async def seat(job: Job, token: str) -> tuple[int, str]:
    """Return the place that a launcher is given where all meet; -1 where it gets none, and why: ``full``, or how the last try ended."""
    word = "unreachable"
    for port in job.ports:
        try:
            wire = await call(job.master, port, job.secret, DIAL_S)
            wire.send(messages.plain(messages.Seat(key=job.key, token=token)))
            found = messages.seated(await wire.receive(DIAL_S))
            wire.close()
            if found >= 0:
                return found, ""
            word = "full"
        except Gone as error:
            word = f"no-greeting: {error}"
        except ConnectionRefusedError:
            word = "refused"
        except TimeoutError:
            return -1, "time-out"
        except OSError:
            return -1, "unreachable"
    return -1, word


async def splice(near: Wire, place: Iterable[Place], accept: Callable[[], None]) -> None:
    """Join a node's connection with a new one to another node, until either ends."""
    for address, ports in place:
        for port in ports:
            try:
                reader, writer = await asyncio.wait_for(connect(address, port, BUFFER), DIAL_S)
            except asyncio.TimeoutError:
                break  # as with the other ports of this address, for which nobody waits
            except OSError:
                continue
            accept()
            ends = near.streams()
            ways = [asyncio.ensure_future(_pump(ends[0], writer)), asyncio.ensure_future(_pump(reader, ends[1]))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            writer.close()
            near.close()
            return
    near.send({"is": "cannot"})


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()


async def lower(where: Map, order: Iterable[int], own: int, excluded: Iterable[int], *, through: bool = True) -> Reached | None:
    """Return the lowest candidate before ``own`` that is reached directly; where none is, and ``through``, the lowest that is with the help of another.

    Who is reached directly looks for a better one itself, and sends us on to it: nobody of a cut network waits for the other side meanwhile.
    """
    left_out = {*excluded}
    before = [node for node in order if node < own and node not in left_out]
    found = await asyncio.gather(*map(where.dial, before))
    silent = [node for node in before if where.words.get(node) in ("time-out", "unreachable")]
    if through and not any(found):
        helpers = [other for other in order if other not in (own, *silent) and other not in left_out]
        found = await asyncio.gather(*(where.dial_through(helper, node) for node in silent for helper in helpers))
    reached = [each for each in found if each is not None]
    best = min(reached, key=lambda each: each.node, default=None)
    for each in reached:
        if each is not best:
            each.wire.close()
    return best
