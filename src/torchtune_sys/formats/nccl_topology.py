"""The XML in which NCCL describes a machine (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE), read as leniently as NCCL does.

Source: NCCL src/graph/xml.cc. It is not XML proper: no entities, no declarations, comments are skipped, values stand between double quotes.
"""

from __future__ import annotations

import msgspec

LARGEST = 4096
"""Elements; NCCL itself stops at 256 for a machine."""


class Element(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    values: dict[str, str]
    parent: int
    """Index of the element around it; -1 for the outermost."""


def parse(text: str) -> tuple[Element, ...]:
    """Return the elements in the order in which they open; empty where the text holds no ``<system …>``.

    >>> [(e.name, e.parent, e.values) for e in parse('<system version="1"><cpu numaid="0"><pci busid="0001:00:00.0"/></cpu></system>')]
    [('system', -1, {'version': '1'}), ('cpu', 0, {'numaid': '0'}), ('pci', 1, {'busid': '0001:00:00.0'})]
    """
    import re

    start = text.find("<system")
    if start < 0:
        return ()
    body = text[start:]
    end = body.find("</system>")
    body = body if end < 0 else body[: end + len("</system>")]
    kept = "".join(piece.partition("-->")[2] if at else piece for at, piece in enumerate(body.split("<!--")))
    found: list[Element] = []
    around: list[int] = []
    for match in re.finditer(r"<(/?)([a-z0-9_]{1,32})\b([^<>]*)>", kept):
        closing, name, rest = match.groups()
        if closing:
            if around:
                around.pop()
            continue
        if len(found) == LARGEST:
            return ()
        values = dict(re.findall(r'([a-z0-9_]{1,32})="([^"]*)"', rest))
        found.append(Element(name=name, values=values, parent=around[-1] if around else -1))
        if not rest.rstrip().endswith("/"):
            around.append(len(found) - 1)
    return tuple(found)


def addresses(elements: tuple[Element, ...], classes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the PCI addresses of the functions whose class starts like one of ``classes``, lower case; placeholders left out.

    >>> addresses(parse('<system><pci busid="FFFF:ff:01.0" class="0x060400"><pci busid="0001:00:00.0" class="0x030200"/></pci></system>'), ("0x03",))
    ('0001:00:00.0',)
    """
    found = [
        element.values.get("busid", "").lower()
        for element in elements
        if element.name == "pci" and element.values.get("class", "").startswith(classes)
    ]
    return tuple(dict.fromkeys(address for address in found if address and not address.startswith("ffff:")))
