"""Settings that NCCL takes otherwise than they were meant, and the files that it reads them from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torchtune_sys.knowledge import nccl, nccl_variables
from torchtune_sys.model.actions import Advice, EnvironmentVariable
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.network import NcclSetting
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot, gpus_told, variables_told
from torchtune_sys.model.values import Missing, NotApplicable, absent, known, need
from torchtune_sys.model.version import show, version
from torchtune_sys.rules.gates import verbs_devices
from torchtune_sys.rules.nccl.common import (
    is_of_the_other,
    nccl_version,
    read_by,
    settings,
    sockets_carry_data,
    uses_nccl,
    uses_nvidias,
)


@rule(
    id="nccl-net-without-device",
    title="NCCL_NET requires InfiniBand or RoCE, but there is no RDMA device",
    severity=Severity.ERROR,
    applies=uses_nccl,
    fix=(
        EnvironmentVariable(name="NCCL_NET", value=None),
        Advice(text="or give the container its devices (--device=/dev/infiniband, --ulimit memlock=-1), and the host its driver"),
    ),
)
def net_without_device(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """NCCL_NET=IB, and the kernel shows no RDMA device, or this session no device node to open one by.

    Why it matters
    NCCL takes no other network then: each communicator fails with "invalid usage", and only NCCL_DEBUG=WARN says "Error: network IB not
    found." Without the variable it would use TCP.

    When to leave it
    Jobs must not fall back to TCP: failing is what the variable is for. Then mend the network.

    References
    NVIDIA/nccl src/plugin/net.cc (ncclNetInit)
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-net
    """
    given = settings(s).get("NCCL_NET")
    if given is None or given.value.upper() != "IB":
        raise NotApplicable("NCCL_NET does not ask for InfiniBand or RoCE")
    devices = need(s.network).rdma
    nodes = need(s.network).verbs_nodes
    if isinstance(nodes, Missing) and not absent(nodes):
        need(nodes)
    there = not absent(devices) and bool(need(devices)) and verbs_devices(s)
    yield Evidence(
        subject="NCCL_NET",
        seen=f"{given.value}{'' if there else ', and no RDMA device can be opened'}",
        wanted="unset, or an RDMA device",
        verdict=Verdict.PASS if there else Verdict.FAIL,
        source=given.source,
    )


@rule(
    id="nccl-value-ignored",
    title="An NCCL variable has a value that NCCL does not understand",
    severity=Severity.WARNING,
    applies=uses_nccl,
    fix=(Advice(text="write the value as given in NCCL's documentation, or unset the variable"),),
)
def value_ignored(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The value is a word where NCCL expects a number, a number with a unit (8MB) or too large for its field, or a word that NCCL does not know.

    Why it matters
    NCCL reads switches with strtoll: NCCL_IB_DISABLE=true is 0 and disables nothing, NCCL_BUFFSIZE=8MB is 8 bytes. Adapters take the lowest
    bits of timeouts, retries, service levels and traffic classes: NCCL_IB_RETRY_CNT=13 is 5, fewer than without it. An unknown level (names are case-sensitive),
    or a socket family other than AF_INET and AF_INET6, has the same effect as no value. NCCL does not report it.
    With an unknown algorithm or protocol (NCCL_ALGO, NCCL_PROTO), collectives fail with "invalid usage"; NCCL reports "Unrecognized
    element token" only if NCCL_DEBUG is set.

    When to leave it
    Never: the setting has no effect, or not the intended one.

    References
    NVIDIA/nccl src/misc/param.cc (ncclLoadParam), src/graph/paths.cc (ncclGetLevel), src/misc/socket.cc, src/graph/tuning.cc (parseList), src/transport/net_ib
    InfiniBand architecture specification, volume 1 (modify queue pair); Linux include/linux/mlx5/mlx5_ifc.h (ack_timeout, retry_count)
    """
    given = settings(s)
    if not given:
        raise NotApplicable("no NCCL variable is set")
    for setting in given.values():
        if nccl_variables.accepts(setting.name, setting.value) is False:
            said = "contains a word that NCCL does not know: collectives fail" if setting.name in _LISTS else "is ignored"
            yield Evidence(
                subject=setting.name, seen=f"{setting.value!r} {said}", wanted=_words(setting.name), source=setting.source
            )
        elif _word_for_number(setting):
            yield Evidence(subject=setting.name, seen=f"{setting.value!r} counts as 0", wanted="a number", source=setting.source)
        elif taken := nccl_variables.counts_as(setting.name, setting.value):
            yield Evidence(
                subject=setting.name,
                seen=f"{setting.value!r} counts as {taken[0]}: {taken[1]}",
                wanted="a number that fits, without a unit",
                source=setting.source,
            )


