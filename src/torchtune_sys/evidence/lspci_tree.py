"""The tree that ``lspci -tv`` draws (pciutils, ls-tree.c): which function lies below which bridge, with the names of both."""

from __future__ import annotations

from torchtune_sys.model.patterns import pattern

_TOKEN = pattern(r"\[(?:([0-9a-f]{4,8}):)?([0-9a-f]{2})(?:-[0-9a-f]{2})?\]|(?<=-)([0-9a-f]{2}\.[0-7])(?=-\[|\s|$)")
_LINE = pattern(r"[ |]*[-+\\]")
_LONGEST = 1000
_MOST = 4096

Tree = dict[str, tuple[str, str]]
"""Address → the address of the bridge above (``""`` for none), and vendor and device by name (``""`` without -v)."""


def parse_tree(text: str) -> Tree:
    r"""Return the functions of the first tree of the text, empty if there is none.

    >>> parse_tree("-[0000:00]-+-00.0  Intel Corporation Host bridge\n           \\-01.0-[01]--+-00.0  NVIDIA Corporation Device 2204\n"
    ...            "                        \\-00.1\n")["0000:01:00.0"]
    ('0000:00:01.0', 'NVIDIA Corporation Device 2204')
    """
    found: Tree = {}
    owners: dict[int, str] = {}
    bridges: dict[str, str] = {}
    for line in text.split("\n"):
        drawn = line[:_LONGEST].removeprefix("> ").rstrip()
        if not _LINE.match(drawn) or not (found or "[" in drawn):
            if found and drawn:
                break
            continue
        _read(drawn, found, owners, bridges)
        if len(found) > _MOST:
            break
    return found


def _read(line: str, found: Tree, owners: dict[int, str], bridges: dict[str, str]) -> None:
    """One line: functions and, behind a bridge, its bus. ``owners``: column of a branch → the bus it belongs to."""
    bus = last = ""
    at = 0
    while (token := _TOKEN.search(line, at)) is not None:
        drawn = line[at : token.start()]
        if drawn.strip(" |+-\\"):
            break  # within a name
        at = token.end()
        if token[3] is None:
            domain = token[1] or last.partition(":")[0]
            bus = f"{domain[-4:]}:{token[2]}" if domain else ""
            if last and bus:
                bridges[bus] = last
            continue
        branch = token.start() - 2
        if line[branch] in "+\\":
            if bus:
                owners[branch] = bus
            bus = bus or owners.get(branch, "")
        if not bus:
            return
        last = f"{bus}:{token[3]}"
        found[last] = (bridges.get(bus, ""), "")
        bus = ""
    name = line[at:].strip()
    if last and name and line[at : at + 2] == "  ":
        found[last] = (found[last][0], name)
