"""Rules on resources of a job that other processes hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torchtune_sys.model.actions import Advice, EnvironmentVariable
from torchtune_sys.model.facts.network import Way
from torchtune_sys.model.launchers import JOB_VARIABLES, RANK_VARIABLES
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot, is_pasted
from torchtune_sys.model.values import Missing, NotApplicable, absent, known, need, need_if_there
from torchtune_sys.rules.gates import gpu_count, nvidia_hardware
from torchtune_sys.rules.network.loopback import NO_ANSWER


@rule(
    id="mps-server-unreachable",
    title="Programs are directed to an MPS daemon that does not answer",
    severity=Severity.WARNING,
    cause="mps-server-unreachable",
    fix=(
        Advice(text="start it: nvidia-cuda-mps-control -d, with the same CUDA_MPS_PIPE_DIRECTORY, as root or as this user"),
        EnvironmentVariable(name="CUDA_MPS_PIPE_DIRECTORY", value=None),
        Advice(
            text="or, if no daemon should run, remove the leftover directory (/tmp/nvidia-mps, where no variable names another)"
        ),
    ),
)
def mps_server_unreachable(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """CUDA_MPS_PIPE_DIRECTORY or a leftover /tmp/nvidia-mps points to a control daemon that is gone or belongs to another user.

    Why it matters
        Each CUDA program tries the daemon first. At best it continues without it, and processes that should share a GPU take
        turns. Otherwise CUDA fails to start with error 805, MPS client failed to connect to the MPS control daemon or the MPS
        server.

    When to leave it
        The batch system starts the daemon together with the job. Where only the variable is set, outside of a container, and no more ranks are wanted
        than there are GPUs, nothing is reported: CUDA runs as it does without the variable.

    References
        nvidia-cuda-mps-control(1)
        https://docs.nvidia.com/deploy/mps/index.html
        https://github.com/NVIDIA/nvidia-container-toolkit/issues/714
    """
    nvidia_hardware(s)
    mps = need_if_there(need(s.software).mps, "no Multi-Process Service is asked for, and none was started here")
    container, control = bool(need(need(s.system).container)), need(mps.control)
    if container and control:
        raise NotApplicable("inside a container, where a daemon of the host or of another container is not seen")
    owner = known(mps.owner, 0)
    if not need(mps.listening):
        seen = "a socket without a daemon" if control else "no control daemon's socket"
    elif need(mps.owner) not in (0, need(need(s.session).uid)) and need(need(s.session).uid) != 0:
        seen = f"the daemon of uid {owner}, which serves no other user"
    else:
        seen = ""
    fails = bool(seen) and (control or (mps.asked_for and (container or _share_gpus(s))))
    yield Evidence(
        subject=mps.directory,
        seen=seen if fails else "no daemon, and nobody needs one" if seen else "a daemon listens",
        wanted="a control daemon of root or of this user",
        verdict=Verdict.FAIL if fails else Verdict.PASS,
        source="CUDA_MPS_PIPE_DIRECTORY" if mps.asked_for else mps.directory,
    )


def _share_gpus(s: Snapshot) -> bool:
    """Whether several ranks are wanted for a GPU: else a program runs as well without the daemon that its environment names."""
    return s.intent.ranks is not None and s.intent.ranks > gpu_count(s)


@rule(
    id="master-port-in-use",
    title="The rendezvous port is in use, or closed to this user",
    severity=Severity.ERROR,
    cause="master-port-in-use",
    fix=(
        Advice(text="give each job its own port: torchrun --master-port PORT, or --rdzv-endpoint=localhost:0 on one host"),
        Advice(text="or stop the process that uses it: ss -ltnp 'sport = :PORT'"),
    ),
)
def master_port_in_use(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """MASTER_PORT is set, this host has to listen on it, and another process already does, or an ordinary user may not.

    Why it matters
        Rank 0 fails with EADDRINUSE ("address already in use") or, worse, ranks join the other job's store. Ports below 1024, as a rule, are for
        root alone: rank 0 fails with EACCES ("permission denied").

    When to leave it
        The listening process belongs to this session's own running job; the interpreter has the capability CAP_NET_BIND_SERVICE.

    References
        Linux Documentation/networking/ip-sysctl.rst (ip_unprivileged_port_start; Docker sets it to 0 in its containers)
        https://docs.pytorch.org/docs/stable/elastic/run.html (several jobs on one host)
        https://docs.pytorch.org/docs/stable/distributed.html (TCPStore)
    """
    found = need(s.software).port_listeners
    if absent(found):
        raise NotApplicable("MASTER_PORT is not set")
    env = need(need(s.session).env)
    _would_listen(s, env)
    uids = need(found)
    port = env.get("MASTER_PORT", "")
    number, first_open = natural(port) or 0, need(s.software).first_open_port
    first = need(first_open) if 0 < number < _USUAL_START and not uids else known(first_open, 0)
    closed = 0 < number < first and not uids and need(need(s.session).uid) != 0
    taken = f"a process of uid {uids[0]} listens on it" if uids else ""
    yield Evidence(
        subject=f"port {port}",
        seen=taken or (f"ports below {first} are for root alone" if closed else "free"),
        wanted=f"free, and {first} or above" if closed else "free",
        verdict=Verdict.FAIL if taken or closed else Verdict.PASS,
        source="MASTER_PORT, net.ipv4.ip_unprivileged_port_start" if closed else "MASTER_PORT, /proc/net/tcp",
    )


_USUAL_START = 1024
"""Linux include/net/ip.h, PROT_SOCK: from here on a port is anybody's, where nothing else is set."""


