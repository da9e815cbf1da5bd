"""What the ranks' answers to a collective say: whose sums are wrong, whose are late, and whom a signal ended."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import msgspec

from torchtune_sys.preflight.joint.gathered import WORDS_AT_MOST, Late, Rank, taken


def odd_sums(answers: Mapping[Rank, Any]) -> dict[Rank, str]:
    """Return the ranks that got a wrong result of a collective, and what was wrong: they are the bad ones. Empty where more than half of the nodes did: they may all have it from another one.

    >>> odd_sums({(0, 0): {"ok": True}, (1, 0): {"wrong": "1 of 257"}, (2, 0): None}), odd_sums({(0, 0): {"wrong": "all"}})
    ({(1, 0): '1 of 257'}, {})
    """
    wrong = {rank: str(value["wrong"]) for rank, value in answers.items() if isinstance(value, dict) and value.get("wrong")}
    return wrong if 2 * len({rank[0] for rank in wrong}) <= len({rank[0] for rank in answers}) else {}


LATE_S, _LATE_A_RANK_S = 0.15, 0.002
"""An exchange of a few numbers takes no longer on a healthy network."""


class _Exchanges(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank tells of the exchanges of a few numbers."""

    latest: tuple[str, float] = ("", 0.0)
    """The one that took longest, and its seconds at best, beyond what all ranks waited for a CPU."""


def late(answers: Mapping[Rank, Any]) -> Late | None:
    """Return the exchange of a few numbers that took, at best, longer than on any healthy network, and than the ranks waited for a CPU meanwhile; None where none did,
    also where a rank cannot tell how long it waited.
    Linux waits for 200 ms before it sends a lost packet again (TCP_RTO_MIN of include/net/tcp.h).

    >>> late({(0, 0): {"latest": ["all_gather", 0.3]}, (1, 0): {"latest": ["all_gather", 0.3]}}), late({(0, 0): {"latest": ["all_gather", 0.1]}})
    (Late(what='all_gather', seconds=0.3), None)
    """
    told = [taken(value, _Exchanges) or _Exchanges() for value in answers.values() if isinstance(value, dict)]
    what, least_s = min([each.latest for each in told], key=itemgetter(1), default=("", 0.0))
    return Late(what[:WORDS_AT_MOST], least_s) if least_s > LATE_S + _LATE_A_RANK_S * len(answers) else None


def ended_by_signals(answers: Mapping[Rank, Any]) -> dict[Rank, str]:
    """Return the ranks whose part in a collective a signal ended, and which; empty where that is so on more than half of the nodes.

    >>> ended_by_signals({(0, 0): {"signal": "SIGSEGV"}, (1, 0): {"error": "closed"}}), ended_by_signals({(0, 0): {"signal": "SIGABRT"}})
    ({(0, 0): 'SIGSEGV'}, {})
    """
    ended = {
        rank: str(value["signal"])[:20] for rank, value in answers.items() if isinstance(value, dict) and value.get("signal")
    }
    return ended if 2 * len({rank[0] for rank in ended}) <= len({rank[0] for rank in answers}) else {}
