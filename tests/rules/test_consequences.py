"""Every fix is judged by our own rules before it is printed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec
import pytest

from conftest import HOSTS, RULES, exhaustive, healthy_results, judge, load
from rules.remembered import read_by
from torchtune_sys import engine, evidence
from torchtune_sys.consequences import judging, with_consequences
from torchtune_sys.consequences.actions_in_text import effects
from torchtune_sys.consequences.effects import after
from torchtune_sys.consequences.judging import may_read
from torchtune_sys.knowledge import torch as releases
from torchtune_sys.model.actions import Action, Advice, EnvironmentVariable, Install, Safety, Sysctl, text
from torchtune_sys.model.rule import Evidence, Params, Result, Rule, Severity, Verdict, rule
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.target import AtLeast, AtMost
from torchtune_sys.model.values import Missing, Why, need
from torchtune_sys.rules import CATALOGUE

_HOSTS = sorted(path.stem for path in HOSTS.glob("*.fail*.json"))
FAILING = [*_HOSTS[::4], *exhaustive(*(name for number, name in enumerate(_HOSTS) if number % 4))]


def fixes(results: tuple[Result, ...]) -> Iterator[tuple[str, Action]]:
    for result in results:
        if result.verdict is Verdict.FAIL:
            for item in result.evidence:
                yield from ((result.rule.id, action) for action in (*item.fix, *result.rule.fix))


def contradicted(seen: Snapshot) -> list[str]:
    found = fixes(with_consequences(seen, tuple(judge(seen).values()), CATALOGUE))
    return sorted({f"{rule_id}: {text(action)}" for rule_id, action in found if action.but})


@pytest.mark.sampled(30)
@pytest.mark.parametrize("name", FAILING)
def test_no_fix_of_a_recorded_fault_brings_about_another_one(name: str) -> None:
    assert contradicted(load(name)) == []


@pytest.mark.sampled(30)
@pytest.mark.parametrize("name", FAILING)
def test_no_fix_points_to_another_place(name: str) -> None:
    """It is also printed by itself: in a plan, in a diagnosis, for a log."""
    pointing = re.compile(r"\b(?:named|path|error|finding|message)s? above\b")
    results = engine.judge(load(name), [RULES[name.partition(".")[0]]])
    assert not [text(action) for _, action in fixes(results) if pointing.search(text(action))]


NAMING = [item for item in CATALOGUE if any(effects(action) for action in item.fix)]


@pytest.mark.parametrize("asked", NAMING, ids=lambda item: item.id)
def test_no_fix_brings_about_a_fault_on_the_healthy_host(asked: Rule) -> None:
    seen = load("healthy")
    for action in asked.fix:
        then = seen
        for effect in effects(action):
            then = after(then, effect)
        bad = [result for result in judge(then).values() if result.verdict is Verdict.FAIL]
        assert not bad, f"{text(action)}: {[(result.rule.id, result.evidence) for result in bad]}"


NOT_TOLD_BY_FACTS = {
    "fabric-manager-not-running": "the GPUs join the fabric some time after the service has started",
    "gpu-persistence-mode-off": "the daemon switches it on GPU by GPU",
    "imex-not-ready": "channels are made by hand",
    "iommu-translates-gpu-traffic": "the kernel chooses the domains when it starts",
    "nouveau-loaded": "another driver takes the GPU after the next start",
    "nouveau-not-barred": "bars of the next start are read from files",
}
"""Rule → why its typed fix, made in the facts alone, does not make it pass."""


@pytest.mark.sampled(30)
@pytest.mark.parametrize("name", FAILING)
def test_what_apply_would_do_makes_the_rule_pass(name: str) -> None:
    """A fix that does not cure its own finding is no fix. The environment's are about what the loader then finds, which no fact tells."""
    rule_id, seen = name.partition(".")[0], load(name)
    found = engine.judge(seen, [RULES[rule_id]])[0]
    failed = [item for item in found.evidence if item.verdict is Verdict.FAIL] if found.verdict is Verdict.FAIL else []
    made = dict.fromkeys(action for item in failed for action in item.fix or found.rule.fix)
    then = seen
    for action in made:
        if not isinstance(action, Advice | Install | EnvironmentVariable):
            then = after(then, action)
    if then is seen or rule_id in NOT_TOLD_BY_FACTS:
        return
    result = engine.judge(msgspec.structs.replace(then, said={}), [RULES[rule_id]])[0]
    assert result.verdict is not Verdict.FAIL, result.evidence


