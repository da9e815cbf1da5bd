"""Rules on kernel limits that were reached, and on overheated devices, according to the kernel's log."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge.torch import on_chip
from torchtune_sys.model.actions import Advice, Needs
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, rule
from torchtune_sys.model.snapshot import Snapshot, is_pasted
from torchtune_sys.model.values import Missing, NotApplicable, known, need
from torchtune_sys.rules.gates import nvidia_gpus
from torchtune_sys.rules.kernel.common import (
    DAYS,
    gpu_name,
    grouped,
    logged,
    none_logged,
    nvidia_log,
    recent,
    seen_in_log,
    shorter,
    total,
)
from torchtune_sys.rules.torch.common import capability


@rule(
    id="open-files-limit-reached-logged",
    title="The system-wide limit on open files was reached",
    severity=Severity.WARNING,
    cause="nofile-limit-too-low",
    fix=(
        Advice(
            text="find what lowers fs.file-max (grep -r file-max /etc/sysctl.conf /etc/sysctl.d) and raise it; see who has "
            "files open (lsof)"
        ),
    ),
    params=(DAYS,),
)
def open_files_limit_reached_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log says that fs.file-max, the machine-wide limit on open files, was reached.

    Why it matters
    While it lasts, every open(), socket() and shared-memory call of every user except root fails with "Too many open files in
    system" (ENFILE): DataLoader workers, NCCL's sockets, checkpoints.

    When to leave it
    A program that leaked file descriptors was found and fixed.

    References
    Linux fs/file_table.c (alloc_empty_file); Documentation/admin-guide/sysctl/fs.rst (file-max)
    """
    yield from logged(s, p, ("file-table-full",), "fs.file-max", "message that fs.file-max was reached", "files left to open")


@rule(
    id="pids-limit-reached-logged",
    title="A cgroup reached its limit on processes and threads",
    severity=Severity.WARNING,
    cause="cgroup-pids-limit",
    fix=(
        Advice(text="in a container: docker run --pids-limit, or the kubelet's podPidsLimit; for a systemd unit: TasksMax="),
        Advice(text="use fewer threads: lower OMP_NUM_THREADS, fewer DataLoader workers"),
    ),
    params=(DAYS,),
)
def pids_limit_reached_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log says that the pids controller of a cgroup refused a fork or a new thread.

    Why it matters
    The program gets "Resource temporarily unavailable": "can't start new thread", "libgomp: Thread creation failed", or a
    DataLoader worker that cannot be started. The kernel logs this once per cgroup, however often it refuses.

    When to leave it
    The cgroup has nothing to do with training (the message names it).

    References
    Linux kernel/cgroup/pids.c; Documentation/admin-guide/cgroup-v2.rst (pids.max)
    """
    yield from logged(s, p, ("fork-rejected",), "control groups", "refused process or thread", "room below pids.max")


@rule(
    id="conntrack-table-full-logged",
    title="The connection tracking table (conntrack) is or was full, and packets are dropped",
    severity=Severity.WARNING,
    fix=(
        Advice(text="raise net.netfilter.nf_conntrack_max (and nf_conntrack_buckets to a quarter of it)"),
        Advice(text="exempt the training network from connection tracking: an nftables notrack rule for its interfaces"),
    ),
    params=(DAYS, Param("full_pct", 95, "share of the entries in use from which on the table counts as full, %")),
)
def conntrack_table_full_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log says "nf_conntrack: table full, dropping packet", or nearly all entries of the table are in use now.

    Why it matters
    New connections are dropped silently: rendezvous, NCCL bootstrap and data reads time out, unpredictably and on this host only.

    When to leave it
    It was caused by an attack or an external test.

    References
    Linux net/netfilter/nf_conntrack_core.c; Documentation/networking/nf_conntrack-sysctl.rst
    """
    tracked = (0, 0) if isinstance(s.network, Missing) else known(s.network.tracked_connections, (0, 0))
    if tracked[1] > 0 and tracked[0] * 100 >= tracked[1] * int(p["full_pct"]):
        yield Evidence(
            subject="nf_conntrack",
            seen=f"{tracked[0]:,} of {tracked[1]:,} entries in use",
            wanted="room for new connections",
            source="/proc/sys/net/netfilter/nf_conntrack_count",
        )
        return
    yield from logged(s, p, ("conntrack-full",), "nf_conntrack", "full connection tracking table", "room for new connections")


@rule(
    id="tcp-memory-full-logged",
    title="The kernel's memory for TCP was used up, and connections were reset",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="see what holds it (ss -tm; the line TCP of /proc/net/sockstat, in pages): connections of programs that do not read what comes in"
        ),
        Advice(text="remove a small net.ipv4.tcp_mem from sysctl.d: the kernel's own maximum is a tenth of memory or near to it"),
    ),
    params=(DAYS, Param("count", 3, "how often it may be used up in that time")),
)
def tcp_memory_full_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log says at least three times that what all TCP connections buffer together reached net.ipv4.tcp_mem.

    Why it matters
    The kernel then resets a connection that wants more: Gloo and the rendezvous end with "Connection reset by peer", downloads and file systems over TCP stall, on
    this host only.

    When to leave it
    The program that left its connections unread was found and ended.

    References
    Linux net/ipv4/tcp.c (tcp_check_oom, tcp_out_of_memory); Documentation/networking/ip-sysctl.rst (tcp_mem)
    """
    found = recent(s, p, "tcp-memory-full")
    if total(found) >= int(p["count"]):
        yield seen_in_log(s, "TCP", shorter(found[-1].text), found, "memory for what connections buffer")
    else:
        yield from none_logged(s, "TCP", "used-up memory for TCP")


@rule(
    id="neighbour-table-full-logged",
    title="The neighbour (ARP) table overflowed",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="raise net.ipv4.neigh.default.gc_thresh1, 2 and 3 to more than the number of hosts on the network (likewise for net.ipv6)"
        ),
    ),
    params=(DAYS,),
)
def neighbour_table_full_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log says that the kernel's neighbour table was full.

    Why it matters
    Packets to hosts that are not in the table are dropped: on large flat networks ranks lose each other at random, especially
    when a job starts and all ranks connect to each other. The limit (gc_thresh3) is 1,024 by default.

    When to leave it
    Somebody scanned the network from this host.

    References
    Linux net/core/neighbour.c (neigh_alloc); Documentation/networking/ip-sysctl.rst (neigh/default/gc_thresh3)
    """
    yield from logged(s, p, ("neighbours-full",), "neighbours", "neighbour table overflow", "room for all hosts")


