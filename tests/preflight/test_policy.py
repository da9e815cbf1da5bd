"""What a policy file makes of findings, and what it may not say."""

from __future__ import annotations

import msgspec
import pytest

from torchtune_sys.errors import UserError
from torchtune_sys.model.preflight import Weight
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.smoke import SmokeReport, StageResult, Team
from torchtune_sys.preflight.policy import Policy, parse_policy
from torchtune_sys.preflight.verdict import of_device, of_smoke
from torchtune_sys.rules import CATALOGUE, by_id

ECC, KERNEL, DISK = "gpu-ecc-uncorrectable", "kernel-old", "disk-full"


def weight(text: str, rule: str, partition: str = "") -> Weight | None:
    return parse_policy(text, "policy.toml", CATALOGUE, partition).weight(by_id()[rule])


@pytest.mark.parametrize(
    ("text", "rule", "wanted"),
    [
        ("", ECC, Weight.FATAL),
        ("", KERNEL, Weight.WARNING),
        (f'ignore = ["{ECC}"]', ECC, None),
        (f'warning = ["{ECC}"]', ECC, Weight.WARNING),
        ('warning = ["gpu"]', ECC, Weight.WARNING),
        ('warning = ["gpu-ecc-*"]', ECC, Weight.WARNING),
        ('fatal = ["warning", "advice"]', KERNEL, Weight.FATAL),
        (f'ignore = ["error"]\nfatal = ["{ECC}"]', ECC, Weight.FATAL),
        (f'fatal = ["gpu"]\nignore = ["{ECC}"]', ECC, None),
        ('ignore = ["disk-full-or-quota"]', DISK, None),
    ],
)
def test_a_finding_is_what_the_policy_says(text: str, rule: str, wanted: Weight | None) -> None:
    assert weight(text, rule) is wanted


@pytest.mark.parametrize("rule", ["hostname-unresolvable", "nccl-wrong-interface"])  # a warning and an error by themselves
@pytest.mark.parametrize(
    ("text", "nodes", "wanted"),
    [
        ("", 2, Weight.FATAL),
        ("", 1, Weight.WARNING),
        ('warning = ["error"]', 2, Weight.WARNING),
        ('ignore = ["error"]', 2, None),
        ('ignore = ["error"]', 1, Weight.WARNING),
        ('ignore = ["warning"]', 2, Weight.FATAL),
        ('fatal = ["warning"]', 1, Weight.FATAL),
    ],
)
def test_severities_of_a_policy_mean_what_counts_between_hosts(rule: str, text: str, nodes: int, wanted: Weight | None) -> None:
    """What is fatal between hosts though its rule's severity is warning was not reached by ``warning = ["error"]``."""
    assert parse_policy(text, "policy.toml", CATALOGUE).weight(by_id()[rule], nodes) is wanted


def test_the_partition_of_the_job_goes_first() -> None:
    text = f'fatal = ["{ECC}"]\n[partition.debug]\nwarning = ["{ECC}"]\n'
    assert weight(text, ECC, "debug") is Weight.WARNING
    assert weight(text, ECC, "train") is Weight.FATAL


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", Weight.FATAL),
        ('warning = ["host-memory-oom"]', Weight.WARNING),
        ('ignore = ["host-memory-oom"]', None),
        ('ignore = ["host-memory-oom"]\n[partition.debug]\nfatal = ["host-memory-oom"]', Weight.FATAL),
        ('ignore = ["host-memory-oom"]\n[partition.debug]\nwarning = ["host-memory-oom"]', Weight.WARNING),
    ],
)
def test_what_training_finds_is_what_the_policy_says(text: str, wanted: Weight | None) -> None:
    """A policy's warning was a no-go where the smoke test named the cause, and its ignore went before the partition's."""
    stages = [
        StageResult(stage="train", verdict=verdict, seconds=1.0, cause="host-memory-oom")
        for verdict in (Verdict.FAIL, Verdict.PASS)
    ]
    team = Team(python="p", torch="t", ranks=2, backend="gloo", device="cpu", gpus=(), level="quick")
    report = SmokeReport(version="1", time="", host="h", team=team, verdict=Verdict.FAIL, seconds=1.0, stages=tuple(stages))
    found = of_smoke(report, parse_policy(text, "policy.toml", CATALOGUE, "debug"))
    assert [cause.weight for cause in found] == ([] if wanted is None else [wanted])


def test_a_python_without_torch_is_the_user_s_and_says_nothing_of_gpus() -> None:
    stage = StageResult(stage="import", verdict=Verdict.FAIL, seconds=1.0, cause="torch-not-installed")
    team = Team(python="p", torch="", ranks=2, device="cpu", level="quick")
    report = SmokeReport(version="1", time="", host="h", team=team, verdict=Verdict.FAIL, seconds=1.0, stages=(stage,))
    assert [(cause.cause, cause.blame.value) for cause in of_smoke(report, Policy())] == [("torch-not-installed", "user")]
    assert of_device(report, Policy()) == []
    with_torch = msgspec.structs.replace(report, team=msgspec.structs.replace(team, torch="2.13.0"))
    assert [cause.cause for cause in of_device(with_torch, Policy())] == ["no-gpu"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fatal = [", "not valid TOML"),
        ('fatl = ["gpu"]', "did you mean fatal?"),
        ('fatal = "gpu"', "fatal is a list"),
        ('ignore = ["gpu-ecc-uncorectable"]', "did you mean gpu-ecc-uncorrectable"),
        ('[partition.debug]\nfatl = ["gpu"]', "partition.debug: no such key"),
        ("partition = 3", "is a table"),
        ('[site-checks]\ntimeout = "x"', "timeout is a number of seconds"),
        ('[site-checks.lustre]\nseverity = "bad"', "severity is fatal or warning"),
        ("[rules.disk-full]\nno-such = 1", "has no parameter 'no-such'"),
    ],
)
def test_a_mistake_is_named_with_the_file(text: str, said: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_policy(text, "policy.toml", CATALOGUE)
    assert said in str(raised.value)
    assert "policy.toml" in str(raised.value)


def test_site_checks_inherit_what_holds_for_all() -> None:
    policy = parse_policy('[site-checks]\ntimeout = 7\n[site-checks.lustre]\nseverity = "warning"\n', "p", CATALOGUE)
    assert policy.of_site("other").timeout_s == 7
    assert (policy.of_site("lustre").timeout_s, policy.of_site("lustre").severity) == (7, Weight.WARNING)
    assert Policy().of_site("any").severity is Weight.FATAL


def test_parameters_of_rules_are_taken_as_in_the_configuration_file() -> None:
    policy = parse_policy("[rules.swappiness-high]\nmax = 60\n", "p", CATALOGUE)
    assert policy.params == {"swappiness-high": {"max": 60}}
