"""What other nodes of a job, a job's scheduler and a cluster say."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from fuzz.target import Target, object_of, of_text
from torchtune_sys.cli.node_patch import applied
from torchtune_sys.errors import UserError
from torchtune_sys.fleet import collecting, over_ansible
from torchtune_sys.host.base import Output
from torchtune_sys.host.children.rank_processes import Disconnected, Exited, RankMessage
from torchtune_sys.host.cluster import Cluster
from torchtune_sys.host.peers import wire
from torchtune_sys.host.peers.wire import Gone
from torchtune_sys.model import codec
from torchtune_sys.model.preflight import Blame, Cause, Go, NodeVerdict, Preflight, Scale, Weight
from torchtune_sys.preflight import last_standard, site_checks
from torchtune_sys.preflight.drain_limit import parse_taint_limit
from torchtune_sys.preflight.joint import messages, names
from torchtune_sys.preflight.joint.compared import compared
from torchtune_sys.preflight.joint.gathered import Compute, Gathered, LinkTest, Node, taken
from torchtune_sys.preflight.joint.judge import whole
from torchtune_sys.preflight.policy import Policy
from torchtune_sys.render import as_json, node_patch, node_set
from torchtune_sys.render import preflight as preflight_text
from torchtune_sys.render.layout import Style
from torchtune_sys.smoke import proof
from torchtune_sys.smoke.watch import Watch


def _messages(data: bytes) -> None:
    """A line from a peer, to each side that may be told one."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(fields, dict):
        for hear in (messages.asked, messages.from_node, messages.from_coordinator, messages.me):
            with contextlib.suppress(Gone):
                hear(fields)


def _told() -> list[bytes]:
    """One of each message of the joint pre-flight."""
    join = {"is": "join", "node": 1, "control": 2, "link": [1, 2, "x"], "ranks": [0], "expected": 2, "notes": {"facts": {}},
            "words": {"1": "x"}, "lost": {"1": ["a", "b"]}, "ended": {}}  # fmt: skip
    task = {"is": "task", "id": "1", "do": "link", "deadline_s": 3.0, "tasks": {"0": {"a": 1}}, "tokens": ["x"]}
    others = ({"is": "note", "key": "facts", "value": {}}, {"is": "event", "cause": "a", "seen": "b", "local": 0}, {"is": "pong", "n": 1,
              "clock": 1.5}, {"is": "table", "nodes": {"1": ["a", 2]}}, {"is": "verdict", "value": {}}, {"is": "redirect", "to": -1, "via": 0})  # fmt: skip
    return [json.dumps(each).encode() for each in (join, task, *others)]


def _noted(data: bytes) -> None:
    """What two nodes tell of themselves, their links and ranks, judged beside two that are well."""
    told = object_of(data)
    if told is None:
        return
    notes: list[dict[str, Any]] = [note if isinstance(note := told.get(name), dict) else {} for name in ("one", "other")]
    well = json.loads(_notes()[0])["one"]
    members = {
        number: Node(node=number, address=f"10.0.0.{number + 1}", ranks=(0,), notes=note, clock_offset_s=0.0)
        for number, note in enumerate([*notes, well, well])
    }
    link = told.get("link")
    tests, computed = LinkTest.of(link) if isinstance(link, dict) else None, taken(told.get("compute"), Compute)
    links = {(a, b): [tests] for a in members for b in members if a != b and tests is not None}
    found = Gathered(
        nodes=4, members=members, links=links, complete=True, collectives=[{(0, 0): told.get("sum"), (1, 0): {"ok": True}}]
    )
    found.computes = {(0, 0): [computed] * 2} if computed is not None else {}
    found.differing = compared(found.members)
    verdict = whole.whole(found)
    whole.brief(whole.judged(found))
    shown = _preflight(verdict.verdict, verdict.nodes)
    preflight_text.text(shown, Style()), preflight_text.reason_of_all(shown), as_json.preflight(shown)