@rule(id="few-files", title="", severity=Severity.WARNING, fix=(Sysctl(key="net.core.somaxconn", target=AtLeast(9000)),))
def few_connections(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """Wants more than the other one stands."""
    yield Evidence(subject="somaxconn", seen="few", verdict=Verdict.FAIL if _somaxconn(s) < 9000 else Verdict.PASS)


@rule(id="many-files", title="", severity=Severity.WARNING, fix=(Sysctl(key="net.core.somaxconn", target=AtMost(8000)),))
def many_connections(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """Stands no more."""
    yield Evidence(subject="somaxconn", seen="many", verdict=Verdict.FAIL if _somaxconn(s) > 8000 else Verdict.PASS)


def _somaxconn(s: Snapshot) -> int:
    return int(need(need(s.sysctl).settings["net.core.somaxconn"].running))


def test_what_could_not_be_read_is_not_known_after_a_fix_either() -> None:
    dark = msgspec.structs.replace(load("healthy"), **dict.fromkeys(FAMILIES, Missing(Why.DENIED, "all of it")))
    actions = [action for rule in CATALOGUE for action in rule.fix]
    told = {family for action in actions for family in FAMILIES if getattr(after(dark, action), family) != getattr(dark, family)}
    assert len({type(action) for action in actions}) > 8 and not told


def test_a_fix_that_another_rule_finds_fault_with_is_never_made_unasked_and_says_so() -> None:
    seen, rules = load("healthy"), (few_connections, many_connections)
    few, _ = with_consequences(seen, engine.judge(seen, rules), rules)
    (fix,) = few.rule.fix
    assert fix.but == "many-files: somaxconn: many"
    assert fix.safety is Safety.UNSAFE
    assert text(fix) == "sudo sysctl -w net.core.somaxconn=9000 (or more) (but then many-files: somaxconn: many)"


def unlisted(seen: Snapshot, rules: Iterable[Rule]) -> list[str]:
    """Rules that read a family which the table does not name for them."""
    more = {one.id: read_by(seen, one).intersection(FAMILIES) - may_read(one.id) for one in rules}
    return [f"{name}: {', '.join(sorted(families))}" for name, families in more.items() if families]


def test_on_the_healthy_host_no_rule_reads_what_the_table_does_not_name() -> None:
    assert unlisted(load("healthy"), CATALOGUE) == []


@pytest.mark.sampled(30)
@pytest.mark.parametrize("name", FAILING)
def test_no_rule_reads_what_the_table_does_not_name(name: str) -> None:
    """By that table a fix is judged by a few rules only. Who reads nothing but what the healthy host has, too, reads the same as there."""
    seen = load(name)
    assert unlisted(seen, healthy_results().touched(seen)) == []


def test_a_rule_that_reads_more_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "_reads", lambda: {"few-files": frozenset({"cpu"})})
    assert unlisted(load("healthy"), [few_connections]) == ["few-files: sysctl"]


def test_few_rules_are_asked_of_a_fix_and_they_say_what_all_say(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = "GPU 0: Tesla P100-PCIE-16GB\nGPU 1: NVIDIA B200"
    hosts = [report(gpus=gpus), load("overcommit-strict.fail"), load("nccl-wrong-interface.fail")]
    asked = [0]

    def judge(seen: Snapshot, rules: Iterable[Rule], overrides: object = None) -> tuple[Result, ...]:
        asked[0] += len(chosen := list(rules))
        return whole(seen, chosen, overrides)  # type: ignore[arg-type]

    whole = engine.judge
    results = [engine.judge(seen, CATALOGUE) for seen in hosts]
    monkeypatch.setattr(engine, "judge", judge)
    few = [with_consequences(seen, found, CATALOGUE) for seen, found in zip(hosts, results, strict=True)]
    narrow, asked[0] = asked[0], 0
    monkeypatch.setattr(judging, "may_read", lambda _: frozenset(FAMILIES))
    assert few == [with_consequences(seen, found, CATALOGUE) for seen, found in zip(hosts, results, strict=True)]
    assert any(action.but for _, action in fixes(few[0]))
    assert 0 < narrow < asked[0] * 0.7


def test_a_rule_that_was_left_out_has_no_say_and_one_that_was_not_asked_has() -> None:
    seen = load("healthy")
    asked = engine.judge(seen, [few_connections])
    assert not with_consequences(seen, asked, [few_connections])[0].rule.fix[0].but
    assert with_consequences(seen, asked, [few_connections, many_connections])[0].rule.fix[0].but


def report(**said: str) -> Snapshot:
    told = {
        "torch": "2.8.0+cu128",
        "cuda": "12.8",
        "python": "3.10.12",
        "gpus": "GPU 0: NVIDIA A100",
        "driver": "580.65.06",
    } | said
    seen = evidence.read(
        f"PyTorch version: {told['torch']}\nCUDA used to build PyTorch: {told['cuda']}\nOS: Ubuntu 22.04.5 LTS (x86_64)\n"
        f"Python version: {told['python']} (main)\nIs CUDA available: False\nGPU models and configuration: {told['gpus']}\n"
        f"Nvidia driver version: {told['driver']}\n",
        "report",
    )
    assert seen is not None
    return seen


def test_a_build_for_one_gpu_that_another_gpu_of_the_host_cannot_run() -> None:
    (found,) = contradicted(report(gpus="GPU 0: Tesla P100-PCIE-16GB\nGPU 1: NVIDIA B200"))
    assert re.match(
        r"gpu-arch-not-in-wheel: pip install torch==\S+ --index-url \S+/cu\d+ \(but then gpu-arch-not-in-wheel: GPU 1", found
    )


def test_a_build_that_is_named_has_a_wheel_for_this_python() -> None:
    """For B200 under driver 570 the newest builds have no wheel for Python 3.9: an older one has the code, too."""
    seen = report(torch="1.13.1+cu117", cuda="11.7", python="3.9.2", gpus="GPU 0: NVIDIA B200", driver="570.65.06")
    (found,) = [result for result in engine.judge(seen, CATALOGUE) if result.rule.id == "gpu-arch-not-in-wheel"]
    (fix,) = found.evidence[0].fix
    assert isinstance(fix, Install) and fix.torch in found.evidence[0].wanted and not fix.other_python
    release = releases.release(fix.torch)
    assert release is not None and "cp39" in release.abis


def test_where_no_build_has_a_wheel_for_this_python_the_fix_names_one_that_has() -> None:
    seen = report(torch="1.13.1+cu117", cuda="11.7", python="3.8.12", gpus="GPU 0: NVIDIA B200", driver="570.65.06")
    (found,) = [result for result in engine.judge(seen, CATALOGUE) if result.rule.id == "gpu-arch-not-in-wheel"]
    assert "under another Python" in found.evidence[0].wanted
    assert "in an environment with a Python of cp3" in text(found.evidence[0].fix[0])
    assert contradicted(seen) == []


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("export NCCL_IB_DISABLE=1", ["NCCL_IB_DISABLE"]),
        ("or set NCCL_P2P_LEVEL=NVL and unset NCCL_IB_DISABLE", ["NCCL_P2P_LEVEL", "NCCL_IB_DISABLE"]),
        ("leave out NCCL_DEBUG, not NCCL_P2P_DISABLE=1", []),
        ("look into the program: CUDA_LAUNCH_BLOCKING=1", []),
        ("set CUDA_VISIBLE_DEVICES=<uuid>", []),
        ("sysctl -w vm.swappiness=10", ["vm.swappiness"]),
        ("set vm.overcommit_memory = 1, rather than vm.overcommit_ratio=90", ["vm.overcommit_memory"]),
    ],
)
def test_what_a_sentence_asks_for_is_read_and_what_it_only_mentions_is_not(words: str, named: list[str]) -> None:
    found = effects(Advice(text=words))
    assert [getattr(item, "name", getattr(item, "key", "")) for item in found] == named


@pytest.mark.parametrize(
    ("name", "command"),
    [
        (
            "gpu-arch-not-in-wheel",
            r"/data/train/.venv/bin/python3 -m pip install --upgrade torch==\S+ torchvision --index-url https://\S+/cu\d+",
        ),
        (
            "driver-too-old",
            r"or, .*: /data/train/.venv/bin/python3 -m pip install torch==\S+\+(cu\d+) torchvision==\S+\+\1 --index-url https://\S+/\1",
        ),
    ],
)
def test_what_is_installed_with_another_torch_is_made_for_it(name: str, command: str) -> None:
    """pip keeps a torchvision of another index where none is named, or where any of that release would do."""
    named = [action for _, action in fixes(engine.judge(load(f"{name}.fail"), [RULES[name]])) if isinstance(action, Install)]
    (found,) = {text(action) for action in named if action.torch}
    assert re.fullmatch(command, found)
