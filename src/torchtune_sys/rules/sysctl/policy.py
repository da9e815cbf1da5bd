"""The kernel settings that are judged, their targets on this host, and the wording of a value and its origin."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from torchtune_sys.model.actions import Safety, Sysctl
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.sysctl import Assignment, Setting
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.rule import Evidence, Params, Verdict, asked
from torchtune_sys.model.snapshot import Snapshot, container_told
from torchtune_sys.model.target import AtLeast, AtMost, Exactly, OneOf, Target, met
from torchtune_sys.model.values import Missing, NotApplicable, Unknown, Why, absent, absent_or_unsupported, known, need
from torchtune_sys.rules.gates import gpu_host, ranks_here, rdma_active, several_cpu_nodes

TCP_MAX_FAST = 16 << 20
"""tuned's network-throughput profile; wanted from 25 Gb/s on."""
TCP_MAX_DEFAULT = {"net.ipv4.tcp_rmem": 6291456, "net.ipv4.tcp_wmem": 4194304}
"""What the kernel chooses by itself on hosts with 1 GiB of memory or more (net/ipv4/tcp.c, tcp_init)."""

MAP_COUNT = 65530
"""DEFAULT_MAX_MAP_COUNT (include/linux/mm.h): less than the kernel's own is somebody's doing."""
TASKS = 32768
"""PID_MAX_DEFAULT (include/linux/threads.h)."""


