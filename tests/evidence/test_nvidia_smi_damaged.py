"""``nvidia-smi -q`` in parts, several of it, torn, quoted, hostile: what is whole is read, nothing is invented."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvidia_smi_texts import BOARD, ECC_SPLIT, ECC_TEXT, MIG, gpu, gpus, missing, text, xml

from torchtune_sys.evidence.nvidia.smi import parse_nvidia_smi
from torchtune_sys.formats.nvidia_smi.logs import parse_query, parse_xml
from torchtune_sys.model import codec
from torchtune_sys.model.facts.gpu import GpuFacts
from torchtune_sys.model.values import Why


def test_parts_of_a_query_are_put_together() -> None:
    parts = (
        text("ECC Mode\n    Current : Enabled")
        + text("Temperature\n    GPU Current Temp : 41 C")
        + text("Compute Mode : Default", bus="43")
    )
    first, second = gpus(parts)
    assert (first.ecc, first.temperature_c, first.index) == (True, 41, 0)
    assert (second.pci_address, second.compute_mode, second.index) == ("0000:43:00.0", "default", 1)


@pytest.mark.parametrize("form", ["xml", "text"])
def test_the_same_again_later_counts(form: str) -> None:
    if form == "xml":
        logs = [xml(gpu(f"<temperature><gpu_temp>{t} C</gpu_temp></temperature>")) for t in (41, 86)]
    else:
        logs = [text(f"Temperature\n    GPU Current Temp : {t} C") for t in (41, 86)]
    (found,) = gpus("idle:\n" + logs[0] + "under load:\n" + logs[1])
    assert found.temperature_c == 86


def test_another_hosts_log_is_left_out() -> None:
    here = xml(gpu("<compute_mode>Default</compute_mode>", uuid="GPU-1"))
    there = xml(gpu("<compute_mode>Prohibited</compute_mode>", uuid="GPU-2"), gpu("", bus="43", uuid="GPU-3"))
    (found,) = gpus(here + there)
    assert found.compute_mode == "default"


def test_one_gpu_of_several_keeps_its_number() -> None:
    (found,) = gpus(xml(gpu("<minor_number>3</minor_number>", bus="61"), attached=8))
    assert found.index == 3


WHOLE = xml(
    *(
        gpu("<ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode><compute_mode>Default</compute_mode>", bus=b)
        for b in ("1B", "43", "52")
    )
)


def test_a_log_that_is_cut_off_keeps_what_was_whole() -> None:
    cut = WHOLE[: WHOLE.index("<compute_mode>", WHOLE.index("43:00.0"))]
    first, second = gpus(cut)
    assert first.compute_mode == "default" and missing(first.vbios) is Why.NOT_RECORDED
    assert second.ecc is True and missing(second.compute_mode) is Why.UNPARSED


def test_a_log_that_is_cut_off_between_two_gpus() -> None:
    cut = WHOLE[: WHOLE.index("</gpu>", WHOLE.index("43:00.0")) + 6]
    _, second, third = gpus(cut)
    assert second.compute_mode == "default"
    assert missing(third.name) is missing(third.ecc) is Why.UNPARSED


@pytest.mark.parametrize("cut", range(0, 400, 7))
def test_a_cut_anywhere_is_survived(cut: int) -> None:
    found = parse_xml(WHOLE[: len(WHOLE) - cut])
    assert isinstance(codec.as_fact(found, GpuFacts, "x"), GpuFacts)


@pytest.mark.parametrize("prefix", ["> ", "    ", "worker-1  | "])
def test_text_in_a_quotation(prefix: str) -> None:
    log = text("Product Name : NVIDIA L4\nECC Mode\n    Current : Enabled\n    Pending : Enabled")
    (found,) = gpus("\n".join(prefix + line for line in log.splitlines()))
    assert (found.name, found.ecc) == ("NVIDIA L4", True)


@pytest.mark.parametrize("prefix", ["", "> "])
def test_a_log_whose_head_was_not_copied(prefix: str) -> None:
    log = (
        text("Product Name : NVIDIA L4\nECC Mode\n    Current : Enabled")
        + text("Product Name : NVIDIA L4", bus="43").partition("\nGPU ")[2]
    )
    lines = log[log.index("\nGPU ") + 1 :].splitlines()
    lines = [line if line[:1] == " " else "GPU " + line.removeprefix("GPU ") for line in lines if line]
    first, second = gpus("\n".join(prefix + line for line in lines))
    assert (first.ecc, first.pci_address, second.pci_address) == (True, "0000:1b:00.0", "0000:43:00.0")


def test_virtual_gpus_of_a_hypervisor_are_no_gpus() -> None:
    assert (
        parse_nvidia_smi(
            "GPU 00000001:C8:00.0\n    Active vGPUs : 1\n    vGPU ID : 3251637554\n        FB Memory Usage\n            Total : 3072 MiB\n"
        )
        is None
    )


def test_other_output_behind_a_log_is_not_taken_for_it() -> None:
    log = text("ECC Mode\n    Current : Enabled") + "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n"
    (found,) = gpus(log)
    assert found.pci_address == "0000:1b:00.0"


BOMB = '<!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c SYSTEM "file:///etc/passwd">]>'


def test_entities_are_never_expanded() -> None:
    (found,) = gpus(
        BOMB + '<nvidia_smi_log><gpu id="00000000:01:00.0"><product_name>&b;&c;</product_name></gpu></nvidia_smi_log>'
    )
    assert found.name == "&b;&c;"
    assert parse_xml("<nvidia_smi_log>" + BOMB + '<gpu id="1">&b;</gpu></nvidia_smi_log>') is None


@pytest.mark.parametrize(
    "hostile",
    [
        "<nvidia_smi_log>" + "<gpu>" * 100_000,
        "<nvidia_smi_log><gpu id='x'>" + "<a>" * 100_000,
        "<nvidia_smi_log>" * 50_000,
        "<nvidia_smi_log><gpu" + " id='1'" * 100_000,
        "<nvidia_smi_log>" + "</gpu>" * 100_000 + "<gpu id='1'><fan_speed>" + "9" * 100_000,
        "NVSMI LOG==\n" * 50_000,
        "====NVSMI LOG====\nGPU 1:2:3.4\n" + "".join(" " * n + "a : b\n" for n in range(1000)),
        "====NVSMI LOG====\n" + "GPU 1:2:3.4\n    Bus : 1\n" * 20_000,
        "=" * 100_000 + "NVSMI LOG=",
    ],
)
def test_hostile_logs_cost_little(hostile: str) -> None:
    started = time.process_time()
    found = parse_nvidia_smi(hostile)
    assert found is None or isinstance(found, GpuFacts)
    assert time.process_time() - started < 4


PIECES = [
    *xml(gpu(BOARD + ECC_SPLIT + f"<mig_devices>{MIG}</mig_devices>")).replace(">", ">\0").split("\0"),
    "<gpu>",
    "ERR!",
    "&#x110000;",
    "9" * 30,
]
LINES = [
    *text(ECC_TEXT).splitlines(),
    "GPU 00000000:ZZ:00.0",
    "    Processes : N/A",
    "        Process ID : -1",
    "GPU 1:2:3.4",
    "  : ",
    "    MIG Device",
]


@settings(max_examples=100)
@given(st.lists(st.sampled_from(PIECES), max_size=60), st.lists(st.sampled_from(LINES), max_size=30))
def test_shuffled_logs_are_survived(pieces: list[str], lines: list[str]) -> None:
    for found in (parse_xml("<nvidia_smi_log>" + "".join(pieces)), parse_query("====NVSMI LOG====\n" + "\n".join(lines))):
        assert found is None or isinstance(codec.as_fact(found, GpuFacts, "x"), GpuFacts)


@given(st.text(max_size=500))
def test_any_text_behind_the_markers_is_survived(rest: str) -> None:
    for found in (parse_xml("<nvidia_smi_log><gpu id='1'>" + rest), parse_query("====NVSMI LOG====\nGPU 1:2:3.4\n" + rest)):
        assert found is None or isinstance(codec.as_fact(found, GpuFacts, "x"), GpuFacts)
