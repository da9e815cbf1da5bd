"""What root, a Prolog or who looks after many hosts reads of others: recordings that are planned for, the examined Python's words, notes between ranks and runs, a job's environment."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import msgspec

from fuzz.hosts import judged_as_changed
from fuzz.target import TESTS, Target, in_a_file, object_of, recording
from torchtune_sys import engine
from torchtune_sys.cli.workload import _positive
from torchtune_sys.errors import BadConfig, UnreadableInput, UserError
from torchtune_sys.fleet import collecting, over_clustershell
from torchtune_sys.fleet.comparing import Comparing, heavy, without_secrets
from torchtune_sys.fleet.facts_file import document
from torchtune_sys.fleet.reading import read as read_hosts
from torchtune_sys.fleet.store import Store
from torchtune_sys.fleet.weights import Readers
from torchtune_sys.host.live_queries import nvml, python
from torchtune_sys.host.peers.rank_worker import RankWorker
from torchtune_sys.host.recorded import RecordedHost, merged, parse_recording
from torchtune_sys.host.recording.pseudonym import pseudonymise
from torchtune_sys.host.recording.recorder import RecordingHost
from torchtune_sys.model import codec
from torchtune_sys.model.comparison import DifferenceWeight
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.install import InstallOptions
from torchtune_sys.model.launchers import local_rank
from torchtune_sys.model.preflight import Blame, Cause, Weight
from torchtune_sys.model.snapshot_json import from_json
from torchtune_sys.preflight import context, last_standard
from torchtune_sys.preflight.in_group import checking
from torchtune_sys.preflight.joint import names
from torchtune_sys.preflight.joint.agents import place_of
from torchtune_sys.preflight.joint.gathered import taken
from torchtune_sys.preflight.joint.job import job_of, listed_as
from torchtune_sys.preflight.joint.judge.whole import Whole, whole
from torchtune_sys.preflight.policy import Policy
from torchtune_sys.probes.plan_context import probe as plan_context
from torchtune_sys.remediation import plan as planner
from torchtune_sys.remediation.install import plan as install
from torchtune_sys.render import as_json, comparison
from torchtune_sys.render import plan as plan_text
from torchtune_sys.render.generate import install as install_script
from torchtune_sys.render.generate.script import made_for, script
from torchtune_sys.render.layout import Style
from torchtune_sys.rules import CATALOGUE
from torchtune_sys.smoke import proof


def _planned(data: bytes) -> None:
    """A recording, of which the part that differs from a healthy host's is given: judged, planned for and written down in each form."""
    try:
        part = codec.loads(data)
        if not isinstance(part, dict):
            return
        part.pop("extends", None)
        found = parse_recording(codec.line(merged(recording("healthy"), part)).encode(), "x", None)
    except (ValueError, UnreadableInput, RecursionError, TypeError, AttributeError):
        return
    host = RecordedHost(found, "recording x")
    changes = {(section, name) for section, value in part.items() if isinstance(value, dict) for name in value}
    seen, results = judged_as_changed("healthy", found, changes)
    paths, files = planner.places(results)
    told = plan_context.probe(host, paths, files, planner.service_units(results), planner.settings(results))
    made = planner.plan(seen, results, told)
    plan_text.text(made, Style(), verbose=True), as_json.plan(made), plan_text.markdown(made), plan_text.diff(made)
    script(made, made_for(seen)), install_script.shell(install.plan(seen, InstallOptions()))


def _overlays() -> list[bytes]:
    return [path.read_bytes() for path in sorted((TESTS / "hosts").glob("*.fail.json")) if path.stat().st_size < 4000]


def _recorded(data: bytes) -> None:
    """What ``record --from`` writes of a stranger's recording."""
    try:
        part = codec.loads(data)
        if not isinstance(part, dict):
            return
        part.pop("extends", None)
        keeper = RecordingHost(RecordedHost(parse_recording(codec.line(part).encode(), "x", None), "recording x"))
    except (ValueError, UnreadableInput, AttributeError, TypeError):
        return
    asked: dict[str, Callable[[str], object]] = {
        "links": keeper.link,
        "dirs": keeper.names,
        "stats": keeper.stat,
        "answers": keeper.ask,
    }
    for section, value in part.items():
        for name in value if isinstance(value, dict) else ():
            asked.get(section, keeper.text)(name)
    keeper.env()
    codec.dumps(pseudonymise(keeper.to_recording(Workload()), "salt"))


def _shown_again(data: bytes) -> None:
    """A snapshot of a stranger, of which some families are given."""
    with contextlib.suppress(ValueError):
        told = codec.loads(data)
        if isinstance(told, dict):
            seen = from_json(told)
            engine.judge(seen, CATALOGUE), as_json.snapshot(seen, version="0", time="")


