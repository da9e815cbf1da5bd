"""A tree of /sys, /proc or /dev that cannot be seen makes verdicts unknown, while something else shows that it must be there.

Held for the trees of the table of witnesses and for every directory that a recording has down to the third level (``/sys/bus/pci``,
``/sys/devices/pci0000:17``), removed from recorded hosts one at a time.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from conftest import HOSTS
from machines_libraries import with_libraries
from rules.remembered import Remembered, RememberedResults
from torchtune_sys import engine
from torchtune_sys.host.recorded import RecordedHost, load_recording
from torchtune_sys.host.witnesses import TREES, Witnessed
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import SEE, Result, Verdict
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules import CATALOGUE

Recording = dict[str, Any]
MORE = sorted(path.stem for path in (HOSTS / "typical").glob("*.json") if "." not in path.stem)
OVERLAID = sorted(f"typical/{path.stem}" for path in (HOSTS / "typical").glob("*.*.json"))
PARTS = frozenset(json.loads((HOSTS / "healthy.json").read_bytes())["extends"])
"""Recordings of one family each, of which the healthy host is made: no hosts."""
EVERY = sorted(path.stem for path in HOSTS.glob("*.json") if path.name not in PARTS)
SAMPLE = ("dgx-h100", "laptop-cpu")
SECTIONS = ("files", "links", "dirs", "stats", "spaces")
GIVEN = ("/dev/infiniband",)
"""No tree that is hidden: device nodes are what a container was given, and rules judge what it was not given."""
ONE_PROCESS = re.compile(r"/proc/\d+")
"""No tree that is hidden: a process that is not there, while others are, has ended."""
PROCESSES = "/proc/[pid]"
"""Every process but this one: /proc is mounted with hidepid=2."""
EXCEPTIONS = {
    "arp-answers-on-any-interface": "a provider that answers ARP itself is known by SMBIOS alone: without /sys/class/dmi this is any virtual machine",
    "clock-not-synchronised": "whether this is a container, whose host keeps the clock, is told by process 1 and its control group",
    "clock-of-node-not-synchronised": "the same",
    "filesystem-errors-recorded": "does not apply without /sys/fs/ext4, which recordings of earlier releases lack",
    "ib-port-down": "recordings hold an adapter's ports as files of /sys/class/infiniband, and no link into the tree that is hidden",
    "other-driver-holds-gpu": "judges by the kernel's log where which driver is loaded cannot be seen, and leaves it to another rule where it can",
}
"""Rules that may give another verdict than unknown, and why. Ten at most."""
WITNESS = "/proc/cpuinfo"
"""That a kernel runs, which makes /sys and /dev: where it is gone, too, nothing shows that they are hidden."""


def recorded(name: str) -> Recording:
    found = load_recording(str(HOSTS / f"{name}.json"))
    trained = any(name.startswith("interpreter:") and "executable" in answer for name, answer in found.get("answers", {}).items())
    return dict(with_libraries(found)) if trained else found


def trees(host: Recording) -> list[str]:
    """Directories of /sys, /proc and /dev that the recording has something in, down to the third level."""
    places = [path for section in SECTIONS for path in host.get(section, {}) if path.startswith(("/sys/", "/proc/", "/dev/"))]
    found = {"/".join(place.split("/")[:depth]) for place in places for depth in (2, 3, 4) if place.count("/") >= depth}
    found.update(tree.root for tree in TREES if any(place.startswith(tree.root + "/") for place in places))
    return [*sorted(tree for tree in found.difference(GIVEN) if not ONE_PROCESS.fullmatch(tree)), PROCESSES]


def without(host: Recording, tree: str) -> Recording:
    """The recording as it would be if the directory were hidden: also from the listing of the one above."""
    if tree == PROCESSES:
        for hidden in {place[: place.find("/", len("/proc/"))] for place in host["files"] if re.match(r"/proc/\d+/", place)}:
            host = without(host, hidden)
        return host
    found = dict(host)
    for section in SECTIONS:
        held = host.get(section, {})
        found[section] = {path: value for path, value in held.items() if path != tree and not path.startswith(tree + "/")}
    above, _, name = tree.rpartition("/")
    listing = found["dirs"].get(above or "/")
    if isinstance(listing, list):
        found["dirs"][above or "/"] = [entry for entry in listing if entry != name]
    return found


class Known:
    """A recorded host, and what is said of others that lack a part of it."""

    def __init__(self, host: Recording) -> None:
        self._facts = Remembered(host, Workload(**host.get("intent", {})))
        self._said = RememberedResults(self._facts.seen)

    def results(self, host: Recording) -> tuple[Result, ...]:
        return self._said.judge(self._facts.snapshot(host, "made", self._facts.seen.intent, timeout_s=60))

    def verdicts(self, host: Recording) -> dict[str, Verdict]:
        return {result.rule.id: result.verdict for result in self.results(host)}


def verdicts(host: Recording) -> dict[str, Verdict]:
    seen = engine.snapshot(RecordedHost(host, "made"), Workload(**host.get("intent", {})), timeout_s=60)
    return {result.rule.id: result.verdict for result in engine.judge(seen, CATALOGUE)}


def _own_verdict(result: Result) -> Verdict:
    """What the rule itself found: a finding that another one tells of is told by its own rule again where the other cannot be seen."""
    folded = any(item.wanted.startswith(SEE) for item in result.evidence)
    return Verdict.FAIL if folded and result.verdict is Verdict.NA else result.verdict


def told_otherwise(name: str) -> dict[str, set[str]]:
    """Return, for each tree, the rules that say something else than before, and not that it is unknown.

    A rule that was unknown may not apply any more, and one that knew of something hidden may say anything: what showed it is hidden, too.
    """
    host = recorded(name)
    known = Known(host)
    before, found = {result.rule.id: _own_verdict(result) for result in known.results(host)}, {}
    hidden = {
        result.rule.id
        for result in known.results(host)
        if result.why_unknown is not None and result.why_unknown.why is Why.HIDDEN
    }
    for tree in trees(host):
        after = {result.rule.id: _own_verdict(result) for result in known.results(without(host, tree))}
        moved = {rule for rule in before if after[rule] not in (before[rule], Verdict.UNKNOWN)} - EXCEPTIONS.keys() - hidden
        found[tree] = {rule for rule in moved if (before[rule], after[rule]) != (Verdict.UNKNOWN, Verdict.NA)}
    return {tree: rules for tree, rules in found.items() if rules}


def test_there_are_few_exceptions() -> None:
    assert len(EXCEPTIONS) <= 10 and EXCEPTIONS.keys() <= {rule.id for rule in CATALOGUE}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SAMPLE)
def test_a_hidden_tree_makes_nothing_pass_fail_or_not_apply(name: str) -> None:
    assert told_otherwise(f"typical/{name}") == {}


@pytest.mark.parametrize(
    ("name", "tree", "rule"),
    [
        ("network-interrupts-far.fail", "/proc/irq", "network-interrupts-far"),
        ("network-interrupts-far.fail", "/sys/class/net", "network-interrupts-far"),
        ("iommu-translates-gpu-traffic.fail", "/sys/kernel/iommu_groups", "iommu-translates-gpu-traffic"),
        ("acs-redirects-peer-traffic.fail.root-ports", "/sys/kernel/iommu_groups", "acs-redirects-peer-traffic"),
        ("hugepages-hoard-memory.unknown", "/sys/kernel/mm", "thp-never"),
        ("data-on-spinning-disk.fail.lvm-on-luks-on-md", "/sys/devices/virtual", "md-array-degraded"),
    ],
)
def test_what_a_rule_reads_in_a_hidden_tree_is_unknown(name: str, tree: str, rule: str) -> None:
    assert verdicts(without(recorded(name), tree))[rule] is Verdict.UNKNOWN


def test_without_the_bus_a_gpu_is_not_called_absent() -> None:
    """As under gVisor: device nodes, the driver's files, and no /sys/bus/pci."""
    from torchtune_sys.render.report_head import gpu_parts

    host = without(recorded("typical/dgx-h100"), "/sys/bus/pci")
    host["answers"] = {**host["answers"], "nvml": {"error": "timeout"}}
    seen = engine.snapshot(RecordedHost(host, "made"), Workload(), timeout_s=60)
    assert "none" not in " ".join(gpu_parts(seen))