def _would_listen(s: Snapshot, env: Mapping[str, str]) -> None:
    """NotApplicable unless rank 0 would be here. torchrun's own agent listens on the port that its ranks are told; a pod has its
    ports to itself, so that whoever listens in it is the job."""
    if need(need(s.system).container) == "kubernetes":
        raise NotApplicable("a pod's ports are its own job's")
    if any(name.startswith("TORCHELASTIC_") for name in env):
        raise NotApplicable("torchrun started this session, and its agent keeps the port")
    rank = next((env[name] for name in RANK_VARIABLES if env.get(name)), "0")
    if rank != "0":
        raise NotApplicable(f"rank {rank} does not listen on it")
    address = env.get("MASTER_ADDR", "localhost")
    if address in ("localhost", "127.0.0.1", "::1"):
        return
    hostname = known(need(s.system).hostname, "")
    numeric = natural(address.replace(".", "")) is not None
    if hostname and address.split(".")[0].lower() == hostname.split(".")[0].lower() and not numeric:
        return
    interfaces = need(need(s.network).interfaces)
    if not any(address == item.address for interface in interfaces for item in known(interface.addresses, ())):
        raise NotApplicable(f"{address} is not seen to be this host")


_EXPORT_ADDRESS = Advice(text="export MASTER_ADDR with the first host's name or address, as the others reach it, on every host")


