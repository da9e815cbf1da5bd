"""In what the NCCL logs of several nodes differ: the network plugin, the network, the release and the driver.

Variables are facts, which the engine of ``compare`` compares.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from torchtune_sys.diagnosis.lines import LogLine, joined
from torchtune_sys.diagnosis.symptoms import LIKELY, POSSIBLE, Candidate, Symptom

_TOLD: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("own", re.compile(r"NET/Plugin ?: .{0,200}?(?:[Uu]sing internal (?:network plugin|implementation|net plugin)|No plugin found)")),
    ("plugin", re.compile(r"(?:Plugin Path ?: (?:\S{0,200}/)?|NET/Plugin ?: (?:Loaded (?:net|coll) plugin |Using (?:net )?plugin |Plugin name set by env to ))(?P<value>[\w. +-]{1,60})")),
    ("network", re.compile(r"NCCL INFO Using network (?P<value>[\w +-]{1,40})$")),
    ("release", re.compile(r"NCCL version (?P<value>\d+\.\d+\.\d+)")),
    ("driver", re.compile(r"cudaDriverVersion (?P<value>\d{4,6})$")),
)  # fmt: skip
_CAUSES = {
    "plugin": (("nccl-plugin-differs-between-nodes", LIKELY),),
    "network": (("ib-driver-not-loaded", POSSIBLE), ("hardware-differs-between-nodes", POSSIBLE), ("environment-differs-between-nodes", POSSIBLE)),
    "release": (("software-differs-between-nodes", LIKELY),),
    "driver": (("software-differs-between-nodes", POSSIBLE),),
}  # fmt: skip
_LONGEST, _NODES = 400, 256


def symptoms_of(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    """Yield for each thing in which nodes differ the first line that says it differently."""
    first: dict[str, dict[str, tuple[str, str, LogLine]]] = {}
    for source, part in lines.items():
        whole = [msgspec.structs.replace(pieces[0], text=text) for pieces, text in joined(part)]
        for line in (*whole, *part):
            if line.host and "NCCL" in line.text:
                _take(source, line, first)
    for kind, by_node in first.items():
        if len({value for value, _, _ in by_node.values()}) < 2:
            continue
        usual = Counter(value for value, _, _ in by_node.values()).most_common(1)[0][0]
        _, source, line = next(place for place in by_node.values() if place[0] != usual)
        causes = _CAUSES[kind]
        candidates = tuple(Candidate(cause=cause, weight=weight) for cause, weight in causes)
        yield Symptom(
            source=source, line=line, candidates=candidates, program="nccl", words="NCCL src/init.cc, src/plugin/net.cc"
        )


def _take(source: str, line: LogLine, first: dict[str, dict[str, tuple[str, str, LogLine]]]) -> None:
    for kind, pattern in _TOLD:
        found = pattern.search(line.text[:_LONGEST])
        if found is None:
            continue
        value = "none" if kind == "own" else found["value"].strip()
        thing = "plugin" if kind == "own" else kind
        nodes = first.setdefault(thing, {})
        if len(nodes) < _NODES and (line.host not in nodes or nodes[line.host][0] == "none"):
            nodes[line.host] = (value, source, line)
        return
