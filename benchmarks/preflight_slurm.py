"""How long Slurm's Prolog takes on eight hosts at once, beside eight plain checks started together: python benchmarks/preflight_slurm.py [ROUNDS]

A round times both, one after the other, so that whatever else the machine does meets both. Needs root and Slurm (tests/apt-packages.txt).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests/preflight"))
import slurm_hosts  # noqa: E402

TOOL = Path(sys.executable).with_name("torchtune-sys")
NODES = 8
MOST_S, MOST_RATIO = 1.5, 1.2


def main(rounds: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        stamps = root / "stamps"
        stamps.touch()
        subprocess.run([TOOL, "generate", "slurm", "prolog", "-o", root / "judge.sh"], check=True)
        (root / "judge.sh").chmod(0o755)
        text = f'#!/bin/bash\nbegun=$(date +%s.%N)\n{root}/judge.sh\nstatus=$?\necho "$begun $(date +%s.%N)" >>{stamps}\nexit $status\n'
        (root / "prolog.sh").write_text(text)
        (root / "prolog.sh").chmod(0o755)
        prologs, checks = [], []
        with slurm_hosts.cluster(root, NODES, f"PrologFlags=Alloc\nProlog={root}/prolog.sh\nMinJobAge=2\n") as nodes:
            for _ in range(rounds):
                nodes.resume()
                checks.append(together(nodes))
                stamps.write_text("")
                done = nodes.run("srun", "-N", str(NODES), "true")
                times = [tuple(map(float, line.split())) for line in stamps.read_text().splitlines()]
                if done.returncode or len(times) != NODES:
                    print(f"no-go: {done.stderr.strip()} {nodes.drained()}")
                    return 1
                prologs.append(max(end for _, end in times) - min(begin for begin, _ in times))
    ratios = [prolog / check for prolog, check in zip(prologs, checks, strict=True)]
    load = Path("/proc/loadavg").read_text().split()[0]
    for name, values, unit in (("Prologs", prologs, " s"), ("checks", checks, " s"), ("ratio", ratios, "")):
        print(f"{name:8} median {statistics.median(values):.2f}{unit}, {min(values):.2f} to {max(values):.2f}")
    print(
        f"{rounds} rounds on {NODES} hosts, load average at the end {load}; wanted: Prologs {MOST_S} s on a quiet machine, ratio {MOST_RATIO}"
    )
    return 0 if statistics.median(ratios) <= MOST_RATIO else 1


def together(nodes: slurm_hosts.Cluster) -> float:
    """The seconds of eight checks that start at once, each on its host."""
    begun = time.monotonic()
    children = [
        subprocess.Popen(
            nodes.at(node, TOOL, "check", "--format", "json"), env=nodes.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for node in nodes.nodes
    ]
    for child in children:
        child.wait()
    return time.monotonic() - begun


if __name__ == "__main__":
    sys.exit(main(int((sys.argv[1:] or ["10"])[0])))
