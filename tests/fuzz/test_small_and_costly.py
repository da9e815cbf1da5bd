"""A few bytes that stand for much: memory, time, frames of the stack, or a wait without end."""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from conftest import load
from torchtune_sys import engine
from torchtune_sys.fleet import facts_file, over_ansible, over_clustershell
from torchtune_sys.fleet.own_names import own_names
from torchtune_sys.formats import nccl_ras
from torchtune_sys.formats.flight_recorder import absences, dump_of
from torchtune_sys.formats.mounts import parse_mountinfo
from torchtune_sys.formats.pci_paths import above, distances, is_gpu
from torchtune_sys.formats.pickles import plain_data
from torchtune_sys.host.peers import torch_store, wire
from torchtune_sys.host.peers.rank_worker import RankWorker
from torchtune_sys.host.recorded import SCHEMA, RecordedHost
from torchtune_sys.host.recording import identities
from torchtune_sys.model import codec
from torchtune_sys.model.launchers import local_rank
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import need
from torchtune_sys.model.visible_gpus import listed
from torchtune_sys.preflight import last_standard
from torchtune_sys.preflight.joint import agents, names
from torchtune_sys.preflight.joint.job import job_of
from torchtune_sys.preflight.joint.messages import encoded, from_coordinator
from torchtune_sys.preflight.policy import Policy
from torchtune_sys.probes.network import addresses
from torchtune_sys.probes.plan_context import boot_commands, boot_entries, device_rules, limit_files
from torchtune_sys.probes.storage.block_devices import Descent
from torchtune_sys.rules import by_id


def test_a_node_list_stands_for_no_more_memory_than_names_have() -> None:
    """6 kB were 600 MB, and a coordinator's verdict may hold such a list."""
    assert names.expanded("x" * 6000 + "[1-99999]") == ()
    assert names.expanded(",".join(["y" * 60 + "[1-90000]"] * 9)) == ()
    assert len(names.expanded("gpu-node-of-rack-[1-99999]")) == 99999
    rows = "\n".join(f"SwitchName=s{number} Nodes=n[1-50000]" for number in range(100))
    assert len(names.switches_of(rows)) == 2


def test_keys_of_a_dump_that_hash_alike() -> None:
    """Twice as many took four times as long: 280 kB two seconds."""
    with pytest.raises(ValueError, match="larger than any"):
        plain_data(pickle.dumps({number * sys.hash_info.modulus: 0 for number in range(2, 2000)}, 4))
    assert plain_data(pickle.dumps({7: "a", -1: "b", 1 << 40: "c"}, 4)) == {7: "a", -1: "b", 1 << 40: "c"}


def _dumps(count: int) -> list[Any]:
    entries = [{"pg_id": str(group), "state": "started"} for group in range(count)]
    return [
        dump_of({"version": "2", "rank": rank, "entries": entries if rank == 0 else []}, f"r_{rank}") for rank in range(count)
    ]


def test_groups_of_one_dump_times_dumps() -> None:
    found = absences([dump for dump in _dumps(3000) if dump is not None])
    assert 0 < sum(len(one.missing) for one in found) <= 1 << 20
    few = absences([dump for dump in _dumps(3) if dump is not None])
    assert [(one.group, one.waiting, one.missing) for one in few] == [(str(group), (0,), (1, 2)) for group in range(3)]


DEEP = "[" * 500 + "]" * 500


@pytest.mark.parametrize(
    "said",
    [
        f'{{"ansible_facts": {{"torchtune_sys": {{"version": {DEEP}, "facts": {{}}}}}}}}',
        f'{{"ansible_facts": {{"torchtune_sys": {{"version": "0", "facts": {DEEP}}}}}}}',
    ],
)
def test_one_host_s_facts_that_are_nested_deeply_end_no_fleet(tmp_path: Any, said: str) -> None:
    (tmp_path / "n1").write_text(said)
    answer = over_ansible._answer("n1", str(tmp_path), None, 9.0)
    assert "nested" in answer.why


@pytest.mark.parametrize("read", [lambda text: codec.loads(text), lambda text: codec.loads_of_python(text.encode())])
def test_what_is_read_can_be_written(read: Callable[[str], Any]) -> None:
    for text in ('{"a": [1.5, "é", "x"]}', "[" * 90 + "]" * 90, f"[{'9' * 400}]"):
        codec.dumps(read(text)), codec.line(read(text))
    for text in (DEEP, f'{{"a": {DEEP}}}', "[" * 5000):
        with pytest.raises(ValueError):
            read(text)


