"""The result of a pre-flight: go, no-go or unknown for each node, with causes and blame."""

from __future__ import annotations

import enum

import msgspec


class Go(str, enum.Enum):
    """Whether a job may start here."""

    GO = "go"
    NO_GO = "no-go"
    UNKNOWN = "unknown"


class Blame(str, enum.Enum):
    """Who can fix it."""

    NODE = "node"
    HARDWARE = "hardware"
    NETWORK = "network"
    USER = "user"
    CHECKER = "checker"


BLAMES_BETWEEN_NODES: dict[Blame, tuple[str, ...]] = {
    Blame.NETWORK: (
        "duplicate-address",
        "link-delay",
        "link-down",
        "link-one-way-drop",
        "mtu-black-hole",
        "mtu-differs-between-nodes",
        "narrow-link",
        "network-partition",
        "packet-loss",
        "port-dropped",
        "port-refused",
        "straggler-network",
        "fails-only-at-scale",
    ),
    Blame.HARDWARE: ("hardware-differs-between-nodes", "silent-data-corruption", "straggler-compute"),
    Blame.USER: (
        "environment-differs-between-nodes",
        "job-launch-nested-wrongly",
        "master-addr-wrong",
        "master-port-in-use",
        "nccl-wrong-interface",
        "ranks-missing",
    ),
    Blame.NODE: (
        "clock-skew",
        "cpu-quota-on-one-node",
        "hostname-resolves-to-loopback",
        "hostname-unresolvable",
        "node-never-came",
        "nofile-limit-too-low",
        "rank-killed",
        "rank-stopped",
        "software-differs-between-nodes",
    ),
}
"""Causes that the joint part names, by who can mend them."""
JOINT_CAUSES = frozenset(cause for causes in BLAMES_BETWEEN_NODES.values() for cause in causes)


class Weight(str, enum.Enum):
    """What a policy makes of a finding."""

    FATAL = "fatal"
    WARNING = "warning"
    UNKNOWN = "unknown"
    """It could not be checked."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was found on a node, or that could not be checked there."""

    cause: str
    """The slug of the known cause; the rule's id where there is none."""
    rule: str
    """A rule's id, ``site:NAME`` of a site check, ``smoke:STAGE`` of the smoke test, ``preflight`` of the pre-flight itself."""
    blame: Blame
    weight: Weight
    seen: str


class NodeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    verdict: Go
    causes: tuple[Cause, ...] = ()
    """The fatal ones first."""


class Link(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """A way between two nodes that is to blame. Found by the joint part alone."""

    from_: str
    to: str
    cause: str
    seen: str


class IsolationRound(msgspec.Struct, frozen=True, kw_only=True):
    """Disjoint groups that were tested at the same time."""

    number: int
    purpose: str
    groups: int
    nodes: int
    """Nodes that were in a group."""
    seconds: float
    failed: tuple[str, ...] = ()
    """The groups that failed or were slow, each as a node list."""
    slow: tuple[str, ...] = ()
    """Of these, those in which nothing failed."""


class Heat(msgspec.Struct, frozen=True, kw_only=True):
    """How long exchanges between nodes took: rows send, columns receive. Above 64 nodes each row stands for several, and the slowest counts."""

    labels: tuple[str, ...]
    """Node lists, of rows and columns."""
    ms: tuple[tuple[float | None, ...], ...]
    """The best time; None where nothing was measured."""
    failed: tuple[tuple[int, int], ...] = ()
    """Row and column of what did not end when it was tested by itself."""
    usual_ms: float = 0.0
    limit_ms: float = 0.0
    """Above it a way is slow."""


class IsolationReport(msgspec.Struct, frozen=True, kw_only=True):
    """Which part makes collectives fail or slow, and how that was found out."""

    outcome: str
    """``well``, ``named``, ``fails-only-at-scale`` or ``suspects``."""
    nodes: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    """Both ends of each."""
    parts: tuple[str, ...] = ()
    """Leaf switches, ways between two of them, rails."""
    suspects: tuple[str, ...] = ()
    why: str = ""
    rounds: tuple[IsolationRound, ...] = ()
    seconds: float = 0.0
    node_seconds: float = 0.0
    """Of all nodes of the job, while groups were tested."""
    exclude: tuple[str, ...] = ()
    """Nodes without which nothing that is named is left: bad nodes, and an end of each bad link, which is not accused."""
    heat: Heat | None = None


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    nodes: int
    ranks: int


class Preflight(msgspec.Struct, frozen=True, kw_only=True):
    """One pre-flight. ``links``, ``suspects`` and ``absent`` stay empty where a node judges itself alone."""

    version: str
    time: str
    """RFC 3339 in UTC."""
    epoch_s: float
    where: str
    """``prolog``, ``epilog``, ``health-check``, ``srun``, ``sbatch``, ``torchrun``, ``mpirun``, ``pod``, ``group`` (inside a process group) or
    ``alone``."""
    level: str
    seconds: float
    verdict: Go
    nodes: tuple[NodeVerdict, ...]
    scale: Scale
    links: tuple[Link, ...] = ()
    suspects: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    """What is no node's and no link's fault: what fails at scale alone, a rail, the way between two leaf switches."""
    isolation: IsolationReport | None = None
    """Where groups of nodes were tested to find out which part fails."""
    proof: str = ""
    """What the last smoke test on this node says, ``""`` where there was none."""
