"""Which variables a job should start with."""

from __future__ import annotations

import msgspec
import pytest

from conftest import load
from torchtune_sys.model.actions import EnvironmentVariable
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.job import JobVariable
from torchtune_sys.model.rule import Evidence, Result, Rule, Severity, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.remediation.plan.job import variables


def failed(*evidence: Evidence, fix: tuple[EnvironmentVariable, ...] = ()) -> Result:
    rule = Rule(
        id="some-rule", title="Bad", severity=Severity.WARNING, judge=lambda _s, _p: iter(()), family="x", doc="", fix=fix
    )
    return Result(rule=rule, verdict=Verdict.FAIL, evidence=evidence)


def item(*fix: EnvironmentVariable, verdict: Verdict = Verdict.FAIL) -> Evidence:
    return Evidence(subject="it", seen="bad", wanted="good", source="x", fix=fix, verdict=verdict)


@pytest.fixture(scope="module")
def host() -> Snapshot:
    return load("healthy")


def having(s: Snapshot, *, intent: Workload | None = None, **env: str) -> Snapshot:
    session = msgspec.structs.replace(s.session, env={**s.session.env, **env})  # type: ignore[union-attr,dict-item,type-var]
    return msgspec.structs.replace(s, session=session, intent=intent or s.intent)


def by_name(found: tuple[JobVariable, ...]) -> dict[str, JobVariable]:
    names = [variable.name for variable in found]
    assert len(names) == len(set(names))
    return {variable.name: variable for variable in found}


def test_all_that_a_failed_rule_asks_for_is_named(host: Snapshot) -> None:
    first, second = (EnvironmentVariable(name=f"SOME_{word}", value="1") for word in ("A", "B"))
    found = by_name(variables(host, [failed(item(first), item(second))]))
    assert {"SOME_A", "SOME_B"} <= set(found)
    assert found["SOME_B"].source == "some-rule"
    assert "Bad (it: bad)" in found["SOME_B"].reason


def test_the_first_rule_that_asks_wins(host: Snapshot) -> None:
    asked = [failed(item(EnvironmentVariable(name="SOME_A", value=value))) for value in ("1", "2")]
    assert by_name(variables(host, asked))["SOME_A"].value == "1"


@pytest.mark.parametrize("sign", ["\x1b[31m", "\u202e", "\n", "\r", "\x9b", "\udcff"])
def test_a_value_that_a_terminal_acts_upon_is_offered_to_nobody(host: Snapshot, sign: str) -> None:
    """`generate env` printed the name of an interface, or a path, as it was."""
    asked = [failed(item(EnvironmentVariable(name="SOME_A", value=f"e{sign}th0")))]
    assert "SOME_A" not in by_name(variables(host, asked))


def test_evidence_that_passed_asks_for_nothing(host: Snapshot) -> None:
    passed = item(EnvironmentVariable(name="SOME_A", value="1"), verdict=Verdict.PASS)
    assert "SOME_A" not in by_name(variables(host, [failed(passed, item())]))


def test_only_what_is_set_is_unset(host: Snapshot) -> None:
    asked = [failed(item(), fix=(EnvironmentVariable(name="NCCL_P2P_DISABLE", value=None),))]
    assert "NCCL_P2P_DISABLE" not in by_name(variables(host, asked))
    assert by_name(variables(having(host, NCCL_P2P_DISABLE="1"), asked))["NCCL_P2P_DISABLE"].value is None


def test_places_that_only_a_person_knows_are_examples(host: Snapshot) -> None:
    asked = [failed(item(EnvironmentVariable(name="HF_HOME", value="/local/disk/huggingface")))]
    assert not by_name(variables(host, asked))["HF_HOME"].sure


@pytest.mark.parametrize(("ranks", "workers", "threads"), [(8, 0, "4"), (8, 2, "2"), (1, 0, "32"), (64, 4, "1")])
def test_threads_are_the_cores_of_a_rank_without_its_workers(host: Snapshot, ranks: int, workers: int, threads: str) -> None:
    """32 cores, 64 CPUs."""
    asked = having(host, intent=Workload(ranks=ranks, workers=workers))
    assert by_name(variables(asked, []))["OMP_NUM_THREADS"].value == threads


def test_threads_count_the_cores_that_the_session_may_use() -> None:
    """Eight CPUs are four cores here."""
    seen = load("healthy", answers={"affinity": "0-3,32-35"})
    assert by_name(variables(having(seen, intent=Workload(ranks=1)), []))["OMP_NUM_THREADS"].value == "4"


@pytest.mark.parametrize("chosen", ["env", "option"])
def test_threads_that_somebody_chose_stay(host: Snapshot, chosen: str) -> None:
    s = having(host, OMP_NUM_THREADS="3") if chosen == "env" else having(host, intent=Workload(ranks=8, threads=3))
    assert "OMP_NUM_THREADS" not in by_name(variables(s, []))


def test_allocators_are_for_a_person_to_choose_where_there_are_gpus(host: Snapshot) -> None:
    paths = ("/usr/lib/libtcmalloc.so.4", "/usr/lib/libjemalloc.so.2")
    found = by_name(variables(host, [], paths))
    assert (found["LD_PRELOAD"].value, found["LD_PRELOAD"].sure, found["MALLOC_CONF"].sure) == (paths[1], False, False)
    assert "LD_PRELOAD" not in by_name(variables(having(host, LD_PRELOAD="/x.so"), [], paths))
    assert "MALLOC_CONF" not in by_name(variables(host, [], paths[:1]))


def test_interfaces_are_left_to_the_libraries_where_their_choice_is_good(host: Snapshot) -> None:
    several = having(host, intent=Workload(ranks=8, nodes=4))
    assert not {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} & set(by_name(variables(several, [])))


def test_every_variable_has_a_reason(host: Snapshot) -> None:
    assert all(variable.reason and variable.source for variable in variables(host, [], ("/usr/lib/libjemalloc.so.2",)))


@pytest.mark.parametrize(("why", "told"), [(Why.NOT_RECORDED, True), (Why.TIMEOUT, False)])
def test_threads_where_only_the_cpus_of_the_host_were_seen(host: Snapshot, why: Why, told: bool) -> None:
    """A copy of files tells no affinity: what is assumed is said. A look that failed is no such thing."""
    cpu = msgspec.structs.replace(host.cpu, effective=Missing(why, "sched_getaffinity", "not told"))  # type: ignore[type-var]
    found = by_name(variables(having(msgspec.structs.replace(host, cpu=cpu), intent=Workload(ranks=2)), []))
    assert ("OMP_NUM_THREADS" in found) is told
    assert not told or "if the job may use every CPU" in found["OMP_NUM_THREADS"].reason
