"""Faults in what a host is, runs and computes with."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from preflight.joint.cluster import TOOL, Cluster, Ranks
from preflight.joint.faults import until_worker
from preflight.joint.faults.computing import FLIPPED_PRODUCT, SLOW_KERNEL, Plant, patched, within
from preflight.joint.faults.expected import Expected, Fault, Verdict
from preflight.joint.faults.network import go, node_with

AT_IMPORT = """
import builtins
_import = builtins.__import__
def _hooked(name, *rest, **more):
    if name == "torch":
        builtins.__import__ = _import
        import os, signal, time
        {what}
    return _import(name, *rest, **more)
builtins.__import__ = _hooked
"""
ILLEGAL = """
def plant(torch):
    import os, signal
    def ends(*words, **named):
        os.kill(os.getpid(), signal.SIGILL)
    torch.mm = torch.Tensor.__matmul__ = torch.nn.functional.linear = ends
"""
RARE = """
def plant(torch):
    import os
    def rarely(right):
        def product(*words, **named):
            found = right(*words, **named)
            if int.from_bytes(os.urandom(2), "little") % 200 == 0 and found.dtype == torch.float32 and not found.requires_grad:
                found.view(torch.int32).view(-1)[found.numel() // 3] ^= 1 << 20
            return found
        return product
    torch.mm, torch.Tensor.__matmul__ = rarely(torch.mm), rarely(torch.Tensor.__matmul__)
"""
SLOW_COPIES = """
def plant(torch):
    import time
    def slowly(right):
        def copied(*words, **named):
            began = time.perf_counter()
            found = right(*words, **named)
            until = began + 4 * (time.perf_counter() - began)
            while time.perf_counter() < until:
                pass
            return found
        return copied
    torch.Tensor.copy_, torch.Tensor.clone = slowly(torch.Tensor.copy_), slowly(torch.Tensor.clone)
    torch.clone = slowly(torch.clone)
"""
OTHER_TOOL = """#!{python}
import sys
from torchtune_sys.host.peers import wire
wire._GREETING = "torchtune-sys/peers/99"
from torchtune_sys.__main__ import main
sys.exit(main())
"""
_WITH_SUM = 'hasattr(torch, "distributed") and hasattr(torch.distributed, "all_reduce")'
ABORTS = """
def plant(torch):
    import os, signal
    def ends(*words, **named):
        os.kill(os.getpid(), signal.SIGABRT)
    torch.distributed.all_reduce = ends
"""
WRONG_GATHER = """
def plant(torch):
    import torch.distributed as dist
    right = dist.all_gather
    def wrong(parts, *rest, **more):
        found = right(parts, *rest, **more)
        parts[0][0] += 1
        return found
    dist.all_gather = wrong
"""


def at_import(what: str) -> Any:
    """Something happens where torch is imported."""

    def plant(made: Cluster, node: int) -> dict[str, Any]:
        place = made.folder / f"planted{node}"
        place.mkdir(mode=0o755)
        (place / "sitecustomize.py").write_text(AT_IMPORT.replace("{what}", what))
        return {"env": {node: {"PYTHONPATH": str(place)}}}

    return plant


def out_of_memory(made: Cluster, node: int) -> dict[str, Any]:
    old = Path("/sys/fs/cgroup/memory")
    place = (old if old.is_dir() else old.parent) / f"joint-{os.getpid()}"
    try:
        place.mkdir()
        limit = place / ("memory.limit_in_bytes" if old.is_dir() else "memory.max")
        limit.write_text(str(120 << 20))
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    return within(made, node, place)


def no_scratch(made: Cluster, node: int) -> dict[str, Any]:
    words = "for place in /tmp /var/tmp /dev/shm; do mount --bind $place $place && mount -o remount,bind,ro $place; done"
    outer = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", f'{words}; exec "$@"', "-"]
    return {"outer": {node: outer}, "fatal": ("no-temporary-directory",)}


def late(made: Cluster, node: int) -> dict[str, Any]:
    return {"outer": {node: ["sh", "-c", 'sleep 12; exec "$@"', "-"]}}


def debug_on_one(made: Cluster, node: int) -> dict[str, Any]:
    return {"env": {node: {"NCCL_DEBUG": "INFO"}}}


def full_names(made: Cluster, _node: int) -> dict[str, Any]:
    rows = ["127.0.0.1 localhost"]
    for number in range(1, made.nodes + 1):
        made.hostnames[number] = f"n{number}.cluster.example"
        rows.append(f"{made.address(number)} n{number}.cluster.example n{number}")
    for number in range(1, made.nodes + 1):
        made.table(number, "\n".join(rows) + "\n")
    return {}


def paused(made: Cluster, node: int) -> dict[str, Any]:
    def during(ranks: Ranks) -> None:
        until_worker(ranks, node)
        ranks.kill(node, signal.SIGSTOP)
        time.sleep(3)
        ranks.kill(node, signal.SIGCONT)

    return {"during": during}


def other_tool(made: Cluster, node: int) -> dict[str, Any]:
    place = made.folder / "other-tool"
    place.write_text(OTHER_TOOL.format(python=TOOL.with_name("python")))
    return {"tools": {node: (sys.executable, str(place))}}


def processes_of(made: Cluster, node: int) -> Iterator[int]:
    """Processes of the host."""
    space = os.stat(f"/run/netns/{made.space(node)}").st_ino
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.stat(place / "ns/net").st_ino == space:
                yield int(place.name)


def _agents(made: Cluster, ranks: Ranks, node: int) -> list[int]:
    """The process that speaks for the host: of the same command as its rank's, and another."""
    own = Path(f"/proc/{ranks.pid(node)}/cmdline").read_bytes()
    others = [pid for pid in processes_of(made, node) if pid != ranks.pid(node)]
    return [pid for pid in others if Path(f"/proc/{pid}/cmdline").read_bytes() == own]


def agent_killed(made: Cluster, node: int) -> dict[str, Any]:
    def during(ranks: Ranks) -> None:
        until_worker(ranks, node)
        for pid in _agents(made, ranks, node):
            os.kill(pid, signal.SIGKILL)

    return {"during": during}


def node_killed(made: Cluster, node: int) -> dict[str, Any]:
    def during(ranks: Ranks) -> None:
        until_worker(ranks, node)
        for pid in [*processes_of(made, node)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    return {"during": during}


def terminated(_made: Cluster, node: int) -> dict[str, Any]:
    def during(ranks: Ranks) -> None:
        until_worker(ranks, node)
        ranks.kill(node, signal.SIGTERM)

    return {"during": during}


def agent_stopped(made: Cluster, node: int) -> dict[str, Any]:
    def during(ranks: Ranks) -> None:
        until_worker(ranks, node)
        for pid in _agents(made, ranks, node):
            made.planted.add(pid)  # it cannot end by itself
            made.stack.callback(subprocess.run, ["kill", "-KILL", str(pid)], check=False, capture_output=True)
            subprocess.run(["kill", "-STOP", str(pid)], check=True)

    return {"during": during}


def duty_cycle(made: Cluster, node: int) -> dict[str, Any]:
    def during(ranks: Ranks) -> None:
        until_s = time.monotonic() + 90
        while time.monotonic() < until_s and ranks.children[node, 0].poll() is None:
            own = [*processes_of(made, node)]
            for sig in (signal.SIGSTOP, signal.SIGCONT):
                for pid in own:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, sig)
                time.sleep(0.05)

    return {"during": during}


def odd_environment(_made: Cluster, node: int) -> dict[str, Any]:
    text = {"TZ": "Pacific/Kiritimati", "LC_ALL": "tr_TR.UTF-8", "PYTHONIOENCODING": "utf-16", "PYTHONOPTIMIZE": "2"}
    return {"env": {node: {**text, "http_proxy": "http://10.99.0.1:3128", "LD_PRELOAD": "/usr/lib/libnobody.so.1"}}}


NOISY = """
import sys
if sys.prefix != {tool!r}:
    print('*' * 60, 'welcome {{"a": 1}}', sep='\\n')
    print('[]', file=sys.stderr)
"""


def noisy_python(made: Cluster, node: int) -> dict[str, Any]:
    place = made.folder / f"planted{node}"
    place.mkdir(mode=0o755)
    (place / "sitecustomize.py").write_text(NOISY.format(tool=sys.prefix))
    return {"env": {node: {"PYTHONPATH": str(place)}}}


def other_user(made: Cluster, node: int) -> dict[str, Any]:
    """One who may read what this machine's Python is made of, wherever it lies."""
    made.folder.chmod(0o755)
    may_read = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
    return {"tools": {node: ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *may_read, str(TOOL))}}


