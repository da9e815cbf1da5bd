"""Hosts as facts files, made of one recorded host, with what differs from one host to the next by nature."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from conftest import load
from torchtune_sys.fleet.comparing import Comparing
from torchtune_sys.fleet.facts_file import document
from torchtune_sys.fleet.reading import add
from torchtune_sys.fleet.store import Store
from torchtune_sys.fleet.weights import Readers
from torchtune_sys.model.comparison import Comparison
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.snapshot_json import from_json
from torchtune_sys.render import as_json
from torchtune_sys.rules import CATALOGUE

READERS = Readers(CATALOGUE)
Change = Callable[[dict[str, Any]], None]


@lru_cache(4)
def plain(name: str = "healthy") -> str:
    """The snapshot of a recorded host as JSON."""
    return as_json.snapshot(load(name), version="0", time="2026-02-03T04:05:06Z")


def noisy(number: int, seed: int = 1, name: str = "healthy", **overlay: Any) -> dict[str, Any]:
    """A snapshot of the same machine, at another time, under another name, with other addresses; ``overlay``: sections of the recording."""
    chance = random.Random(f"{seed} {number}")
    text = as_json.snapshot(load(name, **overlay), version="0", time="2026-02-03T04:05:06Z") if overlay else plain(name)
    host = json.loads(text)["facts"]["system"]["hostname"]
    snapshot: dict[str, Any] = json.loads(text.replace(host, f"node-{number:05d}"))
    facts = snapshot["facts"]
    facts["system"]["uptime_s"] = chance.uniform(100, 1e7)
    for key in ("available_bytes", "committed_bytes", "shm_free_bytes"):
        facts["memory"][key] = chance.randrange(1 << 30, 1 << 38)
    facts["memory"]["total_bytes"] += 4096 * chance.randrange(-500, 500)
    facts["memory"]["oom_kills"] = chance.randrange(9)
    facts["limits"]["pids_current"] = chance.randrange(100, 5000)
    for node in _rows(facts["numa"]["nodes"]):
        node["free_bytes"] = chance.randrange(1 << 33)
        node["memory_bytes"] += 4096 * chance.randrange(-500, 500) if node["memory_bytes"] else 0  # of the memory of GPUs
    for place, interface in enumerate(facts["network"]["interfaces"]):
        interface["index"] = place + 1 + chance.randrange(3)
        for address in _rows(interface["addresses"]):
            if address["address"] not in ("127.0.0.1", "::1"):
                address["address"] = f"10.{chance.randrange(256)}.{chance.randrange(256)}.{chance.randrange(1, 255)}"
    for gpu in _rows(facts["gpu"]["devices"]):
        gpu["uuid"] = f"GPU-{chance.randrange(1 << 32):08x}-0000-4000-8000-{chance.randrange(1 << 48):012x}"
        gpu["temperature_c"] = chance.randrange(25, 80)
        gpu["pcie_replays"] = chance.randrange(30)
        gpu["ecc_corrected_volatile"] = chance.randrange(30)
        gpu["utilization_pct"] = chance.randrange(100)
        gpu["memory_used_bytes"] = chance.randrange(1 << 30)
        gpu["processes"] = (
            [{"pid": chance.randrange(1, 1 << 22), "user": "joe", "name": "python3"}] if chance.random() < 0.5 else []
        )
    for place in facts["storage"]["places"]:
        place["free_bytes"] = chance.randrange(1 << 40)
        place["inodes_free"] = chance.randrange(1 << 26)
    facts["session"]["env"] |= {"SLURM_PROCID": str(number), "SLURM_JOB_ID": "4711", "SLURMD_NODENAME": f"node-{number:05d}"}
    for controller in _rows(facts["hardware"]["memory_controllers"]):
        controller["corrected"] = chance.randrange(20)
    for zone in _rows(facts["hardware"]["zones"]):
        zone["celsius"] = chance.uniform(20, 60)
    return snapshot


def _rows(value: Any) -> list[dict[str, Any]]:
    return value if isinstance(value, list) else []


def seen(number: int, *changes: Change, name: str = "healthy", seed: int = 1) -> Snapshot:
    snapshot = noisy(number, seed, name)
    for change in changes:
        change(snapshot["facts"])
    return from_json(snapshot)


@lru_cache(512)  # a change is a function that was made for one test: only hosts without any are met again
def facts_line(number: int, *changes: Change, name: str = "healthy", seed: int = 1) -> bytes:
    volatile = {"host": f"node-{number:05d}"}
    return document(seen(number, *changes, name=name, seed=seed), version="0", volatile=volatile).encode()


def store(*lines: bytes) -> Store:
    made = Store()
    for line in lines:
        add(line, "a file", made, [])
    return made


def compared(*lines: bytes) -> Comparison:
    return Comparing(store(*lines), READERS).among_themselves()


def put(path: str, value: Any) -> Change:
    """Set one fact, ``gpu.devices.3.vbios``."""

    def change(facts: dict[str, Any]) -> None:
        *steps, last = path.split("/") if "/" in path else path.split(".")
        at: Any = facts
        for step in steps:
            at = at[int(step)] if isinstance(at, list) else at[step]
        at[int(last) if isinstance(at, list) else last] = value

    return change


def odd(found: Comparison) -> list[tuple[str, str]]:
    return sorted((item.host, item.fact) for item in found.odd)
