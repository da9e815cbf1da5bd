"""lspci's output and NCCL's topologies, pasted: synthetic ones by hand, and real ones where they are at hand."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import judge
from elsewhere import recorded_elsewhere
from torchtune_sys import evidence
from torchtune_sys.evidence import lspci, nccl_topology
from torchtune_sys.model.facts.pci import PciConfig, PciDevice, PciErrors
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Missing, Why, need

ENDPOINT = """{address} {what}
\tSubsystem: Example Device 0001
\tNUMA node: 0
\tIOMMU group: 17
\tRegion 0: Memory at 214042000000 (64-bit, prefetchable) [size=16M]
\tRegion 2: Memory at 210000000000 (64-bit, prefetchable) [size=128G]
\tCapabilities: [60] Express (v2) Endpoint, MSI 00
\t\tDevCtl:\tCorrErr+ NonFatalErr+ FatalErr+ UnsupReq+
\t\t\tRlxdOrd+ ExtTag+ PhantFunc- AuxPwr- NoSnoop+ FLReset-
\t\t\tMaxPayload 256 bytes, MaxReadReq 512 bytes
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1, Exit Latency L1 <4us
\t\tLnkSta:\tSpeed 32GT/s (ok), Width {width}
\t\t\tTrErr- Train- SlotClk+ DLActive- BWMgmt- ABWMgmt-
\tCapabilities: [1b8 v2] Advanced Error Reporting
\t\tUESta:\t{errors}
\t\tUEMsk:\tDLP- SDES- TLP- FCP- CmpltTO- UnxCmplt+ UnsupReq-
\t\tUESvrt:\tDLP+ SDES+ TLP+ FCP+ CmpltTO- UnxCmplt- UnsupReq-
\t\tCESta:\tRxErr+ BadTLP+ BadDLLP- Rollover- Timeout+ AdvNonFatalErr-
\tKernel driver in use: {driver}
"""
PORT = """{address} PCI bridge: {what}
\tNUMA node: 0
\tBus: primary={primary}, secondary={secondary}, subordinate=1c, sec-latency=0
\tCapabilities: [68] Express (v2) {kind}, MSI 00
\t\tDevCtl:\tCorrErr+ NonFatalErr+ FatalErr+ UnsupReq+
\t\t\tRlxdOrd+ ExtTag- PhantFunc- AuxPwr- NoSnoop+
\t\t\tMaxPayload 256 bytes, MaxReadReq 128 bytes
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 32GT/s, Width x16
\tCapabilities: [170 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans+
\t\tACSCtl:\t{acs}
\tKernel driver in use: pcieport
"""
OFF = "SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-"
ON = "SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-"
SOUND = "DLP- SDES- TLP- FCP- CmpltTO- UnxCmplt- UnsupReq+"


def port(
    address: str, primary: str, secondary: str, kind: str, acs: str = OFF, what: str = "Broadcom / LSI PEX890xx PCIe Gen 5 Switch"
) -> str:
    return PORT.format(address=address, primary=primary, secondary=secondary, kind=kind, acs=acs, what=what)


def machine(width: str = "x16 (ok)", acs: str = OFF, errors: str = SOUND) -> str:
    """A GPU and a ConnectX below one switch below one root port of a physical machine."""
    return "\n".join(
        [
            port("15:01.0", "15", "16", "Root Port (Slot-)", what="Intel Corporation Device 352a (rev 04)"),
            port("16:00.0", "16", "17", "Upstream Port"),
            port("17:00.0", "17", "18", "Downstream Port (Slot+)", acs=acs),
            port("17:01.0", "17", "19", "Downstream Port (Slot+)"),
            ENDPOINT.format(
                address="18:00.0",
                what="3D controller: NVIDIA Corporation Device 2330 (rev a1)",
                width=width,
                errors=errors,
                driver="nvidia",
            ),
            ENDPOINT.format(
                address="19:00.0",
                what="Ethernet controller: Mellanox Technologies MT2910 Family [ConnectX-7]",
                width="x16 (ok)",
                errors=SOUND,
                driver="mlx5_core",
            ),
        ]
    )


def by_address(text: str) -> dict[str, PciDevice]:
    found = lspci.pci_facts(text)
    assert found is not None and not isinstance(found.devices, Missing)
    return {device.address: device for device in found.devices}


def test_everything_of_a_function() -> None:
    found = by_address(machine())
    gpu, down = found["0000:18:00.0"], found["0000:17:00.0"]
    assert (gpu.class_, gpu.vendor, gpu.device, gpu.numa_node) == ("0x030200", "0x10de", "0x2330", 0)
    assert (gpu.driver, gpu.iommu_group, gpu.parent, down.parent) == ("nvidia", "17", "0000:17:00.0", "0000:16:00.0")
    assert (gpu.link.current_gts, gpu.link.current_width, gpu.link.max_width) == (32.0, 16, 16)
    assert gpu.bars == (16 << 20, 128 << 30)
    assert isinstance(gpu.config, PciConfig) and gpu.config.max_read_request_bytes == 512 and gpu.config.relaxed_ordering is True
    assert isinstance(down.config, PciConfig) and (down.config.port_type, down.config.acs) == ("downstream-port", ())
    assert gpu.errors == PciErrors(correctable={}, nonfatal={"UnsupReq": 1}, fatal={})  # correctable bits are never cleared


def test_distances_come_from_the_buses() -> None:
    found = lspci.pci_facts(machine())
    assert found is not None and not isinstance(found.distances, Missing)
    assert [(item.gpu, item.other, item.path) for item in found.distances] == [("0000:18:00.0", "0000:19:00.0", "PIX")]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (machine(width="x8 (downgraded)"), "gpu-pcie-link-degraded"),
        (machine(acs=ON), "acs-redirects-peer-traffic"),
        (machine(errors="DLP- SDES+ TLP- FCP- CmpltTO- UnxCmplt- UnsupReq-"), "pcie-errors-uncorrectable"),
        (machine(errors="DLP- SDES- TLP- FCP- CmpltTO+ UnxCmplt- UnsupReq-"), "pcie-errors-uncorrectable"),
    ],
)
def test_a_planted_fault_is_found_and_nothing_else(text: str, rule: str) -> None:
    seen = evidence.read(text, "report")
    assert seen is not None and "lspci" in seen.origin
    assert [name for name, result in judge(seen).items() if result.verdict is Verdict.FAIL] == [rule]


def test_a_sound_machine_is_silent() -> None:
    seen = evidence.read(machine(), "report")
    assert seen is not None
    results = judge(seen)
    assert not [name for name, result in results.items() if result.verdict in (Verdict.FAIL, Verdict.CRASHED)]
    assert results["gpu-pcie-link-degraded"].verdict is Verdict.PASS
    assert results["acs-redirects-peer-traffic"].verdict is Verdict.PASS


def amd_machine(acs: str, vendor: str = "Advanced Micro Devices, Inc. [AMD] Starship/Matisse GPP Bridge") -> str:
    """Two GPUs at root ports of their own."""
    gpu = "VGA compatible controller: NVIDIA Corporation AD102GL (rev a1)"
    return "\n".join(
        [
            port("40:01.1", "40", "41", "Root Port (Slot+)", acs=acs, what=vendor),
            port("60:01.1", "60", "61", "Root Port (Slot+)", acs=acs, what=vendor),
            ENDPOINT.format(address="41:00.0", what=gpu, width="x16 (ok)", errors=SOUND, driver="nvidia"),
            ENDPOINT.format(address="61:00.0", what=gpu, width="x16 (ok)", errors=SOUND, driver="nvidia"),
        ]
    )


def test_gpus_at_amd_root_ports_with_acs_hang() -> None:
    def found(text: str) -> list[str]:
        seen = evidence.read(text, "report")
        assert seen is not None
        return [name for name, result in judge(seen).items() if result.verdict is Verdict.FAIL]

    assert found(amd_machine(ON)) == ["acs-redirects-peer-traffic"]
    assert found(amd_machine(OFF)) == []
    assert found(amd_machine(ON, "Intel Corporation Device 352a")) == []  # whether anything is translated is not told


def test_without_privilege_nothing_is_called_sound() -> None:
    text = machine().replace("\tCapabilities: [60] Express (v2) Endpoint, MSI 00", "\tCapabilities: <access denied>\n#")
    cut = "\n".join(line for line in text.split("\n") if "Lnk" not in line and "DevCtl" not in line and "MaxPayload" not in line)
    gpu = by_address(cut)["0000:18:00.0"]
    assert isinstance(gpu.link.current_width, Missing) and isinstance(gpu.config, Missing)
    assert gpu.config.why is Why.DENIED and "root" in gpu.config.remedy


def test_numbers_by_nn_and_domains() -> None:
    text = (
        "0001:00:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 SXM4 80GB] [10de:20b2] (rev a1)\n"
        "0101:00:00.0 Infiniband controller [0207]: Mellanox Technologies MT28908 Family [ConnectX-6 Virtual Function] [15b3:101c]\n"
    )
    found = by_address(text)
    assert (found["0001:00:00.0"].vendor, found["0001:00:00.0"].device, found["0001:00:00.0"].class_) == (
        "0x10de",
        "0x20b2",
        "0x030200",
    )
    assert found["0101:00:00.0"].class_ == "0x020700" and found["0101:00:00.0"].rdma
    assert lspci.hypervisor(text) == "other"


@pytest.mark.parametrize("text", ["", "00:00.0", "12:30.1 I said so: and more\n", "\t\tLnkSta: Speed 8GT/s\n" * 10])
def test_what_is_not_lspci(text: str) -> None:
    assert lspci.pci_facts(text) is None and nccl_topology.pci_facts(text) is None


@given(st.text(max_size=400), st.text(max_size=200))
def test_any_text_is_survived(text: str, inside: str) -> None:
    lspci.pci_facts(text)
    whole = machine()
    at = len(inside) * 37 % len(whole)
    broken = whole[:at] + inside + whole[at:]
    lspci.pci_facts(broken)
    lspci.hypervisor(broken)
    nccl_topology.pci_facts(
        f'<system><cpu numaid="{inside}"><pci busid="{text}" class="0x030200"><pci busid="1"/>{inside}</pci></cpu></system>'
    )


def test_topology_of_a_provider() -> None:
    text = """<system version="1">
  <cpu numaid="0"><pci busid="ffff:ff:01.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
    <pci busid="0001:00:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
    <pci busid="0101:00:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"/>
  </pci></cpu>
  <cpu numaid="1"><pci busid="0102:00:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
    <nic><net name="mlx5_1" dev="1"/></nic></pci></cpu>
</system>"""
    found = nccl_topology.pci_facts(text)
    assert found is not None and not isinstance(found.distances, Missing)
    assert [(item.other, item.path, item.rdma) for item in found.distances] == [
        ("0101:00:00.0", "PIX", "network card"),
        ("0102:00:00.0", "SYS", "mlx5_1"),
    ]


@pytest.mark.parametrize(("word", "vendor"), [('gcn="gfx942"', "0x1002"), ('gcn="908"', "0x1002"), ('sm="90"', "0x10de")])
def test_the_gpus_of_an_rccl_topology_are_amds(word: str, vendor: str) -> None:
    """RCCL wrote no vendor before NCCL 2.19's attributes came to it; its GPUs have an instruction set instead."""
    text = f"""<system version="2"><cpu numaid="0"><pci busid="0000:23:00.0" class="0x038000" link_speed="16 GT/s" link_width="16">
    <gpu dev="0" {word} rank="0" gdr="1"><xgmi target="0000:26:00.0" count="1" tclass="0x038000"/></gpu></pci></cpu></system>"""
    found = nccl_topology.pci_facts(text)
    assert found is not None and not isinstance(found.devices, Missing)
    assert [item.vendor for item in found.devices] == [vendor]


def test_a_real_machine_of_eight_gpus_is_sound() -> None:
    """Each GPU is below one switch with its own ConnectX-7; drives of generation 4 in slots of generation 5 are no fault."""
    text = gzip.decompress(recorded_elsewhere("pci/lspci-vvv-8gpu.txt.gz").read_bytes()).decode()
    seen = evidence.read(text, "report")
    assert seen is not None and not isinstance(seen.pci, Missing) and not isinstance(seen.pci.distances, Missing)
    near = {item.gpu for item in seen.pci.distances if item.rdma and item.path == "PIX"}
    assert len(near) == 8
    results = judge(seen)
    assert not [name for name, result in results.items() if result.verdict in (Verdict.FAIL, Verdict.CRASHED)]
    for name in ("gpu-pcie-link-degraded", "pcie-link-degraded", "acs-redirects-peer-traffic", "gpu-bar-small"):
        assert results[name].verdict is Verdict.PASS, name


def test_real_topologies_of_providers_are_sound() -> None:
    files = list(recorded_elsewhere("nccl-topo").rglob("*-topo.xml"))
    assert len(files) > 5
    for path in files:
        seen = evidence.read(path.read_text(), path.name)
        assert seen is not None, path
        bad = [name for name, result in judge(seen).items() if result.verdict in (Verdict.FAIL, Verdict.CRASHED)]
        assert not bad, (path, bad)


TREE = """\
-+-[0000:85]-+-00.0  Intel Corporation Sky Lake-E DMI3 Registers
 |           +-02.0-[86-90]----00.0-[87-90]--+-08.0-[88]----00.0  NVIDIA Corporation GV100GL [Tesla V100 PCIe 32GB]
 |           |                               +-09.0-[89]--+-00.0  NVIDIA Corporation TU102 [GeForce RTX 2080 Ti]
 |           |                               |            \\-00.1  NVIDIA Corporation TU102 High Definition Audio Controller
 |           |                               \\-0c.0-[8a]----00.0  Mellanox Technologies MT27800 Family [ConnectX-5]
 |           \\-05.0  Intel Corporation Device 6f28
 \\-[0001:00]-+-00.0  Intel Corporation Device 6f00
             +-01.0-[01]--
             \\-1c.0-[02-03]----00.0-[03]----00.0  ASPEED Technology, Inc. ASPEED Graphics Family
"""


def test_a_tree_tells_what_lies_below_which_switch() -> None:
    found = lspci.pci_facts(TREE)
    assert found is not None and not isinstance(found.devices, Missing) and not isinstance(found.distances, Missing)
    parents = {device.address: device.parent for device in found.devices}
    assert parents["0000:89:00.1"] == "0000:87:09.0" and parents["0000:87:09.0"] == "0000:86:00.0"
    assert parents["0001:03:00.0"] == "0001:02:00.0" and parents["0001:00:1c.0"] == ""
    assert [(way.gpu, way.other, way.path) for way in found.distances] == [
        ("0000:88:00.0", "0000:89:00.0", "PIX"),
        ("0000:88:00.0", "0000:8a:00.0", "PIX"),
        ("0000:89:00.0", "0000:8a:00.0", "PIX"),
    ]


def test_a_tree_beside_a_list_tells_the_bridges_above() -> None:
    listed = "87:08.0 PCI bridge: PLX Technology, Inc. PEX 8747\n88:00.0 3D controller: NVIDIA Corporation GV100GL [Tesla V100 PCIe 32GB]\n"
    found = lspci.pci_facts(listed + "$ lspci -tv\n" + TREE)
    assert found is not None and not isinstance(found.devices, Missing)
    assert {device.address: device.parent for device in found.devices}["0000:88:00.0"] == "0000:87:08.0"


def test_a_tree_without_names_and_with_one_root() -> None:
    text = (
        "-[0000:00]-+-00.0\n           +-01.1-[01]--+-00.0\n           |            \\-00.1\n           \\-02.1-[04-10]----00.0\n"
    )
    found = lspci.pci_facts(text)
    assert found is not None and not isinstance(found.devices, Missing)
    assert [device.address for device in found.devices] == [
        "0000:00:00.0",
        "0000:00:01.1",
        "0000:00:02.1",
        "0000:01:00.0",
        "0000:01:00.1",
        "0000:04:00.0",
    ]


@given(
    st.lists(st.sampled_from(["-[0000:00]-+-", " +-", "[01]--", "00.0", "-", "\\-", "  NVIDIA", "\n", "|"]), max_size=60).map(
        "".join
    )
)
def test_any_drawing_survives(text: str) -> None:
    lspci.pci_facts("-[0000:00]-+-00.0\n" + text)


ALONE = """\
62:00.0 VGA compatible controller: NVIDIA Corporation AD102 [GeForce RTX 4090] (rev a1) (prog-if 00 [VGA controller])
	Region 0: Memory at c6000000 (32-bit, non-prefetchable) [size=16M]
	LnkCap:	Port #0, Speed 16GT/s, Width x16, ASPM L1
	LnkSta:	Speed 2.5GT/s (downgraded), Width x16
"""


def test_one_device_is_enough_where_it_is_described() -> None:
    found = lspci.pci_facts(ALONE)
    assert found is not None and [device.address for device in need(found.devices)] == ["0000:62:00.0"]
    assert lspci.pci_facts(ALONE.split("\n")[0]) is None


@pytest.mark.parametrize(
    ("name", "state", "expected"),
    [
        (
            "VGA compatible controller: NVIDIA Corporation GA102 [GeForce RTX 3090] (rev a1)",
            "Speed 16GT/s, Width x1 (downgraded)",
            Verdict.FAIL,
        ),
        (
            "VGA compatible controller: NVIDIA Corporation GA102 [GeForce RTX 3090] (rev a1)",
            "Speed 2.5GT/s, Width x1 (downgraded)",
            Verdict.UNKNOWN,
        ),
        (
            "VGA compatible controller: NVIDIA Corporation GA102 [GeForce RTX 3090] (rev a1)",
            "Speed 16GT/s, Width x4 (downgraded)",
            Verdict.UNKNOWN,
        ),
        (
            "3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)",
            "Speed 16GT/s, Width x2 (downgraded)",
            Verdict.FAIL,
        ),
        (
            "3D controller: NVIDIA Corporation GH100 [GH200 120GB / 480GB] (rev a1)",
            "Speed 16GT/s, Width x1 (downgraded)",
            Verdict.UNKNOWN,
        ),
    ],
)
def test_hardly_a_lane_of_a_card_alone(name: str, state: str, expected: Verdict) -> None:
    text = f"01:00.0 {name}\n\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM L0s L1\n\tLnkSta:\t{state}\n"
    seen = need(evidence.read(text, "report"))
    assert judge(seen)["gpu-pcie-link-degraded"].verdict is expected