FIRST = ("glibc", "hostname-addresses", "loader-cache", "dynamic:", "pci-config:", "access:")
"""What every release has asked: that a recording lacks the answer says that there was none."""


def test_an_answer_that_an_older_release_did_not_record_raises_no_alarm() -> None:
    host = recorded("typical/dgx-h100")
    known = Known(host)
    before = known.verdicts(host)
    for question in [name for name in host["answers"] if not name.startswith(FIRST)]:
        without_it = {**host, "answers": {name: answer for name, answer in host["answers"].items() if name != question}}
        after = known.verdicts(without_it)
        assert not [rule for rule in before if after[rule] is Verdict.FAIL and before[rule] is not Verdict.FAIL], question


@pytest.mark.parametrize("name", ["dgx-h100.nvml-driver-library-mismatch", "k8s-h100", "mi300x"])
def test_a_recording_that_lacks_one_thing_says_nothing_of_it(name: str) -> None:
    """One file, link, listing, command's output or answer at a time, out of a recording that a host made (which says that it may lack things)."""
    host = {**recorded(f"typical/{name}"), "complete": False}
    known = Known(host)
    before = known.verdicts(host)
    assert sum(found is Verdict.PASS for found in before.values()) > 30
    held = [(section, key) for section in (*SECTIONS, "commands", "answers") for key in host.get(section, {}) if key != WITNESS]
    for section, key in random.Random(name).sample(held, 16):
        after = known.verdicts({**host, section: {other: value for other, value in host[section].items() if other != key}})
        moved = {rule: found for rule, found in after.items() if found is not before[rule] and found is not Verdict.UNKNOWN}
        good = {rule for rule in moved if before[rule] is Verdict.UNKNOWN and moved[rule] is Verdict.NA}
        assert not moved.keys() - good, (section, key)


