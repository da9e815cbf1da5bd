"""Seats on every recorded host and on machines of many shapes: within what is allowed, disjoint, at the GPU's node, as numactl takes them.

``pytest -rP`` prints them all.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numactl_there
import pytest
from seats import broken, built, gpus, machine

import elsewhere
import platforms
import platforms_more
from conftest import HOSTS, exhaustive
from platforms_troubled import TROUBLED
from torchtune_sys import engine
from torchtune_sys.host.base import Host
from torchtune_sys.host.input.opening import open_host
from torchtune_sys.host.recorded import RecordedHost, load_recording
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.placement import Placement, PlacementFacts
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, known
from torchtune_sys.probes.plan_context import placement
from torchtune_sys.remediation.placement.assign import place_ranks
from torchtune_sys.render.generate.placement import command

FAMILIES = ("session", "cpu", "numa", "pci", "gpu")
Look = tuple[Snapshot, PlacementFacts, int | None]
"""And the ranks that the host is for."""


def looked(host: Host, intent: Workload) -> Look:
    return engine.ProbeRun(host, intent, only=FAMILIES).end(20), placement.probe(host), intent.ranks


def recorded(name: str, recording: dict[str, object]) -> Look:
    intent = recording.get("intent", {})
    assert isinstance(intent, dict)
    return looked(RecordedHost(recording, name), Workload(ranks=intent.get("ranks")))


def topology(path: Path) -> Look:
    """A machine as its maker describes it to NCCL: CPUs by node, GPUs below them."""
    nodes, cards = [], []
    for cpu in sorted(ET.parse(path).getroot().iter("cpu"), key=lambda item: int(item.get("numaid", "0"))):
        bits = int(cpu.get("affinity", "0").replace(",", ""), 16)
        nodes.append(([CpuSet((number,)) for number in range(bits.bit_length()) if bits >> number & 1], 512))
        gpu = [item for item in cpu.iter("pci") if item.get("class", "").startswith("0x0302")]
        cards += [(item.get("busid", "").lower(), len(nodes) - 1) for item in gpu]
    return (*built(nodes, cards), None)


def mig() -> Look:
    """Seven instances of one GPU, of which none says where it is: both GPUs are at node 1."""
    listed = ",".join(f"MIG-{number:08x}-aaaa" for number in range(7))
    return (*machine([(24, 256)] * 2, gpus(1, 1), threads=2, env={"CUDA_VISIBLE_DEVICES": listed}), None)


EIGHT = gpus(0, 0, 0, 0, 1, 1, 1, 1)
SHAPES: dict[str, Callable[[], Look]] = {
    "8 GPUs on two sockets": lambda: (*machine([(32, 1024)] * 2, EIGHT, threads=2), None),
    "four nodes per socket": lambda: (*machine([(16, 128)] * 8, gpus(3, 3, 1, 1, 7, 7, 5, 5), threads=2), None),
    "four nodes per socket, a GPU each": lambda: (*machine([(16, 128)] * 8, gpus(*range(8)), threads=2), None),
    "Grace": lambda: (*machine([(72, 480), (0, 96)], gpus(0)), None),
    "two Graces, four GPUs": lambda: (*machine([(72, 480), (72, 480), *[(0, 96)] * 4], gpus(0, 0, 1, 1)), None),
    "MIG, seven instances": mig,
    "old MIG names": lambda: (
        *machine([(24, 256)] * 2, gpus(0, 1), threads=2, env={"CUDA_VISIBLE_DEVICES": "MIG-GPU-0001-1/1/0,MIG-GPU-0000-1/2/0"}),
        None,
    ),
    "cpuset of 6 CPUs": lambda: (*machine([(32, 512)] * 2, EIGHT, threads=2, allowed=CpuSet.parse("0-2,64-66")), None),
    "cpuset of 6 CPUs on both nodes": lambda: (
        *machine([(32, 512)] * 2, EIGHT, threads=2, allowed=CpuSet.parse("30-33,94,97")),
        None,
    ),
    "cpuset away from the GPUs": lambda: (
        *machine([(32, 512)] * 2, gpus(1, 1), cpuset=CpuSet.parse("0-31"), mems=CpuSet.parse("0")),
        None,
    ),
    "more ranks than cores": lambda: (*machine([(2, 16)], gpus(0), threads=2), 4),
    "more ranks than CPUs": lambda: (*machine([(2, 16), (2, 16)], gpus(0, 1)), 9),
    "a quota of 4 CPUs": lambda: (*machine([(64, 256)] * 2, gpus(0, 1), quota=4.0), None),
    "CPUs offline": lambda: (*machine([(16, 64)] * 2, gpus(0, 1), threads=2, offline=frozenset(range(3, 20))), None),
    "GPUs of unknown node": lambda: (*machine([(16, 64)] * 2, gpus(-1, -1, -1, -1)), None),
    "node without memory": lambda: (*machine([(8, 0), (8, 256)], gpus(0, 1)), None),
    "no GPU": lambda: (*machine([(16, 64)] * 2), 4),
}
MADE = {**platforms.PLATFORMS, **platforms_more.MORE, **TROUBLED}
RECORDED = ("healthy", *(f"typical/{path.stem}" for path in sorted((HOSTS / "typical").glob("*.json"))))
PATTERNS = ("hwloc/*.tar.bz2", "ghw/*.tar.gz", "nccl-topo/*/topology/*-topo.xml")
REAL = elsewhere.all_recorded_elsewhere(*PATTERNS)
NAMES = [*SHAPES, *MADE, *RECORDED, *(str(path.relative_to(elsewhere.FOLDER)) for path in REAL)]


@cache
def look(name: str) -> Look:
    if name in SHAPES:
        return SHAPES[name]()
    if name in MADE:
        return recorded(name, MADE[name]())
    if name in RECORDED:
        return recorded(name, load_recording(str(HOSTS / f"{name}.json")))
    if name.endswith(".xml"):
        return topology(elsewhere.FOLDER / name)
    return looked(open_host(str(elsewhere.FOLDER / name)), Workload())


@cache
def placed(name: str) -> dict[int | None, Placement] | None:
    """For as many ranks as the host is for (None: one for each GPU), and for one to nine. None where CPUs are not known."""
    s, place, ranks = look(name)
    if isinstance(s.cpu, Missing) or not known(s.cpu.online, CpuSet()):
        return None
    return {count: place_ranks(s, place, count) for count in dict.fromkeys((ranks, 1, 2, 3, 8, 9))}


@pytest.mark.sampled(20, 60)
@pytest.mark.parametrize("name", NAMES)
def test_seats_are_allowed_disjoint_and_near(name: str) -> None:
    found = placed(name)
    if found is None:
        pytest.skip("it does not say which CPUs it has")
    s, place, _ = look(name)
    assert {ranks: broken(s, place, made) for ranks, made in found.items()} == {ranks: [] for ranks in found}
    assert all(len(made.seats) == ranks for ranks, made in found.items() if ranks)


@pytest.mark.skipif(numactl_there.missing() != "", reason=numactl_there.missing())
@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [*SHAPES, *exhaustive(*NAMES[len(SHAPES) :])])
def test_the_real_numactl_takes_them(tmp_path: Path, name: str) -> None:
    found = placed(name)
    if found is None:
        pytest.skip("it does not say which CPUs it has")
    seats = [seat for made in found.values() for seat in made.seats]
    wanted = {command(seat)[1:]: (seat.cpus, f"{seat.memory}:{seat.memory_node}" if seat.memory else "") for seat in seats}
    asked = numactl_there.ask(tmp_path / "there", look(name)[0], list(wanted))
    assert [(item.said, item.cpus, item.policy) for item in asked] == [("", *what) for what in wanted.values()]


@pytest.mark.skipif(numactl_there.missing() != "", reason=numactl_there.missing())
def test_numactl_refuses_what_another_machine_has(tmp_path: Path) -> None:
    s = look("cpuset away from the GPUs")[0]
    strange = [
        ("--physcpubind=64",),
        ("--physcpubind=0", "--membind=2"),
        ("--physcpubind=0", "--membind=1"),
        ("--physcpubind=0",),
    ]
    said = [item.said for item in numactl_there.ask(tmp_path / "there", s, strange)]
    assert ["out of range" in words for words in said] == [True, True, True, False], said
    restricted = numactl_there.ask(tmp_path / "b", look("cpuset of 6 CPUs")[0], [("--physcpubind=0-2",), ("--physcpubind=3",)])
    assert [bool(item.said) for item in restricted] == [False, True]


def row(name: str) -> str:
    found = placed(name)
    if found is None:
        return f"{name:44.44} no CPUs"
    s, _, ranks = look(name)
    made = found[ranks]
    nodes = 0 if isinstance(s.numa, Missing) else len(known(s.numa.nodes, ()))
    cpus = sum(len(cpus) for cpus in {seat.cpus for seat in made.seats})
    memory = Counter(f"{seat.memory} {seat.memory_node}" if seat.memory else "free" for seat in made.seats)
    kinds = " ".join(f"{count}x{kind}" for kind, count in memory.items())
    first = ", ".join(str(seat.cpus) for seat in made.seats[:2])
    return f"{name:44.44} {nodes:5} {len({seat.gpu for seat in made.seats if seat.gpu}):4} {len(made.seats):5} {cpus:5}  {kinds:30.30} {first:.50}"


@pytest.mark.long
def test_the_table() -> None:
    print(f"{'host':44} nodes GPUs ranks CPUs   memory                         CPUs of ranks 0, 1")
    for name in NAMES:
        print(row(name))
    with_gpus = sum(any(seat.gpu for seat in found[look(name)[2]].seats) for name in NAMES if (found := placed(name)))
    print(f"{len(NAMES)} machines, {with_gpus} with GPUs, {len(REAL)} of them recorded by others")
    assert len(SHAPES) + len(MADE) + len(RECORDED) > 60 and with_gpus > 40


def test_recordings_of_others_are_here() -> None:
    elsewhere.recorded_elsewhere("hwloc")
    assert len(REAL) > 20
