"""Check a process group: one rank gathers all reports, the joint pre-flight's judge decides, and every rank gets the verdict."""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

import msgspec

from torchtune_sys import __version__
from torchtune_sys.errors import UserError
from torchtune_sys.host.secrets.filter import scrubbed
from torchtune_sys.model.preflight import Blame, Cause, Go, NodeVerdict, Preflight, Scale, Weight
from torchtune_sys.preflight import verdict
from torchtune_sys.preflight.in_group import work
from torchtune_sys.preflight.in_group.notes import Notes
from torchtune_sys.preflight.joint import judge
from torchtune_sys.preflight.joint.compared import compared
from torchtune_sys.preflight.joint.gathered import Compute, Gathered, Late, Node, NodeEvent, Rank, taken
from torchtune_sys.preflight.joint.judge.whole import Whole, whole
from torchtune_sys.preflight.joint.sums import late, odd_sums
from torchtune_sys.preflight.policy import Policy, parse_policy

_APART_S = 0.5
"""Between turns of the timed kernel: a disturbance lasts, and noise must come again to be believed."""
_FIRST_TURN_PART = 5
"""Without its last so many parts of the time no rank begins to compute, and it cannot be told who computes wrongly."""
_LOOK_S = 0.05
_GRACE_S = 3.0
"""For the verdict to reach all, and for a store that does not answer."""
_CHECKS: Counter[tuple[int, ...]] = Counter()
"""By the ranks of a group: how often this process has checked it. All its ranks have done so as often; of other groups each may have another part."""
_STUCK = "; a collective in the caller's own group cannot be ended from here: end the process"


def check(group: Any, budget_s: float, policy: str | None) -> Preflight:
    """Return the verdict, on every rank, within the budget and a few seconds. Raises UserError for what cannot be meant."""
    if not 1 <= budget_s <= 86400:
        raise UserError(f"budget_s={budget_s:g}: is not between 1 and 86400 seconds", "")
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_initialized():
        raise UserError("check_group: there is no process group", "call torch.distributed.init_process_group first")
    checking = _Checking(torch, group, budget_s, _policy(policy))
    thread = threading.Thread(target=checking.run, daemon=True, name="torchtune-sys check_group")
    with work.undisturbed(torch):
        thread.start()
        thread.join(budget_s + _GRACE_S)
    return checking.found or checking.partial(f"no verdict within {budget_s:g} s, at {checking.stage}")


def _policy(path: str | None) -> Policy:
    if not path:
        return Policy()
    from torchtune_sys.host.children.apart import text_of
    from torchtune_sys.rules import CATALOGUE

    return parse_policy(text_of(path, "policy names a TOML file that can be read"), path, CATALOGUE, "")


