"""The kernel settings that are read, and sysctl(8)'s spelling of their keys."""

from __future__ import annotations

from collections.abc import Iterable

KEYS = (
    "fs/file-max",
    "fs/inotify/max_user_instances",
    "fs/inotify/max_user_watches",
    "fs/nr_open",
    "kernel/numa_balancing",
    "kernel/pid_max",
    "kernel/shmall",
    "kernel/shmmax",
    "kernel/threads-max",
    "net/core/default_qdisc",
    "net/core/rmem_max",
    "net/core/somaxconn",
    "net/core/wmem_max",
    "net/ipv4/conf/all/arp_announce",
    "net/ipv4/conf/all/arp_ignore",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_local_reserved_ports",
    "net/ipv4/neigh/default/gc_thresh3",
    "net/ipv4/tcp_available_congestion_control",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_notsent_lowat",
    "net/ipv4/tcp_retries2",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_sack",
    "net/ipv4/tcp_slow_start_after_idle",
    "net/ipv4/tcp_window_scaling",
    "net/ipv4/tcp_wmem",
    "vm/dirty_background_bytes",
    "vm/dirty_background_ratio",
    "vm/dirty_bytes",
    "vm/dirty_ratio",
    "vm/dirty_writeback_centisecs",
    "vm/max_map_count",
    "vm/min_free_kbytes",
    "vm/overcommit_kbytes",
    "vm/overcommit_memory",
    "vm/overcommit_ratio",
    "vm/panic_on_oom",
    "vm/swappiness",
    "vm/vfs_cache_pressure",
    "vm/watermark_scale_factor",
    "vm/zone_reclaim_mode",
)
PER_INTERFACE = ("arp_announce", "arp_ignore", "rp_filter")
_CONF = "net/ipv4/conf"
_NOT_RAILS = (
    "veth",
    "cali",
    "lxc",
    "docker",
    "virbr",
    "cni",
    "flannel",
    "cilium",
    "tap",
    "tun",
    "wg",
    "kube",
    "nodelocal",
)
_MOST_INTERFACES = 64


def interface_keys(names: Iterable[str]) -> tuple[str, ...]:
    """Return the per-interface keys of what may be a rail; none where fewer than two could share a subnet.

    >>> len(interface_keys(("all", "default", "lo", "eth0", "eth1", "vethabc"))), interface_keys(("all", "eth0"))
    (6, ())
    """
    rails = [name for name in names if name not in ("all", "default", "lo") and not name.startswith(_NOT_RAILS)]
    if len(rails) < 2:
        return ()
    return tuple(f"{_CONF}/{name}/{leaf}" for name in rails[:_MOST_INTERFACES] for leaf in PER_INTERFACE)


def dotted(path: str) -> str:
    """Return the key as sysctl(8) prints it.

    >>> dotted("net/ipv4/conf/enp3s0.200/rp_filter")
    'net.ipv4.conf.enp3s0/200.rp_filter'
    """
    return path.translate({ord("."): "/", ord("/"): "."})
