"""Read the kernel's log, as far back as it goes and permissions allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.kernel import KernelFacts
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why, absent_or_unrecorded
from torchtune_sys.probes.kernel import dumps

if TYPE_CHECKING:
    from typing import Any

_SOURCE = "kernel log"
_FILES = ("/var/log/dmesg", "/var/log/kern.log", "/var/log/messages")


def probe(host: Host, intent: Workload) -> KernelFacts:
    from msgspec.structs import replace

    found = _log(host)
    if not isinstance(found.events, Missing):
        from torchtune_sys.probes.kernel.images import of_disks

        found = replace(found, events=tuple(of_disks(host, found.events)))
    return replace(found, taint=host.number("/proc/sys/kernel/tainted"), dumps=dumps.read(host))


def _log(host: Host) -> KernelFacts:
    answer = host.ask(queries.KERNEL_LOG)
    if not isinstance(answer, Missing):
        return parse_answer(answer)
    if not host.live and absent_or_unrecorded(answer):
        found = _from_files(host)
        if found is not None:
            return found
    return _without(answer)


def _without(missing: Missing) -> KernelFacts:
    return KernelFacts(events=missing, from_s=missing, now_s=missing, booted=missing, whole=missing)


def _from_files(host: Host) -> KernelFacts | None:
    """Return the log in a copied tree."""
    for path in _FILES:
        text = host.text(path)
        if isinstance(text, str) and text.strip():
            lines = text.strip().split("\n")
            return parse_answer({"source": path, "lines": lines, "first": lines[0][:60], "last": lines[-1][:60]})
    return None


def parse_answer(found: Any) -> KernelFacts:
    """Return the facts in the answer to ``kernel-log``.

    >>> facts = parse_answer({"source": "/dev/kmsg", "lines": [], "now_s": 90.0, "booted": 1.7e9, "from_s": 0.0, "whole": True})
    >>> facts.events, facts.now_s, facts.whole
    ((), 90.0, True)
    """
    from torchtune_sys.formats.kernel_log import stamps, telling
    from torchtune_sys.formats.kernel_messages import events

    lines = found.get("lines") if isinstance(found, dict) else None
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        return _without(Missing(Why.UNPARSED, _SOURCE, "the answer holds no lines"))
    source = str(found.get("source", _SOURCE))
    first, last = _time(found, "first"), _time(found, "last")
    return KernelFacts(
        events=tuple(events(stamps(telling("\n".join(lines))))),
        source=source,
        from_s=_number(found, "from_s", source) if first is None else first,
        now_s=_number(found, "now_s", source) if last is None else last,
        booted=_number(found, "booted", source) if last is None else _zero(last, source),
        whole=found["whole"] if isinstance(found.get("whole"), bool) else Missing(Why.NOT_RECORDED, source, "not said"),
    )


def _time(found: dict[str, Any], name: str) -> float | None:
    from torchtune_sys.formats.kernel_log import stamps

    return next(stamps([str(found[name])]))[0] if name in found else None


def _zero(last: float, source: str) -> Fact[float]:
    """Return what is to be added to times: those of a calendar need nothing added, if they have a year."""
    return 0.0 if last > 1e9 else Missing(Why.NOT_RECORDED, source, "the log does not say when the machine was booted")


def _number(found: dict[str, Any], name: str, source: str) -> Fact[float]:
    value = found.get(name)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e12:
        return float(value)
    return Missing(Why.NOT_RECORDED, source, f"{name} is not in the answer")