@lru_cache(None)
def _facts() -> dict[str, Any]:
    seen = engine.snapshot(RecordedHost(recording("healthy"), "recording x"), Workload(), timeout_s=60)
    found: dict[str, Any] = codec.loads(as_json.snapshot(seen, version="0", time=""))
    return found


def _families() -> list[bytes]:
    whole = _facts()
    return [json.dumps({**whole, "facts": {name: value}}).encode() for name, value in whole["facts"].items()]


def _many_compared(data: bytes) -> None:
    """Four hosts that are alike, and one or more that say this, as ``compare`` does with each of its options."""
    with in_a_file(data, ".json") as name, in_a_file(_small_hosts()[0]) as others:
        for form in ("themselves", "golden", "before"):
            store = Store()
            unread = read_hosts([others], store)
            count = len(store.hosts)
            unread += read_hosts([name], store)
            one = Comparing(store, _readers())
            if form == "golden":
                compared = one.against(0, unread)
            else:
                compared = one.before(count, unread) if form == "before" else one.among_themselves(unread)
            found = without_secrets(heavy(compared, DifferenceWeight.NOISE))
            as_json.comparison(found), comparison.markdown(found), comparison.as_csv(found), comparison.text(found, Style())


@lru_cache(None)
def _readers() -> Readers:
    return Readers(CATALOGUE)


@lru_cache(None)
def _small_hosts() -> list[bytes]:
    """Documents of hosts with few families: four alike, one otherwise, one of each kind of document."""
    seen = engine.snapshot(RecordedHost(recording("healthy"), "recording x"), Workload(), timeout_s=60)
    lines = []
    for number in range(4):
        one = json.loads(document(seen, version="0", volatile={"host": f"n{number}", "epoch_s": 1.0}))
        one["facts"] = {family: one["facts"][family] for family in ("system", "cpu", "gpu", "memory") if family in one["facts"]}
        lines.append(json.dumps(one).encode())
    odd = lines[0].replace(b'"n0"', b'"n9"').replace(b"x86_64", b"aarch64")
    return [b"\n".join(lines), odd, b"\n".join((odd, lines[0])), lines[0]]


def _through_clush(data: bytes) -> None:
    """What clush prints of two hosts, and what each of them then says."""
    out, _, error = data.decode("utf-8", "surrogateescape").partition("\n\n")
    for answer in over_clustershell.answers(["a", "b"], out, error or out, 9.0):
        codec.dumps(collecting.line(answer))


def _worker(data: bytes) -> None:
    """What the examined Python says to the process that speaks for its node, which may be root's."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
        for file in (said, complained):
            file.write(data)
            file.seek(0)
        worker = RankWorker.__new__(RankWorker)
        worker._unread, worker.failure = bytearray(), ""
        worker._child = SimpleNamespace(  # type: ignore[assignment]
            stdout=said, stderr=complained, returncode=-11
        )
        for _ in range(len(data) + 3):
            answer = worker.answer(0.0)
            if answer is not None:
                codec.dumps(answer)
            if worker._told_end:
                break
        worker._ended()


_ASKED = "interpreter:/data/train/.venv/bin/python3"


def _interpreter(data: bytes) -> None:
    """The last line that an interpreter prints, and the last of NVML's process, both of which may belong to the examined user."""
    text, host = data.decode("utf-8", "replace"), recording("healthy")
    for question, found in ((_ASKED, python._last_object(text, "/x/python")), ("nvml", nvml._parsed(text))):
        if isinstance(found, dict):
            answers = {**host["answers"], question: found}
            judged_as_changed("healthy", {**host, "answers": answers}, {("answers", question)})


def _in_group(data: bytes) -> None:
    """What the ranks of a group tell the first, and what that tells them."""
    told = object_of(data)
    if told is None:
        return
    here = {rank: note for rank, note in enumerate(_list(told, "here")[:8]) if isinstance(note, dict)}
    gathered, ranks = checking._of_hosts(here, 8)
    gathered.complete = True
    judged = whole(gathered)
    hung = {rank: value for rank, value in enumerate(_list(told, "hung")) if isinstance(value, dict) and rank in ranks}
    labels = {rank: gathered.name(node) for rank, (node, _) in ranks.items()}
    found = checking._with_hung(judged, labels, hung) if judged.nodes else judged
    codec.dumps(found)
    verdict = taken(told.get("verdict"), Whole)
    for each in verdict.all_nodes() if verdict is not None else ():
        checking._weighed(each, Policy())


def _list(told: dict[str, Any], name: str) -> list[Any]:
    value = told.get(name)
    return value if isinstance(value, list) else []


