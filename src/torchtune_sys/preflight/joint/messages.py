"""The closed set of messages between the nodes of a job, with limits. A line of another form ends its connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from torchtune_sys.host.peers.addresses import WATCHED
from torchtune_sys.host.peers.wire import Fields, Gone
from torchtune_sys.model import codec
from torchtune_sys.model.numbers import natural

NOTES_AT_MOST = 1 << 20
"""Characters that the notes of one node may have as JSON; the facts of a host have about 10,000."""
NODE_LINE_AT_MOST = NOTES_AT_MOST + (1 << 18)
"""Bytes of a line of a node's: the one with which it joins bears all its notes."""
_NODES = 1 << 20
TEXT_AT_MOST = 600

Number = Annotated[int, Meta(ge=0, lt=_NODES)]
Port = Annotated[int, Meta(ge=0, lt=65536)]
Key = Annotated[str, Meta(max_length=64)]
Text = Annotated[str, Meta(max_length=TEXT_AT_MOST)]
Seconds = Annotated[float, Meta(ge=0, le=86400)]
Rate = Annotated[float, Meta(ge=0, le=1e15)]
"""Bytes per second."""
Numbers = Annotated[list[Number], Meta(max_length=4096)]
Notes = Annotated[dict[Key, Any], Meta(max_length=4100)]
Causes = Annotated[dict[Number, tuple[Key, Text]], Meta(max_length=64)]


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="is", tag=str.lower):
    pass


class Who(_Message, frozen=True, kw_only=True):
    """Who answers here?"""


class Seat(_Message, frozen=True, kw_only=True):
    """A launcher wants its place in the job; ``token`` says who asks, also where it asks again."""

    key: Key
    token: Key


class Relay(_Message, frozen=True, kw_only=True):
    """Join this connection with one to another node."""

    to: Number


class Join(_Message, frozen=True, kw_only=True):
    """A node takes part."""

    node: Number
    address: Key = ""
    """Its own end of the connection; empty on the coordinator's own node."""
    dialled: Text = ""
    """Where it reached the coordinator, if that was direct."""
    via: Number | None = None
    """The node that helped."""
    control: Port
    link: tuple[Port, Port, Key]
    """Where its connections are tested: port, datagram port, and the mark that a test must bear."""
    ranks: Numbers
    expected: Number
    notes: Notes
    words: Annotated[dict[Number, Text], Meta(max_length=64)]
    lost: Causes
    ended: Causes


class Note(_Message, frozen=True, kw_only=True):
    """Something of the node: ``facts``, ``node``, ``worker/RANK``, ``master`` (the addresses that MASTER_ADDR stands for there), ``silent`` (the first of them, where it does not answer), ``unable`` (what its kernel refused), ``hardware`` (the addresses of its network cards); of launchers ``name``, the host's, and ``agents``, what they are called in the list of all."""

    key: Key
    value: Any


class Ranks(_Message, frozen=True, kw_only=True):
    """The local ranks that are there."""

    ranks: Numbers


class Event(_Message, frozen=True, kw_only=True):
    """Something happened to a rank."""

    cause: Key
    seen: Text
    local: Number


class Done(_Message, frozen=True, kw_only=True):
    """The answer to a task."""

    id: Key
    value: Any


class Pong(_Message, frozen=True, kw_only=True):
    n: Number
    clock: Annotated[float, Meta(ge=0, le=1e12)]
    losses: Annotated[dict[Key, Number], Meta(max_length=WATCHED)] = {}
    """By interface: how often it has lost its carrier since the pre-flight began; those that did."""


class Me(_Message, frozen=True, kw_only=True):
    """The answer to who: a node of which job, how many follow it, and whom it does not reach."""

    node: Number
    key: Key
    members: Number
    unreached: Text = ""
    """How its last call to the first node ended, if it follows nobody."""
    master: Annotated[tuple[Text, ...], Meta(max_length=16)] = ()
    """The addresses that MASTER_ADDR stands for there."""


