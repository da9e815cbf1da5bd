"""Facts of a snapshot that a comparison between hosts leaves out, each with its reason. A fact that is not named here is compared."""

from __future__ import annotations

import re
from functools import lru_cache

from torchtune_sys.model.launchers import LAUNCHERS

_COUNTER = "a counter: it grows while the host runs, and check judges it"
_FREE = "how much is in use at the moment"
_IDENTITY = "names this one host or device"
_IDLE = "falls while the device is idle"
_MEASURED = "measured anew by each look (--live)"
_DERIVED = "follows from other facts that are compared"
_HAPPENED = "what happened, not how the host is set up; check judges it"
_NUMBERED = "a number that the kernel gives in the order in which it finds things"

LEFT_OUT: dict[str, str] = {
    "system.hostname": _IDENTITY,
    "system.uptime_s": "time since the host started",
    "system.today": "the time of the look",
    "session.sudo_user": "who looks, not how the host is set up",
    "session.handed_down": "what the session of who looks hands down; check judges it",
    "session.system_preloads": "what the loader's own file names; check judges it",
    "session.no_libraries": "of what is preloaded where one looks; check judges it",
    "session.named_paths": "as the session of who looks names them; check judges it",
    "session.virtual_env": "as VIRTUAL_ENV of its environment says, which is compared",
    "python.torch.source": "how torch's facts were read",
    "python.judged_as": "as whom one looked",
    "python.judged_without": "what one looked without",
    "cpu.weight": "the share of the session of who looks; check judges it",
    "cpu.weight_source": "the file that sets that share",
    "python.not_found": "what an import would fail at; check judges it",
    "python.start_errors": "what Python prints at its start; check judges it",
    "python.hiding": "what the session's PYTHONPATH hides; check judges it",
    "python.has_pip": "only words a fix",
    "python.externally_managed": "follows from the distribution, and only words a fix",
    "network.master": "as MASTER_ADDR of the session of who looks stands for it; check judges it",
    "python.hiding_here": "what lies where one looks from; check judges it",
    "python.lost_parts": "what an import would fail at; check judges it",
    "python.lost_backends": "what an import would fail at; check judges it",
    "python.cut_libraries": "what an import would fail at; check judges it",
    "python.ptxas": "only words a fix",
    "python.entries_gone": "follows from the paths that are searched",
    "python.bitsandbytes_builds": "follows from a version that is compared",
    "driver.nvidia_devices": "those of the devices of the bus, which are compared",
    "driver.wsl_without_cuda": "what Windows hands on to a guest; check judges it",
    "driver.libraries_apart": "follows from versions that are compared",
    "driver.nouveau_barred": "of a host whose nouveau is loaded, which is compared",
    "driver.module_barred_by": "why the module is not loaded, where it is not; whether it is is compared",
    "session.refusals": "what the kernel refuses the session of who looks; check judges it",
    "network.verbs_library": "what the session's loader finds; check judges it",
    "driver.level_zero": "what the session's loader finds; check judges it",
    "network.verbs_closed": "what the session of who looks may open; check judges it",
    "network.rdma.ports.partitions": "what the fabric gives each port; check judges it",
    "storage.places.closed_files": "of the files of one place, for who looks; check judges it",
    "storage.places.pointer_files": "of the files of one place; check judges it",
    "session.devices": "devices that are the same on all hosts; check judges them",
    "session.cwd": "where one looks from, not how the host is set up",
    "numa.nodes.free_bytes": _FREE,
    "memory.available_bytes": _FREE,
    "memory.zfs_cache_bytes": _FREE,
    "memory.swap_free_bytes": _FREE,
    "memory.swaps.used_bytes": _FREE,
    "memory.hugepages_free_bytes": _FREE,
    "memory.committed_bytes": _FREE,
    "memory.shm_free_bytes": _FREE,
    "memory.shm_inodes_free": _FREE,
    "memory.oom_kills": _COUNTER,
    "memory.cgroup_oom_kills": _COUNTER,
    "memory.cgroup_oom_kills_source": _DERIVED,
    "memory.cgroup_used_bytes": _FREE,
    "memory.poisoned_bytes": _COUNTER,
    "memory.stalled": "follows the load; check judges it",
    "network.interfaces.counters": _COUNTER,
    "storage.states": "of disks by number; check judges them",
    "storage.io_limits": "of this session's cgroup; check judges them",
    "cpu.caps": "of each package; check judges them",
    "limits.pids_refused": _COUNTER,
    "memory.cgroup_limit_source": _DERIVED,
    "limits.kills_at_logout": "a file and line; check judges it",
    "limits.remove_ipc_source": "where a value stands that is compared itself",
    **{f"cpu.{name}": _COUNTER for name in ("stolen_s", "busy_s", "quota_periods", "quota_throttled")},
    "sysctl.settings.key": _DERIVED,
    "sysctl.settings.systemd": _DERIVED,
    "sysctl.settings.procps": _DERIVED,
    "sysctl.settings.cmdline": _DERIVED,
    "sysctl.settings.boot": _DERIVED,
    "sysctl.settings.assignments.is_pattern": _DERIVED,
    "sysctl.settings.tuned.is_pattern": _DERIVED,
    "limits.pids_current": _FREE,
    "limits.user_tasks": _FREE,
    "limits.aio_requests": _FREE,
    "limits.services.pid": "a process number",
    "storage.places.free_bytes": _FREE,
    "storage.places.inodes_free": _FREE,
    "storage.places.errors_recorded": _COUNTER,
    "storage.places.device": _NUMBERED,
    **{
        f"storage.places.disks.{name}": _DERIVED
        for name in ("rotational", "scheduler", "read_ahead_kib", "size_bytes", "transport", "instance_store")
    },
    "storage.places.disks.name": _NUMBERED,
    "storage.disks.name": _NUMBERED,
    "network.interfaces.index": _NUMBERED,
    "network.interfaces.duplex": "of slow links alone; check judges it",
    "driver.device_nodes.device": _NUMBERED,
    "driver.device_nodes.driver_device": _NUMBERED,
    "driver.compute_node.device": _NUMBERED,
    "driver.compute_node.driver_device": _NUMBERED,
    "driver.amd_clocks": "they follow the load; check judges them",
    "driver.amd_render_nodes": "what the session of who looks was given; check judges it",
    "driver.amd_partitions": "the same on all GPUs of a host, or check says so",
    "driver.other_nodes": "what the session of who looks may open; check judges it",
    "network.tracked_connections": _COUNTER,
    "cpu.clock_khz": "changes with the load",
    "cpu.lowest_clock_khz": "of the processor's model, which is compared",
    "network.interfaces.qdisc": "the kernel's choice by driver and queues; check judges what shapes or disturbs",
    "network.interfaces.addresses.address": _IDENTITY,
    "network.interfaces.addresses.position": _NUMBERED,
    "network.rdma.ports.lid": _IDENTITY,
    "network.rdma.ports.counters": _COUNTER,
    "network.rdma.ports.gids.gid": _IDENTITY,
    "network.rdma_growth": _MEASURED,
    "pci.devices.link.current_gts": _IDLE,
    "pci.devices.asleep": _IDLE,
    "pci.devices.errors": _COUNTER,
    "pci.devices.iommu_group": _NUMBERED,
    "pci.devices.rdma": _DERIVED,
    "pci.distances": _DERIVED,
    "pci.growth": _MEASURED,
    "gpu.devices.uuid": _IDENTITY,
    "gpu.devices.memory_used_bytes": _FREE,
    "gpu.devices.temperature_c": "a temperature",
    "gpu.devices.temperature_margin_c": "a temperature",
    "gpu.devices.utilization_pct": _FREE,
    "gpu.devices.clock_event_reasons": "changes with the load",
    "gpu.devices.clock_sm_mhz": "changes with the load",
    "gpu.devices.clock_sm_max_mhz": "of the model, which is compared",
    "gpu.devices.pcie_gen": _IDLE,
    "gpu.devices.pcie_replays": _COUNTER,
    "gpu.devices.ecc_uncorrected_volatile": _COUNTER,
    "gpu.devices.ecc_uncorrected_aggregate": _COUNTER,
    "gpu.devices.ecc_corrected_volatile": _COUNTER,
    "gpu.devices.rows_remapped_correctable": _COUNTER,
    "gpu.devices.rows_remapped_uncorrectable": _COUNTER,
    "gpu.devices.row_banks": _COUNTER,
    "gpu.devices.pages_retired_single_bit": _COUNTER,
    "gpu.devices.pages_retired_double_bit": _COUNTER,
    "gpu.devices.nvlink_errors": _COUNTER,
    "gpu.devices.processes": "processes at the moment",
    "python.others": "versions that matter only where they are too old for torch; check judges them",
    "python.distributions.requires": _DERIVED,
    "python.distributions.requires_python": _DERIVED,
    "python.distributions.tags": _DERIVED,
    "python.loader.asked_by": _DERIVED,
    "python.live.links": _MEASURED,
    "kernel.events": _HAPPENED,
    "kernel.source": "where the log was read",
    "kernel.from_s": "the time of a log's line",
    "kernel.now_s": "the time of the look",
    "kernel.booted": "the time of the start",
    "kernel.whole": "how much the kernel has logged since",
    "hardware.memory_devices.bank": _DERIVED,
    "hardware.memory_controllers.corrected": _COUNTER,
    "hardware.memory_controllers.uncorrected": _COUNTER,
    "hardware.zones.celsius": "a temperature",
    "hardware.throttled": _COUNTER,
    "hardware.on_battery": "changes when a plug is pulled",
    "hardware.services": _MEASURED,
    "software.port_listeners": "processes at the moment",
    "software.first_open_port": "read where a job's port is set; check judges it",
}
"""Fact → why it is not compared. A name stands for all below it; lists have no part in it."""

