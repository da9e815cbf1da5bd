"""How many of the error lines of reports are known messages: ``PYTHONPATH=scripts python scripts/catalogue/coverage.py FOLDER…``.

Each FOLDER holds reports (``*/input.txt`` or ``*.txt``). An error line is one in which a program complains: NCCL WARN, an exception's last line, what
a kernel module or a container's runtime prints, ``error:`` and ``ERROR``. Prints for each folder how many of them the catalogue knows, how many have a
family, and with ``--unknown`` those that it does not know. Also the time to load the catalogue and the time for a line.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from pathlib import Path

_COMPLAINS = re.compile(
    r"NCCL WARN|NVRM: |\b[A-Za-z_.]*(?:Error|Exception): \S|\b(?:[Ee]rror|ERROR|FATAL|fatal|Fatal)\b:? |mlx5_core .*(?:err|fail)|"
    r"nvidia-container-cli|cannot open shared object|undefined symbol|not found \(required|\[[EW]\d* ?[\w:. ]*\.cpp:\d+\]|ibv_\w+.*fail|Failed to "
)


def complaints(text: str) -> list[str]:
    return [
        line
        for line in text.splitlines()
        if _COMPLAINS.search(line) and not line.lstrip().startswith(("File ", "raise ", "#", "//"))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--unknown", action="store_true")
    asked = parser.parse_args()
    start = time.process_time()
    from torchtune_sys.knowledge import messages

    messages.match("NCCL WARN Bootstrap : no socket interface found")
    print(f"loaded in {(time.process_time() - start) * 1000:.0f} ms of processor time")
    for folder in asked.folders:
        count: Counter[str] = Counter()
        spent = 0.0
        for path in sorted([*folder.glob("*/input.txt"), *folder.glob("*.txt")]):
            for line in complaints(path.read_text(errors="replace")):
                start = time.process_time()
                found = messages.match(line)
                spent += time.process_time() - start
                group = "NCCL WARN" if "NCCL WARN" in line else "NVRM" if "NVRM:" in line else "others"
                count[f"{group}: lines"] += 1
                count[f"{group}: known"] += found is not None
                count[f"{group}: with a family"] += found is not None and bool(found.families)
                if asked.unknown and found is None:
                    print("  ?", line.strip()[:160])
        total = sum(value for name, value in count.items() if name.endswith("lines"))
        print(f"{folder}: {total} error lines, {spent / max(total, 1) * 1e6:.0f} microseconds each")
        for group in ("NCCL WARN", "NVRM", "others"):
            if lines := count[f"{group}: lines"]:
                known, families = count[f"{group}: known"], count[f"{group}: with a family"]
                print(f"  {group:10}{known:5} of {lines:5} known ({known / lines:.0%}), {families} with a family")
    return 0


if __name__ == "__main__":
    sys.exit(main())
