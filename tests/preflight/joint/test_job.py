"""Which rank of which job asks, who is paired with whom, and where a node finds the others when the network is cut: over real connections, some to
listeners that take none."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from torchtune_sys.host.peers.wire import Gone, handshake
from torchtune_sys.preflight.joint import meeting, messages
from torchtune_sys.preflight.joint.job import Job, job_of
from torchtune_sys.preflight.joint.phases import pairings

JOB = Job(rank=6, world=8, local=0, locals_=1, node=6, nodes=8, master="127.0.0.1", ports=(1,), key="k", secret=b"k")
TRIES = 8


@contextlib.contextmanager
def silent() -> Iterator[int]:
    """A port whose queue is full: the kernel drops whoever else calls, as a cut does."""
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(socket.socket())
        held.bind(("127.0.0.1", 0))
        held.listen(0)
        for _ in range(TRIES):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(held.getsockname())
        yield held.getsockname()[1]


class Candidate:
    """Says who it is, and notes to whom it was asked to lead: nobody, since it reaches no more than we do."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.led: list[int] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(Gone):
            wire = await handshake(reader, writer, b"k", first=False)
            while True:
                asked = messages.asked(await wire.receive(5))
                if isinstance(asked, messages.Who):
                    wire.send(messages.plain(messages.Me(node=self.node, key="k", members=1)))
                elif isinstance(asked, messages.Relay):
                    self.led.append(asked.to)
                    wire.send({"is": "cannot"})
        writer.close()


@pytest.mark.parametrize(("reached", "best", "led"), [((4, 5), 4, []), ((), None, [0, 1, 2, 3])])
def test_one_side_of_a_cut_meets_without_waiting_for_the_other(
    monkeypatch: pytest.MonkeyPatch, reached: tuple[int, ...], best: int | None, led: list[int]
) -> None:
    """Before, each node of the other side was asked for one after the other, through everybody, for half a minute; the meeting was over by then."""
    monkeypatch.setattr(meeting, "DIAL_S", 0.5)

    async def go() -> tuple[int | None, list[int]]:
        where = meeting.Map(JOB, lambda: 1)
        order = (0, 1, 2, 3, *reached, 7)
        candidates = [Candidate(node) for node in (*reached, 7)]
        with contextlib.ExitStack() as stack:
            servers = [await asyncio.start_server(each.serve, "127.0.0.1", 0) for each in candidates]
            ports = [server.sockets[0].getsockname()[1] for server in servers]
            where.table = {each.node: ("127.0.0.1", port) for each, port in zip(candidates, ports, strict=True)}
            where.table |= {node: ("127.0.0.1", stack.enter_context(silent())) for node in range(4)}
            found = await meeting.lower(where, order, 6, ())
            if found is not None:
                found.wire.close()
            for server in servers:
                server.close()
        await asyncio.sleep(0.05)
        return found and found.node, sorted(node for each in candidates for node in each.led)

    assert asyncio.run(go()) == (best, led)


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 9, 100])
def test_each_round_holds_each_node_at_most_once_and_each_pair_is_new(count: int) -> None:
    rounds = pairings(range(count))
    for pairs in rounds:
        ends = [end for pair in pairs for end in pair]
        assert len(ends) == len({*ends}) >= count - 1
    every = [pair for pairs in rounds for pair in pairs]
    assert len(every) == len({*every})
    assert count > 8 or len(every) == count * (count - 1) // 2


SLURM = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_NODEID": "2", "SLURM_STEP_NUM_NODES": "4"}


def test_the_job_is_read_from_each_launcher() -> None:
    job = job_of({**SLURM, "SLURM_STEP_NODELIST": "a[1-4]", "SLURM_STEP_TASKS_PER_NODE": "2(x4)"})
    assert job is not None
    assert (job.rank, job.world, job.node, job.nodes, job.local, job.locals_, job.master) == (5, 8, 2, 4, 1, 2, "a1")
    job = job_of(
        {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "h", "SLURM_NODEID": "0"}
    )
    assert job is not None
    assert (job.node, job.nodes) == (1, 2)
    assert job_of({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "h"}) is None
    assert job_of({}) is None


def test_nodes_with_differing_numbers_of_ranks_find_their_places_in_the_list() -> None:
    """mpirun -H n1:1,n2:2,n3:1 tells nobody which node is which: by their ranks alone n2 would be node 0 of 2."""
    names = ("n2.example", "n1", "n3")
    for host, rank, local, locals_, node in (("n1", 0, 0, 1, 0), ("n2", 1, 0, 2, 1), ("n2", 2, 1, 2, 1), ("n3", 3, 0, 1, 2)):
        env = {"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(locals_)}
        job = job_of({**env, "MASTER_ADDR": "n1"}, names, b"", host)
        assert job is not None
        assert (job.node, job.nodes, job.names, job.locals_) == (node, 3, ("n1", "n2.example", "n3"), locals_)


@pytest.mark.parametrize("name", ["SLURM_STEP_ID", "SLURM_RESTART_COUNT", "PMIX_NAMESPACE"])
def test_each_start_of_a_job_is_another_one(name: str) -> None:
    """A job that is requeued has the same number, and the same number of its first step."""
    env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "n0", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    first, second = job_of(env), job_of({**env, name: "1"})
    assert first is not None and second is not None and first.key != second.key
