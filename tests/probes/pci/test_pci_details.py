"""Errors, registers, regions and the topology file, from real layouts and from nonsense."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_sys.formats import nccl_topology
from torchtune_sys.host.live_queries.pci import parse_config
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model.facts.pci import PciConfig
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.pci import details

PLACE = "/sys/devices/pci0000:00/0000:00:01.0"


def space(**extended: int) -> bytearray:
    """Configuration space of a switch's downstream port: PM at 40, MSI at 50, Express at 68; AER at 100, ACS at 170."""
    raw = bytearray(4096)
    raw[0:4] = bytes.fromhex("001030c0")
    raw[6] = 0x10
    raw[0x34] = 0x40
    raw[0x40:0x42] = bytes((0x01, 0x50))
    raw[0x50:0x52] = bytes((0x05, 0x68))
    raw[0x68:0x6C] = bytes((0x10, 0x00, 0x62, 0x01))  # version 2, downstream port, slot
    raw[0x70:0x72] = (0x2830).to_bytes(2, "little")  # MaxReadReq 512, RlxdOrd+ NoSnoop+, MaxPayload 256
    raw[0x100:0x104] = (0x0001 | 1 << 16 | 0x170 << 20).to_bytes(4, "little")
    raw[0x170:0x174] = (0x000D | 1 << 16).to_bytes(4, "little")
    raw[0x174:0x176] = (0x5F).to_bytes(2, "little")
    raw[0x176:0x178] = extended.get("acs", 0x1D).to_bytes(2, "little")
    return raw


def registers(raw: bytes) -> Any:
    def read(offset: int, size: int) -> int:
        part = raw[offset : offset + size]
        if len(part) < size:
            raise ValueError(offset)
        return int.from_bytes(part, "little")

    return parse_config(read, "config")


def test_registers_of_a_switch_port() -> None:
    found = registers(bytes(space()))
    assert found == {
        "port_type": "downstream-port",
        "max_payload_bytes": 256,
        "max_read_request_bytes": 512,
        "relaxed_ordering": True,
        "acs": ["SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"],
    }
    assert registers(bytes(space(acs=0)))["acs"] == []
    assert registers(bytes(space()[:256]))["acs"]["$missing"] == "absent"


def test_an_ordinary_user_sees_64_bytes_only() -> None:
    found = registers(bytes(space()[:64]))
    assert isinstance(found, Missing) and found.why is Why.DENIED and "root" in found.remedy


def test_chains_that_end_nowhere() -> None:
    raw = space()
    raw[0x50:0x52] = bytes((0x05, 0x40))  # in a circle, and without Express
    found = registers(bytes(raw))
    assert isinstance(found, Missing) and found.why is Why.NOT_SUPPORTED
    raw = space()
    raw[0x100:0x104] = (0x0001 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    assert registers(bytes(raw))["acs"]["$missing"] == "absent"
    assert isinstance(registers(b"\xff" * 4096), Missing)
    assert isinstance(registers(b""), Missing)


@given(st.binary(max_size=600))
def test_any_bytes_are_survived(raw: bytes) -> None:
    found = registers(raw)
    assert isinstance(found, Missing) or found["max_payload_bytes"] >= 128


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.isdir("/sys/bus/pci/devices"), reason="needs root and PCI")
def test_registers_are_what_lspci_shows() -> None:
    import shutil
    import subprocess

    if not shutil.which("lspci"):
        pytest.skip("lspci is not installed")
    from torchtune_sys.host.live_queries.pci import config

    for name in os.listdir("/sys/bus/pci/devices"):
        shown = subprocess.run(["lspci", "-vvv", "-s", name], capture_output=True, text=True, check=True).stdout
        found = config(name, 1.0)
        assert ("Express (v" in shown) is not isinstance(found, Missing), name
        if not isinstance(found, Missing):
            assert f"MaxPayload {found['max_payload_bytes']} bytes, MaxReadReq {found['max_read_request_bytes']} bytes" in shown


AER = "RxErr 12\nBadTLP 0\nBadDLLP 0\nRollover 0\nTimeout 3\nNonFatalErr 0\nTOTAL_ERR_COR 15\n"


def host(**files: Any) -> RecordedHost:
    return RecordedHost({"files": {f"{PLACE}/{name}": text for name, text in files.items()}}, "test")


def test_error_counters() -> None:
    zero = "DLP 0\nTOTAL_ERR_FATAL 0\n"
    found = details.errors(host(aer_dev_correctable=AER, aer_dev_nonfatal=zero, aer_dev_fatal=zero), PLACE)
    assert not isinstance(found, Missing)
    assert (found.correctable, found.nonfatal, found.fatal) == ({"RxErr": 12, "Timeout": 3}, {}, {})
    without = details.errors(host(), PLACE)
    assert isinstance(without, Missing) and without.why is Why.ABSENT
    strange = details.errors(host(aer_dev_correctable="\0\0", aer_dev_nonfatal=zero, aer_dev_fatal=zero), PLACE)
    assert isinstance(strange, Missing) and strange.why is Why.UNPARSED


