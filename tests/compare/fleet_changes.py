"""What differs on a host of a fleet."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

from fleets import Raw
from made_hosts import Change, put

from conftest import recording


def each(path: str, name: str, value: Any, *only: int) -> Change:
    """Set a field of the rows of a list, of all or of those at the given places."""

    def change(facts: dict[str, Any]) -> None:
        rows: Any = facts
        for step in path.split("."):
            rows = rows[step]
        for place, row in enumerate(rows):
            if not only or place in only:
                row[name] = value

    return change


def without(path: str, *places: int) -> Change:
    """Take rows of a list away."""

    def change(facts: dict[str, Any]) -> None:
        *steps, last = path.split(".")
        at: Any = facts
        for step in steps:
            at = at[step]
        at[last] = [row for place, row in enumerate(at[last]) if place not in places]

    return change


def times(path: str, factor: float) -> Change:
    def change(facts: dict[str, Any]) -> None:
        *steps, last = path.split(".")
        at: Any = facts
        for step in steps:
            at = at[step]
        at[last] = int(at[last] * factor)

    return change


def env(**variables: str) -> Change:
    return lambda facts: facts["session"]["env"].update(variables)


def file(path: str, text: Any) -> Raw:
    return {"files": {path: text}}


def driver(version: str) -> tuple[Change, ...]:
    return (
        put("driver/module_version", version),
        put("driver/library_version", version),
        put("driver/library_versions", [version]),
        put("gpu/driver_version", version),
        put("gpu/library_version", f"13.{version}"),
    )


def kernel(release: str) -> Change:
    return put("system/kernel", release)


def microcode(recorded: str, version: str) -> Raw:
    cpus: list[str] = []
    for text in recording(recorded)["files"]["/proc/cpuinfo"]:
        cpus += [text, f"microcode\t: {version}"] if text.startswith("model name") else [text]
    return file("/proc/cpuinfo", cpus)


def bios(version: str) -> Raw:
    return {"files": {"/sys/class/dmi/id/bios_version": f"{version}\n", "/sys/class/dmi/id/bios_date": "03/04/2026\n"}}


def wheel(name: str, version: str) -> Change:
    def change(facts: dict[str, Any]) -> None:
        for row in facts["python"]["distributions"]:
            if row["name"] == name:
                row["version"] = version

    return change


def torch(version: str, nccl: str) -> tuple[Change, ...]:
    return (wheel("torch", version.partition("+")[0]), put("python/torch/version", version), put("python/torch/nccl", nccl))


def numa(nodes: int) -> Change:
    """As many NUMA nodes (NPS), as equal parts of the first."""

    def change(facts: dict[str, Any]) -> None:
        first = facts["numa"]["nodes"][0]
        whole = sum(node["memory_bytes"] for node in facts["numa"]["nodes"])
        facts["numa"]["nodes"] = [
            {
                **first,
                "id": number,
                "memory_bytes": whole // nodes,
                "cpus": f"{number * 24}-{number * 24 + 23}",
                "distances": [10] + [12] * (nodes - 1),
            }
            for number in range(nodes)
        ]

    return change


def no_gpus(facts: dict[str, Any]) -> None:
    """All GPUs are gone from the bus, as after a baseboard lost its power."""
    facts["pci"]["devices"] = [
        row for row in facts["pci"]["devices"] if not (row["vendor"] == "0x10de" and row["class"].startswith("0x03"))
    ]
    facts["gpu"]["devices"] = []
    facts["driver"]["nvidia_devices"] = []


def unread(family: str, *names: str, why: str = "timeout") -> Change:
    def change(facts: dict[str, Any]) -> None:
        for name in names:
            facts[family][name] = {"$missing": why, "source": "nvidia-smi", "detail": "no answer within 10 s"}

    return change


def by_mac(number: int) -> Change:
    def change(facts: dict[str, Any]) -> None:
        facts["network"]["interfaces"][1]["name"] = f"enx3cecef{number:06x}"

    return change


def containers(number: int) -> Change:
    """Interfaces of as many containers as the host happens to run."""

    def change(facts: dict[str, Any]) -> None:
        rows = facts["network"]["interfaces"]
        made = [{**rows[-1], "name": name, "kind": kind, "addresses": []} for name, kind in _of_containers(number)]
        facts["network"]["interfaces"] = rows + made

    return change


def _of_containers(number: int) -> list[tuple[str, str]]:
    chance = random.Random(number)
    found = [(f"veth{chance.randrange(1 << 28):07x}", "veth") for _ in range(number % 4)]
    return found + [(f"br-{chance.randrange(1 << 47):012x}", "bridge")] * (number % 2)


def renumbered(number: int) -> Change:
    """Disks and swap in the order in which the kernel found them this time."""

    def change(facts: dict[str, Any]) -> None:
        text = json.dumps(facts["storage"])
        if number % 2:
            text = text.replace("nvme0n1", "nvme9n1").replace("nvme1n1", "nvme0n1").replace("nvme9n1", "nvme1n1")
        facts["storage"] = json.loads(text)
        for swap in facts["memory"]["swaps"]:
            swap["path"] = f"/dev/dm-{number % 3}"

    return change


def logged(number: int) -> Change:
    return put(
        "kernel/events",
        [{"kind": "boot", "text": "Linux version 5.14.0", "first_s": 0.0, "last_s": 0.0}]
        + [
            {
                "kind": "gpu-xid",
                "text": f"NVRM: Xid (PCI:0000:1b:00): 43, pid={number}, Ch 00000010",
                "first_s": 100.0 + number,
                "last_s": 100.0 + number,
            }
        ]
        * (number % 2),
    )


def own_disk(number: int) -> Raw:
    """The identifiers by which a host finds its root."""
    root = f"root=UUID={number:08x}-4f1c-4a43-9d1b-6a1a0e6c{number:04x}"
    return file("/proc/cmdline", f"BOOT_IMAGE=/vmlinuz-5.15.0-157-generic {root} ro amd_iommu=on iommu=pt pci=realloc=off\n")


def pod(number: int) -> tuple[Change, ...]:
    uuid = f"GPU-5c0ffee0-0000-4000-8000-{number:012d}"
    named = env(
        NVIDIA_VISIBLE_DEVICES=uuid, HOSTNAME=f"trainer-{number}", POD_IP=f"10.244.{number}.9", JOB_COMPLETION_INDEX=str(number)
    )
    return (named, put("network/hostname_addresses", [f"10.244.{number}.9"]))


def rank(number: int) -> Change:
    return env(
        SLURM_NODEID=str(number),
        SLURM_PROCID=str(4 * number),
        SLURM_JOB_ID="812399",
        SLURM_TOPOLOGY_ADDR=f"s{number // 8}.node{number}",
    )


def fabric(number: int) -> Change:
    """What the fabric gives each port."""

    def change(facts: dict[str, Any]) -> None:
        for place, device in enumerate(facts["network"]["rdma"]):
            for port in device["ports"]:
                port["lid"] = 100 * number + place
                for gid in port["gids"] if isinstance(port["gids"], list) else ():
                    gid["gid"] = gid["gid"][:-4] + f"{number:02x}{place:02x}"

    return change


def closed(facts: dict[str, Any]) -> None:
    """What only root may read."""
    for family, name in (("hardware", "memory_devices"), ("software", "mps"), ("kernel", "events"), ("driver", "secure_boot")):
        facts[family][name] = {
            "$missing": "denied",
            "source": "/sys/firmware/dmi",
            "detail": "permission denied",
            "remedy": "run as root",
        }


def looker(name: str, uid: int) -> tuple[Change, ...]:
    """Another administrator made this host's file."""
    return (put("session/user", name), put("session/uid", uid), env(USER=name, LOGNAME=name, HOME=f"/home/{name}"))


