"""NCCL's choice of networks, and settings that NCCL takes otherwise than they were meant."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge import nccl
from torchtune_sys.model.actions import Advice, Environment
from torchtune_sys.model.facts.network import NcclSetting
from torchtune_sys.model.rule import Evidence, Params, Rule, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import NotApplicable, absent, known, need
from torchtune_sys.model.version import show
from torchtune_sys.rules.nccl_choice import (
    better,
    doubt,
    interface_named,
    nccl_on_several_hosts,
    nccl_version,
    prediction,
    settings,
    sockets_carry_data,
    uses_nccl,
    values,
)

_SET_IFNAME = Advice(text="set NCCL_SOCKET_IFNAME to the interface that the other hosts reach (or unset it)")


@rule(
    id="nccl-wrong-interface",
    title="NCCL finds no usable network interface, or one that other hosts cannot reach",
    severity=Severity.ERROR,
    cause="nccl-wrong-interface",
    applies=uses_nccl,
    fix=(_SET_IFNAME,),
)
def wrong_interface(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """NCCL's own search, replayed: nothing is found, or the first contact of a job over several hosts goes nowhere.

    Why it matters
    Every job needs one IP interface to start, even on one host and with InfiniBand. Once NCCL_SOCKET_IFNAME is set there is no
    fallback: a name that does not match ends in "Bootstrap : no socket interface found". Unset, NCCL takes the first interface
    that is not called docker* or lo; bridges, tunnels and VPNs pass that test, and ranks on other hosts then wait for ever.

    When to leave it
    When the named interface exists on the hosts where the job will run, and only this host was not meant.

    References
    NVIDIA/nccl src/misc/socket.cc (ncclFindInterfaces), src/bootstrap.cc
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    choice = prediction(s)
    network = need(s.network)
    setting = settings(s).get("NCCL_SOCKET_IFNAME")
    _, name = nccl_version(s)
    if choice.bootstrap is None:
        yield _nothing_found(s, setting)
        return
    chosen = interface_named(network, choice.bootstrap.interface)
    why = doubt(network, chosen, choice.bootstrap.address) if chosen else ""
    bad = bool(why) and (s.intent.nodes or 1) > 1
    yield Evidence(
        subject=choice.bootstrap.interface,
        seen=f"{name} starts with {choice.bootstrap.interface} ({choice.bootstrap.address}): {choice.reason}"
        + (f"; it is {why}" if bad else ""),
        wanted=_wanted(better(network)),
        verdict=Verdict.FAIL if bad else Verdict.PASS,
        source=setting.source if setting else "the interfaces",
    )


def _nothing_found(s: Snapshot, setting: NcclSetting | None) -> Evidence:
    network = need(s.network)
    there = ", ".join(interface.name for interface in need(network.interfaces) if known(interface.addresses, ()))
    wanted = _wanted(better(network) or tuple(there.split(", ")))
    if setting is None or len(setting.value) < 2:
        family = values(s).get("NCCL_SOCKET_FAMILY", "")
        hint = f" of family {family}" if family else ""
        return Evidence(
            subject="interfaces", seen=f"no interface has a usable address{hint}", wanted=wanted, source="the interfaces"
        )
    return Evidence(
        subject="NCCL_SOCKET_IFNAME",
        seen=f"{setting.value!r} leaves none of: {there or 'no interface has an address'}",
        wanted=wanted,
        source=setting.source,
    )


def _wanted(names: tuple[str, ...]) -> str:
    return (
        f"an interface that exists and that other hosts reach: {' or '.join(names[:3])}"
        if names and names[0]
        else "an interface with an address"
    )


