"""Separate the Xid that is the cause from its consequences, on each GPU."""

from __future__ import annotations

import msgspec

from torchtune_sys.knowledge.xid import rank, xid
from torchtune_sys.model.facts.kernel import KernelEvent
from torchtune_sys.model.rule import Params
from torchtune_sys.model.snapshot import Snapshot, kept
from torchtune_sys.model.values import Missing, known
from torchtune_sys.rules.kernel.common import events as log_events
from torchtune_sys.rules.kernel.common import grouped, recent, same_clock

_TOGETHER_S = 600.0
"""A driver that lost a GPU goes on to report it while programs end; the cleanup of one failure takes minutes, not hours."""
_RELOAD_S = 60.0
"""The driver says "loading" after it probed the GPUs: a message less old belongs to that start (kernel-open/nvidia/nv.c)."""
_STUCK = 3
"""A check that fails once because the GPU is being reset says that somebody resets it."""
_MOST = 500
"""Messages of one GPU: each is held against all others of that GPU, and a log may have any number of them."""


class XidIncident(msgspec.Struct, frozen=True, kw_only=True):
    """One failure of one GPU."""

    address: str
    judged: str
    events: tuple[KernelEvent, ...]
    """The cause, every burst of it."""
    after: tuple[str, ...]
    """What followed from it."""
    over: str = ""
    """Why it is over, ``""`` where it is not."""


def incidents(s: Snapshot, p: Params) -> tuple[XidIncident, ...]:
    """Return the failures in the window, GPU by GPU; the same Xid is one trouble however often it came."""
    by_gpu: dict[str, list[KernelEvent]] = {}
    logged = recent(s, p, "xid", "gpu-lost", "gpu-init", "gsp-timeout")
    named = any(
        event.kind == "xid" and xid(event.code).judged == "gsp" for event in logged
    )  # the Xid, with its GPU, of the same heading
    for event in logged:
        if event.kind != "gsp-timeout" or not named:
            by_gpu.setdefault(event.subject, []).append(event)
    stuck = recent(s, p, "gpu-in-reset")
    if not by_gpu and sum(event.count for event in stuck) >= _STUCK:  # after another message these words say what it says
        by_gpu[""] = list(stuck)
    by_gpu = {address: events[-_MOST:] for address, events in by_gpu.items()}
    lost = tuple(event for events in by_gpu.values() for event in events if _judged(event) == "lost")[-_MOST:]
    found: list[XidIncident] = []
    for address, events in by_gpu.items():
        found += _of_gpu(s, address, events, lost)
    return tuple(found)


def _of_gpu(s: Snapshot, address: str, events: list[KernelEvent], lost: tuple[KernelEvent, ...]) -> list[XidIncident]:
    causes: dict[str, list[KernelEvent]] = {}
    after: dict[str, list[str]] = {}
    elsewhere = [event for event in lost if event.subject != address]
    for number, event in enumerate(events):
        judged = _judged(event)
        if not judged or (judged in ("nvlink", "program", "consequence") and any(_near(event, other) for other in elsewhere)):
            continue
        deeper = [other for other in events[:number] if _explains(other, event)]
        deeper += [other for other in events[number + 1 :] if _explains(other, event) and _rank(other) > _rank(event)]
        if deeper:
            name = _name(max(deeper, key=_rank))
            after.setdefault(name, []).append("" if judged == "action" else _name(event))
        elif judged != "action" or ("to 0x" in event.text and not _takes_back(event)):
            causes.setdefault(_name(event), []).append(event)
    if len(causes) > 1:  # what the driver asks for is told with the fault that it asks it for
        causes.pop("Xid 154", None)
    return [
        XidIncident(
            address=address,
            judged=_judged(group[0]),
            events=tuple(_once(group)),
            after=tuple(dict.fromkeys(filter(None, after.get(name, ())))),
            over=_over(s, address, group[-1]),
        )
        for name, group in causes.items()
    ]


def _takes_back(event: KernelEvent) -> bool:
    """Return whether the driver says that it wants no action any more (Xid 154)."""
    return "to 0x0 (None)" in event.text


