"""The faults of docs/joint-faults.md before what people use: python benchmarks/faults.py [--torch PYTHON] [FAULT…]

Each fault is planted on the third of four hosts (network namespaces of one bridge), and met by
  torchtune-sys   preflight --level standard on each host, before the job
  torchrun        the job itself: torchrun with c10d, a script that adds up with gloo; time-outs of 20 s
  accelerate      accelerate test with a configuration of two machines, the bad one and the one before it (MULTI_GPU: through torchrun;
                  ACCELERATE_USE_CPU has its ranks meet with gloo), where accelerate is beside torch; its own check of
                  split_between_processes fails with more than two ranks (1.15)
Needs root, ip, nft, tc. One run prints the table; ``hung``: did not end within the limit, and was ended. With ``--record FILE`` each cell is
kept as it comes, and one that is there is not run again: a run that was broken off goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/preflight")]
os.environ.setdefault("TORCHTUNE_SYS_TEST_LONG", "all")

from preflight.joint.cluster import Cluster, cluster, preflight  # noqa: E402
from preflight.joint.faults import FAULTS, problems  # noqa: E402

NODES, BAD = 4, 3
ALL, PAIR = (1, 2, 3, 4), (2, BAD)
LIMIT_S = 150.0
NAMES = (
    "none",
    "never",
    "one-way",
    "ports-dropped",
    "mtu",
    "loopback-name",
    "bridge-interface",
    "clock",
    "other-torch",
    "flipped-weight",
    "flipped-sum",
    "killed",
)
TRAINS = """
import datetime, os, sys, time
import torch, torch.distributed as dist
open(os.path.join(sys.argv[1], "began" + os.environ["RANK"]), "w").write(str(os.getpid()))
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
for step in range(30):
    net.zero_grad()
    net(torch.ones(8, 64)).sum().backward()
    for value in net.parameters():
        dist.all_reduce(value.grad)
    time.sleep(0.1)
dist.barrier()
print("trained", flush=True)
os._exit(0)
"""
_SPEAKS = re.compile(r"\bn([1-4])\b|10\.78\.0\.([1-4])\b|\brank[ :=\[]+([0-3])\b", re.IGNORECASE)
_ERRORS = re.compile(r"error|exception|fail|timed? ?out|refused|signal|unable|closed by|no-go|absent|did not", re.IGNORECASE)


class Outcome(NamedTuple):
    """What somebody who reads all that is printed learns."""

    word: str
    seconds: float

    @property
    def cell(self) -> str:
        return f"{self.word}, {self.seconds:.0f} s"


def ours(made: Cluster, python: str, name: str) -> Outcome:
    """Right, where the verdict names whom and what the table of faults wants, on every healthy host."""
    fault = FAULTS.get(name)
    found = preflight(made, python, **(fault.plant(made, BAD) if fault is not None else {}))
    verdicts = {verdict["verdict"] for verdict in found.verdicts()}
    if fault is None:
        return Outcome("go" if verdicts == {"go"} else f"wrong: {sorted(verdicts)}", found.seconds)
    if not problems(fault, made, BAD, found):
        return Outcome("named", found.seconds)
    return Outcome("silent" if verdicts == {"go"} else "not judged" if verdicts == {"unknown"} else "wrong", found.seconds)


def torchrun(python: str, folder: Path, _number: int) -> list[str]:
    words = [
        python,
        "-m",
        "torch.distributed.run",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "n1:29400",
        "--rdzv-id",
        "faults",
    ]
    words += ["--rdzv-conf", "join_timeout=20", "--nnodes", str(NODES), "--nproc-per-node", "1"]
    return [*words, str(folder / "train.py"), str(folder)]


def accelerate(python: str, folder: Path, number: int) -> list[str]:
    config = folder / f"accelerate{number}.yaml"
    config.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nuse_cpu: false\nmixed_precision: 'no'\ndebug: false\n"
        f"gpu_ids: all\nmachine_rank: {PAIR.index(number)}\nmain_process_ip: n{PAIR[0]}\nmain_process_port: 29411\nmain_training_function: main\n"
        f"num_machines: {len(PAIR)}\nnum_processes: {len(PAIR)}\nrdzv_backend: static\nsame_network: true\n"
    )
    return [python, "-m", "accelerate.commands.accelerate_cli", "test", "--config_file", str(config)]


def theirs(
    command: Callable[[str, Path, int], list[str]], hosts: tuple[int, ...] = ALL
) -> Callable[[Cluster, str, str], Outcome]:
    """``hosts``: where it is started, in the order of its ranks."""

    def run(made: Cluster, python: str, name: str) -> Outcome:
        fault = FAULTS.get(name)
        planted: dict[str, Any] = fault.plant(made, BAD) if fault is not None else {}
        (made.folder / "train.py").write_text(TRAINS)
        skipped = {number for number, _local in planted.get("skip", ())}
        children: dict[int, subprocess.Popen[bytes]] = {}
        began_s = time.monotonic()
        for number in hosts:
            if number in skipped:
                continue
            env = {"PATH": f"{Path(python).parent}:{os.environ['PATH']}", "HOME": str(made.folder), "OMP_NUM_THREADS": "1"}
            env["ACCELERATE_USE_CPU"] = "true"
            env |= planted.get("env", {}).get(number, {})
            argv = [*planted.get("outer", {}).get(number, []), *made.argv(number, command(python, made.folder, number))]
            with open(made.folder / f"said{number}", "wb") as said:
                children[number] = subprocess.Popen(argv, env=env, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
        if name == "killed":
            _kill(made, began_s)
        while time.monotonic() < began_s + LIMIT_S and any(child.poll() is None for child in children.values()):
            time.sleep(0.1)
        seconds = time.monotonic() - began_s
        hung = [number for number, child in children.items() if child.poll() is None]
        _end_all(made, children.values())
        said = {number: (made.folder / f"said{number}").read_text(errors="replace") for number in children}
        return Outcome(_word(name, hung, [child.returncode for child in children.values()], said, hosts), seconds)

    return run


def _end_all(made: Cluster, children: Iterable[subprocess.Popen[bytes]]) -> None:
    """Also workers, which a launcher starts in sessions of their own."""
    for number in ALL:
        for pid in subprocess.run(["ip", "netns", "pids", made.space(number)], capture_output=True, text=True).stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    for child in children:
        child.wait()


def _kill(made: Cluster, began_s: float) -> None:
    """The process on the third host that imports torch, a moment after it began."""
    mark = ""
    while time.monotonic() < began_s + LIMIT_S / 2 and not mark:
        words = subprocess.run(["ip", "netns", "pids", made.space(BAD)], capture_output=True, text=True).stdout.split()
        found = [pid for pid in words if b"train.py" in _line(pid) or b"test_script" in _line(pid)]
        mark = found[-1] if len(found) > 1 else ""
        time.sleep(0.2)
    time.sleep(6)
    if mark:
        os.kill(int(mark), signal.SIGKILL)


def _line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _word(name: str, hung: list[int], statuses: list[int], said: dict[int, str], hosts: tuple[int, ...] = ALL) -> str:
    """Whom the lines with an error speak of, on all hosts together; a host's words of itself count on the bad host alone."""
    if not hung and not any(statuses):
        return "go" if name == "none" else "silent: passes"
    blamed: set[int] = set()
    for number, text in said.items():
        for line in text.splitlines():
            if _ERRORS.search(line):
                told = {int(one or two or 0) or _host(int(three), hosts) for one, two, three in _SPEAKS.findall(line)}
                blamed |= told if number == BAD else told - {number}
    end = "hung" if hung else "fails"
    if blamed == {BAD}:
        return f"{end}, named"
    if BAD in blamed:
        return f"{end}, names {len(blamed)} hosts, the bad one among them"
    return f"{end}, names another" if blamed else f"{end}, names nobody"


