"""How long whole commands take, as ratios measured side by side in one run.

Every round starts each command once, in turn, so that a machine that slows down slows all of them. Printed are
medians of wall time, the ratio to a bare interpreter start pair by pair, and the largest resident set. Nothing is
kept between runs. Exit status 1 if a stated limit is missed.

    ./run bench                         this tool against a bare interpreter and an empty click group
    ./run bench --torch-python PATH     also against ``python -m torch.utils.collect_env`` of that interpreter
    ./run bench --bundle FILE           also the self-contained file against this installed tool, under the same interpreter
    ./run bench --rivals                also against other checkers, installed in a throw-away environment
    ./run bench --against PATH          also against another installation's command (of an earlier commit, say), by processor time
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RIVALS = {
    "cuda-doctor 0.2.0": ("cuda-doctor==0.2.0", ["cuda-doctor", "diagnose"]),
    "env-doctor 0.3.5": ("env-doctor==0.3.5", ["env-doctor", "check"]),
    "ai-infradr 0.1.0": ("ai-infradr==0.1.0", ["ai-infradr"]),
}
EMPTY_GROUP = "import click\n@click.group()\ndef main(): pass\nmain()"
LIMITS = {
    ("check", "bare interpreter"): 15.0,
    ("--help", "empty click group --help"): 1.5,
    ("check", "torch collect_env"): 0.09,
    ("plan", "check"): 1.3,
    ("generate script", "check"): 1.6,
    ("diagnose 20 kB", "check"): 3.0,
    ("bundle --help", "--help"): 1.5,
    ("bundle check", "check"): 1.5,
    ("python3 bundle --help", "--help"): 1.5,
    ("python3 bundle check", "check"): 1.5,
}
GOALS = {("check", "bare interpreter"): 10.0, ("check", "torch collect_env"): 0.05, ("diagnose 20 kB", "check"): 2.0}
MEMORY_LIMIT_MB = 60
COMPARED = ("check -q", "--help")
"""With ``--against``."""


Run = tuple[float, float, int, float]


def once(argv: list[str]) -> Run:
    """Wall seconds, peak resident MB, exit status and processor seconds of one run of ``argv``, those of its children too."""
    started = time.perf_counter()
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return time.perf_counter() - started, usage.ru_maxrss / 1024, child.returncode, usage.ru_utime + usage.ru_stime


def commands(args: argparse.Namespace, scratch: Path) -> dict[str, list[str]]:
    tool = [str(Path(sys.executable).with_name("torchtune-sys"))]
    found = {
        "bare interpreter": [sys.executable, "-c", "pass"],
        "empty click group --help": [sys.executable, "-c", EMPTY_GROUP, "--help"],
        "--help": [*tool, "--help"],
        "check": [*tool, "check"],
        "plan": [*tool, "plan"],
        "generate script": [*tool, "generate", "script"],
        "diagnose 20 kB": [*tool, "diagnose", str(paste(scratch))],
    }
    if args.torch_python:
        found["torch collect_env"] = [args.torch_python, "-m", "torch.utils.collect_env"]
    if args.bundle:
        bundle = str(args.bundle.resolve())
        for name in ("--help", "check"):
            found[f"bundle {name}"] = [bundle, name]
            found[f"python3 bundle {name}"] = [sys.executable, bundle, name]
    if args.against:
        for name in COMPARED:
            found[f"here {name}"] = [*tool, *name.split()]
            found[f"there {name}"] = [str(args.against.absolute()), *name.split()]
    if args.rivals:
        found.update(rivals(scratch))
    return found


def paste(folder: Path) -> Path:
    """Write what somebody pastes beside an error: some words, the log of a training on four ranks, and how it ended."""
    steps = [
        f"[rank{step % 4}]:[2026-03-02 09:{step // 60:02}:{step % 60:02},{step * 37 % 1000:03}] [INFO] [train.py:88] "
        f"epoch {step // 100} step {step} loss {4 / (step + 1):.4f} lr 0.0003 tokens/s {50_000 + step * 37}"
        for step in range(170)
    ]
    place = folder / "paste.txt"
    place.write_text("\n".join([PEOPLE, *steps, TRACEBACK]))
    return place


PEOPLE = """Hi, our training on one machine with 4 GPUs ends after a while, in a container as well as outside of it.
I tried a smaller batch and another dataset, and it still happens. The log is below; what can I look at?
"""
TRACEBACK = """Traceback (most recent call last):
  File "/home/me/train.py", line 115, in <module>
    main()
  File "/home/me/train.py", line 88, in main
    for batch in loader:
  File "/opt/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py", line 1284, in _try_get_data
    raise RuntimeError(f"DataLoader worker (pid(s) {pids_str}) exited unexpectedly") from e
