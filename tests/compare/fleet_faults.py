"""Faults of a fleet's reports (docs/preflight-faults.md): how each is planted in a folder of facts files, and what ``compare`` must say of it.

PYTHONPATH=tests:tests/compare python -m fleet_faults opened|held|NAME...
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, NamedTuple

from made_hosts import Change, noisy, put

from torchtune_sys.fleet.facts_file import document
from torchtune_sys.model.snapshot_json import from_json

_NOW_S = 1.8e9
_DAY_S = 86400.0
DRIVER = (put("driver/module_version", "570.86.15"), put("gpu/driver_version", "570.86.15"))


class Fault(NamedTuple):
    wrong: Callable[[Path], list[str]]
    held: bool = False


def line(number: int, *changes: Change, epoch_s: float = _NOW_S, name: str | None = None, recorded: str = "healthy") -> bytes:
    """The facts file of one host, as ``snapshot --compact`` writes it."""
    snapshot = noisy(number, name=recorded)
    for change in changes:
        change(snapshot["facts"])
    volatile = {"host": f"node-{number:05d}" if name is None else name, "epoch_s": epoch_s}
    return document(from_json(snapshot), version="0", volatile=volatile).encode()


def fleet(hosts: int, odd: Container[int], *changes: Change) -> list[bytes]:
    """Hosts of two looks, each as often as is needed, under names of their own; those of ``odd`` are changed."""
    well, bad = line(0), line(0, *changes)
    return [(bad if number in odd else well).replace(b"node-00000", b"node-%05d" % number) for number in range(hosts)]


WELL: Container[int] = ()


def one(number: int, *changes: Change, epoch_s: float = _NOW_S) -> bytes:
    """One more of such a fleet."""
    return line(0, *changes, epoch_s=epoch_s).replace(b"node-00000", b"node-%05d" % number)


def laid(folder: Path, documents: list[bytes], called: str = "host-{}.json") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, each in enumerate(documents):
        (folder / called.format(number)).write_bytes(each)
    return folder


def said(*words: str | Path) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "torchtune_sys", "compare", *map(str, words), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    return done.returncode, json.loads(done.stdout) if done.stdout.startswith("{") else {"error": done.stderr[-300:]}


def _differs(what: str, found: Any, wanted: Any) -> list[str]:
    return [] if found == wanted else [f"{what}: {str(found)[:300]}, not {str(wanted)[:300]}"]


def _names(numbers: range) -> list[str]:
    return [f"node-{number:05d}" for number in numbers]


def _exactly(folder: Path, hosts: int, odd: range, fact: str, *changes: Change) -> list[str]:
    status, found = said(laid(folder, [b"".join(fleet(hosts, odd, *changes))]))
    named = sorted({item["host"] for item in found.get("odd", ())})
    facts = {item["fact"] for item in found.get("odd", ())}
    wrong = _differs(f"{fact}, odd", named, _names(odd)) + _differs("status", status, 1)
    return wrong + ([] if any(fact in each for each in facts) else [f"{fact} is not among {facts}"])


def one_setting(folder: Path) -> list[str]:
    memory = put("memory/total_bytes", 1081784279040 * 15 // 16)
    return [
        *_exactly(folder / "memory", 1000, range(400, 401), "memory.total_bytes", memory),
        *_exactly(folder / "driver", 64, range(10, 12), "driver.module_version", *DRIVER),
        *_exactly(folder / "smt", 8, range(5, 6), "cpu.smt", put("cpu/smt", False)),
        *_exactly(folder / "kernel", 8, range(1), "system.kernel", put("system/kernel", "6.8.0-1-other")),
    ]


def some_sysctls(folder: Path) -> list[str]:
    changed = put("sysctl/settings/net.core.rmem_max/running", "16777216")
    return _exactly(folder, 1000, range(200, 350), "net.core.rmem_max", changed)


def half_nccl(folder: Path) -> list[str]:
    status, found = said(laid(folder, [b"".join(fleet(1000, range(500), put("python/torch/nccl", "2.21.5")))]))
    sizes = [len(group["hosts"]) for group in found.get("groups", ())]
    return _differs("groups", sizes, [500, 500]) + _differs("odd", found.get("odd"), []) + _differs("status", status, 1)


def odd_in_subfleet(folder: Path) -> list[str]:
    other = put("system/machine", "aarch64")
    wide = put("network/interfaces/1/mtu", 9000)
    lines = [line(number) for number in range(8)]
    lines += [line(number, other, *(() if number == 12 else (wide,))) for number in range(8, 16)]
    status, found = said(laid(folder, lines))
    odd = {(item["host"], item["fact"].rpartition(".")[2]) for item in found.get("odd", ())}
    return _differs("odd", odd, {("node-00012", "mtu")}) + _differs("status", status, 1)


def old_report(folder: Path) -> list[str]:
    lines = fleet(64, WELL)
    lines[33] = one(33, epoch_s=_NOW_S - 40 * _DAY_S)
    lines[34] = one(34, epoch_s=_NOW_S - 0.5 * _DAY_S)
    status, found = said(laid(folder, lines))
    odd = [(item["host"], item["value"]) for item in found.get("odd", ())]
    return _differs("odd", odd, [("node-00033", 40)]) + _differs("status", status, 1)


def cut_report(folder: Path) -> list[str]:
    lines = fleet(16, WELL)
    lines += [lines[0][: len(lines[0]) // 2], b"", b'{"name": "a-package", "version": "1.0"}']
    status, found = said(laid(folder, lines))
    unread = {Path(item["name"]).name for item in found.get("unread", ()) if item["why"]}
    wrong = _differs("unread", unread, {f"host-{number}.json" for number in (16, 17, 18)})
    return wrong + _differs("hosts", found.get("hosts"), 16) + _differs("status", status, 3)


def twice_told(folder: Path) -> list[str]:
    laid(folder, fleet(64, WELL))
    (folder / "host-9-old.json").write_bytes(one(9, *DRIVER, epoch_s=_NOW_S - _DAY_S))
    _status, found = said(folder)
    told = {item["host"] for item in found.get("odd", ())}
    return _differs("odd", told, {"node-00009 (host-9.json)", "node-00009 (host-9-old.json)"})


def gone_host(folder: Path) -> list[str]:
    laid(folder / "yesterday", fleet(16, WELL))
    laid(folder / "today", fleet(15, WELL))
    status, found = said(folder / "today", "--before", folder / "yesterday")
    gone = [item["host"] for item in found.get("incomparable", ())]
    return _differs("gone", gone, ["node-00015"]) + _differs("odd", found.get("odd"), []) + _differs("status", status, 1)


def golden_foreign(folder: Path) -> list[str]:
    laid(folder / "fleet", fleet(8, WELL))
    laid(folder, [line(99, put("system/machine", "aarch64"))], "golden.json")
    status, found = said(folder / "fleet", "--golden", folder / "golden.json")
    return _differs("not compared", len(found.get("incomparable", ())), 8) + _differs("status", status, 3)


def unprivileged_half(folder: Path) -> list[str]:
    def closed(facts: dict[str, Any]) -> None:
        for gpu in facts["gpu"]["devices"]:
            gpu["vbios"] = {"$missing": "denied", "source": "nvidia-smi", "detail": "needs root"}

    other = put("gpu/devices/3/vbios", "96.00.74.00.01")
    lines = fleet(64, range(1, 64, 2), closed)
    lines[20] = one(20, other)
    status, found = said(laid(folder, lines))
    odd = {(item["host"], item["fact"]) for item in found.get("odd", ())}
    return _differs("odd", odd, {("node-00020", "gpu.devices[3].vbios")}) + _differs("status", status, 1)


def odd_names(folder: Path) -> list[str]:
    names = ["knöten-ü", "node 7", "a\x1b[31mb\x07", "n1\nn2", "n" * 253, "", "n[1-3],n9", "node-00008"]
    laid(folder, [line(number, name=name) for number, name in enumerate(names)])
    status, found = said(folder)
    wrong = _differs("odd", found.get("odd"), []) + _differs("status", status, 0)
    changed = [
        line(number, put("system/kernel", f"k{number}" if number < 3 else "k"), name=name) for number, name in enumerate(names)
    ]
    laid(folder, changed)
    for form in ("csv", "text", "markdown"):
        command = [sys.executable, "-m", "torchtune_sys", "compare", str(folder), "--format", form]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        if done.returncode != 1 or "\x1b" in done.stdout or "\x07" in done.stdout:
            wrong.append(f"{form}: status {done.returncode}, {done.stdout[:200]!r}")
        if form == "csv" and len(list(csv.reader(io.StringIO(done.stdout)))) != 4:
            wrong.append(f"csv: {done.stdout[:300]!r}")
    return wrong


def own_interfaces(folder: Path) -> list[str]:
    def renamed(number: int) -> Change:
        def change(facts: dict[str, Any]) -> None:
            for interface in facts["network"]["interfaces"]:
                if interface["name"] == "eno1":
                    interface["name"] = f"enx3cecef{number:06x}"

        return change

    status, found = said(laid(folder, [line(number, renamed(number)) for number in range(16)]))
    odd = [(item["host"], item["fact"]) for item in found.get("odd", ())]
    return _differs("odd", odd, []) + _differs("various", found.get("various"), []) + _differs("status", status, 0)


def old_releases(folder: Path) -> list[str]:
    gone = [
        ("cpu", "smt_control"),
        ("memory", "thp_shmem"),
        ("memory", "shm_filesystem"),
        ("driver", "imex"),
        ("driver", "nvswitches"),
    ]
    gone += [
        ("driver", "module_params"),
        ("system", "kernel"),
        ("limits", "pids_max"),
        ("cpu", "policies"),
        ("hardware", "zones"),
    ]

    def older(facts: dict[str, Any]) -> None:
        for family, name in gone:
            facts[family][name] = {"$missing": "not-recorded", "source": "", "detail": ""}

    status, found = said(laid(folder, fleet(64, range(0, 64, 2), older)))
    return _differs("odd", found.get("odd"), []) + _differs("groups", found.get("groups"), []) + _differs("status", status, 0)


FAULTS = {
    "one-setting": Fault(one_setting, held=True),
    "some-sysctls": Fault(some_sysctls, held=True),
    "half-nccl": Fault(half_nccl),
    "odd-in-subfleet": Fault(odd_in_subfleet, held=True),
    "old-report": Fault(old_report),
    "cut-report": Fault(cut_report),
    "twice-told": Fault(twice_told),
    "gone-host": Fault(gone_host, held=True),
    "golden-foreign": Fault(golden_foreign, held=True),
    "unprivileged-half": Fault(unprivileged_half, held=True),
    "odd-names": Fault(odd_names, held=True),
    "own-interfaces": Fault(own_interfaces),
    "old-releases": Fault(old_releases),
}


def main(words: list[str]) -> None:
    chosen = [word for word in words if word in FAULTS]
    for name in chosen or [name for name, fault in FAULTS.items() if fault.held == ("held" in words)]:
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            wrong = FAULTS[name].wrong(Path(folder))
        print(json.dumps({"fault": name, "wrong": wrong, "seconds": round(time.monotonic() - began_s, 1)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