def restarted(_made: Cluster, node: int) -> dict[str, Any]:
    words = '"$@" & sleep 0.5; kill -KILL $!; wait $!; exec "$@"'
    return {"tools": {node: ("sh", "-c", words, "-", str(TOOL))}}


def few_descriptors(_made: Cluster, node: int) -> dict[str, Any]:
    return {"tools": {node: ("sh", "-c", 'ulimit -n 20; exec "$@"', "-", str(TOOL))}}


def one_of_two(body: str) -> Plant:
    """Two ranks a node: one of this node has another torch."""
    return lambda made, node: {**patched("import os\n" + body)(made, node), "locals_": 2}


ONE_IS_SLOW = SLOW_KERNEL.replace("1.25 *", "1.5 *").replace(
    "def plant(torch):", 'def plant(torch):\n    if os.environ.get("LOCAL_RANK") != "1":\n        return'
)
ONE_FLIPS = FLIPPED_PRODUCT.replace(
    "def plant(torch):", 'def plant(torch):\n    if os.environ.get("LOCAL_RANK") != "1":\n        return'
)
SLOWS_DOWN = SLOW_KERNEL.replace("import time", "import time\n    ready = time.monotonic()").replace(
    "1.25 *", "(1.5 if time.monotonic() > ready + 4 else 0) *"
)


