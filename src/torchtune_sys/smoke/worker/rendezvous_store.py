"""Where ranks find each other: what their launcher says, or, if this script started them, a file that nobody else can open."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import time
from typing import Any, Dict, Iterable, List

import torch
import torch.distributed as dist

from torchtune_sys.smoke.worker.agreement import tell_all, word_of
from torchtune_sys.smoke.worker.channel import RankLauncher, channel, launcher
from torchtune_sys.smoke.worker.context import Inconclusive, RankContext, StageFailed
from torchtune_sys.smoke.worker.interfaces import (
    STRANGER,
    gloo_address,
    has_ipv4,
    interface_names,
    loopback_interface,
    named_but_absent,
    strangers,
    strangers_told,
)

MEETING_S = 600.0 if channel.driven else 300.0
"""How long a rank waits for the others, which may be late: the stages before may take one rank minutes longer than another. With a driver
who hangs is found by the deadline of the stage that it is in."""
NEAR_S = 60.0
"""For what takes no other rank's work: a store that is there, a first exchange."""
_NAME_S = 3.0
_WHOSE = "find out whose it is; ranks on one host use its loopback interface, which every user can reach"
_PROOF_BYTES = 16
_MOST_OF_A_SETTING_FILE = 1 << 20
_MOST_PAIRS = 256
"""Ranks: each exchanges with each."""
_GLOO_INTERFACE, _NCCL_INTERFACE = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"


def meeting_place(here: RankContext) -> Any:
    """Return torch's store over which the ranks find each other. Whoever is not there within a minute did not start: this is asked before
    all stages."""
    started = launcher()
    if started is None:
        found = next(dist.rendezvous("env://", timeout=datetime.timedelta(seconds=NEAR_S)))[0]
        found.set_timeout(datetime.timedelta(seconds=MEETING_S))
        return found
    _keep_to_this_host()
    store = dist.FileStore("/proc/self/fd/%d" % started.store, here.world)
    store.set_timeout(datetime.timedelta(seconds=MEETING_S))
    return store


def meet_at_port(here: RankContext) -> None:
    """At --master-port torch's own store answers every rank; what is said there is not used, since any user of this host may speak there."""
    started = launcher()
    if started is None or "MASTER_PORT" not in os.environ:
        return
    place = _store_at_port(here, started)
    here.store.set("port/%d" % here.rank, "")
    for rank in range(here.world if here.rank == 0 else 0):
        word_of(here, "port/%d" % rank, rank, MEETING_S)
    del place


def _store_at_port(here: RankContext, started: RankLauncher) -> Any:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if "master_listen_fd" not in (dist.TCPStore.__init__.__doc__ or ""):  # torch 2.0: its store listens on every address
        return socket.create_connection((address, port), NEAR_S)
    more: Dict[str, Any] = {"master_listen_fd": started.listener} if here.rank == 0 else {}
    return dist.TCPStore(address, port, here.world, here.rank == 0, datetime.timedelta(seconds=NEAR_S), **more)


def _keep_to_this_host() -> None:
    """gloo and NCCL listen on the loopback alone. What a person chose for NCCL stays: it takes only who knows the number that rank 0 drew."""
    loopback = loopback_interface()
    os.environ[_GLOO_INTERFACE] = loopback
    if has_ipv4(loopback) and not _nccl_interface_is_chosen():  # NCCL skips ::1 (src/misc/socket.cc)
        os.environ[_NCCL_INTERFACE] = "=" + loopback


