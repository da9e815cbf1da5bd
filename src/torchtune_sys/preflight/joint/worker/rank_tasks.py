"""A rank's side of the joint pre-flight: import torch once, and run each task in a child that can be killed.

Tasks and answers are lines of JSON. torch.distributed moves tensors only: nothing that another node sent is unpickled.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import select
import signal
import sys
import time
from typing import Any, Callable, Dict, List, Tuple

from torchtune_sys.preflight.joint.worker.exchanges import Fields, each_exchanged
from torchtune_sys.preflight.joint.worker.guarded_store import guarded, who_else
from torchtune_sys.smoke.worker.interfaces import other_users
from torchtune_sys.smoke.worker.measures import copy_s, cpu_share, exact_products, exact_step, float_step, known_functions

BLOCKS = 6
BLOCK_S = 0.06
KERNEL_SIDE = 128
CONNECT_S = 6.0


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    say(answers, started(import_torch()))
    for line in sys.stdin.buffer:  # PYTHONIOENCODING may be anything
        asked = json.loads(line)
        deadline_s = min(float(asked["deadline_s"]), float(asked["task"].get("within_s", asked["deadline_s"])))
        say(answers, {"id": asked["id"], "value": in_child(asked["task"], deadline_s)})


def say(answers: Any, fields: Fields) -> None:
    answers.write(json.dumps(fields) + "\n")
    answers.flush()


def import_torch() -> str:
    """Return what hinders it; "" where nothing does."""
    try:
        import torch

        torch.set_num_threads(1)
        import torch.distributed
    except Exception as error:
        return in_words(error, str(error).strip().partition("\n")[0])
    return ""


_TOLD_AT_MOST = 300


def in_words(error: Exception, words: str = "") -> str:
    """Return an error in few words, cut at a blank: who reads it takes secrets out, and would not know the half of one."""
    text = "%s: %s" % (type(error).__name__, " ".join((words or str(error)).split()))
    return text if len(text) <= _TOLD_AT_MOST else text[:_TOLD_AT_MOST].rpartition(" ")[0]


def started(failure: str) -> Fields:
    if failure:
        return {"id": "", "value": {"error": failure}}
    import torch

    told = {
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda or torch.version.hip or ""),
        "python": platform.python_version(),
    }
    return {"id": "", "value": told}


TASKS: Dict[str, Callable[[Fields, Callable[[Fields], None]], Fields]] = {}


def in_child(task: Fields, deadline_s: float) -> Fields:
    """Do it in a child of its own session. What it said last counts, should it hang or die."""
    near, far = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            os.close(near)
            os.setsid()
            told = os.fdopen(far, "w")
            try:
                found = TASKS[task["do"]](task, lambda fields: say(told, fields))
            except Exception as error:
                found = {"error": in_words(error)}
            say(told, found)
            if task["do"] == "store":
                told.close()
                outlive(int(task["speaker"]), float(task["seconds"]))
            status = 0
        finally:
            os._exit(status)  # gloo may abort at an interpreter's usual end
    os.close(far)
    return collected(pid, near, deadline_s, keep=task["do"] == "store")


def collected(pid: int, near: int, deadline_s: float, keep: bool) -> Fields:
    until_s, parent = time.monotonic() + deadline_s, os.getppid()
    text = b""
    while time.monotonic() < until_s:
        if not select.select([near], [], [], min(max(until_s - time.monotonic(), 0), 0.5))[0]:
            if os.getppid() != parent:  # the rank was killed
                end(pid)
                sys.exit(1)
            continue
        part = os.read(near, 1 << 16)
        if not part:
            break
        text += part
    os.close(near)
    timed_out = time.monotonic() >= until_s
    by = end(pid) if not keep or timed_out else ""
    lines = text.decode("utf-8", "replace").splitlines()
    found: Fields = json.loads(lines[-1]) if lines else {}
    stage = found.get("stage", "its start")
    if timed_out:
        found["error"] = "did not end within %.0f s, at %s" % (deadline_s, stage)
    elif not lines or "stage" in found:  # what it says last, at its end, names no stage
        found["error"] = "ended by %s, at %s" % (by, stage) if by else "the process ended without an error message"
        found["signal"] = by
    return found


def end(pid: int) -> str:
    """End it, and return the name of the signal that had ended it before; "" for none."""
    for name in (os.killpg, os.kill):
        try:
            name(pid, signal.SIGKILL)
        except OSError:
            pass
    until_s = time.monotonic() + 1
    while time.monotonic() < until_s:  # one that hangs in the kernel is left behind
        try:
            gone, status = os.waitpid(pid, os.WNOHANG)
            if gone:
                return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else ""
        except (ChildProcessError, ValueError):
            return ""
        time.sleep(0.01)
    return ""


def outlive(speaker: int, seconds: float) -> None:
    """Keep the store until the node's own process, ``speaker``, is gone, or until the time is up: it may outlive its rank. A speaker in another
    PID namespace is not seen from here; then the time alone counts."""
    place, until_s = "/proc/%d" % speaker, time.monotonic() + seconds
    is_seen = os.path.exists(place)
    while time.monotonic() < until_s and not (is_seen and not os.path.exists(place)):
        time.sleep(0.2)


STORES: List[Any] = []


def store(task: Fields, _told: Callable[[Fields], None]) -> Fields:
    """Try torch's own store, on a port that the kernel draws. Its values are bytes."""
    import torch.distributed as dist

    kept = dist.TCPStore("0.0.0.0", 0, None, True, datetime.timedelta(seconds=30), wait_for_workers=False)
    STORES.append(kept)
    return {"port": kept.port}