ASKED_FOR = {
    "sysctl.settings": "which keys are asked for is the tool's, and grows with its version",
    "session.named_paths": "of variables that are set, and which are asked for is the tool's",
    "session.devices": "which files are asked for is the tool's, and grows with its version",
    "limits.limits": "which limits are asked for is the tool's, and grows with its version",
}
"""Lists of what the tool asks for, not of what a host has: what one lacks was not asked there. Its entries are compared."""
_OF_ONE_TASK = frozenset(
    name for launcher in LAUNCHERS for name in (launcher.job, launcher.rank, launcher.local_rank, launcher.node) if name
)
_OF_THE_JOB = frozenset(
    (
        "HOSTNAME", "INVOCATION_ID", "XDG_SESSION_ID", "ROLE_RANK", "JOB_COMPLETION_INDEX", "MASTER_PORT", "MASTER_ADDR", "WSL_INTEROP",
        "DISPLAY", "TERM", "PWD", "SHLVL",
    )
)  # fmt: skip
_ENDINGS = re.compile(
    r"(?:SLURM|PBS|LSB|OMPI|PMIX?|PALS|MPI|FLUX|TORCHELASTIC)\w*(?:ID|IDS|RANK|PORT|PORTS|HOST|HOSTS|ADDR|IPADDR|TIME|NAME|NODELIST|"
    r"HOSTFILE|NODEFILE|ALIASES|URI|URI2|FD|NAMESPACE|TMPDIR|DIR|NSPACE|RESERVATION|RUN_ID|FILE|BIND_LIST|BIND)"
)


