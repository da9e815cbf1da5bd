"""Ranks that meet, and part again."""

from __future__ import annotations

import contextlib
import datetime
import gc
import inspect
import json
import os
import re
import select
import socket
import time
from typing import Any, Dict, List

import torch
import torch.distributed as dist

from torchtune_sys.smoke.worker.agreement import tell_all, word_of
from torchtune_sys.smoke.worker.context import RankContext, StageFailed, bus_address
from torchtune_sys.smoke.worker.interfaces import (
    connected_over,
    gloo_address,
    host_identity,
    open_sockets,
)
from torchtune_sys.smoke.worker.rendezvous_store import (
    MEETING_S,
    meet_at_port,
    meeting_place,
    names_come_soon,
    names_stand_for_something,
    pairs_are_ranks,
    refuse_strangers,
)
from torchtune_sys.smoke.worker.stages.process_state import signals_still_arrive

GLOO_CONNECTS_S = 15.0
"""gloo (torch 2.13) was seen to try five times as long where nobody answers."""
EXCHANGE_S = 600.0
"""Longer than any stage: who hangs is found by the stage's own deadline, and a rank may wait for another that compiles."""
MULTI_RANK_VARIABLE = "NCCL_MULTI_RANK_GPU_ENABLE"
"""With it NCCL 2.30.3 and newer let ranks share a GPU (src/init.cc)."""
_TWICE = "twice"
_LATE_S = 10.0
_STEERING = (
    "TORCH_",
    "NCCL_",
    "GLOO_",
    "UCC_",
    "RCCL_",
    "CUBLAS_",
    "CUDNN_",
    "NVIDIA_TF32",
    "OMP_NUM",
    "MKL_",
    "KMP_",
    "ATEN_",
    "ONEDNN_",
    "DNNL_",
    "PYTHONHASHSEED",
    "PYTHONOPTIMIZE",
)
_AGREED = ("world", "torch", "cuda", "nccl", "backend")


def check_in(here: RankContext) -> None:
    """Before all stages: the launcher starts the ranks at once, and a rank that is not there yet is missing, not late. What is wrong is
    told by the stage "rendezvous"."""
    here.began_s = time.monotonic()
    try:
        names_stand_for_something(here)
        here.store = meeting_place(here)
        if here.store.add("met/%d" % here.rank, 1) > 1:
            here.store.add(_TWICE, 1)
            raise StageFailed("wrong-world-size", "two processes say that they are rank %d" % here.rank)
    except Exception as error:
        here.not_met = error


def ranks_meet(here: RankContext) -> None:
    """Let the ranks find each other, agree on the job, and form a process group."""
    started = time.monotonic()
    here.broken = True  # until they have met
    try:
        if here.not_met is not None:
            raise here.not_met
        _kernel_lets_wait()
        _kernel_lists_interfaces()
        everyone = _introduce(here)
        meet_at_port(here)
    except RuntimeError as error:
        if not any(words in str(error) for words in ("clients joined", "did not answer")):
            raise
        seen = "%s; a rank did not start, cannot reach %s, has another MASTER_PORT, or WORLD_SIZE=%d is too many"
        raise StageFailed("ranks-missing", seen % (str(error).splitlines()[0].rstrip("."), _master(), here.world)) from error
    here.on_one_host = len({own["where"] for own in everyone}) == 1
    here.processes = tuple(str(own["pid"]) for own in everyone) if here.on_one_host else here.processes
    _own_gpu_after_all(here, everyone)
    _one_gpu_each(here, everyone)
    before = open_sockets()
    _connect_all(here, everyone)
    here.broken = False
    signals_still_arrive()
    names_come_soon()
    addresses = connected_over(open_sockets() - before)
    here.remark = "; ".join(filter(None, ["over %s" % ", ".join(addresses) if addresses else "", _late_ones(here, everyone)]))
    here.measure("ranks", dist.get_world_size(), "")
    here.measure("hosts", len({own["where"] for own in everyone}), "")
    here.measure("rendezvous_store", time.monotonic() - started, "s")


def _late_ones(here: RankContext, everyone: List[Dict[str, Any]]) -> str:
    """Return who began long after the first, if all are on one host and have one clock: the others waited for that one, and the network is not to blame."""
    if not here.on_one_host:
        return ""
    first = min(own["began"] for own in everyone)
    late = [
        "rank %d %.0f s" % (rank, own["began"] - first) for rank, own in enumerate(everyone) if own["began"] - first > _LATE_S
    ]
    return "began after the first rank: %s (its launcher, or its imports of Python and torch)" % ", ".join(late) if late else ""


def _kernel_lets_wait() -> None:
    """Check what gloo and torch's store await connections by: where a sandbox refuses it they abort without a word of why."""
    made = os.pipe()
    try:
        with select.epoll() as waiting:
            waiting.register(made[0])
    except OSError as error:
        seen = "the kernel, or a sandbox in its place (seccomp), refuses epoll, by which ranks await each other: %s"
        raise StageFailed("system-calls-refused", seen % error.strerror, "look at the container's profile (seccomp)") from error
    finally:
        for one in made:
            os.close(one)


