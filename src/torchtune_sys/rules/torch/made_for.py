"""The torch release that a package of compiled code was made for, where its metadata pin none."""

from __future__ import annotations

from torchtune_sys.knowledge import torch as releases
from torchtune_sys.model.facts.python import OF_ONE_TORCH, Distribution
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.version import Version, version

_BY_TABLE = {
    "torchtext": {"0.15": "2.0", "0.16": "2.1", "0.17": "2.2", "0.18": "2.3"},
    "torchcodec": {
        "0.0": "2.4",
        "0.1": "2.5",
        "0.2": "2.6",
        **dict.fromkeys(("0.3", "0.4", "0.5"), "2.7"),
        **dict.fromkeys(("0.6", "0.7"), "2.8"),
        **dict.fromkeys(("0.8", "0.9"), "2.9"),
    },
}
"""By the tables in the README of pytorch/text and meta-pytorch/torchcodec."""

_NAMED = pattern(
    r"\+\w*?(?:(?:torch|pt)([0-9])\.([0-9]{1,2})|torch([0-9])([0-9]{1,2})0(?=cu|cpu|$)|pt([0-9])([0-9]{1,2})(?=cu|cpu|$))"
)


def made_for(item: Distribution) -> Version | None:
    """Return the torch release that the version of a package names, or a table has for it; None where neither tells."""
    if item.name in OF_ONE_TORCH:
        return named_by(item.version)
    told = _BY_TABLE.get(item.name, {}).get(".".join(item.version.split(".")[:2])) if releases.is_release(item.version) else None
    return version(told) if told else None


def named_by(release: str) -> tuple[int, int] | None:
    """Return the torch release that the local part of a package's version names; None where it names none.

    >>> [named_by(text) for text in ("1.0+cu12torch2.5cxx11abiFALSE", "0.17.5+torch260cu126", "0.21.0+torch2100cu128", "2.1.2+pt25cu124")]
    [(2, 5), (2, 6), (2, 10), (2, 5)]
    >>> named_by("0.6+pt2.5.1cu121"), named_by("1.6.4+pt210cu128"), named_by("0.22.1+cu124"), named_by("2.1")
    ((2, 5), (2, 10), None, None)
    """
    found = _NAMED.search(release)
    if found is None:
        return None
    major, minor = filter(None, found.groups())
    return int(major), int(minor)
