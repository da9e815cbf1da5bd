"""Faults around a joint pre-flight (docs/preflight-faults.md): how it is started, started again and ended, and what it leaves behind.

PYTHONPATH=tests python -m preflight.joint.faults.starts opened|held|NAME...
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from preflight.joint.cluster import TOOL, Cluster, Ranks, Run, cluster, preflight, run
from preflight.joint.faults import named
from smoke.faults.bench import torch_python

LISTS = ("good_nodes.txt", "bad_nodes.txt", "exclude.txt", "hostfile")


class Fault(NamedTuple):
    wrong: Callable[[Cluster, str], list[str]]
    held: bool = False
    nodes: int = 4


def _all_go(found: Run, nodes: int = 4) -> list[str]:
    wrong = [f"left running: {each}" for each in found.left]
    for (number, _local), told in sorted(found.told.items()):
        verdict = told.verdict
        if verdict.get("verdict") != "go" or told.status != 0 or verdict["scale"]["nodes"] != nodes:
            wrong.append(f"n{number}: status {told.status}, {_brief(verdict)} {told.errors[-200:]}")
    return wrong if found.told else [*wrong, "nobody ended in time"]


def _brief(verdict: Mapping[str, Any]) -> str:
    if not verdict:
        return "no verdict"
    causes = {node["node"]: [cause["cause"] for cause in node["causes"]] for node in verdict["nodes"] if node["verdict"] != "go"}
    return f"{verdict['verdict']} {causes} absent {verdict['absent']} links {verdict['links']} {verdict['causes']}"


def _started_again(made: Cluster, python: str, env: Mapping[str, str]) -> list[str]:
    """All ranks of the first start are killed at once, as by a requeue; what speaks for their nodes is not."""
    second: list[Run] = []

    def during(ranks: Ranks) -> None:
        time.sleep(4)
        for number in range(1, made.nodes + 1):
            for each in _tree(ranks.pid(number)):
                with contextlib.suppress(OSError):
                    os.kill(each, signal.SIGKILL)
        again = {number: dict(env) for number in range(1, made.nodes + 1)}
        second.append(preflight(made, python, env=again, tag="-again"))

    preflight(made, python, during=during)
    return _all_go(second[0])


def _tree(pid: int) -> list[int]:
    """A rank and what it started, but for the process that speaks for its node, which has a session of its own."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = place.read_text().rpartition(")")[2].split()
            if int(fields[3]) == _session(pid):
                children.setdefault(int(fields[1]), []).append(int(place.parent.name))
    found = [pid]
    for each in found:
        found += children.get(each, ())
    return found


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def requeue(made: Cluster, python: str) -> list[str]:
    return _started_again(made, python, {"SLURM_RESTART_COUNT": "1"})


def started_again(made: Cluster, python: str) -> list[str]:
    """The same where nothing in the environment tells the second start from the first."""
    return _started_again(made, python, {})


def too_late(made: Cluster, python: str) -> list[str]:
    outer = {3: ["sh", "-c", 'sleep 42; exec "$@"', "-"]}
    folder = made.folder / "lists"
    found = preflight(made, python, outer=outer, words=("--lists", str(folder), "--meet-within", "12"))
    wrong = [f"left running: {each}" for each in found.left]
    for (number, _local), told in sorted(found.told.items()):
        verdict = told.verdict
        if number == 3:
            seen = [cause["seen"] for node in verdict.get("nodes", ()) for cause in node["causes"]]
            seen += [link["seen"] for link in verdict.get("links", ())]
            if verdict.get("verdict") == "go" or not any("reach" in each or "no verdict" in each for each in seen):
                wrong.append(f"n3: {_brief(verdict)}")
        elif verdict.get("absent") != ["n3"] or {*named(verdict)} != {"n3"}:
            wrong.append(f"n{number}: {_brief(verdict)}")
    if 3 not in {number for number, _local in found.told}:
        wrong.append("n3 did not end")
    good = (folder / "good_nodes.txt").read_text().split() if (folder / "good_nodes.txt").exists() else []
    return wrong + ([] if sorted(good) == ["n1", "n2", "n4"] else [f"good nodes: {good}"])


