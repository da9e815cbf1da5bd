"""Find values in which nodes differ, from lines of a log or a parallel shell: NCCL's network, plugin and version, GPUs, MTU, rates, quotas.

What whole reports tell are facts, which the engine of ``compare`` compares.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from torchtune_sys.diagnosis.symptoms import LIKELY, POSSIBLE, Candidate, Symptom
from torchtune_sys.diagnosis.text.lines import LogLine, joined

_OWN = "none"
_TOLD: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (kind, constant, re.compile(pattern))
    for kind, constant, pattern in (
        ("plugin", _OWN, r"NET/Plugin ?: .{0,200}?(?:[Uu]sing internal (?:network plugin|implementation|net plugin)|No plugin found)"),
        ("plugin", "", r"(?:Plugin Path ?: (?:\S{0,200}/)?|NET/Plugin ?: (?:Loaded (?:net|coll) plugin |Using (?:net )?plugin |Plugin name set by env to ))(?P<value>[\w. +-]{1,60})"),
        ("network", "", r"NCCL INFO Using network (?P<value>[\w +-]{1,40})$"),
        ("release", "", r"NCCL version (?P<value>\d+\.\d+\.\d+)"),
        ("module", "", r"\bDriver Version *: *(?P<value>\d{3}\.[\d.]{2,10})"),
        ("torch", "", r"\bPyTorch version *: *(?P<value>\d[\w.+]{2,30})"),
        ("driver", "", r"cudaDriverVersion (?P<value>\d{4,6})$"),
        ("variable", "", r"NCCL INFO (?P<name>NCCL_(?:IB_DISABLE|NET|NET_PLUGIN|ALGO|PROTO|P2P_DISABLE|SHM_DISABLE|BUFFSIZE|MNNVL_ENABLE|NVLS_ENABLE)) set (?:by environment )?to (?P<value>[\w^=,:.-]{1,60}?)\.?$"),
        ("gpu", "", r"\bGPU 0: (?P<value>[^(\n]{3,60}?) \(UUID: "),
        ("mtu", "", r"\b(?P<name>(?!lo\b|docker|veth|br-|virbr|tun|cni|flannel|cali)[\w.@-]{2,20}): <[A-Z,_0-9-]{2,120}> mtu (?P<value>\d{3,5})\b"),
        ("rate", "", r"^\s*(?:Rate: |Speed: |rate:\s+)(?P<value>\d{1,6}) ?(?:Mb/s|Gb/sec|$)"),
        ("throttled", "none", r"^\s*nr_throttled 0$"),
        ("throttled", "some", r"^\s*nr_throttled [1-9]\d*$"),
    )
)  # fmt: skip
"""Kind, the value where the words have none, and the words; ``name``: what the value belongs to, where a node has several."""
_ASKED = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("answered driver", r"--query-gpu=driver_version|/sys/module/nvidia/version|modinfo .{0,20}nvidia"),
        ("answered release", r"torch\.__version__|torch\.version\.|nccl\.version|(?:pip|conda|rpm|dpkg)3? .{0,40}(?:torch|nccl|cuda|ofed)|ofed_info|nvcc (?:-V|--version)"),
        ("answered kernel", r"\buname -r\b"),
        ("answered gpus", r"nvidia-smi -L\s*\| ?wc -l|--query-gpu=(?:name|count|memory\.total)\b|\bnproc\b"),
        ("answered mtu", r"/sys/class/net/\S{1,20}/mtu"),
        ("answered variable", r"\b(?:printenv|echo) \S{0,3}(?:NCCL|GLOO|RCCL|FI)_\w"),
    )
)  # fmt: skip
"""What a command asks of each host, by the line above the answers."""
_VALUE = re.compile(r"^[\w.+:,~ -]{1,60}$")
_WORDS = (
    "Driver Version",
    "PyTorch version",
    "NCCL",
    "cudaDriverVersion",
    "UUID",
    " mtu ",
    "Rate:",
    "rate:",
    "Speed:",
    "nr_throttled",
)
_CAUSES = {
    "plugin": (("nccl-plugin-differs-between-nodes", LIKELY),),
    "network": (("ib-driver-not-loaded", POSSIBLE), ("hardware-differs-between-nodes", POSSIBLE), ("environment-differs-between-nodes", POSSIBLE)),
    "release": (("software-differs-between-nodes", LIKELY),),
    "driver": (("software-differs-between-nodes", POSSIBLE),),
    "module": (("software-differs-between-nodes", LIKELY),),
    "torch": (("software-differs-between-nodes", LIKELY),),
    "answered driver": (("software-differs-between-nodes", LIKELY),),
    "answered release": (("software-differs-between-nodes", LIKELY),),
    "answered kernel": (("software-differs-between-nodes", POSSIBLE),),
    "answered gpus": (("hardware-differs-between-nodes", LIKELY),),
    "answered mtu": (("mtu-differs-between-nodes", LIKELY),),
    "answered variable": (("environment-differs-between-nodes", LIKELY),),
    "variable": (("environment-differs-between-nodes", LIKELY),),
    "gpu": (("hardware-differs-between-nodes", LIKELY),),
    "mtu": (("mtu-differs-between-nodes", LIKELY),),
    "rate": (("narrow-link", LIKELY),),
    "throttled": (("cpu-quota-on-one-node", LIKELY),),
}  # fmt: skip
_ONE_SIDED = ("NCCL_IB_DISABLE", "NCCL_NET")
"""Variables that choose the network: a node that alone has one takes another network than the others."""
_STATE = re.compile(r"\s*State: (Active|Down|Initializing|Armed)\b")
"""Of a port, as ibstat says it before the rate: without a link that is the slowest that there is, and says nothing of the port."""
_LONGEST, _NODES, _KINDS = 400, 256, 64
_PLACES = {
    "module": "nvidia-smi",
    "torch": "torch/utils/collect_env.py",
    "gpu": "nvidia-smi -L",
    "mtu": "ip-link(8)",
    "rate": "ibstat; ethtool(8)",
    "throttled": "cgroup-v2: cpu.stat",
}

_Said = dict[str, dict[str, tuple[str, str, LogLine]]]
"""By kind and node the first value, with its place."""


_ADDRESS = re.compile(
    r"NCCL INFO (?:Bootstrap|NET/Socket) ?: ?Using (?:\[0\])?[\w.@-]{1,20}:(?P<nccl>\d{1,3}(?:\.\d{1,3}){3})<"
    r"|\blocal=\[(?:::ffff:)?(?P<gloo>\d{1,3}(?:\.\d{1,3}){3})\]:|^\s*inet (?P<ip>\d{1,3}(?:\.\d{1,3}){3})/\d{1,2} (?:metric \d{1,6} )?brd "
)
_SHARED = re.compile(r"^(?:127\.|169\.254\.|0\.|172\.(?:17|18|19)\.|192\.168\.122\.|10\.(?:88|42|244)\.|10\.0\.2\.15$)")
"""The networks of bridges, containers and virtual machines: each host has its own, with the same addresses."""


def addresses_held_twice(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    """Yield the line in which a second host says that an address is its own."""
    holders: dict[str, LogLine] = {}
    for source, part in lines.items():
        for line in part:
            found = (
                _ADDRESS.search(line.text[:_LONGEST]) if line.host and any(word in line.text for word in _OF_ADDRESS) else None
            )
            address = next(filter(None, found.groups()), "") if found is not None else ""
            if not address or _SHARED.match(address):
                continue
            other = holders.setdefault(address, line) if len(holders) < _NODES else holders.get(address, line)
            if other.host.partition(".")[0] != line.host.partition(".")[0]:
                yield Symptom(
                    source=source,
                    line=replace(line, text=f"{line.text[:_LONGEST]} (so does {other.host})"),
                    candidates=(Candidate(cause="duplicate-address", weight=LIKELY),),
                    words="NCCL src/bootstrap.cc; gloo/transport/tcp; ip-address(8)",
                )
                return


_OF_ADDRESS = ("NCCL INFO", "local=[", "inet ")


def symptoms_of(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    """Yield for each thing in which nodes differ the first line that says it differently."""
    yield from addresses_held_twice(lines)
    first: _Said = {}
    hosts: set[str] = set()
    for source, part in lines.items():
        whole = [replace(pieces[0], text=text) for pieces, text in joined(part)]
        down: set[str] = set()
        for line in (*whole, *part):
            if line.host and (state := _STATE.match(line.text)) is not None:
                (down.discard if state[1] == "Active" else down.add)(line.host)
            if line.host and any(word in line.text for word in _WORDS) and not (line.host in down and "ate:" in line.text):
                hosts.add(line.host)
                _take(source, line, first)
        _take_answers(source, part, first)
    chosen = _networks_chosen(first, hosts)
    if chosen is not None:
        yield chosen
    for kind, by_node in first.items():
        if len({value for value, _, _ in by_node.values()}) < 2 or (kind == "network" and chosen is not None):
            continue
        usual = Counter(value for value, _, _ in by_node.values()).most_common(1)[0][0]
        yield _symptom(kind, *next(place[1:] for place in by_node.values() if place[0] != usual))


def _take_answers(source: str, lines: Sequence[LogLine], first: _Said) -> None:
    """Take the bare values that hosts answer to a command whose line tells what was asked."""
    kind = ""
    for line in lines:
        if not line.host:
            kind = next((kind for kind, asked in _ASKED if asked.search(line.text[:_LONGEST])), "")
        elif kind and _VALUE.match(line.text):
            nodes = first.setdefault(kind, {})
            if len(nodes) < _NODES:
                nodes.setdefault(line.host, (line.text, source, line))


def _networks_chosen(first: _Said, hosts: set[str]) -> Symptom | None:
    """Return the line of the variable by which one node takes another network than the others do."""
    networks = first.get("network", {})
    if len({value for value, _, _ in networks.values()}) < 2:
        return None
    for name in _ONE_SIDED:
        setting = first.get(f"variable {name}", {})
        if setting and len(setting) < len(hosts):
            return _symptom("variable", *next(iter(setting.values()))[1:])
    return None


def _symptom(kind: str, source: str, line: LogLine) -> Symptom:
    base = kind if kind in _CAUSES else kind.partition(" ")[0]
    candidates = tuple(Candidate(cause=cause, weight=weight) for cause, weight in _CAUSES[base])
    words = "pdsh; clush; ansible" if base.startswith("answered") else _PLACES.get(base, "NCCL src/init.cc, src/plugin/net.cc")
    return Symptom(source=source, line=line, candidates=candidates, program=words.partition(" ")[0].lower(), words=words)


def _take(source: str, line: LogLine, first: _Said) -> None:
    for kind, constant, pattern in _TOLD:
        found = pattern.search(line.text[:_LONGEST])
        if found is None:
            continue
        fields = found.groupdict()
        value = constant or fields["value"].strip()
        thing = f"{kind} {fields['name']}" if "name" in fields else kind
        if thing not in first and len(first) >= _KINDS:
            return
        nodes = first.setdefault(thing, {})
        if len(nodes) < _NODES and (line.host not in nodes or nodes[line.host][0] == _OWN):
            nodes[line.host] = (value, source, line)
        return
