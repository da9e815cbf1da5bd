"""The work of each rank in its own process: read facts, compute, and run collectives in the existing group."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from torchtune_sys import engine
from torchtune_sys.host.live import LiveHost
from torchtune_sys.host.peers.addresses import towards
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.snapshot import container_told
from torchtune_sys.model.values import known
from torchtune_sys.preflight import context, own_checks, verdict
from torchtune_sys.preflight.joint.facts import facts_of
from torchtune_sys.preflight.joint.sums import LATE_S
from torchtune_sys.preflight.joint.worker import exchanges, rank_tasks
from torchtune_sys.preflight.policy import Policy
from torchtune_sys.rules import CATALOGUE

_LOOK_S = 15.0
_FRAMES = 3


def host_key() -> str:
    """Return what is the same for all ranks on a host, and for no others: its name, this start of its kernel, its network."""
    host = LiveHost()
    parts = [os.uname().nodename, host.text("/proc/sys/kernel/random/boot_id")]
    with suppress(OSError):
        parts.append(str(os.stat("/proc/self/ns/net").st_ino))
    return "-".join(str(part).strip() for part in parts)


def host_name() -> str:
    """Return what this host is called: as the scheduler lists it, else as it calls itself."""
    return context.node_name(known(LiveHost().env(), {}), os.uname().nodename)


def of_node(name: str, policy: Policy, nodes: int, budget_s: float) -> dict[str, Any]:
    """Return what one rank of a host tells of it: its facts, what the rules find, and its address in the job's network."""
    env = known(LiveHost().env(), {})
    intent = Workload(nodes=nodes, python=sys.executable)
    seen = engine.snapshot(LiveHost(), intent, timeout_s=min(_LOOK_S, max(budget_s, 0.5)))
    results = verdict.without_own(engine.judge(seen, CATALOGUE, policy.params))
    found = verdict.of_results(results, policy, nodes, contained=bool(container_told(seen)))
    causes = verdict.ordered([*found, *own_checks.of_quota(seen, policy)])
    return {
        "facts": msgspec.to_builtins(facts_of(seen, name, env)),
        "node": msgspec.to_builtins(causes),
        "address": towards(env.get("MASTER_ADDR", "")),
    }


@contextmanager
def undisturbed(torch: Any) -> Iterator[None]:
    """Leave the caller's random numbers, types, threads and wish for deterministic algorithms afterwards as they were."""
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    numbers, on_gpus = torch.get_rng_state(), torch.cuda.get_rng_state_all() if cuda else []
    kind, threads = torch.get_default_dtype(), torch.get_num_threads()
    repeats, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        if repeats:  # the call alone imports torch's compiler, for seconds
            torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(1)
        yield
    finally:
        if repeats:
            torch.use_deterministic_algorithms(True, warn_only=warns)
        torch.set_num_threads(threads)
        torch.set_default_dtype(kind)
        torch.set_rng_state(numbers)
        if cuda:
            torch.cuda.set_rng_state_all(on_gpus)


def computed(device: Any) -> dict[str, Any]:
    """Run one turn of the timed kernel and the exact training steps."""
    try:
        return rank_tasks.compute({}, lambda _told: None, device)
    except Exception as error:
        return {"error": rank_tasks.in_words(error)}


def own_device(torch: Any) -> Any:
    """Return the GPU that the calling thread set, since each new thread begins with the first (cudaSetDevice); where it set none, that of its local rank."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device() or rank_tasks.own_device(torch).index)


def device_of(torch: Any, group: Any) -> Any:
    """Return where the group's tensors are. A group for several kinds of devices ("cpu:gloo,cuda:nccl") has them in memory where there is no GPU."""
    return own_device(torch) if "nccl" in str(torch.distributed.get_backend(group)) else torch.device("cpu")


class Collective:
    """The caller's own group adds up, in a thread: one that hangs there holds nobody, and cannot be ended either."""

    def __init__(self, torch: Any, group: Any, rank: int, world: int, device: Any) -> None:
        self._torch, self._group, self._rank, self._world, self._device = torch, group, rank, world, device
        self._found: dict[str, Any] = {"stage": "its start"}
        self._thread = threading.Thread(target=self._run, daemon=True, name="torchtune-sys")

    def run(self, until_s: float) -> dict[str, Any]:
        """Return what came of it, or where it stands when the time is up."""
        self._thread.start()
        self._thread.join(max(until_s - time.monotonic(), 0.0))
        found = dict(self._found)
        if self._thread.is_alive():
            found["error"] = f"did not end in time, at {found['stage']}"
            found["at"] = self._where()
        return found

    def _where(self) -> str:
        """Return the innermost lines of the thread, without files' places: hosts have them elsewhere."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        lines: list[str] = []
        while frame is not None and len(lines) < _FRAMES:
            lines.append(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_code.co_name}")
            frame = frame.f_back
        return " < ".join(lines)

    def _run(self) -> None:
        try:
            self._add_up()
            self._found["ok"] = "wrong" not in self._found
        except Exception as error:
            self._found["error"] = rank_tasks.in_words(error)

    def _add_up(self) -> None:
        peers = exchanges.GroupRanks(self._torch, self._rank, self._world, self._device, self._group)
        backend = "nccl" if self._device.type == "cuda" else "gloo"
        self._found.update(exchanges.each_of(peers, exchanges.collectives(peers), self._found.update, backend, LATE_S))