def _group_notes() -> list[bytes]:
    here = {"host": "a", "clock": 1.5, "torch": "2.13.0"}
    cause = {"cause": "no-gpu", "rule": "r", "blame": "node", "weight": "fatal", "seen": "x"}
    verdict = {
        "verdict": "no-go",
        "nodes": [{"node": "n1", "verdict": "no-go", "causes": [cause]}],
        "well": "n[2-9]",
        "agents": {"n1": 1},
    }
    hung = [{"ok": False, "at": "forward", "error": "x"}, {"ok": False, "at": "backward", "error": "y"}, {"wrong": "1 of 3"}]
    return [json.dumps({"here": [here, {**here, "host": "b"}, here], "hung": hung, "verdict": verdict}).encode()]


def _kept(data: bytes) -> None:
    """Notes of an earlier run: how a node did at level standard, and the proof of a smoke test; with the digest that it should have."""
    text = data.decode("utf-8", "replace")
    cause = Cause(cause="x", seen="y", weight=Weight.FATAL, blame=Blame.NODE, rule="r")
    last = last_standard.parse(text)
    if last is not None:
        last_standard.causes_that_count(last, dict(last.fingerprint), last.boot, last.epoch_s + 9)
        for by in [*last.core_ms][:20]:
            last_standard.of_core(last, by, 3.0, Policy())
        last_standard.encoded(last_standard.after(last, [cause], last))
    with contextlib.suppress(ValueError):
        whole = codec.loads(text, proof.Proof)
        whole = msgspec.structs.replace(whole, digest=proof._digest(whole.runs))
        found = proof.parse(msgspec.json.encode(whole).decode())
        if found is not None:
            proof.standing(found, dict(found.runs[-1].fingerprint), 1e9)


def _notes_kept() -> list[bytes]:
    cause = {"cause": "no-gpu", "rule": "r", "blame": "node", "weight": "fatal", "seen": "x"}
    last = {"schema": last_standard.SCHEMA, "epoch_s": 5.0, "boot": "b", "fingerprint": {"kernel": "6"}, "causes": [cause], "core_ms": {"a": [1.5, 2.0]}}  # fmt: skip
    past = {"time": "", "epoch_s": 5.0, "fingerprint": {"driver": "580"}, "figures": {"gemm/x/ms": 1.5}}
    return [json.dumps(each).encode() for each in (last, {"schema": proof.SCHEMA, "runs": [past, past], "digest": ""})]


def _surrounded(data: bytes) -> None:
    """A job's environment, its hostfile and its topology."""
    told = object_of(data)
    if told is None:
        return
    variables = told.get("env")
    env = {_of_bytes(key): _of_bytes(value) for key, value in variables.items()} if isinstance(variables, dict) else {}
    hosts = names.hosts_of(str(told.get("hostfile", "")))
    with contextlib.suppress(BadConfig, UserError):
        job_of(env, hosts)
    with contextlib.suppress(UserError):
        place_of(str(told.get("endpoint", "")))
    local_rank(env), context.where(env), context.node_name(env, "h"), context.partition(env), listed_as(env, hosts, "n1", 2)
    _positive(env, "WORLD_SIZE"), names.switches_of(str(told.get("topology", "")))


def _of_bytes(value: Any) -> str:
    """As the environment gives what is no UTF-8."""
    return str(value).encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape").partition("\0")[0]


def _jobs() -> list[bytes]:
    slurm = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_NODEID": "0", "SLURM_STEP_NUM_NODES": "2",
             "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_JOB_ID": "7", "SLURM_JOB_PARTITION": "gpu", "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}  # fmt: skip
    torchrun = {"RANK": "1", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2",
                "MASTER_ADDR": "n1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "x"}  # fmt: skip
    mpi = {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "8",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "PMI_RANK": "1",
        "PMI_SIZE": "8",
    }
    more = {
        "hostfile": "a slots=8\n# b\nc:4\n",
        "topology": "SwitchName=s0 Nodes=tux[0-2]\nBlockName=b Nodes=x\n",
        "endpoint": "n1:29400",
    }
    return [json.dumps({"env": env, **more}).encode() for env in (slurm, torchrun, mpi)]


TARGETS: dict[str, Target] = {
    "plans of hosts": Target(_overlays, _planned),
    "recordings to give away": Target(_overlays, _recorded),
    "snapshots": Target(_families, _shown_again),
    "facts of many hosts": Target(_small_hosts, _many_compared),
    "clush": Target(lambda: [b'a: motd\na: {"schema": "torchtune-sys/snapshot/1"}\nb: x\n\nclush: b: exited with exit code 3\nclush: a: command timeout\n'], _through_clush),
    "the examined Python's worker": Target(lambda: [b'{"id": "1", "value": {"torch": "2.13.0", "error": "password=x"}}\nwords\n{"id": "2", "value": [1, 2.5]}\n'], _worker),
    "the examined Python": Target(lambda: [b"words\n" + json.dumps(recording("healthy")["answers"][_ASKED]).encode()], _interpreter),
    "notes of a group": Target(_group_notes, _in_group),
    "notes of earlier runs": Target(_notes_kept, _kept),
    "a job's surroundings": Target(_jobs, _surrounded),
}  # fmt: skip