def first_too_late(made: Cluster, python: str) -> list[str]:
    """The first node comes when the others have ended."""
    outer = {1: ["sh", "-c", 'sleep 42; exec "$@"', "-"]}
    folder = made.folder / "lists"
    found = preflight(made, python, outer=outer, words=("--lists", str(folder), "--meet-within", "12"))
    good = (folder / "good_nodes.txt").read_text().split() if (folder / "good_nodes.txt").exists() else []
    wrong = [] if sorted(good) == ["n2", "n3", "n4"] else [f"good nodes: {good}"]
    told = {number: each.verdict for (number, _local), each in found.told.items()}
    return wrong + ([] if told.get(1, {}).get("verdict") != "go" else ["n1: go"])


def lists_full(made: Cluster, python: str) -> list[str]:
    folder = made.folder / "full"
    folder.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder))
    made.stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=False)
    for name in LISTS:
        (folder / name).write_text("n7\n")
        os.utime(folder / name, (time.time() - 86400,) * 2)
    with contextlib.suppress(OSError), open(folder / "ballast", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    # What is freed by the old lists is taken again.
    (folder / "more").write_bytes(b"")
    taker = subprocess.Popen(["sh", "-c", f"while :; do head -c 4096 /dev/zero >> {folder}/more 2>/dev/null || sleep 0.2; done"])
    made.planted.add(taker.pid)
    made.stack.callback(taker.wait)
    made.stack.callback(taker.kill)
    found = preflight(made, python, words=("--lists", str(folder)))
    wrong = []
    for (number, _local), told in sorted(found.told.items()):
        if told.verdict.get("verdict") != "go":
            wrong.append(f"n{number}: {_brief(told.verdict)} {told.errors[-200:]}")
        if "No space left" not in told.errors or told.status == 0:
            wrong.append(f"n{number}: status {told.status}, said {told.errors[-200:]!r}")
    left = {name: (folder / name).read_text() for name in LISTS if (folder / name).exists()}
    return wrong + ([f"old lists are left: {left}"] if "n7\n" in left.values() else [])


def budget_short(made: Cluster, python: str) -> list[str]:
    found = preflight(made, python, budget_s=5)
    wrong = [f"left running: {each}" for each in found.left]
    for (number, _local), told in sorted(found.told.items()):
        if told.status != 3 or told.verdict.get("verdict") != "unknown" or told.seconds > 15:
            wrong.append(f"n{number}: status {told.status} after {told.seconds:.0f} s, {_brief(told.verdict)}")
    return wrong


def full_scratch(made: Cluster, python: str) -> list[str]:
    folder = made.folder / "scratch"
    folder.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder))
    made.stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=False)
    with contextlib.suppress(OSError), open(folder / "ballast", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    causes = ("disk-full-or-quota", "no-temporary-directory")
    found = preflight(made, python, env={2: {"TMPDIR": str(folder)}}, fatal=causes)
    wrong = []
    for (number, _local), told in sorted(found.told.items()):
        blamed = named(told.verdict) if told.verdict else {}
        if {*blamed} != {"n2"} or not blamed["n2"] & {*causes}:
            wrong.append(f"n{number}: {_brief(told.verdict)}")
    return wrong


def one_name(made: Cluster, python: str) -> list[str]:
    folder = made.folder / "lists"
    env = {number: {"TORCHTUNE_SYS_NODE": "n3"} for number in (2, 3)}
    found = preflight(made, python, env=env, words=("--lists", str(folder)))
    wrong = []
    for (number, _local), told in sorted(found.told.items()):
        seen = " ".join(cause["seen"] for node in told.verdict.get("nodes", ()) for cause in node["causes"])
        if not {made.address(2), made.address(3)} <= {*seen.replace(",", " ").split()}:
            wrong.append(f"n{number}: {_brief(told.verdict)} says {seen[:300]}")
    good = (folder / "good_nodes.txt").read_text().split() if (folder / "good_nodes.txt").exists() else []
    return wrong + ([] if len(good) == len({*good}) else [f"good nodes: {good}"])


def dead_second_address(made: Cluster, python: str) -> list[str]:
    for number in range(1, made.nodes + 1):
        made.table(number, made.hosts + "10.78.0.199 n1\n")
    return _all_go(preflight(made, python))


def hostfile_of_windows(made: Cluster, python: str) -> list[str]:
    hostfile = made.folder / "windows"
    rows = ["\ufeff# the nodes", "n1 slots=8", "n2:8", "", "n3   # spare", "n1 slots=8", "n4"]
    hostfile.write_bytes("\r\n".join(rows).encode())
    bare = made.folder / "bare"
    bare.write_bytes("\ufeffn1\r\nn2\r\nn3\r\nn4\r\n".encode())
    wrong = []
    for each in (hostfile, bare):
        folder = made.folder / f"lists-{each.name}"
        words = ("--hostfile", str(each), "--lists", str(folder))
        wrong += _all_go(preflight(made, python, nodelist=False, words=words, tag=each.name))
        good = (folder / "good_nodes.txt").read_text().split()
        wrong += [] if sorted(good) == ["n1", "n2", "n3", "n4"] else [f"good nodes: {good}"]
    return wrong


def ended(made: Cluster, python: str) -> list[str]:
    """``preflight`` alone, at both levels, by hand and as a hook, is ended at ten moments each."""
    wrong, chance = [], random.Random(7)
    scratch = made.folder / "tmp"
    scratch.mkdir()
    for level in ("fast", "standard"):
        for hook in ((), ("--hook", "prolog")):
            for at in range(10):
                sig = (signal.SIGTERM, signal.SIGKILL)[at % 2]
                state = made.folder / f"state-{level}-{len(hook)}-{at}"
                mark = f"ended-{os.getpid()}-{level}-{at}-{len(hook)}"
                env = {"PATH": os.environ["PATH"], "HOME": str(made.folder), "TMPDIR": str(scratch), "ENDED_TEST": mark}
                command = [str(TOOL), "preflight", "--level", level, *hook, "--python", python, "--format", "json"]
                command += ["--drain-state", str(state), "--budget", "40"]
                longest_s = 1.5 if level == "fast" else 12.0
                child = subprocess.Popen(
                    command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
                )
                try:
                    out, _ = child.communicate(timeout=chance.uniform(0.02, longest_s))
                    continue  # it ended before
                except subprocess.TimeoutExpired:
                    os.kill(child.pid, sig)
                out, _ = child.communicate(timeout=30)
                if b'"go"' in out or child.returncode == 0:
                    wrong.append(f"{level} {hook} {sig.name}: status {child.returncode}, {out[:200]!r}")
                wrong += [f"{level} {hook} {sig.name}: left {each}" for each in _left_of(mark)]
                if state.exists() and any(path.name.startswith("slot-") for path in state.rglob("*")):
                    wrong.append(f"{level} {hook} {sig.name}: a place of the drain limit is taken")
    return wrong + [f"left in the temporary directory: {path.name}" for path in scratch.iterdir()]


def _left_of(mark: str, patience_s: float = 8.0) -> list[str]:
    until_s = time.monotonic() + patience_s
    while True:
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark.encode() in (place / "environ").read_bytes():
                    found.append((place / "cmdline").read_bytes()[:150].decode(errors="replace"))
        if not found or time.monotonic() > until_s:
            return found
        time.sleep(0.2)


FAULTS = {
    "requeue": Fault(requeue),
    "started-again": Fault(started_again),
    "ended": Fault(ended, held=True, nodes=1),
    "too-late": Fault(too_late),
    "first-too-late": Fault(first_too_late),
    "lists-full": Fault(lists_full),
    "budget-short": Fault(budget_short),
    "full-scratch": Fault(full_scratch),
    "one-name": Fault(one_name),
    "dead-second-address": Fault(dead_second_address),
    "hostfile-of-windows": Fault(hostfile_of_windows),
}
"""*started-again* and *first-too-late* came beside the list, from reading the code."""


def planted(name: str, python: str) -> list[str]:
    """What is wrong with what was said."""
    fault = FAULTS[name]
    with tempfile.TemporaryDirectory() as folder, cluster(Path(folder), fault.nodes) as made:
        return fault.wrong(made, python)


def main(words: list[str]) -> None:
    chosen = [word for word in words if word in FAULTS]
    for name in chosen or [name for name, fault in FAULTS.items() if fault.held == ("held" in words)]:
        began_s = time.monotonic()
        row = {"fault": name, "wrong": planted(name, torch_python())}
        print(json.dumps({**row, "seconds": round(time.monotonic() - began_s), "load": round(os.getloadavg()[0], 1)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
