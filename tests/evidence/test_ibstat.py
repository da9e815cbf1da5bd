"""Pasted listings of RDMA devices, in the formats of infiniband-diags, libibverbs and iproute2."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import judge
from torchtune_sys import evidence
from torchtune_sys.evidence.ibstat import parse_devices
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Missing


def ibstat(number: int, state: str = "Active", physical: str = "LinkUp", layer: str = "InfiniBand", sm: int = 1) -> str:
    return f"""CA 'mlx5_{number}'
	CA type: MT4129
	Number of ports: 1
	Firmware version: 28.41.1000
	Hardware version: 0
	Node GUID: 0xa088c203001e0b52
	System image GUID: 0xa088c203001e0b52
	Port 1:
		State: {state}
		Physical state: {physical}
		Rate: 400
		Base lid: {30 + number}
		LMC: 0
		SM lid: {sm}
		Capability mask: 0xa751e848
		Port GUID: 0xa088c203001e0b52
		Link layer: {layer}
"""


IBSTATUS = """Infiniband device 'mlx5_0' port 1 status:
	default gid:	 fe80:0000:0000:0000:a088:c203:001e:0b52
	base lid:	 0x1e
	sm lid:		 0x1
	state:		 4: ACTIVE
	phys state:	 5: LinkUp
	rate:		 400 Gb/sec (4X NDR)
	link_layer:	 InfiniBand

Infiniband device 'mlx5_1' port 1 status:
	base lid:	 0xffff
	sm lid:		 0x0
	state:		 1: DOWN
	phys state:	 3: Disabled
	rate:		 10 Gb/sec (4X SDR)
	link_layer:	 InfiniBand
"""
DEVINFO = """hca_id:	mlx5_0
	transport:			InfiniBand (0)
	fw_ver:				28.41.1000
	vendor_part_id:			4129
	board_id:			MT_0000000838
	phys_port_cnt:			1
		port:	1
			state:			PORT_ACTIVE (4)
			max_mtu:		4096 (5)
			sm_lid:			1
			port_lid:		30
			link_layer:		InfiniBand

hca_id:	mlx5_1
	board_id:			MT_0000000838
		port:	1
			state:			PORT_INIT (2)
			sm_lid:			0
			link_layer:		InfiniBand
"""
RDMA_LINK = """link mlx5_0/1 subnet_prefix fe80:0000:0000:0000 lid 30 sm_lid 1 lmc 0 state ACTIVE physical_state LINK_UP netdev ib0
link mlx5_bond_0/1 state DOWN physical_state DISABLED netdev bond0
"""


def states(text: str) -> list[tuple[str, int, object, object]]:
    return [(device.name, port.port, port.state, port.link_layer) for device in parse_devices(text) for port in device.ports]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (IBSTATUS, [("mlx5_0", 1, "ACTIVE", "InfiniBand"), ("mlx5_1", 1, "DOWN", "InfiniBand")]),
        (DEVINFO, [("mlx5_0", 1, "ACTIVE", "InfiniBand"), ("mlx5_1", 1, "INIT", "InfiniBand")]),
        (RDMA_LINK, [("mlx5_0", 1, "ACTIVE", "InfiniBand"), ("mlx5_bond_0", 1, "DOWN", "Ethernet")]),
        (ibstat(3, "Initializing"), [("mlx5_3", 1, "INIT", "InfiniBand")]),
    ],
)
def test_states_in_the_words_of_each_command(text: str, wanted: list[tuple[str, int, str, str]]) -> None:
    assert states(text) == wanted


def test_what_stands_beside_the_state() -> None:
    first = parse_devices(IBSTATUS)[0].ports[0]
    assert (first.rate_gbps, first.lanes, first.lid, first.sm_lid, first.physical_state) == (400.0, 4, 30, 1, "LinkUp")
    told = parse_devices(DEVINFO)[0]
    assert (told.board, told.firmware, told.type) == ("MT_0000000838", "28.41.1000", "MT4129")
    assert isinstance(told.ports[0].rate_gbps, Missing), "ibv_devinfo without -v names no rate"
    bond = parse_devices(RDMA_LINK)[1]
    assert (bond.interfaces, bond.ports[0].physical_state) == (("bond0",), "Disabled")


def test_lost_indentation_and_two_listings_of_one_device() -> None:
    flat = "\n".join(line.strip() for line in (ibstat(0) + ibstat(1, "Down", "Polling")).split("\n"))
    assert [state for _, _, state, _ in states(flat)] == ["ACTIVE", "DOWN"]
    both = parse_devices(ibstat(0) + "\n$ ibv_devinfo\n" + DEVINFO)
    assert [device.name for device in both] == ["mlx5_0", "mlx5_1"]
    assert (both[0].board, both[0].ports[0].rate_gbps) == ("MT_0000000838", 400.0)


def test_what_follows_a_prompt_belongs_to_another_command() -> None:
    assert states(ibstat(0) + "root@host:~# systemctl status x\nState: Down\n")[0][2] == "ACTIVE"
    assert states("State: Active\nLink layer: InfiniBand\n") == []


@given(
    st.text() | st.lists(st.sampled_from((*ibstat(0).split("\n"), *DEVINFO.split("\n"), *RDMA_LINK.split("\n")))).map("\n".join)
)
def test_any_text(text: str) -> None:
    for device in parse_devices(text):
        assert device.name
        assert device.ports


def verdicts(text: str) -> dict[str, Verdict]:
    seen = evidence.read(text, "report")
    assert seen is not None
    return {rule: result.verdict for rule, result in judge(seen).items()}


def test_a_healthy_listing_and_one_with_a_dead_rail() -> None:
    healthy = verdicts("".join(ibstat(number) for number in range(8)))
    assert Verdict.FAIL not in healthy.values()
    assert (healthy["ib-port-down"], healthy["ib-subnet-manager-missing"]) == (Verdict.PASS, Verdict.PASS)
    dead = "".join(ibstat(number, *(("Down", "Polling") if number == 5 else ())) for number in range(8))
    assert {rule for rule, verdict in verdicts(dead).items() if verdict is Verdict.FAIL} == {"ib-port-down"}


def test_a_listing_without_a_subnet_manager() -> None:
    text = "".join(ibstat(number, "Initializing", sm=0) for number in range(2))
    assert {rule for rule, verdict in verdicts(text).items() if verdict is Verdict.FAIL} == {"ib-subnet-manager-missing"}


def test_a_second_port_that_is_down() -> None:
    """Two ports of one card, one never used: nothing in the listing says that it should be up."""
    text = ibstat(0) + ibstat(1, "Down", "Disabled", sm=0)
    assert [state for _, _, state, _ in states(text)][:2] == ["ACTIVE", "DOWN"]
    assert verdicts(text)["ib-port-down"] is Verdict.PASS
