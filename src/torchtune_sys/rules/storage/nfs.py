"""A rule on how NFS is mounted."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.storage import StoragePath
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, known, need
from torchtune_sys.model.version import version
from torchtune_sys.rules.storage.common import USED, places, read_only, subject, value_of


def _number(options: tuple[str, ...], name: str) -> int | None:
    text = value_of(options, name)
    return None if text is None else natural(text)


@rule(
    id="nfs-mount-untuned",
    title="NFS mount options limit the throughput, or let a pause of the server end the job",
    severity=Severity.ADVICE,
    cause="slow-data-storage",
    fix=(
        Advice(
            text="mount with rsize=1048576,wsize=1048576,nconnect=8,proto=tcp,hard and without noac, sync or actimeo=0; unmount first, every mount of that "
            "server (a remount changes neither sizes nor connections)"
        ),
    ),
    params=(Param("minimum_rsize", 131072, "size of a read request below which it counts as small, bytes"),),
    nothing="none of the judged paths is on NFS",
)
def nfs_mount_untuned(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Small requests, UDP, a single connection or no attribute cache: each keeps NFS slower than the network allows. Mounted soft, reads and writes
    fail where a server pauses: where files are written, and where this takes less than a minute.

    Why it matters
        One TCP connection is handled by one CPU at a time and rarely fills 25 Gb/s; nconnect (Linux 5.3) opens several. With noac
        or actimeo=0, every stat of every file goes to the server. A server that restarts, or fails over, is silent for some minutes: a hard mount
        waits for it, of a soft one the job gets an I/O error, and checkpoints may be damaged without one.

    When to leave it
        The server does not support several connections (EFS is not asked for them), or changes made by other hosts must be visible immediately.

    References
        nfs(5): rsize, nconnect, actimeo, noac; soft, timeo and retrans, "silent data corruption"
        https://learn.microsoft.com/azure/azure-netapp-files/performance-linux-mount-options
        https://docs.aws.amazon.com/efs/latest/ug/mounting-fs-nfs-mount-settings.html
    """
    for place in places(s, USED):
        if isinstance(place.carrier, Missing):
            yield unsure(subject(place), place.carrier)
        elif place.carrier == "nfs":
            several = place.role == "data" and _takes_several_connections(s, place)
            faults = _nfs_faults(need(place.options), several, int(p["minimum_rsize"]), not read_only(place))
            verdict = Verdict.FAIL if faults else Verdict.PASS
            seen = ", ".join(faults) or f"{place.filesystem} on {place.mount_point}"
            yield Evidence(subject=subject(place), seen=seen, verdict=verdict, source="/proc/self/mountinfo")


def _takes_several_connections(s: Snapshot, place: StoragePath) -> bool:
    """Amazon asks for no nconnect of EFS, a tunnel or a server on this host gains nothing by it, and Linux before 5.3 refuses the word."""
    server = place.mount_source if isinstance(place.mount_source, str) else ""
    kernel = "" if isinstance(s.system, Missing) else known(s.system.kernel, "")
    here = server.startswith(("127.", "localhost:", "[::1]"))
    return not here and not (".efs." in server and "amazonaws" in server) and not () < version(kernel) < (5, 3)


def _nfs_faults(options: tuple[str, ...], wants_several: bool, minimum_rsize: int, is_written: bool) -> list[str]:
    faults = []
    rsize = _number(options, "rsize")
    if rsize is not None and rsize < minimum_rsize:
        faults.append(f"rsize={rsize}")
    if value_of(options, "proto") in ("udp", "udp6"):
        faults.append("proto=udp")
    elif wants_several and value_of(options, "proto") in ("tcp", "tcp6") and (_number(options, "nconnect") or 1) == 1:
        faults.append("one connection (no nconnect)")
    if "noac" in options or _number(options, "actimeo") == 0 or _number(options, "acregmax") == 0:
        faults.append("no attribute cache (noac)")
    silent_s = _soft_until_s(options)
    if silent_s is not None and (is_written or silent_s < _PAUSE_S):
        faults.append(f"soft (an error after {silent_s:g} s without an answer)")
    return faults


_PAUSE_S = 60.0


def _soft_until_s(options: tuple[str, ...]) -> float | None:
    """Return after which time without an answer an operation fails, in seconds; None on a hard mount.

    Over TCP the time-out grows by itself with each of ``retrans`` retries (nfs(5); timeo in tenths of a second, at first 600, and retrans 2).
    """
    if not {"soft", "softerr"} & set(options):
        return None
    first, retries = _number(options, "timeo") or 600, _number(options, "retrans")
    count = 1 + (2 if retries is None else min(retries, 100))
    return first / 10 * count * (count + 1) / 2