def variable_left_out(name: str) -> str:
    """Return why the value of an environment variable is not compared; ``""`` where it is.

    >>> variable_left_out("SLURM_PROCID"), variable_left_out("NCCL_IB_HCA")
    ('the job, or the session, gives each process its own', '')
    """
    own = name in _OF_ONE_TASK or name in _OF_THE_JOB or _ENDINGS.fullmatch(name) is not None
    return "the job, or the session, gives each process its own" if own else ""


def mount_option_left_out(option: str) -> bool:
    """Tell whether an option is left out: the layers of an overlay lie in folders that each container, or each start of a live system, names again.

    >>> [word for word in ("rw", "lowerdir=/var/lib/docker/overlay2/l/AB", "noatime") if not mount_option_left_out(word)]
    ['rw', 'noatime']
    """
    return option.startswith(("lowerdir=", "lowerdir+=", "datadir+=", "upperdir=", "workdir="))


INTERFACES_LEFT_OUT = re.compile(r"veth\w*|cali\w+|br-[0-9a-f]{12}|lxc\w+|cilium_\w+|tap\w+|vnet\d+|virbr\d+-nic|if[0-9a-f]+@\w+")
"""Network interfaces that come and go with containers and guests, under names that are made up."""


@lru_cache(None)
def left_out(path: str) -> str:
    """Return why the fact is not compared; ``""`` where it is.

    >>> left_out("gpu.devices.uuid"), left_out("gpu.devices.vbios")
    ('names this one host or device', '')
    """
    found = LEFT_OUT.get(path)
    while found is None and "." in path:
        path = path.rpartition(".")[0]
        found = LEFT_OUT.get(path)
    return found or ""