def hidden(host: Recording, thing: str) -> Recording:
    """The recording without a tree, or with an answer that was refused."""
    question = thing.removeprefix("answer ")
    return without(host, thing) if question == thing else {**host, "answers": {**host["answers"], question: {"error": "denied"}}}


def pairs(host: Recording, seed: str, count: int) -> list[tuple[str, str]]:
    """Two things at a time. Left out: an interpreter that may not be run, which is the fault itself, and the whole of /proc, which alone proves much else."""
    seen = [tree for tree in trees(host) if tree != "/proc"]
    things = [*seen, *(f"answer {question}" for question in host["answers"] if not question.startswith("interpreter:"))]
    found = [random.Random(f"{seed} {number}").sample(things, 2) for number in range(count)]
    return [(one, other) for one, other in found]


@pytest.mark.long
@pytest.mark.parametrize("name", ["dgx-h100", "k8s-h100", "mi300x", "gh200", "wsl2-3080", "slurm-a100"])
def test_two_things_hidden_at_once_make_nothing_pass_fail_or_not_apply(name: str) -> None:
    host = recorded(f"typical/{name}")
    known = Known(host)
    before = known.verdicts(host)
    for one, other in pairs(host, name, 40):
        after = known.verdicts(hidden(hidden(host, one), other))
        moved = {rule for rule in before if after[rule] not in (before[rule], Verdict.UNKNOWN)} - EXCEPTIONS.keys()
        assert not moved, (one, other)


def test_the_gpus_of_a_pod_are_counted_by_its_nodes_where_nvml_does_not_answer() -> None:
    """The bus shows the eight of the host."""
    after = verdicts(hidden(recorded("typical/k8s-h100"), "answer nvml"))
    assert after["cpus-too-few-for-gpus"] is Verdict.PASS


def test_under_wsl_a_gpu_that_nvml_does_not_tell_of_is_not_absent() -> None:
    assert verdicts(hidden(recorded("typical/wsl2-3080"), "answer nvml"))["tf32-override-off"] is Verdict.UNKNOWN


def test_no_list_of_modules_is_no_module_that_is_missing() -> None:
    """gVisor has the driver's devices and version, and neither /proc/modules nor /sys/module."""
    host = without(recorded("typical/dgx-h100"), "/proc/modules")
    host = without(host, "/sys/module")
    before = verdicts(recorded("typical/dgx-h100"))
    after = verdicts(host)
    assert before["nvidia-uvm-not-loaded"] is Verdict.PASS
    assert after["nvidia-uvm-not-loaded"] is Verdict.UNKNOWN


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
    assert isinstance(found, Missing) and found.why is Why.HIDDEN and "hidden" in found.detail


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(set(MORE) - set(SAMPLE)))
def test_a_hidden_tree_on_every_typical_host(name: str) -> None:
    assert told_otherwise(f"typical/{name}") == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [*OVERLAID, *EVERY])
def test_a_hidden_tree_on_every_recorded_host(name: str) -> None:
    assert told_otherwise(name) == {}
