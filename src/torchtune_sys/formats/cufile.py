"""cufile.json: how libcufile (GPUDirect Storage) is configured. JSON with comments that begin with two slashes, as NVIDIA's own file has them."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.values import Missing, Why

_COMMENT = pattern(r'("(?:[^"\\\n]|\\.)*"?)|//[^\n]*')
_LAST_COMMA = pattern(r",(\s*[}\]])")


class CufileSettings(msgspec.Struct, frozen=True, kw_only=True):
    allow_compat_mode: bool = True
    """Whether files that cannot be read directly are read through the host's memory, which is the library's default."""
    use_pci_p2pdma: bool = False
    """Whether NVMe is reached by the kernel's own PCI P2PDMA, without nvidia-fs."""


def parse_cufile(text: str, path: str) -> CufileSettings | Missing:
    """Parse cuFile's configuration: JSON with comments and commas at ends.

    >>> parse_cufile('{ // of the site\\n "properties": {"allow_compat_mode": false, // "x": 1,\\n } }', "/etc/cufile.json")
    CufileSettings(allow_compat_mode=False, use_pci_p2pdma=False)
    >>> parse_cufile("{", "/etc/cufile.json").why
    <Why.UNPARSED: 'unparsed'>
    """
    import json  # few hosts have the file

    plain = _COMMENT.sub(lambda found: found[1] or "", text)
    try:
        held = json.loads(_LAST_COMMA.sub(r"\1", plain))
        properties = held.get("properties", {})
        switches = {name: properties[name] for name in CufileSettings.__struct_fields__ if isinstance(properties.get(name), bool)}
    except (ValueError, AttributeError, RecursionError) as error:
        return Missing(Why.UNPARSED, path, str(error)[:100])
    return CufileSettings(**switches)