def _preflight(verdict: Go, nodes: tuple[NodeVerdict, ...]) -> Preflight:
    scale = Scale(nodes=len(nodes), ranks=4)
    return Preflight(
        version="0", time="", epoch_s=0, where="srun", level="standard", seconds=1, verdict=verdict, nodes=nodes, scale=scale
    )


def _notes() -> list[bytes]:
    facts: dict[str, Any] = {"name": "n0", "interfaces": {"eth0": {"kind": "ethernet", "mtu": 1500, "addresses": [["10.0.0.1", 24]]}},
             "own_name_addresses": ["10.0.0.1"], "env": {"NCCL_DEBUG": "INFO"}, "families": {"cpu": {"cores": 4}}}  # fmt: skip
    bad = {"cause": "no-gpu", "seen": "x", "weight": "fatal", "blame": "node", "rule": "r"}
    note: dict[str, Any] = {"facts": facts, "node": [bad], "worker/0": {"torch": "2.13.0"}, "agents": ["a"]}
    link = {"connect": "ok", "small_s": 1e-4, "beyond": True, "rates": [1e9, 1e9], "sent": 200, "arrived": 200}
    compute = {"hardware": "x", "kind": "x", "kernel_s": [1.0, 1.01], "weights": "aa", "share": 0.9, "gap": 0.0}
    told = {
        "one": note,
        "other": {**note, "facts": {**facts, "name": "n1"}},
        "link": link,
        "compute": compute,
        "sum": {"wrong": "1 of 3"},
    }
    return [json.dumps(told).encode()]


def _greeted(data: bytes) -> None:
    """Whoever connects, and whoever answers, before anything is signed; then a line of theirs."""

    class Nowhere:
        def __init__(self) -> None:
            self.transport = self

        def write(self, _data: bytes) -> None: ...

        def abort(self) -> None: ...

        def close(self) -> None: ...

        def get_extra_info(self, _name: str) -> None: ...

    async def both() -> None:
        for first in (True, False):
            reader = asyncio.StreamReader(limit=wire.BUFFER)
            reader.feed_data(data)
            reader.feed_eof()
            with contextlib.suppress(Gone):
                held: Any = Nowhere()
                line = await wire.handshake(reader, held, b"s", first=first)
                await line.receive()

    asyncio.run(both())


class _Said(Cluster):
    """A cluster that answers with the next of a list."""

    def __init__(self, answers: list[Any]) -> None:
        self._answers = answers

    def _ask(self, *_words: Any, **_more: Any) -> dict[str, Any]:
        found = self._answers.pop(0) if self._answers else None
        if not isinstance(found, dict):
            raise UserError("refused")
        return found


def _clustered(data: bytes) -> None:
    """What the API answers while a node is tainted, and the taint taken back."""
    try:
        answers = json.loads(data)
    except (ValueError, RecursionError):
        return
    cause = Cause(cause="no-gpu", seen="x", weight=Weight.FATAL, blame=Blame.NODE, rule="r")
    for go, causes in ((Go.NO_GO, (cause,)), (Go.GO, ())):
        found = _preflight(go, (NodeVerdict(node="n", verdict=go, causes=causes),))
        with contextlib.suppress(UserError):
            applied(found, _Said(list(answers) if isinstance(answers, list) else [answers] * 9), parse_taint_limit("10%"))
        node_patch.commands(found)


def _answers() -> list[bytes]:
    node = {
        "metadata": {"resourceVersion": "1", "labels": {"a": "b"}},
        "spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]},
    }
    ours = {
        "metadata": {"labels": {node_patch.LABEL: "true"}},
        "spec": {"taints": [{"key": node_patch.TAINT, "effect": "NoSchedule"}]},
    }
    few: dict[str, Any] = {"items": [], "metadata": {}}
    many = {"items": [{}], "metadata": {"remainingItemCount": 9, "continue": "x"}}
    return [json.dumps(each).encode() for each in ([node, few, many, {}, many, many, ours, {}, {}], [ours, {}, {}])]


