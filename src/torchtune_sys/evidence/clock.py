"""Whether the clock is synchronised, as ``timedatectl`` and ``chronyc tracking`` print it."""

from __future__ import annotations

import re
from typing import Any

from torchtune_sys.evidence.partial import partly
from torchtune_sys.model.facts.hardware import HardwareFacts
from torchtune_sys.model.patterns import pattern

_SYNCHRONISED = pattern(r"^[ \t>]{0,24}(?:System clock|NTP) synchronized: (yes|no)[ \t]*$", re.MULTILINE)
_DAEMON = pattern(
    r"^[ \t>]{0,24}(?:NTP service|Network time on|NTP enabled|systemd-timesyncd\.service active): (\S{1,12})[ \t]*$", re.MULTILINE
)
"""timedatectl(1) of systemd since 239, and what older ones called it."""
_LEAP = pattern(r"^[ \t>]{0,8}Leap status {0,8}: (Normal|Insert second|Delete second|Not synchronised)[ \t]*$", re.MULTILINE)
"""The last line of ``chronyc tracking`` (chrony client.c)."""


def hardware_facts(text: str) -> HardwareFacts | None:
    r"""Return what synchronises the clock; None where nothing tells, or where two looks tell different things.

    >>> seen = hardware_facts("Reference ID    : 00000000 ()\nStratum         : 0\nLeap status     : Not synchronised\n")
    >>> seen.clock_daemon, seen.clock_synchronised
    ('chronyd', False)
    >>> seen = hardware_facts("System clock synchronized: no\n              NTP service: inactive\n")
    >>> seen.clock_daemon, seen.clock_synchronised
    ('', False)
    """
    if "ynchroni" not in text and "Leap status" not in text:
        return None
    leaps, answers, daemons = (set(each.findall(text)) for each in (_LEAP, _SYNCHRONISED, _DAEMON))
    said = {*(leap != "Not synchronised" for leap in leaps), *(answer == "yes" for answer in answers)}
    if len(said) != 1:
        return None
    facts: dict[str, Any] = {"clock_synchronised": said.pop()}
    if leaps:
        facts["clock_daemon"] = "chronyd"
    elif len(daemons) == 1:
        runs = daemons <= {"active", "yes"} or facts["clock_synchronised"]
        facts["clock_daemon"] = "a time daemon" if runs else ""
    return partly(HardwareFacts, **facts)
