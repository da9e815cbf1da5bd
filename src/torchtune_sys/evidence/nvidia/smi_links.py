"""What ``nvidia-smi nvlink -s`` and ``-e`` and ``nvidia-smi topo -p2p`` print of the ways between GPUs."""

from __future__ import annotations

import re
from typing import Any

from torchtune_sys.formats.nvidia_smi.values import NOT_REPORTED, SIZE_LIMIT, missing
from torchtune_sys.model.patterns import pattern

_GPU = pattern(r"GPU (\d{1,3}): ([^\n(]{1,200}?) \(UUID: ([^()\n]{1,100})\)(.*)")
_LINK = pattern(r"Link (\d{1,2}): (<inactive>|\d{1,4}(?:\.\d+)? GB/s|([A-Za-z][A-Za-z ]{3,40}): (\d{1,18})$)")
_COUNTERS = {
    "replay errors": "replay",
    "recovery errors": "recovery",
    "crc errors": "crc_flit",
    "link recovery successful events": "recovery",
    "link recovery failed events": "recovery_failed",
}
"""NVLink 5 has the last two instead of the first three."""
_LINKS = (("V100-SXM", 6), ("A100-SXM", 12), ("A800-SXM", 12), ("HBM3", 18), ("H200", 18), ("B200", 18), ("B300", 18))
"""NVLinks by a part of the name, of GPUs on boards on which all are used; ``nvidia-smi`` names none if all are down."""


def parse_links(text: str) -> tuple[list[dict[str, Any]], int]:
    """Return the GPUs whose NVLinks are listed, and where the last line of them ends.

    >>> parse_links("GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-0)\\n\\t Link 0: 25 GB/s\\n\\t Link 1: <inactive>\\n")[0][0]["nvlinks_down"]
    [1]
    """
    gpus: dict[tuple[str, str], _Links] = {}
    current: _Links | None = None
    at, place = 0, -1
    for line in text[:SIZE_LIMIT].splitlines(keepends=True):
        at += len(line)
        words = line.strip().lstrip("> ") if len(line) < 400 else ""
        heading = _GPU.match(words)
        if heading is not None:
            current = gpus.setdefault((heading[1], heading[3]), _Links(heading)) if len(gpus) < 256 else None
            words = heading[4].strip()
        if current is not None and words and current.add(words):
            place = at
    found = [links.facts() for links in gpus.values() if links.is_listed]
    return found, place


class _Links:
    """The links of one GPU."""

    def __init__(self, heading: re.Match[str]) -> None:
        self.index, self.name, self.uuid = int(heading[1]), heading[2], heading[3]
        self.up: dict[int, bool] = {}
        self.errors: dict[int, dict[str, int]] = {}
        self.is_listed = self.none = self.all_down = False

    def add(self, words: str) -> bool:
        """Whether the line says something of its links."""
        low = words.lower()
        link = _LINK.match(words)
        if "does not have or support nvlink" in low:
            self.none = self.is_listed = True
        elif "as all links are inactive" in low:
            self.all_down = self.is_listed = True
        elif link is None:
            return False
        elif link[3] is None:
            self.up[int(link[1])] = self.is_listed = link[2] != "<inactive>"
            self.is_listed = True
        elif link[3].lower() in _COUNTERS:
            self.errors.setdefault(int(link[1]), {})[_COUNTERS[link[3].lower()]] = int(link[4])
            self.is_listed = True
        return True

    def facts(self) -> dict[str, Any]:
        masked = not re.fullmatch("[0-9A-Za-z-]+", self.uuid)
        found: dict[str, Any] = {"index": self.index, "name": self.name, "uuid": NOT_REPORTED if masked else self.uuid}
        count = next((links for part, links in _LINKS if part in self.name and "NVL" not in self.name), 0)
        if self.none:
            refusal = missing("not-supported", "the device does not have or support NVLink")
            found.update(nvlinks=refusal, nvlinks_down=refusal, nvlink_errors=refusal)
        elif self.up:
            found["nvlinks"] = len(self.up)
            found["nvlinks_down"] = sorted(link for link, up in self.up.items() if not up)
        elif self.all_down and count:
            found.update(nvlinks=count, nvlinks_down=list(range(count)))
        if self.errors:
            counted = [{"link": link, **counts} for link, counts in sorted(self.errors.items()) if any(counts.values())]
            found["nvlink_errors"] = counted
        return found


_P2P = {
    "OK": "ok",
    "CNS": "chipset-not-supported",
    "GNS": "gpu-not-supported",
    "TNS": "topology-not-supported",
    "DR": "disabled-by-regkey",
    "NS": "not-supported",
    "U": "unknown",
}
_WAYS = {"r": "read", "w": "write", "n": "nvlink"}


def parse_p2p(text: str) -> list[dict[str, Any]] | dict[str, str]:
    """Return what pairs of GPUs may do with each other's memory, by the matrices of ``nvidia-smi topo -p2p``; NOT_TOLD if there is none.

    Which of the ways a matrix is about stands only in the command before it.

    >>> parse_p2p("$ nvidia-smi topo -p2p n\\n\\tGPU0\\tGPU1\\n GPU0\\tX\\tNS\\n GPU1\\tNS\\tX\\n")
    [{'first': 0, 'second': 1, 'nvlink': 'not-supported'}]
    """
    pairs: dict[tuple[int, int], dict[str, Any]] = {}
    way = ""
    columns: list[int] = []
    for line in text[:SIZE_LIMIT].splitlines():
        if len(line) > 4000 or ("GPU" not in line and "-p2p" not in line):
            continue
        command = re.search(r"topo\s+(?:-p2p|--p2pstatus)\s+([a-z])\b", line)
        if command is not None:
            way = _WAYS.get(command[1], "")
            continue
        words = line.strip().lstrip("> ").split()
        if len(words) > 1 and all(re.fullmatch(r"GPU\d{1,3}", word) for word in words[:2]):
            columns = [int(word[3:]) for word in words if re.fullmatch(r"GPU\d{1,3}", word)]
        elif way and words and re.fullmatch(r"GPU\d{1,3}", words[0]) and len(words) == len(columns) + 1:
            for column, cell in zip(columns, words[1:], strict=True):
                first, second = int(words[0][3:]), column
                if first < second and cell in _P2P and len(pairs) < 10_000:
                    pairs.setdefault((first, second), {"first": first, "second": second})[way] = _P2P[cell]
    return [pairs[key] for key in sorted(pairs)] if pairs else NOT_REPORTED
