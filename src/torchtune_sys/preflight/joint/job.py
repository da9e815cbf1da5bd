"""Find the job of this process and the meeting place of its nodes, from the launcher's environment."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from torchtune_sys.errors import BadConfig
from torchtune_sys.model.launchers import LAUNCHERS, local_rank
from torchtune_sys.model.numbers import natural
from torchtune_sys.preflight.joint.names import expanded, numbered

SECRET_VARIABLE = "TORCHTUNE_SYS_JOB_SECRET"
"""A secret that the user or the scheduler gives to all ranks; only the same user can read a process's environment."""
USUAL_PORT = 29500
PORTS_TRIED = 4
"""From MASTER_PORT on: an earlier job, or torchrun's own store, may hold the first."""


class Agents(msgspec.Struct, frozen=True, kw_only=True):
    """What is known where launchers meet, before there are ranks: their number at most is ``Job.nodes``, and places are given out as they come."""

    least: int
    """So many suffice to start."""
    name: str = ""
    """What this host is called."""
    label: str = ""
    """What this one is called in ``labels``."""
    labels: tuple[str, ...] = ()
    """Of all that should come; empty where nobody tells them."""
    endpoint_port: int
    """Where the launchers' own rendezvous will listen, on the host at which all meet."""
    last_call_s: float
    """How long those that suffice wait for the others."""


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """A leaf switch, and the nodes behind it by their names."""

    name: str
    nodes: tuple[str, ...]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's place in its job."""

    rank: int
    world: int
    local: int
    locals_: int
    """Ranks on this node."""
    node: int
    """Number of this node, from 0; -1 for a launcher that has not been given its place yet."""
    nodes: int
    names: tuple[str, ...] = ()
    """Of all nodes, where a node list tells them; else empty."""
    master: str
    ports: tuple[int, ...]
    secret: bytes = b""
    key: str
    """The same for all ranks of this job."""
    isolates: bool = False
    """Whether groups of nodes are tested until the part that fails or is slow is named."""
    leaves: tuple[Leaf, ...] = ()
    agents: Agents | None = None
    """Not None where no ranks but launchers take part."""

    @property
    def door(self) -> str:
        """Return the name under which those on one host find the process that speaks for them."""
        return f"{self.key}-{'agents' if self.agents is not None else self.node}"

    @property
    def has_secret(self) -> bool:
        """Return whether somebody gave the job a secret; else the key stands in its place, which is no secret."""
        return self.secret not in (b"", self.key.encode())

    @property
    def candidates(self) -> tuple[int, ...]:
        """Return the nodes at which the others may meet; launchers know one place only."""
        return (0,) if self.agents is not None else candidates(self.nodes)

    @property
    def ping_s(self) -> float:
        """Return how often the coordinator asks each node for its clock, and whether it is there: all of them no more than a thousand times a second."""
        return max(1.0, self.nodes / 1000)

    @property
    def silence_s(self) -> float:
        """Return the seconds of silence: after so long without a word a process is called stopped, or its host cut off. A busy machine is late by a second or two."""
        return max(8.0, 3 * self.ping_s)

    def name(self, node: int) -> str:
        """Return how a node is called that never said its name."""
        if self.agents is not None:
            return f"agent {node}"
        return self.names[node] if node < len(self.names) else numbered(node, self.locals_)


def as_bytes(text: str) -> bytes:
    """Return the bytes of a variable or an argument, which may be no UTF-8 (PEP 383).

    >>> as_bytes("n\\udcff")
    b'n\\xff'
    """
    return text.encode("utf-8", "surrogateescape")


