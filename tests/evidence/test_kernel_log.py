"""Pasted kernel logs, our own and those that others recorded."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import judge
from elsewhere import recorded_elsewhere
from torchtune_sys import evidence
from torchtune_sys.evidence.kernel_log import kernel_facts
from torchtune_sys.formats.kernel_messages import read_log
from torchtune_sys.model.rule import Verdict


def causes(text: str) -> set[str]:
    seen = evidence.read(text, "log.txt")
    if seen is None:
        return set()
    return {result.rule.cause for result in judge(seen).values() if result.verdict is Verdict.FAIL}


def test_real_logs_are_judged_as_an_expert_would() -> None:
    logs = recorded_elsewhere("logs")
    assert causes((logs / "xid/dmesg-with-xid-119.log").read_text()) == {"gsp-firmware-timeout"}
    assert kernel_facts((logs / "fabricmanager.log").read_text()) is None


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "NVRM: Xid (PCI:0000:9b:00): 119, pid=812, name=python3, Timeout after 6s of waiting for RPC response from GPU1 GSP!",
            "gsp-firmware-timeout",
        ),
        ("NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "gpu-fallen-off-bus"),
    ],
)
def test_a_line_among_harmless_ones_names_its_cause(line: str, cause: str) -> None:
    text = "".join(f"[{number:5}.000000] usb 1-{number}: new high-speed USB device\n" for number in range(30))
    assert causes(f"{text}[   31.000000] {line}\n{text}") == {cause}


def test_a_clean_log_is_recognised_and_accuses_nothing() -> None:
    text = "".join(f"[    {number}.000000] usb 1-{number}: new high-speed USB device\n" for number in range(30))
    seen = evidence.read(text, "dmesg.txt")
    assert seen is not None and seen.origin == "report (kernel log)"
    assert causes(text) == set()


def test_prose_is_no_log() -> None:
    assert (
        kernel_facts("We once had an Xid 79, and the GPU had fallen off the bus. Out of memory, too: CUDA out of memory.") is None
    )
    assert causes("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB") == set()


def test_a_hundred_megabytes_take_seconds() -> None:
    line = "[%12.6f] pcieport 0000:%02x:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)\n"
    text = "".join(line % (number, number % 250) for number in range(100_000))  # a tenth of it
    begin = time.process_time()
    found = read_log(text, "report")
    assert time.process_time() - begin < 3
    assert found is not None and isinstance(found.events, tuple) and len(found.events) <= 2000


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=400) | st.binary(max_size=400).map(lambda data: data.decode("utf-8", "replace")))
def test_any_text(text: str) -> None:
    kernel_facts(text)
    kernel_facts(f"[    1.000000] NVRM: Xid (PCI:0000:18:00): 79, {text}\n{text} nfs: server {text}")


@pytest.mark.parametrize("module", ["r8126", "nvidia", "nvidia_uvm"])
def test_a_refused_module_names_secure_boot_whoever_made_it(module: str) -> None:
    """Somebody pasted it for help, and NVIDIA's DKMS modules are refused for the same key. A network card's module was so
    in the form of github.com/awesometic/realtek-r8126-dkms/issues/3."""
    seen = evidence.read(f"modprobe: ERROR: could not insert '{module}': Key was rejected by service\n", "log.txt")
    assert seen is not None
    assert judge(seen)["module-signature-refused"].verdict is Verdict.FAIL


@pytest.mark.parametrize(
    "text",
    [
        "$ dmesg | grep -i nvidia\n[    9.104242] nvidia-nvlink: Nvlink Core is being initialized, major device number 508\n",
        "[Sat Jun 27 19:59:02 2026] nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver\n",
        "> [  +0.000844] usb 1-1: new high-speed USB device number 2\n",
        "Sep 19 16:18:02 node7 kernel: [68183.615790] audit: type=1400 audit(1.1:1)\n",
    ],
)
def test_a_few_harmless_lines_are_a_log_in_which_nothing_is_found(text: str) -> None:
    seen = evidence.read(text, "dmesg.txt")
    assert seen is not None and seen.origin == "report (kernel log)"
    assert not [result.rule.id for result in judge(seen).values() if result.verdict is Verdict.FAIL]


def test_a_few_lines_within_a_longer_text_are_not_taken_for_the_log() -> None:
    text = "\n".join(["I tried this and that."] * 20 + ["[    9.104242] nvidia-nvlink: Nvlink Core is being initialized"])
    assert kernel_facts(text) is None


def failed(text: str) -> set[str]:
    seen = evidence.read(text, "dmesg.txt")
    assert seen is not None
    return {result.rule.id for result in judge(seen).values() if result.verdict is Verdict.FAIL}


NOT_CALLED = (
    "[    7.206258] NVRM: The NVIDIA probe routine was not called for 1 device(s).\n[    7.3] NVRM: No NVIDIA devices probed.\n"
)
PROBE_FAILED = "[    6.554916] NVRM: The NVIDIA probe routine failed for 1 device(s).\n"


def test_a_gpu_that_the_driver_does_not_get_is_told_of() -> None:
    assert failed(NOT_CALLED) == {"gpu-held-by-other-driver"}
    assert failed(PROBE_FAILED) == {"gpu-initialisation-failed"}


def test_a_gpu_for_a_virtual_machine_is_left_to_it() -> None:
    assert failed("[    7.1] NVRM: GPU 0000:01:00.0 is already bound to vfio-pci.\n" + NOT_CALLED) == set()


def test_the_message_that_says_why_counts_alone() -> None:
    bar = "[    6.5] NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\nNVRM: BAR1 is 0M @ 0x0 (PCI:0000:01:00.0)\n"
    assert failed(bar + PROBE_FAILED) == {"gpu-bar-not-assigned"}
    nouveau = "[    4.1] nouveau 0000:1b:00.0: NVIDIA GH100 (180000a1)\n"
    assert failed(nouveau + NOT_CALLED) == {"other-driver-holds-gpu"}
    lost = "[    6.5] NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.\n"
    assert failed(lost + PROBE_FAILED) == {"xid-gpu-lost"}


def test_fewer_lanes_of_a_mellanox_card_are_told_of_and_of_any_other_device_not() -> None:
    line = "[    3.1] {} 0000:63:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at 0000:60:01.0 (capable of 126.016 Gb/s with 8.0 GT/s PCIe x16 link)\n"
    assert failed(line.format("mlx5_core")) == {"pcie-narrow-slot-logged"}
    assert failed(line.format("pci")) == set()
