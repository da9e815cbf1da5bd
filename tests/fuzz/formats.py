"""Forms of files and of what programs print, each by itself."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
from pathlib import Path

from fuzz.target import Target, of_text, refusing, reports
from torchtune_sys.errors import BadConfig, UnknownName
from torchtune_sys.formats import (
    cufile,
    elf,
    fabric_manager_log,
    failure_lines,
    flight_recorder,
    kernel_messages,
    mounts,
    nccl_ras,
    nccl_topology,
    package_records,
    requirements,
    smbios,
    torch_memory,
)
from torchtune_sys.formats.nvidia_smi import logs
from torchtune_sys.formats.pickles import plain_data
from torchtune_sys.host.live_queries import load, sockets
from torchtune_sys.host.secrets.filter import scrubbed
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.version import version
from torchtune_sys.preflight.policy import parse_policy
from torchtune_sys.rules import CATALOGUE
from torchtune_sys.rules.profiles import parse_config


def _settings(text: str) -> None:
    for parse in (lambda: parse_policy(text, "x", CATALOGUE, "gpu"), lambda: parse_config(text, "x", CATALOGUE)):
        with contextlib.suppress(BadConfig, UnknownName):
            parse()


def _programs() -> list[bytes]:
    return [Path(path).read_bytes()[:4096] for path in ("/bin/true", "/bin/sh") if os.path.exists(path)]


_DUMP = {"version": "2.9", "rank": 3, "pg_config": {"0": {"ranks": "[0, 1, 2, 3]"}, "1": {"ranks": [0, 1]}}, "entries": [
    {"collective_seq_id": 7, "profiling_name": "nccl:all_reduce", "state": "started", "process_group": ["0", "default_pg"],
     "frames": [{"filename": "a.py", "line": 3, "name": "f"}]},
    {"seq_id": 2, "pg_id": 1, "state": "completed", "is_p2p": False, "frames": []}]}  # fmt: skip


def _dump(data: bytes) -> None:
    """A pickle of the flight recorder, of two ranks, without all else that ``diagnose`` does."""
    if data.startswith(b"{"):  # a document of JSON, which can be changed and stay a dump
        with contextlib.suppress(RecursionError):
            data = pickle.dumps(json.loads(data), 4)
    value = plain_data(data)
    flight_recorder.absences([dump for dump in (flight_recorder.dump_of(value, f"r_{rank}") for rank in (0, 1)) if dump])


def _states(text: str) -> None:
    for found in nccl_ras.communicators(text.split("\n")):
        found.behind(), found.missing()


def _small(text: str) -> None:
    """Forms that have a parser each, and no target of their own."""
    cufile.parse_cufile(text, "x"), torch_memory.read(text), package_records.parse_rpm(text)
    fabric_manager_log.failure(text), fabric_manager_log.parse_fabric_manager_log(text), fabric_manager_log.runs(text)
    sockets.parse_listeners(text, 80), sockets.parse_bound(text, "/x"), load.parse_stat(text), load.unit_of(text)
    failure_lines.failures(text), version(text)
    with contextlib.suppress(ValueError):
        CpuSet.parse(text)


TARGETS: dict[str, Target] = {
    "pickles": Target(
        lambda: (
            [
                pickle.dumps(
                    {"version": "2", "entries": [{"pg_id": 0, "frames": []}], "pg_config": {"0": {"ranks": "[0, 1]"}}}, n
                )
                for n in (0, 2, 4)
            ]
            + [json.dumps(_DUMP).encode()]
        ),
        refusing(_dump),
    ),
    "NCCL RAS": Target(lambda: reports("diagnose", "ras"), of_text(_states)),
    "small forms": Target(
        lambda: [
            b'{ // of the site\n "properties": {"allow_compat_mode": false, // "x": 1,\n } }',
            b"CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.12 GiB is free.",
            b"[Feb 27 2025 15:04:30] [INFO] [tid 1803] Fabric Manager version is : 550.163.01 with build time: Apr  8 2025\n",
            b"  0: 0100007F:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 17 1\n",
            b"1 (a b) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 2 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1",
            b"Name        : cuda\nVersion     : 12\n0-7,9:1/4",
        ],
        of_text(_small),
    ),
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