# ---- compute ------------------------------------------------------------------------------------------------------------------------


def compute(task: Fields, _told: Callable[[Fields], None], device: Any = None) -> Fields:
    """Run a timed kernel, an exact training step, products and functions with right answers, a training step whose bits depend on hardware and libraries, the share of a CPU."""
    import torch

    device = device or own_device(torch)
    found: Fields = {"hardware": hardware(torch, device), "kernel_s": []}
    found["class"] = " ".join([found["hardware"], torch.__version__, str(torch.backends.mkl.is_available())])
    wrong = []
    for block in range(BLOCKS):
        best, words = kernel(torch, device)
        found["kernel_s"].append(best)
        wrong.append(words)
        if block == 0:
            wrong.append(exact_step(torch, device))
        elif block == 1:
            found["weights"] = float_step(torch, device)
        elif block == 2:
            wrong.append(exact_products(torch, device))
        elif block == 3:
            wrong.append(known_functions(torch, device))
    found["wrong"] = next(filter(None, wrong), "")
    found["copy_s"] = [copy_s(torch, device)]  # after the kernel, which the traffic of copies would disturb
    if device.type == "cpu":
        found["share"], found["gap"], found["spare"] = cpu_share()
    return found


def own_device(torch: Any) -> Any:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def hardware(torch: Any, device: Any) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        with open("/proc/cpuinfo") as lines:
            model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    except OSError:
        model = platform.machine()
    capability = getattr(torch.backends.cpu, "get_cpu_capability", lambda: "")()
    return "%s %s" % (model, capability)


def kernel(torch: Any, device: Any) -> Tuple[float, str]:
    """Return the best of many runs within a moment, and what was wrong with a result: each element of each is the same whole number."""
    side = KERNEL_SIDE if device.type == "cpu" else 4096
    one = torch.ones(side, side, device=device)
    two = torch.ones(side, side, device=device)
    best, until_s, runs, wrong = 1e9, time.monotonic() + BLOCK_S, 0, ""
    while runs < 5 or (time.monotonic() < until_s and runs < 5000):
        began = time.perf_counter()
        found = torch.mm(one, two)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
        runs += 1
        off = int((found != side).sum())
        if off and not wrong:
            wrong = "%d of %d elements of a product are wrong" % (off, found.numel())
    return best, wrong


# ---- collectives --------------------------------------------------------------------------------------------------------------------


def collective(task: Fields, told: Callable[[Fields], None]) -> Fields:
    """Run a collective in a group of its own: it meets, adds up, gathers and broadcasts, to the bit; says how far it came. Where it goes wrong, who else was there."""
    import torch
    import torch.distributed as dist

    device = own_device(torch)
    backend = "nccl" if device.type == "cuda" and dist.is_nccl_available() and not shares_gpu(torch) else "gloo"
    limit = datetime.timedelta(seconds=CONNECT_S)
    told({"stage": "store"})
    host, port = task["store"]
    store = dist.TCPStore(host, int(port), None, False, limit, wait_for_workers=False)
    if backend == "gloo":  # NCCL's own threads take no store of Python's
        store = guarded(store, bytes.fromhex(task.get("key", "")))
    try:
        told({"stage": "connect"})
        began_s, where = time.monotonic(), dist.PrefixStore(task["prefix"], store)
        dist.init_process_group(backend, store=where, rank=int(task["rank"]), world_size=int(task["world"]), timeout=limit)
        found = each_exchanged(task, told, backend, device if backend == "nccl" else torch.device("cpu"), store)
        found["spent_s"] = time.monotonic() - began_s
    except Exception as error:
        found = {"error": in_words(error)}
    if backend == "gloo" and not found.get("ok"):
        found["stranger"] = who_else(store, other_users)
    return found


def shares_gpu(torch: Any) -> bool:
    return bool(int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > torch.cuda.device_count())


TASKS.update(store=store, compute=compute, collective=collective)

if __name__ == "__main__":
    main()