class _Checking:
    """This rank's part."""

    def __init__(self, torch: Any, group: Any, budget_s: float, policy: Policy) -> None:
        dist = torch.distributed
        self._torch, self._group, self._policy = torch, group, policy
        self._began_s = time.monotonic()
        self._until_s = self._began_s + budget_s
        self._budget_s = budget_s
        ranks = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
        if dist.get_rank() not in ranks:
            raise UserError("check_group: this rank is not in the group", "call it only on the ranks of the group")
        self.rank, self.world = ranks.index(dist.get_rank()), len(ranks)
        self._device, self._of_group = work.own_device(torch), work.device_of(torch, group)
        store = dist.distributed_c10d._get_default_store()
        _CHECKS[tuple(ranks)] += 1
        whose = hashlib.sha256(str(ranks).encode()).hexdigest()[:24]
        self._notes = Notes(store, f"torchtune-sys/{whose}/{_CHECKS[tuple(ranks)]}/")
        self.stage = "the meeting"
        self.found: Preflight | None = None
        self._seen_s: dict[str, float] = {}

    def run(self) -> None:
        """Never raises."""
        try:
            self._tell()
            whole = self._gathered() if self.rank == 0 else self._notes.get("verdict", self._until_s)
            self.found = self._verdict(whole)
        except Exception as error:
            self.found = self.partial(f"the check failed (a bug): {type(error).__name__}: {scrubbed(str(error))}"[:500])

    def partial(self, seen: str) -> Preflight:
        """Return what is left where no verdict of all came."""
        node = NodeVerdict(node=f"rank {self.rank}", verdict=Go.UNKNOWN, causes=(verdict.fault(seen),))
        return self._preflight(Go.UNKNOWN, (node,), 1, 1)

    # -- each rank -----------------------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        key, name = work.host_key(), work.host_name()
        speaks = self._notes.first(f"host/{key}")
        self._notes.counted("hosts", more=int(speaks))
        self._notes.counted("ranks", more=1)
        here = {"host": key, "name": name, "torch": self._torch.__version__}
        self._notes.put(f"{self.rank}/here", here)
        if speaks:
            self.stage = "reading this node's facts"
            facts = work.of_node(name, self._policy, self._hosts(), self._left_s() / 2)
            self._notes.put(f"facts/{key}", facts)
        if self.rank != 0:
            self._obey()

    def _hosts(self) -> int:
        """How many hosts the group has, once all ranks are there; several, where one is missing. What other hosts must reach matters to none alone."""
        until_s = self._share(0.1)
        while self._notes.counted("ranks") < self.world:
            if time.monotonic() > until_s:
                return max(2, self._notes.counted("hosts"))
            time.sleep(_LOOK_S)
        return self._notes.counted("hosts")

    def _obey(self) -> None:
        """Ranks other than the first: turns of computing until the others are through, then the collective."""
        for turn in count():
            self.stage = f"turn {turn} of the training step"
            turns = self._notes.get(f"turn/{turn}", self._until_s)
            if not isinstance(turns, list):
                break
            if self.rank in turns:
                self._put_computed(turn)
        asked = self._notes.get("collective", self._until_s)
        if isinstance(asked, dict) and self.rank in asked["ranks"]:
            self._collective(asked["seconds"])
        self.stage = "waiting for the verdict of rank 0"

    def _collective(self, seconds: float) -> None:
        self.stage = "a collective of the group"
        self._notes.put(f"{self.rank}/begun", True)
        until_s = min(time.monotonic() + seconds, self._until_s)
        found = work.Collective(self._torch, self._group, self.rank, self.world, self._of_group).run(until_s)
        self._notes.put(f"{self.rank}/collective", found)

    # -- the rank that gathers -----------------------------------------------------------------------------------------------------

    def _gathered(self) -> Any:
        here = self._here()
        gathered, ranks = _of_hosts(here, self.world)
        keys = {node: f"facts/{here[first]['host']}" for node, first in _firsts(ranks).items()}
        host_facts = self._notes.gather(keys.values(), self._share(0.3))
        for node, key in keys.items():
            value = host_facts.get(key)
            facts: dict[str, Any] = value if isinstance(value, dict) else {}
            notes: dict[str, Any] = {name: facts[name] for name in ("facts", "node") if name in facts}
            notes.update(gathered.members[node].notes)
            gathered.members[node] = msgspec.structs.replace(
                gathered.members[node], notes=notes, address=str(facts.get("address", ""))
            )
        gathered.differing = compared(gathered.members)
        self._compute(gathered, ranks)
        hung = self._add_up(gathered, ranks)
        gathered.complete, gathered.stage = bool(gathered.computes), "the training step"
        judged = whole(gathered)
        names = {rank: gathered.name(node) for rank, (node, _local) in ranks.items()}
        delay = late(gathered.collectives[0]) if gathered.collectives and not hung else None
        found = msgspec.to_builtins(_with_late(judged, delay) if delay else _with_hung(judged, names, hung))
        self._notes.put("verdict", found)
        return found

    def _here(self) -> dict[int, Any]:
        keys = {f"{rank}/here": rank for rank in range(self.world)}
        found = self._notes.gather(keys, self._share(0.25))
        return {keys[key]: value for key, value in found.items() if isinstance(value, dict)}

    def _saw(self, key: str) -> None:
        self._seen_s[key] = time.time()

    def _compute(self, gathered: Gathered, ranks: Mapping[int, Rank]) -> None:
        asked = sorted(ranks)
        for turn in count():
            self.stage = f"turn {turn} of the training step"
            is_over = not asked or turn >= judge.TURNS_AT_MOST
            gathered.turns_cut = not is_over and self._left_s() < self._budget_s / (2 if turn else _FIRST_TURN_PART)
            is_over = is_over or gathered.turns_cut
            asked_s = time.time()
            self._notes.put(f"turn/{turn}", "over" if is_over else asked)
            if is_over:
                return
            if turn > 1:
                time.sleep(_APART_S)
            if 0 in asked:
                self._put_computed(turn)
            found = self._notes.gather((f"{rank}/compute/{turn}" for rank in asked), self._share(0.3), self._saw)
            for rank in asked:
                value = taken(found.get(f"{rank}/compute/{turn}"), Compute)
                if value is not None:
                    gathered.computes.setdefault(ranks[rank], []).append(value)
                    self._note_clock(gathered, ranks[rank][0], found[f"{rank}/compute/{turn}"], asked_s, f"{rank}/compute/{turn}")
                else:
                    self._silent(gathered, ranks[rank], rank, "the training step")
            again = judge.ranks_again(gathered)
            asked = [rank for rank in asked if ranks[rank] in again and f"{rank}/compute/{turn}" in found]

    def _put_computed(self, turn: int) -> None:
        self._notes.put(f"{self.rank}/compute/{turn}", {**work.computed(self._device), "clock": time.time()})

    def _note_clock(self, gathered: Gathered, node: int, told: Any, asked_s: float, key: str) -> None:
        """Note a host's clock by what it showed between a question and its answer, of all such the shortest: when a rank came says nothing of its clock."""
        clock, seen_s, member = told.get("clock"), self._seen_s[key], gathered.members[node]
        error_s = (seen_s - asked_s) / 2
        if isinstance(clock, float) and (member.clock_offset_s is None or error_s < member.clock_error_s):
            offset_s = clock - asked_s - error_s
            gathered.members[node] = msgspec.structs.replace(member, clock_offset_s=offset_s, clock_error_s=error_s)

    def _add_up(self, gathered: Gathered, ranks: Mapping[int, Rank]) -> dict[int, Any]:
        """Only where every rank of the group takes part: one that is missing would hold up all the others."""
        if self.world < 2 or len(ranks) < self.world or gathered.events:
            self._notes.put("collective", {"ranks": [], "seconds": 0})
            return {}
        seconds = max(min(20.0, (self._left_s() - 2) / 2), 1.0)
        self._notes.put("collective", {"ranks": sorted(ranks), "seconds": seconds})
        self._collective(seconds)
        found = self._notes.gather((f"{rank}/collective" for rank in ranks), min(time.monotonic() + 3, self._until_s))
        answers = {rank: found.get(f"{rank}/collective") for rank in ranks}
        for rank, value in answers.items():
            if value is None:
                self._silent(gathered, ranks[rank], rank, "a collective of the group")
        gathered.collectives.append({ranks[rank]: value for rank, value in answers.items()})
        hung = {rank: value for rank, value in answers.items() if isinstance(value, dict) and not value.get("ok")}
        return {} if odd_sums(gathered.collectives[0]) else {node: value for node, value in hung.items() if "wrong" not in value}

    def _silent(self, gathered: Gathered, place: Rank, rank: int, where: str) -> None:
        seen = f"rank {rank} has not answered since {where}: it is stopped, was killed or hangs"
        gathered.events.append(NodeEvent(at_s=time.monotonic(), node=place[0], cause="rank-stopped", seen=seen, local=place[1]))

    def _left_s(self) -> float:
        return max(self._until_s - time.monotonic(), 0.0)

    def _share(self, part: float) -> float:
        return time.monotonic() + max(part * self._budget_s, 1.0) if self._left_s() > 1 else self._until_s

    # -- the verdict ---------------------------------------------------------------------------------------------------------------

    def _verdict(self, whole: Any) -> Preflight:
        found = taken(whole, Whole)
        if found is None:
            return self.partial(
                "rank 0, which collects the results, gave no verdict: it did not call check_group, is stopped or was killed"
            )
        nodes = tuple(_weighed(node, self._policy) for node in found.all_nodes())
        of_all, result = _of_policy(found.causes, self._policy), found.verdict
        is_some_no_go = found.links or any(cause.weight is Weight.FATAL for cause in of_all)
        if result is Go.NO_GO and not is_some_no_go and all(node.verdict is not Go.NO_GO for node in nodes):
            result = Go.UNKNOWN if any(node.verdict is Go.UNKNOWN for node in nodes) else Go.GO
        elif result is Go.GO and any(node.verdict is Go.NO_GO for node in nodes):
            result = Go.NO_GO
        made = self._preflight(result, nodes, len(nodes), found.ranks)
        return msgspec.structs.replace(made, links=found.links, suspects=found.suspects, absent=found.absent, causes=of_all)

    def _preflight(self, result: Go, nodes: tuple[NodeVerdict, ...], hosts: int, ranks: int) -> Preflight:
        now_s = time.time()
        return Preflight(
            version=__version__,
            time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s)),
            epoch_s=now_s,
            where="group",
            level="standard",
            seconds=time.monotonic() - self._began_s,
            verdict=result,
            nodes=nodes,
            scale=Scale(nodes=hosts, ranks=ranks),
        )