class Seated(_Message, frozen=True, kw_only=True):
    """The place that a launcher has; -1 where all are taken, or where it belongs to another job."""

    node: Annotated[int, Meta(ge=-1, lt=_NODES)]


class Redirect(_Message, frozen=True, kw_only=True):
    """There is a better coordinator."""

    to: Annotated[int, Meta(ge=-1, lt=_NODES)]
    via: Number


class Welcome(_Message, frozen=True, kw_only=True):
    pass


class Refused(_Message, frozen=True, kw_only=True):
    pass


class Ping(_Message, frozen=True, kw_only=True):
    n: Number


class Table(_Message, frozen=True, kw_only=True):
    """Where nodes are, should the coordinator be lost."""

    nodes: Annotated[dict[Number, tuple[Key, Port]], Meta(max_length=128)]


class StatusText(_Message, frozen=True, kw_only=True, tag="status"):
    """What is under way, for whoever waits at a terminal."""

    text: Text


class JointVerdict(_Message, frozen=True, kw_only=True, tag="verdict"):
    value: Any
    bytes: Annotated[int, Meta(ge=0)] = 0


class CutOff(_Message, frozen=True, kw_only=True, tag="cut-off"):
    seen: Text


class Task(_Message, frozen=True, kw_only=True):
    """Something to do: ``link`` (test one direction), ``rates`` (its rate alone), ``count`` (datagrams that came), ``ranks`` (tasks of the workers)."""

    id: Key
    do: Key
    deadline_s: Seconds
    address: Key = ""
    port: Port = 0
    udp: Port = 0
    mark: Key = ""
    token: Key = ""
    short: bool = False
    enough_rate: Rate = 0.0
    tokens: Annotated[list[Key], Meta(max_length=4096)] = []
    tasks: Annotated[dict[Number, dict[Key, Any]], Meta(max_length=4096)] = {}


Asked = Who | Seat | Relay | Join
FromNode = Note | Ranks | Event | Done | Pong
FromCoordinator = Welcome | Refused | Redirect | Ping | Table | StatusText | JointVerdict | CutOff | Task


def plain(message: msgspec.Struct) -> Fields:
    """Return a message as it is sent."""
    found: Fields = msgspec.to_builtins(message, str_keys=True)
    return found


def encoded(message: msgspec.Struct) -> bytes:
    """Return the same as one line of JSON."""
    return msgspec.json.encode(message)


def asked(fields: Mapping[str, Any]) -> Asked:
    """Return what a peer that just came wants. Raises Gone, as the others do, where it has no such form."""
    found: Asked = _heard(fields, Asked)
    return found


def from_node(fields: Mapping[str, Any]) -> FromNode:
    """Return what a node that takes part says."""
    found: FromNode = _heard(fields, FromNode)
    return found


def from_coordinator(fields: Mapping[str, Any]) -> FromCoordinator:
    """Return what the coordinator says."""
    found: FromCoordinator = _heard(fields, FromCoordinator)
    return found


def seated(fields: Mapping[str, Any]) -> int:
    """Return the place that was given."""
    found: Seated = _heard(fields, Seated)
    return found.node


def me(fields: Mapping[str, Any]) -> Me:
    """Parse who answered."""
    found: Me = _heard(fields, Me)
    return found


def _heard(fields: Mapping[str, Any], forms: Any) -> Any:
    try:
        return codec.convert(fields, forms, str_keys=True)
    except (msgspec.ValidationError, RecursionError, OverflowError, ValueError):
        raise Gone("it sent an invalid message") from None


def is_note(key: str, ranks: int) -> bool:
    """Return whether a node has something to say under this name."""
    rank = key.removeprefix("worker/")
    return key in ("facts", "node", "agents", "name", "master", "silent", "unable", "hardware") or (
        rank != key and (number := natural(rank)) is not None and number < ranks
    )