@rule(
    id="nccl-interface-doubtful",
    title="NCCL would also talk through bridges, tunnels or container cables",
    severity=Severity.WARNING,
    cause="nccl-wrong-interface",
    applies=uses_nccl,
    fix=(_SET_IFNAME,),
)
def interface_doubtful(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Among the interfaces that NCCL would take are some that hosts of a job hardly share, while better ones exist.

    Why it matters
    Without RDMA, NCCL opens sockets on every interface that its search leaves over, not on the first alone, and gives each GPU the
    nearest. Bridges of containers (br-*, cni0), veth*, tailscale0, wg* and tun* are not left out by default, and have the same addresses
    on every host or no route between hosts: the job hangs at its first collective.

    When to leave it
    When the job stays on this host (say so with --nnodes 1), or the interface is an overlay network that all hosts share on purpose.

    References
    NVIDIA/nccl src/transport/net_socket.cc, src/misc/socket.cc
    """
    if s.intent.nodes == 1:
        raise NotApplicable("the job runs on this host alone")
    network, choice = need(s.network), prediction(s)
    good = better(network)
    if not choice.choices or not good:
        return
    first = choice.bootstrap or choice.choices[0]
    judged = [first] if s.intent.nodes is None else []
    if s.intent.nodes is not None and sockets_carry_data(s):
        judged += [other for other in choice.choices if other != first]
    for item in judged:
        interface = interface_named(network, item.interface)
        if interface and (why := doubt(network, interface, item.address)):
            yield Evidence(
                subject=item.interface,
                seen=f"{item.address}: {why}; taken because {choice.reason}",
                wanted=f"only {' and '.join(good[:3])}",
            )


@rule(
    id="nccl-uneven-networks",
    title="NCCL would spread its data over fast and slow networks alike",
    severity=Severity.WARNING,
    applies=nccl_on_several_hosts,
    fix=(Advice(text="name the fast interfaces only: NCCL_SOCKET_IFNAME==IF1,IF2"),),
)
def uneven_networks(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Sockets carry the data, and the interfaces that NCCL would take differ in speed.

    Why it matters
    NCCL gives each GPU a network device by distance, not by speed. A ring that passes through a 1 Gb/s management port runs at that pace.

    When to leave it
    When the slow interface cannot be reached from the other hosts' GPUs anyway, or the data volume is small.

    References
    NVIDIA/nccl src/transport/net_socket.cc, src/graph/topo.cc
    """
    if not sockets_carry_data(s):
        raise NotApplicable("RDMA carries the data")
    network = need(s.network)
    speeds: dict[str, int] = {}
    for item in prediction(s).choices:
        interface = interface_named(network, item.interface)
        if interface and not doubt(network, interface, item.address):
            speed = known(interface.speed_mbps, 0)
            speeds.update({item.interface: speed} if speed else {})
    fastest = max(speeds.values(), default=0)
    for name, speed in speeds.items():
        if speed < fastest:
            yield Evidence(
                subject=name, seen=f"{speed} Mb/s", wanted=f"{fastest} Mb/s, as {max(speeds, key=lambda key: speeds[key])}"
            )


@rule(
    id="nccl-socket-ifname-syntax",
    title="NCCL_SOCKET_IFNAME does not mean what it seems to say",
    severity=Severity.WARNING,
    applies=uses_nccl,
    fix=(Advice(text="write NCCL_SOCKET_IFNAME without blanks or quotes; = at the very start makes all names exact"),),
)
def ifname_syntax(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Values that NCCL takes apart otherwise than their author meant.

    Why it matters
    Names are prefixes (eth1 is eth10, too), a marker counts only at the very start and for the whole list, blanks and quotes are part
    of a name, a value of one character is ignored, and what follows the sixteenth name is dropped. None of it is reported.

    When to leave it
    When the prefix is meant to hold for several interfaces.

    References
    NVIDIA/nccl src/misc/utils.cc (parseStringList, matchIfList), src/misc/socket.cc
    """
    setting = settings(s).get("NCCL_SOCKET_IFNAME")
    if setting is None or not setting.value:
        raise NotApplicable("NCCL_SOCKET_IFNAME is not set")
    names = tuple(interface.name for interface in need(need(s.network).interfaces))
    for why, wanted in _oddities(setting.value, names):
        yield Evidence(subject="NCCL_SOCKET_IFNAME", seen=f"{setting.value!r}: {why}", wanted=wanted, source=setting.source)


def _oddities(value: str, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if len(value) == 1:
        yield "a value of one character is ignored", "a name, or nothing"
        return
    parsed = nccl.parse_names(value)
    parts = [part for part in value.lstrip("^=").split(",") if part]
    if any(part.strip(" \t\"'\r\n") != part for part in parts):
        yield "blanks and quotes are part of the names", "the plain name"
    if any(part[0] in "^=" for part in parts[1:]):
        yield "a marker inside the list is part of a name", "one ^ or = in front of the whole list"
    if len(parts) > nccl.MAX_INTERFACES:
        yield f"names after the sixteenth are ignored ({len(parts)} given)", "at most 16 names"
    if parsed.exact:
        return
    for word, _ in parsed.entries:
        also = [name for name in names if name.startswith(word) and name != word]
        if word in names and also:
            yield f"as a prefix, {word} also stands for {', '.join(also[:4])}", f"={word}"


@rule(
    id="nccl-ib-hca-unmatched",
    title="NCCL_IB_HCA leaves no active RDMA port: NCCL falls back to TCP",
    severity=Severity.WARNING,
    applies=uses_nccl,
    fix=(Environment(name="NCCL_IB_HCA", value=None),),
)
def ib_hca_unmatched(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """There are active RDMA ports, but the value of NCCL_IB_HCA lets none of them through.

    Why it matters
    NCCL says "NET/IB : No device found" at level INFO only and goes on over TCP, at a tenth of the speed or less.

    When to leave it
    When TCP is wanted; NCCL_IB_DISABLE=1 says so plainly.

    References
    NVIDIA/nccl src/transport/net_ib/init.cc
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    setting = settings(s).get("NCCL_IB_HCA")
    devices = need(s.network).rdma
    if setting is None or not setting.value:
        raise NotApplicable("NCCL_IB_HCA is not set")
    if absent(devices):
        raise NotApplicable("there is no RDMA device")
    active = nccl.usable_ports(need(devices))
    if not active or nccl.ib_disabled(values(s)):
        raise NotApplicable("no RDMA port is active, or NCCL_IB_DISABLE is set")
    if not nccl.usable_ports(need(devices), setting.value):
        ports = ", ".join(f"{device.name}:{port.port}" for device, port in active)
        yield Evidence(
            subject="NCCL_IB_HCA",
            seen=f"{setting.value!r} lets none of the active ports through",
            wanted=f"some of {ports}",
            source=setting.source,
        )


@rule(
    id="nccl-value-ignored",
    title="An NCCL variable has a value that NCCL does not understand",
    severity=Severity.WARNING,
    applies=uses_nccl,
    fix=(Advice(text="write the value as NCCL's documentation has it, or unset the variable"),),
)
def value_ignored(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Words where NCCL reads a number, and words that are not among those it knows.

    Why it matters
    NCCL reads switches with strtoll: NCCL_IB_DISABLE=true is 0 and disables nothing. A level that is not in its list (the case counts), or
    a socket family other than AF_INET and AF_INET6, is as good as unset. Nothing is reported.

    When to leave it
    Never: the setting has no effect, or not the one it names.

    References
    NVIDIA/nccl src/misc/param.cc (ncclLoadParam), src/graph/paths.cc (ncclGetLevel), src/misc/socket.cc
    """
    given = settings(s)
    if not given:
        raise NotApplicable("no NCCL variable is set")
    for setting in given.values():
        if nccl.accepts(setting.name, setting.value) is False:
            yield Evidence(
                subject=setting.name, seen=f"{setting.value!r} is ignored", wanted=_words(setting.name), source=setting.source
            )
        elif _word_for_number(setting):
            yield Evidence(subject=setting.name, seen=f"{setting.value!r} counts as 0", wanted="a number", source=setting.source)


def _words(name: str) -> str:
    if name == "NCCL_SOCKET_FAMILY":
        return " or ".join(nccl.FAMILIES)
    return ", ".join(nccl.DEBUG_LEVELS if name == "NCCL_DEBUG" else nccl.LEVELS)


def _word_for_number(setting: NcclSetting) -> bool:
    if not setting.value.strip() or setting.value.strip().lstrip("+-")[:1].isdigit():
        return False
    from torchtune_sys.knowledge.nccl_variables import variables

    row = variables().get(setting.name)
    return row is not None and row.number and not row.last


@rule(
    id="nccl-variable-unknown",
    title="A variable is named almost like one of NCCL's",
    severity=Severity.ADVICE,
    applies=uses_nccl,
    fix=(Advice(text="correct the name, or unset the variable"),),
)
def variable_unknown(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """NCCL_* variables that no release reads, one or two letters away from one that NCCL does read; and ones it no longer reads.

    Why it matters
    NCCL never reports a name that it does not know; the setting that was meant is simply not made.

    When to leave it
    When another program reads the variable.

    References
    The names that NCCL 2.3.5 to 2.30.7 read (NVIDIA/nccl, src/)
    """
    given = settings(s)
    if not given:
        raise NotApplicable("no NCCL variable is set")
    from torchtune_sys.knowledge.nccl_variables import suggestion, variables

    installed, name = nccl_version(s)
    for setting in given.values():
        row = variables().get(setting.name)
        if row is not None and row.last and row.last < installed:
            yield Evidence(
                subject=setting.name,
                seen=f"read up to NCCL {show(row.last)}; this is {name}",
                wanted="unset",
                source=setting.source,
            )
        elif row is None and (meant := suggestion(setting.name)):
            yield Evidence(
                subject=setting.name, seen="no release of NCCL reads it", wanted=f"{meant}={setting.value}", source=setting.source
            )


@rule(
    id="nccl-conf-line-ignored",
    title="A line of an NCCL configuration file does not do what it says",
    severity=Severity.WARNING,
    applies=uses_nccl,
    fix=(Advice(text="write NAME=value, without export, quotes, blanks or a comment behind it"),),
)
def conf_line_ignored(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """~/.nccl.conf and /etc/nccl.conf are no shell: NCCL splits each line at the first = and takes both halves as they are.

    Why it matters
    "export NCCL_DEBUG=INFO" sets a variable called "export NCCL_DEBUG"; quotes and comments behind the value become part of it.

    When to leave it
    Never: the line is not what its author meant.

    References
    NVIDIA/nccl src/misc/param.cc (setEnvFile)
    """
    files = need(need(s.network).nccl_files)
    for line in files.ignored:
        yield Evidence(subject=line.source, seen=f"{line.text}: {line.why}", wanted="NAME=value", source=line.source)


_SWITCHED_OFF = {
    "NCCL_P2P_DISABLE": "direct copies between GPUs",
    "NCCL_SHM_DISABLE": "shared memory between processes",
    "NCCL_IB_DISABLE": "InfiniBand and RoCE",
}


@rule(
    id="nccl-conf-hides-setting",
    title="A configuration file switches off one of NCCL's transports",
    severity=Severity.WARNING,
    applies=uses_nccl,
    fix=(Advice(text="remove the line from the file, or override it in the job's environment with 0"),),
)
def conf_hides_setting(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A transport is off for every job of this user or host, although the environment shows nothing of it.

    Why it matters
    The files are read at each start of NCCL and forgotten by people; without P2P or shared memory, traffic between GPUs of one host takes
    the network's way, and without InfiniBand the traffic between hosts takes TCP.

    When to leave it
    When the hardware is known to be broken without it (GPUs without working P2P, for example), and the file says so.

    References
    NVIDIA/nccl src/misc/param.cc (initEnv)
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    hidden = [setting for setting in settings(s).values() if setting.source != "environment"]
    if not hidden:
        raise NotApplicable("no configuration file of NCCL sets anything")
    for setting in hidden:
        off = nccl.as_number(setting.value)
        if setting.name in _SWITCHED_OFF and (off == 1 or (off != 0 and setting.name == "NCCL_IB_DISABLE")):
            what = _SWITCHED_OFF[setting.name]
            yield Evidence(
                subject=setting.name, seen=f"{setting.value}: {what} switched off", wanted="unset or 0", source=setting.source
            )


@rule(
    id="nccl-topo-file-missing",
    title="NCCL_TOPO_FILE names a file that is not there",
    severity=Severity.WARNING,
    applies=uses_nccl,
    fix=(Environment(name="NCCL_TOPO_FILE", value=None), Advice(text="or mount the file into the container, too")),
)
def topo_file_missing(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The topology that the cloud provider or administrator wrote for this machine is not used.

    Why it matters
    NCCL only notes the failure at level INFO and goes by what the virtual machine shows of its PCI tree, which on cloud hosts often
    hides which GPU is near which NIC; bandwidth between hosts suffers. Containers that lack the file are the usual cause.

    When to leave it
    When the machine is bare metal: NCCL then sees the true topology; unset the variable.

    References
    NVIDIA/nccl src/graph/topo.cc, src/graph/xml.cc (ncclTopoGetXmlFromFile)
    """
    if "NCCL_TOPO_FILE" not in settings(s):
        raise NotApplicable("NCCL_TOPO_FILE is not set")
    missing = need(need(need(s.network).nccl_files).missing_topology)
    if missing:
        yield Evidence(
            subject="NCCL_TOPO_FILE",
            seen=f"{missing} does not exist",
            wanted="a readable file, or unset",
            source=settings(s)["NCCL_TOPO_FILE"].source,
        )


RULES: tuple[Rule, ...] = (
    wrong_interface,
    interface_doubtful,
    uneven_networks,
    ifname_syntax,
    ib_hca_unmatched,
    value_ignored,
    variable_unknown,
    conf_line_ignored,
    conf_hides_setting,
    topo_file_missing,
)