@rule(
    id="critical-temperature-logged",
    title="A critical temperature was reached",
    severity=Severity.ERROR,
    fix=(Advice(text="check fans, air flow, dust and the room's temperature before the next job"),),
    params=(DAYS,),
)
def critical_temperature_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log says that a thermal zone, a GPU or a network adapter reached its shutdown temperature.

    Why it matters
    The kernel shuts the machine down, or the device stops, in the middle of a job.

    When to leave it
    The sensor is broken (a zone that always reports the same value).

    References
    Linux drivers/thermal/thermal_core.c; drivers/gpu/drm/amd/pm/swsmu/amdgpu_smu.c (software CTF); drivers/net/ethernet/intel/ixgbe
    """
    found = grouped(recent(s, p, "too-hot"))
    for subject, events in found.items():
        yield seen_in_log(
            s,
            gpu_name(s, subject) if events[0].text.startswith("amdgpu") else subject or "the machine",
            shorter(events[-1].text),
            events,
            "below the critical temperature",
        )
    if not found:
        yield from none_logged(s, "temperature", "critical temperature")


_NO_WSL = "this is no guest of WSL"


def _in_wsl(s: Snapshot) -> None:
    if not isinstance(s.driver, Missing) and known(s.driver.wsl, True) is False:
        raise NotApplicable(_NO_WSL)


@rule(
    id="wsl-gpu-memory-refused-logged",
    title="Windows refused memory that a CUDA program of this WSL guest asked for",
    severity=Severity.WARNING,
    applies=_in_wsl,
    fix=(
        Advice(
            text="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False, and none that sets it to True: on some hosts Windows refuses these calls whatever is free"
        ),
        Advice(
            text="leave more of the GPU's memory free (a smaller batch, the programs of Windows' desktop), and pin less of the host's"
        ),
        Advice(text="update the driver in Windows and WSL (wsl --update)"),
    ),
    params=(DAYS,),
)
def wsl_gpu_memory_refused_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log of a WSL guest tells of dxgkio_make_resident with error -12: memory of a GPU, or pinned memory for it, was not made resident.

    Why it matters
    The program ends with "CUDA error: out of memory", "device not ready" or "unknown error", while nvidia-smi shows free memory.

    When to leave it
    The program that asked for it has been stopped or made smaller since.

    References
    https://github.com/microsoft/WSL/issues/41176, 8447; WSL2-Linux-Kernel drivers/hv/dxgkrnl/ioctl.c (dxgkio_make_resident)
    """
    if not recent(s, p, "dxg-refused"):
        if is_pasted(s) and isinstance(s.driver, Missing):
            raise NotApplicable(_NO_WSL)
        need(need(s.driver).wsl)
    yield from logged(s, p, ("dxg-refused",), "GPU memory from Windows", "message that Windows refused GPU memory", "given")


def _shares_memory(s: Snapshot) -> None:
    nvidia_log(s)
    found = [need(capability(gpu)) for gpu in nvidia_gpus(s)]
    if not any(cc == _GB10 or on_chip(cc) for cc in found):
        raise NotApplicable("the GPUs have memory of their own")


_GB10 = (12, 1)


@rule(
    id="shared-memory-refused-logged",
    title="The GPU driver got no memory on a machine whose CPU and GPU share it",
    severity=Severity.WARNING,
    applies=_shares_memory,
    fix=(
        Advice(
            text="leave more memory free: a smaller batch, fewer workers, a smaller share for a server that takes one of all memory"
        ),
        Advice(
            text="end other programs, and empty the page cache before the start: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches"
        ),
        Advice(text="if it began with a kernel update, boot the kernel before it", needs=Needs.REBOOT),
    ),
    params=(DAYS, Param("count", 3, "how often the driver may be refused memory in that time")),
)
def shared_memory_refused_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The log of a GB10 (DGX Spark) or Jetson says [NV_ERR_NO_MEMORY] at least three times: the driver asked Linux for memory and got none.

    Why it matters
    What the GPU takes, the page cache and all programs hold the same memory, and Linux cannot take back what the driver holds. The training ends with an
    error, or the whole machine stops answering, without a message of the kernel that memory ran out.

    When to leave it
    The program that asked for it has been stopped or made smaller since. On a GPU with memory of its own the same words follow each
    "CUDA out of memory", and are not judged.

    References
    https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1358; https://github.com/NVIDIA/dgx-spark-playbooks/issues/97
    NVIDIA/open-gpu-kernel-modules src/nvidia/src/kernel/gpu/mem_mgr/mem_desc.c (_memdescAllocInternal)
    """
    found = recent(s, p, "driver-no-memory")
    if total(found) >= int(p["count"]):
        yield seen_in_log(s, "GPU driver", shorter(found[-1].text), found, "memory from Linux")
    else:
        yield from none_logged(s, "GPU driver", "refused memory")