@rule(
    id="master-address-loopback",
    title="MASTER_ADDR is a loopback address in a multi-node job",
    severity=Severity.WARNING,
    cause="master-addr-wrong",
    superseded_by=("rank-seeks-master-on-own-host",),
    fix=(
        _EXPORT_ADDRESS,
        EnvironmentVariable(name="MASTER_ADDR", value=None),
    ),
)
def master_address_loopback(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The job runs on several hosts (--nnodes), but MASTER_ADDR is this host's loopback.

    Why it matters
        The ranks of each host look for rank 0 on their own host: those of the first host wait until init_process_group times out,
        the others get "Connection refused".

    When to leave it
        torchrun gives its ranks the address of the rendezvous, and does not read the variable.

    References
        https://docs.pytorch.org/docs/stable/distributed.html (environment variable initialization)
    """
    yield _master_address(need(need(s.session).env), s.intent.nodes)


def _master_address(env: Mapping[str, str], nodes: int | None, note: str = "", leads_here: bool = False) -> Evidence:
    if (nodes or 1) < 2:
        raise NotApplicable("one host: its ranks meet over the loopback")
    address = env.get("MASTER_ADDR", "")
    if not address:
        raise NotApplicable("MASTER_ADDR is not set")
    own = leads_here or _is_loopback(address)
    return Evidence(
        subject="MASTER_ADDR",
        seen=address + note * own,
        wanted="an address that the other hosts reach" if own else "",
        verdict=Verdict.FAIL if own else Verdict.PASS,
        source="environment",
    )


def _is_loopback(address: str) -> bool:
    return address in ("localhost", "::1") or address.startswith(("localhost.", "127."))


@rule(
    id="rank-seeks-master-on-own-host",
    title="MASTER_ADDR is this host itself, and rank 0 is on another host",
    severity=Severity.ERROR,
    cause="master-addr-wrong",
    fix=(_EXPORT_ADDRESS,),
)
def rank_seeks_master_on_own_host(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The process is a rank of a job over several hosts, its RANK is beyond the ranks of the first host (or Slurm says that this is not the first one),
    and MASTER_ADDR is its own loopback; where Slurm says it, or its own address: each host has exported its own name.

    Why it matters
        Nobody on this host listens for the ranks: each gets "Connection refused" until init_process_group times out, and the ranks of the
        first host wait for them as long.

    When to leave it
        The ranks of two nodes are started on one host, as a trial.

    References
        https://docs.pytorch.org/docs/stable/distributed.html (environment variable initialization)
        https://docs.pytorch.org/docs/stable/elastic/run.html (ranks are numbered host by host; two agents on one host)
    """
    env = need(need(s.session).env)
    rank, local = natural(env.get("RANK", "")), natural(env.get("LOCAL_WORLD_SIZE", ""))
    node = natural(env.get("SLURM_NODEID", ""))
    here = natural(env.get("LOCAL_RANK", env.get("SLURM_LOCALID", "")))
    if not rank or not (rank >= local if local else node and rank != here):
        raise NotApplicable("neither RANK with LOCAL_WORLD_SIZE nor SLURM_NODEID tells of a rank on another host than the first")
    if any(name.startswith("TORCHELASTIC_") for name in env):
        raise NotApplicable("torchrun told its ranks the address: its agents may run on one host")
    note = f", for rank {rank} on node {node} of the job" if node else f", for rank {rank} with {local} ranks on each host"
    ways = () if isinstance(s.network, Missing) else known(s.network.master, ())
    yield _master_address(env, s.intent.nodes, note, bool(node) and any(way.own == way.address for way in ways))


@rule(
    id="master-address-unreachable",
    title="MASTER_ADDR does not resolve, or this host has no route to it",
    severity=Severity.WARNING,
    cause="master-addr-wrong",
    fix=(
        Advice(text="export MASTER_ADDR with a name that getent ahosts NAME resolves on each host, or with the address itself"),
        Advice(text="a missing route: ip route get ADDRESS says which one applies; remove what forbids it, or add one"),
    ),
)
def master_address_unreachable(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """MASTER_ADDR is a name that nothing resolves, or an address that the kernel refuses to send to: no route, or one that forbids it
    (unreachable, prohibit, blackhole). Or the route of a job over several hosts ends in this host's own docker0 or virbr0, whose network is the cluster's, too,
    or each address is such a bridge's own.

    Why it matters
        Each rank tries to connect to it until init_process_group times out, after minutes, and says little more than that it could not connect.

    When to leave it
        torchrun started with --rdzv-endpoint or --master-addr gives its ranks that address, and does not read the variable.

    References
        https://docs.pytorch.org/docs/stable/distributed.html (environment variable initialization)
        getaddrinfo(3); ip-route(8), route types; connect(2): a datagram socket only looks for the route
    """
    env, found = need(need(s.session).env), need(s.network).master
    name = env.get("MASTER_ADDR", "")
    if not name:
        raise NotApplicable("MASTER_ADDR is not set")
    if is_pasted(s):
        raise NotApplicable("pasted variables are those of a job")
    ways = () if absent(found) or (isinstance(found, Missing) and NO_ANSWER in found.detail) else need(found)
    if not ways and need(need(s.system).container) == "kubernetes":
        raise NotApplicable("the name of a service may resolve once its pod runs")
    within = _containers_bridge(s, ways)
    refused = all(way.refused for way in ways) or bool(within)
    why = ", ".join(f"{way.address}: " * (way.address != name) + way.refused for way in ways) or "resolves to nothing"
    why = f"the way there is {within}, a bridge of this host's own containers or virtual machines" if within else why
    yield Evidence(
        subject="MASTER_ADDR",
        seen=f"{name}: {why}" if refused else f"{name}: there is a route",
        wanted="an address that this host can send to",
        verdict=Verdict.FAIL if refused else Verdict.PASS,
        source="environment",
        fix=_ADDRESS_ALONE if refused and not ways and _MORE.search(name) else (),
    )


_OPEN_VSWITCH = "ovs-system"
"""The master of all ports of Open vSwitch's bridges: to which of them a card belongs, the kernel does not tell (OpenShift has a node's address at br-ex)."""
_OUTSIDE = ("ethernet", "infiniband", "bond", "vlan", "wifi", "usb", "wwan")


def _containers_bridge(s: Snapshot, ways: tuple[Way, ...]) -> str:
    """Return the bridge through which a job over several hosts would look for its first one, where nothing but this host's guests is behind it: the
    cluster has the addresses that Docker or libvirt chose."""
    interfaces = known(need(s.network).interfaces, ())
    if (s.intent.nodes or 1) < 2:
        return ""
    leads_outside = {each.master for each in interfaces if each.kind in _OUTSIDE}
    if _OPEN_VSWITCH in leads_outside:
        return ""
    of_guests = {
        item.address: bridge.name
        for bridge in reversed(interfaces)
        if bridge.kind == "bridge" and bridge.name not in leads_outside
        for item in known(bridge.addresses, ())
    }
    own = [of_guests.get(way.address, "") for way in ways]
    if own and all(own):
        return own[0]
    return next((of_guests[way.own] for way in ways if way.own and way.own != way.address and way.own in of_guests), "")


_MORE = pattern(r"^\w+://|[^:]:[0-9]{1,5}$|^\[|\s")
_ADDRESS_ALONE = (
    Advice(text="MASTER_ADDR is the name or the address alone: no port (MASTER_PORT has it), no tcp://, no brackets, no blanks"),
)


@rule(
    id="world-larger-than-started",
    title="WORLD_SIZE counts more ranks than are started, and with this MASTER_ADDR no other host can join",
    severity=Severity.WARNING,
    fix=(
        Advice(text="torchrun --nproc-per-node RANKS, which sets RANK, WORLD_SIZE and the rest itself"),
        Advice(text="or unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT: one process without them trains alone"),
    ),
)
def world_larger_than_started(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """WORLD_SIZE is above the number of ranks that are to run here (--nproc-per-node), and MASTER_ADDR is this host's loopback.

    Why it matters
        init_process_group waits for WORLD_SIZE ranks until it times out, after 10 to 30 minutes. Tutorials export these variables for the process of
        one terminal; the others were to be started in others.

    When to leave it
        The other ranks are started by hand, in other terminals of this host.

    References
        https://docs.pytorch.org/docs/stable/distributed.html (environment variable initialization)
    """
    env, ranks = need(need(s.session).env), s.intent.ranks
    world = natural(env.get("WORLD_SIZE", ""))
    if world is None or ranks is None or "RANK" not in env:
        raise NotApplicable("RANK, WORLD_SIZE and the number of ranks on this host are not all known")
    if is_pasted(s) or any(name in env for name in (*JOB_VARIABLES, "LOCAL_WORLD_SIZE")):
        raise NotApplicable("a launcher or a batch system tells how many ranks it starts")
    own = _is_loopback(env.get("MASTER_ADDR", ""))
    yield Evidence(
        subject="WORLD_SIZE",
        about=("RANK",),
        seen=f"WORLD_SIZE={world}, and {ranks} of them here" + f", at {env.get('MASTER_ADDR')}" * own,
        wanted=f"WORLD_SIZE={ranks}, or an address that other hosts reach",
        verdict=Verdict.FAIL if own and world > ranks else Verdict.PASS,
        source="environment",
    )