RuntimeError: DataLoader worker (pid(s) 41723) exited unexpectedly
RuntimeError: DataLoader worker (pid 41723) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.
"""


def rivals(scratch: Path) -> dict[str, list[str]]:
    """Install each rival in an environment of its own; one that cannot be installed is named and left out."""
    found = {}
    for name, (requirement, argv) in RIVALS.items():
        venv = scratch / name.split()[0]
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        installed = subprocess.run(
            [venv / "bin/python", "-m", "pip", "install", "-q", requirement], capture_output=True, text=True
        )
        program = venv / "bin" / argv[0]
        if installed.returncode or not program.exists():
            scripts = sorted(path.name for path in (venv / "bin").iterdir())
            print(f"left out: {name}: {installed.stderr.strip()[-200:] or scripts}")
            continue
        found[name] = [str(program), *argv[1:]]
    return found


def measure(argvs: dict[str, list[str]], rounds: int) -> dict[str, list[Run]]:
    for argv in argvs.values():
        once(argv)  # fills the page cache and writes .pyc files: not counted
    runs: dict[str, list[Run]] = {name: [] for name in argvs}
    for _ in range(rounds):
        for name, argv in argvs.items():
            runs[name].append(once(argv))
    return runs


def ratio(runs: dict[str, list[Run]], one: str, other: str) -> float:
    """Median of the ratios of runs that stood next to each other."""
    return statistics.median(a[0] / b[0] for a, b in zip(runs[one], runs[other], strict=True))


def report(runs: dict[str, list[Run]]) -> bool:
    print(f"{'command':28} {'median ms':>10} {'min':>8} {'max':>8} {'x bare':>8} {'peak MB':>8}  exit")
    for name, found in runs.items():
        times = [1000 * run[0] for run in found]
        peak = max(run[1] for run in found)
        print(
            f"{name:28} {statistics.median(times):10.1f} {min(times):8.1f} {max(times):8.1f} "
            f"{ratio(runs, name, 'bare interpreter'):8.1f} {peak:8.1f}  {found[-1][2]}"
        )
    print()
    good = True
    for (one, other), limit in LIMITS.items():
        if one in runs and other in runs:
            seen = ratio(runs, one, other)
            good &= seen <= limit
            goal = f", goal {GOALS[one, other]:g}" if (one, other) in GOALS else ""
            print(f"{'ok  ' if seen <= limit else 'MISS'} {one} / {other} = {seen:.3f} (limit {limit:g}{goal})")
    peak = max(run[1] for run in runs["check"])
    good &= peak <= MEMORY_LIMIT_MB
    print(
        f"{'ok  ' if peak <= MEMORY_LIMIT_MB else 'MISS'} peak memory of check = {peak:.1f} MB (limit {MEMORY_LIMIT_MB}, goal 40)"
    )
    for name in COMPARED:
        if f"there {name}" in runs:
            here, there = runs[f"here {name}"], runs[f"there {name}"]
            pairs = [one[3] / other[3] for one, other in zip(here, there, strict=True)]
            own, others = (statistics.median(run[3] for run in found) for found in (here, there))
            low, _, high = statistics.quantiles(pairs, n=4)
            print(
                f"     {name}: {own:.3f} s of processor time, there {others:.3f}; pair by pair {statistics.median(pairs):.3f} ({low:.3f}-{high:.3f})"
            )
    for name in RIVALS:
        if name in runs:
            print(f"     check / {name} = {ratio(runs, 'check', name):.2f}")
    return good


def profile() -> None:
    """Where one check spends its time: imports (own time), then families."""
    tool = Path(sys.executable).with_name("torchtune-sys")
    run = subprocess.run([sys.executable, "-X", "importtime", tool, "check"], capture_output=True, text=True)
    rows = []
    for line in run.stderr.splitlines():
        own, _, rest = line.removeprefix("import time:").partition("|")
        if line.startswith("import time:") and own.strip().isdigit():
            rows.append((int(own), rest.partition("|")[2].strip()))
    total = sum(own for own, _ in rows) / 1000
    print(f"\nimports: {len(rows)} modules, {total:.1f} ms (with the tracing's own cost); the ten dearest by own time:")
    for own, name in sorted(rows, reverse=True)[:10]:
        print(f"  {own / 1000:6.1f} ms  {name}")
    ours = sum(own for own, name in rows if name.startswith("torchtune_sys")) / 1000
    print(f"  {ours:6.1f} ms  all of torchtune_sys")
    timings = subprocess.run([tool, "snapshot", "--timings", "--output", os.devnull], capture_output=True, text=True)
    print("\nfamilies (threads overlap):\n" + (timings.stdout + timings.stderr).rstrip())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--torch-python", metavar="PATH")
    parser.add_argument("--bundle", metavar="FILE", type=Path)
    parser.add_argument("--against", metavar="PATH", type=Path)
    parser.add_argument("--rivals", action="store_true")
    args = parser.parse_args()
    scratch = Path(tempfile.mkdtemp())
    # The interpreter that check looks at is the one that is started bare (and the bundle's): another's start, with what its .pth files import,
    # would be counted as the tool's.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    try:
        good = report(measure(commands(args, scratch), args.rounds))
        profile()
    finally:
        shutil.rmtree(scratch)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