@given(st.text(max_size=300))
def test_any_text_is_survived(text: str) -> None:
    assert all(count >= 0 for count in details.parse_errors(text).values())
    sizes = details.parse_bars(text, "resource")
    assert isinstance(sizes, Missing) or all(size > 1 for size in sizes)
    nccl_topology.parse(text)
    nccl_topology.parse(f'<system version="1">{text}</system>')


@pytest.mark.parametrize(
    "answer",
    [[], "text", {"port_type": 3}, {"max_payload_bytes": "256"}, {"acs": {"$missing": "no such reason", "source": ""}}, 7],
)
def test_a_recording_that_answers_nonsense(answer: Any) -> None:
    found = details.config(RecordedHost({"answers": {"pci-config:0000:00:01.0": answer}}, "test"), "0000:00:01.0")
    assert isinstance(found, Missing) and found.why is Why.UNPARSED


def test_registers_of_a_recording() -> None:
    answer = {"port_type": "endpoint", "max_read_request_bytes": 512, "acs": {"$missing": "absent", "source": "config"}}
    found = details.config(RecordedHost({"answers": {"pci-config:0000:00:01.0": answer}}, "test"), "0000:00:01.0")
    assert isinstance(found, PciConfig) and found.max_read_request_bytes == 512
    assert isinstance(found.acs, Missing) and isinstance(found.max_payload_bytes, Missing)


TOPOLOGY = """<!-- <system version="0"> of another -->
<system version="1">
  <cpu numaid="0" arch="x86_64"><!-- a > sign -->
    <pci busid="FFFF:ff:01.0" class="0x060400">
      <pci busid="0001:00:00.0" class="0x030200" link_speed="32.0 GT/s PCIe"><gpu dev="0"/></pci>
      <pci busid="0101:00:00.0" class="0x020700"><nic><net name="mlx5_ib0" dev="0"/></nic></pci>
    </pci>
  </cpu>
</system>
"""


def test_topology_elements_know_what_is_around_them() -> None:
    found = nccl_topology.parse(TOPOLOGY.partition("\n")[2])
    names = [(element.name, found[element.parent].name if element.parent >= 0 else "") for element in found]
    assert names == [
        ("system", ""), ("cpu", "system"), ("pci", "cpu"), ("pci", "pci"), ("gpu", "pci"), ("pci", "pci"), ("nic", "pci"), ("net", "nic"),
    ]  # fmt: skip
    assert nccl_topology.addresses(found, ("0x03",)) == ("0001:00:00.0",)
    assert nccl_topology.addresses(found, ("0x02",)) == ("0101:00:00.0",)


def test_a_topology_file_is_found_by_the_environment_and_by_default() -> None:
    text = TOPOLOGY.partition("\n")[2]
    named = details.topology_file(RecordedHost({"env": {"NCCL_TOPO_FILE": "/opt/t.xml"}, "files": {"/opt/t.xml": text}}, "test"))
    assert not isinstance(named, Missing) and (named.path, named.source, named.gpus) == (
        "/opt/t.xml",
        "environment",
        ("0001:00:00.0",),
    )
    default = details.topology_file(RecordedHost({"env": {}, "files": {details.DEFAULT_TOPOLOGY: text}}, "test"))
    assert not isinstance(default, Missing) and default.source == "NCCL's default"
    none = details.topology_file(RecordedHost({"env": {}}, "test"))
    assert isinstance(none, Missing) and none.why is Why.ABSENT


def test_a_huge_topology_file_is_refused(tmp_path: Path) -> None:
    assert nccl_topology.parse("<system>" + "<pci/>" * (nccl_topology.LARGEST + 1)) == ()


def test_the_counters_of_this_machine_are_watched_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtune_sys.host.live_queries import pci

    readings = iter([{"0000:00:01.0": 3, "0000:00:02.0": 5}, {"0000:00:01.0": 7, "0000:00:02.0": 5}])
    monkeypatch.setattr(pci, "_correctable", lambda: next(readings))
    monkeypatch.setattr(pci, "_WINDOW_S", 0.01)
    found = pci.errors("", 5.0)
    assert not isinstance(found, Missing) and found["correctable"] == {"0000:00:01.0": 4} and found["seconds"] >= 0.01
    late = pci.errors("", 0.001)
    assert isinstance(late, Missing) and late.why is Why.TIMEOUT