def _weighed(node: NodeVerdict, policy: Policy) -> NodeVerdict:
    ordered = _of_policy(node.causes, policy)
    return msgspec.structs.replace(node, causes=ordered, verdict=verdict.verdict(ordered))


def _of_policy(found: Iterable[Cause], policy: Policy) -> tuple[Cause, ...]:
    """Return the causes as the site's policy weighs what was found between nodes."""
    causes = []
    for cause in found:
        weight = policy.weight_of(cause.cause, cause.weight) if cause.rule.startswith("joint:") else cause.weight
        if cause.weight is Weight.UNKNOWN:
            causes.append(cause)
        elif weight is not None:
            causes.append(msgspec.structs.replace(cause, weight=weight))
    return verdict.ordered(causes)


def _of_hosts(here: Mapping[int, Any], world: int) -> tuple[Gathered, dict[int, Rank]]:
    """Return the hosts in the order of their first rank, what their ranks said, and who is missing."""
    hosts: dict[str, list[int]] = {}
    for rank in sorted(here):
        hosts.setdefault(str(here[rank].get("host")), []).append(rank)
    ranks: dict[int, Rank] = {}
    gathered = Gathered(nodes=len(hosts), locals_=max(map(len, hosts.values()), default=1))
    for node, own in enumerate(hosts.values()):
        ranks.update({rank: (node, local) for local, rank in enumerate(own)})
        notes: dict[str, Any] = {f"worker/{local}": {"torch": str(here[rank].get("torch", ""))} for local, rank in enumerate(own)}
        notes["name"] = here[own[0]].get("name")
        locals_ = tuple(range(len(own)))
        gathered.members[node] = Node(node=node, ranks=locals_, expected=len(own), notes=notes)
    for at, rank in enumerate(rank for rank in range(world) if rank not in here):
        number = len(hosts) + at
        gathered.labels[number] = f"rank {rank}"
        gathered.missing[number] = ""
    gathered.nodes = len(hosts) + len(gathered.missing)
    return gathered, ranks