def _words(text: str) -> None:
    """Single values of others': what a site's check prints, lists of nodes, notes of an earlier run, a proof."""
    for status in (0, 1, 2, 9, -9):
        site_checks._judged("a.sh", Output(rc=status, stdout=text, stderr=text), Policy())
    names.expanded(text), names.hosts_of(text), node_set.is_host_name(text), last_standard.parse(text), proof.parse(text)


class _Ranks:
    """Ranks that said the lines of a text, and then ended."""

    failure = None
    launcher = 1

    def __init__(self, said: list[Any]) -> None:
        self._events = [[RankMessage(number % 3, fields) for number, fields in enumerate(said) if isinstance(fields, dict)]]

    def wait(self, _timeout_s: float) -> list[Any]:
        return self._events.pop() if self._events else [Disconnected(0), Exited(1)]

    def state(self, _pid: int) -> str:
        return "S"

    def wait_for_cpus(self, _pid: int) -> tuple[float, str]:
        return 0.0, ""

    def stacks(self, pids: Any) -> dict[int, str]:
        return dict.fromkeys(pids, "")


def _watched(data: bytes) -> None:
    """What the ranks of a smoke test tell the driver."""
    said = []
    for line in data.split(b"\n"):
        with contextlib.suppress(ValueError):
            said.append(codec.loads(line))
    watch = Watch(_Ranks(said), 2, 1e12, lambda *_: None)  # type: ignore[arg-type]
    watch.run(), watch.left_behind()


def _answered(data: bytes) -> None:
    """What a node answers to ``fleet``, by itself and through Ansible."""
    text = data.decode("utf-8", "surrogateescape")
    collecting.line(collecting.Answer(host="h", out=text, error=text, status=0, why="", begun_s=1.0, ended_s=2.0))
    with contextlib.suppress(ValueError):
        result = codec.loads(data)
        if isinstance(result, dict):
            codec.dumps(collecting.line(over_ansible.of_result("h", result)))


def _ranks_words() -> list[bytes]:
    said = [
        {"event": "hello", "role": "rank", "rank": 0, "host": "h"},
        {"event": "about", "device": "cpu", "stages": ["import", "ddp"]},
        {"event": "begin", "stage": "ddp", "deadline_s": 9.5},
        {"event": "measure", "stage": "ddp", "name": "x", "value": 1.5, "unit": "GB/s"},
        {"event": "end", "stage": "ddp", "verdict": "fail", "seconds": 1.0, "cause": "x", "seen": "did not answer within 3 s"},
        {"event": "exited", "pid": 1, "status": -9},
        {"event": "bye"},
    ]
    return [b"\n".join(json.dumps(each).encode() for each in said for _ in range(3))]


TARGETS: dict[str, Target] = {
    "ranks' messages": Target(_ranks_words, _watched),
    "answers of hosts": Target(
        lambda: [
            b'motd\n{"schema": "torchtune-sys/snapshot/1", "time": {"epoch_s": 5}}\n',
            b'{"stdout": "{}", "rc": 0, "stderr": ""}',
            b'{"ansible_facts": {"torchtune_sys": {"version": "0", "facts": {"cpu": {}}}}}',
            b'{"unreachable": true, "msg": "no route"}',
            b'{"ansible_facts": ["-1"]}',
        ],
        _answered,
    ),
    "peers' messages": Target(_told, _messages),
    "notes of nodes": Target(_notes, _noted),
    "greetings": Target(
        lambda: [b"torchtune-sys/peers/2 " + b"0" * 32 + b"\n" + b"0" * 32 + b" {}\n", b"torchtune-sys/peers/2 \n"], _greeted
    ),
    "a cluster's answers": Target(_answers, _clustered),
    "others' words": Target(
        lambda: [
            b'{"verdict": "fail", "cause": "x", "blame": "node", "seen": "y"}',
            b"DISK CRITICAL - x | a=1",
            b"tt[1-3,07],login",
            b"a slots=8\n",
        ],
        of_text(_words),
    ),
}
