"""Rules on what the kernel's clients of file servers (NFS, Lustre, Ceph) logged."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.kernel import KernelEvent
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import need
from torchtune_sys.rules.kernel.common import DAYS, grouped, none_logged, recent, seen_in_log, shorter, total, when

_DAY = Param("days", 1, "older messages in the log are ignored, days")


@rule(
    id="file-server-not-responding",
    title="A network file server did not answer",
    severity=Severity.WARNING,
    fix=(Advice(text="check the server and the network to it; processes waiting for it (state D) continue once it responds"),),
    params=(_DAY, Param("count", 10, "how often a server may be lost and come back in that time")),
    cause="hung-mount",
)
def file_server_not_responding(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """An NFS, Lustre or Ceph server stopped responding and the log shows no recovery, or it was lost ten times within a day.

    Why it matters
    Every process that touches the mount hangs in the kernel until the server answers; data loading and checkpoints stand still.

    When to leave it
    The server was restarted on purpose.

    References
    Linux net/sunrpc/clnt.c, net/ceph/mon_client.c, osdmap.c, fs/ceph/mds_client.c; Lustre ptlrpc/import.c
    """
    log = need(s.kernel)
    order = recent(s, p, "server-lost", "server-back")
    bad = False
    for server, events in grouped(order).items():
        lost = [event for event in events if event.kind == "server-lost"]
        away = bool(lost) and not _came_back(events)
        if away or total(lost) >= int(p["count"]):
            bad = True
            seen = f"not responding{when(log, lost)}{', and has not come back' if away else ''}"
            yield Evidence(subject=server, seen=seen, wanted="answers", source=log.source)
    if not bad:
        yield from none_logged(s, "file servers", "unresponsive server")


def _came_back(events: list[KernelEvent]) -> bool:
    """Whether the last message on a server is that it answers. Bursts overlap: their last times decide, where there are times."""
    last = max(events, key=lambda event: (event.last_s or 0.0, event.kind == "server-back"))
    return (last if last.last_s is not None else events[-1]).kind == "server-back"


@rule(
    id="file-system-client-evicted",
    title="A file server evicted this host",
    severity=Severity.WARNING,
    cause="hung-mount",
    fix=(
        Advice(
            text="check the network between this host and the server at that time; then unmount and remount wherever files "
            "still fail"
        ),
    ),
    params=(DAYS,),
)
def file_system_client_evicted(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A Lustre server evicted this client, or a Ceph metadata server refused its reconnection.

    Why it matters
    Locks are lost, writes that had not reached the server are thrown away, and programs get "Input/output error" or "Cannot send after transport
    endpoint shutdown": a checkpoint that was being written is damaged. A Ceph mount stays unusable until it is mounted again.

    When to leave it
    The server was taken down on purpose, and no job ran.

    References
    Lustre ptlrpc/import.c (message 167-0); Linux fs/ceph/mds_client.c; docs.ceph.com/en/latest/cephfs/eviction
    """
    found = grouped(recent(s, p, "fs-evicted"))
    for server, events in found.items():
        yield seen_in_log(s, server, shorter(events[-1].text), events, "a client in good standing")
    if not found:
        yield from none_logged(s, "file servers", "eviction")