def _firsts(ranks: Mapping[int, Rank]) -> dict[int, int]:
    """Of each node its first rank."""
    return {node: rank for rank, (node, local) in ranks.items() if local == 0}


def _with_hung(found: Whole, names: Mapping[int, str], hung: Mapping[int, Any]) -> Whole:
    """Return a collective that did not end, or failed: the rank that stands elsewhere than most is named, else nobody."""
    if not hung or found.verdict is Go.NO_GO:
        return found
    places = {rank: str(value.get("at", value.get("error", ""))) for rank, value in hung.items()}
    usual, times = Counter(places.values()).most_common(1)[0]
    odd = [rank for rank, place in places.items() if place != usual] if 2 * times > len(places) else []
    errors = "; ".join(dict.fromkeys(str(value.get("error")) for value in hung.values()))[:300]
    if len(odd) == 1:
        seen = f"rank {odd[0]} is at {places[odd[0]]}, the others are at {usual}: {errors}"
        cause = Cause(
            cause="straggler-network", rule="joint:collectives", blame=Blame.NETWORK, weight=Weight.FATAL, seen=seen + _STUCK
        )
        nodes = [_and(node, cause) if node.node == names[odd[0]] else node for node in found.nodes]
        return msgspec.structs.replace(found, verdict=Go.NO_GO, nodes=tuple(nodes))
    seen = f"a collective of the group fails, and no rank stands out: {errors}"
    cause = Cause(
        cause="straggler-network", rule="joint:collectives", blame=Blame.NETWORK, weight=Weight.UNKNOWN, seen=seen + _STUCK
    )
    return msgspec.structs.replace(found, verdict=Go.UNKNOWN, nodes=(_and(found.nodes[0], cause), *found.nodes[1:]))


def _with_late(found: Whole, delay: Late) -> Whole:
    """Return an exchange that is late again and again. Of more than two hosts nobody stands out without groups of their own: what is found otherwise stays."""
    if found.verdict is Go.NO_GO:
        return found
    seen = f"{delay.what} takes {delay.seconds * 1e3:.0f} ms, again and again; preflight --isolate finds out where"
    cause = Cause(cause="straggler-network", rule="joint:collectives", blame=Blame.NETWORK, weight=Weight.WARNING, seen=seen)
    return msgspec.structs.replace(found, nodes=(_and(found.nodes[0], cause), *found.nodes[1:]))


def _and(node: NodeVerdict, cause: Cause) -> NodeVerdict:
    causes = verdict.ordered([*node.causes, cause])
    return msgspec.structs.replace(node, causes=causes, verdict=verdict.verdict(causes))
