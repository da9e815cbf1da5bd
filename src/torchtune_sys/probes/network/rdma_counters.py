"""Error counters of an RDMA port: one reading, and with ``--live`` what they gained within a second.

The port counters are those of the subnet management agent (PortCounters, IBTA): ``link_downed`` and ``link_error_recovery`` have eight
bits, ``symbol_error`` and ``port_rcv_errors`` sixteen, and they stop at the end instead of starting again. Each read is a command to the
card's firmware, so that only those are read whose value says something by itself. The counters of ``hw_counters`` count on without an end
(64 bits) and tell something only over a window. Sources: Linux drivers/infiniband/core/sysfs.c (PORT_PMA_ATTR), and
Documentation/ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.network import CounterGrowth
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why, fact, need

TOTALS = ("link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors")
_MOST = 1 << 64
_WINDOW_TIMEOUT_S = 5.0


def totals(host: Host, place: str) -> Fact[dict[str, int]]:
    """Return the counters that are there; Missing where none can be read (EFA and virtual functions have no such directory)."""
    found: dict[str, int] = {}
    first: Missing | None = None
    for name in TOTALS:
        path = f"{place}/counters/{name}"
        value = host.word(path)
        count = value if isinstance(value, Missing) else parse_count(value, path)
        if not isinstance(count, Missing):
            found[name] = count
        else:
            first = count if first is None else first
            if count.why is Why.ABSENT and not found:
                break
    return found if found or first is None else first


def parse_count(text: str, path: str = "counter") -> int | Missing:
    """Return a counter of 64 bits at most; the kernel writes ``N/A (no PMA)`` where the card has none.

    >>> parse_count("230539874932483")
    230539874932483
    >>> parse_count("N/A (no PMA)").why.value
    'not-supported'
    """
    if text.startswith("N/A"):
        return Missing(Why.NOT_SUPPORTED, path, text[:40])
    count = natural(text, 20)
    return count if count is not None and count < _MOST else Missing(Why.UNPARSED, path, f"not a count: {text[:40]!r}")


@fact
def growth(host: Host, live: bool) -> Fact[CounterGrowth]:
    """Return what each error counter gained while the host was watched; only with ``--live``, since it takes a second."""
    if not live:
        return Missing(Why.NOT_SUPPORTED, queries.RDMA_COUNTERS, "watched only with --live", "--live")
    return parse_growth(need(host.ask(queries.RDMA_COUNTERS, _WINDOW_TIMEOUT_S)))


def parse_growth(answer: object) -> Fact[CounterGrowth]:
    """Parse ``{"seconds": 1.0, "ports": {"mlx5_0:1": {"symbol_error": [first, second]}}}``; what stayed the same is left out.

    >>> parse_growth({"seconds": 2.0, "ports": {"mlx5_0:1": {"symbol_error": [5, 47], "link_downed": [1, 1]}}})
    CounterGrowth(seconds=2.0, gained={'mlx5_0:1': {'symbol_error': 42}})
    """
    seconds = answer.get("seconds") if isinstance(answer, dict) else None
    ports = answer.get("ports") if isinstance(answer, dict) else None
    if (
        not isinstance(seconds, (int, float))
        or isinstance(seconds, bool)
        or not 0 < seconds < 3600
        or not isinstance(ports, dict)
    ):
        return Missing(Why.UNPARSED, queries.RDMA_COUNTERS, "no window with ports")
    gained: dict[str, dict[str, int]] = {}
    for port, counters in ports.items():
        for name, pair in counters.items() if isinstance(counters, dict) else ():
            more = _gain(pair)
            if more:
                gained.setdefault(str(port), {})[str(name)] = more
    return CounterGrowth(seconds=float(seconds), gained=gained)


def _gain(pair: object) -> int:
    """0 where a counter went back: somebody cleared it in between."""
    if isinstance(pair, (list, tuple)) and len(pair) == 2 and all(type(value) is int for value in pair):
        return max(int(pair[1]) - int(pair[0]), 0)
    return 0