def _host(rank: int, hosts: tuple[int, ...]) -> int:
    return hosts[rank] if rank < len(hosts) else 0


class Record:
    """The cells of one run, kept in a file as they come: of (fault, column) what came of it, and the machine's load then."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self.cells: dict[tuple[str, str], tuple[Outcome, float]] = {}
        for line in self._path.read_text().splitlines() if self._path and self._path.exists() else ():
            told = json.loads(line)
            self.cells[told["fault"], told["column"]] = Outcome(told["word"], told["seconds"]), told["load"]

    def put(self, fault: str, column: str, found: Outcome) -> None:
        load = os.getloadavg()[0]
        self.cells[fault, column] = found, load
        if self._path:
            told = {
                "fault": fault,
                "column": column,
                "word": found.word,
                "seconds": round(found.seconds, 1),
                "load": round(load, 1),
            }
            with self._path.open("a") as file:
                file.write(f"{json.dumps(told)}\n")

    def row(self, fault: str, columns: Iterable[str]) -> str:
        found = [self.cells[fault, column] for column in columns]
        return f"| {fault} | {' | '.join(outcome.cell for outcome, _ in found)} | {max(load for _, load in found):.0f} |"


def met(column: Callable[[Cluster, str, str], Outcome], python: str, fault: str) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with cluster(Path(folder), NODES) as made:
            return column(made, python, fault)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default=os.environ.get("TORCHTUNE_SYS_TEST_TORCH", ""), help="the Python that has torch")
    parser.add_argument("--accelerate", default="", help="a Python that has accelerate beside torch")
    parser.add_argument("--record", default="", metavar="FILE", help="keep each cell there, and go on where a run was broken off")
    parser.add_argument("faults", nargs="*", default=NAMES)
    asked = parser.parse_args()
    if not asked.torch or os.geteuid() != 0:
        parser.error("give --torch, and run it as root")
    columns: dict[str, tuple[Callable[[Cluster, str, str], Outcome], str]] = {
        "torchtune-sys preflight": (ours, asked.torch),
        "torchrun": (theirs(torchrun), asked.torch),
    }
    if asked.accelerate:
        columns["accelerate test"] = theirs(accelerate, PAIR), asked.accelerate
    record = Record(asked.record)
    print(f"| fault | {' | '.join(columns)} | load |\n|---|{'---|' * len(columns)}---|", flush=True)
    for fault in asked.faults:
        for name, (column, python) in columns.items():
            if (fault, name) not in record.cells:
                record.put(fault, name, met(column, python, fault))
        print(record.row(fault, columns), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
