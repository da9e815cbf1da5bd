"""A kernel log that somebody pastes: what a rule of severity warning or error finds in it is told, and what a healthy host prints is not."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.host.input.collection import InputText
from torchtune_sys.host.input.excerpts import excerpt
from torchtune_sys.model.diagnosis import Diagnosis
from torchtune_sys.model.rule import Rule, Severity
from torchtune_sys.rules.kernel import RULES

HOSTS = Path(__file__).parents[1] / "hosts"
STARTING = """\
[    0.004000] ACPI BIOS Error (bug): Could not resolve symbol [\\_SB.PC00.TXHC.RHUB.SS01], AE_NOT_FOUND (20230628/dswload2-162)
[    0.310000] pci 0000:17:00.0: can't claim BAR 6 [mem 0xfff80000-0xffffffff pref]: no compatible bridge window
[    0.320000] pci 0000:17:00.0: BAR 6: no space for [mem size 0x00080000 pref]
[    0.320100] pci 0000:17:00.0: BAR 6: failed to assign [mem size 0x00080000 pref]
[    0.330000] pci 0000:17:00.0: VF BAR 0: no space for [mem size 0x00080000 pref]
[    0.340000] pci 0000:00:1c.0: BAR 13: no space for [io  size 0x1000]
[    0.700000] ata3: SATA link down (SStatus 4 SControl 300)
[    6.200000] mlx5_core 0000:18:00.0: Port module event: module 0, Cable plugged
[    9.000300] nvidia: module verification failed: signature and/or required key missing - tainting kernel
[    9.300000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024
[    9.520000] nvidia 0000:17:00.0: [drm] Cannot find any crtc or sizes
[    9.700000] nvidia_uvm: module uses symbols nvUvmInterfaceDisableAccessCntr from proprietary module nvidia, inheriting taint.
[   10.000100] caller os_map_kernel_space+0x120/0x130 [nvidia] mapping multiple BARs
[  100.000000] perf: interrupt took too long (2503 > 2500), lowering kernel.perf_event_max_sample_rate to 79750
[  130.000000] TCP: request_sock_TCP: Possible SYN flooding on port 0.0.0.0:29500. Sending cookies.
"""


def diagnosis_of(text: str) -> Diagnosis:
    return diagnose([InputText(name="dmesg", excerpt=excerpt(io.BytesIO(text.encode())))])


def log_of(rule: Rule) -> str:
    recorded = json.loads((HOSTS / f"{rule.id}.fail.json").read_text()).get("answers", {}).get("kernel-log")
    return "\n".join(recorded["lines"]) if isinstance(recorded, dict) else ""


JUDGED = [rule for rule in RULES if rule.severity is not Severity.ADVICE and log_of(rule)]


@pytest.mark.parametrize("rule", JUDGED, ids=lambda rule: rule.id)
def test_what_a_rule_finds_in_it_is_told(rule: Rule) -> None:
    told = diagnosis_of(log_of(rule))
    assert told.causes or told.unexplained
    assert len(JUDGED) > 30


@pytest.mark.parametrize("text", [STARTING, log_of(RULES[0]).partition("Ending clean mount")[0], STARTING.splitlines()[9]])
def test_what_a_healthy_host_prints_as_it_starts_is_nothing_wrong(text: str) -> None:
    told = diagnosis_of(text)
    assert (told.causes, told.unexplained) == ((), ())


@pytest.mark.parametrize(
    "line",
    [
        "pci 0000:0b:00.0: BAR 1: no space for [mem size 0x800000000 64bit pref]",
        "pci 0000:0b:00.0: BAR 1 [mem size 0x800000000 64bit pref]: can't assign; no space",
    ],
)
def test_memory_that_a_gpu_was_not_given_is_told(line: str) -> None:
    told = diagnosis_of(f"[ 0.3] {line}\n[ 9.3] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.14\n")
    assert [each.cause for each in told.causes] == ["gpu-bar-not-assigned"]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("automount[611]: mount(nfs): nfs: mount failure nas1:/home on /home", "hung-mount"),
        ("systemd[1]: data.mount: Mounting timed out. Terminating.", "hung-mount"),
        ("rpc.gssd[911]: WARNING: the machine credentials of nas1 expired", "credentials-expired"),
    ],
)
def test_who_wrote_a_line_of_the_system_s_log_decides_what_it_says(line: str, cause: str) -> None:
    """The prefix is left out elsewhere, and with it the daemon's name."""
    assert [each.cause for each in diagnosis_of(f"Mar 04 11:02:11 g2 {line}\nMar 04 11:02:12 g2 sshd[1]: ok\n").causes][:1] == [
        cause
    ]