def _kernel_lists_interfaces() -> None:
    """Check what gloo and NCCL choose their interface from (getifaddrs, which asks by netlink): where it is refused, gloo aborts at "device.cc:33"."""
    try:
        socket.if_nameindex()
    except OSError as error:
        seen = "the network interfaces cannot be listed (netlink): %s; neither gloo nor NCCL goes without" % error.strerror
        remedy = (
            "systemd: add AF_NETLINK to the unit's RestrictAddressFamilies; a container: a profile that allows socket(AF_NETLINK)"
        )
        raise StageFailed("system-calls-refused", seen, remedy) from error


def _master() -> str:
    return "%s:%s" % (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) if "MASTER_PORT" in os.environ else "the others"


def _introduce(here: RankContext) -> List[Dict[str, Any]]:
    """Return what each rank believes of the job. Judged one by one: a rank that believes in too many would wait for those forever."""
    own = {
        "world": here.world,
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "nccl": _nccl_version(here),
        "backend": here.backend,
        "host": socket.gethostname(),
        "where": host_identity(),
        "pid": os.getpid(),
        "address": gloo_address(os.environ.get("GLOO_SOCKET_IFNAME", "")),
        "interface": os.environ.get("GLOO_SOCKET_IFNAME", ""),
        "gpu": _gpu_uuid(here),
        "board": _board(here),
        "variables": _variables(),
        "began": here.began_s,
    }
    if here.store.add(_TWICE, 0):
        raise StageFailed("wrong-world-size", "two processes say that they are the same rank")
    here.store.set("is/%d" % here.rank, json.dumps(own))
    if 0 < here.world_wish != here.world:
        raise StageFailed("wrong-world-size", "this rank was told of %d ranks, the job has %d" % (here.world, here.world_wish))
    everyone: List[Dict[str, Any]] = []
    for rank in range(here.world):
        other = own if rank == here.rank else json.loads(word_of(here, "is/%d" % rank, rank, MEETING_S))
        for name in _AGREED:
            if other[name] != own[name]:
                _disagreement(name, "rank %d on %s has %s %s, rank %d on %s %s"
                              % (rank, other["host"], name, other[name], here.rank, own["host"], own[name]))  # fmt: skip
        everyone.append(other)
    _variables_agree(here, everyone)
    return everyone


def _variables() -> Dict[str, str]:
    """Return what steers how ranks talk and compute. Not what tells a rank its own place, or says more of one than of others."""
    own = re.compile(
        r"DEBUG(?!$)|LOG|TRACE|DUMP|FILE|DIR|PATH|CACHE|IFNAME|HCA|GID|_ID$|TOPO|DEVICE|RANK|SIZE$|PORT|ADDR|HOST|^TORCHELASTIC"
    )
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_STEERING) and (name == "TORCH_DISTRIBUTED_DEBUG" or not own.search(name)) and name != "NCCL_DEBUG"
    }


def _variables_agree(here: RankContext, everyone: List[Dict[str, Any]]) -> None:
    """Ranks of one host are started alike. Where one has other settings of torch or of its libraries, they wait in different exchanges, or take other algorithms."""
    for other in everyone:
        if other["where"] != everyone[0]["where"]:
            continue
        for name in sorted({*other["variables"], *everyone[0]["variables"]}):
            one, two = (each["variables"].get(name, "") for each in (everyone[0], other))
            if one != two:
                words = (everyone.index(other), name, two or "(not set)", one or "(not set)")
                raise StageFailed(
                    "ranks-unlike",
                    "rank %d has %s=%s, rank 0 on the same host %s" % words,
                    "start all ranks with one environment",
                )


def _disagreement(name: str, seen: str) -> None:
    cause = {"world": "wrong-world-size", "torch": "torch-versions-mixed", "nccl": "nccl-versions-differ"}.get(
        name, "ranks-unlike"
    )
    raise StageFailed(cause, seen)


def _nccl_version(here: RankContext) -> str:
    if here.kind != "cuda" or not dist.is_nccl_available():
        return ""
    return ".".join(map(str, torch.cuda.nccl.version()))


def _gpu_uuid(here: RankContext) -> str:
    """Since torch 2.5. AMD's are left out: ROCm gives all GPUs that have none the same."""
    if not here.gpus or torch.version.hip is not None:
        return ""
    return str(getattr(torch.cuda.get_device_properties(here.device), "uuid", ""))


def _board(here: RankContext) -> str:
    """Return the GPU's place on the bus (since torch 2.8), by which NCCL tells GPUs apart (src/init.cc): instances of one GPU (MIG) have UUIDs of
    their own, and one place. "MIG" where only the name tells that it is an instance."""
    if not here.gpus:
        return ""
    own = torch.cuda.get_device_properties(here.device).name
    return bus_address(here.device) or ("MIG" if " MIG " in own else "")