def other_package(made: Cluster, node: int) -> dict[str, Any]:
    place = made.folder / f"planted{node}"
    told = place / "numpy-1.21.0.dist-info"
    told.mkdir(parents=True)
    place.chmod(0o755)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.21.0\n")
    return {"env": {node: {"PYTHONPATH": str(place)}}}


def _of_package(_made: Cluster, node: int) -> Expected:
    def also(verdict: Verdict) -> list[str]:
        told = {cause["cause"] for each in verdict["nodes"] if each["node"] == f"n{node}" for cause in each["causes"]}
        return [] if "software-differs-between-nodes" in told else [f"n{node}: {sorted(told)}"]

    return Expected(("software-differs-between-nodes",), may=(f"n{node}",), verdicts=("go", "no-go"), bad=(node,), also=also)


def uneven(_made: Cluster, node: int) -> dict[str, Any]:
    return {"locals_": {node: 2}}


def node_paused(made: Cluster, node: int) -> dict[str, Any]:
    def during(ranks: Ranks) -> None:
        until_worker(ranks, node)
        own = [*processes_of(made, node)]
        for sig in (signal.SIGSTOP, signal.SIGCONT):
            for pid in own:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, sig)
            time.sleep(2.5 if sig == signal.SIGSTOP else 0)

    return {"during": during}


def other_cpu(_made: Cluster, node: int) -> dict[str, Any]:
    return {"env": {node: {"ATEN_CPU_CAPABILITY": "default"}}}


_CRASHED = ("software-differs-between-nodes", "rank-killed")

FAULTS = {
    "out-of-memory": Fault(out_of_memory, node_with("host-memory-oom", "rank-killed")),
    "no-scratch": Fault(no_scratch, node_with("no-temporary-directory"), 2, held=True),
    "crash-at-import": Fault(at_import("os.kill(os.getpid(), signal.SIGSEGV)"), node_with(*_CRASHED, words=("SIGSEGV",)), 2),
    "crash-in-product": Fault(patched(ILLEGAL), node_with(*_CRASHED, "silent-data-corruption", words=("SIGILL",))),
    "rare-flip": Fault(patched(RARE), node_with("silent-data-corruption"), 3),
    "slow-copies": Fault(patched(SLOW_COPIES), node_with("straggler-compute"), 4),
    "agent-killed": Fault(agent_killed, node_with("rank-killed"), 3),
    "node-killed": Fault(node_killed, node_with("rank-killed", "link-down"), 4),
    "other-tool": Fault(other_tool, node_with("node-never-came", "software-differs-between-nodes", words=("release",)), 4),
    "late": Fault(late, go),
    "debug-on-one": Fault(debug_on_one, go, 2, held=True),
    "full-names": Fault(full_names, go, held=True),
    "paused": Fault(paused, go, 4),
    "slow-import": Fault(at_import("time.sleep(12)"), go, 4),
    "torch-hangs": Fault(at_import("time.sleep(1000)"), node_with(verdicts=("no-go", "unknown")), 2),
    "terminated": Fault(terminated, node_with("rank-killed"), 1),
    "agent-stopped": Fault(agent_stopped, node_with("rank-stopped"), 3),
    "aborts-in-sum": Fault(
        patched(ABORTS, _WITH_SUM), node_with("software-differs-between-nodes", "rank-killed", words=("SIGABRT",)), 4
    ),
    "exits-at-import": Fault(at_import("os._exit(0)"), node_with(*_CRASHED), 4, held=True),
    "duty-cycle": Fault(
        duty_cycle, node_with("straggler-compute", "cpu-quota-on-one-node", "rank-stopped", "straggler-network"), 4
    ),
    "odd-environment": Fault(odd_environment, go, held=True),
    "noisy-python": Fault(noisy_python, go),
    "other-user": Fault(other_user, go, 2),
    "restarted": Fault(
        restarted, lambda _made, node: Expected(may=(f"n{node}",), verdicts=("go", "no-go"), bad=(node,)), 4, held=True
    ),
    "wrong-gather": Fault(patched(WRONG_GATHER, _WITH_SUM), node_with("silent-data-corruption"), 3),
    "few-descriptors": Fault(few_descriptors, node_with(), 3),
    "half-slow": Fault(one_of_two(ONE_IS_SLOW), node_with("straggler-compute", words=("local rank 1",)), 1, held=True),
    "rank-flip": Fault(one_of_two(ONE_FLIPS), node_with("silent-data-corruption", words=("local rank 1",)), 4),
    "slows-down": Fault(patched(SLOWS_DOWN), node_with("straggler-compute"), 4, held=True),
    "other-package": Fault(other_package, _of_package, 2),
    "uneven": Fault(uneven, go, 2),
    "node-paused": Fault(node_paused, go, 4),
    "other-cpu": Fault(other_cpu, go, 2),
}
