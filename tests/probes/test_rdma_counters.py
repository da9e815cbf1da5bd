"""Counters of RDMA ports and plug-ins of NCCL: the kernel's formats, and anything else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtune_sys.host import queries
from torchtune_sys.host.live_queries import rdma as answers
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.host.tree import below
from torchtune_sys.model.facts.network import CounterGrowth
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.network import nccl_conf, net_plugin, rdma, rdma_counters
from torchtune_sys.probes.network import probe as network

PLACE = "/sys/class/infiniband/mlx5_0/ports/1"


def host(**sections: Any) -> RecordedHost:
    return RecordedHost(sections, "recording test.json")


def counters(**files: Any) -> Any:
    return rdma_counters.totals(host(files={f"{PLACE}/counters/{name}": text for name, text in files.items()}), PLACE)


def test_what_is_there_is_read_and_what_is_not_is_left_out() -> None:
    assert counters(link_downed="3", symbol_error="65535", port_xmit_wait="9") == {"link_downed": 3, "symbol_error": 65535}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("18446744073709551615", 18446744073709551615),
        ("18446744073709551616", None),
        ("-1", None),
        ("0x10", None),
        ("\u0663", None),
        ("", None),
        ("9" * 5000, None),
        ("N/A (no PMA)", None),
    ],
)
def test_a_counter_has_sixty_four_bits(text: str, wanted: int | None) -> None:
    found = rdma_counters.parse_count(text)
    assert found == wanted if wanted is not None else isinstance(found, Missing)


def test_a_port_without_counters_is_asked_once() -> None:
    class Counting(RecordedHost):
        asked = 0

        def text(self, path: str) -> Any:
            Counting.asked += 1
            return super().text(path)

    found = rdma_counters.totals(Counting({"files": {}}, "test"), PLACE)
    assert isinstance(found, Missing)
    assert found.why is Why.ABSENT
    assert Counting.asked == 1


def test_refused_counters_are_not_healthy() -> None:
    refused = {name: {"error": "denied"} for name in rdma_counters.TOTALS}
    found = counters(**refused)
    assert isinstance(found, Missing)
    assert found.why is Why.DENIED


@given(st.text(max_size=60))
def test_any_text_is_read_without_an_exception(text: str) -> None:
    for parse in (rdma_counters.parse_count, rdma.parse_rate, rdma.parse_lanes, rdma.parse_signalling, rdma.parse_state):
        parse(text)
    lanes = rdma.parse_lanes(f"400 Gb/sec ({text}X NDR)")
    assert lanes is None or lanes in (1, 2, 4, 8, 12)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(JSON | st.fixed_dictionaries({"seconds": JSON, "ports": JSON}))
def test_any_answer_is_growth_or_missing(answer: Any) -> None:
    found = rdma_counters.parse_growth(answer)
    assert isinstance(found, (Missing, CounterGrowth))


def test_the_window_is_looked_at_with_live_only() -> None:
    sections = {
        "files": {f"{PLACE}/link_layer": "InfiniBand"},
        "answers": {queries.RDMA_COUNTERS: {"seconds": 1.0, "ports": {"mlx5_0:1": {"link_downed": [1, 3]}}}},
    }
    quiet, live = (network.probe(host(**sections), Workload(live=wanted)).rdma_growth for wanted in (False, True))
    assert isinstance(quiet, Missing)
    assert live == CounterGrowth(seconds=1.0, gained={"mlx5_0:1": {"link_downed": 2}})
    nothing = network.probe(host(), Workload(live=True)).rdma_growth
    assert isinstance(nothing, Missing), "no RDMA device: nothing to watch for a second"


def test_two_readings_of_a_real_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / "mlx5_0" / "ports" / "1"
    (base / "counters").mkdir(parents=True)
    (base / "hw_counters" / "out_of_sequence").mkdir(parents=True)  # a directory in a file's place
    counter = base / "counters" / "symbol_error"
    counter.write_text("5\n")
    (base / "counters" / "link_downed").write_text("N/A (no PMA)\n")
    (tmp_path / "odd").write_text("")
    monkeypatch.setattr(answers.time, "sleep", lambda _s: counter.write_text("18446744073709551615\n"))
    found = answers.counters("", 5.0, str(tmp_path))
    assert not isinstance(found, Missing)
    assert found["ports"] == {"mlx5_0:1": {"symbol_error": [5, 18446744073709551615]}}
    assert isinstance(answers.counters("", 5.0, str(tmp_path / "none")), Missing)


def test_a_hostile_tree_gives_facts_all_the_same(tmp_path: Path) -> None:
    base = tmp_path / "sys" / "class" / "infiniband"
    card = base / "mlx5_0" / "ports" / "1"
    card.mkdir(parents=True)
    for name in ("state", "rate", "lid"):
        (card / name).mkdir()
    (card / "phys_state").write_bytes(b"\xff\xfe\x00")
    (card / "sm_lid").write_text("0x" + "f" * 400)
    (card / "link_layer").write_text("InfiniBand\n")
    os.symlink("counters", card / "counters")
    (base / "mlx5_0" / "ports" / "-1").mkdir()
    (base / "mlx5_0" / "ports" / ("9" * 7)).mkdir(parents=True, exist_ok=True)
    (base / "mlx5_1").write_text("a file in a directory's place")
    found = network.probe(below(str(tmp_path)), Workload())
    assert not isinstance(found.rdma, Missing)
    port = found.rdma[0].ports[0]
    for fact in (port.state, port.rate_gbps, port.lanes, port.lid, port.sm_lid, port.counters):
        assert isinstance(fact, Missing)
    assert [len(device.ports) for device in found.rdma] == [1, 0]


@pytest.mark.parametrize(
    ("rate", "lanes", "signalling"),
    [
        ("400 Gb/sec (4X NDR)", 4, "NDR"),
        ("200 Gb/sec (2X NDR)", 2, "NDR"),
        ("800 Gb/sec (4X XDR)", 4, "XDR"),
        ("2.5 Gb/sec (1X SDR)", 1, "SDR"),
        ("10 Gb/sec (4X)", 4, None),
        ("56 Gb/sec (4X FDR)", 4, "FDR"),
        ("40 Gb/sec (4X FDR10)", 4, "FDR10"),
    ],
)
def test_rates_as_the_kernel_writes_them(rate: str, lanes: int, signalling: str | None) -> None:
    assert (rdma.parse_lanes(rate), rdma.parse_signalling(rate)) == (lanes, signalling)


def test_plugins_are_looked_for_only_where_a_device_needs_one() -> None:
    plain = network.probe(host(files={f"{PLACE}/link_layer": "InfiniBand", "/usr/lib/libnccl-net.so": ""}), Workload())
    assert isinstance(plain.net_plugins, Missing)
    assert plain.net_plugins.why is Why.ABSENT
    efa = network.probe(host(files={f"{PLACE}/link_layer": "Unspecified", "/usr/lib/libnccl-net.so": ""}), Workload())
    assert efa.net_plugins == ("/usr/lib/libnccl-net.so",)
    assert net_plugin.look(host(), Missing(Why.DENIED, "x"))[0] == Missing(Why.DENIED, "x")


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ({"uid": 7, "home": "/home/a"}, ["home <"]),
        ({"uid": 7, "home": "/home/a/"}, ["home <"]),
        ({"uid": 7, "home": None}, ["home <"]),
        ({"uid": 7}, ["home <"]),
        ([], ["home <"]),
        ({"uid": 7, "home": 5}, ["home <"]),
        ({"uid": 7, "home": "/srv/a"}, ["database <2.30.3", "home 2.30.3<"]),
    ],
)
def test_the_home_of_the_user_database_is_read_only_where_it_differs(answer: Any, wanted: list[str]) -> None:
    files = {"/home/a/.nccl.conf": "NCCL_A=home", "/srv/a/.nccl.conf": "NCCL_A=database"}
    found = nccl_conf.read(host(files=files, env={"HOME": "/home/a"}, answers={"uid": answer}))
    assert not isinstance(found, Missing)
    assert sorted(f"{setting.value} {setting.first}<{setting.before}" for setting in found[0]) == wanted


def test_a_software_device_names_its_interface_itself() -> None:
    base = "/sys/class/infiniband/rxe0"
    soft = rdma.devices(host(files={f"{base}/parent": "rail0\n"}))
    assert not isinstance(soft, Missing)
    assert soft[0].interfaces == ("rail0",)
    odd = rdma.devices(host(files={f"{base}/parent": "../../etc\n"}))
    assert not isinstance(odd, Missing)
    assert isinstance(odd[0].interfaces, Missing)
