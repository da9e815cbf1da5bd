"""Only what is the host's now drains a node in a hook: what a user's job can cause, and what is over, is told."""

from __future__ import annotations

import msgspec
import pytest

from conftest import HOSTS, judge, load
from torchtune_sys.model.preflight import Blame, Weight
from torchtune_sys.model.rule import Severity
from torchtune_sys.model.snapshot import Snapshot, container_told
from torchtune_sys.model.values import Missing
from torchtune_sys.preflight import verdict
from torchtune_sys.preflight.host_only import host_only
from torchtune_sys.preflight.hosts_now import HOSTS_NOW, OF_A_JOB, PAST
from torchtune_sys.preflight.policy import BETWEEN_HOSTS, Policy
from torchtune_sys.rules import CATALOGUE, by_id

GRAVE = {rule.id for rule in CATALOGUE if rule.severity is Severity.ERROR} | BETWEEN_HOSTS
SEVERAL = 2


def test_each_grave_rule_is_declared_once() -> None:
    """A new rule of severity error: can a user's process cause it, or is it over when the host is mended? See hosts_now."""
    groups = (set(HOSTS_NOW), set(OF_A_JOB), set(PAST))
    assert set().union(*groups) == GRAVE
    assert sum(map(len, groups)) == len(GRAVE)


def test_the_page_counts_the_rules_of_each_group() -> None:
    page = (HOSTS.parents[1] / "docs/preflight.md").read_text()
    for words, group in (
        ("a current fault of the host ({} rules)", HOSTS_NOW),
        ("a property of the job ({})", OF_A_JOB),
        ("a past event ({})", PAST),
    ):
        assert f"| {words.format(len(group))}" in page


def fatal(seen: Snapshot, *, hook: bool) -> set[str]:
    judged = host_only(seen) if hook else seen
    causes = verdict.of_results(judge(judged).values(), Policy(), SEVERAL, hook=hook)
    return {cause.rule for cause in causes if cause.weight is Weight.FATAL}


@pytest.mark.sampled(30, 50)
@pytest.mark.parametrize("rule", sorted(GRAVE))
def test_a_host_that_fails_it_is_drained_or_not(rule: str) -> None:
    """On the host that was recorded for the rule: what is the host's is found in a hook, too; what is a job's, or past, is not."""
    seen = load(f"{rule}.fail")
    failing = {name for name, result in judge(seen).items() if result.verdict.value == "fail"}
    assert rule in failing
    assert (rule in fatal(seen, hook=False)) == (rule not in PAST)
    found = fatal(seen, hook=True)
    assert rule not in found or rule in HOSTS_NOW
    assert not found - HOSTS_NOW
    if rule in HOSTS_NOW and rule not in _OF_A_PLACE:
        assert rule in found


_OF_A_PLACE = frozenset(
    ("filesystem-not-answering", "temporary-directory-not-writable", "disk-full", "inodes-exhausted", "wsl1-without-gpu")
)
"""Judged of other paths in a hook (``planted.py``), or of a host that has no slurmd."""


def test_what_drains_is_never_told_by_a_rule_that_does_not() -> None:
    """A finding that another rule tells better is folded into that one's."""
    for rule in CATALOGUE:
        if rule.id in HOSTS_NOW:
            assert not {*rule.superseded_by, *rule.explained_by} - HOSTS_NOW, rule.id


def test_recordings_are_there_for_all() -> None:
    assert {rule for rule in GRAVE if (HOSTS / f"{rule}.fail.json").exists()} == GRAVE
    assert by_id().keys() >= GRAVE


def in_pod(seen: Snapshot) -> Snapshot:
    assert not isinstance(seen.system, Missing)
    return msgspec.structs.replace(seen, system=msgspec.structs.replace(seen.system, container="kubernetes"))


def rules_of(seen: Snapshot, **more: bool) -> dict[str, Blame]:
    return {cause.rule: cause.blame for cause in verdict.of_results(judge(seen).values(), Policy(), SEVERAL, **more)}


@pytest.mark.parametrize("name", ["dev-shm-too-small.fail", "dev-shm-not-writable.fail", "driver-tools-fail.fail.no-libcuda"])
def test_what_a_pod_mounts_for_itself_taints_no_node(name: str) -> None:
    """The same of a host, and of the container that slurmd runs in, is the node's. The DaemonSet asks NVIDIA's runtime for NVML alone."""
    seen, rule = load(name), name.partition(".")[0]
    assert rule in rules_of(host_only(seen, pod=True), hook=True)
    assert rule in rules_of(host_only(in_pod(seen)), hook=True)
    assert rule not in rules_of(host_only(in_pod(seen), pod=True), hook=True)


def test_the_temporary_directory_of_a_pod_is_not_the_nodes() -> None:
    seen = load("temporary-directory-not-writable.fail")
    assert not isinstance(seen.storage, Missing)
    (place,) = [one for one in seen.storage.places if one.role == "temporary files"]
    asked = msgspec.structs.replace(place, role="data", path="/tmp")
    seen = msgspec.structs.replace(seen, storage=msgspec.structs.replace(seen.storage, places=(asked,)))
    assert "temporary-directory-not-writable" in rules_of(host_only(seen, pod=True), hook=True)
    assert "temporary-directory-not-writable" not in rules_of(host_only(in_pod(seen), pod=True), hook=True)


@pytest.mark.parametrize("rule", ["temporary-directory-not-writable", "dev-shm-too-small", "dev-shm-not-writable"])
def test_what_a_container_is_given_is_for_its_user_to_mend(rule: str) -> None:
    seen = load(f"{rule}.fail")
    assert rules_of(seen, contained=bool(container_told(seen)))[rule] is Blame.NODE
    assert rules_of(seen, contained=bool(container_told(in_pod(seen))))[rule] is Blame.USER
