"""All results that the nodes of a job reported, as the judge reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from torchtune_sys.model import codec
from torchtune_sys.model.comparison import DifferenceWeight
from torchtune_sys.preflight.isolation.values import IsolationVerdict
from torchtune_sys.preflight.joint.names import as_listed, numbered
from torchtune_sys.render.node_set import is_host_name


class NodeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something happened to a node while the others watched. The first in time counts: others follow from it."""

    at_s: float
    node: int
    cause: str
    seen: str
    local: int | None = None
    told_by: int | None = None
    """Another node, on whose word alone this rests; None where the coordinator saw it, or the node itself says so."""


EVENTS = ("rank-killed", "rank-stopped", "link-down", "job-launch-nested-wrongly")
"""What can happen to a node while it is watched."""
_LARGEST = 1e15
WORDS_AT_MOST = 300
"""Characters of what one process says of an error, or of what it runs on."""
_RATES_AT_MOST = 64


_Flows = Annotated[int, Meta(ge=0, le=64)]


class LinkTest(msgspec.Struct, frozen=True, kw_only=True):
    """One test of one direction."""

    connect: str
    """``ok``, ``refused``, ``time-out``, ``unreachable``, or the kernel's words."""
    small_s: float | None = None
    """Least time there and back of a small packet."""
    beyond: bool | None = None
    """Whether a message beyond the MTU came through; None where that was not tried."""
    rates: tuple[float, ...] = ()
    """Bytes per second, of each run."""
    sent: int = 0
    arrived: int | None = None
    """Of the datagrams; None where the receiver did not say."""
    overflowed: int = 0
    is_short: bool = False
    """Only a connection was tried."""
    is_alone: bool = False
    """No other connection was tested at the same time."""
    control_rate: float = 0.0
    """Bytes per second of another way, which looks well, just after this test; 0 where none was measured."""
    flows: tuple[int, int] | None = None
    """How many further connections were tried at the same time, and made; None where the sender did not say."""
    repeated: int = 0
    """Of those that were made: how many when the kernel had asked again."""
    resent: int = 0
    """Small packets of an open connection that the sender's kernel sent again."""
    cut: str = ""
    """``reset`` or ``silent``: what became of a connection that was open."""
    segment: int = 0
    """Bytes of a full one from here to there; 0 where the kernel did not say."""
    damaged: int = 0
    """Runs of which other data arrived than was sent."""

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> LinkTest:
        """Return what the sender answered. It may be anything: only what has the right form is taken."""

        def number(name: str) -> float | None:
            found = value.get(name)
            if not isinstance(found, (int, float)) or isinstance(found, bool) or not 0 <= found < _LARGEST:
                return None
            return float(found)

        beyond, rates = value.get("beyond"), value.get("rates")
        rates = rates if isinstance(rates, list) else []
        return cls(
            flows=taken(value.get("flows"), tuple[_Flows, _Flows]),
            cut=str(value.get("cut", ""))[:WORDS_AT_MOST],
            connect=str(value.get("connect", ""))[:WORDS_AT_MOST],
            small_s=number("small_s"),
            beyond=beyond if isinstance(beyond, bool) else (False if value.get("error") else None),
            rates=tuple(float(rate) for rate in rates[:_RATES_AT_MOST] if isinstance(rate, (int, float)) and 0 < rate < _LARGEST),
            sent=int(number("sent") or 0),
            damaged=int(number("damaged") or 0),
            repeated=int(number("repeated") or 0),
            resent=int(number("resent") or 0),
            segment=int(number("segment") or 0),
            is_short="small_s" not in value and value.get("connect") == "ok" and "error" not in value,
        )

    @property
    def loss(self) -> float | None:
        """Return the part of the datagrams that was lost on the way; None if that is unknown."""
        if not self.sent or self.arrived is None or self.overflowed:
            return None
        return max(0.0, 1 - self.arrived / self.sent)