def _once(group: list[KernelEvent]) -> list[KernelEvent]:
    """Return the events without those that say what an Xid beside them says (osinit.c: "GPU 0000:18:00.0: GPU has fallen off the bus.")."""
    numbered = [event for event in group if event.kind == "xid"]
    return [event for event in group if event.kind == "xid" or not any(_near(event, other) for other in numbered)]


def _judged(event: KernelEvent) -> str:
    if event.kind == "gpu-lost":
        return "lost"
    if event.kind == "gpu-init":
        return "init"
    if event.kind == "gsp-timeout":
        return "gsp"
    if event.kind == "gpu-in-reset":
        return "gpu"
    kind = xid(event.code).judged
    if kind == "nvlink" and event.code >= 144 and ("Nonfatal" in event.text or "Non-fatal" in event.text):
        return ""  # NVLink 5 reports recovered errors by the same numbers (…, NETIR_LINK_EVT Nonfatal XC0 …)
    return kind


def _name(event: KernelEvent) -> str:
    return _NAMES.get(event.kind) or f"Xid {number_of(event)}"


_NAMES = {"gpu-init": "failed initialisation", "gpu-in-reset": "reset without an end"}


def number_of(event: KernelEvent) -> int:
    """Return the Xid, also of what the driver says in other words."""
    return event.code if event.kind == "xid" else 119 if event.kind == "gsp-timeout" else 79


def _rank(event: KernelEvent) -> int:
    return rank(_judged(event))


def _explains(cause: KernelEvent, event: KernelEvent) -> bool:
    if _name(cause) == _name(event) or _judged(cause) in ("", "action", "consequence", "init") or not _near(event, cause):
        return False
    return _rank(cause) >= _rank(event)


def _near(event: KernelEvent, other: KernelEvent) -> bool:
    if event.first_s is None or other.first_s is None or other.last_s is None or not same_clock(event.first_s, other.first_s):
        return True
    return other.first_s - _TOGETHER_S <= event.first_s <= other.last_s + _TOGETHER_S


def _over(s: Snapshot, address: str, event: KernelEvent) -> str:
    """Return what made a requested reset unnecessary: a reboot, a new start of the driver (both reset every GPU), or the driver, which logs it."""
    if event.last_s is None:
        return ""
    starts, taken_back = _resets(s)
    found: list[KernelEvent] = []
    for other in (*starts, *taken_back.get(address, ())):
        if other.first_s is not None and other.last_s is not None and same_clock(other.first_s, event.last_s):
            after = other.last_s > event.last_s if other.kind == "xid" else other.first_s > event.last_s + _RELOAD_S
            found += [other] if after else []
    if not found:
        return ""
    return _WHY_OVER[min(found, key=lambda other: other.first_s or 0.0).kind]


_WHY_OVER = {
    "boot": "the machine was booted since",
    "driver-load": "the driver was loaded again since",
    "xid": "the driver wants no action any more",
}


@kept
def _resets(s: Snapshot) -> tuple[list[KernelEvent], dict[str, list[KernelEvent]]]:
    """Return what makes a requested reset unnecessary: the last starts of machine and driver, and by GPU where the driver took its request back."""
    events = log_events(s)
    starts = [event for event in events if event.kind in ("boot", "driver-load")]
    asked = [event for event in events if event.kind == "xid" and event.code == 154 and _takes_back(event)]
    return starts[-_MOST:], {address: found[-_MOST:] for address, found in grouped(tuple(asked)).items()}


def wanted_action(s: Snapshot, address: str) -> str:
    """Return what the last Xid 154 of a GPU asks for: ``GPU Reset Required`` …; ``""`` where there is none."""
    return _wanted_actions(s).get(address, "")


@kept
def _wanted_actions(s: Snapshot) -> dict[str, str]:
    found: dict[str, str] = {}
    for event in () if isinstance(s.kernel, Missing) else known(s.kernel.events, ()):
        if event.kind == "xid" and event.code == 154:
            action = event.text.rpartition("(")[2].rstrip(") .") if "(" in event.text.partition(": 154")[2] else ""
            found[event.subject] = "" if action == "None" else action
    return found