class SysctlPolicy(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    target: Callable[[Snapshot, Params], Target]
    """Raises NotApplicable where the key does not matter."""
    default: str
    """What the kernel uses where nothing sets the key."""


def swap_on_disk(s: Snapshot) -> None:
    areas = need(need(s.memory).swaps)
    if not areas:
        raise NotApplicable("no swap: the setting has no effect")
    if all(area.kind == "zram" for area in areas):
        raise NotApplicable("swap is in compressed RAM only, where high values are right")


def tcp_between_hosts(s: Snapshot) -> None:
    if (s.intent.nodes or 1) < 2:
        raise NotApplicable("no multi-node job was specified (--nnodes)")
    if rdma_active(s):
        raise NotApplicable("RDMA carries the traffic between hosts")


def swappiness_target(s: Snapshot, p: Params) -> Target:
    swap_on_disk(s)
    return AtMost(int(p[asked("swappiness-high", "max")]))


def zone_reclaim_target(s: Snapshot, p: Params) -> Target:
    several_cpu_nodes(s)
    return Exactly("0")


def numa_balancing_target(s: Snapshot, p: Params) -> Target:
    nodes = () if isinstance(s.numa, Missing) else known(s.numa.nodes, ())
    if not any(node.gpu_memory and known(node.memory_bytes, 0) for node in nodes):
        several_cpu_nodes(s)
    gpu_host(s)
    return Exactly("0")


def overcommit_target(s: Snapshot, p: Params) -> Target:
    return OneOf(("0", "1"))


def map_count_target(s: Snapshot, p: Params) -> Target:
    return AtLeast(MAP_COUNT)


def tasks_target(s: Snapshot, p: Params) -> Target:
    return AtLeast(TASKS)


def shmmax_target(s: Snapshot, p: Params) -> Target:
    return AtLeast(8 << 30)


def tcp_rmem_target(s: Snapshot, p: Params) -> Target:
    return _tcp_target(s, "net.ipv4.tcp_rmem")


def tcp_wmem_target(s: Snapshot, p: Params) -> Target:
    return _tcp_target(s, "net.ipv4.tcp_wmem")


def _tcp_target(s: Snapshot, key: str) -> Target:
    tcp_between_hosts(s)
    speeds = [interface.speed_mbps for interface in need(need(s.network).interfaces)]
    if any(not isinstance(speed, Missing) and speed >= 25000 for speed in speeds):
        return AtLeast(TCP_MAX_FAST)
    for speed in speeds:  # virtual interfaces have none, and virtual machines' drivers tell none
        if isinstance(speed, Missing) and not absent_or_unsupported(speed):
            raise Unknown(speed)
    return AtLeast(TCP_MAX_DEFAULT[key])


def slow_start_target(s: Snapshot, p: Params) -> Target:
    tcp_between_hosts(s)
    return Exactly("0")


def somaxconn_target(s: Snapshot, p: Params) -> Target:
    hosts = s.intent.nodes or 1
    world = hosts * ranks_here(s)
    if hosts < 2 or world < 256:
        raise NotApplicable("no multi-node job with 256 ranks or more was specified (--nnodes, --nproc-per-node)")
    return AtLeast(min(2048, world))


_FEW_NODES = 128
"""gc_thresh1 (net/ipv4/arp.c): so few neighbours are never removed, and far fewer than the limit."""


def neighbours_target(s: Snapshot, p: Params) -> Target:
    """Return room for each other host of the job on each subnet that the job uses: the fullest one, and those of RoCE cards."""
    others = (s.intent.nodes or 1) - 1
    if others < _FEW_NODES:
        raise NotApplicable(f"no job over more than {_FEW_NODES} hosts was specified (--nnodes)")
    network = need(s.network)
    roce = {
        name
        for device in known(network.rdma, ())
        if any(known(port.link_layer, "") == "Ethernet" for port in device.ports)
        for name in known(device.interfaces, ())
    }
    rails, single = 0, 0
    for interface in need(network.interfaces):
        lengths = [min(max(known(a.prefix_length, 32), 0), 32) for a in known(interface.addresses, ()) if a.family == "inet"]
        if interface.kind == "loopback" or not known(interface.up, True) or not lengths:
            continue
        here = min(others, max((1 << (32 - length)) - 2 for length in lengths))
        rails += max(here, 0) if interface.name in roce else 0
        single = max(single, here) if interface.name not in roce else single
    return AtLeast(rails + single)


POLICIES: tuple[SysctlPolicy, ...] = (
    SysctlPolicy(key="vm.swappiness", target=swappiness_target, default="60"),
    SysctlPolicy(key="vm.zone_reclaim_mode", target=zone_reclaim_target, default="0"),
    SysctlPolicy(key="kernel.numa_balancing", target=numa_balancing_target, default="1"),
    SysctlPolicy(key="vm.overcommit_memory", target=overcommit_target, default="0"),
    SysctlPolicy(key="vm.max_map_count", target=map_count_target, default=str(MAP_COUNT)),
    SysctlPolicy(key="kernel.pid_max", target=tasks_target, default=str(TASKS)),
    SysctlPolicy(key="kernel.shmmax", target=shmmax_target, default="18446744073692774399"),
    SysctlPolicy(key="net.ipv4.tcp_rmem", target=tcp_rmem_target, default="4096 131072 6291456"),
    SysctlPolicy(key="net.ipv4.tcp_wmem", target=tcp_wmem_target, default="4096 16384 4194304"),
    SysctlPolicy(key="net.ipv4.tcp_slow_start_after_idle", target=slow_start_target, default="1"),
    SysctlPolicy(key="net.ipv4.neigh.default.gc_thresh3", target=neighbours_target, default="1024"),
    SysctlPolicy(key="net.core.somaxconn", target=somaxconn_target, default="4096"),
)


def setting(s: Snapshot, key: str) -> Setting:
    """Return the setting; NotApplicable where this kernel does not have it (or hides it from a network namespace)."""
    found = need(s.sysctl).settings.get(key)
    if found is None or absent(found.running):
        raise NotApplicable(f"this kernel does not show {key} here")
    return found


_DIGITS = 20
"""Of the largest number that the kernel knows, 2**64 - 1."""


def meets(target: Target, value: str) -> bool:
    """Return whether a value, as running or as written in a file, satisfies the target.

    Of several numbers (tcp_rmem) the last is the ceiling. The kernel ignores what follows the last number that it expects.

    >>> meets(AtLeast(5), "4096 131072 6291456"), meets(AtMost(10), "10 # a remark"), meets(Exactly("0"), "1")
    (True, True, False)
    """
    words = value.lstrip("<>").split()
    numbers = [word for word in words if natural(word, _DIGITS) is not None]
    if not numbers or words[0] not in numbers:
        return False
    leading = words[: next((place for place, word in enumerate(words) if word not in numbers), len(words))]
    return met(target, leading[-1])


def agree(written: str, running: str) -> bool:
    """Return whether the kernel, given what is written, would show what is running.

    >>> agree("4096\\t16384 4194304", "4096 16384 4194304"), agree("10 # remark", "10"), agree("1", "10")
    (True, True, False)
    """
    return written.lstrip("<>").split()[: len(running.split())] == running.split()


def proc(key: str) -> str:
    """Return the file of a sysctl: in dotted keys a slash stands for a dot in a name.

    >>> proc("net.ipv4.conf.eth0/7.rp_filter")
    '/proc/sys/net/ipv4/conf/eth0.7/rp_filter'
    """
    return "/proc/sys/" + key.translate({ord("."): "/", ord("/"): "."})


_OF_BUILD = Missing(
    Why.NOT_SUPPORTED,
    "the kernel's configuration",
    "no file and no boot argument sets it, and who built the kernel chose what it does then",
    "grep NUMA_BALANCING_DEFAULT /boot/config-$(uname -r)",
)
"""Source: Linux mm/mempolicy.c, check_numabalancing_enable (CONFIG_NUMA_BALANCING_DEFAULT_ENABLED; numa_balancing=)."""


def at_boot(s: Snapshot, found: Setting) -> Fact[Assignment]:
    """Return what the next boot sets, where that can be told: not from inside a container, nor where systemd is not what boots."""
    if container_told(s):
        return Missing(Why.NOT_SUPPORTED, "sysctl.d", "the host's files are not visible in a container")
    if not isinstance(s.system, Missing) and known(s.system.init, "systemd") != "systemd":
        return Missing(Why.NOT_SUPPORTED, "sysctl.d", f"process 1 is {s.system.init}")
    return found.boot


def kernel_default(s: Snapshot, key: str) -> int | None:
    """Return what this kernel chooses by itself on a host of this size (of several numbers the last); None where no table has the key."""
    from torchtune_sys.knowledge import kernel_defaults

    release = "" if isinstance(s.system, Missing) else known(s.system.kernel, "")
    cpus = None if isinstance(s.cpu, Missing) else known(s.cpu.online, None)
    memory_bytes = 0 if isinstance(s.memory, Missing) else known(s.memory.total_bytes, 0)
    return kernel_defaults.default(key, release, 0 if cpus is None else len(cpus), memory_bytes)


def default_at_boot(s: Snapshot, policy: SysctlPolicy) -> Fact[str]:
    """Return the kernel's own value, as its release and its boot arguments change it; Missing where it is a choice of who built the kernel."""
    arguments = () if isinstance(s.system, Missing) or isinstance(s.system.cmdline, Missing) else s.system.cmdline
    if policy.key == "kernel.numa_balancing":
        asked_for = next((word.partition("=")[2] for word in reversed(arguments) if word.startswith("numa_balancing=")), "")
        return {"disable": "0", "enable": "1"}.get(asked_for, _OF_BUILD)
    last = kernel_default(s, policy.key)
    return policy.default if last is None else " ".join((*policy.default.split()[:-1], str(last)))


def shown(s: Snapshot, found: Setting, running: str) -> str:
    """Return the running value, and what will be there after the next boot if that is another one."""
    boot = at_boot(s, found)
    if not isinstance(boot, Missing) and not agree(boot.value, running):
        return f"{running} now, {boot.value} after a reboot"
    return running


def origin(s: Snapshot, found: Setting) -> str:
    """Return where the value was seen, and which file and line set it."""
    boot = at_boot(s, found)
    if isinstance(boot, Missing):
        return proc(found.key) + (" (no file sets it)" if boot.why is Why.ABSENT else "")
    return f"{proc(found.key)}; {boot.source} sets {boot.value}"


def wanted(s: Snapshot, key: str, target: Target) -> str:
    """Return the target; for what a container shares with its host, that the host is the place to change it."""
    boxed = container_told(s)
    return f"{target} (set on the host: the container shares it)" if boxed and not key.startswith("net.") else str(target)


def judged(s: Snapshot, key: str, target: Target, safety: Safety = Safety.SAFE) -> Evidence:
    """Return evidence on one key's running value."""
    found = setting(s, key)
    running = need(found.running)
    good = meets(target, running)
    return Evidence(
        subject=key,
        seen=shown(s, found, running),
        wanted=wanted(s, key, target),
        verdict=Verdict.PASS if good else Verdict.FAIL,
        source=origin(s, found),
        fix=() if good else (Sysctl(key=key, target=target, safety=safety),),
    )


def policies_here(s: Snapshot, p: Params) -> tuple[list[tuple[SysctlPolicy, Setting, str, Target]], list[tuple[str, Missing]]]:
    """Return the settings that matter on this host, with their running values; and the ones of which that could not be told."""
    need(s.sysctl)
    found: list[tuple[SysctlPolicy, Setting, str, Target]] = []
    unknown: list[tuple[str, Missing]] = []
    for policy in POLICIES:
        try:
            target = policy.target(s, p)
            present = setting(s, policy.key)
            found.append((policy, present, need(present.running), target))
        except NotApplicable:
            continue
        except Unknown as reason:
            unknown.append((policy.key, reason.missing))
    return found, unknown
