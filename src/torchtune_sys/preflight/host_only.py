"""Remove the facts of the calling process from a snapshot.

A hook of Slurm is a child of slurmd: its limits, CPUs, memory limit, working directory, environment and Python are slurmd's, and no job
will have them. They are taken out of the facts, so that no rule can judge them, whichever rules there are.
"""

from __future__ import annotations

import msgspec

from torchtune_sys.formats.mounts import LOCAL, carrier, parse_mountinfo
from torchtune_sys.model import snapshot
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.network import NetworkFacts
from torchtune_sys.model.facts.session import SessionFacts
from torchtune_sys.model.facts.storage import MOUNTED, StorageFacts, StoragePath
from torchtune_sys.model.snapshot import Snapshot, container_told
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules.profiles import Overrides

FAMILIES = tuple(family for family in snapshot.FAMILIES if family not in ("session", "python"))
"""Families that are read in a hook: all but the session and the training Python."""
JOB_PLACES = ("/tmp",)
"""Where jobs write although nobody names it; the hook's own working directory is slurmd's."""
FULL: Overrides = {"disk-full": {"minimum_gib": 0.25, "percent": 0}}
"""Thresholds for such places: nobody saves checkpoints there, and a small /tmp in memory is normal."""
MOST_MOUNTS = 16
"""Number of mounts that are tested for an answer."""
_HIDDEN = Missing(Why.NOT_RECORDED, "pre-flight", "in a hook the host is judged, not the process that asks")
_NOBODY = SessionFacts(
    user="", uid=_HIDDEN, sudo_user="", passwd_entry=True, env={}, virtual_env="", cwd=_HIDDEN
)  # to whom no process and no setting belongs
_FIELDS: dict[str, tuple[str, ...]] = {
    "cpu": ("affinity", "cpuset", "quota", "effective"),
    "numa": ("allowed_mems",),
    "memory": ("cgroup_limit_bytes",),
    "limits": ("pids_max", "pids_current", "ipc_lock"),
}
"""Facts of the process, by family."""
_MOUNTED = {
    "memory": (*_FIELDS["memory"], "shm_size_bytes", "shm_free_bytes", "shm_filesystem", "shm_inodes_free", "shm_writable"),
    "driver": ("libcuda",),
}
"""Facts about what a container mounts for itself, by family. NVIDIA's runtime mounts CUDA's library only for who asks for it (NVIDIA_DRIVER_CAPABILITIES)."""


def places(mountinfo: str) -> tuple[str, ...]:
    """Return the paths to look at: where jobs write, and what is mounted from elsewhere for all users.

    >>> rows = "36 35 0:44 / /data rw - nfs4 srv:/x rw\\n37 35 0:45 / /home/a/x rw - fuse.sshfs a@b: rw,user_id=1000\\n38 35 8:1 / / rw - ext4 d rw"
    >>> places(rows)
    ('/tmp', '/data')
    """
    found = [
        mount.point
        for mount in parse_mountinfo(mountinfo)
        if mount.filesystem.startswith("fuse") or carrier(mount.filesystem, mount.source) in ("nfs", "smb", "parallel", "remote")
        if carrier(mount.filesystem, mount.source) not in LOCAL and mount.option("user_id") in (None, "0")
    ]
    return (*JOB_PLACES, *dict.fromkeys(found))[: MOST_MOUNTS + 1]


def hangs(facts: Fact[StorageFacts]) -> bool:
    """Return whether a place gave no answer in time."""
    if isinstance(facts, Missing):
        return False
    return any(isinstance(place.size_bytes, Missing) and place.size_bytes.why is Why.TIMEOUT for place in facts.places)


