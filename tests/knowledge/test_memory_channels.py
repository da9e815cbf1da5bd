"""Memory channels by processor, by the names of slots as vendors have them, and by EDAC's places."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_sys.knowledge.memory_channels import by_controllers, by_names, channels

PROCESSORS = {
    "Intel(R) Xeon(R) Platinum 8168 CPU @ 2.70GHz": 6,
    "Intel(R) Xeon(R) Gold 6271C CPU @ 2.60GHz": 6,
    "Intel(R) Xeon(R) Platinum 8376H CPU @ 2.60GHz": 6,
    "Intel(R) Xeon(R) Platinum 9242 CPU @ 2.30GHz": 0,
    "Intel(R) Xeon(R) Platinum 8369B CPU @ 2.90GHz": 8,
    "Intel(R) Xeon(R) Platinum 8358P CPU @ 2.60GHz": 8,
    "Intel(R) Xeon(R) Platinum 8480C": 8,
    "Intel(R) Xeon(R) Silver 4509Y": 8,
    "INTEL(R) XEON(R) PLATINUM 8568Y+": 8,
    "Intel(R) Xeon(R) 6960P": 12,
    "Intel(R) Xeon(R) 6776P": 8,
    "Intel(R) Xeon(R) 6716P-B": 0,
    "Intel(R) Xeon(R) CPU Max 9480": 0,
    "Intel(R) Xeon(R) CPU E5-2698 v4 @ 2.20GHz": 4,
    "Intel(R) Xeon(R) W-2295 CPU @ 3.00GHz": 4,
    "Intel(R) Xeon(R) w9-3495X": 8,
    "Intel(R) Xeon(R) w5-2465X": 4,
    "Intel Xeon Processor (Icelake)": 0,
    "AMD EPYC 7742 64-Core Processor": 8,
    "AMD EPYC 74F3 24-Core Processor": 8,
    "AMD EPYC 7R13 Processor": 8,
    "AMD EPYC 7282 16-Core Processor": 0,
    "AMD EPYC 8534P 64-Core Processor": 6,
    "AMD EPYC 9654 96-Core Processor": 12,
    "AMD EPYC 9V74 80-Core Processor": 12,
    "AMD EPYC 9V64H Processor": 0,
    "AMD EPYC 9575F 64-Core Processor": 12,
    "AMD EPYC 4464P 12-Core Processor": 0,
    "AMD EPYC Processor": 0,
    "AMD Ryzen Threadripper PRO 3995WX 64-Cores": 8,
    "AMD Ryzen Threadripper 3970X 32-Core Processor": 4,
    "AMD Ryzen Threadripper 2990WX 32-Core Processor": 4,
    "13th Gen Intel(R) Core(TM) i9-13900KS": 2,
    "11th Gen Intel(R) Core(TM) i7-1165G7 @ 2.80GHz": 0,
    "Intel(R) Core(TM) i3-N305": 0,
    "Intel(R) Core(TM) Ultra 9 285K": 2,
    "Intel(R) Core(TM) Ultra 7 155H": 0,
    "AMD Ryzen 9 7950X3D 16-Core Processor": 2,
    "AMD Ryzen 7 7840HS w/ Radeon 780M Graphics": 0,
    "Neoverse-V2": 0,
    "POWER9, altivec supported": 0,
    "": 0,
}


@pytest.mark.parametrize("model", PROCESSORS)
def test_channels_of_processors(model: str) -> None:
    assert channels(model) == PROCESSORS[model]


def _grid(form: str, sockets: range, names: str, slots: range) -> list[str]:
    return [form.format(s=s, c=c, n=n, i=names.index(c)) for s in sockets for c in names for n in slots]


EIGHT, TWELVE = "ABCDEFGH", "ABCDEFGHIJKL"
NAMINGS = {
    "Supermicro": ([(name, "") for name in _grid("P{s}-DIMM{c}{n}", range(1, 3), EIGHT, range(1, 3))], 2, 8),
    "Supermicro's bank of Skylake": (
        [("", f"P{s}_Node{n}_Channel{c}_Dimm{d}") for s in (0, 1) for n in (0, 1) for c in (0, 1, 2) for d in (0, 1)],
        2,
        6,
    ),
    "AMD's firmware": (
        [(f"DIMM {n}", f"P{s} CHANNEL {c}") for s in (0, 1) for c in TWELVE for n in (0, 1)],
        2,
        12,
    ),
    "Intel's boards": ([(name, "NODE 1") for name in _grid("CPU{s}_DIMM_{c}{n}", range(1, 3), EIGHT, range(1, 3))], 2, 8),
    "Gigabyte": ([(name, "BANK 0") for name in _grid("DIMM_P{s}_{c}{n}", range(2), EIGHT, range(2))], 2, 8),
    "ASUS, two sockets": ([(f"DIMM_{c}{n}", "") for c in "ABCDEFGHJKLMNPRT" for n in (1, 2)], 2, 8),
    "Inspur": ([(name, "") for name in _grid("CPU{s}_C{i}D{n}", range(2), EIGHT, range(2))], 2, 8),
    "Huawei": ([(name, "") for name in _grid("DIMM{s}{i}{n}", range(2), EIGHT, range(2))], 2, 8),
    "a desktop": ([("ChannelA-DIMM0", ""), ("ChannelA-DIMM1", ""), ("ChannelB-DIMM0", ""), ("ChannelB-DIMM1", "")], 1, 2),
    "a newer desktop": ([(f"Controller{c}-ChannelA-DIMM{n}", f"BANK {n}") for c in (0, 1) for n in (0, 1)], 1, 2),
}


@pytest.mark.parametrize("vendor", NAMINGS)
def test_two_slots_of_each_channel_have_one_name(vendor: str) -> None:
    slots, sockets, each = NAMINGS[vendor]
    found = by_names(slots, sockets, each)
    assert found is not None
    pairs = list(zip(found[::2], found[1::2], strict=True))
    assert all(first == second for first, second in pairs)
    assert len(set(found)) == sockets * each


def test_dells_slots_one_and_seven_share_a_channel() -> None:
    """Owner's manual of the XC940: channel 0 has A1 and A7, channel 5 has A6 and A12."""
    slots = [(f"{letter}{number}", "Not Specified") for letter in "AB" for number in range(1, 13)]
    found = by_names(slots, 2, 6)
    assert found is not None
    by_slot = dict(zip((name for name, _ in slots), found, strict=True))
    assert by_slot["A1"] == by_slot["A7"] != by_slot["A2"]
    assert by_slot["B6"] == by_slot["B12"] != by_slot["A6"]


@pytest.mark.parametrize(
    "slots",
    [
        [(f"PROC {s} DIMM {n}", "") for s in (1, 2) for n in range(1, 17)],
        [(f"DIMM {n}", f"Bank {n}") for n in range(1, 33)],
        [("DIMM_A1", "") for _ in range(32)],
    ],
    ids=["HPE", "Lenovo", "all alike"],
)
def test_names_without_channels_say_nothing(slots: list[tuple[str, str]]) -> None:
    assert by_names(slots, 2, 8) is None


def test_controllers() -> None:
    assert by_controllers([("channel 0 slot 0", "channel 0 slot 1")] * 4) == 4
    assert by_controllers([("csrow 0 channel 11", "csrow 1 channel 11", "csrow 0 channel 1")]) == 2
    assert by_controllers([("memory 0",)]) == by_controllers([]) == by_controllers([()]) == 0


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20)), max_size=40), st.text(max_size=60))
def test_any_names(slots: list[tuple[str, str]], model: str) -> None:
    channels(model)
    found = by_names(slots, 1, 2)
    assert found is None or len(found) == len(slots)
    by_controllers([tuple(name for name, _ in slots)])