_LISTS = {"NCCL_ALGO": "Tree, Ring, CollNetDirect, CollNetChain, NVLS, NVLSTree, PAT", "NCCL_PROTO": "LL, LL128, Simple"}


def _words(name: str) -> str:
    if name == "NCCL_SOCKET_FAMILY":
        return " or ".join(nccl_variables.FAMILIES)
    if name in _LISTS:
        return _LISTS[name]
    return ", ".join(nccl_variables.DEBUG_LEVELS if name == "NCCL_DEBUG" else nccl_variables.LEVELS)


def _word_for_number(setting: NcclSetting) -> bool:
    if not setting.value.strip() or natural(setting.value.strip().lstrip("+-")[:1]) is not None:
        return False
    row = nccl_variables.variables().get(setting.name)
    return row is not None and row.number and not row.last


@rule(
    id="nccl-variable-unknown",
    title="A variable looks like a misspelt NCCL variable",
    severity=Severity.ADVICE,
    applies=uses_nvidias,
    fix=(Advice(text="correct the name, or unset the variable"),),
)
def variable_unknown(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """No NCCL release reads this NCCL_* variable, but its name is one or two letters away from one that is read; or this NCCL no longer reads it.

    Why it matters
    NCCL never reports unknown names; the intended setting simply has no effect.

    When to leave it
    Another program reads the variable.

    References
    The names that NCCL 2.3.5 to 2.30.7 read (NVIDIA/nccl, src/)
    """
    given, mistaken = settings(s), _misspelt(variables_told(s))
    if not given and not mistaken:
        raise NotApplicable("no NCCL variable is set")
    for wrong, meant, value in mistaken:
        yield Evidence(subject=wrong, seen="no release of NCCL reads it", wanted=f"{meant}={value}", source="environment")
    installed, name = nccl_version(s)
    compared = 0
    for setting in given.values():
        row = nccl_variables.variables().get(setting.name)
        compared += row is None
        if row is not None and row.last and row.last < installed:
            yield Evidence(
                subject=setting.name,
                seen=f"read up to NCCL {show(row.last)}; this is {name}",
                wanted="unset",
                source=setting.source,
            )
        elif row is None and compared <= _COMPARED and (meant := nccl_variables.suggestion(setting.name)):
            yield Evidence(
                subject=setting.name, seen="no release of NCCL reads it", wanted=f"{meant}={setting.value}", source=setting.source
            )


def _misspelt(env: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return the variables whose prefix is nearly NCCL's and whose rest is a name of NCCL's, which oneCCL's CCL_* do not share: name, meant, value."""
    found = [(name, f"NCCL_{name.partition('_')[2]}", value) for name, value in env.items() if name.startswith(("CCL_", "NCLL_"))]
    return [item for item in found if item[1] in nccl_variables.variables() and item[1] not in env]


_COMPARED = 200
"""Unknown names that are compared with all known ones, which takes a millisecond each; a file of 64 KiB may hold thousands."""


_SHORTEST = 14
"""NCCL's own exponent up to 2.13; later releases wait longer (18, from 2.23 on 20)."""


@rule(
    id="nccl-ib-timeout-short",
    title="NCCL's adapters wait a shorter time for an answer than any release of NCCL lets them",
    severity=Severity.ADVICE,
    applies=uses_nccl,
    fix=(EnvironmentVariable(name="NCCL_IB_TIMEOUT", value=None), Advice(text="or 22 on a large or busy fabric")),
)
def ib_timeout_short(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """NCCL_IB_TIMEOUT is below 14 in a job over several hosts with RDMA adapters. It is an exponent: 4.096 µs times two to its power.

    Why it matters
    A switch that is busy for a moment, or a peer that is slow to answer, uses up the retries, and the job ends with "Got completion with error 12"
    (IBV_WC_RETRY_EXC_ERR).

    When to leave it
    The adapter's firmware has a lowest time of its own, and the job never saw this error.

    References
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-timeout
    https://github.com/areal-project/AReaL/pull/640 (2 instead of 22); InfiniBand architecture specification, volume 1, "Local ACK timeout"
    """
    setting = settings(s).get("NCCL_IB_TIMEOUT")
    if setting is None:
        raise NotApplicable("NCCL_IB_TIMEOUT is not set")
    exponent = natural(setting.value.strip())
    if exponent is None or exponent > 31:
        raise NotApplicable("its value is no number from 0 to 31, which nccl-value-ignored judges")
    if (s.intent.nodes or 1) < 2 or sockets_carry_data(s) or nccl.plugin_ports(need(need(s.network).rdma)):
        raise NotApplicable("one host, or NCCL's own RDMA does not carry the data")
    short = 0 < exponent < _SHORTEST  # 0: without end
    yield Evidence(
        subject="NCCL_IB_TIMEOUT",
        seen=f"{exponent}: {4.096 * 2**exponent / 1000:.3g} ms" if short else str(exponent),
        wanted=f">= {_SHORTEST}, or unset",
        verdict=Verdict.FAIL if short else Verdict.PASS,
        source=setting.source,
    )


@rule(
    id="nccl-conf-line-ignored",
    title="NCCL ignores or misreads a line of its configuration file",
    severity=Severity.WARNING,
    applies=uses_nccl,
    fix=(Advice(text="write NAME=value, without export, quotes, spaces or a trailing comment"),),
)
def conf_line_ignored(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """~/.nccl.conf and /etc/nccl.conf (of RCCL ~/.rccl.conf and /etc/rccl.conf) are not shell scripts: NCCL splits each line at the first = and takes both parts literally.

    Why it matters
    "export NCCL_DEBUG=INFO" sets a variable called "export NCCL_DEBUG"; quotes, and comments after the value, become part of the
    value.

    When to leave it
    Never: the line does not do what its author intended.

    References
    NVIDIA/nccl src/misc/param.cc (setEnvFile)
    """
    files = need(need(s.network).nccl_files)
    installed = nccl_version(s)[0]
    for line in files.ignored:
        if (line.cured_in and version(line.cured_in) <= installed) or not read_by(installed, line.first, line.before):
            continue
        if is_of_the_other(s, line.source):
            continue
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
    """A transport is off for every job of this user or host, although no environment variable says so.

    Why it matters
    NCCL reads the files at every start, but people forget them. Without P2P or shared memory, traffic between GPUs of one host
    goes through the network; without InfiniBand, traffic between hosts uses TCP.

    When to leave it
    The hardware needs the setting (for example GPUs without working P2P), and the file says so. Where there is no RDMA device, one GPU, or GeForce from
    Ada on, between which the driver copies nothing directly, there is nothing to switch off.

    References
    NVIDIA/nccl src/misc/param.cc (initEnv)
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    hidden = [setting for setting in settings(s).values() if setting.source != "environment"]
    if not hidden:
        raise NotApplicable("no configuration file of NCCL sets anything")
    for setting in hidden:
        off = nccl.as_number(setting.value)
        if setting.name not in _SWITCHED_OFF or not (off == 1 or (off != 0 and setting.name == "NCCL_IB_DISABLE")):
            continue
        there = _there(s, setting.name)
        if isinstance(there, Missing):
            yield unsure(setting.name, there, "unset or 0")
        elif there:
            what = _SWITCHED_OFF[setting.name]
            yield Evidence(
                subject=setting.name, seen=f"{setting.value}: {what} switched off", wanted="unset or 0", source=setting.source
            )


def _there(s: Snapshot, name: str) -> Fact[bool]:
    """Return whether the host has the transport that a setting switches off: an RDMA device, two GPUs, and for direct copies two that copy to each other."""
    if name == "NCCL_IB_DISABLE":
        devices = need(s.network).rdma
        return not absent(devices) and (devices if isinstance(devices, Missing) else bool(devices))
    gpus = gpus_told(s)
    return not gpus or (len(gpus) > 1 and not (name == "NCCL_P2P_DISABLE" and all(map(_without_peers, gpus))))


def _without_peers(gpu: Gpu) -> bool:
    """GeForce from Ada on: no NVLink, and the driver offers no peer-to-peer over PCIe."""
    cc = gpu.compute_capability
    return not isinstance(cc, Missing) and cc >= (8, 9) and "GeForce" in known(gpu.name, "")


@rule(
    id="nccl-topo-file-missing",
    title="NCCL_TOPO_FILE names a file that does not exist",
    severity=Severity.WARNING,
    applies=uses_nccl,
    fix=(EnvironmentVariable(name="NCCL_TOPO_FILE", value=None), Advice(text="or mount the file into the container, too")),
)
def topo_file_missing(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The topology file that the cloud provider or administrator wrote for this machine is not used.

    Why it matters
    NCCL logs the failure only at level INFO and uses the virtual machine's PCI tree, which on cloud hosts often hides which GPU
    is near which NIC, so bandwidth between hosts suffers. The usual cause is a container that lacks the file.

    When to leave it
    The machine is bare metal: NCCL then sees the true topology, and you can unset the variable.

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