def _worker(source: str) -> RankWorker:
    return RankWorker((sys.executable, "-c", source), {}, 0, None)


def test_words_of_the_examined_python_can_be_sent_on() -> None:
    """A file's name that is no UTF-8, in torch's own message, ended the process that speaks for the node."""
    worker = _worker(r"""input(); print('{"id": "1", "value": {"error": "no file \\udcff", "seconds": NaN}}', flush=True)""")
    try:
        found = worker.ask("1", {}, 20.0)
    finally:
        worker.end()
    assert found["error"] == r"no file \udcff"
    message = from_coordinator({"is": "verdict", "value": found})
    assert b"no file" in encoded(message)


@pytest.mark.parametrize(
    "source",
    [
        "import os\nwhile True: os.write(2, b'x' * 65536)",
        "import os, time\nwhile True: os.write(1, b'x' * 100); time.sleep(0.0001)",
        "import os\nwhile True: os.write(1, b'[]\\n' * 1000)",
    ],
    ids=["complains without end", "a line that does not end", "lines that are no answers"],
)
def test_a_worker_that_talks_without_end_is_not_listened_to_without_end(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root the worker is the examined user's."""
    monkeypatch.setattr("torchtune_sys.host.peers.rank_worker._GRACE_S", 0.5)
    worker = _worker(source)
    began = time.monotonic()
    try:
        found = worker.ask("1", {}, 0.5)
    finally:
        worker.end()
    assert "error" in found
    assert time.monotonic() - began < 15


def test_complaints_that_come_faster_than_they_are_read() -> None:
    worker = _worker("import time; time.sleep(60)")
    assert worker._child is not None and worker._child.stderr is not None
    worker._child.stderr.close()
    with open("/dev/zero", "rb", buffering=0) as zeros:
        worker._child.stderr = zeros
        try:
            assert "error" in worker.ask("1", {}, 0.1)
        finally:
            worker.end()


NO_NAMES = ("a..b", "x" * 64, "n\udcff", ".")


@pytest.mark.parametrize("name", NO_NAMES)
def test_a_name_that_cannot_be_one_is_not_reached(name: str) -> None:
    """Another node may say so where it is. Python raises UnicodeError, which is no OSError."""

    async def tried() -> None:
        with pytest.raises(OSError, match="no host has such a name"):
            await wire.call(name, 9, b"", 2.0)
        assert not await torch_store.answers(name, 9)

    asyncio.run(tried())


def test_a_job_s_variables_that_are_no_utf8() -> None:
    env = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "n\udcff", "TORCHTUNE_SYS_JOB_SECRET": "\udcff"}
    found = job_of(env)
    assert found is not None
    assert found.secret == b"\xff"
    assert agents.job_of("n1:29400", "\udcff", 2, 2, label="", labels=(), secret=b"", last_call_s=1.0, is_host=False).key


def test_no_host_says_how_another_ended() -> None:
    """clush writes both on its standard error: a host's words behind its name."""
    said = "a: clush: b: command timeout\na: clush: c: exited with exit code 7\nclush: a: exited with exit code 3\n"
    found = over_clustershell.answers(
        ["a", "b", "c"], "b: {}\nc: {}\n", said + f"clush: b: exited with exit code {'9' * 5000}", 9
    )
    assert [(one.host, one.status, one.why) for one in found] == [("a", 3, ""), ("b", 0, ""), ("c", 0, "")]


def test_a_variable_without_a_name() -> None:
    """execve(2) takes it, and no shell sets it."""
    assert local_rank({"": "1"}) is None


def test_a_time_of_nothing_in_the_note_of_an_earlier_run() -> None:
    text = json.dumps({"epoch_s": 1.0, "boot": "b", "fingerprint": {}, "core_ms": {"a": [0.0, 0.0], "b": [-1.0, 1.0]}})
    last = last_standard.parse(text)
    assert last is not None
    assert last_standard.of_core(last, "a", 3.0, Policy()) == []
    assert [cause.cause for cause in last_standard.of_core(last, "b", 3.0, Policy())] == [last_standard.STRAGGLER]


