"""Forms of files and of what programs print, each by itself."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from fuzz.target import Target, of_text, refusing, reports
from torchtune_sys.errors import BadConfig, UnknownName
from torchtune_sys.formats import elf, kernel_messages, mounts, nccl_topology, package_records, requirements, smbios
from torchtune_sys.formats.nvidia_smi import logs
from torchtune_sys.host.secrets import scrubbed
from torchtune_sys.preflight.policy import parse_policy
from torchtune_sys.rules import CATALOGUE
from torchtune_sys.rules.profiles import parse_config


def _settings(text: str) -> None:
    for parse in (lambda: parse_policy(text, "x", CATALOGUE, "gpu"), lambda: parse_config(text, "x", CATALOGUE)):
        with contextlib.suppress(BadConfig, UnknownName):
            parse()


def _programs() -> list[bytes]:
    return [Path(path).read_bytes()[:4096] for path in ("/bin/true", "/bin/sh") if os.path.exists(path)]


TARGETS: dict[str, Target] = {
    "elf": Target(_programs, refusing(lambda data: elf.parse_elf(lambda at, size: data[at : at + size]))),
    "ld.so.cache": Target(
        lambda: [Path(path).read_bytes()[:8192] for path in ("/etc/ld.so.cache",) if os.path.exists(path)],
        refusing(lambda data: elf.parse_cache(data, ("libc",))),
    ),
    "smbios": Target(
        lambda: [bytes((17, 40, 0, 1)) + bytes(36) + b"DIMM 0\0A\0\0" + bytes((127, 4, 2, 0, 0, 0))], smbios.memory_devices
    ),
    "package records": Target(
        lambda: [b"Package: a\nStatus: install ok installed\nVersion: 1\n\nPackage: b\nVersion: 2\n"],
        package_records.parse_status,
    ),
    "requirements": Target(
        lambda: [b"torch>=2.1,<3; python_version < '3.12' and extra == 'x'", b"a[b,c] (==1.*)"],
        refusing(of_text(lambda text: (lambda found: requirements.holds(found.marker, {}))(requirements.parse(text)))),
    ),
    "mounts": Target(
        lambda: [b"36 35 98:0 / /mnt rw,noatime master:1 - ext3 /dev/root rw\n"],
        of_text(lambda text: (mounts.parse_mountinfo(text), mounts.parse_mounts(text))),
    ),
    "kernel log": Target(
        lambda: [text for text in reports() if b"NVRM" in text], of_text(lambda text: kernel_messages.read_log(text, "x"))
    ),
    "nvidia-smi": Target(
        lambda: (
            [text for text in reports() if b"NVSMI" in text or b"nvidia_smi_log" in text]
            or [b"<nvidia_smi_log></nvidia_smi_log>"]
        ),
        of_text(lambda text: (logs.parse_xml(text), logs.parse_query(text))),
    ),
    "policy": Target(
        lambda: [
            b'fatal = ["error"]\nwarning = ["swappiness-high"]\n[partition.gpu]\nignore = ["network"]\n[site-checks]\ntimeout = 5\n[rules.swappiness-high]\nmost = 1\n'
        ],
        of_text(_settings),
    ),
    "secrets": Target(
        lambda: [b"curl -u a:b https://x --password y", *(text for text in reports()[:30] if b"=" in text)], of_text(scrubbed)
    ),
    "NCCL topology": Target(
        lambda: [b'<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200"/></cpu></system>'],
        refusing(of_text(nccl_topology.parse)),
    ),
}
