"""Ordinary machines as their administrators know them: what is said of each, and that a fault planted there is the headline.

The recordings in ``tests/hosts/typical`` are made up after the public documentation of such machines; ``HOST.RULE.json`` lays
the fault that RULE stands for over HOST.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from conftest import HOSTS, judge
from machines_libraries import with_libraries
from torchtune_sys import engine
from torchtune_sys.cli.status import status
from torchtune_sys.host.recorded import RecordedHost, load_recording, merged
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Result, Severity, Verdict
from torchtune_sys.render.report import findings

SAID = {
    "aws-g5": {"advice": {"host-small-for-gpu-training"}},
    "aws-p4d": {"advice": {"numa-balancing-enabled", "dirty-limit-huge"}},
    "azure-nd-h100": {"advice": {"zone-reclaim-enabled", "numa-balancing-enabled", "dirty-limit-huge"}},
    "desktop-4090": {"advice": {"python-headers-missing", "swappiness-high"}},
    "dgx-h100": {"advice": {"numa-balancing-enabled", "dirty-limit-huge"}},
    "docker-workstation": {"advice": {"c-compiler-missing", "swappiness-high", "gpu-persistence-mode-off"}},
    "gcp-a2": {"advice": {"python-end-of-life", "numa-balancing-enabled"}},
    "gh200": {},
    # A pod whose number has no name and whose CPU quota torch does not see: both are faults, and common.
    "k8s-h100": {
        "error": {"container-uid-without-passwd"},
        "warning": {"compile-cache-not-writable", "cpu-quota-ignored-by-torch"},
        "advice": {"numa-balancing-enabled"},
    },
    "laptop-cpu": {"advice": {"cpu-governor-not-performance"}},
    "login-node": {
        "warning": {"cpu-quota-ignored-by-torch"},
        "advice": {"cgroup-memory-far-below-host", "swappiness-high"},
    },
    "mi300x": {"advice": {"python-end-of-life", "swappiness-high", "dirty-limit-huge"}},
    "rocky8-v100": {"advice": {"python-headers-missing", "bf16-emulated", "swappiness-high", "numa-balancing-enabled"}},
    "slurm-a100": {
        "advice": {
            "swappiness-high",
            "numa-balancing-enabled",
            "dirty-limit-huge",
            "compile-cache-on-network",
        }
    },
    "wsl2-3080": {"advice": {"python-headers-missing", "host-small-for-gpu-training", "swappiness-high"}},
}
"""Host → severity → all that is reported of it."""

FAULTS = sorted(path.stem for path in (HOSTS / "typical").glob("*.*.json"))


def judged(name: str, **overlay: Any) -> Mapping[str, Result]:
    host = with_libraries(merged(load_recording(str(HOSTS / "typical" / f"{name}.json")), overlay))
    return judge(engine.snapshot(RecordedHost(host, name), Workload(**host.get("intent", {})), timeout_s=20))


def results(name: str) -> tuple[Result, ...]:
    return tuple(judged(name).values())


def by_severity(found: tuple[Result, ...]) -> dict[str, set[str]]:
    said: dict[str, set[str]] = {}
    for result in findings(found):
        said.setdefault(result.rule.severity.value, set()).add(result.rule.id)
    return said


def test_every_host_is_here() -> None:
    assert {path.stem for path in (HOSTS / "typical").glob("*.json")} - set(FAULTS) == set(SAID)


@pytest.mark.parametrize("name", SAID)
def test_what_is_said_of_an_ordinary_host(name: str) -> None:
    found = results(name)
    assert by_severity(found) == SAID[name], (
        f"a rule that speaks of {name}, an ordinary host, is a false alarm, or SAID expects it"
    )
    blind = [
        f"{result.rule.id}: {result.why_unknown}" for result in found if result.verdict in (Verdict.UNKNOWN, Verdict.CRASHED)
    ]
    assert not [line for line in blind if not line.startswith("data-on-spinning-disk: ")]  # no virtual disk tells its medium
    assert status(found, fail_on="error", strict=True) == (1 if "error" in SAID[name] else 0)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_the_headline_and_no_other_is_made_up(name: str) -> None:
    host, _, rule_id = name.partition(".")
    found = results(name)
    assert findings(found)[0].rule.id == rule_id
    said = {id_ for level in ("error", "warning") for id_ in by_severity(found).get(level, ())}
    before = {id_ for level in ("error", "warning") for id_ in SAID[host].get(level, ())}
    assert said - before == {rule_id}
    assert not [result.rule.id for result in found if result.verdict is Verdict.CRASHED]


def test_each_fault_says_what_was_seen_and_what_to_do() -> None:
    for name in FAULTS:
        worst = findings(results(name))[0]
        assert worst.rule.severity in (Severity.ERROR, Severity.WARNING)
        assert worst.rule.fix
        assert all(item.seen for item in worst.evidence if item.verdict is Verdict.FAIL)


def verdict(name: str, rule_id: str, **overlay: Any) -> str:
    return judged(name, **overlay)[rule_id].verdict.value


def test_a_display_keeps_the_gpu_awake_in_place_of_the_daemon() -> None:
    recording = load_recording(str(HOSTS / "typical" / "desktop-4090.json"))
    nvml = recording["answers"]["nvml"]
    headless = {**nvml, "devices": [{**nvml["devices"][0], "display": False}]}
    assert verdict("desktop-4090", "gpu-persistence-mode-off") == "pass"
    assert verdict("desktop-4090", "gpu-persistence-mode-off", answers={"nvml": headless}) == "fail"


def test_adapters_of_the_host_are_none_of_a_container_without_their_nodes() -> None:
    """sysfs shows them in each pod; without /dev/infiniband/uverbs* nothing in it registers memory with one."""
    assert verdict("k8s-h100", "memlock-limit-too-low") == "na"
    nodes = {"/dev/infiniband": ["rdma_cm", "uverbs0"]}
    assert verdict("k8s-h100", "memlock-limit-too-low", dirs=nodes) == "fail"
    assert verdict("k8s-h100", "memlock-limit-too-low", dirs={"/dev/infiniband": ["rdma_cm"]}) == "na"


def test_a_host_without_a_gpu_registers_nothing() -> None:
    assert verdict("login-node", "memlock-limit-too-low") == "na"


def test_newer_torch_does_without_a_user_name() -> None:
    version = "/usr/local/lib/python3.12/dist-packages/torch/version.py"
    text = load_recording(str(HOSTS / "typical" / "k8s-h100.json"))["files"][version]
    newer = [line.replace("2.11.0", "2.13.0") for line in text]
    assert verdict("k8s-h100", "container-uid-without-passwd", files={version: newer}) == "pass"
    assert verdict("k8s-h100", "container-uid-without-passwd", files={version: text}) == "fail"


@pytest.mark.parametrize("rule_id", ["rp-filter-strict", "arp-answers-on-any-interface"])
def test_over_infiniband_itself_no_data_goes_through_ip(rule_id: str) -> None:
    answer = load_recording(str(HOSTS / "typical" / "slurm-a100.json"))["answers"]["interfaces"]
    wide = [{**one, "addresses": [{**a, "prefix_length": 16} for a in one["addresses"]]} for one in answer]
    assert verdict("slurm-a100", rule_id, answers={"interfaces": wide}) == "na"
    assert verdict("slurm-a100", rule_id, answers={"interfaces": wide}, dirs={"/dev/infiniband": {"error": "absent"}}) == "fail"


def test_the_network_of_a_cloud_answers_arp_itself() -> None:
    assert verdict("aws-p4d", "arp-answers-on-any-interface") == "na"
    metal = {"/sys/class/dmi/id/sys_vendor": "Supermicro", "/sys/class/dmi/id/bios_vendor": "AMI"}
    assert verdict("aws-p4d", "arp-answers-on-any-interface", files=metal) == "fail"


def test_a_driver_that_names_no_speed_is_not_slow() -> None:
    assert verdict("aws-g5", "ethernet-link-slow") == "na"
    assert verdict("aws-g5", "ethernet-link-slow", files={"/sys/class/net/ens5/speed": "100\n"}) == "fail"