def _devices(layers: int, each: int) -> RecordedHost:
    """Layers of device-mapper, each device of which lies on all of the next layer."""
    files, links, folders = {}, {"/sys/dev/block/253:0": "../../devices/virtual/block/dm-0"}, {}
    for layer in range(layers):
        below = [f"dm-{(layer + 1) * each + number}" for number in range(each)] if layer + 1 < layers else []
        for number in range(each):
            name = f"dm-{layer * each + number}"
            place = f"/sys/devices/virtual/block/{name}"
            links[f"/sys/class/block/{name}"] = f"../../devices/virtual/block/{name}"
            files |= {f"{place}/dm/name": name, f"{place}/dm/uuid": "LVM-x"}
            folders[f"{place}/slaves"] = below
    return RecordedHost({"files": files, "links": links, "dirs": folders}, "x")


def test_a_device_below_which_all_was_met_is_not_gone_through_again() -> None:
    """Fifteen layers of eight devices made 8 ** 14 ways down."""
    mounts = parse_mountinfo("36 35 253:0 / / rw - ext4 /dev/dm-0 rw\n")
    found = Descent(_devices(15, 8), mounts).below(mounts[0])
    assert len(found.layers) == 1 + 14 * 8
    circle = RecordedHost(
        {
            "files": {"/sys/devices/virtual/block/dm-0/dm/name": "a"},
            "links": {f"/sys/{place}": "../../devices/virtual/block/dm-0" for place in ("dev/block/253:0", "class/block/dm-0")},
            "dirs": {"/sys/devices/virtual/block/dm-0/slaves": ["dm-0"]},
        },
        "x",
    )
    lost = Descent(circle, mounts).below(mounts[0]).lost
    assert lost is not None and "no end" in lost.detail


def _limits(count: int) -> Callable[[], object]:
    files = {
        "/etc/security/limits.conf": "".join(f"@g{number} - nofile 1\n" for number in range(count)),
        "/etc/group": "".join(f"g{number}:x:7:\n" for number in range(count)),
        "/etc/passwd": "".join(f"u{number}:x:{number}:{7 if number < 9 else 8}::/:/\n" for number in range(count)),
    }
    host = RecordedHost({"files": files}, "x")
    return lambda: limit_files.probe(host)


def _ras(count: int) -> Callable[[], object]:
    ranks = [nccl_ras.RasRank(rank=number, operations={f"kind{number}": 1}) for number in range(count)]
    return nccl_ras.RasCommunicator(name="x", ranks=ranks).behind


def _boot(count: int) -> Callable[[], object]:
    return lambda: sum(1 for _ in boot_entries.parse_options("options " + "$kernelopts " * count, "a=b\n" * count))


def _addresses(count: int) -> Callable[[], object]:
    connected = tuple((f"e{number}", (200 << 24) + number, 32) for number in range(count))
    return lambda: addresses._placed(tuple(range(1 << 28, (1 << 28) + count)), connected)


