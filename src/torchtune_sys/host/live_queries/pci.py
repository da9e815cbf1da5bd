"""Read a few registers from the configuration space of one PCI function; never the whole, which also holds serial numbers.

Only the first 64 bytes are for everybody; what this asks for needs CAP_SYS_ADMIN. Each read of a word is a transaction on the bus of about
a microsecond, so the chains of capabilities are walked word by word instead of reading all 4,096 bytes.
Source of the layout: include/uapi/linux/pci_regs.h.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torchtune_sys.host.base import missing_from
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why

Read = Callable[[int, int], int]
"""(offset, bytes) → the number there, little endian. Raises ValueError where there is nothing."""

_EXPRESS = 0x10
_EXTENDED_ACS = 0x0D
_LONGEST = 64
"""Capabilities in one chain; a device that hangs answers 0xff for ever."""
_KINDS = {0: "endpoint", 1: "endpoint", 4: "root-port", 5: "upstream-port", 6: "downstream-port", 9: "endpoint"}
_ACS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")


def config(address: str, _timeout_s: float) -> Fact[Any]:
    """Return ``{"port_type", "max_payload_bytes", "max_read_request_bytes", "relaxed_ordering", "acs"}`` of the function ``address``."""
    path = f"/sys/bus/pci/devices/{address}/config"
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        return missing_from(error, path) if isinstance(error, OSError) else Missing(Why.ABSENT, path)
    try:

        def read(offset: int, size: int) -> int:
            found = os.pread(handle, size, offset)
            if len(found) < size:
                raise ValueError(offset)
            return int.from_bytes(found, "little")

        return parse_config(read, path)
    except OSError as error:
        return missing_from(error, path)
    finally:
        os.close(handle)


def parse_config(read: Read, path: str) -> Fact[dict[str, Any]]:
    """Return the registers, through ``read``.

    >>> parse_config(lambda offset, size: (1 << 8 * size) - 1, "config").why.value
    'failed'
    """
    try:
        if read(0, 2) == 0xFFFF:
            return Missing(Why.FAILED, path, "the device does not answer (all bits are set): it fell off the bus")
        place = _express(read)
    except ValueError as error:
        if error.args and isinstance(error.args[0], int) and error.args[0] >= 0x40:
            return Missing(Why.DENIED, path, "only the first 64 bytes may be read", "run as root")
        return Missing(Why.UNPARSED, path, "shorter than a header")
    if not place:
        return Missing(Why.NOT_SUPPORTED, path, "not a PCI Express function")
    try:
        control = read(place + 8, 2)
        return {
            "port_type": _KINDS.get(read(place + 2, 2) >> 4 & 0xF, "other"),
            "max_payload_bytes": 128 << (control >> 5 & 7),
            "max_read_request_bytes": 128 << (control >> 12 & 7),
            "relaxed_ordering": bool(control & 0x10),
            "acs": _access_control(read, path),
        }
    except ValueError:
        return Missing(Why.UNPARSED, path, "ends within a capability")


def _express(read: Read) -> int:
    """Where the PCI Express capability is; 0 if there is none."""
    if not read(0x06, 2) & 0x10:  # status: no list of capabilities
        return 0
    place = read(0x34, 1) & 0xFC
    for _ in range(_LONGEST):
        if place < 0x40:
            return 0
        word = read(place, 2)
        if word & 0xFF == _EXPRESS:
            return place
        place = word >> 8 & 0xFC
    return 0


def _access_control(read: Read, path: str) -> Any:
    """Return the names of what is switched on, or (as JSON) why there is none."""
    none = {"$missing": Why.ABSENT.value, "source": path, "detail": "no Access Control Services"}
    place = 0x100
    for _ in range(_LONGEST):
        try:
            word = read(place, 4)
        except ValueError:
            return none  # 256 bytes only: a host without extended configuration space
        if word in (0, 0xFFFFFFFF):
            return none
        if word & 0xFFFF == _EXTENDED_ACS:
            offered, chosen = read(place + 4, 2), read(place + 6, 2)
            return [name for bit, name in enumerate(_ACS) if offered & chosen & 1 << bit]
        place = word >> 20 & 0xFFC
        if place < 0x100:
            return none
    return none


_WINDOW_S = 1.0
_ADVISORY = ("NonFatalErr", "CorrIntErr", "HeaderOF", "Advisory Non-Fatal", "Corrected Internal Error", "Header Log Overflow")
"""Linux drivers/pci/pcie/aer.c, aer_correctable_error_string: unsupported requests and the like, which any lspci as root may cause."""


def errors(_argument: str, timeout_s: float) -> Fact[Any]:
    """Return how many correctable errors each function gained within a second."""
    import time

    if timeout_s <= _WINDOW_S:
        return Missing(Why.TIMEOUT, "aer_dev_correctable", "no time left to watch the counters", "a longer --timeout")
    first, start = _correctable(), time.monotonic()
    time.sleep(_WINDOW_S)
    second, seconds = _correctable(), time.monotonic() - start
    gained = {address: second.get(address, 0) - count for address, count in first.items()}
    return {"seconds": seconds, "correctable": {address: more for address, more in gained.items() if more > 0}}


def _correctable() -> dict[str, int]:
    """Errors so far for which something was sent again, of the functions that count them."""
    from torchtune_sys.host.live import read_text

    found: dict[str, int] = {}
    try:
        names = os.listdir("/sys/bus/pci/devices")
    except OSError:
        return found
    for name in names:
        text = read_text(f"/sys/bus/pci/devices/{name}/aer_dev_correctable", name)
        total = None if isinstance(text, Missing) else natural(text.rpartition("TOTAL_ERR_COR")[2].strip())
        if total is not None:
            found[name] = total - sum(map(_advisory, str(text).splitlines()))
    return found


def _advisory(line: str) -> int:
    """
    >>> _advisory("NonFatalErr 7"), _advisory("RxErr 7")
    (7, 0)
    """
    kind, _, count = line.rpartition(" ")
    return (natural(count) or 0) if kind in _ADVISORY else 0
