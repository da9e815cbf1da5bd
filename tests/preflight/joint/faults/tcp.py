"""Faults of TCP, of routes and of variables: what each verdict on them must name."""

from __future__ import annotations

from typing import Any

from preflight.joint.cluster import TOOL, Cluster
from preflight.joint.faults import delayed, other
from preflight.joint.faults.computing import Plant
from preflight.joint.faults.expected import Expected, Fault
from preflight.joint.faults.network import go, into, node_with


def idle_cut(made: Cluster, node: int) -> dict[str, Any]:
    for name, value in (("established", 3), ("loose", 0)):
        setting = f"tcp_timeout_{name}" if name == "established" else f"tcp_{name}"
        made.inside(node, "sysctl", "-qw", f"net.netfilter.nf_conntrack_{setting}={value}")
    known = "iif lo accept; ct state new,established,related accept; meta l4proto tcp drop"
    made.drop(node, known, known.replace("iif", "oif"))
    return {}


def few_ports(made: Cluster, node: int) -> dict[str, Any]:
    made.inside(node, "sysctl", "-qw", "net.ipv4.ip_local_port_range=40000 40007")
    return {}


def no_route(made: Cluster, node: int) -> dict[str, Any]:
    made.ip(node, "route", "add", "unreachable", f"{made.address(other(made, node))}/32")
    return {}


def jitter(made: Cluster, node: int) -> dict[str, Any]:
    return delayed(made, node, 0.0, 0.016)


def bad_cable(made: Cluster, node: int) -> dict[str, Any]:
    """What has a bit flipped is dropped by whoever receives it: long packets, as they have more bits."""
    lost = "meta l4proto { tcp, udp } meta length > 1000 numgen random mod 100 < 3 drop"
    made.drop(node, f"iif eth0 {lost}", f"oif eth0 {lost}")
    return {}


def duplicated(made: Cluster, node: int) -> dict[str, Any]:
    twice = f'ip daddr {made.address(node)} iif eth0 numgen random mod 100 < 5 dup to {made.address(node)} device "lo"'
    made.inside(node, "sysctl", "-qw", "net.ipv4.conf.lo.accept_local=1", "net.ipv4.conf.all.rp_filter=0")
    made.inside(
        node, "nft", "-f", "-", text=f"table ip joint {{ chain i {{ type filter hook prerouting priority -300; {twice}; }}; }}\n"
    )
    return {}


def no_scaling(made: Cluster, node: int) -> dict[str, Any]:
    made.inside(node, "sysctl", "-qw", "net.ipv4.tcp_window_scaling=0")
    return {}


def other_interface(made: Cluster, node: int) -> dict[str, Any]:
    made.ip(node, "link", "set", "eth0", "down")
    made.ip(node, "link", "set", "eth0", "name", "ens5f0np0")
    made.ip(node, "link", "set", "ens5f0np0", "up")
    return {}


def small_segments(made: Cluster, node: int) -> dict[str, Any]:
    change = 'network=$(ip -o route show dev eth0 | head -n 1 | cut -d " " -f 1); ip route change "$network" dev eth0 advmss 100'
    made.inside(node, "sh", "-c", change)
    return {}


def started_with(setting: str) -> Plant:
    return lambda _made, node: {"tools": {node: ("sh", "-c", f'{setting}; exec "$@"', "-", str(TOOL))}}


def variables(**given: str) -> Plant:
    return lambda _made, node: {"env": {node: given}}


def _of_route(made: Cluster, node: int) -> Expected:
    ends = f"n{node}", f"n{other(made, node)}"
    return Expected(("port-dropped", "port-refused", "link-one-way-drop"), links=frozenset({ends, ends[::-1]}))


def _of_threads(_made: Cluster, node: int) -> Expected:
    return Expected(may=(f"n{node}",), verdicts=("go", "no-go"), bad=(node,))


FAULTS = {
    "idle-cut": Fault(idle_cut, node_with(), 2),
    "random-resets": Fault(
        into("iif eth0 meta l4proto tcp numgen random mod 1000 < 5 reject with tcp reset"), node_with(), 1, held=True
    ),
    "few-ports": Fault(few_ports, node_with(), 3, held=True),
    "no-route": Fault(no_route, _of_route, 4),
    "corrupted-packets": Fault(bad_cable, node_with("packet-loss"), 3),
    "jitter": Fault(jitter, node_with("link-delay", "packet-loss", "narrow-link"), 3, held=True),
    "many-threads": Fault(variables(OMP_NUM_THREADS="64"), _of_threads, 2),
    "duplicated-packets": Fault(duplicated, go, 4),
    "no-scaling": Fault(no_scaling, go, 3),
    "other-interface": Fault(other_interface, go, 3),
    "dev-mode": Fault(variables(PYTHONDEVMODE="1", PYTHONWARNINGS="always"), go, 4, held=True),
    "small-segments": Fault(small_segments, node_with("narrow-link", "mtu-black-hole", "link-delay"), 4, held=True),
    "turkish": Fault(variables(LANG="tr_TR.UTF-8", LC_ALL="tr_TR.UTF-8"), go, 1),
    "small-stack": Fault(started_with("ulimit -s 512"), go, 2, held=True),
    "closed-umask": Fault(started_with("umask 0777"), go, 4),
}
