"""A tree of /sys or /proc that cannot be seen makes verdicts unknown, while something else shows that it must be there."""

from __future__ import annotations

from typing import Any

import pytest

from conftest import HOSTS
from machines_libraries import with_libraries
from torchtune_sys import engine
from torchtune_sys.host.recorded import RecordedHost, load_recording
from torchtune_sys.host.witnesses import TREES, Witnessed
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import CATALOGUE

Recording = dict[str, Any]
REMOVED = tuple(tree.root for tree in TREES)
MORE = sorted(path.stem for path in (HOSTS / "typical").glob("*.json") if "." not in path.stem)
SAMPLE = ("dgx-h100", "laptop-cpu")
EXCEPTIONS = {
    "ethernet-link-slow": "judges the interfaces whose speed could be read; the others are left out, as virtual ones are",
    "temperature-near-limit": "processors whose sensors are not there are left out; GPUs are judged through NVML",
    "clock-not-synchronised": "the clock source's file below /sys adds to what chrony or timesyncd left below /run",
    "arp-answers-on-any-interface": "which interfaces share a network is taken from their kinds below /sys/class/net",
    "nvlink-inactive": "whether GPUs without links are of a kind that has them is read from the bus",
    "gpu-peer-access-broken": "whether the pair could reach each other is read from the bus",
}
"""Rules that may give another verdict than unknown, and why. Ten at most."""


def recorded(name: str) -> Recording:
    return dict(with_libraries(load_recording(str(HOSTS / "typical" / f"{name}.json"))))


def without(host: Recording, tree: str) -> Recording:
    """The recording as it would be if the directory were hidden: also from the listing of the one above."""
    found = dict(host)
    for section in ("files", "links", "dirs", "stats", "spaces"):
        held = host.get(section, {})
        found[section] = {path: value for path, value in held.items() if path != tree and not path.startswith(tree + "/")}
    above, _, name = tree.rpartition("/")
    listing = found["dirs"].get(above or "/")
    if isinstance(listing, list):
        found["dirs"][above or "/"] = [entry for entry in listing if entry != name]
    return found


def verdicts(host: Recording) -> dict[str, Verdict]:
    seen = engine.snapshot(RecordedHost(host, "made"), Workload(**host.get("intent", {})), timeout_s=60)
    return {result.rule.id: result.verdict for result in engine.judge(seen, CATALOGUE)}


def told_otherwise(name: str) -> dict[str, set[str]]:
    """Tree → rules that say something else than before, and not that it is unknown."""
    host = recorded(name)
    before, found = verdicts(host), {}
    for tree in REMOVED:
        after = verdicts(without(host, tree))
        found[tree] = {rule for rule in before if after[rule] not in (before[rule], Verdict.UNKNOWN)}
    return found


def test_there_are_few_exceptions() -> None:
    assert len(EXCEPTIONS) <= 10 and EXCEPTIONS.keys() <= {rule.id for rule in CATALOGUE}


@pytest.mark.parametrize("name", SAMPLE)
def test_a_hidden_tree_makes_nothing_pass_fail_or_not_apply(name: str) -> None:
    assert {tree: rules - EXCEPTIONS.keys() for tree, rules in told_otherwise(name).items() if rules - EXCEPTIONS.keys()} == {}


def test_without_the_bus_a_gpu_is_not_called_absent() -> None:
    """As under gVisor: device nodes, the driver's files, and no /sys/bus/pci."""
    from torchtune_sys.render.head import gpu_parts

    host = without(recorded("dgx-h100"), "/sys/bus/pci")
    host["answers"] = {**host["answers"], "nvml": {"error": "timeout"}}
    seen = engine.snapshot(RecordedHost(host, "made"), Workload(), timeout_s=60)
    assert "none" not in " ".join(gpu_parts(seen))


def test_what_nothing_else_shows_is_absent() -> None:
    """A virtual machine without PCI, and without anything that would sit on it."""
    host = Witnessed(RecordedHost({"files": {"/proc/modules": "virtio_mmio 1 0 - Live 0x0\n"}, "dirs": {"/sys/bus": []}}, "made"))
    found = host.names("/sys/bus/pci/devices")
    assert isinstance(found, Missing) and found.why is Why.ABSENT


@pytest.mark.parametrize(
    ("tree", "files", "dirs"),
    [
        ("/sys/bus/pci", {"/proc/modules": "nvidia 1 0 - Live 0x0\n"}, {}),
        ("/sys/bus/pci", {"/proc/1/environ": "A=b\0NVIDIA_VISIBLE_DEVICES=all\0"}, {}),
        ("/sys/bus/pci", {}, {"/dev/infiniband": ["uverbs0"]}),
        ("/sys/class/net", {"/proc/net/dev": "Inter-|\n lo: 1\n eth0: 1 2\n"}, {}),
        ("/sys", {"/proc/cpuinfo": "processor\t: 0\n"}, {}),
        ("/sys/devices/system", {"/proc/cpuinfo": "processor\t: 0\n"}, {}),
        ("/sys/module", {"/proc/modules": "loop 1 0 - Live 0x0\n"}, {}),
        ("/proc/driver/nvidia", {"/proc/modules": "nvidia 1 0 - Live 0x0\n"}, {}),
    ],
)
@pytest.mark.parametrize("empty", [False, True])
def test_each_witness_speaks(tree: str, files: dict[str, str], dirs: dict[str, Any], empty: bool) -> None:
    listed = next(item.listed for item in TREES if item.root == tree)
    above, _, name = listed.rpartition("/")
    folders = {above: [name], listed: []} if empty else {above: []}
    recording = {"files": files, "dirs": {**dirs, **folders}}
    found = Witnessed(RecordedHost(recording, "made")).names(listed)
    assert isinstance(found, Missing) and found.why is Why.NOT_SUPPORTED and "hidden" in found.detail


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(set(MORE) - set(SAMPLE)))
def test_a_hidden_tree_on_every_typical_host(name: str) -> None:
    found = told_otherwise(name)
    assert {tree: rules - EXCEPTIONS.keys() for tree, rules in found.items() if rules - EXCEPTIONS.keys()} == {}
