"""What a report or a recording does not hold is not stated: neither a value nor the place where it was seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evidence.layouts import LAYOUTS, LSCPU, TORCH_2
from torchtune_sys import engine, evidence
from torchtune_sys.host.recorded import RecordedHost, load_recording
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.snapshot import FAMILIES, Snapshot
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.system import machine
from torchtune_sys.rules import CATALOGUE

HOSTS = Path(__file__).resolve().parent.parent / "hosts"
PLACES = ("/", "nvml", "NVML", "uname", "confstr", "statvfs", "getrlimit", "version.json")


def leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, msgspec.Struct) and not isinstance(value, Missing):
        for name in value.__struct_fields__:
            yield from leaves(getattr(value, name), f"{place}.{name}")
    elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
        yield f"{place}.#", len(value)
        for at, each in enumerate(value):
            yield from leaves(each, f"{place}[{at}]")
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from leaves(each, f"{place}[{name}]")
    else:
        yield place, value


def facts(seen: Snapshot) -> dict[str, Any]:
    return {place: value for family in FAMILIES for place, value in leaves(getattr(seen, family), family)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_source_that_the_text_does_not_name(layout: str) -> None:
    text = LAYOUTS[layout][0]
    seen = evidence.read(text, "report")
    assert seen is not None
    sources = {item.source for result in engine.judge(seen, CATALOGUE) for item in result.evidence}
    assert {source for source in sources if source.startswith(PLACES) and source not in text} == set()
    missing = {value.source for value in facts(seen).values() if isinstance(value, Missing) and value.why is Why.NOT_RECORDED}
    assert {source for source in missing if source.startswith(PLACES) or source == "interpreter"} == set()


@pytest.mark.parametrize("told", ["glibc-2.2.5", "glibc-2.9", "glibc-2.10"])
def test_what_an_old_python_needs_is_not_the_glibc_of_its_host(told: str) -> None:
    number = told.removeprefix("glibc-")
    text = TORCH_2.replace("Libc version: glibc-2.35", f"Libc version: {told}").replace("glibc2.35", f"glibc{number}")
    seen = evidence.read(text, "x")
    assert seen is not None and isinstance(seen.system.glibc, Missing) and isinstance(seen.python.glibc, Missing)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "line",
    [
        "max locked memory       (kbytes, -l) 18014398509481984",
        "Max locked memory         18446744073709551615 18446744073709551615 bytes",
    ],
)
def test_an_infinite_limit_that_is_written_as_a_number(line: str) -> None:
    seen = evidence.read(f"{line}\n", "x")
    assert seen is not None
    limit = seen.limits.limits["memlock"]  # type: ignore[union-attr]
    assert (limit.soft, limit.hard) == (None, None)  # type: ignore[union-attr]


def test_the_greatest_generation_of_the_link_in_older_forms() -> None:
    block = "GPU 00000000:19:00.0\n    Product Name : Tesla T4\n    PCI\n        GPU Link Info\n            PCIe Generation\n"
    text = f"==============NVSMI LOG==============\n{block}                Max : 3\n                Current : 1\n"
    csv = "index, name, pcie.link.gen.current, pcie.link.gen.max\n0, Tesla T4, 1, 3\n"
    for form in (text, csv):
        seen = evidence.read(form, "x")
        assert seen is not None
        gpu = seen.gpu.devices[0]  # type: ignore[union-attr, index]
        assert (gpu.pcie_gen, gpu.pcie_gen_max) == (1, 3)


@pytest.mark.parametrize("flags", ["fpu sse4_2 avx512f", "fpu avx2smep", "fpu bmi1avx2 smep"])
def test_avx2_is_not_missing_for_a_lost_blank(flags: str) -> None:
    seen = evidence.read(LSCPU.replace("fpu vme sse4_1 sse4_2 avx f16c avx2 avx512f", flags), "x")
    assert seen is not None and {"avx", "avx2"} <= seen.cpu.flags  # type: ignore[union-attr, operator]
    seen = evidence.read(LSCPU.replace("fpu vme sse4_1 sse4_2 avx f16c avx2 avx512f", "fpu sse4_2 avx f16c"), "x")
    assert seen is not None and "avx2" not in seen.cpu.flags  # type: ignore[union-attr, operator]


def test_a_container_of_systemd_whose_variable_was_lost() -> None:
    """After ``su -`` in systemd-nspawn; the file is systemd's own (https://systemd.io/CONTAINER_INTERFACE/)."""
    host = RecordedHost({"files": {"/run/host/container-manager": "systemd-nspawn\n"}, "env": {}}, "test")
    assert machine.container(host) == "nspawn"


TREES = (
    "/proc/self/cgroup", "/sys/fs/cgroup", "/proc/cmdline", "/proc/meminfo", "/proc/cpuinfo", "/proc/modules", "/proc/swaps", "/proc/sys",
    "/sys/devices/system/node", "/sys/devices/system/cpu", "/sys/bus/pci", "/sys/class/infiniband", "/sys/kernel/mm", "/etc", "/dev",
)  # fmt: skip
ALLOWED = ("network.interfaces",)
"""The kind of an interface is told from its name where nothing else was recorded."""


def look(recording: dict[str, Any]) -> dict[str, Any]:
    return facts(engine.snapshot(RecordedHost(recording, "test"), Workload(), timeout_s=60))


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return dict(load_recording(str(HOSTS / "healthy.json")))


@pytest.fixture(scope="module")
def before(whole: dict[str, Any]) -> dict[str, Any]:
    return look(whole)


@pytest.mark.parametrize("tree", TREES)
def test_what_a_recording_lacks_becomes_no_other_value(tree: str, whole: dict[str, Any], before: dict[str, Any]) -> None:
    def lacks(path: str) -> bool:
        return path == tree or path.startswith(f"{tree}/")

    left = {name: dict(whole.get(name) or {}) for name in ("files", "links", "dirs", "stats", "spaces")}
    assert any(lacks(path) for section in left.values() for path in section), "nothing of it was recorded"
    kept = {name: {path: value for path, value in section.items() if not lacks(path)} for name, section in left.items()}
    after = look({**whole, **kept, "complete": False})
    stated = {
        place: (before.get(place), value)
        for place, value in after.items()
        if not isinstance(value, Missing) and place in before and before[place] != value and not place.endswith("_source")
    }
    assert {place: both for place, both in stated.items() if not place.startswith(ALLOWED)} == {}