def _own_gpu_after_all(here: RankContext, everyone: List[Dict[str, Any]]) -> None:
    """Accept GPUs that only look shared: a scheduler may show each rank one GPU only (srun --gpus-per-task=1), which looks as if all had the same. All decide alike."""
    gpus = [other["gpu"] for other in everyone]
    boards = [other["where"] + other["board"] for other in everyone if other["board"]]
    if len({*boards}) < len(boards):  # instances of one GPU
        return
    if here.shared and not here.backend_wish and all(gpus) and len({*gpus}) == len(gpus) and dist.is_nccl_available():
        here.shared, here.backend = False, "nccl"


def _one_gpu_each(here: RankContext, everyone: List[Dict[str, Any]]) -> None:
    """NCCL's own word for it is less clear, and comes late."""
    owners: Dict[str, int] = {}
    refused = here.backend == "nccl" and os.environ.get(MULTI_RANK_VARIABLE) != "1"
    for rank, other in enumerate(everyone):
        for name, seen in (("gpu", "share a GPU"), ("board", "have instances of one GPU (MIG), which NCCL takes for the same")):
            if not refused or other[name] in ("", "MIG"):
                continue
            first = owners.setdefault("%s %s" % (other["where"], other[name]), rank)
            if first != rank:
                words = "ranks %d and %d on %s %s"
                raise StageFailed("several-ranks-on-one-gpu", words % (first, rank, other["host"], seen))


def _connect_all(here: RankContext, everyone: List[Dict[str, Any]]) -> None:
    """One rank that listens on its loopback may do, if gloo has it call the others; two on different hosts never find each other."""
    deaf = _listen_in_vain(here, everyone)
    if len({everyone[rank]["where"] for rank in deaf}) > 1:
        raise next(iter(deaf.values()))
    try:
        _form_group(here)
    except RuntimeError as error:
        for why in deaf.values():
            raise why from error
        if "onnect" not in str(error) or here.on_one_host:
            raise
        addresses = sorted({other["address"] for other in everyone} - {""})
        seen = "the ranks meet at %s but cannot connect to each other at the ports that %s draws (%s): %s"
        words = (_master(), here.backend, ", ".join(addresses), error)
        raise StageFailed("firewall-blocks-nccl", " ".join((seen % words).split())[:400]) from error


def _listen_in_vain(here: RankContext, everyone: List[Dict[str, Any]]) -> Dict[int, StageFailed]:
    """Ranks that no other host can reach: gloo listens where the host's own name points, unless an interface is named."""
    found: Dict[int, StageFailed] = {}
    if here.backend != "gloo" or here.on_one_host:
        return found
    for rank, other in enumerate(everyone):
        if other["address"] and not other["address"].startswith(("127.", "::1")):
            continue
        if other["interface"]:
            seen = "rank %d on %s was told to listen at %s, whose address is %s"
            seen = seen % (rank, other["host"], other["interface"], other["address"] or "none")
            found[rank] = StageFailed("gloo-wrong-interface", seen)
            continue
        seen = "rank %d: the name of its host, %s, stands for %s" % (rank, other["host"], other["address"] or "no address")
        cause = "hostname-resolves-to-loopback" if other["address"] else "hostname-unresolvable"
        found[rank] = StageFailed(cause, seen, "a line in /etc/hosts with the address of the network, or GLOO_SOCKET_IFNAME")
    return found


def _form_group(here: RankContext) -> None:
    more: Dict[str, Any] = {}
    if here.backend == "nccl" and "device_id" in inspect.signature(dist.init_process_group).parameters:  # torch 2.3
        more["device_id"] = here.device
    later = getattr(dist.distributed_c10d, "_set_pg_timeout", None)  # torch 2.1
    # NCCL's watchdog ends whoever waits when this time is up: it must not be shorter than the stage's deadline, by which the driver
    # finds the rank that hangs, or those that waited for it are taken for the fault.
    connecting_s = GLOO_CONNECTS_S if here.backend == "gloo" and later else EXCHANGE_S
    dist.init_process_group(
        here.backend,
        store=here.store,
        rank=here.rank,
        world_size=here.world,
        timeout=datetime.timedelta(seconds=connecting_s),
        **more,
    )
    tell_all(here, "connected")  # who has not accepted yet does not see who called
    here.pairs_are_ranks = pairs_are_ranks(here)
    refuse_strangers(here)
    dist.all_reduce(torch.ones(1, device=here.device))  # NCCL connects at the first exchange
    refuse_strangers(here)
    here.synchronize()
    if later:
        later(datetime.timedelta(seconds=EXCHANGE_S))


def part(here: RankContext) -> None:
    """Leave in order: what gloo still holds at the interpreter's end aborts it (torch 2.13)."""
    gc.collect()
    if dist.is_available() and dist.is_initialized() and not here.broken:
        with contextlib.suppress(RuntimeError):  # another rank is gone; all stages are through
            dist.barrier()
            dist.destroy_process_group()