def busy(facts: dict[str, Any]) -> None:
    for place, gpu in enumerate(facts["gpu"]["devices"]):
        gpu |= {
            "temperature_c": 60 + place,
            "utilization_pct": 97,
            "memory_used_bytes": 70 << 30,
            "clock_event_reasons": 4,
            "clock_sm_mhz": 1410,
            "pcie_gen": 1,
        }


def older(facts: dict[str, Any]) -> None:
    """A release of last year, which did not look for these."""
    for family, name in (
        ("gpu", "confidential"),
        ("cpu", "smt_control"),
        ("memory", "thp_shmem"),
        ("driver", "imex"),
        ("software", "next_kernel"),
        ("session", "user_namespace"),
    ):
        facts[family][name] = {"$missing": "not-recorded", "source": "", "detail": "not read"}


def layered(number: int) -> Change:
    def change(facts: dict[str, Any]) -> None:
        for place in facts["storage"]["places"]:
            if place["filesystem"] == "overlay":
                place["options"] = [
                    "rw",
                    "relatime",
                    f"lowerdir=/var/lib/docker/overlay2/l/{number:026d}",
                    f"upperdir=/var/lib/docker/overlay2/{number:064x}/diff",
                ]

    return change


def of(count: int, make: Any) -> dict[Iterable[int], tuple[Change | Raw, ...]]:
    """Something of its own for each host."""
    made = ((number, make(number)) for number in range(count))
    return {(number,): one if isinstance(one, tuple) else (one,) for number, one in made}