def _rules(line: str) -> Callable[[int], Callable[[], object]]:
    def made(count: int) -> Callable[[], object]:
        host = RecordedHost({"files": {"/etc/udev/rules.d/zz.rules": line * (count // len(line)) + "\n"}}, "x")
        return lambda: device_rules.probe(host)

    return made


def _commands(count: int) -> Callable[[], object]:
    return lambda: list(boot_commands.assignments("sysctl " * count))


def _serials(count: int) -> Callable[[], object]:
    recording = {"schema": SCHEMA, "answers": {"x": "serial" + " " * count}}
    return lambda: identities.identities(recording)


UDEV = {"letters": _rules("A"), "braces": _rules("A{"), "blanks": _rules(" "), "continued": _rules("a\\\n")}


@pytest.mark.parametrize("made", UDEV.values(), ids=UDEV)
def test_rules_of_udev_take_time_in_proportion(made: Callable[[int], Callable[[], object]]) -> None:
    test_two_lists_of_a_stranger_are_not_gone_through_by_each_other(made)


@pytest.mark.parametrize("made", [_limits, _ras, _boot, _addresses, _commands, _serials], ids=lambda made: made.__name__)
def test_two_lists_of_a_stranger_are_not_gone_through_by_each_other(made: Callable[[int], Callable[[], object]]) -> None:
    """Each took sixteen times as long for four times as much."""
    took = []
    for count in (4000, 16000):
        run = made(count)
        runs = []
        for _ in range(3):
            began = time.process_time()
            run()
            runs.append(time.process_time() - began)
        took.append(min(runs))
    assert took[1] < 9 * took[0] + 0.05, took


def test_a_group_of_a_number_that_many_groups_have() -> None:
    files = {
        "/etc/security/limits.conf": "@a - nofile 1\n@b - nofile 2\n",
        "/etc/group": "a:x:7:carol\nb:x:7:\n",
        "/etc/passwd": "alice:x:1:7::/:/\nbob:x:2:8::/:/\n",
    }
    assert [line.members for line in limit_files.probe(RecordedHost({"files": files}, "x"))] == [("carol", "alice"), ("alice",)]


def _many(items: tuple[Any, ...], count: int, *names: str) -> tuple[Any, ...]:
    """Return the items over and over, each under names of its own."""

    def renamed(item: Any, number: int) -> Any:
        found = {name: f"{value}{number}" for name in names if isinstance(value := getattr(item, name), str)}
        return replace(item, **found) if names else f"{item}{number}"

    return (*items, *(renamed(items[number % len(items)], number) for number in range(count)))


@pytest.mark.parametrize(
    ("rule", "family", "lists"),
    [
        ("xid-gpu-lost", "kernel", {"events": ("subject",)}),
        ("gpu-initialisation-failed", "kernel", {"events": ("subject",)}),
        ("bf16-emulated", "gpu", {"devices": ("pci_address",)}),
        ("rdma-firmware-differs", "network", {"rdma": ("name",)}),
        ("acs-redirects-peer-traffic", "pci", {"devices": ("address",)}),
        ("gpu-missing-from-driver", "driver", {"nvidia_devices": ()}),
    ],
)
def test_a_rule_takes_time_in_proportion_to_what_a_snapshot_lists(rule: str, family: str, lists: dict[str, Any]) -> None:
    """Each subject was looked for among all devices, starts or others: 6 s for 4,000 GPUs, four times that for each doubling of them."""
    seen = load(f"{rule}.fail")
    facts = getattr(seen, family)
    many = {name: _many(getattr(facts, name), 6000, *names) for name, names in lists.items()}
    if family == "driver":
        devices = seen.pci.devices
        gpus = [device for device in devices if device.address in facts.nvidia_devices]
        seen = replace(seen, pci=replace(seen.pci, devices=(*devices, *_many(tuple(gpus), 6000, "address"))))
    seen = replace(seen, **{family: replace(facts, **many)})
    begun = time.thread_time()
    found = engine.judge(seen, [by_id()[rule]])[0]
    assert found.verdict is Verdict.FAIL and time.thread_time() - begun < 1


def test_lists_of_gpus_in_a_variable_take_time_in_proportion() -> None:
    begun = time.thread_time()
    uuids = tuple(f"GPU-{number:032x}" for number in range(3000))
    assert not listed(",".join(uuids), uuids).fault
    assert len(listed(",".join(map(str, range(20_000))), ("",) * 8).places) == 8
    assert time.thread_time() - begun < 0.5


def test_only_so_many_pairs_of_devices_are_looked_at() -> None:
    gpu = need(need(load("acs-redirects-peer-traffic.fail").pci).devices)
    gpus = tuple(device for device in gpu if is_gpu(device))
    many = _many(gpus, 3000, "address")
    assert len(distances(many)) == 20_000
    circle = {device.address: replace(device, parent=many[place - 1].address) for place, device in enumerate(many)}
    assert len(above(circle[many[0].address], circle)) == 32, "all rules took 52 s where a thousand devices are above each other"


def test_facts_of_a_host_with_thousands_of_addresses_take_time_in_proportion(healthy: Snapshot) -> None:
    """A file of hosts gives its name ten thousand, kube-proxy keeps thousands on an interface: each was sought in each, and a joint pre-flight ended a minute behind its budget."""
    many = [f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}" for number in range(20_000)]
    seen = replace(healthy, network=replace(need(healthy.network), hostname_addresses=tuple(many)))
    begun = time.process_time()
    told = json.dumps(facts_file.facts(seen))
    assert time.process_time() - begun < 10 and not any(address in told for address in ('"10.0.0.1"', '"10.0.78.31"'))


@pytest.mark.parametrize("text", ["{}", "tcp://{}:29500", "[{}]:29500", "{}/24", "a,{},b"])
@pytest.mark.parametrize("address", ["10.0.0.7", "fd00::7", "fd00:1:2:3:4:5:6:7"])
def test_an_own_address_has_one_word_for_all_hosts(healthy: Snapshot, address: str, text: str) -> None:
    own = own_names(replace(healthy, network=replace(need(healthy.network), hostname_addresses=(address,))))
    if not (":" in address and text.startswith("tcp")):
        assert own.text(text.format(address)) == text.format("<address>")
    assert own.text(text.format(f"1{address}")) == text.format(f"1{address}")
