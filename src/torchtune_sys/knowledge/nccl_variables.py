"""The variables that NCCL reads, by release, the words that it accepts as their values, and what is near to a name that it does not read."""

from __future__ import annotations

import functools

import msgspec

from torchtune_sys.knowledge.tables import rows
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.version import Version, version


class NcclVariable(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    number: bool
    """Read with strtoll: a word counts as 0."""
    first: Version
    last: Version
    """The last release that read it; ``()`` if the newest known still does."""


@functools.cache
def variables() -> dict[str, NcclVariable]:
    """Return the table by name; it is read at the first call, which most hosts never need."""
    return {
        row["variable"]: NcclVariable(
            name=row["variable"], number=row["kind"] == "int", first=version(row["first"]), last=version(row["last"])
        )
        for row in rows("nccl_variables")
    }


LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
"""Words of NCCL_P2P_LEVEL and NCCL_NET_GDR_LEVEL (topoPathTypeStr), nearest first; compared with their case."""
DEBUG_LEVELS = ("VERSION", "WARN", "INFO", "ABORT", "TRACE")
FAMILIES = ("AF_INET", "AF_INET6")
_ELEMENTS = {
    "NCCL_ALGO": ("tree", "ring", "collnet", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"),
    "NCCL_PROTO": ("ll", "ll128", "simple"),
}
"""Of any release, without underscores (ncclAlgoStr, ncclProtoStr)."""


def unknown_elements(name: str, value: str) -> tuple[str, ...]:
    """Return the words of NCCL_ALGO or NCCL_PROTO that name none of NCCL's algorithms or protocols; the case does not count.

    >>> unknown_elements("NCCL_ALGO", "Trees,ring"), unknown_elements("NCCL_ALGO", "allreduce:tree,collnetdirect;broadcast:ring")
    (('Trees',), ())
    >>> unknown_elements("NCCL_PROTO", "^LL128"), unknown_elements("NCCL_PROTO", "LL64")
    ((), ('LL64',))
    """
    lists = [part.rpartition(":")[2].removeprefix("^") for part in value.split(";")]
    words = [word for part in lists for word in part.split(",") if word]
    return tuple(word for word in words if word.lower().replace("_", "") not in _ELEMENTS[name])


def accepts(name: str, value: str) -> bool | None:
    """Return whether NCCL understands ``value``; None where this table does not know. An empty value counts as unset.

    >>> accepts("NCCL_P2P_LEVEL", "NVL"), accepts("NCCL_P2P_LEVEL", "nvl"), accepts("NCCL_P2P_LEVEL", "5")
    (True, False, True)
    """
    if not value:
        return True
    if name in ("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL"):
        return value in LEVELS or value[0] in "0123456789"
    if name == "NCCL_SOCKET_FAMILY":
        return value in FAMILIES
    if name == "NCCL_DEBUG":
        return value.upper() in DEBUG_LEVELS
    if name in ("NCCL_ALGO", "NCCL_PROTO"):
        return not unknown_elements(name, value)
    return None


_BITS = {"NCCL_IB_TIMEOUT": 5, "NCCL_IB_RETRY_CNT": 3, "NCCL_IB_SL": 4, "NCCL_IB_TC": 8}
"""Widths of what NCCL hands to the adapter as it is: InfiniBand architecture specification, volume 1 (Local ACK Timeout, retry count, SL, TClass);
the fields of Linux include/linux/mlx5/mlx5_ifc.h, which take the lowest bits of what is too large."""
_WITH_UNIT = pattern(r"(\d{1,18})[ \t]*(?:[kKmMgG](?:i?[bB])?|[eE]\d{1,3})")


def counts_as(name: str, value: str) -> tuple[int, str] | None:
    """Return what stands for a number that is written with a unit, or is too large for its field, and why; None where it is taken as it is written.

    >>> counts_as("NCCL_BUFFSIZE", "8MB"), counts_as("NCCL_BUFFSIZE", "0x800000")
    ((8, 'strtoll stops at the first letter'), None)
    >>> counts_as("NCCL_IB_RETRY_CNT", "13"), counts_as("NCCL_IB_RETRY_CNT", "7")
    ((5, 'the field has 3 bits'), None)
    """
    row, words = variables().get(name), value.strip()
    if row is None or not row.number or row.last:
        return None
    if found := _WITH_UNIT.fullmatch(words):
        return int(found[1]), "strtoll stops at the first letter"
    bits = _BITS.get(name)
    number = natural(words, 9)
    if bits is None or number is None or number < 1 << bits:
        return None
    return number % (1 << bits), f"the field has {bits} bits"


FOREIGN = (
    *("NCCL_VERSION", "NCCL_ROOT", "NCCL_HOME", "NCCL_DIR", "NCCL_LIB", "NCCL_INCLUDE", "NCCL_STATIC", "NCCL_PATH"),
    *("NCCL_TESTS_", "NCCL_OFI_", "NCCL_SHARP_", "NCCL_UCX_", "NCCL_PLUGIN_", "NCCL_GPUDIRECTTCPX_", "NCCL_FASTRAK_"),
    *("NCCL_INSPECTOR_", "NCCL_PROFILE", "NCCL_TUNER_", "NCCL_RESHARD_", "NCCL_EP_", "NCCL_ENV_", "NCCL_ASYNC_ERROR_HANDLING"),
    *("NCCL_BLOCKING_WAIT", "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING", "NCCL_TRACE_BUFFER_SIZE", "NCCL_DUMP_ON_TIMEOUT"),
    *("NCCL_IB_ROUTABLE", "NCCL_COLLNET_", "NCCL_LL_", "NCCL_RINGS"),
)
"""Beginnings of names that build systems, images, plug-ins and torch use beside NCCL itself."""

_OFTEN_MEANT = {
    "NCCL_IFNAME": "NCCL_SOCKET_IFNAME",
    "NCCL_NET_IFNAME": "NCCL_SOCKET_IFNAME",
    "NCCL_IB_IFNAME": "NCCL_IB_HCA",
    "NCCL_DEBUG_LEVEL": "NCCL_DEBUG",
    "NCCL_HCA": "NCCL_IB_HCA",
    "NCCL_GDR_LEVEL": "NCCL_NET_GDR_LEVEL",
}


def suggestion(name: str) -> str:
    """Return the variable that was probably meant by a name that NCCL does not read; ``""`` where nothing is near.

    >>> suggestion("NCCL_SOCKET_IFNAMES"), suggestion("NCCL_P2P_DISBALE"), suggestion("NCCL_SITE_COMMENT")
    ('NCCL_SOCKET_IFNAME', 'NCCL_P2P_DISABLE', '')
    """
    if name in variables() or name.startswith(FOREIGN):
        return ""
    if name in _OFTEN_MEANT:
        return _OFTEN_MEANT[name]
    most = 1 if len(name) < 14 else 2
    current = [known for known, row in variables().items() if not row.last and abs(len(known) - len(name)) <= most]
    ranked = sorted((distance(name, known), known) for known in current)
    return ranked[0][1] if ranked and ranked[0][0] <= most else ""


def distance(left: str, right: str) -> int:
    """Return the edits (insert, delete, replace, swap neighbours) from one word to the other.

    >>> distance("DISBALE", "DISABLE"), distance("IFNAMES", "IFNAME"), distance("", "ab")
    (1, 1, 2)
    """
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        older, before, row = before, row, [i]
        for j, b in enumerate(right, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
    return row[-1]