def _nccl_interface_is_chosen() -> bool:
    """In the environment, or in a file that NCCL reads (its guide, NCCL_CONF_FILE)."""
    if _NCCL_INTERFACE in os.environ:
        return True
    for path in (os.environ.get("NCCL_CONF_FILE", "~/.nccl.conf"), "/etc/nccl.conf"):
        with contextlib.suppress(OSError, ValueError):
            handle = os.open(os.path.expanduser(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO is not waited for
            with open(handle, errors="replace") as lines:
                if any(line.strip().startswith(_NCCL_INTERFACE) for line in lines.read(_MOST_OF_A_SETTING_FILE).split("\n")):
                    return True
    return False


def names_stand_for_something(here: RankContext) -> None:
    """torch tries a name that does not resolve again and again until its time is over."""
    address = os.environ.get("MASTER_ADDR", "")
    try:
        if address or launcher() is None:
            socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise StageFailed("master-addr-wrong", "MASTER_ADDR is %r: %s" % (address, error)) from error
    wish = os.environ.get(_GLOO_INTERFACE, "")
    if here.backend != "gloo" or not wish:
        return
    absent = named_but_absent(wish)
    if absent:
        there = ", ".join(interface_names())
        raise StageFailed("gloo-wrong-interface", "%s names %s; there are: %s" % (_GLOO_INTERFACE, ", ".join(absent), there))
    bare = [name for name in wish.split(",") if name and not gloo_address(name)]
    if bare:
        raise StageFailed("gloo-wrong-interface", "%s names %s, which has no address" % (_GLOO_INTERFACE, ", ".join(bare)))


def names_come_soon() -> None:
    """Check what each rank of torchrun and gloo asks for as it begins. A name server that does not answer costs 5 s for each name (resolv.conf(5), timeout)."""
    name, took = socket.gethostname(), 0.0
    for _look in range(2):  # once may be an accident
        began = time.monotonic()
        with contextlib.suppress(OSError, UnicodeError):  # a name that leads nowhere is told before ranks are started
            socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        took = time.monotonic() - began
        if took < _NAME_S:
            return
    seen = "to look up this host's own name, %s, takes %.1f s: so does each name that a rank, the launcher or a download asks for"
    remedy = "a line for it in /etc/hosts; see which name server does not answer (resolvectl status, /etc/resolv.conf), and take it out"
    raise StageFailed("name-lookup-slow", seen % (name, took), remedy)


def refuse_strangers(here: RankContext) -> None:
    """Ranks of one host have nobody but each other at the other end. Before anything is done with what comes from there. All ranks ask at the same places."""
    if not here.on_one_host or here.pairs_are_ranks:
        return
    found = [words for words in tell_all(here, strangers_here(here, ("self",), 2.0)) if words]
    if found:
        raise Inconclusive("; ".join(found), STRANGER, _WHOSE)


def pairs_are_ranks(here: RankContext) -> bool:
    """Return whether each connection that gloo made leads to a rank: both ends of each send what only a rank can read, in the file that nobody else can open.
    gloo takes whoever names the number that comes next; who connected beside the ranks, and stays, does no harm. All ranks return the same, False too
    where it was not asked: ranks that meet elsewhere, on several hosts, or over NCCL."""
    if not here.on_one_host or here.backend != "gloo" or launcher() is None or here.world > _MOST_PAIRS:
        return False
    said = [bytes.fromhex(words) for words in tell_all(here, os.urandom(_PROOF_BYTES).hex())]
    try:
        taken = _taken_from_all(here, torch.tensor([*said[here.rank]], dtype=torch.uint8))
    except RuntimeError:  # told by the exchange that comes next, where it is no stranger's doing
        taken = []
    return all(tell_all(here, "yes" if taken == said else ""))


def _taken_from_all(here: RankContext, own: torch.Tensor) -> List[bytes]:
    """Exchange a few bytes over each connection, by the group's own calls: those of torch.distributed are for the stages to judge."""
    group: Any = dist.distributed_c10d._get_default_group()
    taken = [own.clone() if rank == here.rank else torch.zeros_like(own) for rank in range(here.world)]
    others = [rank for rank in range(here.world) if rank != here.rank]
    works = [group.recv([taken[rank]], rank, 0) for rank in others] + [group.send([own], rank, 0) for rank in others]
    for work in works:
        work.wait()
    return [bytes(one.tolist()) for one in taken]


def strangers_here(here: RankContext, processes: Iterable[str], patience_s: float) -> str:
    """Return who else is connected with these ranks, for people; "" where there is nobody, or the kernel shows no table of connections (a sandbox)."""
    try:
        found = strangers(patience_s, processes)
    except OSError:
        return ""
    return "rank %d is %s" % (here.rank, strangers_told(found)) if found else ""


def undecided_by_strangers(here: RankContext, ended: Dict[str, Any]) -> None:
    """Make a failure of ranks that depend on each other *unknown* where a stranger is connected with them: it may be the stranger's doing, and no fault of this host."""
    found = strangers_here(here, here.processes, 0.0) if here.on_one_host else ""
    if found:
        seen = "%s; with it this failed: %s" % (found, ended["seen"])
        ended.update(verdict="unknown", cause=STRANGER, seen=seen, remedy=_WHOSE)