class Counted(msgspec.Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """Datagrams that came to a node."""

    from_: dict[str, int] = {}
    """By the token of the test."""
    overflowed: int = 0


class PeerInterface(msgspec.Struct, frozen=True, kw_only=True):
    kind: str = ""
    mtu: int | None = None
    addresses: tuple[tuple[str, int], ...] = ()
    """Of IPv4 and IPv6, each with the length of its prefix; without those that every interface has (fe80::)."""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a node tells of itself. What could not be read is None: nobody is odd for what is not known."""

    name: str = ""
    env: dict[str, str] = {}
    """Variables that choose interfaces."""
    interfaces: dict[str, PeerInterface] = {}
    own_name_addresses: tuple[str, ...] | None = None
    """What its own name stands for; empty where it stands for nothing."""
    cpu_quota: float | None = None
    families: dict[str, Any] = {}
    """Its facts as in a facts file: what ``compare`` compares."""


class Differing(msgspec.Struct, frozen=True, kw_only=True):
    """One fact in which nodes differ."""

    fact: str
    values: dict[int, str]
    """Of the nodes that are odd; of all, where nothing is usual."""
    usual: str | None
    """What more than half of the nodes have; None where so many agree on nothing."""
    hosts: int
    """How many were compared."""
    weight: DifferenceWeight


_Signal = Annotated[str, Meta(max_length=20)]


class WorkerNote(msgspec.Struct, frozen=True, kw_only=True):
    """What the process that has torch said of itself."""

    torch: str = ""
    cuda: str = ""
    python: str = ""
    error: str = ""
    signal: _Signal = ""
    """By which it was ended."""


class Compute(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a rank's timed kernel and training steps."""

    hardware: str = ""
    kernel_s: tuple[float, ...] = ()
    """Best times, spread over the turn."""
    weights: str = ""
    kind: str = msgspec.field(default="", name="class")
    wrong: str | None = ""
    share: float | None = None
    gap: float | None = None
    spare: float | None = None
    """CPUs of this rank that stood idle while it computed."""
    error: str = ""
    signal: _Signal = ""
    """By which the process that computed was ended."""
    copy_s: tuple[float, ...] = ()
    """Best times of a copy in memory."""


_T = TypeVar("_T")


def taken(value: Any, form: type[_T]) -> _T | None:
    """Return what another process said, where it has the right form."""
    try:
        return codec.convert(value, form)
    except (msgspec.ValidationError, ValueError, TypeError, OverflowError):
        return None


HOST_SAYS = {
    "refused": "its host answers, but no pre-flight was started there, or it uses another MASTER_PORT",
    "time-out": "its host does not answer",
    "other-job": "the pre-flight there belongs to another job: its MASTER_ADDR, MASTER_PORT, WORLD_SIZE or secret differs",
    "other-release": "the pre-flight there is of another torchtune-sys release",
    "ok": "it was reachable when the time to join had run out",
}
"""What a failed try to reach a node tells of its host."""
OTHER_RANK = "is-node-"
"""What a try says, before the number, that met a process of the job which says that it is another node."""


def host_says(word: str) -> str:
    """Return what a try to reach a node tells of its host; "" where that is nothing.

    >>> host_says("is-node-0"), host_says("time-out"), host_says("no-greeting")
    ('a process there claims to be node 0 of the job, by its RANK', 'its host does not answer', '')
    """
    if word.startswith(OTHER_RANK):
        return f"a process there claims to be node {word.removeprefix(OTHER_RANK)} of the job, by its RANK"
    return HOST_SAYS.get(word, "")


Rank = tuple[int, int]
"""A node and a local rank."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    address: str = ""
    alive: bool = True
    via: int | None = None
    ranks: tuple[int, ...] = ()
    expected: int = 1
    notes: Mapping[str, Any] = {}
    words: Mapping[int, str] = {}
    clock_offset_s: float | None = None
    """Against the coordinator's clock."""
    clock_error_s: float = 0.0
    carrier_losses: Mapping[str, int] = {}
    """By interface: how often it has lost its carrier since the pre-flight began."""
    unanswered_s: float = 0.0
    """By how many seconds an answer of its is overdue."""

    @property
    def facts(self) -> NodeFacts | None:
        return taken(self.notes.get("facts"), NodeFacts)

    @property
    def hardware_addresses(self) -> tuple[str, ...]:
        return taken(self.notes.get("hardware"), tuple[str, ...]) or ()

    @property
    def unable(self) -> Unable | None:
        return taken(self.notes.get("unable"), Unable)

    @property
    def workers(self) -> tuple[WorkerNote, ...]:
        """Return the note of each rank that sent one."""
        told = (taken(note, WorkerNote) for key, note in self.notes.items() if key.startswith("worker/"))
        return tuple(note for note in told if note is not None)

    @property
    def worker(self) -> WorkerNote:
        """Return the note of the first rank that has torch."""
        return next((note for note in self.workers if note.torch), WorkerNote())


class Unable(msgspec.Struct, frozen=True, kw_only=True):
    """Why a node could not do what it was asked: its own kernel refused."""

    errno: int = 0
    words: str = ""

    @classmethod
    def of(cls, error: OSError) -> Unable:
        """Return what a node tells of it."""
        return cls(errno=error.errno or 0, words=(error.strerror or str(error))[:WORDS_AT_MOST])


class RoundRun(msgspec.Struct, frozen=True, kw_only=True):
    """How one round of groups went."""

    seconds: float
    slow: tuple[tuple[int, ...], ...] = ()
    """Groups, by their nodes, in which nothing failed, but sums were late, or exchanges slow."""


class Late(NamedTuple):
    """An exchange of a few numbers that took too long."""

    what: str
    seconds: float


class GroupTests(msgspec.Struct, kw_only=True):
    """What was measured while groups were tested, by the numbers of nodes."""

    is_asked: bool = False
    """By ``--isolate``: also for what is slow."""
    rounds: list[RoundRun] = []
    times: dict[tuple[int, int], float] = {}
    """The best time of each way, in seconds."""
    slow: set[tuple[int, int]] = set()
    """Ways that were slow whenever their group was asked again."""
    failed: set[tuple[int, int]] = set()
    """Pairs that failed by themselves."""
    errors: dict[tuple[int, ...], str] = {}
    """What the groups of two said that failed."""
    usual_s: float = 0.0
    limit_s: float = 0.0
    sent: int = 0
    """Bytes of an exchange in each direction."""
    late: Late | None = None
    """The exchange of all that was late."""


class Gathered(msgspec.Struct, kw_only=True):
    """Everything, as far as it came."""

    nodes: int
    names: tuple[str, ...] = ()
    locals_: int = 1
    coordinator: int = 0
    alone: bool = False
    """A node that reached nobody judges for itself only."""
    complete: bool = False
    stage: str = ""
    """What was done last; where not ``complete``, what the time was up at."""
    members: dict[int, Node] = {}
    missing: dict[int, str] = {}
    """Nodes that did not come, and how the last call to their host ended."""
    unreached: dict[int, tuple[str, tuple[str, ...]]] = {}
    """Of these, the ones that answer: how their own last call to the first node ended, and the addresses that MASTER_ADDR stands for there."""
    resolved: dict[int, tuple[str, ...]] = {}
    """The addresses that the names of missing nodes stand for."""
    neighbours: dict[str, str] = {}
    """By IPv4 address the hardware address that answers for it, as the coordinator's kernel has them."""
    unreached_names: dict[int, str] = {}
    """The address that a node's own name stands for, where others do not reach it by that; and how they failed."""
    master_wrong: str = ""
    """What speaks against the address at which all were to meet, as the first node sees it."""
    differing: tuple[Differing, ...] | None = None
    """None before the facts were compared."""
    events: list[NodeEvent] = []
    links: dict[tuple[int, int], list[LinkTest]] = {}
    computes: dict[Rank, list[Compute]] = {}
    turns_cut: bool = False
    """Whether the time ended the turns of ranks that look slow, before it was certain."""
    collectives: list[dict[Rank, Any]] = []
    strangers: dict[int, str] = {}
    """By node: who was no rank and spoke to one, or to the ranks' store, while a collective failed."""
    isolated: IsolationVerdict | None = None
    """Which nodes or links make the collective of all fail, by their numbers; None where nothing was to be isolated."""
    tests: GroupTests | None = None
    own_link_up: bool | None = None
    """Whether the coordinator's own interface has a carrier."""
    faults: list[str] = []
    """What went wrong with the checker itself."""

    agents_at_least: int = 0
    """Where launchers take part and no ranks: so many suffice. 0 for ranks."""
    labels: dict[int, str] = {}
    """What launchers that did not come are called."""
    passed: tuple[str, ...] = ()
    """Addresses from which a launcher went straight to its own rendezvous."""
    departed: set[int] = set()
    """Launchers that came, and went before all had met."""
    endpoint_taken: str = ""
    """Who holds the port of the launchers' own rendezvous, where that is another program."""

    shown: dict[int, str] = {}
    """What nodes called themselves, where that is a name of a host and of no other node; as the list of all has it."""

    def listed_elsewhere(self) -> frozenset[int]:
        """Return the nodes in whose place the list has another node's own name: the list is in another order than the ranks."""
        owners = {name: node for node, name in own_names(self.members, listed=self.names).items()}
        return frozenset(node for node, name in enumerate(self.names) if owners.get(name, node) != node)

    def has_passed(self, node: int) -> bool:
        """Return whether a launcher that departed went on to its own rendezvous: it may train anyway."""
        return node in self.departed and self.members[node].address in self.passed

    def name(self, node: int) -> str:
        """Return the node's own name, else the list's, else its ranks."""
        if node in self.labels:
            return self.labels[node]
        listed = self.names[node] if node < len(self.names) else numbered(node, self.locals_)
        return self.shown.get(node, f"agent {node}" if self.agents_at_least else listed)


def own_name(member: Node) -> str:
    """Return what a node calls itself; a launcher does so before its host was looked at. "" where it never came so far."""
    facts = member.facts
    return facts.name if facts is not None else taken(member.notes.get("name"), str) or ""


def own_names(members: Mapping[int, Node], of: Iterable[int] | None = None, listed: Sequence[str] = ()) -> dict[int, str]:
    """Return what the nodes call themselves, as a list of all has it: launchers know that one. One that takes another's name, or none that a launcher knows, is called as
    the job has it."""
    told = {node: as_listed(own_name(members[node]), listed) for node in (members if of is None else of)}
    times = Counter(told.values())
    return {node: name for node, name in told.items() if times[name] == 1 and is_host_name(name)}