def host_only(seen: Snapshot, *, pod: bool = False) -> Snapshot:
    """Return ``seen`` with every fact of the asking process Missing(NOT_RECORDED), and nobody's session; of a ``pod``, what it mounts is its own, too."""
    changed: dict[str, object] = {"session": _NOBODY, "python": _HIDDEN}
    own = pod and container_told(seen)
    for family, names in {**_FIELDS, **(_MOUNTED if own else {})}.items():
        facts = getattr(seen, family)
        if not isinstance(facts, Missing):
            changed[family] = msgspec.structs.replace(facts, **dict.fromkeys(names, _HIDDEN))
    limits = changed.get("limits", seen.limits)
    if not isinstance(limits, Missing) and limits is not _HIDDEN:
        changed["limits"] = msgspec.structs.replace(limits, limits=dict.fromkeys(seen.limits.limits, _HIDDEN))  # type: ignore[type-var,union-attr]
    if not isinstance(seen.network, Missing):
        changed["network"] = _network(seen.network)
    if not isinstance(seen.storage, Missing):
        changed["storage"] = _storage(seen.storage, JOB_PLACES if own else ())
    return msgspec.structs.replace(seen, **changed)


def on_gpus(seen: Snapshot) -> tuple[int, ...]:
    """Return the processes on the GPUs."""
    if isinstance(seen.gpu, Missing) or isinstance(seen.gpu.devices, Missing):
        return ()
    return tuple(one.pid for gpu in seen.gpu.devices if not isinstance(gpu.processes, Missing) for one in gpu.processes)


def without(seen: Snapshot, pids: frozenset[int]) -> Snapshot:
    """Return ``seen`` without what these processes hold of the GPUs: other jobs of a shared node are at work."""
    if not pids or isinstance(seen.gpu, Missing) or isinstance(seen.gpu.devices, Missing):
        return seen
    devices = tuple(_free_of(gpu, pids) for gpu in seen.gpu.devices)
    return msgspec.structs.replace(seen, gpu=msgspec.structs.replace(seen.gpu, devices=devices))


def _free_of(gpu: Gpu, pids: frozenset[int]) -> Gpu:
    if isinstance(gpu.processes, Missing):
        return gpu
    used = gpu.memory_used_bytes
    for one in gpu.processes:
        if one.pid in pids and not isinstance(used, Missing):
            used = _HIDDEN if isinstance(one.used_bytes, Missing) else max(used - one.used_bytes, 0)
    left = tuple(one for one in gpu.processes if one.pid not in pids)
    return msgspec.structs.replace(gpu, processes=left, memory_used_bytes=used)


def log_after(seen: Snapshot, since_s: float) -> Snapshot:
    """Return ``seen`` without what the kernel logged up to ``since_s`` seconds after boot; when it and its drivers were started stays."""
    log = seen.kernel
    if isinstance(log, Missing) or isinstance(log.events, Missing):
        return seen
    later = tuple(event for event in log.events if event.kind in _STARTS or event.last_s is None or event.last_s > since_s)
    return msgspec.structs.replace(seen, kernel=msgspec.structs.replace(log, events=later))


_STARTS = ("boot", "driver-load")


def _network(facts: NetworkFacts) -> NetworkFacts:
    """Return the facts as a job has them: what slurmd's environment says to NCCL and Gloo is not said to a job; what files of the host say is."""
    nccl = facts.nccl if isinstance(facts.nccl, Missing) else tuple(one for one in facts.nccl if one.source != "environment")
    return msgspec.structs.replace(facts, gloo_interfaces=(), nccl=nccl)


def _storage(facts: StorageFacts, without: tuple[str, ...]) -> StorageFacts:
    """Return the places that were asked for: each is data, since its role was not known then. slurmd's own are left out."""
    asked = [place for place in facts.places if place.role == "data" and place.path not in without]
    return msgspec.structs.replace(facts, places=tuple(place for one in asked for place in _in_roles(one)))


def _in_roles(place: StoragePath) -> tuple[StoragePath, ...]:
    roles = ("working directory", "temporary files") if place.path in JOB_PLACES else (MOUNTED,)
    return tuple(msgspec.structs.replace(place, role=role) for role in roles)