def job_of(env: Mapping[str, str], hostfile: Sequence[str] = (), secret: bytes = b"", host: str = "") -> Job | None:
    """Read the job from the environment; None where that names no second rank, or not enough of the job. Raises BadConfig where it contradicts itself.
    ``host``: what this one calls itself, which tells its place in ``hostfile`` where nodes have differing numbers of ranks."""
    told = _ranks(env)
    if told is None or told[2] < 2:
        return None
    launcher, rank, world = told
    here = local_rank(env)
    local, locals_ = (here.rank, here.ranks or 1) if here is not None else (0, 1)
    node_names, nodes_names = _NODES.get(launcher, ((), ()))
    node, nodes = _number(env, *node_names), _number(env, *nodes_names)
    if nodes is None or node is None:
        node, nodes = rank // locals_, -(-world // locals_)
        is_even = world == locals_ * len(hostfile) and (rank - local) % locals_ == 0
        if hostfile and not is_even and (listed := _in_list(hostfile, host, env.get("MASTER_ADDR", ""))):
            node, hostfile = listed
            nodes = len(hostfile)
    if not 0 <= rank < world or not 0 <= node < nodes:
        raise BadConfig(f"rank {rank} of {world}, node {node} of {nodes}: the launcher's variables contradict each other", "")
    names = tuple(hostfile) or expanded(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", ""))
    names = names if len(names) == nodes else ()
    master = env.get("MASTER_ADDR") or (names[0] if names else "")
    if not master:
        return None
    port = _number(env, "MASTER_PORT") or USUAL_PORT
    first = port + 1 if env.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else port
    own_secret = secret or as_bytes(env.get(SECRET_VARIABLE, ""))
    run = env.get("TORCHELASTIC_RUN_ID") or "/".join(env.get(name, "") for name in _OF_ONE_START)
    key = hashlib.sha256(as_bytes(f"{run} {master} {port} {world}") + own_secret).hexdigest()[:24]
    return Job(
        rank=rank,
        world=world,
        local=local,
        locals_=locals_,
        node=node,
        nodes=nodes,
        names=names,
        master=master,
        ports=tuple(1024 + (first + step - 1024) % 64512 for step in range(PORTS_TRIED)),
        secret=own_secret or key.encode(),
        key=key,
    )


def _in_list(hosts: Sequence[str], host: str, master: str) -> tuple[int, tuple[str, ...]] | None:
    """Return a host's number among those of a list, and the list with that of the first rank at its head; None where the host or that one is not in it, or twice.

    >>> _in_list(("a", "b.example", "c"), "b", "c"), _in_list(("a", "b"), "b", "10.0.0.1")
    ((2, ('c', 'a', 'b.example')), None)
    """
    own, first = _own(hosts, host), _own(hosts, master)
    if not own or not first:
        return None
    ordered = tuple(sorted(hosts, key=first.__ne__))
    return ordered.index(own), ordered


_OF_ONE_START = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "PMIX_NAMESPACE")
"""The same on all ranks of one start, and others in the next: a job that is requeued begins with its first step again (sbatch(1)), and each mpirun has a
name of its own (PMIx 4, PMIX_NAMESPACE)."""
_NODES = {
    "torchrun": (("GROUP_RANK",), ("GROUP_WORLD_SIZE",)),
    "Slurm": (("SLURM_NODEID",), ("SLURM_STEP_NUM_NODES",)),
}
"""Which node this is, and of how many, by who started the ranks; elsewhere ranks are taken to be numbered node by node."""


def _ranks(env: Mapping[str, str]) -> tuple[str, int, int] | None:
    for launcher in LAUNCHERS:
        ranks = launcher.ranks or ("SLURM_STEP_NUM_TASKS" if launcher.name == "Slurm" else "")
        if launcher.rank and ranks and env.get(launcher.rank) and env.get(ranks):
            rank, world = _number(env, launcher.rank), _number(env, ranks)
            if rank is not None and world is not None:
                return launcher.name, rank, world
    return None


def _number(env: Mapping[str, str], *names: str) -> int | None:
    return next((number for name in names if (number := natural(env.get(name, ""), 7)) is not None), None)


def listed_as(env: Mapping[str, str], hosts: Sequence[str], name: str, nodes: int) -> tuple[str, tuple[str, ...]]:
    """Return what this node is called in a list of all, and the list: of names where somebody tells them, else of numbers that a launcher gives.

    >>> listed_as({"SLURM_JOB_NODELIST": "n[1-2]"}, (), "n2.example", 2), listed_as({"JOB_COMPLETION_INDEX": "1"}, (), "p", 2)
    (('n2', ('n1', 'n2')), ('node 1', ('node 0', 'node 1')))
    """
    names = tuple(hosts) or expanded(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", ""))
    if len(names) == nodes:
        return _own(names, name), names
    number = _number(env, *_NUMBERS)
    if number is None or number >= nodes:
        return "", ()
    return f"node {number}", tuple(f"node {each}" for each in range(nodes))


def _own(names: Sequence[str], name: str) -> str:
    """Return what a host is called in a list: its whole name before the first part of it; "" where it is not in it, or more than once.

    >>> _own(("a.x", "a.y"), "a.y"), _own(("a.x", "a.y"), "a"), _own(("a.x",), "a.z")
    ('a.y', '', 'a.x')
    """
    found = [each for each in names if each == name] or [
        each for each in names if each.partition(".")[0] == name.partition(".")[0]
    ]
    return found[0] if len(found) == 1 else ""


_NUMBERS = ("SLURM_NODEID", "JOB_COMPLETION_INDEX", "NODE_RANK", "GROUP_RANK")
"""What tells a launcher's number among its like: srun(1); kubernetes.io/docs, Indexed Job; what templates of torchrun hand on by custom."""


def candidates(nodes: int) -> tuple[int, ...]:
    """Return the nodes at which the others may meet, in this order of preference: spread, so that each side of a cut has one.

    >>> candidates(4), candidates(1024)
    ((0, 1, 2, 3), (0, 1, 2, 512, 1023))
    """
    return tuple(range(nodes)) if nodes <= 8 else (0, 1, 2, nodes // 2, nodes - 1)


class Times:
    """What the budget leaves for what; all by time.monotonic()."""

    def __init__(self, started_s: float, budget_s: float, meeting_s: float) -> None:
        self.started_s, self.whole_s = started_s, budget_s
        self.meet_until_s = started_s + meeting_s
        self.conduct_until_s = started_s + budget_s - 2
        self.until_s = started_s + budget_s + 2
        self.larger_from_s = started_s + min(5.0, meeting_s / 3)
