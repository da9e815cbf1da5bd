"""Compare many facts files of 8-GPU nodes in which what differs by nature differs, and seven facts drifted: those seven, in how long?

    python benchmarks/compare.py [HOSTS=10000] [FOLDER]

Writes the files (20 kB each) into FOLDER, or a temporary one, and runs the command in a child. Prints JSON: seconds of the clock and of the
processors, memory at most, and what was found.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests" / name) for name in ("", "compare")]

from made_hosts import facts_line, put  # noqa: E402

DRIFT = {
    17: ("python.torch.version", put("python/torch/version", "2.6.0+cu124")),
    423: ("system.kernel", put("system/kernel", "6.8.0-47-generic")),
    1001: ("network.interfaces[eno1].mtu", put("network/interfaces/1/mtu", 1400)),
    2222: ("gpu.devices[3].vbios", put("gpu/devices/3/vbios", "96.00.00.00.01")),
    5000: ("sysctl.settings[vm.max_map_count].running", put("sysctl/settings/vm.max_map_count/running", "65530")),
    7777: ("limits.limits[memlock].soft", put("limits/limits/memlock/soft", 65536)),
    9998: ("memory.total_bytes", put("memory/total_bytes", 824633720832)),
}
MADE = 60
"""So many are written by the tool itself, with all that differs by nature; the others are these again, with what the file keeps of it changed."""


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as own:
        folder = Path(sys.argv[2] if len(sys.argv) > 2 else own)
        print(json.dumps(measured(folder, count), indent=1))


def measured(folder: Path, count: int) -> dict[str, Any]:
    planted = {place * count // 10_000: drift for place, drift in DRIFT.items()}
    size = written(folder, count, planted)
    begun = time.monotonic()
    argv = [sys.executable, "-m", "torchtune_sys", "compare", str(folder), "--format", "json"]
    with tempfile.TemporaryFile() as said:
        done = subprocess.Popen(argv, stdout=said)
        _, status, used = os.wait4(done.pid, 0)  # of this child alone: RUSAGE_CHILDREN keeps the largest that there ever was
        done.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - begun
        said.seek(0)
        found = json.load(said)
    odd = sorted((item["host"], item["fact"]) for item in found["odd"])
    return {
        "hosts": found["hosts"],
        "mean bytes": size // count,
        "seconds": round(wall, 2),
        "processor seconds": round(used.ru_utime + used.ru_stime, 2),
        "MiB": used.ru_maxrss >> 10,
        "status": done.returncode,
        "exactly the drift": odd == sorted((f"node-{place:05d}", fact) for place, (fact, _) in planted.items()),
        "odd": odd,
        "others": {key: len(found[key]) for key in ("groups", "various", "incomparable", "unread")},
    }


def written(folder: Path, count: int, planted: dict[int, tuple[str, Any]]) -> int:
    """The files; their size in all."""
    chance = random.Random(7)
    made = [json.loads(facts_line(number)) for number in range(MADE)]
    size = 0
    for number in range(count):
        if number in planted:
            text = facts_line(number, planted[number][1])
        else:
            document = made[number % MADE]
            document["volatile"] = {
                "host": f"node-{number:05d}",
                "epoch_s": chance.uniform(1.9e9, 1.9e9 + 3600),
                "time": "x",
                "findings": {},
            }
            memory = document["facts"]["memory"]
            memory["total_bytes"] = 1081785974784 + 4096 * chance.randrange(-500, 500)
            text = (json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n").encode()
        (folder / f"node-{number:05d}.json").write_bytes(text)
        size += len(text)
    return size


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main()
